/*
 * run_file.h - run.json: what ran, with which config, on which machine, by which plan.
 * Layer: engine.
 */
#ifndef LS_RUN_FILE_H
#define LS_RUN_FILE_H

#include "trainer.h"

#define LS_RUN_SCHEMA 1

/* Write OUTPUT/run.json, replacing an earlier attempt's.  LS_ERR_IO, LS_ERR_NO_MEMORY. */
ls_status ls_run_file_write(const ls_trainer *trainer, const cJSON *config_json,
                            const char *version, int attempt);

#endif
