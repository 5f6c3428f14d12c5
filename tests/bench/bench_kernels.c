/*
 * bench_kernels.c - how fast each matrix multiplication and attention of this build runs here.
 *
 *   bench_kernels [ROUNDS]        default 5; 0 runs everything once, to see that it works
 *
 * Every round times each variant once on each problem, so that a change in the machine's speed
 * meets all of them alike.  Prints a table: median GFLOP/s, and the ratio to the variant that the
 * trainer would choose.  oneDNN's own bf16 matmul takes part for comparison.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bf16.h"
#include "clock.h"
#include "cpu/attention_tile.h"
#include "cpu/matmul.h"
#include "ops.h"
#if defined(LS_HAVE_ONEDNN)
#include "onednn_bf16.h"
#endif

enum { ROUNDS_MAX = 101, VARIANTS_MAX = 8, ONEDNN_BF16 = LS_MATMUL_VARIANT_COUNT };

#define MIN_SECONDS 0.02 /* a timing repeats the call until it has lasted this long */

static int n_rounds = 5;

/* ---- timing -------------------------------------------------------------------------------- */

typedef struct timing {
    const char *name;
    int n;
    double gflops[ROUNDS_MAX];
} timing;

typedef int run_function(void *context); /* 0, or -1 on failure */

static int fail(const char *what)
{
    fprintf(stderr, "bench_kernels: %s failed: %s\n", what, ls_error());
    return -1;
}

static int time_once(timing *t, double flops, run_function *run, void *context)
{
    int64_t calls = 0;
    double seconds = 0;
    const uint64_t start = ls_clock_ns();

    do {
        if (run(context) != 0) return fail(t->name);
        calls++;
        seconds = 1e-9 * (double)(ls_clock_ns() - start);
    } while (n_rounds > 0 && seconds < MIN_SECONDS);
    t->gflops[t->n++] = flops * (double)calls / seconds * 1e-9;
    return 0;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(timing *t)
{
    qsort(t->gflops, (size_t)t->n, sizeof *t->gflops, compare_doubles);
    return (t->gflops[t->n / 2] + t->gflops[(t->n - 1) / 2]) / 2;
}

/* One table row for each variant that ran. */
static void print_timings(const char *problem, timing *timings, const char *chosen)
{
    double ours = 0;
    for (int v = 0; v < VARIANTS_MAX; v++)
        if (timings[v].n > 0 && strcmp(timings[v].name, chosen) == 0) ours = median(&timings[v]);
    for (int v = 0; v < VARIANTS_MAX; v++)
        if (timings[v].n > 0) {
            const double rate = median(&timings[v]);
            printf("| %s | %s%s | %.0f | %.2f |\n", problem, timings[v].name,
                   strcmp(timings[v].name, chosen) == 0 ? " (chosen)" : "", rate, rate / ours);
        }
    fflush(stdout);
}

/* ---- operands ------------------------------------------------------------------------------ */

/* Numbers in [-1, 1) that every machine repeats. */
static void *make_numbers(int64_t n, ls_dtype dtype)
{
    uint32_t state = 1;
    void *numbers = malloc((size_t)n * (size_t)ls_dtype_bytes(dtype));
    if (numbers == NULL) {
        fprintf(stderr, "bench_kernels: out of memory\n");
        exit(1);
    }
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        const float x = (float)(state >> 8) * 0x1p-23f - 1.0f;
        if (dtype == LS_DTYPE_F32)
            ((float *)numbers)[i] = x;
        else
            ((ls_bf16 *)numbers)[i] = ls_bf16_from_f32(x);
    }
    return numbers;
}

static void *make_workspace(ls_op op, const ls_op_args *args)
{
    const uint64_t bytes = ls_ops_cpu.workspace_bytes(op, args);
    void *space = bytes > 0 ? malloc(bytes) : NULL;
    if (bytes > 0 && space == NULL) exit(fail("workspace"));
    return space;
}

/* ---- matmul -------------------------------------------------------------------------------- */

static int run_matmul(void *context)
{
    return ls_ops_cpu.matmul(NULL, context) == LS_OK ? 0 : -1;
}

static int time_variant(timing *timings, int variant, ls_matmul_args *args, double flops)
{
    if (variant == LS_MATMUL_VARIANT_AUTO ||
        !ls_cpu_matmul_force((ls_matmul_variant)variant, args->ab_dtype))
        return 0;
    timings[variant].name = ls_cpu_matmul_kernel_name(args->ab_dtype);
    args->workspace = make_workspace(LS_OP_matmul, &(ls_op_args){.matmul = *args});
    const int status = time_once(&timings[variant], flops, run_matmul, args);
    free(args->workspace);
    args->workspace = NULL;
    ls_cpu_matmul_force(LS_MATMUL_VARIANT_AUTO, args->ab_dtype);
    return status;
}

