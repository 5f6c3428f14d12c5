/*
 * test_gradients.c - gradients on their way from backward to the update: bf16 ones are the fp32
 * sums, rounded once; those of micro-batches one by one are added in fp32 in their order, in one
 * pass each; the norm and the update are of the very values that wait.
 *
 * The parts of a step are taken from steps of one micro-batch with the same loss scale.
 */
#include "model_test.h"
#include "ops.h"
#include "placement_test.h"

enum { S = 12, ACCUMULATE = 3, V = 19, LAYERS = 3, ROWS = S * ACCUMULATE };

typedef struct shape {
    ls_dtype dtype, gradients;
    bool layer_major, tied, on_device;
    int accumulate;
} shape;

/* ---- batches --------------------------------------------------------------------------------- */

typedef struct rows {
    int32_t tokens[ROWS], targets[ROWS];
    int64_t positions[ROWS], doc_start[ROWS];
} rows;

/* The whole step with micro-batch `first` first: its labels are all of the step's, in any order. */
static model_batch make_batch(rows *r, int64_t first)
{
    for (int64_t n = 0; n < ROWS; n++) {
        const uint64_t row = (uint64_t)(n + first * S) % ROWS;
        r->tokens[n] = (int32_t)ls_rng_below(7, 1, row, V);
        r->targets[n] = row % 5 == 3 ? LS_TARGET_IGNORE : (int32_t)ls_rng_below(7, 2, row, V);
        r->positions[n] = n % S;
        r->doc_start[n] = n - n % S;
    }
    return (model_batch){ROWS, r->tokens, r->targets, r->positions, r->doc_start};
}

static void open_shape(model *m, const shape *s, const model_batch *batch)
{
    ls_decoder_options options = tiny_options(V, LAYERS, S, s->accumulate);
    const ls_placement placement = place_weights(LS_MODE_STREAM, true);
    const ls_instance_options how = {.compute_threads = 1,
                                     .optimizer_threads = 1,
                                     .placement = s->on_device ? &placement : NULL};
    model_batch opened = *batch;

    options.shape.tied = s->tied;
    options.shape.qkv_bias = true;
    options.dtype = s->dtype;
    options.layer_major = s->layer_major;
    options.gradients = s->gradients;
    opened.rows = (int64_t)S * s->accumulate;
    open_model_as(m, &options, &opened, 10000.0, &how);
    m->batch = batch;
    ls_weights_random(&m->instance, 11, 0.1);
    assert_int_equal(ls_instance_fill_copies(&m->instance), LS_OK);
}

/* ---- what waits ------------------------------------------------------------------------------ */

static const void *waiting(const model *m, int32_t param, int64_t *n, ls_dtype *dtype)
{
    const ls_param *p = &m->instance.decoder.params[param];
    const ls_tensor *t = &m->instance.decoder.tape.tensors[p->grad];
    *n = ls_tensor_elements(t);
    *dtype = t->dtype;
    return ls_instance_tensor(&m->instance, p->grad);
}

static float element(const void *x, int64_t i, ls_dtype dtype)
{
    return dtype == LS_DTYPE_BF16 ? ls_bf16_to_f32(((const ls_bf16 *)x)[i]) : ((const float *)x)[i];
}

/* As it leaves the device. */
static float as_it_leaves(float sum, ls_dtype dtype)
{
    return dtype == LS_DTYPE_BF16 ? ls_bf16_to_f32(ls_bf16_from_f32(sum)) : sum;
}

/* The step's norm is that of what waits, summed as ops.h says. */
static void check_norm(const model *m)
{
    double sum = 0.0;

    for (int32_t i = 0; i < m->instance.decoder.n_params; i++) {
        int64_t n;
        ls_dtype dtype;
        double squares, partials[4];
        const void *x = waiting(m, i, &n, &dtype);
        assert_in_range(n, 1, 4 * 4096);
        const ls_sumsq_args args = {&squares, partials, x, n, dtype};
        assert_int_equal(ls_cpu_sumsq(NULL, &args), LS_OK);
        sum += squares;
    }
    assert_true(sum > 0.0);
    assert_true(m->control->grad_norm == sqrt(sum));
}

/* ---- one sum a step -------------------------------------------------------------------------- */

/* Both models have taken the same step but for the gradients' type. */
static void check_rounded(const model *wide, const model *rounded)
{
    for (int32_t i = 0; i < wide->instance.decoder.n_params; i++) {
        int64_t n, same;
        ls_dtype from, to;
        const float *x = waiting(wide, i, &n, &from);
        const ls_bf16 *y = waiting(rounded, i, &same, &to);
        assert_true(from == LS_DTYPE_F32 && to == LS_DTYPE_BF16 && n == same);
        for (int64_t e = 0; e < n; e++) assert_int_equal(y[e], ls_bf16_from_f32(x[e]));
    }
}

/* Of one parameter before a step, and what the step must make of it. */
typedef struct updated {
    void *w;
    int16_t *lo;
    float *m, *v;
    uint64_t w_bytes;
    int64_t n;
} updated;

