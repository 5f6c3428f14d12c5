/*
 * test_rmsnorm.c - the norm against its formula in double, its gradients against central
 * differences of that formula.  The shapes reach one row, every tail of a vector, a row wider than
 * several strips of columns, and more rows than one block of the backward pass.
 */
#include "ops_test.h"

static const float eps = 1e-5f;

typedef struct shape {
    int64_t N, D;
} shape;

static const shape shapes[] = {{1, 1},    {1, 2},   {2, 3},    {1, 5},     {3, 7},
                               {2, 8},    {2, 9},   {3, 11},   {2, 13},    {5, 15},
                               {4, 16},   {3, 17},  {2, 31},   {2, 127},   {3, 128},
                               {17, 129}, {9, 300}, {2, 8195}, {300, 1024}};

static double norm_factor(const double *x, int64_t D)
{
    double sum = 0.0;
    for (int64_t d = 0; d < D; d++) sum += x[d] * x[d];
    return 1.0 / sqrt(sum / (double)D + (double)eps);
}

static void forward_matches_the_formula(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype) for (int64_t t = 0; t < COUNT_OF(shapes); t++)
    {
        const int64_t N = shapes[t].N, D = shapes[t].D;
        void *x = make_noise(N * D, dtype, 1, 3.0), *w = make_noise(D, dtype, 2, 1.0);
        void *y = make_buffer(N * D, dtype);
        float *r = make_buffer(N, LS_DTYPE_F32);
        double *x_d = make_doubles_of(x, N * D, dtype);
        double *y_d = make_doubles(N * D), *r_d = make_doubles(N);

        for (int64_t n = 0; n < N; n++) {
            r_d[n] = norm_factor(x_d + n * D, D);
            for (int64_t d = 0; d < D; d++)
                y_d[n * D + d] = x_d[n * D + d] * r_d[n] * get(w, d, dtype);
        }
        RUN_OP(rmsnorm_forward, .y = y, .r = r, .x = x, .w = w, .N = N, .D = D, .eps = eps,
               .dtype = dtype);
        assert_close(r, LS_DTYPE_F32, r_d, N, 1e-7);
        assert_close(y, dtype, y_d, N * D, tolerance_of(dtype));

        void *buffers[] = {x, w, y, r, x_d, y_d, r_d};
        for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
    }
}

static void a_row_of_zeros_stays_finite(void **state)
{
    (void)state;
    float x[20] = {0.0f}, w[20], y[20], r[1];
    for (int d = 0; d < 20; d++) w[d] = 1.0f;
    RUN_OP(rmsnorm_forward, .y = y, .r = r, .x = x, .w = w, .N = 1, .D = 20, .eps = eps,
           .dtype = LS_DTYPE_F32);
    for (int d = 0; d < 20; d++) assert_true(y[d] == 0.0f);
    assert_true(fabs((double)r[0] - 1.0 / sqrt((double)eps)) < 1e-3);
}

static void large_values_do_not_overflow(void **state)
{
    (void)state;
    float x[17], w[17], y[17], r[1]; /* squares beyond fp32 */
    for (int d = 0; d < 17; d++) {
        x[d] = 1e30f;
        w[d] = 1.0f;
    }
    RUN_OP(rmsnorm_forward, .y = y, .r = r, .x = x, .w = w, .N = 1, .D = 17, .eps = eps,
           .dtype = LS_DTYPE_F32);
    for (int d = 0; d < 17; d++) assert_true(fabsf(y[d] - 1.0f) < 1e-6f);
    x[3] = INFINITY; /* must not be normed away to 0 */
    RUN_OP(rmsnorm_forward, .y = y, .r = r, .x = x, .w = w, .N = 1, .D = 17, .eps = eps,
           .dtype = LS_DTYPE_F32);
    assert_true(isnan(y[3]));
}

/* sum dy y, the scalar whose gradient backward returns. */
typedef struct loss_terms {
    const double *dy, *x, *w;
    int64_t N, D;
} loss_terms;

