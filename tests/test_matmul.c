/*
 * test_matmul.c - every matrix multiplication this machine can run, against the sum in double.
 */
#include "ops_test.h"

#include <pthread.h>

#include "cpu/matmul.h"

typedef struct problem {
    int64_t M, N, K;
    int trans_a, trans_b, accumulate;
    ls_dtype ab_dtype, c_dtype;
} problem;

static const struct {
    ls_dtype ab, c;
} dtypes[] = {
    {LS_DTYPE_F32, LS_DTYPE_F32}, {LS_DTYPE_BF16, LS_DTYPE_BF16}, {LS_DTYPE_BF16, LS_DTYPE_F32}};

/* Sizes around 1, 16, 32, 64, 96, 128, and beyond each kernel's blocks, in rows and columns of one
 * strip of terms and of several. */
static const int64_t sizes[][3] = {
    {1, 1, 1},       {1, 7, 63},     {7, 1, 2},      {5, 130, 1},    {16, 16, 32},   {17, 31, 33},
    {63, 65, 130},   {64, 128, 64},  {97, 129, 193}, {130, 63, 65},  {33, 17, 1100}, {31, 1100, 7},
    {160, 96, 577},  {1100, 33, 40}, {2, 3, 2100},   {36, 2080, 34}, {48, 64, 96},   {96, 96, 1024},
    {257, 272, 256}, {3, 270, 1000}, {148, 3, 1026}, {2, 258, 1026},
};

/* Run f for each variant this machine has, for operands of each dtype. */
static void for_each_kernel(void (*f)(problem *p))
{
    const int n_variants = tested_ops == &ls_ops_cpu ? LS_MATMUL_VARIANT_COUNT : 1;
    for (int variant = 0; variant < n_variants; variant++)
        for (int64_t d = 0; d < COUNT_OF(dtypes); d++) {
            if (!ls_cpu_matmul_force((ls_matmul_variant)variant, dtypes[d].ab)) continue;
            problem p = {.ab_dtype = dtypes[d].ab, .c_dtype = dtypes[d].c};
            f(&p);
            ls_cpu_matmul_force(LS_MATMUL_VARIANT_AUTO, dtypes[d].ab);
        }
}

static void multiply(void *c, const void *a, const void *b, const problem *p)
{
    ls_matmul_args args = {.c = c,
                           .a = a,
                           .b = b,
                           .M = p->M,
                           .N = p->N,
                           .K = p->K,
                           .trans_a = p->trans_a,
                           .trans_b = p->trans_b,
                           .accumulate = p->accumulate,
                           .ab_dtype = p->ab_dtype,
                           .c_dtype = p->c_dtype};
    const uint64_t bytes = tested_ops->workspace_bytes(LS_OP_matmul, &(ls_op_args){.matmul = args});
    args.workspace = bytes > 0 ? make_bytes(bytes) : NULL;
    assert_int_equal(tested_ops->matmul(NULL, &args), LS_OK);
    free_buffer(args.workspace);
}

/* expected[M, N] = (accumulate ? c : 0) + op(a) op(b) */
static void multiply_in_double(double *expected, const void *c, const void *a, const void *b,
                               const problem *p)
{
    double *x = make_doubles_of(a, p->M * p->K, p->ab_dtype);
    double *y = make_doubles_of(b, p->K * p->N, p->ab_dtype);
    const int64_t am = p->trans_a ? 1 : p->K, ak = p->trans_a ? p->M : 1;
    const int64_t bn = p->trans_b ? p->K : 1, bk = p->trans_b ? 1 : p->N;
    for (int64_t m = 0; m < p->M; m++) {
        double *row = expected + m * p->N;
        for (int64_t n = 0; n < p->N; n++)
            row[n] = p->accumulate ? get(c, m * p->N + n, p->c_dtype) : 0.0;
        for (int64_t k = 0; k < p->K; k++)
            for (int64_t n = 0; n < p->N; n++) row[n] += x[m * am + k * ak] * y[n * bn + k * bk];
    }
    free_buffer(x);
    free_buffer(y);
}

