/*
 * matmul.c - picks the matrix multiplication for this machine.
 *
 * The choice depends on dtypes and on the machine, never on the number of threads: AMX tiles for
 * bf16, else oneDNN where it is built in and the CPU has bf16 instructions (fp32: always), else
 * vectors.  Within a variant a sum's order depends on shapes alone.
 */
#include "matmul.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

/* ---- the choice ---------------------------------------------------------------------------- */

static const ls_matmul_kernel *const kernels[LS_MATMUL_VARIANT_COUNT] = {
    [LS_MATMUL_VARIANT_PLAIN] = &ls_matmul_kernel_plain,
#if defined(LS_HAVE_X86_KERNELS)
    [LS_MATMUL_VARIANT_AVX2] = &ls_matmul_kernel_avx2,
    [LS_MATMUL_VARIANT_AVX512] = &ls_matmul_kernel_avx512,
#endif
#if defined(LS_HAVE_ONEDNN)
    [LS_MATMUL_VARIANT_ONEDNN] = &ls_matmul_kernel_onednn,
#endif
#if defined(LS_HAVE_AMX_KERNELS)
    [LS_MATMUL_VARIANT_AMX] = &ls_matmul_kernel_amx,
#endif
};

static ls_matmul_variant forced = LS_MATMUL_VARIANT_AUTO;

static int is_usable(ls_matmul_variant variant, ls_dtype ab_dtype, ls_dtype c_dtype)
{
    return kernels[variant] != NULL && kernels[variant]->usable(ab_dtype, c_dtype);
}

/* The last usable variant of the enum is the fastest. */
static const ls_matmul_kernel *kernel_choose(ls_dtype ab_dtype, ls_dtype c_dtype)
{
    if (forced != LS_MATMUL_VARIANT_AUTO && is_usable(forced, ab_dtype, c_dtype))
        return kernels[forced];
    int variant = LS_MATMUL_VARIANT_COUNT - 1;
    while (!is_usable((ls_matmul_variant)variant, ab_dtype, c_dtype)) variant--;
    return kernels[variant];
}

int ls_cpu_matmul_force(ls_matmul_variant variant, ls_dtype dtype)
{
    if (variant != LS_MATMUL_VARIANT_AUTO && !is_usable(variant, dtype, dtype)) return 0;
    forced = variant;
    return 1;
}

const char *ls_cpu_matmul_kernel_name(ls_dtype dtype)
{
    return kernel_choose(dtype, dtype)->name;
}

uint64_t ls_cpu_matmul_workspace_bytes(const ls_matmul_args *args)
{
    if (args->M == 0 || args->N == 0 || args->K == 0) return 0;
    return kernel_choose(args->ab_dtype, args->c_dtype)->workspace_bytes(args);
}

/* c (+)= 0: what a sum over no terms leaves. */
static void run_empty(const ls_matmul_args *args)
{
    const uint64_t bytes = (uint64_t)(args->M * args->N) * ls_dtype_bytes(args->c_dtype);
    if (!args->accumulate && bytes > 0) memset(args->c, 0, bytes);
}

ls_status ls_cpu_matmul(void *stream, const ls_matmul_args *args)
{
    (void)stream;
    assert(args->M >= 0 && args->N >= 0 && args->K >= 0);
    assert(args->ab_dtype == LS_DTYPE_F32 || args->ab_dtype == LS_DTYPE_BF16);
    assert(args->c_dtype == args->ab_dtype || args->c_dtype == LS_DTYPE_F32);

    if (args->M == 0 || args->N == 0 || args->K == 0) {
        run_empty(args);
        return LS_OK;
    }
    const ls_matmul_kernel *kernel = kernel_choose(args->ab_dtype, args->c_dtype);
    assert(args->workspace != NULL || kernel->workspace_bytes(args) == 0);
    return kernel->run(args);
}
