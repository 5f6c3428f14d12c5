/*
 * test_attention_forward.c - every attention kernel this machine can run against the dense softmax
 * in double; and the laws blocks and threads must keep.
 */
#include "attention_test.h"

/* Where forward writes; o_acc may be NULL. */
typedef struct outputs {
    void *o;
    float *lse, *o_acc;
} outputs;

static outputs make_outputs(const bench *b, int with_acc)
{
    return (outputs){make_buffer(n_queries(b), b->p.dtype), make_buffer(n_rows(b), LS_DTYPE_F32),
                     with_acc ? make_buffer(n_queries(b), LS_DTYPE_F32) : NULL};
}

static void free_outputs(outputs *to)
{
    free_buffer(to->o);
    free_buffer(to->lse);
    free_buffer(to->o_acc);
}

static void run_forward(const bench *b, cut c, const outputs *to, int accumulate, int last)
{
    const int64_t at = query_at(b, c);
    ls_op_args args = {
        .attention_forward = {BENCH_FIELDS(b, c), .accumulate = accumulate, .last = last}};
    args.attention_forward.o = offset_by(to->o, at, b->p.dtype);
    args.attention_forward.lse = to->lse + c.row * b->p.H;
    args.attention_forward.o_acc = to->o_acc != NULL ? to->o_acc + at : NULL;
    run_op(LS_OP_attention_forward, &args, &args.attention_forward.workspace);
}

/* ---- comparison ---------------------------------------------------------------------------- */

static double tolerance_for(const bench *b)
{
    if (b->p.dtype == LS_DTYPE_BF16) return 4e-3;
    return b->p.logits > 100.0 ? 1e-3 : b->p.logits > 10.0 ? 2e-5 : 3e-6;
}

/* By distance: the size of an lse says nothing about what it is used for. */
static void assert_lse(const bench *b, const float *lse)
{
    for (int64_t i = 0; i < n_rows(b); i++) {
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

static void assert_outputs(const bench *b, const outputs *actual)
{
    const double tolerance = tolerance_for(b);
    assert_tensor(b, actual->o, b->p.dtype, b->o, n_queries(b), tolerance);
    if (actual->o_acc != NULL)
        assert_tensor(b, actual->o_acc, LS_DTYPE_F32, b->o, n_queries(b), tolerance);
    assert_lse(b, actual->lse);
}

/* ---- against the formula ------------------------------------------------------------------- */

static void check_whole(const bench *b)
{
    for (int with_acc = 0; with_acc < 2; with_acc++) {
        outputs to = make_outputs(b, with_acc);
        run_forward(b, whole(b), &to, 0, 1);
        assert_outputs(b, &to);
        free_outputs(&to);
    }
}

static void forward_matches_the_dense_softmax(void **state)
{
    (void)state;
    for_each_bench(check_whole);
}

static void rows_without_keys_are_empty(void **state)
{
    (void)state;
    for_each_blind_bench(check_whole);
}

static void check_merged(const bench *b)
{
    outputs to = make_outputs(b, 1);
    cut cuts[CUTS_MAX];
    const int64_t n_cuts = cut_keys(cuts, b);
    for (int64_t row = 0; row < b->p.N; row += 70)
        for (int64_t i = 0; i < n_cuts; i++)
            run_forward(b, cut_rows(b, cuts[i], row, 70), &to, i > 0, i == n_cuts - 1);
    assert_outputs(b, &to);
    free_outputs(&to);
}

static void blocks_merge_into_the_dense_softmax(void **state)
{
    (void)state;
    for_each_bench(check_merged);
}

/* Equal logits: each of 4 keys weighs exactly 1/4, and sums of small integers are exact. */
static void check_equal_logits(const bench *b)
{
    const problem *p = &b->p;
    if (p->logits > 1.0 || p->document != 0 || p->M < 4) return;
    bench flat = *b;
    flat.p.window = 4;
    flat.k = make_integers(n_keys(b), p->dtype, 5, 0);
    flat.v = make_integers(n_keys(b), p->dtype, 6, 8);
    outputs to = make_outputs(b, 0);
    run_forward(&flat, whole(b), &to, 0, 1);
    for (int64_t n = 0; n < p->N; n++) {
        const int64_t last = p->q_start + n - p->k_start;
        if (last < 3 || last >= p->M) continue;
        for (int64_t i = 0; i < p->H * p->K; i++) {
            const int64_t value = i / p->K / (p->H / p->G) * p->K + i % p->K;
            double sum = 0.0;
            for (int64_t m = last - 3; m <= last; m++)
                sum += get(flat.v, m * p->G * p->K + value, p->dtype);
            assert_true(get(to.o, n * p->H * p->K + i, p->dtype) == sum / 4.0);
        }
        assert_true(fabs(to.lse[n * p->H] - log(4.0)) < 1e-6);
    }
    free_outputs(&to);
    free_buffer(flat.k);
    free_buffer(flat.v);
}

static void equal_logits_give_exact_means(void **state)
{
    (void)state;
    for_each_bench(check_equal_logits);
}

/* ---- laws ---------------------------------------------------------------------------------- */

static void check_unseen(const bench *b)
{
    bench poisoned = make_poisoned(b);
    outputs to = make_outputs(b, 0);
    run_forward(&poisoned, whole(b), &to, 0, 1);
    assert_outputs(b, &to);
    free_outputs(&to);
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
    outputs first = make_outputs(b, 0), to = make_outputs(b, 0);
    run_forward(b, whole(b), &first, 0, 1);
    FOR_EACH_THREADS(threads)
    {
        run_forward(b, whole(b), &to, 0, 1);
        assert_same_bits(to.o, first.o, n_queries(b), b->p.dtype);
        assert_same_bits(to.lse, first.lse, n_rows(b), LS_DTYPE_F32);
    }
    free_outputs(&first);
    free_outputs(&to);
}

static void thread_count_does_not_change_bits(void **state)
{
    (void)state;
    for_each_bench(check_threads);
}

static void check_no_rows(const bench *b)
{
    outputs to = make_outputs(b, 0), untouched = make_outputs(b, 0);
    run_forward(b, (cut){0, 0, 0, b->p.M}, &to, 0, 1);
    assert_same_bits(to.o, untouched.o, n_queries(b), b->p.dtype);
    assert_same_bits(to.lse, untouched.lse, n_rows(b), LS_DTYPE_F32);
    free_outputs(&to);
    free_outputs(&untouched);
}

static void no_rows_are_allowed(void **state)
{
    (void)state;
    for_each_bench(check_no_rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_matches_the_dense_softmax),
        cmocka_unit_test(rows_without_keys_are_empty),
        cmocka_unit_test(blocks_merge_into_the_dense_softmax),
        cmocka_unit_test(equal_logits_give_exact_means),
        cmocka_unit_test(unseen_keys_are_not_used),
        cmocka_unit_test(thread_count_does_not_change_bits),
        cmocka_unit_test(no_rows_are_allowed),
    };
    return cmocka_run_group_tests(tests, make_benches, free_benches);
}
