/*
 * ops_test.h - what the tests of the ops share: guarded and poisoned buffers of any element type,
 * seeded values, comparison with double-precision expectations, numeric gradients.
 *
 * A buffer starts as NaN in every element, so an output that an op forgot stays visible, and is
 * fenced, so that a write beyond either end aborts when the buffer is freed (a sanitized build
 * keeps no fence behind the data: there the allocator itself catches reads too).
 *
 *     void *x = make_noise(n, LS_DTYPE_BF16, seed, 1.0);   n values, uniform in [-1, 1)
 *     void *y = make_buffer(n, LS_DTYPE_BF16);             n NaNs
 *     double *expected = make_doubles(n);                  n NaNs
 *     ... the op, then the formula through get(x, i, dtype) ...
 *     assert_close(y, LS_DTYPE_BF16, expected, n, 4e-3);   ||y - expected|| / ||expected||
 *     free_buffer(x); ...
 *
 * Layer: tests.  Header only.
 */
#ifndef LS_OPS_TEST_H
#define LS_OPS_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bf16.h"
#include "dtype.h"
#include "ops.h"
#include "rng.h"

#if defined(LS_TEST_CUDA)
#include "emulation.h"
#include "staged_ops.h"
#endif

#define COUNT_OF(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

/* What rounding alone may cost a tensor, as a relative norm, with room for a few roundings. */
#define TOLERANCE_F32  2e-6
#define TOLERANCE_BF16 4e-3

static inline double tolerance_of(ls_dtype dtype)
{
    return dtype == LS_DTYPE_BF16 ? TOLERANCE_BF16 : TOLERANCE_F32;
}

/* ---- buffers ------------------------------------------------------------------------------- */

enum { FENCE_BYTES = 64, FENCE_PATTERN = 0xa5 };

/* How many bytes of fence follow the data. */
static inline size_t fence_behind(void)
{
#if defined(LS_SANITIZED)
    return 0;
#else
    return FENCE_BYTES;
#endif
}

static inline void *make_bytes(uint64_t bytes)
{
    unsigned char *base = malloc(FENCE_BYTES + bytes + fence_behind());
    if (base == NULL) abort();
    memset(base, FENCE_PATTERN, FENCE_BYTES);
    memcpy(base, &bytes, sizeof bytes);
    memset(base + FENCE_BYTES, 0xff, bytes); /* NaN as F32, BF16 and F64 */
    memset(base + FENCE_BYTES + bytes, FENCE_PATTERN, fence_behind());
    return base + FENCE_BYTES;
}

/* n elements of NaN (-1 for integers). */
static inline void *make_buffer(int64_t n, ls_dtype dtype)
{
    return make_bytes((uint64_t)n * ls_dtype_bytes(dtype));
}

static inline double *make_doubles(int64_t n)
{
    return make_buffer(n, LS_DTYPE_F64);
}

/* Release a buffer of make_*; abort if something wrote beyond either of its ends. */
static inline void free_buffer(void *data)
{
    if (data == NULL) return;
    unsigned char *base = (unsigned char *)data - FENCE_BYTES;
    uint64_t bytes;
    memcpy(&bytes, base, sizeof bytes);
    for (size_t i = sizeof bytes; i < FENCE_BYTES; i++)
        if (base[i] != FENCE_PATTERN) {
            fprintf(stderr, "a write before the start of a buffer\n");
            abort();
        }
    for (size_t i = 0; i < fence_behind(); i++)
        if (base[FENCE_BYTES + bytes + i] != FENCE_PATTERN) {
            fprintf(stderr, "a write beyond the end of a buffer of %llu bytes\n",
                    (unsigned long long)bytes);
            abort();
        }
    free(base);
}

/* ---- elements ------------------------------------------------------------------------------ */

static inline double get(const void *data, int64_t i, ls_dtype dtype)
{
    switch (dtype) {
    case LS_DTYPE_F32: return (double)((const float *)data)[i];
    case LS_DTYPE_BF16: return (double)ls_bf16_to_f32(((const ls_bf16 *)data)[i]);
    case LS_DTYPE_F64: return ((const double *)data)[i];
    default: abort();
    }
}

