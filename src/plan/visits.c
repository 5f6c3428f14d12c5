/* visits.c - units, their visits to device memory, the slots these take. */
#include "visits.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS_OF_GRADIENTS 2 /* one is summed while the one before leaves */

bool ls_call_computes(const ls_call *call)
{
    return call->kind == LS_CALL_OP && call->phase != LS_PHASE_NORM &&
           call->phase != LS_PHASE_UPDATE;
}

bool ls_visits_want(const ls_visits *v, const ls_call *call, int32_t operand)
{
    const int32_t t = call->operands[operand].tensor;

    if (t < 0 || !v->staged[t] || !ls_call_computes(call)) return false;
    return call->op != LS_OP_embedding_forward || v->tape->tensors[t].role != LS_ROLE_WEIGHTS;
}

/* ---- units --------------------------------------------------------------------------------- */

int32_t ls_visits_unit(const ls_visits *v, const ls_view *view)
{
    const uint64_t tile = view->offset / v->unit_bytes[view->tensor];

    assert(view->bytes == 0 ||
           tile == (view->offset + view->bytes - 1) / v->unit_bytes[view->tensor]);
    return v->unit_first[view->tensor] + (int32_t)tile;
}

ls_view ls_visits_view(const ls_visits *v, int32_t unit)
{
    const int32_t t = v->unit_tensor[unit];
    const uint64_t all = ls_tensor_bytes(&v->tape->tensors[t]), bytes = v->unit_bytes[t];
    const uint64_t offset = (uint64_t)(unit - v->unit_first[t]) * bytes;

    return (ls_view){t, offset, all - offset < bytes ? all - offset : bytes};
}

/* Parameters and their gradients come and go by whole layers. */
static bool goes_by_layer(const ls_tensor *t)
{
    return t->param >= 0 && t->layer >= 0;
}

static void cut_tensors(ls_visits *v)
{
    v->n_units = 0;
    for (int32_t t = 0; t < v->tape->n_tensors; t++) {
        const ls_tensor *tensor = &v->tape->tensors[t];
        const bool tiled = v->placement->tiled[tensor->role] && tensor->tile_rows > 0 &&
                           tensor->tile_rows < tensor->dims[0];
        const int64_t rows = tiled ? tensor->tile_rows : tensor->dims[0];
        v->unit_first[t] = v->n_units;
        v->unit_bytes[t] = ls_tensor_bytes(tensor) / (uint64_t)tensor->dims[0] * (uint64_t)rows;
        if (v->staged[t]) v->n_units += (int32_t)((tensor->dims[0] + rows - 1) / rows);
    }
    v->unit_first[v->tape->n_tensors] = v->n_units;
}

/* ---- pools --------------------------------------------------------------------------------- */

static int32_t find_pool(ls_visits *v, int32_t t)
{
    const ls_tensor *tensor = &v->tape->tensors[t];
    const uint64_t bytes = v->unit_bytes[t];
    const bool tiled = bytes < ls_tensor_bytes(tensor);
    int32_t p = 0;

    while (p < v->n_pools && (v->pools[p].role != tensor->role || v->pools[p].bytes != bytes ||
                              v->pools[p].tiled != tiled))
        p++;
    if (p == v->n_pools)
        v->pools[v->n_pools++] =
            (ls_visit_pool){.role = tensor->role, .bytes = bytes, .tiled = tiled};
    return p;
}

/* How many tiles of a pool one call wants at once. */
static int32_t count_wanted(const ls_visits *v, const ls_call *call, int32_t pool)
{
    int32_t units[LS_OPERANDS_MAX], n = 0;

    for (int32_t i = 0; i < call->n_operands; i++) {
        if (!ls_visits_want(v, call, i) || v->pool_of[call->operands[i].tensor] != pool) continue;
        const int32_t unit = ls_visits_unit(v, &call->operands[i]);
        bool seen = false;
        for (int32_t k = 0; k < n; k++) seen = seen || units[k] == unit;
        if (!seen) units[n++] = unit;
    }
    return n;
}

