/*
 * test_attention.c - every attention kernel this machine can run, forward and backward, against
 * the dense softmax in double; and the laws blocks and threads must keep.
 */
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
    {64, 64, 4, 1, 128, 0, 0, 0, 1, 1.0, 0},           /* documents of one token */
    {100, 150, 2, 1, 64, FAR + 50, FAR, 0, 0, 1.0, 0}, /* beyond 2^31 */
    {70, 500, 2, 1, 64, 0, 0, 0, 0, 1.0, 0},           /* most keys are in the future */
    {90, 300, 1, 1, 33, 300, 40, 0, -1, 1.0, 0},       /* many documents, odd width */
    {300, 513, 2, 1, 64, 213, 0, 120, 200, 1.0, 0},
    {129, 129, 1, 1, 160, 0, 0, 0, 0, 1.0, 0},
    {40, 40, 1, 1, 257, 0, 0, 0, 0, 1.0, 0},    /* wider than the vector kernels */
    {50, 30, 2, 1, 64, 0, 50, 0, 0, 1.0, 0},    /* a block entirely in the future */
    {50, 30, 2, 1, 64, 100, 20, 0, 70, 1.0, 0}, /* only some rows see it */
    {70, 70, 2, 1, 64, 0, 0, 0, 0, 20.0, 0},    /* a few keys take all */
    {70, 70, 1, 1, 64, 0, 0, 0, 0, 1e4, 0},     /* one key takes all */
};

/* The operands of a problem, and the dense results in double. */
typedef struct bench {
    problem p;
    void *q, *k, *v, *d_o; /* [N, H, K], [M, G, K], [M, G, K], [N, H, K] */
    int64_t *doc_start;    /* [N] */
    double *o, *lse, *delta, *dq, *dk, *dv;
} bench;

static double scale_of(const problem *p)
{
    return (double)(float)(1.0 / sqrt((double)p->K));
}

static int64_t document_start(const problem *p, int64_t position)
{
    if (p->document > 0) return position / p->document * p->document;
    if (p->document == 0) return 0;
    int64_t start = 0;
    for (int64_t length = 1; start + length <= position; length++) start += length;
    return start;
}

static int is_seen(const bench *b, int64_t n, int64_t m)
{
    const int64_t position = b->p.q_start + n, key = b->p.k_start + m;
    return key <= position && key >= b->doc_start[n] &&
           (b->p.window == 0 || key > position - b->p.window);
}

static double dot_of(const bench *b, const void *x, int64_t x_at, const void *y, int64_t y_at)
{
    double sum = 0.0;
    for (int64_t i = 0; i < b->p.K; i++)
        sum += get(x, x_at + i, b->p.dtype) * get(y, y_at + i, b->p.dtype);
    return sum;
}

/* o and lse of one row, and its probabilities. */
static void row_in_double(bench *b, int64_t n, int64_t h, double *probabilities)
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

static void row_backward_in_double(bench *b, int64_t n, int64_t h, const double *probabilities)
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

static double *make_zeros(int64_t n)
{
    double *zeros = make_doubles(n);
    for (int64_t i = 0; i < n; i++) zeros[i] = 0.0;
    return zeros;
}

static bench make_bench(const problem *p, ls_dtype dtype)
{
    const int64_t rows = p->N * p->H, n_q = rows * p->K, n_k = p->M * p->G * p->K;
    bench b = {.p = *p};
    b.p.dtype = dtype;
    b.q = make_noise(n_q, dtype, 1, 2.0 * p->logits);
    b.k = make_noise(n_k, dtype, 2, 2.0);
    b.v = make_noise(n_k, dtype, 3, 1.0);
    b.d_o = make_noise(n_q, dtype, 4, 1.0);
    b.doc_start = make_buffer(p->N, LS_DTYPE_I64);
    for (int64_t n = 0; n < p->N; n++) b.doc_start[n] = document_start(p, p->q_start + n);
    b.o = make_zeros(n_q);
    b.lse = make_zeros(rows);
    b.delta = make_zeros(rows);
    b.dq = make_zeros(n_q);
    b.dk = make_zeros(n_k);
    b.dv = make_zeros(n_k);
    double *probabilities = make_doubles(p->M);
    for (int64_t row = 0; row < rows; row++) {
        row_in_double(&b, row / p->H, row % p->H, probabilities);
        row_backward_in_double(&b, row / p->H, row % p->H, probabilities);
    }
    free_buffer(probabilities);
    return b;
}

