/*
 * file_ops.h - the table of system calls through which all of io reaches the disk.
 *
 * The table in use points at libc.  A test replaces entries to make the n-th write fail, a read
 * come back short or a disk look full, and so reaches every error path without such a disk.
 *
 * Layer: io, internal; outside this layer only tests include it.  Threads: replace the table only
 * while no other thread uses io.
 */
#ifndef LS_FILE_OPS_H
#define LS_FILE_OPS_H

#include <dirent.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

/* Each entry has the meaning, result and errno of the POSIX call of its name. */
typedef struct ls_file_ops {
    int (*open)(const char *path, int flags, mode_t mode);
    int (*close)(int fd);
    ssize_t (*read)(int fd, void *data, size_t bytes);
    ssize_t (*write)(int fd, const void *data, size_t bytes);
    ssize_t (*pread)(int fd, void *data, size_t bytes, off_t offset);
    ssize_t (*pwrite)(int fd, const void *data, size_t bytes, off_t offset);
    int (*fsync)(int fd);
    int (*fstat)(int fd, struct stat *info);
    int (*stat)(const char *path, struct stat *info);
    int (*lstat)(const char *path, struct stat *info);
    int (*statvfs)(const char *path, struct statvfs *info);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    int (*rmdir)(const char *path);
    int (*mkdir)(const char *path, mode_t mode);
    DIR *(*opendir)(const char *path);
    struct dirent *(*readdir)(DIR *directory);
    int (*closedir)(DIR *directory);
} ls_file_ops;

/* The table in use; never NULL. */
const ls_file_ops *ls_file_ops_current(void);

/* The libc table, to copy and change. */
const ls_file_ops *ls_file_ops_libc(void);

/* Use another table (NULL: libc).  Kept by reference: it must outlive its use. */
void ls_file_ops_replace(const ls_file_ops *ops);

#endif
