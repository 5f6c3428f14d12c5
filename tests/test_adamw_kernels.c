/*
 * test_adamw_kernels.c - every instruction set's AdamW gives the bits of the scalar one, in every
 * format, at every tail, on ordinary, huge, tiny, denormal and zero values; and all of them give
 * the bits that are written down here, whatever the processor or its vector length.
 */
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include "adamw_test.h"

#define FOR_EACH_MOMENTS(name)                                                                     \
    for (ls_moments name = LS_MOMENTS_F32; name < LS_MOMENTS_COUNT; name = (ls_moments)(name + 1))

/* Exponents from the denormals to 2^60, zeros among them. */
static void fill_wild(void *g, int64_t n, ls_dtype dtype, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        const double fraction = 2.0 * ls_rng_uniform(seed, 1, (uint64_t)i) - 1.0;
        const int exponent = (int)ls_rng_below(seed, 2, (uint64_t)i, 205) - 145;
        const int zero = ls_rng_below(seed, 3, (uint64_t)i, 16) == 0;
        put(g, i, dtype, zero ? 0.0 : ldexp(fraction, exponent));
    }
}

enum { STEPS = 4, ELEMENTS_MAX = 3 * 4096 + 333 };

/* What every run starts from and meets, made once. */
static float first_weights[ELEMENTS_MAX];
static void *gradients[2][STEPS]; /* by dtype: [ELEMENTS_MAX] */

static int make_inputs(void **state)
{
    (void)state;
    for (int64_t i = 0; i < ELEMENTS_MAX; i++)
        first_weights[i] = (float)(2.0 * ls_rng_uniform(1, 76, (uint64_t)i) - 1.0);
    FOR_EACH_DTYPE(dtype) for (uint64_t step = 0; step < STEPS; step++)
    {
        gradients[dtype][step] = make_noise(ELEMENTS_MAX, dtype, step, 1e-2);
        if (step % 2 == 1) fill_wild(gradients[dtype][step], ELEMENTS_MAX, dtype, step);
    }
    return 0;
}

static int free_inputs(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype)
    for (int step = 0; step < STEPS; step++) free_buffer(gradients[dtype][step]);
    return 0;
}

/* Some steps, two of which are wild; the last of them far in the run. */
static parameter run_steps(int64_t n, formats f)
{
    const hyper h = {.lr = 1e-2,
                     .beta1 = 0.9f,
                     .beta2 = 0.95f,
                     .eps = 1e-8f,
                     .weight_decay = 0.1f,
                     .lr_scale = 0.75f,
                     .clip_norm = 1.0f};
    parameter p = make_parameter(n, f, first_weights);
    ls_update_control control = make_control(h.lr);

    for (int step = 0; step < STEPS; step++) {
        finish_norm(&control, step == 0 ? 4.0 : 0.25, &h);
        if (step == STEPS - 1) control.beta1_power = control.beta2_power = 0.0; /* 10^6 steps */
        const ls_adamw_args args = make_args(&p, gradients[f.g_dtype][step], &control, &h);
        assert_int_equal(tested_ops->adamw(NULL, &args), LS_OK);
    }
    return p;
}

static void check_against_scalar(int64_t n, formats f)
{
    assert_true(ls_cpu_adamw_force(LS_ADAMW_VARIANT_SCALAR));
    parameter expected = run_steps(n, f);
    FOR_EACH_KERNEL(kernel)
    {
        parameter p = run_steps(n, f);
        assert_same_parameter(&p, &expected);
        free_parameter(&p);
    }
    free_parameter(&expected);
}

static void all_kernels_give_the_scalar_bits(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype) FOR_EACH_DTYPE(g_dtype) FOR_EACH_MOMENTS(moments)
    {
        const formats f = {dtype, g_dtype, moments};
        const int64_t tails = moments < LS_MOMENTS_Q8 ? 130 : 20;
        for (int64_t n = 0; n <= tails; n++) check_against_scalar(n, f);
        check_against_scalar(255, f);
        check_against_scalar(257, f);
        check_against_scalar(4096 + 129, f);
    }
}

