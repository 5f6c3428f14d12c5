/* run_samples.h - power.csv of a run, thinned out to what a picture can show.  Layer: report,
 * internal. */
#ifndef LS_RUN_SAMPLES_H
#define LS_RUN_SAMPLES_H

#include "run_data.h"

#define LS_RUN_SAMPLES_MAX 2000

/* Fill data->samples; no power.csv: none.  LS_ERR_IO, LS_ERR_NO_MEMORY. */
ls_status ls_run_samples_read(ls_run_data *data);

/* Fill data->levels from trace.json, thinned out; no trace: none.  LS_ERR_IO, LS_ERR_NO_MEMORY. */
ls_status ls_run_levels_read(ls_run_data *data);

/* The index of a phase by its name, added if it is new; -1: there are too many. */
int ls_run_data_phase(ls_run_data *data, const char *name);

/* A column of power.csv as run.json describes it. */
typedef struct ls_run_column {
    const cJSON *sensor; /* NULL: not a sensor's */
    ls_rail rail;
    bool counter;
    double update_period_s; /* measured; 0: unknown */
    int method;
    double scale;
} ls_run_column;

#define LS_RUN_COLUMNS_MAX (LS_SENSORS_MAX + 8)

/* What each column of a header is.  Returns how many there are. */
int ls_run_columns(const ls_run_data *data, const char *header,
                   ls_run_column columns[LS_RUN_COLUMNS_MAX]);

#endif
