/*
 * directory.h - folders: make, list in order, make durable, remove, and ask for room.
 *
 * Errors name the path, the reason and the remedy, as in disk_file.h.
 *
 * Layer: io (uses base).  Threads: calls on different folders may run at once.  All calls block.
 */
#ifndef LS_DIRECTORY_H
#define LS_DIRECTORY_H

#include <stdint.h>

#include "status.h"

typedef enum ls_path_kind {
    LS_PATH_ABSENT,
    LS_PATH_FILE, /* a regular file */
    LS_PATH_DIRECTORY,
    LS_PATH_OTHER, /* device, pipe, socket; and symbolic link where links are not followed */
} ls_path_kind;

/* Names of a folder's entries, sorted by bytes, without "." and "..". */
typedef struct ls_name_list {
    char **names;
    int64_t n_names;
} ls_name_list;

/* What a path is, links followed.  Returns LS_OK or LS_ERR_IO (say, no permission to look). */
ls_status ls_path_describe(const char *path, ls_path_kind *kind);

/* What a path is, links not followed.  Returns LS_OK or LS_ERR_IO. */
ls_status ls_path_describe_link(const char *path, ls_path_kind *kind);

/* Make a folder and those above it, all of whose names then survive a power cut; existing ones are
 * fine.  Returns LS_OK, LS_ERR_IO or LS_ERR_NO_MEMORY. */
ls_status ls_directory_make(const char *path);

/* Make one folder, whose name survives a power cut only after ls_directory_sync() of the folder
 * above; an existing one is fine.  Returns LS_OK or LS_ERR_IO. */
ls_status ls_directory_make_unsynced(const char *path);

/* Make the names in a folder durable.  Returns LS_OK or LS_ERR_IO. */
ls_status ls_directory_sync(const char *path);

/* List a folder; release with ls_name_list_free().  Returns LS_OK, LS_ERR_IO, LS_ERR_NO_MEMORY. */
ls_status ls_directory_list(const char *path, ls_name_list *list);
void ls_name_list_free(ls_name_list *list);

/*
 * Remove a folder and all it holds; links are removed, not followed; an absent path is no error.
 * Goes on after a failure and describes the first.  Returns LS_OK, LS_ERR_IO, LS_ERR_NO_MEMORY.
 */
ls_status ls_directory_remove(const char *path);

/* The same after a failure, as well as can be; the failure already described stays described. */
void ls_directory_discard(const char *path);

/* Bytes this user may still write to the file system that holds path.  LS_OK or LS_ERR_IO. */
ls_status ls_directory_free_bytes(const char *path, uint64_t *free_bytes);

/* LS_OK if `bytes` fit, else LS_ERR_IO naming how much `what` needs and how much is free. */
ls_status ls_directory_require(const char *path, uint64_t bytes, const char *what);

#endif
