/*
 * test_cross_entropy.c - the loss against its formula in double, its gradient against central
 * differences, vocabularies from 1 to 152064, and rows that must not pass for a good step.
 */
#include <float.h>

#include "ops_test.h"

static double measure_nll(const double *x, int64_t V, int64_t target)
{
    double maximum = x[0], sum = 0.0;
    for (int64_t i = 1; i < V; i++) maximum = x[i] > maximum ? x[i] : maximum;
    for (int64_t i = 0; i < V; i++) sum += exp(x[i] - maximum);
    return log(sum) + maximum - x[target];
}

static void derive_gradient(double *dx, const double *x, int64_t V, int64_t target, double scale)
{
    const double nll = measure_nll(x, V, target);
    for (int64_t i = 0; i < V; i++)
        dx[i] = (exp(x[i] - x[target] - nll) - (i == target ? 1.0 : 0.0)) * scale;
}

/* scale * sum over rows of nll, the scalar whose gradient the op returns. */
typedef struct loss_terms {
    const double *x;
    const int32_t *targets;
    int64_t N, V;
    double scale;
} loss_terms;

static double sum_losses(const void *context)
{
    const loss_terms *terms = context;
    double loss = 0.0;
    for (int64_t n = 0; n < terms->N; n++)
        loss += measure_nll(terms->x + n * terms->V, terms->V, terms->targets[n]);
    return loss * terms->scale;
}

static void the_formula_is_the_gradient(void **state)
{
    (void)state;
    const int64_t N = 2, V = 7;
    const int32_t targets[2] = {6, 2};
    double *x = make_doubles(N * V), *dx = make_doubles(N * V), *numeric = make_doubles(N * V);
    fill_noise(x, N * V, LS_DTYPE_F64, 1, 3.0);
    const loss_terms terms = {x, targets, N, V, 0.25};
    for (int64_t n = 0; n < N; n++)
        derive_gradient(dx + n * V, x + n * V, V, targets[n], terms.scale);
    differentiate(numeric, x, N * V, 1e-5, sum_losses, &terms);
    assert_close(dx, LS_DTYPE_F64, numeric, N * V, 1e-8);
    free_buffer(x);
    free_buffer(dx);
    free_buffer(numeric);
}

static void check_shape(int64_t N, int64_t V, double range, ls_dtype dtype)
{
    const float scale = 1.0f / 96.0f;
    float *logits = make_noise(N * V, LS_DTYPE_F32, 2, range), *nll = make_buffer(N, LS_DTYPE_F32);
    float *nll_alone = make_buffer(N, LS_DTYPE_F32);
    void *dlogits = make_buffer(N * V, dtype);
    int32_t *targets = make_buffer(N, LS_DTYPE_I32);
    double *x = make_doubles_of(logits, N * V, LS_DTYPE_F32);
    double *nll_d = make_doubles(N), *dlogits_d = make_doubles(N * V);

    for (int64_t n = 0; n < N; n++) {
        targets[n] = n == 0   ? (int32_t)V - 1
                     : n == 1 ? 0
                              : (int32_t)ls_rng_below(3, 4, (uint64_t)n, (uint64_t)V);
        nll_d[n] = measure_nll(x + n * V, V, targets[n]);
        derive_gradient(dlogits_d + n * V, x + n * V, V, targets[n], (double)scale);
    }
    RUN_OP(cross_entropy, .dlogits = dlogits, .nll = nll, .logits = logits, .targets = targets,
           .scale = &scale, .N = N, .V = V, .dtype = dtype);
    assert_close(nll, LS_DTYPE_F32, nll_d, N, 1e-6);
    assert_close(dlogits, dtype, dlogits_d, N * V, tolerance_of(dtype));
    RUN_OP(cross_entropy, .nll = nll_alone, .logits = logits, .targets = targets, .N = N, .V = V,
           .dtype = dtype);
    assert_same_bits(nll_alone, nll, N, LS_DTYPE_F32); /* evaluation sees the same loss */

    void *buffers[] = {logits, nll, nll_alone, dlogits, targets, x, nll_d, dlogits_d};
    for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
}

