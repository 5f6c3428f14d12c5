/*
 * matmul_tile.h - one C tile of a matrix multiplication, in whatever vectors the file is compiled
 * for; included by matmul_plain.c, matmul_avx2.c and matmul_avx512.c, which define MATMUL_VECTORS.
 *
 * Per strip of terms, B is converted to fp32 and packed into column panels a register block wide,
 * unless the tile before has left it there.  A is converted but keeps its order, since the register
 * block reads it one number at a time (fp32 rows are read in place).  A panel of 128 terms stays in
 * the first-level cache while some rows pass; the sums of a single strip leave from there.  The
 * order of every sum is that of its terms.  Bound by fused multiply-adds.
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
    ROWS = LS_MATMUL_ROWS,
    TILE_ROWS = LS_MATMUL_TILE_ROWS,
    DEPTH = 128, /* terms of a product */
    PANEL = PRODUCT_VECTORS * VF_LANES,
    SQUARE = 16,
};

_Static_assert(LS_MATMUL_TILE_COLS % PANEL == 0, "whole column panels");
_Static_assert(LS_MATMUL_STRIP % DEPTH == 0 && LS_MATMUL_TILE_STRIP % DEPTH == 0, "whole pieces");

/* Some rows and columns of C and some terms of their sums. */
typedef struct block {
    int64_t row, col, term;
    int64_t n_rows, n_cols, n_terms;
} block;

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* to[i] = from[at + i] in fp32 */
static inline void line_read(float *to, const void *from, int64_t at, int64_t n, ls_dtype dtype)
{
    if (dtype == LS_DTYPE_F32)
        memcpy(to, (const float *)from + at, (size_t)n * sizeof *to);
    else
        for (int64_t i = 0; i < n; i++) to[i] = ls_bf16_to_f32(((const ls_bf16 *)from)[at + i]);
}

/* ---- B ------------------------------------------------------------------------------------- */

/* Columns stored along the terms: turned a small square at a time. */
static void panel_turn(const ls_matmul_args *args, float *to, const block *panel)
{
    for (int64_t i = 0; i < panel->n_cols; i += SQUARE) {
        const int64_t n_lines = least(panel->n_cols - i, SQUARE);
        const int64_t at = (panel->col + i) * args->K + panel->term;
#if defined(__AVX512BW__)
        if (args->ab_dtype == LS_DTYPE_BF16)
            turn_bf16(to + i, PANEL, (const ls_bf16 *)args->b + at, args->K, (int)n_lines,
                      (int)panel->n_terms);
        else
            turn_f32(to + i, PANEL, (const float *)args->b + at, args->K, (int)n_lines,
                     (int)panel->n_terms);
#else
        float lines[SQUARE][DEPTH];
        for (int64_t d = 0; d < panel->n_terms; d += DEPTH) {
            const int64_t n_terms = least(panel->n_terms - d, DEPTH);
            for (int64_t j = 0; j < n_lines; j++)
                line_read(lines[j], args->b, at + j * args->K + d, n_terms, args->ab_dtype);
            for (int64_t k = 0; k < n_terms; k++)
                for (int64_t j = 0; j < n_lines; j++) to[(d + k) * PANEL + i + j] = lines[j][k];
        }
#endif
    }
}

static void panel_read(const ls_matmul_args *args, float *to, const block *panel)
{
    if (panel->n_cols < PANEL) memset(to, 0, sizeof *to * PANEL * (size_t)panel->n_terms);
    if (args->trans_b) {
        panel_turn(args, to, panel);
        return;
    }
    for (int64_t d = 0; d < panel->n_terms; d++)
        line_read(to + d * PANEL, args->b, (panel->term + d) * args->N + panel->col, panel->n_cols,
                  args->ab_dtype);
}

/* packed->b[panel][term][PANEL] */
static void b_pack(const ls_matmul_args *args, ls_matmul_packed *packed, const block *tile)
{
    if (packed->b_col == tile->col && packed->b_term == tile->term) return;
    packed->b_col = tile->col;
    packed->b_term = tile->term;
    for (int64_t col = 0; col < tile->n_cols; col += PANEL) {
        block panel = *tile;
        panel.col += col;
        panel.n_cols = least(tile->n_cols - col, PANEL);
        panel_read(args, packed->b + col * tile->n_terms, &panel);
    }
}

/* ---- A ------------------------------------------------------------------------------------- */

/*
 * Pack A for a tile, and say where the first product finds it: DEPTH terms of each row and so on,
 * or, if A is stored transposed, a line for each term.
 */
static product a_pack(const ls_matmul_args *args, float *to, const block *tile)
{
    const int64_t at = tile->row * args->K + tile->term;

    if (args->trans_a) {
        for (int64_t d = 0; d < tile->n_terms; d++) {
            const int64_t from = (tile->term + d) * args->M + tile->row;
            line_read(to + d * tile->n_rows, args->a, from, tile->n_rows, args->ab_dtype);
        }
        return (product){.a = to, .a_row = 1, .a_term = tile->n_rows};
    }
    if (args->ab_dtype == LS_DTYPE_F32)
        return (product){.a = (const float *)args->a + at, .a_row = args->K, .a_term = 1};
    for (int64_t i = 0; i < tile->n_rows; i++)
        for (int64_t d = 0; d < tile->n_terms; d += DEPTH)
            line_read(to + d * tile->n_rows + i * DEPTH, args->a, at + i * args->K + d,
                      least(tile->n_terms - d, DEPTH), args->ab_dtype);
    return (product){.a = to, .a_row = DEPTH, .a_term = 1};
}

