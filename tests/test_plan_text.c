/*
 * test_plan_text.c - plans survive being written and read, field by field; anything else that looks
 * like a plan is refused with the line it stands on.
 */
#include "placement_test.h"
#include "plan_test.h"
#include "plan_text_test.h"

static void freeze_norms(void *context, const char *name, ls_param *param)
{
    (void)context;
    param->frozen = strstr(name, "norm") != NULL;
    param->lr_scale = 0.1f; /* no short binary fraction */
}

static void survives(const ls_decoder_options *options, const ls_placement *placement)
{
    ls_decoder decoder;
    ls_plan plan, read;
    size_t bytes, again_bytes;

    build_placed_plan(options, placement, &decoder, &plan);
    char *text = write_plan(&plan, &bytes);
    read_plan(text, bytes, &read);
    assert_true(same_plan(&plan, &read));
    if (ls_plan_check(&read, NULL) != LS_OK) fail_msg("%s", ls_error());
    char *again = write_plan(&read, &again_bytes);
    assert_string_equal(text, again);
    const bool has_copies =
        placement != NULL && placement->classes[LS_CLASS_WEIGHTS].mode == LS_MODE_RESIDENT;
    assert_true((strstr(text, " of=") != NULL) == has_copies);
    free(text);
    free(again);
    ls_plan_free(&read);
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);
}

static void real_plans_survive(void **state)
{
    ls_decoder_options options[] = {grouped_options(), tied_options(), saved_options(),
                                    grouped_options(), grouped_options()};

    (void)state;
    options[3].train = false;
    options[4].param_rule = freeze_norms;
    options[4].window = 5;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        survives(&options[i], NULL);
        for (ls_place_mode mode = 0; mode < LS_MODE_COUNT; mode++) {
            const ls_placement placement = place_weights(mode, mode == LS_MODE_STREAM);
            survives(&options[i], &placement);
        }
    }
}

/* ---- every field is carried ---------------------------------------------------------------- */

/* Change one thing in a plan; false: there is no such thing any more. */
typedef bool change_field(ls_plan *plan, int which);

static bool change_arena(ls_plan *plan, int which)
{
    ls_plan_arena *a = &plan->arenas[0];
    switch (which) {
    case 0: a->place = LS_PLACE_NVME; return true;
    case 1: a->bytes += 4096; return true;
    default: return false;
    }
}

static bool change_tensor(ls_plan *plan, int which)
{
    ls_plan_tensor *t = &plan->tensors[1];
    switch (which) {
    case 0: t->tensor.name[0] = 'M'; return true;
    case 1: t->tensor.n_dims = 1, t->tensor.dims[1] = 0; return true;
    case 2: t->tensor.dims[0]--; return true;
    case 3: t->tensor.dims[1]--; return true;
    case 4: t->tensor.dtype = LS_DTYPE_U8; return true;
    case 5: t->tensor.role = LS_ROLE_STAGING; return true;
    case 6: t->tensor.layer = 7; return true;
    case 7: t->tensor.param = -1; return true;
    case 8: t->tensor.persistent = !t->tensor.persistent; return true;
    case 9: t->group++; return true;
    case 10: t->tensor.n_dims = 3, t->tensor.dims[2] = 1; return true;
    case 11: t->source = 0; return true;
    default: return false;
    }
}

/* Of the tensor that no step touches: its span may move alone. */
static bool change_span(ls_plan *plan, int which)
{
    ls_span *span = &plan->tensors[plan->n_tensors - 1].span;
    switch (which) {
    case 0: span->offset += 256; return true;
    case 1: span->bytes += 4; return true;
    default: return false;
    }
}

static bool change_carry(ls_plan *plan, int which)
{
    ls_carry *c = &plan->carries[plan->n_carries - 1];
    switch (which) {
    case 0: c->lane = LS_LANE_COPY_IN; return true;
    case 1: c->group = c->group > 0 ? c->group - 1 : 1; return true;
    default:
        if (which >= 2 + LS_SEGMENT_COUNT) return false;
        c->ends[which - 2] = c->ends[which - 2] < 0 ? 3 : -1;
        return true;
    }
}

static bool change_counts(ls_plan *plan, int which)
{
    switch (which) {
    case 0: plan->n_groups++; return true;
    case 1: plan->segment_first[LS_SEGMENT_EVAL]--; return true;
    case 2: plan->segment_steps[LS_SEGMENT_EVAL]--; return true;
    default: return false;
    }
}

/* The first step that is this op, with waits. */
static ls_step *find_step(ls_plan *plan, ls_op op)
{
    for (int64_t s = 0; s < plan->n_steps; s++)
        if (plan->steps[s].kind == LS_CALL_OP && plan->steps[s].op == op &&
            plan->steps[s].n_waits > 0)
            return &plan->steps[s];
    fail_msg("no %s that waits", ls_op_describe(op)->name);
    return NULL;
}

