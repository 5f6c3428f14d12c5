/*
 * report.h - run directories looked at: a table for the terminal, a page with pictures, a data set
 * to publish.
 *
 * Layer: report (uses telemetry, base).  Threads: no shared state.
 */
#ifndef LS_REPORT_H
#define LS_REPORT_H

#include <stdio.h>

#include "status.h"

#define LS_REPORT_RUNS_MAX 16

typedef struct ls_report_options {
    const char *const
        *runs; /* [n_runs] run directories; the first is what others are held against */
    int n_runs;
    const char *out;         /* folder for report.html and its pictures; NULL: none */
    const char *export_dir;  /* folder for a data set; NULL: none */
    const char *tensorboard; /* folder for TensorBoard's event files; NULL: none */
    const char *version;     /* of the program */
} ls_report_options;

/*
 * Print the table to file, and write what is asked for.  LS_ERR_INVALID (no run, too many),
 * LS_ERR_IO, LS_ERR_CORRUPT (a record that does not parse), LS_ERR_NO_MEMORY.
 */
ls_status ls_report(const ls_report_options *options, FILE *file);

/*
 * Check a data set that was exported: every table has the columns its schema names, every cell is
 * of its type, runs are those of runs.csv.  Prints a line for each table.  LS_ERR_CORRUPT: the
 * first cell that is wrong, by table, line and column; LS_ERR_IO.
 */
ls_status ls_report_validate(const char *directory, FILE *file);

#endif
