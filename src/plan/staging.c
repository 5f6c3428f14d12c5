/* staging.c - places of tensors; the calls of a tape with the copies that these need. */
#include "staging.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "visits.h"

/* The slots of a pool that are free, a queue: the one given up longest ago is taken first. */
typedef struct slot_queue {
    int32_t first_slot; /* number of the pool's first among all */
    int32_t *free;      /* [n_slots] */
    int32_t n_free, oldest;
    int64_t next, end; /* visits of the segment without a slot, in `order` */
} slot_queue;

typedef struct staging {
    const ls_tape *tape;
    const ls_placement *placement;
    ls_stage_sink *sink;
    void *context;
    ls_segment_kind segment; /* at work */
    ls_staged *out;
    bool *staged;    /* [n_tensors] goes through slots */
    int32_t *mirror; /* [n_tensors] its resident copy, -1: none */
    bool *updated;   /* [n_tensors] in its copy, which the tensor itself is then behind of */
    bool committed;  /* the call at work is part of an update */
    ls_visits visits;
    slot_queue *queues;      /* [n_pools] */
    ls_visit_list *list;     /* of the segment at work */
    int32_t *now;            /* [n_units] the visit at work or next */
    int32_t *order;          /* [n_visits] by pool, then first call */
    int32_t *leaving;        /* [n_visits] by last call */
    int32_t *written;        /* [n_visits] by last write */
    int32_t *stand_in;       /* [n_units, slots of its pool] tensors made so far, -1 */
    int64_t *stand_in_first; /* [n_units] where the unit's begin in stand_in */
    ls_status status;
} staging;

static_assert((int)LS_ROLE_COUNT == (int)LS_CLASS_COUNT && (int)LS_ROLE_X == (int)LS_CLASS_X &&
                  (int)LS_ROLE_STAGING == (int)LS_CLASS_STAGING,
              "roles and classes are one list");

/* ---- where tensors live -------------------------------------------------------------------- */

/* Of the layers that are updated where they compute. */
static bool is_kept(const staging *s, const ls_tensor *t)
{
    return t->param >= 0 && ls_placement_updates(s->placement, t->layer) &&
           (t->role == LS_ROLE_WEIGHTS || t->role == LS_ROLE_LO || t->role == LS_ROLE_M ||
            t->role == LS_ROLE_V);
}

/* A tensor in device memory for rows of another. */
static ls_status add_stand_in(staging *s, const ls_view *original, const char *suffix,
                              bool persistent, const ls_staged_tensor *where, int32_t *added)
{
    ls_tensor t = s->tape->tensors[original->tensor];
    char name[LS_TENSOR_NAME_BYTES + 16];

    if (snprintf(name, sizeof name, "%s%s", t.name, suffix) >= (int)sizeof t.name)
        return LS_FAIL(LS_ERR_INVALID, "tensor %s: its name is too long", t.name);
    memcpy(t.name, name, strlen(name) + 1);
    t.dims[0] = (int64_t)(original->bytes / (ls_tensor_bytes(&t) / (uint64_t)t.dims[0]));
    t.tile_rows = 0;
    t.param = -1;
    t.persistent = persistent;
    LS_TRY(ls_tape_add_tensor(&s->out->tape, &t, added));
    ls_staged_tensor *grown =
        realloc(s->out->tensors, (size_t)s->out->tape.n_tensors * sizeof *grown);
    if (grown == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "slots of tensor %s", t.name);
    s->out->tensors = grown;
    grown[*added] = *where;
    return LS_OK;
}

/* Who touches each tensor: the compute lane, others; and what the former updates. */
static void find_users(const staging *s, bool *computes, bool *others)
{
    for (int64_t c = 0; c < s->tape->n_calls; c++) {
        const ls_call *call = &s->tape->calls[c];
        const bool is_ours = ls_call_computes(s->placement, call);
        for (int32_t i = 0; i < call->n_operands; i++) {
            const int32_t t = call->operands[i].tensor;
            if (t < 0) continue;
            (is_ours ? computes : others)[t] = true;
            if (is_ours && (call->access[i] & LS_ACCESS_WRITE)) s->updated[t] = true;
        }
    }
}

