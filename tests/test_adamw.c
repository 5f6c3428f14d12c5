/*
 * test_adamw.c - AdamW bit for bit against PyTorch's order of operations written one element at a
 * time, against the same in double over 100 steps, and the promise that a skipped step changes no
 * byte.  The control of each step comes from norm_finish, as in a run.
 */
#include "ops_test.h"

static const float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;

/* One parameter tensor and its state; lo is NULL with F32 weights. */
typedef struct parameter {
    void *w;
    int16_t *lo;
    float *m, *v, *g;
    int64_t n;
    ls_dtype dtype;
} parameter;

static float get_master(const parameter *p, int64_t i)
{
    return p->dtype == LS_DTYPE_BF16 ? ls_master_join(((const ls_bf16 *)p->w)[i], p->lo[i])
                                     : ((const float *)p->w)[i];
}

static parameter make_parameter(int64_t n, ls_dtype dtype, uint64_t seed)
{
    parameter p = {.n = n, .dtype = dtype};
    float *master = make_noise(n, LS_DTYPE_F32, seed, 1.0);
    p.m = make_integers(n, LS_DTYPE_F32, 0, 0); /* zeros */
    p.v = make_integers(n, LS_DTYPE_F32, 0, 0);
    p.g = make_noise(n, LS_DTYPE_F32, seed + 1, 1.0);
    p.w = make_buffer(n, dtype);
    if (dtype == LS_DTYPE_BF16) {
        p.lo = make_buffer(n, LS_DTYPE_I16);
        for (int64_t i = 0; i < n; i++) {
            ((ls_bf16 *)p.w)[i] = ls_master_hi(master[i]);
            p.lo[i] = ls_master_lo(master[i]);
        }
    } else {
        memcpy(p.w, master, (size_t)n * sizeof *master);
    }
    free_buffer(master);
    return p;
}

static void free_parameter(parameter *p)
{
    void *buffers[] = {p->w, p->lo, p->m, p->v, p->g};
    for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
}

static ls_update_control make_control(double lr)
{
    return (ls_update_control){.beta1_power = 1.0, .beta2_power = 1.0, .lr = lr};
}

static void finish_norm(ls_update_control *control, double sum, float clip_norm)
{
    RUN_OP(norm_finish, .control = control, .sums = &sum, .n = 1, .clip_norm = clip_norm,
           .beta1 = beta1, .beta2 = beta2);
}

static void update(const parameter *p, const ls_update_control *control, float lr_scale)
{
    RUN_OP(adamw, .w = p->w, .lo = p->lo, .m = p->m, .v = p->v, .g = p->g, .control = control,
           .n = p->n, .beta1 = beta1, .beta2 = beta2, .eps = eps, .weight_decay = weight_decay,
           .lr_scale = lr_scale, .dtype = p->dtype);
}

/*
 * One element as PyTorch's single-tensor AdamW does it (torch/optim/adamw.py), scalars in double
 * and rounded to fp32 where they meet a tensor; the decay as w -= c w, not w *= 1 - c, so that a
 * decay below 2^-24 is not lost.
 */
static void step_element(float *w, float *m, float *v, float g, const ls_update_control *control,
                         float lr_scale)
{
    const double lr = control->lr * (double)lr_scale;
    const double correction1 = 1.0 - control->beta1_power;
    const double correction2 = 1.0 - control->beta2_power;
    const float decay = (float)(lr * (double)weight_decay);
    const float step_size = (float)(lr / correction1);
    const float one_minus_beta1 = (float)(1.0 - (double)beta1);
    const float one_minus_beta2 = (float)(1.0 - (double)beta2);
    volatile float t; /* every operation rounds on its own */

    g = g * control->coefficient;
    t = decay * *w;
    *w = *w - t;
    t = g - *m;
    t = one_minus_beta1 * t;
    *m = *m + t; /* exp_avg.lerp_(grad, 1 - beta1) */
    t = one_minus_beta2 * g;
    t = t * g;
    volatile float scaled = beta2 * *v;
    *v = scaled + t; /* exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2) */
    t = sqrtf(*v);
    t = t / (float)sqrt(correction2);
    volatile float denominator = t + eps;
    t = step_size * *m;
    t = t / denominator;
    *w = *w - t; /* param.addcdiv_(exp_avg, denom, value=-step_size) */
}

