/*
 * adamw.c - one AdamW update on the CPU: the step's factors, blocks among threads, and which kernel
 * runs.  adamw.h says where the rest is.
 *
 * With BF16 weights the fp32 master is joined from two 16-bit halves, updated and split again
 * (bf16.h), so the master needs no memory beyond the weight and its remainder.  Bound by memory: 28
 * bytes per parameter with fp32 moments and gradients (w, lo, m, v read and written, g read).
 */
#include "adamw.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>

#include "cpu_features.h"
#include "rng.h"
#include "vec.h"

_Static_assert(LS_BLOCK % LS_Q8_BLOCK == 0 && LS_BLOCK % LS_Q4_BLOCK == 0,
               "no block of codes is shared by two threads");

static const ls_adamw_kernel *const kernels[LS_ADAMW_VARIANT_COUNT] = {
    [LS_ADAMW_VARIANT_SCALAR] = &ls_adamw_kernel_scalar,
#if defined(LS_HAVE_X86_KERNELS)
    [LS_ADAMW_VARIANT_AVX2] = &ls_adamw_kernel_avx2,
    [LS_ADAMW_VARIANT_AVX512] = &ls_adamw_kernel_avx512,
#endif
#if defined(LS_HAVE_NEON_KERNELS)
    [LS_ADAMW_VARIANT_NEON] = &ls_adamw_kernel_neon,
#endif
#if defined(LS_HAVE_SVE_KERNELS)
    [LS_ADAMW_VARIANT_SVE] = &ls_adamw_kernel_sve,
#endif
};

static ls_adamw_variant forced = LS_ADAMW_VARIANT_AUTO;

static int is_usable(int variant)
{
    const ls_cpu_features *features = ls_cpu_features_discover();
    if (kernels[variant] == NULL) return 0;
    if (variant == LS_ADAMW_VARIANT_AVX2) return features->avx2;
    if (variant == LS_ADAMW_VARIANT_AVX512) return features->avx512;
    if (variant == LS_ADAMW_VARIANT_SVE) return features->sve;
    return 1;
}

/* The last usable variant of the enum is the fastest; the scalar one always is. */
static const ls_adamw_kernel *choose_kernel(void)
{
    int variant = forced != LS_ADAMW_VARIANT_AUTO ? (int)forced : LS_ADAMW_VARIANT_COUNT - 1;
    while (!is_usable(variant)) variant--;
    return kernels[variant];
}

int ls_cpu_adamw_force(ls_adamw_variant variant)
{
    if (variant != LS_ADAMW_VARIANT_AUTO && !is_usable((int)variant)) return 0;
    forced = variant;
    return 1;
}

const char *ls_cpu_adamw_kernel_name(void)
{
    return choose_kernel()->name;
}

static ls_adamw_factors derive_factors(const ls_adamw_args *args)
{
    const ls_update_control *control = args->control;
    const double rate = control->lr * (double)args->lr_scale;
    return (ls_adamw_factors){
        .coefficient = control->coefficient,
        .decay = (float)(rate * (double)args->weight_decay),
        .beta2 = args->beta2,
        .one_minus_beta1 = (float)(1.0 - (double)args->beta1),
        .one_minus_beta2 = (float)(1.0 - (double)args->beta2),
        .step = (float)(rate / (1.0 - control->beta1_power)),
        .inverse_root_correction2 = (float)(1.0 / sqrt(1.0 - control->beta2_power)),
        .eps = args->eps,
    };
}

static void check_args(const ls_adamw_args *args)
{
    const int packed = args->moments == LS_MOMENTS_Q8 || args->moments == LS_MOMENTS_Q4;

    assert(args->n >= 0 && ls_dtype_computes(args->dtype) && ls_dtype_computes(args->g_dtype));
    assert(args->moments >= 0 && args->moments < LS_MOMENTS_COUNT);
    assert((args->lo != NULL) == (args->dtype == LS_DTYPE_BF16) || args->n == 0);
    assert(!packed || (args->m_scale != NULL && args->v_scale != NULL) || args->n == 0);
    (void)packed;
}

/* Each block has random numbers of its own, so that they do not depend on who takes it. */
static void run_part(ls_adamw_part *part, const ls_adamw_args *args,
                     const ls_adamw_factors *factors)
{
    const int64_t n_blocks = ls_blocks(args->n, LS_BLOCK);
    const uint64_t step = (uint64_t)args->control->updates, stream = (uint64_t)args->stream;

    LS_OMP(omp parallel for schedule(static))
    for (int64_t block = 0; block < n_blocks; block++)
        part(args, factors, block * LS_BLOCK, ls_min_i64((block + 1) * LS_BLOCK, args->n),
             (uint32_t)ls_rng_u64(step, stream, (uint64_t)block));
}

ls_status ls_cpu_adamw(void *stream, const ls_adamw_args *args)
{
    (void)stream;
    check_args(args);
    if (args->control->skip) return LS_OK;
    assert(args->control->beta1_power < 1.0 && args->control->beta2_power < 1.0);

    const ls_adamw_factors factors = derive_factors(args);
    run_part(choose_kernel()->update, args, &factors);
    return LS_OK;
}

void ls_cpu_adamw_traffic(const ls_adamw_args *args)
{
    static const ls_adamw_factors none = {0};

    check_args(args);
    assert(args->moments == LS_MOMENTS_F32);
    run_part(choose_kernel()->traffic, args, &none);
}
