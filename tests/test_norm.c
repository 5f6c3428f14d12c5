/*
 * test_norm.c - sums of squares bit for bit against a scalar model of their documented order, alone
 * and with the addition of a part, and what a step makes of the norm: clipping, skipping, counters,
 * powers of beta.
 */
#include <float.h>

#include "ops_test.h"

/* The order that ops.h documents, written as plainly as it is said. */
static double sum_as_documented(const void *x, int64_t n, ls_dtype dtype)
{
    double sum = 0.0;
    for (int64_t begin = 0; begin < n; begin += 4096) {
        double block = 0.0;
        for (int lane = 0; lane < 16; lane++) {
            double lane_sum = 0.0;
            for (int64_t i = lane; i < 4096 && begin + i < n; i += 16)
                lane_sum += get(x, begin + i, dtype) * get(x, begin + i, dtype);
            block += lane_sum;
        }
        sum += block;
    }
    return sum;
}

static double run_sumsq(const void *x, int64_t n, ls_dtype dtype)
{
    double sum = NAN, *partials = make_doubles((n + 4095) / 4096);
    RUN_OP(sumsq, .sum = &sum, .partials = partials, .x = x, .n = n, .dtype = dtype);
    free_buffer(partials);
    return sum;
}

static const int64_t lengths[] = {
    0,  1,  2,  3,    4,    5,    7,    8,    9,     15,     16,
    17, 31, 33, 4080, 4095, 4096, 4097, 8191, 12305, 100003, 256 * 4096 + 4097};

static void sums_follow_the_documented_order(void **state)
{
    (void)state;
    for (int64_t t = 0; t < COUNT_OF(lengths); t++) FOR_EACH_DTYPE(dtype)
        {
            const int64_t n = lengths[t];
            void *x = make_noise(n, dtype, 1, 3.0);
            const double expected = sum_as_documented(x, n, dtype);
            FOR_EACH_THREADS(n_threads)
            {
                const double sum = run_sumsq(x, n, dtype);
                assert_memory_equal(&sum, &expected, sizeof sum);
            }
            free_buffer(x);
        }
}

/* ---- a gradient that comes in parts ---------------------------------------------------------- */

typedef struct parts {
    int64_t n;
    ls_dtype dtype; /* of the part */
    int32_t accumulate, wants_sum;
} parts;

/* before: what y held; its new value one addition in fp32 for each element. */
static void check_addition(const parts *p, const float *before, const void *x)
{
    const int64_t n = p->n, n_partials = (n + 4095) / 4096;
    float *y = make_copy(before, n, LS_DTYPE_F32), *expected = make_buffer(n, LS_DTYPE_F32);
    double sum = -1.0, *partials = make_doubles(n_partials);

    for (int64_t i = 0; i < n; i++) {
        const float part = (float)get(x, i, p->dtype);
        expected[i] = p->accumulate ? before[i] + part : part;
    }
    RUN_OP(add_sumsq, .y = y, .sum = p->wants_sum ? &sum : NULL,
           .partials = p->wants_sum ? partials : NULL, .x = x, .n = n, .accumulate = p->accumulate,
           .x_dtype = p->dtype);
    assert_same_bits(y, expected, n, LS_DTYPE_F32);
    const double squares = sum_as_documented(expected, n, LS_DTYPE_F32);
    assert_true(p->wants_sum ? sum == squares : sum == -1.0);
    free_buffer(partials);
    free_buffer(expected);
    free_buffer(y);
}

static void parts_are_added_in_fp32_and_summed(void **state)
{
    (void)state;
    for (int64_t t = 0; t < COUNT_OF(lengths); t++) FOR_EACH_DTYPE(dtype)
        {
            const int64_t n = lengths[t];
            float *before = make_noise(n, LS_DTYPE_F32, 3, 300.0);
            void *x = make_noise(n, dtype, 4, 3.0);
            FOR_EACH_THREADS(n_threads)
            for (int how = 0; how < 4; how++)
                check_addition(&(parts){n, dtype, how & 1, how & 2}, before, x);
            free_buffer(x);
            free_buffer(before);
        }
}

