/*
 * tokens_index.h - Megatron-LM's index file: read and check, and write.
 *
 * Layer: io, internal (tokens.c, tokens_writer.c, fuzzing).  Threads: no shared state.
 */
#ifndef LS_TOKENS_INDEX_H
#define LS_TOKENS_INDEX_H

#include <stdint.h>

#include "status.h"
#include "tokens.h"

typedef struct ls_tokens_index {
    ls_tokens_element element;
    int64_t n_documents;
    int64_t *offsets; /* [n_documents + 1] owned; in tokens */
    uint32_t crc;     /* of the whole file */
} ls_tokens_index;

/* What an index file is made of; the writer's arrays. */
typedef struct ls_tokens_index_content {
    ls_tokens_element element;
    const int64_t *sequence_ends; /* [n_sequences] in tokens */
    int64_t n_sequences;
    const int64_t *document_ends; /* [n_documents] in sequences */
    int64_t n_documents;
} ls_tokens_index_content;

/* Bytes of one id. */
uint64_t ls_tokens_element_bytes(ls_tokens_element element);

/*
 * Read and check an index against the size of its .bin; release with ls_tokens_index_free().
 * Returns LS_OK, LS_ERR_CORRUPT, LS_ERR_UNSUPPORTED, LS_ERR_IO or LS_ERR_NO_MEMORY.
 */
ls_status ls_tokens_index_read(const char *path, uint64_t bin_bytes, ls_tokens_index *index);
void ls_tokens_index_free(ls_tokens_index *index);

/* Write and sync an index.  Returns LS_OK, LS_ERR_IO. */
ls_status ls_tokens_index_write(const char *path, const ls_tokens_index_content *content);

#endif
