/*
 * test_swiglu.c - the gated activation against its formula in double, its gradients against
 * central differences of that formula, and the exp it is made of over the whole fp32 range.
 */
#include "ops_test.h"

#include "cpu/vec.h"

static const int64_t lengths[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,    10,   11,   12,
                                  13, 14, 15, 16, 17, 31, 33, 67, 4096, 4113, 12301};

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

static void forward_matches_the_formula(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype) for (int64_t t = 0; t < COUNT_OF(lengths); t++)
    {
        const int64_t n = lengths[t];
        void *gate = make_noise(n, dtype, 1, 8.0), *up = make_noise(n, dtype, 2, 2.0);
        void *y = make_buffer(n, dtype);
        double *expected = make_doubles(n);
        for (int64_t i = 0; i < n; i++) expected[i] = silu(get(gate, i, dtype)) * get(up, i, dtype);
        RUN_OP(swiglu_forward, .y = y, .gate = gate, .up = up, .n = n, .dtype = dtype);
        assert_close(y, dtype, expected, n, tolerance_of(dtype));
        free_buffer(gate);
        free_buffer(up);
        free_buffer(y);
        free_buffer(expected);
    }
}

/* sum dy silu(gate) up, the scalar whose gradient backward returns. */
typedef struct loss_terms {
    const double *dy, *gate, *up;
    int64_t n;
} loss_terms;

static double weigh_outputs(const void *context)
{
    const loss_terms *terms = context;
    double loss = 0.0;
    for (int64_t i = 0; i < terms->n; i++)
        loss += terms->dy[i] * silu(terms->gate[i]) * terms->up[i];
    return loss;
}

static void backward_is_the_gradient_of_forward(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype) for (int64_t t = 0; lengths[t] <= 67; t++)
    {
        const int64_t n = lengths[t];
        void *dy = make_noise(n, dtype, 3, 1.0);
        void *gate = make_noise(n, dtype, 4, 6.0), *up = make_noise(n, dtype, 5, 2.0);
        void *dgate = make_buffer(n, dtype), *dup = make_buffer(n, dtype);
        double *dy_d = make_doubles_of(dy, n, dtype), *gate_d = make_doubles_of(gate, n, dtype);
        double *up_d = make_doubles_of(up, n, dtype);
        double *dgate_d = make_doubles(n), *dup_d = make_doubles(n);
        const loss_terms terms = {dy_d, gate_d, up_d, n};

        differentiate(dgate_d, gate_d, n, 1e-5, weigh_outputs, &terms);
        differentiate(dup_d, up_d, n, 1e-5, weigh_outputs, &terms);
        RUN_OP(swiglu_backward, .dgate = dgate, .dup = dup, .dy = dy, .gate = gate, .up = up,
               .n = n, .dtype = dtype);
        assert_close(dgate, dtype, dgate_d, n, tolerance_of(dtype));
        assert_close(dup, dtype, dup_d, n, tolerance_of(dtype));

        RUN_OP(swiglu_backward, .dgate = gate, .dup = up, .dy = dy, .gate = gate, .up = up, .n = n,
               .dtype = dtype);
        assert_same_bits(gate, dgate, n, dtype); /* the outputs may alias gate and up */
        assert_same_bits(up, dup, n, dtype);

        void *buffers[] = {dy, gate, up, dgate, dup, dy_d, gate_d, up_d, dgate_d, dup_d};
        for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
    }
}

static void far_inputs_neither_overflow_nor_trap(void **state)
{
    (void)state;
    const float gate[] = {0.0f, -200.0f, 200.0f, -3e38f, 3e38f, INFINITY, NAN};
    const float up[] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
    enum { N = 7 };
    float y[N], dgate[N], dup[N];
    RUN_OP(swiglu_forward, .y = y, .gate = gate, .up = up, .n = N, .dtype = LS_DTYPE_F32);
    RUN_OP(swiglu_backward, .dgate = dgate, .dup = dup, .dy = up, .gate = gate, .up = up, .n = N,
           .dtype = LS_DTYPE_F32);
    assert_true(y[0] == 0.0f && dgate[0] == 0.5f && dup[0] == 0.0f);
    assert_true(y[1] == 0.0f && dgate[1] == 0.0f && dup[1] == 0.0f);
    assert_true(y[2] == 200.0f && dgate[2] == 1.0f && dup[2] == 200.0f);
    assert_true(y[3] == 0.0f && dgate[3] == 0.0f && dup[3] == 0.0f);
    assert_true(y[4] == 3e38f && dgate[4] == 1.0f && dup[4] == 3e38f);
    assert_true(isinf(y[5]));
    assert_true(isnan(y[6]) && isnan(dgate[6]) && isnan(dup[6]));
}

