/*
 * attention_pieces.cu - what cuDNN's attention leaves to us: results of key blocks merged, rows
 * and heads exchanged, an output that stands for the real one in backward.
 *
 * All bound by memory and small beside attention itself.  Bytes of a query block: merge, K elements
 * of bf16 and 8 K of fp32 a row; stand-in, 4 K a row; turn, 8 an element.
 */
#include <math.h>

#include "attention_vendor.h"
#include "element.cuh"

enum {
    TURN = 32,                   /* rows and columns of a block's tile */
    ROWS = LS_THREADS / LS_WARP, /* of a block: a warp has one */
};

/* ---- turn ----------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(LS_THREADS)
    turn_kernel(float *y, const float *x, int64_t rows, int64_t columns)
{
    LS_SHARED(float, tile); /* [TURN, TURN + 1]: columns of it lie in banks of their own */
    const int64_t across = (columns + TURN - 1) / TURN;
    const int64_t first_row = blockIdx.x / across * TURN, first_column = blockIdx.x % across * TURN;
    const int lane = static_cast<int>(threadIdx.x) % TURN,
              warp = static_cast<int>(threadIdx.x) / TURN;

    for (int i = warp; i < TURN; i += ROWS) {
        const int64_t row = first_row + i, column = first_column + lane;
        if (row < rows && column < columns) tile[i * (TURN + 1) + lane] = x[row * columns + column];
    }
    __syncthreads();
    for (int i = warp; i < TURN; i += ROWS) {
        const int64_t row = first_row + lane, column = first_column + i;
        if (row < rows && column < columns) y[column * rows + row] = tile[lane * (TURN + 1) + i];
    }
}

ls_status ls_cuda_turn(void *stream, float *y, const float *x, int64_t rows, int64_t columns)
{
    if (rows == 0 || columns == 0) return LS_OK;
    return ls_launch("turn", turn_kernel,
                     ls_grid(ls_ceil_div(rows, TURN) * ls_ceil_div(columns, TURN)), LS_THREADS,
                     TURN * (TURN + 1) * sizeof(float), stream, y, x, rows, columns);
}

/* ---- merge ---------------------------------------------------------------------------------- */

/* The shares of two results with these log-sum-exps, and that of both. */
struct shares {
    float before, piece, lse;
};

LS_DEVICE shares weigh(float before, float piece)
{
    if (piece == -INFINITY) return {before == -INFINITY ? 0.0f : 1.0f, 0.0f, before};
    if (before == -INFINITY) return {0.0f, 1.0f, piece};
    const float most = fmaxf(before, piece);
    const float a = ls_exp32(before - most), b = ls_exp32(piece - most), sum = a + b;
    return {a / sum, b / sum,
            static_cast<float>(static_cast<double>(most) + log(static_cast<double>(sum)))};
}

__global__ void __launch_bounds__(LS_THREADS) merge_kernel(ls_cuda_merge_args c)
{
    const int64_t row = static_cast<int64_t>(blockIdx.x) * ROWS + threadIdx.x / LS_WARP;
    if (row >= c.N * c.H) return; /* the whole warp */
    const int64_t n = row / c.H, head = row % c.H;
    const float before = c.accumulate ? c.lse[row] : -INFINITY;
    const shares s = weigh(before, c.piece_lse[head * c.N + n]);
    ls_bf16x *o = static_cast<ls_bf16x *>(c.o);
    const ls_bf16x *piece = static_cast<const ls_bf16x *>(c.piece);

    for (int64_t k = threadIdx.x % LS_WARP; k < c.K; k += LS_WARP) {
        const int64_t i = row * c.K + k;
        float value = s.piece > 0.0f ? s.piece * ls_widen(piece[i]) : 0.0f;
        if (s.before > 0.0f) value = fmaf(s.before, c.o_acc[i], value);
        if (c.o_acc != nullptr) c.o_acc[i] = value;
        if (o != nullptr) ls_narrow(&o[i], value);
    }
    __syncwarp(); /* every lane has read lse */
    if (threadIdx.x % LS_WARP == 0) c.lse[row] = s.lse;
}

ls_status ls_cuda_attention_merge(void *stream, const ls_cuda_merge_args *args)
{
    assert(args->o_acc != nullptr || !args->accumulate);
    if (args->N == 0) return LS_OK;
    return ls_launch("attention_merge", merge_kernel, ls_grid(ls_ceil_div(args->N * args->H, ROWS)),
                     LS_THREADS, 0, stream, *args);
}

/* ---- stand-in ------------------------------------------------------------------------------- */

/*
 * Backward wants o for delta = sum_k o d_o alone, which is known here, in fp32 and of the whole
 * row.  Rounded to bf16 the stand-in gives delta to within 2^-9 of itself; the real o, rounded,
 * within 2^-9 |o| |d_o|, which is more.
 */
__global__ void __launch_bounds__(LS_THREADS)
    stand_in_kernel(ls_bf16x *o, const ls_bf16x *d_o, const float *delta, int64_t rows, int64_t K)
{
    const int64_t row = static_cast<int64_t>(blockIdx.x) * ROWS + threadIdx.x / LS_WARP;
    double norm = 0.0;

    if (row >= rows) return; /* the whole warp */
    for (int64_t k = threadIdx.x % LS_WARP; k < K; k += LS_WARP) {
        const double x = static_cast<double>(ls_widen(d_o[row * K + k]));
        norm += x * x;
    }
    norm = ls_warp_sum(norm);
    const double share = norm > 0.0 ? static_cast<double>(delta[row]) / norm : 0.0;
    for (int64_t k = threadIdx.x % LS_WARP; k < K; k += LS_WARP)
        ls_narrow(&o[row * K + k],
                  static_cast<float>(share * static_cast<double>(ls_widen(d_o[row * K + k]))));
}

ls_status ls_cuda_attention_stand_in(void *stream, void *o, const void *d_o, const float *delta,
                                     int64_t rows, int64_t K)
{
    if (rows == 0) return LS_OK;
    return ls_launch("attention_stand_in", stand_in_kernel, ls_grid(ls_ceil_div(rows, ROWS)),
                     LS_THREADS, 0, stream, static_cast<ls_bf16x *>(o),
                     static_cast<const ls_bf16x *>(d_o), delta, rows, K);
}
