/*
 * check.c - the proof of a plan, part by part: shape, room, contents, order.
 */
#include "check.h"

#include <assert.h>
#include <stdio.h>

#include "text.h"

#define TEXT_BYTES 192

#define INVALID(...) LS_FAIL(LS_ERR_INVALID, "plan: " __VA_ARGS__)

/* ---- shape: every index points somewhere --------------------------------------------------- */

static ls_status check_segments(const ls_plan *plan)
{
    int64_t covered = 0;

    if (plan->n_steps > INT32_MAX)
        return INVALID("%lld steps; no more than %d can be checked", (long long)plan->n_steps,
                       INT32_MAX);
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        const int64_t first = plan->segment_first[s], n = plan->segment_steps[s];
        if (n < 0 || (n > 0 && (first < 0 || first > plan->n_steps - n)))
            return INVALID("segment %s: steps %lld to %lld, the plan has %lld",
                           ls_segment_name((ls_segment_kind)s), (long long)first,
                           (long long)(first + n), (long long)plan->n_steps);
        for (int other = 0; other < s; other++)
            if (n > 0 && plan->segment_steps[other] > 0 &&
                first < plan->segment_first[other] + plan->segment_steps[other] &&
                plan->segment_first[other] < first + n)
                return INVALID("segments %s and %s share steps",
                               ls_segment_name((ls_segment_kind)other),
                               ls_segment_name((ls_segment_kind)s));
        covered += n;
    }
    if (covered != plan->n_steps)
        return INVALID("segments have %lld steps, the plan %lld", (long long)covered,
                       (long long)plan->n_steps);
    return LS_OK;
}

static ls_status check_wait(const ls_plan *plan, int64_t step, int64_t first, int64_t wait)
{
    char text[TEXT_BYTES], other[TEXT_BYTES];

    ls_plan_describe_step(plan, step, text, sizeof text);
    if (ls_wait_is_carry(wait)) {
        if (ls_wait_carry(wait) < plan->n_carries) return LS_OK;
        return INVALID("%s waits for carry %lld, there are %d", text,
                       (long long)ls_wait_carry(wait), plan->n_carries);
    }
    if (wait >= first && wait < step) return LS_OK;
    if (wait >= plan->n_steps)
        return INVALID("%s waits for step %lld, which does not exist", text, (long long)wait);
    ls_plan_describe_step(plan, wait, other, sizeof other);
    if (wait < first || ls_plan_segment_of(plan, wait) != ls_plan_segment_of(plan, step))
        return INVALID("%s waits for %s of another segment; only a carry does that", text, other);
    return INVALID("cycle: %s waits for %s, which comes later", text, other);
}

static ls_status check_step(const ls_plan *plan, int64_t index)
{
    const ls_step *step = &plan->steps[index];
    char text[TEXT_BYTES];

    if ((unsigned)step->lane >= LS_LANE_COUNT || (unsigned)step->kind >= LS_CALL_KIND_COUNT ||
        (step->kind == LS_CALL_OP && (unsigned)step->op >= LS_OP_COUNT) ||
        (unsigned)step->phase >= LS_PHASE_COUNT || step->n_operands < 0 ||
        step->first_operand < 0 || step->first_operand > plan->n_operands - step->n_operands ||
        step->n_waits < 0 || step->first_wait < 0 ||
        step->first_wait > plan->n_waits - step->n_waits)
        return INVALID("step %lld has a lane, kind, phase, operand or wait that does not exist",
                       (long long)index);
    for (int32_t i = 0; i < step->n_operands; i++) {
        const ls_step_operand *o = &plan->operands[step->first_operand + i];
        if (o->tensor < 0) continue;
        const ls_plan_tensor *t = o->tensor < plan->n_tensors ? &plan->tensors[o->tensor] : NULL;
        if (t != NULL && o->span.arena == t->span.arena && o->span.offset >= t->span.offset &&
            o->span.bytes <= t->span.bytes &&
            o->span.offset - t->span.offset <= t->span.bytes - o->span.bytes)
            continue;
        ls_plan_describe_step(plan, index, text, sizeof text);
        return INVALID("%s: operand %d lies outside its tensor%s%s", text, i, t != NULL ? " " : "",
                       t != NULL ? t->tensor.name : "");
    }
    return LS_OK;
}

