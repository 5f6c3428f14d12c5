/*
 * test_plan_text.c - plans survive being written and read, field by field; anything else that looks
 * like a plan is refused with the line it stands on.
 */
#include "placement_test.h"
#include "plan_test.h"
#include "plan_text.h"

/* ---- write, read, compare ------------------------------------------------------------------ */

static char *write_plan(const ls_plan *plan, size_t *bytes)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, bytes);

    assert_non_null(file);
    assert_int_equal(ls_plan_write_text(plan, file), LS_OK);
    fclose(file);
    return text;
}

static void read_plan(const char *text, size_t bytes, ls_plan *plan)
{
    if (ls_plan_read_text("text", text, bytes, plan) != LS_OK) fail_msg("%s", ls_error());
}

static bool same_span(ls_span a, ls_span b)
{
    return a.arena == b.arena && a.offset == b.offset && a.bytes == b.bytes;
}

static bool same_tensor(const ls_plan_tensor *a, const ls_plan_tensor *b)
{
    const ls_tensor *x = &a->tensor, *y = &b->tensor;
    return strcmp(x->name, y->name) == 0 && x->n_dims == y->n_dims &&
           memcmp(x->dims, y->dims, sizeof x->dims) == 0 && x->dtype == y->dtype &&
           x->role == y->role && x->layer == y->layer && x->param == y->param &&
           x->persistent == y->persistent && same_span(a->span, b->span) && a->group == b->group &&
           a->source == b->source;
}

/* Args of any op, by their tables; host calls have none. */
static bool same_args(const ls_step *step, const ls_op_args *a, const ls_op_args *b)
{
    static const size_t bytes[] = {8, 4, 4, sizeof(ls_dtype)}; /* by ls_field_type */
    int n;
    const ls_op_field *fields = ls_op_fields(step->op, &n);

    if (step->kind != LS_CALL_OP) return memcmp(a, b, sizeof *a) == 0;
    for (int i = 0; i < n; i++)
        if (memcmp((const char *)a + fields[i].offset, (const char *)b + fields[i].offset,
                   bytes[fields[i].type]) != 0)
            return false;
    for (int i = 0; i < ls_op_describe(step->op)->n_operands; i++) {
        const size_t offset = ls_op_describe(step->op)->operands[i].offset;
        if (memcmp((const char *)a + offset, (const char *)b + offset, sizeof(void *)) != 0)
            return false;
    }
    return true;
}

static bool same_step(const ls_plan *p, const ls_plan *q, int64_t index)
{
    const ls_step *a = &p->steps[index], *b = &q->steps[index];

    if (a->kind != b->kind || a->op != b->op || a->lane != b->lane || a->phase != b->phase ||
        a->layer != b->layer || a->chunk != b->chunk || a->commit != b->commit ||
        a->recompute != b->recompute || memcmp(&a->flops, &b->flops, sizeof a->flops) != 0 ||
        a->bytes != b->bytes || a->n_operands != b->n_operands || a->n_waits != b->n_waits ||
        !same_args(a, &p->args[a->args], &q->args[b->args]))
        return false;
    for (int32_t i = 0; i < a->n_operands; i++) {
        const ls_step_operand *x = &p->operands[a->first_operand + i];
        const ls_step_operand *y = &q->operands[b->first_operand + i];
        if (!same_span(x->span, y->span) || x->tensor != y->tensor || x->access != y->access)
            return false;
    }
    for (int32_t w = 0; w < a->n_waits; w++)
        if (p->waits[a->first_wait + w] != q->waits[b->first_wait + w]) return false;
    return true;
}

