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

#include <stdatomic.h>
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

typedef struct ls_tokenize_request {
    const char *const *paths; /* [n_paths] files and folders */
    int64_t n_paths;
    const char *prefix;
    const atomic_bool *stop; /* set from anywhere: give up; may be NULL */
} ls_tokenize_request;

/*
 * Write PREFIX.bin + PREFIX.idx from files and folders, and make the folder they lie in.  A folder
 * stands for all regular files below it, sorted by name; links inside are not followed.
 *   report  [out] may be NULL
 * Returns LS_OK, LS_ERR_INVALID (no file with content; PREFIX ends in no file's name; the output of
 * before lies among the inputs), LS_ERR_IO, LS_ERR_CORRUPT (a file shrank while read),
 * LS_ERR_STOPPED or LS_ERR_NO_MEMORY.  On failure an older shard stays, and nothing of the new one.
 */
ls_status ls_tokenize_bytes(const ls_tokenize_request *request, ls_tokenize_report *report);

#endif
