/*
 * simulated_disk.h - the table of system calls on a simulated tree, to be cut off anywhere.
 *
 * The instant of a cut is a call: from that one on every call fails and changes nothing, so that
 * the program under test returns, and frees its memory, without an effect.  Calls may also fail by
 * themselves, move a part of what was asked for, or report an fsync that did nothing.
 *
 *   disk_open(seed)  disk_arm(...)  ... calls ...  disk_disarm()  [disk_cut()]  ...  disk_close()
 */
#ifndef LS_SIMULATED_DISK_H
#define LS_SIMULATED_DISK_H

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file_ops.h"
#include "simulated_tree.h"

#define DISK_FDS_MAX  16
#define DISK_FD_FIRST 1000

typedef enum disk_call {
    DISK_CALL_READ = 1,  /* open for reading, read, stat, list */
    DISK_CALL_SPACE = 2, /* what may need room: create, write, make a folder */
    DISK_CALL_SYNC = 4,  /* fsync */
    DISK_CALL_NAMES = 8, /* rename, unlink, rmdir */
    DISK_CALL_ANY = 15,
} disk_call;

/* What befalls the calls of a life. */
typedef struct disk_plan {
    int cut_calls;  /* from the n-th call of these kinds on nothing happens any more */
    int64_t cut_at; /* n, from 0; -1: never */
    bool halting;   /* reads and writes are interrupted, or move a part only */
    int fault_calls, fault_error;
    int64_t fault_at, n_faults; /* so many calls of these kinds fail, from this call on */
    const char *idle_sync;      /* fsync of this name reports success and does nothing; with "*"
                                 * at its end, of all that begin so; NULL: none */
} disk_plan;

static struct {
    struct {
        disk_node *node;
        char name[DISK_NAME_BYTES];
        size_t at;
    } fds[DISK_FDS_MAX];
    disk_plan plan;
    int64_t n_calls, n_cut_calls;
    bool is_cut;
} disk;

/* ---- what may befall a call ---------------------------------------------------------------- */

static inline bool disk_fails(int call)
{
    const int64_t number = disk.n_calls++;
    const disk_plan *plan = &disk.plan;

    errno = ENXIO; /* not EIO: a loop that tries again after EIO must end */
    if (disk.is_cut) return true;
    if ((plan->cut_calls & call) && disk.n_cut_calls++ == plan->cut_at) {
        disk.is_cut = true;
        return true;
    }
    if (!(plan->fault_calls & call) || number < plan->fault_at || plan->n_faults == 0) return false;
    disk.plan.n_faults--;
    errno = plan->fault_error;
    return true;
}

/* How much of so many bytes a call moves; 0: it is interrupted. */
static inline size_t disk_part(size_t bytes)
{
    if (!disk.plan.halting || bytes == 0 || disk_random(3) > 0) return bytes;
    errno = EINTR;
    return (size_t)disk_random(bytes);
}

/* ---- the calls ----------------------------------------------------------------------------- */

static inline disk_node *disk_of(int fd)
{
    assert(fd >= DISK_FD_FIRST && fd < DISK_FD_FIRST + DISK_FDS_MAX);
    assert(disk.fds[fd - DISK_FD_FIRST].node);
    return disk.fds[fd - DISK_FD_FIRST].node;
}

static inline int disk_call_open(const char *path, int flags, mode_t mode)
{
    char name[DISK_NAME_BYTES] = ".";
    disk_node *parent = NULL;

    (void)mode;
    assert(!(flags & (O_EXCL | O_APPEND)));
    if (disk_fails(flags & O_CREAT ? DISK_CALL_SPACE : DISK_CALL_READ)) return -1;
    disk_node *node = disk_walk(path, &parent, name);
    if (!node && !(parent && (flags & O_CREAT))) return -1;
    if (!node) {
        node = disk_make(false);
        disk_change_names(parent, "", name, node);
    }
    if (node->is_folder && (flags & O_CREAT)) return errno = EISDIR, -1;
    if (!node->is_folder && (flags & O_DIRECTORY)) return errno = ENOTDIR, -1;
    if (flags & O_TRUNC) {
        disk_resize(&node->now.content, 0);
        node->dirty = true;
        node->torn = false;
    }
    for (int i = 0; i < DISK_FDS_MAX; i++) {
        if (disk.fds[i].node) continue;
        disk.fds[i].node = node;
        disk.fds[i].at = 0;
        disk_copy_name(disk.fds[i].name, name);
        return DISK_FD_FIRST + i;
    }
    return errno = EMFILE, -1;
}