static void free_bench(bench *b)
{
    void *all[] = {b->q,   b->k,     b->v,  b->d_o, b->doc_start, b->o,
                   b->lse, b->delta, b->dq, b->dk,  b->dv};
    for (int64_t i = 0; i < COUNT_OF(all); i++) free_buffer(all[i]);
}

/* ---- calling the ops ----------------------------------------------------------------------- */

static const char *offset_by(const void *data, int64_t elements, ls_dtype dtype)
{
    return (const char *)data + elements * (int64_t)ls_dtype_bytes(dtype);
}

/* Rows [row, row + N) against keys [key, key + M) of the bench. */
typedef struct cut {
    int64_t row, N, key, M;
} cut;

static void run_forward(const bench *b, cut c, void *o, float *lse, float *o_acc, int accumulate,
                        int last)
{
    const problem *p = &b->p;
    const int64_t q_at = c.row * p->H * p->K, k_at = c.key * p->G * p->K;
    ls_attention_forward_args args = {
        .o = (char *)o + q_at * (int64_t)ls_dtype_bytes(p->dtype),
        .lse = lse + c.row * p->H,
        .o_acc = o_acc != NULL ? o_acc + q_at : NULL,
        .q = offset_by(b->q, q_at, p->dtype),
        .k = offset_by(b->k, k_at, p->dtype),
        .v = offset_by(b->v, k_at, p->dtype),
        .doc_start = b->doc_start + c.row,
        .N = c.N,
        .M = c.M,
        .H = p->H,
        .G = p->G,
        .K = p->K,
        .q_start = p->q_start + c.row,
        .k_start = p->k_start + c.key,
        .window = p->window,
        .scale = (float)scale_of(p),
        .accumulate = accumulate,
        .last = last,
        .dtype = p->dtype,
    };
    const uint64_t bytes = tested_ops->workspace_bytes(LS_OP_attention_forward,
                                                       &(ls_op_args){.attention_forward = args});
    args.workspace = bytes > 0 ? make_bytes(bytes) : NULL;
    assert_int_equal(tested_ops->attention_forward(NULL, &args), LS_OK);
    free_buffer(args.workspace);
}

typedef struct gradients {
    float *dq, *dk, *dv;
} gradients;

static void run_backward(const bench *b, cut c, const float *lse, const float *delta, gradients to,
                         int accumulate)
{
    const problem *p = &b->p;
    const int64_t q_at = c.row * p->H * p->K, k_at = c.key * p->G * p->K;
    ls_attention_backward_args args = {
        .dq = to.dq + q_at,
        .dk = to.dk + k_at,
        .dv = to.dv + k_at,
        .q = offset_by(b->q, q_at, p->dtype),
        .k = offset_by(b->k, k_at, p->dtype),
        .v = offset_by(b->v, k_at, p->dtype),
        .d_o = offset_by(b->d_o, q_at, p->dtype),
        .lse = lse + c.row * p->H,
        .delta = delta + c.row * p->H,
        .doc_start = b->doc_start + c.row,
        .N = c.N,
        .M = c.M,
        .H = p->H,
        .G = p->G,
        .K = p->K,
        .q_start = p->q_start + c.row,
        .k_start = p->k_start + c.key,
        .window = p->window,
        .scale = (float)scale_of(p),
        .accumulate = accumulate,
        .dtype = p->dtype,
    };
    const uint64_t bytes = tested_ops->workspace_bytes(LS_OP_attention_backward,
                                                       &(ls_op_args){.attention_backward = args});
    args.workspace = bytes > 0 ? make_bytes(bytes) : NULL;
    assert_int_equal(tested_ops->attention_backward(NULL, &args), LS_OK);
    free_buffer(args.workspace);
}