/* Five steps of the op and of step_element from the same start, on every bit. */
static void check_length(int64_t n, ls_dtype dtype)
{
    parameter p = make_parameter(n, dtype, 1);
    float *w = make_buffer(n, LS_DTYPE_F32), *m = make_copy(p.m, n, LS_DTYPE_F32);
    float *v = make_copy(p.v, n, LS_DTYPE_F32);
    ls_update_control control = make_control(1e-2);

    for (int64_t i = 0; i < n; i++) w[i] = get_master(&p, i);
    for (uint64_t step = 0; step < 5; step++) {
        fill_noise(p.g, n, LS_DTYPE_F32, 10 + step, step == 3 ? 1e-6 : 1.0);
        finish_norm(&control, 4.0, 1.0f); /* clips to a half */
        update(&p, &control, 0.75f);
        for (int64_t i = 0; i < n; i++) step_element(&w[i], &m[i], &v[i], p.g[i], &control, 0.75f);
        for (int64_t i = 0; i < n; i++) {
            const float master = get_master(&p, i);
            assert_memory_equal(&master, &w[i], sizeof master);
        }
        assert_same_bits(p.m, m, n, LS_DTYPE_F32);
        assert_same_bits(p.v, v, n, LS_DTYPE_F32);
    }
    free_parameter(&p);
    free_buffer(w);
    free_buffer(m);
    free_buffer(v);
}

static void every_bit_follows_pytorchs_order(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype)
    {
        for (int64_t n = 0; n <= 35; n++) check_length(n, dtype);
        check_length(4095, dtype);
        check_length(4097, dtype);
        check_length(9001, dtype);
    }
}

/* A hundred steps stay near the same optimizer in double: the split master loses nothing. */
static void a_hundred_steps_stay_near_double(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype)
    {
        const int64_t n = 101;
        parameter p = make_parameter(n, dtype, 3);
        double *w = make_doubles(n), *m = make_doubles(n), *v = make_doubles(n);
        double *moved = make_doubles(n), *moved_expected = make_doubles(n);
        ls_update_control control = make_control(1e-3);

        for (int64_t i = 0; i < n; i++) {
            w[i] = moved[i] = moved_expected[i] = (double)get_master(&p, i);
            m[i] = v[i] = 0.0;
        }
        for (int step = 1; step <= 100; step++) {
            fill_noise(p.g, n, LS_DTYPE_F32, 100 + (uint64_t)step, 1.0);
            finish_norm(&control, 1.0, 0.0f);
            update(&p, &control, 1.0f);
            for (int64_t i = 0; i < n; i++) {
                const double g = (double)p.g[i], b1 = (double)beta1, b2 = (double)beta2;
                w[i] -= control.lr * (double)weight_decay * w[i];
                m[i] = b1 * m[i] + (1.0 - b1) * g;
                v[i] = b2 * v[i] + (1.0 - b2) * g * g;
                w[i] -= control.lr * (m[i] / (1.0 - pow(b1, step))) /
                        (sqrt(v[i] / (1.0 - pow(b2, step))) + (double)eps);
            }
        }
        for (int64_t i = 0; i < n; i++) { /* how far it moved, or w itself would hide an error */
            moved[i] = (double)get_master(&p, i) - moved[i];
            moved_expected[i] = w[i] - moved_expected[i];
        }
        assert_close(moved, LS_DTYPE_F64, moved_expected, n, 2e-5);
        assert_close(p.m, LS_DTYPE_F32, m, n, TOLERANCE_F32);
        assert_close(p.v, LS_DTYPE_F32, v, n, TOLERANCE_F32);
        void *buffers[] = {w, m, v, moved, moved_expected};
        for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
        free_parameter(&p);
    }
}

