/*
 * vector_products.h - small matrix products on fp32 scratch, in the vectors of vector_f32.h.
 *
 *     c[rows][cols] (+)= sum over t < n_terms of  a(row, t) b[t][cols]
 *
 * A block of 6 rows by a few vectors, or of 12 by half as many, is kept in registers over all
 * terms.  a is read one number at a time, so it may be stored either way round.
 *
 * Layer: kernels, private.
 */
#ifndef LS_VECTOR_PRODUCTS_H
#define LS_VECTOR_PRODUCTS_H

#include "vector_f32.h"

enum {
    PRODUCT_ROWS = 6,
    PRODUCT_VECTORS = VF_REGISTERS == 32 ? 4 : 2,
    HALF = PRODUCT_VECTORS / 2,
};

typedef struct product {
    float *c; /* rows of c_stride */
    const float *a;
    const float *b; /* rows of b_stride */
    int64_t c_stride, b_stride;
    int64_t a_row, a_term;           /* strides of a */
    int64_t n_rows, n_cols, n_terms; /* n_cols is a multiple of VF_LANES */
    int accumulate;
} product;

/* One register block; rows and vectors are constants where this is inlined. */
static inline __attribute__((always_inline)) void product_block(const product *p, int64_t row,
                                                                int64_t col, int rows, int vectors)
{
    const int64_t c_stride = p->c_stride, a_row = p->a_row, a_term = p->a_term;
    vf sum[2 * PRODUCT_ROWS][PRODUCT_VECTORS];
    float *c = p->c + row * c_stride + col;
    const float *a = p->a + row * a_row, *b = p->b + col;

    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++)
            sum[i][j] = p->accumulate ? vf_load(c + i * c_stride + j * VF_LANES) : vf_set(0.0f);
    for (int64_t t = 0; t < p->n_terms; t++, a += a_term, b += p->b_stride) {
        vf right[PRODUCT_VECTORS];
        for (int j = 0; j < vectors; j++) right[j] = vf_load(b + j * VF_LANES);
        for (int i = 0; i < rows; i++) {
            const vf left = vf_set(a[i * a_row]);
            for (int j = 0; j < vectors; j++) sum[i][j] = vf_fma(left, right[j], sum[i][j]);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) vf_store(c + i * c_stride + j * VF_LANES, sum[i][j]);
}

static inline __attribute__((always_inline)) void product_rows(const product *p, int64_t col,
                                                               int vectors, int most)
{
    int64_t row = 0;
    /* Left-over rows go together (8 by fours): few sums at a time would wait for each other. */
    for (; row + most <= p->n_rows && p->n_rows - row != 8; row += most)
        product_block(p, row, col, most, vectors);
    for (; row + 4 <= p->n_rows; row += 4) product_block(p, row, col, 4, vectors);
    switch (p->n_rows - row) {
    case 3: product_block(p, row, col, 3, vectors); break;
    case 2: product_block(p, row, col, 2, vectors); break;
    case 1: product_block(p, row, col, 1, vectors); break;
    default: break;
    }
}

/* Not inlined: on its own, compilers keep every sum in a register. */
static __attribute__((noinline)) void product_run(const product *p)
{
    int64_t col = 0;
    for (; col + PRODUCT_VECTORS * VF_LANES <= p->n_cols; col += PRODUCT_VECTORS * VF_LANES)
        product_rows(p, col, PRODUCT_VECTORS, PRODUCT_ROWS);
    for (; col + HALF * VF_LANES <= p->n_cols; col += HALF * VF_LANES)
        product_rows(p, col, HALF, 2 * PRODUCT_ROWS);
    for (; col < p->n_cols; col += VF_LANES) product_rows(p, col, 1, 2 * PRODUCT_ROWS);
}

#endif
