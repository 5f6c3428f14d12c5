/*
 * tokenize.h - text files to token shards, one document per file.
 *
 * The byte tokenizer: ids 0 to 255 are the bytes themselves, 256 ends every document; vocabulary
 * 257; stored as uint16.
 *
 * Layer: io (uses base).  Threads: no shared state.  Blocks for as long as the files are long.
 */
#ifndef LS_TOKENIZE_H
#define LS_TOKENIZE_H

#include <stdint.h>

#include "status.h"

#define LS_BYTES_END_OF_DOCUMENT 256
#define LS_BYTES_VOCAB_SIZE      257

typedef struct ls_tokenize_report {
    int64_t n_files;   /* documents written */
    int64_t n_empty;   /* empty files, left out */
    int64_t n_skipped; /* links, devices, ... found in folders and left out */
    int64_t n_tokens;  /* with the end marks */
} ls_tokenize_report;

/*
 * Write PREFIX.bin + PREFIX.idx from files and folders.  A folder stands for all regular files
 * below it, sorted by name; links inside are not followed.
 *   paths   [n]
 *   report  [out] may be NULL
 * Returns LS_OK, LS_ERR_INVALID (no file with content; the output lies among the inputs),
 * LS_ERR_IO, LS_ERR_CORRUPT (a file shrank while read) or LS_ERR_NO_MEMORY.  On failure an older
 * shard stays.
 */
ls_status ls_tokenize_bytes(const char *const *paths, int64_t n, const char *prefix,
                            ls_tokenize_report *report);

#endif