#if defined(LS_HAVE_ONEDNN)
static int run_onednn(void *context)
{
    return onednn_bf16_run(context);
}

static int time_onednn_bf16(timing *timings, const ls_matmul_args *args, double flops)
{
    if (args->ab_dtype != LS_DTYPE_BF16) return 0;
    onednn_bf16 *multiplication = onednn_bf16_create(args);
    if (multiplication == NULL) return 0; /* this CPU has no bf16 that oneDNN would use */
    timings[ONEDNN_BF16].name = "onednn bf16";
    const int status = run_onednn(multiplication) != 0
                           ? fail("onednn bf16")
                           : time_once(&timings[ONEDNN_BF16], flops, run_onednn, multiplication);
    onednn_bf16_destroy(multiplication);
    return status;
}
#else
static int time_onednn_bf16(timing *timings, const ls_matmul_args *args, double flops)
{
    (void)timings, (void)args, (void)flops;
    return 0;
}
#endif

static int bench_matmul(const char *name, ls_matmul_args args)
{
    timing timings[VARIANTS_MAX] = {{0}};
    const double flops = 2.0 * (double)args.M * (double)args.N * (double)args.K;
    void *a = make_numbers(args.M * args.K, args.ab_dtype);
    void *b = make_numbers(args.K * args.N, args.ab_dtype);
    void *c = make_numbers(args.M * args.N, args.c_dtype);
    char problem[128];
    int status = 0;

    args.a = a;
    args.b = b;
    args.c = c;
    for (int round = 0; round < (n_rounds > 0 ? n_rounds : 1) && status == 0; round++) {
        for (int variant = 0; variant < LS_MATMUL_VARIANT_COUNT && status == 0; variant++)
            status = time_variant(timings, variant, &args, flops);
        if (status == 0) status = time_onednn_bf16(timings, &args, flops);
    }
    snprintf(problem, sizeof problem, "%s %" PRId64 "x%" PRId64 "x%" PRId64 " %s", name, args.M,
             args.N, args.K, ls_dtype_name(args.ab_dtype));
    if (status == 0) print_timings(problem, timings, ls_cpu_matmul_kernel_name(args.ab_dtype));
    free(a);
    free(b);
    free(c);
    return status;
}

/* The multiplications of a layer of configs/models/byte-3m.yaml at 2048 tokens: M x N x K. */
static int bench_matmuls(ls_dtype dtype)
{
    static const struct {
        const char *name;
        ls_matmul_args args;
    } problems[] = {
        {"q, o", {.M = 2048, .N = 256, .K = 256, .trans_b = 1}},
        {"gate, up", {.M = 2048, .N = 704, .K = 256, .trans_b = 1}},
        {"down", {.M = 2048, .N = 256, .K = 704, .trans_b = 1}},
        {"down, input gradient", {.M = 2048, .N = 704, .K = 256}},
        {"down, weight gradient", {.M = 256, .N = 704, .K = 2048, .trans_a = 1}},
        {"square", {.M = 2048, .N = 2048, .K = 2048, .trans_b = 1}},
    };
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        ls_matmul_args args = problems[i].args;
        args.ab_dtype = args.c_dtype = dtype;
        if (bench_matmul(problems[i].name, args) != 0) return -1;
    }
    return 0;
}

/* ---- attention ----------------------------------------------------------------------------- */

static int run_attention_forward(void *context)
{
    return ls_ops_cpu.attention_forward(NULL, context) == LS_OK ? 0 : -1;
}

static int run_attention_backward(void *context)
{
    return ls_ops_cpu.attention_backward(NULL, context) == LS_OK ? 0 : -1;
}

/* Tokens under a causal mask, or queries so far behind as many keys that they see them all. */
typedef struct attention_problem {
    int64_t N, H, G, K;
    int is_far;
} attention_problem;

static double count_pairs(const attention_problem *p)
{
    const double n = (double)p->N;
    return (double)p->H * (p->is_far ? n * n : 0.5 * n * (n + 1.0));
}

/* Time both directions; backward uses forward's lse and whatever delta holds. */
static int time_attention(timing *forward_timing, timing *backward_timing,
                          ls_attention_forward_args *forward, ls_attention_backward_args *backward,
                          double pairs)
{
    const double flops = 2.0 * pairs * (double)forward->K; /* one product */
    int status;

    forward_timing->name = backward_timing->name =
        ls_cpu_attention_kernel_name(forward->dtype, forward->K);
    forward->workspace =
        make_workspace(LS_OP_attention_forward, &(ls_op_args){.attention_forward = *forward});
    backward->workspace =
        make_workspace(LS_OP_attention_backward, &(ls_op_args){.attention_backward = *backward});
    status = time_once(forward_timing, 2 * flops, run_attention_forward, forward);
    if (status == 0)
        status = time_once(backward_timing, 5 * flops, run_attention_backward, backward);
    free(forward->workspace);
    free(backward->workspace);
    return status;
}