static void check_product(const problem *p, int integers, double tolerance)
{
    const int64_t n_a = p->M * p->K, n_b = p->K * p->N, n_c = p->M * p->N;
    void *a = integers ? make_integers(n_a, p->ab_dtype, 1, 3) : make_noise(n_a, p->ab_dtype, 1, 1);
    void *b = integers ? make_integers(n_b, p->ab_dtype, 2, 3) : make_noise(n_b, p->ab_dtype, 2, 1);
    void *c = make_buffer(n_c, p->c_dtype); /* NaN: must not be read unless accumulating */
    if (p->accumulate && integers) fill_integers(c, n_c, p->c_dtype, 3, 100);
    if (p->accumulate && !integers) fill_noise(c, n_c, p->c_dtype, 3, 4.0);
    double *expected = make_doubles(n_c);

    multiply_in_double(expected, c, a, b, p);
    multiply(c, a, b, p);
    const double error = relative_error(c, p->c_dtype, expected, n_c);
    if (!(error <= tolerance))
        print_error("%s: M %d N %d K %d trans %d %d accumulate %d c %s\n",
                    ls_cpu_matmul_kernel_name(p->ab_dtype), (int)p->M, (int)p->N, (int)p->K,
                    p->trans_a, p->trans_b, p->accumulate, ls_dtype_name(p->c_dtype));
    assert_close(c, p->c_dtype, expected, n_c, tolerance);
    free_buffer(a);
    free_buffer(b);
    free_buffer(c);
    free_buffer(expected);
}

static void check_sizes(problem *p)
{
    for (int64_t s = 0; s < COUNT_OF(sizes); s++) {
        p->M = sizes[s][0], p->N = sizes[s][1], p->K = sizes[s][2];
        for (int flags = 0; flags < 8; flags++) {
            p->trans_a = flags & 1, p->trans_b = flags >> 1 & 1, p->accumulate = flags >> 2;
            check_product(p, 0, tolerance_of(p->c_dtype));
        }
    }
}

static void matches_the_sum_in_double(void **state)
{
    (void)state;
    for_each_kernel(check_sizes);
}

static void check_integers(problem *p)
{
    static const int64_t exact[][3] = {{17, 33, 31}, {64, 96, 64}, {1, 5, 300}, {70, 40, 700}};
    if (p->c_dtype != LS_DTYPE_F32) return; /* sums beyond 256 round in bf16 */
    for (int64_t s = 0; s < COUNT_OF(exact); s++)
        for (int flags = 0; flags < 8; flags++) {
            p->M = exact[s][0], p->N = exact[s][1], p->K = exact[s][2];
            p->trans_a = flags & 1, p->trans_b = flags >> 1 & 1, p->accumulate = flags >> 2;
            check_product(p, 1, 0.0);
        }
}

static void integers_are_exact(void **state)
{
    (void)state;
    for_each_kernel(check_integers);
}

/* A c in bf16 is the one in fp32, rounded once to nearest even; here half of the sums are ties. */
static void check_rounding(problem *p)
{
    enum { M = 50, N = 100, K = 40 };
    if (p->c_dtype != LS_DTYPE_BF16) return;
    problem in_fp32 = *p;
    in_fp32.c_dtype = LS_DTYPE_F32;
    p->M = in_fp32.M = M, p->N = in_fp32.N = N, p->K = in_fp32.K = K;
    ls_bf16 *a = make_integers(M * K, LS_DTYPE_BF16, 1, 15);
    ls_bf16 *b = make_integers(K * N, LS_DTYPE_BF16, 2, 15);
    a[0] = 0xffff; /* all of row 0 becomes NaN */
    for (p->accumulate = 0; p->accumulate < 2; p->accumulate++) {
        in_fp32.accumulate = p->accumulate;
        float *sums = make_integers(M * N, LS_DTYPE_F32, 3, 100);
        ls_bf16 *c = make_integers(M * N, LS_DTYPE_BF16, 3, 100);
        multiply(sums, a, b, &in_fp32);
        multiply(c, a, b, p);
        for (int64_t i = 0; i < N; i++) assert_true(isnan(ls_bf16_to_f32(c[i])));
        for (int64_t i = N; i < M * N; i++) assert_int_equal(c[i], ls_bf16_from_f32(sums[i]));
        free_buffer(sums);
        free_buffer(c);
    }
    free_buffer(a);
    free_buffer(b);
}