static void set_capacities(ls_visits *v)
{
    for (int64_t c = 0; c < v->tape->n_calls; c++) {
        const ls_call *call = &v->tape->calls[c];
        for (int32_t i = 0; i < call->n_operands; i++) {
            if (!ls_visits_want(v, call, i)) continue;
            const int32_t p = v->pool_of[call->operands[i].tensor];
            if (!v->pools[p].tiled) continue;
            const int32_t n = count_wanted(v, call, p);
            if (n > v->pools[p].capacity) v->pools[p].capacity = n;
        }
    }
    for (int32_t p = 0; p < v->n_pools; p++) {
        const int64_t tiles = v->placement->tiles[v->pools[p].role];
        if (tiles > v->pools[p].capacity) v->pools[p].capacity = (int32_t)tiles;
    }
}

static ls_status open_pools(ls_visits *v)
{
    v->pools = calloc((size_t)v->tape->n_tensors + 1, sizeof *v->pools);
    if (v->pools == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "pools of slots");
    for (int32_t t = 0; t < v->tape->n_tensors; t++) {
        const ls_tensor *tensor = &v->tape->tensors[t];
        v->pool_of[t] = v->staged[t] ? find_pool(v, t) : -1;
        if (v->staged[t] && tensor->layer == 0 && tensor->param >= 0)
            v->pools[v->pool_of[t]].per_layer++;
    }
    set_capacities(v);
    v->kept = calloc((size_t)v->n_pools + 1, sizeof *v->kept);
    v->n_kept = calloc((size_t)v->n_pools + 1, sizeof *v->n_kept);
    if (v->kept == NULL || v->n_kept == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "pools of slots");
    for (int32_t p = 0; p < v->n_pools; p++) {
        v->kept[p] = malloc(((size_t)v->pools[p].capacity + 1) * sizeof **v->kept);
        if (v->kept[p] == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a pool of slots");
    }
    return LS_OK;
}

/* The most slots that visits of a pool take at once; ahead: with one more for each that is copied
 * in while those before it are at work.  A whole tensor that begins by being written needs none:
 * what had its slot has long been copied out.  Tiles come and go too fast for that. */
static int64_t count_taken(const ls_visits *v, const ls_visit_pool *pool, bool ahead, int64_t *ends)
{
    int64_t most = 0, now = 0;

    for (int32_t i = 0; i < v->n_visits; i++) {
        const ls_visit *visit = &v->visits[i];
        if (ls_visits_pool(v, visit->unit) != pool) continue;
        int64_t still = 0;
        for (int64_t k = 0; k < now; k++) /* those that have not ended */
            if (ends[k] >= visit->first) ends[still++] = ends[k];
        ends[still++] = visit->last;
        now = still;
        const int64_t taken = now + (ahead && (visit->reads_in || pool->tiled) ? 1 : 0);
        if (taken > most) most = taken;
    }
    return most;
}

/* Enough for all visits; of layers of weights and gradients as many as the placement says. */
static ls_status count_slots(ls_visits *v)
{
    int64_t *ends = malloc(((size_t)v->n_visits + 1) * sizeof *ends);

    if (ends == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "%d visits", v->n_visits);
    for (int32_t p = 0; p < v->n_pools; p++) {
        ls_visit_pool *pool = &v->pools[p];
        const bool by_layer = pool->role == LS_ROLE_WEIGHTS || pool->role == LS_ROLE_GRAD;
        const int64_t layers =
            pool->role == LS_ROLE_GRAD ? LAYERS_OF_GRADIENTS : v->placement->ring_slots;
        int64_t wanted = count_taken(v, pool, !by_layer, ends);
        if (wanted > 0 && by_layer && wanted < pool->per_layer * layers)
            wanted = pool->per_layer * layers;
        if (wanted > pool->n_slots) pool->n_slots = (int32_t)wanted;
    }
    free(ends);
    return LS_OK;
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
static void find_held(const ls_visits *v, ls_visit *visit)
{
    const int32_t t = v->unit_tensor[visit->unit];
    const ls_view unit = ls_visits_view(v, visit->unit);
    const uint64_t end = unit.offset + unit.bytes;
    const uint64_t from = v->given_from[t] > unit.offset ? v->given_from[t] : unit.offset;
    const uint64_t to = v->given_to[t] < end ? v->given_to[t] : end;

    if (v->tape->tensors[t].persistent) {
        visit->held_to = unit.bytes;
        return;
    }
    if (visit->before >= 0) {
        const ls_visit *before = &v->visits[visit->before];
        widen(&visit->held_from, &visit->held_to, before->held_from, before->held_to);
        if (before->writes) widen(&visit->held_from, &visit->held_to, before->from, before->to);
    }
    if (from < to) widen(&visit->held_from, &visit->held_to, from - unit.offset, to - unit.offset);
}

static ls_status begin_visit(ls_visits *v, int32_t unit, int32_t pass, int64_t call)
{
    const int32_t t = v->unit_tensor[unit], last = v->last_visit[unit];

    if (v->n_visits == v->capacity) {
        const int32_t capacity = v->capacity > 0 ? 2 * v->capacity : 64;
        ls_visit *grown = realloc(v->visits, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "%d visits to device memory", capacity);
        v->visits = grown;
        v->capacity = capacity;
    }
    if (last >= 0)
        v->visits[last].next = v->n_visits;
    else
        v->first_visit[unit] = v->n_visits;
    v->visits[v->n_visits] = (ls_visit){.unit = unit,
                                        .pass = pass,
                                        .first = call,
                                        .last = call,
                                        .last_write = -1,
                                        .given = v->written[t],
                                        .next = -1,
                                        .before = last,
                                        .slot = -1,
                                        .in_slot = -1};
    find_held(v, &v->visits[v->n_visits]);
    v->role_begins[v->tape->tensors[t].role] = call;
    v->current[unit] = v->last_visit[unit] = v->n_visits++;
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
static void keep_tile(ls_visits *v, int32_t unit, int64_t call)
{
    const int32_t p = v->pool_of[v->unit_tensor[unit]];
    int32_t *kept = v->kept[p], *n = &v->n_kept[p];
    int32_t leaves = -1;

    if (*n == v->pools[p].capacity) {
        for (int32_t k = 0; k < *n; k++) {
            if (v->visits[v->current[kept[k]]].last == call) continue;
            if (leaves < 0 || v->soonest[kept[k]] > v->soonest[kept[leaves]]) leaves = k;
        }
        assert(leaves >= 0);
        v->current[kept[leaves]] = -1;
        kept[leaves] = kept[--*n];
    }
    kept[(*n)++] = unit;
}

/* Whether the unit's visit goes on with this call. */
static bool goes_on(const ls_visits *v, int32_t unit, int32_t pass)
{
    const int32_t now = v->current[unit];

    if (now < 0) return false;
    if (ls_visits_pool(v, unit)->tiled || v->visits[now].pass == pass) return true;
    return v->role_begins[ls_visits_tensor(v, unit)->role] <= v->visits[now].last;
}

static ls_status visit_operand(ls_visits *v, const ls_call *call, int32_t operand, bool reading,
                               int32_t pass, int64_t index)
{
    const ls_view *view = &call->operands[operand];
    const int32_t unit = ls_visits_unit(v, view);
    const uint64_t from = view->offset - ls_visits_view(v, unit).offset;

    if (!goes_on(v, unit, pass)) {
        if (ls_visits_pool(v, unit)->tiled) keep_tile(v, unit, index);
        LS_TRY(begin_visit(v, unit, pass, index));
    }
    ls_visit *visit = &v->visits[v->current[unit]];
    visit->pass = pass;
    visit->last = index;
    if (reading) {
        note_read(visit, from, from + view->bytes);
    } else {
        note_write(visit, from, from + view->bytes);
        visit->last_write = index;
    }
    return LS_OK;
}

/* Units wanted by this call and kept already must not leave for others that it wants. */
static void pin_units(ls_visits *v, const ls_call *call, int64_t index, const int64_t *next_use)
{
    for (int32_t i = 0; i < call->n_operands; i++) {
        if (!ls_visits_want(v, call, i)) continue;
        const int32_t unit = ls_visits_unit(v, &call->operands[i]);
        v->soonest[unit] = next_use[i];
        if (v->current[unit] >= 0 && ls_visits_pool(v, unit)->tiled)
            v->visits[v->current[unit]].last = index;
    }
}

/* A call of another lane sees the tensor in host memory: its visit is over. */
static void end_visits(ls_visits *v, const ls_call *call, int64_t index)
{
    for (int32_t i = 0; i < call->n_operands; i++) {
        const int32_t t = call->operands[i].tensor;
        if (t < 0) continue;
        for (int32_t unit = v->unit_first[t]; unit < v->unit_first[t + 1]; unit++) {
            assert(v->current[unit] < 0 || !v->pools[v->pool_of[t]].tiled);
            v->current[unit] = -1;
        }
        if (call->access[i] & LS_ACCESS_WRITE) {
            const ls_view *view = &call->operands[i];
            v->written[t] = index;
            widen(&v->given_from[t], &v->given_to[t], view->offset, view->offset + view->bytes);
        }
        if (call->access[i] & LS_ACCESS_READ) v->read[t] = index;
    }
}

/* The call after each that wants the same unit; INT64_MAX: none does. */
static ls_status find_next_uses(ls_visits *v, int64_t first, int64_t end)
{
    const int64_t n = (end - first) * LS_OPERANDS_MAX;

    if (n > v->next_use_capacity) {
        free(v->next_use);
        v->next_use_capacity = 0;
        v->next_use = malloc((size_t)n * sizeof *v->next_use);
        if (v->next_use == NULL)
            return LS_FAIL(LS_ERR_NO_MEMORY, "uses of %lld calls", (long long)(end - first));
        v->next_use_capacity = n;
    }
    for (int32_t unit = 0; unit < v->n_units; unit++) v->soonest[unit] = INT64_MAX;
    for (int64_t c = end - 1; c >= first; c--) {
        const ls_call *call = &v->tape->calls[c];
        int64_t *next_use = &v->next_use[(c - first) * LS_OPERANDS_MAX];
        for (int32_t i = 0; i < call->n_operands; i++)
            if (ls_visits_want(v, call, i))
                next_use[i] = v->soonest[ls_visits_unit(v, &call->operands[i])];
        for (int32_t i = 0; i < call->n_operands; i++)
            if (ls_visits_want(v, call, i)) v->soonest[ls_visits_unit(v, &call->operands[i])] = c;
    }
    return LS_OK;
}

static ls_status visit_call(ls_visits *v, int64_t first, int64_t c, int32_t pass)
{
    const ls_call *call = &v->tape->calls[c];

    if (!ls_call_computes(call)) {
        end_visits(v, call, c);
        return LS_OK;
    }
    pin_units(v, call, c, &v->next_use[(c - first) * LS_OPERANDS_MAX]);
    for (int reading = 1; reading >= 0; reading--) /* a call reads before it writes */
        for (int32_t i = 0; i < call->n_operands; i++)
            if (ls_visits_want(v, call, i) &&
                (call->access[i] & (reading ? LS_ACCESS_READ : LS_ACCESS_WRITE)))
                LS_TRY(visit_operand(v, call, i, reading != 0, pass, c));
    return LS_OK;
}

/* A layer's parameters enter and leave together: visits of one class, layer and pass are joined. */
static void join_layers(ls_visits *v)
{
    for (int32_t i = 0; i < v->n_visits; i++) {
        ls_visit *a = &v->visits[i];
        const ls_tensor *t = ls_visits_tensor(v, a->unit);
        if (!goes_by_layer(t)) continue;
        for (int32_t j = i + 1; j < v->n_visits && v->visits[j].first <= a->last; j++) {
            const ls_visit *b = &v->visits[j];
            const ls_tensor *u = ls_visits_tensor(v, b->unit);
            if (u->role != t->role || u->layer != t->layer || b->pass != a->pass) continue;
            if (b->last > a->last) a->last = b->last;
        }
    }
}

/* What must be copied out, now that all visits are known: what a later one copies in again, unless
 * one between them writes all of it. */
static void settle_visits(ls_visits *v)
{
    int32_t *wanted = v->current; /* no longer needed */

    for (int32_t unit = 0; unit < v->n_units; unit++) wanted[unit] = 0;
    for (int32_t i = v->n_visits - 1; i >= 0; i--) {
        ls_visit *visit = &v->visits[i];
        const int32_t t = v->unit_tensor[visit->unit];
        visit->read_on =
            v->tape->tensors[t].persistent || v->read[t] > visit->last || wanted[visit->unit] != 0;
        if (visit->reads_in)
            wanted[visit->unit] = 1;
        else if (visit->to - visit->from == ls_visits_view(v, visit->unit).bytes)
            wanted[visit->unit] = 0;
    }
}

static void forget_visits(ls_visits *v)
{
    v->n_visits = 0;
    for (int32_t unit = 0; unit < v->n_units; unit++)
        v->current[unit] = v->first_visit[unit] = v->last_visit[unit] = -1;
    for (int32_t t = 0; t < v->tape->n_tensors; t++) {
        v->written[t] = v->read[t] = -1;
        v->given_from[t] = v->given_to[t] = 0;
    }
    for (int role = 0; role < LS_ROLE_COUNT; role++) v->role_begins[role] = -1;
    for (int32_t p = 0; p < v->n_pools; p++) v->n_kept[p] = 0;
}

ls_status ls_visits_list(ls_visits *v, ls_segment_kind segment)
{
    const int64_t first = v->tape->segment_first[segment];
    const int64_t end = first + v->tape->segment_calls[segment];
    int32_t pass = 0;

    forget_visits(v);
    LS_TRY(find_next_uses(v, first, end));
    for (int64_t c = first; c < end; c++) {
        if (c > first && v->tape->calls[c].phase != v->tape->calls[c - 1].phase) pass++;
        LS_TRY(visit_call(v, first, c, pass));
    }
    settle_visits(v);
    join_layers(v);
    return count_slots(v);
}

/* ---- open, close --------------------------------------------------------------------------- */

static ls_status open_tables(ls_visits *v)
{
    const size_t n = (size_t)v->tape->n_tensors;

    v->pool_of = malloc((n + 1) * sizeof *v->pool_of);
    v->unit_first = malloc((n + 1) * sizeof *v->unit_first);
    v->unit_bytes = malloc((n + 1) * sizeof *v->unit_bytes);
    v->written = malloc((n + 1) * sizeof *v->written);
    v->read = malloc((n + 1) * sizeof *v->read);
    v->given_from = malloc((n + 1) * sizeof *v->given_from);
    v->given_to = malloc((n + 1) * sizeof *v->given_to);
    if (v->pool_of == NULL || v->unit_first == NULL || v->unit_bytes == NULL ||
        v->written == NULL || v->read == NULL || v->given_from == NULL || v->given_to == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "visits of %zu tensors", n);
    cut_tensors(v);

    const size_t n_units = (size_t)v->n_units;
    v->unit_tensor = malloc((n_units + 1) * sizeof *v->unit_tensor);
    v->first_visit = malloc((n_units + 1) * sizeof *v->first_visit);
    v->last_visit = malloc((n_units + 1) * sizeof *v->last_visit);
    v->current = malloc((n_units + 1) * sizeof *v->current);
    v->soonest = malloc((n_units + 1) * sizeof *v->soonest);
    if (v->unit_tensor == NULL || v->first_visit == NULL || v->last_visit == NULL ||
        v->current == NULL || v->soonest == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "visits of %zu units", n_units);
    for (int32_t t = 0; t < v->tape->n_tensors; t++)
        for (int32_t unit = v->unit_first[t]; unit < v->unit_first[t + 1]; unit++)
            v->unit_tensor[unit] = t;
    return LS_OK;
}

ls_status ls_visits_open(const ls_tape *tape, const ls_placement *placement, const bool *staged,
                         ls_visits *visits)
{
    *visits = (ls_visits){.tape = tape, .placement = placement, .staged = staged};
    LS_TRY(open_tables(visits));
    return open_pools(visits);
}

void ls_visits_close(ls_visits *v)
{
    for (int32_t p = 0; v->kept != NULL && p < v->n_pools; p++) free(v->kept[p]);
    free(v->kept);
    free(v->n_kept);
    free(v->pool_of);
    free(v->unit_first);
    free(v->unit_bytes);
    free(v->unit_tensor);
    free(v->pools);
    free(v->visits);
    free(v->first_visit);
    free(v->last_visit);
    free(v->current);
    free(v->written);
    free(v->read);
    free(v->given_from);
    free(v->given_to);
    free(v->next_use);
    free(v->soonest);
    memset(v, 0, sizeof *v);
}
