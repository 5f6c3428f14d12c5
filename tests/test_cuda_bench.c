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

#include "bench_ops.h"
#include "cuda_ops.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_measured)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
