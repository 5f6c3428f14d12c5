/*
 * order.c - the fewest waits that order every two steps whose bytes conflict.
 *
 * A wait is added only for a conflict that is not known to be over (knowledge.h); the latest
 * conflicting step of each lane is enough.  What a carry implies depends on the waits of the
 * segments before.  So: order everything assuming that a carry implies nothing, compute what the
 * carries then imply over all successions of segments, order again knowing that, until the waits
 * stay the same.
 */
#define _GNU_SOURCE /* NOLINT: the libc's name; for qsort_r */
#include "order.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "knowledge.h"

enum { ROUNDS_MAX = 8 };

/* An earlier use of a tensor by one lane in this segment. */
typedef struct use {
    int64_t step, next; /* next: the lane's use of the tensor before this one, -1: none */
    uint64_t offset, bytes;
    bool writes;
} use;

/* Lanes that touch a region, and that write into it, in any segment: bit l is lane l. */
typedef struct region_lanes {
    uint8_t any, write;
} region_lanes;

static_assert(LS_LANE_COUNT <= 8, "lanes fit a byte");

typedef struct ordering {
    ls_plan *plan;
    ls_knowledge knowledge;
    int32_t *region;        /* [n_tensors] the first tensor that begins on the same byte */
    uint64_t *region_bytes; /* [n_tensors] of the largest tensor there, by region */
    region_lanes *lanes;    /* [n_tensors] by region */
    bool *crosses;          /* [n_tensors] two lanes touch its bytes, one of them writing */
    int32_t *carry_of;      /* [n_groups, LS_LANE_COUNT], -1: none */
    int64_t *last_use;      /* [n_tensors, LS_LANE_COUNT] index into uses, by region, -1: none */
    use *uses;
    int64_t n_uses, waits_capacity;
    ls_carry_word *needed; /* a set, scratch: empty between steps */
} ordering;

static int lowest_bit(uint64_t bits)
{
    return __builtin_ctzll(bits);
}

/* ---- regions ------------------------------------------------------------------------------- */

static int compare_spans(const void *a, const void *b, void *context)
{
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const ls_plan_tensor *tensors = context;
    const ls_span *x = &tensors[i].span, *y = &tensors[j].span;

    if (x->arena != y->arena) return x->arena < y->arena ? -1 : 1;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return i < j ? -1 : i > j;
}

/* Tensors of one slot begin on the same byte: what is done to one is done to all. */
static ls_status find_regions(ordering *o)
{
    ls_plan_tensor *tensors = o->plan->tensors;
    const size_t n = (size_t)o->plan->n_tensors;
    int32_t *sorted = malloc((n + 1) * sizeof *sorted);

    if (sorted == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "order of %zu tensors", n);
    for (size_t i = 0; i < n; i++) sorted[i] = (int32_t)i;
    qsort_r(sorted, n, sizeof *sorted, compare_spans, tensors);
    for (size_t i = 0; i < n; i++) {
        const ls_span *span = &tensors[sorted[i]].span;
        const ls_span *before = i > 0 ? &tensors[sorted[i - 1]].span : NULL;
        const bool same =
            before != NULL && before->arena == span->arena && before->offset == span->offset;
        const int32_t region = same ? o->region[sorted[i - 1]] : sorted[i];
        o->region[sorted[i]] = region;
        if (!same || span->bytes > o->region_bytes[region]) o->region_bytes[region] = span->bytes;
    }
    free(sorted);
    return LS_OK;
}

/* ---- which carries there are --------------------------------------------------------------- */

static void note_accesses(ordering *o)
{
    const ls_plan *plan = o->plan;

    for (int64_t s = 0; s < plan->n_steps; s++)
        for (int32_t i = 0; i < plan->steps[s].n_operands; i++) {
            const ls_step_operand *operand = &plan->operands[plan->steps[s].first_operand + i];
            if (operand->tensor < 0 || operand->access == LS_ACCESS_NONE) continue;
            const uint8_t bit = (uint8_t)(1u << plan->steps[s].lane);
            region_lanes *lanes = &o->lanes[o->region[operand->tensor]];
            lanes->any = (uint8_t)(lanes->any | bit);
            if (operand->access & LS_ACCESS_WRITE) lanes->write = (uint8_t)(lanes->write | bit);
        }
    for (int32_t t = 0; t < plan->n_tensors; t++) {
        const region_lanes lanes = o->lanes[o->region[t]];
        o->crosses[t] = lanes.write != 0 && (lanes.any & (lanes.any - 1)) != 0;
    }
}

