/*
 * run_meters.h - what a run is measured by while it works: power by phase, and the trace of a few
 * steps.  Both watch the lanes; neither is ever waited for, and without them the run is the same.
 *
 * A phase is what the compute lane does.  While it has nothing to do the run is in `update`, `save`
 * or `batch` if that is what another lane is at, else in `wait`; an update that runs beside the
 * next forward is `forward`: joules of one rail cannot be told apart by lane.
 *
 * Layer: engine.  Threads: step_done and the evaluations' on the threads of their events; open and
 * close by the owner, while nothing is submitted.
 */
#ifndef LS_RUN_METERS_H
#define LS_RUN_METERS_H

#include "power.h"
#include "record.h"
#include "trainer.h"

/* Phases beyond those of the plan. */
enum { LS_RUN_PHASE_EVAL = LS_PHASE_COUNT, LS_RUN_PHASE_WAIT, LS_RUN_PHASE_COUNT };

extern const char *const ls_run_phase_names[LS_RUN_PHASE_COUNT];

typedef struct ls_run_meters ls_run_meters;

/*
 * Begin, as the config's `record` says.  Power that cannot be had is no failure: *why then says
 * why, and it is NULL otherwise.
 *   trainer  open, at its final address, nothing submitted yet
 * LS_ERR_NO_MEMORY.
 */
ls_status ls_run_meters_open(ls_trainer *trainer, bool resume, int attempt, ls_run_meters **meters);

/* Before the trainer closes; waits until its lanes are idle.  NULL is allowed. */
void ls_run_meters_close(ls_run_meters *meters);

/* The first step begins. */
void ls_run_meters_start(ls_run_meters *meters);

/* A step is complete: its joules go into line, which is otherwise filled. */
void ls_run_meters_step(ls_run_meters *meters, ls_step_record *line);

/* An evaluation begins, with nothing else running; and has ended: its joules. */
void ls_run_meters_eval_begin(ls_run_meters *meters);
void ls_run_meters_eval_end(ls_run_meters *meters, ls_eval_record *line);

/* Write what the trace has collected; once a second, on a thread that does not train. */
void ls_run_meters_flush(ls_run_meters *meters);

/* run.json's `power` (null without a recorder), and why energy_j or a rail of it is null: object
 * members of `missing`.  final: with the whole run's sums.  LS_ERR_NO_MEMORY. */
ls_status ls_run_meters_describe(ls_run_meters *meters, bool final, cJSON *run, cJSON *missing);

#endif
