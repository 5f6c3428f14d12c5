/*
 * run_warning.h - what a run may do, although often nobody meant it to.
 *
 * A warning is one line: on stderr when the job starts, and in the "warnings" of run.json.
 *
 * Layer: engine.  Threads: none.
 */
#ifndef LS_RUN_WARNING_H
#define LS_RUN_WARNING_H

#include "hardware.h"
#include "run_config.h"

#define LS_RUN_WARNING_BYTES 1024

/* Whether what is placed on nvme lies in memory all the same: nvme.path is in a tmpfs.
 *   text  [out] where it returns true: what follows, and the remedy */
bool ls_run_warning_nvme(const ls_run_config *config, const ls_hardware *hardware,
                         char text[LS_RUN_WARNING_BYTES]);

/* All warnings of the run, that of the hardware included, a line each, to stderr. */
void ls_run_warnings_print(const ls_run_config *config, const ls_hardware *hardware);

#endif
