/*
 * check_order.c - conflicting accesses are ordered, whatever segments came before.
 *
 * A mark is a place on a lane that later steps may have to be behind: the last access of a kind to
 * some bytes, or the end of a carry; it has one position in each segment that has it.  What a step
 * knows is a vector clock (steps of its segment) and a set of marks (the latest one of each, in
 * whichever earlier segment it was).  What a segment may take for granted at its start is a state:
 * the marks that the first step of each lane knows, and those that each carry implies.
 *
 * Every segment is run as the first of all, and after each one that it may follow; that is exact.
 * Leave out the segments between two others: lane order runs through the gap, and a carry is then
 * ended by an earlier step of the same lane, so whatever is ordered then was ordered before.  Hence
 * two accesses that nothing orders in a long succession have no order when their segments are
 * neighbours; and they may be, because what may be followed at all may be followed by any.
 *
 * Bytes that one lane alone touches, or that nobody writes, need no proof.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { WORD_BITS = 64, TEXT_BYTES = 192 };

typedef uint64_t word;

typedef struct mark {
    ls_lane lane;
    int64_t at[LS_SEGMENT_COUNT]; /* -1: the segment has none */
} mark;

/* The latest accesses to an atom in the segment at work. */
typedef struct access_pair {
    int64_t read, write; /* -1: none */
} access_pair;

typedef struct order_check {
    const ls_plan *plan;
    const ls_atoms *atoms;
    int64_t *cross;      /* [n atoms + 1] how many atoms before it are touched across lanes */
    int32_t *read_marks; /* [n cross, LS_LANE_COUNT] of any access; -1: none */
    int32_t *write_marks;
    mark *marks;
    int32_t n_marks, marks_capacity;
    int32_t *buckets; /* hash of marks, [n_buckets], -1: empty */
    int32_t n_buckets;
    int32_t *carry_marks; /* [n_carries] */
    int64_t n_words;

    int64_t *clocks; /* [n_steps, LS_LANE_COUNT] */
    int32_t *kept;   /* [n_steps] slot in keep of steps whose known marks others need, or -1 */
    word *keep;      /* [n_kept, n_words] */
    int32_t n_kept;
    access_pair *latest;  /* [n cross, LS_LANE_COUNT] */
    bool *wait_is_needed; /* [n_waits] */
    word *over, *after;   /* states, LS_LANE_COUNT + n_carries sets: all is over; after a segment */
    const word *state;    /* at work */
    int before;           /* the segment that left it; -1: none did */
    word *lane_known;     /* [LS_LANE_COUNT, n_words] */
    word *scratch;        /* [2, n_words] */
    int64_t skip;         /* a wait that is left out, -1: none */
} order_check;

static bool set_has(const word *set, int32_t bit)
{
    return (set[bit / WORD_BITS] >> (bit % WORD_BITS)) & 1u;
}

static void set_add(word *set, int32_t bit)
{
    set[bit / WORD_BITS] |= (word)1 << (bit % WORD_BITS);
}

static void add_all(const order_check *c, word *set, const word *other)
{
    for (int64_t w = 0; w < c->n_words; w++) set[w] |= other[w];
}

static int64_t *clock_at(const order_check *c, int64_t step)
{
    return &c->clocks[step * LS_LANE_COUNT];
}

static word *state_lane(const order_check *c, const word *state, int lane)
{
    return (word *)(uintptr_t)&state[lane * c->n_words];
}

static word *state_carry(const order_check *c, const word *state, int32_t carry)
{
    return (word *)(uintptr_t)&state[(LS_LANE_COUNT + carry) * c->n_words];
}

static size_t state_words(const order_check *c)
{
    return (size_t)((LS_LANE_COUNT + c->plan->n_carries) * c->n_words);
}

/* The dense number of an atom touched across lanes, or -1. */
static int64_t cross_index(const order_check *c, int64_t atom)
{
    return c->cross[atom + 1] > c->cross[atom] ? c->cross[atom] : -1;
}

/* ---- which atoms, which marks -------------------------------------------------------------- */

