/*
 * conflicts.c - the latest accesses to atoms, and what they mean for spans and steps.
 *
 * Bytes that one lane alone touches, or that nobody writes, need no proof.  Time: the atoms of all
 * operands, times lanes, once; then nothing that grows with atoms.
 */
#include "conflicts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- atoms that need proof ----------------------------------------------------------------- */

/* Which lanes touch the atoms of a span, and whether any of them writes. */
typedef struct span_users {
    uint8_t lanes;
    bool written;
} span_users;

static_assert(LS_LANE_COUNT <= 8, "lanes fit a byte");

static void mark_users(const ls_conflicts *c, span_users *spans)
{
    const ls_plan *plan = c->plan;

    for (int64_t s = 0; s < plan->n_steps; s++) {
        const ls_step *step = &plan->steps[s];
        for (int64_t i = step->first_operand; i < step->first_operand + step->n_operands; i++) {
            span_users *users = &spans[c->atoms->operand_span[i]];
            users->lanes = (uint8_t)(users->lanes | 1u << step->lane);
            if (plan->operands[i].access & LS_ACCESS_WRITE) users->written = true;
        }
    }
}

static void count_cross_atoms(ls_conflicts *c, const span_users *spans, span_users *atoms)
{
    for (int32_t i = 0; i < c->atoms->n_spans; i++)
        for (int64_t a = c->atoms->spans[i].first; a < c->atoms->spans[i].end; a++) {
            atoms[a].lanes = (uint8_t)(atoms[a].lanes | spans[i].lanes);
            atoms[a].written = atoms[a].written || spans[i].written;
        }
    for (int64_t a = 0; a < c->atoms->n; a++) {
        const bool crosses = atoms[a].written && (atoms[a].lanes & (atoms[a].lanes - 1)) != 0;
        c->cross[a + 1] = c->cross[a] + crosses;
    }
}

static ls_status find_cross_atoms(ls_conflicts *c)
{
    span_users *spans = calloc((size_t)c->atoms->n_spans, sizeof *spans);
    span_users *atoms = calloc((size_t)c->atoms->n + 1, sizeof *atoms);
    ls_status status = LS_OK;

    c->cross = calloc((size_t)c->atoms->n + 2, sizeof *c->cross);
    if (spans == NULL || atoms == NULL || c->cross == NULL) {
        status = LS_FAIL(LS_ERR_NO_MEMORY, "check of %lld atoms", (long long)c->atoms->n);
    } else {
        mark_users(c, spans);
        count_cross_atoms(c, spans, atoms);
    }
    free(spans);
    free(atoms);
    return status;
}

/* The atoms of a span that cross lanes, counted without the others. */
static ls_atom_range cross_atoms(const ls_conflicts *c, int32_t span)
{
    const ls_atom_range *atoms = &c->atoms->spans[span];
    return (ls_atom_range){c->cross[atoms->first], c->cross[atoms->end]};
}

/* ---- uses ---------------------------------------------------------------------------------- */

/* Whether a step's use of an operand needs proof at all. */
static bool operand_crosses(const ls_conflicts *c, int64_t operand)
{
    const ls_atom_range cross = cross_atoms(c, c->atoms->operand_span[operand]);
    return c->plan->operands[operand].access != LS_ACCESS_NONE && cross.first < cross.end;
}

static ls_status list_cross_uses(ls_conflicts *c)
{
    const ls_plan *plan = c->plan;
    int64_t n = 0;

    for (int64_t i = 0; i < plan->n_operands; i++) n += operand_crosses(c, i);
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
                c->uses[n++] = (ls_cross_use){c->atoms->operand_span[i], plan->operands[i].tensor,
                                              (plan->operands[i].access & LS_ACCESS_WRITE) != 0};
    }
    c->use_first[plan->n_steps] = n;
    return LS_OK;
}

/* ---- what steps come after ----------------------------------------------------------------- */

static void raise_steps(ls_lane_steps *to, const ls_lane_steps *other)
{
    for (int lane = 0; lane < LS_LANE_COUNT; lane++)
        if (other->step[lane] > to->step[lane]) to->step[lane] = other->step[lane];
}

static void forget_accesses(ls_conflicts *c)
{
    const int64_t n = c->cross[c->atoms->n];
    for (int64_t x = 0; x < n; x++)
        c->latest[x] = (ls_span_steps){ls_no_lane_steps, ls_no_lane_steps};
}

static void note_accesses(ls_conflicts *c, int64_t index)
{
    const ls_lane own = c->plan->steps[index].lane;

    for (int64_t n = c->use_first[index]; n < c->use_first[index + 1]; n++) {
        const ls_cross_use *use = &c->uses[n];
        const ls_atom_range cross = cross_atoms(c, use->span);
        for (int64_t x = cross.first; x < cross.end; x++) {
            c->latest[x].any.step[own] = (int32_t)index;
            if (use->writes) c->latest[x].write.step[own] = (int32_t)index;
        }
    }
}

/* The latest accesses so far that conflict with the uses of a step. */
static ls_lane_steps find_latest(const ls_conflicts *c, int64_t index)
{
    ls_lane_steps after = ls_no_lane_steps;

    for (int64_t n = c->use_first[index]; n < c->use_first[index + 1]; n++) {
        const ls_cross_use *use = &c->uses[n];
        const ls_atom_range cross = cross_atoms(c, use->span);
        for (int64_t x = cross.first; x < cross.end; x++)
            raise_steps(&after, use->writes ? &c->latest[x].any : &c->latest[x].write);
    }
    after.step[c->plan->steps[index].lane] = -1; /* in order anyway */
    return after;
}

