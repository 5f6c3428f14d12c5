/*
 * adamw_test.h - what the tests of AdamW share: a parameter with its state in any format, and one
 * step of it.  The control of each step comes from norm_finish, as in a run.
 *
 * Layer: tests.  Header only.
 */
#ifndef LS_ADAMW_TEST_H
#define LS_ADAMW_TEST_H

#include "cpu/adamw.h"
#include "ops_test.h"

/* An emulated GPU takes its time for each of them. */
#if defined(LS_TEST_CUDA)
enum { MANY_STEPS = 50 };
#else
enum { MANY_STEPS = 1000 };
#endif

typedef struct hyper {
    double lr;
    float beta1, beta2, eps, weight_decay, lr_scale, clip_norm;
} hyper;

static const hyper usual = {.lr = 1e-2,
                            .beta1 = 0.9f,
                            .beta2 = 0.95f,
                            .eps = 1e-8f,
                            .weight_decay = 0.1f,
                            .lr_scale = 1.0f};

typedef struct formats {
    ls_dtype dtype, g_dtype;
    ls_moments moments;
} formats;

/* One parameter tensor and its state; lo is NULL with F32 weights, scales where there are none. */
typedef struct parameter {
    void *w, *m, *v, *g;
    int16_t *lo;
    float *m_scale, *v_scale;
    int64_t n, n_moments, n_scales;
    formats f;
} parameter;

static inline float get_master(const parameter *p, int64_t i)
{
    return p->f.dtype == LS_DTYPE_BF16 ? ls_master_join(((const ls_bf16 *)p->w)[i], p->lo[i])
                                       : ((const float *)p->w)[i];
}

static inline void put_master(const parameter *p, int64_t i, float master)
{
    if (p->f.dtype == LS_DTYPE_BF16) {
        ((ls_bf16 *)p->w)[i] = ls_master_hi(master);
        p->lo[i] = ls_master_lo(master);
    } else {
        ((float *)p->w)[i] = master;
    }
}

static inline void *make_zeros(int64_t n, ls_dtype dtype)
{
    void *data = make_buffer(n, dtype);
    memset(data, 0, (size_t)n * ls_dtype_bytes(dtype));
    return data;
}

/* These weights, moments of zero, a gradient of NaN. */
static inline parameter make_parameter(int64_t n, formats f, const float *weights)
{
    const ls_dtype m_dtype = ls_moments_dtype(f.moments);
    parameter p = {.n = n,
                   .f = f,
                   .n_moments = ls_moments_elements(f.moments, n),
                   .n_scales = ls_moments_scales(f.moments, n)};

    p.w = make_buffer(n, f.dtype);
    if (f.dtype == LS_DTYPE_BF16) p.lo = make_buffer(n, LS_DTYPE_I16);
    for (int64_t i = 0; i < n; i++) put_master(&p, i, weights[i]);
    p.m = make_zeros(p.n_moments, m_dtype);
    p.v = make_zeros(p.n_moments, m_dtype);
    if (p.n_scales > 0) {
        p.m_scale = make_zeros(p.n_scales, LS_DTYPE_F32);
        p.v_scale = make_zeros(p.n_scales, LS_DTYPE_F32);
    }
    p.g = make_buffer(n, f.g_dtype);
    return p;
}

/* Weights in [-1, 1). */
static inline parameter make_noisy_parameter(int64_t n, formats f, uint64_t seed)
{
    float *weights = make_noise(n, LS_DTYPE_F32, seed, 1.0);
    const parameter p = make_parameter(n, f, weights);
    free_buffer(weights);
    return p;
}

/* The same with buffers of its own; the gradient is shared. */
static inline parameter copy_parameter(const parameter *p)
{
    const ls_dtype m_dtype = ls_moments_dtype(p->f.moments);
    parameter copy = *p;

    copy.w = make_copy(p->w, p->n, p->f.dtype);
    if (p->lo != NULL) copy.lo = make_copy(p->lo, p->n, LS_DTYPE_I16);
    copy.m = make_copy(p->m, p->n_moments, m_dtype);
    copy.v = make_copy(p->v, p->n_moments, m_dtype);
    if (p->n_scales > 0) {
        copy.m_scale = make_copy(p->m_scale, p->n_scales, LS_DTYPE_F32);
        copy.v_scale = make_copy(p->v_scale, p->n_scales, LS_DTYPE_F32);
    }
    copy.g = NULL;
    return copy;
}

static inline void free_parameter(parameter *p)
{
    void *buffers[] = {p->w, p->lo, p->m, p->v, p->m_scale, p->v_scale, p->g};
    for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
}

/* Every byte of weights and state. */
static inline void assert_same_parameter(const parameter *a, const parameter *b)
{
    const ls_dtype m_dtype = ls_moments_dtype(a->f.moments);

    assert_same_bits(a->w, b->w, a->n, a->f.dtype);
    if (a->lo != NULL) assert_same_bits(a->lo, b->lo, a->n, LS_DTYPE_I16);
    assert_same_bits(a->m, b->m, a->n_moments, m_dtype);
    assert_same_bits(a->v, b->v, a->n_moments, m_dtype);
    if (a->n_scales == 0) return;
    assert_same_bits(a->m_scale, b->m_scale, a->n_scales, LS_DTYPE_F32);
    assert_same_bits(a->v_scale, b->v_scale, a->n_scales, LS_DTYPE_F32);
}

static inline ls_update_control make_control(double lr)
{
    return (ls_update_control){.beta1_power = 1.0, .beta2_power = 1.0, .lr = lr};
}

static inline void finish_norm(ls_update_control *control, double sum, const hyper *h)
{
    RUN_OP(norm_finish, .control = control, .sums = &sum, .n = 1, .clip_norm = h->clip_norm,
           .beta1 = h->beta1, .beta2 = h->beta2);
}

static inline ls_adamw_args make_args(const parameter *p, const void *g,
                                      const ls_update_control *control, const hyper *h)
{
    return (ls_adamw_args){.w = p->w,
                           .lo = p->lo,
                           .m = p->m,
                           .v = p->v,
                           .m_scale = p->m_scale,
                           .v_scale = p->v_scale,
                           .g = g,
                           .control = control,
                           .n = p->n,
                           .stream = 5,
                           .beta1 = h->beta1,
                           .beta2 = h->beta2,
                           .eps = h->eps,
                           .weight_decay = h->weight_decay,
                           .lr_scale = h->lr_scale,
                           .moments = (int32_t)p->f.moments,
                           .dtype = p->f.dtype,
                           .g_dtype = p->f.g_dtype};
}

static inline void update(const parameter *p, const ls_update_control *control, const hyper *h)
{
    const ls_adamw_args args = make_args(p, p->g, control, h);
    assert_int_equal(tested_ops->adamw(NULL, &args), LS_OK);
}

/* The body runs with each kernel that this machine has. */
#if defined(LS_TEST_CUDA)
#define FOR_EACH_KERNEL(name) for (int name = 0; name < 1; name++)
#else
#define FOR_EACH_KERNEL(name)                                                                      \
    for (int name = LS_ADAMW_VARIANT_SCALAR; name < LS_ADAMW_VARIANT_COUNT + 1;                    \
         name++, ls_cpu_adamw_force(LS_ADAMW_VARIANT_AUTO))                                        \
        if (name < LS_ADAMW_VARIANT_COUNT && ls_cpu_adamw_force((ls_adamw_variant)name))
#endif

#endif
