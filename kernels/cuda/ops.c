/* ops.c - the CUDA backend's table, and how its errors are told. */
#include <cuda_runtime_api.h>

#include "attention_variants.h"
#include "attention_vendor.h"
#include "cuda_ops.h"

static uint64_t workspace_bytes(ls_op op, const ls_op_args *args)
{
    switch (op) {
    case LS_OP_matmul: return ls_cuda_matmul_workspace_bytes(&args->matmul);
    case LS_OP_attention_forward:
    case LS_OP_attention_backward: return ls_cuda_attention_vendor_bytes(op, args);
    default: return 0;
    }
}

static const char *kernel_name(ls_op op, ls_dtype dtype, int64_t K)
{
    const int64_t usual_width = 128;
    switch (op) {
    case LS_OP_matmul: return "cublaslt";
    case LS_OP_attention_forward:
    case LS_OP_attention_backward:
        return ls_cuda_attention_kernel_name(op, dtype, K > 0 ? K : usual_width);
    default: return "plain";
    }
}

static const char *kernels_ran(ls_op op)
{
    const bool attention = op == LS_OP_attention_forward || op == LS_OP_attention_backward;
    return attention ? ls_cuda_attention_kernels_ran(op) : "";
}

ls_status ls_cuda_fail(int error, const char *what)
{
    const cudaError_t code = (cudaError_t)error;
    (void)cudaGetLastError(); /* told here: the next call starts clean */
    return LS_FAIL(code == cudaErrorMemoryAllocation ? LS_ERR_NO_MEMORY : LS_ERR_DEVICE,
                   "%s: %s: %s", what, cudaGetErrorName(code), cudaGetErrorString(code));
}

const ls_ops ls_ops_cuda = {
    .name = "cuda",
#define FIELD(name) .name = ls_cuda_##name,
    LS_OP_LIST(FIELD)
#undef FIELD
        .workspace_bytes = workspace_bytes,
    .kernel_name = kernel_name,
    .kernels_ran = kernels_ran,
    .vendor_note = ls_cuda_attention_vendor_note,
};
