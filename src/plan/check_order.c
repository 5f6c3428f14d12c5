/*
 * check_order.c - conflicting accesses are ordered, whatever segments came before.
 *
 * What is over when a step starts is a vector clock: the latest step of each lane that it comes
 * after, by the order of its own lane and by its waits.  Each step gets one clock of steps of its
 * own segment and, for every segment that may be the one before, one clock of steps of that; they
 * must have reached what the step conflicts with (conflicts.h).
 *
 * Looking at neighbours is enough.  Leave out the segments between two others: lane order runs
 * through the gap, and a carry is then ended by an earlier step of the same lane, so whatever is
 * ordered then was ordered before.  Hence two accesses that nothing orders in a long succession
 * have no order when their segments are neighbours; and they may be, because what may be followed
 * at all may be followed by any.
 *
 * Steps that wait for nothing have the clock of the step before on their lane, so clocks are as
 * many as steps that wait.  Time: for each pair of segments that of looking at every step.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "conflicts.h"

enum { TEXT_BYTES = 192, NO_SEGMENT = -1 };

/* What is over when each step starts, but for the step before on its own lane. */
typedef struct clock_table {
    int32_t *of;           /* [n_steps] into clocks */
    ls_lane_steps *clocks; /* [n] */
    bool *complete;        /* [n] nothing of the segment before is left */
    int32_t n;
} clock_table;

typedef struct order_check {
    const ls_plan *plan;
    ls_conflicts conflicts;
    clock_table own;                      /* of the segment itself */
    clock_table across[LS_SEGMENT_COUNT]; /* of each segment that may be the one before */
    ls_lane_steps lane_last[LS_SEGMENT_COUNT];
    bool *wait_is_needed; /* [n_waits] by a conflict of its own step */
    bool *left_out;       /* [n_waits] taken as not there */
    bool all_there;       /* none is left out */
} order_check;

/* Where a plan has no order: a step, and the segment it conflicts with; NO_SEGMENT: its own. */
typedef struct race {
    int before;
    int64_t step;
    ls_lane_steps over;
} race;

/* ---- clocks -------------------------------------------------------------------------------- */

static void raise_clock(ls_lane_steps *to, const ls_lane_steps *other)
{
    for (int lane = 0; lane < LS_LANE_COUNT; lane++)
        if (other->step[lane] > to->step[lane]) to->step[lane] = other->step[lane];
}

/* What is over when a step of the table's own segment is. */
static void raise_by_step(const order_check *c, ls_lane_steps *to, int64_t step)
{
    const ls_lane lane = c->plan->steps[step].lane;

    raise_clock(to, &c->own.clocks[c->own.of[step]]);
    if (step > to->step[lane]) to->step[lane] = (int32_t)step;
}

static clock_table *table_of(order_check *c, int before)
{
    return before == NO_SEGMENT ? &c->own : &c->across[before];
}

/*
 * What is over of a segment, before or (NO_SEGMENT) the step's own, when a step starts that waits
 * for all it should but one.
 *   previous  the step before on the lane of this segment, -1: none
 */
static ls_lane_steps read_clock(const order_check *c, int before, int64_t index, int64_t previous,
                                int64_t without)
{
    const ls_step *step = &c->plan->steps[index];
    const clock_table *table = before == NO_SEGMENT ? &c->own : &c->across[before];
    ls_lane_steps read = ls_no_lane_steps;

    if (previous >= 0)
        read = table->clocks[table->of[previous]];
    else if (before != NO_SEGMENT && c->lane_last[before].step[step->lane] >= 0)
        raise_by_step(c, &read, c->lane_last[before].step[step->lane]);
    for (int64_t w = step->first_wait; w < step->first_wait + step->n_waits; w++) {
        const int64_t wait = c->plan->waits[w];
        if (w == without || c->left_out[w]) continue;
        if (ls_wait_is_carry(wait)) {
            const int64_t end =
                before != NO_SEGMENT ? c->plan->carries[ls_wait_carry(wait)].ends[before] : -1;
            if (end >= 0) raise_by_step(c, &read, end);
        } else if (before != NO_SEGMENT) {
            raise_clock(&read, &table->clocks[table->of[wait]]);
        } else {
            raise_by_step(c, &read, wait);
        }
    }
    return read;
}

static bool is_complete(const order_check *c, int before, const ls_lane_steps *over)
{
    if (before == NO_SEGMENT) return false;
    for (int lane = 0; lane < LS_LANE_COUNT; lane++)
        if (over->step[lane] < c->lane_last[before].step[lane]) return false;
    return true;
}

