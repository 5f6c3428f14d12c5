/*
 * layout.c - where each tensor lies in its arena.
 *
 * Tensors are laid end to end by role, so that a class is one range, those of a slot on the same
 * bytes; then those that live for only
 * a part of every segment, and are touched by one lane alone, follow in shared bytes: largest
 * first, each at the lowest offset where nothing lies that lives at the same time.  In-lane order
 * keeps such neighbours apart in time, within a segment and from one segment to the next.
 */
#include "layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"

typedef struct layout {
    ls_plan *plan;
    const ls_tensor_life *lives; /* [n_tensors] */
    int32_t *sharing;            /* [n_sharing] tensors that share bytes, in the order of placing */
    int32_t n_sharing;
    const int32_t *slots;
    uint64_t *slot_offset; /* UINT64_MAX: not placed yet */
    uint64_t *slot_bytes;  /* of the largest tensor in it */
    uint64_t *ends;        /* [n_arenas] of what has been placed end to end */
} layout;

/* ---- lives --------------------------------------------------------------------------------- */

ls_tensor_life ls_tensor_life_none(void)
{
    ls_tensor_life life = {.lanes = 0};

    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        life.first[s] = INT64_MAX;
        life.last[s] = -1;
    }
    return life;
}

void ls_tensor_life_note(ls_tensor_life *life, ls_segment_kind segment, int64_t step, ls_lane lane)
{
    if (step < life->first[segment]) life->first[segment] = step;
    life->last[segment] = step;
    life->lanes |= 1u << lane;
}

ls_status ls_lifetimes_reach(ls_lifetimes *lives, int32_t tensor)
{
    if (tensor >= lives->capacity) {
        int32_t capacity = lives->capacity > 0 ? lives->capacity : 64;
        while (capacity <= tensor) capacity *= 2;
        ls_tensor_life *grown = realloc(lives->of, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "lives of %d tensors", capacity);
        lives->of = grown;
        lives->capacity = capacity;
    }
    while (lives->n <= tensor) lives->of[lives->n++] = ls_tensor_life_none();
    return LS_OK;
}

void ls_lifetimes_free(ls_lifetimes *lives)
{
    free(lives->of);
    memset(lives, 0, sizeof *lives);
}

/* ---- places -------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + LS_ARENA_ALIGN - 1) / LS_ARENA_ALIGN * LS_ARENA_ALIGN;
}

static bool live_together(const layout *l, int32_t a, int32_t b)
{
    const ls_tensor_life *x = &l->lives[a], *y = &l->lives[b];

    for (int s = 0; s < LS_SEGMENT_COUNT; s++)
        if (x->first[s] <= y->last[s] && y->first[s] <= x->last[s]) return true;
    return false;
}

/* Activations and scratch of the compute lane; classes that people size by hand stay apart.  What
 * passes through a slot has that slot's bytes, also where nothing of it is ever copied. */
static bool may_share(const layout *l, int32_t tensor)
{
    const ls_tensor *t = &l->plan->tensors[tensor].tensor;
    const bool has_slot = l->slots != NULL && l->slots[tensor] >= 0;
    return !has_slot && l->lives[tensor].lanes == 1u << LS_LANE_COMPUTE && !t->persistent &&
           t->param < 0 && t->role >= LS_ROLE_X && t->role != LS_ROLE_BATCH;
}

static ls_status fail_size(void)
{
    return LS_FAIL(LS_ERR_INVALID, "the plan's tensors exceed 2^63 bytes");
}

/* A tensor at the end of its arena, or where its slot is. */
static ls_status place_next(layout *l, int32_t tensor)
{
    ls_span *span = &l->plan->tensors[tensor].span;
    uint64_t *end = &l->ends[span->arena];
    uint64_t *slot =
        l->slots != NULL && l->slots[tensor] >= 0 ? &l->slot_offset[l->slots[tensor]] : NULL;

    if (slot != NULL && *slot != UINT64_MAX) {
        span->offset = *slot;
        return LS_OK;
    }
    const uint64_t bytes = slot != NULL ? l->slot_bytes[l->slots[tensor]] : span->bytes;
    if (bytes > (uint64_t)INT64_MAX - *end - LS_ARENA_ALIGN) return fail_size();
    span->offset = *end;
    *end += round_up(bytes);
    if (slot != NULL) *slot = span->offset;
    return LS_OK;
}

