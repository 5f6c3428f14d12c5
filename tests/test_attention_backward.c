/*
 * test_attention_backward.c - the gradients of every attention kernel this machine can run against
 * those of the dense softmax in double, and against its differences; delta; and the laws blocks
 * and threads must keep.
 */
#include "attention_test.h"

/* What backward reads of the forward pass, and where it writes. */
typedef struct gradients {
    float *lse, *delta;
    float *dq, *dk, *dv;
} gradients;

static float *make_floats_of(const double *from, int64_t n)
{
    float *to = make_buffer(n, LS_DTYPE_F32);
    for (int64_t i = 0; i < n; i++) to[i] = (float)from[i];
    return to;
}

/* What dk and dv hold before: noise of this size. */
static float *make_start(const bench *b, double size)
{
    return make_noise(n_keys(b), LS_DTYPE_F32, 9, size);
}

static gradients make_gradients(const bench *b, double start_size)
{
    return (gradients){make_floats_of(b->lse, n_rows(b)), make_floats_of(b->delta, n_rows(b)),
                       make_buffer(n_queries(b), LS_DTYPE_F32), make_start(b, start_size),
                       make_start(b, start_size)};
}

static void free_gradients(gradients *to)
{
    void *all[] = {to->lse, to->delta, to->dq, to->dk, to->dv};
    for (int64_t i = 0; i < COUNT_OF(all); i++) free_buffer(all[i]);
}

static void run_backward(const bench *b, cut c, const gradients *to, int accumulate)
{
    ls_op_args args = {.attention_backward = {BENCH_FIELDS(b, c), .accumulate = accumulate}};
    args.attention_backward.dq = to->dq + query_at(b, c);
    args.attention_backward.dk = to->dk + key_at(b, c);
    args.attention_backward.dv = to->dv + key_at(b, c);
    args.attention_backward.d_o = offset_by(b->d_o, query_at(b, c), b->p.dtype);
    args.attention_backward.lse = to->lse + c.row * b->p.H;
    args.attention_backward.delta = to->delta + c.row * b->p.H;
    run_op(LS_OP_attention_backward, &args, &args.attention_backward.workspace);
}

/* ---- comparison ---------------------------------------------------------------------------- */

static double tolerance_for(const bench *b)
{
    if (b->p.logits > 100.0) return 5e-2; /* fp32 holds an lse of 10^4 to 10^-3 */
    if (b->p.dtype == LS_DTYPE_BF16) return 8e-3;
    return b->p.logits > 10.0 ? 2e-5 : 5e-6; /* scores of 100 are good to 1e-5 */
}

static void assert_gradients(const bench *b, const gradients *actual)
{
    const double tolerance = tolerance_for(b);
    assert_tensor(b, actual->dq, LS_DTYPE_F32, b->dq, n_queries(b), tolerance);
    assert_tensor(b, actual->dk, LS_DTYPE_F32, b->dk, n_keys(b), tolerance);
    assert_tensor(b, actual->dv, LS_DTYPE_F32, b->dv, n_keys(b), tolerance);
}

static void assert_same_gradients(const bench *b, const gradients *actual, const gradients *same)
{
    assert_same_bits(actual->dq, same->dq, n_queries(b), LS_DTYPE_F32);
    assert_same_bits(actual->dk, same->dk, n_keys(b), LS_DTYPE_F32);
    assert_same_bits(actual->dv, same->dv, n_keys(b), LS_DTYPE_F32);
}

/* ---- against the formula ------------------------------------------------------------------- */

/* Blocks of rows (descending, as training runs) and of keys, on top of what dk and dv held. */
static void check_blocks(const bench *b, int64_t block_rows, const cut *cuts, int64_t n_cuts)
{
    const double size = 0.25;
    gradients to = make_gradients(b, size);
    for (int64_t row = (b->p.N - 1) / block_rows * block_rows; row >= 0; row -= block_rows)
        for (int64_t i = 0; i < n_cuts; i++)
            run_backward(b, cut_rows(b, cuts[i], row, block_rows), &to, i > 0);
    float *start = make_start(b, size);
    for (int64_t i = 0; i < n_keys(b); i++) {
        to.dk[i] -= start[i];
        to.dv[i] -= start[i];
    }
    assert_gradients(b, &to);
    free_gradients(&to);
    free_buffer(start);
}

static void check_whole(const bench *b)
{
    const cut all = whole(b);
    check_blocks(b, b->p.N, &all, 1);
}

