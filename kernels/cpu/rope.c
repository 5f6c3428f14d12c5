/*
 * rope.c - rotary position embedding on the CPU.
 *
 * A row's angles are the same for all its heads: cos and sin are taken apart once per row, on the
 * stack, and then each head is two products and a sum per element.  Bound by memory: 2 elements
 * per element, 8 bytes of table per pair and row.
 */
#include <assert.h>
#include <stddef.h>

#include "ops.h"
#include "vec.h"

enum { PAIRS = 256 }; /* rotated at once */

/* The angles of some pairs of a row; a pair's second element lies half behind its first. */
typedef struct rotation {
    float cosines[PAIRS], sines[PAIRS];
    int64_t n_pairs, half;
} rotation;

/* The pairs of one head; y and x point to the first element of the first pair. */
LS_INLINE void rotate_pairs(void *y, const void *x, const rotation *by, ls_dtype y_dtype,
                            ls_dtype x_dtype)
{
    const int64_t half = by->half;
    LS_INDEPENDENT
    for (int64_t i = 0; i < by->n_pairs; i++) {
        const float a = ls_load(x, i, x_dtype);
        const float b = ls_load(x, i + half, x_dtype);
        ls_store(y, i, a * by->cosines[i] - b * by->sines[i], y_dtype);
        ls_store(y, i + half, b * by->cosines[i] + a * by->sines[i], y_dtype);
    }
}

LS_INLINE void rotate_row(const ls_rope_args *args, int64_t n, ls_dtype y_dtype, ls_dtype x_dtype)
{
    const float *table = args->table + args->positions[n] * args->K;
    const float sign = args->inverse ? -1.0f : 1.0f;
    rotation by;

    by.half = args->K / 2;
    for (int64_t first = 0; first < by.half; first += PAIRS) {
        by.n_pairs = ls_min_i64(PAIRS, by.half - first);
        for (int64_t i = 0; i < by.n_pairs; i++) {
            by.cosines[i] = table[2 * (first + i)];
            by.sines[i] = sign * table[2 * (first + i) + 1];
        }
        for (int64_t head = 0; head < args->heads; head++) {
            const int64_t offset = (n * args->heads + head) * args->K + first;
            rotate_pairs(ls_out_at(args->y, offset, y_dtype), ls_at(args->x, offset, x_dtype), &by,
                         y_dtype, x_dtype);
        }
    }
}

LS_SIMD_CLONES static void rotate_row_any(const ls_rope_args *args, int64_t n)
{
    if (args->x_dtype == LS_DTYPE_BF16) {
        if (args->y_dtype == LS_DTYPE_BF16)
            rotate_row(args, n, LS_DTYPE_BF16, LS_DTYPE_BF16);
        else
            rotate_row(args, n, LS_DTYPE_F32, LS_DTYPE_BF16);
    } else {
        if (args->y_dtype == LS_DTYPE_BF16)
            rotate_row(args, n, LS_DTYPE_BF16, LS_DTYPE_F32);
        else
            rotate_row(args, n, LS_DTYPE_F32, LS_DTYPE_F32);
    }
}

ls_status ls_cpu_rope(void *stream, const ls_rope_args *args)
{
    (void)stream;
    assert(args->N >= 0 && args->heads > 0 && args->K > 0 && args->K % 2 == 0);
    assert(ls_dtype_computes(args->y_dtype) && ls_dtype_computes(args->x_dtype));

    LS_OMP(omp parallel for schedule(static))
    for (int64_t n = 0; n < args->N; n++) {
        assert(args->positions[n] >= 0 && args->positions[n] < args->P);
        rotate_row_any(args, n);
    }
    return LS_OK;
}
