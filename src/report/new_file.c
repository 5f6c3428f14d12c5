/* new_file.c - write beside, rename. */
#include "new_file.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

ls_status ls_new_file_open(const char *path, ls_new_file *new_file)
{
    snprintf(new_file->path, sizeof new_file->path, "%s", path);
    snprintf(new_file->path_beside, sizeof new_file->path_beside, "%s.tmp", new_file->path);
    new_file->file = fopen(new_file->path_beside, "we");
    return new_file->file != NULL ? LS_OK : LS_FAIL(LS_ERR_IO, "%s: %s", path, strerror(errno));
}

/* Why not all could be written; 0: all was.  A stream that has failed has forgotten why: asked once
 * more it fails of the same. */
static int find_error(FILE *file)
{
    const bool failed = ferror(file) != 0;

    errno = 0;
    if (failed) {
        clearerr(file);
        fputc('\n', file);
    }
    if (fflush(file) == 0 && !failed) return 0;
    return errno != 0 ? errno : EIO;
}

ls_status ls_new_file_close(ls_new_file *new_file, ls_status status)
{
    int error = find_error(new_file->file);

    if (fclose(new_file->file) != 0 && error == 0) error = errno;
    new_file->file = NULL;
    if (status == LS_OK && error == 0) {
        if (rename(new_file->path_beside, new_file->path) == 0) return LS_OK;
        error = errno;
    }
    unlink(new_file->path_beside);
    if (status != LS_OK) return status;
    return LS_FAIL(LS_ERR_IO, "%s: cannot write: %s", new_file->path, strerror(error));
}