static float *make_floats_of(const double *from, int64_t n)
{
    float *to = make_buffer(n, LS_DTYPE_F32);
    for (int64_t i = 0; i < n; i++) to[i] = (float)from[i];
    return to;
}

/* lse is compared by distance: its size says nothing about what it is used for. */
static void assert_lse_close(const float *lse, const bench *b)
{
    for (int64_t i = 0; i < b->p.N * b->p.H; i++) {
        if (b->lse[i] == -INFINITY) {
            assert_true(lse[i] == -INFINITY);
            continue;
        }
        const double most = 2e-5 + 5e-7 * fabs(b->lse[i]);
        if (!(fabs(lse[i] - b->lse[i]) <= most))
            print_error("lse[%d] is %.9g, not %.9g\n", (int)i, lse[i], b->lse[i]);
        assert_true(fabs(lse[i] - b->lse[i]) <= most);
    }
}

static double gradient_tolerance(const bench *b)
{
    if (b->p.logits > 100.0) return 5e-2; /* fp32 holds an lse of 10^4 to 10^-3 */
    if (b->p.dtype == LS_DTYPE_BF16) return 8e-3;
    return b->p.logits > 10.0 ? 2e-5 : 5e-6; /* scores of 100 are good to 1e-5 */
}

static double forward_tolerance(const bench *b)
{
    if (b->p.dtype == LS_DTYPE_BF16) return 4e-3;
    return b->p.logits > 100.0 ? 1e-3 : b->p.logits > 10.0 ? 2e-5 : 3e-6;
}

/* Run f for every kernel, element type and problem. */
static void for_each_bench(void (*f)(bench *b))
{
    FOR_EACH_DTYPE(dtype) for (int64_t i = 0; i < COUNT_OF(problems); i++)
    {
        bench b = make_bench(&problems[i], dtype);
        const ls_attention_kernel *before = NULL;
        for (int variant = LS_ATTENTION_VARIANT_COUNT - 1; variant > 0; variant--) {
            if (!ls_cpu_attention_force((ls_attention_variant)variant)) continue;
            const ls_attention_kernel *kernel = ls_attention_kernel_choose(dtype, b.p.K);
            if (kernel != before) f(&b); /* a variant that cannot gives way to the next one */
            before = kernel;
        }
        ls_cpu_attention_force(LS_ATTENTION_VARIANT_AUTO);
        free_bench(&b);
    }
}

/* Say which kernel and problem a failure below is about. */
static void report(const bench *b, double error, double tolerance, const char *what)
{
    if (error <= tolerance) return;
    print_error("%s by %s %s: N %d M %d H %d G %d K %d window %d document %d: error %.2g\n", what,
                ls_attention_kernel_choose(b->p.dtype, b->p.K)->name, ls_dtype_name(b->p.dtype),
                (int)b->p.N, (int)b->p.M, (int)b->p.H, (int)b->p.G, (int)b->p.K, (int)b->p.window,
                (int)b->p.document, error);
}

/* ||data - expected|| against the norm of expected, with a floor, since gradients may vanish: the
 * norm of a tensor of 0.03, of 0.1 where they are all but 0. */
static double tensor_error(const bench *b, const void *data, ls_dtype dtype, const double *expected,
                           int64_t n)
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

/* ---- forward ------------------------------------------------------------------------------- */

