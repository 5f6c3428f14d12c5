/*
 * test_op_fields.c - operands and fields of every op are its whole args struct, each byte once.
 *
 * Below stands one struct of each op, written out in order with no member left out (the compiler
 * sees to that) and none of them zero.  Copying it by the tables alone must give the same bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ops.h"

#define P  (&target)
#define DT LS_DTYPE_BF16 /* F32 is zero */

static int64_t target[8]; /* pointers need something to point to */

/* Static, so that padding is zero. */
static const ls_zero_args zero = {P, 1};
static const ls_cast_args cast = {P, P, 1, DT, LS_DTYPE_I32};
static const ls_add_args add = {P, P, P, 1, DT};
static const ls_embedding_forward_args embedding_forward = {P, P, (void *)P, 1, 2, 3, DT};
static const ls_embedding_backward_args embedding_backward = {(void *)P, P, (void *)P, 1, 2, 3, DT};
static const ls_rmsnorm_forward_args rmsnorm_forward = {P, (void *)P, P, P, 1, 2, 3.0f, DT};
static const ls_rmsnorm_backward_args rmsnorm_backward = {P, (void *)P, (void *)P, P, P, (void *)P,
                                                          1, 2,         3,         4, DT};
static const ls_rope_args rope = {P, P, (void *)P, (void *)P, 1, 2, 3, 4, 5, DT, LS_DTYPE_I32};
static const ls_matmul_args matmul = {P, P, P, P, 1, 2, 3, 4, 5, 6, DT, LS_DTYPE_I32};
static const ls_bias_forward_args bias_forward = {P, P, 1, 2, DT};
static const ls_bias_backward_args bias_backward = {(void *)P, P, 1, 2, 3, DT};
static const ls_attention_forward_args attention_forward = {
    P, (void *)P, (void *)P, P, P, P,    (void *)P, P,  1,  2,  3,
    4, 5,         6,         7, 8, 9.0f, 10,        11, 12, 13, DT};
static const ls_attention_delta_args attention_delta = {(void *)P, P, P, 1, 2, 3, DT};
static const ls_attention_backward_args attention_backward = {
    (void *)P, (void *)P, (void *)P, P, P, P, P, (void *)P, (void *)P, (void *)P, P,  1,
    2,         3,         4,         5, 6, 7, 8, 9.0f,      10,        11,        12, DT};
static const ls_swiglu_forward_args swiglu_forward = {P, P, P, 1, DT};
static const ls_swiglu_backward_args swiglu_backward = {P, P, P, P, P, 1, DT};
static const ls_cross_entropy_args cross_entropy = {P,         (void *)P, (void *)P, (void *)P,
                                                    (void *)P, 1,         2,         DT};
static const ls_sumsq_args sumsq = {(void *)P, (void *)P, P, 1, DT};
static const ls_add_sumsq_args add_sumsq = {(void *)P, (void *)P, (void *)P, P, 1, 2, DT};
static const ls_norm_finish_args norm_finish = {(void *)P, (void *)P, 1, 2.0f, 3.0f, 4.0f};
static const ls_adamw_args adamw = {P,    (void *)P, P,    P, (void *)P, (void *)P,
                                    P,    (void *)P, 1,    2, 3.0f,      4.0f,
                                    5.0f, 6.0f,      7.0f, 8, DT,        LS_DTYPE_I32};

static const struct {
    const void *args;
    size_t bytes;
} full[LS_OP_COUNT] = {
#define FULL(name) [LS_OP_##name] = {&name, sizeof name},
    LS_OP_LIST(FULL)
#undef FULL
};

static size_t field_bytes(uint8_t type)
{
    static const size_t bytes[] = {
        [LS_FIELD_I64] = sizeof(int64_t),
        [LS_FIELD_I32] = sizeof(int32_t),
        [LS_FIELD_F32] = sizeof(float),
        [LS_FIELD_DTYPE] = sizeof(ls_dtype),
    };
    assert_in_range(type, 0, sizeof bytes / sizeof bytes[0] - 1);
    return bytes[type];
}

static void copy_once(unsigned char *to, ls_op op, size_t offset, size_t bytes)
{
    static const unsigned char nothing[sizeof(ls_op_args)];

    assert_true(offset + bytes <= full[op].bytes);
    assert_memory_equal(to + offset, nothing, bytes);
    memcpy(to + offset, (const unsigned char *)full[op].args + offset, bytes);
}

static void tables_are_the_whole_struct(void **state)
{
    (void)state;
    for (ls_op op = 0; op < LS_OP_COUNT; op++) {
        const ls_op_info *info = ls_op_describe(op);
        unsigned char copy[sizeof(ls_op_args)] = {0};
        int n;
        const ls_op_field *fields = ls_op_fields(op, &n);

        for (int i = 0; i < info->n_operands; i++)
            copy_once(copy, op, info->operands[i].offset, sizeof(void *));
        for (int i = 0; i < n; i++)
            copy_once(copy, op, fields[i].offset, field_bytes(fields[i].type));
        if (memcmp(copy, full[op].args, full[op].bytes) != 0)
            fail_msg("%s: a member is in neither table", info->name);
    }
}

/* In order, so that a listing reads as the header does; names tell fields and operands apart. */
static void fields_are_in_order_and_named_once(void **state)
{
    (void)state;
    for (ls_op op = 0; op < LS_OP_COUNT; op++) {
        const ls_op_info *info = ls_op_describe(op);
        int n;
        const ls_op_field *fields = ls_op_fields(op, &n);

        assert_true(n >= 1);
        for (int i = 0; i < n; i++) {
            if (i > 0) assert_true(fields[i - 1].offset < fields[i].offset);
            for (int j = 0; j < i; j++) assert_string_not_equal(fields[i].name, fields[j].name);
            for (int j = 0; j < info->n_operands; j++)
                assert_string_not_equal(fields[i].name, info->operands[j].name);
        }
    }
}

static void fields_have_their_types(void **state)
{
    static const struct {
        ls_op op;
        const char *name;
        ls_field_type type;
    } cases[] = {{LS_OP_adamw, "n", LS_FIELD_I64},
                 {LS_OP_adamw, "lr_scale", LS_FIELD_F32},
                 {LS_OP_adamw, "dtype", LS_FIELD_DTYPE},
                 {LS_OP_matmul, "trans_b", LS_FIELD_I32},
                 {LS_OP_attention_forward, "window", LS_FIELD_I64}};

    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int n, found = 0;
        const ls_op_field *fields = ls_op_fields(cases[c].op, &n);
        for (int i = 0; i < n; i++)
            found += strcmp(fields[i].name, cases[c].name) == 0 && fields[i].type == cases[c].type;
        assert_int_equal(found, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_the_whole_struct),
        cmocka_unit_test(fields_are_in_order_and_named_once),
        cmocka_unit_test(fields_have_their_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
