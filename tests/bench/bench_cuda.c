/*
 * bench_cuda.c - rates of the CUDA device: links, memory-bound ops, matmul, attention.
 *
 *     bench_cuda [SCALE]    SCALE 1: sizes of a 7B model (default); 0: tiny, to see that it works
 *
 * One line of JSON for each measurement on stdout: what, shape, seconds, rate, and the rate that
 * the published peaks of an H200 allow.  The fastest of a few rounds counts.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention_variants.h"
#include "device.h"

#define HBM_BYTES_PER_S 4.8e12   /* H200 */
#define BF16_FLOPS      989.4e12 /* dense */
#define FP32_FLOPS      66.9e12  /* what the plain attention kernels use */
#define NOISE_BYTES_MAX (UINT64_C(1) << 26)

enum { COMPUTE, IN, OUT, N_LANES, ROUNDS = 3, OPERAND_ALIGN = 256 };

typedef struct bench {
    ls_device *device;
    char *memory, *host;
    uint64_t bytes, noise_bytes; /* of device memory; of host memory that holds noise */
    uint64_t link_bytes;         /* half of host memory */
} bench;

static void check(ls_status status)
{
    if (status == LS_OK) return;
    fprintf(stderr, "bench_cuda: %s\n", ls_error());
    exit(1);
}

static double busy(const bench *b, int lane)
{
    return 1e-9 * (double)ls_device_stats(b->device, lane).busy_ns;
}

static void sync_lanes(const bench *b)
{
    int64_t failed;
    check(ls_device_sync(b->device, &failed));
}

static void print_rate(const char *what, const char *shape, double seconds, double amount,
                       double peak)
{
    printf(
        "{\"what\": \"%s\", \"shape\": \"%s\", \"seconds\": %.6g, \"rate\": %.4g, \"peak\": %.4g, "
        "\"of_peak\": %.3f}\n",
        what, shape, seconds, amount / seconds, peak, amount / seconds / peak);
    fflush(stdout);
}

/* ---- ops ------------------------------------------------------------------------------------ */

static double time_op(const bench *b, ls_op op, const ls_op_args *args)
{
    double best = INFINITY;
    for (int round = 0; round < ROUNDS + 1; round++) { /* the first finds algorithms */
        const double before = busy(b, COMPUTE);
        check(ls_device_submit_op(b->device, COMPUTE, round, op, args));
        sync_lanes(b);
        const double seconds = busy(b, COMPUTE) - before;
        if (round > 0 && seconds < best) best = seconds;
    }
    return best > 0.0 ? best : 1e-9;
}

static void bench_add(const bench *b, int64_t n)
{
    char *const m = b->memory, shape[64];
    const ls_op_args args = {.add = {m, m + 2 * n, m + 4 * n, n, LS_DTYPE_BF16}};
    snprintf(shape, sizeof shape, "n %lld", (long long)n);
    print_rate("add", shape, time_op(b, LS_OP_add, &args), 6.0 * (double)n, HBM_BYTES_PER_S);
}

static void bench_norm(const bench *b, int64_t N, int64_t D)
{
    char *const m = b->memory, shape[64];
    const ls_op_args args = {.rmsnorm_forward = {.y = m,
                                                 .x = m + 2 * N * D,
                                                 .w = m + 4 * N * D,
                                                 .r = (float *)(void *)(m + 4 * N * D + 4 * D),
                                                 .N = N,
                                                 .D = D,
                                                 .eps = 1e-5f,
                                                 .dtype = LS_DTYPE_BF16}};
    snprintf(shape, sizeof shape, "N %lld D %lld", (long long)N, (long long)D);
    print_rate("rmsnorm_forward", shape, time_op(b, LS_OP_rmsnorm_forward, &args),
               4.0 * (double)N * (double)D, HBM_BYTES_PER_S);
}

static void bench_matmul(const bench *b, int64_t M, int64_t N, int64_t K, bool gradient)
{
    char *const m = b->memory, shape[96];
    ls_op_args args = {.matmul = {.M = M,
                                  .N = N,
                                  .K = K,
                                  .trans_a = gradient,
                                  .trans_b = !gradient,
                                  .accumulate = gradient,
                                  .ab_dtype = LS_DTYPE_BF16,
                                  .c_dtype = gradient ? LS_DTYPE_F32 : LS_DTYPE_BF16}};
    args.matmul.c = m;
    args.matmul.a = m + 4 * M * N;
    args.matmul.b = m + 4 * M * N + 2 * M * K;
    args.matmul.workspace = m + 4 * M * N + 2 * M * K + 2 * K * N;
    snprintf(shape, sizeof shape, "M %lld N %lld K %lld%s", (long long)M, (long long)N,
             (long long)K, gradient ? " dW" : "");
    print_rate("matmul", shape, time_op(b, LS_OP_matmul, &args),
               2.0 * (double)M * (double)N * (double)K, BF16_FLOPS);
}

