/*
 * norm.c - the gradient norm on the CPU: sums of squares in fp64, and what a step makes of them.
 * sumsq: 2 FLOPs and 4 bytes per element, bound by memory.  A product of two fp32 numbers is exact
 * in fp64, so the order of the additions alone decides the bits; ops.h fixes it.
 */
#include <assert.h>
#include <math.h>
#include <stddef.h>

#include "ops.h"
#include "vec.h"

enum { SUM_BLOCK = 4096 };
static const double norm_limit = 0x1p62; /* beyond it m and v would overflow fp32 */

LS_SIMD_CLONES static double sum_block(const float *x, int64_t n)
{
    double lanes[LS_LANES] = {0.0};
    const int64_t whole = n - n % LS_LANES;
    for (int64_t i = 0; i < whole; i += LS_LANES)
        for (int l = 0; l < LS_LANES; l++) lanes[l] += (double)x[i + l] * (double)x[i + l];
    for (int64_t i = whole; i < n; i++) lanes[i - whole] += (double)x[i] * (double)x[i];
    return ls_lanes_add(lanes);
}

ls_status ls_cpu_sumsq(void *stream, const ls_sumsq_args *args)
{
    (void)stream;
    assert(args->n >= 0);
    const int64_t n_blocks = ls_blocks(args->n, SUM_BLOCK);

    LS_OMP(omp parallel for schedule(static))
    for (int64_t block = 0; block < n_blocks; block++) {
        const int64_t begin = block * SUM_BLOCK;
        args->partials[block] = sum_block(args->x + begin, ls_min_i64(SUM_BLOCK, args->n - begin));
    }
    double sum = 0.0;
    for (int64_t block = 0; block < n_blocks; block++) sum += args->partials[block];
    *args->sum = sum;
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
