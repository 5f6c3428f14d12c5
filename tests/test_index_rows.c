/*
 * test_index_rows.c - the ops on rows at sizes just below, at and above 2^16 rows, columns and
 * elements, or 2^31 elements: every result compared bit for bit.
 *
 *   test_index_rows [far]
 */
#include "index_test.h"

static double to_bf16(float x)
{
    return (double)ls_bf16_to_f32(ls_bf16_from_f32(x));
}

static void fill_vector(float *x, int64_t n, float with)
{
    for (int64_t i = 0; i < n; i++) x[i] = with;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Rows of +-1, 2 or 4: the norm of each is exact. */
static void check_rmsnorm_forward(const edge_rows *e)
{
    far_tensor x = make_far_rows(e, BF, 1.0), y = make_far_rows(e, BF, NAN), *all[] = {&x, &y};
    float *r = make_buffer(e->N, F32);
    ls_bf16 *w = make_buffer(e->D, BF);
    int64_t edge = 0;

    for (int64_t d = 0; d < e->D; d++) put(w, d, BF, 2.0);
    fill_edges(&x, e, 11, 1);
    for (int64_t i = 0; i < e->n; i++)
        for (int64_t d = 0; d < e->D; d++) {
            const double size = (double)(1 << i % 3);
            put(x.data, at(e, i, d), BF, value(&x, e, i, d) < 0.0 ? -size : size);
        }
    RUN_OP(rmsnorm_forward, .y = y.data, .r = r, .x = x.data, .w = w, .N = e->N, .D = e->D,
           .eps = 0.0f, .dtype = BF);
    for (int64_t i = 0; i < e->n; i++)
        for (int64_t d = 0; d < e->D; d++)
            expect_at(&y, at(e, i, d), value(&x, e, i, d) < 0.0 ? -2.0 : 2.0, "norm");
    for (int64_t n = 0; n < e->N; n++) {
        const bool is_edge = edge < e->n && e->rows[edge] == n;
        assert_true(r[n] == (is_edge ? 1.0f / (float)(1 << edge % 3) : 1.0f));
        edge += is_edge;
    }
    assert_rest(&y, e, 2.0);
    free_fars(all, COUNT_OF(all));
    free_buffer(w);
    free_buffer(r);
}

static void norms_rows(void **state)
{
    (void)state;
    for_each_shape(check_rmsnorm_forward);
}

/* dx of an edge row by the formula of ops.h, of integers that no sum of it rounds. */
static void expect_rmsnorm_dx(const far_tensor *dx, const far_tensor *dy, const far_tensor *x,
                              const edge_rows *e, int64_t i, float r)
{
    double dot = 0.0;
    for (int64_t d = 0; d < e->D; d++) dot += 2.0 * value(dy, e, i, d) * value(x, e, i, d);
    const float along = (float)((double)r * (double)r * dot / (double)e->D);
    for (int64_t d = 0; d < e->D; d++) {
        const float g = 2.0f * (float)value(dy, e, i, d);
        expect_at(dx, at(e, i, d), to_bf16(r * (g - (float)value(x, e, i, d) * along)), "dx");
    }
}

/* Rows of ones add 1 to every column of dw and have no dx; edge rows add integers and halves. */
static void check_rmsnorm_backward(const edge_rows *e)
{
    far_tensor x = make_far_rows(e, BF, 1.0), dy = make_far_rows(e, F32, 1.0);
    far_tensor dx = make_far_rows(e, BF, NAN), *all[] = {&x, &dy, &dx};
    ls_bf16 *w = make_buffer(e->D, BF);
    float *r = make_buffer(e->N, F32), *dw = make_buffer(e->D, F32);

    for (int64_t d = 0; d < e->D; d++) put(w, d, BF, 2.0);
    fill_vector(r, e->N, 1.0f);
    for (int64_t i = 1; i < e->n; i += 2) r[e->rows[i]] = 0.5f;
    fill_edges(&x, e, 12, 3);
    fill_edges(&dy, e, 13, 3);
    RUN_OP(rmsnorm_backward, .dx = dx.data, .dw = dw, .dy = (const float *)dy.data, .x = x.data,
           .w = w, .r = r, .N = e->N, .D = e->D, .dtype = BF);
    for (int64_t d = 0; d < e->D; d++) {
        double expected = (double)(e->N - e->n);
        for (int64_t i = 0; i < e->n; i++)
            expected += value(&dy, e, i, d) * value(&x, e, i, d) * (double)r[e->rows[i]];
        assert_true((double)dw[d] == expected);
    }
    for (int64_t i = 0; i < e->n; i++) expect_rmsnorm_dx(&dx, &dy, &x, e, i, r[e->rows[i]]);
    assert_rest(&dx, e, 0.0);
    free_fars(all, COUNT_OF(all));
    free_buffer(w);
    free_buffer(r);
    free_buffer(dw);
}

static void norms_gradients(void **state)
{
    (void)state;
    for_each_shape(check_rmsnorm_backward);
}

static void check_bias(const edge_rows *e)
{
    far_tensor y = make_far_rows(e, BF, NAN), dy = make_far_rows(e, BF, 1.0), *all[] = {&y, &dy};
    ls_bf16 *b = make_buffer(e->D, BF);
    float *db = make_buffer(e->D, F32);

    for (int64_t d = 0; d < e->D; d++) put(b, d, BF, 3.0);
    fill_edges(&dy, e, 14, 100);
    RUN_OP(bias_forward, .y = y.data, .b = b, .N = e->N, .D = e->D, .dtype = BF);
    for (int64_t i = 0; i < e->n; i++)
        for (int64_t d = 0; d < e->D; d++) expect_at(&y, at(e, i, d), 3.0, "bias");
    assert_rest(&y, e, 3.0);
    RUN_OP(bias_backward, .db = db, .dy = dy.data, .N = e->N, .D = e->D, .dtype = BF);
    for (int64_t d = 0; d < e->D; d++) {
        double expected = (double)(e->N - e->n);
        for (int64_t i = 0; i < e->n; i++) expected += value(&dy, e, i, d);
        assert_true((double)db[d] == expected);
    }
    free_fars(all, COUNT_OF(all));
    free_buffer(b);
    free_buffer(db);
}

static void adds_biases(void **state)
{
    (void)state;
    for_each_shape(check_bias);
}

/* ---- embedding ------------------------------------------------------------------------------- */

/* Every row of dy counts: those of token 0 are ones, the edge rows integers of tokens 1 and 2. */
static void check_embedding_rows(const edge_rows *e)
{
    enum { V = 3 };
    far_tensor dy = make_far_rows(e, BF, 1.0);
    int32_t *tokens = make_bytes((uint64_t)e->N * sizeof *tokens);
    float *dw = make_buffer(V * e->D, F32);

    fill_vector(dw, V * e->D, 0.0f);
    memset(tokens, 0, (size_t)e->N * sizeof *tokens);
    for (int64_t i = 0; i < e->n; i++) tokens[e->rows[i]] = 1 + (int32_t)(i % 2);
    fill_edges(&dy, e, 15, 100);
    RUN_OP(embedding_backward, .dw = dw, .dy = dy.data, .tokens = tokens, .N = e->N, .D = e->D,
           .V = V, .dtype = BF);
    for (int64_t d = 0; d < e->D; d++) {
        double expected[V] = {(double)(e->N - e->n), 0.0, 0.0};
        for (int64_t i = 0; i < e->n; i++) expected[1 + i % 2] += value(&dy, e, i, d);
        for (int64_t t = 0; t < V; t++) assert_true((double)dw[t * e->D + d] == expected[t]);
    }
    free_far(&dy);
    free_buffer(tokens);
    free_buffer(dw);
}

/* A table of that many rows: tokens at its edges, each several times. */
static void check_embedding_table(const edge_rows *e)
{
    enum { TIMES = 3 };
    const int64_t n = e->n * TIMES;
    far_tensor w = make_far_rows(e, BF, NAN), dw = make_far_rows(e, F32, 0.0);
    far_tensor *all[] = {&w, &dw};
    int32_t tokens[EDGE_ROWS_MAX * TIMES];
    ls_bf16 *y = make_buffer(n * e->D, BF), *dy = make_integers(n * e->D, BF, 16, 50);

    fill_edges(&w, e, 17, 100);
    for (int64_t i = 0; i < n; i++) tokens[i] = (int32_t)e->rows[i % e->n];
    RUN_OP(embedding_forward, .y = y, .w = w.data, .tokens = tokens, .N = n, .D = e->D, .V = e->N,
           .dtype = BF);
    RUN_OP(embedding_backward, .dw = (float *)dw.data, .dy = dy, .tokens = tokens, .N = n,
           .D = e->D, .V = e->N, .dtype = BF);
    for (int64_t i = 0; i < e->n; i++)
        for (int64_t d = 0; d < e->D; d++) {
            double sum = 0.0;
            for (int64_t k = i; k < n; k += e->n) {
                assert_true(get(y, k * e->D + d, BF) == value(&w, e, i, d));
                sum += get(dy, k * e->D + d, BF);
            }
            expect_at(&dw, at(e, i, d), sum, "dw");
        }
    assert_rest(&dw, e, 0.0);
    free_fars(all, COUNT_OF(all));
    free_buffer(y);
    free_buffer(dy);
}

static void scatters_gradients_of_many_rows(void **state)
{
    (void)state;
    for_each_shape(check_embedding_rows);
}

static void looks_up_in_large_tables(void **state)
{
    (void)state;
    for_each_shape(check_embedding_table);
}

/* ---- rope ------------------------------------------------------------------------------------ */

static int64_t head_width(int64_t D)
{
    return D % 64 == 0 ? 64 : D % 8 == 0 ? 8 : 2;
}

/* Position 0 turns nothing; a pair of another is multiplied by integers in place of cos and sin. */
static void fill_turns(float *row, int64_t position, int64_t K)
{
    for (int64_t i = 0; i < K / 2; i++) {
        row[2 * i] = position == 0 ? 1.0f : (float)((i + position) % 3 - 1);
        row[2 * i + 1] = position == 0 ? 0.0f : (float)((2 * i + position) % 3 - 1);
    }
}

static void expect_turned(double y_first, double y_second, double a, double b, const float turn[2])
{
    assert_true(y_first == a * (double)turn[0] - b * (double)turn[1]);
    assert_true(y_second == b * (double)turn[0] + a * (double)turn[1]);
}

static void check_rope(const edge_rows *e)
{
    enum { P = 4 };
    const int64_t K = head_width(e->D);
    far_tensor x = make_far_rows(e, BF, 3.0), y = make_far_rows(e, BF, NAN), *all[] = {&x, &y};
    int64_t *positions = make_buffer(e->N, LS_DTYPE_I64);
    float *table = make_buffer(P * K, F32);

    for (int64_t p = 0; p < P; p++) fill_turns(table + p * K, p, K);
    memset(positions, 0, (size_t)e->N * sizeof *positions);
    for (int64_t i = 0; i < e->n; i++) positions[e->rows[i]] = i % P;
    fill_edges(&x, e, 18, 100);
    RUN_OP(rope, .y = y.data, .x = x.data, .table = table, .positions = positions, .N = e->N,
           .heads = e->D / K, .K = K, .P = P, .y_dtype = BF, .x_dtype = BF);
    for (int64_t i = 0; i < e->n; i++)
        for (int64_t d = 0; d < e->D; d++) {
            const int64_t pair = d % K;
            if (pair >= K / 2) continue;
            expect_turned(value(&y, e, i, d), value(&y, e, i, d + K / 2), value(&x, e, i, d),
                          value(&x, e, i, d + K / 2), table + i % P * K + 2 * pair);
        }
    assert_rest(&y, e, 3.0);
    free_fars(all, COUNT_OF(all));
    free_buffer(positions);
    free_buffer(table);
}

/* A table of that many rows, of which a few are used. */
static void check_rope_table(const edge_rows *e)
{
    const int64_t K = e->D;
    far_tensor table = make_far_rows(e, F32, NAN);
    ls_bf16 *x = make_integers(e->n * K, BF, 19, 100), *y = make_buffer(e->n * K, BF);

    for (int64_t i = 0; i < e->n; i++) fill_turns((float *)table.data + at(e, i, 0), e->rows[i], K);
    RUN_OP(rope, .y = y, .x = x, .table = (const float *)table.data, .positions = e->rows,
           .N = e->n, .heads = 1, .K = K, .P = e->N, .y_dtype = BF, .x_dtype = BF);
    for (int64_t i = 0; i < e->n; i++)
        for (int64_t pair = 0; pair < K / 2; pair++) {
            const int64_t first = i * K + pair, second = first + K / 2;
            expect_turned(get(y, first, BF), get(y, second, BF), get(x, first, BF),
                          get(x, second, BF), (float *)table.data + at(e, i, 2 * pair));
        }
    free_far(&table);
    free_buffer(x);
    free_buffer(y);
}

static void turns_pairs(void **state)
{
    (void)state;
    for_each_shape(check_rope);
    for_each_shape(check_rope_table);
}

/* ---- loss ------------------------------------------------------------------------------------ */

/* Rows of one logit of 200 among zeros: the softmax is 1 there and 0 elsewhere, to the bit. */
static void check_cross_entropy(const edge_rows *e)
{
    const float scale = 0.25f;
    far_tensor logits = make_far_rows(e, F32, 0.0), dlogits = make_far_rows(e, BF, 0.0);
    far_tensor *all[] = {&logits, &dlogits};
    int32_t *targets = make_bytes((uint64_t)e->N * sizeof *targets);
    float *nll = make_buffer(e->N, F32);
    int64_t peaks[EDGE_ROWS_MAX], edge = 0;

    for (int64_t n = 0; n < e->N; n++) targets[n] = LS_TARGET_IGNORE;
    for (int64_t i = 0; i < e->n; i++) {
        peaks[i] =
            i % 3 == 0 ? e->D - 1 : (int64_t)ls_rng_below(20, 0, (uint64_t)i, (uint64_t)e->D);
        targets[e->rows[i]] = (int32_t)(i % 2 ? peaks[i] : (peaks[i] + 3) % e->D);
        put(logits.data, at(e, i, peaks[i]), F32, 200.0);
    }
    RUN_OP(cross_entropy, .dlogits = dlogits.data, .nll = nll, .logits = (const float *)logits.data,
           .targets = targets, .scale = &scale, .N = e->N, .V = e->D, .dtype = BF);
    for (int64_t i = 0; i < e->n; i++)
        for (int64_t d = 0; d < e->D; d++)
            expect_at(&dlogits, at(e, i, d), 0.25 * ((d == peaks[i]) - (d == targets[e->rows[i]])),
                      "dlogits");
    for (int64_t n = 0; n < e->N; n++) {
        const bool is_edge = edge < e->n && e->rows[edge] == n;
        assert_true(nll[n] == (is_edge && targets[n] != peaks[edge] ? 200.0f : 0.0f));
        edge += is_edge;
    }
    assert_rest(&dlogits, e, 0.0);
    free_fars(all, COUNT_OF(all));
    free_buffer(targets);
    free_buffer(nll);
}

static void loses(void **state)
{
    (void)state;
    for_each_shape(check_cross_entropy);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_rows),
        cmocka_unit_test(norms_gradients),
        cmocka_unit_test(adds_biases),
        cmocka_unit_test(scatters_gradients_of_many_rows),
        cmocka_unit_test(looks_up_in_large_tables),
        cmocka_unit_test(turns_pairs),
        cmocka_unit_test(loses),
    };
    far = wants_far(argc, argv);
    return cmocka_run_group_tests_name("index of rows", tests, NULL, NULL);
}