static ls_status find_cross_atoms(order_check *c)
{
    const ls_plan *plan = c->plan;
    uint8_t *touched = calloc((size_t)c->atoms->n + 1, sizeof *touched);
    uint8_t *written = calloc((size_t)c->atoms->n + 1, sizeof *written);

    c->cross = calloc((size_t)c->atoms->n + 2, sizeof *c->cross);
    if (touched == NULL || written == NULL || c->cross == NULL) {
        free(touched);
        free(written);
        return LS_FAIL(LS_ERR_NO_MEMORY, "check of %lld atoms", (long long)c->atoms->n);
    }
    for (int64_t s = 0; s < plan->n_steps; s++) {
        const ls_step *step = &plan->steps[s];
        for (int64_t i = step->first_operand; i < step->first_operand + step->n_operands; i++)
            for (int64_t a = c->atoms->first[i]; a < c->atoms->end[i]; a++) {
                touched[a] = (uint8_t)(touched[a] | 1u << step->lane);
                if (plan->operands[i].access & LS_ACCESS_WRITE) written[a] = 1;
            }
    }
    for (int64_t a = 0; a < c->atoms->n; a++) {
        const bool crosses = written[a] && (touched[a] & (touched[a] - 1)) != 0;
        c->cross[a + 1] = c->cross[a] + crosses;
    }
    free(touched);
    free(written);
    return LS_OK;
}

