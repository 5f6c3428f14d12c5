/*
 * turn_avx512.h - matrices that are stored along the terms, turned in registers.
 *
 * Sixteen rows of sixteen 32-bit words are transposed by unpacking and shuffling: 64 instructions.
 * Two neighbouring bf16 travel as one word and part when they are stored as fp32.
 *
 * Layer: kernels, private; for files compiled with AVX-512 F and BW.
 */
#ifndef LS_TURN_AVX512_H
#define LS_TURN_AVX512_H

#include <immintrin.h>
#include <stdint.h>

/* row[i][j] becomes row[j][i]. */
static inline __attribute__((always_inline)) void turn_words(__m512i row[16])
{
    __m512i pairs[16], quads[16], halves[16];

    for (int i = 0; i < 16; i += 2) { /* words i and i + 1 of two rows side by side */
        pairs[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) /* of four rows: quads[i + c] has column c of each 128 bits */
        for (int c = 0; c < 4; c++)
            quads[i + c] = c % 2 == 0
                               ? _mm512_unpacklo_epi64(pairs[i + c / 2], pairs[i + 2 + c / 2])
                               : _mm512_unpackhi_epi64(pairs[i + c / 2], pairs[i + 2 + c / 2]);
    for (int c = 0; c < 4; c++) { /* of eight rows: even and odd groups of 128 bits */
        for (int i = 0; i < 16; i += 8) {
            halves[i + c] = _mm512_shuffle_i32x4(quads[i + c], quads[i + 4 + c], 0x88);
            halves[i + 4 + c] = _mm512_shuffle_i32x4(quads[i + c], quads[i + 4 + c], 0xdd);
        }
        row[c] = _mm512_shuffle_i32x4(halves[c], halves[8 + c], 0x88);
        row[8 + c] = _mm512_shuffle_i32x4(halves[c], halves[8 + c], 0xdd);
        row[4 + c] = _mm512_shuffle_i32x4(halves[4 + c], halves[12 + c], 0x88);
        row[12 + c] = _mm512_shuffle_i32x4(halves[4 + c], halves[12 + c], 0xdd);
    }
}

/*
 * to[term * to_stride + i] = from[i * from_stride + term] in fp32, for 16 columns i, of which those
 * from n_columns on are not read and become 0.
 */
static inline void turn_bf16(float *to, int64_t to_stride, const uint16_t *from,
                             int64_t from_stride, int n_columns, int n_terms)
{
    for (int first = 0; first < n_terms; first += 32) {
        const int n = n_terms - first < 32 ? n_terms - first : 32;
        const __mmask32 mask = n < 32 ? (__mmask32)((1u << n) - 1u) : 0xffffffffu;
        __m512i row[16];

        for (int i = 0; i < 16; i++)
            row[i] = i < n_columns ? _mm512_maskz_loadu_epi16(mask, from + i * from_stride + first)
                                   : _mm512_setzero_si512();
        turn_words(row);
        for (int t = 0; t < n; t++) { /* a bf16 is the upper half of an fp32 */
            const __m512i both = row[t / 2];
            const __m512i one = t % 2 == 0
                                    ? _mm512_slli_epi32(both, 16)
                                    : _mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000u));
            _mm512_storeu_si512(to + (first + t) * to_stride, one);
        }
    }
}

static inline void turn_f32(float *to, int64_t to_stride, const float *from, int64_t from_stride,
                            int n_columns, int n_terms)
{
    for (int first = 0; first < n_terms; first += 16) {
        const int n = n_terms - first < 16 ? n_terms - first : 16;
        const __mmask16 mask = n < 16 ? (__mmask16)((1u << n) - 1u) : (__mmask16)0xffffu;
        __m512i row[16];

        for (int i = 0; i < 16; i++)
            row[i] = i < n_columns ? _mm512_maskz_loadu_epi32(mask, from + i * from_stride + first)
                                   : _mm512_setzero_si512();
        turn_words(row);
        for (int t = 0; t < n; t++) _mm512_storeu_si512(to + (first + t) * to_stride, row[t]);
    }
}

#endif
