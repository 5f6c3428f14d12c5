/*
 * visits_list.c - the visits of a segment.
 *
 * The uses of units are listed first, each with the call that wants the unit next: so that what is
 * wanted again last can leave.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "visits.h"

/* A call of the compute lane wants a unit, by an operand. */
typedef struct use {
    int64_t call, next; /* next: the call after it that does; INT64_MAX: none */
    int32_t unit, operand;
} use;

typedef struct listing {
    const ls_visits *v;
    ls_visit_list *list;
    use *uses; /* in the order of calls */
    int64_t n_uses, next_use, uses_capacity;
    int32_t *current, *last_visit;      /* [n_units] -1: none */
    int64_t *soonest;                   /* [n_units] the next call that wants it */
    int64_t *written, *read;            /* [n_tensors] latest call of another lane, -1: none */
    uint64_t *given_from, *given_to;    /* [n_tensors] bytes that other lanes have written */
    int64_t role_begins[LS_ROLE_COUNT]; /* call at which a visit of the class began last */
    int32_t *kept;                      /* [n_units] units now kept, by pool */
    int32_t *kept_first, *n_kept;       /* [n_pools] */
} listing;

/* ---- uses ---------------------------------------------------------------------------------- */

static ls_status add_use(listing *l, const use *added)
{
    if (l->n_uses == l->uses_capacity) {
        const int64_t capacity = l->uses_capacity > 0 ? 2 * l->uses_capacity : 1024;
        use *grown = realloc(l->uses, (size_t)capacity * sizeof *grown);
        if (grown == NULL)
            return LS_FAIL(LS_ERR_NO_MEMORY, "%lld uses of device memory", (long long)capacity);
        l->uses = grown;
        l->uses_capacity = capacity;
    }
    l->uses[l->n_uses++] = *added;
    return LS_OK;
}

static ls_status list_uses(listing *l, int64_t first, int64_t end)
{
    for (int64_t c = first; c < end; c++) {
        const ls_call *call = &l->v->tape->calls[c];
        if (!ls_call_computes(l->v->placement, call)) continue;
        for (int32_t i = 0; i < call->n_operands; i++) {
            if (!ls_visits_want(l->v, call, i)) continue;
            const use wanted = {c, 0, ls_visits_unit(l->v, &call->operands[i]), i};
            LS_TRY(add_use(l, &wanted));
        }
    }
    return LS_OK;
}

/* Of a unit that a call wants twice, both have the next call. */
static void find_next_uses(listing *l)
{
    for (int32_t unit = 0; unit < l->v->n_units; unit++) l->soonest[unit] = INT64_MAX;
    for (int64_t end = l->n_uses, first; end > 0; end = first) {
        for (first = end; first > 0 && l->uses[first - 1].call == l->uses[end - 1].call; first--)
            l->uses[first - 1].next = l->soonest[l->uses[first - 1].unit];
        for (int64_t u = first; u < end; u++) l->soonest[l->uses[u].unit] = l->uses[u].call;
    }
}

/* ---- visits -------------------------------------------------------------------------------- */

/* Widen [*from, *to), which may be empty, to hold another range. */
static void widen(uint64_t *from, uint64_t *to, uint64_t other_from, uint64_t other_to)
{
    if (other_from >= other_to) return;
    const bool empty = *from >= *to;
    if (empty || other_from < *from) *from = other_from;
    if (empty || other_to > *to) *to = other_to;
}

/* What host memory holds of a unit: all of what outlives segments; else what other lanes and the
 * visit before have written. */
static void find_held(const listing *l, ls_visit *visit)
{
    const int32_t t = l->v->unit_tensor[visit->unit];
    const ls_view unit = ls_visits_view(l->v, visit->unit);
    const uint64_t end = unit.offset + unit.bytes;
    const uint64_t from = l->given_from[t] > unit.offset ? l->given_from[t] : unit.offset;
    const uint64_t to = l->given_to[t] < end ? l->given_to[t] : end;

    if (l->v->tape->tensors[t].persistent) {
        visit->held_to = unit.bytes;
        return;
    }
    if (visit->before >= 0) {
        const ls_visit *before = &l->list->visits[visit->before];
        widen(&visit->held_from, &visit->held_to, before->held_from, before->held_to);
        if (before->writes) widen(&visit->held_from, &visit->held_to, before->from, before->to);
    }
    if (from < to) widen(&visit->held_from, &visit->held_to, from - unit.offset, to - unit.offset);
}

static ls_status begin_visit(listing *l, int32_t unit, int32_t pass, int64_t call)
{
    ls_visit_list *list = l->list;
    const int32_t t = l->v->unit_tensor[unit], last = l->last_visit[unit];

    if (list->n == list->capacity) {
        const int32_t capacity = list->capacity > 0 ? 2 * list->capacity : 64;
        ls_visit *grown = realloc(list->visits, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "%d visits to device memory", capacity);
        list->visits = grown;
        list->capacity = capacity;
    }
    if (last >= 0)
        list->visits[last].next = list->n;
    else
        list->first[unit] = list->n;
    list->visits[list->n] = (ls_visit){.unit = unit,
                                       .pass = pass,
                                       .first = call,
                                       .last = call,
                                       .last_write = -1,
                                       .given = l->written[t],
                                       .next = -1,
                                       .before = last,
                                       .slot = -1,
                                       .in_slot = -1};
    find_held(l, &list->visits[list->n]);
    l->role_begins[l->v->tape->tensors[t].role] = call;
    l->current[unit] = l->last_visit[unit] = list->n++;
    return LS_OK;
}

