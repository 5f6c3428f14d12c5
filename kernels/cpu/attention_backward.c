/*
 * attention_backward.c - attention backward of one (query block, key block), and its driver.
 *
 * Five products per tile pair (s, d_o v, dv, dk, dq): scores are computed once, not once for dq
 * and once for dk.  The price is that dq of a query tile is added to by several tasks; they take
 * turns in a fixed order (attention_tile.h).  10 K FLOPs per pair and head.
 */
#include "attention_tile.h"

#include <assert.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>

static int64_t query_tiles(int64_t N)
{
    return (N + LS_ATTENTION_QUERY_TILE - 1) / LS_ATTENTION_QUERY_TILE;
}

uint64_t ls_attention_backward_bytes(const ls_attention_backward_args *args)
{
    return (uint64_t)(query_tiles(args->N) * (3 + args->H)) * sizeof(int32_t);
}

/* Lay the plan out in the workspace and fill it. */
static void plan_build(ls_attention_backward_plan *plan, const ls_attention_backward_args *args)
{
    const ls_attention_shape shape = ls_attention_backward_shape(args);
    const int64_t n = query_tiles(args->N);

    *plan = (ls_attention_backward_plan){
        .args = args,
        .n_query_tiles = n,
        .n_key_tiles = (args->M + LS_ATTENTION_KEY_TILE - 1) / LS_ATTENTION_KEY_TILE,
        .first = (int32_t *)args->workspace,
        .last = (int32_t *)args->workspace + n,
        .first_after = (int32_t *)args->workspace + 2 * n,
        .turn = (_Atomic int32_t *)args->workspace + 3 * n,
    };
    for (int64_t i = 0; i < n; i++) {
        ls_attention_rows rows;
        ls_attention_rows_read(&rows, &shape, i * LS_ATTENTION_QUERY_TILE);
        const int sees = rows.first_min <= rows.last_max;
        plan->first[i] = sees ? rows.first_min / LS_ATTENTION_KEY_TILE : INT32_MAX;
        plan->last[i] = sees ? rows.last_max / LS_ATTENTION_KEY_TILE : -1;
        for (int64_t h = 0; h < args->H; h++) atomic_init(&plan->turn[h * n + i], plan->last[i]);
    }
    int32_t least = INT32_MAX;
    for (int64_t i = n - 1; i >= 0; i--) {
        if (plan->first[i] < least) least = plan->first[i];
        plan->first_after[i] = least;
    }
}

int64_t ls_attention_query_tile_next(const ls_attention_backward_task *task, int64_t tile)
{
    const ls_attention_backward_plan *plan = task->plan;
    const ls_attention_backward_args *args = plan->args;
    const int64_t key = args->k_start + task->key_tile * LS_ATTENTION_KEY_TILE;

    /* Earlier queries than the tile's first key see none of it. */
    const int64_t diagonal = (key - args->q_start) / LS_ATTENTION_QUERY_TILE;
    if (key > args->q_start && tile < diagonal) tile = diagonal;
    for (; tile < plan->n_query_tiles; tile++) {
        if (plan->first_after[tile] > task->key_tile) return plan->n_query_tiles;
        if (plan->first[tile] <= task->key_tile && task->key_tile <= plan->last[tile]) return tile;
    }
    return plan->n_query_tiles;
}

void ls_attention_turn_wait(const ls_attention_backward_task *task, int64_t head, int64_t tile)
{
    enum { SPINS = 2000 }; /* then let another thread have the core: there may be few */
    _Atomic int32_t *turn = &task->plan->turn[head * task->plan->n_query_tiles + tile];

    for (int spins = 0; atomic_load_explicit(turn, memory_order_acquire) != task->key_tile;) {
        if (++spins > SPINS) {
            sched_yield();
            spins = 0;
        }
    }
}

void ls_attention_turn_pass(const ls_attention_backward_task *task, int64_t head, int64_t tile)
{
    atomic_store_explicit(&task->plan->turn[head * task->plan->n_query_tiles + tile],
                          (int32_t)task->key_tile - 1, memory_order_release);
}

ls_status ls_cpu_attention_backward(void *stream, const ls_attention_backward_args *args)
{
    (void)stream;
    assert(args->N >= 0 && args->M >= 0 && args->M < INT32_MAX - LS_ATTENTION_KEY_TILE);
    assert(args->K >= 1 && args->G >= 1 && args->H % args->G == 0);
    assert(args->scale > 0.0f && args->window >= 0);
    assert(args->workspace != NULL || args->N == 0);

    if (!args->accumulate)
        memset(args->dq, 0, (size_t)(args->N * args->H * args->K) * sizeof *args->dq);
    if (args->N == 0 || args->M == 0) return LS_OK;

    const ls_attention_shape shape = ls_attention_backward_shape(args);
    ls_attention_backward_args trimmed = *args; /* keys behind the last one seen are not there */
    trimmed.M = ls_attention_rows_span(&shape).last_max + 1;
    ls_attention_backward_plan plan;
    plan_build(&plan, &trimmed);
    const ls_attention_kernel *kernel = ls_attention_kernel_choose(args->dtype, args->K);
    const int64_t n_tasks = plan.n_key_tiles * args->G;
    _Atomic int64_t next = 0;

    /* Tasks are taken strictly in order: whoever waits, waits for a task that has started. */
#if defined(_OPENMP)
#pragma omp parallel
#endif
    for (;;) {
        const int64_t i = atomic_fetch_add(&next, 1);
        if (i >= n_tasks) break;
        const ls_attention_backward_task task = {&plan, i % args->G,
                                                 plan.n_key_tiles - 1 - i / args->G};
        if (ls_attention_query_tile_next(&task, 0) < plan.n_query_tiles) kernel->backward(&task);
    }
    return LS_OK;
}
