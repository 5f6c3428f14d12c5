/* visits.c - units, and the slots that their visits to device memory take. */
#define _GNU_SOURCE /* NOLINT: the libc's name; for qsort_r */
#include "visits.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS_OF_GRADIENTS 2 /* one is summed while the one before leaves */

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
    const uint64_t offset = ls_visits_offset(v, unit);

    return (ls_view){t, offset, all - offset < bytes ? all - offset : bytes};
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

/* How many tiles of its pool a call wants at once, counted at the first operand that wants one. */
static int32_t count_wanted(const ls_visits *v, const ls_call *call, int32_t first)
{
    const int32_t pool = v->pool_of[call->operands[first].tensor];
    int32_t units[LS_OPERANDS_MAX], n = 0;

    for (int32_t i = 0; i < call->n_operands; i++) {
        if (!ls_visits_want(v, call, i) || v->pool_of[call->operands[i].tensor] != pool) continue;
        if (i < first) return 0;
        const int32_t unit = ls_visits_unit(v, &call->operands[i]);
        bool seen = false;
        for (int32_t k = 0; k < n; k++) seen = seen || units[k] == unit;
        if (!seen) units[n++] = unit;
    }
    return n;
}

static void count_tiles_wanted(ls_visits *v)
{
    for (int64_t c = 0; c < v->tape->n_calls; c++) {
        const ls_call *call = &v->tape->calls[c];
        if (!ls_call_computes(v->placement, call)) continue;
        for (int32_t i = 0; i < call->n_operands; i++) {
            if (!ls_visits_want(v, call, i)) continue;
            ls_visit_pool *pool = &v->pools[v->pool_of[call->operands[i].tensor]];
            if (!pool->tiled) continue;
            const int32_t n = count_wanted(v, call, i);
            if (n > pool->capacity) pool->capacity = n;
        }
    }
}

static void set_capacities(ls_visits *v)
{
    bool any = false;

    for (int32_t p = 0; p < v->n_pools; p++) any = any || v->pools[p].tiled;
    if (any) count_tiles_wanted(v);
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
        const int64_t first =
            tensor->role == LS_ROLE_WEIGHTS ? v->placement->device_layers : 0; /* that is staged */
        v->pool_of[t] = v->staged[t] ? find_pool(v, t) : -1;
        if (v->staged[t] && tensor->layer == first && tensor->param >= 0)
            v->pools[v->pool_of[t]].per_layer++;
        if (v->staged[t] && tensor->role == LS_ROLE_GRAD && tensor->param < 0)
            v->pools[v->pool_of[t]].arrivals++;
    }
    set_capacities(v);
    return LS_OK;
}

/* The most slots that visits of a pool take at once; ahead: with one more for each that is copied
 * in while those before it are at work.  A whole tensor that begins by being written needs none:
 * what had its slot has long been copied out.  Tiles come and go too fast for that. */
static int64_t count_taken(const ls_visits *v, const ls_visit_list *list, const ls_visit_pool *pool,
                           bool ahead, int64_t *ends)
{
    int64_t most = 0, now = 0;

    for (int32_t i = 0; i < list->n; i++) {
        const ls_visit *visit = &list->visits[i];
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
static ls_status count_slots(ls_visits *v, const ls_visit_list *list)
{
    int64_t *ends = malloc(((size_t)list->n + 1) * sizeof *ends);

    if (ends == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "%d visits", list->n);
    for (int32_t p = 0; p < v->n_pools; p++) {
        ls_visit_pool *pool = &v->pools[p];
        const bool by_layer = pool->role == LS_ROLE_WEIGHTS || pool->role == LS_ROLE_GRAD;
        const int64_t layers =
            pool->role == LS_ROLE_GRAD ? LAYERS_OF_GRADIENTS : v->placement->ring_slots;
        int64_t wanted = count_taken(v, list, pool, !by_layer, ends);
        if (wanted > 0 && by_layer && wanted < pool->per_layer * layers)
            wanted = pool->per_layer * layers;
        if (wanted > 0 && wanted < pool->arrivals) wanted = pool->arrivals;
        if (wanted > pool->n_slots) pool->n_slots = (int32_t)wanted;
    }
    free(ends);
    return LS_OK;
}

/* ---- orders -------------------------------------------------------------------------------- */

typedef struct sorting {
    const ls_visits *visits;
    const ls_visit_list *list;
} sorting;

static int compare_by_last(const void *a, const void *b, void *context)
{
    const ls_visit *visits = context;
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (visits[i].last != visits[j].last) return visits[i].last < visits[j].last ? -1 : 1;
    return i < j ? -1 : i > j;
}

static int compare_by_last_write(const void *a, const void *b, void *context)
{
    const ls_visit *visits = context;
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const int64_t x = visits[i].last_write, y = visits[j].last_write;
    if (x != y) return x < y ? -1 : 1;
    return i < j ? -1 : i > j;
}

static int compare_by_pool(const void *a, const void *b, void *context)
{
    const sorting *s = context;
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const ls_visit_pool *p = ls_visits_pool(s->visits, s->list->visits[i].unit);
    const ls_visit_pool *q = ls_visits_pool(s->visits, s->list->visits[j].unit);
    if (p != q) return p < q ? -1 : 1;
    return i < j ? -1 : i > j;
}

void ls_visits_sort(const ls_visits *visits, const ls_visit_list *list, int32_t *by_pool,
                    int32_t *by_last, int32_t *by_last_write)
{
    const size_t n = (size_t)list->n;
    sorting s = {visits, list};

    for (int32_t i = 0; i < list->n; i++) by_pool[i] = by_last[i] = by_last_write[i] = i;
    qsort_r(by_pool, n, sizeof *by_pool, compare_by_pool, &s);
    qsort_r(by_last, n, sizeof *by_last, compare_by_last, list->visits);
    qsort_r(by_last_write, n, sizeof *by_last_write, compare_by_last_write, list->visits);
}

/* ---- open, close --------------------------------------------------------------------------- */

static ls_status open_tables(ls_visits *v)
{
    const size_t n = (size_t)v->tape->n_tensors;

    v->pool_of = malloc((n + 1) * sizeof *v->pool_of);
    v->unit_first = malloc((n + 1) * sizeof *v->unit_first);
    v->unit_bytes = malloc((n + 1) * sizeof *v->unit_bytes);
    if (v->pool_of == NULL || v->unit_first == NULL || v->unit_bytes == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "visits of %zu tensors", n);
    cut_tensors(v);

    v->unit_tensor = malloc(((size_t)v->n_units + 1) * sizeof *v->unit_tensor);
    if (v->unit_tensor == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "visits of %d units", v->n_units);
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
    LS_TRY(open_pools(visits));
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        LS_TRY(ls_visits_list(visits, (ls_segment_kind)s, &visits->lists[s]));
        LS_TRY(count_slots(visits, &visits->lists[s]));
    }
    return LS_OK;
}

void ls_visits_close(ls_visits *v)
{
    free(v->pool_of);
    free(v->unit_first);
    free(v->unit_bytes);
    free(v->unit_tensor);
    free(v->pools);
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        free(v->lists[s].visits);
        free(v->lists[s].first);
    }
    memset(v, 0, sizeof *v);
}
