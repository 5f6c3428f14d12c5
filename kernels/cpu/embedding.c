/*
 * embedding.c - rows of a table by token on the CPU, and the scatter of their gradients.
 *
 * Forward copies rows.  Backward adds rows, and a token may occur many times, so threads share the
 * columns and each walks all rows in ascending order: no two write the same element, and the order
 * of the additions does not depend on their number.  Both are bound by memory: 2 elements, and 8
 * bytes + 1 element, per element of dy.
 */
#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "ops.h"
#include "vec.h"

/* Below 2 KiB a strip's prefetches take the neighbour's lines: two threads are 3 times slower. */
enum { STRIP_MIN = 512 };

ls_status ls_cpu_embedding_forward(void *stream, const ls_embedding_forward_args *args)
{
    (void)stream;
    assert(args->N >= 0 && args->D > 0 && args->V > 0 && ls_dtype_computes(args->dtype));
    const int64_t row_bytes = args->D * (int64_t)ls_dtype_bytes(args->dtype);

    LS_OMP(omp parallel for schedule(static))
    for (int64_t n = 0; n < args->N; n++) {
        const int64_t token = args->tokens[n];
        assert(token >= 0 && token < args->V);
        memcpy((char *)args->y + n * row_bytes, (const char *)args->w + token * row_bytes,
               (size_t)row_bytes);
    }
    return LS_OK;
}

LS_INLINE void add_rows(const ls_embedding_backward_args *args, int64_t begin, int64_t end,
                        ls_dtype dtype)
{
    for (int64_t n = 0; n < args->N; n++) {
        const int64_t token = args->tokens[n];
        assert(token >= 0 && token < args->V);
        float *dw = args->dw + token * args->D;
        const void *dy = ls_at(args->dy, n * args->D, dtype);
        LS_INDEPENDENT
        for (int64_t d = begin; d < end; d++) dw[d] += ls_load(dy, d, dtype);
    }
}

/* Columns begin .. end of every row. */
LS_SIMD_CLONES static void add_columns(const ls_embedding_backward_args *args, int64_t begin,
                                       int64_t end)
{
    if (args->dtype == LS_DTYPE_BF16)
        add_rows(args, begin, end, LS_DTYPE_BF16);
    else
        add_rows(args, begin, end, LS_DTYPE_F32);
}

ls_status ls_cpu_embedding_backward(void *stream, const ls_embedding_backward_args *args)
{
    (void)stream;
    assert(args->N >= 0 && args->D > 0 && args->V > 0 && ls_dtype_computes(args->dtype));
    const int64_t share = ls_blocks(args->D, ls_cpu_threads());
    const int64_t width = ls_blocks(share, STRIP_MIN) * STRIP_MIN;
    const int64_t n_strips = ls_blocks(args->D, width);

    LS_OMP(omp parallel for schedule(static))
    for (int64_t strip = 0; strip < n_strips; strip++)
        add_columns(args, strip * width, ls_min_i64((strip + 1) * width, args->D));
    return LS_OK;
}
