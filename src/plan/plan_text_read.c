/*
 * plan_text_read.c - the text of a plan, read back line by line.
 *
 * Every line is a keyword and a fixed sequence of words, taken one after the other; the first that
 * is not what it must be ends the reading.  Indices are checked against the counts of the second
 * line, and the counts against what has come when `end` is reached.  Nothing is allocated by a
 * count that the text merely claims: tables grow with the lines.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "plan_text.h"
#include "plan_words.h"
#include "text.h"

/* A table that grows: what has come, and for how many there is room. */
typedef struct extent {
    int64_t n, room;
} extent;

typedef struct reader {
    ls_words words;
    ls_plan plan; /* its counts are those that the text claims */
    extent arenas, tensors, carries, steps, args, operands, waits;
    unsigned segments_seen; /* bit s: the line of segment s has come */
    int32_t *slots;         /* [n_slots] hash of tensor names: indices, -1: empty */
    int32_t n_slots;
} reader;

/* The table with room for one more item, or NULL. */
static void *grow(void *table, extent *e, size_t item_bytes)
{
    if (e->n < e->room) return table;
    const int64_t room = e->room > 0 ? 2 * e->room : 16;
    void *grown = realloc(table, (size_t)room * item_bytes);
    if (grown != NULL) e->room = room;
    return grown;
}

