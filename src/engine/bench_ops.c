/* bench_ops.c - which calls of which shapes are timed. */
#include "bench_ops.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_calls.h"

#define ROWS_MAX ((int64_t)1 << 17)

enum { WIDTHS = 4, LENGTHS = 3, FEWER = 4 };

/* What is measured: sizes that runs have. */
typedef struct shape_set {
    int64_t chunk;  /* rows of a product */
    int few_widths; /* of the least widths also on fewer rows: what a call takes besides its work */
    int64_t block;  /* queries of a block */
    int64_t heads, key_heads, head_width;
    int64_t widths[WIDTHS], lengths[LENGTHS];
    int fp32_lengths; /* of them: where fp32 has no kernel worth a user's minutes, few */
} shape_set;

static const shape_set cpu_shapes = {.chunk = 2048,
                                     .few_widths = 2,
                                     .block = 1024,
                                     .heads = 4,
                                     .key_heads = 2,
                                     .head_width = 64,
                                     .widths = {64, 256, 1024, 4096},
                                     .lengths = {1024, 4096, 16384},
                                     .fp32_lengths = LENGTHS};

static const shape_set gpu_shapes = {.chunk = 8192,
                                     .block = 8192,
                                     .heads = 32,
                                     .key_heads = 8,
                                     .head_width = 128,
                                     .widths = {1024, 2048, 4096, 8192},
                                     .lengths = {8192, 32768, 131072},
                                     .fp32_lengths = 1};

typedef struct measuring {
    ls_bench_ops *bench;
    ls_bench_calls calls;
    const shape_set *shapes;
    int64_t rows_max;
    int64_t heads_max; /* 0: any */
} measuring;

/* ---- shapes -------------------------------------------------------------------------------- */

static ls_bench_op *add_call(measuring *m, ls_op op, const ls_op_args *args, ls_dtype dtype,
                             double bytes, double largest)
{
    assert(m->bench->n_rows < LS_BENCH_OPS_MAX);
    ls_bench_op *row = &m->bench->rows[m->bench->n_rows++];

    ls_bench_calls_add(&m->calls, op, args, (uint64_t)largest, bytes);
    *row = (ls_bench_op){.op = op, .dtype = dtype, .bytes = bytes};
    row->kernel = m->bench->ops->kernel_name(op, dtype, m->shapes->head_width);
    row->flops = ls_op_flops(op, args, 0);
    return row;
}