static bool same_plan(const ls_plan *p, const ls_plan *q)
{
    if (p->n_arenas != q->n_arenas || p->n_tensors != q->n_tensors || p->n_groups != q->n_groups ||
        p->n_carries != q->n_carries || p->n_steps != q->n_steps ||
        p->n_operands != q->n_operands || p->n_waits != q->n_waits)
        return false;
    if (memcmp(p->segment_first, q->segment_first, sizeof p->segment_first) != 0 ||
        memcmp(p->segment_steps, q->segment_steps, sizeof p->segment_steps) != 0)
        return false;
    for (int32_t i = 0; i < p->n_arenas; i++)
        if (p->arenas[i].place != q->arenas[i].place || p->arenas[i].bytes != q->arenas[i].bytes)
            return false;
    for (int32_t i = 0; i < p->n_tensors; i++)
        if (!same_tensor(&p->tensors[i], &q->tensors[i])) return false;
    for (int32_t i = 0; i < p->n_carries; i++)
        if (p->carries[i].lane != q->carries[i].lane ||
            p->carries[i].group != q->carries[i].group ||
            memcmp(p->carries[i].ends, q->carries[i].ends, sizeof p->carries[i].ends) != 0)
            return false;
    for (int64_t s = 0; s < p->n_steps; s++)
        if (!same_step(p, q, s)) return false;
    return true;
}

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

/* ---- a plan by hand ------------------------------------------------------------------------ */

static const char tiny[] =
    "longspan-plan 1\n"
    "counts arenas=1 tensors=3 groups=3 carries=1 steps=3 waits=3\n"
    "arena 0 place=host bytes=1024\n"
    "tensor embed dims=8x4 dtype=F32 role=weights layer=- param=0 persistent arena=0 offset=0 "
    "bytes=128 group=0\n"
    "tensor tokens dims=5 dtype=I32 role=batch layer=- param=- arena=0 offset=256 bytes=20 "
    "group=1\n"
    "tensor x dims=5x4 dtype=F32 role=x layer=0 param=- arena=0 offset=512 bytes=80 group=2\n"
    "carry ~0 lane=compute group=1 ends step=1 step+save=- eval=- drain=-\n"
    "segment step first=0 steps=3\n"
    "segment step+save first=0 steps=0\n"
    "segment eval first=0 steps=0\n"
    "segment drain first=0 steps=0\n"
    "step 0 batch disk_in batch layer=- chunk=0 flops=0 bytes=20 w:tokens+0:20 waits=~0\n"
    "step 1 embedding_forward compute forward layer=- chunk=- flops=0 bytes=228 y=w:x+0:80 "
    "w=r:embed+0:128 tokens=r:tokens+0:20 N=5 D=4 V=8 dtype=F32 waits=0\n"
    "step 2 adamw host update layer=- chunk=- commit flops=0x1p-1 bytes=256 w=rw:embed+0:128 "
    "lo=- m=- v=- m_scale=- v_scale=- g=- control=- n=32 stream=0 beta1=0x1.ccccccp-1 beta2=0 "
    "eps=0x1.5798eep-27 weight_decay=0 lr_scale=1 moments=0 dtype=F32 g_dtype=F32 waits=1\n"
    "end\n";

static void tiny_plan_reads(void **state)
{
    ls_plan plan;

    (void)state;
    read_plan(tiny, strlen(tiny), &plan);
    assert_int_equal(plan.n_operands, 12);
    assert_int_equal(plan.steps[1].op, LS_OP_embedding_forward);
    assert_int_equal(plan.operands[2].span.offset, 0);
    assert_int_equal(plan.operands[3].span.offset, 256);
    assert_true(plan.steps[2].flops == 0.5);
    assert_true(plan.args[2].adamw.beta1 == 0.9f && plan.args[2].adamw.eps == 1e-8f);
    assert_int_equal(plan.waits[plan.steps[0].first_wait], ls_wait_carry(0));
    ls_plan_free(&plan);
}

/* A micro-batch comes from disk, goes to device memory on the lane between devices, and is read. */
static const char with_comm[] =
    "longspan-plan 1\n"
    "counts arenas=2 tensors=3 groups=3 carries=2 steps=3 waits=4\n"
    "arena 0 place=host bytes=1024\n"
    "arena 1 place=hbm bytes=1024\n"
    "tensor tokens dims=5 dtype=I32 role=batch layer=- param=- arena=0 offset=0 bytes=20 group=0\n"
    "tensor here dims=5 dtype=I32 role=batch layer=- param=- arena=1 offset=0 bytes=20 group=1\n"
    "tensor x dims=5 dtype=I32 role=x layer=0 param=- arena=1 offset=512 bytes=20 group=2\n"
    "carry ~0 lane=comm group=0 ends step=1 step+save=- eval=- drain=-\n"
    "carry ~1 lane=compute group=1 ends step=2 step+save=- eval=- drain=-\n"
    "segment step first=0 steps=3\n"
    "segment step+save first=0 steps=0\n"
    "segment eval first=0 steps=0\n"
    "segment drain first=0 steps=0\n"
    "step 0 batch disk_in batch layer=- chunk=0 flops=0 bytes=20 w:tokens+0:20 waits=~0\n"
    "step 1 copy comm batch layer=- chunk=0 flops=0 bytes=40 w:here+0:20 r:tokens+0:20 "
    "waits=0,~1\n"
    "step 2 copy compute forward layer=0 chunk=- flops=0 bytes=40 w:x+0:20 r:here+0:20 waits=1\n"
    "end\n";