/* Lanes whose uses of the operand's region conflict with a step on this lane. */
static unsigned conflicting_lanes(const ordering *o, ls_lane lane, const ls_step_operand *operand)
{
    const region_lanes lanes = o->lanes[o->region[operand->tensor]];
    return ((operand->access & LS_ACCESS_WRITE) ? lanes.any : lanes.write) & ~(1u << lane);
}

/* One for each lane and group of tensors that cross lanes. */
static ls_status list_carries(ordering *o)
{
    ls_plan *plan = o->plan;
    const int64_t n_slots = (int64_t)LS_LANE_COUNT * plan->n_groups;

    for (int64_t i = 0; i < n_slots; i++) o->carry_of[i] = -1;
    plan->n_carries = 0;
    for (int pass = 0; pass < 2; pass++) { /* count, then fill */
        int32_t n = 0;
        for (int32_t t = 0; t < plan->n_tensors; t++)
            for (int lane = 0; lane < LS_LANE_COUNT; lane++) {
                int32_t *carry = &o->carry_of[plan->tensors[t].group * LS_LANE_COUNT + lane];
                if (!o->crosses[t] || !(o->lanes[o->region[t]].any >> lane & 1u)) continue;
                if (pass == 0) {
                    if (*carry < 0) *carry = n++;
                    continue;
                }
                plan->carries[*carry].lane = (ls_lane)lane;
                plan->carries[*carry].group = plan->tensors[t].group;
                for (int s = 0; s < LS_SEGMENT_COUNT; s++) plan->carries[*carry].ends[s] = -1;
            }
        if (pass == 1) break;
        plan->n_carries = n;
        plan->carries = calloc((size_t)n + 1, sizeof *plan->carries);
        if (plan->carries == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "carries of the plan");
    }
    return LS_OK;
}

static void find_ends(ordering *o)
{
    ls_plan *plan = o->plan;

    for (int segment = 0; segment < LS_SEGMENT_COUNT; segment++) {
        const int64_t first = plan->segment_first[segment];
        for (int64_t s = first; s < first + plan->segment_steps[segment]; s++)
            for (int32_t i = 0; i < plan->steps[s].n_operands; i++) {
                const int32_t t = plan->operands[plan->steps[s].first_operand + i].tensor;
                if (t < 0 || !o->crosses[t]) continue;
                const int32_t carry = o->carry_of[plan->tensors[t].group * LS_LANE_COUNT +
                                                  (int32_t)plan->steps[s].lane];
                plan->carries[carry].ends[segment] = s;
            }
    }
}

/* ---- ordering one step --------------------------------------------------------------------- */

static ls_status append_wait(ordering *o, ls_step *step, int64_t wait)
{
    ls_plan *plan = o->plan;
    if (plan->n_waits == o->waits_capacity) {
        const int64_t capacity = o->waits_capacity ? 2 * o->waits_capacity : 256;
        int64_t *grown = realloc(plan->waits, (size_t)capacity * sizeof *grown);
        if (grown == NULL)
            return LS_FAIL(LS_ERR_NO_MEMORY, "plan of %lld waits", (long long)capacity);
        plan->waits = grown;
        o->waits_capacity = capacity;
    }
    plan->waits[plan->n_waits++] = wait;
    step->n_waits++;
    return LS_OK;
}