/* From DEPTH terms of A to the next. */
static int64_t a_stride(const ls_matmul_args *args, int64_t tile_rows)
{
    return args->trans_a || args->ab_dtype != LS_DTYPE_F32 ? DEPTH * tile_rows : DEPTH;
}

/* ---- C ------------------------------------------------------------------------------------- */

#if defined(__AVX512BW__)
/*
 * The bf16 nearest to a sum, ties to even, in the lower half of each word.  A NaN needs no care:
 * one that comes from bf16 numbers or from the processor has nothing in its lower half to carry.
 */
static inline __m512i round_to_bf16(vf sum)
{
    const __m512i bits = (__m512i)sum;
    const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const __m512i even = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    return _mm512_srli_epi32(_mm512_mask_add_epi32(even, is_odd, bits, _mm512_set1_epi32(0x8000)),
                             16);
}

/* What there is of line_write() in pairs of vectors; returns how much that was. */
static inline int64_t pairs_write(ls_bf16 *to, const float *from, int accumulate, int64_t n)
{
    const __m512i halves_in_order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    int64_t j = 0;
    for (; j + 2 * VF_LANES <= n; j += 2 * VF_LANES) {
        vf x = vf_load(from + j), y = vf_load(from + j + VF_LANES);
        if (accumulate) {
            x = vf_load_bf16(to + j) + x;
            y = vf_load_bf16(to + j + VF_LANES) + y;
        }
        const __m512i both = _mm512_packus_epi32(round_to_bf16(x), round_to_bf16(y));
        _mm512_storeu_si512(to + j, _mm512_permutexvar_epi64(halves_in_order, both));
    }
    return j;
}
#else
static inline int64_t pairs_write(ls_bf16 *to, const float *from, int accumulate, int64_t n)
{
    (void)to, (void)from, (void)accumulate, (void)n;
    return 0;
}
#endif

static void line_write(const ls_matmul_args *args, int64_t at, const float *from, int64_t n)
{
    if (args->c_dtype == LS_DTYPE_F32) {
        float *to = (float *)args->c + at;
        if (args->accumulate)
            for (int64_t j = 0; j < n; j++) to[j] += from[j];
        else
            memcpy(to, from, (size_t)n * sizeof *to);
    } else {
        ls_bf16 *to = (ls_bf16 *)args->c + at;
        for (int64_t j = pairs_write(to, from, args->accumulate, n); j < n; j++)
            to[j] = ls_bf16_from_f32(args->accumulate ? ls_bf16_to_f32(to[j]) + from[j] : from[j]);
    }
}

static void panel_write(const ls_matmul_args *args, const float *from, const block *panel)
{
    for (int64_t i = 0; i < panel->n_rows; i++)
        line_write(args, (panel->row + i) * args->N + panel->col, from + i * PANEL, panel->n_cols);
}

/* ---- products ------------------------------------------------------------------------------ */

/* start knows where A, B and C are, and a_next how far it is from DEPTH terms of A to the next. */
static void panel_multiply(const ls_matmul_args *args, const product *start, int64_t a_next,
                           const block *panel)
{
    product p = *start;
    p.c_stride = p.b_stride = PANEL;
    p.n_rows = panel->n_rows;
    p.n_cols = (panel->n_cols + VF_LANES - 1) / VF_LANES * VF_LANES;
    for (int64_t term = 0; term < panel->n_terms; term += DEPTH) {
        p.a = start->a + term / DEPTH * a_next;
        p.b = start->b + term * PANEL;
        p.n_terms = least(panel->n_terms - term, DEPTH);
        p.accumulate = panel->term + term > 0;
        product_run(&p);
    }
    if (panel->term + panel->n_terms == args->K) panel_write(args, p.c, panel);
}

/* Rows are taken a few at a time, so that those of A and C stay near while a panel passes. */
static void strip_multiply(const ls_matmul_args *args, ls_matmul_packed *packed, const block *tile)
{
    const product start = a_pack(args, packed->a, tile);
    const int64_t a_next = a_stride(args, tile->n_rows);
    const int is_only = tile->n_terms == args->K; /* sums leave at once */

    b_pack(args, packed, tile);
    for (int64_t row = 0; row < tile->n_rows; row += ROWS)
        for (int64_t col = 0; col < tile->n_cols; col += PANEL) {
            block panel = *tile;
            panel.row += row;
            panel.n_rows = least(tile->n_rows - row, ROWS);
            panel.col += col;
            panel.n_cols = least(tile->n_cols - col, PANEL);
            product p = start;
            p.a += row * p.a_row;
            p.b = packed->b + col * tile->n_terms;
            p.c = packed->c + (is_only ? 0 : col * TILE_ROWS + row * PANEL);
            panel_multiply(args, &p, a_next, &panel);
        }
}

static void tile_multiply(const ls_matmul_cut *cut, ls_matmul_packed *packed, int64_t row,
                          int64_t col)
{
    const ls_matmul_args *args = cut->args;

    for (int64_t term = 0; term < args->K; term += cut->n_terms) {
        const block tile = {.row = row,
                            .col = col,
                            .term = term,
                            .n_rows = least(args->M - row, cut->n_rows),
                            .n_cols = least(args->N - col, cut->n_cols),
                            .n_terms = least(args->K - term, cut->n_terms)};
        strip_multiply(args, packed, &tile);
    }
}

const ls_matmul_vectors MATMUL_VECTORS = {PANEL, tile_multiply};
