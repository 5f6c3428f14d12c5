/*
 * test_index_products.c - matrix products and attention whose operands have just below, at and
 * above 2^16 rows or elements, or 2^31 elements; every kernel of this machine, results compared
 * bit for bit.
 *
 *   test_index_products [far]
 */
#include "index_test.h"

#include "cpu/attention_tile.h"
#include "cpu/matmul.h"

/* A workspace of the size that the op asks for, of which only what is used takes memory. */
static void run_op(ls_op op, ls_op_args *args, void **workspace)
{
    const uint64_t bytes = tested_ops->workspace_bytes(op, args);
    *workspace = bytes > 0 ? malloc(bytes) : NULL;
    assert_true(bytes == 0 || *workspace != NULL);
    assert_int_equal(ls_ops_run(tested_ops, op, NULL, args), LS_OK);
    free(*workspace);
}

/* ---- matmul ---------------------------------------------------------------------------------- */

enum { FEW = 2 }; /* rows or columns of the small sides */

static void run_matmul(ls_matmul_args args)
{
    ls_op_args any = {.matmul = args};
    run_op(LS_OP_matmul, &any, &any.matmul.workspace);
}

/* c [N, FEW] = big [N, D] small [D, FEW], or its transpose: c [FEW, N] = small^T big^T. */
static void check_long_side(const edge_rows *e, ls_dtype dtype, int is_b)
{
    far_tensor big = make_far_rows(e, dtype, 1.0);
    void *small = make_integers(FEW * e->D, dtype, 1, 2); /* [FEW, D] */
    float *c = make_buffer(e->N * FEW, F32);
    double ones[FEW] = {0.0};
    int64_t edge = 0;

    fill_edges(&big, e, 2, 2);
    for (int64_t i = 0; i < FEW * e->D; i++) ones[i / e->D] += get(small, i, dtype);
    if (is_b)
        run_matmul((ls_matmul_args){.c = c,
                                    .a = small,
                                    .b = big.data,
                                    .M = FEW,
                                    .N = e->N,
                                    .K = e->D,
                                    .trans_b = 1,
                                    .ab_dtype = dtype,
                                    .c_dtype = F32});
    else
        run_matmul((ls_matmul_args){.c = c,
                                    .a = big.data,
                                    .b = small,
                                    .M = e->N,
                                    .N = FEW,
                                    .K = e->D,
                                    .trans_b = 1,
                                    .ab_dtype = dtype,
                                    .c_dtype = F32});
    for (int64_t n = 0; n < e->N; n++) {
        const bool is_edge = edge < e->n && e->rows[edge] == n;
        for (int64_t f = 0; f < FEW; f++) {
            double expected = is_edge ? 0.0 : ones[f];
            for (int64_t d = 0; is_edge && d < e->D; d++)
                expected += value(&big, e, edge, d) * get(small, f * e->D + d, dtype);
            assert_true((double)c[is_b ? f * e->N + n : n * FEW + f] == expected);
        }
        edge += is_edge;
    }
    free_far(&big);
    free_buffer(small);
    free_buffer(c);
}

/* c [D, FEW] = big^T [D, N] small [N, FEW], a weight gradient; or c [FEW, D] = small^T big. */
static void check_long_sum(const edge_rows *e, ls_dtype dtype, int is_b)
{
    far_tensor big = make_far_rows(e, dtype, 1.0);
    void *small = make_buffer(e->N * FEW, dtype); /* [N, FEW] */
    float *c = make_buffer(e->D * FEW, F32);

    fill_edges(&big, e, 3, 2);
    for (int64_t i = 0; i < e->N * FEW; i++) put(small, i, dtype, (double)(1 + i % FEW));
    if (is_b)
        run_matmul((ls_matmul_args){.c = c,
                                    .a = small,
                                    .b = big.data,
                                    .M = FEW,
                                    .N = e->D,
                                    .K = e->N,
                                    .trans_a = 1,
                                    .ab_dtype = dtype,
                                    .c_dtype = F32});
    else
        run_matmul((ls_matmul_args){.c = c,
                                    .a = big.data,
                                    .b = small,
                                    .M = e->D,
                                    .N = FEW,
                                    .K = e->N,
                                    .trans_a = 1,
                                    .ab_dtype = dtype,
                                    .c_dtype = F32});
    for (int64_t d = 0; d < e->D; d++)
        for (int64_t f = 0; f < FEW; f++) {
            double expected = (double)(e->N - e->n);
            for (int64_t i = 0; i < e->n; i++) expected += value(&big, e, i, d);
            expected *= (double)(1 + f);
            assert_true((double)c[is_b ? f * e->D + d : d * FEW + f] == expected);
        }
    free_far(&big);
    free_buffer(small);
    free_buffer(c);
}

