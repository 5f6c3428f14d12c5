/* statistics.c - medians of blocks. */
#include "statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS_MIN 4
#define BLOCKS_MAX 12
#define BLOCK_MIN  3    /* values */
#define BAND_MIN   0.01 /* two runs are never told apart by less */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static double median_of(double *values, int64_t n)
{
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/* Student's t at 99.5%, by degrees of freedom: two-sided 1%. */
static double student(int freedom)
{
    static const double table[] = {63.66, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36,
                                   3.25,  3.17, 3.11, 3.05, 3.01, 2.98, 2.95, 2.92,
                                   2.90,  2.88, 2.86, 2.85, 2.83, 2.82};
    const int last = (int)(sizeof table / sizeof table[0]);
    return table[(freedom < 1 ? 1 : freedom > last ? last : freedom) - 1];
}

/* The spread of block medians over the root of their number; values in order, scratch as long. */
static double block_noise(const double *values, int64_t n, double *scratch, int *n_blocks)
{
    double medians[BLOCKS_MAX], mean = 0.0, squares = 0.0;
    int blocks = (int)(n / BLOCK_MIN < BLOCKS_MAX ? n / BLOCK_MIN : BLOCKS_MAX);

    *n_blocks = blocks;
    if (blocks < BLOCKS_MIN) return (double)NAN;
    for (int b = 0; b < blocks; b++) {
        const int64_t from = n * b / blocks, to = n * (b + 1) / blocks;
        memcpy(scratch, values + from, (size_t)(to - from) * sizeof *values);
        medians[b] = median_of(scratch, to - from);
        mean += medians[b] / blocks;
    }
    for (int b = 0; b < blocks; b++) squares += (medians[b] - mean) * (medians[b] - mean);
    return sqrt(squares / (blocks - 1) / blocks);
}

static int64_t warm_up(int64_t n)
{
    const int64_t tenth = n / 10 < 20 ? n / 10 : 20;
    const int64_t skip = tenth < 2 ? 2 : tenth;
    return n >= skip + BLOCKS_MIN * BLOCK_MIN ? skip : 0;
}

ls_status ls_typical_of(const double *values, int64_t n, ls_typical *typical)
{
    double *kept = malloc(2 * (size_t)(n + 1) * sizeof *kept);
    double *scratch = kept != NULL ? kept + n + 1 : NULL;
    int64_t n_kept = 0;

    if (kept == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "statistics of %lld steps", (long long)n);
    *typical = (ls_typical){.median = (double)NAN,
                            .least = (double)NAN,
                            .most = (double)NAN,
                            .mean = (double)NAN,
                            .noise = (double)NAN};
    for (int64_t i = warm_up(n); i < n; i++)
        if (isfinite(values[i])) kept[n_kept++] = values[i];
    typical->n = n_kept;
    if (n_kept > 0) {
        double sum = 0.0;
        for (int64_t i = 0; i < n_kept; i++) sum += kept[i];
        typical->mean = sum / (double)n_kept;
        typical->noise = block_noise(kept, n_kept, scratch, &typical->n_blocks);
        typical->median = median_of(kept, n_kept);
        typical->least = kept[0];
        typical->most = kept[n_kept - 1];
    }
    free(kept);
    return LS_OK;
}

ls_comparison ls_compare(const ls_typical *base, const ls_typical *other)
{
    const double a = base->noise / base->median, b = other->noise / other->median;
    const int freedom = (base->n_blocks < other->n_blocks ? base->n_blocks : other->n_blocks) - 1;
    ls_comparison c = {.ratio = other->median / base->median, .verdict = 2};

    c.band = student(freedom) * sqrt(a * a + b * b);
    if (!isfinite(c.ratio) || !isfinite(c.band)) return c;
    if (c.band < BAND_MIN) c.band = BAND_MIN;
    c.verdict = c.ratio > 1.0 + c.band ? 1 : c.ratio < 1.0 - c.band ? -1 : 0;
    return c;
}
