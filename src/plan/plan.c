/* plan.c - what a finished plan can be asked. */
#include "plan.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ls_lane_name(ls_lane lane)
{
    static const char *const names[LS_LANE_COUNT] = {"compute", "copy_in",  "copy_out", "host",
                                                     "disk_in", "disk_out", "comm"};
    assert((unsigned)lane < LS_LANE_COUNT);
    return names[lane];
}

void ls_plan_free(ls_plan *plan)
{
    if (plan == NULL) return;
    free(plan->arenas);
    free(plan->tensors);
    free(plan->steps);
    free(plan->operands);
    free(plan->args);
    free(plan->waits);
    free(plan->carries);
    memset(plan, 0, sizeof *plan);
}

int ls_plan_lanes(const ls_plan *plan)
{
    static_assert(LS_LANE_COMM == LS_LANE_COUNT - 1, "the lane that may be left out is the last");
    for (int64_t i = 0; i < plan->n_steps; i++)
        if (plan->steps[i].lane == LS_LANE_COMM) return LS_LANE_COUNT;
    return LS_LANE_COMM;
}

uint64_t ls_plan_place_bytes(const ls_plan *plan, ls_place_kind place)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < plan->n_arenas; i++)
        if (plan->arenas[i].place == place) bytes += plan->arenas[i].bytes;
    return bytes;
}

/* Whether a tensor before it is of the same class and lies in the same slot.  Others that share
 * bytes, at other times, count each. */
static bool repeats(const ls_plan *plan, int32_t tensor)
{
    const ls_plan_tensor *t = &plan->tensors[tensor];

    for (int32_t i = 0; i < tensor; i++) {
        const ls_plan_tensor *other = &plan->tensors[i];
        if (other->group == t->group && other->span.offset == t->span.offset &&
            other->span.bytes >= t->span.bytes && other->span.arena == t->span.arena &&
            other->tensor.role == t->tensor.role)
            return true;
    }
    return false;
}

uint64_t ls_plan_role_bytes(const ls_plan *plan, ls_place_kind place, ls_role role)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < plan->n_tensors; i++) {
        const ls_plan_tensor *t = &plan->tensors[i];
        if (t->tensor.role == role && plan->arenas[t->span.arena].place == place &&
            !repeats(plan, i))
            bytes += t->span.bytes;
    }
    return bytes;
}

/* By arena, then offset. */
static int compare_spans(const void *a, const void *b)
{
    const ls_span *x = a, *y = b;
    if (x->arena != y->arena) return x->arena < y->arena ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* What spans in order add up to, less what they cover. */
static uint64_t count_shared(const ls_span *spans, int32_t n)
{
    uint64_t shared = 0, covered = 0; /* covered: up to there, of the arena at work */

    for (int32_t i = 0; i < n; i++) {
        const uint64_t end = spans[i].offset + spans[i].bytes;
        if (i == 0 || spans[i].arena != spans[i - 1].arena) covered = 0;
        if (covered > spans[i].offset) shared += (covered < end ? covered : end) - spans[i].offset;
        if (end > covered) covered = end;
    }
    return shared;
}

ls_status ls_plan_shared_bytes(const ls_plan *plan, ls_place_kind place, uint64_t *bytes)
{
    ls_span *spans = malloc(((size_t)plan->n_tensors + 1) * sizeof *spans);
    int32_t n = 0;

    if (spans == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "spans of %d tensors", plan->n_tensors);
    for (int32_t i = 0; i < plan->n_tensors; i++)
        if (plan->arenas[plan->tensors[i].span.arena].place == place && !repeats(plan, i))
            spans[n++] = plan->tensors[i].span;
    qsort(spans, (size_t)n, sizeof *spans, compare_spans);
    *bytes = count_shared(spans, n);
    free(spans);
    return LS_OK;
}

ls_segment_kind ls_plan_segment_of(const ls_plan *plan, int64_t step)
{
    int segment = 0;
    while (step < plan->segment_first[segment] ||
           step >= plan->segment_first[segment] + plan->segment_steps[segment]) {
        segment++;
        assert(segment < LS_SEGMENT_COUNT);
    }
    return (ls_segment_kind)segment;
}

void ls_plan_describe_step(const ls_plan *plan, int64_t step, char *text, size_t text_bytes)
{
    assert(step >= 0 && step < plan->n_steps);
    const ls_step *s = &plan->steps[step];
    const bool is_op = s->kind == LS_CALL_OP;
    snprintf(text, text_bytes, "step %lld (%s, %s, layer %d, chunk %d, lane %s)", (long long)step,
             is_op ? ls_op_describe(s->op)->name : ls_call_kind_name(s->kind),
             ls_phase_name(s->phase), s->layer, s->chunk, ls_lane_name(s->lane));
}
