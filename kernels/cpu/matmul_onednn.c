/*
 * matmul_onednn.c - fp32 matrix multiplication by oneDNN's sgemm, one C tile a thread.
 *
 * Left to itself sgemm divides even the sum of terms between threads, so that results would depend
 * on their number.  Called inside a parallel region it runs on the calling thread alone: tiles are
 * cut here, by shape, and a tile's sum is sgemm's own order for that shape.  The call is the same
 * in oneDNN 2 and 3.  (bf16 runs on our own kernels, which were faster wherever we measured.)
 */
#include "matmul.h"

#include <oneapi/dnnl/dnnl.h>

enum { TILE_ROWS = 256, TILE_COLS = 256 };

static dnnl_status_t tile_run(const ls_matmul_args *args, int64_t row, int64_t col)
{
    const int64_t n_rows = args->M - row < TILE_ROWS ? args->M - row : TILE_ROWS;
    const int64_t n_cols = args->N - col < TILE_COLS ? args->N - col : TILE_COLS;
    const float *a = (const float *)args->a + row * (args->trans_a ? 1 : args->K);
    const float *b = (const float *)args->b + col * (args->trans_b ? args->K : 1);

    return dnnl_sgemm(args->trans_a ? 'T' : 'N', args->trans_b ? 'T' : 'N', n_rows, n_cols, args->K,
                      1.0f, a, args->trans_a ? args->M : args->K, b,
                      args->trans_b ? args->K : args->N, args->accumulate ? 1.0f : 0.0f,
                      (float *)args->c + row * args->N + col, args->N);
}

static ls_status run(const ls_matmul_args *args)
{
    const int64_t rows = (args->M + TILE_ROWS - 1) / TILE_ROWS;
    const int64_t cols = (args->N + TILE_COLS - 1) / TILE_COLS;
    int failed = 0;

#if defined(_OPENMP)
#pragma omp parallel for schedule(dynamic, 1) reduction(max : failed)
#endif
    for (int64_t i = 0; i < rows * cols; i++)
        if (tile_run(args, i / cols * TILE_ROWS, i % cols * TILE_COLS) != dnnl_success) failed = 1;
    if (failed) /* its buffers are its own: nothing else can fail on sizes that we checked */
        return LS_FAIL(LS_ERR_NO_MEMORY,
                       "oneDNN sgemm of M %lld N %lld K %lld: out of memory; free some, or build "
                       "with LS_ONEDNN=OFF",
                       (long long)args->M, (long long)args->N, (long long)args->K);
    return LS_OK;
}

static uint64_t workspace_bytes(const ls_matmul_args *args)
{
    (void)args;
    return 0;
}

static int usable(ls_dtype ab_dtype, ls_dtype c_dtype)
{
    return ab_dtype == LS_DTYPE_F32 && c_dtype == LS_DTYPE_F32;
}

const ls_matmul_kernel ls_matmul_kernel_onednn = {"onednn sgemm", usable, workspace_bytes, run};