/* A read of what the visit has not written itself wants a copy in; so does a write that leaves a
 * gap. */
static void note_read(ls_visit *visit, uint64_t from, uint64_t to)
{
    if (from < visit->from || to > visit->to) visit->reads_in = true;
}

static void note_write(ls_visit *visit, uint64_t from, uint64_t to)
{
    if (!visit->writes) {
        visit->from = from;
        visit->to = to;
        visit->writes = true;
        return;
    }
    if (from > visit->to || to < visit->from) visit->reads_in = true;
    if (from < visit->from) visit->from = from;
    if (to > visit->to) visit->to = to;
}

/* Make room among the tiles of a pool: what is wanted again last leaves, but nothing of this call.
 */
static void keep_tile(listing *l, int32_t unit, int64_t call)
{
    const int32_t p = l->v->pool_of[l->v->unit_tensor[unit]];
    int32_t *kept = &l->kept[l->kept_first[p]], *n = &l->n_kept[p];
    int32_t leaves = -1;

    if (*n == l->v->pools[p].capacity) {
        for (int32_t k = 0; k < *n; k++) {
            if (l->list->visits[l->current[kept[k]]].last == call) continue;
            if (leaves < 0 || l->soonest[kept[k]] > l->soonest[kept[leaves]]) leaves = k;
        }
        assert(leaves >= 0);
        l->current[kept[leaves]] = -1;
        kept[leaves] = kept[--*n];
    }
    kept[(*n)++] = unit;
}

/* Whether the unit's visit goes on with this call. */
static bool goes_on(const listing *l, int32_t unit, int32_t pass)
{
    const int32_t now = l->current[unit];

    if (now < 0) return false;
    const ls_visit *visit = &l->list->visits[now];
    if (ls_visits_pool(l->v, unit)->tiled || visit->pass == pass) return true;
    return l->role_begins[ls_visits_tensor(l->v, unit)->role] <= visit->last;
}

static ls_status visit_unit(listing *l, const use *used, bool reading, int32_t pass)
{
    const ls_view *view = &l->v->tape->calls[used->call].operands[used->operand];
    const uint64_t from = view->offset - ls_visits_offset(l->v, used->unit);

    if (!goes_on(l, used->unit, pass)) {
        if (ls_visits_pool(l->v, used->unit)->tiled) keep_tile(l, used->unit, used->call);
        LS_TRY(begin_visit(l, used->unit, pass, used->call));
    }
    ls_visit *visit = &l->list->visits[l->current[used->unit]];
    visit->pass = pass;
    visit->last = used->call;
    if (reading) {
        note_read(visit, from, from + view->bytes);
    } else {
        note_write(visit, from, from + view->bytes);
        visit->last_write = used->call;
    }
    return LS_OK;
}

/* Units wanted by this call and kept already must not leave for others that it wants. */
static void pin_unit(listing *l, const use *used)
{
    const int32_t now = l->current[used->unit];

    l->soonest[used->unit] = used->next;
    if (now >= 0 && ls_visits_pool(l->v, used->unit)->tiled) l->list->visits[now].last = used->call;
}

/* A call of another lane sees the tensor in host memory: its visit is over. */
static void end_visits(listing *l, int64_t index)
{
    const ls_visits *v = l->v;
    const ls_call *call = &v->tape->calls[index];

    for (int32_t i = 0; i < call->n_operands; i++) {
        const int32_t t = call->operands[i].tensor;
        if (t < 0) continue;
        for (int32_t unit = v->unit_first[t]; unit < v->unit_first[t + 1]; unit++) {
            assert(l->current[unit] < 0 || !v->pools[v->pool_of[t]].tiled);
            l->current[unit] = -1;
        }
        if (call->access[i] & LS_ACCESS_WRITE) {
            const ls_view *view = &call->operands[i];
            l->written[t] = index;
            widen(&l->given_from[t], &l->given_to[t], view->offset, view->offset + view->bytes);
        }
        if (call->access[i] & LS_ACCESS_READ) l->read[t] = index;
    }
}

static ls_status visit_call(listing *l, int64_t index, int32_t pass)
{
    const ls_call *call = &l->v->tape->calls[index];
    const int64_t first = l->next_use;

    if (!ls_call_computes(l->v->placement, call)) {
        end_visits(l, index);
        return LS_OK;
    }
    for (; l->next_use < l->n_uses && l->uses[l->next_use].call == index; l->next_use++)
        pin_unit(l, &l->uses[l->next_use]);
    for (int reading = 1; reading >= 0; reading--) /* a call reads before it writes */
        for (int64_t u = first; u < l->next_use; u++)
            if (call->access[l->uses[u].operand] & (reading ? LS_ACCESS_READ : LS_ACCESS_WRITE))
                LS_TRY(visit_unit(l, &l->uses[u], reading != 0, pass));
    return LS_OK;
}

