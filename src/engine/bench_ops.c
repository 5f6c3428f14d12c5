/* bench_ops.c - calls of ops on buffers of their own, timed in turns. */
#define _DEFAULT_SOURCE /* NOLINT: the libc's name; for getloadavg */
#include "bench_ops.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "clock.h"

#define ROWS_MAX   65536
#define CHUNK      2048 /* rows of a product, queries of a block: the default sizes of a run */
#define HEADS      4
#define KEY_HEADS  2
#define HEAD_WIDTH 64
#define FILL       0x3c /* of every byte: 0.0115 in bf16 and in fp32 */

typedef struct timed_call {
    ls_op op;
    ls_op_args args;
    double samples[LS_REPETITIONS_MAX];
} timed_call;

typedef struct measuring {
    ls_bench_ops *bench;
    timed_call calls[LS_BENCH_OPS_MAX];
    uint64_t operand_bytes_max;
    char *base;
} measuring;

/* ---- shapes -------------------------------------------------------------------------------- */

static ls_bench_op *add_call(measuring *m, ls_op op, const ls_op_args *args, ls_dtype dtype,
                             double bytes, double largest)
{
    assert(m->bench->n_rows < LS_BENCH_OPS_MAX);
    const int index = m->bench->n_rows++;
    ls_bench_op *row = &m->bench->rows[index];

    m->calls[index].op = op;
    m->calls[index].args = *args;
    *row = (ls_bench_op){.op = op, .dtype = dtype, .bytes = bytes};
    row->flops = ls_op_flops(op, args, 0);
    const uint64_t workspace = ls_ops_cpu.workspace_bytes(op, args);
    const uint64_t operand = workspace > (uint64_t)largest ? workspace : (uint64_t)largest;
    if (operand > m->operand_bytes_max) m->operand_bytes_max = operand;
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

static void add_product(measuring *m, ls_dtype dtype, int64_t M, int64_t N, int64_t K, char form)
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
    snprintf(row->shape, sizeof row->shape, "%lldx%lldx%lld %s", (long long)M, (long long)N,
             (long long)K,
             form == 'y'   ? "y"
             : form == 'x' ? "dx"
                           : "dw");
}

static void add_products(measuring *m, ls_dtype dtype, int64_t width, int64_t rows_max)
{
    const int64_t rows = smaller(CHUNK, rows_max);

    width = smaller(width, rows_max);
    add_product(m, dtype, rows, width, width, 'y');
    add_product(m, dtype, rows, width, width, 'x');
    add_product(m, dtype, width, width, rows, 'w');
}

/* The last block of queries of a sequence of so many tokens. */
static void add_attention(measuring *m, ls_dtype dtype, int64_t tokens, int64_t rows_max)
{
    const int64_t S = smaller(tokens, rows_max), N = smaller(S, CHUNK / 2);
    const double q = (double)(N * HEADS * HEAD_WIDTH), k = (double)(S * KEY_HEADS * HEAD_WIDTH);
    const double largest = of(LS_DTYPE_F32) * (q > k ? q : k);
#define FIELDS                                                                                     \
    .N = N, .M = S, .H = HEADS, .G = KEY_HEADS, .K = HEAD_WIDTH, .q_start = S - N,                 \
    .scale = 0.125f, .dtype = dtype
    const ls_op_args forward = {.attention_forward = {FIELDS, .last = 1}};
    const ls_op_args backward = {.attention_backward = {FIELDS}};
#undef FIELDS
    ls_bench_op *row =
        add_call(m, LS_OP_attention_forward, &forward, dtype, of(dtype) * (2 * q + 2 * k), largest);
    row->size = (double)S;
    snprintf(row->shape, sizeof row->shape, "%lld of %lld", (long long)N, (long long)S);
    row = add_call(m, LS_OP_attention_backward, &backward, dtype,
                   of(dtype) * (2 * q + 2 * k) + of(LS_DTYPE_F32) * (q + 4 * k), largest);
    row->size = (double)S;
    snprintf(row->shape, sizeof row->shape, "%lld of %lld", (long long)N, (long long)S);
}

static void add_memory_bound(measuring *m, ls_dtype dtype, int64_t rows_max)
{
    const int64_t N = smaller(CHUNK, rows_max), D = smaller(4096, rows_max);
    const double bytes = of(dtype) * (double)(N * D);
    const ls_op_args norm = {.rmsnorm_forward = {.N = N, .D = D, .eps = 1e-5f, .dtype = dtype}};
    const ls_op_args swiglu = {.swiglu_forward = {.n = N * D, .dtype = dtype}};
    ls_bench_op *row = add_call(m, LS_OP_rmsnorm_forward, &norm, dtype, 2 * bytes, bytes);
    snprintf(row->shape, sizeof row->shape, "%lldx%lld", (long long)N, (long long)D);
    row = add_call(m, LS_OP_swiglu_forward, &swiglu, dtype, 3 * bytes, bytes);
    snprintf(row->shape, sizeof row->shape, "%lldx%lld", (long long)N, (long long)D);
}

