/*
 * lower.c - from a tape to a plan: one step for each call, a lane for each step.
 *
 * What is copied between places is decided by staging.c, where tensors lie by layout.c, what waits
 * for what by order.c.  Calls come one by one, copies among them, and become steps at once: there
 * is no second tape.  To measure a plan they need not become steps at all.
 */
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cost.h"
#include "layout.h"
#include "order.h"
#include "staging.h"
#include "visits.h"

#define WORKSPACE INT32_MAX /* as a tensor: the one that the plan adds for ops, last of all */

typedef struct lowering {
    const ls_ops *ops;
    const ls_placement *placement;
    bool has_device, measures;
    bool serial_updates, single_slot;      /* of the placement */
    int8_t workspace_operand[LS_OP_COUNT]; /* -1: the op has none */
    ls_staged staged;
    ls_plan *plan;
    int64_t steps_capacity, operands_capacity;
    ls_lifetimes lives;
    ls_tensor_life workspace_life;
    uint64_t workspace_bytes;         /* of the op that needs most */
    int32_t arena_of[LS_PLACE_COUNT]; /* -1: the plan has none there */
    double step_flops;
    const ls_cost_model *model; /* to measure times by; or NULL */
    ls_cost_sum step_cost;
} lowering;

/* Copies to device memory have a lane, but for a batch's few bytes per token: there they would
 * queue behind the weights that the updates of the step before refresh, and forward with them.  Of
 * a single slot weights are not copied ahead: who computes waits for them. */
static ls_lane lane_of_copy(const lowering *l, int32_t to)
{
    const ls_role role = l->staged.tape.tensors[to].role;

    if (l->staged.tensors[to].place != LS_PLACE_HBM) return LS_LANE_COPY_OUT;
    if (role == LS_ROLE_WEIGHTS && l->single_slot) return LS_LANE_COMPUTE;
    return role == LS_ROLE_BATCH ? LS_LANE_COMPUTE : LS_LANE_COPY_IN;
}

/* Batches come from disk and go to their own lane: on the host lane they would queue behind the
 * updates of the step before, and forward with them, which is what serial updates are. */
static ls_lane lane_of(const lowering *l, const ls_call *call)
{
    switch (call->kind) {
    case LS_CALL_BATCH: return l->serial_updates ? LS_LANE_HOST : LS_LANE_DISK_IN;
    case LS_CALL_LOSS:
    case LS_CALL_SCHEDULE:
    case LS_CALL_REPORT: return LS_LANE_HOST;
    case LS_CALL_SAVE_BEGIN:
    case LS_CALL_SAVE:
    case LS_CALL_SAVE_END: return LS_LANE_DISK_OUT;
    case LS_CALL_COPY: return lane_of_copy(l, call->operands[0].tensor);
    case LS_CALL_OP:
    case LS_CALL_KIND_COUNT: break;
    }
    return ls_call_computes(l->placement, call) ? LS_LANE_COMPUTE : LS_LANE_HOST;
}

/* ---- steps --------------------------------------------------------------------------------- */

static void find_workspace_operands(lowering *l)
{
    for (int op = 0; op < LS_OP_COUNT; op++) {
        const ls_op_info *info = ls_op_describe((ls_op)op);
        l->workspace_operand[op] = -1;
        for (int8_t i = 0; i < info->n_operands; i++)
            if (strcmp(info->operands[i].name, "workspace") == 0) l->workspace_operand[op] = i;
    }
}

