/*
 * attention_vendor.h - attention by cuDNN behind the op: which calls it may take, the scratch that
 * a call needs, and the kernels that fit its results to what the op promises.
 *
 *   forward    q, k, v -> cuDNN -> o, lse of this key block -> merged into the running o, lse
 *   backward   delta, d_o -> a stand-in for o;  cuDNN -> bf16 dq, dk, dv -> added in fp32
 *
 * Layer: kernels, private to kernels/cuda and its tests.  Threads: any.
 */
#ifndef LS_ATTENTION_VENDOR_H
#define LS_ATTENTION_VENDOR_H

#include <stdbool.h>

#include "vendor_scratch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether cuDNN takes this very call: shape and promises, and the library here. */
bool ls_cuda_attention_takes_vendor(ls_op op, const ls_op_args *args);

/* Bytes of args->workspace that a call of this shape needs where cuDNN may come to take it, if the
 * documents allow; 0 if it may not. */
uint64_t ls_cuda_attention_vendor_bytes(ls_op op, const ls_op_args *args);

ls_status ls_cuda_attention_forward_vendor(void *stream, const ls_attention_forward_args *args);
ls_status ls_cuda_attention_backward_vendor(void *stream, const ls_attention_backward_args *args);

/* "9.19.0", or why there is none; lives until the next call. */
const char *ls_cuda_attention_vendor_note(void);

/* Forget the graphs, and look for the library again at the next call.  For tests. */
void ls_cuda_attention_vendor_close(void);

/* As if this version's forward had been seen to give equal bits; 0: as it is.  For tests. */
void ls_cuda_attention_vendor_repeats(int32_t version);

/* ---- attention_pieces.cu -------------------------------------------------------------------- */

/* y [columns, rows] = x [rows, columns], fp32 */
ls_status ls_cuda_turn(void *stream, float *y, const float *x, int64_t rows, int64_t columns);

/* One key block's result, merged into a running one. */
typedef struct ls_cuda_merge_args {
    void *o;                /* [N, H, K] bf16 out; NULL: not wanted yet */
    float *lse;             /* [N, H] running */
    float *o_acc;           /* [N, H, K] running; NULL: not kept */
    const void *piece;      /* [N, H, K] bf16 */
    const float *piece_lse; /* [H, N] */
    int64_t N, H, K;
    int32_t accumulate; /* else it is the first */
} ls_cuda_merge_args;

ls_status ls_cuda_attention_merge(void *stream, const ls_cuda_merge_args *args);

/* o [rows, K] bf16 with sum_k o d_o = delta, and of all such the shortest: delta d_o / |d_o|^2 */
ls_status ls_cuda_attention_stand_in(void *stream, void *o, const void *d_o, const float *delta,
                                     int64_t rows, int64_t K);

#ifdef __cplusplus
}
#endif

#endif