/* c [N, D] of one term: rows of one number times a row of ones. */
static void check_large_result(const edge_rows *e, ls_dtype dtype)
{
    far_tensor c = make_far_rows(e, dtype, NAN);
    void *a = make_buffer(e->N, dtype), *b = make_buffer(e->D, dtype);

    for (int64_t n = 0; n < e->N; n++) put(a, n, dtype, 3.0);
    for (int64_t d = 0; d < e->D; d++) put(b, d, dtype, 2.0);
    for (int64_t i = 0; i < e->n; i++) put(a, e->rows[i], dtype, (double)(i - 20));
    run_matmul((ls_matmul_args){.c = c.data,
                                .a = a,
                                .b = b,
                                .M = e->N,
                                .N = e->D,
                                .K = 1,
                                .ab_dtype = dtype,
                                .c_dtype = dtype});
    for (int64_t i = 0; i < e->n; i++)
        for (int64_t d = 0; d < e->D; d++)
            expect_at(&c, at(e, i, d), 2.0 * (double)(i - 20), "product");
    assert_rest(&c, e, 6.0);
    free_far(&c);
    free_buffer(a);
    free_buffer(b);
}

static void check_products(const edge_rows *e, ls_dtype dtype)
{
    for (int is_b = 0; is_b < 2; is_b++) {
        check_long_side(e, dtype, is_b);
        check_long_sum(e, dtype, is_b);
    }
    check_large_result(e, dtype);
}

/* All kernels; of 2^31 elements the one that would be chosen, for each takes its time. */
static void check_matmul(const edge_rows *e)
{
    FOR_EACH_DTYPE(dtype)
    {
        for (int variant = 1; variant < LS_MATMUL_VARIANT_COUNT && !far; variant++)
            if (ls_cpu_matmul_force((ls_matmul_variant)variant, dtype)) check_products(e, dtype);
        ls_cpu_matmul_force(LS_MATMUL_VARIANT_AUTO, dtype);
        if (far) check_products(e, dtype);
    }
}

