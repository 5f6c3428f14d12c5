/*
 * norm.c - the gradient norm on the CPU: sums of squares in fp64, and what a step makes of them.
 * sumsq: 2 FLOPs and 4 bytes per element (2 of bf16), bound by memory.  A product of two fp32
 * numbers is exact in fp64, so the order of the additions alone decides the bits; ops.h fixes it.
 * add_sumsq: 3 FLOPs; a block that has been added to is still in the first-level cache when it is
 * summed.
 */
#include <assert.h>
#include <math.h>
#include <stddef.h>

#include "ops.h"
#include "vec.h"

enum { SUM_BLOCK = 4096 };
static const double norm_limit = 0x1p62; /* beyond it m and v would overflow fp32 */

LS_SIMD_CLONES static double sum_block(const void *x, int64_t n, ls_dtype dtype)
{
    return dtype == LS_DTYPE_BF16 ? ls_sum_squares(x, n, LS_DTYPE_BF16)
                                  : ls_sum_squares(x, n, LS_DTYPE_F32);
}

static double add_partials(const double *partials, int64_t n_blocks)
{
    double sum = 0.0;
    for (int64_t block = 0; block < n_blocks; block++) sum += partials[block];
    return sum;
}

ls_status ls_cpu_sumsq(void *stream, const ls_sumsq_args *args)
{
    (void)stream;
    assert(args->n >= 0 && ls_dtype_computes(args->dtype));
    const int64_t n_blocks = ls_blocks(args->n, SUM_BLOCK);

    LS_OMP(omp parallel for schedule(static))
    for (int64_t block = 0; block < n_blocks; block++) {
        const int64_t begin = block * SUM_BLOCK;
        args->partials[block] = sum_block(ls_at(args->x, begin, args->dtype),
                                          ls_min_i64(SUM_BLOCK, args->n - begin), args->dtype);
    }
    *args->sum = add_partials(args->partials, n_blocks);
    return LS_OK;
}

LS_INLINE void add_elements(float *restrict y, const void *restrict x, int64_t n, int accumulate,
                            ls_dtype dtype)
{
    if (accumulate)
        for (int64_t i = 0; i < n; i++) y[i] += ls_load(x, i, dtype);
    else
        for (int64_t i = 0; i < n; i++) y[i] = ls_load(x, i, dtype);
}

LS_SIMD_CLONES static void add_block(float *y, const void *x, int64_t n, int accumulate,
                                     ls_dtype dtype)
{
    if (dtype == LS_DTYPE_BF16)
        add_elements(y, x, n, accumulate, LS_DTYPE_BF16);
    else
        add_elements(y, x, n, accumulate, LS_DTYPE_F32);
}

ls_status ls_cpu_add_sumsq(void *stream, const ls_add_sumsq_args *args)
{
    (void)stream;
    assert(args->n >= 0 && ls_dtype_computes(args->x_dtype));
    assert(args->n == 0 || (args->sum == NULL) == (args->partials == NULL));
    const int64_t n_blocks = ls_blocks(args->n, SUM_BLOCK);

    LS_OMP(omp parallel for schedule(static))
    for (int64_t block = 0; block < n_blocks; block++) {
        const int64_t begin = block * SUM_BLOCK, n = ls_min_i64(SUM_BLOCK, args->n - begin);
        add_block(args->y + begin, ls_at(args->x, begin, args->x_dtype), n, args->accumulate,
                  args->x_dtype);
        if (args->sum != NULL) args->partials[block] = sum_block(args->y + begin, n, LS_DTYPE_F32);
    }
    if (args->sum != NULL) *args->sum = add_partials(args->partials, n_blocks);
    return LS_OK;
}

ls_status ls_cpu_norm_finish(void *stream, const ls_norm_finish_args *args)
{
    (void)stream;
    assert(args->n >= 0 && args->clip_norm >= 0.0f);
    ls_update_control *control = args->control;

    double sum = 0.0;
    for (int64_t i = 0; i < args->n; i++) sum += args->sums[i];
    const double norm = sqrt(sum);
    control->grad_norm = norm;
    if (!(norm <= norm_limit)) { /* a NaN too */
        control->skip = 1;
        control->skipped++;
        control->skipped_in_a_row++;
        return LS_OK;
    }
    const double clip_norm = (double)args->clip_norm;
    control->skip = 0;
    control->skipped_in_a_row = 0;
    control->coefficient = clip_norm > 0.0 && norm > clip_norm ? (float)(clip_norm / norm) : 1.0f;
    control->beta1_power *= (double)args->beta1;
    control->beta2_power *= (double)args->beta2;
    control->updates++;
    return LS_OK;
}
