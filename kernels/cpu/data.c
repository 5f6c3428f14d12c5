/*
 * data.c - zero, cast and add on the CPU.  Each reads and writes every element once, so memory
 * bandwidth bounds them; they run in blocks that threads share.
 *   zero: 0 FLOP, 1 byte per byte.  cast: 0 FLOP, both sizes.  add: 1 FLOP, 3 elements.
 */
#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "ops.h"
#include "vec.h"

enum { ZERO_BLOCK_BYTES = 65536 };

ls_status ls_cpu_zero(void *stream, const ls_zero_args *args)
{
    (void)stream;
    assert(args->bytes >= 0 && (args->y != NULL || args->bytes == 0));
    const int64_t n_blocks = ls_blocks(args->bytes, ZERO_BLOCK_BYTES);

    LS_OMP(omp parallel for schedule(static))
    for (int64_t block = 0; block < n_blocks; block++) {
        const int64_t begin = block * ZERO_BLOCK_BYTES;
        memset((char *)args->y + begin, 0,
               (size_t)ls_min_i64(ZERO_BLOCK_BYTES, args->bytes - begin));
    }
    return LS_OK;
}

/* Same dtype on both sides: bytes, so a bf16 NaN keeps its payload through a copy. */
LS_SIMD_CLONES static void cast_part(const void *op_args, int64_t begin, int64_t n)
{
    const ls_cast_args *args = op_args;
    void *y = ls_out_at(args->y, begin, args->y_dtype);
    const void *x = ls_at(args->x, begin, args->x_dtype);

    if (args->y_dtype == args->x_dtype)
        memcpy(y, x, (size_t)n * (size_t)ls_dtype_bytes(args->x_dtype));
    else if (args->y_dtype == LS_DTYPE_BF16)
        for (int64_t i = 0; i < n; i++) ls_store(y, i, ls_load(x, i, LS_DTYPE_F32), LS_DTYPE_BF16);
    else
        for (int64_t i = 0; i < n; i++) ls_store(y, i, ls_load(x, i, LS_DTYPE_BF16), LS_DTYPE_F32);
}

ls_status ls_cpu_cast(void *stream, const ls_cast_args *args)
{
    (void)stream;
    assert(args->n >= 0 && ls_dtype_computes(args->y_dtype) && ls_dtype_computes(args->x_dtype));
    ls_elements_run(args->n, cast_part, args);
    return LS_OK;
}

LS_INLINE void add_elements(const ls_add_args *args, int64_t begin, int64_t n, ls_dtype dtype)
{
    void *y = ls_out_at(args->y, begin, dtype);
    const void *a = ls_at(args->a, begin, dtype);
    const void *b = ls_at(args->b, begin, dtype);

    LS_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        ls_store(y, i, ls_load(a, i, dtype) + ls_load(b, i, dtype), dtype);
}

LS_SIMD_CLONES static void add_part(const void *op_args, int64_t begin, int64_t n)
{
    const ls_add_args *args = op_args;
    if (args->dtype == LS_DTYPE_BF16)
        add_elements(args, begin, n, LS_DTYPE_BF16);
    else
        add_elements(args, begin, n, LS_DTYPE_F32);
}

ls_status ls_cpu_add(void *stream, const ls_add_args *args)
{
    (void)stream;
    assert(args->n >= 0 && ls_dtype_computes(args->dtype));
    ls_elements_run(args->n, add_part, args);
    return LS_OK;
}
