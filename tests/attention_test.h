/*
 * attention_test.h - what the tests of the attention ops share: problems that reach each branch,
 * the dense softmax and its gradients in double, calls of the ops on cuts of a problem, and
 * comparison.
 *
 *     static void check(const bench *b);     the op on b's operands, then its results against b's
 *     for_each_bench(check);                 for every kernel, element type and problem
 *     cmocka_run_group_tests(tests, make_benches, free_benches);
 *
 * Layer: tests.  Header only.
 */
#ifndef LS_ATTENTION_TEST_H
#define LS_ATTENTION_TEST_H

#include "ops_test.h"

#include "cpu/attention_tile.h"

/* One call's worth of rows and keys. */
typedef struct problem {
    int64_t N, M, H, G, K;
    int64_t q_start, k_start, window;
    int64_t document; /* tokens of each document; 0: all of one; -1: of 1, 2, 3, 4, ... tokens */
    double logits;    /* size of q; keys are of size 1 */
    ls_dtype dtype;
} problem;

#define FAR (((int64_t)1 << 31) + 3)

static const problem problems[] = {
    /* N    M    H  G  K   q_start   k_start window document */
    {1, 1, 1, 1, 64, 0, 0, 0, 0, 1.0, 0},
    {7, 7, 2, 1, 1, 0, 0, 0, 0, 1.0, 0},
    {65, 65, 2, 2, 32, 0, 0, 0, 0, 1.0, 0},
    {130, 130, 4, 2, 64, 0, 0, 0, 50, 1.0, 0},
    {63, 200, 3, 3, 96, 137, 0, 0, 0, 1.0, 0},
    {200, 300, 7, 1, 32, 100, 0, 50, 0, 1.0, 0},
    {64, 64, 4, 1, 128, 0, 0, 0, 1, 1.0, 0}, /* documents of one token */
    /* beyond 2^31; the first row sees all but the last key of a tile */
    {100, 170, 2, 1, 64, FAR + 62, FAR, 0, 0, 1.0, 0},
    {40, 30, 2, 1, 64, FAR + 5, 0, 0, FAR, 1.0, 0}, /* a document 2^31 tokens past the keys */
    {70, 500, 2, 1, 64, 0, 0, 0, 0, 1.0, 0},        /* most keys are in the future */
    {90, 300, 1, 1, 33, 300, 40, 0, -1, 1.0, 0},    /* many documents, odd width */
    {300, 513, 2, 1, 64, 213, 0, 120, 200, 1.0, 0},
    {129, 129, 1, 1, 160, 0, 0, 0, 0, 1.0, 0},
    {300, 300, 3, 1, 32, 0, 0, 0, 50, 1.0, 0},  /* two tiles in one run, or not, by threads */
    {40, 40, 1, 1, 257, 0, 0, 0, 0, 1.0, 0},    /* wider than the vector kernels */
    {50, 30, 2, 1, 64, 0, 50, 0, 0, 1.0, 0},    /* a block entirely in the future */
    {50, 30, 2, 1, 64, 100, 20, 0, 70, 1.0, 0}, /* only some rows see it */
    {70, 70, 2, 1, 64, 0, 0, 0, 0, 20.0, 0},    /* a few keys take all */
    {70, 70, 1, 1, 64, 0, 0, 0, 0, 1e4, 0},     /* one key takes all */
    {1, 300, 8, 1, 128, 299, 0, 0, 0, 1.0, 0},  /* one row, many keys */
    {17, 207, 7, 1, 128, 190, 0, 0, 0, 1.0, 0},
    {130, 140, 1, 1, 128, 10, 0, 70, 0, 1.0, 0},
    {66, 130, 4, 1, 64, 64, 0, 0, -1, 1.0, 0}, /* many documents */
    {40, 40, 2, 1, 128, 0, 0, 0, 0, 12.0, 0},
};

/* The operands of a problem, and the dense results in double. */
typedef struct bench {
    problem p;
    void *q, *k, *v, *d_o; /* [N, H, K], [M, G, K], [M, G, K], [N, H, K] */
    int64_t *doc_start;    /* [N] */
    double *o, *lse, *delta, *dq, *dk, *dv;
} bench;

static inline double scale_of(const problem *p)
{
    return (double)(float)(1.0 / sqrt((double)p->K));
}

