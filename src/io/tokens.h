/*
 * tokens.h - token shards: documents of token ids on disk, read by position.
 *
 *   PREFIX.bin   the ids, document after document
 *   PREFIX.idx   Megatron-LM's index: "MMIDIDX\0\0", u64 version 1, u8 element type,
 *                u64 n sequences, u64 n document marks,
 *                int32 lengths[n], int64 byte offsets[n], int64 document marks
 *   PREFIX.mask  optional, one byte per token: 0 = no loss on predicting it
 *
 * Several prefixes are one data set: their documents are numbered, and their tokens addressed, one
 * after the other.  A raw file (raw-u16, raw-u32) has no index and is one document.  Everything in
 * an index is checked when it is opened.
 *
 * Layer: io (uses base).  Threads: an open data set is immutable and may be read by many threads
 * at once; a writer belongs to one thread.  Calls block.  Source: Megatron-LM,
 * megatron/core/datasets/indexed_dataset.py.
 */
#ifndef LS_TOKENS_H
#define LS_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

typedef enum ls_tokens_format {
    LS_TOKENS_FORMAT_MEGATRON,
    LS_TOKENS_FORMAT_RAW_U16, /* PREFIX.bin, or PREFIX itself: little-endian ids, one document */
    LS_TOKENS_FORMAT_RAW_U32,
} ls_tokens_format;

/* Element types, with Megatron's codes. */
typedef enum ls_tokens_element {
    LS_TOKENS_ELEMENT_U8 = 1,
    LS_TOKENS_ELEMENT_I32 = 4,
    LS_TOKENS_ELEMENT_U16 = 8,
    LS_TOKENS_ELEMENT_U32 = 256, /* in raw files only */
} ls_tokens_element;

typedef struct ls_tokens ls_tokens;
typedef struct ls_tokens_writer ls_tokens_writer;

/*
 * Open a data set; release with ls_tokens_close().
 *   prefixes  [n] paths without .bin / .idx; not kept
 * Returns LS_OK, LS_ERR_CORRUPT (an index and its file disagree: says what, and where),
 * LS_ERR_UNSUPPORTED (element type, version), LS_ERR_IO, LS_ERR_INVALID (n < 1, not a regular
 * file) or LS_ERR_NO_MEMORY.
 */
ls_status ls_tokens_open(const char *const *prefixes, int64_t n, ls_tokens_format format,
                         ls_tokens **tokens);
void ls_tokens_close(ls_tokens *tokens);

int64_t ls_tokens_n_documents(const ls_tokens *tokens);
int64_t ls_tokens_count(const ls_tokens *tokens);

/* [n_documents + 1]: document d is the tokens offsets[d] .. offsets[d + 1]; it may be empty. */
const int64_t *ls_tokens_offsets(const ls_tokens *tokens);

/* True if any part has a mask. */
bool ls_tokens_has_mask(const ls_tokens *tokens);

/*
 * Read tokens first .. first + n.
 *   ids  [n, out]
 * Returns LS_OK, LS_ERR_IO, LS_ERR_CORRUPT (the file became shorter, or an id beyond int32),
 * LS_ERR_INVALID (outside the data set).
 */
ls_status ls_tokens_read(const ls_tokens *tokens, int64_t first, int64_t n, int32_t *ids);

/* The same for the mask; 1 where a part has none. */
ls_status ls_tokens_read_mask(const ls_tokens *tokens, int64_t first, int64_t n, uint8_t *mask);

/* Read every id; LS_ERR_INVALID names the file, the place and the first id outside 0 ..
 * vocab_size - 1.  Also LS_ERR_IO, LS_ERR_CORRUPT. */
ls_status ls_tokens_check_ids(const ls_tokens *tokens, int64_t vocab_size);

/* Which of the prefixes a token comes from. */
int64_t ls_tokens_source(const ls_tokens *tokens, int64_t token);

/* The file that holds a token, and the token's number in it; for messages. */
const char *ls_tokens_path(const ls_tokens *tokens, int64_t token, int64_t *index);

/*
 * A checksum that says "the same data": of the indexes' content and every file's size, in order,
 * not of the ids, which may be terabytes.  Independent of where the files lie.
 */
uint32_t ls_tokens_identity(const ls_tokens *tokens);

/* How to write.  Zero-initialise, then set fields by name. */
typedef struct ls_tokens_writer_options {
    ls_tokens_element element;   /* U8, U16 or I32 */
    int64_t sequence_tokens_max; /* longer documents become several sequences; 0: 2^31 - 1 */
} ls_tokens_writer_options;

/*
 * Begin PREFIX.bin + PREFIX.idx.  Both are written beside, under temporary names, and appear at
 * commit; until then an older pair stays.  Release with ls_tokens_writer_close().
 * Returns LS_OK, LS_ERR_INVALID (element type; a PREFIX.mask of older tokens is in the way),
 * LS_ERR_IO or LS_ERR_NO_MEMORY.
 */
ls_status ls_tokens_writer_open(const char *prefix, const ls_tokens_writer_options *options,
                                ls_tokens_writer **writer);

/* Append ids to the open document.  LS_ERR_INVALID: an id the element type cannot hold. */
ls_status ls_tokens_writer_append(ls_tokens_writer *writer, const int32_t *ids, int64_t n);

/* Close the open document, which may be empty.  Returns LS_OK or LS_ERR_NO_MEMORY. */
ls_status ls_tokens_writer_end_document(ls_tokens_writer *writer);

/*
 * Make both files durable and give them their names, the index last, so that an index never stands
 * beside another's ids.  The last document must be closed.  Returns LS_OK, LS_ERR_INVALID or
 * LS_ERR_IO.
 */
ls_status ls_tokens_writer_commit(ls_tokens_writer *writer);

/* Release; what was not committed is removed.  NULL is allowed. */
void ls_tokens_writer_close(ls_tokens_writer *writer);

int64_t ls_tokens_writer_count(const ls_tokens_writer *writer);

#endif