/* ---- what all visits show ------------------------------------------------------------------ */

/* A layer's parameters enter and leave together: visits of one class, layer and pass are joined. */
static void join_layers(const listing *l)
{
    ls_visit *visits = l->list->visits;

    for (int32_t i = 0; i < l->list->n; i++) {
        ls_visit *a = &visits[i];
        const ls_tensor *t = ls_visits_tensor(l->v, a->unit);
        if (!ls_visits_go_by_layer(t)) continue;
        for (int32_t j = i + 1; j < l->list->n && visits[j].first <= a->last; j++) {
            const ls_visit *b = &visits[j];
            const ls_tensor *u = ls_visits_tensor(l->v, b->unit);
            if (u->role != t->role || u->layer != t->layer || b->pass != a->pass) continue;
            if (b->last > a->last) a->last = b->last;
        }
    }
}

/* What must be copied out: what a later visit copies in again, unless one between them writes all
 * of it. */
static void settle_visits(listing *l)
{
    int32_t *wanted = l->current; /* no longer needed */

    for (int32_t unit = 0; unit < l->v->n_units; unit++) wanted[unit] = 0;
    for (int32_t i = l->list->n - 1; i >= 0; i--) {
        ls_visit *visit = &l->list->visits[i];
        const int32_t t = l->v->unit_tensor[visit->unit];
        visit->read_on = l->v->tape->tensors[t].persistent || l->read[t] > visit->last ||
                         wanted[visit->unit] != 0;
        if (visit->reads_in)
            wanted[visit->unit] = 1;
        else if (visit->to - visit->from == ls_visits_view(l->v, visit->unit).bytes)
            wanted[visit->unit] = 0;
    }
}

/* ---- all of it ----------------------------------------------------------------------------- */

static ls_status allocate(listing *l)
{
    const size_t n_units = (size_t)l->v->n_units, n_pools = (size_t)l->v->n_pools;
    const size_t n_tensors = (size_t)l->v->tape->n_tensors;

    l->list->first = malloc((n_units + 1) * sizeof *l->list->first);
    l->current = malloc((n_units + 1) * sizeof *l->current);
    l->last_visit = malloc((n_units + 1) * sizeof *l->last_visit);
    l->soonest = malloc((n_units + 1) * sizeof *l->soonest);
    l->kept = malloc((n_units + 1) * sizeof *l->kept);
    l->written = malloc((n_tensors + 1) * sizeof *l->written);
    l->read = malloc((n_tensors + 1) * sizeof *l->read);
    l->given_from = calloc(n_tensors + 1, sizeof *l->given_from);
    l->given_to = calloc(n_tensors + 1, sizeof *l->given_to);
    l->kept_first = calloc(n_pools + 1, sizeof *l->kept_first);
    l->n_kept = calloc(n_pools + 1, sizeof *l->n_kept);
    if (l->list->first == NULL || l->current == NULL || l->last_visit == NULL ||
        l->soonest == NULL || l->kept == NULL || l->written == NULL || l->read == NULL ||
        l->given_from == NULL || l->given_to == NULL || l->kept_first == NULL || l->n_kept == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "visits of %zu units", n_units);
    return LS_OK;
}

/* Nothing is kept, and nothing is known. */
static void begin_segment(listing *l)
{
    for (int32_t unit = 0; unit < l->v->n_units; unit++) {
        l->current[unit] = l->list->first[unit] = l->last_visit[unit] = -1;
        l->kept_first[ls_visits_pool(l->v, unit) - l->v->pools + 1]++;
    }
    for (int32_t p = 0; p < l->v->n_pools; p++) l->kept_first[p + 1] += l->kept_first[p];
    for (int32_t t = 0; t < l->v->tape->n_tensors; t++) l->written[t] = l->read[t] = -1;
    for (int role = 0; role < LS_ROLE_COUNT; role++) l->role_begins[role] = -1;
}

static ls_status list_visits(listing *l, int64_t first, int64_t end)
{
    const ls_call *calls = l->v->tape->calls;
    int32_t pass = 0;

    LS_TRY(allocate(l));
    begin_segment(l);
    LS_TRY(list_uses(l, first, end));
    find_next_uses(l);
    for (int64_t c = first; c < end; c++) {
        if (c > first && calls[c].phase != calls[c - 1].phase) pass++;
        LS_TRY(visit_call(l, c, pass));
    }
    settle_visits(l);
    join_layers(l);
    return LS_OK;
}

ls_status ls_visits_list(const ls_visits *v, ls_segment_kind segment, ls_visit_list *list)
{
    const int64_t first = v->tape->segment_first[segment];
    listing l = {.v = v, .list = list};
    const ls_status status = list_visits(&l, first, first + v->tape->segment_calls[segment]);

    free(l.uses);
    free(l.current);
    free(l.last_visit);
    free(l.soonest);
    free(l.kept);
    free(l.written);
    free(l.read);
    free(l.given_from);
    free(l.given_to);
    free(l.kept_first);
    free(l.n_kept);
    return status;
}
