/*
 * attention_vector.h - attention in fp32 vectors, for both element types and K up to 256; included
 * by attention_plain.c, attention_avx2.c and attention_avx512.c, which define ATTENTION_KERNEL.
 *
 * Tiles are converted to fp32 scratch on the stack, packed to K, so that narrow heads stay in the
 * nearest cache.  All products run through one register-blocked loop (vector_products.h), which
 * bounds the speed: forward 4 K FLOPs a pair, backward 10 K.  What each pair costs besides, an
 * exponential above all, takes its turns in the same units.
 *
 * Layer: kernels, private.
 */
#include "attention_tile.h"

#include <math.h>

#include "bf16.h"
#include "vector_products.h"
#if defined(__AVX512BW__)
#include "turn_avx512.h"
#endif

enum {
    WIDTH_MOST = 256,
    QUERIES = LS_ATTENTION_QUERY_TILE,
    KEYS = 64, /* taken at a time */
    ROUND = 16,
};

_Static_assert(LS_ATTENTION_KEY_TILE % KEYS == 0, "whole steps");

#define LOG2_E 1.44269504088896341f
#define LN_2   0.69314718055994531f
#define NEVER  (-1e30f) /* a maximum below every score: finite, so that differences are numbers */
#define UNSEEN (-INFINITY) /* the score of a masked pair: 2^UNSEEN is 0 even next to NEVER */

/* Rounded up to whole vectors of any width. */
static int64_t padded(int64_t n)
{
    return (n + ROUND - 1) / ROUND * ROUND;
}

/* to[i] = from[at + i] in fp32 */
static inline void line_read(float *to, const void *from, int64_t at, int64_t n, ls_dtype dtype)
{
    if (dtype == LS_DTYPE_F32) {
        memcpy(to, (const float *)from + at, (size_t)n * sizeof *to);
        return;
    }
    const ls_bf16 *line = (const ls_bf16 *)from + at;
    int64_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES) vf_store(to + i, vf_load_bf16(line + i));
    for (; i < n; i++) to[i] = ls_bf16_to_f32(line[i]);
}

/* Where the rows of one head lie in a tensor. */
typedef struct rows_place {
    const void *from;
    int64_t at, stride; /* of elements */
    int64_t n_rows, n_cols;
    ls_dtype dtype;
} rows_place;

/* to[row][to_stride] = the rows in fp32, with 0 in the columns they lack. */
static void rows_read(float *to, int64_t to_stride, const rows_place *place)
{
    for (int64_t i = 0; i < place->n_rows; i++) {
        float *row = to + i * to_stride;
        line_read(row, place->from, place->at + i * place->stride, place->n_cols, place->dtype);
        for (int64_t k = place->n_cols; k < to_stride; k++) row[k] = 0.0f;
    }
}

/*
 * to[col][to_stride] = from[row][col]: rows become lanes, those from n_rows up to a multiple of
 * ROUND 0.
 */
static void rows_turn(float *to, int64_t to_stride, const float *from, int64_t from_stride,
                      const int64_t counts[2])
{
    const int64_t n_rows = counts[0], n_cols = counts[1];
    for (int64_t i = 0; i < n_rows; i += ROUND) {
        const int64_t left = n_rows - i < ROUND ? n_rows - i : ROUND;
#if defined(__AVX512BW__)
        turn_f32(to + i, to_stride, from + i * from_stride, from_stride, (int)left, (int)n_cols);
#else
        for (int64_t col = 0; col < n_cols; col++)
            for (int64_t lane = 0; lane < ROUND; lane++)
                to[col * to_stride + i + lane] =
                    lane < left ? from[(i + lane) * from_stride + col] : 0.0f;
#endif
    }
}

#include "attention_vector_backward.h"
#include "attention_vector_forward.h"

static int usable(ls_dtype dtype, int64_t K)
{
    return (dtype == LS_DTYPE_F32 || dtype == LS_DTYPE_BF16) && K <= WIDTH_MOST;
}

const ls_attention_kernel ATTENTION_KERNEL = {
    .name = ATTENTION_NAME,
    .usable = usable,
    .forward = forward,
    .forward_tasks = LS_ATTENTION_FORWARD_TASKS_MOST,
    .backward = backward,
};
