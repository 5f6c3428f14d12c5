/* staging.c - visits of tensors to device memory, the slots they take, the copies they need. */
#define _GNU_SOURCE /* NOLINT: the libc's name; for qsort_r */
#include "staging.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS_OF_GRADIENTS 2 /* in layers: one is summed while the one before leaves */

/* A tensor in device memory for a while. */
typedef struct visit {
    int32_t tensor;
    int32_t pass;         /* the phase of the segment it began in, counted */
    int64_t first, last;  /* calls of the segment */
    int64_t given;        /* the call of another lane that wrote the tensor before it, -1: none */
    uint64_t from, to;    /* what it has written so far, if it writes: no gaps */
    bool reads_in;        /* it must be copied in */
    bool writes, read_on; /* what it has written is read later, elsewhere: it must be copied out */
    int32_t pool;
    int32_t next;    /* the tensor's visit after this one, -1: none */
    int32_t after;   /* the tensor's visit before it, -1: none */
    int32_t slot;    /* of the pool, -1: not yet */
    int32_t in_slot; /* the tensor that stands for it in its slot */
} visit;

/* Slots of one class and size. */
typedef struct pool {
    ls_role role;
    uint64_t bytes;
    int32_t per_layer;  /* tensors of one layer that go through it */
    int32_t n_slots;    /* enough for every segment */
    int32_t first_slot; /* number of its first among all */
    int32_t *free;      /* [n_slots] a queue */
    int32_t n_free, oldest;
    int64_t next; /* the first visit of the segment without a slot, in `order` */
    int64_t end;
} pool;

typedef struct staging {
    const ls_tape *tape;
    const ls_placement *placement;
    ls_staged *out;
    bool *staged;         /* [n_tensors] goes through slots */
    int32_t *mirror;      /* [n_tensors] its resident copy, -1: none */
    int32_t *pool_of;     /* [n_tensors] */
    int32_t *current;     /* [n_tensors] the visit that goes on, -1: none */
    int32_t *first_visit; /* [n_tensors] of the segment */
    int64_t *written;     /* [n_tensors] call of another lane that wrote it last, -1: none */
    int64_t *read;        /* [n_tensors] the same that read it last */
    int64_t role_begins[LS_ROLE_COUNT]; /* call at which a visit of the class began last */
    pool *pools;
    int32_t n_pools;
    visit *visits; /* of the segment, in the order of their first calls */
    int32_t n_visits, visits_capacity;
    int32_t *order;          /* [n_visits] by pool, then first call */
    int32_t *leaving;        /* [n_visits] by last call */
    int32_t *stand_in;       /* [n_tensors of the tape, slots of its pool] tensors made so far */
    int64_t *stand_in_first; /* [n_tensors] where the tensor's begin in stand_in */
    ls_status status;
} staging;

static_assert((int)LS_ROLE_COUNT == (int)LS_CLASS_COUNT && (int)LS_ROLE_X == (int)LS_CLASS_X &&
                  (int)LS_ROLE_STAGING == (int)LS_CLASS_STAGING,
              "roles and classes are one list");

bool ls_call_computes(const ls_call *call)
{
    return call->kind == LS_CALL_OP && call->phase != LS_PHASE_NORM &&
           call->phase != LS_PHASE_UPDATE;
}

/* ---- where tensors live -------------------------------------------------------------------- */