/* Wherever it stands: a later part does not hide it. */
static void a_part_that_is_not_finite_shows_in_the_sum(void **state)
{
    static const double values[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (int64_t v = 0; v < COUNT_OF(values); v++)
        for (int64_t at = 0; at < 4099; at += 683) {
            float *y = make_noise(4099, LS_DTYPE_F32, 3, 1.0);
            ls_bf16 *x = make_noise(4099, LS_DTYPE_BF16, 4, 1.0);
            double sum = 0.0, *partials = make_doubles(2);
            put(x, at, LS_DTYPE_BF16, values[v]);
            RUN_OP(add_sumsq, .y = y, .x = x, .n = 4099, .accumulate = 1, .x_dtype = LS_DTYPE_BF16);
            put(x, at, LS_DTYPE_BF16, 1.0);
            RUN_OP(add_sumsq, .y = y, .sum = &sum, .partials = partials, .x = x, .n = 4099,
                   .accumulate = 1, .x_dtype = LS_DTYPE_BF16);
            assert_true(isnan(values[v]) ? isnan(sum) : isinf(sum));
            free_buffer(partials);
            free_buffer(x);
            free_buffer(y);
        }
}

static void integers_are_summed_exactly(void **state)
{
    (void)state;
    const int64_t n = 50001;
    float *x = make_integers(n, LS_DTYPE_F32, 2, 1000);
    int64_t expected = 0;
    for (int64_t i = 0; i < n; i++) expected += (int64_t)x[i] * (int64_t)x[i];
    assert_true(run_sumsq(x, n, LS_DTYPE_F32) == (double)expected);
    free_buffer(x);
}

static void extremes_neither_overflow_nor_vanish(void **state)
{
    (void)state;
    float x[33];
    for (int i = 0; i < 33; i++) x[i] = FLT_MAX;
    assert_true(isfinite(run_sumsq(x, 33, LS_DTYPE_F32)));
    for (int i = 0; i < 33; i++) x[i] = 0x1p-149f; /* squares of 2^-298 */
    assert_true(run_sumsq(x, 33, LS_DTYPE_F32) == 33.0 * 0x1p-298);
    for (int i = 0; i < 33; i++) { /* in whichever lane it stands */
        x[i] = NAN;
        assert_true(isnan(run_sumsq(x, 33, LS_DTYPE_F32)));
        x[i] = -INFINITY;
        assert_true(isinf(run_sumsq(x, 33, LS_DTYPE_F32)));
        x[i] = 0.0f;
    }
}

static const float beta1 = 0.9f, beta2 = 0.95f;

static ls_update_control make_control(void)
{
    return (ls_update_control){
        .grad_norm = -1.0,
        .beta1_power = 1.0,
        .beta2_power = 1.0,
        .lr = 0.125,
        .skipped = 3,
        .skipped_in_a_row = 2,
        .coefficient = -1.0f,
        .skip = 7,
    };
}

static void finish(ls_update_control *control, const double *sums, int64_t n, float clip_norm)
{
    RUN_OP(norm_finish, .control = control, .sums = sums, .n = n, .clip_norm = clip_norm,
           .beta1 = beta1, .beta2 = beta2);
}

static void a_good_norm_lets_the_step_go_on(void **state)
{
    (void)state;
    ls_update_control control = make_control();
    const double sums[3] = {9.0, 12.0, 4.0};
    finish(&control, sums, 3, 0.0f);
    assert_true(control.grad_norm == 5.0 && control.coefficient == 1.0f && control.skip == 0);
    assert_true(control.updates == 1 && control.skipped == 3 && control.skipped_in_a_row == 0);
    assert_true(control.beta1_power == (double)beta1 && control.beta2_power == (double)beta2);
    assert_true(control.lr == 0.125); /* an input stays */
    finish(&control, sums, 3, 0.0f);
    assert_true(control.beta1_power == (double)beta1 * (double)beta1 && control.updates == 2);
}

static void the_sums_are_added_in_order(void **state)
{
    (void)state;
    ls_update_control control = make_control();
    const double sums[3] = {1.0, 0x1p-53, 0x1p-53}; /* 1 in this order, more in the other */
    finish(&control, sums, 3, 0.0f);
    assert_true(control.grad_norm == 1.0);
    finish(&control, NULL, 0, 0.0f);
    assert_true(control.grad_norm == 0.0 && control.skip == 0 && control.coefficient == 1.0f);
}

static void clipping_scales_to_the_limit(void **state)
{
    (void)state;
    static const struct {
        double sum;
        float clip_norm, coefficient;
    } cases[] = {
        {25.0, 0.0f, 1.0f}, {25.0, 5.0f, 1.0f}, {25.0, 10.0f, 1.0f},       {25.0, 2.5f, 0.5f},
        {25.0, 1.0f, 0.2f}, {0.0, 1.0f, 1.0f},  {0x1p124, 1.0f, 0x1p-62f},
    };
    for (int64_t t = 0; t < COUNT_OF(cases); t++) {
        ls_update_control control = make_control();
        finish(&control, &cases[t].sum, 1, cases[t].clip_norm);
        assert_true(control.coefficient == cases[t].coefficient && control.skip == 0);
    }
}

static void a_bad_norm_skips_the_step(void **state)
{
    (void)state;
    static const double bad[] = {NAN, INFINITY, 0x1.0000000000001p124 * 4.0, 0x1p1000};
    for (int64_t t = 0; t < COUNT_OF(bad); t++) {
        ls_update_control control = make_control();
        const double sums[2] = {1.0, bad[t]};
        finish(&control, sums, 2, 1.0f);
        assert_true(control.skip == 1 && control.skipped == 4 && control.skipped_in_a_row == 3);
        assert_true(!(control.grad_norm <= 0x1p62)); /* what was seen is reported */
        assert_true(control.updates == 0 && control.beta1_power == 1.0);
        assert_true(control.beta2_power == 1.0 && control.coefficient == -1.0f);
        finish(&control, sums, 1, 1.0f); /* the next good step goes on as if nothing had been */
        assert_true(control.skip == 0 && control.skipped == 4 && control.skipped_in_a_row == 0);
        assert_true(control.updates == 1 && control.beta1_power == (double)beta1);
    }
}

static void powers_are_repeated_products(void **state)
{
    (void)state;
    ls_update_control control = make_control();
    double expected1 = 1.0, expected2 = 1.0;
    const double one = 1.0;
    for (int step = 0; step < 1000; step++) {
        finish(&control, &one, 1, 0.0f);
        expected1 *= (double)beta1;
        expected2 *= (double)beta2;
        assert_true(control.beta1_power == expected1 && control.beta2_power == expected2);
    }
    assert_int_equal(control.updates, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_follow_the_documented_order),
        cmocka_unit_test(parts_are_added_in_fp32_and_summed),
        cmocka_unit_test(a_part_that_is_not_finite_shows_in_the_sum),
        cmocka_unit_test(integers_are_summed_exactly),
        cmocka_unit_test(extremes_neither_overflow_nor_vanish),
        cmocka_unit_test(a_good_norm_lets_the_step_go_on),
        cmocka_unit_test(the_sums_are_added_in_order),
        cmocka_unit_test(clipping_scales_to_the_limit),
        cmocka_unit_test(a_bad_norm_skips_the_step),
        cmocka_unit_test(powers_are_repeated_products),
    };
    return cmocka_run_group_tests_name("norm", tests, NULL, NULL);
}
