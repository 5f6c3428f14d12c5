/*
 * simulate.h - run a plan on a clock: every step takes what it would cost alone, or longer where
 * lanes want more of a resource than there is.
 *
 * Lanes run their steps in plan order; a step starts when what it waits for is over.  The plan's
 * step segment repeats until two repetitions take as long: updates overlap the next forward, so
 * only then is a step's time its own.  Where running steps together ask for more bytes per second
 * of a resource than it has, each gets the same share of its demand, and a step runs at the share
 * of the resource it is shortest of.
 *
 * Where the watts of the units are known (power_model.h), what they draw is summed as the clock
 * goes on, and power caps slow the GPU.
 *
 * Without sharing, a faster machine never takes longer.  With it that may happen, as on a real
 * machine: a copy that starts sooner may take its share of memory from a step that others wait for.
 *
 * Layer: plan.  Threads: any; plain data.
 */
#ifndef LS_SIMULATE_H
#define LS_SIMULATE_H

#include "cost.h"

typedef struct ls_simulation {
    double step_s;                        /* from one repetition's end to the next one's */
    double first_s;                       /* the first, on empty lanes */
    int steady;                           /* the repetition that step_s and lane_busy_s are of */
    double lower_bound_s;                 /* the busiest lane or resource, alone, under the caps */
    const char *bound_by;                 /* its name; static text */
    double lane_busy_s[LS_LANE_COUNT];    /* of one repetition, contention included */
    double lane_alone_s[LS_LANE_COUNT];   /* the same without contention */
    double resource_s[LS_RESOURCE_COUNT]; /* bytes / rate; 0 where there is no limit */
    double gpu_j, cpu_j;                  /* energy of step_s; 0 where watts are not known */
    double watts_peak;                    /* of both at once, since the start */
    double capped_s;                      /* of step_s a power cap slowed it */
} ls_simulation;

/* A step has run: repetition 0, 1, ... */
typedef void ls_simulate_visit(void *context, int64_t step, int repetition, double start_s,
                               double end_s);

/*
 * Simulate the step segment.
 *
 *   model  complete (why_unknown "")
 *   visit  called for each step as it ends; may be NULL
 *
 * Returns LS_OK, LS_ERR_NO_MEMORY, LS_ERR_INVALID (a wait that nothing ends: not a checked plan).
 */
ls_status ls_simulate(const ls_plan *plan, const ls_cost_model *model, ls_simulate_visit *visit,
                      void *context, ls_simulation *simulation);

#endif