static inline int64_t document_start(const problem *p, int64_t position)
{
    if (p->document > 0) return position / p->document * p->document;
    if (p->document == 0) return 0;
    int64_t start = 0;
    for (int64_t length = 1; start + length <= position; length++) start += length;
    return start;
}

static inline int is_seen(const bench *b, int64_t n, int64_t m)
{
    const int64_t position = b->p.q_start + n, key = b->p.k_start + m;
    return key <= position && key >= b->doc_start[n] &&
           (b->p.window == 0 || key > position - b->p.window);
}

static inline double dot_of(const bench *b, const void *x, int64_t x_at, const void *y,
                            int64_t y_at)
{
    double sum = 0.0;
    for (int64_t i = 0; i < b->p.K; i++)
        sum += get(x, x_at + i, b->p.dtype) * get(y, y_at + i, b->p.dtype);
    return sum;
}

/* o and lse of one row, and its probabilities. */
static inline void row_in_double(bench *b, int64_t n, int64_t h, double *probabilities)
{
    const problem *p = &b->p;
    const int64_t row = n * p->H + h, g = h / (p->H / p->G);
    double most = -INFINITY, sum = 0.0;
    for (int64_t m = 0; m < p->M; m++) {
        probabilities[m] = -INFINITY;
        if (!is_seen(b, n, m)) continue;
        probabilities[m] = scale_of(p) * dot_of(b, b->q, row * p->K, b->k, (m * p->G + g) * p->K);
        if (probabilities[m] > most) most = probabilities[m];
    }
    for (int64_t m = 0; m < p->M; m++)
        sum += probabilities[m] > -INFINITY ? exp(probabilities[m] - most) : 0.0;
    b->lse[row] = sum > 0.0 ? most + log(sum) : -INFINITY;
    for (int64_t i = 0; i < p->K; i++) b->o[row * p->K + i] = 0.0;
    for (int64_t m = 0; m < p->M; m++) {
        const int seen = probabilities[m] > -INFINITY;
        probabilities[m] = seen ? exp(probabilities[m] - b->lse[row]) : 0.0;
        if (!seen) continue;
        for (int64_t i = 0; i < p->K; i++)
            b->o[row * p->K + i] +=
                probabilities[m] * get(b->v, (m * p->G + g) * p->K + i, p->dtype);
    }
}

static inline void row_backward_in_double(bench *b, int64_t n, int64_t h,
                                          const double *probabilities)
{
    const problem *p = &b->p;
    const int64_t row = n * p->H + h, g = h / (p->H / p->G), at = row * p->K;
    b->delta[row] = 0.0;
    for (int64_t i = 0; i < p->K; i++)
        b->delta[row] += get(b->d_o, at + i, p->dtype) * b->o[at + i];
    for (int64_t m = 0; m < p->M; m++) {
        if (!is_seen(b, n, m)) continue;
        const int64_t key = (m * p->G + g) * p->K;
        const double ds =
            probabilities[m] * scale_of(p) * (dot_of(b, b->d_o, at, b->v, key) - b->delta[row]);
        for (int64_t i = 0; i < p->K; i++) {
            b->dv[key + i] += probabilities[m] * get(b->d_o, at + i, p->dtype);
            b->dk[key + i] += ds * get(b->q, at + i, p->dtype);
            b->dq[at + i] += ds * get(b->k, key + i, p->dtype);
        }
    }
}

static inline int64_t n_rows(const bench *b)
{
    return b->p.N * b->p.H;
}

/* Elements of q, o, dq. */
static inline int64_t n_queries(const bench *b)
{
    return b->p.N * b->p.H * b->p.K;
}

/* Elements of k, v, dk, dv. */
static inline int64_t n_keys(const bench *b)
{
    return b->p.M * b->p.G * b->p.K;
}

/* Fill the results from the operands. */
static inline void solve(bench *b)
{
    double *probabilities = make_doubles(b->p.M);
    for (int64_t i = 0; i < n_queries(b); i++) b->dq[i] = 0.0;
    for (int64_t i = 0; i < n_keys(b); i++) b->dk[i] = b->dv[i] = 0.0;
    for (int64_t row = 0; row < n_rows(b); row++) {
        row_in_double(b, row / b->p.H, row % b->p.H, probabilities);
        row_backward_in_double(b, row / b->p.H, row % b->p.H, probabilities);
    }
    free_buffer(probabilities);
}

