/*
 * visits.h - private to the plan: when tensors of host memory must be in device memory.
 *
 * A unit is a tensor, or a tile of one: rows that no operand straddles (tape.h), where a class is
 * cut into tiles (place.h).  A visit is the calls between a unit's entering a slot of device memory
 * and its leaving it:
 *
 *   parameters, gradients   the pass of a phase over their layer
 *   other whole tensors     until another of the class is wanted in between, at the least a phase
 *   tiles                   as many of a pool as it holds; what is wanted again last has to leave
 *                           (Belady 1966: the whole future is known)
 *
 * A pool is the slots of one class and size.  What a visit writes is copied out after its last
 * write.
 *
 * Layer: plan, private.
 */
#ifndef LS_VISITS_H
#define LS_VISITS_H

#include "place.h"
#include "tape.h"

typedef struct ls_visit {
    int32_t unit;
    int32_t pass;        /* the phase of the segment it is in, counted */
    int64_t first, last; /* calls of the tape */
    int64_t last_write;  /* it is copied out after that, while others still read it; -1: none */
    int64_t given;       /* the call of another lane that wrote the tensor before it, -1: none */
    /* Bytes of the unit: what host memory holds of it when the visit begins (maybe nothing), and
     * what the visit has written, if it writes; neither has gaps. */
    uint64_t held_from, held_to, from, to;
    bool reads_in;        /* what is held must be copied in */
    bool writes, read_on; /* what it has written is read later, elsewhere: it must be copied out */
    int32_t next, before; /* visits of the unit after and before it, -1: none */
    int32_t slot;         /* of its pool; for who takes slots */
    int32_t in_slot;
} ls_visit;

typedef struct ls_visit_pool {
    ls_role role;
    uint64_t bytes; /* of a slot */
    bool tiled;
    int32_t per_layer; /* parameters or gradients of one layer that go through it */
    int32_t arrivals;  /* tensors of all layers by which gradients arrive (decoder_gradients.c) */
    int32_t capacity;  /* tiled: units kept at once */
    int32_t n_slots;   /* enough for every segment counted so far */
} ls_visit_pool;

/* The visits of a segment. */
typedef struct ls_visit_list {
    ls_visit *visits; /* [n] in the order of their first calls */
    int32_t n, capacity;
    int32_t *first; /* [n_units] a unit's first visit, -1: none */
} ls_visit_list;

typedef struct ls_visits {
    const ls_tape *tape;
    const ls_placement *placement;
    const bool *staged; /* [n_tensors] goes through slots */

    int32_t *pool_of;     /* [n_tensors] -1: not staged */
    int32_t *unit_first;  /* [n_tensors + 1] */
    uint64_t *unit_bytes; /* [n_tensors] of all its units but perhaps the last */
    int32_t *unit_tensor; /* [n_units] */
    int32_t n_units, n_pools;
    ls_visit_pool *pools;
    ls_visit_list lists[LS_SEGMENT_COUNT];
} ls_visits;

/* Whether the compute lane runs a call: gradients are the host's from their arrival on, and so are
 * updates but for those of the layers that keep their states where they compute. */
static inline bool ls_call_computes(const ls_placement *placement, const ls_call *call)
{
    if (call->kind != LS_CALL_OP || call->op == LS_OP_add_sumsq) return false;
    if (call->op == LS_OP_adamw && ls_placement_updates(placement, call->layer)) return true;
    return call->phase != LS_PHASE_NORM && call->phase != LS_PHASE_UPDATE;
}

/*
 * Cut tensors into units and pools, list the visits of every segment, and count the slots they
 * take.
 *   staged  [n_tensors] must live on
 *   visits  [out] release with ls_visits_close(), also after a failure
 * Returns LS_OK, LS_ERR_NO_MEMORY.
 */
ls_status ls_visits_open(const ls_tape *tape, const ls_placement *placement, const bool *staged,
                         ls_visits *visits);
void ls_visits_close(ls_visits *visits);

/* For ls_visits_open(): list the visits of a segment (visits_list.c). */
ls_status ls_visits_list(const ls_visits *visits, ls_segment_kind segment, ls_visit_list *list);

/* The visits of a list in three orders: by pool, then first call; by last call; by last write.
 * Each is [list->n] out. */
void ls_visits_sort(const ls_visits *visits, const ls_visit_list *list, int32_t *by_pool,
                    int32_t *by_last, int32_t *by_last_write);

/* Whether an operand of a call of the compute lane goes through a slot.  Rows of an embedding are
 * looked up where they lie. */
static inline bool ls_visits_want(const ls_visits *v, const ls_call *call, int32_t operand)
{
    const int32_t t = call->operands[operand].tensor;

    return t >= 0 && v->staged[t] &&
           (call->op != LS_OP_embedding_forward || v->tape->tensors[t].role != LS_ROLE_WEIGHTS);
}

/* The unit that holds an operand of a staged tensor. */
int32_t ls_visits_unit(const ls_visits *visits, const ls_view *view);

/* All of a unit, as a view of its tensor. */
ls_view ls_visits_view(const ls_visits *visits, int32_t unit);

/* Where it begins in its tensor. */
static inline uint64_t ls_visits_offset(const ls_visits *v, int32_t unit)
{
    const int32_t t = v->unit_tensor[unit];
    return (uint64_t)(unit - v->unit_first[t]) * v->unit_bytes[t];
}

/* Parameters and their gradients come and go by whole layers. */
static inline bool ls_visits_go_by_layer(const ls_tensor *t)
{
    return t->param >= 0 && t->layer >= 0;
}

static inline const ls_tensor *ls_visits_tensor(const ls_visits *v, int32_t unit)
{
    return &v->tape->tensors[v->unit_tensor[unit]];
}

static inline ls_visit_pool *ls_visits_pool(const ls_visits *v, int32_t unit)
{
    return &v->pools[v->pool_of[v->unit_tensor[unit]]];
}

#endif