/* Give a step its clock. */
static void set_clock(order_check *c, int before, int64_t index, int64_t previous)
{
    clock_table *table = table_of(c, before);

    if (previous >= 0 && c->plan->steps[index].n_waits == 0) {
        table->of[index] = table->of[previous];
        return;
    }
    const ls_lane_steps over = read_clock(c, before, index, previous, -1);
    table->complete[table->n] = is_complete(c, before, &over);
    table->clocks[table->n] = over;
    table->of[index] = table->n++;
}

/* ---- segments ------------------------------------------------------------------------------ */

static bool has_conflict(const order_check *c, int before, int64_t index, const ls_lane_steps *over)
{
    if (before == NO_SEGMENT) return ls_conflicts_within(&c->conflicts, index, over);
    return ls_conflicts_across(&c->conflicts, (ls_segment_kind)before, index, over);
}

/* Mark the waits without which this very step would race. */
static void find_needed_waits(order_check *c, int before, int64_t index, int64_t previous)
{
    const ls_step *step = &c->plan->steps[index];

    for (int64_t w = step->first_wait; w < step->first_wait + step->n_waits; w++) {
        if (c->wait_is_needed[w]) continue;
        const ls_lane_steps over = read_clock(c, before, index, previous, w);
        c->wait_is_needed[w] = has_conflict(c, before, index, &over);
    }
}

/* Order the steps of a segment after those of the one before or, NO_SEGMENT, after each other;
 * false: there is a race. */
static bool order_segment(order_check *c, int before, int segment, race *found)
{
    const int64_t first = c->plan->segment_first[segment];
    const clock_table *table = table_of(c, before);
    ls_lane_steps last = ls_no_lane_steps;

    for (int64_t s = first; s < first + c->plan->segment_steps[segment]; s++) {
        const ls_step *step = &c->plan->steps[s];
        const int64_t previous = last.step[step->lane];
        set_clock(c, before, s, previous);
        const ls_lane_steps *over = &table->clocks[table->of[s]];
        if (!table->complete[table->of[s]] && has_conflict(c, before, s, over)) {
            *found = (race){before, s, *over};
            return false;
        }
        if (c->all_there && step->n_waits > 0) find_needed_waits(c, before, s, previous);
        last.step[step->lane] = (int32_t)s;
    }
    if (before == NO_SEGMENT) c->lane_last[segment] = last;
    return true;
}

static bool order_all(order_check *c, race *found)
{
    c->own.n = 0;
    for (int s = 0; s < LS_SEGMENT_COUNT; s++)
        if (!order_segment(c, NO_SEGMENT, s, found)) return false;
    for (int before = 0; before < LS_SEGMENT_COUNT; before++) {
        c->across[before].n = 0;
        for (int s = 0; s < LS_SEGMENT_COUNT; s++)
            if (ls_segment_follows((ls_segment_kind)before, (ls_segment_kind)s) &&
                !order_segment(c, before, s, found))
                return false;
    }
    return true;
}