/* Operands one behind the other. */
static void *take(char **at, int64_t bytes)
{
    void *start = *at;
    *at += (bytes + OPERAND_ALIGN - 1) / OPERAND_ALIGN * OPERAND_ALIGN;
    return start;
}

/* Values of size 1 all over the first bytes of device memory: multiplied zeros take less power. */
static void fill_with_noise(const bench *b, uint64_t bytes)
{
    uint16_t *host = (uint16_t *)(void *)b->host;
    uint64_t seed = 1;
    for (uint64_t i = 0; i < b->noise_bytes / 2; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        host[i] = (uint16_t)((seed >> 63) << 15 | (0x3f00 + (seed >> 40 & 0xff))); /* 0.5 .. 2 */
    }
    for (uint64_t at = 0; at < bytes; at += b->noise_bytes)
        check(ls_device_submit_copy(b->device, IN, 1, b->memory + at, b->host,
                                    bytes - at < b->noise_bytes ? bytes - at : b->noise_bytes));
    sync_lanes(b);
}

/* By the kernel that took the calls, whichever was meant to. */
static void print_attention(const bench *b, ls_op op, const ls_op_args *args)
{
    char what[64], shape[64];
    (void)ls_cuda_attention_kernels_ran(op);
    const double seconds = time_op(b, op, args);
    const char *kernel = ls_cuda_attention_kernels_ran(op);
    const ls_attention_forward_args *a = &args->attention_forward;
    const int64_t N = op == LS_OP_attention_forward ? a->N : args->attention_backward.N;
    const int64_t M = op == LS_OP_attention_forward ? a->M : args->attention_backward.M;
    snprintf(what, sizeof what, "%s %s", ls_op_describe(op)->name, kernel);
    snprintf(shape, sizeof shape, "S %lld N %lld", (long long)M, (long long)N);
    print_rate(what, shape, seconds, ls_op_flops(op, args, 0.0),
               strcmp(kernel, "plain") == 0 ? FP32_FLOPS : BF16_FLOPS);
}

/* Whether two calls of forward leave the same bits in o. */
static void print_repeats(const bench *b, const ls_op_args *args, uint64_t bytes)
{
    char *const first = b->host, *const second = b->host + bytes;

    if (2 * bytes > 2 * b->link_bytes) return;
    for (int run = 0; run < 2; run++) {
        check(ls_device_submit_op(b->device, COMPUTE, 0, LS_OP_attention_forward, args));
        sync_lanes(b);
        check(ls_device_submit_copy(b->device, OUT, 0, run == 0 ? first : second,
                                    args->attention_forward.o, bytes));
        sync_lanes(b);
    }
    printf("{\"what\": \"cudnn forward, two runs\", \"S\": %lld, \"equal\": %s}\n",
           (long long)args->attention_forward.M,
           memcmp(first, second, bytes) == 0 ? "true" : "false");
}

/* The last N of S tokens against all of them: heads of Qwen2.5-7B, 28 and 4 of keys, 128 wide.
 * Backward takes the LSE that forward leaves, and a delta of 0. */
static void bench_attention(const bench *b, const char *kernel, int64_t S, int64_t N, bool full)
{
    enum { K = 128 };
    const int64_t H = full ? 28 : 4, G = full ? 4 : 2, rows = N * H * K, keys = S * G * K;
    char *at = b->memory;
    void *q = take(&at, 2 * rows), *d_o = take(&at, 2 * rows);
    void *k = take(&at, 2 * keys), *v = take(&at, 2 * keys);
    const uint64_t noise = (uint64_t)(at - b->memory);
    float *lse = take(&at, 4 * N * H), *delta = take(&at, 4 * N * H);
    int64_t *doc_start = take(&at, 8 * N);
    const ls_op_args zero = {.zero = {lse, at - (char *)lse}};
    const bool promised = strcmp(kernel, "cudnn") == 0;
#define FIELDS                                                                                     \
    .q = q, .k = k, .v = v, .doc_start = doc_start, .N = N, .M = S, .H = H, .G = G, .K = K,        \
    .q_start = S - N, .scale = 0.088f, .one_document = promised, .any_order = promised,            \
    .dtype = LS_DTYPE_BF16
    ls_op_args forward = {
        .attention_forward = {FIELDS, .o = take(&at, 2 * rows), .lse = lse, .last = 1}};
    ls_op_args backward = {.attention_backward = {FIELDS, .d_o = d_o, .lse = lse, .delta = delta,
                                                  .dq = take(&at, 4 * rows),
                                                  .dk = take(&at, 4 * keys),
                                                  .dv = take(&at, 4 * keys)}};
#undef FIELDS
    const ls_ops *ops = ls_device_ops(b->device);
    forward.attention_forward.workspace = backward.attention_backward.workspace = at;
    at += ops->workspace_bytes(LS_OP_attention_backward, &backward);
    if ((uint64_t)(at - b->memory) > b->bytes) {
        printf("{\"what\": \"attention %s\", \"shape\": \"S %lld N %lld\", \"skipped\": \"no "
               "room\"}\n",
               kernel, (long long)S, (long long)N);
        return;
    }
    fill_with_noise(b, noise);
    check(ls_device_submit_op(b->device, COMPUTE, 0, LS_OP_zero, &zero));
    sync_lanes(b);
    print_attention(b, LS_OP_attention_forward, &forward);
    print_attention(b, LS_OP_attention_backward, &backward);
    if (promised) print_repeats(b, &forward, 2 * (uint64_t)rows);
}