static void loss_and_gradient_match_the_formula(void **state)
{
    (void)state;
    FOR_EACH_DTYPE(dtype)
    {
        for (int64_t V = 2; V <= 36; V++) check_shape(3, V, 5.0, dtype);
        check_shape(1, 257, 10.0, dtype);
        check_shape(7, 257, 0.1, dtype);
        check_shape(3, 2048, 10.0, dtype);
        check_shape(3, 2049, 10.0, dtype);
        check_shape(2, 50257, 20.0, dtype);
        check_shape(2, 152064, 5.0, dtype);
    }
}

static void one_logit_is_certain(void **state)
{
    (void)state;
    const float logits[2] = {7.0f, -1e30f}, scale = 1.0f;
    const int32_t targets[2] = {0, 0};
    float nll[2], dlogits[2];
    RUN_OP(cross_entropy, .dlogits = dlogits, .nll = nll, .logits = logits, .targets = targets,
           .scale = &scale, .N = 2, .V = 1, .dtype = LS_DTYPE_F32);
    assert_true(nll[0] == 0.0f && nll[1] == 0.0f && dlogits[0] == 0.0f && dlogits[1] == 0.0f);
}

/* Equal logits sum to V exactly: nothing in the sum may be lost or counted twice. */
static void equal_logits_give_log_v(void **state)
{
    (void)state;
    static const int64_t sizes[] = {2, 15, 16, 17, 257, 2047, 2048, 2049, 4097, 152064};
    for (int64_t t = 0; t < COUNT_OF(sizes); t++) {
        const int64_t V = sizes[t];
        const int32_t target = (int32_t)V / 2;
        float *logits = make_buffer(V, LS_DTYPE_F32), nll;
        for (int64_t i = 0; i < V; i++) logits[i] = -3.5f;
        RUN_OP(cross_entropy, .nll = &nll, .logits = logits, .targets = &target, .N = 1, .V = V,
               .dtype = LS_DTYPE_F32);
        assert_true(nll == (float)log((double)V));
        free_buffer(logits);
    }
}

static void ignored_rows_count_nothing(void **state)
{
    (void)state;
    const int64_t N = 4, V = 37;
    const int32_t targets[4] = {LS_TARGET_IGNORE, 3, LS_TARGET_IGNORE, 5};
    const float scale = 0.5f;
    FOR_EACH_DTYPE(dtype)
    {
        float *logits = make_noise(N * V, LS_DTYPE_F32, 5, 2.0),
              *nll = make_buffer(N, LS_DTYPE_F32);
        void *dlogits = make_buffer(N * V, dtype);
        logits[2 * V + 1] = NAN; /* nobody looks at it */
        RUN_OP(cross_entropy, .dlogits = dlogits, .nll = nll, .logits = logits, .targets = targets,
               .scale = &scale, .N = N, .V = V, .dtype = dtype);
        assert_true(nll[0] == 0.0f && nll[2] == 0.0f && nll[1] > 0.0f && nll[3] > 0.0f);
        for (int64_t n = 0; n < N; n++)
            for (int64_t i = 0; i < V; i++)
                assert_true((get(dlogits, n * V + i, dtype) == 0.0) == (n % 2 == 0));
        RUN_OP(cross_entropy, .nll = nll, .logits = logits, .targets = targets, .N = N, .V = V,
               .dtype = dtype);
        assert_true(nll[0] == 0.0f && nll[2] == 0.0f);
        free_buffer(logits);
        free_buffer(nll);
        free_buffer(dlogits);
    }
}

static void huge_logits_stay_finite(void **state)
{
    (void)state;
    enum { N = 5, V = 33 };
    const int32_t targets[N] = {0, 1, 2, 3, 32};
    const float scale = 1.0f, huge[N] = {FLT_MAX, -FLT_MAX, 1e30f, -1e30f, FLT_MAX};
    float logits[N * V], nll[N], dlogits[N * V];
    for (int64_t n = 0; n < N; n++)
        for (int64_t i = 0; i < V; i++) logits[n * V + i] = i % 2 == 0 ? huge[n] : 0.0f;
    logits[4 * V + 32] = -FLT_MAX; /* twice FLT_MAX below the others */
    RUN_OP(cross_entropy, .dlogits = dlogits, .nll = nll, .logits = logits, .targets = targets,
           .scale = &scale, .N = N, .V = V, .dtype = LS_DTYPE_F32);
    for (int64_t n = 0; n < N; n++) assert_true(isfinite(nll[n]) && nll[n] >= 0.0f);
    for (int i = 0; i < N * V; i++) assert_true(isfinite(dlogits[i]));
    assert_true(fabsf(nll[0] - logf(17.0f)) < 1e-6f && nll[4] == FLT_MAX);
    assert_true(dlogits[4 * V + 32] == -1.0f);
}

