/*
 * bf16.h - bfloat16 storage on the host, and the exact split of an fp32 master weight.
 *
 * bf16: 1 sign, 8 exponent, 7 fraction bits: the upper half of an fp32 pattern.
 *
 * Split master: with `bits` the fp32 pattern,
 *     hi = (bits + 0x8000) >> 16      the bf16 weight, rounded to nearest, ties away from zero
 *     lo = (int16)bits                the signed remainder
 *     master = (hi << 16) + lo        exact for all 2^32 patterns
 * so 2 + 2 bytes hold a true fp32 master whose upper half is the weight the GEMMs read.  Rounding
 * to nearest even could not be inverted at ties; truncation would bias every weight towards zero.
 *
 * Layer: base.  Header only; pure functions.
 */
#ifndef LS_BF16_H
#define LS_BF16_H

#include <stdint.h>
#include <string.h>

typedef uint16_t ls_bf16;

static inline uint32_t ls_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float ls_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float ls_bf16_to_f32(ls_bf16 value)
{
    return ls_f32_from_bits((uint32_t)value << 16);
}

/* Round to nearest, ties to even; NaN stays NaN. */
static inline ls_bf16 ls_bf16_from_f32(float value)
{
    const uint32_t bits = ls_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (ls_bf16)((bits >> 16) | 0x40u);
    return (ls_bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* The bf16 weight of an fp32 master (see above). */
static inline ls_bf16 ls_master_hi(float master)
{
    return (ls_bf16)((ls_f32_bits(master) + 0x8000u) >> 16);
}

/* The remainder of an fp32 master (see above). */
static inline int16_t ls_master_lo(float master)
{
    const uint16_t low = (uint16_t)ls_f32_bits(master);
    int16_t lo;
    memcpy(&lo, &low, sizeof lo);
    return lo;
}

static inline float ls_master_join(ls_bf16 hi, int16_t lo)
{
    return ls_f32_from_bits(((uint32_t)hi << 16) + (uint32_t)(int32_t)lo);
}

/* True if the weight is finite both as fp32 and as its rounded bf16: loaders refuse the rest. */
static inline int ls_master_is_finite(float master)
{
    const uint32_t bits = ls_f32_bits(master);
    return (bits & 0x7f800000u) != 0x7f800000u &&
           ((uint32_t)ls_master_hi(master) & 0x7f80u) != 0x7f80u;
}

#endif
