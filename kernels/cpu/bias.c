/*
 * bias.c - a bias copied to every row on the CPU, and its gradient, the sums of the columns.
 *
 * Forward shares rows among threads.  Backward shares strips of columns and walks the rows of each
 * in ascending order with sums in fp64, so the result is one rounding away from exact and does not
 * depend on the number of threads.  Both are bound by memory: 0 FLOP and 1 element of y, 1 FLOP and
 * 1 element of dy.
 */
#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "ops.h"
#include "vec.h"

enum { STRIP = 128 }; /* columns whose sums lie on the stack: 1 KiB */

ls_status ls_cpu_bias_forward(void *stream, const ls_bias_forward_args *args)
{
    (void)stream;
    assert(args->N >= 0 && args->D > 0 && ls_dtype_computes(args->dtype));
    const int64_t row_bytes = args->D * (int64_t)ls_dtype_bytes(args->dtype);

    LS_OMP(omp parallel for schedule(static))
    for (int64_t n = 0; n < args->N; n++)
        memcpy((char *)args->y + n * row_bytes, args->b, (size_t)row_bytes);
    return LS_OK;
}

/* db[first .. first + width), width <= STRIP. */
LS_INLINE void sum_columns(const ls_bias_backward_args *args, int64_t first, int64_t width,
                           ls_dtype dtype)
{
    double sums[STRIP] = {0.0};

    for (int64_t n = 0; n < args->N; n++) {
        const void *dy = ls_at(args->dy, n * args->D + first, dtype);
        for (int64_t d = 0; d < width; d++) sums[d] += (double)ls_load(dy, d, dtype);
    }
    for (int64_t d = 0; d < width; d++) {
        const double before = args->accumulate ? (double)args->db[first + d] : 0.0;
        args->db[first + d] = (float)(before + sums[d]);
    }
}

LS_SIMD_CLONES static void sum_strip(const ls_bias_backward_args *args, int64_t strip)
{
    const int64_t first = strip * STRIP;
    const int64_t width = ls_min_i64(STRIP, args->D - first);

    if (args->dtype == LS_DTYPE_BF16)
        sum_columns(args, first, width, LS_DTYPE_BF16);
    else
        sum_columns(args, first, width, LS_DTYPE_F32);
}

ls_status ls_cpu_bias_backward(void *stream, const ls_bias_backward_args *args)
{
    (void)stream;
    assert(args->N >= 0 && args->D > 0 && ls_dtype_computes(args->dtype));
    const int64_t n_strips = ls_blocks(args->D, STRIP);

    LS_OMP(omp parallel for schedule(static))
    for (int64_t strip = 0; strip < n_strips; strip++) sum_strip(args, strip);
    return LS_OK;
}
