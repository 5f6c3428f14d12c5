/*
 * rmsnorm.c - root-mean-square norm on the CPU, forward and backward.
 *
 * A row is summed in fp64 lanes (a bf16 or fp32 square is exact there) and then written; rows are
 * shared among threads.  dw sums over rows instead: threads share columns and walk the rows in
 * order.  Backward alternates between the two on blocks of rows that stay in cache, so memory sees
 * each row once.  Bound by memory: forward 2 elements, backward 4 bytes + 2 or 3 elements.
 */
#include <assert.h>
#include <math.h>
#include <stddef.h>

#include "ops.h"
#include "vec.h"

enum {
    ROW_BLOCK_ELEMENTS = 1 << 17, /* rows of one block x D: 0.75 MiB of dy and bf16 x */
    STRIP = 128,                  /* columns whose dw is summed on the stack */
};

/* ---- forward ------------------------------------------------------------------------------- */

LS_INLINE void forward_row(const ls_rmsnorm_forward_args *args, int64_t n, ls_dtype dtype)
{
    const int64_t D = args->D;
    const void *x = ls_at(args->x, n * D, dtype);
    void *y = ls_out_at(args->y, n * D, dtype);
    const double mean = ls_sum_squares(x, D, dtype) / (double)D;
    const float r = (float)(1.0 / sqrt(mean + (double)args->eps));

    args->r[n] = r;
    LS_INDEPENDENT
    for (int64_t d = 0; d < D; d++)
        ls_store(y, d, ls_load(x, d, dtype) * r * ls_load(args->w, d, dtype), dtype);
}

LS_SIMD_CLONES static void forward_row_any(const ls_rmsnorm_forward_args *args, int64_t n)
{
    if (args->dtype == LS_DTYPE_BF16)
        forward_row(args, n, LS_DTYPE_BF16);
    else
        forward_row(args, n, LS_DTYPE_F32);
}

ls_status ls_cpu_rmsnorm_forward(void *stream, const ls_rmsnorm_forward_args *args)
{
    (void)stream;
    assert(args->N >= 0 && args->D > 0 && ls_dtype_computes(args->dtype));

    LS_OMP(omp parallel for schedule(static))
    for (int64_t n = 0; n < args->N; n++) forward_row_any(args, n);
    return LS_OK;
}

/* ---- backward ------------------------------------------------------------------------------ */

/* sum_d dy w x */
LS_INLINE double dot_row(const float *dy, const void *w, const void *x, int64_t D, ls_dtype dtype)
{
    double lanes[LS_LANES] = {0.0};
    const int64_t whole = D - D % LS_LANES;
    for (int64_t i = 0; i < whole; i += LS_LANES)
        for (int l = 0; l < LS_LANES; l++)
            lanes[l] +=
                (double)(dy[i + l] * ls_load(w, i + l, dtype)) * (double)ls_load(x, i + l, dtype);
    for (int64_t i = whole; i < D; i++)
        lanes[i - whole] += (double)(dy[i] * ls_load(w, i, dtype)) * (double)ls_load(x, i, dtype);
    return ls_lanes_add(lanes);
}

LS_INLINE void backward_row(const ls_rmsnorm_backward_args *args, int64_t n, ls_dtype dtype)
{
    const int64_t D = args->D;
    const float *dy = args->dy + n * D;
    const void *x = ls_at(args->x, n * D, dtype);
    void *dx = ls_out_at(args->dx, n * D, dtype);
    const float r = args->r[n];
    const double dot = dot_row(dy, args->w, x, D, dtype);
    const float along = (float)((double)r * (double)r * dot / (double)D);

    if (args->accumulate_dx) {
        LS_INDEPENDENT
        for (int64_t d = 0; d < D; d++) {
            const float g = dy[d] * ls_load(args->w, d, dtype);
            const float value = r * (g - ls_load(x, d, dtype) * along);
            ls_store(dx, d, ls_load(dx, d, dtype) + value, dtype);
        }
    } else {
        LS_INDEPENDENT
        for (int64_t d = 0; d < D; d++) {
            const float g = dy[d] * ls_load(args->w, d, dtype);
            ls_store(dx, d, r * (g - ls_load(x, d, dtype) * along), dtype);
        }
    }
}

LS_SIMD_CLONES static void backward_row_any(const ls_rmsnorm_backward_args *args, int64_t n)
{
    if (args->dtype == LS_DTYPE_BF16)
        backward_row(args, n, LS_DTYPE_BF16);
    else
        backward_row(args, n, LS_DTYPE_F32);
}

/* The share of rows begin .. end in dw[first .. first + width), width <= STRIP. */
LS_INLINE void sum_strip(const ls_rmsnorm_backward_args *args, int64_t begin, int64_t end,
                         int64_t first, int64_t width, ls_dtype dtype)
{
    float sums[STRIP] = {0.0f};
    for (int64_t n = begin; n < end; n++) {
        const float *dy = args->dy + n * args->D + first;
        const void *x = ls_at(args->x, n * args->D + first, dtype);
        const float r = args->r[n];
        for (int64_t d = 0; d < width; d++) sums[d] += dy[d] * (ls_load(x, d, dtype) * r);
    }
    const int adds = args->accumulate_dw || begin > 0;
    for (int64_t d = 0; d < width; d++)
        args->dw[first + d] = adds ? args->dw[first + d] + sums[d] : sums[d];
}

LS_SIMD_CLONES static void sum_strip_any(const ls_rmsnorm_backward_args *args, int64_t begin,
                                         int64_t end, int64_t strip)
{
    const int64_t first = strip * STRIP;
    const int64_t width = ls_min_i64(STRIP, args->D - first);
    if (args->dtype == LS_DTYPE_BF16)
        sum_strip(args, begin, end, first, width, LS_DTYPE_BF16);
    else
        sum_strip(args, begin, end, first, width, LS_DTYPE_F32);
}

ls_status ls_cpu_rmsnorm_backward(void *stream, const ls_rmsnorm_backward_args *args)
{
    (void)stream;
    assert(args->N > 0 && args->D > 0 && ls_dtype_computes(args->dtype));
    const int64_t n_strips = args->dw != NULL ? ls_blocks(args->D, STRIP) : 0;
    const int64_t block_rows = args->D < ROW_BLOCK_ELEMENTS ? ROW_BLOCK_ELEMENTS / args->D : 1;

    LS_OMP(omp parallel)
    for (int64_t begin = 0; begin < args->N; begin += block_rows) {
        const int64_t end = ls_min_i64(begin + block_rows, args->N);
        LS_OMP(omp for schedule(static))
        for (int64_t n = begin; n < end; n++) backward_row_any(args, n);
        LS_OMP(omp for schedule(static))
        for (int64_t strip = 0; strip < n_strips; strip++) sum_strip_any(args, begin, end, strip);
    }
    return LS_OK;
}
