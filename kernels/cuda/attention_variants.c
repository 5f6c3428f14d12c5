/* attention_variants.c - which attention kernels there are, and which of them takes a call. */
#include "attention_variants.h"

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>

#include "attention_vendor.h"
#include "cuda_ops.h"

static bool takes_all(ls_op op, const ls_op_args *args)
{
    (void)op;
    (void)args;
    return true;
}

static bool takes_tensor(ls_op op, const ls_op_args *args)
{
    const bool forward = op == LS_OP_attention_forward;
    const int64_t K = forward ? args->attention_forward.K : args->attention_backward.K;
    const ls_dtype dtype = forward ? args->attention_forward.dtype : args->attention_backward.dtype;
    return dtype == LS_DTYPE_BF16 && (K == 64 || K == 128);
}

/* In order of preference. */
static const ls_cuda_attention_variant variants[] = {
    {"cudnn", ls_cuda_attention_takes_vendor, ls_cuda_attention_forward_vendor,
     ls_cuda_attention_backward_vendor},
    {"mma", takes_tensor, ls_cuda_attention_forward_tensor, ls_cuda_attention_backward_tensor},
    {"plain", takes_all, ls_cuda_attention_forward_plain, ls_cuda_attention_backward_plain},
};

enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

static int forced = -1;
static atomic_uint ran[2]; /* bit n: the n-th variant; [0] forward, [1] backward */

const ls_cuda_attention_variant *ls_cuda_attention_variant_at(int n)
{
    return n >= 0 && n < N_VARIANTS ? &variants[n] : NULL;
}

void ls_cuda_attention_force(int n)
{
    forced = n;
}

const ls_cuda_attention_variant *ls_cuda_attention_choose(ls_op op, const ls_op_args *args)
{
    const ls_cuda_attention_variant *preferred = ls_cuda_attention_variant_at(forced);
    if (preferred != NULL && preferred->takes(op, args)) return preferred;
    int n = 0;
    while (!variants[n].takes(op, args)) n++; /* the last takes all */
    return &variants[n];
}

const char *ls_cuda_attention_kernel_name(ls_op op, ls_dtype dtype, int64_t K)
{
    const ls_op_args forward = {.attention_forward = {.K = K, .dtype = dtype}};
    const ls_op_args backward = {.attention_backward = {.K = K, .dtype = dtype}};
    return ls_cuda_attention_choose(op, op == LS_OP_attention_forward ? &forward : &backward)->name;
}

const char *ls_cuda_attention_kernels_ran(ls_op op)
{
    static const char *const names[1 << N_VARIANTS] = {
        "", "cudnn", "mma", "cudnn+mma", "plain", "cudnn+plain", "mma+plain", "cudnn+mma+plain"};
    return names[atomic_exchange(&ran[op == LS_OP_attention_backward], 0)];
}

static const ls_cuda_attention_variant *choose(ls_op op, const ls_op_args *args)
{
    const ls_cuda_attention_variant *variant = ls_cuda_attention_choose(op, args);
    atomic_fetch_or(&ran[op == LS_OP_attention_backward], 1u << (variant - variants));
    return variant;
}

ls_status ls_cuda_attention_forward(void *stream, const ls_attention_forward_args *args)
{
    const ls_op_args any = {.attention_forward = *args};
    return choose(LS_OP_attention_forward, &any)->forward(stream, args);
}

ls_status ls_cuda_attention_backward(void *stream, const ls_attention_backward_args *args)
{
    const ls_op_args any = {.attention_backward = *args};
    return choose(LS_OP_attention_backward, &any)->backward(stream, args);
}