static void print_attention(const attention_problem *p, const char *direction, timing *timings,
                            ls_dtype dtype)
{
    char problem[128];
    snprintf(problem, sizeof problem,
             "attention %s, %" PRId64 " %s, %" PRId64 "/%" PRId64 " heads of %" PRId64 ", %s",
             direction, p->N, p->is_far ? "tokens far from their keys" : "tokens", p->H, p->G, p->K,
             ls_dtype_name(dtype));
    print_timings(problem, timings, ls_cpu_attention_kernel_name(dtype, 0));
}

static int bench_attention(const attention_problem *p, ls_dtype dtype)
{
    const int64_t N = p->N, H = p->H, G = p->G, K = p->K;
    const int first_variant =
        p->is_far ? LS_ATTENTION_VARIANT_PLAIN : 1; /* the scalar one is slow */
    timing forward_timings[VARIANTS_MAX] = {{0}}, backward_timings[VARIANTS_MAX] = {{0}};
    int64_t *doc_start = calloc((size_t)N, sizeof *doc_start);
    void *q = make_numbers(N * H * K, dtype), *k = make_numbers(N * G * K, dtype);
    void *v = make_numbers(N * G * K, dtype), *o = make_numbers(N * H * K, dtype);
    float *lse = make_numbers(N * H, LS_DTYPE_F32), *delta = make_numbers(N * H, LS_DTYPE_F32);
    float *dq = make_numbers(N * H * K, LS_DTYPE_F32), *dk = make_numbers(N * G * K, LS_DTYPE_F32);
    float *dv = make_numbers(N * G * K, LS_DTYPE_F32);
    ls_attention_forward_args forward = {.o = o,
                                         .lse = lse,
                                         .q = q,
                                         .k = k,
                                         .v = v,
                                         .doc_start = doc_start,
                                         .N = N,
                                         .M = N,
                                         .H = H,
                                         .G = G,
                                         .K = K,
                                         .q_start = p->is_far ? N : 0,
                                         .scale = 0.125f,
                                         .last = 1,
                                         .dtype = dtype};
    ls_attention_backward_args backward = {.dq = dq,
                                           .dk = dk,
                                           .dv = dv,
                                           .q = q,
                                           .k = k,
                                           .v = v,
                                           .d_o = o,
                                           .lse = lse,
                                           .delta = delta,
                                           .doc_start = doc_start,
                                           .N = N,
                                           .M = N,
                                           .H = H,
                                           .G = G,
                                           .K = K,
                                           .q_start = p->is_far ? N : 0,
                                           .scale = 0.125f,
                                           .dtype = dtype};
    int status = doc_start == NULL ? fail("doc_start") : 0;

    for (int round = 0; round < (n_rounds > 0 ? n_rounds : 1) && status == 0; round++)
        for (int v_ = first_variant; v_ < LS_ATTENTION_VARIANT_COUNT && status == 0; v_++)
            if (ls_cpu_attention_force((ls_attention_variant)v_) != 0)
                status = time_attention(&forward_timings[v_], &backward_timings[v_], &forward,
                                        &backward, count_pairs(p));
    ls_cpu_attention_force(LS_ATTENTION_VARIANT_AUTO);
    if (status == 0) {
        print_attention(p, "forward", forward_timings, dtype);
        print_attention(p, "backward", backward_timings, dtype);
    }
    void *buffers[] = {doc_start, q, k, v, o, lse, delta, dq, dk, dv};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) free(buffers[i]);
    return status;
}

/* The heads of configs/models/byte-3m.yaml, and long sequences of one narrow or usual head. */
static int bench_attentions(ls_dtype dtype)
{
    static const attention_problem problems[] = {
        {.N = 2048, .H = 4, .G = 2, .K = 64},
        {.N = 8192, .H = 1, .G = 1, .K = 64, .is_far = 1},
        {.N = 8192, .H = 1, .G = 1, .K = 128, .is_far = 1},
    };
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        attention_problem problem = problems[i];
        if (n_rounds == 0) problem.N = 256;
        if (bench_attention(&problem, dtype) != 0) return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    char *end = NULL;
    if (argc > 2 || (argc == 2 && (n_rounds = (int)strtol(argv[1], &end, 10), *end != '\0')) ||
        n_rounds < 0 || n_rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: bench_kernels [ROUNDS]   0 to %d\n", ROUNDS_MAX);
        return 2;
    }
    printf("%d threads, %d rounds\n\n", ls_cpu_threads(), n_rounds);
    printf("| problem | kernel | GFLOP/s | ratio |\n|---|---|---|---|\n");
    for (int d = 0; d < 2; d++) {
        const ls_dtype dtype = d == 0 ? LS_DTYPE_BF16 : LS_DTYPE_F32;
        if (bench_matmuls(dtype) != 0 || bench_attentions(dtype) != 0) return 1;
    }
    return 0;
}
