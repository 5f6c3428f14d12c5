/*
 * run_record.h - what is written of each step and evaluation of a run: its line in record.jsonl,
 * and the figures for Prometheus.
 *
 * Layer: engine.  Threads: one at a time.
 */
#ifndef LS_RUN_RECORD_H
#define LS_RUN_RECORD_H

#include "loss_record.h"
#include "plan_job.h"
#include "prometheus.h"
#include "record.h"
#include "run_meters.h"
#include "trainer.h"

typedef struct ls_run_record {
    ls_trainer *trainer;
    const ls_prediction *prediction; /* of a step, by the profile's rates */
    ls_run_meters *meters;           /* of the owner, who sets it before the first step */
    int attempt;
    ls_record *lines;
    ls_prometheus *metrics;
    ls_loss_record step_losses, eval_losses;
    uint64_t anonymous_bytes_peak; /* at the end of steps */
} ls_run_record;

/*
 * Begin, or continue, in the run's directory, which is there.
 *   trainer, prediction  stay in use
 *   eval_losses          what evaluations gather
 * LS_ERR_IO, LS_ERR_NO_MEMORY; ls_run_record_close() is called either way.
 */
ls_status ls_run_record_open(ls_run_record *record, ls_trainer *trainer,
                             const ls_prediction *prediction, const ls_loss_stats *eval_losses,
                             bool resume);
void ls_run_record_close(ls_run_record *record);

/* A step is complete.  LS_ERR_IO, LS_ERR_NO_MEMORY. */
ls_status ls_run_record_step(ls_run_record *record, const ls_step_result *result,
                             const ls_loss_stats *losses);

/* An evaluation after the trainer's step has ended; line is filled.  The same errors. */
ls_status ls_run_record_eval(ls_run_record *record, const ls_loss_stats *losses, double seconds,
                             ls_eval_record *line);

#endif
