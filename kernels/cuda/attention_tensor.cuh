/*
 * attention_tensor.cuh - what the tensor-core attention kernels share: the keys that rows see, the
 * products of a warp, fragments from and to memory.
 *
 * A block is four warps.  Scores come out of one product as fragments of d and go into the next as
 * fragments of a, in registers: two tiles of 8 columns of d are one tile of 16 columns of a.  Keys
 * and rows are counted from the start of their block of the op in 32 bits; offsets have 64.
 *
 * Layer: kernels, private to kernels/cuda.
 */
#ifndef LS_ATTENTION_TENSOR_CUH
#define LS_ATTENTION_TENSOR_CUH

#include <limits.h>

#include "attention.cuh"
#include "attention_variants.h"
#include "tensor.cuh"

enum {
    LS_TENSOR_WARPS = 4,
    LS_TENSOR_THREADS = LS_TENSOR_WARPS * LS_WARP,
    LS_TENSOR_KEYS = 64,                     /* of a key tile */
    LS_TENSOR_COLUMNS = LS_TENSOR_KEYS / 8,  /* tiles of 8 columns of a warp's scores */
    LS_TENSOR_INDEX_MAX = INT32_MAX - 65536, /* rows and keys of one call */
};

#define LS_LOG2E 1.4426950408889634

/* ---- the keys that rows see ------------------------------------------------------------------
 */

/* first .. last of the key block; first > last: none. */
struct ls_row_keys {
    int first, last;
};

/* Of row n; a row beyond the end sees none. */
LS_DEVICE ls_row_keys ls_row_keys_of(const ls_attention_shape &s, int64_t n)
{
    const ls_key_range seen = ls_keys_of_row(s, n);
    if (seen.first > seen.last) return {INT_MAX, -1};
    return {static_cast<int>(seen.first), static_cast<int>(seen.last)};
}

/* What some rows see: any of them first .. last, each of them all_first .. all_last. */
struct ls_span {
    int first, last, all_first, all_last;
};

LS_DEVICE int ls_warp_min(int value)
{
    for (int flip = LS_WARP / 2; flip > 0; flip /= 2) {
        const int other = __shfl_xor_sync(0xffffffffu, value, flip);
        value = other < value ? other : value;
    }
    return value;
}

LS_DEVICE int ls_warp_max(int value)
{
    return -1 - ls_warp_min(-1 - value);
}

/* Of n rows, whose keys are given; the same in every lane. */
LS_DEVICE ls_span ls_span_of_rows(const ls_row_keys *keys, int n)
{
    ls_span span = {INT_MAX, -1, 0, INT_MAX};
    for (int i = static_cast<int>(threadIdx.x) % LS_WARP; i < n || i < LS_WARP; i += LS_WARP) {
        const ls_row_keys seen = keys[i % n];
        span.all_first = seen.first > span.all_first ? seen.first : span.all_first;
        span.all_last = seen.last < span.all_last ? seen.last : span.all_last;
        if (seen.first > seen.last) continue;
        span.first = seen.first < span.first ? seen.first : span.first;
        span.last = seen.last > span.last ? seen.last : span.last;
    }
    return {ls_warp_min(span.first), ls_warp_max(span.last), ls_warp_max(span.all_first),
            ls_warp_min(span.all_last)};
}

/* Does any row see one of n keys from key on; does each row see them all? */
LS_DEVICE bool ls_sees_any(const ls_span &span, int key, int n)
{
    return span.first < key + n && span.last >= key;
}

LS_DEVICE bool ls_sees_all(const ls_span &span, int key, int n)
{
    return span.all_first <= key && span.all_last >= key + n - 1;
}

/* ---- products of a warp ----------------------------------------------------------------------
 */

template <int COLUMNS> LS_DEVICE void ls_clear(float (&d)[COLUMNS][4])
{
    LS_UNROLL
    for (int i = 0; i < 4 * COLUMNS; i++) d[i / 4][i % 4] = 0.0f;
}

/* d [16, 64] += a [16, 16] of b^T, where b's tile has 64 rows: its 16 columns that at points to. */
template <int K>
LS_DEVICE void ls_multiply_rows(float (&d)[LS_TENSOR_COLUMNS][4], const unsigned (&a)[4],
                                ls_shared_at at)
{
    LS_UNROLL
    for (int pair = 0; pair < LS_TENSOR_COLUMNS / 2; pair++) {
        unsigned b[4];
        ls_load_matrices(b, ls_down<K>(at, 16 * pair));
        ls_mma(d[2 * pair], a, b);
        ls_mma(d[2 * pair + 1], a, b + 2);
    }
}

/* d [16, K] += a [16, 16] b, where b is 16 rows of a tile that at points to. */
template <int K>
LS_DEVICE void ls_multiply_columns(float (&d)[K / 8][4], const unsigned (&a)[4], ls_shared_at at)
{
    LS_UNROLL
    for (int pair = 0; pair < K / 16; pair++) {
        unsigned b[4];
        ls_load_matrices_transposed(b, ls_right(at, pair));
        ls_mma(d[2 * pair], a, b);
        ls_mma(d[2 * pair + 1], a, b + 2);
    }
}

/* Columns 16 n .. 16 n + 16 of d as a. */
template <int COLUMNS>
LS_DEVICE void ls_pack_columns(unsigned (&a)[4], const float (&d)[COLUMNS][4], int n)
{
    a[0] = ls_pack(d[2 * n][0], d[2 * n][1]);
    a[1] = ls_pack(d[2 * n][2], d[2 * n][3]);
    a[2] = ls_pack(d[2 * n + 1][0], d[2 * n + 1][1]);
    a[3] = ls_pack(d[2 * n + 1][2], d[2 * n + 1][3]);
}

/* ---- two elements of a row -------------------------------------------------------------------
 */

LS_DEVICE float2 ls_load2(const float *x)
{
    return *reinterpret_cast<const float2 *>(x);
}

LS_DEVICE void ls_store2(float *x, float first, float second)
{
    float2 both;
    both.x = first;
    both.y = second;
    *reinterpret_cast<float2 *>(x) = both;
}

/* ---- calls ------------------------------------------------------------------------------------
 */

/* Run the statement with K the head width, one of those the kernels are built for. */
#define LS_TENSOR_DISPATCH(width, ...)                                                             \
    do {                                                                                           \
        assert((width) == 64 || (width) == 128);                                                   \
        if ((width) == 128) {                                                                      \
            constexpr int K = 128;                                                                 \
            __VA_ARGS__                                                                            \
        } else {                                                                                   \
            constexpr int K = 64;                                                                  \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    } while (0)

#endif
