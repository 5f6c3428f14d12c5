/*
 * test_rope.c - the rotation against cos and sin in double, up to positions where an fp32 angle
 * would be off by whole turns; the inverse; the layout of the table; operands that alias.
 */
#include "ops_test.h"

static const double theta_base = 10000.0;

static double angle_of(int64_t position, int64_t i, int64_t K)
{
    return (double)position * pow(theta_base, -2.0 * (double)i / (double)K);
}

/* The table's row of one position, from double. */
static void fill_row(float *table, int64_t position, int64_t K)
{
    for (int64_t i = 0; i < K / 2; i++) {
        table[position * K + 2 * i] = (float)cos(angle_of(position, i, K));
        table[position * K + 2 * i + 1] = (float)sin(angle_of(position, i, K));
    }
}

/* [P, K/2, 2], NaN but for the rows that positions name. */
static float *make_table(const int64_t *positions, int64_t N, int64_t P, int64_t K)
{
    float *table = make_buffer(P * K, LS_DTYPE_F32);
    for (int64_t n = 0; n < N; n++) fill_row(table, positions[n], K);
    return table;
}

/* Row of K: the complex product of each pair with e^(i angle) of position, or its inverse. */
static void rotate_reference(double *row, int64_t position, int64_t K, int inverse)
{
    for (int64_t i = 0; i < K / 2; i++) {
        const double angle = (inverse ? -1.0 : 1.0) * angle_of(position, i, K);
        const double a = row[i], b = row[i + K / 2];
        row[i] = a * cos(angle) - b * sin(angle);
        row[i + K / 2] = b * cos(angle) + a * sin(angle);
    }
}

static void check_shape(int64_t N, int64_t heads, int64_t K, ls_dtype x_dtype, ls_dtype y_dtype)
{
    const int64_t P = 100, n = N * heads * K;
    int64_t *positions = make_buffer(N, LS_DTYPE_I64);
    for (int64_t i = 0; i < N; i++) positions[i] = i == 0 ? P - 1 : (i * 37) % P;
    float *table = make_table(positions, N, P, K);
    void *x = make_noise(n, x_dtype, 1, 2.0), *y = make_buffer(n, y_dtype);

    for (int inverse = 0; inverse <= 1; inverse++) {
        double *expected = make_doubles_of(x, n, x_dtype);
        for (int64_t row = 0; row < N * heads; row++)
            rotate_reference(expected + row * K, positions[row / heads], K, inverse);
        RUN_OP(rope, .y = y, .x = x, .table = table, .positions = positions, .N = N, .heads = heads,
               .K = K, .P = P, .inverse = inverse, .y_dtype = y_dtype, .x_dtype = x_dtype);
        assert_close(y, y_dtype, expected, n, tolerance_of(y_dtype));
        free_buffer(expected);
    }
    if (x_dtype == y_dtype) { /* y holds the inverse: the same in place */
        RUN_OP(rope, .y = x, .x = x, .table = table, .positions = positions, .N = N, .heads = heads,
               .K = K, .P = P, .inverse = 1, .y_dtype = y_dtype, .x_dtype = x_dtype);
        assert_same_bits(x, y, n, y_dtype);
    }
    void *buffers[] = {positions, table, x, y};
    for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
}

static void rotation_matches_the_formula(void **state)
{
    (void)state;
    static const int64_t widths[] = {2, 4, 6, 14, 16, 18, 30, 32, 34, 64, 128, 512, 514, 1030};
    FOR_EACH_DTYPE(x_dtype) FOR_EACH_DTYPE(y_dtype) for (int64_t t = 0; t < COUNT_OF(widths); t++)
    {
        check_shape(1, 1, widths[t], x_dtype, y_dtype);
        check_shape(5, 3, widths[t], x_dtype, y_dtype);
    }
}

static void far_positions_keep_their_angle(void **state)
{
    (void)state;
    const int64_t positions[] = {0, 524287, 4194303, 1048575}, P = 4194304, N = 4, heads = 2, K = 8;
    const int64_t n = N * heads * K;
    float *table =
        calloc((size_t)(P * K), sizeof *table); /* 128 MiB of which 4 pages are touched */
    assert_non_null(table);
    for (int64_t i = 0; i < N; i++) fill_row(table, positions[i], K);
    float *x = make_noise(n, LS_DTYPE_F32, 2, 1.0), *y = make_buffer(n, LS_DTYPE_F32);
    double *expected = make_doubles_of(x, n, LS_DTYPE_F32),
           *undone = make_copy(expected, n, LS_DTYPE_F64);

    for (int64_t row = 0; row < N * heads; row++)
        rotate_reference(expected + row * K, positions[row / heads], K, 0);
    RUN_OP(rope, .y = y, .x = x, .table = table, .positions = positions, .N = N, .heads = heads,
           .K = K, .P = P, .y_dtype = LS_DTYPE_F32, .x_dtype = LS_DTYPE_F32);
    assert_close(y, LS_DTYPE_F32, expected, n, 1e-7);
    assert_memory_equal(y, x, (size_t)(heads * K) * sizeof *x); /* position 0: no rotation */
    RUN_OP(rope, .y = y, .x = y, .table = table, .positions = positions, .N = N, .heads = heads,
           .K = K, .P = P, .inverse = 1, .y_dtype = LS_DTYPE_F32, .x_dtype = LS_DTYPE_F32);
    assert_close(y, LS_DTYPE_F32, undone, n, 2e-7);
    free(table);
    free_buffer(x);
    free_buffer(y);
    free_buffer(expected);
    free_buffer(undone);
}

