/*
 * simulated_disk.h - a disk in memory behind the table of system calls, to be cut off anywhere.
 *
 * Every file and folder has two states: `now`, what programs see, and `disk`, what is on stable
 * storage.  fsync of a file moves its content, fsync of a folder moves its names.  A power cut
 * leaves of the rest what the random numbers choose: content old, new, or torn block by block; of
 * the changes of names the first few, or each by itself.  A killed process loses nothing of `now`.
 *
 * An instant is a call: from that one on every call fails and changes nothing, so that the program
 * under test returns, and frees its memory, without an effect.
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

#define DISK_NAME_BYTES  96
#define DISK_NAMES_MAX   24 /* in one folder */
#define DISK_NODES_MAX   4096
#define DISK_CHANGES_MAX 4096
#define DISK_FDS_MAX     16
#define DISK_FD_FIRST    1000
#define DISK_BLOCK_BYTES 64 /* what a power cut keeps or loses as a whole */

typedef struct disk_node disk_node;

typedef struct disk_content {
    uint8_t *data;
    size_t bytes;
} disk_content;

typedef struct disk_names {
    struct {
        char name[DISK_NAME_BYTES];
        disk_node *node;
    } of[DISK_NAMES_MAX];
    int n;
} disk_names;

typedef struct disk_node {
    bool is_folder;
    struct {
        disk_content content;
        disk_names *names;
    } now, disk;
    bool dirty; /* content that fsync would move */
    bool torn;  /* lost something since it was created or emptied */
} disk_node;

/* A change of names that is not on stable storage yet: from -> to, either may be "". */
typedef struct disk_change {
    disk_node *folder, *node;
    char from[DISK_NAME_BYTES], to[DISK_NAME_BYTES];
} disk_change;

typedef enum disk_call {
    DISK_CALL_READ = 1,  /* open for reading, read, stat, list */
    DISK_CALL_SPACE = 2, /* what may need room: create, write, make a folder */
    DISK_CALL_SYNC = 4,  /* fsync */
    DISK_CALL_NAMES = 8, /* rename, unlink, rmdir */
} disk_call;

/* What befalls the calls of a life. */
typedef struct disk_plan {
    int64_t cut_at; /* from this call on nothing happens; -1: never */
    bool halting;   /* reads and writes are interrupted, or move a part only */
    int fault_calls, fault_error;
    int64_t fault_at, n_faults; /* so many calls of these kinds fail, from this call on */
    const char *idle_sync;      /* fsync of this name reports success and does nothing; with "*"
                                 * at its end, of all that begin so; NULL: none */
} disk_plan;

static struct {
    uint64_t random;
    disk_node *nodes[DISK_NODES_MAX];
    int n_nodes;
    disk_change changes[DISK_CHANGES_MAX];
    int n_changes;
    struct {
        disk_node *node;
        char name[DISK_NAME_BYTES];
        size_t at;
    } fds[DISK_FDS_MAX];
    disk_plan plan;
    int64_t n_calls;
    bool is_cut;
} disk;

/* ---- random numbers, content, names -------------------------------------------------------- */

/* splitmix64 */
static inline uint64_t disk_random(uint64_t below)
{
    uint64_t z = disk.random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % below;
}

static inline void disk_resize(disk_content *content, size_t bytes)
{
    content->data = realloc(content->data, bytes + 1);
    assert(content->data);
    if (bytes > content->bytes) memset(content->data + content->bytes, 0, bytes - content->bytes);
    content->bytes = bytes;
}

static inline void disk_copy(disk_content *to, const disk_content *from)
{
    disk_resize(to, from->bytes);
    if (from->bytes > 0) memcpy(to->data, from->data, from->bytes);
}

static inline bool disk_equal(const disk_content *a, const disk_content *b)
{
    return a->bytes == b->bytes && (a->bytes == 0 || memcmp(a->data, b->data, a->bytes) == 0);
}

static inline disk_node *disk_make(bool is_folder)
{
    disk_node *node = calloc(1, sizeof *node);

    assert(node && disk.n_nodes < DISK_NODES_MAX);
    if (is_folder) {
        node->now.names = calloc(1, sizeof *node->now.names);
        node->disk.names = calloc(1, sizeof *node->disk.names);
        assert(node->now.names && node->disk.names);
        node->is_folder = true;
    }
    return disk.nodes[disk.n_nodes++] = node;
}

static inline int disk_find(const disk_names *names, const char *name)
{
    for (int i = 0; i < names->n; i++) {
        if (strcmp(names->of[i].name, name) == 0) return i;
    }
    return -1;
}

static inline disk_node *disk_child(const disk_node *folder, const char *name)
{
    const int i = disk_find(folder->now.names, name);
    return i < 0 ? NULL : folder->now.names->of[i].node;
}

static inline void disk_copy_name(char *to, const char *from)
{
    const size_t bytes = strlen(from) + 1;
    assert(bytes <= DISK_NAME_BYTES);
    memcpy(to, from, bytes);
}

/* Whether the change fits these names: its node has the old name, no other folder has the new. */
static inline bool disk_apply(const disk_change *change, disk_names *names)
{
    const int from = disk_find(names, change->from), to = disk_find(names, change->to);

    if (change->from[0] && (from < 0 || names->of[from].node != change->node)) return false;
    if (to >= 0 && names->of[to].node->is_folder) return false;
    if (to >= 0) {
        names->of[to].node = change->node;
    } else if (change->to[0] && change->from[0]) {
        disk_copy_name(names->of[from].name, change->to);
        return true;
    } else if (change->to[0]) {
        assert(names->n < DISK_NAMES_MAX);
        disk_copy_name(names->of[names->n].name, change->to);
        names->of[names->n++].node = change->node;
    }
    if (change->from[0]) names->of[from] = names->of[--names->n];
    return true;
}

