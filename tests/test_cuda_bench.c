/*
 * test_cuda_bench.c - longspan bench ops on the emulated GPU: every shape runs from its memory, by
 * its kernels.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "attention_vendor.h"
#include "bench_ops.h"
#include "cuda_ops.h"
#include "emulation.h"

static void test_measured(void **state)
{
    const ls_bench_ops_options options = {
        .repetitions = 1, .rows_max = 16, .open_device = ls_device_open_cuda, .ops = &ls_ops_cuda};
    ls_bench_ops bench;
    int of_op[LS_OP_COUNT] = {0};

    (void)state;
    if (ls_bench_ops_measure(&options, &bench) != LS_OK) fail_msg("%s", ls_error());
    assert_int_equal(bench.threads, 0);
    for (int i = 0; i < bench.n_rows; i++) {
        assert_true(bench.rows[i].seconds.median > 0 && bench.rows[i].bytes > 0);
        of_op[bench.rows[i].op]++;
    }
    assert_int_equal(of_op[LS_OP_matmul], 2 * 4 * 3);        /* dtypes, widths, forms */
    assert_int_equal(of_op[LS_OP_attention_forward], 3 + 1); /* fp32: one length */
    assert_int_equal(of_op[LS_OP_attention_backward], 3 + 1);
    char text[16384];
    FILE *file = fmemopen(text, sizeof text, "w");
    assert_non_null(file);
    ls_bench_ops_print(&bench, file);
    fclose(file);
    assert_non_null(strstr(text, "medians of 1 on the GPU"));
    assert_non_null(strstr(text, ls_ops_cuda.kernel_name(LS_OP_matmul, LS_DTYPE_BF16, 0)));
}

/* Attention in bf16 by every kernel that a run may use: what is promised decides which takes it. */
static void test_kernels_of_attention(void **state)
{
    const ls_emulated_cudnn present = {.version = 91900}, absent = {.version = 0};
    const ls_bench_ops_options options = {.repetitions = 1,
                                          .rows_max = 128,
                                          .heads_max = 2,
                                          .open_device = ls_device_open_cuda,
                                          .ops = &ls_ops_cuda};
    ls_bench_ops bench;
    int by_cudnn[LS_OP_COUNT] = {0}, by_mma[LS_OP_COUNT] = {0};

    (void)state;
    ls_cuda_attention_vendor_close();
    ls_emulation_cudnn(&present);
    if (ls_bench_ops_measure(&options, &bench) != LS_OK) fail_msg("%s", ls_error());
    for (int i = 0; i < bench.n_rows; i++) {
        by_cudnn[bench.rows[i].op] += strcmp(bench.rows[i].kernel, "cudnn") == 0;
        by_mma[bench.rows[i].op] += strcmp(bench.rows[i].kernel, "mma") == 0;
    }
    assert_int_equal(by_cudnn[LS_OP_attention_forward], 3);
    assert_int_equal(by_cudnn[LS_OP_attention_backward], 3);
    assert_int_equal(by_mma[LS_OP_attention_forward], 3);
    assert_int_equal(by_mma[LS_OP_attention_backward], 3);
    assert_string_equal(ls_ops_cuda.kernels_ran(LS_OP_attention_forward), "cudnn+mma+plain");
    ls_cuda_attention_vendor_close();
    ls_emulation_cudnn(&absent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_measured),
                                       cmocka_unit_test(test_kernels_of_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