static void backward_matches_the_dense_gradient(void **state)
{
    (void)state;
    for_each_bench(check_whole);
}

static void rows_without_keys_add_nothing(void **state)
{
    (void)state;
    for_each_blind_bench(check_whole);
}

static void check_added(const bench *b)
{
    cut cuts[CUTS_MAX];
    const int64_t n_cuts = cut_keys(cuts, b);
    check_blocks(b, 70, cuts, n_cuts);
}

static void backward_blocks_add_up(void **state)
{
    (void)state;
    for_each_bench(check_added);
}

/* Equal logits, rows of 4 keys: each probability is 1/4, and sums of small integers are exact, so
 * that what is exact in bf16 is exact in the gradients. */
static void check_equal_logits(const bench *b)
{
    const problem *p = &b->p;
    if (p->logits > 1.0 || p->document != 0 || p->M < 4 || p->q_start < p->k_start) return;
    bench flat = *b;
    flat.p.window = 4;
    flat.q = make_integers(n_queries(b), p->dtype, 5, 2);
    flat.k = make_integers(n_keys(b), p->dtype, 6, 0);
    flat.v = make_integers(n_keys(b), p->dtype, 7, 1);
    flat.d_o = make_integers(n_queries(b), p->dtype, 8, 1);
    gradients to = make_gradients(b, 0.0);
    double *dk = make_doubles(n_keys(b)), *dv = make_doubles(n_keys(b));
    for (int64_t i = 0; i < n_keys(b); i++) dk[i] = dv[i] = 0.0;
    for (int64_t row = 0; row < n_rows(b); row++) {
        const int64_t n = row / p->H, group = row % p->H / (p->H / p->G);
        const int64_t last = p->q_start + n - p->k_start;
        const int whole_window = last >= 3 && last < p->M;
        to.lse[row] = whole_window ? (float)log(4.0) : -INFINITY;
        to.delta[row] = 1.0f;
        for (int64_t m = last - 3; whole_window && m <= last; m++) {
            const int64_t key = (m * p->G + group) * p->K;
            const double ds = (dot_of(&flat, flat.d_o, row * p->K, flat.v, key) - 1.0) / 4.0;
            for (int64_t i = 0; i < p->K; i++) {
                dv[key + i] += get(flat.d_o, row * p->K + i, p->dtype) / 4.0;
                dk[key + i] += scale_of(p) * ds * get(flat.q, row * p->K + i, p->dtype);
            }
        }
    }
    run_backward(&flat, whole(b), &to, 0);
    assert_tensor(&flat, to.dk, LS_DTYPE_F32, dk, n_keys(b), 1e-6);
    assert_tensor(&flat, to.dv, LS_DTYPE_F32, dv, n_keys(b), 1e-6);
    void *all[] = {flat.q, flat.k, flat.v, flat.d_o, dk, dv};
    for (int64_t i = 0; i < COUNT_OF(all); i++) free_buffer(all[i]);
    free_gradients(&to);
}

static void equal_logits_give_exact_gradients(void **state)
{
    (void)state;
    for_each_bench(check_equal_logits);
}

/* ---- against differences ------------------------------------------------------------------- */

/* sum o d_o in double, as a function of q, k and v in turn. */
static double weigh_outputs(const void *context)
{
    bench *b = (bench *)(uintptr_t)context;
    double *probabilities = make_doubles(b->p.M), loss = 0.0;
    for (int64_t row = 0; row < n_rows(b); row++)
        row_in_double(b, row / b->p.H, row % b->p.H, probabilities);
    for (int64_t i = 0; i < n_queries(b); i++) loss += b->o[i] * get(b->d_o, i, LS_DTYPE_F64);
    free_buffer(probabilities);
    return loss;
}

/* An F32 bench with its operands as doubles, and only the results that weigh_outputs needs. */
static bench make_widened(const bench *b)
{
    bench wide = {.p = b->p};
    wide.p.dtype = LS_DTYPE_F64;
    wide.q = make_doubles_of(b->q, n_queries(b), LS_DTYPE_F32);
    wide.k = make_doubles_of(b->k, n_keys(b), LS_DTYPE_F32);
    wide.v = make_doubles_of(b->v, n_keys(b), LS_DTYPE_F32);
    wide.d_o = make_doubles_of(b->d_o, n_queries(b), LS_DTYPE_F32);
    wide.doc_start = make_copy(b->doc_start, b->p.N, LS_DTYPE_I64);
    wide.o = make_doubles(n_queries(b));
    wide.lse = make_doubles(n_rows(b));
    return wide;
}

