/*
 * attention_reference.c - attention for any head width, one pair at a time.
 *
 * Two passes over the keys of a row: the first finds the log-sum-exp, the second adds the values,
 * a slice of the head at a time, so that scratch does not grow with K.  Scores are summed in fp64.
 * Slow on purpose: it runs only where no vector kernel fits (K above 256), and as a check of those.
 */
#include "attention_tile.h"

#include <assert.h>
#include <math.h>

#include "bf16.h"

enum { SLICE = 256 };

static float element(const void *from, ls_dtype dtype, int64_t index)
{
    return dtype == LS_DTYPE_F32 ? ((const float *)from)[index]
                                 : ls_bf16_to_f32(((const ls_bf16 *)from)[index]);
}

/* The dot product of a[a_at ..] and b[b_at ..]. */
static double dot(const void *a, int64_t a_at, const void *b, int64_t b_at,
                  const ls_attention_shape *shape)
{
    double sum = 0.0;
    for (int64_t k = 0; k < shape->K; k++)
        sum +=
            (double)element(a, shape->dtype, a_at + k) * (double)element(b, shape->dtype, b_at + k);
    return sum;
}

/* ---- forward ------------------------------------------------------------------------------- */

/* log sum exp of the scores of one row, -inf if it sees no key. */
static double row_lse(const ls_attention_forward_task *task, const ls_attention_shape *shape,
                      int64_t q_at, int i)
{
    const int64_t group = task->head / (shape->H / shape->G);
    double most = -INFINITY, sum = 0.0;
    for (int64_t j = task->rows->first[i]; j <= task->rows->last[i]; j++) {
        const double s = (double)shape->scale * dot(task->args->q, q_at, task->args->k,
                                                    (j * shape->G + group) * shape->K, shape);
        if (s > most) {
            sum *= exp(most - s);
            most = s;
        }
        sum += exp(s - most);
    }
    return sum > 0.0 ? most + log(sum) : -INFINITY;
}

/* o_acc or o of one slice of one row: keep what was there, weighted, and add this block's share. */
static void row_slice_write(const ls_attention_forward_task *task, int64_t at, int n_slice,
                            const double *sums, double keep)
{
    const ls_attention_forward_args *args = task->args;
    for (int k = 0; k < n_slice; k++) {
        const double old = args->accumulate && keep > 0.0 ? keep * (double)args->o_acc[at + k] : 0;
        const float value = (float)(old + sums[k]);
        if (args->o_acc != NULL) args->o_acc[at + k] = value;
        if (!args->last) continue;
        if (args->dtype == LS_DTYPE_F32)
            ((float *)args->o)[at + k] = value;
        else
            ((ls_bf16 *)args->o)[at + k] = ls_bf16_from_f32(value);
    }
}

static void row_forward(const ls_attention_forward_task *task, const ls_attention_shape *shape,
                        int i)
{
    const ls_attention_forward_args *args = task->args;
    const int64_t row = (task->row + i) * shape->H + task->head, q_at = row * shape->K;
    const int64_t group = task->head / (shape->H / shape->G);
    const double block = row_lse(task, shape, q_at, i);
    const double old = args->accumulate ? (double)args->lse[row] : -INFINITY;
    const double most = old > block ? old : block;
    const double lse = most > -INFINITY ? most + log(exp(old - most) + exp(block - most)) : most;

    for (int64_t start = 0; start < shape->K; start += SLICE) {
        const int n_slice = shape->K - start < SLICE ? (int)(shape->K - start) : SLICE;
        double sums[SLICE] = {0};
        for (int64_t j = task->rows->first[i]; j <= task->rows->last[i]; j++) {
            const int64_t k_at = (j * shape->G + group) * shape->K;
            const double p =
                exp((double)shape->scale * dot(args->q, q_at, args->k, k_at, shape) - lse);
            for (int k = 0; k < n_slice; k++)
                sums[k] += p * (double)element(args->v, shape->dtype, k_at + start + k);
        }
        row_slice_write(task, q_at + start, n_slice, sums, lse > -INFINITY ? exp(old - lse) : 0.0);
    }
    args->lse[row] = (float)lse;
}

static void forward(const ls_attention_forward_task *task, int n_tasks)
{
    assert(n_tasks == 1);
    const ls_attention_shape shape = ls_attention_forward_shape(task->args);
    for (int i = 0; i < task->rows->n_rows; i++) row_forward(task, &shape, i);
}

/* ---- backward ------------------------------------------------------------------------------ */

/* What one pair adds to dq, dk and dv. */
static void pair_backward(const ls_attention_backward_args *args, const ls_attention_shape *shape,
                          int64_t row, int64_t k_at)
{
    const int64_t q_at = row * shape->K;
    if (args->lse[row] == -INFINITY) return;
    const double s = (double)shape->scale * dot(args->q, q_at, args->k, k_at, shape);
    const float p = (float)exp(s - (double)args->lse[row]);
    const double dp = dot(args->d_o, q_at, args->v, k_at, shape);
    const float ds = p * (float)(dp - (double)args->delta[row]) * shape->scale;

    for (int64_t k = 0; k < shape->K; k++) {
        args->dv[k_at + k] += p * element(args->d_o, shape->dtype, q_at + k);
        args->dk[k_at + k] += ds * element(args->q, shape->dtype, q_at + k);
        args->dq[q_at + k] += ds * element(args->k, shape->dtype, k_at + k);
    }
}

static void tile_backward(const ls_attention_backward_task *task, const ls_attention_shape *shape,
                          int64_t head, int64_t tile)
{
    const int64_t start = task->key_tile * LS_ATTENTION_KEY_TILE;
    const int64_t end = start + LS_ATTENTION_KEY_TILE;
    ls_attention_rows rows;

    ls_attention_rows_read(&rows, shape, tile * LS_ATTENTION_QUERY_TILE);
    for (int i = 0; i < rows.n_rows; i++) {
        const int64_t row = (tile * LS_ATTENTION_QUERY_TILE + i) * shape->H + head;
        int64_t j = rows.first[i] > start ? rows.first[i] : start;
        for (; j <= rows.last[i] && j < end; j++)
            pair_backward(task->plan->args, shape, row, (j * shape->G + task->group) * shape->K);
    }
}

static void backward(const ls_attention_backward_task *task)
{
    const ls_attention_shape shape = ls_attention_backward_shape(task->plan->args);
    const int64_t per_group = shape.H / shape.G, n_tiles = task->plan->n_query_tiles;

    for (int64_t h = task->group * per_group; h < (task->group + 1) * per_group; h++) {
        int64_t tile = ls_attention_query_tile_next(task, 0);
        for (; tile < n_tiles; tile = ls_attention_query_tile_next(task, tile + 1)) {
            ls_attention_turn_wait(task, h, tile);
            tile_backward(task, &shape, h, tile);
            ls_attention_turn_pass(task, h, tile);
        }
    }
}

static int usable(ls_dtype dtype, int64_t K)
{
    return (dtype == LS_DTYPE_F32 || dtype == LS_DTYPE_BF16) && K >= 1;
}

const ls_attention_kernel ls_attention_kernel_reference = {
    .name = "reference",
    .usable = usable,
    .forward = forward,
    .forward_tasks = 1,
    .backward = backward,
};