static inline void put(void *data, int64_t i, ls_dtype dtype, double value)
{
    switch (dtype) {
    case LS_DTYPE_F32: ((float *)data)[i] = (float)value; break;
    case LS_DTYPE_BF16: ((ls_bf16 *)data)[i] = ls_bf16_from_f32((float)value); break;
    case LS_DTYPE_F64: ((double *)data)[i] = value; break;
    default: abort();
    }
}

/* Uniform in [-scale, scale), the same on every machine, rounded to dtype. */
static inline void fill_noise(void *data, int64_t n, ls_dtype dtype, uint64_t seed, double scale)
{
    for (int64_t i = 0; i < n; i++)
        put(data, i, dtype, scale * (2.0 * ls_rng_uniform(seed, 77, (uint64_t)i) - 1.0));
}

/* Integers in [-limit, limit], which bf16 holds exactly up to 256. */
static inline void fill_integers(void *data, int64_t n, ls_dtype dtype, uint64_t seed, int limit)
{
    for (int64_t i = 0; i < n; i++)
        put(data, i, dtype,
            (double)ls_rng_below(seed, 78, (uint64_t)i, 2 * (uint64_t)limit + 1) - limit);
}

static inline void *make_noise(int64_t n, ls_dtype dtype, uint64_t seed, double scale)
{
    void *data = make_buffer(n, dtype);
    fill_noise(data, n, dtype, seed, scale);
    return data;
}

static inline void *make_integers(int64_t n, ls_dtype dtype, uint64_t seed, int limit)
{
    void *data = make_buffer(n, dtype);
    fill_integers(data, n, dtype, seed, limit);
    return data;
}

/* The elements of data as doubles, in a buffer of their own. */
static inline double *make_doubles_of(const void *data, int64_t n, ls_dtype dtype)
{
    double *copy = make_doubles(n);
    for (int64_t i = 0; i < n; i++) copy[i] = get(data, i, dtype);
    return copy;
}

static inline void *make_copy(const void *data, int64_t n, ls_dtype dtype)
{
    void *copy = make_buffer(n, dtype);
    memcpy(copy, data, (size_t)n * ls_dtype_bytes(dtype));
    return copy;
}

/* ---- comparison ---------------------------------------------------------------------------- */

/* ||actual - expected|| / ||expected||; the plain distance if expected is all 0; NaN if any is. */
static inline double relative_error(const void *actual, ls_dtype dtype, const double *expected,
                                    int64_t n)
{
    double distance = 0.0, norm = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double difference = get(actual, i, dtype) - expected[i];
        distance += difference * difference;
        norm += expected[i] * expected[i];
    }
    return norm > 0.0 ? sqrt(distance / norm) : sqrt(distance);
}

