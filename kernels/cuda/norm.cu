/*
 * norm.cu - the gradient norm: sums of squares in fp64, and what a step makes of them, with the
 * CPU's bits.  ops.h fixes the order: a block of 4096 elements in 16 lanes, which a block of
 * threads brings to shared memory first; then the blocks in order, by one thread.
 * sumsq: 2 FLOPs and 4 bytes per element (2 of bf16), add_sumsq 3 and 12 (10): bound by memory.
 */
#include "element.cuh"

enum { SUM_BLOCK = 4096, LANES = 16, SUM_THREADS = 128, TILE = 256 };

enum { SUM_SHARED_BYTES = SUM_BLOCK * sizeof(float) + LANES * sizeof(double) };

LS_DEVICE double add_lanes(const double *lanes)
{
    double sum = 0.0;
    for (int l = 0; l < LANES; l++) sum += lanes[l];
    return sum;
}

/* The sum of squares of a tile that all threads have filled, by thread 0 to *partial. */
LS_DEVICE void sum_tile(double *partial, const float *tile, double *lanes, int count)
{
    __syncthreads();
    if (threadIdx.x < LANES) {
        double sum = 0.0;
        for (int i = static_cast<int>(threadIdx.x); i < count; i += LANES)
            sum += static_cast<double>(tile[i]) * static_cast<double>(tile[i]);
        lanes[threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) *partial = add_lanes(lanes);
}

template <typename X>
__global__ void __launch_bounds__(SUM_THREADS)
    sum_blocks_kernel(double *partials, const X *x, int64_t n, bool vector)
{
    LS_SHARED(float, tile); /* [SUM_BLOCK], then [LANES] of fp64 */
    const int64_t begin = static_cast<int64_t>(blockIdx.x) * SUM_BLOCK;
    const int count = static_cast<int>(n - begin < SUM_BLOCK ? n - begin : +SUM_BLOCK);

    for (int i = static_cast<int>(threadIdx.x) * LS_EIGHT; i < SUM_BLOCK;
         i += SUM_THREADS * LS_EIGHT) {
        float value[LS_EIGHT];
        ls_load8(value, x + begin, i, count, vector);
        ls_store8(tile, i, SUM_BLOCK, true, value);
    }
    sum_tile(&partials[blockIdx.x], tile, reinterpret_cast<double *>(tile + SUM_BLOCK), count);
}

/* partials NULL: no sums. */
template <typename X>
__global__ void __launch_bounds__(SUM_THREADS)
    add_blocks_kernel(float *y, double *partials, const X *x, int64_t n, bool accumulate,
                      bool vector)
{
    LS_SHARED(float, tile); /* [SUM_BLOCK], then [LANES] of fp64 */
    const int64_t begin = static_cast<int64_t>(blockIdx.x) * SUM_BLOCK;
    const int count = static_cast<int>(n - begin < SUM_BLOCK ? n - begin : +SUM_BLOCK);

    for (int i = static_cast<int>(threadIdx.x) * LS_EIGHT; i < SUM_BLOCK;
         i += SUM_THREADS * LS_EIGHT) {
        float value[LS_EIGHT], before[LS_EIGHT];
        ls_load8(value, x + begin, i, count, vector);
        if (accumulate) {
            ls_load8(before, y + begin, i, count, vector);
            for (int k = 0; k < LS_EIGHT; k++) value[k] = before[k] + value[k];
        }
        ls_store8(y + begin, i, count, vector, value);
        ls_store8(tile, i, SUM_BLOCK, true, value);
    }
    if (partials == nullptr) return; /* all threads alike */
    sum_tile(&partials[blockIdx.x], tile, reinterpret_cast<double *>(tile + SUM_BLOCK), count);
}

__global__ void __launch_bounds__(LS_THREADS)
    add_partials_kernel(double *out, const double *partials, int64_t n)
{
    LS_SHARED(double, tile); /* [TILE] */
    double sum = 0.0;

    for (int64_t first = 0; first < n; first += TILE) {
        const int count = static_cast<int>(n - first < TILE ? n - first : +TILE);
        for (int i = static_cast<int>(threadIdx.x); i < count; i += LS_THREADS)
            tile[i] = partials[first + i];
        __syncthreads();
        if (threadIdx.x == 0)
            for (int i = 0; i < count; i++) sum += tile[i];
        __syncthreads();
    }
    if (threadIdx.x == 0) *out = sum;
}

static ls_status add_partials(void *stream, double *sum, const double *partials, int64_t n_blocks)
{
    return ls_launch("sumsq", add_partials_kernel, ls_grid(1), LS_THREADS, TILE * sizeof(double),
                     stream, sum, partials, n_blocks);
}

template <typename X> static ls_status sum_blocks(void *stream, const ls_sumsq_args *args)
{
    return ls_launch("sumsq", sum_blocks_kernel<X>, ls_grid(ls_ceil_div(args->n, SUM_BLOCK)),
                     SUM_THREADS, SUM_SHARED_BYTES, stream, args->partials,
                     static_cast<const X *>(args->x), args->n, ls_is_aligned(args->x));
}

ls_status ls_cuda_sumsq(void *stream, const ls_sumsq_args *args)
{
    assert(args->n >= 0);
    if (args->n > 0) LS_DISPATCH(args->dtype, { LS_TRY(sum_blocks<T>(stream, args)); });
    return add_partials(stream, args->sum, args->partials, ls_ceil_div(args->n, SUM_BLOCK));
}

template <typename X> static ls_status add_blocks(void *stream, const ls_add_sumsq_args *args)
{
    return ls_launch("add_sumsq", add_blocks_kernel<X>, ls_grid(ls_ceil_div(args->n, SUM_BLOCK)),
                     SUM_THREADS, SUM_SHARED_BYTES, stream, args->y, args->partials,
                     static_cast<const X *>(args->x), args->n, args->accumulate != 0,
                     ls_is_aligned(args->y, args->x));
}

ls_status ls_cuda_add_sumsq(void *stream, const ls_add_sumsq_args *args)
{
    assert(args->n >= 0);
    assert(args->n == 0 || (args->sum == nullptr) == (args->partials == nullptr));
    if (args->n > 0) LS_DISPATCH(args->x_dtype, { LS_TRY(add_blocks<T>(stream, args)); });
    if (args->sum == nullptr) return LS_OK;
    return add_partials(stream, args->sum, args->partials, ls_ceil_div(args->n, SUM_BLOCK));
}

/* ---- norm_finish ----------------------------------------------------------------------------- */

__global__ void norm_finish_kernel(ls_norm_finish_args args)
{
    const double norm_limit = 0x1p62; /* beyond it m and v would overflow fp32 */
    ls_update_control *control = args.control;
    const double clip_norm = static_cast<double>(args.clip_norm);
    double sum = 0.0;

    for (int64_t i = 0; i < args.n; i++) sum += args.sums[i];
    const double norm = sqrt(sum);
    control->grad_norm = norm;
    if (!(norm <= norm_limit)) { /* a NaN too */
        control->skip = 1;
        control->skipped++;
        control->skipped_in_a_row++;
        return;
    }
    control->skip = 0;
    control->skipped_in_a_row = 0;
    control->coefficient =
        clip_norm > 0.0 && norm > clip_norm ? static_cast<float>(clip_norm / norm) : 1.0f;
    control->beta1_power *= static_cast<double>(args.beta1);
    control->beta2_power *= static_cast<double>(args.beta2);
    control->updates++;
}

ls_status ls_cuda_norm_finish(void *stream, const ls_norm_finish_args *args)
{
    assert(args->n >= 0 && args->clip_norm >= 0.0f);
    return ls_launch("norm_finish", norm_finish_kernel, ls_grid(1), 1, 0, stream, *args);
}
