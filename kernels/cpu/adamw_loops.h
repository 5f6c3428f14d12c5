/*
 * adamw_loops.h - AdamW's loops, to be compiled for one instruction set.
 *
 * Define LS_ADAMW_KERNEL (the ls_adamw_kernel to define) and LS_ADAMW_NAME before including it.
 * The compiler vectorizes: what it makes of the one definition cannot differ from it.  Formats are
 * constants of the functions below, so that no loop asks for them.
 *
 * fp32 moments: 28 bytes and 12 FLOPs, a division and a square root for each parameter, bound by
 * memory.  Packed ones: 16 or 14 bytes, and the packing, bound by arithmetic on few cores.
 */
#include <stddef.h>

#include "adamw.h"
#include "adamw_element.h"
#include "adamw_moments.h"

enum {
    PIECE = 64, /* elements of a loop without a tail: a line or more of each stream */
};

#if !defined(LS_ADAMW_PREFETCH)
/* Elements ahead; 0: none.  Measured (tests/bench/records/optimizer.md): the processor's own
 * prefetchers stop at page ends and leave a core waiting for a tenth of the time. */
#define LS_ADAMW_PREFETCH 512
#endif

/* ---- fp32 and bf16 moments: one pass --------------------------------------------------------- */

LS_INLINE float load_weight(const ls_adamw_args *args, int64_t i, ls_dtype dtype)
{
    return dtype == LS_DTYPE_BF16 ? ls_master_join(((const ls_bf16 *)args->w)[i], args->lo[i])
                                  : ((const float *)args->w)[i];
}

LS_INLINE void store_weight(const ls_adamw_args *args, int64_t i, float weight, ls_dtype dtype)
{
    if (dtype == LS_DTYPE_BF16) {
        ((ls_bf16 *)args->w)[i] = ls_master_hi(weight);
        args->lo[i] = ls_master_lo(weight);
    } else {
        ((float *)args->w)[i] = weight;
    }
}

LS_INLINE void update_elements(const ls_adamw_args *args, const ls_adamw_factors *factors,
                               int64_t begin, int64_t n, uint32_t random, ls_dtype dtype,
                               ls_dtype g_dtype, ls_dtype m_dtype)
{
    const ls_adamw_args a = *args;
    const ls_adamw_factors f = *factors;

    LS_INDEPENDENT
    for (int64_t i = begin; i < begin + n; i++) {
        float m = ls_load(a.m, i, m_dtype), v = ls_load(a.v, i, m_dtype);
        const float weight =
            ls_adamw_element(load_weight(&a, i, dtype), ls_load(a.g, i, g_dtype), &m, &v, &f);
        store_weight(&a, i, weight, dtype);
        if (m_dtype == LS_DTYPE_BF16) {
            const uint32_t r = ls_adamw_random(random, i);
            ((ls_bf16 *)a.m)[i] = ls_adamw_round_bf16(m, r & 0xffffu);
            ((ls_bf16 *)a.v)[i] = ls_adamw_round_bf16(v, r >> 16);
        } else {
            ((float *)a.m)[i] = m;
            ((float *)a.v)[i] = v;
        }
    }
}

LS_INLINE void prefetch(const ls_adamw_args *a, int64_t i, ls_dtype dtype, ls_dtype g_dtype,
                        ls_dtype m_dtype)
{
    if (LS_ADAMW_PREFETCH == 0 || i + PIECE > a->n) return;
    for (int64_t line = 0; line < PIECE; line += 32) {
        __builtin_prefetch(ls_at(a->w, i + line, dtype), 1);
        if (dtype == LS_DTYPE_BF16) __builtin_prefetch(a->lo + i + line, 1);
    }
    for (int64_t line = 0; line < PIECE; line += 16) {
        __builtin_prefetch(ls_at(a->m, i + line, m_dtype), 1);
        __builtin_prefetch(ls_at(a->v, i + line, m_dtype), 1);
        __builtin_prefetch(ls_at(a->g, i + line, g_dtype), 0);
    }
}

LS_INLINE void update_block(const ls_adamw_args *args, const ls_adamw_factors *factors,
                            int64_t begin, int64_t end, uint32_t random, ls_dtype dtype,
                            ls_dtype g_dtype, ls_dtype m_dtype)
{
    int64_t i = begin;
    for (; i + PIECE <= end; i += PIECE) {
        prefetch(args, i + LS_ADAMW_PREFETCH, dtype, g_dtype, m_dtype);
        update_elements(args, factors, i, PIECE, random, dtype, g_dtype, m_dtype);
    }
    update_elements(args, factors, i, end - i, random, dtype, g_dtype, m_dtype);
}

