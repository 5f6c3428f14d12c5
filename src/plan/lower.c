/*
 * lower.c - from a tape to a plan.
 *
 * Every tensor gets its own span (tensors laid end to end by role, so a class is one range), each
 * call one step.  Waits: for every operand, the latest earlier step of each other lane that
 * conflicts with it (one of the two writes, the byte ranges meet) must have finished.  A wait is
 * dropped if an earlier wait, directly or through what that step had itself waited for, already
 * implies it: each step carries a vector clock with the latest finished step of every lane.
 */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "plan.h"

/* One earlier use of a tensor that later steps may conflict with. */
typedef struct use {
    int64_t step;
    int64_t next; /* index of the tensor's previous use, -1: none */
    uint64_t offset, bytes;
    bool writes;
} use;

typedef struct lowering {
    const ls_tape *tape;
    const ls_ops *ops;
    ls_plan *plan;
    int32_t workspace; /* the tensor that holds the ops' workspaces, -1: none needed */
    int64_t *clocks;   /* [n_steps, LS_LANE_COUNT]: latest step of each lane known finished */
    int64_t *last_use; /* [n_tensors] index into uses, -1: none */
    use *uses;
    int64_t n_uses;
    int64_t lane_last[LS_LANE_COUNT];
} lowering;

static ls_lane lane_of(const ls_call *call)
{
    if (call->kind != LS_CALL_OP || call->phase == LS_PHASE_UPDATE) return LS_LANE_HOST;
    return LS_LANE_COMPUTE;
}

/* ---- spans --------------------------------------------------------------------------------- */

static uint64_t workspace_bytes(const ls_tape *tape, const ls_ops *ops)
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

static ls_status place_tensors(lowering *l)
{
    ls_plan *plan = l->plan;
    const uint64_t workspace = workspace_bytes(l->tape, l->ops);
    uint64_t offset = 0;

    plan->n_tensors = l->tape->n_tensors + (workspace > 0 ? 1 : 0);
    plan->tensors = calloc((size_t)plan->n_tensors, sizeof *plan->tensors);
    plan->arenas = calloc(1, sizeof *plan->arenas);
    if (plan->tensors == NULL || plan->arenas == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "plan of %d tensors", plan->n_tensors);
    for (int32_t i = 0; i < l->tape->n_tensors; i++) plan->tensors[i].tensor = l->tape->tensors[i];
    if (workspace > 0) {
        l->workspace = plan->n_tensors - 1;
        plan->tensors[l->workspace].tensor = (ls_tensor){.name = "workspace",
                                                         .n_dims = 1,
                                                         .dims = {(int64_t)workspace},
                                                         .dtype = LS_DTYPE_U8,
                                                         .role = LS_ROLE_STAGING,
                                                         .layer = -1};
    }
    for (ls_role role = 0; role < LS_ROLE_COUNT; role++)
        for (int32_t i = 0; i < plan->n_tensors; i++) {
            ls_plan_tensor *t = &plan->tensors[i];
            if (t->tensor.role != role) continue;
            t->span = (ls_span){0, offset, ls_tensor_bytes(&t->tensor)};
            offset += (t->span.bytes + LS_ARENA_ALIGN - 1) / LS_ARENA_ALIGN * LS_ARENA_ALIGN;
            if (offset > (uint64_t)INT64_MAX)
                return LS_FAIL(LS_ERR_INVALID, "the plan's tensors exceed 2^63 bytes");
        }
    plan->arenas[0] = (ls_plan_arena){LS_PLACE_HOST, offset};
    plan->n_arenas = 1;
    return LS_OK;
}

/* ---- steps --------------------------------------------------------------------------------- */

static ls_step_operand bind_view(const lowering *l, const ls_view *view, ls_access access)
{
    if (view->tensor < 0) return (ls_step_operand){{-1, 0, 0}, -1, LS_ACCESS_NONE};
    const ls_span span = l->plan->tensors[view->tensor].span;
    assert(view->offset + view->bytes <= span.bytes);
    return (ls_step_operand){
        {span.arena, span.offset + view->offset, view->bytes}, view->tensor, access};
}

static void append_operand(lowering *l, ls_step *step, ls_step_operand operand)
{
    l->plan->operands[l->plan->n_operands++] = operand;
    step->n_operands++;
    if (operand.access & LS_ACCESS_READ) step->bytes += operand.span.bytes;
    if (operand.access & LS_ACCESS_WRITE) step->bytes += operand.span.bytes;
}

