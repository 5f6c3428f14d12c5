/*
 * attention_amx.h - what attention forward and backward on AMX tiles share.
 *
 * Scores are computed transposed, keys down the rows and queries across the lanes.  Then a row's
 * running maximum and sum are plain vectors of 16 queries, keys are read as A operands where they
 * lie, and probabilities leave the vector unit already in the layout of the next product.
 *
 * Layer: kernels, private; compiled for AMX and AVX-512.
 */
#ifndef LS_ATTENTION_AMX_H
#define LS_ATTENTION_AMX_H

#include "amx.h"
#include "attention_tile.h"

enum {
    AMX_WIDTH_MOST = 128, /* of a head: what the scratch on the stack has room for */
    AMX_GROUPS = LS_ATTENTION_QUERY_TILE / 16, /* groups of 16 queries in a tile */
    AMX_KEYS = 32,                             /* keys are taken in groups of 32 */
};

#define LOG2_E 1.44269504088896341f
#define LN_2   0.69314718055994531f

/* 2^t, relative error below 3e-6, for any t up to 127; -1e30 gives 0.  The polynomial is minimax
 * on [-1/2, 1/2] with its constant term fixed at 1, so that 2^0 is exact. */
static inline __m512 lanes_exp2(__m512 t)
{
    const __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(t, n);
    __m512 p = _mm512_set1_ps(9.582852867472612e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.59064249245986e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.2402409861671138f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931241933586665f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* Lanes whose query sees key. */
static inline __mmask16 lanes_seeing(__m512i first, __m512i last, int32_t key)
{
    const __m512i at = _mm512_set1_epi32(key);
    return _mm512_mask_cmple_epi32_mask(_mm512_cmple_epi32_mask(first, at), at, last);
}

/* Pack 64 rows of one head as B operands whose terms run along the head:
 * to[group of 16 rows][step of 32 dimensions][TILE_BYTES]; rows beyond n_rows become 0. */
static inline void rows_pack_across(char *to, const uint16_t *from, int64_t stride, int64_t n_rows,
                                    int64_t K)
{
    for (int64_t group = 0; group < AMX_GROUPS; group++)
        for (int64_t k = 0; k < K; k += TILE_TERMS, to += TILE_BYTES)
            tile_pack_transposed(to, from + (n_rows > group * 16 ? group * 16 * stride : 0) + k,
                                 stride, n_rows - group * 16, TILE_TERMS);
}

/* Where the keys (or values) of one group of 32 lie: in place, or in a padded copy at the end. */
typedef struct key_rows {
    const char *at;
    int64_t row_bytes;
} key_rows;

/* Copy the last n_rows < 32 rows, padded with zeros to 32: to[32][K]. */
static inline void rows_pad(uint16_t *to, const uint16_t *from, int64_t stride, int64_t n_rows,
                            int64_t K)
{
    for (int64_t i = 0; i < AMX_KEYS; i++)
        for (int64_t k = 0; k < K; k += TILE_TERMS)
            _mm512_storeu_si512(to + i * K + k, i < n_rows
                                                    ? _mm512_loadu_si512(from + i * stride + k)
                                                    : _mm512_setzero_si512());
}

#endif