/* What kernels read in passing over a coherent link: vectors of weights, tables. */
static bool reads_in_passing(const staging *s, const ls_tensor *t)
{
    return s->placement->coherent &&
           ((t->role == LS_ROLE_WEIGHTS && t->param >= 0 && t->n_dims == 1) ||
            (t->role == LS_ROLE_BATCH && t->persistent));
}

static ls_status place_tensor(staging *s, int32_t t, bool computes, bool others)
{
    const ls_tensor *tensor = &s->tape->tensors[t];
    const ls_class_placement *rule =
        ls_placement_of(s->placement, (ls_tensor_class)tensor->role, tensor->layer);
    const bool is_scratch = !others && !tensor->persistent; /* of the compute lane alone */
    const ls_place_kind rest = rule->place == LS_PLACE_NVME ? LS_PLACE_NVME : LS_PLACE_HOST;
    ls_staged_tensor *where = &s->out->tensors[t];

    *where = (ls_staged_tensor){rest, -1, -1, computes};
    if (!s->placement->has_device || !computes) return LS_OK;
    if (rule->place == LS_PLACE_HBM && is_scratch) where->place = LS_PLACE_HBM;
    if (is_kept(s, tensor) || rule->mode == LS_MODE_RESIDENT) {
        const ls_staged_tensor copy = {LS_PLACE_HBM, -1, t, true};
        const ls_view whole = ls_view_whole(s->tape, t);
        return add_stand_in(s, &whole, "@hbm", true, &copy, &s->mirror[t]);
    }
    if (rule->place == LS_PLACE_HBM || rule->mode == LS_MODE_DIRECT) return LS_OK;
    if (is_scratch && tensor->layer < 0 && /* shared by all layers: what is at work */
        !(s->placement->tiled[tensor->role] && tensor->tile_rows > 0))
        where->place = LS_PLACE_HBM;
    else
        s->staged[t] = !reads_in_passing(s, tensor);
    return LS_OK;
}

static ls_status place_tensors(staging *s)
{
    const size_t n = (size_t)s->tape->n_tensors;
    bool *computes = calloc(n + 1, sizeof *computes), *others = calloc(n + 1, sizeof *others);
    ls_status status = LS_OK;

    if (computes == NULL || others == NULL) {
        status = LS_FAIL(LS_ERR_NO_MEMORY, "places of %zu tensors", n);
    } else {
        find_users(s, computes, others);
        for (int32_t t = 0; t < s->tape->n_tensors && status == LS_OK; t++)
            status = place_tensor(s, t, computes[t], others[t]);
    }
    free(computes);
    free(others);
    return status;
}

/* ---- the calls of a segment, with copies --------------------------------------------------- */

static void add_call(staging *s, const ls_call *call)
{
    if (s->status == LS_OK) s->status = s->sink(s->context, s->segment, call);
}

/* like: the call whose phase the copy shares */
static void add_copy(staging *s, ls_view to, ls_view from, const ls_call *like, int32_t layer)
{
    ls_call copy = {.kind = LS_CALL_COPY,
                    .phase = like->phase,
                    .layer = layer,
                    .chunk = -1,
                    .commit = s->committed,
                    .n_operands = 2,
                    .operands = {to, from},
                    .access = {LS_ACCESS_WRITE, LS_ACCESS_READ}};
    add_call(s, &copy);
}

/* Bytes [from, to) of a view. */
static ls_view part_of(ls_view view, uint64_t from, uint64_t to)
{
    return (ls_view){view.tensor, view.offset + from, to - from};
}

/* The tensor that stands for a unit in a slot of its pool. */
static int32_t find_stand_in(staging *s, int32_t unit, int32_t slot)
{
    const slot_queue *queue = &s->queues[ls_visits_pool(&s->visits, unit) - s->visits.pools];
    const ls_staged_tensor where = {LS_PLACE_HBM, queue->first_slot + slot, -1, true};
    const ls_view view = ls_visits_view(&s->visits, unit);
    const int32_t tile = unit - s->visits.unit_first[view.tensor];
    int32_t *made = &s->stand_in[s->stand_in_first[unit] + slot];
    char suffix[32];

    if (*made >= 0 || s->status != LS_OK) return *made;
    if (ls_visits_pool(&s->visits, unit)->tiled)
        snprintf(suffix, sizeof suffix, "[%d]@%d", tile, slot);
    else
        snprintf(suffix, sizeof suffix, "@%d", slot);
    s->status = add_stand_in(s, &view, suffix, false, &where, made);
    return *made;
}

