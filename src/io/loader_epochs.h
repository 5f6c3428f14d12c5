/*
 * loader_epochs.h - which documents an epoch has, in what order, and where it is cut; within
 * loader*.c only.
 *
 *   documents in use   one order for each epoch, as prefix sums of tokens
 *   stretches          cut each for itself: a whole epoch, or the documents of one source
 *
 * Layer: io.  Threads: one at a time.
 */
#ifndef LS_LOADER_EPOCHS_H
#define LS_LOADER_EPOCHS_H

#include "loader.h"

#define LS_EPOCHS_KEPT 2

typedef struct ls_epoch_order {
    int64_t epoch;      /* -1: not built */
    int64_t *documents; /* [n] in the order of the epoch */
    int64_t *starts;    /* [n + 1] tokens before each */
} ls_epoch_order;

typedef struct ls_stretch {
    int64_t first, end; /* tokens of the epoch */
    int64_t n_cuts;
} ls_stretch;

typedef struct ls_epochs {
    const ls_tokens *tokens;
    const ls_loader_options *options;
    int64_t *documents; /* [n_documents] in use, in file order */
    int64_t n_documents, n_tokens, longest, per_epoch;
    ls_stretch *stretches; /* [n_stretches] in order, none of them empty */
    int64_t n_stretches;
    ls_epoch_order orders[LS_EPOCHS_KEPT];
} ls_epochs;

/* Where a sequence lies in its epoch. */
typedef struct ls_cut {
    const int64_t *documents, *starts; /* of the epoch; valid until the next call */
    int64_t first, end;                /* tokens of the epoch */
    int64_t place;                     /* of the document that holds the first one */
} ls_cut;

/*
 * Choose the documents.
 *   options, tokens  must outlive epochs
 *   epochs           [out] zeroed before; ls_epochs_close() releases it, after a failure too
 * LS_ERR_INVALID (no document left), LS_ERR_NO_MEMORY.
 */
ls_status ls_epochs_open(const ls_loader_options *options, const ls_tokens *tokens,
                         ls_epochs *epochs);
void ls_epochs_close(ls_epochs *epochs);

/* Sequence numbers as in loader.h. */
ls_cut ls_epochs_cut(ls_epochs *epochs, int64_t sequence);

#endif