static void check_forward(bench *b)
{
    const problem *p = &b->p;
    const int64_t n_q = p->N * p->H * p->K;
    const cut whole = {0, p->N, 0, p->M};
    for (int with_acc = 0; with_acc < 2; with_acc++) {
        void *o = make_buffer(n_q, p->dtype);
        float *lse = make_buffer(p->N * p->H, LS_DTYPE_F32);
        float *o_acc = with_acc ? make_buffer(n_q, LS_DTYPE_F32) : NULL;
        run_forward(b, whole, o, lse, o_acc, 0, 1);
        assert_tensor(b, o, p->dtype, b->o, n_q, forward_tolerance(b));
        if (with_acc) assert_tensor(b, o_acc, LS_DTYPE_F32, b->o, n_q, forward_tolerance(b));
        assert_lse_close(lse, b);
        free_buffer(o);
        free_buffer(lse);
        free_buffer(o_acc);
    }
}

static void forward_matches_the_dense_softmax(void **state)
{
    (void)state;
    for_each_bench(check_forward);
}

/* Query blocks of 70 rows; key blocks of 37, then of 100, then what is left. */
static int64_t cut_keys(cut *cuts, const problem *p)
{
    int64_t n = 0;
    for (int64_t key = 0; key < p->M; n++) {
        const int64_t size = n % 2 ? 100 : 37, left = p->M - key;
        cuts[n] = (cut){0, p->N, key, size < left ? size : left};
        key += cuts[n].M;
    }
    return n;
}

static void check_merged(bench *b)
{
    const problem *p = &b->p;
    const int64_t n_q = p->N * p->H * p->K;
    void *o = make_buffer(n_q, p->dtype);
    float *lse = make_buffer(p->N * p->H, LS_DTYPE_F32);
    float *o_acc = make_buffer(n_q, LS_DTYPE_F32);
    cut cuts[32];
    const int64_t n_cuts = cut_keys(cuts, p);
    for (int64_t row = 0; row < p->N; row += 70)
        for (int64_t i = 0; i < n_cuts; i++) {
            cut c = cuts[i];
            c.row = row;
            c.N = p->N - row < 70 ? p->N - row : 70;
            run_forward(b, c, o, lse, o_acc, i > 0, i == n_cuts - 1);
        }
    assert_tensor(b, o, p->dtype, b->o, n_q, forward_tolerance(b));
    assert_tensor(b, o_acc, LS_DTYPE_F32, b->o, n_q, forward_tolerance(b));
    assert_lse_close(lse, b);
    free_buffer(o);
    free_buffer(lse);
    free_buffer(o_acc);
}

static void blocks_merge_into_the_dense_softmax(void **state)
{
    (void)state;
    for_each_bench(check_merged);
}

/* Equal logits: each of 4 keys weighs exactly 1/4, and sums of small integers are exact. */
static void check_equal_logits(bench *b)
{
    problem *p = &b->p;
    if (p->logits > 1.0 || p->document != 0 || p->M < 4) return;
    bench flat = make_bench(p, p->dtype);
    flat.p.window = 4;
    const int64_t n_q = p->N * p->H * p->K, n_k = p->M * p->G * p->K;
    fill_integers(flat.k, n_k, p->dtype, 5, 0);
    fill_integers(flat.v, n_k, p->dtype, 6, 8);
    void *o = make_buffer(n_q, p->dtype);
    float *lse = make_buffer(p->N * p->H, LS_DTYPE_F32);
    run_forward(&flat, (cut){0, p->N, 0, p->M}, o, lse, NULL, 0, 1);
    for (int64_t n = 0; n < p->N; n++) {
        const int64_t last = p->q_start + n - p->k_start;
        if (last < 3 || last >= p->M) continue;
        for (int64_t i = 0; i < p->H * p->K; i++) {
            const int64_t value = i / p->K / (p->H / p->G) * p->K + i % p->K;
            double sum = 0.0;
            for (int64_t m = last - 3; m <= last; m++)
                sum += get(flat.v, m * p->G * p->K + value, p->dtype);
            assert_true(get(o, n * p->H * p->K + i, p->dtype) == sum / 4.0);
        }
        assert_true(fabs(lse[n * p->H] - log(4.0)) < 1e-6);
    }
    free_buffer(o);
    free_buffer(lse);
    free_bench(&flat);
}

