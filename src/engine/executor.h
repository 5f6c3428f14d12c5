/*
 * executor.h - runs one segment of a plan on a device.
 *
 * Submission follows plan order; each step's waits become waits on the tickets of earlier steps.
 * A stop request is honoured between steps until the first commit step has been submitted; from
 * there on the segment is finished, so an update is never half done.
 *
 * Layer: engine.  Threads: one thread runs segments; batch and loss run on the host lane's thread,
 * stop on the caller's.
 */
#ifndef LS_EXECUTOR_H
#define LS_EXECUTOR_H

#include <stdbool.h>

#include "device.h"
#include "plan.h"

/* Asked before each step is submitted: true = stop as soon as that is safe. */
typedef bool ls_stop_query(void *context);

typedef struct ls_executor {
    const ls_plan *plan;
    ls_device *device;
    void *const *arenas;   /* [n_arenas] base addresses */
    ls_device_call *batch; /* fills the batch tensors; argument: micro-batch */
    ls_device_call *loss;  /* collects losses; argument: micro-batch */
    ls_stop_query *stop;   /* may be NULL */
    void *context;         /* of the three */
    uint64_t *tickets;     /* [n_steps] scratch, owned by the caller */
} ls_executor;

/*
 * Run a segment to its end.
 * Returns LS_OK, LS_ERR_STOPPED (stopped before any commit step: no weight has changed), or the
 * failure of a step, with the step described in the text.
 */
ls_status ls_executor_run(const ls_executor *executor, ls_segment_kind segment);

/* Address of a tensor of the plan. */
void *ls_executor_address(const ls_executor *executor, int32_t tensor);

#endif
