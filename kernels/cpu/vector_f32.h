/*
 * vector_f32.h - one fp32 vector of the width the file is compiled for.
 *
 * Kernels written on it are compiled once per instruction set (baseline, AVX2, AVX-512) and chosen
 * at run time.  fma is fused wherever the hardware fuses, so variants may differ in the last bit;
 * one machine always runs one variant.
 *
 * Layer: kernels, private.  Pure functions.
 */
#ifndef LS_VECTOR_F32_H
#define LS_VECTOR_F32_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define VF_LANES 16
#elif defined(__AVX__)
#define VF_LANES 8
#else
#define VF_LANES 4
#endif

/* Vector registers; micro kernels size their accumulator blocks by it. */
#if defined(__AVX512F__) || defined(__ARM_NEON)
#define VF_REGISTERS 32
#else
#define VF_REGISTERS 16
#endif

typedef float vf __attribute__((vector_size(4 * VF_LANES)));
typedef int32_t vi __attribute__((vector_size(4 * VF_LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * VF_LANES)));

static inline vf vf_load(const float *from)
{
    vf value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline void vf_store(float *to, vf value)
{
    memcpy(to, &value, sizeof value);
}

/* VF_LANES bf16 in fp32 */
static inline vf vf_load_bf16(const uint16_t *from)
{
#if defined(__AVX512F__)
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from));
    return (vf)_mm512_slli_epi32(words, 16);
#else
    vu words;
    for (int i = 0; i < VF_LANES; i++) words[i] = (uint32_t)from[i] << 16;
    return (vf)words;
#endif
}

static inline vi vi_load(const int32_t *from)
{
    vi value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline vf vf_set(float value)
{
    return value - (vf){0};
}

/* a b + c */
static inline vf vf_fma(vf a, vf b, vf c)
{
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* Lane by lane: mask ? a : b, where mask lanes are 0 or -1. */
static inline vf vf_select(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

static inline vf vf_max(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vf_select(a > b, a, b);
#endif
}

/* Nonzero if any lane of a comparison's result holds. */
static inline int vi_any(vi mask)
{
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#else
    int32_t any = 0;
    for (int i = 0; i < VF_LANES; i++) any |= mask[i];
    return any != 0;
#endif
}

/* 2^t for t <= 127, relative error below 2e-7; t below -126 gives 0. */
#if defined(__AVX512DQ__)
/*
 * AVX-512 splits t into floor(t) and a fraction in [0, 1), and scales by 2^floor(t), in one
 * instruction each.  In between, a polynomial of degree 5 that is 1 at 0 and minimax in relative
 * error (8e-8).
 */
static inline vf vf_exp2(vf t)
{
    enum { FLOOR_EXACTLY = 0x9 }; /* of VREDUCEPS: no fraction bits, round down, raise nothing */
    const __mmask16 is_normal = _mm512_cmp_ps_mask((__m512)t, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    const vf f = (vf)_mm512_reduce_ps((__m512)t, FLOOR_EXACTLY);
    vf p = vf_set(1.86713008e-3f);
    p = vf_fma(p, f, vf_set(9.017030295e-3f));
    p = vf_fma(p, f, vf_set(5.579991313e-2f));
    p = vf_fma(p, f, vf_set(0.2401644501f));
    p = vf_fma(p, f, vf_set(0.6931513118f));
    p = vf_fma(p, f, vf_set(1.0f));
    return (vf)_mm512_maskz_scalef_ps(is_normal, (__m512)p, (__m512)t);
}
#else
/*
 * The integer part goes straight into the exponent, the fraction in [-1/2, 1/2] through a
 * polynomial of degree 5.
 */
static inline vf vf_exp2(vf t)
{
    const float round_magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    const vi underflow = t < vf_set(-126.0f);
    t = vf_max(t, vf_set(-126.0f));
    const vf shifted = t + vf_set(round_magic);
    const vf f = t - (shifted - vf_set(round_magic));
    vf p = vf_set(1.3264726899053971e-3f);
    p = vf_fma(p, f, vf_set(9.671512660564508e-3f));
    p = vf_fma(p, f, vf_set(5.5507337442445084e-2f));
    p = vf_fma(p, f, vf_set(0.2402224208491922f));
    p = vf_fma(p, f, vf_set(0.6931469775984711f));
    p = vf_fma(p, f, vf_set(1.0f));
    const vf result = (vf)((vu)p + ((vu)shifted << 23));
    return (vf)((vi)result & ~underflow);
}
#endif

#endif