/* Whether what a visit must read lies in host memory by then, as far as this segment writes it. */
static bool may_enter(const staging *s, const ls_visit *v, int64_t call)
{
    if (!v->reads_in) return true;
    if (v->given >= call) return false;
    if (v->before < 0) return true;
    const ls_visit *before = &s->list->visits[v->before];
    return !before->writes || before->last < call;
}

/* What this call has completed is copied out, though later calls may still read it in its slot. */
static void copy_out(staging *s, int64_t call, int32_t *n_out)
{
    while (*n_out < s->list->n && s->status == LS_OK) {
        const ls_visit *v = &s->list->visits[s->written[*n_out]];
        if (v->last_write > call) break;
        (*n_out)++;
        if (v->last_write == call && v->read_on)
            add_copy(s, part_of(ls_visits_view(&s->visits, v->unit), v->from, v->to),
                     (ls_view){v->in_slot, v->from, v->to - v->from}, &s->tape->calls[call],
                     ls_visits_tensor(&s->visits, v->unit)->layer);
    }
}

/* Visits that were the last call's last use of a slot leave it. */
static void leave(staging *s, int64_t call, int32_t *n_left)
{
    while (*n_left < s->list->n && s->list->visits[s->leaving[*n_left]].last == call) {
        const ls_visit *v = &s->list->visits[s->leaving[(*n_left)++]];
        const ls_visit_pool *pool = ls_visits_pool(&s->visits, v->unit);
        slot_queue *queue = &s->queues[pool - s->visits.pools];
        queue->free[(queue->oldest + queue->n_free++) % pool->n_slots] = v->slot;
    }
}

static void take_slot(staging *s, ls_visit *v, slot_queue *queue, int32_t n_slots)
{
    v->slot = queue->free[queue->oldest];
    queue->oldest = (queue->oldest + 1) % n_slots;
    queue->n_free--;
    v->in_slot = find_stand_in(s, v->unit, v->slot);
    if (v->reads_in && s->status == LS_OK) {
        const ls_view unit = ls_visits_view(&s->visits, v->unit);
        const bool nothing = v->held_from == v->held_to; /* then the check shall say so */
        const uint64_t from = v->held_from, to = nothing ? unit.bytes : v->held_to;
        add_copy(s, (ls_view){v->in_slot, from, to - from}, part_of(unit, from, to),
                 &s->tape->calls[v->first], ls_visits_tensor(&s->visits, v->unit)->layer);
    }
}

/* The next visit of a pool takes a slot, if there is one and it may; returns whether it did. */
static bool enter_next(staging *s, int32_t pool, int64_t call)
{
    slot_queue *queue = &s->queues[pool];

    if (queue->next == queue->end || queue->n_free == 0 || s->status != LS_OK) return false;
    ls_visit *v = &s->list->visits[s->order[queue->next]];
    if (!may_enter(s, v, call)) return false;
    take_slot(s, v, queue, s->visits.pools[pool].n_slots);
    queue->next++;
    return true;
}

/* The pool of weights whose next visit begins first; -1: none has one. */
static int32_t find_first_weights(const staging *s)
{
    int32_t first = -1;

    for (int32_t p = 0; p < s->visits.n_pools; p++) {
        const slot_queue *queue = &s->queues[p];
        if (s->visits.pools[p].role != LS_ROLE_WEIGHTS || queue->next == queue->end) continue;
        if (first < 0 || s->order[queue->next] < s->order[s->queues[first].next]) first = p;
    }
    return first;
}

/* Visits that wait for slots take what is free, and are copied in if they must read.  Weights do in
 * the order in which they are wanted, which is that of their updates: the head's slot is free at
 * once, and were it filled first, its update, the last, would hold up the copies of all layers. */
static void enter(staging *s, int64_t call)
{
    for (int32_t p = 0; p < s->visits.n_pools; p++)
        while (s->visits.pools[p].role != LS_ROLE_WEIGHTS && enter_next(s, p, call)) continue;
    for (int32_t p = find_first_weights(s); p >= 0 && enter_next(s, p, call);
         p = find_first_weights(s))
        continue;
}

/* The visit of a unit that this call is part of. */
static const ls_visit *visit_at(staging *s, int32_t unit, int64_t call)
{
    int32_t *now = &s->now[unit];

    while (s->list->visits[*now].last < call) *now = s->list->visits[*now].next;
    return &s->list->visits[*now];
}

