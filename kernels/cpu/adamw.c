/*
 * adamw.c - one AdamW update on the CPU, element by element, all in fp32.
 *
 * With BF16 weights the fp32 master is joined from two 16-bit halves, updated and split again
 * (bf16.h), so the master needs no memory beyond the weight and its remainder.  About 15 FLOPs
 * and 28 bytes per parameter (w, lo, m, v read and written, g read): bound by memory, with two
 * divisions and a square root just below it.
 */
#include <assert.h>
#include <math.h>
#include <stddef.h>

#include "ops.h"
#include "vec.h"

/* What all elements share, each rounded to fp32 once from a double expression. */
typedef struct update_factors {
    float coefficient, decay, beta2, one_minus_beta1, one_minus_beta2;
    float step, root_correction2, eps;
} update_factors;

static update_factors derive_factors(const ls_adamw_args *args)
{
    const ls_update_control *control = args->control;
    const double rate = control->lr * (double)args->lr_scale;
    return (update_factors){
        .coefficient = control->coefficient,
        .decay = (float)(rate * (double)args->weight_decay),
        .beta2 = args->beta2,
        .one_minus_beta1 = (float)(1.0 - (double)args->beta1),
        .one_minus_beta2 = (float)(1.0 - (double)args->beta2),
        .step = (float)(rate / (1.0 - control->beta1_power)),
        .root_correction2 = (float)sqrt(1.0 - control->beta2_power),
        .eps = args->eps,
    };
}

/* The new weight; m and v are updated in place. */
LS_INLINE float update_element(float weight, float gradient, float *m, float *v,
                               const update_factors *f)
{
    const float g = gradient * f->coefficient;
    const float decayed = weight - f->decay * weight;
    const float m_new = *m + f->one_minus_beta1 * (g - *m);
    const float v_new = f->beta2 * *v + f->one_minus_beta2 * g * g;
    const float denominator = sqrtf(v_new) / f->root_correction2 + f->eps;
    *m = m_new;
    *v = v_new;
    return decayed - f->step * m_new / denominator;
}

LS_SIMD_CLONES static void update_block(const ls_adamw_args *args, update_factors factors,
                                        int64_t begin, int64_t end)
{
    float *m = args->m, *v = args->v;
    const float *g = args->g;

    if (args->dtype == LS_DTYPE_BF16) {
        ls_bf16 *hi = args->w;
        int16_t *lo = args->lo;
        LS_INDEPENDENT
        for (int64_t i = begin; i < end; i++) {
            const float master =
                update_element(ls_master_join(hi[i], lo[i]), g[i], &m[i], &v[i], &factors);
            hi[i] = ls_master_hi(master);
            lo[i] = ls_master_lo(master);
        }
    } else {
        float *w = args->w;
        LS_INDEPENDENT
        for (int64_t i = begin; i < end; i++)
            w[i] = update_element(w[i], g[i], &m[i], &v[i], &factors);
    }
}

ls_status ls_cpu_adamw(void *stream, const ls_adamw_args *args)
{
    (void)stream;
    assert(args->n >= 0 && ls_dtype_computes(args->dtype));
    assert((args->lo != NULL) == (args->dtype == LS_DTYPE_BF16) || args->n == 0);
    if (args->control->skip) return LS_OK;
    assert(args->control->beta1_power < 1.0 && args->control->beta2_power < 1.0);

    const update_factors factors = derive_factors(args);
    const int64_t n_blocks = ls_blocks(args->n, LS_BLOCK);

    LS_OMP(omp parallel for schedule(static))
    for (int64_t block = 0; block < n_blocks; block++)
        update_block(args, factors, block * LS_BLOCK, ls_min_i64((block + 1) * LS_BLOCK, args->n));
    return LS_OK;
}
