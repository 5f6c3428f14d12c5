/*
 * test_index_elements.c - the ops on elements at lengths just below, at and above 2^16, or 2^31:
 * every result compared bit for bit.
 *
 *   test_index_elements [far]
 */
#include "index_test.h"

static void check_add(const edge_rows *e)
{
    far_tensor a = make_far_rows(e, BF, 3.0), b = make_far_rows(e, BF, 5.0);
    far_tensor y = make_far_rows(e, BF, NAN), *all[] = {&a, &b, &y};

    fill_edges(&a, e, 1, 100);
    fill_edges(&b, e, 2, 100);
    RUN_OP(add, .y = y.data, .a = a.data, .b = b.data, .n = e->N, .dtype = BF);
    for (int64_t i = 0; i < e->n; i++)
        expect_at(&y, at(e, i, 0), value(&a, e, i, 0) + value(&b, e, i, 0), "add");
    assert_rest(&y, e, 8.0);
    free_fars(all, COUNT_OF(all));
}

static void adds_residuals(void **state)
{
    (void)state;
    for_each_length(check_add);
}

static void check_cast(const edge_rows *e)
{
    far_tensor x = make_far_rows(e, F32, 3.0), y = make_far_rows(e, BF, NAN), *all[] = {&x, &y};

    fill_edges(&x, e, 3, 200);
    RUN_OP(cast, .y = y.data, .x = x.data, .n = e->N, .y_dtype = BF, .x_dtype = F32);
    for (int64_t i = 0; i < e->n; i++) expect_at(&y, at(e, i, 0), value(&x, e, i, 0), "cast");
    assert_rest(&y, e, 3.0);
    RUN_OP(zero, .y = y.data, .bytes = e->N * 2);
    for (int64_t i = 0; i < e->n; i++) expect_at(&y, at(e, i, 0), 0.0, "zero");
    assert_rest(&y, e, 0.0);
    free_fars(all, COUNT_OF(all));
}

static void casts_and_zeroes(void **state)
{
    (void)state;
    for_each_length(check_cast);
}

/* Beyond +-104 a sigmoid is 1 or 0 to the bit. */
static void fill_gates(far_tensor *gate, const edge_rows *e)
{
    fill_edges(gate, e, 4, 8);
    for (int64_t i = 0; i < e->n; i++) {
        const double small = value(gate, e, i, 0);
        put(gate->data, at(e, i, 0), BF, small < 0.0 ? small - 110.0 : small + 110.0);
    }
}

static void check_swiglu(const edge_rows *e)
{
    far_tensor gate = make_far_rows(e, BF, 112.0), up = make_far_rows(e, BF, 1.0);
    far_tensor dy = make_far_rows(e, BF, 2.0), y = make_far_rows(e, BF, NAN);
    far_tensor dgate = make_far_rows(e, BF, NAN), dup = make_far_rows(e, BF, NAN);
    far_tensor *all[] = {&gate, &up, &dy, &y, &dgate, &dup};

    fill_gates(&gate, e);
    fill_edges(&up, e, 5, 2);
    fill_edges(&dy, e, 6, 2);
    RUN_OP(swiglu_forward, .y = y.data, .gate = gate.data, .up = up.data, .n = e->N, .dtype = BF);
    RUN_OP(swiglu_backward, .dgate = dgate.data, .dup = dup.data, .dy = dy.data, .gate = gate.data,
           .up = up.data, .n = e->N, .dtype = BF);
    for (int64_t i = 0; i < e->n; i++) {
        const double g = value(&gate, e, i, 0), u = value(&up, e, i, 0), d = value(&dy, e, i, 0);
        expect_at(&y, at(e, i, 0), g > 0.0 ? g * u : 0.0, "silu(gate) up");
        expect_at(&dgate, at(e, i, 0), g > 0.0 ? d * u : 0.0, "dgate");
        expect_at(&dup, at(e, i, 0), g > 0.0 ? d * g : 0.0, "dup");
    }
    assert_rest(&y, e, 112.0);
    assert_rest(&dgate, e, 2.0);
    assert_rest(&dup, e, 224.0);
    free_fars(all, COUNT_OF(all));
}