static void equal_logits_give_exact_means(void **state)
{
    (void)state;
    for_each_bench(check_equal_logits);
}

/* Keys that no row sees may hold anything. */
static void check_unseen(bench *b)
{
    const problem *p = &b->p;
    const int64_t n_q = p->N * p->H * p->K, width = p->G * p->K;
    const int64_t seen = p->q_start + p->N - p->k_start;
    if (seen >= p->M) return;
    bench poisoned = *b;
    poisoned.k = make_copy(b->k, p->M * width, p->dtype);
    poisoned.v = make_copy(b->v, p->M * width, p->dtype);
    for (int64_t i = seen > 0 ? seen * width : 0; i < p->M * width; i++) {
        put(poisoned.k, i, p->dtype, NAN);
        put(poisoned.v, i, p->dtype, NAN);
    }
    void *o = make_buffer(n_q, p->dtype);
    float *lse = make_buffer(p->N * p->H, LS_DTYPE_F32);
    run_forward(&poisoned, (cut){0, p->N, 0, p->M}, o, lse, NULL, 0, 1);
    assert_tensor(b, o, p->dtype, b->o, n_q, forward_tolerance(b));
    float *lse_exact = make_floats_of(b->lse, p->N * p->H);
    float *delta = make_floats_of(b->delta, p->N * p->H);
    float *dq = make_buffer(n_q, LS_DTYPE_F32);
    double *zeros = make_zeros(p->M * width);
    float *dk = make_floats_of(zeros, p->M * width), *dv = make_floats_of(zeros, p->M * width);
    run_backward(&poisoned, (cut){0, p->N, 0, p->M}, lse_exact, delta, (gradients){dq, dk, dv}, 0);
    assert_tensor(b, dq, LS_DTYPE_F32, b->dq, n_q, gradient_tolerance(b));
    assert_tensor(b, dk, LS_DTYPE_F32, b->dk, p->M * width, gradient_tolerance(b));
    assert_tensor(b, dv, LS_DTYPE_F32, b->dv, p->M * width, gradient_tolerance(b));
    void *all[] = {poisoned.k, poisoned.v, o, lse, lse_exact, delta, dq, dk, dv, zeros};
    for (int64_t i = 0; i < COUNT_OF(all); i++) free_buffer(all[i]);
}

static void unseen_keys_are_not_used(void **state)
{
    (void)state;
    for_each_bench(check_unseen);
}

/* ---- backward ------------------------------------------------------------------------------ */

/* dq, dk and dv over blocks of rows (descending, as training runs) and keys, on top of `start`. */
static void check_gradients(const bench *b, int64_t n_rows, const cut *cuts, int64_t n_cuts)
{
    const problem *p = &b->p;
    const int64_t n_q = p->N * p->H * p->K, n_k = p->M * p->G * p->K;
    double *start = make_doubles(n_k), *zeros = make_zeros(n_q);
    fill_noise(start, n_k, LS_DTYPE_F64, 9, 0.25);
    float *lse = make_floats_of(b->lse, p->N * p->H);
    float *delta = make_floats_of(b->delta, p->N * p->H);
    gradients to = {make_buffer(n_q, LS_DTYPE_F32), make_floats_of(start, n_k),
                    make_floats_of(start, n_k)};

    for (int64_t row = (p->N - 1) / n_rows * n_rows; row >= 0; row -= n_rows)
        for (int64_t i = 0; i < n_cuts; i++) {
            cut c = cuts[i];
            c.row = row;
            c.N = p->N - row < n_rows ? p->N - row : n_rows;
            run_backward(b, c, lse, delta, to, i > 0);
        }
    for (int64_t i = 0; i < n_k; i++) {
        to.dk[i] -= (float)start[i];
        to.dv[i] -= (float)start[i];
    }
    assert_tensor(b, to.dq, LS_DTYPE_F32, b->dq, n_q, gradient_tolerance(b));
    assert_tensor(b, to.dk, LS_DTYPE_F32, b->dk, n_k, gradient_tolerance(b));
    assert_tensor(b, to.dv, LS_DTYPE_F32, b->dv, n_k, gradient_tolerance(b));
    void *all[] = {start, zeros, lse, delta, to.dq, to.dk, to.dv};
    for (int64_t i = 0; i < COUNT_OF(all); i++) free_buffer(all[i]);
}