static void *copy_tensor(const model *m, int32_t tensor, uint64_t *bytes)
{
    if (tensor < 0) return NULL;
    *bytes = ls_tensor_bytes(&m->instance.decoder.tape.tensors[tensor]);
    void *copy = malloc(*bytes);
    assert_non_null(copy);
    return memcpy(copy, ls_instance_tensor(&m->instance, tensor), *bytes);
}

static updated copy_param(const model *m, int32_t param)
{
    const ls_param *p = &m->instance.decoder.params[param];
    uint64_t bytes;
    updated u = {.lo = copy_tensor(m, p->lo, &bytes),
                 .m = copy_tensor(m, p->m, &bytes),
                 .v = copy_tensor(m, p->v, &bytes)};

    u.n = (int64_t)(bytes / sizeof(float));
    u.w = copy_tensor(m, p->weight, &u.w_bytes);
    return u;
}

/* The update by hand, from what waits, is what the step has done. */
static void check_update(const model *m, int32_t param, updated *u)
{
    const ls_decoder *d = &m->instance.decoder;
    const ls_param *p = &d->params[param];
    int64_t n;
    ls_dtype dtype;
    const ls_adamw_args args = {.w = u->w,
                                .lo = u->lo,
                                .m = u->m,
                                .v = u->v,
                                .g = waiting(m, param, &n, &dtype),
                                .control = m->control,
                                .n = u->n,
                                .beta1 = 0.9f,
                                .beta2 = 0.95f,
                                .eps = 1e-8f,
                                .weight_decay = p->decay ? 0.1f : 0.0f,
                                .lr_scale = 1.0f,
                                .dtype = d->options.dtype,
                                .g_dtype = dtype};

    assert_int_equal(n, u->n);
    assert_int_equal(ls_cpu_adamw(NULL, &args), LS_OK);
    assert_memory_equal(ls_instance_tensor(&m->instance, p->weight), u->w, u->w_bytes);
    assert_memory_equal(ls_instance_tensor(&m->instance, p->m), u->m, (size_t)n * sizeof(float));
    assert_memory_equal(ls_instance_tensor(&m->instance, p->v), u->v, (size_t)n * sizeof(float));
    free(u->w);
    free(u->lo);
    free(u->m);
    free(u->v);
}

static void bf16_gradients_are_the_sums_rounded_once(void **state)
{
    static const shape shapes[] = {
        {LS_DTYPE_BF16, LS_DTYPE_BF16, false, false, false, 1},
        {LS_DTYPE_BF16, LS_DTYPE_BF16, false, true, true, 1},
        {LS_DTYPE_F32, LS_DTYPE_BF16, true, false, true, ACCUMULATE},
        {LS_DTYPE_BF16, LS_DTYPE_BF16, true, true, false, ACCUMULATE},
    };
    rows r;
    const model_batch batch = make_batch(&r, 0);

    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        shape wide = shapes[s];
        model a, b;
        wide.gradients = LS_DTYPE_F32;
        open_shape(&a, &wide, &batch);
        open_shape(&b, &shapes[s], &batch);
        updated u = copy_param(&b, 1);
        step_model(&a, 1e-2);
        step_model(&b, 1e-2);
        check_rounded(&a, &b);
        check_norm(&a);
        check_norm(&b);
        check_update(&b, 1, &u);
        close_model(&a);
        close_model(&b);
    }
}

/* ---- several sums ---------------------------------------------------------------------------- */

/* The gradient of each micro-batch alone, scaled as in the step of all. */
static void run_parts(const shape *s, model parts[ACCUMULATE])
{
    shape alone = *s;
    rows r;

    alone.accumulate = 1;
    alone.gradients = LS_DTYPE_F32;
    for (int64_t mb = 0; mb < ACCUMULATE; mb++) {
        const model_batch batch = make_batch(&r, mb);
        open_shape(&parts[mb], &alone, &batch);
        step_model(&parts[mb], 0.0);
    }
}

static void check_sums(const model *m, const model parts[ACCUMULATE], ls_dtype gradients)
{
    for (int32_t i = 0; i < m->instance.decoder.n_params; i++) {
        int64_t n, same;
        ls_dtype dtype;
        const float *sums = waiting(m, i, &n, &dtype);
        assert_int_equal(dtype, LS_DTYPE_F32);
        for (int64_t e = 0; e < n; e++) {
            float expected =
                as_it_leaves(element(waiting(&parts[0], i, &same, &dtype), e, dtype), gradients);
            for (int mb = 1; mb < ACCUMULATE; mb++)
                expected += as_it_leaves(element(waiting(&parts[mb], i, &same, &dtype), e, dtype),
                                         gradients);
            assert_memory_equal(&sums[e], &expected, sizeof expected);
        }
    }
}

