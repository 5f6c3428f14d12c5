/*
 * attention_variants.h - the attention kernels of the GPU behind the one op, and who takes which
 * call: the first of the table that can.  A variant that comes later adds a line to the table.
 *
 * Layer: kernels, private to kernels/cuda and its tests.  Threads: any; force before ops run.
 */
#ifndef LS_ATTENTION_VARIANTS_H
#define LS_ATTENTION_VARIANTS_H

#include <stdbool.h>

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_cuda_attention_variant {
    const char *name;
    /* Whether it computes this call of LS_OP_attention_forward or _backward. */
    bool (*takes)(ls_op op, const ls_op_args *args);
    ls_status (*forward)(void *stream, const ls_attention_forward_args *args);
    ls_status (*backward)(void *stream, const ls_attention_backward_args *args);
} ls_cuda_attention_variant;

/* The n-th variant, the preferred one first; NULL beyond the last. */
const ls_cuda_attention_variant *ls_cuda_attention_variant_at(int n);

/* The one that computes such a call; never NULL. */
const ls_cuda_attention_variant *ls_cuda_attention_choose(ls_op op, const ls_op_args *args);

/* The same for heads of K elements of dtype, of a block of which nothing is promised. */
const char *ls_cuda_attention_kernel_name(ls_op op, ls_dtype dtype, int64_t K);

/* Of the variants that calls of op have been queued to since this was last asked of it: "cudnn",
 * "cudnn+mma"; "" if there was no call.  Static text. */
const char *ls_cuda_attention_kernels_ran(ls_op op);

/* Prefer the n-th from now on where it can; -1: the table's order again.  For tests and
 * benchmarks. */
void ls_cuda_attention_force(int n);

ls_status ls_cuda_attention_forward_plain(void *stream, const ls_attention_forward_args *args);
ls_status ls_cuda_attention_backward_plain(void *stream, const ls_attention_backward_args *args);
ls_status ls_cuda_attention_forward_tensor(void *stream, const ls_attention_forward_args *args);
ls_status ls_cuda_attention_backward_tensor(void *stream, const ls_attention_backward_args *args);

#ifdef __cplusplus
}
#endif

#endif