/* Read, checked, written the same; and a wait for the lane that is left out is missed. */
static void comm_is_a_lane(void **state)
{
    ls_plan plan, again;
    size_t n_bytes;

    (void)state;
    read_plan(with_comm, strlen(with_comm), &plan);
    assert_int_equal(plan.steps[1].lane, LS_LANE_COMM);
    assert_int_equal(plan.carries[0].lane, LS_LANE_COMM);
    assert_int_equal(ls_plan_lanes(&plan), LS_LANE_COUNT);
    assert_int_equal(ls_plan_check(&plan, NULL), LS_OK);
    char *text = write_plan(&plan, &n_bytes);
    assert_non_null(strstr(text, "copy               comm     batch"));
    read_plan(text, n_bytes, &again);
    assert_true(same_plan(&plan, &again));
    free(text);
    ls_plan_free(&again);
    plan.steps[2].n_waits = 0;
    assert_int_equal(ls_plan_check(&plan, NULL), LS_ERR_INVALID);
    assert_non_null(strstr(ls_error(), "lane comm"));
    ls_plan_free(&plan);
    read_plan(tiny, strlen(tiny), &plan);
    assert_int_equal(ls_plan_lanes(&plan), LS_LANE_COMM);
    ls_plan_free(&plan);
}

/* Spaces, empty lines and a missing last newline are no matter. */
static void layout_is_free(void **state)
{
    char text[2 * sizeof tiny], *to = text;
    ls_plan plan, spaced;

    (void)state;
    for (const char *at = tiny; *at != '\0'; at++) {
        if (*at == ' ' || *at == '\n') *to++ = *at;
        *to++ = *at;
    }
    read_plan(tiny, strlen(tiny) - 1, &plan);
    read_plan(text, (size_t)(to - text), &spaced);
    assert_true(same_plan(&plan, &spaced));
    ls_plan_free(&plan);
    ls_plan_free(&spaced);
}

/* ---- what is refused ----------------------------------------------------------------------- */

static void assert_refused(const char *text, size_t bytes, int line, const char *says)
{
    char place[32];
    ls_plan plan;

    snprintf(place, sizeof place, "name:%d: ", line);
    if (ls_plan_read_text("name", text, bytes, &plan) == LS_OK)
        fail_msg("accepted; wanted %s", says);
    if (strncmp(ls_error(), place, strlen(place)) != 0 || strstr(ls_error(), says) == NULL)
        fail_msg("'%s' is not '%s... %s'", ls_error(), place, says);
}