static void check_backward(bench *b)
{
    const cut whole = {0, b->p.N, 0, b->p.M};
    check_gradients(b, b->p.N, &whole, 1);
}

static void backward_matches_the_dense_gradient(void **state)
{
    (void)state;
    for_each_bench(check_backward);
}

static void check_backward_blocks(bench *b)
{
    cut cuts[32];
    const int64_t n_cuts = cut_keys(cuts, &b->p);
    check_gradients(b, 70, cuts, n_cuts);
}

static void backward_blocks_add_up(void **state)
{
    (void)state;
    for_each_bench(check_backward_blocks);
}

/* sum o d_o in double, as a function of q, k and v in turn. */
static double weigh_outputs(const void *context)
{
    bench *b = (bench *)(uintptr_t)context;
    const problem *p = &b->p;
    double *probabilities = make_doubles(p->M), loss = 0.0;
    for (int64_t row = 0; row < p->N * p->H; row++)
        row_in_double(b, row / p->H, row % p->H, probabilities);
    for (int64_t i = 0; i < p->N * p->H * p->K; i++) loss += b->o[i] * get(b->d_o, i, LS_DTYPE_F64);
    free_buffer(probabilities);
    return loss;
}

static double *make_widened(const void *data, int64_t n)
{
    return make_doubles_of(data, n, LS_DTYPE_F32);
}

static void backward_is_the_gradient_of_forward(void **state)
{
    (void)state;
    const problem small = {9, 12, 4, 2, 8, 3, 0, 7, 5, 1.0, LS_DTYPE_F32};
    bench b = make_bench(&small, LS_DTYPE_F32);
    const int64_t n_q = small.N * small.H * small.K, n_k = small.M * small.G * small.K;
    bench wide = b; /* the same numbers as doubles */
    wide.p.dtype = LS_DTYPE_F64;
    wide.q = make_widened(b.q, n_q), wide.k = make_widened(b.k, n_k);
    wide.v = make_widened(b.v, n_k), wide.d_o = make_widened(b.d_o, n_q);
    wide.o = make_zeros(n_q), wide.lse = make_zeros(small.N * small.H);
    double *slopes_q = make_doubles(n_q), *slopes_k = make_doubles(n_k);
    double *slopes_v = make_doubles(n_k);
    differentiate(slopes_q, wide.q, n_q, 1e-5, weigh_outputs, &wide);
    differentiate(slopes_k, wide.k, n_k, 1e-5, weigh_outputs, &wide);
    differentiate(slopes_v, wide.v, n_k, 1e-5, weigh_outputs, &wide);

    for (int variant = 1; variant < LS_ATTENTION_VARIANT_COUNT; variant++) {
        if (!ls_cpu_attention_force((ls_attention_variant)variant)) continue;
        float *lse = make_floats_of(b.lse, small.N * small.H);
        float *delta = make_floats_of(b.delta, small.N * small.H);
        double *zeros = make_zeros(n_k);
        gradients to = {make_buffer(n_q, LS_DTYPE_F32), make_floats_of(zeros, n_k),
                        make_floats_of(zeros, n_k)};
        run_backward(&b, (cut){0, small.N, 0, small.M}, lse, delta, to, 0);
        assert_close(to.dq, LS_DTYPE_F32, slopes_q, n_q, 3e-6);
        assert_close(to.dk, LS_DTYPE_F32, slopes_k, n_k, 3e-6);
        assert_close(to.dv, LS_DTYPE_F32, slopes_v, n_k, 3e-6);
        void *all[] = {lse, delta, zeros, to.dq, to.dk, to.dv};
        for (int64_t i = 0; i < COUNT_OF(all); i++) free_buffer(all[i]);
    }
    ls_cpu_attention_force(LS_ATTENTION_VARIANT_AUTO);
    void *all[] = {wide.q,   wide.k,   wide.v,   wide.d_o, wide.o,
                   wide.lse, slopes_q, slopes_k, slopes_v};
    for (int64_t i = 0; i < COUNT_OF(all); i++) free_buffer(all[i]);
    free_bench(&b);
}

