/*
 * conflicts.h - private to the checker: which steps each step has to come after.
 *
 * Of one lane the latest conflicting step is enough, for a lane runs in order.  So what a step has
 * to come after is one step of each other lane: of its own segment, and of every segment that may
 * be the one before.  It depends on spans alone, not on waits, and is found once for all of these.
 *
 * Layer: plan, private.
 */
#ifndef LS_CONFLICTS_H
#define LS_CONFLICTS_H

#include <assert.h>

#include "atoms.h"

/* A step of each lane; -1: none. */
typedef struct ls_lane_steps {
    int32_t step[LS_LANE_COUNT];
} ls_lane_steps;

static const ls_lane_steps ls_no_lane_steps = {{-1, -1, -1, -1, -1, -1, -1}};
static_assert(LS_LANE_COUNT == 7, "and of the last lane none either");

/* The latest steps of a segment that touch a span, and those that write into it. */
typedef struct ls_span_steps {
    ls_lane_steps any, write;
} ls_span_steps;

/* A step's use of bytes that two lanes touch, one of them writing. */
typedef struct ls_cross_use {
    int32_t span, tensor;
    bool writes;
} ls_cross_use;

typedef struct ls_conflicts {
    const ls_plan *plan;
    const ls_atoms *atoms;
    int64_t *cross;                         /* [n atoms + 1] how many before it cross lanes */
    ls_cross_use *uses;                     /* step by step */
    int64_t *use_first;                     /* [n_steps + 1] of a step, in uses */
    ls_lane_steps *after;                   /* [n_steps] of its own segment */
    ls_span_steps *spans[LS_SEGMENT_COUNT]; /* [n_spans] at a segment's end */
    ls_span_steps *latest;                  /* [n cross atoms] scratch */
} ls_conflicts;

/* Find them; release with ls_conflicts_free(), also after a failure.  LS_OK or LS_ERR_NO_MEMORY. */
ls_status ls_conflicts_find(const ls_plan *plan, const ls_atoms *atoms, ls_conflicts *conflicts);
void ls_conflicts_free(ls_conflicts *conflicts);

/* Whether a step has to come after more than what is over: of its own segment; of one before. */
bool ls_conflicts_within(const ls_conflicts *conflicts, int64_t step, const ls_lane_steps *over);
bool ls_conflicts_across(const ls_conflicts *conflicts, ls_segment_kind before, int64_t step,
                         const ls_lane_steps *over);

typedef struct ls_conflict {
    int64_t step, atom; /* step: the earlier one */
    int32_t tensor;
} ls_conflict;

/* The first conflict of a step that has one, for messages.  before: -1: in its own segment. */
ls_conflict ls_conflicts_explain(const ls_conflicts *conflicts, int before, int64_t step,
                                 const ls_lane_steps *over);

#endif
