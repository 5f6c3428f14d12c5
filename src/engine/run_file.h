/*
 * run_file.h - run.json: what ran, with which config, on which machine, by which plan.
 * Layer: engine.
 */
#ifndef LS_RUN_FILE_H
#define LS_RUN_FILE_H

#include <time.h>

#include "run_meters.h"
#include "trainer.h"

#define LS_RUN_SCHEMA 1

typedef struct ls_run_file_options {
    const cJSON *config_json;
    const char *version;
    int attempt;
    time_t started;
    ls_run_meters *meters;
    bool final; /* the run has ended: with the meters' sums */
} ls_run_file_options;

/* Write OUTPUT/run.json, replacing an earlier attempt's.  LS_ERR_IO, LS_ERR_NO_MEMORY. */
ls_status ls_run_file_write(const ls_trainer *trainer, const ls_run_file_options *options);

#endif