/* Room for a call more. */
static ls_status reserve(lowering *l, const ls_call *call)
{
    ls_plan *plan = l->plan;

    if (plan->n_steps == l->steps_capacity) {
        const int64_t capacity = l->steps_capacity > 0 ? 2 * l->steps_capacity : 256;
        ls_step *steps = realloc(plan->steps, (size_t)capacity * sizeof *steps);
        if (steps != NULL) plan->steps = steps;
        ls_op_args *args = realloc(plan->args, (size_t)capacity * sizeof *args);
        if (args != NULL) plan->args = args;
        if (steps == NULL || args == NULL)
            return LS_FAIL(LS_ERR_NO_MEMORY, "plan of %lld steps", (long long)capacity);
        l->steps_capacity = capacity;
    }
    if (plan->n_operands + call->n_operands > l->operands_capacity) {
        const int64_t capacity = l->operands_capacity > 0 ? 2 * l->operands_capacity : 1024;
        ls_step_operand *operands = realloc(plan->operands, (size_t)capacity * sizeof *operands);
        if (operands == NULL)
            return LS_FAIL(LS_ERR_NO_MEMORY, "plan of %lld operands", (long long)capacity);
        plan->operands = operands;
        l->operands_capacity = capacity;
    }
    return LS_OK;
}

/* The operand as a step has it, but for its place, which is not known yet. */
static ls_step_operand read_operand(const lowering *l, const ls_call *call, int32_t operand,
                                    uint64_t workspace)
{
    const ls_view *view = &call->operands[operand];
    const ls_access access = (ls_access)call->access[operand];

    if (workspace > 0 && operand == l->workspace_operand[call->op])
        return (ls_step_operand){{-1, 0, workspace}, WORKSPACE, access};
    if (view->tensor < 0) return (ls_step_operand){{-1, 0, 0}, -1, LS_ACCESS_NONE};
    return (ls_step_operand){{-1, view->offset, view->bytes}, view->tensor, access};
}

static ls_status note_life(lowering *l, int32_t tensor, ls_segment_kind segment, ls_lane lane)
{
    if (tensor == WORKSPACE) {
        ls_tensor_life_note(&l->workspace_life, segment, l->plan->n_steps, lane);
        return LS_OK;
    }
    LS_TRY(ls_lifetimes_reach(&l->lives, tensor));
    ls_tensor_life_note(&l->lives.of[tensor], segment, l->plan->n_steps, lane);
    return LS_OK;
}

static ls_status append_operands(lowering *l, const ls_call *call, ls_segment_kind segment,
                                 ls_step *step)
{
    const uint64_t workspace =
        call->kind == LS_CALL_OP ? l->ops->workspace_bytes(call->op, &call->args) : 0;

    if (workspace > l->workspace_bytes) l->workspace_bytes = workspace;
    for (int32_t i = 0; i < call->n_operands; i++) {
        const ls_step_operand operand = read_operand(l, call, i, workspace);
        if (operand.tensor >= 0) LS_TRY(note_life(l, operand.tensor, segment, step->lane));
        if (operand.access & LS_ACCESS_READ) step->bytes += operand.span.bytes;
        if (operand.access & LS_ACCESS_WRITE) step->bytes += operand.span.bytes;
        if (!l->measures) l->plan->operands[step->first_operand + i] = operand;
    }
    step->n_operands = call->n_operands;
    return LS_OK;
}

static ls_place_kind place_of(const lowering *l, int32_t tensor)
{
    if (tensor == WORKSPACE) return l->has_device ? LS_PLACE_HBM : LS_PLACE_HOST;
    return l->staged.tensors[tensor].place;
}

/* Count what the step costs on its lane. */
static void add_cost(lowering *l, const ls_call *call, const ls_step *step)
{
    const uint64_t workspace =
        call->kind == LS_CALL_OP ? l->ops->workspace_bytes(call->op, &call->args) : 0;
    ls_step_work work = {.step = step, .args = &call->args};

    for (int32_t i = 0; i < call->n_operands; i++) {
        const ls_step_operand operand = read_operand(l, call, i, workspace);
        if (operand.tensor < 0) continue;
        ls_step_work_add(&work, place_of(l, operand.tensor), operand.access,
                         ls_cost_touched_bytes(step, work.args, i, (double)operand.span.bytes));
    }
    const ls_step_cost cost = ls_cost_of_work(l->model, &work);
    ls_cost_sum_add(l->model, step->lane, &cost, &l->step_cost);
}

