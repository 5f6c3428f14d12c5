/* page.h - the page at work, and its charts.  Layer: report, internal. */
#ifndef LS_PAGE_H
#define LS_PAGE_H

#include <stdio.h>

#include "chart.h"
#include "summary.h"

typedef struct ls_page {
    FILE *file;
    const char *out;
    const ls_run_summary *runs;
    int n_runs;
    double *arena; /* numbers of the chart at work */
    int64_t n_arena, arena_max;
    ls_chart chart;
} ls_page;

/* Charts of all runs, or of one; each with its .svg beside the page.  What has no data is left out.
 */
ls_status ls_page_shared_charts(ls_page *page);
ls_status ls_page_run_charts(ls_page *page, int run);

/* How many numbers the charts of these runs need at most. */
int64_t ls_page_count_numbers(const ls_run_summary *runs, int n_runs);

#endif
