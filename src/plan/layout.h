/*
 * layout.h - private to the plan: offsets of the tensors in their arenas.
 *
 * Layer: plan, private.
 */
#ifndef LS_LAYOUT_H
#define LS_LAYOUT_H

#include "plan.h"

/* The steps of each segment that touch a tensor, from the first to the last; none: first > last. */
typedef struct ls_tensor_life {
    int64_t first[LS_SEGMENT_COUNT], last[LS_SEGMENT_COUNT];
    uint32_t lanes; /* bit l: lane l touches it */
} ls_tensor_life;

ls_tensor_life ls_tensor_life_none(void);

/* A step of this lane touches it; steps come in order. */
void ls_tensor_life_note(ls_tensor_life *life, ls_segment_kind segment, int64_t step, ls_lane lane);

typedef struct ls_lifetimes {
    ls_tensor_life *of; /* [n] */
    int32_t n, capacity;
} ls_lifetimes;

/* Make n larger than tensor, if it is not.  LS_OK, LS_ERR_NO_MEMORY. */
ls_status ls_lifetimes_reach(ls_lifetimes *lives, int32_t tensor);
void ls_lifetimes_free(ls_lifetimes *lives);

/*
 * Set offset and bytes of every tensor's span, in the arena that it names, and the size of every
 * arena.  A tensor that no step touches and nothing outlives has no bytes.
 *
 *   lives  [n_tensors]
 *   slots  [n_tensors] tensors of one slot (>= 0) lie on the same bytes; NULL: there are none
 * Returns LS_OK, LS_ERR_NO_MEMORY, LS_ERR_INVALID (beyond 2^63 bytes).
 */
ls_status ls_plan_lay_out(ls_plan *plan, const ls_lifetimes *lives, const int32_t *slots);

#endif