static void bf16_is_rounded_once(void **state)
{
    (void)state;
    for_each_kernel(check_rounding);
}

static void check_empty(problem *p)
{
    static const int64_t empty[][3] = {{0, 5, 7}, {5, 0, 7}, {5, 7, 0}};
    for (int64_t s = 0; s < COUNT_OF(empty); s++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            p->M = empty[s][0], p->N = empty[s][1], p->K = empty[s][2];
            p->accumulate = accumulate;
            check_product(p, 0, 0.0);
        }
}

static void empty_sums_are_zero(void **state)
{
    (void)state;
    for_each_kernel(check_empty);
}

static void check_threads(problem *p)
{
    static const int64_t some[][3] = {{200, 300, 700}, {1, 300, 1100}, {300, 1, 64}};
    for (int64_t s = 0; s < COUNT_OF(some); s++)
        for (int flags = 0; flags < 4; flags++) {
            p->M = some[s][0], p->N = some[s][1], p->K = some[s][2];
            p->trans_a = flags & 1, p->trans_b = flags >> 1;
            const int64_t n_c = p->M * p->N;
            void *a = make_noise(p->M * p->K, p->ab_dtype, 1, 1.0);
            void *b = make_noise(p->K * p->N, p->ab_dtype, 2, 1.0), *first = NULL;
            FOR_EACH_THREADS(threads)
            {
                void *c = make_buffer(n_c, p->c_dtype);
                multiply(c, a, b, p);
                if (first == NULL) first = make_copy(c, n_c, p->c_dtype);
                assert_same_bits(c, first, n_c, p->c_dtype);
                free_buffer(c);
            }
            free_buffer(a);
            free_buffer(b);
            free_buffer(first);
        }
}

static void thread_count_does_not_change_bits(void **state)
{
    (void)state;
    for_each_kernel(check_threads);
}

/* Any lane's thread may call: several at once, on shapes none has seen yet. */
static void *multiply_many(void *context)
{
    const problem *given = context;
    int64_t wrong = 0;
    for (int64_t n = 1; n < 24; n++) {
        const problem p = {.M = 5,
                           .N = 40 + n,
                           .K = 33,
                           .trans_b = 1,
                           .ab_dtype = given->ab_dtype,
                           .c_dtype = given->c_dtype};
        void *a = make_integers(p.M * p.K, p.ab_dtype, 1, 2);
        void *b = make_integers(p.K * p.N, p.ab_dtype, (uint64_t)n, 2);
        void *c = make_buffer(p.M * p.N, p.c_dtype);
        double *expected = make_doubles(p.M * p.N);
        ls_cpu_threads_set(1);
        multiply(c, a, b, &p);
        multiply_in_double(expected, c, a, b, &p);
        wrong += !(relative_error(c, p.c_dtype, expected, p.M * p.N) <= 0.0);
        free_buffer(a);
        free_buffer(b);
        free_buffer(c);
        free_buffer(expected);
    }
    return wrong ? context : NULL;
}

static void check_callers(problem *p)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, multiply_many, p), 0);
    for (int i = 0; i < 4; i++) {
        void *wrong = NULL;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
}

static void several_threads_may_call_at_once(void **state)
{
    (void)state;
    for_each_kernel(check_callers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_the_sum_in_double),
        cmocka_unit_test(integers_are_exact),
        cmocka_unit_test(bf16_is_rounded_once),
        cmocka_unit_test(empty_sums_are_zero),
        cmocka_unit_test(thread_count_does_not_change_bits),
        cmocka_unit_test(several_threads_may_call_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
