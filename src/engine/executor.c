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

/* What documents let attention do is known when they are, not to the plan. */
static void promise_document(const ls_executor *e, ls_op op, void *job, ls_op_args *args)
{
    ls_attention_forward_args *f = &args->attention_forward;
    ls_attention_backward_args *b = &args->attention_backward;

    if (op == LS_OP_attention_forward)
        f->one_document = e->one_document(job, f->q_start + f->N - 1, f->k_start);
    if (op == LS_OP_attention_backward)
        b->one_document = e->one_document(job, b->q_start + b->N - 1, b->k_start);
}

/* The step's args with its operands' addresses filled in. */
static ls_op_args bind_args(const ls_executor *e, const ls_step *step, void *job)
{
    const ls_op_info *info = ls_op_describe(step->op);
    ls_op_args args = e->plan->args[step->args];

    for (int i = 0; i < step->n_operands; i++) {
        void *address = span_address(e, e->plan->operands[step->first_operand + i].span);
        memcpy((char *)&args + info->operands[i].offset, &address, sizeof address);
    }
    if (e->one_document != NULL) promise_document(e, step->op, job, &args);
    return args;
}

static ls_status submit_wait(const ls_executor *e, ls_lane lane, int64_t wait)
{
    if (!ls_wait_is_carry(wait))
        return ls_device_submit_wait(e->device, (int)lane, (int)e->plan->steps[wait].lane,
                                     e->tickets[wait]);
    const int64_t carry = ls_wait_carry(wait);
    const uint64_t ticket = e->carry_tickets[carry];
    if (ticket == 0) return LS_OK; /* nothing has touched its tensors yet */
    return ls_device_submit_wait(e->device, (int)lane, (int)e->plan->carries[carry].lane, ticket);
}

static ls_status submit_step(const ls_executor *e, int64_t index, void *job)
{
    const ls_step *step = &e->plan->steps[index];

    for (int64_t w = 0; w < step->n_waits; w++)
        LS_TRY(submit_wait(e, step->lane, e->plan->waits[step->first_wait + w]));
    if (step->kind == LS_CALL_OP) {
        const ls_op_args args = bind_args(e, step, job);
        LS_TRY(ls_device_submit_op(e->device, (int)step->lane, index, step->op, &args));
    } else if (step->kind == LS_CALL_COPY) {
        const ls_step_operand *operands = &e->plan->operands[step->first_operand];
        LS_TRY(ls_device_submit_copy(e->device, (int)step->lane, index,
                                     span_address(e, operands[0].span),
                                     span_address(e, operands[1].span), operands[1].span.bytes));
    } else {
        LS_TRY(ls_device_submit_call(e->device, (int)step->lane, index, e->calls[step->kind], job,
                                     step->chunk));
    }
    e->tickets[index] = ls_device_ticket(e->device, (int)step->lane);
    return LS_OK;
}

static void end_carries(const ls_executor *e, ls_segment_kind segment)
{
    for (int32_t c = 0; c < e->plan->n_carries; c++) {
        const int64_t end = e->plan->carries[c].ends[segment];
        if (end >= 0) e->carry_tickets[c] = e->tickets[end];
    }
}

/* A step that was not taken: the device has failed before, or refuses this one. */
static ls_status fail_submit(ls_executor *e, int64_t index, ls_status status)
{
    char step[TEXT_BYTES], why[TEXT_BYTES];

    snprintf(why, sizeof why, "%s", ls_error());
    LS_TRY(ls_executor_sync(e));
    ls_plan_describe_step(e->plan, index, step, sizeof step);
    return LS_FAIL(status, "%s: %s", step, why);
}

ls_status ls_executor_submit(ls_executor *executor, ls_segment_kind segment, void *job)
{
    const ls_plan *plan = executor->plan;
    const int64_t first = plan->segment_first[segment];
    const int64_t end = first + plan->segment_steps[segment];
    bool committed = false;

    for (int64_t i = first; i < end; i++) {
        if (!committed && executor->stop != NULL && executor->stop(executor->stop_context)) {
            LS_TRY(ls_executor_sync(executor));
            return LS_FAIL(LS_ERR_STOPPED, "asked to stop");
        }
        const ls_status status = submit_step(executor, i, job);
        if (status != LS_OK) return fail_submit(executor, i, status);
        committed = committed || plan->steps[i].commit;
    }
    end_carries(executor, segment);
    return LS_OK;
}

ls_status ls_executor_sync(ls_executor *executor)
{
    int64_t failed = -1;
    const ls_status status = ls_device_sync(executor->device, &failed);

    if (status == LS_OK || failed < 0) return status;
    char step[TEXT_BYTES];
    ls_plan_describe_step(executor->plan, failed, step, sizeof step);
    return LS_FAIL(status, "%s: %s", step, ls_error());
}
