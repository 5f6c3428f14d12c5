/*
 * disk_file.c - loops around read and write, and write-beside-then-rename.
 *
 * One system call moves at most CALL_BYTES_MAX, because Linux silently stops at 2 GiB - 4 KiB and
 * smaller calls notice a signal sooner.  Speed is the disk's.
 */
#include "disk_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "directory.h"
#include "file_ops.h"

#define CALL_BYTES_MAX ((uint64_t)1 << 28)

static const char *find_remedy(int error)
{
    switch (error) {
    case ENOSPC: return " (the disk is full: free some space or choose another folder)";
    case EDQUOT: return " (the quota is used up: free some space or choose another folder)";
    case EROFS: return " (the file system is read-only: choose another folder)";
    case EACCES:
    case EPERM: return " (check the owner and the mode bits of the path)";
    case EMFILE:
    case ENFILE: return " (too many open files: raise `ulimit -n`)";
    case EEXIST: return " (something else has that name: move it away or choose another name)";
    case ENOTDIR: return " (a part of the path is no folder: choose another path)";
    case EIO: return " (the device reports an error: check the disk and the kernel log)";
    default: return "";
    }
}

void ls_disk_file_describe_error(const char *action, const char *path, int error)
{
    char reason[128] = "";

    if (strerror_r(error, reason, sizeof reason) != 0) {
        snprintf(reason, sizeof reason, "error %d", error);
    }
    (void)LS_FAIL(error == ENOMEM ? LS_ERR_NO_MEMORY : LS_ERR_IO, "%s %s: %s%s", action, path,
                  reason, find_remedy(error));
}

void ls_disk_file_describe_memory(uint64_t bytes, const char *what)
{
    (void)LS_FAIL(LS_ERR_NO_MEMORY, "no host memory: %llu bytes for %s", (unsigned long long)bytes,
                  what);
}