#define GROW(r, table)                                                                             \
    do {                                                                                           \
        void *grown_ = grow((r)->plan.table, &(r)->table, sizeof *(r)->plan.table);                \
        if (grown_ == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the plan that is read");             \
        (r)->plan.table = grown_;                                                                  \
    } while (0)

/* ---- names --------------------------------------------------------------------------------- */

#define NAME(thing, type)                                                                          \
    static const char *name_##thing(int value)                                                     \
    {                                                                                              \
        return ls_##thing##_name((type)value);                                                     \
    }
NAME(place, ls_place_kind)
NAME(dtype, ls_dtype)
NAME(role, ls_role)
NAME(lane, ls_lane)
NAME(phase, ls_phase)
NAME(segment, ls_segment_kind)
#undef NAME

/* What a step may be: the ops, then the calls of the host. */
static const char *name_work(int work)
{
    if (work < LS_OP_COUNT) return ls_op_describe((ls_op)work)->name;
    return ls_call_kind_name((ls_call_kind)(work - LS_OP_COUNT + LS_CALL_OP + 1));
}

static const char *name_access(int access)
{
    static const char *const names[] = {"-", "r", "w", "rw"};
    return names[access];
}

static const ls_word_names places = {"place", name_place, LS_PLACE_COUNT};
static const ls_word_names dtypes = {"dtype", name_dtype, LS_DTYPE_COUNT};
static const ls_word_names roles = {"role", name_role, LS_ROLE_COUNT};
static const ls_word_names lanes = {"lane", name_lane, LS_LANE_COUNT};
static const ls_word_names phases = {"phase", name_phase, LS_PHASE_COUNT};
static const ls_word_names segments = {"segment", name_segment, LS_SEGMENT_COUNT};
static const ls_word_names works = {"op or host call", name_work,
                                    LS_OP_COUNT + LS_CALL_KIND_COUNT - LS_CALL_OP - 1};
static const ls_word_names accesses = {"access", name_access, LS_ACCESS_READ_WRITE + 1};

/* ---- tensors by name ----------------------------------------------------------------------- */

/* The slot that holds the tensor of this name, or the empty one where it would go. */
static int32_t find_slot(const reader *r, ls_word name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < name.n; i++)
        hash = (hash ^ (unsigned char)name.at[i]) * UINT64_C(0x100000001b3);
    int32_t slot = (int32_t)(hash % (uint64_t)r->n_slots);
    while (r->slots[slot] >= 0 &&
           !ls_word_equals(name, r->plan.tensors[r->slots[slot]].tensor.name))
        slot = slot + 1 < r->n_slots ? slot + 1 : 0;
    return slot;
}

/* Keep the table at most half full. */
static ls_status grow_slots(reader *r)
{
    if (2 * r->tensors.n < (int64_t)r->n_slots) return LS_OK;
    free(r->slots);
    r->n_slots = r->n_slots > 0 ? 2 * r->n_slots : 64;
    r->slots = malloc((size_t)r->n_slots * sizeof *r->slots);
    if (r->slots == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "names of the plan that is read");
    memset(r->slots, 0xff, (size_t)r->n_slots * sizeof *r->slots); /* -1 */
    for (int32_t t = 0; t < (int32_t)r->tensors.n; t++) {
        const char *name = r->plan.tensors[t].tensor.name;
        r->slots[find_slot(r, (ls_word){name, strlen(name)})] = t;
    }
    return LS_OK;
}

/* ---- counts, arenas, tensors --------------------------------------------------------------- */

static ls_status read_counts(reader *r)
{
    ls_words *w = &r->words;
    ls_plan *p = &r->plan;

    LS_TRY(ls_words_take_i32(w, "arenas", INT32_MAX, &p->n_arenas));
    LS_TRY(ls_words_take_i32(w, "tensors", INT32_MAX / 4, &p->n_tensors));
    LS_TRY(ls_words_take_i32(w, "groups", INT32_MAX, &p->n_groups));
    LS_TRY(ls_words_take_i32(w, "carries", INT32_MAX, &p->n_carries));
    LS_TRY(ls_words_take_whole(w, "steps", INT64_MAX, &p->n_steps));
    LS_TRY(ls_words_take_whole(w, "waits", INT64_MAX, &p->n_waits));
    return ls_words_end_line(w);
}

/* The number that stands on a line must be that of the line among its kind. */
static ls_status take_number(reader *r, const char *prefix, const char *kind, const extent *e,
                             int64_t count)
{
    ls_word word = ls_words_take(&r->words);
    char wanted[LS_TEXT_BYTES];
    int64_t number;

    if (e->n >= count)
        return ls_words_refuse(&r->words, "one %s more than the %" PRId64 " that were announced",
                               kind, count);
    const ls_word whole = word;
    if (ls_word_cut_prefix(&word, prefix) && ls_word_parse_i64(word, &number) && number == e->n)
        return LS_OK;
    snprintf(wanted, sizeof wanted, "%s%" PRId64, prefix, e->n);
    return ls_words_refuse_word(&r->words, whole, wanted);
}

static ls_status read_arena(reader *r)
{
    ls_plan_arena arena;
    int place;

    LS_TRY(take_number(r, "", "arena", &r->arenas, r->plan.n_arenas));
    LS_TRY(ls_words_take_name(&r->words, "place", &places, &place));
    LS_TRY(ls_words_take_bytes(&r->words, "bytes", &arena.bytes));
    LS_TRY(ls_words_end_line(&r->words));
    GROW(r, arenas);
    arena.place = (ls_place_kind)place;
    r->plan.arenas[r->arenas.n++] = arena;
    return LS_OK;
}

static ls_status read_dims(reader *r, ls_tensor *tensor)
{
    ls_word word;

    LS_TRY(ls_words_take_value(&r->words, "dims", &word));
    for (bool more = true; more;) {
        const ls_word all = word, dim = ls_word_cut_first(&word, 'x');
        int64_t n;
        if (tensor->n_dims == LS_TENSOR_DIMS_MAX || !ls_word_parse_i64(dim, &n) || n < 1)
            return ls_words_refuse_word(&r->words, all, "1 to 3 sizes like 24x16");
        tensor->dims[tensor->n_dims++] = n;
        more = dim.n < all.n;
    }
    return LS_OK;
}

static ls_status read_tensor_name(reader *r, ls_tensor *tensor)
{
    const ls_word name = ls_words_take(&r->words);
    char quoted[LS_TEXT_BYTES];

    if (r->tensors.n >= r->plan.n_tensors)
        return ls_words_refuse(&r->words, "one tensor more than the %d that were announced",
                               r->plan.n_tensors);
    if (name.n == 0) return ls_words_refuse_word(&r->words, name, "a name");
    for (size_t i = 0; i < name.n; i++)
        if (name.at[i] <= 0x20 || name.at[i] >= 0x7f)
            return ls_words_refuse_word(&r->words, name, "a name of ASCII characters");
    if (name.n >= sizeof tensor->name)
        return ls_words_refuse(&r->words, "%s: a tensor's name has at most %zu bytes",
                               ls_word_quote(quoted, name), sizeof tensor->name - 1);
    memcpy(tensor->name, name.at, name.n);
    LS_TRY(grow_slots(r));
    if (r->slots[find_slot(r, name)] >= 0)
        return ls_words_refuse(&r->words, "a second tensor %s", tensor->name);
    return LS_OK;
}

static ls_status take_span(reader *r, ls_plan_tensor *t)
{
    uint64_t bytes = ls_dtype_bytes(t->tensor.dtype);

    LS_TRY(ls_words_take_i32(&r->words, "arena", (int64_t)r->plan.n_arenas - 1, &t->span.arena));
    LS_TRY(ls_words_take_bytes(&r->words, "offset", &t->span.offset));
    LS_TRY(ls_words_take_bytes(&r->words, "bytes", &t->span.bytes));
    for (int d = 0; d < t->tensor.n_dims; d++)
        if (__builtin_mul_overflow(bytes, (uint64_t)t->tensor.dims[d], &bytes)) bytes = UINT64_MAX;
    if ((bytes <= t->span.bytes || t->span.bytes == 0) &&
        t->span.offset <= INT64_MAX - t->span.bytes)
        return LS_OK;
    return ls_words_refuse(&r->words, "bytes=%" PRIu64 " do not hold what dims and dtype say",
                           t->span.bytes);
}

static ls_status read_tensor(reader *r)
{
    ls_words *w = &r->words;
    ls_plan_tensor t = {.group = -1, .source = -1};
    int64_t layer, param;
    int dtype, role;

    LS_TRY(read_tensor_name(r, &t.tensor));
    LS_TRY(read_dims(r, &t.tensor));
    LS_TRY(ls_words_take_name(w, "dtype", &dtypes, &dtype));
    LS_TRY(ls_words_take_name(w, "role", &roles, &role));
    LS_TRY(ls_words_take_optional(w, "layer", INT32_MAX, &layer));
    LS_TRY(ls_words_take_optional(w, "param", INT32_MAX, &param));
    t.tensor.dtype = (ls_dtype)dtype;
    t.tensor.role = (ls_role)role;
    t.tensor.layer = (int32_t)layer;
    t.tensor.param = (int32_t)param;
    t.tensor.persistent = ls_words_take_if(w, "persistent");
    LS_TRY(take_span(r, &t));
    LS_TRY(ls_words_take_i32(w, "group", (int64_t)r->plan.n_groups - 1, &t.group));
    if (ls_words_take_if(w, "copy"))
        LS_TRY(ls_words_take_i32(w, "of", r->tensors.n - 1, &t.source));
    LS_TRY(ls_words_end_line(w));
    GROW(r, tensors);
    r->slots[find_slot(r, (ls_word){t.tensor.name, strlen(t.tensor.name)})] = (int32_t)r->tensors.n;
    r->plan.tensors[r->tensors.n++] = t;
    return LS_OK;
}

/* ---- carries, segments --------------------------------------------------------------------- */

static ls_status read_carry(reader *r)
{
    ls_words *w = &r->words;
    ls_carry carry;
    int lane;

    LS_TRY(take_number(r, "~", "carry", &r->carries, r->plan.n_carries));
    LS_TRY(ls_words_take_name(w, "lane", &lanes, &lane));
    LS_TRY(ls_words_take_i32(w, "group", (int64_t)r->plan.n_groups - 1, &carry.group));
    if (!ls_words_take_if(w, "ends")) return ls_words_refuse_word(w, ls_words_take(w), "'ends'");
    for (int s = 0; s < LS_SEGMENT_COUNT; s++)
        LS_TRY(ls_words_take_optional(w, name_segment(s), r->plan.n_steps - 1, &carry.ends[s]));
    LS_TRY(ls_words_end_line(w));
    GROW(r, carries);
    carry.lane = (ls_lane)lane;
    r->plan.carries[r->carries.n++] = carry;
    return LS_OK;
}

static ls_status read_segment(reader *r)
{
    ls_words *w = &r->words;
    const int64_t n_steps = r->plan.n_steps;
    int segment;

    LS_TRY(ls_words_parse_name(w, ls_words_take(w), &segments, &segment));
    if (r->segments_seen & 1u << segment)
        return ls_words_refuse(w, "segment %s a second time", name_segment(segment));
    r->segments_seen |= 1u << segment;
    LS_TRY(ls_words_take_whole(w, "first", n_steps, &r->plan.segment_first[segment]));
    LS_TRY(ls_words_take_whole(w, "steps", n_steps - r->plan.segment_first[segment],
                               &r->plan.segment_steps[segment]));
    return ls_words_end_line(w);
}

/* ---- steps --------------------------------------------------------------------------------- */

/* access:tensor+offset:bytes */
static ls_status parse_operand(reader *r, ls_word word, ls_step_operand *operand)
{
    static const char wanted[] = "an operand like r:x.0+0:768";
    const ls_word all = word;
    char quoted[LS_TEXT_BYTES];
    int64_t bytes, offset;
    int access;

    *operand = (ls_step_operand){{-1, 0, 0}, -1, LS_ACCESS_NONE};
    if (ls_word_equals(word, "-")) return LS_OK;
    const ls_word access_word = ls_word_cut_first(&word, ':');
    if (!ls_word_parse_i64(ls_word_cut_last(&word, ':'), &bytes) || bytes < 0 ||
        !ls_word_parse_i64(ls_word_cut_last(&word, '+'), &offset) || offset < 0)
        return ls_words_refuse_word(&r->words, all, wanted);
    LS_TRY(ls_words_parse_name(&r->words, access_word, &accesses, &access));
    const int32_t tensor = r->n_slots > 0 ? r->slots[find_slot(r, word)] : -1;
    if (tensor < 0) return ls_words_refuse(&r->words, "no tensor %s", ls_word_quote(quoted, word));
    const ls_span *span = &r->plan.tensors[tensor].span;
    if ((uint64_t)bytes > span->bytes || (uint64_t)offset > span->bytes - (uint64_t)bytes)
        return ls_words_refuse(&r->words, "%s ends beyond its tensor, which has %" PRIu64 " bytes",
                               ls_word_quote(quoted, all), span->bytes);
    *operand = (ls_step_operand){
        {span->arena, span->offset + (uint64_t)offset, (uint64_t)bytes}, tensor, (ls_access)access};
    return LS_OK;
}

static ls_status add_operand(reader *r, ls_step *step, ls_word word)
{
    ls_step_operand operand;

    LS_TRY(parse_operand(r, word, &operand));
    GROW(r, operands);
    r->plan.operands[r->operands.n++] = operand;
    step->n_operands++;
    return LS_OK;
}

static ls_status read_operands(reader *r, ls_step *step)
{
    ls_word word;

    step->first_operand = r->operands.n;
    if (step->kind == LS_CALL_OP) {
        const ls_op_info *info = ls_op_describe(step->op);
        for (int i = 0; i < info->n_operands; i++) {
            LS_TRY(ls_words_take_value(&r->words, info->operands[i].name, &word));
            LS_TRY(add_operand(r, step, word));
        }
        return LS_OK;
    }
    for (;;) { /* a host call has as many as there are */
        word = ls_words_peek(&r->words);
        if (word.n == 0 || ls_word_cut_prefix(&word, "waits=")) return LS_OK;
        LS_TRY(add_operand(r, step, ls_words_take(&r->words)));
    }
}

static ls_status take_f32(reader *r, const char *key, float *value)
{
    double real;

    LS_TRY(ls_words_take_real(&r->words, key, &real));
    *value = (float)real;
    return (double)*value == real ? LS_OK : ls_words_refuse(&r->words, "%s: not a float", key);
}

static ls_status take_signed(reader *r, const char *key, int64_t most, int64_t *value)
{
    char quoted[LS_TEXT_BYTES];
    ls_word word;

    LS_TRY(ls_words_take_value(&r->words, key, &word));
    if (ls_word_parse_i64(word, value) && *value >= -most && *value <= most) return LS_OK;
    return ls_words_refuse(&r->words, "%s: %s is not a whole number up to %" PRId64, key,
                           ls_word_quote(quoted, word), most);
}

static ls_status read_field(reader *r, const ls_op_field *field, ls_op_args *args)
{
    char *at = (char *)args + field->offset;
    int64_t whole;
    int dtype;

    switch ((ls_field_type)field->type) {
    case LS_FIELD_I64: return take_signed(r, field->name, INT64_MAX, (int64_t *)at);
    case LS_FIELD_I32:
        LS_TRY(take_signed(r, field->name, INT32_MAX, &whole));
        *(int32_t *)at = (int32_t)whole;
        return LS_OK;
    case LS_FIELD_F32: return take_f32(r, field->name, (float *)at);
    case LS_FIELD_DTYPE:
        LS_TRY(ls_words_take_name(&r->words, field->name, &dtypes, &dtype));
        *(ls_dtype *)at = (ls_dtype)dtype;
        return LS_OK;
    }
    return LS_OK;
}

static ls_status read_args(reader *r, const ls_step *step)
{
    int n = 0;
    const ls_op_field *fields = step->kind == LS_CALL_OP ? ls_op_fields(step->op, &n) : NULL;

    GROW(r, args);
    ls_op_args *args = &r->plan.args[r->args.n++];
    memset(args, 0, sizeof *args);
    for (int i = 0; i < n; i++) LS_TRY(read_field(r, &fields[i], args));
    return LS_OK;
}

static ls_status read_waits(reader *r, ls_step *step)
{
    char quoted[LS_TEXT_BYTES];
    ls_word list;

    step->first_wait = r->waits.n;
    if (ls_words_peek(&r->words).n == 0) return LS_OK;
    LS_TRY(ls_words_take_value(&r->words, "waits", &list));
    for (bool more = true; more;) {
        const size_t before = list.n;
        const ls_word all = ls_word_cut_first(&list, ',');
        ls_word word = all;
        const bool is_carry = ls_word_cut_prefix(&word, "~");
        int64_t wait;
        if (!ls_word_parse_i64(word, &wait) || wait < 0 ||
            wait >= (is_carry ? (int64_t)r->plan.n_carries : r->steps.n))
            return ls_words_refuse(&r->words, "waits: %s is neither an earlier step nor a carry",
                                   ls_word_quote(quoted, all));
        GROW(r, waits);
        r->plan.waits[r->waits.n++] = is_carry ? ls_wait_carry(wait) : wait;
        step->n_waits++;
        more = all.n < before;
    }
    return LS_OK;
}

/* "matmul", or "save_begin" of the host. */
static ls_status read_kind(reader *r, ls_step *step)
{
    int work;

    LS_TRY(ls_words_parse_name(&r->words, ls_words_take(&r->words), &works, &work));
    if (work < LS_OP_COUNT)
        step->op = (ls_op)work;
    else
        step->kind = (ls_call_kind)(work - LS_OP_COUNT + LS_CALL_OP + 1);
    return LS_OK;
}

static ls_status read_step(reader *r)
{
    ls_words *w = &r->words;
    ls_step step = {.args = r->steps.n};
    int lane, phase;
    int64_t layer, chunk;

    LS_TRY(take_number(r, "", "step", &r->steps, r->plan.n_steps));
    LS_TRY(read_kind(r, &step));
    LS_TRY(ls_words_parse_name(w, ls_words_take(w), &lanes, &lane));
    LS_TRY(ls_words_parse_name(w, ls_words_take(w), &phases, &phase));
    LS_TRY(ls_words_take_optional(w, "layer", INT32_MAX, &layer));
    LS_TRY(ls_words_take_optional(w, "chunk", INT32_MAX, &chunk));
    step.lane = (ls_lane)lane;
    step.phase = (ls_phase)phase;
    step.layer = (int32_t)layer;
    step.chunk = (int32_t)chunk;
    step.commit = ls_words_take_if(w, "commit");
    step.recompute = ls_words_take_if(w, "recompute");
    LS_TRY(ls_words_take_real(w, "flops", &step.flops));
    LS_TRY(ls_words_take_bytes(w, "bytes", &step.bytes));
    LS_TRY(read_operands(r, &step));
    LS_TRY(read_args(r, &step));
    LS_TRY(read_waits(r, &step));
    LS_TRY(ls_words_end_line(w));
    GROW(r, steps);
    r->plan.steps[r->steps.n++] = step;
    return LS_OK;
}

/* ---- all lines ----------------------------------------------------------------------------- */

static ls_status read_header(reader *r)
{
    ls_words *w = &r->words;

    if (!ls_words_next_line(w) || !ls_words_take_if(w, "longspan-plan"))
        return ls_words_refuse(w, "not a plan: it does not begin with 'longspan-plan 1'");
    if (!ls_words_take_if(w, "1"))
        return ls_words_refuse_word(w, ls_words_take(w), "version 1, the one this program reads");
    LS_TRY(ls_words_end_line(w));
    if (!ls_words_next_line(w) || !ls_words_take_if(w, "counts"))
        return ls_words_refuse_word(w, ls_words_take(w), "'counts'");
    return read_counts(r);
}

/* What was announced has come. */
static ls_status check_counts(const reader *r)
{
    const struct {
        const char *kind;
        int64_t announced, came;
    } counts[] = {{"arenas", r->plan.n_arenas, r->arenas.n},
                  {"tensors", r->plan.n_tensors, r->tensors.n},
                  {"carries", r->plan.n_carries, r->carries.n},
                  {"steps", r->plan.n_steps, r->steps.n},
                  {"waits", r->plan.n_waits, r->waits.n}};

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (counts[i].announced != counts[i].came)
            return ls_words_refuse(&r->words, "%" PRId64 " %s were announced, %" PRId64 " came",
                                   counts[i].announced, counts[i].kind, counts[i].came);
    for (int s = 0; s < LS_SEGMENT_COUNT; s++)
        if (!(r->segments_seen & 1u << s))
            return ls_words_refuse(&r->words, "segment %s is missing", name_segment(s));
    return LS_OK;
}

static ls_status read_lines(reader *r)
{
    static const struct {
        const char *keyword;
        ls_status (*read)(reader *r);
        int section; /* they come in this order */
    } kinds[] = {{"arena", read_arena, 0},
                 {"tensor", read_tensor, 1},
                 {"carry", read_carry, 2},
                 {"segment", read_segment, 3},
                 {"step", read_step, 3}};
    const size_t n_kinds = sizeof kinds / sizeof kinds[0];
    int section = 0;

    LS_TRY(read_header(r));
    while (ls_words_next_line(&r->words)) {
        const ls_word keyword = ls_words_take(&r->words);
        size_t k = 0;
        if (ls_word_equals(keyword, "end")) {
            LS_TRY(ls_words_end_line(&r->words));
            if (ls_words_next_line(&r->words))
                return ls_words_refuse(&r->words, "a line behind end");
            return check_counts(r);
        }
        while (k < n_kinds && !ls_word_equals(keyword, kinds[k].keyword)) k++;
        if (k == n_kinds || kinds[k].section < section)
            return ls_words_refuse_word(
                &r->words, keyword, "arena, tensor, carry, segment, step or end, in this order");
        section = kinds[k].section;
        LS_TRY(kinds[k].read(r));
    }
    return ls_words_refuse(&r->words, "cut off: the last line must be 'end'");
}

ls_status ls_plan_read_text(const char *name, const char *text, size_t bytes, ls_plan *plan)
{
    reader r = {.words = {.name = name, .text = {text, bytes}}};
    const ls_status status = read_lines(&r);

    free(r.slots);
    r.plan.n_operands = r.operands.n;
    if (status == LS_OK)
        *plan = r.plan;
    else
        ls_plan_free(&r.plan);
    return status;
}
