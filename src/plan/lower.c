/*
 * lower.c - from a tape to a plan: one step for each call, a lane for each step.
 *
 * What is copied between places is decided by staging.c, where tensors lie by layout.c, what waits
 * for what by order.c.
 */
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "order.h"
#include "staging.h"
#include "visits.h"

enum { ARENA_HOST = 0, ARENA_HBM };

typedef struct lowering {
    const ls_tape *tape; /* staged: with copies */
    const ls_staged *staged;
    bool has_device;
    const ls_ops *ops;
    ls_plan *plan;
    int32_t workspace; /* the tensor that holds the ops' workspaces, -1: none needed */
} lowering;

/* Batches come from disk and go to their own lane: on the host lane they would queue behind the
 * updates of the step before. */
static ls_lane lane_of(const lowering *l, const ls_call *call)
{
    switch (call->kind) {
    case LS_CALL_BATCH: return LS_LANE_DISK_IN;
    case LS_CALL_LOSS:
    case LS_CALL_SCHEDULE:
    case LS_CALL_REPORT: return LS_LANE_HOST;
    case LS_CALL_SAVE_BEGIN:
    case LS_CALL_SAVE:
    case LS_CALL_SAVE_END: return LS_LANE_DISK_OUT;
    case LS_CALL_COPY:
        return l->staged->tensors[call->operands[0].tensor].place == LS_PLACE_HBM
                   ? LS_LANE_COPY_IN
                   : LS_LANE_COPY_OUT;
    case LS_CALL_OP:
    case LS_CALL_KIND_COUNT: break;
    }
    return ls_call_computes(call) ? LS_LANE_COMPUTE : LS_LANE_HOST;
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

/* A parameter and its states; the batch; the tensors of a slot; each other tensor. */
static void set_groups(lowering *l, int32_t n_params)
{
    ls_plan *plan = l->plan;

    for (int32_t i = 0; i < plan->n_tensors; i++) {
        const ls_tensor *t = &plan->tensors[i].tensor;
        const int32_t slot = i < l->tape->n_tensors ? l->staged->tensors[i].slot : -1;
        const bool is_batch = t->role == LS_ROLE_BATCH && !t->persistent;
        int32_t group = n_params + 1 + i;
        if (slot >= 0)
            group = n_params + 1 + plan->n_tensors + slot;
        else if (t->param >= 0)
            group = t->param;
        else if (is_batch)
            group = n_params;
        plan->tensors[i].group = group;
    }
    plan->n_groups = n_params + 1 + plan->n_tensors + l->staged->n_slots;
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
        const ls_staged_tensor *where = &l->staged->tensors[i];
        plan->tensors[i] =
            (ls_plan_tensor){.tensor = l->tape->tensors[i],
                             .span.arena = where->place == LS_PLACE_HBM ? ARENA_HBM : ARENA_HOST,
                             .source = where->source};
        if (plan->tensors[i].tensor.param >= n_params) n_params = plan->tensors[i].tensor.param + 1;
    }
    if (workspace > 0) {
        l->workspace = plan->n_tensors - 1;
        plan->tensors[l->workspace] =
            (ls_plan_tensor){.tensor = {.name = "workspace",
                                        .n_dims = 1,
                                        .dims = {(int64_t)workspace},
                                        .dtype = LS_DTYPE_U8,
                                        .role = LS_ROLE_STAGING,
                                        .layer = -1,
                                        .param = -1},
                             .span.arena = l->has_device ? ARENA_HBM : ARENA_HOST,
                             .source = -1};
    }
    set_groups(l, n_params);
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
                      .lane = lane_of(l, call),
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
    if (info != NULL) step->flops = ls_op_flops(call->op, &call->args, call->pairs);
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

static ls_status lay_out(const lowering *l)
{
    ls_plan *plan = l->plan;
    int32_t *slots = malloc((size_t)plan->n_tensors * sizeof *slots);

    if (slots == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "layout of %d tensors", plan->n_tensors);
    for (int32_t i = 0; i < plan->n_tensors; i++)
        slots[i] = i < l->tape->n_tensors ? l->staged->tensors[i].slot : -1;
    const ls_status status = ls_plan_lay_out(plan, slots);
    free(slots);
    return status;
}

static ls_status place_tensors(const lowering *l)
{
    ls_plan *plan = l->plan;

    plan->n_arenas = l->has_device ? 2 : 1;
    plan->arenas = calloc((size_t)plan->n_arenas, sizeof *plan->arenas);
    if (plan->arenas == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "arenas of the plan");
    plan->arenas[ARENA_HOST].place = LS_PLACE_HOST;
    if (l->has_device) plan->arenas[ARENA_HBM].place = LS_PLACE_HBM;
    LS_TRY(lay_out(l));
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

static ls_status lower_staged(lowering *l)
{
    LS_TRY(list_tensors(l));
    LS_TRY(lower_calls(l));
    LS_TRY(place_tensors(l));
    return ls_plan_order(l->plan);
}

ls_status ls_plan_lower(const ls_tape *tape, const ls_placement *placement, const ls_ops *ops,
                        ls_plan *plan)
{
    ls_placement host;
    ls_staged staged;
    ls_plan built = {0};

    ls_placement_host(&host);
    if (placement == NULL) placement = &host;
    LS_TRY(ls_stage(tape, placement, &staged));
    lowering l = {.tape = &staged.tape,
                  .staged = &staged,
                  .has_device = placement->has_device,
                  .ops = ops,
                  .plan = &built,
                  .workspace = -1};
    const ls_status status = lower_staged(&l);
    ls_staged_free(&staged);
    if (status != LS_OK) {
        ls_plan_free(&built);
        return status;
    }
    *plan = built;
    return LS_OK;
}
