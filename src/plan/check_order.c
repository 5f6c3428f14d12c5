/*
 * check_order.c - conflicting accesses are ordered, whatever segments came before.
 *
 * What is over when a step starts is a vector clock: the latest step of each lane that it comes
 * after, by the order of its own lane and by its waits.  Each step gets one clock of steps of its
 * own segment and, for every segment that may be the one before, one clock of steps of that.
 *
 * Looking at neighbours is enough.  Leave out the segments between two others: lane order runs
 * through the gap, and a carry is then ended by an earlier step of the same lane, so whatever is
 * ordered then was ordered before.  Hence two accesses that nothing orders in a long succession
 * have no order when their segments are neighbours; and they may be, because what may be followed
 * at all may be followed by any.
 *
 * Bytes that one lane alone touches, or that nobody writes, need no proof.  Time: for each pair of
 * segments the number of operands' atoms times that of lanes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { TEXT_BYTES = 192, NO_SEGMENT = -1 };

/* The latest step of each lane that is over; -1: none is known to be. */
typedef struct lane_clock {
    int64_t step[LS_LANE_COUNT];
} lane_clock;

/* The latest accesses to an atom by one lane of a segment. */
typedef struct access_pair {
    int64_t any, write; /* -1: none */
} access_pair;

/* A step's use of atoms of which some need proof: few, and looked at again for every wait that may
 * be spare. */
typedef struct cross_use {
    int64_t first, end; /* atoms */
    int32_t tensor;
    bool writes;
} cross_use;

typedef struct order_check {
    const ls_plan *plan;
    const ls_atoms *atoms;
    int64_t *cross;                        /* [n atoms + 1] how many before it cross lanes */
    cross_use *uses;                       /* step by step */
    int64_t *use_first;                    /* [n_steps + 1] of a step, in uses */
    lane_clock *own, *across;              /* [n_steps] of the segment itself; of the one before */
    access_pair *latest[LS_SEGMENT_COUNT]; /* [n cross, LS_LANE_COUNT] so far, then in all of it */
    int64_t lane_last[LS_SEGMENT_COUNT][LS_LANE_COUNT]; /* -1: none */
    bool *wait_is_needed; /* [n_waits] by a conflict of its own step */
    bool *left_out;       /* [n_waits] taken as not there */
    bool all_there;       /* none is left out */
} order_check;

/* ---- atoms that need proof ----------------------------------------------------------------- */

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

/* The dense number of an atom that crosses lanes, or -1. */
static int64_t cross_index(const order_check *c, int64_t atom)
{
    return c->cross[atom + 1] > c->cross[atom] ? c->cross[atom] : -1;
}

/* Whether a step's use of an operand needs proof at all. */
static bool operand_crosses(const order_check *c, int64_t operand)
{
    return c->plan->operands[operand].access != LS_ACCESS_NONE &&
           c->cross[c->atoms->first[operand]] < c->cross[c->atoms->end[operand]];
}

static ls_status list_cross_uses(order_check *c)
{
    const ls_plan *plan = c->plan;
    int64_t n = 0;

    for (int64_t s = 0; s < plan->n_steps; s++)
        for (int32_t i = 0; i < plan->steps[s].n_operands; i++)
            n += operand_crosses(c, plan->steps[s].first_operand + i);
    c->uses = malloc(((size_t)n + 1) * sizeof *c->uses);
    c->use_first = malloc(((size_t)plan->n_steps + 1) * sizeof *c->use_first);
    if (c->uses == NULL || c->use_first == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "check of %lld operands", (long long)n);
    n = 0;
    for (int64_t s = 0; s < plan->n_steps; s++) {
        const ls_step *step = &plan->steps[s];
        c->use_first[s] = n;
        for (int64_t i = step->first_operand; i < step->first_operand + step->n_operands; i++)
            if (operand_crosses(c, i))
                c->uses[n++] =
                    (cross_use){c->atoms->first[i], c->atoms->end[i], plan->operands[i].tensor,
                                (plan->operands[i].access & LS_ACCESS_WRITE) != 0};
    }
    c->use_first[plan->n_steps] = n;
    return LS_OK;
}

/* ---- clocks -------------------------------------------------------------------------------- */

static const lane_clock nothing = {{-1, -1, -1, -1, -1, -1}};

static void raise_clock(lane_clock *to, const lane_clock *other)
{
    for (int lane = 0; lane < LS_LANE_COUNT; lane++)
        if (other->step[lane] > to->step[lane]) to->step[lane] = other->step[lane];
}

/*
 * What is over of a segment, before or (NO_SEGMENT) the step's own, when a step starts that waits
 * for all it should but one.
 *   previous  the step before on the lane of this segment, -1: none
 */
