/* live.c - each tensor's stretches of life as differences, then a running sum. */
#include "live.h"

#include <stdlib.h>
#include <string.h>

typedef struct life {
    int64_t from, last; /* the stretch at work; from < 0: none */
    bool kept;          /* some segment finds it filled */
} life;

static uint64_t *bytes_at(const ls_plan *plan, const ls_plan_tensor *tensor, ls_live_bytes *live)
{
    return &live->place[plan->arenas[tensor->span.arena].place];
}

/* Additions where a stretch begins, taken off behind its end. */
static void end_stretch(const ls_plan *plan, int32_t t, life *of, int64_t end, ls_live_bytes *live)
{
    const ls_plan_tensor *tensor = &plan->tensors[t];

    if (of[t].from < 0 || of[t].kept || tensor->span.arena < 0) return;
    *bytes_at(plan, tensor, &live[of[t].from]) += tensor->span.bytes;
    if (of[t].last + 1 < end) *bytes_at(plan, tensor, &live[of[t].last + 1]) -= tensor->span.bytes;
}

/* Written whole, it is another: what it held ended with its last touch. */
static bool begins_anew(const ls_plan *plan, const ls_step_operand *operand)
{
    return operand->access == LS_ACCESS_WRITE &&
           operand->span.bytes == plan->tensors[operand->tensor].span.bytes;
}

/* Visit the operands of a segment; live: NULL, or the stretches are added to it. */
static void walk_segment(const ls_plan *plan, int segment, life *of, ls_live_bytes *live)
{
    const int64_t from = plan->segment_first[segment];
    const int64_t end = from + plan->segment_steps[segment];

    for (int32_t t = 0; t < plan->n_tensors; t++) of[t].from = -1;
    for (int64_t s = from; s < end; s++) {
        const ls_step *step = &plan->steps[s];
        for (int i = 0; i < step->n_operands; i++) {
            const ls_step_operand *operand = &plan->operands[step->first_operand + i];
            const int32_t t = operand->tensor;
            if (t < 0) continue;
            const bool first = of[t].from < 0;
            if (first && (operand->access & LS_ACCESS_READ) != 0) of[t].kept = true;
            if (first || begins_anew(plan, operand)) {
                if (live != NULL) end_stretch(plan, t, of, end, live);
                of[t].from = s;
            }
            of[t].last = s;
        }
    }
    for (int32_t t = 0; t < plan->n_tensors && live != NULL; t++)
        end_stretch(plan, t, of, end, live);
}

/* Of differences the running sum, on top of what is always there. */
static void sum_segment(const ls_plan *plan, int segment, ls_live_bytes now, ls_live_bytes *live)
{
    const int64_t from = plan->segment_first[segment];

    for (int64_t s = from; s < from + plan->segment_steps[segment]; s++)
        for (int place = 0; place < LS_PLACE_COUNT; place++) {
            now.place[place] += live[s].place[place]; /* wraps below zero and back */
            live[s].place[place] = now.place[place];
        }
}

ls_status ls_plan_live_bytes(const ls_plan *plan, ls_live_bytes *live)
{
    life *of = calloc((size_t)plan->n_tensors + 1, sizeof *of);
    ls_live_bytes kept = {{0}};

    if (of == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "live bytes of a plan");
    memset(live, 0, (size_t)plan->n_steps * sizeof *live);
    for (int segment = 0; segment < LS_SEGMENT_COUNT; segment++)
        walk_segment(plan, segment, of, NULL);
    for (int32_t t = 0; t < plan->n_tensors; t++)
        if (of[t].kept && plan->tensors[t].span.arena >= 0)
            *bytes_at(plan, &plan->tensors[t], &kept) += plan->tensors[t].span.bytes;
    for (int segment = 0; segment < LS_SEGMENT_COUNT; segment++) {
        walk_segment(plan, segment, of, live);
        sum_segment(plan, segment, kept, live);
    }
    free(of);
    return LS_OK;
}
