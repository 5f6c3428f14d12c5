/*
 * plan_times.h - how long a step of a plan would take, by simulation on the figures of its machine.
 *
 * Layer: engine.  Threads: plain data.
 */
#ifndef LS_PLAN_TIMES_H
#define LS_PLAN_TIMES_H

#include <stdio.h>

#include "decoder.h"
#include "hardware.h"
#include "simulate.h"

#define LS_TIME_WHY_BYTES 1536

struct ls_plan_report;

typedef struct ls_plan_times {
    char why_unknown[LS_TIME_WHY_BYTES]; /* the figure that is missing; "": the rest is known */
    ls_simulation simulation;
    double tokens_per_s;
    double mfu_causal, mfu_megatron;        /* of the peak that the profile states */
    double tflops_alst;                     /* forward twice, attention as if not causal */
    char why_no_energy[LS_POWER_WHY_BYTES]; /* the figure that is missing; "": the rest is known */
    double watts_average, kwh_per_million_tokens;
} ls_plan_times;

/* What a machine's figures say of a plan's step. */
typedef struct ls_prediction {
    char why_unknown[LS_TIME_WHY_BYTES]; /* of the simulation; "": known */
    char why_no_energy[LS_POWER_WHY_BYTES];
    double peak_flops_per_s; /* of the unit that computes; 0: not known */
    ls_simulation simulation;
} ls_prediction;

/* The figure that a model lacks and the commands that measure all it lacks; "": none. */
void ls_plan_times_explain(const ls_hardware *hardware, const ls_cost_model *model,
                           char why[LS_TIME_WHY_BYTES]);

/* LS_ERR_NO_MEMORY. */
ls_status ls_plan_predict(const ls_hardware *hardware, const ls_plan *plan, ls_dtype dtype,
                          ls_prediction *prediction);

/* Simulate the step of a report's plan.  LS_ERR_NO_MEMORY. */
ls_status ls_plan_times_make(const struct ls_plan_report *report, const ls_decoder_options *options,
                             ls_plan_times *times);

/* Seconds by lane with bars, what bounds the step, what that makes in a day; or why none is known.
 */
void ls_plan_times_print(const struct ls_plan_report *report, FILE *file);

#endif
