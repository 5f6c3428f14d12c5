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
#include "model_config.h"
#include "run_config.h"

#define LS_RUN_WARNING_BYTES 1024

/*
 * Whether sequences of a run with random weights are longer than the model's RoPE covers.  Rotary
 * positions have no end of their own, so the run is sound; whether it is wanted, only the user
 * knows.  (For pretrained weights ls_run_model_read() refuses it.)
 *   text  [out] where it returns true: both numbers, what follows, and the remedy
 */
bool ls_run_warning_positions(const ls_run_config *config, const ls_model_config *model,
                              char text[LS_RUN_WARNING_BYTES]);

/* Whether what is placed on nvme lies in memory all the same: nvme.path is in a tmpfs.  text as
 * above. */
bool ls_run_warning_nvme(const ls_run_config *config, const ls_hardware *hardware,
                         char text[LS_RUN_WARNING_BYTES]);

/* All warnings of the run, that of the hardware included, a line each, to stderr. */
void ls_run_warnings_print(const ls_run_config *config, const ls_model_config *model,
                           const ls_hardware *hardware);

#endif