static ls_status add_stand_in(staging *s, int32_t original, const char *suffix, bool persistent,
                              const ls_staged_tensor *where, int32_t *added)
{
    ls_tensor t = s->tape->tensors[original];
    char name[LS_TENSOR_NAME_BYTES + 16];

    if (snprintf(name, sizeof name, "%s%s", t.name, suffix) >= (int)sizeof t.name)
        return LS_FAIL(LS_ERR_INVALID, "tensor %s: its name is too long", t.name);
    memcpy(t.name, name, strlen(name) + 1);
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

/* Who touches each tensor: the compute lane, others. */
static void find_users(const staging *s, bool *computes, bool *others)
{
    for (int64_t c = 0; c < s->tape->n_calls; c++) {
        const ls_call *call = &s->tape->calls[c];
        bool *users = ls_call_computes(call) ? computes : others;
        for (int32_t i = 0; i < call->n_operands; i++)
            if (call->operands[i].tensor >= 0) users[call->operands[i].tensor] = true;
    }
}

static ls_status place_tensor(staging *s, int32_t t, bool computes, bool others)
{
    const ls_tensor *tensor = &s->tape->tensors[t];
    const ls_class_placement *rule =
        ls_placement_of(s->placement, (ls_tensor_class)tensor->role, tensor->layer);
    const bool is_scratch = !others && !tensor->persistent; /* of the compute lane alone */
    ls_staged_tensor *where = &s->out->tensors[t];

    *where = (ls_staged_tensor){LS_PLACE_HOST, -1, -1, computes};
    if (!s->placement->has_device || !computes) return LS_OK;
    if (rule->place == LS_PLACE_HBM && is_scratch) where->place = LS_PLACE_HBM;
    if (rule->place == LS_PLACE_HBM || rule->mode == LS_MODE_DIRECT) return LS_OK;
    if (rule->mode == LS_MODE_RESIDENT) {
        const ls_staged_tensor copy = {LS_PLACE_HBM, -1, t, true};
        return add_stand_in(s, t, "@hbm", true, &copy, &s->mirror[t]);
    }
    if (is_scratch && tensor->layer < 0) /* shared by all layers: what is at work */
        where->place = LS_PLACE_HBM;
    else /* a coherent link brings vectors in passing */
        s->staged[t] = !(s->placement->coherent && tensor->param >= 0 && tensor->n_dims == 1 &&
                         tensor->role == LS_ROLE_WEIGHTS);
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

/* Whether an operand goes through a slot.  Rows of an embedding are looked up where they lie. */
static bool is_staged(const staging *s, const ls_call *call, int32_t operand)
{
    const int32_t t = call->operands[operand].tensor;
    if (t < 0 || !s->staged[t] || !ls_call_computes(call)) return false;
    return call->op != LS_OP_embedding_forward || s->tape->tensors[t].role != LS_ROLE_WEIGHTS;
}

/* ---- visits -------------------------------------------------------------------------------- */

/* Parameters and their gradients come and go by whole layers. */
static bool goes_by_layer(const ls_tensor *t)
{
    return t->param >= 0 && t->layer >= 0;
}

static void begin_visit(staging *s, int32_t tensor, int32_t pass, int64_t call)
{
    if (s->n_visits == s->visits_capacity) {
        const int32_t capacity = s->visits_capacity > 0 ? 2 * s->visits_capacity : 64;
        visit *grown = realloc(s->visits, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            s->status = LS_FAIL(LS_ERR_NO_MEMORY, "%d visits to device memory", capacity);
            return;
        }
        s->visits = grown;
        s->visits_capacity = capacity;
    }
    int32_t last = s->first_visit[tensor];
    if (last < 0) s->first_visit[tensor] = s->n_visits;
    while (last >= 0 && s->visits[last].next >= 0) last = s->visits[last].next;
    if (last >= 0) s->visits[last].next = s->n_visits;
    s->visits[s->n_visits] = (visit){.tensor = tensor,
                                     .pass = pass,
                                     .first = call,
                                     .last = call,
                                     .given = s->written[tensor],
                                     .pool = s->pool_of[tensor],
                                     .next = -1,
                                     .after = last,
                                     .slot = -1,
                                     .in_slot = -1};
    s->current[tensor] = s->n_visits++;
    s->role_begins[s->tape->tensors[tensor].role] = call;
}

/* A read of what the visit has not written itself wants a copy in; so does a write that leaves a
 * gap. */
static void note_read(visit *v, const ls_view *view)
{
    if (view->offset < v->from || view->offset + view->bytes > v->to) v->reads_in = true;
}

static void note_write(visit *v, const ls_view *view)
{
    const uint64_t from = view->offset, to = view->offset + view->bytes;

    if (!v->writes) {
        v->from = from;
        v->to = to;
    } else if (from > v->to || to < v->from) {
        v->reads_in = true;
    } else {
        if (from < v->from) v->from = from;
        if (to > v->to) v->to = to;
    }
    v->writes = true;
}

static void visit_operand(staging *s, const ls_call *call, int32_t operand, bool reading,
                          int32_t pass, int64_t index)
{
    const ls_view *view = &call->operands[operand];
    const ls_tensor *t = &s->tape->tensors[view->tensor];
    const int32_t now = s->current[view->tensor];
    const bool same_pass = now >= 0 && s->visits[now].pass == pass;
    const bool undisturbed = now >= 0 && s->role_begins[t->role] <= s->visits[now].last;

    if (now < 0 || !(same_pass || undisturbed)) begin_visit(s, view->tensor, pass, index);
    if (s->status != LS_OK) return;
    visit *v = &s->visits[s->current[view->tensor]];
    v->pass = pass;
    v->last = index;
    if (reading)
        note_read(v, view);
    else
        note_write(v, view);
}

/* A call of another lane sees the tensor in host memory: its visit is over. */
static void end_visits(staging *s, const ls_call *call, int64_t index)
{
    for (int32_t i = 0; i < call->n_operands; i++) {
        const int32_t t = call->operands[i].tensor;
        if (t < 0) continue;
        s->current[t] = -1;
        if (call->access[i] & LS_ACCESS_WRITE) s->written[t] = index;
        if (call->access[i] & LS_ACCESS_READ) s->read[t] = index;
    }
}

static void list_visits(staging *s, int segment)
{
    const int64_t first = s->tape->segment_first[segment];
    const int64_t end = first + s->tape->segment_calls[segment];
    int32_t pass = 0;

    s->n_visits = 0;
    for (int32_t t = 0; t < s->tape->n_tensors; t++) {
        s->current[t] = s->first_visit[t] = -1;
        s->written[t] = s->read[t] = -1;
    }
    for (int role = 0; role < LS_ROLE_COUNT; role++) s->role_begins[role] = -1;
    for (int64_t c = first; c < end && s->status == LS_OK; c++) {
        const ls_call *call = &s->tape->calls[c];
        if (c > first && call->phase != call[-1].phase) pass++;
        if (!ls_call_computes(call)) {
            end_visits(s, call, c);
            continue;
        }
        for (int reading = 1; reading >= 0; reading--) /* a call reads before it writes */
            for (int32_t i = 0; i < call->n_operands; i++)
                if (is_staged(s, call, i) &&
                    (call->access[i] & (reading ? LS_ACCESS_READ : LS_ACCESS_WRITE)))
                    visit_operand(s, call, i, reading != 0, pass, c);
    }
    for (int32_t i = 0; i < s->n_visits; i++) {
        visit *v = &s->visits[i];
        const uint64_t bytes = ls_tensor_bytes(&s->tape->tensors[v->tensor]);
        if (v->writes && v->to - v->from < bytes) v->reads_in = true; /* it leaves as a whole */
    }
    for (int32_t i = 0; i < s->n_visits; i++) {
        visit *v = &s->visits[i];
        v->read_on = s->tape->tensors[v->tensor].persistent || s->read[v->tensor] > v->last ||
                     (v->next >= 0 && s->visits[v->next].reads_in);
    }
}

/* A layer's parameters enter and leave together: visits of one class, layer and pass are joined. */
static void join_layers(staging *s)
{
    for (int32_t i = 0; i < s->n_visits; i++) {
        visit *a = &s->visits[i];
        const ls_tensor *t = &s->tape->tensors[a->tensor];
        if (!goes_by_layer(t)) continue;
        for (int32_t j = i + 1; j < s->n_visits; j++) {
            visit *b = &s->visits[j];
            const ls_tensor *u = &s->tape->tensors[b->tensor];
            if (b->first > a->last) break;
            if (u->role != t->role || u->layer != t->layer || b->pass != a->pass) continue;
            if (b->last > a->last) a->last = b->last;
        }
    }
}

/* ---- pools --------------------------------------------------------------------------------- */

static ls_status list_pools(staging *s)
{
    s->pools = calloc((size_t)s->tape->n_tensors + 1, sizeof *s->pools);
    if (s->pools == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "pools of slots");
    for (int32_t t = 0; t < s->tape->n_tensors; t++) {
        const ls_tensor *tensor = &s->tape->tensors[t];
        const uint64_t bytes = ls_tensor_bytes(tensor);
        int32_t p = 0;
        if (!s->staged[t]) continue;
        while (p < s->n_pools && (s->pools[p].role != tensor->role || s->pools[p].bytes != bytes))
            p++;
        if (p == s->n_pools) s->pools[s->n_pools++] = (pool){.role = tensor->role, .bytes = bytes};
        s->pool_of[t] = p;
        if (tensor->layer == 0 && tensor->param >= 0) s->pools[p].per_layer++;
    }
    return LS_OK;
}

/* As many slots as are taken at once, and spare ones to copy into and out of meanwhile. */
static void count_slots(staging *s)
{
    for (int32_t i = 0; i < s->n_visits; i++) {
        pool *p = &s->pools[s->visits[i].pool];
        int32_t at_once = 0;
        for (int32_t j = 0; j <= i; j++)
            at_once +=
                s->visits[j].pool == s->visits[i].pool && s->visits[j].last >= s->visits[i].first;
        int64_t wanted = at_once + 1;
        if (p->role == LS_ROLE_WEIGHTS) wanted = p->per_layer * s->placement->ring_slots;
        if (p->role == LS_ROLE_GRAD) wanted = p->per_layer * SLOTS_OF_GRADIENTS;
        if (wanted < at_once) wanted = at_once;
        if (wanted > p->n_slots) p->n_slots = (int32_t)wanted;
    }
}

static ls_status open_pools(staging *s)
{
    int64_t n = 0;

    for (int32_t i = 0; i < s->n_pools; i++) {
        pool *p = &s->pools[i];
        p->first_slot = s->out->n_slots;
        s->out->n_slots += p->n_slots;
        p->free = malloc(((size_t)p->n_slots + 1) * sizeof *p->free);
        if (p->free == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a pool of %d slots", p->n_slots);
    }
    for (int32_t t = 0; t < s->tape->n_tensors; t++) {
        s->stand_in_first[t] = n;
        if (s->staged[t]) n += s->pools[s->pool_of[t]].n_slots;
    }
    s->stand_in = malloc(((size_t)n + 1) * sizeof *s->stand_in);
    if (s->stand_in == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "%lld slots", (long long)n);
    for (int64_t i = 0; i < n; i++) s->stand_in[i] = -1;
    return LS_OK;
}

/* ---- the calls of a segment, with copies ---------------------------------------------------- */

static void add_call(staging *s, const ls_call *call)
{
    if (s->status == LS_OK) s->status = ls_tape_add_call(&s->out->tape, call);
}

/* like: the call whose phase and layer the copy shares */
static void add_copy(staging *s, int32_t to, int32_t from, const ls_call *like, int32_t layer)
{
    ls_call copy = {.kind = LS_CALL_COPY,
                    .phase = like->phase,
                    .layer = layer,
                    .chunk = -1,
                    .commit = like->commit,
                    .n_operands = 2,
                    .access = {LS_ACCESS_WRITE, LS_ACCESS_READ}};
    copy.operands[0] = ls_view_whole(&s->out->tape, to);
    copy.operands[1] = ls_view_whole(&s->out->tape, from);
    add_call(s, &copy);
}

static int32_t find_stand_in(staging *s, int32_t tensor, const pool *p, int32_t slot)
{
    int32_t *made = &s->stand_in[s->stand_in_first[tensor] + slot];
    const ls_staged_tensor where = {LS_PLACE_HBM, p->first_slot + slot, -1, true};
    char suffix[16];

    if (*made >= 0 || s->status != LS_OK) return *made;
    snprintf(suffix, sizeof suffix, "@%d", slot);
    s->status = add_stand_in(s, tensor, suffix, false, &where, made);
    return *made;
}

/* Whether what a visit must read lies in host memory by then, as far as this segment writes it. */
static bool may_enter(const staging *s, const visit *v, int64_t call)
{
    if (!v->reads_in) return true;
    if (v->given >= call) return false;
    return v->after < 0 || !s->visits[v->after].writes || s->visits[v->after].last < call;
}

/* Visits that were the last call's last use of a slot leave it. */
static void leave(staging *s, int64_t call, int32_t *n_left)
{
    while (*n_left < s->n_visits && s->visits[s->leaving[*n_left]].last == call) {
        const visit *v = &s->visits[s->leaving[(*n_left)++]];
        pool *p = &s->pools[v->pool];
        if (v->writes && v->read_on)
            add_copy(s, v->tensor, v->in_slot, &s->tape->calls[call],
                     s->tape->tensors[v->tensor].layer);
        p->free[(p->oldest + p->n_free++) % p->n_slots] = v->slot;
    }
}

/* Visits that wait for slots take what is free, and are copied in if they must read. */
static void enter(staging *s, int64_t call)
{
    for (int32_t i = 0; i < s->n_pools; i++) {
        pool *p = &s->pools[i];
        for (; p->next < p->end && p->n_free > 0 && s->status == LS_OK; p->next++) {
            visit *v = &s->visits[s->order[p->next]];
            if (!may_enter(s, v, call)) break;
            v->slot = p->free[p->oldest];
            p->oldest = (p->oldest + 1) % p->n_slots;
            p->n_free--;
            v->in_slot = find_stand_in(s, v->tensor, p, v->slot);
            if (v->reads_in && s->status == LS_OK)
                add_copy(s, v->in_slot, v->tensor, &s->tape->calls[v->first],
                         s->tape->tensors[v->tensor].layer);
        }
    }
}

/* The same call on what stands for its operands in device memory. */
static void add_substituted(staging *s, int64_t index)
{
    ls_call call = s->tape->calls[index];

    for (int32_t i = 0; i < call.n_operands; i++) {
        ls_view *view = &call.operands[i];
        if (view->tensor < 0 || !ls_call_computes(&call)) continue;
        if (s->mirror[view->tensor] >= 0) {
            view->tensor = s->mirror[view->tensor];
        } else if (is_staged(s, &s->tape->calls[index], i)) {
            int32_t *v = &s->current[view->tensor];
            while (s->visits[*v].last < index) *v = s->visits[*v].next;
            assert(s->visits[*v].first <= index && s->visits[*v].slot >= 0);
            view->tensor = s->visits[*v].in_slot;
        }
    }
    add_call(s, &call);
}

/* A resident weight that the host has changed. */
static void refresh_mirrors(staging *s, const ls_call *call)
{
    if (ls_call_computes(call)) return;
    for (int32_t i = 0; i < call->n_operands; i++) {
        const int32_t t = call->operands[i].tensor;
        if (t >= 0 && s->mirror[t] >= 0 && (call->access[i] & LS_ACCESS_WRITE))
            add_copy(s, s->mirror[t], t, call, call->layer);
    }
}

static int compare_by_last(const void *a, const void *b, void *context)
{
    const visit *visits = context;
    const visit *x = &visits[*(const int32_t *)a], *y = &visits[*(const int32_t *)b];
    if (x->last != y->last) return x->last < y->last ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int compare_by_pool(const void *a, const void *b, void *context)
{
    const visit *visits = context;
    const visit *x = &visits[*(const int32_t *)a], *y = &visits[*(const int32_t *)b];
    if (x->pool != y->pool) return x->pool < y->pool ? -1 : 1;
    return x < y ? -1 : x > y;
}

static ls_status sort_visits(staging *s)
{
    const size_t n = (size_t)s->n_visits;
    int32_t *order = realloc(s->order, (n + 1) * sizeof *order);
    if (order != NULL) s->order = order;
    int32_t *leaving = realloc(s->leaving, (n + 1) * sizeof *leaving);
    if (leaving != NULL) s->leaving = leaving;
    if (order == NULL || leaving == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "%zu visits", n);

    for (int32_t i = 0; i < s->n_visits; i++) order[i] = leaving[i] = i;
    qsort_r(order, n, sizeof *order, compare_by_pool, s->visits);
    qsort_r(leaving, n, sizeof *leaving, compare_by_last, s->visits);
    int64_t at = 0;
    for (int32_t i = 0; i < s->n_pools; i++) {
        pool *p = &s->pools[i];
        p->next = at;
        while (at < s->n_visits && s->visits[order[at]].pool == i) at++;
        p->end = at;
        p->oldest = 0;
        p->n_free = p->n_slots;
        for (int32_t slot = 0; slot < p->n_slots; slot++) p->free[slot] = slot;
    }
    return LS_OK;
}

static ls_status stage_segment(staging *s, int segment)
{
    const int64_t first = s->tape->segment_first[segment];
    const int64_t end = first + s->tape->segment_calls[segment];
    int32_t n_left = 0;

    if (first == end) return LS_OK;
    list_visits(s, segment);
    join_layers(s);
    LS_TRY(s->status);
    LS_TRY(sort_visits(s));
    for (int32_t t = 0; t < s->tape->n_tensors; t++) s->current[t] = s->first_visit[t];
    ls_tape_begin_segment(&s->out->tape, (ls_segment_kind)segment);
    for (int64_t c = first; c < end && s->status == LS_OK; c++) {
        if (ls_call_computes(&s->tape->calls[c])) enter(s, c);
        add_substituted(s, c);
        refresh_mirrors(s, &s->tape->calls[c]);
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
        LS_TRY(stage_segment(s, next));
    }
    return LS_OK;
}

/* ---- all of it ----------------------------------------------------------------------------- */

static ls_status copy_tensors(staging *s)
{
    const size_t n = (size_t)s->tape->n_tensors;

    s->staged = calloc(n + 1, sizeof *s->staged);
    s->mirror = malloc((n + 1) * sizeof *s->mirror);
    s->pool_of = malloc((n + 1) * sizeof *s->pool_of);
    s->current = malloc((n + 1) * sizeof *s->current);
    s->first_visit = malloc((n + 1) * sizeof *s->first_visit);
    s->written = malloc((n + 1) * sizeof *s->written);
    s->read = malloc((n + 1) * sizeof *s->read);
    s->stand_in_first = malloc((n + 1) * sizeof *s->stand_in_first);
    s->out->tensors = malloc((n + 1) * sizeof *s->out->tensors);
    if (s->staged == NULL || s->mirror == NULL || s->pool_of == NULL || s->current == NULL ||
        s->first_visit == NULL || s->written == NULL || s->read == NULL ||
        s->stand_in_first == NULL || s->out->tensors == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "staging of %zu tensors", n);
    for (int32_t t = 0, same; t < s->tape->n_tensors; t++) {
        s->mirror[t] = s->pool_of[t] = -1;
        LS_TRY(ls_tape_add_tensor(&s->out->tape, &s->tape->tensors[t], &same));
    }
    return LS_OK;
}

static ls_status stage_all(staging *s)
{
    LS_TRY(copy_tensors(s));
    LS_TRY(place_tensors(s));
    LS_TRY(list_pools(s));
    for (int segment = 0; segment < LS_SEGMENT_COUNT; segment++) {
        list_visits(s, segment);
        join_layers(s);
        LS_TRY(s->status);
        count_slots(s);
    }
    LS_TRY(open_pools(s));
    return stage_segments(s);
}

ls_status ls_stage(const ls_tape *tape, const ls_placement *placement, ls_staged *staged)
{
    ls_staged made = {0};
    staging s = {.tape = tape, .placement = placement, .out = &made, .status = LS_OK};
    const ls_status status = stage_all(&s);

    for (int32_t i = 0; i < s.n_pools; i++) free(s.pools[i].free);
    free(s.staged);
    free(s.mirror);
    free(s.pool_of);
    free(s.current);
    free(s.first_visit);
    free(s.written);
    free(s.read);
    free(s.pools);
    free(s.visits);
    free(s.order);
    free(s.leaving);
    free(s.stand_in);
    free(s.stand_in_first);
    if (status != LS_OK) {
        ls_staged_free(&made);
        return status;
    }
    *staged = made;
    return LS_OK;
}

void ls_staged_free(ls_staged *staged)
{
    ls_tape_free(&staged->tape);
    free(staged->tensors);
    memset(staged, 0, sizeof *staged);
}
