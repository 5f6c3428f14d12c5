/*
 * data.cu - zero, cast and add.  Bound by memory: a thread moves eight elements in 16-byte words.
 *   zero: 0 FLOP, 1 byte per byte.  cast: 0 FLOP, both sizes.  add: 1 FLOP, 3 elements.
 */
#include "element.cuh"

ls_status ls_cuda_zero(void *stream, const ls_zero_args *args)
{
    assert(args->bytes >= 0 && (args->y != NULL || args->bytes == 0));
    if (args->bytes == 0) return LS_OK;
    const cudaError_t error = cudaMemsetAsync(args->y, 0, static_cast<size_t>(args->bytes),
                                              static_cast<cudaStream_t>(stream));
    return error == cudaSuccess ? LS_OK : ls_cuda_fail(error, "zero");
}

template <typename Y, typename X>
__global__ void __launch_bounds__(LS_THREADS) cast_kernel(Y *y, const X *x, int64_t n, bool vector)
{
    const int64_t i = ls_element_index();
    float value[LS_EIGHT];
    ls_load8(value, x, i, n, vector);
    ls_store8(y, i, n, vector, value);
}

template <typename Y, typename X> static ls_status cast(void *stream, const ls_cast_args *args)
{
    return ls_launch("cast", cast_kernel<Y, X>, ls_element_grid(args->n), LS_THREADS, 0, stream,
                     static_cast<Y *>(args->y), static_cast<const X *>(args->x), args->n,
                     ls_is_aligned(args->y, args->x));
}

/* Equal dtypes are bytes, so a bf16 NaN keeps its payload. */
static ls_status copy(void *stream, const ls_cast_args *args)
{
    const size_t bytes = static_cast<size_t>(args->n) * ls_dtype_bytes(args->x_dtype);
    const cudaError_t error = cudaMemcpyAsync(args->y, args->x, bytes, cudaMemcpyDefault,
                                              static_cast<cudaStream_t>(stream));
    return error == cudaSuccess ? LS_OK : ls_cuda_fail(error, "cast");
}

ls_status ls_cuda_cast(void *stream, const ls_cast_args *args)
{
    assert(args->n >= 0);
    if (args->n == 0) return LS_OK;
    if (args->y_dtype == args->x_dtype) return copy(stream, args);
    if (args->y_dtype == LS_DTYPE_BF16) return cast<ls_bf16x, float>(stream, args);
    return cast<float, ls_bf16x>(stream, args);
}

template <typename T>
__global__ void __launch_bounds__(LS_THREADS)
    add_kernel(T *y, const T *a, const T *b, int64_t n, bool vector)
{
    const int64_t i = ls_element_index();
    float left[LS_EIGHT], right[LS_EIGHT];
    ls_load8(left, a, i, n, vector);
    ls_load8(right, b, i, n, vector);
    for (int k = 0; k < LS_EIGHT; k++) left[k] += right[k];
    ls_store8(y, i, n, vector, left);
}

ls_status ls_cuda_add(void *stream, const ls_add_args *args)
{
    assert(args->n >= 0);
    if (args->n == 0) return LS_OK;
    LS_DISPATCH(args->dtype, {
        return ls_launch("add", add_kernel<T>, ls_element_grid(args->n), LS_THREADS, 0, stream,
                         static_cast<T *>(args->y), static_cast<const T *>(args->a),
                         static_cast<const T *>(args->b), args->n,
                         ls_is_aligned(args->y, args->a, args->b));
    });
}
