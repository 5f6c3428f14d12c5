/*
 * executor.h - runs the segments of a plan on a device, one after the other without a pause.
 *
 * Submission follows plan order; a step's waits become waits on tickets: of earlier steps of the
 * segment, or of the step that ended a carry last, in whichever segment that was.  Submitting
 * returns when the last step is queued, not when it has run.  A stop request is honoured between
 * steps until the first commit step has been submitted; from there on the segment is submitted to
 * its end, so an update is never half done.
 *
 * Layer: engine.  Threads: one thread submits and syncs; calls run on the threads of their lanes,
 * stop on the submitting one.
 */
#ifndef LS_EXECUTOR_H
#define LS_EXECUTOR_H

#include <stdbool.h>

#include "device.h"
#include "plan.h"

/* Asked before each step is submitted: true = stop as soon as that is safe. */
typedef bool ls_stop_query(void *context);

/*
 * Asked of each call of attention, with the job of its segment: whether in every micro-batch of it
 * the document of row last_row begins at or before row first_key, and so that of each row before.
 */
typedef bool ls_document_query(void *job, int64_t last_row, int64_t first_key);

typedef struct ls_executor {
    const ls_plan *plan;
    ls_device *device;
    void *const *arenas; /* [n_arenas] base addresses */
    /* What a step that is no op calls, with the job of its segment and the step's `chunk`. */
    ls_device_call *const *calls; /* [LS_CALL_KIND_COUNT] */
    ls_stop_query *stop;          /* may be NULL */
    void *stop_context;
    ls_document_query *one_document; /* NULL: never known */
    uint64_t *tickets;               /* [n_steps] scratch, owned by the caller */
    uint64_t *carry_tickets;         /* [n_carries] zeroed at first, owned by the caller */
} ls_executor;

/*
 * Submit a segment.  The one before must allow it (ls_segment_follows()).
 *   job  given to the calls of this segment; must live until they have run
 * Returns LS_OK, LS_ERR_STOPPED (stopped before any commit step: everything submitted has finished,
 * no weight has changed since the segment before), or the failure of a step, its text naming it.
 */
ls_status ls_executor_submit(ls_executor *executor, ls_segment_kind segment, void *job);

/* Wait until everything submitted has finished: LS_OK or the failure of a step. */
ls_status ls_executor_sync(ls_executor *executor);

/* Address of a tensor of the plan. */
void *ls_executor_address(const ls_executor *executor, int32_t tensor);

#endif