/* One replacement in the tiny plan, the line it is on, and what the message must hold. */
static const struct {
    const char *from, *to;
    int line;
    const char *says;
} malformed[] = {
    {"longspan-plan", "plan", 1, "not a plan"},
    {"plan 1", "plan 2", 1, "'2', where version 1"},
    {"plan 1", "plan 1 x", 1, "'x', where the end of the line"},
    {"counts ", "count ", 2, "'count', where 'counts'"},
    {"arenas=1", "arenas=", 2, "'arenas=', where arenas=..."},
    {"arenas=1", "arenas", 2, "'arenas', where arenas=..."},
    {"arenas=1", "arenas=-1", 2, "'-1' is not a whole number from 0"},
    {"groups=3", "groups=2147483648", 2, "groups: '2147483648' is not a whole number"},
    {"waits=3", "waits=3 more=1", 2, "'more=1'"},
    {"carries=1", "carries=2", 15, "2 carries were announced, 1 came"},
    {"tensors=3", "tensors=4", 15, "4 tensors were announced, 3 came"},
    {"tensors=3", "tensors=2", 6, "one tensor more than the 2"},
    {"steps=3 waits", "steps=2 waits", 8, "'3' is not a whole number from 0 to 2"},
    {"steps=3 waits", "steps=9000000000000000000 waits", 15, "steps were announced, 3 came"},
    {"waits=3", "waits=2", 15, "2 waits were announced, 3 came"},
    {"arena 0", "arena 1", 3, "'1', where 0"},
    {"place=host", "place=disk", 3, "'disk' is no place; known: hbm, host, nvme"},
    {"bytes=1024", "bytes=1024k", 3, "bytes: '1024k'"},
    {"bytes=1024", "bytes=01024", 3, "bytes: '01024'"},
    {"bytes=1024", "bytes=9223372036854775808", 3, "bytes: '9223372036854775808'"},
    {"bytes=1024", "bytes=18446744073709552640", 3,
     "bytes: '18446744073709552640'"}, /* 2^64 + 1024 */
    {"bytes=1024\n", "bytes=1024\r\n", 3, "bytes: '1024?'"},
    {"tensor embed", "tensors embed", 4, "'tensors', where arena, tensor"},
    {"tensor tokens", "tensor embed", 5, "a second tensor embed"},
    {"tensor tokens", "tensor tok\ten", 5, "a name of ASCII"},
    {"dims=8x4", "dims=8x", 4, "1 to 3 sizes"},
    {"dims=8x4", "dims=8x0", 4, "1 to 3 sizes"},
    {"dims=8x4", "dims=2x2x2x2", 4, "1 to 3 sizes"},
    {"dims=8x4", "dims=8x5", 4, "do not hold"},
    {"dims=8x4", "dims=4294967296x4294967296x4", 4, "do not hold"},
    {"dtype=I32", "dtype=I33", 5, "'I33' is no dtype; known: F32"},
    {"role=batch", "role=batches", 5, "'batches' is no role; known: weights"},
    {"layer=- param=0", "layer=-1 param=0", 4, "layer: '-1'"},
    {"persistent", "permanent", 4, "'permanent', where arena=..."},
    {"arena=0 offset=256", "arena=1 offset=256", 5, "arena: '1' is not a whole number from 0 to 0"},
    {"offset=256", "offset=9223372036854775807", 5, "do not hold"},
    {"group=0", "group=3", 4, "group: '3' is not a whole number from 0 to 2"},
    {"carry ~0", "carry 0", 7, "'0', where ~0"},
    {"lane=compute", "lane=computer", 7, "'computer' is no lane"},
    {"ends step=1", "step=1", 7, "'step=1', where 'ends'"},
    {"ends step=1", "ends step=3", 7, "step: '3' is not a whole number from 0 to 2"},
    {"step+save=-", "eval=-", 7, "'eval=-', where step+save=..."},
    {"segment eval", "segment evil", 10, "'evil' is no segment"},
    {"segment eval", "segment step", 10, "segment step a second time"},
    {"segment eval first=0 steps=0\n", "", 14, "segment eval is missing"},
    {"first=0 steps=3", "first=1 steps=3", 8, "steps: '3'"},
    {"step 1", "step 2", 13, "'2', where 1"},
    {"step 2 adamw", "step 2 adam", 14, "'adam' is no op or host call; known: zero, "},
    {"0 batch disk_in", "0 op disk_in", 12, "'op' is no op or host call"},
    {"batch disk_in", "batch disk", 12, "'disk' is no lane"},
    {"compute forward", "compute sideways", 13, "'sideways' is no phase"},
    {"flops=0x1p-1", "flops=0.5", 14, "flops: '0.5' is neither"},
    {"flops=0x1p-1", "flops=nan", 14, "flops: 'nan' is neither"},
    {"commit flops", "comit flops", 14, "'comit', where flops=..."},
    {"w:tokens+0", "x:tokens+0", 12, "'x' is no access"},
    {"w:tokens+0:20", "w:tokens", 12, "where an operand like"},
    {"w:tokens+0:20", "w:tokens+0", 12, "where an operand like"},
    {"w:tokens+0:20", "w:tokens+-1:20", 12, "where an operand like"},
    {"w:tokens+0", "w:token+0", 12, "no tensor 'token'"},
    {"w:tokens+0:20", "w:tokens+4:20", 12, "ends beyond its tensor, which has 20 bytes"},
    {"w:tokens+0:20", "w:tokens+9223372036854775807:20", 12, "ends beyond its tensor"},
    {"y=w:x", "x=w:x", 13, "'x=w:x+0:80', where y=..."},
    {"m=- v=-", "m=-", 14, "'m_scale=-', where v=..."},
    {"N=5", "N=5.0", 13, "N: '5.0'"},
    {"N=5 D=4", "D=4 N=5", 13, "'D=4', where N=..."},
    {"dtype=F32 waits=0", "dtype=0 waits=0", 13, "'0' is no dtype"},
    {"beta2=0 ", "beta2=0x1.999999999999ap-4 ", 14, "beta2: not a float"},
    {"beta2=0 ", "beta2=9223372036854775807 ", 14, "beta2: '9223372036854775807'"},
    {"F32 waits=0", "F32 waits=1", 13, "waits: '1' is neither an earlier step nor a carry"},
    {"waits=~0", "waits=~1", 12, "waits: '~1' is neither"},
    {"waits=~0", "waits=~0,", 12, "waits: '' is neither"},
    {"waits=~0", "waits=~0 0", 12, "'0', where the end of the line"},
    {"F32 waits=1\n", "F32 wait=1\n", 14, "'wait=1', where waits=..."},
    {"\nend\n", "\n", 14, "cut off"},
    {"\nend\n", "\nend\nend\n", 16, "a line behind end"},
    {"\nend\n", "\nend now\n", 15, "'now'"},
    {"\nend\n", "\narena 1 place=host bytes=1\nend\n", 15, "in this order"},
};