static void bind_op(lowering *l, const ls_call *call, ls_step *step)
{
    const ls_op_info *info = ls_op_describe(call->op);
    const uint64_t workspace = l->ops->workspace_bytes(call->op, &call->args);

    for (int i = 0; i < info->n_operands; i++) {
        ls_view view = call->operands[i];
        if (workspace > 0 && strcmp(info->operands[i].name, "workspace") == 0)
            view = (ls_view){l->workspace, 0, workspace};
        append_operand(l, step, bind_view(l, &view, ls_op_access(call->op, &call->args, i)));
    }
    step->flops = ls_op_flops(call->op, &call->args, 0.0);
}

/* Host work touches the batch tensors as a whole: a batch writes them, a loss reads them. */
static void bind_host(lowering *l, ls_step *step)
{
    static const char *const names[] = {"tokens", "targets", "positions", "doc_start", "nll"};
    const ls_access access = step->kind == LS_STEP_BATCH ? LS_ACCESS_WRITE : LS_ACCESS_READ;

    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++)
        for (int32_t i = 0; i < l->tape->n_tensors; i++) {
            const ls_tensor *t = &l->tape->tensors[i];
            if (t->role != LS_ROLE_BATCH || strcmp(t->name, names[n]) != 0) continue;
            const ls_view view = {i, 0, ls_tensor_bytes(t)};
            append_operand(l, step, bind_view(l, &view, access));
        }
}

static ls_step_kind step_kind(ls_call_kind kind)
{
    switch (kind) {
    case LS_CALL_OP: return LS_STEP_OP;
    case LS_CALL_BATCH: return LS_STEP_BATCH;
    case LS_CALL_LOSS: return LS_STEP_LOSS;
    }
    assert(0 && "not a call");
    return LS_STEP_OP;
}