static void find_in_segment(ls_conflicts *c, int segment)
{
    const int64_t first = c->plan->segment_first[segment];

    forget_accesses(c);
    for (int64_t s = first; s < first + c->plan->segment_steps[segment]; s++) {
        c->after[s] = find_latest(c, s);
        note_accesses(c, s);
    }
    for (int32_t i = 0; i < c->atoms->n_spans; i++) {
        const ls_atom_range cross = cross_atoms(c, i);
        ls_span_steps *span = &c->spans[segment][i];
        *span = (ls_span_steps){ls_no_lane_steps, ls_no_lane_steps};
        for (int64_t x = cross.first; x < cross.end; x++) {
            raise_steps(&span->any, &c->latest[x].any);
            raise_steps(&span->write, &c->latest[x].write);
        }
    }
}

bool ls_conflicts_within(const ls_conflicts *c, int64_t step, const ls_lane_steps *over)
{
    const ls_lane_steps *after = &c->after[step];

    for (int lane = 0; lane < LS_LANE_COUNT; lane++)
        if (after->step[lane] > over->step[lane]) return true;
    return false;
}

bool ls_conflicts_across(const ls_conflicts *c, ls_segment_kind before, int64_t step,
                         const ls_lane_steps *over)
{
    ls_lane_steps known = *over;

    known.step[c->plan->steps[step].lane] = INT32_MAX; /* in order anyway */
    for (int64_t n = c->use_first[step]; n < c->use_first[step + 1]; n++) {
        const ls_span_steps *span = &c->spans[before][c->uses[n].span];
        const ls_lane_steps *after = c->uses[n].writes ? &span->any : &span->write;
        for (int lane = 0; lane < LS_LANE_COUNT; lane++)
            if (after->step[lane] > known.step[lane]) return true;
    }
    return false;
}

/* ---- messages ------------------------------------------------------------------------------ */

static bool explain_atom(const ls_conflicts *c, const ls_cross_use *use, int64_t atom,
                         const ls_lane_steps *over, ls_conflict *found)
{
    const ls_span_steps *latest = &c->latest[c->cross[atom]];
    const ls_lane_steps *after = use->writes ? &latest->any : &latest->write;

    for (int lane = 0; lane < LS_LANE_COUNT; lane++) {
        if (after->step[lane] <= over->step[lane]) continue;
        *found = (ls_conflict){after->step[lane], atom, use->tensor};
        return true;
    }
    return false;
}

ls_conflict ls_conflicts_explain(const ls_conflicts *conflicts, int before, int64_t step,
                                 const ls_lane_steps *over)
{
    ls_conflicts c = *conflicts; /* its scratch is taken */
    ls_lane_steps known = *over;
    ls_conflict found = {-1, -1, -1};
    const int segment = before < 0 ? (int)ls_plan_segment_of(c.plan, step) : before;
    const int64_t first = c.plan->segment_first[segment];
    const int64_t end = before < 0 ? step : first + c.plan->segment_steps[segment];

    known.step[c.plan->steps[step].lane] = INT32_MAX;
    forget_accesses(&c);
    for (int64_t s = first; s < end; s++) note_accesses(&c, s);
    for (int64_t n = c.use_first[step]; n < c.use_first[step + 1]; n++) {
        const ls_atom_range *atoms = &c.atoms->spans[c.uses[n].span];
        for (int64_t a = atoms->first; a < atoms->end; a++)
            if (c.cross[a + 1] > c.cross[a] && explain_atom(&c, &c.uses[n], a, &known, &found))
                return found;
    }
    assert(found.step >= 0); /* some atom has it */
    return found;
}

/* ---- all of it ----------------------------------------------------------------------------- */

static ls_status allocate(ls_conflicts *c)
{
    const size_t n_spans = (size_t)c->atoms->n_spans;
    bool failed;

    c->after = malloc(((size_t)c->plan->n_steps + 1) * sizeof *c->after);
    c->latest = malloc(((size_t)c->cross[c->atoms->n] + 1) * sizeof *c->latest);
    failed = c->after == NULL || c->latest == NULL;
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        c->spans[s] = malloc(n_spans * sizeof *c->spans[s]);
        failed = failed || c->spans[s] == NULL;
    }
    return failed ? LS_FAIL(LS_ERR_NO_MEMORY, "check of %zu spans", n_spans) : LS_OK;
}

ls_status ls_conflicts_find(const ls_plan *plan, const ls_atoms *atoms, ls_conflicts *c)
{
    assert(plan->n_steps <= INT32_MAX);
    *c = (ls_conflicts){.plan = plan, .atoms = atoms};
    LS_TRY(find_cross_atoms(c));
    LS_TRY(list_cross_uses(c));
    LS_TRY(allocate(c));
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) find_in_segment(c, s);
    return LS_OK;
}

void ls_conflicts_free(ls_conflicts *c)
{
    free(c->cross);
    free(c->uses);
    free(c->use_first);
    free(c->after);
    free(c->latest);
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) free(c->spans[s]);
    memset(c, 0, sizeof *c);
}