/* The latest conflicting step of each other lane that one operand meets in this segment. */
static void find_conflicts(const ordering *o, ls_lane lane, const ls_step_operand *operand,
                           int64_t *needed)
{
    const bool writes = (operand->access & LS_ACCESS_WRITE) != 0;
    const uint64_t begin = operand->span.offset, end = begin + operand->span.bytes;

    for (unsigned lanes = conflicting_lanes(o, lane, operand); lanes != 0; lanes &= lanes - 1) {
        const int other = lowest_bit(lanes);
        int64_t u = o->last_use[o->region[operand->tensor] * LS_LANE_COUNT + other];
        for (; u >= 0; u = o->uses[u].next) {
            const use *earlier = &o->uses[u];
            if (earlier->step <= needed[other]) break;
            if (!(writes || earlier->writes)) continue;
            if (earlier->offset + earlier->bytes <= begin || end <= earlier->offset) continue;
            needed[other] = earlier->step;
            break;
        }
    }
}

/* A write of a whole tensor hides all earlier uses: of its lane because they come before it, of
 * other lanes because it has waited for them. */
static void record_use(ordering *o, int64_t index, const ls_step_operand *operand)
{
    const bool writes = (operand->access & LS_ACCESS_WRITE) != 0;
    const int32_t region = o->region[operand->tensor];
    int64_t *last = &o->last_use[region * LS_LANE_COUNT];
    const ls_lane lane = o->plan->steps[index].lane;

    if (writes && operand->span.bytes == o->region_bytes[region])
        for (int other = 0; other < LS_LANE_COUNT; other++) last[other] = -1;
    o->uses[o->n_uses] =
        (use){index, last[lane], operand->span.offset, operand->span.bytes, writes};
    last[lane] = o->n_uses++;
}

static ls_status wait_for_steps(ordering *o, int64_t index)
{
    ls_step *step = &o->plan->steps[index];
    int64_t needed[LS_LANE_COUNT];

    for (int lane = 0; lane < LS_LANE_COUNT; lane++) needed[lane] = -1;
    for (int32_t i = 0; i < step->n_operands; i++) {
        const ls_step_operand *operand = &o->plan->operands[step->first_operand + i];
        if (operand->tensor >= 0 && o->crosses[operand->tensor])
            find_conflicts(o, step->lane, operand, needed);
    }
    for (;;) { /* latest step first: it may imply the others */
        int64_t on = -1;
        for (int lane = 0; lane < LS_LANE_COUNT; lane++)
            if (needed[lane] > ls_clock_at(&o->knowledge, index)[lane] && needed[lane] > on)
                on = needed[lane];
        if (on < 0) return LS_OK;
        LS_TRY(append_wait(o, step, on));
        ls_knowledge_learn_step(&o->knowledge, index, on);
    }
}

/* The carries of other lanes that a step conflicts with and does not know to have ended. */
static bool find_carries(const ordering *o, int64_t index, ls_carry_word *needed)
{
    const ls_plan *plan = o->plan;
    const ls_step *step = &plan->steps[index];
    const ls_carry_word *known = ls_known_at(&o->knowledge, index);
    bool any = false;

    for (int32_t i = 0; i < step->n_operands; i++) {
        const ls_step_operand *operand = &plan->operands[step->first_operand + i];
        if (operand->tensor < 0 || !o->crosses[operand->tensor]) continue;
        const int32_t *carries = &o->carry_of[plan->tensors[operand->tensor].group * LS_LANE_COUNT];
        unsigned lanes = conflicting_lanes(o, step->lane, operand);
        for (; lanes != 0; lanes &= lanes - 1) {
            const int32_t carry = carries[lowest_bit(lanes)];
            if (ls_carries_have(known, carry)) continue;
            ls_carries_add(needed, carry);
            any = true;
        }
    }
    return any;
}

/* Whether another needed carry implies this one. */
static bool is_implied(const ordering *o, const ls_knowledge_entry *e, const ls_carry_word *needed,
                       int32_t carry)
{
    const ls_knowledge *k = &o->knowledge;

    for (int64_t w = 0; w < k->n_words; w++)
        for (ls_carry_word left = needed[w]; left != 0; left &= left - 1) {
            const int32_t other = (int32_t)w * LS_CARRY_WORD_BITS + lowest_bit(left);
            if (other != carry && ls_carries_have(ls_implied_by(k, e, other), carry)) return true;
        }
    return false;
}

