/*
 * checkpoint_state.h - the text of state.json: sealed by its own checksum, and the manifest in it.
 *
 *   {
 *       "step": 100, ...                                  the caller's members
 *       "manifest": [{"file": "config.json", "bytes": 612, "crc32c": "0a1b2c3d"}, ...],
 *       "self_crc32c": "89abcdef"                         of every byte before this member's comma
 *   }
 *
 * Layer: io, internal (checkpoint_*.c, fuzzing).  Threads: no shared state.
 */
#ifndef LS_CHECKPOINT_STATE_H
#define LS_CHECKPOINT_STATE_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "status.h"

#define LS_CHECKPOINT_STATE_NAME      "state.json"
#define LS_CHECKPOINT_STATE_BYTES_MAX ((uint64_t)256 << 20)

/* One file of a manifest. */
typedef struct ls_checkpoint_file {
    const char *name; /* a plain name; owned by the state */
    uint64_t bytes;
    uint32_t crc;
} ls_checkpoint_file;

/*
 * Print a state, sealed.
 *   text  [out] release with free()
 * Returns LS_OK, LS_ERR_INVALID (not an object, or it has a self_crc32c), LS_ERR_NO_MEMORY.
 */
ls_status ls_checkpoint_state_print(const cJSON *state, char **text);

/*
 * Check the seal and parse.
 *   text  [bytes], NUL behind it;  path  for messages
 *   state [out] release with cJSON_Delete()
 * Returns LS_OK, LS_ERR_CORRUPT or LS_ERR_NO_MEMORY.
 */
ls_status ls_checkpoint_state_parse(const char *text, uint64_t bytes, const char *path,
                                    cJSON **state);

/* Entry `item` of a parsed state's manifest.  Returns LS_OK or LS_ERR_CORRUPT. */
ls_status ls_checkpoint_manifest_get(const cJSON *item, const char *path, ls_checkpoint_file *file);

/* The manifest of a parsed state, checked entry by entry.  Returns LS_OK or LS_ERR_CORRUPT. */
ls_status ls_checkpoint_manifest_find(const cJSON *state, const char *path, const cJSON **manifest);

/* Append an entry to a manifest array.  LS_OK or LS_ERR_NO_MEMORY. */
ls_status ls_checkpoint_manifest_add(cJSON *manifest, const ls_checkpoint_file *file);

/* Compare a file of a folder with its entry: the size and, if full, the checksum.  Returns LS_OK,
 * LS_ERR_CORRUPT, LS_ERR_IO, LS_ERR_INVALID (not a regular file) or LS_ERR_NO_MEMORY. */
ls_status ls_checkpoint_file_check(const char *folder, const ls_checkpoint_file *wanted, bool full);

#endif