/* |ls_exp(x) - e^x| in units of the last place of the result, a denormal step at least. */
static double measure_exp_error(float x)
{
    int exponent;
    const double expected = exp((double)x);
    frexp(expected, &exponent);
    return fabs((double)ls_exp(x) - expected) /
           ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
}

static void exp_is_within_one_ulp(void **state)
{
    (void)state;
    double worst = 0.0;
    for (int64_t i = 0; i < 2000000; i++) {
        const float x = (float)(-104.5 + 193.2 * ls_rng_uniform(9, 1, (uint64_t)i));
        const double error = measure_exp_error(x);
        worst = error > worst ? error : worst;
    }
    for (int n = -150; n <= 128; n++) /* where the integer part changes */
        for (int offset = -3; offset <= 3; offset++) {
            const float x = (float)(((double)n + 0.5) * 0.6931471805599453 + offset * 1e-6);
            if (x > 88.72f) continue;
            const double error = measure_exp_error(x);
            worst = error > worst ? error : worst;
        }
    if (!(worst <= 1.0)) print_error("exp is off by %.3f ulp\n", worst);
    assert_true(worst <= 1.0);
}

static void exp_has_the_right_ends(void **state)
{
    (void)state;
    assert_true(ls_exp(0.0f) == 1.0f && ls_exp(-0.0f) == 1.0f);
    assert_true(ls_exp(88.72283f) < INFINITY && ls_exp(88.72283f) > 3.4e38f);
    assert_true(isinf(ls_exp(88.72284f)) && isinf(ls_exp(1e10f)) && isinf(ls_exp(INFINITY)));
    assert_true(ls_exp(-103.9f) == 0x1p-149f && ls_exp(-104.0f) == 0.0f);
    assert_true(ls_exp(-3e38f) == 0.0f && ls_exp(-INFINITY) == 0.0f);
    assert_true(isnan(ls_exp(NAN)) && isnan(ls_exp(-NAN)));
    assert_true(isnan(ls_exp(ls_f32_from_bits(0xffffffffu))));
    assert_true(isnan(ls_exp(ls_f32_from_bits(0x7fbfffffu))));
}

static void every_build_gives_the_same_bits(void **state)
{
    (void)state;
    static const uint64_t hashes[2][3] = {
        {0x4aa21d81da6d6875u, 0x19915e4e59b145eeu, 0xc593c5ad8ec0e5ffu},
        {0x64415aff708c794cu, 0x47431173f88271dbu, 0xa79f903b1d155949u}};
    FOR_EACH_DTYPE(dtype) FOR_EACH_THREADS(n_threads)
    {
        const int64_t n = 12301;
        void *dy = make_noise(n, dtype, 6, 1.0);
        void *gate = make_noise(n, dtype, 7, 20.0), *up = make_noise(n, dtype, 8, 2.0);
        void *y = make_buffer(n, dtype);
        RUN_OP(swiglu_forward, .y = y, .gate = gate, .up = up, .n = n, .dtype = dtype);
        assert_hash(y, n, dtype, hashes[dtype][0]);
        RUN_OP(swiglu_backward, .dgate = gate, .dup = up, .dy = dy, .gate = gate, .up = up, .n = n,
               .dtype = dtype);
        assert_hash(gate, n, dtype, hashes[dtype][1]);
        assert_hash(up, n, dtype, hashes[dtype][2]);
        free_buffer(dy);
        free_buffer(gate);
        free_buffer(up);
        free_buffer(y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_matches_the_formula),
        cmocka_unit_test(backward_is_the_gradient_of_forward),
        cmocka_unit_test(far_inputs_neither_overflow_nor_trap),
        cmocka_unit_test(exp_is_within_one_ulp),
        cmocka_unit_test(exp_has_the_right_ends),
        cmocka_unit_test(every_build_gives_the_same_bits),
    };
    return cmocka_run_group_tests_name("swiglu", tests, NULL, NULL);
}
