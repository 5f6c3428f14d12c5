/*
 * test_embedding.c - rows by token, and the scatter of their gradients with tokens that repeat.
 * The widths lie around one vector, one strip of a thread, and several strips.
 */
#include "ops_test.h"

static const int64_t widths[] = {1, 2, 7, 15, 16, 17, 64, 257, 511, 512, 513, 1100, 2049};

enum { N = 61, V = 19 };

/* Tokens with many repeats, the first and the last row among them. */
static void fill_tokens(int32_t tokens[N])
{
    for (int n = 0; n < N; n++) tokens[n] = (int32_t)ls_rng_below(4, 5, (uint64_t)n, V);
    tokens[0] = V - 1;
    tokens[1] = 0;
    for (int n = 20; n < 30; n++) tokens[n] = 7;
}

static void forward_copies_rows(void **state)
{
    (void)state;
    int32_t tokens[N];
    fill_tokens(tokens);
    FOR_EACH_DTYPE(dtype) for (int64_t t = 0; t < COUNT_OF(widths); t++)
    {
        const int64_t D = widths[t], row_bytes = D * (int64_t)ls_dtype_bytes(dtype);
        char *w = make_noise(V * D, dtype, 1, 1.0), *y = make_buffer(N * D, dtype);
        RUN_OP(embedding_forward, .y = y, .w = w, .tokens = tokens, .N = N, .D = D, .V = V,
               .dtype = dtype);
        for (int64_t n = 0; n < N; n++)
            assert_memory_equal(y + n * row_bytes, w + tokens[n] * row_bytes, (size_t)row_bytes);
        free_buffer(w);
        free_buffer(y);
    }
}

/* The documented order: rows ascending, one fp32 addition each. */
static void add_in_order(float *dw, const void *dy, const int32_t *tokens, int64_t D,
                         ls_dtype dtype)
{
    for (int64_t n = 0; n < N; n++)
        for (int64_t d = 0; d < D; d++) dw[tokens[n] * D + d] += (float)get(dy, n * D + d, dtype);
}

static void backward_adds_rows_in_order(void **state)
{
    (void)state;
    int32_t tokens[N];
    fill_tokens(tokens);
    FOR_EACH_DTYPE(dtype) for (int64_t t = 0; t < COUNT_OF(widths); t++)
    {
        const int64_t D = widths[t];
        void *dy = make_noise(N * D, dtype, 2, 1.0);
        float *before = make_noise(V * D, LS_DTYPE_F32, 3, 1.0);
        float *expected = make_copy(before, V * D, LS_DTYPE_F32);
        add_in_order(expected, dy, tokens, D, dtype);
        FOR_EACH_THREADS(n_threads)
        {
            float *dw = make_copy(before, V * D, LS_DTYPE_F32);
            RUN_OP(embedding_backward, .dw = dw, .dy = dy, .tokens = tokens, .N = N, .D = D, .V = V,
                   .dtype = dtype);
            assert_same_bits(dw, expected, V * D, LS_DTYPE_F32);
            free_buffer(dw);
        }
        free_buffer(dy);
        free_buffer(before);
        free_buffer(expected);
    }
}

/* More rows than any backend looks at together. */
static void many_rows_are_added_in_order(void **state)
{
    enum { ROWS = 700, D = 12 };
    static int32_t tokens[ROWS];
    float *dy = make_noise(ROWS * D, LS_DTYPE_F32, 2, 1.0);
    float *expected = make_integers(V * D, LS_DTYPE_F32, 0, 0);

    (void)state;
    for (int n = 0; n < ROWS; n++) {
        tokens[n] = (int32_t)ls_rng_below(4, 6, (uint64_t)n, V);
        for (int d = 0; d < D; d++) expected[tokens[n] * D + d] += dy[n * D + d];
    }
    FOR_EACH_THREADS(n_threads)
    {
        float *dw = make_integers(V * D, LS_DTYPE_F32, 0, 0);
        RUN_OP(embedding_backward, .dw = dw, .dy = dy, .tokens = tokens, .N = ROWS, .D = D, .V = V,
               .dtype = LS_DTYPE_F32);
        assert_same_bits(dw, expected, V * D, LS_DTYPE_F32);
        free_buffer(dw);
    }
    free_buffer(dy);
    free_buffer(expected);
}

/* <dy, forward(w)> = <backward(dy), w>: the transpose of a gather is a scatter. */
static void backward_is_the_transpose_of_forward(void **state)
{
    (void)state;
    const int64_t D = 33;
    int32_t tokens[N];
    fill_tokens(tokens);
    float *w = make_integers(V * D, LS_DTYPE_F32, 6, 9), *y = make_buffer(N * D, LS_DTYPE_F32);
    float *dy = make_integers(N * D, LS_DTYPE_F32, 7, 9);
    float *dw = make_integers(V * D, LS_DTYPE_F32, 0, 0);
    double forward = 0.0, backward = 0.0;

    RUN_OP(embedding_forward, .y = y, .w = w, .tokens = tokens, .N = N, .D = D, .V = V,
           .dtype = LS_DTYPE_F32);
    RUN_OP(embedding_backward, .dw = dw, .dy = dy, .tokens = tokens, .N = N, .D = D, .V = V,
           .dtype = LS_DTYPE_F32);
    for (int64_t i = 0; i < N * D; i++) forward += (double)dy[i] * (double)y[i];
    for (int64_t i = 0; i < V * D; i++) backward += (double)dw[i] * (double)w[i];
    assert_true(forward == backward); /* small integers: no sum rounds */
    assert_true(forward != 0.0);
    free_buffer(w);
    free_buffer(y);
    free_buffer(dy);
    free_buffer(dw);
}

static void rows_without_a_token_stay_as_they_are(void **state)
{
    (void)state;
    const int64_t D = 20;
    const int32_t tokens[2] = {3, 3};
    float *dw = make_noise(V * D, LS_DTYPE_F32, 8, 1.0);
    float *before = make_copy(dw, V * D, LS_DTYPE_F32);
    void *dy = make_noise(2 * D, LS_DTYPE_BF16, 9, 1.0);
    RUN_OP(embedding_backward, .dw = dw, .dy = dy, .tokens = tokens, .N = 2, .D = D, .V = V,
           .dtype = LS_DTYPE_BF16);
    for (int64_t token = 0; token < V; token++)
        if (token != 3) assert_same_bits(dw + token * D, before + token * D, D, LS_DTYPE_F32);
    free_buffer(dw);
    free_buffer(before);
    free_buffer(dy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_copies_rows),
        cmocka_unit_test(backward_adds_rows_in_order),
        cmocka_unit_test(many_rows_are_added_in_order),
        cmocka_unit_test(backward_is_the_transpose_of_forward),
        cmocka_unit_test(rows_without_a_token_stay_as_they_are),
    };
    return cmocka_run_group_tests_name("embedding", tests, NULL, NULL);
}