static uint64_t hash_mark(const mark *m)
{
    uint64_t hash = (uint64_t)m->lane + 1;
    for (int s = 0; s < LS_SEGMENT_COUNT; s++)
        hash = (hash ^ (uint64_t)m->at[s]) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

static bool same_mark(const mark *a, const mark *b)
{
    return a->lane == b->lane && memcmp(a->at, b->at, sizeof a->at) == 0;
}

/* The number of this mark, new or known.  There is room: see list_marks(). */
static int32_t number_mark(order_check *c, const mark *m)
{
    int32_t b = (int32_t)(hash_mark(m) % (uint64_t)c->n_buckets);
    while (c->buckets[b] >= 0 && !same_mark(&c->marks[c->buckets[b]], m))
        b = (b + 1) % c->n_buckets;
    if (c->buckets[b] < 0) {
        assert(c->n_marks < c->marks_capacity);
        c->marks[c->n_marks] = *m;
        c->buckets[b] = c->n_marks++;
    }
    return c->buckets[b];
}

/* Positions of the last reads and writes of every crossing atom, as two marks per lane each. */
static void note_positions(const order_check *c, mark *reads, mark *writes)
{
    const ls_plan *plan = c->plan;

    for (int segment = 0; segment < LS_SEGMENT_COUNT; segment++) {
        const int64_t first = plan->segment_first[segment];
        for (int64_t s = first; s < first + plan->segment_steps[segment]; s++) {
            const ls_step *step = &plan->steps[s];
            for (int64_t i = step->first_operand; i < step->first_operand + step->n_operands; i++) {
                const ls_access access = plan->operands[i].access;
                for (int64_t a = c->atoms->first[i]; a < c->atoms->end[i]; a++) {
                    const int64_t x = cross_index(c, a);
                    if (x < 0) continue;
                    const int64_t slot = x * LS_LANE_COUNT + (int64_t)step->lane;
                    if (access != LS_ACCESS_NONE) reads[slot].at[segment] = s;
                    if (access & LS_ACCESS_WRITE) writes[slot].at[segment] = s;
                }
            }
        }
    }
}

static bool is_empty(const mark *m)
{
    for (int s = 0; s < LS_SEGMENT_COUNT; s++)
        if (m->at[s] >= 0) return false;
    return true;
}

static void number_all(order_check *c, const mark *positions, int64_t n_slots, int32_t *numbers)
{
    for (int64_t i = 0; i < n_slots; i++)
        numbers[i] = is_empty(&positions[i]) ? -1 : number_mark(c, &positions[i]);
}

static ls_status list_marks(order_check *c)
{
    const int64_t n_slots = c->cross[c->atoms->n] * LS_LANE_COUNT;
    const size_t n = (size_t)n_slots + 1, n_carries = (size_t)c->plan->n_carries;
    mark *reads = malloc(n * sizeof *reads), *writes = malloc(n * sizeof *writes);
    ls_status status = LS_OK;

    c->marks_capacity = (int32_t)(2 * n_slots + c->plan->n_carries + 1);
    c->n_buckets = 2 * c->marks_capacity + 1;
    c->read_marks = malloc(n * sizeof *c->read_marks);
    c->write_marks = malloc(n * sizeof *c->write_marks);
    c->carry_marks = malloc((n_carries + 1) * sizeof *c->carry_marks);
    c->marks = malloc((size_t)c->marks_capacity * sizeof *c->marks);
    c->buckets = malloc((size_t)c->n_buckets * sizeof *c->buckets);
    if (reads == NULL || writes == NULL || c->read_marks == NULL || c->write_marks == NULL ||
        c->carry_marks == NULL || c->marks == NULL || c->buckets == NULL) {
        status = LS_FAIL(LS_ERR_NO_MEMORY, "check of %lld atoms across lanes", (long long)n_slots);
    } else {
        for (int32_t b = 0; b < c->n_buckets; b++) c->buckets[b] = -1;
        for (int64_t i = 0; i < n_slots; i++) {
            reads[i].lane = writes[i].lane = (ls_lane)(i % LS_LANE_COUNT);
            for (int s = 0; s < LS_SEGMENT_COUNT; s++) reads[i].at[s] = writes[i].at[s] = -1;
        }
        note_positions(c, reads, writes);
        number_all(c, reads, n_slots, c->read_marks);
        number_all(c, writes, n_slots, c->write_marks);
        for (int32_t i = 0; i < c->plan->n_carries; i++) {
            mark m = {.lane = c->plan->carries[i].lane};
            memcpy(m.at, c->plan->carries[i].ends, sizeof m.at);
            c->carry_marks[i] = number_mark(c, &m);
        }
        c->n_words = c->n_marks / WORD_BITS + 1;
    }
    free(reads);
    free(writes);
    return status;
}

/* ---- one segment from one state ------------------------------------------------------------ */

static ls_status fail_in_segment(const order_check *c, int64_t atom, int64_t step, int64_t other,
                                 int32_t tensor)
{
    char text[TEXT_BYTES], earlier[TEXT_BYTES], bytes[TEXT_BYTES];

    ls_plan_describe_step(c->plan, step, text, sizeof text);
    ls_plan_describe_step(c->plan, other, earlier, sizeof earlier);
    ls_atoms_describe(c->atoms, atom, bytes, sizeof bytes);
    return LS_FAIL(LS_ERR_INVALID,
                   "plan: race: %s and %s both touch %s (%s) and nothing orders them; the latter "
                   "must wait for the former",
                   earlier, text, bytes, c->plan->tensors[tensor].tensor.name);
}

static ls_status fail_across(const order_check *c, int64_t atom, int64_t step, const mark *m,
                             int32_t tensor)
{
    char text[TEXT_BYTES], earlier[TEXT_BYTES], bytes[TEXT_BYTES];

    ls_plan_describe_step(c->plan, step, text, sizeof text);
    ls_plan_describe_step(c->plan, m->at[c->before], earlier, sizeof earlier);
    ls_atoms_describe(c->atoms, atom, bytes, sizeof bytes);
    return LS_FAIL(LS_ERR_INVALID,
                   "plan: race: %s of an earlier segment %s may still be at work on %s (%s) when "
                   "%s of segment %s starts; it must wait for a carry that the former ends",
                   earlier, ls_segment_name((ls_segment_kind)c->before), bytes,
                   c->plan->tensors[tensor].tensor.name, text,
                   ls_segment_name(ls_plan_segment_of(c->plan, step)));
}

/* Learn from the step before on the lane, and from all waits but one. */
static void learn(const order_check *c, int64_t index, int64_t previous, int64_t without,
                  int64_t *clock, word *known)
{
    const ls_step *step = &c->plan->steps[index];

    for (int lane = 0; lane < LS_LANE_COUNT; lane++)
        clock[lane] = previous >= 0 ? clock_at(c, previous)[lane] : -1;
    memcpy(known,
           previous >= 0 ? &c->lane_known[step->lane * c->n_words]
                         : state_lane(c, c->state, (int)step->lane),
           (size_t)c->n_words * sizeof *known);
    for (int64_t w = step->first_wait; w < step->first_wait + step->n_waits; w++) {
        if (w == without || w == c->skip) continue;
        const int64_t wait = c->plan->waits[w];
        if (ls_wait_is_carry(wait)) {
            set_add(known, c->carry_marks[ls_wait_carry(wait)]);
            add_all(c, known, state_carry(c, c->state, (int32_t)ls_wait_carry(wait)));
            continue;
        }
        for (int lane = 0; lane < LS_LANE_COUNT; lane++)
            if (clock_at(c, wait)[lane] > clock[lane]) clock[lane] = clock_at(c, wait)[lane];
        add_all(c, known, &c->keep[c->kept[wait] * c->n_words]);
    }
}

/*
 * Whether everything that a step conflicts with is known to be over.  The first that is not is
 * reported, unless report is false.
 */
static ls_status check_conflicts(const order_check *c, int64_t index, const int64_t *clock,
                                 const word *known, bool report, bool *ordered)
{
    const ls_step *step = &c->plan->steps[index];

    *ordered = true;
    for (int64_t i = step->first_operand; i < step->first_operand + step->n_operands; i++) {
        const ls_step_operand *o = &c->plan->operands[i];
        const bool writes = (o->access & LS_ACCESS_WRITE) != 0;
        if (o->access == LS_ACCESS_NONE ||
            c->cross[c->atoms->first[i]] == c->cross[c->atoms->end[i]])
            continue;
        for (int64_t a = c->atoms->first[i]; a < c->atoms->end[i]; a++) {
            const int64_t x = cross_index(c, a);
            for (int lane = 0; x >= 0 && lane < LS_LANE_COUNT; lane++) {
                const int64_t slot = x * LS_LANE_COUNT + lane;
                if (lane == (int)step->lane) continue;
                const int64_t at = writes ? c->latest[slot].read : c->latest[slot].write;
                if (at > clock[lane]) {
                    *ordered = false;
                    return report ? fail_in_segment(c, a, index, at, o->tensor) : LS_OK;
                }
                const int32_t m = writes ? c->read_marks[slot] : c->write_marks[slot];
                if (m >= 0 && !set_has(known, m)) {
                    *ordered = false;
                    return report ? fail_across(c, a, index, &c->marks[m], o->tensor) : LS_OK;
                }
            }
        }
    }
    return LS_OK;
}

static void note_accesses(order_check *c, int64_t index)
{
    const ls_step *step = &c->plan->steps[index];

    for (int64_t i = step->first_operand; i < step->first_operand + step->n_operands; i++) {
        const ls_access access = c->plan->operands[i].access;
        if (access == LS_ACCESS_NONE || c->cross[c->atoms->first[i]] == c->cross[c->atoms->end[i]])
            continue;
        for (int64_t a = c->atoms->first[i]; a < c->atoms->end[i]; a++) {
            const int64_t x = cross_index(c, a);
            if (x < 0) continue;
            access_pair *pair = &c->latest[x * LS_LANE_COUNT + (int64_t)step->lane];
            pair->read = index;
            if (access & LS_ACCESS_WRITE) pair->write = index;
        }
    }
}

/* Mark the waits without which this very step would race. */
static void find_needed_waits(order_check *c, int64_t index, int64_t previous)
{
    const ls_step *step = &c->plan->steps[index];
    int64_t clock[LS_LANE_COUNT];

    for (int64_t w = step->first_wait; w < step->first_wait + step->n_waits; w++) {
        bool ordered;
        if (c->wait_is_needed[w] || w == c->skip) continue;
        learn(c, index, previous, w, clock, c->scratch);
        clock[step->lane] = index;
        (void)check_conflicts(c, index, clock, c->scratch, false, &ordered);
        c->wait_is_needed[w] = !ordered;
    }
}

/* Marks, as of the end of the segment, known to one who knows clock and known. */
static void leave(const order_check *c, int segment, const int64_t *clock, const word *known,
                  word *set)
{
    memset(set, 0, (size_t)c->n_words * sizeof *set);
    for (int32_t m = 0; m < c->n_marks; m++) {
        const int64_t at = c->marks[m].at[segment];
        if (at >= 0 ? clock[c->marks[m].lane] >= at : set_has(known, m)) set_add(set, m);
    }
}

static const int64_t none[LS_LANE_COUNT] = {-1, -1, -1, -1, -1, -1};

static void leave_segment(const order_check *c, int segment, const int64_t *lane_last)
{
    word *after = c->after;

    for (int lane = 0; lane < LS_LANE_COUNT; lane++) {
        word *set = state_lane(c, after, lane);
        if (lane_last[lane] >= 0)
            leave(c, segment, clock_at(c, lane_last[lane]), &c->lane_known[lane * c->n_words], set);
        else
            leave(c, segment, none, state_lane(c, c->state, lane), set);
        for (int32_t m = 0; m < c->n_marks; m++) /* a lane is in order */
            if ((int)c->marks[m].lane == lane) set_add(set, m);
    }
    for (int32_t i = 0; i < c->plan->n_carries; i++) {
        const int64_t end = c->plan->carries[i].ends[segment];
        word *set = state_carry(c, after, i);
        if (end >= 0)
            leave(c, segment, clock_at(c, end), &c->keep[c->kept[end] * c->n_words], set);
        else
            leave(c, segment, none, state_carry(c, c->state, i), set);
        set_add(set, c->carry_marks[i]);
    }
}

static ls_status run_segment(order_check *c, int segment, int64_t *lane_last)
{
    const ls_plan *plan = c->plan;
    const int64_t first = plan->segment_first[segment];

    for (int lane = 0; lane < LS_LANE_COUNT; lane++) lane_last[lane] = -1;
    for (int64_t i = 0; i < c->cross[c->atoms->n] * LS_LANE_COUNT; i++)
        c->latest[i] = (access_pair){-1, -1};
    for (int64_t s = first; s < first + plan->segment_steps[segment]; s++) {
        const ls_lane lane = plan->steps[s].lane;
        word *known = c->scratch + c->n_words;
        bool ordered;

        if (c->skip < 0) find_needed_waits(c, s, lane_last[lane]);
        learn(c, s, lane_last[lane], -1, clock_at(c, s), known);
        clock_at(c, s)[lane] = s;
        LS_TRY(check_conflicts(c, s, clock_at(c, s), known, true, &ordered));
        note_accesses(c, s);
        memcpy(&c->lane_known[lane * c->n_words], known, (size_t)c->n_words * sizeof *known);
        if (c->kept[s] >= 0)
            memcpy(&c->keep[c->kept[s] * c->n_words], known, (size_t)c->n_words * sizeof *known);
        lane_last[lane] = s;
    }
    return LS_OK;
}

/* ---- all successions ----------------------------------------------------------------------- */

static ls_status run_successions(order_check *c)
{
    int64_t lane_last[LS_LANE_COUNT];

    memset(c->over, 0xff, state_words(c) * sizeof *c->over);
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        if (c->plan->segment_steps[s] == 0) continue;
        c->state = c->over;
        c->before = -1;
        LS_TRY(run_segment(c, s, lane_last));
        leave_segment(c, s, lane_last);
        c->state = c->after;
        c->before = s;
        for (int next = 0; next < LS_SEGMENT_COUNT; next++)
            if (c->plan->segment_steps[next] > 0 &&
                ls_segment_follows((ls_segment_kind)s, (ls_segment_kind)next))
                LS_TRY(run_segment(c, next, lane_last));
    }
    return LS_OK;
}

