/*
 * test_adamw_moments.c - lossy moments: what a code can hold and cannot, rounding that is right in
 * the mean, a v that never vanishes, and a regression that they solve as well as fp32 does.
 */
#include "adamw_test.h"
#include "cpu/adamw_moments.h"

static const struct {
    const char *name;
    ls_moment_code code;
    double least; /* value above zero */
    double step;  /* relative distance of neighbours, at most, from `first` on */
    double first;
} codes[] = {
    {"q8 m", {3, 127, 1}, 0x1p-15 / 7, 1.0 / 8, 0x1p-15},
    {"q8 v", {3, 255, 0}, 0x1.2p-32, 1.0 / 8, 0x1.2p-32},
    {"q4 m", {1, 7, 1}, 0x1p-3, 1.0 / 2, 0x1p-3},
    {"q4 v", {1, 15, 0}, 0x1.8p-8, 1.0 / 2, 0x1.8p-8},
};

/* The table of adamw_moments.h. */
static void codes_are_as_documented(void **state)
{
    (void)state;
    for (int64_t t = 0; t < COUNT_OF(codes); t++) {
        const ls_moment_code c = codes[t].code;
        const int32_t lowest = c.has_zero ? 1 : 0;
        assert_true(ls_code_value(c, c.greatest) == 1.0f);
        assert_true(fabs((double)ls_code_value(c, lowest) / codes[t].least - 1.0) < 1e-6);
        if (c.has_zero) assert_true(ls_code_value(c, 0) == 0.0f);
        for (uint32_t random = 0; random < 0x10000; random += 0xfff) {
            assert_int_equal(ls_code_of(c, 0.0f, random), 0);
            if (c.has_zero) continue;
            assert_int_equal(ls_code_of(c, (float)(codes[t].least / 8), random), 0);
            assert_int_equal(ls_code_of(c, 1e-30f, random), 0);
        }
        for (int32_t code = lowest; code < c.greatest; code++) {
            const double a = (double)ls_code_value(c, code), b = (double)ls_code_value(c, code + 1);
            assert_true(a < b);
            if (a >= codes[t].first) assert_true(b / a - 1.0 <= codes[t].step + 1e-6);
        }
        for (int32_t code = 0; code <= c.greatest; code++) /* a value is its own code, always */
            for (uint32_t random = 0; random < 0x10000; random += 0xfff)
                assert_int_equal(ls_code_of(c, ls_code_value(c, code), random), code);
    }
}

/* Over all 2^16 random numbers the mean of the codes' values is the value itself. */
static void rounding_is_right_in_the_mean(void **state)
{
    (void)state;
    for (int64_t t = 0; t < COUNT_OF(codes); t++) {
        const ls_moment_code c = codes[t].code;
        for (uint64_t i = 0; i < 12; i++) {
            const double spread = ls_rng_uniform(1, 1, i) * (c.has_zero ? 1.2 : 0.95);
            const float x = (float)pow(codes[t].least, spread);
            double mean = 0.0;
            for (uint32_t random = 0; random < 0x10000; random++)
                mean += 0x1p-16 * (double)ls_code_value(c, ls_code_of(c, x, random));
            const double fine = c.has_zero ? codes[t].least * 1e-4 : 0.0;
            assert_true(fabs(mean - (double)x) <= 1e-4 * (double)x + fine);
        }
    }
    double mean = 0.0;
    for (uint32_t random = 0; random < 0x10000; random++)
        mean += 0x1p-16 * (double)ls_bf16_to_f32(ls_adamw_round_bf16(1.2345678f, random));
    assert_true(fabs(mean - (double)1.2345678f) < 1e-6);
}