/* Whether cuDNN is here; if not, a line says why. */
static bool has_vendor(const bench *b)
{
    const char *note = ls_device_ops(b->device)->vendor_note();

    printf("{\"what\": \"cudnn\", \"version\": \"%s\"}\n", note);
    return strncmp(note, "none", 4) != 0;
}

/* Every kernel there is, at several lengths; the slow one with fewer rows. */
static void bench_attentions(const bench *b, bool full)
{
    const ls_cuda_attention_variant *variant;
    for (int n = 0; (variant = ls_cuda_attention_variant_at(n)) != NULL; n++) {
        const int64_t rows = strcmp(variant->name, "plain") == 0 ? 1024 : 8192;
        if (strcmp(variant->name, "cudnn") == 0 && !has_vendor(b)) continue;
        ls_cuda_attention_force(n);
        for (int64_t S = full ? 8192 : 128; S <= (full ? 131072 : 256); S *= full ? 4 : 2)
            bench_attention(b, variant->name, S, full ? rows : S / 2, full);
    }
    ls_cuda_attention_force(-1);
}

/* ---- links ---------------------------------------------------------------------------------- */

static void bench_link(const bench *b, const char *what, bool in, bool out, uint64_t bytes)
{
    double best = INFINITY;
    char shape[64];

    for (int round = 0; round < ROUNDS; round++) {
        const double before_in = busy(b, IN), before_out = busy(b, OUT);
        if (in) check(ls_device_submit_copy(b->device, IN, 1, b->memory, b->host, bytes));
        if (out)
            check(ls_device_submit_copy(b->device, OUT, 2, b->host + bytes, b->memory + bytes,
                                        bytes));
        sync_lanes(b);
        const double took_in = busy(b, IN) - before_in, took_out = busy(b, OUT) - before_out;
        const double seconds = took_in > took_out ? took_in : took_out;
        if (seconds < best) best = seconds;
    }
    snprintf(shape, sizeof shape, "%llu bytes", (unsigned long long)bytes);
    print_rate(what, shape, best > 0.0 ? best : 1e-9, (double)bytes * (in + out), 450e9);
}

int main(int argc, char **argv)
{
    const bool full = argc < 2 || atoi(argv[1]) != 0;
    const int64_t rows = full ? 16384 : 64, width = full ? 3584 : 64, ffn = full ? 18944 : 96;
    const uint64_t link_bytes = full ? UINT64_C(1) << 30 : 1 << 16;
    const ls_device_options options = {
        .n_lanes = N_LANES, .lane_threads = {1, 1, 1}, .lane_on_gpu = {true, true, true}};
    bench b = {.bytes = full ? UINT64_C(8) << 30 : UINT64_C(32) << 20};
    void *memory;

    if (ls_device_probe_cuda() != LS_OK) {
        fprintf(stderr, "bench_cuda: skipped: %s\n", ls_error());
        return 77;
    }
    check(ls_device_open_cuda(&options, &b.device));
    check(ls_device_reserve(b.device, b.bytes, &memory));
    b.memory = memory;
    b.host = calloc(2, link_bytes);
    b.link_bytes = link_bytes;
    b.noise_bytes = link_bytes < NOISE_BYTES_MAX ? link_bytes : NOISE_BYTES_MAX;
    if (b.host == NULL) return 1;
    check(ls_device_attach(b.device, b.host, 2 * link_bytes));
    const ls_op_args zero = {.zero = {memory, (int64_t)b.bytes}};
    check(ls_device_submit_op(b.device, COMPUTE, 0, LS_OP_zero, &zero));
    sync_lanes(&b);

    bench_link(&b, "copy in", true, false, link_bytes);
    bench_link(&b, "copy out", false, true, link_bytes);
    bench_link(&b, "copy both", true, true, link_bytes);
    bench_add(&b, rows * width);
    bench_norm(&b, rows, width);
    bench_matmul(&b, rows, width, width, false);
    bench_matmul(&b, rows, ffn, width, false);
    bench_matmul(&b, ffn, width, rows, true);
    bench_attentions(&b, full);
    ls_device_close(b.device);
    free(b.host);
    return 0;
}
