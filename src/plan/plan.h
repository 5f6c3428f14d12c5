/*
 * plan.h - everything the trainer does, decided before step 1: steps, spans, lanes, waits.
 *
 * A step is one op, one copy or one piece of host work; it names the bytes it reads and writes
 * (spans of arenas), the lane it runs on, and what it waits for.  Within a lane steps run in plan
 * order, and segments follow each other without a pause: the next one may start on a lane while
 * another lane still works on the one before.
 *
 *   arenas    | host: weights | lo | m | v | grad | x ... |   | hbm: slots | chunk ... | staging |
 *             | nvme: what is placed in a file, if anything is |
 *   segments  | step: s0 s1 ... | step+save: ... | eval: ... | drain: ... |
 *   carries   what earlier segments did, as far as this one must wait for it
 *
 * A carry stands for all that earlier segments have done on one lane with one group of tensors.
 * Every segment says which of its steps ends the carry anew, or lets it pass through; so a wait for
 * a carry means the latest segment that touched the group, whichever it was.  Which segment may
 * follow which is ls_segment_follows() of the tape.
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
    LS_LANE_COMM, /* collectives between devices; no tape has any yet */
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

typedef struct ls_step {
    ls_call_kind kind; /* an op's operands are in the order of ls_op_describe(op) */
    ls_op op;
    ls_lane lane;
    ls_phase phase;
    int32_t layer, chunk;
    bool commit, recompute;
    int64_t args;          /* index into plan->args */
    int64_t first_operand; /* into plan->operands */
    int32_t n_operands;
    int32_t n_waits;
    int64_t first_wait; /* into plan->waits */
    double flops;       /* upper bound: masks are data */
    uint64_t bytes;     /* read plus written */
} ls_step;

typedef struct ls_plan_tensor {
    ls_tensor tensor;
    ls_span span;   /* of no bytes if no step touches it */
    int32_t group;  /* what carries do not tell apart: a parameter and its states, the batch, the
                       tensors of a slot, or one */
    int32_t source; /* it is a copy of this tensor, kept between segments; -1: none */
} ls_plan_tensor;

typedef struct ls_plan_arena {
    ls_place_kind place;
    uint64_t bytes;
} ls_plan_arena;

typedef struct ls_carry {
    ls_lane lane;
    int32_t group;
    int64_t ends[LS_SEGMENT_COUNT]; /* the step that ends it there; -1: it passes through */
} ls_carry;

typedef struct ls_plan {
    ls_plan_arena *arenas;
    ls_plan_tensor *tensors; /* the tape's, then the plan's own */
    ls_step *steps;
    ls_step_operand *operands;
    ls_op_args *args; /* operand pointers NULL */
    int64_t *waits;   /* >= 0: an earlier step of this segment; < 0: carry -1 - wait */
    ls_carry *carries;
    int32_t n_arenas, n_tensors, n_groups, n_carries;
    int64_t n_steps, n_operands, n_waits;
    int64_t segment_first[LS_SEGMENT_COUNT], segment_steps[LS_SEGMENT_COUNT];
} ls_plan;

static inline bool ls_wait_is_carry(int64_t wait)
{
    return wait < 0;
}

/* A carry as a wait, and back. */
static inline int64_t ls_wait_carry(int64_t wait_or_carry)
{
    return -1 - wait_or_carry;
}

/*
 * Lower a tape: one arena for each place; ops on the compute lane, the optimizer, norms and losses
 * on the host lane, batches on disk_in, saving on disk_out, copies on copy_in and copy_out; tensors
 * that only the compute lane touches share bytes where their lifetimes allow; the fewest waits that
 * order conflicting spans.
 *
 *   placement  where classes of tensors live (place.h); NULL: all in host memory
 *   ops        the backend that will run: says how much workspace its ops need
 *   plan       [out] release with ls_plan_free()
 *
 * Tensors that have a source are copies the plan keeps fresh: whoever fills the source outside the
 * plan fills them too.  Of those that are updated where they compute (place.h: device_layers) the
 * source is the one that lags: it holds the state when it is saved.
 * Returns LS_OK, LS_ERR_NO_MEMORY (for the plan itself), LS_ERR_INVALID (sizes overflow).
 */
ls_status ls_plan_lower(const ls_tape *tape, const ls_placement *placement, const ls_ops *ops,
                        ls_plan *plan);

void ls_plan_free(ls_plan *plan);

/* What a plan takes. */
typedef struct ls_plan_cost {
    uint64_t place_bytes[LS_PLACE_COUNT];
    double flops;         /* of an optimizer step, recompute included */
    double lower_bound_s; /* of an optimizer step: no order of its steps takes less; 0: not asked */
    double compute_s;     /* the compute lane's part of it, nothing else running */
    const char *bound_by; /* the lane or resource that the bound is of; static text */
    int64_t n_steps;      /* of all segments */
} ls_plan_cost;

struct ls_cost_model;

/*
 * What the plan takes that ls_plan_lower() would make of these, without making it: no steps are
 * kept, and nothing is ordered.
 *   model  complete (cost.h), for the times; NULL: they are not asked for
 */
ls_status ls_plan_measure(const ls_tape *tape, const ls_placement *placement, const ls_ops *ops,
                          const struct ls_cost_model *model, ls_plan_cost *cost);

/* What a plan may use of each place. */
typedef struct ls_plan_limits {
    uint64_t place_bytes[LS_PLACE_COUNT];
} ls_plan_limits;

/*
 * Prove a plan: every index points somewhere, tensors lie inside their arenas and arenas within the
 * limits; a read finds what its tensor wrote; bytes that outlive a segment are written by their
 * owner alone; conflicting accesses are ordered over every allowed succession of segments; no wait
 * is spare.
 *   limits  may be NULL: not checked
 * Returns LS_OK, LS_ERR_INVALID (the text names the steps, the bytes and what is missing) or
 * LS_ERR_NO_MEMORY (a limit, or memory for the check).
 */
ls_status ls_plan_check(const ls_plan *plan, const ls_plan_limits *limits);

/* Bytes that the plan reserves at a place, and of one tensor class there, a slot counted once.
 * Classes that share bytes add up to more than the place. */
uint64_t ls_plan_place_bytes(const ls_plan *plan, ls_place_kind place);
uint64_t ls_plan_role_bytes(const ls_plan *plan, ls_place_kind place, ls_role role);

/*
 * Bytes that tensors of a place save by lying where others lie at other times: what they add up to,
 * less what they cover.  LS_ERR_NO_MEMORY.
 */
ls_status ls_plan_shared_bytes(const ls_plan *plan, ls_place_kind place, uint64_t *bytes);

/* How many lanes, from the first on, tables and records list: all but comm, and comm if the plan
 * has a step on it. */
int ls_plan_lanes(const ls_plan *plan);

/* The segment a step belongs to. */
ls_segment_kind ls_plan_segment_of(const ls_plan *plan, int64_t step);

/* "step 12 (matmul, backward, layer 3, chunk 1, lane compute)" for messages. */
void ls_plan_describe_step(const ls_plan *plan, int64_t step, char *text, size_t text_bytes);

#endif