static void malformed_lines_are_refused(void **state)
{
    char text[2 * sizeof tiny];

    (void)state;
    for (int64_t i = 0; i < COUNT_OF(malformed); i++) {
        const char *at = strstr(tiny, malformed[i].from);
        if (at == NULL) fail_msg("no '%s' in the plan", malformed[i].from);
        const int n = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - tiny), tiny,
                               malformed[i].to, at + strlen(malformed[i].from));
        assert_refused(text, (size_t)n, malformed[i].line, malformed[i].says);
    }
}

static void cut_and_spoilt_texts_are_refused(void **state)
{
    char text[sizeof tiny];
    ls_plan plan;

    (void)state;
    for (size_t n = 0; n + 1 < strlen(tiny); n++) /* the last newline may be missing */
        if (ls_plan_read_text("cut", tiny, n, &plan) == LS_OK) fail_msg("%zu bytes are enough", n);
    memcpy(text, tiny, sizeof text);
    for (size_t i = 0; i < strlen(tiny); i++) {
        text[i] = '\0';
        if (ls_plan_read_text("spoilt", text, strlen(tiny), &plan) == LS_OK)
            fail_msg("a zero at byte %zu", i);
        text[i] = tiny[i];
    }
}

static void long_names_are_refused(void **state)
{
    char text[2 * sizeof tiny], name[LS_TENSOR_NAME_BYTES + 1];
    const char *at = strstr(tiny, "tokens dims");
    ls_plan plan;

    (void)state;
    memset(name, 'n', sizeof name);
    for (int n = LS_TENSOR_NAME_BYTES - 1; n <= LS_TENSOR_NAME_BYTES; n++) {
        const int bytes = snprintf(text, sizeof text, "%.*s%.*s%s", (int)(at - tiny), tiny, n, name,
                                   at + strlen("tokens"));
        if (n == LS_TENSOR_NAME_BYTES)
            assert_refused(text, (size_t)bytes, 5, "at most 95 bytes");
        else /* the steps do not know the name, but the line is sound */
            assert_refused(text, (size_t)bytes, 12, "no tensor 'tokens'");
    }
    assert_int_equal(ls_plan_read_text("none", NULL, 0, &plan), LS_ERR_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_plans_survive),
        cmocka_unit_test(every_field_is_carried),
        cmocka_unit_test(tiny_plan_reads),
        cmocka_unit_test(comm_is_a_lane),
        cmocka_unit_test(layout_is_free),
        cmocka_unit_test(malformed_lines_are_refused),
        cmocka_unit_test(cut_and_spoilt_texts_are_refused),
        cmocka_unit_test(long_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