/* The same call on what stands for its operands in device memory. */
static void add_substituted(staging *s, int64_t index)
{
    const ls_call *original = &s->tape->calls[index];
    ls_call call = *original;

    for (int32_t i = 0; i < call.n_operands; i++) {
        ls_view *view = &call.operands[i];
        if (view->tensor < 0 || !ls_call_computes(s->placement, &call)) continue;
        if (s->mirror[view->tensor] >= 0) {
            view->tensor = s->mirror[view->tensor];
        } else if (ls_visits_want(&s->visits, original, i)) {
            const int32_t unit = ls_visits_unit(&s->visits, view);
            const ls_visit *v = visit_at(s, unit, index);
            assert(v->first <= index && v->slot >= 0);
            view->offset -= ls_visits_view(&s->visits, unit).offset;
            view->tensor = v->in_slot;
        }
    }
    add_call(s, &call);
}

/* Who else reads what is updated in device memory finds it in its own place. */
static void refresh_originals(staging *s, const ls_call *call)
{
    if (ls_call_computes(s->placement, call)) return;
    for (int32_t i = 0; i < call->n_operands; i++) {
        const int32_t t = call->operands[i].tensor;
        if (t >= 0 && s->mirror[t] >= 0 && s->updated[t] && (call->access[i] & LS_ACCESS_READ))
            add_copy(s, ls_view_whole(s->tape, t), ls_view_whole(&s->out->tape, s->mirror[t]), call,
                     call->layer);
    }
}

/* A resident weight that the host has changed. */
static void refresh_mirrors(staging *s, const ls_call *call)
{
    if (ls_call_computes(s->placement, call)) return;
    for (int32_t i = 0; i < call->n_operands; i++) {
        const int32_t t = call->operands[i].tensor;
        if (t >= 0 && s->mirror[t] >= 0 && (call->access[i] & LS_ACCESS_WRITE))
            add_copy(s, ls_view_whole(&s->out->tape, s->mirror[t]), ls_view_whole(s->tape, t), call,
                     call->layer);
    }
}

/* ---- segments ------------------------------------------------------------------------------ */

static ls_status sort_visits(staging *s)
{
    const ls_visit_list *list = s->list;
    const size_t n = (size_t)list->n;
    int32_t *order = realloc(s->order, (n + 1) * sizeof *order);
    if (order != NULL) s->order = order;
    int32_t *leaving = realloc(s->leaving, (n + 1) * sizeof *leaving);
    if (leaving != NULL) s->leaving = leaving;
    int32_t *written = realloc(s->written, (n + 1) * sizeof *written);
    if (written != NULL) s->written = written;
    if (order == NULL || leaving == NULL || written == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "%zu visits", n);

    ls_visits_sort(&s->visits, list, order, leaving, written);
    int64_t at = 0;
    for (int32_t p = 0; p < s->visits.n_pools; p++) {
        slot_queue *queue = &s->queues[p];
        queue->next = at;
        while (at < list->n &&
               ls_visits_pool(&s->visits, list->visits[order[at]].unit) == &s->visits.pools[p])
            at++;
        queue->end = at;
        queue->oldest = 0;
        queue->n_free = s->visits.pools[p].n_slots;
        for (int32_t slot = 0; slot < queue->n_free; slot++) queue->free[slot] = slot;
    }
    return LS_OK;
}

static ls_status stage_segment(staging *s, ls_segment_kind segment)
{
    const int64_t first = s->tape->segment_first[segment];
    const int64_t end = first + s->tape->segment_calls[segment];
    int32_t n_left = 0, n_out = 0;

    if (first == end) return LS_OK;
    s->list = &s->visits.lists[segment];
    LS_TRY(sort_visits(s));
    memcpy(s->now, s->list->first, (size_t)s->visits.n_units * sizeof *s->now);
    s->segment = segment;
    for (int64_t c = first; c < end && s->status == LS_OK; c++) {
        s->committed = s->tape->calls[c].commit;
        if (ls_call_computes(s->placement, &s->tape->calls[c])) enter(s, c);
        LS_TRY(s->status); /* who could not enter has no slot */
        refresh_originals(s, &s->tape->calls[c]);
        add_substituted(s, c);
        refresh_mirrors(s, &s->tape->calls[c]);
        copy_out(s, c, &n_out);
        leave(s, c, &n_left);
    }
    return s->status;
}