static void multiplies_large_matrices(void **state)
{
    (void)state;
    for_each_shape(check_matmul);
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { KEYS = 300 };

static int64_t head_width(int64_t D)
{
    return D % 64 == 0 ? 64 : D % 8 == 0 ? 8 : 2;
}

/* Scores of 0: queries have only the first half of a head, keys only the second. */
static void keep_half(void *x, int64_t first, int64_t n, ls_dtype dtype, int64_t K, int half)
{
    for (int64_t i = first; i < first + n; i++)
        if (i % K / (K / 2) != half) put(x, i, dtype, 0.0);
}

/* All rows lie behind the keys and see none, but for the edge rows: the last, or the last few. */
static int64_t *make_starts(const edge_rows *e, const int64_t *n_seen)
{
    int64_t *doc_start = make_buffer(e->N, LS_DTYPE_I64);
    for (int64_t n = 0; n < e->N; n++) doc_start[n] = KEYS + n;
    for (int64_t i = 0; i < e->n; i++) doc_start[e->rows[i]] = KEYS - n_seen[i];
    return doc_start;
}

/* One key: its value (a weight of e^0 within an ulp), and the score as LSE.  Two or four under a
 * query of 0: their mean. */
static void check_many_queries(const edge_rows *e, ls_dtype dtype)
{
    const int64_t K = head_width(e->D), H = e->D / K;
    far_tensor q = make_far_rows(e, dtype, 1.0), o = make_far_rows(e, dtype, NAN);
    far_tensor *all[] = {&q, &o};
    void *k = make_integers(KEYS * K, dtype, 4, 2), *v = make_integers(KEYS * K, dtype, 5, 25);
    float *lse = make_buffer(e->N * H, F32);
    int64_t n_seen[EDGE_ROWS_MAX];

    fill_edges(&q, e, 6, 2);
    for (int64_t i = 0; i < KEYS * K; i++) put(v, i, dtype, 4.0 * get(v, i, dtype));
    for (int64_t i = 0; i < e->n; i++) {
        n_seen[i] = 1 << i % 3;
        for (int64_t d = 0; d < e->D && n_seen[i] > 1; d++) put(q.data, at(e, i, d), dtype, 0.0);
    }
    int64_t *doc_start = make_starts(e, n_seen);
    ls_op_args args = {.attention_forward = {.o = o.data,
                                             .lse = lse,
                                             .q = q.data,
                                             .k = k,
                                             .v = v,
                                             .doc_start = doc_start,
                                             .N = e->N,
                                             .M = KEYS,
                                             .H = H,
                                             .G = 1,
                                             .K = K,
                                             .q_start = KEYS,
                                             .scale = 1.0f,
                                             .last = 1,
                                             .dtype = dtype}};
    run_op(LS_OP_attention_forward, &args, &args.attention_forward.workspace);
    for (int64_t i = 0; i < e->n; i++) {
        for (int64_t d = 0; d < e->D; d++) {
            double mean = 0.0;
            for (int64_t j = KEYS - n_seen[i]; j < KEYS; j++)
                mean += get(v, j * K + d % K, dtype) / (double)n_seen[i];
            assert_true(fabs(value(&o, e, i, d) - mean) <= 2e-7 * fabs(mean));
        }
        for (int64_t h = 0; h < H; h++) {
            double score = log((double)n_seen[i]);
            for (int64_t d = 0; d < K; d++)
                score += value(&q, e, i, h * K + d) * get(k, (KEYS - 1) * K + d, dtype);
            assert_true(fabs((double)lse[e->rows[i] * H + h] - score) <= 1e-6 * fabs(score) + 1e-7);
        }
    }
    assert_rest(&o, e, 0.0);
    free_fars(all, COUNT_OF(all));
    void *buffers[] = {k, v, lse, doc_start};
    for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
}

/* d_o v - delta of a head of a row */
static double find_ds(const far_tensor *d_o, const edge_rows *e, int64_t i, int64_t h,
                      const void *v_row, double delta)
{
    const int64_t K = head_width(e->D);
    double ds = -delta;
    for (int64_t d = 0; d < K; d++) ds += value(d_o, e, i, h * K + d) * get(v_row, d, d_o->dtype);
    return ds;
}

/* Every edge row sees the last key with probability 1, so that all gradients are integers. */
static void check_many_query_gradients(const edge_rows *e, ls_dtype dtype)
{
    const int64_t K = head_width(e->D), H = e->D / K, last = (KEYS - 1) * K;
    far_tensor q = make_far_rows(e, dtype, 1.0), d_o = make_far_rows(e, dtype, 1.0);
    far_tensor dq = make_far_rows(e, F32, NAN), *all[] = {&q, &d_o, &dq};
    void *k = make_integers(KEYS * K, dtype, 7, 2), *v = make_integers(KEYS * K, dtype, 8, 1);
    float *lse = make_buffer(e->N * H, F32), *delta = make_buffer(e->N * H, F32);
    float *dk = make_buffer(KEYS * K, F32), *dv = make_buffer(KEYS * K, F32);
    double *dk_sum = make_doubles(K), *dv_sum = make_doubles(K);
    int64_t n_seen[EDGE_ROWS_MAX];

    fill_edges(&q, e, 9, 2);
    fill_edges(&d_o, e, 10, 1);
    keep_half(k, 0, KEYS * K, dtype, K, 1);
    for (int64_t i = 0; i < e->n; i++) {
        n_seen[i] = 1;
        keep_half(q.data, at(e, i, 0), e->D, dtype, K, 0);
    }
    for (int64_t i = 0; i < e->N * H; i++) {
        lse[i] = 0.0f;
        delta[i] = (float)(i % 7);
    }
    for (int64_t i = 0; i < KEYS * K; i++) dk[i] = dv[i] = 0.0f;
    for (int64_t i = 0; i < K; i++) dk_sum[i] = dv_sum[i] = 0.0;
    int64_t *doc_start = make_starts(e, n_seen);
    ls_op_args args = {.attention_backward = {.dq = (float *)dq.data,
                                              .dk = dk,
                                              .dv = dv,
                                              .q = q.data,
                                              .k = k,
                                              .v = v,
                                              .d_o = d_o.data,
                                              .lse = lse,
                                              .delta = delta,
                                              .doc_start = doc_start,
                                              .N = e->N,
                                              .M = KEYS,
                                              .H = H,
                                              .G = 1,
                                              .K = K,
                                              .q_start = KEYS,
                                              .scale = 1.0f,
                                              .dtype = dtype}};
    run_op(LS_OP_attention_backward, &args, &args.attention_backward.workspace);
    for (int64_t i = 0; i < e->n; i++)
        for (int64_t h = 0; h < H; h++) {
            const double ds =
                find_ds(&d_o, e, i, h, (char *)v + last * (int64_t)ls_dtype_bytes(dtype),
                        (double)delta[e->rows[i] * H + h]);
            for (int64_t d = 0; d < K; d++) {
                expect_at(&dq, at(e, i, h * K + d), ds * get(k, last + d, dtype), "dq");
                dk_sum[d] += ds * value(&q, e, i, h * K + d);
                dv_sum[d] += value(&d_o, e, i, h * K + d);
            }
        }
    for (int64_t d = 0; d < K; d++)
        assert_true((double)dk[last + d] == dk_sum[d] && (double)dv[last + d] == dv_sum[d]);
    for (int64_t d = 0; d < last; d++) assert_true(dk[d] == 0.0f && dv[d] == 0.0f);
    assert_rest(&dq, e, 0.0);
    free_fars(all, COUNT_OF(all));
    void *buffers[] = {k, v, lse, delta, dk, dv, dk_sum, dv_sum, doc_start};
    for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
}

/* One query at each edge key, which it sees alone: forward gives its value, backward adds to its
 * gradients and to no other's. */
static void check_many_keys(const edge_rows *e, ls_dtype dtype)
{
    const int64_t K = head_width(e->D), G = e->D / K;
    far_tensor k = make_far_rows(e, dtype, 1.0), v = make_far_rows(e, dtype, 1.0);
    far_tensor dk = make_far_rows(e, F32, 0.0), dv = make_far_rows(e, F32, 0.0);
    far_tensor *all[] = {&k, &v, &dk, &dv};
    void *q = make_integers(e->D, dtype, 11, 2), *o = make_buffer(e->D, dtype);
    void *d_o = make_integers(e->D, dtype, 12, 1);
    float *lse = make_buffer(G, F32), *delta = make_buffer(G, F32), *dq = make_buffer(e->D, F32);

    fill_edges(&k, e, 13, 2);
    fill_edges(&v, e, 14, 1);
    keep_half(q, 0, e->D, dtype, K, 0);
    for (int64_t i = 0; i < e->n; i++) keep_half(k.data, at(e, i, 0), e->D, dtype, K, 1);
    for (int64_t g = 0; g < G; g++) delta[g] = (float)(g % 5);
    for (int64_t i = 0; i < e->n; i++) {
        const int64_t key = e->rows[i];
        ls_op_args forward = {.attention_forward = {.o = o,
                                                    .lse = lse,
                                                    .q = q,
                                                    .k = k.data,
                                                    .v = v.data,
                                                    .doc_start = &key,
                                                    .N = 1,
                                                    .M = e->N,
                                                    .H = G,
                                                    .G = G,
                                                    .K = K,
                                                    .q_start = key,
                                                    .scale = 1.0f,
                                                    .last = 1,
                                                    .dtype = dtype}};
        ls_op_args backward = {.attention_backward = {.dq = dq,
                                                      .dk = (float *)dk.data,
                                                      .dv = (float *)dv.data,
                                                      .q = q,
                                                      .k = k.data,
                                                      .v = v.data,
                                                      .d_o = d_o,
                                                      .lse = lse,
                                                      .delta = delta,
                                                      .doc_start = &key,
                                                      .N = 1,
                                                      .M = e->N,
                                                      .H = G,
                                                      .G = G,
                                                      .K = K,
                                                      .q_start = key,
                                                      .scale = 1.0f,
                                                      .dtype = dtype}};
        run_op(LS_OP_attention_forward, &forward, &forward.attention_forward.workspace);
        run_op(LS_OP_attention_backward, &backward, &backward.attention_backward.workspace);
        for (int64_t d = 0; d < e->D; d++) {
            double ds = -(double)delta[d / K];
            for (int64_t j = d / K * K; j < d / K * K + K; j++)
                ds += get(d_o, j, dtype) * value(&v, e, i, j);
            assert_true(get(o, d, dtype) == value(&v, e, i, d) && lse[d / K] == 0.0f);
            assert_true((double)dq[d] == ds * value(&k, e, i, d));
            expect_at(&dk, at(e, i, d), ds * get(q, d, dtype), "dk");
            expect_at(&dv, at(e, i, d), get(d_o, d, dtype), "dv");
        }
    }
    assert_rest(&dk, e, 0.0);
    assert_rest(&dv, e, 0.0);
    free_fars(all, COUNT_OF(all));
    void *buffers[] = {q, o, d_o, lse, delta, dq};
    for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
}

/* Of 2^31 elements once by each kernel, else by the one that would be chosen. */
static bool takes_part(const edge_rows *e, ls_dtype dtype, int variant)
{
    if (!ls_cpu_attention_force((ls_attention_variant)variant)) return false;
    return !far || variant == LS_ATTENTION_VARIANT_AUTO || (dtype == BF && e->N == far_shapes[0].N);
}

static void check_attention(const edge_rows *e)
{
    if (e->D > 4096) return; /* thousands of heads */
    FOR_EACH_DTYPE(dtype) for (int variant = 0; variant < LS_ATTENTION_VARIANT_COUNT; variant++)
    {
        if (!takes_part(e, dtype, variant)) continue;
        check_many_queries(e, dtype);
        check_many_query_gradients(e, dtype);
        check_many_keys(e, dtype);
    }
    ls_cpu_attention_force(LS_ATTENTION_VARIANT_AUTO);
}

static void attends_over_many_rows(void **state)
{
    (void)state;
    for_each_shape(check_attention);
}

static void check_delta(const edge_rows *e)
{
    const int64_t K = head_width(e->D), H = e->D / K;
    far_tensor d_o = make_far_rows(e, BF, 2.0), o = make_far_rows(e, BF, 3.0), *all[] = {&d_o, &o};
    float *delta = make_buffer(e->N * H, F32);
    int64_t edge = 0;

    fill_edges(&d_o, e, 15, 9);
    fill_edges(&o, e, 16, 9);
    RUN_OP(attention_delta, .delta = delta, .d_o = d_o.data, .o = o.data, .N = e->N, .H = H, .K = K,
           .dtype = BF);
    for (int64_t n = 0; n < e->N; n++) {
        const bool is_edge = edge < e->n && e->rows[edge] == n;
        for (int64_t h = 0; h < H; h++) {
            double expected = is_edge ? 0.0 : 6.0 * (double)K;
            for (int64_t d = h * K; is_edge && d < h * K + K; d++)
                expected += value(&d_o, e, edge, d) * value(&o, e, edge, d);
            assert_true((double)delta[n * H + h] == expected);
        }
        edge += is_edge;
    }
    free_fars(all, COUNT_OF(all));
    free_buffer(delta);
}

static void multiplies_rows(void **state)
{
    (void)state;
    for_each_shape(check_delta);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(multiplies_large_matrices),
        cmocka_unit_test(attends_over_many_rows),
        cmocka_unit_test(multiplies_rows),
    };
    far = wants_far(argc, argv);
    if (!far) ls_cpu_threads_set(1); /* many calls, little work */
    return cmocka_run_group_tests_name("index of products", tests, NULL, NULL);
}
