/*
 * save_search.h - the ladder of save policies, what they keep by closed formula, and the one
 * nearest to a policy that has no room.
 *
 * Layer: engine.  Threads: no shared state.
 */
#ifndef LS_SAVE_SEARCH_H
#define LS_SAVE_SEARCH_H

#include "choices.h"

/* Bytes of what is kept of a micro-batch and put neither into device memory for good nor into a
 * file; some of it may stay in device memory all the same, in slots that nobody wants before
 * backward.  0 with frozen groups: layers below which nothing trains keep nothing. */
double ls_save_host_bytes(const ls_run_config *config, const ls_model_config *model,
                          const ls_saves *saves);

/* Policies of whole models from what keeps most, and so recomputes least: x+qkv+o, x+o, o+x/2,
 * o+x/4, o+x/8, x, and with less than that x/2, x/4, x/8. */
#define LS_SAVE_POLICIES        9
#define LS_SAVE_POLICIES_WITH_X 6 /* that rebuild attention in no layer but the one at work */
extern const ls_save_policy ls_save_ladder[LS_SAVE_POLICIES];

/* Weights, master remainders, moments and gradients, at least: frozen ones have weights alone. */
double ls_save_states_bytes(const ls_run_config *config, const ls_model_config *model,
                            bool layer_major);

/* How much of the host's memory `auto` fills: beside a GPU the trainer is what the machine is there
 * for, and takes 15 sixteenths; elsewhere others want some, and it takes half. */
uint64_t ls_save_host_limit(const ls_hardware *hardware);

typedef struct ls_save_nearest {
    bool found;
    ls_saves saves;
    ls_plan_cost cost;
    double extra_flops_fraction; /* more than what was asked for takes; may be negative */
} ls_save_nearest;

/*
 * The policy that keeps most among those that fit; extra_flops_fraction is of `flops`, a step's as
 * asked for.  Not found: none fits, or there is no room to find out.
 */
ls_status ls_save_find_nearest(const ls_run_config *config, const ls_model_config *model,
                               const ls_hardware *hardware, const ls_choices *asked, double flops,
                               ls_save_nearest *nearest);

#endif