static inline int disk_call_close(int fd)
{
    (void)disk_of(fd);
    disk.fds[fd - DISK_FD_FIRST].node = NULL;
    return 0;
}

static inline ssize_t disk_call_pread(int fd, void *data, size_t bytes, off_t offset)
{
    const disk_content *content = &disk_of(fd)->now.content;
    const size_t at = (size_t)offset < content->bytes ? (size_t)offset : content->bytes;

    if (disk_fails(DISK_CALL_READ)) return -1;
    const size_t left = content->bytes - at, wanted = bytes < left ? bytes : left;
    const size_t n = disk_part(wanted);
    if (n == 0 && wanted > 0) return -1;
    if (n > 0) memcpy(data, content->data + at, n);
    return (ssize_t)n;
}

static inline ssize_t disk_call_write(int fd, const void *data, size_t bytes)
{
    disk_node *node = disk_of(fd);
    size_t *at = &disk.fds[fd - DISK_FD_FIRST].at;
    const bool was_cut = disk.is_cut, fails = disk_fails(DISK_CALL_SPACE);

    if (fails && (was_cut || !disk.is_cut)) return -1;
    /* A call that is the first to fail by a cut is cut off in its middle. */
    const size_t n = fails ? (size_t)disk_random(bytes + 1) : disk_part(bytes);
    if (n == 0 && bytes > 0) return -1;
    if (*at + n > node->now.content.bytes) disk_resize(&node->now.content, *at + n);
    if (n > 0) memcpy(node->now.content.data + *at, data, n);
    node->dirty = true;
    *at += n;
    return fails ? -1 : (ssize_t)n;
}

static inline bool disk_is_idle(const char *name)
{
    const char *idle = disk.plan.idle_sync;
    const size_t length = idle ? strlen(idle) : 0;

    if (length == 0) return false;
    if (idle[length - 1] == '*') return strncmp(name, idle, length - 1) == 0;
    return strcmp(name, idle) == 0;
}

/* A failed fsync reports its error once: the pages count as clean, whether or not they arrived. */
static inline int disk_call_fsync(int fd)
{
    disk_node *node = disk_of(fd);
    const bool fails = disk_fails(DISK_CALL_SYNC);

    if (disk.is_cut) return -1;
    if (!fails && disk_is_idle(disk.fds[fd - DISK_FD_FIRST].name)) return 0;
    if (node->is_folder) {
        if (!fails) disk_sync_names(node);
        return fails ? -1 : 0;
    }
    if (node->dirty && fails) {
        const int error = errno;
        const disk_content left = disk_tear(&node->disk.content, &node->now.content);
        free(node->disk.content.data);
        node->disk.content = left;
        errno = error;
    } else if (node->dirty) {
        disk_copy(&node->disk.content, &node->now.content);
    }
    node->dirty = false;
    return fails ? -1 : 0;
}

static inline void disk_fill_stat(const disk_node *node, struct stat *info)
{
    memset(info, 0, sizeof *info);
    info->st_mode = node->is_folder ? S_IFDIR | 0777 : S_IFREG | 0666;
    info->st_size = (off_t)node->now.content.bytes;
}

static inline int disk_call_fstat(int fd, struct stat *info)
{
    if (disk_fails(DISK_CALL_READ)) return -1;
    disk_fill_stat(disk_of(fd), info);
    return 0;
}

static inline int disk_call_stat(const char *path, struct stat *info)
{
    if (disk_fails(DISK_CALL_READ)) return -1;
    const disk_node *node = disk_walk(path, NULL, NULL);
    if (!node) return -1;
    disk_fill_stat(node, info);
    return 0;
}

static inline int disk_call_statvfs(const char *path, struct statvfs *info)
{
    if (disk_fails(DISK_CALL_READ) || !disk_walk(path, NULL, NULL)) return -1;
    memset(info, 0, sizeof *info);
    info->f_bavail = 1 << 20;
    info->f_frsize = 4096;
    return 0;
}

