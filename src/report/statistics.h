/*
 * statistics.h - what is typical of a run, how much it varies, and whether two runs differ.
 *
 * Steps of one run are no independent draws: machines drift, other programs come and go.  So a run
 * is cut into blocks of neighbouring steps, and the noise of its typical step is told from how much
 * the blocks' medians differ; a single slow step counts for little.
 *
 * Layer: report.  Threads: no shared state.
 */
#ifndef LS_STATISTICS_H
#define LS_STATISTICS_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

typedef struct ls_typical {
    int64_t n; /* values that count: finite, after the first few */
    double median, least, most;
    double mean;
    double noise; /* standard error of the median; NAN: too few values to tell */
    int n_blocks;
} ls_typical;

/* Of values in the order of steps; the first tenth, at least two and at most twenty, are left out
 * where enough remain: caches and clocks are cold.  LS_ERR_NO_MEMORY. */
ls_status ls_typical_of(const double *values, int64_t n, ls_typical *typical);

typedef struct ls_comparison {
    double ratio; /* other / base */
    double band;  /* of the ratio, to either side of 1: differences within it are noise */
    int verdict;  /* 1 larger, -1 smaller, 0 within the band; 2: cannot be told */
} ls_comparison;

ls_comparison ls_compare(const ls_typical *base, const ls_typical *other);

#endif