static void micro_batches_are_added_in_fp32_in_their_order(void **state)
{
    static const shape shapes[] = {
        {LS_DTYPE_BF16, LS_DTYPE_F32, false, false, false, ACCUMULATE},
        {LS_DTYPE_BF16, LS_DTYPE_BF16, false, true, false, ACCUMULATE},
        {LS_DTYPE_F32, LS_DTYPE_F32, false, true, true, ACCUMULATE},
        {LS_DTYPE_F32, LS_DTYPE_BF16, false, false, true, ACCUMULATE},
    };
    rows r;
    const model_batch batch = make_batch(&r, 0);

    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        model parts[ACCUMULATE], m;
        run_parts(&shapes[s], parts);
        open_shape(&m, &shapes[s], &batch);
        updated u = copy_param(&m, 3);
        step_model(&m, 1e-2);
        check_sums(&m, parts, shapes[s].gradients);
        check_norm(&m);
        check_update(&m, 3, &u);
        close_model(&m);
        for (int mb = 0; mb < ACCUMULATE; mb++) close_model(&parts[mb]);
    }
}

/* ---- what it costs --------------------------------------------------------------------------- */

typedef struct traffic {
    uint64_t gradients_in, gradients_out; /* bytes copied */
    uint64_t added, squared;              /* bytes that the host's additions and sums touch */
    int64_t casts_by_host;
} traffic;

static bool is_gradient(const ls_plan *plan, const ls_step *step, int operand)
{
    const ls_step_operand *o = &plan->operands[step->first_operand + operand];
    return o->tensor >= 0 && plan->tensors[o->tensor].tensor.role == LS_ROLE_GRAD;
}

static traffic count_traffic(const ls_plan *plan)
{
    const int64_t first = plan->segment_first[LS_SEGMENT_STEP];
    traffic t = {0};

    for (int64_t i = first; i < first + plan->segment_steps[LS_SEGMENT_STEP]; i++) {
        const ls_step *step = &plan->steps[i];
        if (step->kind == LS_CALL_COPY && is_gradient(plan, step, 0)) {
            uint64_t *way = step->lane == LS_LANE_COPY_OUT ? &t.gradients_out : &t.gradients_in;
            *way += step->bytes / 2;
        }
        if (step->kind != LS_CALL_OP || step->lane != LS_LANE_HOST) continue;
        for (int o = 0; o < step->n_operands; o++) {
            const ls_step_operand *operand = &plan->operands[step->first_operand + o];
            const uint64_t times = operand->access == LS_ACCESS_READ_WRITE ? 2 : 1;
            if (!is_gradient(plan, step, o)) continue;
            if (step->op == LS_OP_add_sumsq) t.added += times * operand->span.bytes;
            if (step->op == LS_OP_sumsq) t.squared += times * operand->span.bytes;
            t.casts_by_host += step->op == LS_OP_cast || step->op == LS_OP_zero;
        }
    }
    return t;
}

/* Of the micro-batches' gradients each leaves once and is added where it waits; none comes back,
 * and the sum of squares costs no pass of its own where there is an addition. */
static void gradients_make_no_way_twice(void **state)
{
    static const struct {
        shape shape;
        /* bytes for each parameter, of a step */
        uint64_t out, added, squared;
    } cases[] = {
        {{LS_DTYPE_BF16, LS_DTYPE_F32, false, false, true, 1}, 4, 0, 4},
        {{LS_DTYPE_BF16, LS_DTYPE_BF16, false, true, true, 1}, 2, 0, 2},
        {{LS_DTYPE_BF16, LS_DTYPE_F32, true, false, true, ACCUMULATE}, 4, 0, 4},
        {{LS_DTYPE_BF16, LS_DTYPE_BF16, true, false, true, ACCUMULATE}, 2, 0, 2},
        {{LS_DTYPE_BF16, LS_DTYPE_F32, false, false, true, ACCUMULATE}, 12, 2 * 12, 0},
        {{LS_DTYPE_BF16, LS_DTYPE_BF16, false, true, true, ACCUMULATE}, 6, 6 + 2 * 10, 0},
        {{LS_DTYPE_F32, LS_DTYPE_F32, false, true, false, ACCUMULATE}, 0, 2 * 12, 0},
    };
    rows r;
    const model_batch batch = make_batch(&r, 0);

    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        model m;
        open_shape(&m, &cases[c].shape, &batch);
        const uint64_t n = (uint64_t)ls_decoder_params(&m.instance.decoder.options.shape);
        const traffic t = count_traffic(&m.instance.plan);
        assert_int_equal(t.gradients_in, 0);
        assert_int_equal(t.gradients_out, cases[c].out * n);
        assert_int_equal(t.added, cases[c].added * n);
        assert_int_equal(t.squared, cases[c].squared * n);
        assert_int_equal(t.casts_by_host, 0);
        close_model(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_gradients_are_the_sums_rounded_once),
        cmocka_unit_test(micro_batches_are_added_in_fp32_in_their_order),
        cmocka_unit_test(gradients_make_no_way_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