/* ---- spare waits --------------------------------------------------------------------------- */

static ls_status fail_spare(const ls_plan *plan, int64_t step, int64_t wait)
{
    char text[TEXT_BYTES], other[TEXT_BYTES];

    ls_plan_describe_step(plan, step, text, sizeof text);
    if (ls_wait_is_carry(wait))
        snprintf(other, sizeof other, "carry %lld", (long long)ls_wait_carry(wait));
    else
        ls_plan_describe_step(plan, wait, other, sizeof other);
    return LS_FAIL(LS_ERR_INVALID, "plan: spare wait: %s need not wait for %s", text, other);
}

/* A wait that no conflict of its own step needs may still be what later steps rely on. */
static ls_status check_spare_waits(order_check *c)
{
    for (int64_t s = 0; s < c->plan->n_steps; s++) {
        const ls_step *step = &c->plan->steps[s];
        for (int64_t w = step->first_wait; w < step->first_wait + step->n_waits; w++) {
            if (c->wait_is_needed[w]) continue;
            c->skip = w;
            const ls_status status = run_successions(c);
            c->skip = -1;
            if (status == LS_OK) return fail_spare(c->plan, s, c->plan->waits[w]);
        }
    }
    return LS_OK;
}

/* ---- open, close --------------------------------------------------------------------------- */

