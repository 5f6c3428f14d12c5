/*
 * record_find.c - looks for a line of the record by how it begins: a record may have a million
 * lines of kilobytes, and all but one are other steps'.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record.h"

#define PATH_BYTES 4096

ls_status ls_record_find_eval(const char *directory, int64_t step, bool *found)
{
    char path[PATH_BYTES], begin[64];
    char *line = NULL;
    size_t capacity = 0;
    bool seen = false;

    snprintf(path, sizeof path, "%s/record.jsonl", directory);
    const int length = snprintf(begin, sizeof begin, "{\"step\":%lld,", (long long)step);
    FILE *file = fopen(path, "re");
    if (file == NULL && errno == ENOENT) {
        *found = false;
        return LS_OK;
    }
    if (file == NULL) return LS_FAIL(LS_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
    while (!seen && getline(&line, &capacity, file) > 0)
        seen = strncmp(line, begin, (size_t)length) == 0 && strstr(line, "\"eval_loss\":") != NULL;
    const bool failed = !seen && !feof(file);
    const int error = errno;
    free(line);
    fclose(file);
    if (failed) return LS_FAIL(LS_ERR_IO, "%s: cannot read: %s", path, strerror(error));
    *found = seen;
    return LS_OK;
}
