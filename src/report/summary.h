/* summary.h - one run in a few figures.  Layer: report, internal. */
#ifndef LS_SUMMARY_H
#define LS_SUMMARY_H

#include <stdio.h>

#include "run_data.h"
#include "statistics.h"

typedef struct ls_run_summary {
    const ls_run_data *data;
    int64_t steps, skipped;
    double tokens; /* of all steps */
    double loss, eval_loss;
    ls_typical step_s, tokens_per_s, mfu_causal, mfu_megatron, tflops_alst;
    ls_typical joules[LS_RAIL_COUNT]; /* of a step */
    double joules_all[LS_RAIL_COUNT]; /* of the steps whose joules are known */
    double joules_per_token[LS_RAIL_COUNT];
    double joules_per_tflop[LS_RAIL_COUNT];
    double watts[LS_RAIL_COUNT]; /* mean over the steps whose joules are known */
    double idle_watts[LS_RAIL_COUNT];
    double known[LS_RAIL_COUNT]; /* part of the steps' time for which they are */
    double peak_host, peak_hbm;
    double lane_busy[LS_RUN_LANES];    /* part of the time */
    double phase_s[LS_RUN_PHASES_MAX]; /* mean of a step */
    double predicted;                  /* predicted / measured step; NAN: not predicted */
    double copy_rate[2];     /* in, out: bytes per second while copying; NAN: nothing was copied */
    double link_fraction[2]; /* of what the profile says of the link; NAN: it does not */
} ls_run_summary;

/* LS_ERR_NO_MEMORY. */
ls_status ls_run_summarize(const ls_run_data *data, ls_run_summary *summary);

/* The rail that speaks for the whole machine best, of those that all of the runs have: module, gpu,
 * cpu, in this order; NONE: they have none in common. */
ls_rail ls_report_rail(const ls_run_summary *runs, int n_runs);

/* Print a table for people. */
void ls_report_table(FILE *file, const ls_run_summary *runs, int n_runs);

/* "+5.2% (noise 1.1%)", "same within 1.3%", "-". */
const char *ls_report_compare(char text[64], const ls_typical *base, const ls_typical *other);

/* Write OUT/report.html and OUT/NAME.svg.  LS_ERR_IO, LS_ERR_NO_MEMORY. */
ls_status ls_report_page(const char *out, const ls_run_summary *runs, int n_runs,
                         const char *version);

/* Write a data set.  LS_ERR_IO. */
ls_status ls_report_export(const char *directory, const ls_run_summary *runs, int n_runs,
                           const char *version);

#endif
