/*
 * save_search.h - which save policy: the one that `auto` means, and the one nearest to a policy
 * that has no room.
 *
 * Both walk from what keeps most to what keeps least; a plan is built and measured for each policy
 * that is not too large by its kept tensors alone.
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

/*
 * What `auto` means: the first of x+qkv+o, x+o, o+x/2, o+x/4, x whose whole plan keeps within half
 * of the host memory that is available (beside a GPU: within 15 sixteenths), and within device
 * memory and the disk, if some of it is placed there; else x.
 *   choices  all but saves and placement are set; those are
 */
ls_status ls_save_choose(const ls_run_config *config, const ls_model_config *model,
                         const ls_hardware *hardware, ls_choices *choices);

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
