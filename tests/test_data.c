/* test_data.c - zero, cast and add: every length around a vector and a block, every bf16 value. */
#include "ops_test.h"

/* Lengths around one vector, one block of elements, and several blocks with a ragged end. */
static const int64_t lengths[] = {0,  1,  2,  15,   16,   17,   31,   32,    33,    63,
                                  64, 65, 66, 4095, 4096, 4097, 8192, 12293, 65537, 200001};

static void zero_clears_every_byte(void **state)
{
    (void)state;
    for (int64_t t = 0; t < COUNT_OF(lengths); t++) {
        unsigned char *y = make_buffer(lengths[t], LS_DTYPE_U8);
        RUN_OP(zero, .y = y, .bytes = lengths[t]);
        for (int64_t i = 0; i < lengths[t]; i++) assert_int_equal(y[i], 0);
        free_buffer(y);
    }
}

static void cast_rounds_as_bf16_does(void **state)
{
    (void)state;
    for (int64_t t = 0; t < COUNT_OF(lengths); t++) {
        const int64_t n = lengths[t];
        float *x = make_noise(n, LS_DTYPE_F32, 1 + (uint64_t)t, 3.0);
        ls_bf16 *narrow = make_buffer(n, LS_DTYPE_BF16);
        float *wide = make_buffer(n, LS_DTYPE_F32);
        RUN_OP(cast, .y = narrow, .x = x, .n = n, .y_dtype = LS_DTYPE_BF16,
               .x_dtype = LS_DTYPE_F32);
        RUN_OP(cast, .y = wide, .x = narrow, .n = n, .y_dtype = LS_DTYPE_F32,
               .x_dtype = LS_DTYPE_BF16);
        for (int64_t i = 0; i < n; i++) {
            assert_int_equal(narrow[i], ls_bf16_from_f32(x[i]));
            assert_true(wide[i] == ls_bf16_to_f32(narrow[i]));
        }
        free_buffer(x);
        free_buffer(narrow);
        free_buffer(wide);
    }
}

static void cast_keeps_every_bf16_value(void **state)
{
    (void)state;
    const int64_t n = 65536;
    ls_bf16 *x = make_buffer(n, LS_DTYPE_BF16), *back = make_buffer(n, LS_DTYPE_BF16);
    float *wide = make_buffer(n, LS_DTYPE_F32);
    for (int64_t i = 0; i < n; i++) x[i] = (ls_bf16)i;
    RUN_OP(cast, .y = wide, .x = x, .n = n, .y_dtype = LS_DTYPE_F32, .x_dtype = LS_DTYPE_BF16);
    RUN_OP(cast, .y = back, .x = wide, .n = n, .y_dtype = LS_DTYPE_BF16, .x_dtype = LS_DTYPE_F32);
    for (int64_t i = 0; i < n; i++) {
        const int is_nan = (i & 0x7fff) > 0x7f80;
        assert_int_equal(ls_f32_bits(wide[i]), (uint32_t)i << 16);
        assert_int_equal(back[i], is_nan ? i | 0x40 : i);
    }
    RUN_OP(cast, .y = back, .x = x, .n = n, .y_dtype = LS_DTYPE_BF16, .x_dtype = LS_DTYPE_BF16);
    assert_same_bits(back, x, n, LS_DTYPE_BF16);
    free_buffer(x);
    free_buffer(back);
    free_buffer(wide);
}

static void cast_copies_equal_dtypes(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype)
    {
        const int64_t n = 12293;
        void *x = make_noise(n, dtype, 3, 2.0), *y = make_buffer(n, dtype);
        RUN_OP(cast, .y = y, .x = x, .n = n, .y_dtype = dtype, .x_dtype = dtype);
        assert_same_bits(y, x, n, dtype);
        free_buffer(x);
        free_buffer(y);
    }
}

/* a + b rounded once: fp32 sums of bf16 or fp32 values, and then the dtype. */
static void *make_sums(const void *a, const void *b, int64_t n, ls_dtype dtype)
{
    void *sums = make_buffer(n, dtype);
    for (int64_t i = 0; i < n; i++)
        put(sums, i, dtype, (double)((float)get(a, i, dtype) + (float)get(b, i, dtype)));
    return sums;
}

static void add_rounds_once(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype) for (int64_t t = 0; t < COUNT_OF(lengths); t++)
    {
        const int64_t n = lengths[t];
        void *a = make_noise(n, dtype, 5, 2.0), *b = make_noise(n, dtype, 6, 0.1);
        void *y = make_buffer(n, dtype), *expected = make_sums(a, b, n, dtype);
        RUN_OP(add, .y = y, .a = a, .b = b, .n = n, .dtype = dtype);
        assert_same_bits(y, expected, n, dtype);
        free_buffer(a);
        free_buffer(b);
        free_buffer(y);
        free_buffer(expected);
    }
}

static void add_may_alias_either_operand(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype)
    {
        const int64_t n = 8223;
        void *a = make_noise(n, dtype, 7, 2.0), *b = make_noise(n, dtype, 8, 2.0);
        void *expected = make_sums(a, b, n, dtype), *doubled = make_sums(a, a, n, dtype);
        void *y = make_copy(a, n, dtype);
        RUN_OP(add, .y = y, .a = y, .b = b, .n = n, .dtype = dtype);
        assert_same_bits(y, expected, n, dtype);
        memcpy(y, b, (size_t)n * (size_t)ls_dtype_bytes(dtype));
        RUN_OP(add, .y = y, .a = a, .b = y, .n = n, .dtype = dtype);
        assert_same_bits(y, expected, n, dtype);
        RUN_OP(add, .y = a, .a = a, .b = a, .n = n, .dtype = dtype);
        assert_same_bits(a, doubled, n, dtype);
        free_buffer(a);
        free_buffer(b);
        free_buffer(y);
        free_buffer(expected);
        free_buffer(doubled);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_clears_every_byte),
        cmocka_unit_test(cast_rounds_as_bf16_does),
        cmocka_unit_test(cast_keeps_every_bf16_value),
        cmocka_unit_test(cast_copies_equal_dtypes),
        cmocka_unit_test(add_rounds_once),
        cmocka_unit_test(add_may_alias_either_operand),
    };
    return cmocka_run_group_tests_name("data", tests, NULL, NULL);
}