static lane_clock read_clock(const order_check *c, int before, int64_t index, int64_t previous,
                             int64_t without)
{
    const ls_step *step = &c->plan->steps[index];
    const lane_clock *clocks = before == NO_SEGMENT ? c->own : c->across;
    lane_clock read = nothing;

    if (previous >= 0)
        read = clocks[previous];
    else if (before != NO_SEGMENT && c->lane_last[before][step->lane] >= 0)
        read = c->own[c->lane_last[before][step->lane]];
    for (int64_t w = step->first_wait; w < step->first_wait + step->n_waits; w++) {
        const int64_t wait = c->plan->waits[w];
        if (w == without || c->left_out[w]) continue;
        if (!ls_wait_is_carry(wait)) {
            raise_clock(&read, &clocks[wait]);
        } else if (before != NO_SEGMENT) {
            const int64_t end = c->plan->carries[ls_wait_carry(wait)].ends[before];
            if (end >= 0) raise_clock(&read, &c->own[end]);
        }
    }
    return read;
}

/* ---- conflicts ----------------------------------------------------------------------------- */

typedef struct conflict {
    int64_t step, atom; /* step: the earlier one */
    int32_t tensor;
} conflict;

/* The first conflict of a step with accesses that its clock does not know to be over. */
static bool find_conflict(const order_check *c, int64_t index, const access_pair *latest,
                          const lane_clock *over, conflict *found)
{
    const ls_lane own = c->plan->steps[index].lane;

    for (int64_t n = c->use_first[index]; n < c->use_first[index + 1]; n++) {
        const cross_use *use = &c->uses[n];
        for (int64_t a = use->first; a < use->end; a++) {
            const int64_t x = cross_index(c, a);
            for (int lane = 0; x >= 0 && lane < LS_LANE_COUNT; lane++) {
                const access_pair *pair = &latest[x * LS_LANE_COUNT + lane];
                const int64_t at = use->writes ? pair->any : pair->write;
                if (lane == (int)own || at <= over->step[lane]) continue;
                *found = (conflict){at, a, use->tensor};
                return true;
            }
        }
    }
    return false;
}

static void note_accesses(order_check *c, int64_t index, access_pair *latest)
{
    const ls_lane own = c->plan->steps[index].lane;

    for (int64_t n = c->use_first[index]; n < c->use_first[index + 1]; n++) {
        const cross_use *use = &c->uses[n];
        for (int64_t a = use->first; a < use->end; a++) {
            const int64_t x = cross_index(c, a);
            if (x < 0) continue;
            access_pair *pair = &latest[x * LS_LANE_COUNT + (int64_t)own];
            pair->any = index;
            if (use->writes) pair->write = index;
        }
    }
}

static ls_status fail_race(const order_check *c, int before, int64_t index, const conflict *found)
{
    const char *name = c->plan->tensors[found->tensor].tensor.name;
    char text[TEXT_BYTES], earlier[TEXT_BYTES], bytes[TEXT_BYTES];

    ls_plan_describe_step(c->plan, index, text, sizeof text);
    ls_plan_describe_step(c->plan, found->step, earlier, sizeof earlier);
    ls_atoms_describe(c->atoms, found->atom, bytes, sizeof bytes);
    if (before == NO_SEGMENT)
        return LS_FAIL(LS_ERR_INVALID,
                       "plan: race: %s and %s both touch %s (%s) and nothing orders them; the "
                       "latter must wait for the former",
                       earlier, text, bytes, name);
    return LS_FAIL(LS_ERR_INVALID,
                   "plan: race: %s of an earlier segment %s may still be at work on %s (%s) when "
                   "%s of segment %s starts; it must wait for a carry that the former ends",
                   earlier, ls_segment_name((ls_segment_kind)before), bytes, name, text,
                   ls_segment_name(ls_plan_segment_of(c->plan, index)));
}

/* ---- segments ------------------------------------------------------------------------------ */

/* Mark the waits without which this very step would race. */
static void find_needed_waits(order_check *c, int before, int64_t index, int64_t previous,
                              const access_pair *latest)
{
    const ls_step *step = &c->plan->steps[index];
    conflict found;

    for (int64_t w = step->first_wait; w < step->first_wait + step->n_waits; w++) {
        if (c->wait_is_needed[w]) continue;
        const lane_clock over = read_clock(c, before, index, previous, w);
        c->wait_is_needed[w] = find_conflict(c, index, latest, &over, &found);
    }
}