static ls_status fail_race(const order_check *c, const race *r)
{
    const ls_conflict found = ls_conflicts_explain(&c->conflicts, r->before, r->step, &r->over);
    const char *name = c->plan->tensors[found.tensor].tensor.name;
    char text[TEXT_BYTES], earlier[TEXT_BYTES], bytes[TEXT_BYTES];

    ls_plan_describe_step(c->plan, r->step, text, sizeof text);
    ls_plan_describe_step(c->plan, found.step, earlier, sizeof earlier);
    ls_atoms_describe(c->conflicts.atoms, found.atom, bytes, sizeof bytes);
    if (r->before == NO_SEGMENT)
        return LS_FAIL(LS_ERR_INVALID,
                       "plan: race: %s and %s both touch %s (%s) and nothing orders them; the "
                       "latter must wait for the former",
                       earlier, text, bytes, name);
    return LS_FAIL(LS_ERR_INVALID,
                   "plan: race: %s of an earlier segment %s may still be at work on %s (%s) when "
                   "%s of segment %s starts; it must wait for a carry that the former ends",
                   earlier, ls_segment_name((ls_segment_kind)r->before), bytes, name, text,
                   ls_segment_name(ls_plan_segment_of(c->plan, r->step)));
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

/* The step before on the lane of a segment's step. */
static int64_t find_previous(const order_check *c, int64_t index)
{
    const int64_t first = c->plan->segment_first[ls_plan_segment_of(c->plan, index)];
    int64_t previous = index - 1;

    while (previous >= first && c->plan->steps[previous].lane != c->plan->steps[index].lane)
        previous--;
    return previous >= first ? previous : -1;
}

/* Whether a step knows without one of its waits all that it knows with it: then nothing depends on
 * that wait.  The step's own lane is in order anyway. */
static bool is_implied(const order_check *c, int64_t index, int64_t wait)
{
    const int segment = (int)ls_plan_segment_of(c->plan, index);
    const int64_t previous = find_previous(c, index);

    for (int before = NO_SEGMENT; before < LS_SEGMENT_COUNT; before++) {
        if (before != NO_SEGMENT &&
            !ls_segment_follows((ls_segment_kind)before, (ls_segment_kind)segment))
            continue;
        const clock_table *table = before == NO_SEGMENT ? &c->own : &c->across[before];
        const ls_lane_steps with = table->clocks[table->of[index]];
        ls_lane_steps without = read_clock(c, before, index, previous, wait);
        const ls_lane own = c->plan->steps[index].lane;
        if (before == NO_SEGMENT) without.step[own] = with.step[own];
        if (memcmp(&with, &without, sizeof with) != 0) return false;
    }
    return true;
}

/* Whether the plan has no race without this wait too; if so, it stays left out.  clocks_hold: of
 * the waits that are not left out, before and after. */
static bool leave_out(order_check *c, int64_t index, int64_t wait, bool *clocks_hold)
{
    race found;

    if (!*clocks_hold) order_all(c, &found);
    *clocks_hold = true;
    if (is_implied(c, index, wait)) {
        c->left_out[wait] = true;
        return true;
    }
    c->left_out[wait] = true;
    if (order_all(c, &found)) return true;
    c->left_out[wait] = false;
    *clocks_hold = false;
    return false;
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
    bool clocks_hold = true;
    int64_t n = 0;

    c->all_there = false;
    for (int64_t s = 0; s < c->plan->n_steps && !(first_only && n > 0); s++) {
        const ls_step *step = &c->plan->steps[s];
        const int64_t end = step->first_wait + step->n_waits;
        for (int64_t w = step->first_wait; w < end && !(first_only && n > 0); w++)
            if (!c->wait_is_needed[w] && leave_out(c, s, w, &clocks_hold)) n++;
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

static size_t count_clocks(const ls_plan *plan)
{
    size_t n = LS_SEGMENT_COUNT * LS_LANE_COUNT; /* a first step on each lane */
    for (int64_t s = 0; s < plan->n_steps; s++) n += plan->steps[s].n_waits > 0;
    return n;
}

static bool open_table(const ls_plan *plan, size_t n_clocks, clock_table *table)
{
    *table = (clock_table){.of = malloc(((size_t)plan->n_steps + 1) * sizeof *table->of),
                           .clocks = malloc(n_clocks * sizeof *table->clocks),
                           .complete = malloc(n_clocks * sizeof *table->complete)};
    return table->of != NULL && table->clocks != NULL && table->complete != NULL;
}

static void close_table(clock_table *table)
{
    free(table->of);
    free(table->clocks);
    free(table->complete);
}

static ls_status allocate(order_check *c)
{
    const size_t n_waits = (size_t)c->plan->n_waits, n_clocks = count_clocks(c->plan);

    c->wait_is_needed = calloc(n_waits + 1, sizeof *c->wait_is_needed);
    c->left_out = calloc(n_waits + 1, sizeof *c->left_out);
    bool opened = c->wait_is_needed != NULL && c->left_out != NULL;
    opened = open_table(c->plan, n_clocks, &c->own) && opened;
    for (int s = 0; s < LS_SEGMENT_COUNT; s++)
        opened = open_table(c->plan, n_clocks, &c->across[s]) && opened;
    if (opened) return LS_OK;
    return LS_FAIL(LS_ERR_NO_MEMORY, "check of %lld steps", (long long)c->plan->n_steps);
}

static void free_all(order_check *c)
{
    ls_conflicts_free(&c->conflicts);
    close_table(&c->own);
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) close_table(&c->across[s]);
    free(c->wait_is_needed);
    free(c->left_out);
}

static ls_status open_check(const ls_plan *plan, const ls_atoms *atoms, order_check *c)
{
    race found;

    *c = (order_check){.plan = plan, .all_there = true};
    LS_TRY(ls_conflicts_find(plan, atoms, &c->conflicts));
    LS_TRY(allocate(c));
    return order_all(c, &found) ? LS_OK : fail_race(c, &found);
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
