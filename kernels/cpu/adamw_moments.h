/*
 * adamw_moments.h - lossy moments: how a block of fp32 values becomes codes and back.
 *
 * bf16  rounded stochastically (Gupta et al. 2015, arXiv 1502.02551): rounded to nearest, v would
 *       not move at all under beta2 = 0.999, whose steps are smaller than half a bf16 step.
 * q8,   codes relative to the greatest of a block (block-wise, after Dettmers et al. 2021, arXiv
 * q4    2110.02861, and Li et al. 2023, arXiv 2309.01507), also rounded stochastically:
 *
 *       value = scale * x,  x = 1.0 at the greatest code; below it the code counts the upper bits
 *       of the fp32 pattern of x, so codes are small floating-point numbers.
 *
 *                block  signed  fraction bits  greatest code  least code above zero
 *         q8 m   256    yes     3              127            2^-15 / 7   (7 even steps from 0)
 *         q8 v   256    no      3              255            2^-32 * 1.125, which is also code 0
 *         q4 m   128    yes     1              7              2^-3
 *         q4 v   128    no      1              15             2^-8 * 1.5, which is also code 0
 *
 * v has no code for zero: a v that vanished beside an m that did not would be a division by eps (Li
 * et al., section 4.1).  What is below the least code is kept at it, so that such an element moves
 * less than it would, never more.  Two q4 codes share a byte: element j the lower half, element
 * j + 64 of the block the upper.
 *
 * Layer: kernels, private.  Pure functions.
 */
#ifndef LS_ADAMW_MOMENTS_H
#define LS_ADAMW_MOMENTS_H

#include "ops.h"
#include "vec.h"

/* MurmurHash3's finalizer (Appleby 2011): 32 bits that look random, of any counter.  The lower half
 * rounds m, the upper v. */
LS_INLINE uint32_t ls_adamw_random(uint32_t random, int64_t i)
{
    uint32_t h = random + (uint32_t)i * 0x9e3779b9u;
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    return h ^ (h >> 16);
}

/* Up with the probability that makes the mean right; random: 16 bits.  Finite stays finite up to
 * 2^127, which the limit of the gradient norm is far below. */
LS_INLINE ls_bf16 ls_adamw_round_bf16(float value, uint32_t random)
{
    return (ls_bf16)((ls_f32_bits(value) + random) >> 16);
}

/* One row of the table above. */
typedef struct ls_moment_code {
    int32_t fraction_bits, greatest, has_zero;
} ls_moment_code;

#define LS_Q8_M ((ls_moment_code){3, 127, 1})
#define LS_Q8_V ((ls_moment_code){3, 255, 0})
#define LS_Q4_M ((ls_moment_code){1, 7, 1})
#define LS_Q4_V ((ls_moment_code){1, 15, 0})

/* The upper bits of x at code 0; those of 1.0 are at the greatest code. */
LS_INLINE int32_t ls_code_offset(ls_moment_code c)
{
    return (0x3f800000 >> (23 - c.fraction_bits)) - c.greatest;
}

/* Codes below it are even steps from zero, so that the first of the others is a power of two. */
LS_INLINE int32_t ls_code_steps(ls_moment_code c)
{
    const int32_t of_octave = 1 << c.fraction_bits;
    return c.has_zero ? of_octave - ls_code_offset(c) % of_octave : 0;
}

LS_INLINE float ls_code_value(ls_moment_code c, int32_t code)
{
    const int32_t steps = ls_code_steps(c), shift = 23 - c.fraction_bits;
    const float x = ls_f32_from_bits((uint32_t)(code + ls_code_offset(c)) << shift);
    if (!c.has_zero) return x;
    const float first = ls_f32_from_bits((uint32_t)(steps + ls_code_offset(c)) << shift);
    return code < steps ? (float)code * (first / (float)steps) : x;
}

/* The code of x in [0, 1]; random: 16 bits. */
LS_INLINE int32_t ls_code_of(ls_moment_code c, float x, uint32_t random)
{
    const int32_t shift = 23 - c.fraction_bits, offset = ls_code_offset(c);
    int32_t code = (int32_t)((ls_f32_bits(x) + (random << (shift - 16))) >> shift) - offset;
    if (c.has_zero) {
        const int32_t steps = ls_code_steps(c);
        const float first = ls_f32_from_bits((uint32_t)(steps + offset) << shift);
        const float scaled = x * ((float)steps / first) + (float)(int32_t)random * 0x1p-16f;
        code = x < first ? (int32_t)scaled : code;
    } else {
        code = code < 0 ? 0 : code;
    }
    return code > c.greatest ? c.greatest : code;
}

/* The greatest magnitude of n floats; as integers, because no order of them changes that. */
LS_INLINE float ls_greatest(const float *x, int64_t n)
{
    int32_t greatest = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t bits = (int32_t)(ls_f32_bits(x[i]) & 0x7fffffffu);
        greatest = bits > greatest ? bits : greatest;
    }
    return ls_f32_from_bits((uint32_t)greatest);
}

#endif
