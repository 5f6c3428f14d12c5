/*
 * test_adamw_kernels.c - every instruction set's AdamW gives the bits of the scalar one, in every
 * format, at every tail, on ordinary, huge, tiny, denormal and zero values; and all of them give
 * the bits that are written down here, whatever the processor or its vector length.
 */
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
    parameter p = make_parameter(n, f, (uint64_t)n + 1);
    ls_update_control control = make_control(h.lr);

    for (uint64_t step = 0; step < 4; step++) {
        if (step % 2 == 0)
            fill_noise(p.g, n, f.g_dtype, 10 + step, 1e-2);
        else
            fill_wild(p.g, n, f.g_dtype, 10 + step);
        finish_norm(&control, step == 0 ? 4.0 : 0.25, &h);
        if (step == 3) control.beta1_power = control.beta2_power = 0.0; /* after 10^6 steps */
        update(&p, &control, &h);
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
        {{0x7b632b6ed6848be3u, 0x914b1cd52cf5f8abu, 0xed5b4a342feb951cu, 0xba0d2b7aef2596ebu},
         {0xae173550c43294e2u, 0x626cd91d3c677090u, 0x861e794f19c22adfu, 0x884fae0b2e0d5b3cu}},
        {{0x7ba8a690c4ab5ed7u, 0xe08599d37e88a0e0u, 0xa1cd5ea2ef00084cu, 0x6802bc4c8b37e97fu},
         {0xc42e6609182852abu, 0x2bd6c67e87297e62u, 0x50fbb178766ebb54u, 0xd546479448efed48u}}};
    int wrong = 0;

    FOR_EACH_DTYPE(dtype) FOR_EACH_DTYPE(g_dtype) FOR_EACH_MOMENTS(moments)
    {
        FOR_EACH_KERNEL(kernel) FOR_EACH_THREADS(n_threads)
        {
            const formats f = {dtype, g_dtype, moments};
            parameter p = run_steps(3 * 4096 + 333, f);
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
        parameter p = make_parameter(4096 + 99, f, 2);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_kernels_give_the_scalar_bits),
        cmocka_unit_test(all_machines_give_these_bits),
        cmocka_unit_test(the_traffic_touches_every_byte),
    };
    return cmocka_run_group_tests_name("adamw_kernels", tests, NULL, NULL);
}