/* Order the steps of a segment after those of the one before or, NO_SEGMENT, after each other. */
static ls_status order_segment(order_check *c, int before, int segment)
{
    const int64_t first = c->plan->segment_first[segment];
    access_pair *latest = c->latest[before == NO_SEGMENT ? segment : before];
    int64_t lane_last[LS_LANE_COUNT];
    conflict found;

    for (int lane = 0; lane < LS_LANE_COUNT; lane++) lane_last[lane] = -1;
    for (int64_t s = first; s < first + c->plan->segment_steps[segment]; s++) {
        int64_t *previous = &lane_last[c->plan->steps[s].lane];
        lane_clock over = read_clock(c, before, s, *previous, -1);
        if (find_conflict(c, s, latest, &over, &found)) return fail_race(c, before, s, &found);
        if (c->all_there) find_needed_waits(c, before, s, *previous, latest);
        *previous = s;
        if (before != NO_SEGMENT) {
            c->across[s] = over;
            continue;
        }
        over.step[c->plan->steps[s].lane] = s;
        c->own[s] = over;
        note_accesses(c, s, latest);
    }
    if (before == NO_SEGMENT) memcpy(c->lane_last[segment], lane_last, sizeof lane_last);
    return LS_OK;
}

static ls_status order_all(order_check *c)
{
    const int64_t n_slots = c->cross[c->atoms->n] * LS_LANE_COUNT;

    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        for (int64_t i = 0; i < n_slots; i++) c->latest[s][i] = (access_pair){-1, -1};
        LS_TRY(order_segment(c, NO_SEGMENT, s));
    }
    for (int before = 0; before < LS_SEGMENT_COUNT; before++)
        for (int s = 0; s < LS_SEGMENT_COUNT; s++)
            if (ls_segment_follows((ls_segment_kind)before, (ls_segment_kind)s))
                LS_TRY(order_segment(c, before, s));
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

/*
 * A wait that no conflict of its own step needs may still be what later steps rely on, so it is
 * left out to see; what has to stay then had to stay before, for leaving out only loses order.
 *
 *   first_only  stop at the first that may go
 * Leaves those that may go, all of them together, left out.
 */
static int64_t leave_out_spare_waits(order_check *c, bool first_only)
{
    int64_t n = 0;

    c->all_there = false;
    for (int64_t w = 0; w < c->plan->n_waits && !(first_only && n > 0); w++) {
        if (c->wait_is_needed[w]) continue;
        c->left_out[w] = true;
        if (order_all(c) == LS_OK)
            n++;
        else
            c->left_out[w] = false;
    }
    return n;
}

static ls_status check_spare_waits(order_check *c)
{
    if (leave_out_spare_waits(c, true) == 0) return LS_OK;
    for (int64_t s = 0; s < c->plan->n_steps; s++) {
        const ls_step *step = &c->plan->steps[s];
        for (int64_t w = step->first_wait; w < step->first_wait + step->n_waits; w++)
            if (c->left_out[w]) return fail_spare(c->plan, s, c->plan->waits[w]);
    }
    return LS_OK;
}

/* ---- open, close --------------------------------------------------------------------------- */

static ls_status allocate(order_check *c)
{
    const size_t n_steps = (size_t)c->plan->n_steps;
    const size_t n_slots = (size_t)c->cross[c->atoms->n] * LS_LANE_COUNT;

    c->own = malloc((n_steps + 1) * sizeof *c->own);
    c->across = malloc((n_steps + 1) * sizeof *c->across);
    c->wait_is_needed = calloc((size_t)c->plan->n_waits + 1, sizeof *c->wait_is_needed);
    c->left_out = calloc((size_t)c->plan->n_waits + 1, sizeof *c->left_out);
    bool failed =
        c->own == NULL || c->across == NULL || c->wait_is_needed == NULL || c->left_out == NULL;
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        c->latest[s] = malloc((n_slots + 1) * sizeof *c->latest[s]);
        failed = failed || c->latest[s] == NULL;
    }
    return failed ? LS_FAIL(LS_ERR_NO_MEMORY, "check of %zu steps", n_steps) : LS_OK;
}

static void free_all(order_check *c)
{
    free(c->cross);
    free(c->uses);
    free(c->use_first);
    free(c->own);
    free(c->across);
    free(c->wait_is_needed);
    free(c->left_out);
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) free(c->latest[s]);
}

static ls_status open_check(const ls_plan *plan, const ls_atoms *atoms, order_check *c)
{
    *c = (order_check){.plan = plan, .atoms = atoms, .all_there = true};
    LS_TRY(find_cross_atoms(c));
    LS_TRY(list_cross_uses(c));
    LS_TRY(allocate(c));
    return order_all(c);
}

ls_status ls_check_order(const ls_plan *plan, const ls_atoms *atoms)
{
    order_check c;

    ls_status status = open_check(plan, atoms, &c);
    if (status == LS_OK) status = check_spare_waits(&c);
    free_all(&c);
    return status;
}

ls_status ls_find_spare_waits(const ls_plan *plan, const ls_atoms *atoms, bool *spare)
{
    order_check c;
    const ls_status status = open_check(plan, atoms, &c);

    if (status == LS_OK) {
        leave_out_spare_waits(&c, false);
        memcpy(spare, c.left_out, (size_t)plan->n_waits * sizeof *spare);
    }
    free_all(&c);
    return status;
}