static void lower_call(lowering *l, int64_t index)
{
    const ls_call *call = &l->tape->calls[index];
    ls_step *step = &l->plan->steps[index];

    *step = (ls_step){.kind = step_kind(call->kind),
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
    if (call->kind == LS_CALL_OP)
        bind_op(l, call, step);
    else
        bind_host(l, step);
}

/* ---- waits --------------------------------------------------------------------------------- */

static ls_status append_wait(lowering *l, ls_step *step, int64_t on)
{
    ls_plan *plan = l->plan;
    if (plan->n_waits == plan->waits_capacity) {
        const int64_t capacity = plan->waits_capacity ? 2 * plan->waits_capacity : 256;
        int64_t *grown = realloc(plan->waits, (size_t)capacity * sizeof *grown);
        if (grown == NULL)
            return LS_FAIL(LS_ERR_NO_MEMORY, "plan of %lld waits", (long long)capacity);
        plan->waits = grown;
        plan->waits_capacity = capacity;
    }
    plan->waits[plan->n_waits++] = on;
    step->n_waits++;
    return LS_OK;
}

/* The latest conflicting step of each other lane that one operand of step meets. */
static void find_conflicts(const lowering *l, int64_t index, const ls_step_operand *operand,
                           int64_t *needed)
{
    const bool writes = (operand->access & LS_ACCESS_WRITE) != 0;
    const uint64_t begin = operand->span.offset, end = begin + operand->span.bytes;

    for (int64_t u = l->last_use[operand->tensor]; u >= 0; u = l->uses[u].next) {
        const use *earlier = &l->uses[u];
        const ls_lane lane = l->plan->steps[earlier->step].lane;
        if (lane == l->plan->steps[index].lane || !(writes || earlier->writes)) continue;
        if (earlier->offset + earlier->bytes <= begin || end <= earlier->offset) continue;
        if (earlier->step > needed[lane]) needed[lane] = earlier->step;
    }
}

/* A write of a whole tensor hides every earlier use of it from later steps of the same lane; uses
 * of other lanes it has waited for.  So the list can restart there, and stays short. */
static void record_use(lowering *l, int64_t index, const ls_step_operand *operand)
{
    const bool writes = (operand->access & LS_ACCESS_WRITE) != 0;
    const bool whole = operand->span.bytes == l->plan->tensors[operand->tensor].span.bytes;

    l->uses[l->n_uses] = (use){index, writes && whole ? -1 : l->last_use[operand->tensor],
                               operand->span.offset, operand->span.bytes, writes};
    l->last_use[operand->tensor] = l->n_uses++;
}

static ls_status order_step(lowering *l, int64_t index)
{
    ls_plan *plan = l->plan;
    ls_step *step = &plan->steps[index];
    int64_t *clock = &l->clocks[index * LS_LANE_COUNT];
    int64_t needed[LS_LANE_COUNT];
    const int64_t previous = l->lane_last[step->lane];

    for (int lane = 0; lane < LS_LANE_COUNT; lane++) {
        needed[lane] = -1;
        clock[lane] = previous >= 0 ? l->clocks[previous * LS_LANE_COUNT + lane] : -1;
    }
    for (int32_t i = 0; i < step->n_operands; i++) {
        const ls_step_operand *operand = &plan->operands[step->first_operand + i];
        if (operand->tensor >= 0) find_conflicts(l, index, operand, needed);
    }
    step->first_wait = plan->n_waits;
    for (;;) { /* latest step first: it may imply the others */
        int64_t on = -1;
        for (int lane = 0; lane < LS_LANE_COUNT; lane++)
            if (needed[lane] > clock[lane] && needed[lane] > on) on = needed[lane];
        if (on < 0) break;
        LS_TRY(append_wait(l, step, on));
        for (int lane = 0; lane < LS_LANE_COUNT; lane++)
            if (l->clocks[on * LS_LANE_COUNT + lane] > clock[lane])
                clock[lane] = l->clocks[on * LS_LANE_COUNT + lane];
    }
    clock[step->lane] = index;
    l->lane_last[step->lane] = index;
    for (int32_t i = 0; i < step->n_operands; i++) {
        const ls_step_operand *operand = &plan->operands[step->first_operand + i];
        if (operand->tensor >= 0) record_use(l, index, operand);
    }
    return LS_OK;
}

/* Lanes are idle between segments, so each segment is ordered on its own. */
static ls_status order_segment(lowering *l, int64_t first, int64_t n)
{
    l->n_uses = 0;
    for (int32_t i = 0; i < l->plan->n_tensors; i++) l->last_use[i] = -1;
    for (int lane = 0; lane < LS_LANE_COUNT; lane++) l->lane_last[lane] = -1;
    for (int64_t step = first; step < first + n; step++) LS_TRY(order_step(l, step));
    return LS_OK;
}

static ls_status lower_all(lowering *l)
{
    ls_plan *plan = l->plan;
    const size_t n_steps = (size_t)l->tape->n_calls;

    LS_TRY(place_tensors(l));
    plan->n_steps = l->tape->n_calls;
    plan->steps = calloc(n_steps, sizeof *plan->steps);
    plan->args = calloc(n_steps, sizeof *plan->args);
    plan->operands = calloc(n_steps * LS_OPERANDS_MAX, sizeof *plan->operands);
    l->uses = malloc(n_steps * LS_OPERANDS_MAX * sizeof *l->uses);
    l->clocks = malloc(n_steps * LS_LANE_COUNT * sizeof *l->clocks);
    l->last_use = malloc((size_t)plan->n_tensors * sizeof *l->last_use);
    if (plan->steps == NULL || plan->args == NULL || plan->operands == NULL || l->uses == NULL ||
        l->clocks == NULL || l->last_use == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "plan of %zu steps", n_steps);

    for (int64_t c = 0; c < l->tape->n_calls; c++) lower_call(l, c);
    for (int segment = 0; segment < LS_SEGMENT_COUNT; segment++) {
        plan->segment_first[segment] = l->tape->segment_first[segment];
        plan->segment_steps[segment] = l->tape->segment_calls[segment];
        LS_TRY(order_segment(l, plan->segment_first[segment], plan->segment_steps[segment]));
    }
    return LS_OK;
}

ls_status ls_plan_lower(const ls_tape *tape, const ls_ops *ops, ls_plan *plan)
{
    ls_plan built = {0};
    lowering l = {.tape = tape, .ops = ops, .plan = &built, .workspace = -1};

    const ls_status status = lower_all(&l);
    free(l.uses);
    free(l.clocks);
    free(l.last_use);
    if (status != LS_OK) {
        ls_plan_free(&built);
        return status;
    }
    *plan = built;
    return LS_OK;
}
