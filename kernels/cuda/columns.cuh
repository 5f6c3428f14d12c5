/*
 * columns.cuh - sums over the rows of a matrix, without atomics and in one kernel.
 *
 * A block owns 32 columns.  Its threads stand in 64 groups of 8; a thread takes 4 columns of every
 * 64th row, in ascending order, in fp64; then the groups' sums are added in ascending order.  So
 * the order depends on the number of rows alone.
 *
 * Layer: kernels, private to kernels/cuda.
 */
#ifndef LS_COLUMNS_CUH
#define LS_COLUMNS_CUH

#include "element.cuh"

enum {
    LS_COLUMNS = 32,
    LS_COLUMN_GROUPS = 64,
    LS_COLUMN_WIDTH = 4, /* columns of a thread */
    LS_COLUMN_THREADS = LS_COLUMN_GROUPS * LS_COLUMNS / LS_COLUMN_WIDTH,
    LS_COLUMN_SHARED = LS_COLUMN_GROUPS * LS_COLUMNS * static_cast<int>(sizeof(double)),
};

/* out[d] = (accumulate: out[d] +) sum_n terms(n, d) */
template <typename F>
__global__ void __launch_bounds__(LS_COLUMN_THREADS)
    ls_sum_columns_kernel(float *out, F terms, int64_t N, int64_t D, int accumulate)
{
    LS_SHARED(double, sums); /* [groups][columns] */
    const int group = static_cast<int>(threadIdx.x) / (LS_COLUMNS / LS_COLUMN_WIDTH);
    const int column =
        static_cast<int>(threadIdx.x) % (LS_COLUMNS / LS_COLUMN_WIDTH) * LS_COLUMN_WIDTH;
    const int64_t first = static_cast<int64_t>(blockIdx.x) * LS_COLUMNS + column;
    double own[LS_COLUMN_WIDTH] = {0.0, 0.0, 0.0, 0.0};

    for (int64_t n = group; n < N; n += LS_COLUMN_GROUPS)
        for (int k = 0; k < LS_COLUMN_WIDTH; k++)
            if (first + k < D) own[k] += terms(n, first + k);
    for (int k = 0; k < LS_COLUMN_WIDTH; k++) sums[group * LS_COLUMNS + column + k] = own[k];
    __syncthreads();

    const int64_t d = static_cast<int64_t>(blockIdx.x) * LS_COLUMNS + threadIdx.x;
    if (threadIdx.x >= LS_COLUMNS || d >= D) return;
    double sum = 0.0;
    for (unsigned g = 0; g < LS_COLUMN_GROUPS; g++) sum += sums[g * LS_COLUMNS + threadIdx.x];
    out[d] = static_cast<float>((accumulate ? static_cast<double>(out[d]) : 0.0) + sum);
}

template <typename F>
static inline ls_status ls_sum_columns(const char *name, void *stream, float *out, F terms,
                                       int64_t N, int64_t D, int accumulate)
{
    return ls_launch(name, ls_sum_columns_kernel<F>, ls_grid(ls_ceil_div(D, LS_COLUMNS)),
                     LS_COLUMN_THREADS, LS_COLUMN_SHARED, stream, out, terms, N, D, accumulate);
}

#endif
