/*
 * adamw.h - what the instruction sets' AdamW kernels share, and the list of them.
 *
 *   adamw.c          the op: factors of a step, blocks shared by threads, the choice of a kernel
 *   adamw_element.h  the arithmetic of one element: its only definition
 *   adamw_moments.h  how lossy moments are packed
 *   adamw_loops.h    the loops, compiled once for each instruction set by adamw_*.c
 *
 * All kernels give the same bits, whatever the vector length: elements do not depend on each other,
 * every operation is one IEEE operation (fused where fmaf stands, nowhere else), and the greatest
 * of a block does not depend on the order in which it is found.
 *
 * Layer: kernels, private to kernels/cpu and tests.
 */
#ifndef LS_ADAMW_H
#define LS_ADAMW_H

#include <stdint.h>

#include "ops.h"

/* What all elements of a step share, each rounded to fp32 once from a double expression. */
typedef struct ls_adamw_factors {
    float coefficient, decay, beta2, one_minus_beta1, one_minus_beta2;
    float step, inverse_root_correction2, eps;
} ls_adamw_factors;

/* Update the elements [begin, end) of one block: begin is a multiple of LS_BLOCK.  random: of this
 * step and block. */
typedef void ls_adamw_part(const ls_adamw_args *args, const ls_adamw_factors *factors,
                           int64_t begin, int64_t end, uint32_t random);

typedef struct ls_adamw_kernel {
    const char *name;
    ls_adamw_part *update;
    ls_adamw_part *traffic; /* fp32 moments: the same loads and stores, no arithmetic */
} ls_adamw_kernel;

typedef enum ls_adamw_variant {
    LS_ADAMW_VARIANT_AUTO = 0,
    LS_ADAMW_VARIANT_SCALAR,
    LS_ADAMW_VARIANT_AVX2,
    LS_ADAMW_VARIANT_AVX512,
    LS_ADAMW_VARIANT_NEON,
    LS_ADAMW_VARIANT_SVE, /* any vector length; SVE2 has nothing more for these loops */
    LS_ADAMW_VARIANT_COUNT
} ls_adamw_variant;

extern const ls_adamw_kernel ls_adamw_kernel_scalar, ls_adamw_kernel_avx2, ls_adamw_kernel_avx512,
    ls_adamw_kernel_neon, ls_adamw_kernel_sve;

/* Let ls_cpu_adamw() use this kernel, AUTO: the best.  0 if this machine or build has it not.  Not
 * while ops run. */
int ls_cpu_adamw_force(ls_adamw_variant variant);

#endif
