/*
 * cross_entropy.c - softmax cross-entropy and its gradient on the CPU, a row of logits at a time.
 *
 * Three passes over a row, which L2 holds between them up to a vocabulary of some 200k: maximum,
 * sum of exponentials, gradient.  Exponentials are summed in 16 fp32 lanes over 2048 elements and
 * those sums in fp64, so the error does not grow with V.  About 40 FLOPs and 4 bytes + 1 element
 * per logit; exp is the bound while a row stays in cache.
 *
 * A row with a logit that is not finite has nll NaN and NaN in all of its gradient, -inf included:
 * whichever of the two a step looks at, it sees that the step must be skipped.
 */
#include <assert.h>
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "ops.h"
#include "vec.h"

enum { SUM_BLOCK = 2048 };

/*
 * An int that sorts like the float it is made of, and back: the bits, all but the sign flipped if
 * negative.  Integer maxima need no order, so the compiler may take them in any.
 */
LS_INLINE uint32_t flip_negative(uint32_t bits)
{
    return bits ^ ((0u - (bits >> 31)) >> 1);
}

/* The largest logit; NaN if any is not finite. */
LS_INLINE float find_maximum(const float *x, int64_t V)
{
    int32_t largest = INT32_MIN;
    uint32_t magnitude = 0;
    for (int64_t i = 0; i < V; i++) {
        const uint32_t bits = ls_f32_bits(x[i]);
        const int32_t key = (int32_t)flip_negative(bits);
        largest = key > largest ? key : largest;
        magnitude = (bits & 0x7fffffffu) > magnitude ? bits & 0x7fffffffu : magnitude;
    }
    return magnitude < 0x7f800000u ? ls_f32_from_bits(flip_negative((uint32_t)largest)) : NAN;
}

/* sum exp(x - maximum) */
LS_INLINE double sum_exponentials(const float *x, int64_t V, float maximum)
{
    double sum = 0.0;
    for (int64_t begin = 0; begin < V; begin += SUM_BLOCK) {
        const int64_t end = ls_min_i64(begin + SUM_BLOCK, V);
        const int64_t whole = end - (end - begin) % LS_LANES;
        float lanes[LS_LANES] = {0.0f};
        for (int64_t i = begin; i < whole; i += LS_LANES)
            for (int l = 0; l < LS_LANES; l++) lanes[l] += ls_exp(x[i + l] - maximum);
        for (int64_t i = whole; i < end; i++) lanes[i - whole] += ls_exp(x[i] - maximum);
        for (int l = 0; l < LS_LANES; l++) sum += (double)lanes[l];
    }
    return sum;
}

/* dlogits = factor exp(x - maximum), right but for the target's */
LS_INLINE void write_softmax(void *dlogits, const float *x, int64_t V, float maximum, float factor,
                             ls_dtype dtype)
{
    for (int64_t i = 0; i < V; i++) ls_store(dlogits, i, ls_exp(x[i] - maximum) * factor, dtype);
}

LS_SIMD_CLONES static void lose_row(const ls_cross_entropy_args *args, int64_t n)
{
    const int64_t V = args->V, target = args->targets[n];
    const float *x = args->logits + n * V;
    const float maximum = find_maximum(x, V);
    const double sum = sum_exponentials(x, V, maximum);
    const double nll = log(sum) + ((double)maximum - (double)x[target]);
    /* Two finite logits may lie further apart than fp32 reaches. */
    args->nll[n] = nll > (double)FLT_MAX ? FLT_MAX : (float)nll;
    if (args->dlogits == NULL) return;

    void *dlogits = ls_out_at(args->dlogits, n * V, args->dtype);
    const float scale = *args->scale, factor = (float)((double)scale / sum);
    if (args->dtype == LS_DTYPE_BF16)
        write_softmax(dlogits, x, V, maximum, factor, LS_DTYPE_BF16);
    else
        write_softmax(dlogits, x, V, maximum, factor, LS_DTYPE_F32);
    const double p = (double)ls_exp(x[target] - maximum) / sum;
    ls_store(dlogits, target, (float)((p - 1.0) * (double)scale), args->dtype);
}

ls_status ls_cpu_cross_entropy(void *stream, const ls_cross_entropy_args *args)
{
    (void)stream;
    assert(args->N >= 0 && args->V > 0 && ls_dtype_computes(args->dtype));
    assert(args->dlogits == NULL || args->scale != NULL);
    const int64_t row_bytes = args->V * (int64_t)ls_dtype_bytes(args->dtype);

    LS_OMP(omp parallel for schedule(static))
    for (int64_t n = 0; n < args->N; n++) {
        const int64_t target = args->targets[n];
        if (target == LS_TARGET_IGNORE) {
            args->nll[n] = 0.0f;
            if (args->dlogits != NULL)
                memset((char *)args->dlogits + n * row_bytes, 0, (size_t)row_bytes);
        } else {
            assert(target >= 0 && target < args->V);
            lose_row(args, n);
        }
    }
    return LS_OK;
}