/* In the order in which the tape has them. */
static ls_status stage_segments(staging *s)
{
    bool done[LS_SEGMENT_COUNT] = {false};

    for (int n = 0; n < LS_SEGMENT_COUNT; n++) {
        int next = -1;
        for (int i = 0; i < LS_SEGMENT_COUNT; i++)
            if (!done[i] && (next < 0 || s->tape->segment_first[i] < s->tape->segment_first[next]))
                next = i;
        done[next] = true;
        LS_TRY(stage_segment(s, (ls_segment_kind)next));
    }
    return LS_OK;
}

/* ---- all of it ----------------------------------------------------------------------------- */

static ls_status copy_tensors(staging *s)
{
    const size_t n = (size_t)s->tape->n_tensors;

    s->staged = calloc(n + 1, sizeof *s->staged);
    s->mirror = malloc((n + 1) * sizeof *s->mirror);
    s->updated = calloc(n + 1, sizeof *s->updated);
    s->out->tensors = malloc((n + 1) * sizeof *s->out->tensors);
    if (s->staged == NULL || s->mirror == NULL || s->updated == NULL || s->out->tensors == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "staging of %zu tensors", n);
    for (int32_t t = 0, same; t < s->tape->n_tensors; t++) {
        s->mirror[t] = -1;
        LS_TRY(ls_tape_add_tensor(&s->out->tape, &s->tape->tensors[t], &same));
    }
    return LS_OK;
}

static ls_status open_slots(staging *s)
{
    const ls_visits *visits = &s->visits;
    int64_t n = 0;

    s->queues = calloc((size_t)visits->n_pools + 1, sizeof *s->queues);
    s->now = malloc(((size_t)visits->n_units + 1) * sizeof *s->now);
    s->stand_in_first = malloc(((size_t)visits->n_units + 1) * sizeof *s->stand_in_first);
    if (s->queues == NULL || s->now == NULL || s->stand_in_first == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "%d pools of slots", visits->n_pools);
    for (int32_t p = 0; p < visits->n_pools; p++) {
        const int32_t n_slots = visits->pools[p].n_slots;
        s->queues[p].first_slot = s->out->n_slots;
        s->out->n_slots += n_slots;
        s->queues[p].free = malloc(((size_t)n_slots + 1) * sizeof *s->queues[p].free);
        if (s->queues[p].free == NULL)
            return LS_FAIL(LS_ERR_NO_MEMORY, "a pool of %d slots", n_slots);
    }
    for (int32_t unit = 0; unit < visits->n_units; unit++) {
        s->stand_in_first[unit] = n;
        n += ls_visits_pool(visits, unit)->n_slots;
    }
    s->stand_in = malloc(((size_t)n + 1) * sizeof *s->stand_in);
    if (s->stand_in == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "%lld slots", (long long)n);
    for (int64_t i = 0; i < n; i++) s->stand_in[i] = -1;
    return LS_OK;
}

static ls_status stage_all(staging *s)
{
    LS_TRY(copy_tensors(s));
    LS_TRY(place_tensors(s));
    LS_TRY(ls_visits_open(s->tape, s->placement, s->staged, &s->visits));
    LS_TRY(open_slots(s));
    return stage_segments(s);
}

ls_status ls_stage(const ls_tape *tape, const ls_placement *placement, ls_stage_sink *sink,
                   void *context, ls_staged *staged)
{
    staging s = {.tape = tape,
                 .placement = placement,
                 .sink = sink,
                 .context = context,
                 .out = staged,
                 .status = LS_OK};
    const ls_status status = stage_all(&s);

    for (int32_t p = 0; s.queues != NULL && p < s.visits.n_pools; p++) free(s.queues[p].free);
    ls_visits_close(&s.visits);
    free(s.staged);
    free(s.mirror);
    free(s.updated);
    free(s.queues);
    free(s.now);
    free(s.order);
    free(s.leaving);
    free(s.written);
    free(s.stand_in);
    free(s.stand_in_first);
    return status;
}

void ls_staged_free(ls_staged *staged)
{
    ls_tape_free(&staged->tape);
    free(staged->tensors);
    memset(staged, 0, sizeof *staged);
}
