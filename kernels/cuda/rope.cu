/*
 * rope.cu - rotary position embedding: a block takes one row, a thread eight pairs of one head.
 * 3 FLOPs per element; 2 elements of traffic each, 8 bytes of table per pair and row.  Bound by
 * memory: a row's angles stay in L1 for all its heads.
 */
#include "element.cuh"

struct rope_shape {
    int64_t heads, half; /* half: K / 2 */
    float sign;
    bool vector;
};

template <typename Y, typename X>
__global__ void __launch_bounds__(LS_THREADS)
    rope_kernel(Y *y, const X *x, const float *table, const int64_t *positions, rope_shape s)
{
    const int64_t n = blockIdx.x, per_head = (s.half + LS_EIGHT - 1) / LS_EIGHT;
    const float *angles = table + positions[n] * s.half * 2;

    for (int64_t unit = threadIdx.x; unit < s.heads * per_head; unit += blockDim.x) {
        const int64_t head = unit / per_head, i = unit % per_head * LS_EIGHT;
        const int64_t at = (n * s.heads + head) * s.half * 2;
        float a[LS_EIGHT], b[LS_EIGHT], low[LS_EIGHT], high[LS_EIGHT];
        ls_load8(a, x + at, i, s.half, s.vector);
        ls_load8(b, x + at + s.half, i, s.half, s.vector);
        ls_load8(low, angles, 2 * i, 2 * s.half, s.vector);
        ls_load8(high, angles, 2 * i + LS_EIGHT, 2 * s.half, s.vector);
        for (int k = 0; k < LS_EIGHT; k++) {
            const float cosine = k < 4 ? low[2 * k % LS_EIGHT] : high[2 * k % LS_EIGHT];
            const float sine =
                s.sign * (k < 4 ? low[2 * k % LS_EIGHT + 1] : high[2 * k % LS_EIGHT + 1]);
            const float a_k = a[k];
            a[k] = a_k * cosine - b[k] * sine;
            b[k] = b[k] * cosine + a_k * sine;
        }
        ls_store8(y + at, i, s.half, s.vector, a);
        ls_store8(y + at + s.half, i, s.half, s.vector, b);
    }
}

template <typename Y, typename X> static ls_status rotate(void *stream, const ls_rope_args *args)
{
    const int64_t half = args->K / 2;
    const rope_shape shape = {args->heads, half, args->inverse ? -1.0f : 1.0f,
                              half % LS_EIGHT == 0 && ls_is_aligned(args->y, args->x, args->table)};
    return ls_launch("rope", rope_kernel<Y, X>, ls_grid(args->N), LS_THREADS, 0, stream,
                     static_cast<Y *>(args->y), static_cast<const X *>(args->x), args->table,
                     args->positions, shape);
}

ls_status ls_cuda_rope(void *stream, const ls_rope_args *args)
{
    assert(args->N >= 0 && args->heads > 0 && args->K > 0 && args->K % 2 == 0);
    if (args->N == 0) return LS_OK;
    LS_DISPATCH(args->x_dtype, {
        if (args->y_dtype == LS_DTYPE_BF16) return rotate<ls_bf16x, T>(stream, args);
        return rotate<float, T>(stream, args);
    });
}