/* ---- packed moments: block by block ---------------------------------------------------------- */

LS_INLINE void unpack(float *x, const uint8_t *codes, float scale, int64_t block, ls_moment_code c)
{
    const int32_t sign = c.greatest + 1; /* the bit above the code, of signed ones */
    const int64_t n = block == LS_Q4_BLOCK ? block / 2 : block;

    LS_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        const int32_t low = block == LS_Q4_BLOCK ? codes[i] & 15 : codes[i], high = codes[i] >> 4;
        const float first = scale * ls_code_value(c, low & c.greatest);
        x[i] = c.has_zero && (low & sign) ? -first : first;
        if (block != LS_Q4_BLOCK) continue;
        const float second = scale * ls_code_value(c, high & c.greatest);
        x[i + block / 2] = c.has_zero && (high & sign) ? -second : second;
    }
}

LS_INLINE int32_t code_of_moment(float x, float inverse, uint32_t random, ls_moment_code c)
{
    const int32_t code =
        ls_code_of(c, fabsf(x) * inverse, c.has_zero ? random & 0xffffu : random >> 16);
    return c.has_zero && x < 0.0f ? code | (c.greatest + 1) : code;
}

/* Returns the scale.  first: the index of x[0] in its tensor. */
LS_INLINE float pack(uint8_t *codes, const float *x, int64_t first, uint32_t random, int64_t block,
                     ls_moment_code c)
{
    const float scale = ls_greatest(x, block), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    const int64_t n = block == LS_Q4_BLOCK ? block / 2 : block;

    LS_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        int32_t code = code_of_moment(x[i], inverse, ls_adamw_random(random, first + i), c);
        if (block == LS_Q4_BLOCK) {
            const int64_t j = i + block / 2;
            code |= code_of_moment(x[j], inverse, ls_adamw_random(random, first + j), c) << 4;
        }
        codes[i] = (uint8_t)code;
    }
    return scale;
}

LS_INLINE void update_packed(const ls_adamw_args *args, const ls_adamw_factors *factors,
                             int64_t begin, int64_t end, uint32_t random, ls_dtype dtype,
                             ls_dtype g_dtype, int32_t moments)
{
    const ls_adamw_args a = *args;
    const ls_adamw_factors f = *factors;
    const int64_t block = moments == LS_MOMENTS_Q4 ? LS_Q4_BLOCK : LS_Q8_BLOCK;
    const int64_t block_bytes = moments == LS_MOMENTS_Q4 ? block / 2 : block;
    const ls_moment_code m_code = moments == LS_MOMENTS_Q4 ? LS_Q4_M : LS_Q8_M;
    const ls_moment_code v_code = moments == LS_MOMENTS_Q4 ? LS_Q4_V : LS_Q8_V;
    float m[LS_Q8_BLOCK], v[LS_Q8_BLOCK];

    for (int64_t first = begin; first < end; first += block) {
        const int64_t b = first / block, n = ls_min_i64(block, end - first);
        uint8_t *m_codes = (uint8_t *)a.m + b * block_bytes;
        uint8_t *v_codes = (uint8_t *)a.v + b * block_bytes;

        unpack(m, m_codes, a.m_scale[b], block, m_code);
        unpack(v, v_codes, a.v_scale[b], block, v_code);
        LS_INDEPENDENT
        for (int64_t i = 0; i < n; i++) {
            const float weight =
                ls_adamw_element(load_weight(&a, first + i, dtype),
                                 ls_load(a.g, first + i, g_dtype), &m[i], &v[i], &f);
            store_weight(&a, first + i, weight, dtype);
        }
        for (int64_t i = n; i < block; i++) m[i] = v[i] = 0.0f; /* what fills the last block */
        a.m_scale[b] = pack(m_codes, m, first, random, block, m_code);
        a.v_scale[b] = pack(v_codes, v, first, random, block, v_code);
    }
}

/* ---- by format ------------------------------------------------------------------------------- */

