/*
 * matmul_tile.h - one C tile of a matrix multiplication, in whatever vectors the file is compiled
 * for; included by matmul_plain.c, matmul_avx2.c and matmul_avx512.c, which define MATMUL_TILE.
 *
 * Per slice of the reduction dimension the operands are converted to fp32 and packed into panels
 * (rows of A by 6, columns of B by a few vectors, zero padded), then a register block walks the
 * panels.  Everything lives on the stack, so tiles are independent and the order of every sum
 * depends on shapes alone.  Bound by fused multiply-adds; packing adds about 1/96 + 1/128 of them.
 *
 * Layer: kernels, private.
 */
#include "matmul.h"

#include "bf16.h"
#include "vector_f32.h"

enum {
    TILE_ROWS = LS_MATMUL_TILE_ROWS,
    TILE_COLS = LS_MATMUL_TILE_COLS,
    DEPTH = 192, /* of a slice */
    BLOCK_ROWS = 6,
    BLOCK_VECTORS = VF_REGISTERS == 32 ? 4 : 2,
    BLOCK_COLS = BLOCK_VECTORS * VF_LANES,
};

_Static_assert(TILE_ROWS % BLOCK_ROWS == 0, "whole row panels");
_Static_assert(TILE_COLS % BLOCK_COLS == 0, "whole column panels");

typedef struct tile {
    float a[TILE_ROWS * DEPTH]; /* panels of [DEPTH][BLOCK_ROWS] */
    float b[TILE_COLS * DEPTH]; /* panels of [DEPTH][BLOCK_COLS] */
    float c[TILE_ROWS * TILE_COLS];
} tile;

static inline float element_get(const void *from, ls_dtype dtype, int64_t index)
{
    return dtype == LS_DTYPE_F32 ? ((const float *)from)[index]
                                 : ls_bf16_to_f32(((const ls_bf16 *)from)[index]);
}

/*
 * to[line / width][depth][line % width] = from[line * line_stride + depth * depth_stride], with
 * lines n_lines .. round_up(n_lines, width) set to 0.
 */
static void panels_pack(float *to, int width, const void *from, ls_dtype dtype, int n_lines,
                        int n_depth, const int64_t strides[2])
{
    for (int first = 0; first < n_lines; first += width, to += width * n_depth) {
        const int lines = n_lines - first < width ? n_lines - first : width;
        if (lines < width) memset(to, 0, sizeof *to * (size_t)(width * n_depth));
        const int64_t base = (int64_t)first * strides[0];
        if (strides[0] == 1) {
            for (int d = 0; d < n_depth; d++)
                for (int i = 0; i < lines; i++)
                    to[d * width + i] = element_get(from, dtype, base + d * strides[1] + i);
        } else {
            for (int i = 0; i < lines; i++)
                for (int d = 0; d < n_depth; d++)
                    to[d * width + i] = element_get(from, dtype, base + i * strides[0] + d);
        }
    }
}

/* c[BLOCK_ROWS][BLOCK_COLS] += a panel times b panel. */
static inline void block_multiply(float *c, const float *a, const float *b, int n_depth)
{
    vf sum[BLOCK_ROWS][BLOCK_VECTORS];
    for (int i = 0; i < BLOCK_ROWS; i++)
        for (int j = 0; j < BLOCK_VECTORS; j++) sum[i][j] = vf_set(0.0f);
    for (int d = 0; d < n_depth; d++, a += BLOCK_ROWS, b += BLOCK_COLS) {
        vf right[BLOCK_VECTORS];
        for (int j = 0; j < BLOCK_VECTORS; j++) right[j] = vf_load(b + j * VF_LANES);
        for (int i = 0; i < BLOCK_ROWS; i++) {
            const vf left = vf_set(a[i]);
            for (int j = 0; j < BLOCK_VECTORS; j++) sum[i][j] = vf_fma(left, right[j], sum[i][j]);
        }
    }
    for (int i = 0; i < BLOCK_ROWS; i++)
        for (int j = 0; j < BLOCK_VECTORS; j++) {
            float *to = c + i * TILE_COLS + j * VF_LANES;
            vf_store(to, vf_load(to) + sum[i][j]);
        }
}

/* Where slice `depth` of the lines from `line` on begins, in elements. */
static inline int64_t slice_offset(const int64_t strides[2], int64_t line, int64_t depth)
{
    return line * strides[0] + depth * strides[1];
}

static void tile_accumulate(tile *t, const ls_matmul_args *args, const int64_t origin[2],
                            const int size[2])
{
    const int64_t a_strides[2] = {args->trans_a ? 1 : args->K, args->trans_a ? args->M : 1};
    const int64_t b_strides[2] = {args->trans_b ? args->K : 1, args->trans_b ? 1 : args->N};
    const int64_t bytes = (int64_t)ls_dtype_bytes(args->ab_dtype);

    for (int64_t depth = 0; depth < args->K; depth += DEPTH) {
        const int n_depth = args->K - depth < DEPTH ? (int)(args->K - depth) : DEPTH;
        const char *a = (const char *)args->a + bytes * slice_offset(a_strides, origin[0], depth);
        const char *b = (const char *)args->b + bytes * slice_offset(b_strides, origin[1], depth);
        panels_pack(t->a, BLOCK_ROWS, a, args->ab_dtype, size[0], n_depth, a_strides);
        panels_pack(t->b, BLOCK_COLS, b, args->ab_dtype, size[1], n_depth, b_strides);
        for (int j = 0; j < size[1]; j += BLOCK_COLS)
            for (int i = 0; i < size[0]; i += BLOCK_ROWS)
                block_multiply(t->c + i * TILE_COLS + j, t->a + i * n_depth, t->b + j * n_depth,
                               n_depth);
    }
}

static void tile_write(const tile *t, const ls_matmul_args *args, const int64_t origin[2],
                       const int size[2])
{
    for (int i = 0; i < size[0]; i++) {
        const float *from = t->c + i * TILE_COLS;
        const int64_t at = (origin[0] + i) * args->N + origin[1];
        if (args->c_dtype == LS_DTYPE_F32) {
            float *to = (float *)args->c + at;
            for (int j = 0; j < size[1]; j++) to[j] = args->accumulate ? to[j] + from[j] : from[j];
        } else {
            ls_bf16 *to = (ls_bf16 *)args->c + at;
            for (int j = 0; j < size[1]; j++)
                to[j] =
                    ls_bf16_from_f32(args->accumulate ? ls_bf16_to_f32(to[j]) + from[j] : from[j]);
        }
    }
}

void MATMUL_TILE(const ls_matmul_args *args, int64_t row, int64_t col)
{
    tile t;
    const int64_t origin[2] = {row, col};
    const int size[2] = {args->M - row < TILE_ROWS ? (int)(args->M - row) : TILE_ROWS,
                         args->N - col < TILE_COLS ? (int)(args->N - col) : TILE_COLS};
    memset(t.c, 0, sizeof t.c);
    tile_accumulate(&t, args, origin, size);
    tile_write(&t, args, origin, size);
}
