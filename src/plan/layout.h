/*
 * layout.h - private to the plan: offsets of the tensors in their arenas.
 *
 * Layer: plan, private.
 */
#ifndef LS_LAYOUT_H
#define LS_LAYOUT_H

#include "plan.h"

/*
 * Set offset and bytes of every tensor's span, in the arena that it names, and the size of every
 * arena, from the steps' operands (tensor and access; their spans are not read).
 * A tensor that no step touches and nothing outlives has no bytes.
 *
 *   slots  [n_tensors] tensors of one slot (>= 0) lie on the same bytes; NULL: there are none
 * Returns LS_OK, LS_ERR_NO_MEMORY, LS_ERR_INVALID (beyond 2^63 bytes).
 */
ls_status ls_plan_lay_out(ls_plan *plan, const int32_t *slots);

#endif
