/*
 * fuzz_memory_file.h - the fuzzer's bytes as the only file there is: io's system calls answered
 * from memory, so that an input costs no disk.
 */
#ifndef LS_FUZZ_MEMORY_FILE_H
#define LS_FUZZ_MEMORY_FILE_H

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "file_ops.h"

#define REGULAR_FILE 0100000 /* S_IFREG, which POSIX alone does not define */

static const uint8_t *memory_data;
static size_t memory_bytes;

static int memory_open(const char *path, int flags, mode_t mode)
{
    (void)path, (void)flags, (void)mode;
    return 1000; /* never a descriptor of this process */
}

static int memory_close(int fd)
{
    (void)fd;
    return 0;
}

static int memory_fstat(int fd, struct stat *info)
{
    (void)fd;
    memset(info, 0, sizeof *info);
    info->st_mode = REGULAR_FILE;
    info->st_size = (off_t)memory_bytes;
    return 0;
}

static ssize_t memory_pread(int fd, void *data, size_t bytes, off_t offset)
{
    (void)fd;
    if (offset < 0) {
        errno = EINVAL;
        return -1;
    }
    if ((uint64_t)offset >= memory_bytes) return 0;
    const size_t rest = memory_bytes - (size_t)offset;
    const size_t n = bytes < rest ? bytes : rest;
    memcpy(data, memory_data + offset, n);
    return (ssize_t)n;
}

/* From here on every path opens these bytes. */
static void use_memory_file(const uint8_t *data, size_t bytes)
{
    static ls_file_ops ops;

    ops = *ls_file_ops_libc();
    ops.open = memory_open;
    ops.close = memory_close;
    ops.fstat = memory_fstat;
    ops.pread = memory_pread;
    memory_data = data;
    memory_bytes = bytes;
    ls_file_ops_replace(&ops);
}

#endif
