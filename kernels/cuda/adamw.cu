/*
 * adamw.cu - one AdamW update, eight elements to a thread, all in fp32, with the CPU's bits:
 * the same operations in the same order, none contracted.  About 15 FLOPs and 28 bytes per
 * parameter (w, lo, m, v read and written, g read): bound by memory.
 */
#include "element.cuh"

/* What all elements share, each rounded to fp32 once from a double expression. */
struct update_factors {
    float coefficient, decay, beta2, one_minus_beta1, one_minus_beta2;
    float step, root_correction2, eps;
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
    f.root_correction2 = static_cast<float>(sqrt(1.0 - control->beta2_power));
    f.eps = args.eps;
    return f;
}

/* The new weight; m and v are updated in place. */
LS_DEVICE float update_element(float weight, float gradient, float *m, float *v,
                               const update_factors &f)
{
    const float g = gradient * f.coefficient;
    const float decayed = weight - f.decay * weight;
    const float m_new = *m + f.one_minus_beta1 * (g - *m);
    const float v_new = f.beta2 * *v + f.one_minus_beta2 * g * g;
    const float denominator = sqrtf(v_new) / f.root_correction2 + f.eps;
    *m = m_new;
    *v = v_new;
    return decayed - f.step * m_new / denominator;
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

template <typename T>
__global__ void __launch_bounds__(LS_THREADS) adamw_kernel(ls_adamw_args args, bool vector)
{
    LS_SHARED(update_factors, factors);
    const int64_t i = ls_element_index();
    float w[LS_EIGHT], m[LS_EIGHT], v[LS_EIGHT], g[LS_EIGHT];

    if (args.control->skip) return; /* all blocks alike */
    if (threadIdx.x == 0) *factors = derive_factors(args);
    __syncthreads();
    load_weights(w, static_cast<T *>(args.w), args.lo, i, args.n, vector);
    ls_load8(m, args.m, i, args.n, vector);
    ls_load8(v, args.v, i, args.n, vector);
    ls_load8(g, args.g, i, args.n, vector);
    for (int k = 0; k < LS_EIGHT; k++) w[k] = update_element(w[k], g[k], &m[k], &v[k], *factors);
    store_weights(static_cast<T *>(args.w), args.lo, i, args.n, vector, w);
    ls_store8(args.m, i, args.n, vector, m);
    ls_store8(args.v, i, args.n, vector, v);
}

ls_status ls_cuda_adamw(void *stream, const ls_adamw_args *args)
{
    assert(args->n >= 0);
    assert((args->lo != NULL) == (args->dtype == LS_DTYPE_BF16) || args->n == 0);
    if (args->n == 0) return LS_OK;
    LS_DISPATCH(args->dtype, {
        return ls_launch("adamw", adamw_kernel<T>, ls_element_grid(args->n), LS_THREADS,
                         sizeof(update_factors), stream, *args,
                         ls_is_aligned(args->w, args->lo, args->m, args->v, args->g));
    });
}