/* A needed carry that no other needed one implies, or else the first; -1: none is needed. */
static int32_t choose_carry(const ordering *o, const ls_knowledge_entry *e,
                            const ls_carry_word *needed)
{
    int32_t first = -1;

    for (int64_t w = 0; w < o->knowledge.n_words; w++)
        for (ls_carry_word left = needed[w]; left != 0; left &= left - 1) {
            const int32_t carry = (int32_t)w * LS_CARRY_WORD_BITS + lowest_bit(left);
            if (!is_implied(o, e, needed, carry)) return carry;
            if (first < 0) first = carry;
        }
    return first;
}

static ls_status wait_for_carries(ordering *o, ls_segment_kind segment, int64_t index)
{
    const ls_knowledge *k = &o->knowledge;

    if (!find_carries(o, index, o->needed)) return LS_OK;
    for (;;) { /* ends with none needed */
        const int32_t carry = choose_carry(o, &k->entries[segment], o->needed);
        if (carry < 0) return LS_OK;
        LS_TRY(append_wait(o, &o->plan->steps[index], ls_wait_carry(carry)));
        ls_knowledge_learn_carry(&o->knowledge, segment, index, carry);
        for (int64_t w = 0; w < k->n_words; w++) o->needed[w] &= ~ls_known_at(k, index)[w];
    }
}

/* ---- ordering all -------------------------------------------------------------------------- */

static ls_status order_segment(ordering *o, ls_segment_kind segment)
{
    ls_plan *plan = o->plan;
    const int64_t first = plan->segment_first[segment];

    o->n_uses = 0;
    for (int64_t i = 0; i < (int64_t)plan->n_tensors * LS_LANE_COUNT; i++) o->last_use[i] = -1;
    ls_knowledge_start_segment(&o->knowledge);
    for (int64_t s = first; s < first + plan->segment_steps[segment]; s++) {
        ls_step *step = &plan->steps[s];
        step->first_wait = plan->n_waits;
        step->n_waits = 0;
        ls_knowledge_start_step(&o->knowledge, segment, s);
        LS_TRY(wait_for_steps(o, s));
        LS_TRY(wait_for_carries(o, segment, s));
        for (int32_t i = 0; i < step->n_operands; i++) {
            const ls_step_operand *operand = &plan->operands[step->first_operand + i];
            if (operand->tensor >= 0 && o->crosses[operand->tensor]) record_use(o, s, operand);
        }
    }
    return LS_OK;
}

static ls_status order_all(ordering *o)
{
    o->plan->n_waits = 0;
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) LS_TRY(order_segment(o, (ls_segment_kind)s));
    return LS_OK;
}

/* The waits of one round, to compare with the next: their number and a hash of them. */
static uint64_t sign_waits(const ls_plan *plan)
{
    uint64_t sign = (uint64_t)plan->n_waits;
    for (int64_t s = 0; s < plan->n_steps; s++)
        for (int32_t w = 0; w < plan->steps[s].n_waits; w++) {
            const uint64_t wait = (uint64_t)plan->waits[plan->steps[s].first_wait + w];
            sign = (sign ^ (uint64_t)s) * UINT64_C(0x100000001b3);
            sign = (sign ^ wait) * UINT64_C(0x100000001b3);
        }
    return sign;
}

static ls_status order_in_rounds(ordering *o)
{
    ls_knowledge_assume_least(&o->knowledge);
    LS_TRY(order_all(o));
    for (int round = 0; round < ROUNDS_MAX; round++) {
        const uint64_t before = sign_waits(o->plan);
        ls_knowledge_find_entries(&o->knowledge);
        LS_TRY(order_all(o));
        if (sign_waits(o->plan) == before) return LS_OK;
    }
    ls_knowledge_assume_least(&o->knowledge);
    return order_all(o); /* more waits than needed, but never too few */
}

static ls_status find_spare_waits(const ls_plan *plan, bool *spare)
{
    ls_atoms atoms;

    LS_TRY(ls_atoms_cut(plan, &atoms));
    const ls_status status = ls_find_spare_waits(plan, &atoms, spare);
    ls_atoms_free(&atoms);
    return status;
}

/*
 * A wait is added for what is known when its step is reached; what later steps then wait for may
 * make it spare.  Carries above all: each implies what the one before it on its lane had learnt.
 */
