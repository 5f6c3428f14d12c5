/*
 * plan_job.h - the plan of a run on some hardware, built, checked and shown; shared by the commands
 * that look at plans.
 *
 * Layer: engine.  Threads: one at a time.
 */
#ifndef LS_PLAN_JOB_H
#define LS_PLAN_JOB_H

#include "job.h"
#include "plan_report.h"

/* Receives the report of a plan while the plan is there; without one where it was refused. */
typedef ls_status ls_plan_show(const ls_plan_report *report, void *context);

/*
 * Build the plan that training on this hardware would follow, and show it.
 *   hardware  as ls_hardware_open() takes it
 *   options   quiet: no warnings on stderr
 * Returns what show returned, whether the plan fits or not; LS_ERR_INVALID (no such hardware, or
 * the plan is wrong: a bug); LS_ERR_UNSUPPORTED; LS_ERR_IO; LS_ERR_NO_MEMORY.
 */
ls_status ls_plan_on_hardware(const ls_run_config *config, const ls_model_config *model,
                              const char *hardware, const ls_job_options *options,
                              ls_plan_show *show, void *context);

/*
 * Show that there is no plan on this hardware, because of the failure described last.  Returns what
 * show returned, or as ls_hardware_open().
 */
ls_status ls_plan_refuse_on_hardware(const ls_run_config *config, const ls_model_config *model,
                                     const char *hardware, ls_plan_show *show, void *context);

/*
 * Make the failure of a run that found no room say what its plan says: by how much it is short, and
 * which policy of memory.save fits at what cost.  Returns status, whatever it is.
 */
ls_status ls_plan_explain(const ls_run_config *config, const ls_model_config *model,
                          const ls_job_options *options, ls_status status);

/* Write a document and a newline; LS_ERR_NO_MEMORY. */
ls_status ls_plan_print_json(const cJSON *json, FILE *file);

/* LS_ERR_IO if something has not been written. */
ls_status ls_plan_flush(FILE *file);

#endif
