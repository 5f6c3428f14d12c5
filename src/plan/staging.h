/*
 * staging.h - private to the plan: the copies between host and device memory, as calls.
 *
 * A tape knows no places.  Given a placement, every tensor gets one; what the compute lane reads or
 * writes of a tensor that lives in host memory, or in a file mapped there, goes through a slot of
 * device memory, and copies in and out are put where they belong (visits.h says when).  Visits take
 * the slots of their pool in the order in which they are wanted, the one given up longest ago
 * first, as early as one is free; every segment starts anew.
 *
 * What the compute lane updates in its resident copy goes back to the original right before another
 * lane reads it.  A visit that only reads is never copied out, nor one whose result nobody reads
 * later in the segment; one that writes everything is never copied in.
 *
 * Layer: plan, private.
 */
#ifndef LS_STAGING_H
#define LS_STAGING_H

#include "place.h"
#include "tape.h"

typedef struct ls_staged_tensor {
    ls_place_kind place;
    int32_t slot;   /* its bytes are those of this slot; -1: its own */
    int32_t source; /* it is a copy of this tensor that is kept between segments; -1: none */
    bool computes;  /* the compute lane touches it */
} ls_staged_tensor;

typedef struct ls_staged {
    ls_tape tape;              /* the tensors of the first tape, then slots' and copies; no calls */
    ls_staged_tensor *tensors; /* [tape.n_tensors] */
    int32_t n_slots;
} ls_staged;

/* Takes the calls one by one, in order, copies among them.  A status but LS_OK ends it. */
typedef ls_status ls_stage_sink(void *context, ls_segment_kind segment, const ls_call *call);

/*
 *   staged  [out] holds the tensors that calls so far have named whenever one is taken; zeroed by
 *           the caller, released with ls_staged_free(), also after a failure
 * Returns LS_OK, LS_ERR_NO_MEMORY, what the sink returned.
 */
ls_status ls_stage(const ls_tape *tape, const ls_placement *placement, ls_stage_sink *sink,
                   void *context, ls_staged *staged);

void ls_staged_free(ls_staged *staged);

#endif
