/*
 * amx.h - AMX tiles of bf16, and the AVX-512 shuffles that lay operands out for them.
 *
 * A tile register is 16 rows of 64 bytes.  One product adds, for 16 x 16 results and 32 terms,
 *
 *     C[16][16] fp32  +=  A[16][32] bf16 rows  times  B[16][16] pairs
 *
 * where row i of B holds, for each of 16 columns, the bf16 pair of terms (2 i, 2 i + 1): so an A
 * operand is read where it lies, and a B operand is either two rows interleaved (terms run down
 * the rows) or a 16 x 16 transpose of 32-bit pairs (terms run along the rows).  16 cycles a
 * product; a load takes 8.  (Intel SDM, volume 2: TDPBF16PS.)
 *
 * Written as assembler statements, because compilers' intrinsics disagree on whether a tile load
 * reads memory.  Files that include this are compiled for AMX and AVX-512.
 *
 * Layer: kernels, private.  Threads: tile registers belong to the thread; see tiles_configure.
 */
#ifndef LS_AMX_H
#define LS_AMX_H

#include <immintrin.h>
#include <stdint.h>

#define TILE_LOAD(tile, from, stride_bytes)                                                        \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile                                            \
                     :                                                                             \
                     : "r"((const void *)(from)), "r"((int64_t)(stride_bytes))                     \
                     : "memory")
#define TILE_STORE(tile, to, stride_bytes)                                                         \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)"                                        \
                     :                                                                             \
                     : "r"((void *)(to)), "r"((int64_t)(stride_bytes))                             \
                     : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile ::)
/* c += a times b */
#define TILE_MULTIPLY(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

enum {
    TILE_SIDE = 16,   /* rows of a tile, fp32 columns of a result */
    TILE_TERMS = 32,  /* bf16 terms of one product */
    TILE_BYTES = 1024 /* 16 rows of 64 bytes */
};

/* Make all eight tile registers of this thread 16 rows of 64 bytes. */
static inline void tiles_configure(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    _Static_assert(sizeof config == 64, "the layout LDTILECFG reads");
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

/* Give the tile registers up, so that context switches need not save them. */
static inline void tiles_release(void)
{
    __asm__ volatile("tilerelease" ::);
}

/* rows[i] lane j <-> rows[j] lane i, 32-bit lanes. */
static inline void lanes_transpose(__m512i rows[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        rows[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        rows[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* Lane j: the pair (low[j], high[j]) of bf16, for 16 columns. */
static inline __m512i pairs_join(__m256i low, __m256i high)
{
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}

/* Mask of the first n of 32 bf16, n <= 0: none. */
static inline __mmask32 mask_first32(int64_t n)
{
    return n >= 32 ? 0xffffffffu : n <= 0 ? 0u : (__mmask32)((1u << n) - 1u);
}

/* Mask of the first n of 16 fp32. */
static inline __mmask16 mask_first16(int64_t n)
{
    return (__mmask16)mask_first32(n);
}

/*
 * A B tile whose terms run along the rows: to[pair][column] from from[column][terms], rows of
 * stride elements; n_columns of 16 and n_terms of 32 exist, the rest become 0.
 */
static inline void tile_pack_transposed(void *to, const uint16_t *from, int64_t stride,
                                        int64_t n_columns, int64_t n_terms)
{
    __m512i rows[16];
    const __mmask32 terms = mask_first32(n_terms);
    for (int i = 0; i < 16; i++)
        rows[i] = _mm512_maskz_loadu_epi16(i < n_columns ? terms : 0, from + i * stride);
    lanes_transpose(rows);
    for (int i = 0; i < 16; i++) _mm512_storeu_si512((char *)to + 64 * i, rows[i]);
}

/*
 * Two B tiles whose terms run down the rows: to[tile][pair][column] from from[terms][32 columns];
 * n_columns of 32 and n_terms of 32 exist, the rest become 0.
 */
static inline void tiles_pack_interleaved(void *to, const uint16_t *from, int64_t stride,
                                          int64_t n_columns, int64_t n_terms)
{
    const __mmask32 columns = mask_first32(n_columns);
    for (int i = 0; i < 16; i++) {
        const __m512i low =
            _mm512_maskz_loadu_epi16(2 * i < n_terms ? columns : 0, from + 2 * i * stride);
        const __m512i high = _mm512_maskz_loadu_epi16(2 * i + 1 < n_terms ? columns : 0,
                                                      from + (2 * i + 1) * stride);
        _mm512_storeu_si512((char *)to + 64 * i,
                            pairs_join(_mm512_castsi512_si256(low), _mm512_castsi512_si256(high)));
        _mm512_storeu_si512(
            (char *)to + TILE_BYTES + 64 * i,
            pairs_join(_mm512_extracti64x4_epi64(low, 1), _mm512_extracti64x4_epi64(high, 1)));
    }
}

/*
 * Two A tiles from an operand stored the other way round: to[tile][row][terms] from
 * from[terms][32 rows]; n_rows of 32 and n_terms of 32 exist, the rest become 0.
 */
static inline void tiles_pack_turned(void *to, const uint16_t *from, int64_t stride, int64_t n_rows,
                                     int64_t n_terms)
{
    tiles_pack_interleaved(to, from, stride, n_rows, n_terms);
    for (int tile = 0; tile < 2; tile++) {
        __m512i rows[16];
        char *at = (char *)to + tile * TILE_BYTES;
        for (int i = 0; i < 16; i++) rows[i] = _mm512_loadu_si512(at + 64 * i);
        lanes_transpose(rows);
        for (int i = 0; i < 16; i++) _mm512_storeu_si512(at + 64 * i, rows[i]);
    }
}

#endif
