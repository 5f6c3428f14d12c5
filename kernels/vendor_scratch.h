/*
 * vendor_scratch.h - closed forms of the memory that attention by cuDNN takes: for the GPU that is
 * here and for one that a plan is only made for.
 *
 *   forward    | lse [H, N] | o of a key block | cuDNN's |
 *   backward   | lse [H, N] | stand-in o | dq | dk | dv | cuDNN's |      each part at 256 bytes
 *
 * Layer: kernels (uses base).  Pure functions.
 */
#ifndef LS_VENDOR_SCRATCH_H
#define LS_VENDOR_SCRATCH_H

#include <stdbool.h>

#include "cuda/attention_cudnn.h"
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The shape that cuDNN is to be asked for instead of this call, of whatever documents; keys behind
 * the last row are left out of it.  False: it can not compute the block. */
bool ls_vendor_shape_find(ls_op op, const ls_op_args *args, ls_cudnn_shape *shape);

/*
 * What cuDNN's engine may want: on Hopper fp32 dq, the sums of d_o o, with G < H dk and dv of every
 * query head in bf16; and LS_CUDNN_SLACK_BYTES.
 */
uint64_t ls_cudnn_workspace_most(const ls_cudnn_shape *shape);

enum { LS_CUDNN_SLACK_BYTES = 1 << 20, LS_VENDOR_SCRATCH_ALIGN = 256 };

/* Where the parts lie; bytes is their sum. */
typedef struct ls_vendor_scratch {
    uint64_t lse, o, dq, dk, dv, library, bytes;
} ls_vendor_scratch;

ls_vendor_scratch ls_vendor_scratch_lay_out(const ls_cudnn_shape *shape);

/* Bytes of the workspace of such a call, wherever it begins; 0: cuDNN can not compute it. */
uint64_t ls_vendor_scratch_bytes(ls_op op, const ls_op_args *args);

#ifdef __cplusplus
}
#endif

#endif
