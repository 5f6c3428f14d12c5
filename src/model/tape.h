/*
 * tape.h - what the model computes: a list of op calls on named tensors.
 *
 * The tape knows shapes and order; it knows no places, no lanes, no devices and no addresses.  The
 * planner gives every tensor a span, every call a lane, and proves the order.  Tensors are dense
 * and row-major, and calls touch them by contiguous views (whole tensors, or ranges of rows).
 *
 *   segments   | step: batch, forward, loss, backward, norm, update | step+save | eval | drain |
 *   calls      | c0 c1 c2 ...                                       | ...                      |
 *   tensors    weights, their states and gradients, x of each layer, chunk workspace, ...
 *
 * Layer: model (uses kernels, base).  Threads: a built tape is immutable.
 */
#ifndef LS_TAPE_H
#define LS_TAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "ops.h"
#include "status.h"

#define LS_TENSOR_NAME_BYTES 96
#define LS_TENSOR_DIMS_MAX   3

/* The tensor classes that placement policies and memory tables speak of (interface: memory). */
typedef enum ls_role {
    LS_ROLE_WEIGHTS = 0, /* bf16 halves of the master, or fp32 weights */
    LS_ROLE_LO,          /* lower halves of the master */
    LS_ROLE_M,
    LS_ROLE_V,
    LS_ROLE_GRAD,    /* gradients of parameters, and what they are made of */
    LS_ROLE_X,       /* layer inputs and their gradient */
    LS_ROLE_O,       /* attention outputs and LSE */
    LS_ROLE_KV,      /* queries, keys and values of a layer */
    LS_ROLE_DKV,     /* fp32 gradients of keys and values */
    LS_ROLE_CHUNK,   /* rows of the chunk or block at work */
    LS_ROLE_LOGITS,  /* a row tile of logits and its gradient */
    LS_ROLE_BATCH,   /* tokens, targets, positions, document starts, losses, control, tables */
    LS_ROLE_STAGING, /* library workspaces, reduction scratch */
    LS_ROLE_COUNT
} ls_role;

/* "weights", "lo", ... as in the run file; never NULL. */
const char *ls_role_name(ls_role role);

typedef struct ls_tensor {
    char name[LS_TENSOR_NAME_BYTES];
    int n_dims;
    int64_t dims[LS_TENSOR_DIMS_MAX];
    ls_dtype dtype;
    ls_role role;
    int64_t tile_rows; /* no operand straddles rows that are a multiple of this; 0: any may */
    int32_t layer;     /* -1: none */
    int32_t param;     /* the parameter that it is, or a state or the gradient of; -1: none */
    bool persistent;   /* its content outlives a segment */
} ls_tensor;

int64_t ls_tensor_elements(const ls_tensor *tensor);
uint64_t ls_tensor_bytes(const ls_tensor *tensor);

/* A contiguous part of a tensor; tensor < 0: the operand is absent (its pointer is NULL). */
typedef struct ls_view {
    int32_t tensor;
    uint64_t offset; /* bytes from the tensor's start */
    uint64_t bytes;
} ls_view;

/* An op, or work of the host that the engine does; `chunk` says on what. */
typedef enum ls_call_kind {
    LS_CALL_OP = 0,
    LS_CALL_BATCH,      /* fill the batch tensors with micro-batch `chunk` of this step */
    LS_CALL_LOSS,       /* add the losses of micro-batch `chunk` to the step's statistics */
    LS_CALL_SCHEDULE,   /* write this step's learning rate into the update control */
    LS_CALL_REPORT,     /* the step is complete: record it */
    LS_CALL_SAVE_BEGIN, /* open a checkpoint of the state before this segment */
    LS_CALL_SAVE,       /* write tensor `chunk` */
    LS_CALL_SAVE_END,   /* make the checkpoint valid */
    LS_CALL_COPY,       /* operand 0 = operand 1; no tape has it, a plan puts it in */
    LS_CALL_KIND_COUNT
} ls_call_kind;

/* "op", "batch", ...; never NULL. */
const char *ls_call_kind_name(ls_call_kind kind);

typedef enum ls_phase {
    LS_PHASE_BATCH = 0,
    LS_PHASE_FORWARD,
    LS_PHASE_LOSS,
    LS_PHASE_BACKWARD,
    LS_PHASE_NORM,
    LS_PHASE_UPDATE,
    LS_PHASE_SAVE,
    LS_PHASE_COUNT
} ls_phase;

const char *ls_phase_name(ls_phase phase);

typedef struct ls_call {
    ls_call_kind kind;
    ls_op op;
    ls_phase phase;
    int32_t layer, chunk; /* -1: none; chunk counts chunks of the token axis */
    bool commit;          /* part of an update: never abandoned once the first has run */
    double pairs;         /* attention: (query, key) pairs at most; documents are data */
    bool recompute;       /* repeats forward work in backward */
    ls_op_args args;      /* operand pointers NULL */
    int32_t n_operands;
    ls_view operands[LS_OPERANDS_MAX]; /* of an op: in the order of ls_op_describe(op) */
    uint8_t access[LS_OPERANDS_MAX];   /* ls_access of each */
} ls_call;

/* What the trainer runs, one after the other; ls_segment_follows() says in which order. */
typedef enum ls_segment_kind {
    LS_SEGMENT_STEP = 0,
    LS_SEGMENT_STEP_SAVE, /* a step that meanwhile writes the state it started from */
    LS_SEGMENT_EVAL,
    LS_SEGMENT_DRAIN, /* write the state, nothing else: the last one */
    LS_SEGMENT_COUNT
} ls_segment_kind;

/* "step", "step+save", "eval", "drain"; never NULL. */
const char *ls_segment_name(ls_segment_kind segment);

/* Whether next may run right after segment.  Any segment may be the first. */
bool ls_segment_follows(ls_segment_kind segment, ls_segment_kind next);

typedef struct ls_tape {
    ls_tensor *tensors;
    int32_t n_tensors, tensors_capacity;
    ls_call *calls;
    int64_t n_calls, calls_capacity;
    ls_segment_kind segment; /* begun last */
    int64_t segment_first[LS_SEGMENT_COUNT], segment_calls[LS_SEGMENT_COUNT];
} ls_tape;

void ls_tape_free(ls_tape *tape);

/* Add a tensor; n_dims dims follow in dims.  Returns its index through tensor. */
ls_status ls_tape_add_tensor(ls_tape *tape, const ls_tensor *description, int32_t *tensor);

/* Append a call to the segment that was begun last. */
ls_status ls_tape_add_call(ls_tape *tape, const ls_call *call);

/* The calls that follow belong to this segment; each kind is begun at most once. */
void ls_tape_begin_segment(ls_tape *tape, ls_segment_kind segment);

/* Views: nothing, all of a tensor, rows [first, first + n) of its leading dimension. */
ls_view ls_view_none(void);
ls_view ls_view_whole(const ls_tape *tape, int32_t tensor);
ls_view ls_view_rows(const ls_tape *tape, int32_t tensor, int64_t first, int64_t n);

/* Assert that every view lies inside its tensor and every required operand is present. */
void ls_tape_check(const ls_tape *tape);

#endif
