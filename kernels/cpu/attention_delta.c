/*
 * attention_delta.c - delta = d_o . o per row and head: 2 K FLOPs and 2 K elements read, so bound
 * by memory.  Eight running sums per row, added in a fixed order.
 */
#include "ops.h"

#include <assert.h>

#include "bf16.h"

enum { SUMS = 8 };

static float sums_add(const float sums[SUMS])
{
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) +
           ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

static float dot_f32(const float *a, const float *b, int64_t n)
{
    float sums[SUMS] = {0};
    int64_t i = 0;
    for (; i + SUMS <= n; i += SUMS)
        for (int j = 0; j < SUMS; j++) sums[j] += a[i + j] * b[i + j];
    for (int j = 0; i + j < n; j++) sums[j] += a[i + j] * b[i + j];
    return sums_add(sums);
}

static float dot_bf16(const ls_bf16 *a, const ls_bf16 *b, int64_t n)
{
    float sums[SUMS] = {0};
    int64_t i = 0;
    for (; i + SUMS <= n; i += SUMS)
        for (int j = 0; j < SUMS; j++)
            sums[j] += ls_bf16_to_f32(a[i + j]) * ls_bf16_to_f32(b[i + j]);
    for (int j = 0; i + j < n; j++) sums[j] += ls_bf16_to_f32(a[i + j]) * ls_bf16_to_f32(b[i + j]);
    return sums_add(sums);
}

ls_status ls_cpu_attention_delta(void *stream, const ls_attention_delta_args *args)
{
    (void)stream;
    assert(args->N >= 0 && args->H >= 1 && args->K >= 1);
    assert(args->dtype == LS_DTYPE_F32 || args->dtype == LS_DTYPE_BF16);

#if defined(_OPENMP)
#pragma omp parallel for schedule(static)
#endif
    for (int64_t i = 0; i < args->N * args->H; i++)
        args->delta[i] = args->dtype == LS_DTYPE_F32
                             ? dot_f32((const float *)args->d_o + i * args->K,
                                       (const float *)args->o + i * args->K, args->K)
                             : dot_bf16((const ls_bf16 *)args->d_o + i * args->K,
                                        (const ls_bf16 *)args->o + i * args->K, args->K);
    return LS_OK;
}