static ls_status place_end_to_end(layout *l)
{
    for (ls_role role = 0; role < LS_ROLE_COUNT; role++)
        for (int32_t i = 0; i < l->plan->n_tensors; i++) {
            ls_plan_tensor *t = &l->plan->tensors[i];
            if (t->tensor.role != role) continue;
            t->span.offset = 0;
            t->span.bytes = l->lives[i].lanes != 0 || t->tensor.persistent
                                ? ls_tensor_bytes(&t->tensor)
                                : 0; /* nobody wants it */
            if (t->span.bytes == 0) continue;
            if (may_share(l, i))
                l->sharing[l->n_sharing++] = i;
            else
                LS_TRY(place_next(l, i));
        }
    return LS_OK;
}

typedef struct sized {
    uint64_t bytes;
    int32_t tensor;
} sized;

/* Largest first; equals in table order. */
static int compare_sized(const void *a, const void *b)
{
    const sized *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->tensor < y->tensor ? -1 : 1;
}

/* The lowest offset at which the n-th sharing tensor meets none of those before it. */
static uint64_t find_offset(const layout *l, const sized *order, int32_t n)
{
    const uint64_t bytes = round_up(order[n].bytes);
    const int32_t arena = l->plan->tensors[order[n].tensor].span.arena;
    uint64_t offset = l->ends[arena];

    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t i = 0; i < n; i++) {
            const ls_span *other = &l->plan->tensors[order[i].tensor].span;
            const uint64_t other_end = other->offset + round_up(other->bytes);
            if (other->arena != arena) continue;
            if (offset >= other_end || other->offset >= offset + bytes) continue;
            if (!live_together(l, order[n].tensor, order[i].tensor)) continue;
            offset = other_end;
            moved = true;
        }
    }
    return offset;
}

static ls_status place_sharing(layout *l)
{
    sized *order = malloc(((size_t)l->n_sharing + 1) * sizeof *order);
    ls_status status = LS_OK;

    if (order == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "layout of %d tensors", l->n_sharing);
    for (int32_t i = 0; i < l->n_sharing; i++)
        order[i] = (sized){l->plan->tensors[l->sharing[i]].span.bytes, l->sharing[i]};
    qsort(order, (size_t)l->n_sharing, sizeof *order, compare_sized);
    for (int32_t a = 0; a < l->plan->n_arenas; a++) l->plan->arenas[a].bytes = l->ends[a];
    for (int32_t i = 0; i < l->n_sharing && status == LS_OK; i++) {
        const uint64_t offset = find_offset(l, order, i);
        if (order[i].bytes > (uint64_t)INT64_MAX - offset - LS_ARENA_ALIGN) {
            status = fail_size();
            break;
        }
        ls_span *span = &l->plan->tensors[order[i].tensor].span;
        uint64_t *arena_bytes = &l->plan->arenas[span->arena].bytes;
        span->offset = offset;
        if (offset + round_up(order[i].bytes) > *arena_bytes)
            *arena_bytes = offset + round_up(order[i].bytes);
    }
    free(order);
    return status;
}

static ls_status allocate(layout *l, int32_t *n_slots)
{
    const size_t n = (size_t)l->plan->n_tensors;

    *n_slots = 0;
    for (size_t i = 0; i < n && l->slots != NULL; i++)
        if (l->slots[i] >= *n_slots) *n_slots = l->slots[i] + 1;
    l->sharing = malloc(n * sizeof *l->sharing);
    l->slot_offset = malloc(((size_t)*n_slots + 1) * sizeof *l->slot_offset);
    l->slot_bytes = calloc((size_t)*n_slots + 1, sizeof *l->slot_bytes);
    l->ends = calloc((size_t)l->plan->n_arenas, sizeof *l->ends);
    if (l->sharing == NULL || l->slot_offset == NULL || l->slot_bytes == NULL || l->ends == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "layout of %zu tensors", n);
    for (int32_t slot = 0; slot < *n_slots; slot++) l->slot_offset[slot] = UINT64_MAX;
    for (size_t i = 0; i < n; i++) {
        const uint64_t bytes = ls_tensor_bytes(&l->plan->tensors[i].tensor);
        if (l->slots == NULL || l->slots[i] < 0) continue;
        if (bytes > l->slot_bytes[l->slots[i]]) l->slot_bytes[l->slots[i]] = bytes;
    }
    return LS_OK;
}

ls_status ls_plan_lay_out(ls_plan *plan, const ls_lifetimes *lives, const int32_t *slots)
{
    layout l = {.plan = plan, .lives = lives->of, .slots = slots};
    int32_t n_slots;

    ls_status status = allocate(&l, &n_slots);
    if (status == LS_OK) status = place_end_to_end(&l);
    if (status == LS_OK) status = place_sharing(&l);
    free(l.sharing);
    free(l.slot_offset);
    free(l.slot_bytes);
    free(l.ends);
    return status;
}
