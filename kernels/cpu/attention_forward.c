/*
 * attention_forward.c - attention forward of one (query block, key block), and its driver.
 *
 * A task is one head's query tile.  Later tiles see more keys under a causal mask, so tasks run
 * from the last tile to the first and threads take them a few at a time; no task reads another's
 * result.  4 K FLOPs per pair and head; the exponentials cost as much as the products where those
 * run on matrix units.
 */
#include "attention_tile.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "bf16.h"

static int64_t query_tiles(int64_t N)
{
    return (N + LS_ATTENTION_QUERY_TILE - 1) / LS_ATTENTION_QUERY_TILE;
}

static const ls_attention_kernel *forward_kernel(const ls_attention_forward_args *args)
{
    return ls_attention_kernel_choose(args->dtype, args->K);
}

uint64_t ls_attention_forward_bytes(const ls_attention_forward_args *args)
{
    const ls_attention_kernel *kernel = forward_kernel(args);
    return kernel->forward_workspace_bytes != NULL ? kernel->forward_workspace_bytes(args) : 0;
}

static void output_write(const ls_attention_forward_args *args, int64_t at, float value)
{
    if (args->dtype == LS_DTYPE_F32)
        ((float *)args->o)[at] = value;
    else
        ((ls_bf16 *)args->o)[at] = ls_bf16_from_f32(value);
}

/* A tile that sees no key of this block: what was there stays, or starts empty. */
static void tile_pass(const ls_attention_forward_args *args, int64_t head, int64_t row, int n_rows)
{
    for (int64_t n = row; n < row + n_rows; n++) {
        const int64_t at = (n * args->H + head) * args->K;
        if (!args->accumulate) {
            args->lse[n * args->H + head] = -INFINITY;
            if (args->o_acc != NULL)
                memset(args->o_acc + at, 0, (size_t)args->K * sizeof *args->o_acc);
        }
        if (args->last)
            for (int64_t k = 0; k < args->K; k++)
                output_write(args, at + k, args->accumulate ? args->o_acc[at + k] : 0.0f);
    }
}

/* How many tasks go to a kernel at once: as many as leave every thread several turns. */
static int64_t tasks_at_once(const ls_attention_forward_args *args,
                             const ls_attention_kernel *kernel)
{
    const int64_t turns = 4, n_tasks = query_tiles(args->N) * args->H;
    int64_t n = kernel->forward_tasks;
    while (n > 1 && n_tasks < n * turns * ls_cpu_threads()) n /= 2;
    return n;
}

/* The tasks of one key/value head, those of the last query tile first, from begin to end. */
static void tasks_run(const ls_attention_forward_args *args, const ls_attention_kernel *kernel,
                      int64_t group, const int64_t span[2])
{
    const ls_attention_shape shape = ls_attention_forward_shape(args);
    const int64_t per_group = args->H / args->G;
    ls_attention_rows rows[LS_ATTENTION_FORWARD_TASKS_MOST];
    ls_attention_forward_task tasks[LS_ATTENTION_FORWARD_TASKS_MOST];
    int n = 0;

    for (int64_t i = span[0]; i < span[1]; i++) {
        const int64_t row = (query_tiles(args->N) - 1 - i / per_group) * LS_ATTENTION_QUERY_TILE;
        const int64_t head = group * per_group + i % per_group;
        ls_attention_rows_read(&rows[n], &shape, row);
        if (rows[n].first_min > rows[n].last_max) {
            tile_pass(args, head, row, rows[n].n_rows);
            continue;
        }
        tasks[n] = (ls_attention_forward_task){args, &rows[n], head, row};
        n++;
    }
    if (n > 0) kernel->forward(tasks, n);
}

ls_status ls_cpu_attention_forward(void *stream, const ls_attention_forward_args *args)
{
    (void)stream;
    assert(args->N >= 0 && args->M >= 0 && args->M < INT32_MAX - LS_ATTENTION_KEY_TILE);
    assert(args->K >= 1 && args->G >= 1 && args->H % args->G == 0);
    assert(args->scale > 0.0f && args->window >= 0);
    assert(args->o_acc != NULL || (args->last && !args->accumulate));
    assert(args->workspace != NULL || ls_attention_forward_bytes(args) == 0);

    const ls_attention_kernel *kernel = forward_kernel(args);
    const ls_attention_shape shape = ls_attention_forward_shape(args);
    const ls_attention_rows seen = ls_attention_rows_span(&shape);
    ls_attention_forward_args trimmed = *args; /* keys behind the last one seen are not there */
    trimmed.M = seen.last_max + 1;
    const int64_t first_tile = seen.first_min / LS_ATTENTION_KEY_TILE;
    const int64_t end_tile = seen.last_max / LS_ATTENTION_KEY_TILE + 1;
    const int64_t n_prepare = kernel->forward_prepare != NULL && seen.last_max >= 0
                                  ? (end_tile - first_tile) * args->G
                                  : 0;
    const int64_t per_group = query_tiles(args->N) * args->H / args->G;
    const int64_t at_once = tasks_at_once(args, kernel);
    const int64_t n_runs = (per_group + at_once - 1) / at_once * args->G;

#if defined(_OPENMP)
#pragma omp parallel
#endif
    {
#if defined(_OPENMP)
#pragma omp for schedule(static)
#endif
        for (int64_t i = 0; i < n_prepare; i++)
            kernel->forward_prepare(&trimmed, i % args->G, first_tile + i / args->G);
#if defined(_OPENMP)
#pragma omp for schedule(dynamic, 1)
#endif
        for (int64_t i = 0; i < n_runs; i++) {
            const int64_t begin = i / args->G * at_once, left = per_group - begin;
            const int64_t end = begin + (left < at_once ? left : at_once);
            tasks_run(&trimmed, kernel, i % args->G, (int64_t[2]){begin, end});
        }
    }
    return LS_OK;
}
