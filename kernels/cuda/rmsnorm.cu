/*
 * rmsnorm.cu - root-mean-square norm, forward and backward.
 *
 * A warp takes a row: each lane sums its eights in ascending order in fp64 (where a square of a
 * fp32 number is exact), the lanes are added pairwise.  dw sums over rows instead (columns.cuh).
 * Forward: 4 FLOPs and 2 elements per element; backward: 12 FLOPs, 8 bytes + 3 or 4 elements,
 * since dw reads dy and x again.  Bound by memory.
 */
#include "columns.cuh"

enum { ROWS = 4 }; /* of a block, one for each of its warps */

struct row_place {
    int64_t n;
    int64_t lane;
};

LS_DEVICE row_place find_row()
{
    return {static_cast<int64_t>(blockIdx.x) * ROWS + threadIdx.x / LS_WARP, threadIdx.x % LS_WARP};
}

template <typename T>
__global__ void __launch_bounds__(ROWS *LS_WARP)
    rmsnorm_forward_kernel(T *y, float *r, const T *x, const T *w, int64_t N, int64_t D, float eps,
                           bool vector)
{
    const row_place at = find_row();
    const T *row = x + at.n * D;
    double sum = 0.0;
    float value[LS_EIGHT], weight[LS_EIGHT];

    if (at.n >= N) return; /* the whole warp */
    for (int64_t d = at.lane * LS_EIGHT; d < D; d += LS_WARP * LS_EIGHT) {
        ls_load8(value, row, d, D, vector);
        for (int k = 0; k < LS_EIGHT; k++)
            sum += static_cast<double>(value[k]) * static_cast<double>(value[k]);
    }
    const double mean = ls_warp_sum(sum) / static_cast<double>(D);
    const float factor = static_cast<float>(1.0 / sqrt(mean + static_cast<double>(eps)));
    if (at.lane == 0) r[at.n] = factor;
    for (int64_t d = at.lane * LS_EIGHT; d < D; d += LS_WARP * LS_EIGHT) {
        ls_load8(value, row, d, D, vector);
        ls_load8(weight, w, d, D, vector);
        for (int k = 0; k < LS_EIGHT; k++) value[k] = value[k] * factor * weight[k];
        ls_store8(y + at.n * D, d, D, vector, value);
    }
}

ls_status ls_cuda_rmsnorm_forward(void *stream, const ls_rmsnorm_forward_args *args)
{
    assert(args->N >= 0 && args->D > 0);
    if (args->N == 0) return LS_OK;
    LS_DISPATCH(args->dtype, {
        return ls_launch("rmsnorm_forward", rmsnorm_forward_kernel<T>,
                         ls_grid(ls_ceil_div(args->N, ROWS)), ROWS * LS_WARP, 0, stream,
                         static_cast<T *>(args->y), args->r, static_cast<const T *>(args->x),
                         static_cast<const T *>(args->w), args->N, args->D, args->eps,
                         args->D % LS_EIGHT == 0 && ls_is_aligned(args->y, args->x, args->w));
    });
}

/* ---- backward -------------------------------------------------------------------------------- */

template <typename T> struct norm_backward {
    T *dx;
    const float *dy;
    const T *x, *w;
    const float *r;
    int64_t N, D;
    int accumulate;
    bool vector;
};

/* The lane's share of sum_d dy w x. */
template <typename T> LS_DEVICE double dot_share(const norm_backward<T> &a, const row_place &at)
{
    float dy[LS_EIGHT], x[LS_EIGHT], w[LS_EIGHT];
    double sum = 0.0;
    for (int64_t d = at.lane * LS_EIGHT; d < a.D; d += LS_WARP * LS_EIGHT) {
        ls_load8(dy, a.dy + at.n * a.D, d, a.D, a.vector);
        ls_load8(x, a.x + at.n * a.D, d, a.D, a.vector);
        ls_load8(w, a.w, d, a.D, a.vector);
        for (int k = 0; k < LS_EIGHT; k++)
            sum += static_cast<double>(dy[k] * w[k]) * static_cast<double>(x[k]);
    }
    return sum;
}

template <typename T>
__global__ void __launch_bounds__(ROWS *LS_WARP) rmsnorm_backward_kernel(norm_backward<T> a)
{
    const row_place at = find_row();
    float dy[LS_EIGHT], x[LS_EIGHT], w[LS_EIGHT], before[LS_EIGHT];

    if (at.n >= a.N) return; /* the whole warp */
    const float r = a.r[at.n];
    const double dot = ls_warp_sum(dot_share(a, at));
    const float along = static_cast<float>(static_cast<double>(r) * static_cast<double>(r) * dot /
                                           static_cast<double>(a.D));
    T *dx = a.dx + at.n * a.D;
    for (int64_t d = at.lane * LS_EIGHT; d < a.D; d += LS_WARP * LS_EIGHT) {
        ls_load8(dy, a.dy + at.n * a.D, d, a.D, a.vector);
        ls_load8(x, a.x + at.n * a.D, d, a.D, a.vector);
        ls_load8(w, a.w, d, a.D, a.vector);
        for (int k = 0; k < LS_EIGHT; k++) x[k] = r * (dy[k] * w[k] - x[k] * along);
        if (a.accumulate) {
            ls_load8(before, dx, d, a.D, a.vector);
            for (int k = 0; k < LS_EIGHT; k++) x[k] = before[k] + x[k];
        }
        ls_store8(dx, d, a.D, a.vector, x);
    }
}

template <typename T> struct weight_terms {
    const float *dy;
    const T *x;
    const float *r;
    int64_t D;

    __device__ double operator()(int64_t n, int64_t d) const
    {
        return static_cast<double>(dy[n * D + d]) *
               static_cast<double>(ls_widen(x[n * D + d]) * r[n]);
    }
};

ls_status ls_cuda_rmsnorm_backward(void *stream, const ls_rmsnorm_backward_args *args)
{
    assert(args->N > 0 && args->D > 0);
    LS_DISPATCH(args->dtype, {
        const norm_backward<T> a = {static_cast<T *>(args->dx),
                                    args->dy,
                                    static_cast<const T *>(args->x),
                                    static_cast<const T *>(args->w),
                                    args->r,
                                    args->N,
                                    args->D,
                                    args->accumulate_dx,
                                    args->D % LS_EIGHT == 0 &&
                                        ls_is_aligned(args->dx, args->dy, args->x, args->w)};
        const weight_terms<T> terms = {a.dy, a.x, a.r, a.D};
        LS_TRY(ls_launch("rmsnorm_backward", rmsnorm_backward_kernel<T>,
                         ls_grid(ls_ceil_div(args->N, ROWS)), ROWS * LS_WARP, 0, stream, a));
        if (args->dw == NULL) return LS_OK; /* frozen: not wanted */
        return ls_sum_columns("rmsnorm_backward dw", stream, args->dw, terms, args->N, args->D,
                              args->accumulate_dw);
    });
}
