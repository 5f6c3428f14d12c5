/*
 * bias.cu - a bias copied to every row, and its gradient, the sums of the columns (columns.cuh).
 * Both are bound by memory: 0 FLOP and 1 element of y, 1 FLOP and 1 element of dy.
 */
#include "columns.cuh"

template <typename T>
__global__ void __launch_bounds__(LS_THREADS)
    bias_forward_kernel(T *y, const T *b, int64_t D, bool vector)
{
    const int64_t n = blockIdx.x;
    for (int64_t d = threadIdx.x * LS_EIGHT; d < D; d += blockDim.x * LS_EIGHT) {
        float value[LS_EIGHT];
        ls_load8(value, b, d, D, vector);
        ls_store8(y + n * D, d, D, vector, value);
    }
}

ls_status ls_cuda_bias_forward(void *stream, const ls_bias_forward_args *args)
{
    assert(args->N >= 0 && args->D > 0);
    if (args->N == 0) return LS_OK;
    LS_DISPATCH(args->dtype, {
        return ls_launch("bias_forward", bias_forward_kernel<T>, ls_grid(args->N), LS_THREADS, 0,
                         stream, static_cast<T *>(args->y), static_cast<const T *>(args->b),
                         args->D, args->D % LS_EIGHT == 0 && ls_is_aligned(args->y, args->b));
    });
}

template <typename T> struct bias_terms {
    const T *dy;
    int64_t D;

    __device__ double operator()(int64_t n, int64_t d) const
    {
        return static_cast<double>(ls_widen(dy[n * D + d]));
    }
};

ls_status ls_cuda_bias_backward(void *stream, const ls_bias_backward_args *args)
{
    assert(args->N >= 0 && args->D > 0);
    LS_DISPATCH(args->dtype, {
        const bias_terms<T> terms = {static_cast<const T *>(args->dy), args->D};
        return ls_sum_columns("bias_backward", stream, args->db, terms, args->N, args->D,
                              args->accumulate);
    });
}