static double weigh_outputs(const void *context)
{
    const loss_terms *terms = context;
    double loss = 0.0;
    for (int64_t n = 0; n < terms->N; n++) {
        const double *x = terms->x + n * terms->D, *dy = terms->dy + n * terms->D;
        const double r = norm_factor(x, terms->D);
        for (int64_t d = 0; d < terms->D; d++) loss += dy[d] * x[d] * r * terms->w[d];
    }
    return loss;
}

/* Gradients by the formula of ops.h, in double. */
static void derive_gradients(double *dx, double *dw, const loss_terms *terms)
{
    const int64_t D = terms->D;
    for (int64_t d = 0; d < D; d++) dw[d] = 0.0;
    for (int64_t n = 0; n < terms->N; n++) {
        const double *x = terms->x + n * D, *dy = terms->dy + n * D;
        const double r = norm_factor(x, D);
        double mean = 0.0;
        for (int64_t d = 0; d < D; d++) mean += dy[d] * terms->w[d] * x[d] / (double)D;
        for (int64_t d = 0; d < D; d++) {
            dx[n * D + d] = r * (dy[d] * terms->w[d] - x[d] * r * r * mean);
            dw[d] += dy[d] * x[d] * r;
        }
    }
}

static void the_formula_is_the_gradient(void **state)
{
    (void)state;
    const int64_t N = 3, D = 7;
    double *dy = make_doubles(N * D), *x = make_doubles(N * D), *w = make_doubles(D);
    double *dx = make_doubles(N * D), *dw = make_doubles(D);
    double *dx_numeric = make_doubles(N * D), *dw_numeric = make_doubles(D);
    const loss_terms terms = {dy, x, w, N, D};

    fill_noise(dy, N * D, LS_DTYPE_F64, 3, 1.0);
    fill_noise(x, N * D, LS_DTYPE_F64, 4, 2.0);
    fill_noise(w, D, LS_DTYPE_F64, 5, 1.0);
    derive_gradients(dx, dw, &terms);
    differentiate(dx_numeric, x, N * D, 1e-5, weigh_outputs, &terms);
    differentiate(dw_numeric, w, D, 1e-5, weigh_outputs, &terms);
    assert_close(dx, LS_DTYPE_F64, dx_numeric, N * D, 1e-8);
    assert_close(dw, LS_DTYPE_F64, dw_numeric, D, 1e-8);

    void *buffers[] = {dy, x, w, dx, dw, dx_numeric, dw_numeric};
    for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
}

