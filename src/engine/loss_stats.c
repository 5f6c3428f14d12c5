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

static ls_loss_bin *make_bins(const ls_loss_stats_options *options, int n)
{
    ls_loss_bin *bins = calloc((size_t)n, sizeof *bins);

    if (bins == NULL) return NULL;
    for (int i = 0; i < n; i++) {
        if (options->linear_bins > 0) {
            bins[i].from = options->sequence_tokens * i / n;
            bins[i].to = options->sequence_tokens * (i + 1) / n;
        } else {
            bins[i].from = i == 0 ? 0 : (int64_t)1 << (i - 1);
            bins[i].to = (int64_t)1 << i;
        }
    }
    return bins;
}

/* One source for each name. */
static void name_sources(ls_loss_stats *stats, const ls_loss_stats_options *options)
{
    for (int64_t p = 0; p < options->n_prefixes; p++) {
        int64_t s = 0;
        while (s < stats->n_sources && strcmp(stats->by_source[s].name, options->prefixes[p]) != 0)
            s++;
        if (s == stats->n_sources) stats->by_source[stats->n_sources++].name = options->prefixes[p];
        stats->source_of[p] = s;
    }
}

ls_status ls_loss_stats_open(const ls_loss_stats_options *options, ls_loss_stats *stats)
{
    const bool linear = options->linear_bins > 0;
    const int n = linear ? options->linear_bins : log2_bins(options->sequence_tokens);
    const size_t n_prefixes = (size_t)options->n_prefixes;

    memset(stats, 0, sizeof *stats);
    stats->n_bins = n;
    stats->linear = linear;
    stats->by_position = make_bins(options, n);
    stats->by_distance = make_bins(options, n);
    stats->by_source = calloc(n_prefixes + 1, sizeof *stats->by_source);
    stats->source_of = calloc(n_prefixes + 1, sizeof *stats->source_of);
    if (stats->by_position == NULL || stats->by_distance == NULL || stats->by_source == NULL ||
        stats->source_of == NULL) {
        ls_loss_stats_close(stats);
        return LS_FAIL(LS_ERR_NO_MEMORY, "%d loss bins, %zu sources", n, n_prefixes);
    }
    name_sources(stats, options);
    atomic_store(&stats->mean_seen, (double)NAN);
    return LS_OK;
}

void ls_loss_stats_close(ls_loss_stats *stats)
{
    if (stats == NULL) return;
    free(stats->by_position);
    free(stats->by_distance);
    free(stats->by_source);
    free(stats->source_of);
    memset(stats, 0, sizeof *stats);
}

void ls_loss_stats_reset(ls_loss_stats *stats)
{
    stats->sum = 0.0;
    stats->labels = 0;
    atomic_store(&stats->rows_seen, 0);
    atomic_store(&stats->mean_seen, (double)NAN);
    for (int i = 0; i < stats->n_bins; i++) {
        stats->by_position[i].sum = stats->by_distance[i].sum = 0.0;
        stats->by_position[i].labels = stats->by_distance[i].labels = 0;
    }
    for (int64_t i = 0; i < stats->n_sources; i++) {
        stats->by_source[i].sum = 0.0;
        stats->by_source[i].labels = 0;
    }
}

/* Add a loss where it belongs by position or distance. */
static void add_to_bin(const ls_loss_stats *stats, ls_loss_bin *bins, int64_t at, double nll)
{
    int low = 0, high = stats->n_bins - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (at >= bins[middle].to)
            low = middle + 1;
        else
            high = middle;
    }
    bins[low].sum += nll;
    bins[low].labels++;
}

void ls_loss_stats_add(ls_loss_stats *stats, const ls_loss_rows *rows)
{
    ls_loss_source none = {.name = NULL};
    ls_loss_source *source =
        rows->prefix < 0 ? &none : &stats->by_source[stats->source_of[rows->prefix]];

    for (int64_t i = 0; i < rows->n; i++) {
        const double nll = (double)rows->nll[i];
        if (rows->targets[i] == LS_TARGET_IGNORE) continue;
        stats->sum += nll;
        stats->labels++;
        source->sum += nll;
        source->labels++;
        add_to_bin(stats, stats->by_position, rows->positions[i], nll);
        add_to_bin(stats, stats->by_distance, i, nll);
    }
    if (stats->labels > 0) atomic_store(&stats->mean_seen, ls_loss_stats_mean(stats));
    atomic_fetch_add(&stats->rows_seen, rows->n);
}

double ls_loss_stats_mean(const ls_loss_stats *stats)
{
    return stats->labels > 0 ? stats->sum / (double)stats->labels : (double)NAN;
}
