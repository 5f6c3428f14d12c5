/* executor.c - plan order in, tickets across lanes. */
#include "executor.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define TEXT_BYTES 192

static void *span_address(const ls_executor *e, ls_span span)
{
    return span.arena < 0 ? NULL : (char *)e->arenas[span.arena] + span.offset;
}

void *ls_executor_address(const ls_executor *executor, int32_t tensor)
{
    assert(tensor >= 0 && tensor < executor->plan->n_tensors);
    return span_address(executor, executor->plan->tensors[tensor].span);
}

/* The step's args with its operands' addresses filled in. */
static ls_op_args bind_args(const ls_executor *e, const ls_step *step)
{
    const ls_op_info *info = ls_op_describe(step->op);
    ls_op_args args = e->plan->args[step->args];

    for (int i = 0; i < step->n_operands; i++) {
        void *address = span_address(e, e->plan->operands[step->first_operand + i].span);
        memcpy((char *)&args + info->operands[i].offset, &address, sizeof address);
    }
    return args;
}

static ls_status submit_step(const ls_executor *e, int64_t index)
{
    const ls_step *step = &e->plan->steps[index];

    for (int64_t w = 0; w < step->n_waits; w++) {
        const int64_t on = e->plan->waits[step->first_wait + w];
        const int other = (int)e->plan->steps[on].lane;
        LS_TRY(ls_device_submit_wait(e->device, (int)step->lane, other, e->tickets[on]));
    }
    if (step->kind == LS_STEP_OP) {
        const ls_op_args args = bind_args(e, step);
        LS_TRY(ls_device_submit_op(e->device, (int)step->lane, index, step->op, &args));
    } else {
        ls_device_call *call = step->kind == LS_STEP_BATCH ? e->batch : e->loss;
        LS_TRY(ls_device_submit_call(e->device, (int)step->lane, index, call, e->context,
                                     step->chunk));
    }
    e->tickets[index] = ls_device_ticket(e->device, (int)step->lane);
    return LS_OK;
}

ls_status ls_executor_run(const ls_executor *executor, ls_segment_kind segment)
{
    const ls_plan *plan = executor->plan;
    const int64_t first = plan->segment_first[segment];
    const int64_t end = first + plan->segment_steps[segment];
    bool stopped = false, committed = false;
    int64_t failed = -1;

    for (int64_t i = first; i < end; i++) {
        stopped = !committed && executor->stop != NULL && executor->stop(executor->context);
        if (stopped || submit_step(executor, i) != LS_OK) break; /* sync tells the failure */
        committed = committed || plan->steps[i].commit;
    }
    const ls_status status = ls_device_sync(executor->device, &failed);
    if (status != LS_OK && failed >= 0) {
        char step[TEXT_BYTES];
        ls_plan_describe_step(plan, failed, step, sizeof step);
        return LS_FAIL(status, "%s: %s", step, ls_error());
    }
    if (status != LS_OK) return status;
    return stopped ? LS_FAIL(LS_ERR_STOPPED, "asked to stop") : LS_OK;
}
