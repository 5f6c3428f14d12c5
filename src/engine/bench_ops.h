/*
 * bench_ops.h - what `longspan bench ops` measures: how fast the kernels are of what would compute,
 * a GPU if the profile has one that can be used and else the CPU, by shape.
 *
 *     shapes --> one call at a time, in turns --> table, document, or a profile with the rates
 *
 * Products of matrices in the three forms that training has (y = x w^T, dx = dy w, dw = dy^T x), by
 * their least dimension; attention of the last block of queries, by the length of the sequence, and
 * by each kernel that a run may use;
 * ops that are bound by memory.  All on every core, from buffers that are warm; a GPU's with larger
 * shapes, from its own memory.
 *
 * Layer: engine (uses topology, kernels).  Threads: one bench at a time.
 */
#ifndef LS_BENCH_OPS_H
#define LS_BENCH_OPS_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "bench_calls.h"

#define LS_BENCH_OPS_MAX LS_BENCH_CALLS_MAX

typedef struct ls_bench_op {
    ls_op op;
    char shape[LS_LABEL_BYTES]; /* "2048x512x512 y", "8192 keys of 16384" */
    double size;                /* what the planner looks its rate up by; 0: it does not */
    bool few;                   /* rows, beside the same on more: what a call takes besides work */
    bool is_gradient;           /* of matmul: of weights, a sum over rows in fp32 */
    ls_dtype dtype;
    const char *kernel;  /* static text */
    double flops, bytes; /* of a call; bytes of operands, each once */
    ls_spread seconds;
} ls_bench_op;

typedef struct ls_bench_ops {
    const ls_ops *ops; /* whose kernels */
    int repetitions;
    int threads; /* 0: a GPU's */
    ls_quantity load_average;
    ls_bench_op rows[LS_BENCH_OPS_MAX];
    int n_rows;
} ls_bench_ops;

typedef struct ls_bench_ops_options {
    int repetitions;               /* 0: LS_BENCH_REPETITIONS */
    double least_seconds;          /* a timing repeats its call until it has lasted so long */
    int64_t rows_max;              /* of any shape; fewer make the rest smaller too: for tests */
    int64_t heads_max;             /* of attention; 0: as usual; for tests */
    ls_device_opener *open_device; /* a GPU; NULL: the CPU */
    const ls_ops *ops;             /* the GPU's; NULL: the CPU's */
} ls_bench_ops_options;

/* Measure.  LS_ERR_NO_MEMORY, or what the device or an op fails with. */
ls_status ls_bench_ops_measure(const ls_bench_ops_options *options, ls_bench_ops *bench);

void ls_bench_ops_print(const ls_bench_ops *bench, FILE *file);

/* `ops` of the document, appended to json.  LS_ERR_NO_MEMORY. */
ls_status ls_bench_ops_to_json(const ls_bench_ops *bench, cJSON *json);

/* The unit's peak and efficiencies as measured, in bf16 where dtypes differ. */
void ls_bench_ops_fill(const ls_bench_ops *bench, ls_unit *unit);

/* Measure, print to file, save if asked to: as ls_job_bench_links(). */
ls_status ls_job_bench_ops(const ls_bench_options *options, FILE *file);

#endif