/* Steps that others wait for, and those that end a carry. */
static void choose_kept(order_check *c)
{
    const ls_plan *plan = c->plan;

    for (int64_t s = 0; s < plan->n_steps; s++) c->kept[s] = -1;
    for (int64_t s = 0; s < plan->n_steps; s++)
        for (int32_t w = 0; w < plan->steps[s].n_waits; w++) {
            const int64_t wait = plan->waits[plan->steps[s].first_wait + w];
            if (!ls_wait_is_carry(wait)) c->kept[wait] = 0;
        }
    for (int32_t i = 0; i < plan->n_carries; i++)
        for (int s = 0; s < LS_SEGMENT_COUNT; s++)
            if (plan->carries[i].ends[s] >= 0) c->kept[plan->carries[i].ends[s]] = 0;
    for (int64_t s = 0; s < plan->n_steps; s++)
        if (c->kept[s] == 0) c->kept[s] = c->n_kept++;
}

static ls_status allocate(order_check *c)
{
    const size_t n_steps = (size_t)c->plan->n_steps, n_words = (size_t)c->n_words;
    const size_t n_slots = (size_t)c->cross[c->atoms->n] * LS_LANE_COUNT;

    c->clocks = malloc((n_steps * LS_LANE_COUNT + 1) * sizeof *c->clocks);
    c->kept = malloc((n_steps + 1) * sizeof *c->kept);
    c->latest = malloc((n_slots + 1) * sizeof *c->latest);
    c->wait_is_needed = calloc((size_t)c->plan->n_waits + 1, sizeof *c->wait_is_needed);
    c->lane_known = malloc(LS_LANE_COUNT * n_words * sizeof *c->lane_known);
    c->scratch = malloc(2 * n_words * sizeof *c->scratch);
    if (c->kept != NULL) choose_kept(c);
    c->keep = malloc(((size_t)c->n_kept + 1) * n_words * sizeof *c->keep);
    c->over = malloc(state_words(c) * sizeof *c->over);
    c->after = malloc(state_words(c) * sizeof *c->after);
    const bool failed = c->clocks == NULL || c->kept == NULL || c->latest == NULL ||
                        c->wait_is_needed == NULL || c->lane_known == NULL || c->scratch == NULL ||
                        c->keep == NULL || c->over == NULL || c->after == NULL;
    return failed ? LS_FAIL(LS_ERR_NO_MEMORY, "check of %zu steps", n_steps) : LS_OK;
}

static void free_all(order_check *c)
{
    free(c->cross);
    free(c->read_marks);
    free(c->write_marks);
    free(c->marks);
    free(c->buckets);
    free(c->carry_marks);
    free(c->clocks);
    free(c->kept);
    free(c->keep);
    free(c->latest);
    free(c->wait_is_needed);
    free(c->lane_known);
    free(c->scratch);
    free(c->over);
    free(c->after);
}

ls_status ls_check_order(const ls_plan *plan, const ls_atoms *atoms)
{
    order_check c = {.plan = plan, .atoms = atoms, .skip = -1};

    ls_status status = find_cross_atoms(&c);
    if (status == LS_OK) status = list_marks(&c);
    if (status == LS_OK) status = allocate(&c);
    if (status == LS_OK) status = run_successions(&c);
    if (status == LS_OK) status = check_spare_waits(&c);
    free_all(&c);
    return status;
}
