/*
 * lower.c - from a tape to a plan: one step for each call, a lane for each step.
 *
 * Where tensors lie is decided by layout.c, what waits for what by order.c.
 */
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "order.h"

typedef struct lowering {
    const ls_tape *tape;
    const ls_ops *ops;
    ls_plan *plan;
    int32_t workspace; /* the tensor that holds the ops' workspaces, -1: none needed */
} lowering;

/* Batches come from disk and go to their own lane: on the host lane they would queue behind the
 * updates of the step before. */
static ls_lane lane_of(const ls_call *call)
{
    switch (call->kind) {
    case LS_CALL_BATCH: return LS_LANE_DISK_IN;
    case LS_CALL_LOSS:
    case LS_CALL_SCHEDULE:
    case LS_CALL_REPORT: return LS_LANE_HOST;
    case LS_CALL_SAVE_BEGIN:
    case LS_CALL_SAVE:
    case LS_CALL_SAVE_END: return LS_LANE_DISK_OUT;
    case LS_CALL_OP:
    case LS_CALL_KIND_COUNT: break;
    }
    return call->phase == LS_PHASE_UPDATE ? LS_LANE_HOST : LS_LANE_COMPUTE;
}

/* ---- tensors ------------------------------------------------------------------------------- */

static uint64_t largest_workspace(const ls_tape *tape, const ls_ops *ops)
{
    uint64_t largest = 0;
    for (int64_t c = 0; c < tape->n_calls; c++) {
        const ls_call *call = &tape->calls[c];
        if (call->kind != LS_CALL_OP) continue;
        const uint64_t bytes = ops->workspace_bytes(call->op, &call->args);
        if (bytes > largest) largest = bytes;
    }
    return largest;
}

static ls_status list_tensors(lowering *l)
{
    ls_plan *plan = l->plan;
    const uint64_t workspace = largest_workspace(l->tape, l->ops);
    int32_t n_params = 0;

    plan->n_tensors = l->tape->n_tensors + (workspace > 0 ? 1 : 0);
    plan->tensors = calloc((size_t)plan->n_tensors + 1, sizeof *plan->tensors);
    if (plan->tensors == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "plan of %d tensors", plan->n_tensors);
    for (int32_t i = 0; i < l->tape->n_tensors; i++) {
        plan->tensors[i].tensor = l->tape->tensors[i];
        if (plan->tensors[i].tensor.param >= n_params) n_params = plan->tensors[i].tensor.param + 1;
    }
    if (workspace > 0) {
        l->workspace = plan->n_tensors - 1;
        plan->tensors[l->workspace].tensor = (ls_tensor){.name = "workspace",
                                                         .n_dims = 1,
                                                         .dims = {(int64_t)workspace},
                                                         .dtype = LS_DTYPE_U8,
                                                         .role = LS_ROLE_STAGING,
                                                         .layer = -1,
                                                         .param = -1};
    }
    for (int32_t i = 0; i < plan->n_tensors; i++) {
        const ls_tensor *t = &plan->tensors[i].tensor;
        const bool is_batch = t->role == LS_ROLE_BATCH && !t->persistent;
        plan->tensors[i].group = t->param >= 0 ? t->param : is_batch ? n_params : n_params + 1 + i;
    }
    plan->n_groups = n_params + 1 + plan->n_tensors;
    return LS_OK;
}

/* ---- steps --------------------------------------------------------------------------------- */

/* offset is within the tensor until the tensors have their places. */
static void append_operand(lowering *l, ls_step *step, const ls_view *view, ls_access access)
{
    ls_step_operand operand = {{-1, 0, 0}, -1, LS_ACCESS_NONE};

    if (view->tensor >= 0) {
        operand = (ls_step_operand){{0, view->offset, view->bytes}, view->tensor, access};
        if (access & LS_ACCESS_READ) step->bytes += view->bytes;
        if (access & LS_ACCESS_WRITE) step->bytes += view->bytes;
    }
    l->plan->operands[l->plan->n_operands++] = operand;
    step->n_operands++;
}

static void lower_call(lowering *l, int64_t index)
{
    const ls_call *call = &l->tape->calls[index];
    ls_step *step = &l->plan->steps[index];
    const ls_op_info *info = call->kind == LS_CALL_OP ? ls_op_describe(call->op) : NULL;
    const uint64_t workspace = info != NULL ? l->ops->workspace_bytes(call->op, &call->args) : 0;

    *step = (ls_step){.kind = call->kind,
                      .op = call->op,
                      .lane = lane_of(call),
                      .phase = call->phase,
                      .layer = call->layer,
                      .chunk = call->chunk,
                      .commit = call->commit,
                      .recompute = call->recompute,
                      .args = index,
                      .first_operand = l->plan->n_operands};
    l->plan->args[index] = call->args;
    for (int i = 0; i < call->n_operands; i++) {
        ls_view view = call->operands[i];
        if (workspace > 0 && strcmp(info->operands[i].name, "workspace") == 0)
            view = (ls_view){l->workspace, 0, workspace};
        append_operand(l, step, &view, (ls_access)call->access[i]);
    }
    if (info != NULL) step->flops = ls_op_flops(call->op, &call->args, 0.0);
}

static ls_status lower_calls(lowering *l)
{
    ls_plan *plan = l->plan;
    const size_t n_steps = (size_t)l->tape->n_calls;
    size_t n_operands = 0;

    for (size_t c = 0; c < n_steps; c++) n_operands += (size_t)l->tape->calls[c].n_operands;
    plan->steps = calloc(n_steps + 1, sizeof *plan->steps);
    plan->args = calloc(n_steps + 1, sizeof *plan->args);
    plan->operands = calloc(n_operands + 1, sizeof *plan->operands);
    if (plan->steps == NULL || plan->args == NULL || plan->operands == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "plan of %zu steps", n_steps);
    plan->n_steps = l->tape->n_calls;
    for (int64_t c = 0; c < l->tape->n_calls; c++) lower_call(l, c);
    for (int segment = 0; segment < LS_SEGMENT_COUNT; segment++) {
        plan->segment_first[segment] = l->tape->segment_first[segment];
        plan->segment_steps[segment] = l->tape->segment_calls[segment];
    }
    return LS_OK;
}

static ls_status place_tensors(ls_plan *plan)
{
    uint64_t arena_bytes = 0;

    plan->arenas = calloc(1, sizeof *plan->arenas);
    if (plan->arenas == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "arenas of the plan");
    LS_TRY(ls_plan_lay_out(plan, &arena_bytes));
    plan->arenas[0] = (ls_plan_arena){LS_PLACE_HOST, arena_bytes};
    plan->n_arenas = 1;
    for (int64_t i = 0; i < plan->n_operands; i++) {
        ls_step_operand *operand = &plan->operands[i];
        if (operand->tensor < 0) continue;
        const ls_span *span = &plan->tensors[operand->tensor].span;
        assert(operand->span.offset + operand->span.bytes <= span->bytes);
        operand->span.arena = span->arena;
        operand->span.offset += span->offset;
    }
    return LS_OK;
}

ls_status ls_plan_lower(const ls_tape *tape, const ls_ops *ops, ls_plan *plan)
{
    ls_plan built = {0};
    lowering l = {.tape = tape, .ops = ops, .plan = &built, .workspace = -1};

    ls_status status = list_tensors(&l);
    if (status == LS_OK) status = lower_calls(&l);
    if (status == LS_OK) status = place_tensors(&built);
    if (status == LS_OK) status = ls_plan_order(&built);
    if (status != LS_OK) {
        ls_plan_free(&built);
        return status;
    }
    *plan = built;
    return LS_OK;
}