static void check_backward(int64_t N, int64_t D, ls_dtype dtype, int accumulate)
{
    void *x = make_noise(N * D, dtype, 6, 3.0), *w = make_noise(D, dtype, 7, 1.0);
    float *dy = make_noise(N * D, LS_DTYPE_F32, 8, 1.0), *r = make_buffer(N, LS_DTYPE_F32);
    void *y = make_buffer(N * D, dtype);
    void *dx = accumulate ? make_noise(N * D, dtype, 9, 1.0) : make_buffer(N * D, dtype);
    float *dw = accumulate ? make_noise(D, LS_DTYPE_F32, 10, 1.0) : make_buffer(D, LS_DTYPE_F32);
    double *x_d = make_doubles_of(x, N * D, dtype), *w_d = make_doubles_of(w, D, dtype);
    double *dy_d = make_doubles_of(dy, N * D, LS_DTYPE_F32);
    double *dx_d = make_doubles(N * D), *dw_d = make_doubles(D);

    derive_gradients(dx_d, dw_d, &(loss_terms){dy_d, x_d, w_d, N, D});
    for (int64_t i = 0; accumulate && i < N * D; i++) dx_d[i] += get(dx, i, dtype);
    for (int64_t d = 0; accumulate && d < D; d++) dw_d[d] += (double)dw[d];
    RUN_OP(rmsnorm_forward, .y = y, .r = r, .x = x, .w = w, .N = N, .D = D, .eps = eps,
           .dtype = dtype);
    RUN_OP(rmsnorm_backward, .dx = dx, .dw = dw, .dy = dy, .x = x, .w = w, .r = r, .N = N, .D = D,
           .accumulate_dx = accumulate, .accumulate_dw = accumulate, .dtype = dtype);
    /* A row of one element has a gradient near 0, the difference of two near 1. */
    assert_close(dx, dtype, dx_d, N * D, D < 3 && !accumulate ? 0.1 : tolerance_of(dtype));
    assert_close(dw, LS_DTYPE_F32, dw_d, D, TOLERANCE_F32);

    /* Without dw, of a frozen weight: the same dx. */
    void *dx_alone = make_buffer(N * D, dtype), *dx_both = make_buffer(N * D, dtype);
    RUN_OP(rmsnorm_backward, .dx = dx_both, .dw = dw, .dy = dy, .x = x, .w = w, .r = r, .N = N,
           .D = D, .dtype = dtype);
    RUN_OP(rmsnorm_backward, .dx = dx_alone, .dy = dy, .x = x, .w = w, .r = r, .N = N, .D = D,
           .dtype = dtype);
    assert_memory_equal(dx_alone, dx_both, (size_t)(N * D) * ls_dtype_bytes(dtype));

    void *buffers[] = {x, w, dy, r, y, dx, dw, x_d, w_d, dy_d, dx_d, dw_d, dx_alone, dx_both};
    for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
}

static void backward_matches_the_formula(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype) for (int64_t t = 0; t < COUNT_OF(shapes); t++)
    {
        check_backward(shapes[t].N, shapes[t].D, dtype, 0);
        check_backward(shapes[t].N, shapes[t].D, dtype, 1);
    }
}

/* The residual's gradient and the norm's are added in fp32 and rounded to bf16 once. */
static void accumulation_rounds_once(void **state)
{
    (void)state;
    const int64_t D = 37;
    ls_bf16 *x = make_noise(D, LS_DTYPE_BF16, 11, 1.0), *w = make_noise(D, LS_DTYPE_BF16, 12, 1.0);
    float *x_f = make_buffer(D, LS_DTYPE_F32), *w_f = make_buffer(D, LS_DTYPE_F32);
    float *dy = make_noise(D, LS_DTYPE_F32, 13, 1.0), *dx_f = make_buffer(D, LS_DTYPE_F32);
    ls_bf16 *dx = make_noise(D, LS_DTYPE_BF16, 14, 1.0);
    ls_bf16 *before = make_copy(dx, D, LS_DTYPE_BF16);
    float dw[37], r[1] = {1.375f};

    for (int64_t d = 0; d < D; d++) {
        x_f[d] = ls_bf16_to_f32(x[d]);
        w_f[d] = ls_bf16_to_f32(w[d]);
    }
    RUN_OP(rmsnorm_backward, .dx = dx_f, .dw = dw, .dy = dy, .x = x_f, .w = w_f, .r = r, .N = 1,
           .D = D, .dtype = LS_DTYPE_F32);
    RUN_OP(rmsnorm_backward, .dx = dx, .dw = dw, .dy = dy, .x = x, .w = w, .r = r, .N = 1, .D = D,
           .accumulate_dx = 1, .dtype = LS_DTYPE_BF16);
    for (int64_t d = 0; d < D; d++)
        assert_int_equal(dx[d], ls_bf16_from_f32(ls_bf16_to_f32(before[d]) + dx_f[d]));

    void *buffers[] = {x, w, x_f, w_f, dy, dx_f, dx, before};
    for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
}

