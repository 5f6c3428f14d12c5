/*
 * test_bias.c - a bias in every row, bit for bit, and its gradient against column sums in double.
 * The shapes reach one element, every tail of a vector, one and several strips of columns, and no
 * rows at all.
 */
#include "ops_test.h"

typedef struct shape {
    int64_t N, D;
} shape;

static const shape shapes[] = {{1, 1},   {3, 1},   {1, 7},    {5, 15},  {4, 16},    {3, 17},
                               {2, 127}, {9, 128}, {17, 129}, {3, 512}, {700, 257}, {2, 8195}};

static void every_row_becomes_the_bias(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype) for (int64_t t = 0; t < COUNT_OF(shapes); t++)
    {
        const int64_t N = shapes[t].N, D = shapes[t].D;
        void *y = make_buffer(N * D, dtype), *b = make_noise(D, dtype, 2, 0.5);
        void *expected = make_buffer(N * D, dtype);

        for (int64_t i = 0; i < N * D; i++) put(expected, i, dtype, get(b, i % D, dtype));
        RUN_OP(bias_forward, .y = y, .b = b, .N = N, .D = D, .dtype = dtype);
        assert_same_bits(y, expected, N * D, dtype);

        void *buffers[] = {y, b, expected};
        for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
    }
}

static void check_backward(int64_t N, int64_t D, ls_dtype dtype, int accumulate)
{
    void *dy = make_noise(N * D, dtype, 3, 1.0);
    float *db = accumulate ? make_noise(D, LS_DTYPE_F32, 4, 1.0) : make_buffer(D, LS_DTYPE_F32);
    float *expected = make_buffer(D, LS_DTYPE_F32);

    for (int64_t d = 0; d < D; d++) {
        double sum = 0.0;
        for (int64_t n = 0; n < N; n++) sum += get(dy, n * D + d, dtype);
        expected[d] = (float)(sum + (accumulate ? (double)db[d] : 0.0));
    }
    FOR_EACH_THREADS(n_threads)
    {
        float *again = make_copy(db, D, LS_DTYPE_F32);
        RUN_OP(bias_backward, .db = again, .dy = dy, .N = N, .D = D, .accumulate = accumulate,
               .dtype = dtype);
        assert_same_bits(again, expected, D, LS_DTYPE_F32);
        free_buffer(again);
    }

    void *buffers[] = {dy, db, expected};
    for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
}

static void the_gradient_is_the_column_sums(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype) for (int64_t t = 0; t < COUNT_OF(shapes); t++)
    {
        check_backward(shapes[t].N, shapes[t].D, dtype, 0);
        check_backward(shapes[t].N, shapes[t].D, dtype, 1);
    }
}

/* Summed in fp32, one of each row's 1 would be lost once the sum has passed 2^24. */
static void small_terms_are_not_lost(void **state)
{
    (void)state;
    const int64_t N = 33, D = 3;
    float *dy = make_buffer(N * D, LS_DTYPE_F32), db[3];

    for (int64_t i = 0; i < N * D; i++) dy[i] = i < D ? 0x1p25f : 1.0f;
    RUN_OP(bias_backward, .db = db, .dy = dy, .N = N, .D = D, .dtype = LS_DTYPE_F32);
    for (int64_t d = 0; d < D; d++) assert_true(db[d] == 0x1p25f + 32.0f);
    free_buffer(dy);
}

static void no_rows_are_no_change(void **state)
{
    (void)state;
    float y = 1.0f, b = 2.0f, db = 3.0f;

    RUN_OP(bias_forward, .y = &y, .b = &b, .N = 0, .D = 1, .dtype = LS_DTYPE_F32);
    assert_true(y == 1.0f);
    RUN_OP(bias_backward, .db = &db, .dy = &y, .N = 0, .D = 1, .accumulate = 1,
           .dtype = LS_DTYPE_F32);
    assert_true(db == 3.0f);
    RUN_OP(bias_backward, .db = &db, .dy = &y, .N = 0, .D = 1, .dtype = LS_DTYPE_F32);
    assert_true(db == 0.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_becomes_the_bias),
        cmocka_unit_test(the_gradient_is_the_column_sums),
        cmocka_unit_test(small_terms_are_not_lost),
        cmocka_unit_test(no_rows_are_no_change),
    };
    return cmocka_run_group_tests_name("bias", tests, NULL, NULL);
}
