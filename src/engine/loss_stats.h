/*
 * loss_stats.h - mean loss, by position, by distance from the document's start and by source: sums
 * over the labels of a step or an evaluation, fp64, in order.
 *
 * All speak of the token that a label is predicted from.  Its position is what the model sees (the
 * RoPE position); its distance is the number of tokens of its document before it, as far as they
 * are in its sequence; its source is the data set it comes from.  Where positions restart with each
 * document, position and distance are the same.  Bins: log2 = [0,1) [1,2) [2,4) [4,8) ...; linear =
 * n equal parts of the sequence.
 *
 * Layer: engine.  Threads: one at a time; rows_seen and mean_seen may be read from any.
 */
#ifndef LS_LOSS_STATS_H
#define LS_LOSS_STATS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "status.h"

typedef struct ls_loss_bin {
    int64_t from, to; /* positions or distances [from, to) */
    double sum;
    int64_t labels;
} ls_loss_bin;

typedef struct ls_loss_source {
    const char *name;
    double sum;
    int64_t labels;
} ls_loss_source;

typedef struct ls_loss_stats {
    double sum;
    int64_t labels;
    ls_loss_bin *by_position, *by_distance; /* [n_bins], of the same widths */
    int n_bins;
    bool linear;
    ls_loss_source *by_source; /* [n_sources], in the order of their first prefix */
    int64_t n_sources;
    int64_t *source_of;         /* [prefixes]: which of the sources; equal names are one */
    _Atomic(int64_t) rows_seen; /* added since the reset, ignored ones too: how far it has come */
    _Atomic(double) mean_seen;  /* mean loss of these; NAN before any */
} ls_loss_stats;

typedef struct ls_loss_stats_options {
    int64_t sequence_tokens;
    int linear_bins;             /* 0: log2 bins */
    const char *const *prefixes; /* [n_prefixes] names of data sets; must outlive the statistics */
    int64_t n_prefixes;
} ls_loss_stats_options;

/* LS_ERR_NO_MEMORY. */
ls_status ls_loss_stats_open(const ls_loss_stats_options *options, ls_loss_stats *stats);
void ls_loss_stats_close(ls_loss_stats *stats);

void ls_loss_stats_reset(ls_loss_stats *stats);

/* Rows of one document, from its first in the sequence on. */
typedef struct ls_loss_rows {
    const float *nll;         /* [n] */
    const int32_t *targets;   /* [n] */
    const int64_t *positions; /* [n] */
    int64_t n;
    int64_t prefix; /* -1: of none */
} ls_loss_rows;

/* Rows whose target is LS_TARGET_IGNORE do not count. */
void ls_loss_stats_add(ls_loss_stats *stats, const ls_loss_rows *rows);

/* Mean loss; NAN without labels. */
double ls_loss_stats_mean(const ls_loss_stats *stats);

#endif
