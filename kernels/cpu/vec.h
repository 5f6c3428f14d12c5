/*
 * vec.h - how the CPU ops are written so that one plain C loop runs well on every machine.
 *
 * A loop over elements is written once over ls_load / ls_store with a constant dtype and left to
 * the compiler to vectorize; LS_SIMD_CLONES builds it for several instruction sets and the loader
 * picks one.  All of them give the same bits: the build has -ffp-contract=off, nothing here calls
 * libm, and a sum names its order.  A sum over elements uses LS_LANES lanes, lane l taking the
 * elements l, l + LS_LANES, ... in order, and ls_lanes_add() then adds the lanes in order, so the
 * compiler may use any vector length up to LS_LANES.
 *
 * The parts are for the loops inside one function: a clone sees only what is inlined into it, and
 * the body of an OpenMP region is not cloned.  So an op is a driver that splits rows or blocks
 * among threads, and a LS_SIMD_CLONES function that does one part; ls_elements_run() is the driver
 * of ops whose elements do not depend on each other.
 *
 * Layer: kernels, private to kernels/cpu.  Threads: pure functions but for ls_elements_run().
 */
#ifndef LS_VEC_H
#define LS_VEC_H

#include <math.h>
#include <stdint.h>

#include "bf16.h"
#include "dtype.h"

/* clang 14 has no target_clones in C, and sanitizers run before the loader can pick a clone. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(LS_SANITIZED)
#define LS_SIMD_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define LS_SIMD_CLONES
#endif

#define LS_INLINE static inline __attribute__((always_inline))

/* Promise that the next loop's iterations are independent although outputs may alias inputs. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* sanitized loops are not vectorized: fine */
#define LS_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define LS_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* LS_OMP(omp parallel for schedule(static)); nothing in a build without OpenMP. */
#if defined(_OPENMP)
#define LS_PRAGMA(text) _Pragma(#text)
#define LS_OMP(...)     LS_PRAGMA(__VA_ARGS__)
#else
#define LS_OMP(...)
#endif

enum {
    LS_LANES = 16,
    LS_BLOCK = 4096, /* elements of one part of an elementwise op: 16 KiB of fp32 */
};

LS_INLINE int64_t ls_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

LS_INLINE int64_t ls_blocks(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}

/* ---- elements: dtype is a constant where these are inlined ---------------------------------- */

LS_INLINE float ls_load(const void *x, int64_t i, ls_dtype dtype)
{
    return dtype == LS_DTYPE_BF16 ? ls_bf16_to_f32(((const ls_bf16 *)x)[i]) : ((const float *)x)[i];
}

LS_INLINE void ls_store(void *y, int64_t i, float value, ls_dtype dtype)
{
    if (dtype == LS_DTYPE_BF16)
        ((ls_bf16 *)y)[i] = ls_bf16_from_f32(value);
    else
        ((float *)y)[i] = value;
}

/* &x[i], of x that points to const or not. */
LS_INLINE const void *ls_at(const void *x, int64_t i, ls_dtype dtype)
{
    return (const char *)x + i * (int64_t)ls_dtype_bytes(dtype);
}

LS_INLINE void *ls_out_at(void *y, int64_t i, ls_dtype dtype)
{
    return (char *)y + i * (int64_t)ls_dtype_bytes(dtype);
}

LS_INLINE int ls_dtype_computes(ls_dtype dtype)
{
    return dtype == LS_DTYPE_F32 || dtype == LS_DTYPE_BF16;
}

/* ---- elementwise ops ------------------------------------------------------------------------- */

/* The elements begin .. begin + n of the op whose args are given, n <= LS_BLOCK. */
typedef void ls_elements_part(const void *args, int64_t begin, int64_t n);

/* Run part over n elements, in blocks that threads share. */
static inline void ls_elements_run(int64_t n, ls_elements_part *part, const void *args)
{
    const int64_t n_blocks = ls_blocks(n, LS_BLOCK);

    LS_OMP(omp parallel for schedule(static))
    for (int64_t block = 0; block < n_blocks; block++) {
        const int64_t begin = block * LS_BLOCK;
        part(args, begin, ls_min_i64(LS_BLOCK, n - begin));
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

LS_INLINE double ls_lanes_add(const double lanes[LS_LANES])
{
    double sum = 0.0;
    for (int l = 0; l < LS_LANES; l++) sum += lanes[l];
    return sum;
}

/* ---- exp ------------------------------------------------------------------------------------- */

/*
 * e^x within 1 ulp (denormal results within one denormal step), 0 below -104, inf above 88.73,
 * NaN for NaN.  x = n ln2 + r with |r| <= ln2 / 2;  e^r by a polynomial minimax in relative error
 * (4e-9);  2^n in two factors, because 2^n itself is no fp32 number at either end of the range.
 */
LS_INLINE float ls_exp(float x)
{
    const float shift = 0x1.8p23f; /* adding it rounds to an integer, held in the low bits */
    float clamped = x < -104.0f ? -104.0f : x;
    clamped = clamped > 89.0f ? 89.0f : clamped;
    const float shifted = clamped * 0x1.715476p+0f + shift;
    const float n = shifted - shift;
    /* n * 0x1.62ep-1 is exact: 13 bits times at most 8. */
    const float r = (clamped - n * 0x1.62ep-1f) - n * 0x1.0bfbe8p-15f;
    float q = 0x1.6a23cp-10f;
    q = q * r + 0x1.123a2p-7f;
    q = q * r + 0x1.5558f4p-5f;
    q = q * r + 0x1.555492p-3f;
    q = q * r + 0x1.fffffcp-2f;
    const float power = (r + (r * r) * q) + 1.0f;
    const uint32_t biased = ls_f32_bits(shifted) - ls_f32_bits(shift) + 254u;
    const uint32_t half = biased >> 1;
    return power * ls_f32_from_bits(half << 23) * ls_f32_from_bits((biased - half) << 23);
}

/* Sum of squares in double, in an order that depends on n alone. */
LS_INLINE double ls_sum_squares(const void *x, int64_t n, ls_dtype dtype)
{
    double lanes[LS_LANES] = {0.0};
    const int64_t whole = n - n % LS_LANES;

    for (int64_t i = 0; i < whole; i += LS_LANES)
        for (int l = 0; l < LS_LANES; l++) {
            const double value = (double)ls_load(x, i + l, dtype);
            lanes[l] += value * value;
        }
    for (int64_t i = whole; i < n; i++) {
        const double value = (double)ls_load(x, i, dtype);
        lanes[i - whole] += value * value;
    }
    return ls_lanes_add(lanes);
}

#endif
