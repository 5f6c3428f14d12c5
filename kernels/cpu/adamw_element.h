/*
 * adamw_element.h - AdamW of one element: the definition that every kernel compiles.
 *
 * PyTorch's update with what rounds most often taken together: four fused multiply-adds, one square
 * root, one division.  A backend with other instructions does these operations in this order (CUDA:
 * __fmaf_rn, __fsqrt_rn, __fdiv_rn, __fmul_rn, __fsub_rn) and gets the same bits.
 *
 * A moment below the smallest normal number becomes 0.  Decay alone would not get it there: among
 * denormals 0.95 k rounds back to k for k <= 9, and each such operand costs x86 an assist of some
 * 150 cycles, in every step, in rows of an embedding that no text uses any more.
 */
#ifndef LS_ADAMW_ELEMENT_H
#define LS_ADAMW_ELEMENT_H

#include <math.h>

#include "adamw.h"
#include "vec.h"

LS_INLINE float ls_adamw_flush(float moment)
{
    return fabsf(moment) < 0x1p-126f ? 0.0f : moment;
}

/* The new weight; m and v are updated in place. */
LS_INLINE float ls_adamw_element(float weight, float gradient, float *m, float *v,
                                 const ls_adamw_factors *f)
{
    const float g = gradient * f->coefficient;
    const float decayed = fmaf(-f->decay, weight, weight);
    const float m_new = ls_adamw_flush(fmaf(f->one_minus_beta1, g - *m, *m));
    const float v_new = ls_adamw_flush(fmaf(f->one_minus_beta2 * g, g, f->beta2 * *v));
    const float denominator = fmaf(sqrtf(v_new), f->inverse_root_correction2, f->eps);
    *m = m_new;
    *v = v_new;
    return fmaf(-f->step, m_new / denominator, decayed);
}

#endif