/* blind: every other row sees no key at all. */
static inline bench make_bench(const problem *p, ls_dtype dtype, int blind)
{
    bench b = {.p = *p};
    b.p.dtype = dtype;
    b.q = make_noise(n_queries(&b), dtype, 1, 2.0 * p->logits);
    b.k = make_noise(n_keys(&b), dtype, 2, 2.0);
    b.v = make_noise(n_keys(&b), dtype, 3, 1.0);
    b.d_o = make_noise(n_queries(&b), dtype, 4, 1.0);
    b.doc_start = make_buffer(p->N, LS_DTYPE_I64);
    for (int64_t n = 0; n < p->N; n++)
        b.doc_start[n] =
            blind && n % 2 == 0 ? p->q_start + n + 1 : document_start(p, p->q_start + n);
    b.o = make_doubles(n_queries(&b));
    b.lse = make_doubles(n_rows(&b));
    b.delta = make_doubles(n_rows(&b));
    b.dq = make_doubles(n_queries(&b));
    b.dk = make_doubles(n_keys(&b));
    b.dv = make_doubles(n_keys(&b));
    solve(&b);
    return b;
}

static inline void free_bench(bench *b)
{
    void *all[] = {b->q,   b->k,     b->v,  b->d_o, b->doc_start, b->o,
                   b->lse, b->delta, b->dq, b->dk,  b->dv};
    for (int64_t i = 0; i < COUNT_OF(all); i++) free_buffer(all[i]);
}

/* ---- every kernel, element type and problem ------------------------------------------------ */

enum { N_BENCHES = 2 * COUNT_OF(problems) };

static bench benches[2][N_BENCHES]; /* [blind]: each problem in F32 and in BF16 */

/* Group setup: solve every problem once. */
static inline int make_benches(void **state)
{
    (void)state;
    for (int blind = 0; blind < 2; blind++)
        for (int i = 0; i < N_BENCHES; i++)
            benches[blind][i] = make_bench(&problems[i / 2], (ls_dtype)(i % 2), blind);
    return 0;
}

/* Group teardown. */
static inline int free_benches(void **state)
{
    (void)state;
    for (int blind = 0; blind < 2; blind++)
        for (int i = 0; i < N_BENCHES; i++) free_bench(&benches[blind][i]);
    return 0;
}

/* Run f for every kernel that can compute b. */
static inline void for_each_kernel(const bench *b, void (*f)(const bench *b))
{
#if defined(LS_TEST_CUDA)
    f(b); /* by the kernel that the backend chooses */
#else
    const ls_attention_kernel *before = NULL;
    for (int variant = LS_ATTENTION_VARIANT_COUNT - 1; variant > 0; variant--) {
        if (!ls_cpu_attention_force((ls_attention_variant)variant)) continue;
        const ls_attention_kernel *kernel = ls_attention_kernel_choose(b->p.dtype, b->p.K);
        if (kernel != before) f(b); /* a variant that cannot gives way to the next one */
        before = kernel;
    }
    ls_cpu_attention_force(LS_ATTENTION_VARIANT_AUTO);
#endif
}

static inline void for_each_bench(void (*f)(const bench *b))
{
    for (int i = 0; i < N_BENCHES; i++) for_each_kernel(&benches[0][i], f);
}

static inline void for_each_blind_bench(void (*f)(const bench *b))
{
    for (int i = 0; i < N_BENCHES; i++) for_each_kernel(&benches[1][i], f);
}

/* Keys that no row sees may hold anything: the bench with NaN in all of them. */
static inline bench make_poisoned(const bench *b)
{
    const int64_t seen = b->p.q_start + b->p.N - b->p.k_start;
    bench poisoned = *b;
    poisoned.k = make_copy(b->k, n_keys(b), b->p.dtype);
    poisoned.v = make_copy(b->v, n_keys(b), b->p.dtype);
    for (int64_t i = seen > 0 ? seen * b->p.G * b->p.K : 0; i < n_keys(b); i++) {
        put(poisoned.k, i, b->p.dtype, NAN);
        put(poisoned.v, i, b->p.dtype, NAN);
    }
    return poisoned;
}

static inline void free_poisoned(bench *poisoned)
{
    free_buffer(poisoned->k);
    free_buffer(poisoned->v);
}

/* ---- calling the ops ----------------------------------------------------------------------- */

/* Rows [row, row + N) against keys [key, key + M) of the bench. */
typedef struct cut {
    int64_t row, N, key, M;
} cut;