static void gates(void **state)
{
    (void)state;
    for_each_length(check_swiglu);
}

static void check_sumsq(const edge_rows *e)
{
    far_tensor x = make_far_rows(e, F32, 2.0);
    double sum = NAN, *partials = make_doubles(e->N / 4096 + 1);
    double expected = 4.0 * (double)(e->N - e->n);

    fill_edges(&x, e, 7, 1000);
    for (int64_t i = 0; i < e->n; i++) expected += value(&x, e, i, 0) * value(&x, e, i, 0);
    RUN_OP(sumsq, .sum = &sum, .partials = partials, .x = x.data, .n = e->N);
    assert_true(sum == expected);
    free_buffer(partials);
    free_far(&x);
}

static void sums_squares(void **state)
{
    (void)state;
    for_each_length(check_sumsq);
}

/* The edges are updated as they are alone; elsewhere nothing moves a weight of 1. */
static void check_adamw(const edge_rows *e)
{
    const ls_update_control control = {
        .beta1_power = 0.9, .beta2_power = 0.99, .lr = 0.5, .updates = 1, .coefficient = 1.0f};
    far_tensor w = make_far_rows(e, BF, 1.0), lo = make_far_rows(e, BF, 0.0);
    far_tensor m = make_far_rows(e, F32, 0.0), v = make_far_rows(e, F32, 0.0);
    far_tensor g = make_far_rows(e, F32, 0.0), *all[] = {&w, &lo, &m, &v, &g};
    ls_adamw_args args = {.w = w.data,
                          .lo = (int16_t *)lo.data,
                          .m = (float *)m.data,
                          .v = (float *)v.data,
                          .g = (float *)g.data,
                          .control = &control,
                          .n = e->N,
                          .beta1 = 0.9f,
                          .beta2 = 0.99f,
                          .eps = 1e-8f,
                          .lr_scale = 1.0f,
                          .dtype = BF,
                          .g_dtype = F32};
    ls_adamw_args alone = args;
    ls_bf16 w_alone[EDGE_ROWS_MAX];
    int16_t lo_alone[EDGE_ROWS_MAX];
    float m_alone[EDGE_ROWS_MAX], v_alone[EDGE_ROWS_MAX], g_alone[EDGE_ROWS_MAX];

    fill_edges(&w, e, 8, 100);
    fill_edges(&g, e, 9, 100);
    fill_edges(&m, e, 10, 100);
    for (int64_t i = 0; i < e->n; i++) {
        const int64_t k = e->rows[i];
        args.lo[k] = (int16_t)(37 * i);
        w_alone[i] = ((ls_bf16 *)args.w)[k];
        lo_alone[i] = args.lo[k];
        m_alone[i] = ((float *)args.m)[k];
        v_alone[i] = ((float *)args.v)[k];
        g_alone[i] = ((const float *)args.g)[k];
    }
    alone.w = w_alone, alone.lo = lo_alone, alone.m = m_alone, alone.v = v_alone;
    alone.g = g_alone, alone.n = e->n;
    assert_int_equal(tested_ops->adamw(NULL, &args), LS_OK);
    assert_int_equal(tested_ops->adamw(NULL, &alone), LS_OK);
    for (int64_t i = 0; i < e->n; i++) {
        const int64_t k = e->rows[i];
        assert_int_equal(((ls_bf16 *)args.w)[k], w_alone[i]);
        assert_int_equal(args.lo[k], lo_alone[i]);
        assert_true(((float *)args.m)[k] == m_alone[i] && ((float *)args.v)[k] == v_alone[i]);
    }
    assert_rest(&w, e, 1.0);
    assert_rest(&lo, e, 0.0);
    assert_rest(&m, e, 0.0);
    free_fars(all, COUNT_OF(all));
}

static void updates_weights(void **state)
{
    (void)state;
    for_each_length(check_adamw);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adds_residuals),  cmocka_unit_test(casts_and_zeroes),
        cmocka_unit_test(gates),           cmocka_unit_test(sums_squares),
        cmocka_unit_test(updates_weights),
    };
    far = wants_far(argc, argv);
    return cmocka_run_group_tests_name("index of elements", tests, NULL, NULL);
}