static ls_status append_step(void *context, ls_segment_kind segment, const ls_call *call)
{
    lowering *l = context;
    ls_plan *plan = l->plan;
    const int64_t index = plan->n_steps;
    ls_step step = {.kind = call->kind,
                    .op = call->op,
                    .lane = lane_of(l, call),
                    .phase = call->phase,
                    .layer = call->layer,
                    .chunk = call->chunk,
                    .commit = call->commit,
                    .recompute = call->recompute,
                    .args = index,
                    .first_operand = plan->n_operands};

    if (!l->measures) LS_TRY(reserve(l, call));
    LS_TRY(append_operands(l, call, segment, &step));
    if (call->kind == LS_CALL_OP) step.flops = ls_op_flops(call->op, &call->args, call->pairs);
    if (segment == LS_SEGMENT_STEP) l->step_flops += step.flops;
    if (segment == LS_SEGMENT_STEP && l->model != NULL) add_cost(l, call, &step);
    if (plan->segment_steps[segment]++ == 0) plan->segment_first[segment] = index;
    plan->n_steps++;
    if (l->measures) return LS_OK;
    plan->n_operands += step.n_operands;
    plan->steps[index] = step;
    plan->args[index] = call->args;
    return LS_OK;
}

/* ---- tensors ------------------------------------------------------------------------------- */