static void the_table_is_laid_out_as_pairs_of_cos_and_sin(void **state)
{
    (void)state;
    /* [P 2, K/2 2, 2]; whole turns of 90 degrees make every product exact */
    const float table[2][2][2] = {{{1, 0}, {1, 0}}, {{0, 1}, {2, 0}}}; /* {2, 0}: scaled by 2 */
    const float x[4] = {3, 5, 7, 11};
    const int64_t positions[1] = {1};
    float y[4];
    RUN_OP(rope, .y = y, .x = x, .table = &table[0][0][0], .positions = positions, .N = 1,
           .heads = 1, .K = 4, .P = 2, .y_dtype = LS_DTYPE_F32, .x_dtype = LS_DTYPE_F32);
    assert_true(y[0] == -7.0f && y[2] == 3.0f); /* pair (x0, x2) turned by 90 degrees */
    assert_true(y[1] == 10.0f && y[3] == 22.0f);
}

/* <dy, R x> = <R^-1 dy, x>: the inverse is the gradient of forward, with equal bits per element. */
static void the_inverse_is_the_gradient(void **state)
{
    (void)state;
    const int64_t positions[2] = {3, 1}, N = 2, heads = 1, K = 4, n = 8;
    const float table[4][2][2] = {
        {{1, 0}, {1, 0}}, {{0, 1}, {-1, 0}}, {{1, 0}, {1, 0}}, {{3, -2}, {1, 4}}};
    float *x = make_integers(n, LS_DTYPE_F32, 3, 9), *dy = make_integers(n, LS_DTYPE_F32, 4, 9);
    float *y = make_buffer(n, LS_DTYPE_F32), *dx = make_buffer(n, LS_DTYPE_F32);
    double forward = 0.0, backward = 0.0;
    RUN_OP(rope, .y = y, .x = x, .table = &table[0][0][0], .positions = positions, .N = N,
           .heads = heads, .K = K, .P = 4, .y_dtype = LS_DTYPE_F32, .x_dtype = LS_DTYPE_F32);
    RUN_OP(rope, .y = dx, .x = dy, .table = &table[0][0][0], .positions = positions, .N = N,
           .heads = heads, .K = K, .P = 4, .inverse = 1, .y_dtype = LS_DTYPE_F32,
           .x_dtype = LS_DTYPE_F32);
    for (int64_t i = 0; i < n; i++) {
        forward += (double)(dy[i] * y[i]);
        backward += (double)(dx[i] * x[i]);
    }
    assert_true(forward == backward && forward != 0.0);
    free_buffer(x);
    free_buffer(dy);
    free_buffer(y);
    free_buffer(dx);
}

static void every_build_gives_the_same_bits(void **state)
{
    (void)state;
    static const uint64_t hashes[2] = {0x88b0f76a772e4111u, 0x1faee76899194587u};
    FOR_EACH_DTYPE(dtype) FOR_EACH_THREADS(n_threads)
    {
        const int64_t N = 29, heads = 3, K = 70, P = 64, n = N * heads * K;
        int64_t positions[29];
        for (int64_t i = 0; i < N; i++) positions[i] = (i * 7) % P;
        float *table = make_noise(P * K, LS_DTYPE_F32, 5, 1.0);
        void *x = make_noise(n, dtype, 6, 2.0), *y = make_buffer(n, dtype);
        RUN_OP(rope, .y = y, .x = x, .table = table, .positions = positions, .N = N, .heads = heads,
               .K = K, .P = P, .y_dtype = dtype, .x_dtype = dtype);
        assert_hash(y, n, dtype, hashes[dtype]);
        free_buffer(table);
        free_buffer(x);
        free_buffer(y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotation_matches_the_formula),
        cmocka_unit_test(far_positions_keep_their_angle),
        cmocka_unit_test(the_table_is_laid_out_as_pairs_of_cos_and_sin),
        cmocka_unit_test(the_inverse_is_the_gradient),
        cmocka_unit_test(every_build_gives_the_same_bits),
    };
    return cmocka_run_group_tests_name("rope", tests, NULL, NULL);
}