/* Fail unless relative_error <= tolerance; a NaN anywhere fails. */
#define assert_close(actual, dtype, expected, n, tolerance)                                        \
    assert_close_at((actual), (dtype), (expected), (n), (tolerance), #actual, __FILE__, __LINE__)

static inline void assert_close_at(const void *actual, ls_dtype dtype, const double *expected,
                                   int64_t n, double tolerance, const char *what, const char *file,
                                   int line)
{
    const double error = relative_error(actual, dtype, expected, n);
    if (error <= tolerance) return;
    int64_t worst = 0;
    double worst_distance = -1.0;
    for (int64_t i = 0; i < n; i++) {
        const double distance = fabs(get(actual, i, dtype) - expected[i]);
        if (distance <= worst_distance) continue;
        worst = i;
        worst_distance = distance;
        if (isnan(distance)) break;
    }
    print_error("%s (%s): relative error %.3g, allowed %.3g; [%lld] of %lld is %.9g, not %.9g\n",
                what, ls_dtype_name(dtype), error, tolerance, (long long)worst, (long long)n,
                n > 0 ? get(actual, worst, dtype) : 0.0, n > 0 ? expected[worst] : 0.0);
    _fail(file, line);
}

/* Fail unless both hold the same bytes. */
#define assert_same_bits(actual, expected, n, dtype)                                               \
    assert_memory_equal((actual), (expected), (size_t)(n) * (size_t)ls_dtype_bytes(dtype))

/*
 * Fail unless the bytes hash (FNV-1a) to expected.  The ops promise the same bits from every
 * compiler, instruction set and thread count; a constant in a test holds them to it.  If a change
 * of formula moves the bits on purpose, the failure prints the new constant.
 */
#define assert_hash(data, n, dtype, expected)                                                      \
    assert_hash_at((data), (n), (dtype), (expected), #data, __FILE__, __LINE__)

/* Tests of a backend that has an order of its own hold it to the bits of its first run. */
static inline uint64_t expected_hash(uint64_t hash, uint64_t expected)
{
#if defined(LS_TEST_OWN_BITS)
    static uint64_t seen[64][2];
    int i = 0;
    while (seen[i][0] != 0 && seen[i][0] != expected) i++;
    if (i == 63) abort();
    if (seen[i][0] == 0) {
        seen[i][0] = expected;
        seen[i][1] = hash;
    }
    return seen[i][1];
#else
    (void)hash;
    return expected;
#endif
}

static inline void assert_hash_at(const void *data, int64_t n, ls_dtype dtype, uint64_t expected,
                                  const char *what, const char *file, int line)
{
    const unsigned char *bytes = data;
    const uint64_t n_bytes = (uint64_t)n * ls_dtype_bytes(dtype);
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < n_bytes; i++) hash = (hash ^ bytes[i]) * 0x100000001b3u;
    expected = expected_hash(hash, expected);
    if (hash == expected) return;
    print_error("%s (%s): the bits hash to 0x%016llx, not 0x%016llx\n", what, ls_dtype_name(dtype),
                (unsigned long long)hash, (unsigned long long)expected);
    _fail(file, line);
}

/* ---- numeric gradients --------------------------------------------------------------------- */

/*
 * gradient[i] = d loss / d x[i] by central differences, where loss(context) reads x.  Everything
 * is in double, so step 1e-5 leaves an error near 1e-10; x is as before on return.
 */
static inline void differentiate(double *gradient, double *x, int64_t n, double step,
                                 double (*loss)(const void *context), const void *context)
{
    for (int64_t i = 0; i < n; i++) {
        const double centre = x[i];
        x[i] = centre + step;
        const double above = loss(context);
        x[i] = centre - step;
        const double below = loss(context);
        x[i] = centre;
        gradient[i] = (above - below) / (2.0 * step);
    }
}

/* ---- running an op ------------------------------------------------------------------------- */

#if defined(LS_TEST_CUDA)
static const ls_ops *const tested_ops = &ls_ops_staged;
#else
static const ls_ops *const tested_ops = &ls_ops_cpu;
#endif

/* How the backend's work is spread: n threads, or the n-th order in which an emulated GPU's threads
 * run. */
static inline void spread_set(int n)
{
#if defined(LS_TEST_CUDA)
    ls_emulation_seed((uint64_t)n);
#else
    ls_cpu_threads_set(n);
#endif
}

/* RUN_OP(add, .y = y, .a = a, .b = b, .n = n, .dtype = dtype): the fields of ls_add_args. */
#define RUN_OP(op, ...)                                                                            \
    assert_int_equal(tested_ops->op(NULL, &(ls_##op##_args){__VA_ARGS__}), LS_OK)

_Static_assert(LS_DTYPE_F32 == 0 && LS_DTYPE_BF16 == 1, "FOR_EACH_DTYPE counts from F32 to BF16");

#define FOR_EACH_DTYPE(name)                                                                       \
    for (ls_dtype name = LS_DTYPE_F32; name <= LS_DTYPE_BF16; name = (ls_dtype)(name + 1))

/* The body runs with 1, 2 and 3 threads; it must give the same bits each time. */
#define FOR_EACH_THREADS(name)                                                                     \
    for (int name = (spread_set(1), 1); name <= 3; spread_set(++name <= 3 ? name : 0))

#endif
