/*
 * index_test.h - what the tests of large indices share: sizes just below, at and above 2^16 rows,
 * columns and elements, or 2^31 elements if the program's argument is "far"; integers near the
 * places where a narrower index would wrap, one value everywhere else.
 *
 * Layer: tests.  Header only.
 */
#ifndef LS_INDEX_TEST_H
#define LS_INDEX_TEST_H

#include "far_tensor.h"

#include <stdbool.h>

typedef struct shape {
    int64_t N, D;
} shape;

#define K31 ((int64_t)1 << 31)
#define BF  LS_DTYPE_BF16
#define F32 LS_DTYPE_F32

static const shape near_shapes[] = {{65535, 8}, {65536, 8}, {65537, 8}, /* rows */
                                    {1023, 64}, {1024, 64}, {1025, 64}, /* elements */
                                    {3, 65534}, {3, 65536}, {3, 65538} /* columns */};
static const shape far_shapes[] = {
    {K31 / 4096 + 1, 4096}, {K31 / 4096, 4096}, {K31 / 4096 - 1, 4096}};
static const int64_t near_lengths[] = {65535, 65536, 65537};
static const int64_t far_lengths[] = {K31 + 5000, K31, K31 - 1};

static bool far;

/* Sanitized loops are slow, and the largest shape, the first, has the indices of all. */
static inline int64_t count_far(int64_t n)
{
#if defined(LS_SANITIZED)
    return n < 1 ? n : 1;
#else
    return n;
#endif
}

static inline void for_each_shape(void (*check)(const edge_rows *e))
{
    const int64_t n = far ? count_far(COUNT_OF(far_shapes)) : COUNT_OF(near_shapes);

    for (int64_t i = 0; i < n; i++) {
        const shape *s = far ? &far_shapes[i] : &near_shapes[i];
        const edge_rows e = find_edges(s->N, s->D);
        check(&e);
    }
}

static inline void for_each_length(void (*check)(const edge_rows *e))
{
    const int64_t n = far ? count_far(COUNT_OF(far_lengths)) : COUNT_OF(near_lengths);

    for (int64_t i = 0; i < n; i++) {
        const edge_rows e = find_edges(far ? far_lengths[i] : near_lengths[i], 1);
        check(&e);
    }
}

/* The index of element d of the i-th edge row, and its value. */
static inline int64_t at(const edge_rows *e, int64_t i, int64_t d)
{
    return e->rows[i] * e->D + d;
}

static inline double value(const far_tensor *t, const edge_rows *e, int64_t i, int64_t d)
{
    return get(t->data, at(e, i, d), t->dtype);
}

static inline bool wants_far(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], "far") == 0;
}

#endif