/* A parameter and its states; the batch; the tensors of a slot; each other tensor. */
static void set_groups(lowering *l, int32_t n_params)
{
    ls_plan *plan = l->plan;
    const int32_t n_staged = l->staged.tape.n_tensors;

    for (int32_t i = 0; i < plan->n_tensors; i++) {
        const ls_tensor *t = &plan->tensors[i].tensor;
        const int32_t slot = i < n_staged ? l->staged.tensors[i].slot : -1;
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
    plan->n_groups = n_params + 1 + plan->n_tensors + l->staged.n_slots;
}

static ls_plan_tensor make_workspace(const lowering *l)
{
    return (ls_plan_tensor){.tensor = {.name = "workspace",
                                       .n_dims = 1,
                                       .dims = {(int64_t)l->workspace_bytes},
                                       .dtype = LS_DTYPE_U8,
                                       .role = LS_ROLE_STAGING,
                                       .layer = -1,
                                       .param = -1},
                            .span.arena = l->arena_of[l->has_device ? LS_PLACE_HBM : LS_PLACE_HOST],
                            .source = -1};
}

/* Host memory, that of a device, and a file if anything lies in it. */
static void number_arenas(lowering *l)
{
    bool in_file = false;

    for (int32_t i = 0; i < l->staged.tape.n_tensors; i++)
        in_file = in_file || l->staged.tensors[i].place == LS_PLACE_NVME;
    l->plan->n_arenas = 0;
    l->arena_of[LS_PLACE_HOST] = l->plan->n_arenas++;
    l->arena_of[LS_PLACE_HBM] = l->has_device ? l->plan->n_arenas++ : -1;
    l->arena_of[LS_PLACE_NVME] = in_file ? l->plan->n_arenas++ : -1;
}

static ls_status list_tensors(lowering *l)
{
    ls_plan *plan = l->plan;
    const ls_tape *tape = &l->staged.tape;
    const bool has_workspace = l->workspace_bytes > 0;
    int32_t n_params = 0;

    plan->n_tensors = tape->n_tensors + (has_workspace ? 1 : 0);
    plan->tensors = calloc((size_t)plan->n_tensors + 1, sizeof *plan->tensors);
    if (plan->tensors == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "plan of %d tensors", plan->n_tensors);
    for (int32_t i = 0; i < tape->n_tensors; i++) {
        const ls_staged_tensor *where = &l->staged.tensors[i];
        plan->tensors[i] = (ls_plan_tensor){.tensor = tape->tensors[i],
                                            .span.arena = l->arena_of[where->place],
                                            .source = where->source};
        if (tape->tensors[i].param >= n_params) n_params = tape->tensors[i].param + 1;
    }
    LS_TRY(ls_lifetimes_reach(&l->lives, plan->n_tensors - 1));
    if (has_workspace) {
        plan->tensors[plan->n_tensors - 1] = make_workspace(l);
        l->lives.of[plan->n_tensors - 1] = l->workspace_life;
    }
    set_groups(l, n_params);
    return LS_OK;
}

static ls_status lay_out(const lowering *l)
{
    ls_plan *plan = l->plan;
    int32_t *slots = malloc((size_t)plan->n_tensors * sizeof *slots);

    if (slots == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "layout of %d tensors", plan->n_tensors);
    for (int32_t i = 0; i < plan->n_tensors; i++)
        slots[i] = i < l->staged.tape.n_tensors ? l->staged.tensors[i].slot : -1;
    const ls_status status = ls_plan_lay_out(plan, &l->lives, slots);
    free(slots);
    return status;
}

static ls_status place_tensors(const lowering *l)
{
    ls_plan *plan = l->plan;

    plan->arenas = calloc((size_t)plan->n_arenas, sizeof *plan->arenas);
    if (plan->arenas == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "arenas of the plan");
    for (int place = 0; place < LS_PLACE_COUNT; place++)
        if (l->arena_of[place] >= 0) plan->arenas[l->arena_of[place]].place = (ls_place_kind)place;
    LS_TRY(lay_out(l));
    for (int64_t i = 0; i < plan->n_operands; i++) {
        ls_step_operand *operand = &plan->operands[i];
        if (operand->tensor < 0) continue;
        if (operand->tensor == WORKSPACE) operand->tensor = plan->n_tensors - 1;
        const ls_span *span = &plan->tensors[operand->tensor].span;
        assert(operand->span.offset + operand->span.bytes <= span->bytes);
        operand->span.arena = span->arena;
        operand->span.offset += span->offset;
    }
    return LS_OK;
}

/* ---- all of it ----------------------------------------------------------------------------- */

static ls_status lower_all(lowering *l, const ls_tape *tape, const ls_placement *placement)
{
    find_workspace_operands(l);
    LS_TRY(ls_stage(tape, placement, append_step, l, &l->staged));
    number_arenas(l);
    LS_TRY(list_tensors(l));
    LS_TRY(place_tensors(l));
    return l->measures ? LS_OK : ls_plan_order(l->plan);
}

static ls_status lower(lowering *l, const ls_tape *tape, const ls_placement *placement)
{
    ls_placement host;

    ls_placement_host(&host);
    if (placement == NULL) placement = &host;
    l->placement = placement;
    l->has_device = placement->has_device;
    l->serial_updates = placement->serial_updates;
    l->single_slot =
        placement->classes[LS_CLASS_WEIGHTS].mode == LS_MODE_STREAM && placement->ring_slots == 1;
    l->workspace_life = ls_tensor_life_none();
    const ls_status status = lower_all(l, tape, placement);
    ls_staged_free(&l->staged);
    ls_lifetimes_free(&l->lives);
    if (status != LS_OK) ls_plan_free(l->plan);
    return status;
}

ls_status ls_plan_lower(const ls_tape *tape, const ls_placement *placement, const ls_ops *ops,
                        ls_plan *plan)
{
    ls_plan built = {0};
    lowering l = {.ops = ops, .plan = &built};

    LS_TRY(lower(&l, tape, placement));
    *plan = built;
    return LS_OK;
}

ls_status ls_plan_measure(const ls_tape *tape, const ls_placement *placement, const ls_ops *ops,
                          const ls_cost_model *model, ls_plan_cost *cost)
{
    ls_plan built = {0};
    lowering l = {.ops = ops, .plan = &built, .measures = true, .model = model};

    LS_TRY(lower(&l, tape, placement));
    *cost = (ls_plan_cost){.flops = l.step_flops,
                           .compute_s = l.step_cost.lane_s[LS_LANE_COMPUTE],
                           .n_steps = built.n_steps};
    cost->lower_bound_s = ls_cost_sum_bound(&l.step_cost, &cost->bound_by);
    for (int p = 0; p < LS_PLACE_COUNT; p++)
        cost->place_bytes[p] = ls_plan_place_bytes(&built, (ls_place_kind)p);
    ls_plan_free(&built);
    return LS_OK;
}