ls_status ls_disk_file_open(const char *path, ls_disk_file_mode mode, ls_disk_file *file)
{
    const ls_file_ops *ops = ls_file_ops_current();
    const int flags =
        (mode == LS_DISK_FILE_READ ? O_RDONLY : O_RDWR | O_CREAT | O_TRUNC) | O_CLOEXEC;
    struct stat info;
    ls_status status;
    int fd;

    do {
        /* Not blocking: opening a pipe nobody writes to would hang.  Regular files ignore it. */
        fd = ops->open(path, flags | O_NONBLOCK, 0666);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return ls_disk_file_fail(mode == LS_DISK_FILE_READ ? "open" : "create", path, errno);

    char *copy = strdup(path);
    if (!copy) {
        status = ls_disk_file_fail_memory(strlen(path) + 1, "a path");
        goto close_fd;
    }
    if (ops->fstat(fd, &info) != 0) {
        status = ls_disk_file_fail("stat", path, errno);
        goto free_copy;
    }
    if (!S_ISREG(info.st_mode)) {
        status = LS_FAIL(LS_ERR_INVALID, "%s is not a regular file", path);
        goto free_copy;
    }
    file->fd = fd;
    file->path = copy;
    return LS_OK;

free_copy:
    free(copy);
close_fd:
    ops->close(fd);
    return status;
}

void ls_disk_file_close(ls_disk_file *file)
{
    if (!file) return;
    if (file->fd >= 0) ls_file_ops_current()->close(file->fd);
    free(file->path);
    file->fd = -1;
    file->path = NULL;
}

ls_status ls_disk_file_size(const ls_disk_file *file, uint64_t *bytes)
{
    struct stat info;

    if (ls_file_ops_current()->fstat(file->fd, &info) != 0) {
        return ls_disk_file_fail("stat", file->path, errno);
    }
    *bytes = (uint64_t)info.st_size;
    return LS_OK;
}

static size_t clip_call(uint64_t bytes)
{
    return (size_t)(bytes < CALL_BYTES_MAX ? bytes : CALL_BYTES_MAX);
}

ls_status ls_disk_file_read_at(const ls_disk_file *file, void *data, uint64_t bytes,
                               uint64_t offset)
{
    const ls_file_ops *ops = ls_file_ops_current();
    uint64_t at = 0;

    while (at < bytes) {
        const ssize_t got =
            ops->pread(file->fd, (char *)data + at, clip_call(bytes - at), (off_t)(offset + at));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return ls_disk_file_fail("read", file->path, errno);
        if (got == 0) {
            return LS_FAIL(LS_ERR_CORRUPT,
                           "%s is cut short: it ends at byte %llu, needed up to byte %llu",
                           file->path, (unsigned long long)(offset + at),
                           (unsigned long long)(offset + bytes));
        }
        at += (uint64_t)got;
    }
    return LS_OK;
}

/* A write that moves nothing is a full disk under another name; without this it would spin. */
static ls_status fail_write(const ls_disk_file *file, ssize_t put)
{
    return ls_disk_file_fail("write", file->path, put == 0 ? ENOSPC : errno);
}

ls_status ls_disk_file_write(ls_disk_file *file, const void *data, uint64_t bytes)
{
    const ls_file_ops *ops = ls_file_ops_current();
    uint64_t at = 0;

    while (at < bytes) {
        const ssize_t put = ops->write(file->fd, (const char *)data + at, clip_call(bytes - at));
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return fail_write(file, put);
        at += (uint64_t)put;
    }
    return LS_OK;
}

ls_status ls_disk_file_write_at(const ls_disk_file *file, const void *data, uint64_t bytes,
                                uint64_t offset)
{
    const ls_file_ops *ops = ls_file_ops_current();
    uint64_t at = 0;

    while (at < bytes) {
        const ssize_t put = ops->pwrite(file->fd, (const char *)data + at, clip_call(bytes - at),
                                        (off_t)(offset + at));
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return fail_write(file, put);
        at += (uint64_t)put;
    }
    return LS_OK;
}

ls_status ls_disk_file_sync(const ls_disk_file *file)
{
    int result;

    do {
        result = ls_file_ops_current()->fsync(file->fd);
    } while (result != 0 && errno == EINTR);
    return result == 0 ? LS_OK : ls_disk_file_fail("sync", file->path, errno);
}

ls_status ls_disk_file_read_all(const char *path, uint64_t bytes_max, char **data, uint64_t *bytes)
{
    ls_disk_file file = LS_DISK_FILE_CLOSED;
    uint64_t size = 0;
    char *content = NULL;

    LS_TRY(ls_disk_file_open(path, LS_DISK_FILE_READ, &file));
    ls_status status = ls_disk_file_size(&file, &size);
    if (status != LS_OK) goto close_file;
    if (size > bytes_max) {
        status = LS_FAIL(LS_ERR_CORRUPT, "%s has %llu bytes, more than the %llu such a file may be",
                         path, (unsigned long long)size, (unsigned long long)bytes_max);
        goto close_file;
    }
    content = malloc((size_t)size + 1);
    if (!content) {
        status = ls_disk_file_fail_memory(size + 1, path);
        goto close_file;
    }
    status = ls_disk_file_read_at(&file, content, size, 0);
    if (status != LS_OK) {
        free(content);
        goto close_file;
    }
    content[size] = '\0';
    *data = content;
    if (bytes) *bytes = size;

close_file:
    ls_disk_file_close(&file);
    return status;
}

static ls_status write_synced(const char *path, const void *data, uint64_t bytes)
{
    ls_disk_file file = LS_DISK_FILE_CLOSED;

    LS_TRY(ls_disk_file_open(path, LS_DISK_FILE_CREATE, &file));
    ls_status status = ls_disk_file_write(&file, data, bytes);
    if (status == LS_OK) status = ls_disk_file_sync(&file);
    ls_disk_file_close(&file);
    return status;
}

ls_status ls_disk_file_write_atomic(const char *path, const void *data, uint64_t bytes)
{
    const size_t room = strlen(path) + 32;
    char *beside = malloc(room);
    char *parent = ls_path_parent(path);
    ls_status status;

    if (!beside || !parent) {
        status = ls_disk_file_fail_memory(room, "a path");
        goto free_paths;
    }
    snprintf(beside, room, "%s.tmp-%ld", path, (long)getpid());
    status = write_synced(beside, data, bytes);
    if (status == LS_OK) status = ls_disk_file_rename(beside, path);
    if (status != LS_OK) {
        ls_disk_file_discard(beside);
        goto free_paths;
    }
    status = ls_directory_sync(parent);

free_paths:
    free(parent);
    free(beside);
    return status;
}

ls_status ls_disk_file_rename(const char *from, const char *to)
{
    if (ls_file_ops_current()->rename(from, to) == 0) return LS_OK;
    return ls_disk_file_fail("rename to", to, errno);
}

ls_status ls_disk_file_remove(const char *path)
{
    if (ls_file_ops_current()->unlink(path) == 0 || errno == ENOENT) return LS_OK;
    return ls_disk_file_fail("remove", path, errno);
}

void ls_disk_file_discard(const char *path)
{
    ls_file_ops_current()->unlink(path);
}

void ls_disk_file_put_back(const char *from, const char *to)
{
    ls_file_ops_current()->rename(from, to);
}

char *ls_path_join(const char *directory, const char *name)
{
    const size_t room = strlen(directory) + strlen(name) + 2;
    char *path = malloc(room);

    if (path) snprintf(path, room, "%s/%s", directory, name);
    return path;
}

char *ls_path_parent(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (!slash) return strdup(".");
    if (slash == path) return strdup("/");
    return strndup(path, (size_t)(slash - path));
}
