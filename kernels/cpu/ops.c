/* ops.c - the CPU backend's table, and the thread count its ops use. */
#include "ops.h"

#include <stddef.h>

#if defined(_OPENMP)
#include <omp.h>
#endif

static uint64_t workspace_bytes(ls_op op, const ls_op_args *args)
{
    switch (op) {
    case LS_OP_matmul: return ls_cpu_matmul_workspace_bytes(&args->matmul);
    case LS_OP_attention_forward:
    case LS_OP_attention_backward: return ls_cpu_attention_workspace_bytes(op, args);
    default: return 0;
    }
}

static const char *kernel_name(ls_op op, ls_dtype dtype, int64_t K)
{
    switch (op) {
    case LS_OP_matmul: return ls_cpu_matmul_kernel_name(dtype);
    case LS_OP_attention_forward:
    case LS_OP_attention_backward: return ls_cpu_attention_kernel_name(dtype, K);
    case LS_OP_adamw: return ls_cpu_adamw_kernel_name();
    default: return "plain";
    }
}

void ls_cpu_threads_set(int n_threads)
{
#if defined(_OPENMP)
    omp_set_num_threads(n_threads > 0 ? n_threads : omp_get_num_procs());
#else
    (void)n_threads;
#endif
}

int ls_cpu_threads(void)
{
#if defined(_OPENMP)
    return omp_get_max_threads();
#else
    return 1;
#endif
}

const ls_ops ls_ops_cpu = {
    .name = "cpu",
#define FIELD(name) .name = ls_cpu_##name,
    LS_OP_LIST(FIELD)
#undef FIELD
        .workspace_bytes = workspace_bytes,
    .kernel_name = kernel_name,
};