/* ---- laws ---------------------------------------------------------------------------------- */

static void check_threads(bench *b)
{
    const problem *p = &b->p;
    const int64_t n_q = p->N * p->H * p->K, n_k = p->M * p->G * p->K;
    const cut whole = {0, p->N, 0, p->M};
    if (p->N < 100) return;
    float *lse_exact = make_floats_of(b->lse, p->N * p->H);
    float *delta = make_floats_of(b->delta, p->N * p->H);
    double *zeros = make_zeros(n_k);
    void *first[5] = {NULL};
    FOR_EACH_THREADS(threads)
    {
        void *o = make_buffer(n_q, p->dtype);
        float *lse = make_buffer(p->N * p->H, LS_DTYPE_F32);
        gradients to = {make_buffer(n_q, LS_DTYPE_F32), make_floats_of(zeros, n_k),
                        make_floats_of(zeros, n_k)};
        run_forward(b, whole, o, lse, NULL, 0, 1);
        run_backward(b, whole, lse_exact, delta, to, 0);
        void *all[5] = {o, lse, to.dq, to.dk, to.dv};
        const int64_t sizes[5] = {n_q, p->N * p->H, n_q, n_k, n_k};
        for (int i = 0; i < 5; i++) {
            const ls_dtype dtype = i == 0 ? p->dtype : LS_DTYPE_F32;
            if (first[i] == NULL) first[i] = make_copy(all[i], sizes[i], dtype);
            assert_same_bits(all[i], first[i], sizes[i], dtype);
            free_buffer(all[i]);
        }
    }
    for (int i = 0; i < 5; i++) free_buffer(first[i]);
    free_buffer(lse_exact);
    free_buffer(delta);
    free_buffer(zeros);
}

static void thread_count_does_not_change_bits(void **state)
{
    (void)state;
    for_each_bench(check_threads);
}