static void backward_is_the_gradient_of_forward(void **state)
{
    (void)state;
    const problem small = {9, 12, 4, 2, 8, 3, 0, 7, 5, 1.0, LS_DTYPE_F32};
    bench b = make_bench(&small, LS_DTYPE_F32, 0), wide = make_widened(&b);
    const int64_t n_q = n_queries(&b), n_k = n_keys(&b);
    double *dq = make_doubles(n_q), *dk = make_doubles(n_k), *dv = make_doubles(n_k);
    differentiate(dq, wide.q, n_q, 1e-5, weigh_outputs, &wide);
    differentiate(dk, wide.k, n_k, 1e-5, weigh_outputs, &wide);
    differentiate(dv, wide.v, n_k, 1e-5, weigh_outputs, &wide);

    for (int variant = 1; variant < LS_ATTENTION_VARIANT_COUNT; variant++) {
        if (!ls_cpu_attention_force((ls_attention_variant)variant)) continue;
        gradients to = make_gradients(&b, 0.0);
        run_backward(&b, whole(&b), &to, 0);
        assert_close(to.dq, LS_DTYPE_F32, dq, n_q, 3e-6);
        assert_close(to.dk, LS_DTYPE_F32, dk, n_k, 3e-6);
        assert_close(to.dv, LS_DTYPE_F32, dv, n_k, 3e-6);
        free_gradients(&to);
    }
    ls_cpu_attention_force(LS_ATTENTION_VARIANT_AUTO);
    free_buffer(dq);
    free_buffer(dk);
    free_buffer(dv);
    free_bench(&wide);
    free_bench(&b);
}

/* ---- laws ---------------------------------------------------------------------------------- */

static void check_unseen(const bench *b)
{
    bench poisoned = make_poisoned(b);
    gradients to = make_gradients(b, 0.0);
    run_backward(&poisoned, whole(b), &to, 0);
    assert_gradients(b, &to);
    free_gradients(&to);
    free_poisoned(&poisoned);
}

static void unseen_keys_are_not_used(void **state)
{
    (void)state;
    for_each_bench(check_unseen);
}

static void check_threads(const bench *b)
{
    if (b->p.N < 100) return;
    gradients first = make_gradients(b, 0.0);
    run_backward(b, whole(b), &first, 0);
    FOR_EACH_THREADS(threads)
    {
        gradients to = make_gradients(b, 0.0);
        run_backward(b, whole(b), &to, 0);
        assert_same_gradients(b, &to, &first);
        free_gradients(&to);
    }
    free_gradients(&first);
}

static void thread_count_does_not_change_bits(void **state)
{
    (void)state;
    for_each_bench(check_threads);
}

static void check_no_rows(const bench *b)
{
    gradients to = make_gradients(b, 0.25), untouched = make_gradients(b, 0.25);
    run_backward(b, (cut){0, 0, 0, b->p.M}, &to, 0);
    assert_same_gradients(b, &to, &untouched);
    free_gradients(&to);
    free_gradients(&untouched);
}

static void no_rows_are_allowed(void **state)
{
    (void)state;
    for_each_bench(check_no_rows);
}

/* ---- delta --------------------------------------------------------------------------------- */

static void delta_is_the_row_product(void **state)
{
    (void)state;
    static const int64_t widths[] = {1, 5, 8, 64, 129};
    FOR_EACH_DTYPE(dtype) for (int64_t w = 0; w < COUNT_OF(widths); w++)
    {
        const int64_t N = 7, H = 3, K = widths[w], n = N * H * K;
        void *d_o = make_noise(n, dtype, 1, 1.0), *o = make_noise(n, dtype, 2, 1.0);
        float *delta = make_buffer(N * H, LS_DTYPE_F32);
        double *expected = make_doubles(N * H);
        for (int64_t i = 0; i < N * H; i++) expected[i] = 0.0;
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
        cmocka_unit_test(backward_matches_the_dense_gradient),
        cmocka_unit_test(rows_without_keys_add_nothing),
        cmocka_unit_test(backward_blocks_add_up),
        cmocka_unit_test(equal_logits_give_exact_gradients),
        cmocka_unit_test(backward_is_the_gradient_of_forward),
        cmocka_unit_test(unseen_keys_are_not_used),
        cmocka_unit_test(thread_count_does_not_change_bits),
        cmocka_unit_test(no_rows_are_allowed),
        cmocka_unit_test(delta_is_the_row_product),
    };
    return cmocka_run_group_tests(tests, make_benches, free_benches);
}
