/*
 * simulated_tree.h - files and folders in memory, each in two states: `now`, what programs see, and
 * `disk`, what is on stable storage.
 *
 * fsync of a file moves its content, fsync of a folder moves its names.  A power cut leaves of the
 * rest what the random numbers choose: content old, new, or torn block by block; of the changes of
 * names the first few, or each by itself.  A killed process loses nothing of `now`.
 */
#ifndef LS_SIMULATED_TREE_H
#define LS_SIMULATED_TREE_H

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DISK_NAME_BYTES  96
#define DISK_NAMES_MAX   24 /* in one folder */
#define DISK_NODES_MAX   4096
#define DISK_CHANGES_MAX 4096
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

static struct {
    uint64_t random;
    disk_node *nodes[DISK_NODES_MAX]; /* the first is the root */
    int n_nodes;
    disk_change changes[DISK_CHANGES_MAX];
    int n_changes;
} tree;

/* ---- random numbers, content, names -------------------------------------------------------- */

/* splitmix64 */
static inline uint64_t disk_random(uint64_t below)
{
    uint64_t z = tree.random += UINT64_C(0x9e3779b97f4a7c15);
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

    assert(node && tree.n_nodes < DISK_NODES_MAX);
    if (is_folder) {
        node->now.names = calloc(1, sizeof *node->now.names);
        node->disk.names = calloc(1, sizeof *node->disk.names);
        assert(node->now.names && node->disk.names);
        node->is_folder = true;
    }
    return tree.nodes[tree.n_nodes++] = node;
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
    assert(fits && tree.n_changes < DISK_CHANGES_MAX);
    tree.changes[tree.n_changes++] = change;
}

/* The node of a path from the root, NULL if there is none; the folder it is in, and its name. */
static inline disk_node *disk_walk(const char *path, disk_node **parent, char *name)
{
    disk_node *node = tree.nodes[0], *folder = NULL;
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

/* ---- stable storage ------------------------------------------------------------------------ */

/* An empty disk. */
static inline void disk_open(uint64_t seed)
{
    memset(&tree, 0, sizeof tree);
    tree.random = seed;
    (void)disk_make(true); /* the root */
}

static inline void disk_close(void)
{
    for (int i = 0; i < tree.n_nodes; i++) {
        free(tree.nodes[i]->now.content.data);
        free(tree.nodes[i]->disk.content.data);
        free(tree.nodes[i]->now.names);
        free(tree.nodes[i]->disk.names);
        free(tree.nodes[i]);
    }
    tree.n_nodes = 0;
}

/* fsync of a folder. */
static inline void disk_sync_names(const disk_node *folder)
{
    int kept = 0;

    for (int i = 0; i < tree.n_changes; i++) {
        const disk_change *change = &tree.changes[i];
        if (change->folder != folder) {
            tree.changes[kept++] = *change;
            continue;
        }
        const bool fits = disk_apply(change, folder->disk.names);
        assert(fits);
    }
    tree.n_changes = kept;
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

/* A power cut, and a boot. */
static inline void disk_cut(void)
{
    const bool in_order = disk_random(2);
    const int first = (int)disk_random((uint64_t)tree.n_changes + 1);

    for (int i = 0; i < tree.n_changes; i++) {
        const bool kept = in_order ? i < first : disk_random(2);
        if (kept) (void)disk_apply(&tree.changes[i], tree.changes[i].folder->disk.names);
    }
    tree.n_changes = 0;
    for (int i = 0; i < tree.n_nodes; i++) {
        disk_node *node = tree.nodes[i];
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