static inline int disk_call_rename(const char *from, const char *to)
{
    char from_name[DISK_NAME_BYTES], to_name[DISK_NAME_BYTES];
    disk_node *from_folder, *to_folder;

    if (disk_fails(DISK_CALL_NAMES)) return -1;
    disk_node *node = disk_walk(from, &from_folder, from_name);
    if (!node) return -1;
    const disk_node *replaced = disk_walk(to, &to_folder, to_name);
    if (!to_folder) return -1;
    assert(from_folder == to_folder); /* all that is needed here */
    if (replaced && replaced->is_folder) return errno = ENOTEMPTY, -1;
    if (replaced && node->is_folder) return errno = ENOTDIR, -1;
    disk_change_names(from_folder, from_name, to_name, node);
    return 0;
}

static inline int disk_remove(const char *path, bool is_folder)
{
    char name[DISK_NAME_BYTES];
    disk_node *parent;

    if (disk_fails(DISK_CALL_NAMES)) return -1;
    disk_node *node = disk_walk(path, &parent, name);
    if (!node) return -1;
    if (node->is_folder != is_folder) return errno = is_folder ? ENOTDIR : EISDIR, -1;
    if (is_folder && node->now.names->n > 0) return errno = ENOTEMPTY, -1;
    disk_change_names(parent, name, "", node);
    return 0;
}

static inline int disk_call_unlink(const char *path)
{
    return disk_remove(path, false);
}

static inline int disk_call_rmdir(const char *path)
{
    return disk_remove(path, true);
}

static inline int disk_call_mkdir(const char *path, mode_t mode)
{
    char name[DISK_NAME_BYTES];
    disk_node *parent = NULL;

    (void)mode;
    if (disk_fails(DISK_CALL_SPACE)) return -1;
    if (disk_walk(path, &parent, name)) return errno = EEXIST, -1;
    if (!parent) return -1;
    disk_change_names(parent, "", name, disk_make(true));
    return 0;
}

/* A list is of the names at the time it is opened. */
typedef struct disk_list {
    disk_names names;
    int next;
    struct dirent entry;
} disk_list;

static inline DIR *disk_call_opendir(const char *path)
{
    if (disk_fails(DISK_CALL_READ)) return NULL;
    const disk_node *node = disk_walk(path, NULL, NULL);
    if (!node) return NULL;
    if (!node->is_folder) return errno = ENOTDIR, NULL;
    disk_list *list = calloc(1, sizeof *list);
    assert(list);
    list->names = *node->now.names;
    return (DIR *)list;
}

static inline struct dirent *disk_call_readdir(DIR *directory)
{
    disk_list *list = (disk_list *)directory;
    const int error = errno;

    if (disk_fails(DISK_CALL_READ)) return NULL;
    errno = error;
    if (list->next == list->names.n) return NULL;
    snprintf(list->entry.d_name, sizeof list->entry.d_name, "%s",
             list->names.of[list->next++].name);
    return &list->entry;
}

static inline int disk_call_closedir(DIR *directory)
{
    free(directory);
    return 0;
}

/* ---- lives --------------------------------------------------------------------------------- */

/* From here on the table leads here. */
static inline void disk_arm(const disk_plan *plan)
{
    static const ls_file_ops ops = {.open = disk_call_open,
                                    .close = disk_call_close,
                                    .write = disk_call_write,
                                    .pread = disk_call_pread,
                                    .fsync = disk_call_fsync,
                                    .fstat = disk_call_fstat,
                                    .stat = disk_call_stat,
                                    .lstat = disk_call_stat,
                                    .statvfs = disk_call_statvfs,
                                    .rename = disk_call_rename,
                                    .unlink = disk_call_unlink,
                                    .rmdir = disk_call_rmdir,
                                    .mkdir = disk_call_mkdir,
                                    .opendir = disk_call_opendir,
                                    .readdir = disk_call_readdir,
                                    .closedir = disk_call_closedir};
    disk.plan = *plan;
    disk.n_calls = disk.n_cut_calls = 0;
    disk.is_cut = false;
    ls_file_ops_replace(&ops);
}

/* The process is gone; what it had open must have been closed. */
static inline void disk_disarm(void)
{
    ls_file_ops_replace(NULL);
    for (int i = 0; i < DISK_FDS_MAX; i++) assert(!disk.fds[i].node);
}

#endif
