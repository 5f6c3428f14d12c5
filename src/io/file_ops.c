/* file_ops.c - the libc table, and which table is in use. */
#include "file_ops.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static int open_file(const char *path, int flags, mode_t mode)
{
    return open(path, flags, mode); /* variadic in libc, so it needs a function of this type */
}

static const ls_file_ops libc_ops = {
    .open = open_file,
    .close = close,
    .read = read,
    .write = write,
    .pread = pread,
    .pwrite = pwrite,
    .fsync = fsync,
    .fstat = fstat,
    .stat = stat,
    .lstat = lstat,
    .statvfs = statvfs,
    .rename = rename,
    .unlink = unlink,
    .rmdir = rmdir,
    .mkdir = mkdir,
    .opendir = opendir,
    .readdir = readdir,
    .closedir = closedir,
};

static const ls_file_ops *current_ops = &libc_ops;

const ls_file_ops *ls_file_ops_current(void)
{
    return current_ops;
}

const ls_file_ops *ls_file_ops_libc(void)
{
    return &libc_ops;
}

void ls_file_ops_replace(const ls_file_ops *ops)
{
    current_ops = ops ? ops : &libc_ops;
}
