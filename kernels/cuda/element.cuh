/*
 * element.cuh - elements as kernels see them: fp32 in registers, fp32 or bf16 in memory, eight at
 * a time in 16-byte accesses where everything is aligned.
 *
 * Conversions and exp are those of the CPU ops (bf16.h, vec.h), operation by operation: built
 * without contraction (nvcc -fmad=false), elementwise ops give the CPU's bits.
 *
 * Layer: kernels, private to kernels/cuda.
 */
#ifndef LS_ELEMENT_CUH
#define LS_ELEMENT_CUH

#include <stdint.h>

#include "launch.cuh"

enum { LS_EIGHT = 8 }; /* elements of a thread's turn: 16 bytes of bf16, 32 of fp32 */

struct ls_bf16x {
    uint16_t bits;
};

LS_DEVICE float ls_widen(float x)
{
    return x;
}

LS_DEVICE float ls_widen(ls_bf16x x)
{
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

LS_DEVICE void ls_narrow(float *y, float x)
{
    *y = x;
}

/* Nearest, ties to even; NaN stays NaN. */
LS_DEVICE void ls_narrow(ls_bf16x *y, float x)
{
    const unsigned bits = __float_as_uint(x);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    y->bits = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : rounded);
}

/* ---- eight at a time ------------------------------------------------------------------------- */

/* The 16-byte words of eight elements. */
template <typename T> LS_DEVICE void ls_load_words(T (&out)[LS_EIGHT], const T *x)
{
    constexpr int words = LS_EIGHT * static_cast<int>(sizeof(T)) / 16;
    uint4 *to = reinterpret_cast<uint4 *>(out);
    for (int w = 0; w < words; w++) to[w] = reinterpret_cast<const uint4 *>(x)[w];
}

template <typename T> LS_DEVICE void ls_store_words(T *y, const T (&in)[LS_EIGHT])
{
    constexpr int words = LS_EIGHT * static_cast<int>(sizeof(T)) / 16;
    for (int w = 0; w < words; w++)
        reinterpret_cast<uint4 *>(y)[w] = reinterpret_cast<const uint4 *>(in)[w];
}

/* x[i .. i + 8) of n elements, 0 beyond the end.  vector: x is 16-byte aligned, i a multiple of 8.
 */
template <typename T>
LS_DEVICE void ls_load8(float (&out)[LS_EIGHT], const T *x, int64_t i, int64_t n, bool vector)
{
    alignas(16) T elements[LS_EIGHT];
    if (vector && i + LS_EIGHT <= n) {
        ls_load_words(elements, x + i);
        for (int k = 0; k < LS_EIGHT; k++) out[k] = ls_widen(elements[k]);
    } else {
        for (int k = 0; k < LS_EIGHT; k++) out[k] = i + k < n ? ls_widen(x[i + k]) : 0.0f;
    }
}

template <typename T>
LS_DEVICE void ls_store8(T *y, int64_t i, int64_t n, bool vector, const float (&in)[LS_EIGHT])
{
    alignas(16) T elements[LS_EIGHT];
    for (int k = 0; k < LS_EIGHT; k++) ls_narrow(&elements[k], in[k]);
    if (vector && i + LS_EIGHT <= n)
        ls_store_words(y + i, elements);
    else
        for (int k = 0; k < LS_EIGHT; k++)
            if (i + k < n) y[i + k] = elements[k];
}

/* Whether 16-byte accesses reach these pointers. */
template <typename... P> static inline bool ls_is_aligned(const P *...pointers)
{
    bool aligned = true;
    const int unused[] = {
        (aligned = aligned && reinterpret_cast<uintptr_t>(pointers) % 16 == 0, 0)...};
    (void)unused;
    return aligned;
}

/* ---- elementwise kernels ----------------------------------------------------------------------
 */

enum { LS_THREADS = 256 /* of a block */ };

/* Where this thread's eight elements begin. */
LS_DEVICE int64_t ls_element_index()
{
    return (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * LS_EIGHT;
}

static inline dim3 ls_element_grid(int64_t n)
{
    return ls_grid(ls_ceil_div(n, LS_EIGHT * LS_THREADS));
}

/* ---- exp --------------------------------------------------------------------------------------
 */

/* vec.h's ls_exp(), which says how it works. */
LS_DEVICE float ls_exp32(float x)
{
    const float shift = 0x1.8p23f;
    float clamped = x < -104.0f ? -104.0f : x;
    clamped = clamped > 89.0f ? 89.0f : clamped;
    const float shifted = clamped * 0x1.715476p+0f + shift;
    const float n = shifted - shift;
    const float r = (clamped - n * 0x1.62ep-1f) - n * 0x1.0bfbe8p-15f;
    float q = 0x1.6a23cp-10f;
    q = q * r + 0x1.123a2p-7f;
    q = q * r + 0x1.5558f4p-5f;
    q = q * r + 0x1.555492p-3f;
    q = q * r + 0x1.fffffcp-2f;
    const float power = (r + (r * r) * q) + 1.0f;
    const unsigned biased = __float_as_uint(shifted) - __float_as_uint(shift) + 254u;
    const unsigned half = biased >> 1;
    return power * __uint_as_float(half << 23) * __uint_as_float((biased - half) << 23);
}

/* ---- warps ------------------------------------------------------------------------------------
 */

enum { LS_WARP = 32 };

/* The sum over a warp, the same in every lane: halves added pairwise, so the order is fixed. */
LS_DEVICE double ls_warp_sum(double value)
{
    for (int flip = LS_WARP / 2; flip > 0; flip /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, flip);
    return value;
}

#endif
