/*
 * layout.h - private to the plan: offsets of the tensors in their arena.
 *
 * Layer: plan, private.
 */
#ifndef LS_LAYOUT_H
#define LS_LAYOUT_H

#include "plan.h"

/*
 * Set the span of every tensor of the plan, from the steps' operands (tensor and access; their
 * spans are not read).
 *   arena_bytes  [out] what the arena must hold
 * Returns LS_OK, LS_ERR_NO_MEMORY, LS_ERR_INVALID (beyond 2^63 bytes).
 */
ls_status ls_plan_lay_out(ls_plan *plan, uint64_t *arena_bytes);

#endif
