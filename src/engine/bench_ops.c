/* bench_ops.c - calls of ops on buffers of their own, timed in turns; a GPU's by one lane. */
#include "bench_ops.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "clock.h"

#define ROWS_MAX      ((int64_t)1 << 17)
#define FILL          0x3c /* of every byte: 0.0115 in bf16 and in fp32 */
#define PATTERN_BYTES ((uint64_t)4 << 20)

enum { WIDTHS = 4, LENGTHS = 3 };

/* What is measured: sizes that runs have. */
typedef struct shape_set {
    int64_t chunk; /* rows of a product */
    int64_t block; /* queries of a block */
    int64_t heads, key_heads, head_width;
    int64_t widths[WIDTHS], lengths[LENGTHS];
    int fp32_lengths; /* of them: where fp32 has no kernel worth a user's minutes, few */
} shape_set;

static const shape_set cpu_shapes = {.chunk = 2048,
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

typedef struct timed_call {
    ls_op op;
    ls_op_args args;
    double samples[LS_REPETITIONS_MAX];
} timed_call;

typedef struct measuring {
    ls_bench_ops *bench;
    timed_call calls[LS_BENCH_OPS_MAX];
    const shape_set *shapes;
    int64_t rows_max;
    uint64_t operand_bytes_max, workspace_bytes_max;
    int64_t heads_max; /* 0: any */
    ls_arena *arena;   /* the CPU's operands */
    ls_device *device; /* NULL: the CPU, without lanes */
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
    row->kernel = m->bench->ops->kernel_name(op, dtype, m->shapes->head_width);
    row->flops = ls_op_flops(op, args, 0);
    const uint64_t workspace = m->bench->ops->workspace_bytes(op, args);
    if ((uint64_t)largest > m->operand_bytes_max) m->operand_bytes_max = (uint64_t)largest;
    if (workspace > m->workspace_bytes_max) m->workspace_bytes_max = workspace;
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
    const int64_t rows = smaller(m->shapes->chunk, rows_max);

    width = smaller(width, rows_max);
    add_product(m, dtype, rows, width, width, 'y');
    add_product(m, dtype, rows, width, width, 'x');
    add_product(m, dtype, width, width, rows, 'w');
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

/* An op on [N, D], by the bytes of its operands, those that it reads and writes twice; largest: of
 * one operand. */
static void add_bytes(measuring *m, ls_op op, const ls_op_args *args, ls_dtype dtype, double bytes,
                      double largest)
{
    ls_bench_op *row = add_call(m, op, args, dtype, bytes, largest);
    const int64_t N = smaller(m->shapes->chunk, m->rows_max), D = smaller(4096, m->rows_max);

    snprintf(row->shape, sizeof row->shape, "%lldx%lld", (long long)N, (long long)D);
}

/* What a layer does besides products and attention, and the loss. */
static void add_memory_bound(measuring *m, ls_dtype dtype)
{
    const int64_t N = smaller(m->shapes->chunk, m->rows_max), D = smaller(4096, m->rows_max);
    const int64_t K = smaller(m->shapes->head_width, D), n = N * D;
    const double e = of(dtype), each = (double)n, f32 = of(LS_DTYPE_F32);
#define CALL(op, bytes, ...)                                                                       \
    add_bytes(m, LS_OP_##op, &(ls_op_args){.op = {__VA_ARGS__}}, dtype, (bytes)*each, f32 *each)
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
static void add_host_work(measuring *m, ls_dtype dtype)
{
    const int64_t n = smaller(m->shapes->chunk, m->rows_max) * smaller(4096, m->rows_max);
    const double each = (double)n, f32 = of(LS_DTYPE_F32);

    CALL(sumsq, f32, .n = n, .dtype = LS_DTYPE_F32);
    CALL(adamw, 24 + f32, .n = n, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .lr_scale = 1,
         .moments = LS_MOMENTS_F32, .dtype = dtype, .g_dtype = LS_DTYPE_F32);
#undef CALL
}

static void add_shapes(measuring *m, int64_t rows_max)
{
    static const ls_dtype dtypes[] = {LS_DTYPE_BF16, LS_DTYPE_F32};

    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        for (int i = 0; i < WIDTHS; i++) add_products(m, dtypes[d], m->shapes->widths[i], rows_max);
        const int n_lengths = dtypes[d] == LS_DTYPE_F32 ? m->shapes->fp32_lengths : LENGTHS;
        for (int i = 0; i < n_lengths; i++)
            add_attention(m, dtypes[d], m->shapes->lengths[i], rows_max);
        add_memory_bound(m, dtypes[d]);
        if (m->shapes == &cpu_shapes) add_host_work(m, dtypes[d]);
    }
}

/* ---- timing -------------------------------------------------------------------------------- */

/* Indices, and what steers an update: zero is a value of each. */
static bool is_zero(const ls_operand_info *operand)
{
    static const char *const names[] = {"doc_start", "positions", "targets", "control"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(operand->name, names[i]) == 0) return true;
    return false;
}

/* Scales are of packed moments, lower halves of a split master. */
static bool is_absent(const timed_call *call, const ls_operand_info *operand)
{
    const char *scale = strstr(operand->name, "_scale");

    if (call->op != LS_OP_adamw) return false;
    return (scale != NULL && scale[6] == '\0') ||
           (strcmp(operand->name, "lo") == 0 && call->args.adamw.dtype == LS_DTYPE_F32);
}

/* Each operand has room of its own, after one of zeros for document starts; the workspace comes
 * last. */
static void place_operands(const measuring *m, timed_call *call)
{
    const ls_op_info *info = ls_op_describe(call->op);
    const bool has_workspace = m->bench->ops->workspace_bytes(call->op, &call->args) > 0;
    const uint64_t all_operands = (LS_OPERANDS_MAX + 1) * m->operand_bytes_max;

    for (int i = 0; i < info->n_operands; i++) {
        const ls_operand_info *operand = &info->operands[i];
        char *at = m->base + (uint64_t)(i + 1) * m->operand_bytes_max;
        if (is_zero(operand)) at = m->base;
        if (strcmp(operand->name, "workspace") == 0)
            at = has_workspace ? m->base + all_operands : NULL;
        if (is_absent(call, operand)) at = NULL;
        memcpy((char *)&call->args + operand->offset, &at, sizeof at);
    }
}

static ls_status run_calls(const measuring *m, const timed_call *call, int64_t n)
{
    int64_t failed;

    if (m->device == NULL) {
        for (int64_t i = 0; i < n; i++)
            LS_TRY(ls_ops_run(m->bench->ops, call->op, NULL, &call->args));
        return LS_OK;
    }
    ls_status submitted = LS_OK;
    for (int64_t i = 0; i < n && submitted == LS_OK; i++)
        submitted = ls_device_submit_op(m->device, 0, 0, call->op, &call->args);
    const ls_status status = ls_device_sync(m->device, &failed);
    return status != LS_OK ? status : submitted;
}

/* So many calls that they last. */
static ls_status time_call(const measuring *m, const timed_call *call, double least_seconds,
                           double *seconds)
{
    for (int64_t n = 1;; n *= 2) {
        const uint64_t start_ns = ls_clock_ns();
        LS_TRY(run_calls(m, call, n));
        *seconds = 1e-9 * (double)(ls_clock_ns() - start_ns);
        if (*seconds < least_seconds) continue;
        *seconds /= (double)n;
        return LS_OK;
    }
}

/* In rounds through all calls, so that a disturbance meets them alike; the first warms up. */
static ls_status time_all(measuring *m, double least_seconds)
{
    for (int round = -1; round < m->bench->repetitions; round++)
        for (int i = 0; i < m->bench->n_rows; i++) {
            double seconds;
            LS_TRY(time_call(m, &m->calls[i], least_seconds, &seconds));
            if (round >= 0) m->calls[i].samples[round] = seconds;
        }
    for (int i = 0; i < m->bench->n_rows; i++)
        m->bench->rows[i].seconds = ls_spread_of(m->calls[i].samples, m->bench->repetitions);
    return LS_OK;
}

/* ---- memory -------------------------------------------------------------------------------- */

static uint64_t operands_bytes(const measuring *m)
{
    return (LS_OPERANDS_MAX + 1) * m->operand_bytes_max + m->workspace_bytes_max;
}

static ls_status open_host_memory(measuring *m)
{
    const ls_arena_options wish = {.size_bytes = operands_bytes(m), .huge_pages = true};

    LS_TRY(ls_arena_open(&wish, &m->arena));
    m->base = ls_arena_describe(m->arena).base;
    memset(m->base, 0, m->operand_bytes_max);
    memset(m->base + m->operand_bytes_max, FILL, wish.size_bytes - m->operand_bytes_max);
    return LS_OK;
}

static ls_status fill_device_memory(const measuring *m, const char *pattern)
{
    const ls_op_args zero = {.zero = {.y = m->base, .bytes = (int64_t)m->operand_bytes_max}};
    int64_t failed;

    LS_TRY(ls_device_submit_op(m->device, 0, 0, LS_OP_zero, &zero));
    for (uint64_t at = m->operand_bytes_max; at < operands_bytes(m); at += PATTERN_BYTES) {
        const uint64_t left = operands_bytes(m) - at;
        LS_TRY(ls_device_submit_copy(m->device, 0, 0, m->base + at, pattern,
                                     left < PATTERN_BYTES ? left : PATTERN_BYTES));
    }
    return ls_device_sync(m->device, &failed);
}

static ls_status open_device_memory(ls_device_opener *open_device, measuring *m)
{
    const ls_device_options lane = {.n_lanes = 1, .lane_on_gpu = {true}};
    char *pattern = malloc(PATTERN_BYTES);
    void *base = NULL;

    if (pattern == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "operands of a benchmark");
    memset(pattern, FILL, PATTERN_BYTES);
    ls_status status = open_device(&lane, &m->device);
    if (status == LS_OK) status = ls_device_reserve(m->device, operands_bytes(m), &base);
    m->base = base;
    if (status == LS_OK) status = fill_device_memory(m, pattern);
    free(pattern);
    return status;
}

static ls_status measure(const ls_bench_ops_options *options, measuring *m)
{
    m->rows_max = options->rows_max > 0 ? options->rows_max : ROWS_MAX;
    add_shapes(m, m->rows_max);
    m->operand_bytes_max = (m->operand_bytes_max + 4095) / 4096 * 4096;
    ls_status status = options->open_device != NULL ? open_device_memory(options->open_device, m)
                                                    : open_host_memory(m);
    for (int i = 0; i < m->bench->n_rows && status == LS_OK; i++) place_operands(m, &m->calls[i]);
    if (status == LS_OK) status = time_all(m, options->least_seconds);
    ls_device_close(m->device);
    ls_arena_close(m->arena);
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
    m->heads_max = options->heads_max;
    m->shapes = on_gpu ? &gpu_shapes : &cpu_shapes;
    const ls_status status = measure(options, m);
    free(m);
    return status;
}