static void integer_weight_gradients_are_exact(void **state)
{
    (void)state;
    const int64_t N = 700, D = 257; /* more rows than a block of 131072 elements holds */
    void *x = make_integers(N * D, LS_DTYPE_BF16, 15, 9), *dx = make_buffer(N * D, LS_DTYPE_BF16);
    void *w = make_integers(D, LS_DTYPE_BF16, 16, 2);
    float *dy = make_integers(N * D, LS_DTYPE_F32, 17, 9), *dw = make_buffer(D, LS_DTYPE_F32);
    float *r = make_buffer(N, LS_DTYPE_F32);
    double *expected = make_doubles(D);

    for (int64_t n = 0; n < N; n++) r[n] = n % 2 == 0 ? 1.0f : 0.5f;
    for (int64_t d = 0; d < D; d++) expected[d] = 0.0;
    for (int64_t i = 0; i < N * D; i++)
        expected[i % D] += (double)dy[i] * get(x, i, LS_DTYPE_BF16) * (double)r[i / D];
    RUN_OP(rmsnorm_backward, .dx = dx, .dw = dw, .dy = dy, .x = x, .w = w, .r = r, .N = N, .D = D,
           .dtype = LS_DTYPE_BF16);
    assert_close(dw, LS_DTYPE_F32, expected, D, 0.0);
    RUN_OP(rmsnorm_backward, .dx = dx, .dw = dw, .dy = dy, .x = x, .w = w, .r = r, .N = N, .D = D,
           .accumulate_dw = 1, .dtype = LS_DTYPE_BF16);
    for (int64_t d = 0; d < D; d++) expected[d] *= 2.0;
    assert_close(dw, LS_DTYPE_F32, expected, D, 0.0);

    void *buffers[] = {x, dx, w, dy, dw, r, expected};
    for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
}

static void every_build_gives_the_same_bits(void **state)
{
    (void)state;
    static const uint64_t hashes[2][4] = {
        {0xd8e4ca790697d497u, 0xea13ef8c6c8bef50u, 0xb466c75349986313u, 0x00ba609788d94af8u},
        {0x5bf3c42c6e18d3cbu, 0xe27bd222d0911933u, 0x3bd4fde62eec841bu, 0xf9c6582ad01a3e05u}};
    FOR_EACH_DTYPE(dtype) FOR_EACH_THREADS(n_threads)
    {
        const int64_t N = 500, D = 301;
        void *x = make_noise(N * D, dtype, 18, 3.0), *w = make_noise(D, dtype, 19, 1.0);
        void *y = make_buffer(N * D, dtype), *dx = make_noise(N * D, dtype, 20, 1.0);
        float *dy = make_noise(N * D, LS_DTYPE_F32, 21, 1.0), *r = make_buffer(N, LS_DTYPE_F32);
        float *dw = make_buffer(D, LS_DTYPE_F32);
        RUN_OP(rmsnorm_forward, .y = y, .r = r, .x = x, .w = w, .N = N, .D = D, .eps = eps,
               .dtype = dtype);
        RUN_OP(rmsnorm_backward, .dx = dx, .dw = dw, .dy = dy, .x = x, .w = w, .r = r, .N = N,
               .D = D, .accumulate_dx = 1, .dtype = dtype);
        assert_hash(y, N * D, dtype, hashes[dtype][0]);
        assert_hash(r, N, LS_DTYPE_F32, hashes[dtype][1]);
        assert_hash(dx, N * D, dtype, hashes[dtype][2]);
        assert_hash(dw, D, LS_DTYPE_F32, hashes[dtype][3]);
        void *buffers[] = {x, w, y, dx, dy, r, dw};
        for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_matches_the_formula),
        cmocka_unit_test(a_row_of_zeros_stays_finite),
        cmocka_unit_test(large_values_do_not_overflow),
        cmocka_unit_test(the_formula_is_the_gradient),
        cmocka_unit_test(backward_matches_the_formula),
        cmocka_unit_test(accumulation_rounds_once),
        cmocka_unit_test(integer_weight_gradients_are_exact),
        cmocka_unit_test(every_build_gives_the_same_bits),
    };
    return cmocka_run_group_tests_name("rmsnorm", tests, NULL, NULL);
}