static double of(ls_dtype dtype)
{
    return (double)ls_dtype_bytes(dtype);
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static ls_bench_op *add_product(measuring *m, ls_dtype dtype, int64_t M, int64_t N, int64_t K,
                                char form)
{
    const ls_dtype c_dtype = form == 'w' ? LS_DTYPE_F32 : dtype;
    const ls_op_args args = {.matmul = {.M = M,
                                        .N = N,
                                        .K = K,
                                        .trans_a = form == 'w',
                                        .trans_b = form == 'y',
                                        .accumulate = form == 'w',
                                        .ab_dtype = dtype,
                                        .c_dtype = c_dtype}};
    const double a = (double)(M * K), b = (double)(K * N), c = (double)(M * N);
    const double largest = of(LS_DTYPE_F32) * (a > b ? (a > c ? a : c) : (b > c ? b : c));
    ls_bench_op *row =
        add_call(m, LS_OP_matmul, &args, dtype,
                 of(dtype) * (a + b) + of(c_dtype) * c * (form == 'w' ? 2 : 1), largest);
    row->size = (double)smaller(M, smaller(N, K));
    row->is_gradient = form == 'w';
    snprintf(row->shape, sizeof row->shape, "%lldx%lldx%lld %s", (long long)M, (long long)N,
             (long long)K,
             form == 'y'   ? "y"
             : form == 'x' ? "dx"
                           : "dw");
    return row;
}

/* All three forms on so many rows; those on fewer count for the size of those on all. */
static void add_products(measuring *m, ls_dtype dtype, int64_t width, int64_t rows, bool few)
{
    ls_bench_op *const forms[] = {add_product(m, dtype, rows, width, width, 'y'),
                                  add_product(m, dtype, rows, width, width, 'x'),
                                  add_product(m, dtype, width, width, rows, 'w')};

    for (int f = 0; f < 3; f++) {
        forms[f]->few = few;
        if (few) forms[f]->size = (double)smaller(FEWER * rows, width);
    }
}

/* A call of attention, by the kernel that takes it for what is promised of it: nothing, or one
 * document and sums in any order. */
static void add_attention_call(measuring *m, ls_op op, const ls_op_args *args, ls_dtype dtype,
                               bool promised, double bytes, double largest)
{
    const ls_attention_forward_args *f = &args->attention_forward;
    const ls_attention_backward_args *b = &args->attention_backward;
    const int64_t N = op == LS_OP_attention_forward ? f->N : b->N;
    const int64_t S = op == LS_OP_attention_forward ? f->M : b->M;

    /* A vendor's kernel is here if such a call needs scratch that others do not. */
    if (promised && m->bench->ops->vendor_note == NULL) return;
    if (promised && m->bench->ops->workspace_bytes(op, args) == 0) return;
    ls_bench_op *row = add_call(m, op, args, dtype, bytes, largest);
    row->size = (double)S;
    if (promised) row->kernel = "cudnn";
    snprintf(row->shape, sizeof row->shape, "%lld of %lld", (long long)N, (long long)S);
}

/* The last block of queries of a sequence of so many tokens. */
static void add_attention(measuring *m, ls_dtype dtype, int64_t tokens, int64_t rows_max)
{
    const shape_set *of_run = m->shapes;
    const int64_t S = smaller(tokens, rows_max), N = smaller(S, of_run->block);
    const int64_t H = m->heads_max > 0 ? smaller(of_run->heads, m->heads_max) : of_run->heads;
    const int64_t G = larger(H * of_run->key_heads / of_run->heads, 1);
    const double q = (double)(N * H * of_run->head_width);
    const double k = (double)(S * G * of_run->head_width);
    const double largest = of(LS_DTYPE_F32) * (q > k ? q : k);
    const double read = of(dtype) * (2 * q + 2 * k);
    const double gradients = of(LS_DTYPE_F32) * (q + 4 * k);

    for (int32_t promised = 1; promised >= 0; promised--) {
#define FIELDS                                                                                     \
    .N = N, .M = S, .H = H, .G = G, .K = of_run->head_width, .q_start = S - N, .scale = 0.125f,    \
    .one_document = promised, .any_order = promised, .dtype = dtype
        const ls_op_args forward = {.attention_forward = {FIELDS, .last = 1}};
        const ls_op_args backward = {.attention_backward = {FIELDS}};
#undef FIELDS
        add_attention_call(m, LS_OP_attention_forward, &forward, dtype, promised, read, largest);
        add_attention_call(m, LS_OP_attention_backward, &backward, dtype, promised,
                           read + gradients, largest);
    }
}

/* Ops on [N, D]. */
typedef struct rows_of {
    int64_t N, D;
    bool few;
} rows_of;

/* An op by the bytes of its operands, those that it reads and writes twice; largest: of one. */
static void add_bytes(measuring *m, ls_op op, const ls_op_args *args, ls_dtype dtype,
                      const rows_of *rows, double bytes)
{
    const double n = (double)(rows->N * rows->D);
    ls_bench_op *row = add_call(m, op, args, dtype, bytes * n, of(LS_DTYPE_F32) * n);

    row->few = rows->few;
    snprintf(row->shape, sizeof row->shape, "%lldx%lld", (long long)rows->N, (long long)rows->D);
}

/* What a layer does besides products and attention, and the loss. */
static void add_memory_bound(measuring *m, ls_dtype dtype, const rows_of *rows)
{
    const int64_t N = rows->N, D = rows->D, n = N * D, K = smaller(m->shapes->head_width, D);
    const double e = of(dtype), f32 = of(LS_DTYPE_F32);
#define CALL(op, bytes, ...)                                                                       \
    add_bytes(m, LS_OP_##op, &(ls_op_args){.op = {__VA_ARGS__}}, dtype, rows, bytes)
    CALL(rmsnorm_forward, 2 * e, .N = N, .D = D, .eps = 1e-5f, .dtype = dtype);
    CALL(rmsnorm_backward, 3 * e + f32, .N = N, .D = D, .accumulate_dx = 1, .dtype = dtype);
    CALL(swiglu_forward, 3 * e, .n = n, .dtype = dtype);
    CALL(swiglu_backward, 5 * e, .n = n, .dtype = dtype);
    CALL(add, 3 * e, .n = n, .dtype = dtype);
    CALL(cast, e + f32, .n = n, .y_dtype = dtype, .x_dtype = LS_DTYPE_F32);
    CALL(zero, f32, .bytes = n * (int64_t)sizeof(float));
    CALL(rope, 2 * e + (double)K / (double)D * f32, .N = N, .heads = D / K, .K = K, .P = 1,
         .y_dtype = dtype, .x_dtype = dtype);
    CALL(attention_delta, 2 * e, .N = N, .H = D / K, .K = K, .dtype = dtype);
    CALL(cross_entropy, e + f32, .N = N, .V = D, .dtype = dtype);
}

/* The host's share of a step: norms and updates, on as many parameters. */
static void add_host_work(measuring *m, ls_dtype dtype, const rows_of *rows)
{
    const int64_t n = rows->N * rows->D;
    const double f32 = of(LS_DTYPE_F32);

    CALL(sumsq, f32, .n = n, .dtype = LS_DTYPE_F32);
    CALL(adamw, 24 + f32, .n = n, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .lr_scale = 1,
         .moments = LS_MOMENTS_F32, .dtype = dtype, .g_dtype = LS_DTYPE_F32);
#undef CALL
}

static void add_rows(measuring *m, ls_dtype dtype, const rows_of *rows)
{
    add_memory_bound(m, dtype, rows);
    if (m->shapes == &cpu_shapes) add_host_work(m, dtype, rows);
}

/* What a call takes besides its work shows where there is little of it. */
static void add_few(measuring *m, ls_dtype dtype, int64_t rows, int64_t rows_max)
{
    const rows_of few = {rows, smaller(256, rows_max), .few = true};

    for (int i = 0; i < m->shapes->few_widths; i++)
        add_products(m, dtype, smaller(m->shapes->widths[i], rows_max), rows, true);
    if (m->shapes->few_widths > 0) add_rows(m, dtype, &few);
}

static void add_shapes(measuring *m, int64_t rows_max)
{
    static const ls_dtype dtypes[] = {LS_DTYPE_BF16, LS_DTYPE_F32};
    const int64_t rows = smaller(m->shapes->chunk, rows_max);
    const rows_of all = {rows, smaller(4096, rows_max), .few = false};

    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        for (int i = 0; i < WIDTHS; i++)
            add_products(m, dtypes[d], smaller(m->shapes->widths[i], rows_max), rows, false);
        const int n_lengths = dtypes[d] == LS_DTYPE_F32 ? m->shapes->fp32_lengths : LENGTHS;
        for (int i = 0; i < n_lengths; i++)
            add_attention(m, dtypes[d], m->shapes->lengths[i], rows_max);
        add_rows(m, dtypes[d], &all);
    }
    add_few(m, LS_DTYPE_BF16, larger(rows / FEWER, 1), rows_max);
}

/* ---- the whole ----------------------------------------------------------------------------- */

static ls_status measure(const ls_bench_ops_options *options, measuring *m)
{
    ls_bench_ops *bench = m->bench;
    ls_spread seconds[LS_BENCH_OPS_MAX];

    add_shapes(m, m->rows_max);
    ls_status status = ls_bench_calls_open(&m->calls, options->open_device);
    if (status == LS_OK)
        status =
            ls_bench_calls_time(&m->calls, bench->repetitions, options->least_seconds, seconds);
    for (int i = 0; i < bench->n_rows && status == LS_OK; i++) bench->rows[i].seconds = seconds[i];
    ls_bench_calls_close(&m->calls);
    return status;
}

ls_status ls_bench_ops_measure(const ls_bench_ops_options *options, ls_bench_ops *bench)
{
    const bool on_gpu = options->open_device != NULL;
    measuring *m = calloc(1, sizeof *m);

    if (m == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a benchmark's results");
    *bench = (ls_bench_ops){.ops = options->ops != NULL ? options->ops : &ls_ops_cpu,
                            .repetitions = options->repetitions > 0 ? options->repetitions
                                                                    : LS_BENCH_REPETITIONS,
                            .threads = on_gpu ? 0 : ls_cpu_threads(),
                            .load_average = ls_bench_read_load()};
    m->bench = bench;
    m->calls.ops = bench->ops;
    m->rows_max = options->rows_max > 0 ? options->rows_max : ROWS_MAX;
    m->heads_max = options->heads_max;
    m->shapes = on_gpu ? &gpu_shapes : &cpu_shapes;
    const ls_status status = measure(options, m);
    free(m);
    return status;
}
