/*
 * loader.h - packed training sequences, addressed by number: the same number is the same sequence,
 * on any machine, after any restart.
 *
 * An epoch is all documents in shuffled order, concatenated, cut every S tokens, and the cuts
 * shuffled again (for evaluation: all in file order).  A document that is cut continues in the next
 * cut as a new document; such a part of a document in one sequence is a piece.  The last cut is
 * padded.
 *
 *   documents   | d7 ......... | d2 .. | d9 ............ | d0 ... |
 *   cuts        | 0 ..... S | 1 ..... S | 2 ..... S | 3 .. padding |
 *   sequences   cut 2, cut 0, cut 3, cut 1
 *
 * Sequence numbers run on through the epochs: number g is place g % per_epoch of epoch
 * g / per_epoch, so a data position is one integer.
 *
 * With separate_sources (for evaluation) each prefix is cut for itself, so that its sequences are
 * those it would have alone, and the prefixes take turns: the first sequence of each, the second of
 * each, ..., so that the first few sequences of an epoch are of all of them.
 *
 * Layer: io (uses base).  Threads: any; calls take turns.  They block on the disk; nothing is
 * allocated after open.
 */
#ifndef LS_LOADER_H
#define LS_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"
#include "tokens.h"

/* What attention sees across the documents of a sequence, and what positions count from. */
typedef enum ls_documents {
    LS_DOCUMENTS_ISOLATE,         /* own document only; positions restart at each piece */
    LS_DOCUMENTS_JOIN,            /* the whole sequence; positions run through it */
    LS_DOCUMENTS_ISOLATE_RUNNING, /* own document only; positions run through the sequence */
} ls_documents;

typedef enum ls_loader_part {
    LS_LOADER_PART_ALL,
    LS_LOADER_PART_TRAIN, /* the documents that valid_fraction leaves */
    LS_LOADER_PART_VALID, /* those it takes away; the same whatever the seed */
} ls_loader_part;

typedef struct ls_loader ls_loader;

/* What to load.  Zero-initialise, then set fields by name. */
typedef struct ls_loader_options {
    const char *const *prefixes; /* [n_prefixes]; not kept */
    int64_t n_prefixes;
    ls_tokens_format format;
    int64_t sequence_tokens; /* S >= 1 */
    uint64_t seed;           /* of the shuffling */
    bool shuffle;            /* false: file order in every epoch */
    bool check_ids;          /* read all ids at open; they are checked when used in any case */
    ls_documents documents;
    int64_t vocab_size;    /* >= 1 */
    int32_t pad_token;     /* what padding rows hold; 0 .. vocab_size - 1 */
    double valid_fraction; /* 0 <= f < 1, of the documents, rounded up; for PART_TRAIN and _VALID */
    ls_loader_part part;
    int64_t document_tokens_min; /* shorter documents of the part are left out; empty ones always */
    bool separate_sources;       /* no sequence has documents of two prefixes; without shuffle */
} ls_loader_options;

typedef struct ls_loader_info {
    int64_t n_documents; /* in use */
    int64_t n_tokens;    /* of one epoch */
    int64_t longest;     /* tokens of the longest document */
    int64_t sequences_per_epoch;
    int64_t n_sources; /* prefixes */
    uint32_t identity; /* ls_tokens_identity() */
} ls_loader_info;

/* Sequences first_sequence .. first_sequence + n_sequences: a micro-batch. */
typedef struct ls_loader_range {
    int64_t first_sequence, n_sequences;
    int64_t window; /* of attention, for counting pairs; 0: none */
} ls_loader_range;

/* The sum over a range, padding not counted. */
typedef struct ls_loader_counts {
    int64_t tokens;
    int64_t labels; /* targets that are not -100 */
    int64_t pairs;  /* (query, key) pairs that attention computes */
} ls_loader_counts;

/*
 * Where to put a range.  N = n_sequences * S; sequence i of the range has rows i*S .. (i+1)*S.
 * A padding row is a document of its own: pad_token, target -100, position 0.
 */
typedef struct ls_loader_batch {
    int32_t *tokens;    /* [N] */
    int32_t *targets;   /* [N] the next token of the piece; -100: none, or masked */
    int64_t *positions; /* [N] */
    int64_t *doc_start; /* [N] the first row that attention from this row sees, window aside */
    int32_t *sources;   /* [N] which prefix, -1 padding; may be NULL */
} ls_loader_batch;

/* Rows of one sequence that are of one document, from where it begins there; or padding. */
typedef struct ls_loader_piece {
    int64_t row, n; /* as in a batch of the range */
    int64_t source; /* which prefix; -1: padding */
} ls_loader_piece;

typedef struct ls_loader_visitor {
    void (*piece)(void *context, const ls_loader_piece *piece);
    void *context;
} ls_loader_visitor;

/*
 * Open; release with ls_loader_close().  Returns LS_OK, LS_ERR_INVALID (an option; an id outside
 * the vocabulary; no document left), or what ls_tokens_open() returns.
 */
ls_status ls_loader_open(const ls_loader_options *options, ls_loader **loader);
void ls_loader_close(ls_loader *loader);

ls_loader_info ls_loader_describe(const ls_loader *loader);

/*
 * Count a range without loading it; reads nothing from disk unless there is a mask.
 * Returns LS_OK, LS_ERR_INVALID (a negative number), LS_ERR_IO or LS_ERR_CORRUPT.
 */
ls_status ls_loader_count(ls_loader *loader, const ls_loader_range *range,
                          ls_loader_counts *counts);

/*
 * Call for each piece of a range in the order of its rows, which are then all covered; reads
 * nothing from disk.  The visitor calls nothing of this loader.  Returns LS_OK or LS_ERR_INVALID (a
 * negative number).
 */
ls_status ls_loader_visit(ls_loader *loader, const ls_loader_range *range,
                          const ls_loader_visitor *visitor);

/*
 * Load a range.  On failure the batch's content is undefined.
 *   counts  [out] may be NULL
 * Returns LS_OK, LS_ERR_INVALID (also: an id outside the vocabulary), LS_ERR_IO, LS_ERR_CORRUPT.
 */
ls_status ls_loader_fill(ls_loader *loader, const ls_loader_range *range,
                         const ls_loader_batch *batch, ls_loader_counts *counts);

#endif