static bool change_step(ls_plan *plan, int which)
{
    ls_step *s = find_step(plan, LS_OP_rmsnorm_forward);
    switch (which) {
    case 0: s->lane = LS_LANE_COPY_OUT; return true;
    case 1: s->phase = LS_PHASE_NORM; return true;
    case 2: s->layer = 77; return true;
    case 3: s->chunk = -1; return true;
    case 4: s->commit = !s->commit; return true;
    case 5: s->recompute = !s->recompute; return true;
    case 6: s->flops = 1.0 / 3.0; return true;
    case 7: s->bytes++; return true;
    case 8: plan->waits[s->first_wait] = 0; return true;
    case 9: plan->waits[s->first_wait] = ls_wait_carry(plan->n_carries - 1); return true;
    default: return false;
    }
}

static bool change_host_step(ls_plan *plan, int which)
{
    ls_step *s = &plan->steps[0]; /* batch */
    assert_int_equal(s->kind, LS_CALL_BATCH);
    switch (which) {
    case 0: s->kind = LS_CALL_REPORT; return true;
    case 1: s->kind = LS_CALL_SAVE_END; return true;
    case 2: s->chunk = 123456; return true;
    default: return false;
    }
}

static bool change_operand(ls_plan *plan, int which)
{
    const ls_step *s = find_step(plan, LS_OP_rmsnorm_forward);
    ls_step_operand *o = &plan->operands[s->first_operand];
    switch (which) {
    case 0: o->span.offset += 16, o->span.bytes -= 16; return true;
    case 1: o->span.bytes--; return true;
    case 2: o->access = LS_ACCESS_READ_WRITE; return true;
    case 3: o->access = LS_ACCESS_NONE; return true;
    case 4: *o = (ls_step_operand){{-1, 0, 0}, -1, LS_ACCESS_NONE}; return true;
    case 5: *o = o[1]; return true;
    default: return false;
    }
}

/* Every scalar of every op that the plan has, one after the other. */
static bool change_scalar(ls_plan *plan, int which)
{
    for (ls_op op = 0; op < LS_OP_COUNT; op++) {
        int64_t s = 0;
        int n;
        const ls_op_field *fields = ls_op_fields(op, &n);
        while (s < plan->n_steps && (plan->steps[s].kind != LS_CALL_OP || plan->steps[s].op != op))
            s++;
        if (s == plan->n_steps) continue;
        if (which >= n) {
            which -= n;
            continue;
        }
        char *at = (char *)&plan->args[plan->steps[s].args] + fields[which].offset;
        switch ((ls_field_type)fields[which].type) {
        case LS_FIELD_I64: *(int64_t *)at = -INT64_MAX; break;
        case LS_FIELD_I32: *(int32_t *)at = INT32_MAX; break;
        case LS_FIELD_F32: *(float *)at = -1e-42f; break; /* subnormal */
        case LS_FIELD_DTYPE: *(ls_dtype *)at = LS_DTYPE_F16; break;
        }
        return true;
    }
    return false;
}

static void add_idle_tensor(ls_plan *plan)
{
    plan->tensors = realloc(plan->tensors, (size_t)(plan->n_tensors + 1) * sizeof *plan->tensors);
    assert_non_null(plan->tensors);
    plan->tensors[plan->n_tensors++] = (ls_plan_tensor){.tensor = {.name = "idle",
                                                                   .n_dims = 1,
                                                                   .dims = {8},
                                                                   .role = LS_ROLE_CHUNK,
                                                                   .layer = -1,
                                                                   .param = -1},
                                                        .span = {0, 512, 32}};
}

/* A plan with one change reads back with that change; false: there was none to make. */
static bool change_is_carried(const char *text, size_t bytes, change_field *change, int which)
{
    ls_plan original, plan, read;
    size_t changed_bytes;

    read_plan(text, bytes, &plan);
    const bool changed = change(&plan, which);
    if (changed) {
        read_plan(text, bytes, &original);
        if (same_plan(&plan, &original)) fail_msg("change %d is none", which);
        char *changed_text = write_plan(&plan, &changed_bytes);
        read_plan(changed_text, changed_bytes, &read);
        if (!same_plan(&plan, &read)) fail_msg("change %d is lost", which);
        free(changed_text);
        ls_plan_free(&read);
        ls_plan_free(&original);
    }
    ls_plan_free(&plan);
    return changed;
}

static void every_field_is_carried(void **state)
{
    static change_field *const changes[] = {change_arena,   change_tensor,    change_span,
                                            change_carry,   change_counts,    change_step,
                                            change_operand, change_host_step, change_scalar};
    ls_decoder_options options = grouped_options();
    ls_decoder decoder;
    ls_plan plan;
    size_t bytes;

    (void)state;
    options.shape.L = options.accumulate = 1; /* the text is read three times for each change */
    build_plan(&options, &decoder, &plan);
    add_idle_tensor(&plan);
    char *text = write_plan(&plan, &bytes);
    for (int64_t c = 0; c < COUNT_OF(changes); c++) {
        int n = 0;
        while (change_is_carried(text, bytes, changes[c], n)) n++;
        assert_true(n >= 2);
    }
    free(text);
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_plans_survive),
        cmocka_unit_test(every_field_is_carried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
