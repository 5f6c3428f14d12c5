/*
 * bench_optimizer.h - how close AdamW comes to the speed of memory: `longspan bench optimizer`.
 *
 * For each number of threads the update runs by turns with a loop that has the same loads and
 * stores and no arithmetic, so that a disturbance of the machine falls on both alike.  The ratio
 * of their times is what can be compared between machines; 1 is the best there is.
 *
 * Layer: engine (uses topology, kernels).  Threads: one bench at a time.
 */
#ifndef LS_BENCH_OPTIMIZER_H
#define LS_BENCH_OPTIMIZER_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "measure.h"
#include "topology.h"

#define LS_BENCH_OPTIMIZER_PARAMS ((int64_t)256 << 20)
#define LS_BENCH_OPTIMIZER_BYTES  16 /* of a parameter: w, lo, m, v, gradient */

typedef struct ls_bench_optimizer_options {
    uint64_t bytes;  /* of all parameters' state; 0: LS_BENCH_OPTIMIZER_PARAMS, or what fits */
    int repetitions; /* 0: 9 */
    bool json, quiet;
} ls_bench_optimizer_options;

/* With so many threads: nanoseconds for a parameter, and the ratio of each pair. */
typedef struct ls_optimizer_row {
    int threads;
    ls_spread update_ns, traffic_ns, ratio;
} ls_optimizer_row;

typedef struct ls_bench_optimizer {
    const char *kernel;
    int64_t n_params;
    int repetitions;
    uint64_t bytes, huge_bytes, cache_bytes; /* huge: granted; cache: 0 if not known */
    double load_average;                     /* before it began; negative: not known */
    int n_rows, best;                        /* best: the fewest threads within 2% of the fastest */
    ls_optimizer_row rows[LS_THREAD_COUNTS_MAX];
} ls_bench_optimizer;

/* LS_ERR_NO_MEMORY (what is wanted, what is free), LS_ERR_DEVICE (no time passed by the clock). */
ls_status ls_bench_optimizer_measure(const ls_bench_optimizer_options *options,
                                     ls_bench_optimizer *bench);

/* A table; the document, of which `machine` is described. */
void ls_bench_optimizer_print(const ls_bench_optimizer *bench, FILE *file);
ls_status ls_bench_optimizer_to_json(const ls_bench_optimizer *bench, const ls_topology *machine,
                                     cJSON **json);

/* Measure this machine and write the result to file.  LS_ERR_IO too. */
ls_status ls_job_bench_optimizer(const ls_bench_optimizer_options *options, FILE *file);

#endif