LS_INLINE void update_of(const ls_adamw_args *args, const ls_adamw_factors *f, int64_t begin,
                         int64_t end, uint32_t random, ls_dtype dtype, ls_dtype g_dtype)
{
    switch ((ls_moments)args->moments) {
    case LS_MOMENTS_F32:
        update_block(args, f, begin, end, random, dtype, g_dtype, LS_DTYPE_F32);
        break;
    case LS_MOMENTS_BF16:
        update_block(args, f, begin, end, random, dtype, g_dtype, LS_DTYPE_BF16);
        break;
    case LS_MOMENTS_Q8:
        update_packed(args, f, begin, end, random, dtype, g_dtype, LS_MOMENTS_Q8);
        break;
    case LS_MOMENTS_Q4:
        update_packed(args, f, begin, end, random, dtype, g_dtype, LS_MOMENTS_Q4);
        break;
    case LS_MOMENTS_COUNT: break;
    }
}

static void update(const ls_adamw_args *args, const ls_adamw_factors *f, int64_t begin, int64_t end,
                   uint32_t random)
{
    const int bf16 = args->dtype == LS_DTYPE_BF16, g_bf16 = args->g_dtype == LS_DTYPE_BF16;

    if (bf16 && g_bf16)
        update_of(args, f, begin, end, random, LS_DTYPE_BF16, LS_DTYPE_BF16);
    else if (bf16)
        update_of(args, f, begin, end, random, LS_DTYPE_BF16, LS_DTYPE_F32);
    else if (g_bf16)
        update_of(args, f, begin, end, random, LS_DTYPE_F32, LS_DTYPE_BF16);
    else
        update_of(args, f, begin, end, random, LS_DTYPE_F32, LS_DTYPE_F32);
}

/* ---- what it is measured against ------------------------------------------------------------- */

/* Bits are toggled, so that the values stay what floating-point units and caches meet in training.
 */
LS_INLINE void pass_elements(const ls_adamw_args *args, int64_t begin, int64_t n, ls_dtype dtype,
                             ls_dtype g_dtype)
{
    const ls_adamw_args a = *args;
    float *m = a.m, *v = a.v;

    LS_INDEPENDENT
    for (int64_t i = begin; i < begin + n; i++) {
        const uint32_t g = g_dtype == LS_DTYPE_BF16 ? ((const ls_bf16 *)a.g)[i]
                                                    : ls_f32_bits(((const float *)a.g)[i]);
        m[i] = ls_f32_from_bits(ls_f32_bits(m[i]) ^ 1u);
        v[i] = ls_f32_from_bits(ls_f32_bits(v[i]) ^ (g & 1u));
        if (dtype == LS_DTYPE_BF16) {
            ((ls_bf16 *)a.w)[i] ^= 1u;
            a.lo[i] = (int16_t)(a.lo[i] ^ 1);
        } else {
            ((float *)a.w)[i] = ls_f32_from_bits(ls_f32_bits(((float *)a.w)[i]) ^ 1u);
        }
    }
}

LS_INLINE void pass_block(const ls_adamw_args *args, int64_t begin, int64_t end, ls_dtype dtype,
                          ls_dtype g_dtype)
{
    int64_t i = begin;
    for (; i + PIECE <= end; i += PIECE) {
        prefetch(args, i + LS_ADAMW_PREFETCH, dtype, g_dtype, LS_DTYPE_F32);
        pass_elements(args, i, PIECE, dtype, g_dtype);
    }
    pass_elements(args, i, end - i, dtype, g_dtype);
}

static void traffic(const ls_adamw_args *args, const ls_adamw_factors *f, int64_t begin,
                    int64_t end, uint32_t random)
{
    const int bf16 = args->dtype == LS_DTYPE_BF16, g_bf16 = args->g_dtype == LS_DTYPE_BF16;

    (void)f;
    (void)random;
    if (bf16 && g_bf16)
        pass_block(args, begin, end, LS_DTYPE_BF16, LS_DTYPE_BF16);
    else if (bf16)
        pass_block(args, begin, end, LS_DTYPE_BF16, LS_DTYPE_F32);
    else if (g_bf16)
        pass_block(args, begin, end, LS_DTYPE_F32, LS_DTYPE_BF16);
    else
        pass_block(args, begin, end, LS_DTYPE_F32, LS_DTYPE_F32);
}

const ls_adamw_kernel LS_ADAMW_KERNEL = {
    .name = LS_ADAMW_NAME, .update = update, .traffic = traffic};
