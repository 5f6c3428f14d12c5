/*
 * file.c - read to the end under a limit; write, fsync, rename, fsync the folder.
 *
 * The temporary name carries the process id and a counter, so writers of one path in several
 * threads or processes never share a half-written file; the last rename wins.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES_FIRST 4096

static ls_status read_to_end(int fd, const char *path, uint64_t bytes_max, char **text,
                             uint64_t *bytes)
{
    uint64_t used = 0, capacity = READ_BYTES_FIRST;
    ls_status status = LS_OK;
    char *data = malloc(capacity);

    while (data != NULL) {
        const ssize_t n = read(fd, data + used, capacity - used - 1);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            status = LS_FAIL(LS_ERR_IO, "read %s: %s", path, strerror(errno));
            goto free_data;
        }
        if (n == 0) {
            data[used] = '\0';
            *text = data;
            *bytes = used;
            return LS_OK;
        }
        used += (uint64_t)n;
        if (used > bytes_max) {
            status =
                LS_FAIL(LS_ERR_INVALID, "%s: larger than %llu bytes, too large for such a file",
                        path, (unsigned long long)bytes_max);
            goto free_data;
        }
        if (used + 1 == capacity) {
            char *more = realloc(data, capacity * 2);
            if (more == NULL) break;
            data = more;
            capacity *= 2;
        }
    }
    status = LS_FAIL(LS_ERR_NO_MEMORY, "read %s: out of memory", path);
free_data:
    free(data);
    return status;
}

ls_status ls_file_read(const char *path, uint64_t bytes_max, char **text, uint64_t *bytes)
{
    struct stat about;
    ls_status status;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) return LS_FAIL(LS_ERR_IO, "open %s: %s", path, strerror(errno));
    if (fstat(fd, &about) == 0 && S_ISDIR(about.st_mode))
        status = LS_FAIL(LS_ERR_IO, "%s is a folder, not a file", path);
    else
        status = read_to_end(fd, path, bytes_max, text, bytes);
    close(fd);
    return status;
}

static ls_status write_all(int fd, const char *path, const char *data, uint64_t bytes)
{
    while (bytes > 0) {
        const size_t ask = bytes < (1u << 30) ? (size_t)bytes : (size_t)1 << 30;
        const ssize_t n = write(fd, data, ask);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return LS_FAIL(LS_ERR_IO, "write %s: %s", path, strerror(errno));
        data += n;
        bytes -= (uint64_t)n;
    }
    if (fsync(fd) != 0) return LS_FAIL(LS_ERR_IO, "sync %s: %s", path, strerror(errno));
    return LS_OK;
}

/* Make the rename itself last: the name lives in the folder. */
static ls_status sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash == NULL ? strdup(".") : strdup(path);
    ls_status status = LS_OK;
    int fd;

    if (folder == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "write %s: out of memory", path);
    if (slash != NULL) folder[slash == path ? 1 : slash - path] = '\0';
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* some network file systems cannot sync a folder and say EINVAL: nothing more can be done */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        status = LS_FAIL(LS_ERR_IO, "sync folder %s: %s", folder, strerror(errno));
    if (fd >= 0) close(fd);
    free(folder);
    return status;
}

ls_status ls_file_write(const char *path, const void *data, uint64_t bytes)
{
    static atomic_uint n_writes;
    const size_t size = strlen(path) + 48;
    char *temporary = malloc(size);
    ls_status status;
    int fd;

    if (temporary == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "write %s: out of memory", path);
    snprintf(temporary, size, "%s.tmp-%ld-%u", path, (long)getpid(),
             atomic_fetch_add(&n_writes, 1));
    /* One that exists is of a dead process: in a container each has the same id as the last. */
    fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        status = LS_FAIL(LS_ERR_IO, "create %s: %s", temporary, strerror(errno));
        goto free_name;
    }
    status = write_all(fd, temporary, data, bytes);
    if (close(fd) != 0 && status == LS_OK)
        status = LS_FAIL(LS_ERR_IO, "close %s: %s", temporary, strerror(errno));
    if (status == LS_OK && rename(temporary, path) != 0)
        status = LS_FAIL(LS_ERR_IO, "rename %s to %s: %s", temporary, path, strerror(errno));
    if (status != LS_OK)
        unlink(temporary);
    else
        status = sync_folder(path);
free_name:
    free(temporary);
    return status;
}

int ls_file_swap(const char *path, const char *beside, const void *data, uint64_t bytes)
{
    const int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return errno;

    errno = EIO; /* a short write says nothing */
    const bool written = write(fd, data, (size_t)bytes) == (ssize_t)bytes;
    int error = written ? 0 : errno;
    if (close(fd) != 0 && error == 0) error = errno;
    if (error == 0 && rename(beside, path) != 0) error = errno;
    if (error != 0) unlink(beside);
    return error;
}

ls_status ls_file_check_plain(int fd, const char *path)
{
    struct stat about;

    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode)) return LS_OK;
    return LS_FAIL(LS_ERR_IO, "%s is no plain file; move it away", path);
}