static inline void disk_change_names(disk_node *folder, const char *from, const char *to,
                                     disk_node *node)
{
    disk_change change = {.folder = folder, .node = node};

    disk_copy_name(change.from, from);
    disk_copy_name(change.to, to);
    const bool fits = disk_apply(&change, folder->now.names);
    assert(fits && disk.n_changes < DISK_CHANGES_MAX);
    disk.changes[disk.n_changes++] = change;
}

/* The node of a path from the root, NULL if there is none; the folder it is in, and its name. */
static inline disk_node *disk_walk(const char *path, disk_node **parent, char *name)
{
    disk_node *node = disk.nodes[0], *folder = NULL;
    char part[DISK_NAME_BYTES];

    while (*path) {
        const size_t length = strcspn(path, "/");
        assert(length < sizeof part);
        memcpy(part, path, length);
        part[length] = '\0';
        path += length + (path[length] == '/');
        if (part[0] == '\0' || strcmp(part, ".") == 0) continue;
        folder = node;
        if (!folder || !folder->is_folder) {
            if (parent) *parent = NULL;
            errno = folder ? ENOTDIR : ENOENT;
            return NULL;
        }
        node = disk_child(folder, part);
        if (name) disk_copy_name(name, part);
    }
    if (parent) *parent = folder;
    if (!node) errno = ENOENT;
    return node;
}

/* ---- what may befall a call ---------------------------------------------------------------- */

static inline bool disk_fails(int call)
{
    const int64_t number = disk.n_calls++;
    const disk_plan *plan = &disk.plan;

    errno = ENXIO; /* not EIO: a loop that tries again after EIO must end */
    if (disk.is_cut) return true;
    if (plan->cut_at >= 0 && number >= plan->cut_at) {
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

/* What a power cut leaves of content that had not been synced. */
static inline disk_content disk_tear(const disk_content *old, const disk_content *young)
{
    const uint64_t kind = disk_random(4);
    const size_t least = old->bytes < young->bytes ? old->bytes : young->bytes;
    const size_t most = old->bytes < young->bytes ? young->bytes : old->bytes;
    disk_content left = {NULL, 0};

    if (kind < 2) {
        disk_copy(&left, kind == 0 ? old : young);
        return left;
    }
    disk_resize(&left, least + (size_t)disk_random(most - least + 1));
    for (size_t at = 0; at < left.bytes; at += DISK_BLOCK_BYTES) {
        const disk_content *from = disk_random(2) ? young : old;
        for (size_t i = at; i < at + DISK_BLOCK_BYTES && i < left.bytes; i++) {
            left.data[i] = i < from->bytes ? from->data[i] : 0;
        }
    }
    return left;
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

static inline void disk_sync_names(const disk_node *folder)
{
    int kept = 0;

    for (int i = 0; i < disk.n_changes; i++) {
        const disk_change *change = &disk.changes[i];
        if (change->folder != folder) {
            disk.changes[kept++] = *change;
            continue;
        }
        const bool fits = disk_apply(change, folder->disk.names);
        assert(fits);
    }
    disk.n_changes = kept;
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

/* ---- lives and cuts ------------------------------------------------------------------------ */

/* An empty disk. */
static inline void disk_open(uint64_t seed)
{
    memset(&disk, 0, sizeof disk);
    disk.random = seed;
    (void)disk_make(true); /* the root */
}

static inline void disk_close(void)
{
    for (int i = 0; i < disk.n_nodes; i++) {
        free(disk.nodes[i]->now.content.data);
        free(disk.nodes[i]->disk.content.data);
        free(disk.nodes[i]->now.names);
        free(disk.nodes[i]->disk.names);
        free(disk.nodes[i]);
    }
    disk.n_nodes = 0;
}

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
    disk.n_calls = 0;
    disk.is_cut = false;
    ls_file_ops_replace(&ops);
}

/* The process is gone; what it had open must have been closed. */
static inline void disk_disarm(void)
{
    ls_file_ops_replace(NULL);
    for (int i = 0; i < DISK_FDS_MAX; i++) assert(!disk.fds[i].node);
}

/* A power cut, and a boot. */
static inline void disk_cut(void)
{
    const bool in_order = disk_random(2);
    const int first = (int)disk_random((uint64_t)disk.n_changes + 1);

    for (int i = 0; i < disk.n_changes; i++) {
        const bool kept = in_order ? i < first : disk_random(2);
        if (kept) (void)disk_apply(&disk.changes[i], disk.changes[i].folder->disk.names);
    }
    disk.n_changes = 0;
    for (int i = 0; i < disk.n_nodes; i++) {
        disk_node *node = disk.nodes[i];
        if (node->is_folder) {
            *node->now.names = *node->disk.names;
            continue;
        }
        if (node->dirty) {
            const disk_content left = disk_tear(&node->disk.content, &node->now.content);
            free(node->disk.content.data);
            node->disk.content = left;
        }
        if (!disk_equal(&node->disk.content, &node->now.content)) node->torn = true;
        disk_copy(&node->now.content, &node->disk.content);
        node->dirty = false;
    }
}

#endif
