/*
 * plan_bound.h - bytes that no plan can do without, known before it is built.
 *
 * Layer: plan (uses topology, model).  Threads: no shared state.
 */
#ifndef LS_PLAN_BOUND_H
#define LS_PLAN_BOUND_H

#include "decoder.h"
#include "place.h"

/*
 * Device memory that every plan of this decoder and placement takes at the least: resident weights,
 * and what must lie there at once while a layer works.  From below, and by less than what all of it
 * takes: a placement that passes may not fit all the same.
 */
uint64_t ls_plan_hbm_at_least(const ls_decoder_options *options, const ls_placement *placement);

#endif
