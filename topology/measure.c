/* measure.c - rounds of timed passes, their spread, and which number of threads is best. */
#include "measure.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

#define CACHES_WANTED      4
#define CACHES_NEEDED      2
#define CACHE_UNKNOWN      ((uint64_t)128 << 20) /* more than most have: Grace has 114 MB */
#define BYTES_WANTED_MIN   ((uint64_t)256 << 20)
#define GAIN_WORTH_THREADS 0.02

const char *ls_traffic_name(ls_traffic traffic)
{
    static const char *const names[LS_TRAFFIC_COUNT] = {"read", "write", "copy", "update"};
    assert((unsigned)traffic < LS_TRAFFIC_COUNT);
    return names[traffic];
}

/* ---- statistics ----------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

ls_spread ls_spread_of(double *samples, int n)
{
    assert(n >= 1);
    qsort(samples, (size_t)n, sizeof *samples, compare);
    return (ls_spread){.least = samples[0],
                       .median = 0.5 * (samples[(n - 1) / 2] + samples[n / 2]),
                       .most = samples[n - 1]};
}

int ls_thread_counts(int n_cores, int counts[LS_THREAD_COUNTS_MAX])
{
    int n = 0;

    assert(n_cores >= 1);
    for (int c = 1; c < n_cores && n < LS_THREAD_COUNTS_MAX - 1; c *= 2) counts[n++] = c;
    counts[n++] = n_cores;
    return n;
}

int ls_best_count(const ls_spread *bytes_per_s, int n)
{
    double most = 0;
    int best = 0;

    assert(n >= 1);
    for (int c = 0; c < n; c++)
        if (bytes_per_s[c].median > most) most = bytes_per_s[c].median;
    while (best < n - 1 && bytes_per_s[best].median < (1 - GAIN_WORTH_THREADS) * most) best++;
    return best;
}

/* ---- sweeping ------------------------------------------------------------------------------- */

static ls_status check_time(double seconds, const char *what)
{
    if (seconds > 0) return LS_OK;
    return LS_FAIL(LS_ERR_DEVICE, "%s took no time by the clock; measure with a larger buffer",
                   what);
}

static ls_status measure_traffic(const ls_memory_probe *probe, ls_traffic traffic, int repetitions,
                                 ls_memory_sweep *sweep)
{
    double rates[LS_THREAD_COUNTS_MAX][LS_REPETITIONS_MAX];

    for (int round = -1; round < repetitions; round++) {
        for (int c = 0; c < sweep->n_counts; c++) {
            double bytes = 0, seconds = 0;
            LS_TRY(probe->pass(probe->context, traffic, sweep->n_threads[c], &bytes, &seconds));
            LS_TRY(check_time(seconds, ls_traffic_name(traffic)));
            if (round >= 0) rates[c][round] = bytes / seconds;
        }
    }
    for (int c = 0; c < sweep->n_counts; c++)
        sweep->bytes_per_s[traffic][c] = ls_spread_of(rates[c], repetitions);
    sweep->best[traffic] = ls_best_count(sweep->bytes_per_s[traffic], sweep->n_counts);
    return LS_OK;
}

static ls_status measure_latency(const ls_memory_probe *probe, int repetitions,
                                 ls_memory_sweep *sweep)
{
    double ns[LS_REPETITIONS_MAX];

    for (int round = -1; round < repetitions; round++) {
        double loads = 0, seconds = 0;
        LS_TRY(probe->chase(probe->context, &loads, &seconds));
        LS_TRY(check_time(seconds, "a chain of loads"));
        if (round >= 0) ns[round] = 1e9 * seconds / loads;
    }
    sweep->latency_ns = ls_spread_of(ns, repetitions);
    return LS_OK;
}

static ls_status measure_all(const ls_memory_probe *probe, int repetitions, ls_memory_sweep *sweep)
{
    for (int t = 0; t < LS_TRAFFIC_COUNT; t++)
        LS_TRY(measure_traffic(probe, (ls_traffic)t, repetitions, sweep));
    return measure_latency(probe, repetitions, sweep); /* last: the chain overwrites the buffer */
}

ls_status ls_memory_sweep_measure(const ls_memory_probe *probe, bool huge_pages, int repetitions,
                                  ls_memory_sweep *sweep)
{
    ls_memory_sweep measured = {.huge_pages = huge_pages};

    assert(repetitions >= 1 && repetitions <= LS_REPETITIONS_MAX);
    measured.n_counts = ls_thread_counts(probe->n_cores, measured.n_threads);
    LS_TRY(probe->open(probe->context, huge_pages, &measured.huge_bytes));
    const ls_status status = measure_all(probe, repetitions, &measured);
    probe->close(probe->context);
    if (status == LS_OK) *sweep = measured;
    return status;
}

/* ---- how much memory to take ---------------------------------------------------------------- */

static ls_status fail_small(const ls_buffer_wish *wish, uint64_t wanted, const char *why)
{
    char need[LS_TEXT_BYTES], have[LS_TEXT_BYTES];

    return LS_FAIL(LS_ERR_NO_MEMORY,
                   "%s: measuring takes a buffer of %s (%s), at most half of the %s that are free; "
                   "free some memory, or ask for less with --bytes",
                   wish->place, ls_text_bytes(need, sizeof need, wanted), why,
                   ls_text_bytes(have, sizeof have, wish->available_bytes));
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

ls_status ls_buffer_choose(const ls_buffer_wish *wish, uint64_t *bytes)
{
    const uint64_t cache = wish->cache_bytes > 0 ? wish->cache_bytes : CACHE_UNKNOWN;
    const uint64_t most = wish->available_bytes / 2;
    uint64_t chosen = wish->bytes;
    char least[LS_TEXT_BYTES];

    if (chosen > 0 && chosen < LS_BUFFER_BYTES_MIN)
        return LS_FAIL(LS_ERR_INVALID, "--bytes %llu: too small to measure; allowed: %s or more",
                       (unsigned long long)chosen,
                       ls_text_bytes(least, sizeof least, LS_BUFFER_BYTES_MIN));
    if (chosen > most) return fail_small(wish, chosen, "as asked for");
    if (chosen == 0) {
        chosen = larger(CACHES_WANTED * cache, BYTES_WANTED_MIN);
        if (chosen > most) chosen = most;
        if (chosen < CACHES_NEEDED * cache || chosen < LS_BUFFER_BYTES_MIN)
            return fail_small(wish, CACHES_NEEDED * cache, "twice the last-level cache");
    }
    *bytes = chosen / LS_BUFFER_BYTES_MIN * LS_BUFFER_BYTES_MIN;
    return LS_OK;
}
