/*
 * loss_stats.h - mean loss, and loss by position: sums over the labels of a step, fp64, in order.
 *
 * A label's position is that of the token it is predicted from, as the model sees it (RoPE
 * position).  Bins: log2 = [0,1) [1,2) [2,4) [4,8) ...; linear = n equal parts of the sequence.
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
    int64_t from, to; /* positions [from, to) */
    double sum;
    int64_t labels;
} ls_loss_bin;

typedef struct ls_loss_stats {
    double sum;
    int64_t labels;
    ls_loss_bin *bins;
    int n_bins;
    bool linear;
    int64_t sequence_tokens;
    _Atomic(int64_t) rows_seen; /* added since the reset, ignored ones too: how far it has come */
    _Atomic(double) mean_seen;  /* mean loss of these; NAN before any */
} ls_loss_stats;

/* linear_bins 0: log2 bins.  LS_ERR_NO_MEMORY. */
ls_status ls_loss_stats_open(int64_t sequence_tokens, int linear_bins, ls_loss_stats *stats);
void ls_loss_stats_close(ls_loss_stats *stats);

void ls_loss_stats_reset(ls_loss_stats *stats);

/* Add n rows; rows whose target is LS_TARGET_IGNORE do not count. */
void ls_loss_stats_add(ls_loss_stats *stats, const float *nll, const int32_t *targets,
                       const int64_t *positions, int64_t n);

/* Mean loss; 0 without labels. */
double ls_loss_stats_mean(const ls_loss_stats *stats);

#endif
