/*
 * attention_forward.c - attention forward of one (query block, key block), and its driver.
 *
 * A task is one head's query tile.  Later tiles see more keys under a causal mask, so tasks run
 * from the last tile to the first and threads take them one by one; no task reads another's
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

static void task_run(const ls_attention_forward_args *args, const ls_attention_kernel *kernel,
                     int64_t index)
{
    const ls_attention_shape shape = ls_attention_forward_shape(args);
    const int64_t tile = query_tiles(args->N) - 1 - index / args->H;
    const int64_t head = index % args->H, row = tile * LS_ATTENTION_QUERY_TILE;
    ls_attention_rows rows;

    ls_attention_rows_read(&rows, &shape, row);
    if (rows.first_min > rows.last_max) {
        tile_pass(args, head, row, rows.n_rows);
        return;
    }
    const ls_attention_forward_task task = {args, &rows, head, row};
    kernel->forward(&task);
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
    const int64_t n_tasks = query_tiles(args->N) * args->H;

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
        for (int64_t i = 0; i < n_tasks; i++) task_run(&trimmed, kernel, i);
    }
    return LS_OK;
}
