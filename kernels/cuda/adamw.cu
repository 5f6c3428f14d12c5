/*
 * adamw.cu - one AdamW update, eight elements to a thread, all in fp32, with the CPU's bits: the
 * operations of kernels/cpu/adamw_element.h in the same order, none contracted but those that say
 * so.  About 15 FLOPs and 28 bytes per parameter (w, lo, m, v read and written, g read): bound by
 * memory.  Moments in fp32 only: others are the host's work.
 */
#include "element.cuh"

/* What all elements share, each rounded to fp32 once from a double expression. */
struct update_factors {
    float coefficient, decay, beta2, one_minus_beta1, one_minus_beta2;
    float step, inverse_root_correction2, eps;
};

LS_DEVICE update_factors derive_factors(const ls_adamw_args &args)
{
    const ls_update_control *control = args.control;
    const double rate = control->lr * static_cast<double>(args.lr_scale);
    update_factors f;
    f.coefficient = control->coefficient;
    f.decay = static_cast<float>(rate * static_cast<double>(args.weight_decay));
    f.beta2 = args.beta2;
    f.one_minus_beta1 = static_cast<float>(1.0 - static_cast<double>(args.beta1));
    f.one_minus_beta2 = static_cast<float>(1.0 - static_cast<double>(args.beta2));
    f.step = static_cast<float>(rate / (1.0 - control->beta1_power));
    f.inverse_root_correction2 = static_cast<float>(1.0 / sqrt(1.0 - control->beta2_power));
    f.eps = args.eps;
    return f;
}

/* Below the smallest normal number a moment becomes 0. */
LS_DEVICE float flush_moment(float moment)
{
    return fabsf(moment) < 0x1p-126f ? 0.0f : moment;
}

/* The new weight; m and v are updated in place. */
LS_DEVICE float update_element(float weight, float gradient, float *m, float *v,
                               const update_factors &f)
{
    const float g = __fmul_rn(gradient, f.coefficient);
    const float decayed = __fmaf_rn(-f.decay, weight, weight);
    const float m_new = flush_moment(__fmaf_rn(f.one_minus_beta1, __fsub_rn(g, *m), *m));
    const float v_new =
        flush_moment(__fmaf_rn(__fmul_rn(f.one_minus_beta2, g), g, __fmul_rn(f.beta2, *v)));
    const float denominator = __fmaf_rn(__fsqrt_rn(v_new), f.inverse_root_correction2, f.eps);
    *m = m_new;
    *v = v_new;
    return __fmaf_rn(-f.step, __fdiv_rn(m_new, denominator), decayed);
}

/* ---- weights: an fp32 master, or one split in two 16-bit halves (bf16.h) --------------------- */

LS_DEVICE void load_weights(float (&out)[LS_EIGHT], const float *w, const int16_t *, int64_t i,
                            int64_t n, bool vector)
{
    ls_load8(out, w, i, n, vector);
}

LS_DEVICE void store_weights(float *w, int16_t *, int64_t i, int64_t n, bool vector,
                             const float (&in)[LS_EIGHT])
{
    ls_store8(w, i, n, vector, in);
}

LS_DEVICE void load_weights(float (&out)[LS_EIGHT], const ls_bf16x *w, const int16_t *lo, int64_t i,
                            int64_t n, bool vector)
{
    alignas(16) int16_t low[LS_EIGHT];
    ls_load8(out, w, i, n, vector);
    if (vector && i + LS_EIGHT <= n)
        ls_load_words(low, lo + i);
    else
        for (int k = 0; k < LS_EIGHT; k++) low[k] = i + k < n ? lo[i + k] : static_cast<int16_t>(0);
    for (int k = 0; k < LS_EIGHT; k++)
        out[k] = __uint_as_float(__float_as_uint(out[k]) +
                                 static_cast<unsigned>(static_cast<int>(low[k])));
}

LS_DEVICE void store_weights(ls_bf16x *w, int16_t *lo, int64_t i, int64_t n, bool vector,
                             const float (&in)[LS_EIGHT])
{
    alignas(16) ls_bf16x high[LS_EIGHT];
    alignas(16) int16_t low[LS_EIGHT];
    for (int k = 0; k < LS_EIGHT; k++) {
        const unsigned bits = __float_as_uint(in[k]);
        high[k].bits = static_cast<uint16_t>((bits + 0x8000u) >> 16);
        low[k] = static_cast<int16_t>(static_cast<uint16_t>(bits));
    }
    if (vector && i + LS_EIGHT <= n) {
        ls_store_words(w + i, high);
        ls_store_words(lo + i, low);
        return;
    }
    for (int k = 0; k < LS_EIGHT && i + k < n; k++) {
        w[i + k] = high[k];
        lo[i + k] = low[k];
    }
}

template <typename T, typename G>
__global__ void __launch_bounds__(LS_THREADS) adamw_kernel(ls_adamw_args args, bool vector)
{
    LS_SHARED(update_factors, factors);
    const int64_t i = ls_element_index();
    float *const m_all = static_cast<float *>(args.m), *const v_all = static_cast<float *>(args.v);
    float w[LS_EIGHT], m[LS_EIGHT], v[LS_EIGHT], g[LS_EIGHT];

    if (args.control->skip) return; /* all blocks alike */
    if (threadIdx.x == 0) *factors = derive_factors(args);
    __syncthreads();
    load_weights(w, static_cast<T *>(args.w), args.lo, i, args.n, vector);
    ls_load8(m, m_all, i, args.n, vector);
    ls_load8(v, v_all, i, args.n, vector);
    ls_load8(g, static_cast<const G *>(args.g), i, args.n, vector);
    for (int k = 0; k < LS_EIGHT; k++) w[k] = update_element(w[k], g[k], &m[k], &v[k], *factors);
    store_weights(static_cast<T *>(args.w), args.lo, i, args.n, vector, w);
    ls_store8(m_all, i, args.n, vector, m);
    ls_store8(v_all, i, args.n, vector, v);
}

template <typename T> static ls_status launch_adamw(void *stream, const ls_adamw_args *args)
{
    const bool vector = ls_is_aligned(args->w, args->lo, args->m, args->v, args->g);
    const auto kernel =
        args->g_dtype == LS_DTYPE_BF16 ? adamw_kernel<T, ls_bf16x> : adamw_kernel<T, float>;
    return ls_launch("adamw", kernel, ls_element_grid(args->n), LS_THREADS, sizeof(update_factors),
                     stream, *args, vector);
}

ls_status ls_cuda_adamw(void *stream, const ls_adamw_args *args)
{
    assert(args->n >= 0);
    assert((args->lo != NULL) == (args->dtype == LS_DTYPE_BF16) || args->n == 0);
    if (args->moments != LS_MOMENTS_F32)
        return LS_FAIL(LS_ERR_UNSUPPORTED, "adamw on the GPU: moments in fp32 only");
    if (args->n == 0) return LS_OK;
    LS_DISPATCH(args->dtype, { return launch_adamw<T>(stream, args); });
}
