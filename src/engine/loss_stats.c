/* loss_stats.c - sums in row order, so a run's records repeat bit for bit. */
#include "loss_stats.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops.h"

static int log2_bins(int64_t tokens)
{
    int n = 1;
    for (int64_t end = 1; end < tokens; end *= 2) n++;
    return n;
}

ls_status ls_loss_stats_open(int64_t sequence_tokens, int linear_bins, ls_loss_stats *stats)
{
    const bool linear = linear_bins > 0;
    const int n = linear ? linear_bins : log2_bins(sequence_tokens);
    ls_loss_bin *bins = calloc((size_t)n, sizeof *bins);

    if (bins == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "%d loss bins", n);
    for (int i = 0; i < n; i++) {
        if (linear) {
            bins[i].from = sequence_tokens * i / n;
            bins[i].to = sequence_tokens * (i + 1) / n;
        } else {
            bins[i].from = i == 0 ? 0 : (int64_t)1 << (i - 1);
            bins[i].to = (int64_t)1 << i;
        }
    }
    *stats = (ls_loss_stats){
        .bins = bins, .n_bins = n, .linear = linear, .sequence_tokens = sequence_tokens};
    atomic_store(&stats->mean_seen, (double)NAN);
    return LS_OK;
}

void ls_loss_stats_close(ls_loss_stats *stats)
{
    if (stats == NULL) return;
    free(stats->bins);
    memset(stats, 0, sizeof *stats);
}

void ls_loss_stats_reset(ls_loss_stats *stats)
{
    stats->sum = 0.0;
    stats->labels = 0;
    atomic_store(&stats->rows_seen, 0);
    atomic_store(&stats->mean_seen, (double)NAN);
    for (int i = 0; i < stats->n_bins; i++) {
        stats->bins[i].sum = 0.0;
        stats->bins[i].labels = 0;
    }
}

static int find_bin(const ls_loss_stats *stats, int64_t position)
{
    int low = 0, high = stats->n_bins - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (position >= stats->bins[middle].to)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void ls_loss_stats_add(ls_loss_stats *stats, const float *nll, const int32_t *targets,
                       const int64_t *positions, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (targets[i] == LS_TARGET_IGNORE) continue;
        ls_loss_bin *bin = &stats->bins[find_bin(stats, positions[i])];
        stats->sum += (double)nll[i];
        stats->labels++;
        bin->sum += (double)nll[i];
        bin->labels++;
    }
    if (stats->labels > 0) atomic_store(&stats->mean_seen, ls_loss_stats_mean(stats));
    atomic_fetch_add(&stats->rows_seen, n);
}

double ls_loss_stats_mean(const ls_loss_stats *stats)
{
    return stats->labels > 0 ? stats->sum / (double)stats->labels : 0.0;
}