static ls_status drop_spare_waits(ls_plan *plan)
{
    const size_t n_waits = (size_t)plan->n_waits;
    bool *spare = calloc(n_waits + 1, sizeof *spare);
    int64_t *kept = malloc((n_waits + 1) * sizeof *kept);
    ls_status status;

    if (spare == NULL || kept == NULL)
        status = LS_FAIL(LS_ERR_NO_MEMORY, "%zu waits", n_waits);
    else
        status = find_spare_waits(plan, spare);
    if (status == LS_OK) {
        int64_t n = 0;
        for (int64_t s = 0; s < plan->n_steps; s++) {
            ls_step *step = &plan->steps[s];
            const int64_t first = step->first_wait, end = first + step->n_waits;
            step->first_wait = n;
            for (int64_t w = first; w < end; w++)
                if (!spare[w]) kept[n++] = plan->waits[w];
            step->n_waits = (int32_t)(n - step->first_wait);
        }
        if (n > 0) memcpy(plan->waits, kept, (size_t)n * sizeof *kept);
        plan->n_waits = n;
    }
    free(spare);
    free(kept);
    return status;
}

/* Drop the carries that nothing waits for. */
static void drop_unused_carries(ordering *o)
{
    ls_plan *plan = o->plan;
    int32_t *new_index = o->carry_of; /* no longer needed; at least as many slots as carries */
    int32_t n = 0;

    for (int32_t c = 0; c < plan->n_carries; c++) new_index[c] = -1;
    for (int64_t w = 0; w < plan->n_waits; w++)
        if (ls_wait_is_carry(plan->waits[w])) new_index[ls_wait_carry(plan->waits[w])] = 0;
    for (int32_t c = 0; c < plan->n_carries; c++) {
        if (new_index[c] < 0) continue;
        plan->carries[n] = plan->carries[c];
        new_index[c] = n++;
    }
    for (int64_t w = 0; w < plan->n_waits; w++)
        if (ls_wait_is_carry(plan->waits[w]))
            plan->waits[w] = ls_wait_carry(new_index[ls_wait_carry(plan->waits[w])]);
    plan->n_carries = n;
}

static ls_status allocate_tables(ordering *o)
{
    const size_t n_tensors = (size_t)o->plan->n_tensors, n_groups = (size_t)o->plan->n_groups;

    o->region = malloc((n_tensors + 1) * sizeof *o->region);
    o->region_bytes = malloc((n_tensors + 1) * sizeof *o->region_bytes);
    o->lanes = calloc(n_tensors + 1, sizeof *o->lanes);
    o->crosses = calloc(n_tensors + 1, sizeof *o->crosses);
    o->carry_of = calloc(n_groups * LS_LANE_COUNT + 1, sizeof *o->carry_of);
    o->last_use = malloc((n_tensors * LS_LANE_COUNT + 1) * sizeof *o->last_use);
    o->uses = malloc(((size_t)o->plan->n_operands + 1) * sizeof *o->uses);
    if (o->region == NULL || o->region_bytes == NULL || o->lanes == NULL || o->crosses == NULL ||
        o->carry_of == NULL || o->last_use == NULL || o->uses == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "order of %zu tensors", n_tensors);
    return LS_OK;
}

static ls_status order_plan(ordering *o)
{
    LS_TRY(allocate_tables(o));
    LS_TRY(find_regions(o));
    note_accesses(o);
    LS_TRY(list_carries(o));
    find_ends(o);
    LS_TRY(ls_knowledge_open(o->plan, &o->knowledge));
    o->needed = calloc((size_t)o->knowledge.n_words, sizeof *o->needed);
    if (o->needed == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "order of the plan");
    LS_TRY(order_in_rounds(o));
    LS_TRY(drop_spare_waits(o->plan));
    drop_unused_carries(o);
    return LS_OK;
}

ls_status ls_plan_order(ls_plan *plan)
{
    ordering o = {.plan = plan};
    const ls_status status = order_plan(&o);

    ls_knowledge_close(&o.knowledge);
    free(o.region);
    free(o.region_bytes);
    free(o.lanes);
    free(o.crosses);
    free(o.carry_of);
    free(o.last_use);
    free(o.uses);
    free(o.needed);
    return status;
}