/* A row without keys ends as o = 0 and lse = -inf, and adds nothing to any gradient. */
static void check_blind_rows(bench *b)
{
    problem *p = &b->p;
    if (p->logits > 1.0) return;
    bench blind = make_bench(p, p->dtype);
    for (int64_t n = 0; n < p->N; n += 2) blind.doc_start[n] = p->q_start + n + 1;
    const int64_t n_q = p->N * p->H * p->K, n_k = p->M * p->G * p->K;
    double *none = make_zeros(n_k), *probabilities = make_doubles(p->M);
    float *dk = make_floats_of(none, n_k), *dv = make_floats_of(none, n_k);
    for (int64_t i = 0; i < n_k; i++) blind.dk[i] = blind.dv[i] = 0.0;
    for (int64_t i = 0; i < n_q; i++) blind.dq[i] = 0.0;
    for (int64_t row = 0; row < p->N * p->H; row++) {
        row_in_double(&blind, row / p->H, row % p->H, probabilities);
        row_backward_in_double(&blind, row / p->H, row % p->H, probabilities);
    }
    void *o = make_buffer(n_q, p->dtype);
    float *lse = make_buffer(p->N * p->H, LS_DTYPE_F32), *dq = make_buffer(n_q, LS_DTYPE_F32);
    float *delta = make_floats_of(blind.delta, p->N * p->H);
    const cut whole = {0, p->N, 0, p->M};
    run_forward(&blind, whole, o, lse, NULL, 0, 1);
    assert_tensor(&blind, o, p->dtype, blind.o, n_q, forward_tolerance(b));
    assert_lse_close(lse, &blind);
    run_backward(&blind, whole, lse, delta, (gradients){dq, dk, dv}, 0);
    assert_tensor(&blind, dq, LS_DTYPE_F32, blind.dq, n_q, gradient_tolerance(b));
    assert_tensor(&blind, dk, LS_DTYPE_F32, blind.dk, n_k, gradient_tolerance(b));
    assert_tensor(&blind, dv, LS_DTYPE_F32, blind.dv, n_k, gradient_tolerance(b));
    void *all[] = {none, probabilities, dk, dv, o, lse, dq, delta};
    for (int64_t i = 0; i < COUNT_OF(all); i++) free_buffer(all[i]);
    free_bench(&blind);
}

static void rows_without_keys_are_empty(void **state)
{
    (void)state;
    for_each_bench(check_blind_rows);
}

static void no_rows_are_allowed(void **state)
{
    (void)state;
    const problem p = {1, 3, 2, 1, 64, 0, 0, 0, 0, 1.0, LS_DTYPE_F32};
    FOR_EACH_DTYPE(dtype)
    {
        bench b = make_bench(&p, dtype);
        float lse[2] = {1.0f, 2.0f};
        float nothing[1] = {3.0f};
        run_forward(&b, (cut){0, 0, 0, 3}, nothing, lse, NULL, 0, 1);
        run_backward(&b, (cut){0, 0, 0, 3}, lse, lse, (gradients){nothing, nothing, nothing}, 0);
        assert_true(lse[0] == 1.0f && nothing[0] == 3.0f);
        free_bench(&b);
    }
}

static void delta_is_the_row_product(void **state)
{
    (void)state;
    static const int64_t widths[] = {1, 5, 8, 64, 129};
    FOR_EACH_DTYPE(dtype) for (int64_t w = 0; w < COUNT_OF(widths); w++)
    {
        const int64_t N = 7, H = 3, K = widths[w], n = N * H * K;
        void *d_o = make_noise(n, dtype, 1, 1.0), *o = make_noise(n, dtype, 2, 1.0);
        float *delta = make_buffer(N * H, LS_DTYPE_F32);
        double *expected = make_zeros(N * H);
        for (int64_t i = 0; i < n; i++) expected[i / K] += get(d_o, i, dtype) * get(o, i, dtype);
        RUN_OP(attention_delta, .delta = delta, .d_o = d_o, .o = o, .N = N, .H = H, .K = K,
               .dtype = dtype);
        assert_close(delta, LS_DTYPE_F32, expected, N * H, TOLERANCE_F32);
        free_buffer(d_o);
        free_buffer(o);
        free_buffer(delta);
        free_buffer(expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_matches_the_dense_softmax),
        cmocka_unit_test(blocks_merge_into_the_dense_softmax),
        cmocka_unit_test(equal_logits_give_exact_means),
        cmocka_unit_test(unseen_keys_are_not_used),
        cmocka_unit_test(backward_matches_the_dense_gradient),
        cmocka_unit_test(backward_blocks_add_up),
        cmocka_unit_test(backward_is_the_gradient_of_forward),
        cmocka_unit_test(thread_count_does_not_change_bits),
        cmocka_unit_test(rows_without_keys_are_empty),
        cmocka_unit_test(no_rows_are_allowed),
        cmocka_unit_test(delta_is_the_row_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
