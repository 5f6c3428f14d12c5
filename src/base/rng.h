/*
 * rng.h - counter-based random numbers: value = f(seed, stream, counter), no state.
 *
 * Any element of any stream can be drawn by any thread in any order, so initial weights and the
 * order of documents do not depend on how work is split, and resume needs only a counter.  The
 * mixer is SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)
 * applied to the seed, the stream and the counter in turn.
 *
 * Layer: base.  Header only; pure functions.
 */
#ifndef LS_RNG_H
#define LS_RNG_H

#include <math.h>
#include <stdint.h>

static inline uint64_t ls_rng_mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t ls_rng_u64(uint64_t seed, uint64_t stream, uint64_t counter)
{
    return ls_rng_mix(counter ^ ls_rng_mix(stream ^ ls_rng_mix(seed)));
}

/* Uniform in [0, 1), 53 bits. */
static inline double ls_rng_uniform(uint64_t seed, uint64_t stream, uint64_t counter)
{
    return (double)(ls_rng_u64(seed, stream, counter) >> 11) * 0x1p-53;
}

/* Uniform integer in [0, n), n > 0, by the multiply-high method (bias below n / 2^64). */
static inline uint64_t ls_rng_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t n)
{
    __extension__ typedef unsigned __int128 u128;
    return (uint64_t)(((u128)ls_rng_u64(seed, stream, counter) * n) >> 64);
}

/*
 * Where a shuffle of 0 .. n puts index: a permutation that needs no memory.  A Feistel network
 * permutes the smallest 4^k >= n; what falls outside n walks on until it is inside, which takes
 * fewer than 4 rounds on average (Black, Rogaway: Ciphers with arbitrary finite domains, 2002).
 */
static inline uint64_t ls_rng_permute(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n)
{
    enum { ROUNDS = 6 };
    unsigned half = 1; /* bits */
    while (half < 32 && ((uint64_t)1 << 2 * half) < n) half++;
    const uint64_t mask = ((uint64_t)1 << half) - 1;

    do {
        uint64_t left = index >> half, right = index & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            const uint64_t mixed = left ^ (ls_rng_u64(seed, stream, round << 32 | right) & mask);
            left = right;
            right = mixed;
        }
        index = left << half | right;
    } while (index >= n);
    return index;
}

/* Standard normal (Box-Muller); one counter is one value. */
static inline double ls_rng_normal(uint64_t seed, uint64_t stream, uint64_t counter)
{
    const double u = 1.0 - ls_rng_uniform(seed, stream, 2 * counter); /* (0, 1] */
    const double angle = 6.283185307179586 * ls_rng_uniform(seed, stream, 2 * counter + 1);
    return sqrt(-2.0 * log(u)) * cos(angle);
}

#endif
