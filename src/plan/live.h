/*
 * live.h - bytes that hold something at each step of a plan, by place.
 *
 * A tensor lives from the step that writes it (whole, or its first part) to the last that touches
 * it before it is written whole again, within a segment; one that some segment reads before it
 * writes it (a weight, a moment) lives always.  Steps are taken in plan order: lanes that run ahead
 * of each other are not told apart.
 *
 * Layer: plan.  Threads: no shared state.
 */
#ifndef LS_LIVE_H
#define LS_LIVE_H

#include "plan.h"

typedef struct ls_live_bytes {
    uint64_t place[LS_PLACE_COUNT];
} ls_live_bytes;

/*
 * Fill live [plan->n_steps].
 * LS_ERR_NO_MEMORY.
 */
ls_status ls_plan_live_bytes(const ls_plan *plan, ls_live_bytes *live);

#endif
