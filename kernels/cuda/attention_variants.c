/* attention_variants.c - which attention kernels there are, and which of them takes a call. */
#include <stddef.h>

#include "attention_variants.h"
#include "cuda_ops.h"

static bool takes_all(ls_dtype dtype, int64_t K)
{
    (void)dtype;
    (void)K;
    return true;
}

static bool takes_tensor(ls_dtype dtype, int64_t K)
{
    return dtype == LS_DTYPE_BF16 && (K == 64 || K == 128);
}

/* In order of preference. */
static const ls_cuda_attention_variant variants[] = {
    {"mma", takes_tensor, ls_cuda_attention_forward_tensor, ls_cuda_attention_backward_tensor},
    {"plain", takes_all, ls_cuda_attention_forward_plain, ls_cuda_attention_backward_plain},
};

enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

static int forced = -1;

const ls_cuda_attention_variant *ls_cuda_attention_variant_at(int n)
{
    return n >= 0 && n < N_VARIANTS ? &variants[n] : NULL;
}

void ls_cuda_attention_force(int n)
{
    forced = n;
}

const ls_cuda_attention_variant *ls_cuda_attention_choose(ls_dtype dtype, int64_t K)
{
    const ls_cuda_attention_variant *preferred = ls_cuda_attention_variant_at(forced);
    if (preferred != NULL && preferred->takes(dtype, K)) return preferred;
    int n = 0;
    while (!variants[n].takes(dtype, K)) n++; /* the last takes all */
    return &variants[n];
}

ls_status ls_cuda_attention_forward(void *stream, const ls_attention_forward_args *args)
{
    return ls_cuda_attention_choose(args->dtype, args->K)->forward(stream, args);
}

ls_status ls_cuda_attention_backward(void *stream, const ls_attention_backward_args *args)
{
    return ls_cuda_attention_choose(args->dtype, args->K)->backward(stream, args);
}