/* FNV-1a over everything that run_steps leaves. */
static uint64_t hash_bytes(uint64_t hash, const void *data, int64_t n, ls_dtype dtype)
{
    const unsigned char *bytes = data;
    for (uint64_t i = 0; i < (uint64_t)n * ls_dtype_bytes(dtype); i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

static uint64_t hash_parameter(const parameter *p)
{
    const ls_dtype m_dtype = ls_moments_dtype(p->f.moments);
    uint64_t hash = hash_bytes(0xcbf29ce484222325u, p->w, p->n, p->f.dtype);
    if (p->lo != NULL) hash = hash_bytes(hash, p->lo, p->n, LS_DTYPE_I16);
    hash = hash_bytes(hash, p->m, p->n_moments, m_dtype);
    hash = hash_bytes(hash, p->v, p->n_moments, m_dtype);
    if (p->n_scales == 0) return hash;
    hash = hash_bytes(hash, p->m_scale, p->n_scales, LS_DTYPE_F32);
    return hash_bytes(hash, p->v_scale, p->n_scales, LS_DTYPE_F32);
}

static void all_machines_give_these_bits(void **state)
{
    (void)state;
    static const uint64_t hashes[2][2][LS_MOMENTS_COUNT] = {
        {{0x3227eadc90074285u, 0xc29b79c077e7635fu, 0xc77a250ca6c5f0acu, 0x1b1536f49dc54188u},
         {0x719a6db6bb9df5bcu, 0xaa1b471e0e9258d4u, 0x596049a22c4243acu, 0x86980d305a00d184u}},
        {{0x14743b0204a25bf9u, 0x3a4d634b1d9f9117u, 0x857779e2b87e793eu, 0xeedd5025e06b4bb3u},
         {0x91047266a2a05a73u, 0xa721f06f389dcbbau, 0xd88eb9b39c18e33cu, 0xa74751aba328189fu}}};
    int wrong = 0;

    FOR_EACH_DTYPE(dtype) FOR_EACH_DTYPE(g_dtype) FOR_EACH_MOMENTS(moments)
    {
        FOR_EACH_KERNEL(kernel) FOR_EACH_THREADS(n_threads)
        {
            const formats f = {dtype, g_dtype, moments};
            parameter p = run_steps(ELEMENTS_MAX, f);
            const uint64_t hash = hash_parameter(&p);
            free_parameter(&p);
            if (hash == hashes[dtype][g_dtype][moments]) continue;
            wrong++;
            print_error("weights %s, gradient %s, moments %d, kernel %d, %d threads: 0x%016llx\n",
                        ls_dtype_name(dtype), ls_dtype_name(g_dtype), moments, kernel, n_threads,
                        (unsigned long long)hash);
        }
    }
    assert_int_equal(wrong, 0);
}

/* What the speed is measured against must read and write the same bytes. */
static void the_traffic_touches_every_byte(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype) FOR_EACH_KERNEL(kernel)
    {
        const formats f = {dtype, LS_DTYPE_F32, LS_MOMENTS_F32};
        ls_update_control control = make_control(1e-2);
        parameter p = make_parameter(4096 + 99, f, first_weights);
        for (int64_t i = 0; i < p.n; i++) ((float *)p.g)[i] = ls_f32_from_bits(0x3f800001u);
        parameter before = copy_parameter(&p);
        const ls_adamw_args args = make_args(&p, p.g, &control, &usual);
        ls_cpu_adamw_traffic(&args);
        for (int64_t i = 0; i < p.n; i++) {
            assert_true(get_master(&p, i) != get_master(&before, i));
            assert_true(ls_f32_bits(((float *)p.m)[i]) == 1u);
            assert_true(ls_f32_bits(((float *)p.v)[i]) == 1u);
            if (dtype == LS_DTYPE_BF16) assert_int_equal(p.lo[i] ^ before.lo[i], 1);
        }
        free_parameter(&before);
        free_parameter(&p);
    }
}

/* An emulator may give another vector length than it was asked for. */
static void check_vector_bits(int expected)
{
#if defined(__aarch64__) && defined(__linux__)
    enum { SVE_GET_VL = 51, LENGTH_MASK = 0xffff }; /* PR_SVE_GET_VL, linux/prctl.h */
    const int bits = 8 * (prctl(SVE_GET_VL, 0, 0, 0, 0) & LENGTH_MASK);
#else
    const int bits = 0;
#endif
    if (bits == expected) return;
    fprintf(stderr, "SVE vectors of %d bits, not of %d\n", bits, expected);
    exit(1);
}

/* An argument is the length of SVE vectors, in bits, that there must be. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_kernels_give_the_scalar_bits),
        cmocka_unit_test(all_machines_give_these_bits),
        cmocka_unit_test(the_traffic_touches_every_byte),
    };
    if (argc > 1) check_vector_bits(atoi(argv[1]));
    return cmocka_run_group_tests_name("adamw_kernels", tests, make_inputs, free_inputs);
}