static void add_shapes(measuring *m, int64_t rows_max)
{
    static const ls_dtype dtypes[] = {LS_DTYPE_BF16, LS_DTYPE_F32};
    static const int64_t widths[] = {64, 256, 1024, 4096}, lengths[] = {1024, 4096, 16384};

    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
            add_products(m, dtypes[d], widths[i], rows_max);
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
            add_attention(m, dtypes[d], lengths[i], rows_max);
        add_memory_bound(m, dtypes[d], rows_max);
    }
}

/* ---- timing -------------------------------------------------------------------------------- */

static bool is_document_start(const ls_operand_info *operand)
{
    return strcmp(operand->name, "doc_start") == 0;
}

/* Each operand has room of its own, after one of zeros for document starts. */
static void place_operands(const measuring *m, timed_call *call)
{
    const ls_op_info *info = ls_op_describe(call->op);
    const bool has_workspace = ls_ops_cpu.workspace_bytes(call->op, &call->args) > 0;

    for (int i = 0; i < info->n_operands; i++) {
        const ls_operand_info *operand = &info->operands[i];
        char *at = m->base + (uint64_t)(i + 1) * m->operand_bytes_max;
        if (is_document_start(operand)) at = m->base;
        if (strcmp(operand->name, "workspace") == 0 && !has_workspace) at = NULL;
        memcpy((char *)&call->args + operand->offset, &at, sizeof at);
    }
}

static ls_status time_call(timed_call *call, double least_seconds, double *seconds)
{
    const uint64_t start_ns = ls_clock_ns();
    int64_t n = 0;

    do {
        LS_TRY(ls_ops_run(&ls_ops_cpu, call->op, NULL, &call->args));
        n++;
        *seconds = 1e-9 * (double)(ls_clock_ns() - start_ns);
    } while (*seconds < least_seconds);
    *seconds /= (double)n;
    return LS_OK;
}

/* In rounds through all calls, so that a disturbance meets them alike; the first warms up. */
static ls_status time_all(measuring *m, double least_seconds)
{
    for (int round = -1; round < m->bench->repetitions; round++)
        for (int i = 0; i < m->bench->n_rows; i++) {
            double seconds;
            LS_TRY(time_call(&m->calls[i], least_seconds, &seconds));
            if (round >= 0) m->calls[i].samples[round] = seconds;
        }
    for (int i = 0; i < m->bench->n_rows; i++)
        m->bench->rows[i].seconds = ls_spread_of(m->calls[i].samples, m->bench->repetitions);
    return LS_OK;
}

static ls_quantity read_load(void)
{
    double load;
    if (getloadavg(&load, 1) != 1) return (ls_quantity){.source = LS_SOURCE_UNKNOWN};
    return ls_discovered(load, "getloadavg");
}

static ls_status measure(const ls_bench_ops_options *options, measuring *m)
{
    ls_arena *arena;

    add_shapes(m, options->rows_max > 0 ? options->rows_max : ROWS_MAX);
    m->operand_bytes_max = (m->operand_bytes_max + 4095) / 4096 * 4096;
    const ls_arena_options wish = {.size_bytes = (LS_OPERANDS_MAX + 1) * m->operand_bytes_max,
                                   .huge_pages = true};
    LS_TRY(ls_arena_open(&wish, &arena));
    m->base = ls_arena_describe(arena).base;
    memset(m->base, 0, m->operand_bytes_max);
    memset(m->base + m->operand_bytes_max, FILL, wish.size_bytes - m->operand_bytes_max);
    for (int i = 0; i < m->bench->n_rows; i++) place_operands(m, &m->calls[i]);
    const ls_status status = time_all(m, options->least_seconds > 0 ? options->least_seconds : 0);
    ls_arena_close(arena);
    return status;
}

ls_status ls_bench_ops_measure(const ls_bench_ops_options *options, ls_bench_ops *bench)
{
    measuring *m = calloc(1, sizeof *m);

    if (m == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a benchmark's results");
    *bench = (ls_bench_ops){.repetitions = options->repetitions > 0 ? options->repetitions
                                                                    : LS_BENCH_REPETITIONS,
                            .threads = ls_cpu_threads(),
                            .load_average = read_load()};
    m->bench = bench;
    const ls_status status = measure(options, m);
    free(m);
    return status;
}
