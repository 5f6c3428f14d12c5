/* report.c - read the runs, sum them up, write what is asked for. */
#include "report.h"

#include <stdlib.h>
#include <string.h>

#include "directory.h"
#include "summary.h"
#include "tensorboard.h"

static ls_status check_options(const ls_report_options *o)
{
    if (o->n_runs < 1)
        return LS_FAIL(LS_ERR_INVALID,
                       "no run directory; give one or more, as `output` names them");
    if (o->n_runs > LS_REPORT_RUNS_MAX)
        return LS_FAIL(LS_ERR_INVALID, "%d run directories; at most %d side by side", o->n_runs,
                       LS_REPORT_RUNS_MAX);
    return LS_OK;
}

static ls_status read_runs(const ls_report_options *o, ls_run_data *data, ls_run_summary *runs)
{
    for (int r = 0; r < o->n_runs; r++) {
        LS_TRY(ls_run_data_read(o->runs[r], &data[r]));
        if (data[r].n_steps == 0)
            return LS_FAIL(LS_ERR_INVALID, "%s: its record has no step yet", o->runs[r]);
        LS_TRY(ls_run_summarize(&data[r], &runs[r]));
    }
    return LS_OK;
}

static ls_status write_all(const ls_report_options *o, const ls_run_summary *runs, FILE *file)
{
    const char *const folders[] = {o->out, o->export_dir, o->tensorboard};

    for (int i = 0; i < 3; i++)
        if (folders[i] != NULL) LS_TRY(ls_directory_make(folders[i]));
    ls_report_table(file, runs, o->n_runs);
    if (o->out != NULL) {
        LS_TRY(ls_report_page(o->out, runs, o->n_runs, o->version));
        fprintf(file, "\nwritten: %s/report.html\n", o->out);
    }
    if (o->export_dir != NULL) {
        LS_TRY(ls_report_export(o->export_dir, runs, o->n_runs, o->version));
        fprintf(file, "\nwritten: the data set %s\n", o->export_dir);
    }
    if (o->tensorboard != NULL) {
        LS_TRY(ls_report_tensorboard(o->tensorboard, runs, o->n_runs));
        fprintf(file, "\nwritten: scalars; tensorboard --logdir %s\n", o->tensorboard);
    }
    return LS_OK;
}

ls_status ls_report(const ls_report_options *options, FILE *file)
{
    LS_TRY(check_options(options));
    ls_run_data *data = calloc((size_t)options->n_runs, sizeof *data);
    ls_run_summary *runs = calloc((size_t)options->n_runs, sizeof *runs);
    ls_status status = LS_OK;

    if (data == NULL || runs == NULL) status = LS_FAIL(LS_ERR_NO_MEMORY, "a report");
    if (status == LS_OK) status = read_runs(options, data, runs);
    if (status == LS_OK) status = write_all(options, runs, file);
    for (int r = 0; data != NULL && r < options->n_runs; r++) ls_run_data_free(&data[r]);
    free(data);
    free(runs);
    return status;
}