/* One huge gradient in a block of small ones: no v becomes zero, so no weight leaps. */
static void v_never_vanishes(void **state)
{
    (void)state;
    const hyper h = usual;
    for (ls_moments moments = LS_MOMENTS_BF16; moments < LS_MOMENTS_COUNT;
         moments = (ls_moments)(moments + 1)) {
        const formats f = {LS_DTYPE_F32, LS_DTYPE_F32, moments};
        parameter p = make_noisy_parameter(256, f, 3);
        parameter before = copy_parameter(&p);
        ls_update_control control = make_control(1e-3);
        for (uint64_t step = 0; step < 50; step++) {
            fill_noise(p.g, p.n, LS_DTYPE_F32, step, 1e-6);
            ((float *)p.g)[9] = step % 10 == 0 ? 1e4f : 0.0f;
            finish_norm(&control, 1.0, &h);
            update(&p, &control, &h);
        }
        for (int64_t i = 0; i < p.n; i++) {
            const double moved = (double)get_master(&p, i) - (double)get_master(&before, i);
            assert_true(fabs(moved) < 50 * 1e-3 * 3.0); /* fp32: at most about lr for each step */
        }
        free_parameter(&before);
        free_parameter(&p);
    }
}

/* ---- a regression ---------------------------------------------------------------------------- */

enum { N_WEIGHTS = 256, N_STEPS = 2000, ACTIVE = 16 };

/*
 * y = <x, truth> + noise with sparse x, whose columns differ eightfold in size, so that v spans two
 * orders of magnitude within a block.  The mean square error over the last steps.
 */
static double solve(formats f, float beta2)
{
    hyper h = usual;
    h.beta2 = beta2;
    h.weight_decay = 0.0f;
    parameter p = make_noisy_parameter(N_WEIGHTS, f, 3);
    ls_update_control control = make_control(1e-2);
    double error = 0.0;

    for (uint64_t step = 0; step < N_STEPS; step++) {
        float *g = p.g;
        memset(g, 0, N_WEIGHTS * sizeof *g);
        control.lr = 1e-2 * (1.0 - (double)step / N_STEPS);
        for (uint64_t sample = 0; sample < 4; sample++) {
            int64_t at[ACTIVE];
            double x[ACTIVE], residual = 0.02 * (ls_rng_uniform(step, 1, sample) - 0.5);
            for (uint64_t k = 0; k < ACTIVE; k++) {
                at[k] = (int64_t)ls_rng_below(step, 2 + sample, k, N_WEIGHTS);
                x[k] = ldexp(ls_rng_normal(step, 20 + sample, k), -(int)(at[k] % 4));
                const double truth = ls_rng_normal(7, 7, (uint64_t)at[k]) * 0.3;
                residual += x[k] * ((double)get_master(&p, at[k]) - truth);
            }
            for (int k = 0; k < ACTIVE; k++) g[at[k]] += (float)(residual * x[k] / 4.0);
            if (step >= N_STEPS - 200) error += residual * residual / (200.0 * 4.0);
        }
        finish_norm(&control, 1.0, &h);
        update(&p, &control, &h);
    }
    free_parameter(&p);
    return error;
}

/* How much more error than with fp32 moments remains, at most, of the error at the start. */
static void a_regression_is_solved(void **state)
{
    (void)state;
    static const struct {
        ls_moments moments;
        double tolerance;
    } expected[] = {{LS_MOMENTS_BF16, 2e-5}, {LS_MOMENTS_Q8, 2e-5}, {LS_MOMENTS_Q4, 3e-3}};
    static const float betas[] = {0.95f, 0.99f};
    const double start = 2.25; /* 16 columns, mean squares of sizes 0.33 and of distances 0.42 */

    for (int64_t b = 0; b < COUNT_OF(betas); b++) {
        const double fp32 = solve((formats){LS_DTYPE_BF16, LS_DTYPE_F32, LS_MOMENTS_F32}, betas[b]);
        assert_true(fp32 < 1e-3 * start);
        for (int64_t i = 0; i < COUNT_OF(expected); i++) {
            const formats f = {LS_DTYPE_BF16, LS_DTYPE_F32, expected[i].moments};
            const double more = (solve(f, betas[b]) - fp32) / start;
            print_message("beta2 %g, moments %d: %+.3g\n", (double)betas[b], expected[i].moments,
                          more);
            assert_true(more <= expected[i].tolerance);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_as_documented),
        cmocka_unit_test(rounding_is_right_in_the_mean),
        cmocka_unit_test(v_never_vanishes),
        cmocka_unit_test(a_regression_is_solved),
    };
    return cmocka_run_group_tests_name("adamw_moments", tests, NULL, NULL);
}
