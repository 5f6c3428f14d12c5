/*
 * matmul_tile.h - one C tile of a matrix multiplication, in whatever vectors the file is compiled
 * for; included by matmul_plain.c, matmul_avx2.c and matmul_avx512.c, which define MATMUL_TILE.
 *
 * Per slice of the terms, B is converted to fp32 and packed into column panels a register block
 * wide; A is converted but keeps its order, since the register block reads it one number at a time
 * (fp32 rows are read in place).  Everything lives on the stack, so tiles are independent and the
 * order of every sum depends on shapes alone.  Bound by fused multiply-adds.
 *
 * Layer: kernels, private.
 */
#include "matmul.h"

#include "bf16.h"
#include "vector_products.h"
#if defined(__AVX512BW__)
#include "turn_avx512.h"
#endif

enum {
    TILE_ROWS = LS_MATMUL_TILE_ROWS,
    TILE_COLS = LS_MATMUL_TILE_COLS,
    DEPTH = 128, /* terms of a slice */
    PANEL = PRODUCT_VECTORS * VF_LANES,
    SQUARE = 16,
    FEW_ROWS = 4 * PRODUCT_ROWS,
};

_Static_assert(TILE_COLS % PANEL == 0, "whole column panels");

typedef struct tile {
    const ls_matmul_args *args;
    int64_t row, col; /* of c, where the tile starts */
    int n_rows, n_cols;
    float a[TILE_ROWS * DEPTH]; /* [row][term], or [term][row] if stored transposed */
    float b[TILE_COLS * DEPTH]; /* panels of [term][PANEL] */
    float c[TILE_ROWS * TILE_COLS];
} tile;

/* to[i] = from[at + i] in fp32 */
static inline void line_read(float *to, const void *from, int64_t at, int64_t n, ls_dtype dtype)
{
    if (dtype == LS_DTYPE_F32)
        memcpy(to, (const float *)from + at, (size_t)n * sizeof *to);
    else
        for (int64_t i = 0; i < n; i++) to[i] = ls_bf16_to_f32(((const ls_bf16 *)from)[at + i]);
}

/* A slice of A, as one operand of a product. */
static void a_read(tile *t, product *p, int64_t term, int n_terms)
{
    const ls_matmul_args *args = t->args;
    p->a = t->a;
    if (args->trans_a) {
        for (int d = 0; d < n_terms; d++)
            line_read(t->a + d * TILE_ROWS, args->a, (term + d) * args->M + t->row, t->n_rows,
                      args->ab_dtype);
        p->a_row = 1;
        p->a_term = TILE_ROWS;
        return;
    }
    p->a_term = 1;
    p->a_row = DEPTH;
    if (args->ab_dtype == LS_DTYPE_F32) {
        p->a = (const float *)args->a + t->row * args->K + term;
        p->a_row = args->K;
        return;
    }
    for (int i = 0; i < t->n_rows; i++)
        line_read(t->a + i * DEPTH, args->a, (t->row + i) * args->K + term, n_terms,
                  args->ab_dtype);
}

/* Columns stored along the terms: turned a small square at a time. */
static void panel_turn(const tile *t, float *to, int col, int64_t term, int n_terms)
{
    const ls_matmul_args *args = t->args;
    const int n_cols = t->n_cols - col < PANEL ? t->n_cols - col : PANEL;

    for (int i = 0; i < n_cols; i += SQUARE) {
        const int n_lines = n_cols - i < SQUARE ? n_cols - i : SQUARE;
        const int64_t at = (t->col + col + i) * args->K + term;
#if defined(__AVX512BW__)
        if (args->ab_dtype == LS_DTYPE_BF16)
            turn_bf16(to + i, PANEL, (const ls_bf16 *)args->b + at, args->K, n_lines, n_terms);
        else
            turn_f32(to + i, PANEL, (const float *)args->b + at, args->K, n_lines, n_terms);
#else
        float lines[SQUARE][DEPTH];
        for (int j = 0; j < n_lines; j++)
            line_read(lines[j], args->b, at + j * args->K, n_terms, args->ab_dtype);
        for (int d = 0; d < n_terms; d++)
            for (int j = 0; j < n_lines; j++) to[d * PANEL + i + j] = lines[j][d];
#endif
    }
}

static void panel_read(const tile *t, float *to, int col, int64_t term, int n_terms)
{
    const ls_matmul_args *args = t->args;
    const int n_cols = t->n_cols - col < PANEL ? t->n_cols - col : PANEL;

    if (n_cols < PANEL) memset(to, 0, sizeof *to * PANEL * (size_t)n_terms);
    if (args->trans_b) {
        panel_turn(t, to, col, term, n_terms);
        return;
    }
    for (int d = 0; d < n_terms; d++)
        line_read(to + d * PANEL, args->b, (term + d) * args->N + t->col + col, n_cols,
                  args->ab_dtype);
}

/* Rows are taken a few at a time, so that those of A stay in the first-level cache. */
static void slice_add(tile *t, int64_t term, int n_terms)
{
    product p = {.c_stride = TILE_COLS,
                 .b_stride = PANEL,
                 .n_cols = PANEL,
                 .n_terms = n_terms,
                 .accumulate = term > 0};
    a_read(t, &p, term, n_terms);
    for (int col = 0; col < t->n_cols; col += PANEL)
        panel_read(t, t->b + col * DEPTH, col, term, n_terms);

    const float *a = p.a;
    for (int row = 0; row < t->n_rows; row += FEW_ROWS)
        for (int col = 0; col < t->n_cols; col += PANEL) {
            p.n_rows = t->n_rows - row < FEW_ROWS ? t->n_rows - row : FEW_ROWS;
            p.a = a + row * p.a_row;
            p.b = t->b + col * DEPTH;
            p.c = t->c + row * TILE_COLS + col;
            product_run(&p);
        }
}

static void tile_write(const tile *t)
{
    const ls_matmul_args *args = t->args;
    for (int i = 0; i < t->n_rows; i++) {
        const float *from = t->c + i * TILE_COLS;
        const int64_t at = (t->row + i) * args->N + t->col;
        if (args->c_dtype == LS_DTYPE_F32) {
            float *to = (float *)args->c + at;
            if (args->accumulate)
                for (int j = 0; j < t->n_cols; j++) to[j] += from[j];
            else
                memcpy(to, from, (size_t)t->n_cols * sizeof *to);
        } else {
            ls_bf16 *to = (ls_bf16 *)args->c + at;
            for (int j = 0; j < t->n_cols; j++)
                to[j] =
                    ls_bf16_from_f32(args->accumulate ? ls_bf16_to_f32(to[j]) + from[j] : from[j]);
        }
    }
}

void MATMUL_TILE(const ls_matmul_args *args, int64_t row, int64_t col)
{
    tile t;
    t.args = args;
    t.row = row;
    t.col = col;
    t.n_rows = args->M - row < TILE_ROWS ? (int)(args->M - row) : TILE_ROWS;
    t.n_cols = args->N - col < TILE_COLS ? (int)(args->N - col) : TILE_COLS;
    for (int64_t term = 0; term < args->K; term += DEPTH)
        slice_add(&t, term, args->K - term < DEPTH ? (int)(args->K - term) : DEPTH);
    tile_write(&t);
}
