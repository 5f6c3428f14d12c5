/* plan.c - what a finished plan can be asked. */
#include "plan.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ls_lane_name(ls_lane lane)
{
    static const char *const names[LS_LANE_COUNT] = {"compute", "copy_in", "copy_out",
                                                     "host",    "disk_in", "disk_out"};
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
    memset(plan, 0, sizeof *plan);
}

uint64_t ls_plan_place_bytes(const ls_plan *plan, ls_place_kind place)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < plan->n_arenas; i++)
        if (plan->arenas[i].place == place) bytes += plan->arenas[i].bytes;
    return bytes;
}

uint64_t ls_plan_role_bytes(const ls_plan *plan, ls_place_kind place, ls_role role)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < plan->n_tensors; i++) {
        const ls_plan_tensor *t = &plan->tensors[i];
        if (t->tensor.role == role && plan->arenas[t->span.arena].place == place)
            bytes += t->span.bytes;
    }
    return bytes;
}

static const char *step_noun(const ls_step *step)
{
    switch (step->kind) {
    case LS_STEP_OP: return ls_op_describe(step->op)->name;
    case LS_STEP_BATCH: return "batch";
    case LS_STEP_LOSS: return "loss";
    }
    return "?";
}

void ls_plan_describe_step(const ls_plan *plan, int64_t step, char *text, size_t text_bytes)
{
    assert(step >= 0 && step < plan->n_steps);
    const ls_step *s = &plan->steps[step];
    snprintf(text, text_bytes, "step %lld (%s, %s, layer %d, chunk %d, lane %s)", (long long)step,
             step_noun(s), ls_phase_name(s->phase), s->layer, s->chunk, ls_lane_name(s->lane));
}