static ls_status check_waits(const ls_plan *plan, int segment)
{
    const int64_t first = plan->segment_first[segment];

    for (int64_t s = first; s < first + plan->segment_steps[segment]; s++)
        for (int32_t w = 0; w < plan->steps[s].n_waits; w++)
            LS_TRY(check_wait(plan, s, first, plan->waits[plan->steps[s].first_wait + w]));
    return LS_OK;
}

/* A carry ends with steps of its lane; whether late enough is for the order to show. */
static ls_status check_carries(const ls_plan *plan)
{
    for (int32_t c = 0; c < plan->n_carries; c++) {
        const ls_carry *carry = &plan->carries[c];
        if ((unsigned)carry->lane >= LS_LANE_COUNT)
            return INVALID("carry %d has lane %d, which does not exist", c, (int)carry->lane);
        for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
            const int64_t end = carry->ends[s], first = plan->segment_first[s];
            if (end < 0) continue;
            if (end < first || end >= first + plan->segment_steps[s] ||
                plan->steps[end].lane != carry->lane)
                return INVALID("carry %d (lane %s) ends in segment %s with step %lld, which is not "
                               "a step of that lane there",
                               c, ls_lane_name(carry->lane), ls_segment_name((ls_segment_kind)s),
                               (long long)end);
        }
    }
    return LS_OK;
}

/* Once a commit step has been submitted the segment is submitted to its end, so commit steps must
 * be the last on the lanes they use. */
static ls_status check_commits(const ls_plan *plan, int segment)
{
    const int64_t first = plan->segment_first[segment], n = plan->segment_steps[segment];
    char text[TEXT_BYTES];
    bool committed = false;

    for (int64_t s = first; s < first + n; s++) {
        committed = committed || plan->steps[s].commit;
        if (!committed || plan->steps[s].commit) continue;
        ls_plan_describe_step(plan, s, text, sizeof text);
        return INVALID("%s follows a commit step, but is none", text);
    }
    return LS_OK;
}

static ls_status check_shape(const ls_plan *plan)
{
    LS_TRY(check_segments(plan));
    for (int64_t i = 0; i < plan->n_steps; i++) LS_TRY(check_step(plan, i));
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        LS_TRY(check_waits(plan, s));
        LS_TRY(check_commits(plan, s));
    }
    return check_carries(plan);
}

/* ---- room ---------------------------------------------------------------------------------- */

static ls_status check_room(const ls_plan *plan, const ls_plan_limits *limits)
{
    for (int32_t i = 0; i < plan->n_tensors; i++) {
        const ls_plan_tensor *t = &plan->tensors[i];
        if (t->span.arena < 0 || t->span.arena >= plan->n_arenas)
            return INVALID("tensor %s lies in arena %d, there are %d", t->tensor.name,
                           t->span.arena, plan->n_arenas);
        const uint64_t room = plan->arenas[t->span.arena].bytes;
        if (t->span.bytes > room || t->span.offset > room - t->span.bytes)
            return INVALID("tensor %s, bytes %llu to %llu, ends beyond arena %d of %llu bytes",
                           t->tensor.name, (unsigned long long)t->span.offset,
                           (unsigned long long)(t->span.offset + t->span.bytes), t->span.arena,
                           (unsigned long long)room);
    }
    for (int place = 0; limits != NULL && place < LS_PLACE_COUNT; place++) {
        char needs[LS_TEXT_BYTES], may[LS_TEXT_BYTES];
        const uint64_t needed = ls_plan_place_bytes(plan, (ls_place_kind)place);
        if (needed <= limits->place_bytes[place]) continue;
        return LS_FAIL(LS_ERR_NO_MEMORY, "plan: %s needs %s, %s may be used",
                       ls_place_name((ls_place_kind)place),
                       ls_text_bytes(needs, sizeof needs, needed),
                       ls_text_bytes(may, sizeof may, limits->place_bytes[place]));
    }
    return LS_OK;
}

ls_status ls_plan_check(const ls_plan *plan, const ls_plan_limits *limits)
{
    ls_atoms atoms;

    LS_TRY(check_shape(plan));
    LS_TRY(check_room(plan, limits));
    LS_TRY(ls_atoms_cut(plan, &atoms));
    ls_status status = ls_check_contents(plan, &atoms);
    if (status == LS_OK) status = ls_check_order(plan, &atoms);
    ls_atoms_free(&atoms);
    return status;
}