/* With lr below a bf16 step, the weight alone would never move; its remainder does. */
static void small_updates_are_not_lost(void **state)
{
    (void)state;
    parameter p = make_parameter(1, LS_DTYPE_BF16, 5);
    ((ls_bf16 *)p.w)[0] = ls_master_hi(1.0f);
    p.lo[0] = ls_master_lo(1.0f);
    p.g[0] = 1.0f;
    ls_update_control control = make_control(1e-5);
    for (int step = 0; step < 1000; step++) {
        finish_norm(&control, 1.0, 0.0f);
        update(&p, &control, 1.0f);
    }
    const double expected = 1.0 - 1000 * 1e-5 - 1000 * 1e-6; /* steps and decay */
    assert_true(fabs((double)get_master(&p, 0) - expected) < 1e-4);
    assert_true(((ls_bf16 *)p.w)[0] == ls_master_hi((float)expected));
    free_parameter(&p);
}

static void check_skip(ls_dtype dtype, double bad_sum)
{
    const int64_t n = 4133;
    parameter p = make_parameter(n, dtype, 7);
    ls_update_control control = make_control(1e-2);
    finish_norm(&control, 1.0, 0.0f);
    update(&p, &control, 1.0f); /* so that m and v hold something */

    void *w = make_copy(p.w, n, dtype), *m = make_copy(p.m, n, LS_DTYPE_F32);
    void *v = make_copy(p.v, n, LS_DTYPE_F32);
    void *lo = p.lo != NULL ? make_copy(p.lo, n, LS_DTYPE_I16) : NULL;
    p.g[17] = (float)bad_sum;
    finish_norm(&control, bad_sum, 1.0f);
    assert_int_equal(control.skip, 1);
    update(&p, &control, 1.0f);
    assert_same_bits(p.w, w, n, dtype);
    assert_same_bits(p.m, m, n, LS_DTYPE_F32);
    assert_same_bits(p.v, v, n, LS_DTYPE_F32);
    if (lo != NULL) assert_same_bits(p.lo, lo, n, LS_DTYPE_I16);

    p.g[17] = 1.0f;
    finish_norm(&control, 1.0, 0.0f);
    update(&p, &control, 1.0f);
    assert_memory_not_equal(p.m, m, (size_t)n * sizeof(float)); /* and the next step does */
    void *buffers[] = {w, m, v, lo};
    for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
    free_parameter(&p);
}

static void a_skipped_step_changes_no_byte(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype)
    {
        check_skip(dtype, (double)NAN);
        check_skip(dtype, (double)INFINITY);
        check_skip(dtype, 0x1p126);
    }
}

static void every_build_gives_the_same_bits(void **state)
{
    (void)state;
    static const uint64_t hashes[2][4] = {
        {0x671942a37963ba71u, 0x6d1fcf7c4a673f3eu, 0x25a2183d09ee5612u, 0},
        {0x4e370fd04506bd41u, 0x6d1fcf7c4a673f3eu, 0x25a2183d09ee5612u, 0x09abb3b09f77eeeeu}};
    FOR_EACH_DTYPE(dtype) FOR_EACH_THREADS(n_threads)
    {
        const int64_t n = 12345;
        parameter p = make_parameter(n, dtype, 8);
        ls_update_control control = make_control(1e-2);
        for (uint64_t step = 0; step < 3; step++) {
            fill_noise(p.g, n, LS_DTYPE_F32, 20 + step, 2.0);
            finish_norm(&control, 9.0, 1.0f);
            update(&p, &control, 1.0f);
        }
        assert_hash(p.w, n, dtype, hashes[dtype][0]);
        assert_hash(p.m, n, LS_DTYPE_F32, hashes[dtype][1]);
        assert_hash(p.v, n, LS_DTYPE_F32, hashes[dtype][2]);
        if (p.lo != NULL) assert_hash(p.lo, n, LS_DTYPE_I16, hashes[dtype][3]);
        free_parameter(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_follows_pytorchs_order),
        cmocka_unit_test(a_hundred_steps_stay_near_double),
        cmocka_unit_test(small_updates_are_not_lost),
        cmocka_unit_test(a_skipped_step_changes_no_byte),
        cmocka_unit_test(every_build_gives_the_same_bits),
    };
    return cmocka_run_group_tests_name("adamw", tests, NULL, NULL);
}
