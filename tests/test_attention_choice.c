/*
 * test_attention_choice.c - which calls of attention cuDNN is given on the (emulated) GPU and which
 * are our own kernels', the scratch that plans reserve for it, and the versions that are refused.
 */
#include "ops_test.h"

#include "attention_variants.h"
#include "attention_vendor.h"

enum { VERSION = 91900 };

static void set_cudnn(const ls_emulated_cudnn *cudnn)
{
    ls_cuda_attention_vendor_close();
    ls_emulation_cudnn(cudnn);
}

static int start_test(void **state)
{
    (void)state;
    set_cudnn(&(ls_emulated_cudnn){.version = VERSION});
    return 0;
}

static const char *name_of(ls_op op, const ls_op_args *args)
{
    return ls_cuda_attention_choose(op, args)->name;
}

/* A block of Qwen2.5-7B's heads: the last 32k of 512k tokens. */
#define LONG_BLOCK                                                                                 \
    .N = 32768, .M = 524288, .H = 28, .G = 4, .K = 128, .q_start = 524288 - 32768,                 \
    .scale = 0.088f, .one_document = 1, .any_order = 1, .dtype = LS_DTYPE_BF16

static const ls_op_args long_forward = {.attention_forward = {LONG_BLOCK, .last = 1}};
static const ls_op_args long_backward = {.attention_backward = {LONG_BLOCK}};

#define EXPECT(change, name)                                                                       \
    do {                                                                                           \
        ls_op_args f = long_forward, b = long_backward;                                            \
        f.attention_forward.change;                                                                \
        b.attention_backward.change;                                                               \
        assert_string_equal(name_of(LS_OP_attention_forward, &f), (name));                         \
        assert_string_equal(name_of(LS_OP_attention_backward, &b), (name));                        \
    } while (0)

static void calls_it_can_not_take_are_ours(void **state)
{
    (void)state;
    EXPECT(N = 32768, "cudnn");
    EXPECT(one_document = 0, "mma");
    EXPECT(any_order = 0, "mma");
    EXPECT(dtype = LS_DTYPE_F32, "plain");
    EXPECT(K = 96, "plain");
    EXPECT(q = (void *)(intptr_t)264, "mma"); /* no 16-byte accesses */
    EXPECT(v = (void *)(intptr_t)256, "cudnn");
    EXPECT(N = 32767, "mma");                      /* rows are no multiple of 128 */
    EXPECT(q_start = 400001, "mma");               /* keys up to the diagonal are none */
    EXPECT(q_start = 400000, "cudnn");             /* they are; those behind are left out */
    EXPECT(k_start = 524288 - 32768 + 128, "mma"); /* the first rows see none of them */
    EXPECT(k_start = 524288, "mma");               /* no row does */
    EXPECT(M = 524288 - 32768, "cudnn");           /* all of the past */
    EXPECT(M = 524288 - 32768 + 1, "mma");         /* one of them is the first row's own */
    EXPECT(M = 524288 - 128, "mma");               /* the last rows' own are missing */
    EXPECT(window = 4096, "cudnn");
    ls_op_args past = long_backward;
    past.attention_backward.M = 524288 - 32768;
    past.attention_backward.window = 524287; /* hides the first key from the last row */
    assert_string_equal(name_of(LS_OP_attention_backward, &past), "mma");
    past.attention_backward.window = 524288;
    assert_string_equal(name_of(LS_OP_attention_backward, &past), "cudnn");
}

/* Blocks that may come to be one document's have scratch in the plan; others have none. */
static void scratch_is_what_the_formulas_say(void **state)
{
    const uint64_t n = UINT64_C(32768) * 28, m = UINT64_C(524288), slack = UINT64_C(1) << 20;
    const uint64_t forward = 4 * n + 2 * n * 128 + slack;
    const uint64_t backward = 4 * n + 4 * n * 128 + 4 * m * 4 * 128 /* lse, o, dq; dk, dv */
                              + 4 * n * 128 + 4 * n + 4 * m * 28 * 128 + slack;
    ls_op_args args = long_forward;

    (void)state;
    args.attention_forward.one_document = 0; /* not known when planning */
    assert_int_equal(tested_ops->workspace_bytes(LS_OP_attention_forward, &args), forward + 256);
    args = long_backward;
    assert_int_equal(tested_ops->workspace_bytes(LS_OP_attention_backward, &args), backward + 256);
    args.attention_backward.G = 28; /* its dk and dv are those of every head */
    assert_int_equal(tested_ops->workspace_bytes(LS_OP_attention_backward, &args),
                     backward + 256 + 4 * m * 24 * 128 - 4 * m * 28 * 128);
    args.attention_backward.any_order = 0;
    assert_int_equal(tested_ops->workspace_bytes(LS_OP_attention_backward, &args), 0);
    set_cudnn(&(ls_emulated_cudnn){.version = 0});
    args.attention_backward.any_order = 1;
    assert_int_equal(tested_ops->workspace_bytes(LS_OP_attention_backward, &args), 0);
    assert_int_equal(tested_ops->workspace_bytes(LS_OP_attention_forward, &long_forward), 0);
}

static void versions_with_known_faults_are_refused(void **state)
{
    static const struct {
        int32_t version;
        const char *forward, *backward, *note;
    } expected[] = {
        {0, "mma", "mma", "none: the emulated GPU has no cuDNN"},
        {90503, "mma", "mma", "9.5.3, not used: masks from the bottom right"},
        {90600, "cudnn", "mma", "9.6.0, forward alone: backward on Hopper"},
        {91701, "cudnn", "mma", "9.17.1, forward alone: "},
        {91800, "cudnn", "cudnn", "9.18.0"},
        {92600, "cudnn", "cudnn", "9.26.0"},
    };

    (void)state;
    for (int64_t i = 0; i < COUNT_OF(expected); i++) {
        set_cudnn(&(ls_emulated_cudnn){.version = expected[i].version});
        assert_string_equal(name_of(LS_OP_attention_forward, &long_forward), expected[i].forward);
        assert_string_equal(name_of(LS_OP_attention_backward, &long_backward),
                            expected[i].backward);
        const char *note = ls_cuda_attention_vendor_note();
        if (strncmp(note, expected[i].note, strlen(expected[i].note)) != 0) fail_msg("%s", note);
    }
}

/* Where sums must keep their order, forward alone, of versions seen to repeat. */
static void a_forward_that_repeats_is_exact(void **state)
{
    ls_op_args forward = long_forward, backward = long_backward;

    (void)state;
    forward.attention_forward.any_order = backward.attention_backward.any_order = 0;
    ls_cuda_attention_vendor_repeats(VERSION);
    assert_string_equal(name_of(LS_OP_attention_forward, &forward), "cudnn");
    assert_string_equal(name_of(LS_OP_attention_backward, &backward), "mma");
    assert_true(tested_ops->workspace_bytes(LS_OP_attention_forward, &forward) > 0);
    ls_cuda_attention_vendor_repeats(VERSION + 1);
    assert_string_equal(name_of(LS_OP_attention_forward, &forward), "mma");
    ls_cuda_attention_vendor_repeats(0);
    assert_string_equal(name_of(LS_OP_attention_forward, &forward), "mma");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, start_test)
    const struct CMUnitTest tests[] = {
        TEST(calls_it_can_not_take_are_ours),
        TEST(scratch_is_what_the_formulas_say),
        TEST(versions_with_known_faults_are_refused),
        TEST(a_forward_that_repeats_is_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