/* The maximum must be the largest, not the longest: far below 0 any other makes exp overflow. */
static void negative_logits_are_ordered(void **state)
{
    (void)state;
    enum { V = 35 };
    for (int32_t target = 0; target < V; target++) {
        float logits[V], nll;
        for (int i = 0; i < V; i++) logits[i] = -1000.0f - 100.0f * (float)((i + 11) % V);
        RUN_OP(cross_entropy, .nll = &nll, .logits = logits, .targets = &target, .N = 1, .V = V,
               .dtype = LS_DTYPE_F32);
        assert_true(nll == 100.0f * (float)((target + 11) % V));
    }
}

/* Wherever it stands, in whichever column, one bad logit must show in the loss and the gradient. */
static void a_logit_that_is_not_finite_spoils_its_row(void **state)
{
    (void)state;
    const int64_t V = 37;
    static const float bad[] = {INFINITY, -INFINITY, NAN, -NAN};
    const float scale = 1.0f;
    FOR_EACH_DTYPE(dtype)
    for (int64_t b = 0; b < COUNT_OF(bad); b++)
        for (int64_t at = 0; at < V; at++) {
            const int32_t targets[2] = {5, 5};
            float *logits = make_noise(2 * V, LS_DTYPE_F32, 6, 2.0), nll[2];
            void *dlogits = make_buffer(2 * V, dtype);
            logits[V + at] = bad[b];
            RUN_OP(cross_entropy, .dlogits = dlogits, .nll = nll, .logits = logits,
                   .targets = targets, .scale = &scale, .N = 2, .V = V, .dtype = dtype);
            assert_true(isfinite(nll[0]) && !isfinite(nll[1]));
            for (int64_t i = 0; i < V; i++) {
                assert_true(isfinite(get(dlogits, i, dtype)));
                assert_true(isnan(get(dlogits, V + i, dtype)));
            }
            free_buffer(logits);
            free_buffer(dlogits);
        }
}

static void every_build_gives_the_same_bits(void **state)
{
    (void)state;
    static const uint64_t hashes[2][2] = {{0x4303a5d2177f47a7u, 0xd2fd51494377b47fu},
                                          {0x4303a5d2177f47a7u, 0x5877711ffde03287u}};
    FOR_EACH_DTYPE(dtype) FOR_EACH_THREADS(n_threads)
    {
        const int64_t N = 7, V = 5003;
        const float scale = 0.125f;
        float *logits = make_noise(N * V, LS_DTYPE_F32, 7, 8.0),
              *nll = make_buffer(N, LS_DTYPE_F32);
        void *dlogits = make_buffer(N * V, dtype);
        int32_t targets[7];
        for (int32_t n = 0; n < N; n++) targets[n] = n * 700;
        RUN_OP(cross_entropy, .dlogits = dlogits, .nll = nll, .logits = logits, .targets = targets,
               .scale = &scale, .N = N, .V = V, .dtype = dtype);
        assert_hash(nll, N, LS_DTYPE_F32, hashes[dtype][0]);
        assert_hash(dlogits, N * V, dtype, hashes[dtype][1]);
        free_buffer(logits);
        free_buffer(nll);
        free_buffer(dlogits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_formula_is_the_gradient),
        cmocka_unit_test(loss_and_gradient_match_the_formula),
        cmocka_unit_test(one_logit_is_certain),
        cmocka_unit_test(equal_logits_give_log_v),
        cmocka_unit_test(ignored_rows_count_nothing),
        cmocka_unit_test(huge_logits_stay_finite),
        cmocka_unit_test(negative_logits_are_ordered),
        cmocka_unit_test(a_logit_that_is_not_finite_spoils_its_row),
        cmocka_unit_test(every_build_gives_the_same_bits),
    };
    return cmocka_run_group_tests_name("cross_entropy", tests, NULL, NULL);
}