static inline cut whole(const bench *b)
{
    return (cut){0, b->p.N, 0, b->p.M};
}

/* The keys of c, and of the rows block_rows from row on. */
static inline cut cut_rows(const bench *b, cut c, int64_t row, int64_t block_rows)
{
    const int64_t left = b->p.N - row;
    return (cut){row, left < block_rows ? left : block_rows, c.key, c.M};
}

enum { CUTS_MAX = 32 };

/* All rows with 37 keys, 100 keys, 37, 100, ... and what is left.  Returns how many. */
static inline int64_t cut_keys(cut cuts[CUTS_MAX], const bench *b)
{
    int64_t n = 0;
    for (int64_t key = 0; key < b->p.M; n++) {
        const int64_t size = n % 2 ? 100 : 37, left = b->p.M - key;
        assert_true(n < CUTS_MAX);
        cuts[n] = (cut){0, b->p.N, key, size < left ? size : left};
        key += cuts[n].M;
    }
    return n;
}

static inline int64_t query_at(const bench *b, cut c)
{
    return c.row * b->p.H * b->p.K;
}

static inline int64_t key_at(const bench *b, cut c)
{
    return c.key * b->p.G * b->p.K;
}

static inline char *offset_by(void *data, int64_t elements, ls_dtype dtype)
{
    return (char *)data + elements * (int64_t)ls_dtype_bytes(dtype);
}

/* The fields that the args of both directions share. */
#define BENCH_FIELDS(b, c)                                                                         \
    .q = offset_by((b)->q, query_at((b), (c)), (b)->p.dtype),                                      \
    .k = offset_by((b)->k, key_at((b), (c)), (b)->p.dtype),                                        \
    .v = offset_by((b)->v, key_at((b), (c)), (b)->p.dtype), .doc_start = (b)->doc_start + (c).row, \
    .N = (c).N, .M = (c).M, .H = (b)->p.H, .G = (b)->p.G, .K = (b)->p.K,                           \
    .q_start = (b)->p.q_start + (c).row, .k_start = (b)->p.k_start + (c).key,                      \
    .window = (b)->p.window, .scale = (float)scale_of(&(b)->p), .dtype = (b)->p.dtype

/* Run op with a workspace of exactly the size it asks for. */
static inline void run_op(ls_op op, ls_op_args *args, void **workspace)
{
    const uint64_t bytes = tested_ops->workspace_bytes(op, args);
    *workspace = bytes > 0 ? make_bytes(bytes) : NULL;
    assert_int_equal(ls_ops_run(tested_ops, op, NULL, args), LS_OK);
    free_buffer(*workspace);
}

/* ---- comparison ---------------------------------------------------------------------------- */

/* Say which kernel and problem a failure below is about. */
static inline void report(const bench *b, double error, double tolerance, const char *what)
{
    if (error <= tolerance) return;
    print_error("%s by %s %s: N %d M %d H %d G %d K %d window %d document %d: error %.2g\n", what,
                tested_ops->kernel_name(LS_OP_attention_forward, b->p.dtype, b->p.K),
                ls_dtype_name(b->p.dtype), (int)b->p.N, (int)b->p.M, (int)b->p.H, (int)b->p.G,
                (int)b->p.K, (int)b->p.window, (int)b->p.document, error);
}

/* ||data - expected|| against the norm of expected, with a floor, since gradients may vanish: the
 * norm of a tensor of 0.03, of 0.1 where they are all but 0. */
static inline double tensor_error(const bench *b, const void *data, ls_dtype dtype,
                                  const double *expected, int64_t n)
{
    double distance = 0.0, norm = 0.0;
    const double least = (double)n * (b->p.logits > 100.0 || b->p.document == 1 ? 1e-2 : 1e-3);
    for (int64_t i = 0; i < n; i++) {
        const double difference = get(data, i, dtype) - expected[i];
        distance += difference * difference;
        norm += expected[i] * expected[i];
    }
    return n > 0 ? sqrt(distance / (norm > least ? norm : least)) : 0.0;
}

#define assert_tensor(b, data, dtype, expected, n, tolerance)                                      \
    do {                                                                                           \
        const double error = tensor_error((b), (data), (dtype), (expected), (n));                  \
        report((b), error, (tolerance), #data);                                                    \
        assert_true(error <= (tolerance));                                                         \
    } while (0)

#endif
