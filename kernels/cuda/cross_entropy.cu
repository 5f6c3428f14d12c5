/*
 * cross_entropy.cu - softmax cross-entropy and its gradient, a block to a row of logits.
 *
 * Three passes over the row: maximum, sum of exponentials, gradient.  A thread sums its eights in
 * fp64 in ascending order, a warp its lanes pairwise, the block its warps in order.  About 40 FLOPs
 * per logit; 4 bytes + 1 element at the least, 12 bytes where L2 does not hold the rows at work.
 *
 * A row with a logit that is not finite has nll NaN and NaN in all of its gradient.
 */
#include <float.h>
#include <math.h>

#include "element.cuh"

enum { THREADS_MAX = 512 };

/* One row as its block sees it. */
struct loss_row {
    const float *x;
    int64_t V, step, first;
    double *scratch; /* [warps], shared */
    bool vector;
};

/* The sum, or the maximum, over the block, the same in every thread. */
template <bool MAXIMUM> LS_DEVICE double reduce_block(double value, double *scratch)
{
    const int warp = static_cast<int>(threadIdx.x) / LS_WARP;
    for (int flip = LS_WARP / 2; flip > 0; flip /= 2) {
        const double other = __shfl_xor_sync(0xffffffffu, value, flip);
        value = MAXIMUM ? fmax(value, other) : value + other;
    }
    if (threadIdx.x % LS_WARP == 0) scratch[warp] = value;
    __syncthreads();
    value = scratch[0];
    for (int w = 1; w < static_cast<int>(blockDim.x) / LS_WARP; w++)
        value = MAXIMUM ? fmax(value, scratch[w]) : value + scratch[w];
    __syncthreads();
    return value;
}

/* The largest logit; NaN if any is not finite. */
LS_DEVICE float find_maximum(const loss_row &row)
{
    float largest = -INFINITY;
    int wild = 0;
    for (int64_t i = row.first; i < row.V; i += row.step) {
        float value[LS_EIGHT];
        ls_load8(value, row.x, i, row.V, row.vector);
        for (int k = 0; k < LS_EIGHT && i + k < row.V; k++) {
            wild |= (__float_as_uint(value[k]) & 0x7fffffffu) >= 0x7f800000u;
            largest = fmaxf(largest, value[k]);
        }
    }
    wild = __syncthreads_or(wild);
    const double most = reduce_block<true>(static_cast<double>(largest), row.scratch);
    return wild ? NAN : static_cast<float>(most);
}

LS_DEVICE double sum_exponentials(const loss_row &row, float maximum)
{
    double sum = 0.0;
    for (int64_t i = row.first; i < row.V; i += row.step) {
        float value[LS_EIGHT];
        ls_load8(value, row.x, i, row.V, row.vector);
        for (int k = 0; k < LS_EIGHT && i + k < row.V; k++)
            sum += static_cast<double>(ls_exp32(value[k] - maximum));
    }
    return reduce_block<false>(sum, row.scratch);
}

/* dlogits = scale (softmax - onehot) */
template <typename T>
LS_DEVICE void write_gradient(T *dlogits, const loss_row &row, int64_t target, float maximum,
                              double sum, float scale)
{
    const float factor = static_cast<float>(static_cast<double>(scale) / sum);
    for (int64_t i = row.first; i < row.V; i += row.step) {
        float value[LS_EIGHT];
        ls_load8(value, row.x, i, row.V, row.vector);
        for (int k = 0; k < LS_EIGHT; k++) {
            const float e = ls_exp32(value[k] - maximum);
            value[k] = e * factor;
            if (i + k == target)
                value[k] = static_cast<float>((static_cast<double>(e) / sum - 1.0) *
                                              static_cast<double>(scale));
        }
        ls_store8(dlogits, i, row.V, row.vector, value);
    }
}

template <typename T> LS_DEVICE void write_zeros(T *dlogits, const loss_row &row)
{
    const float zeros[LS_EIGHT] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (int64_t i = row.first; i < row.V; i += row.step)
        ls_store8(dlogits, i, row.V, row.vector, zeros);
}

template <typename T>
__global__ void __launch_bounds__(THREADS_MAX)
    cross_entropy_kernel(T *dlogits, float *nll, const float *logits, const int32_t *targets,
                         const float *scale, int64_t V, bool vector)
{
    LS_SHARED(double, scratch);
    const int64_t n = blockIdx.x, target = targets[n];
    const loss_row row = {
        logits + n * V,         V,       blockDim.x * static_cast<int64_t>(LS_EIGHT),
        threadIdx.x * LS_EIGHT, scratch, vector};

    if (target == LS_TARGET_IGNORE) { /* the whole block */
        if (threadIdx.x == 0) nll[n] = 0.0f;
        if (dlogits != nullptr) write_zeros(dlogits + n * V, row);
        return;
    }
    const float maximum = find_maximum(row);
    const double sum = sum_exponentials(row, maximum);
    if (threadIdx.x == 0) {
        const double loss =
            log(sum) + (static_cast<double>(maximum) - static_cast<double>(row.x[target]));
        /* Two finite logits may lie further apart than fp32 reaches. */
        nll[n] = loss > static_cast<double>(FLT_MAX) ? FLT_MAX : static_cast<float>(loss);
    }
    if (dlogits != nullptr) write_gradient(dlogits + n * V, row, target, maximum, sum, *scale);
}

ls_status ls_cuda_cross_entropy(void *stream, const ls_cross_entropy_args *args)
{
    assert(args->N >= 0 && args->V > 0);
    assert(args->dlogits == NULL || args->scale != NULL);
    if (args->N == 0) return LS_OK;
    const int64_t wanted = ls_ceil_div(args->V, LS_WARP * LS_EIGHT) * LS_WARP;
    const unsigned threads = static_cast<unsigned>(wanted < THREADS_MAX ? wanted : +THREADS_MAX);

    LS_DISPATCH(args->dtype, {
        return ls_launch("cross_entropy", cross_entropy_kernel<T>, ls_grid(args->N), threads,
                         threads / LS_WARP * sizeof(double), stream,
                         static_cast<T *>(args->dlogits), args->nll, args->logits, args->targets,
                         args->scale, args->V,
                         args->V % LS_EIGHT == 0 && ls_is_aligned(args->dlogits, args->logits));
    });
}
