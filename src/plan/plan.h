/*
 * plan.h - everything the trainer does, decided before step 1: steps, spans, lanes, waits.
 *
 * A step is one op, one copy or one piece of host work; it names the bytes it reads and writes
 * (spans of arenas), the lane it runs on, and the steps of other lanes it waits for.  Within a
 * lane steps run in plan order.  The executor runs exactly this list; nothing is scheduled by
 * accident, and nothing is allocated after start.
 *
 *   arenas    | host: weights | lo | m | v | grad | x ... | chunk ... | staging |
 *   segments  | step: s0 s1 s2 ...                        | eval: s_n ...       |
 *
 * Layer: plan (uses topology, model).  Threads: a built plan is immutable.
 */
#ifndef LS_PLAN_H
#define LS_PLAN_H

#include <stddef.h>

#include "place.h"
#include "tape.h"

typedef enum ls_lane {
    LS_LANE_COMPUTE = 0,
    LS_LANE_COPY_IN,
    LS_LANE_COPY_OUT,
    LS_LANE_HOST,
    LS_LANE_DISK_IN,
    LS_LANE_DISK_OUT,
    LS_LANE_COUNT
} ls_lane;

/* "compute", "copy_in", ...; never NULL. */
const char *ls_lane_name(ls_lane lane);

/* Bytes of an arena. */
typedef struct ls_span {
    int32_t arena; /* -1: no span (an absent operand) */
    uint64_t offset, bytes;
} ls_span;

/* A span as a step uses it. */
typedef struct ls_step_operand {
    ls_span span;
    int32_t tensor; /* the tensor it belongs to; -1 with an absent operand */
    ls_access access;
} ls_step_operand;

typedef enum ls_step_kind {
    LS_STEP_OP = 0, /* operands in the order of ls_op_describe(op) */
    LS_STEP_BATCH,  /* fill the batch tensors with micro-batch `chunk` */
    LS_STEP_LOSS,   /* add the losses of micro-batch `chunk` to the statistics */
} ls_step_kind;

typedef struct ls_step {
    ls_step_kind kind;
    ls_op op;
    ls_lane lane;
    ls_phase phase;
    int32_t layer, chunk;
    bool commit, recompute;
    int64_t args;          /* index into plan->args */
    int64_t first_operand; /* into plan->operands */
    int32_t n_operands;
    int32_t n_waits;
    int64_t first_wait; /* into plan->waits: indices of earlier steps of other lanes */
    double flops;       /* upper bound: masks are data */
    uint64_t bytes;     /* read plus written */
} ls_step;

typedef struct ls_plan_tensor {
    ls_tensor tensor;
    ls_span span;
} ls_plan_tensor;

typedef struct ls_plan_arena {
    ls_place_kind place;
    uint64_t bytes;
} ls_plan_arena;

typedef struct ls_plan {
    ls_plan_arena *arenas;
    ls_plan_tensor *tensors; /* the tape's, then the plan's own */
    ls_step *steps;
    ls_step_operand *operands;
    ls_op_args *args; /* operand pointers NULL */
    int64_t *waits;
    int32_t n_arenas, n_tensors;
    int64_t n_steps, n_operands, n_waits, waits_capacity;
    int64_t segment_first[LS_SEGMENT_COUNT], segment_steps[LS_SEGMENT_COUNT];
} ls_plan;

/*
 * Lower a tape: one host arena, tensors laid end to end by role, ops on the compute lane, batches
 * and the optimizer on the host lane, the fewest waits that order conflicting spans across lanes.
 *
 *   ops   the backend that will run: says how much workspace its ops need
 *   plan  [out] release with ls_plan_free()
 * Returns LS_OK, LS_ERR_NO_MEMORY (for the plan itself), LS_ERR_INVALID (sizes overflow).
 */
ls_status ls_plan_lower(const ls_tape *tape, const ls_ops *ops, ls_plan *plan);

void ls_plan_free(ls_plan *plan);

/* Bytes that the plan reserves at a place, and of one tensor class there. */
uint64_t ls_plan_place_bytes(const ls_plan *plan, ls_place_kind place);
uint64_t ls_plan_role_bytes(const ls_plan *plan, ls_place_kind place, ls_role role);

/* "step 12 (matmul, backward, layer 3, chunk 1, lane compute)" for messages. */
void ls_plan_describe_step(const ls_plan *plan, int64_t step, char *text, size_t text_bytes);

#endif
