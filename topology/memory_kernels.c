/*
 * memory_kernels.c - the loops.  Several sums or streams at once, so that not the latency of an
 * addition but memory is what they wait for; compilers turn them into vectors.
 */
#include "memory_kernels.h"

#include <assert.h>
#include <stddef.h>

#include "rng.h"

#define STREAMS 4 /* of a slice: a prefetcher follows each of them by itself */
#define LANES   4 /* independent sums of a stream */

static uint64_t read_words(const uint64_t *x, uint64_t n)
{
    const uint64_t each = n / STREAMS;
    uint64_t sums[STREAMS][LANES] = {{0}}, sum = 0;

    for (uint64_t i = 0; i < each; i += LANES)
        for (uint64_t s = 0; s < STREAMS; s++)
            for (uint64_t lane = 0; lane < LANES; lane++) sums[s][lane] += x[s * each + i + lane];
    for (int s = 0; s < STREAMS; s++)
        for (int lane = 0; lane < LANES; lane++) sum += sums[s][lane];
    return sum;
}

static void write_words(uint64_t *y, uint64_t n, uint64_t value)
{
    const uint64_t each = n / STREAMS;

    for (uint64_t i = 0; i < each; i += LANES)
        for (uint64_t s = 0; s < STREAMS; s++)
            for (uint64_t lane = 0; lane < LANES; lane++) y[s * each + i + lane] = value;
}

/* Not quite a copy, or compilers would call memcpy.  Zeros become floats of 1: an update would slow
 * down on denormal ones. */
static void copy_words(uint64_t *restrict y, const uint64_t *restrict x, uint64_t n)
{
    const uint64_t each = n / STREAMS;

    for (uint64_t i = 0; i < each; i += LANES)
        for (uint64_t s = 0; s < STREAMS; s++)
            for (uint64_t lane = 0; lane < LANES; lane++)
                y[s * each + i + lane] = x[s * each + i + lane] ^ 0x3f8000003f800000u;
}

/* The traffic of AdamW on the split master, with arithmetic that costs nothing. */
static void update_words(void *data, uint64_t n)
{
    float *restrict m = data, *restrict v = m + n;
    const float *restrict gradient = v + n;
    uint16_t *restrict hi = (uint16_t *)(void *)((char *)data + 12 * n), *restrict lo = hi + n;

    for (uint64_t i = 0; i < n; i++) {
        const float g = gradient[i];
        m[i] += g;
        v[i] += g + g;
        hi[i] = (uint16_t)(hi[i] + 1);
        lo[i] = (uint16_t)(lo[i] + 3);
    }
}

uint64_t ls_memory_pass(ls_traffic traffic, void *data, uint64_t bytes, double *traffic_bytes)
{
    uint64_t *words = data;
    const uint64_t n = bytes / sizeof *words, n_updates = bytes / LS_UPDATE_BUFFER_BYTES;

    assert(bytes % LS_SLICE_BYTES == 0 && (uintptr_t)data % LS_SLICE_BYTES == 0);
    *traffic_bytes = (double)bytes;
    switch (traffic) {
    case LS_TRAFFIC_READ: return read_words(words, n);
    case LS_TRAFFIC_WRITE: write_words(words, n, 0); break;
    case LS_TRAFFIC_COPY: copy_words(words + n / 2, words, n / 2); break;
    case LS_TRAFFIC_UPDATE:
        update_words(data, n_updates);
        *traffic_bytes = (double)LS_UPDATE_TRAFFIC_BYTES * (double)n_updates;
        break;
    case LS_TRAFFIC_COUNT: assert(false);
    }
    return n > 0 ? words[n - 1] : 0;
}

/* ---- chains --------------------------------------------------------------------------------- */

#define NODE_WORDS (LS_CHAIN_STRIDE_BYTES / sizeof(uint64_t))

void ls_chain_make(void *data, uint64_t bytes, uint64_t seed)
{
    uint64_t *words = data;
    const uint64_t n = bytes / LS_CHAIN_STRIDE_BYTES;

    for (uint64_t i = 0; i < n; i++) words[i * NODE_WORDS] = i;
    for (uint64_t i = n; i-- > 1;) {
        const uint64_t j = ls_rng_below(seed, 0, i, i);
        const uint64_t kept = words[i * NODE_WORDS];
        words[i * NODE_WORDS] = words[j * NODE_WORDS];
        words[j * NODE_WORDS] = kept;
    }
}

uint64_t ls_chain_follow(const void *data, uint64_t from, uint64_t n)
{
    const uint64_t *words = data;
    uint64_t at = from;

    for (uint64_t i = 0; i < n; i++) at = words[at * NODE_WORDS];
    return at;
}
