/*
 * yaml_tree.h - a small YAML document as a tree: scalars, lists and maps, each with its place.
 *
 * For configuration files, and so deliberately less than YAML: one document; keys are plain
 * scalars, each given once; no anchors, aliases or tags; no type guessing (a scalar is its text,
 * and the reader of a key says what it must be).  JSON is read by the same functions, as the
 * flow-style YAML it is.  Limits: LS_YAML_FILE_BYTES_MAX, LS_YAML_DEPTH_MAX, LS_YAML_NODES_MAX and
 * others.
 *
 *     line 7   batch:            map "batch"  line 7
 *     line 8     sequences: 4      scalar "4" line 8, path batch.sequences
 *
 * Every message is "FILE:LINE: key.path: what is wrong".  A value given on the command line
 * (ls_yaml_set) sits in the same tree and has "--set key.path" for its FILE:LINE.
 *
 * Layer: base.  Threads: a tree is not shared while ls_yaml_set changes it.
 */
#ifndef LS_YAML_TREE_H
#define LS_YAML_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define LS_YAML_FILE_BYTES_MAX (1u << 20)
#define LS_YAML_DEPTH_MAX      16
#define LS_YAML_NODES_MAX      16384
#define LS_YAML_ITEMS_MAX      4096 /* of one list or map */
#define LS_YAML_KEY_BYTES_MAX  64
#define LS_YAML_PATH_BYTES     256
#define LS_YAML_PLACE_BYTES    (2 * LS_YAML_PATH_BYTES + 4)

typedef struct ls_yaml ls_yaml;

typedef enum ls_yaml_kind {
    LS_YAML_SCALAR = 0,
    LS_YAML_LIST,
    LS_YAML_MAP,
} ls_yaml_kind;

typedef struct ls_yaml_node ls_yaml_node;
struct ls_yaml_node {
    ls_yaml_kind kind;
    bool quoted;                /* scalar: written in quotes or as a block */
    int line;                   /* of the key for a member of a map; from 1; 0: command line */
    char *text;                 /* scalar: its text, UTF-8 without zero bytes */
    char *key;                  /* member of a map: its key */
    size_t index;               /* member of a list: its place from 0 */
    size_t n_children;          /* list, map */
    const ls_yaml *document;    /* the document it was written in: gives the place */
    ls_yaml_node *parent;       /* NULL: the root */
    ls_yaml_node *first, *last; /* list, map: children in order */
    ls_yaml_node *next;
};

/* Read a file.  LS_ERR_INVALID: it cannot be opened or does not parse; LS_ERR_IO: reading failed
 * after that; LS_ERR_NO_MEMORY. */
ls_status ls_yaml_read(const char *path, ls_yaml **document);

/* The same from memory; name stands for the file in messages. */
ls_status ls_yaml_parse(const char *name, const char *text, size_t bytes, ls_yaml **document);

/* Put "key.path=value" (value: YAML in one line) into the tree, replacing what was there.  After a
 * failure (LS_ERR_INVALID, LS_ERR_NO_MEMORY) the tree is as it was or holds empty maps more. */
ls_status ls_yaml_set(ls_yaml *document, const char *assignment);

void ls_yaml_free(ls_yaml *document);

const ls_yaml_node *ls_yaml_root(const ls_yaml *document);

/* The member of a map, or NULL (also if map is NULL or no map). */
const ls_yaml_node *ls_yaml_find(const ls_yaml_node *map, const char *key);

/* The same along "key.key.key". */
const ls_yaml_node *ls_yaml_find_path(const ls_yaml_node *map, const char *path);

/* An empty plain scalar, "~" or "null". */
bool ls_yaml_is_null(const ls_yaml_node *node);

/* True if the value came from ls_yaml_set: its paths belong to no file. */
bool ls_yaml_is_set(const ls_yaml_node *node);

/* The folder-independent path of a node, "optimizer.groups[0].match"; "" for the root. */
const char *ls_yaml_path(const ls_yaml_node *node, char *buffer, size_t size);

/* "FILE:LINE: key.path", or "--set key.path": what messages about the node begin with. */
const char *ls_yaml_place(const ls_yaml_node *node, char buffer[LS_YAML_PLACE_BYTES]);

/* Fail with "FILE:LINE: key.path: " and the message.  Use as LS_FAIL. */
#define LS_YAML_FAIL(node, status, ...)                                                            \
    ls_yaml_fail_at(__FILE__, __LINE__, (node), (status), __VA_ARGS__)
ls_status ls_yaml_fail_at(const char *file, int line, const ls_yaml_node *node, ls_status status,
                          const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 5, 6)))
#endif
    ;

/* ---- typed reading: each fails with LS_ERR_INVALID, what is wrong and what is allowed ----------
 */

ls_status ls_yaml_get_whole(const ls_yaml_node *node, int64_t least, int64_t most, int64_t *value);
ls_status ls_yaml_get_count(const ls_yaml_node *node, int64_t least, int64_t most, int64_t *value);
ls_status ls_yaml_get_bool(const ls_yaml_node *node, bool *value);

/* The bounds of a real; above: least itself is not allowed; below: nor is most. */
typedef struct ls_yaml_range {
    double least, most;
    bool above, below;
} ls_yaml_range;

ls_status ls_yaml_get_real(const ls_yaml_node *node, ls_yaml_range range, double *value);

/* A text that is not empty; borrowed from the tree. */
ls_status ls_yaml_get_text(const ls_yaml_node *node, const char **text);

/* One of the words; index of it. */
ls_status ls_yaml_get_word(const ls_yaml_node *node, const char *const *words, size_t n_words,
                           size_t *index);

/* Fail unless node is a map (or a list). */
ls_status ls_yaml_get_map(const ls_yaml_node *node);
ls_status ls_yaml_get_list(const ls_yaml_node *node);

/* Fail for a member of the map whose key is not among keys, suggesting the nearest. */
ls_status ls_yaml_check_keys(const ls_yaml_node *map, const char *const *keys, size_t n_keys);

#endif
