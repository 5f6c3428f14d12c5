/*
 * staging.h - private to the plan: the copies between host and device memory, as calls.
 *
 * A tape knows no places.  Given a placement, every tensor gets one; what the compute lane reads or
 * writes of a tensor that lives in host memory goes through a slot of device memory, and copies in
 * and out are put where they belong (visits.h says when).  Visits take the slots of their pool in
 * the order in which they are wanted, the one given up longest ago first, as early as one is free;
 * every segment starts anew.
 *
 * A visit that only reads is never copied out, nor one whose result nobody reads later in the
 * segment; one that writes everything is never copied in.
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
    ls_tape tape;              /* the tensors of the first tape, then slots' and copies */
    ls_staged_tensor *tensors; /* [tape.n_tensors] */
    int32_t n_slots;
} ls_staged;

/*
 *   staged  [out] release with ls_staged_free()
 * Returns LS_OK, LS_ERR_NO_MEMORY.
 */
ls_status ls_stage(const ls_tape *tape, const ls_placement *placement, ls_staged *staged);

void ls_staged_free(ls_staged *staged);

#endif
