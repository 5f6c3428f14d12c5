/*
 * measure.h - how fast a host memory is: bytes per second of four kinds of traffic by number of
 * threads, with and without huge pages, and the latency of a dependent load.
 *
 *     for each repetition:  1 thread | 2 | 4 | ... | all cores     (the first round only warms up)
 *     rate = bytes that the program asked for / time from the first start to the last end
 *
 * Rounds go through all thread counts, so that a disturbance of the machine falls on all of them
 * alike.  Stores are plain ones, never non-temporal: where the processor reads a line before it
 * writes it (x86), that reading is not counted, just as the trainer's own kernels feel it.
 *
 * What is timed is behind a table of functions: tests put a clock and a memory of their own there.
 *
 * Layer: topology (uses base).  Threads: a probe makes its own; call from one thread.
 */
#ifndef LS_MEASURE_H
#define LS_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

typedef enum ls_traffic {
    LS_TRAFFIC_READ = 0,
    LS_TRAFFIC_WRITE,
    LS_TRAFFIC_COPY,   /* read one half, write the other */
    LS_TRAFFIC_UPDATE, /* read-modify-write as AdamW does: hi 2, lo 2, m 4, v 4 bytes read and
                          written, gradient 4 read: 28 bytes for each parameter of 16 */
    LS_TRAFFIC_COUNT
} ls_traffic;

/* "read", "write", "copy", "update"; never NULL. */
const char *ls_traffic_name(ls_traffic traffic);

/* ---- statistics -----------------------------------------------------------------------------
 */

typedef struct ls_spread {
    double least, median, most;
} ls_spread;

/* Of n >= 1 samples, which are sorted in place; of an even number the median is the mean of two. */
ls_spread ls_spread_of(double *samples, int n);

/* ---- sweeping a memory ----------------------------------------------------------------------
 */

#define LS_REPETITIONS_MAX   100
#define LS_THREAD_COUNTS_MAX 16

/* What is timed.  Each function may fail; what it failed with is passed on. */
typedef struct ls_memory_probe {
    void *context;
    int n_cores; /* threads at most */
    /* Reserve and touch the buffer; *huge_bytes: how much of it the kernel gave as huge pages. */
    ls_status (*open)(void *context, bool huge_pages, uint64_t *huge_bytes);
    /* Let n_threads pass once over the buffer; bytes that they asked for, and the time. */
    ls_status (*pass)(void *context, ls_traffic traffic, int n_threads, double *bytes,
                      double *seconds);
    /* Follow a chain of dependent loads. */
    ls_status (*chase)(void *context, double *loads, double *seconds);
    void (*close)(void *context); /* after a successful open */
} ls_memory_probe;

typedef struct ls_memory_sweep {
    bool huge_pages;     /* asked for */
    uint64_t huge_bytes; /* given */
    int n_counts, n_threads[LS_THREAD_COUNTS_MAX];
    ls_spread bytes_per_s[LS_TRAFFIC_COUNT][LS_THREAD_COUNTS_MAX];
    int best[LS_TRAFFIC_COUNT]; /* index of the thread count, see ls_best_count() */
    ls_spread latency_ns;
} ls_memory_sweep;

/* 1, 2, 4, ... below n_cores, and n_cores >= 1 itself; returns how many. */
int ls_thread_counts(int n_cores, int counts[LS_THREAD_COUNTS_MAX]);

/* The first of n whose median is within 2 % of the greatest: more threads that gain nothing are
 * better left to others. */
int ls_best_count(const ls_spread *bytes_per_s, int n);

/*
 * Measure all traffic at all thread counts, and the latency, each as the spread of repetitions
 * (1 .. LS_REPETITIONS_MAX) after one that is not counted.
 *
 * Returns LS_OK, what the probe fails with, or LS_ERR_DEVICE: a pass took no time by the clock.
 */
ls_status ls_memory_sweep_measure(const ls_memory_probe *probe, bool huge_pages, int repetitions,
                                  ls_memory_sweep *sweep);

/* ---- how much memory to take ----------------------------------------------------------------
 */

#define LS_BUFFER_BYTES_MIN ((uint64_t)1 << 20)

/* Bytes wanted (0: choose), and what limits the choice. */
typedef struct ls_buffer_wish {
    uint64_t bytes;           /* asked for; 0: by the cache */
    uint64_t cache_bytes;     /* the last-level cache; 0: not known */
    uint64_t available_bytes; /* free for us */
    const char *place;        /* "host0", for the message */
} ls_buffer_wish;

/*
 * Four times the last-level cache, at least 256 MiB; less, but twice the cache, where half of what
 * is free is less.
 *
 *   bytes  [out] a multiple of LS_BUFFER_BYTES_MIN
 *
 * Returns LS_OK; LS_ERR_INVALID (asked for less than LS_BUFFER_BYTES_MIN); LS_ERR_NO_MEMORY (with
 * what is wanted, what is free, and the remedy).
 */
ls_status ls_buffer_choose(const ls_buffer_wish *wish, uint64_t *bytes);

#endif
