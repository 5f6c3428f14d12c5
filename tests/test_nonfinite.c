/*
 * test_nonfinite.c - a gradient that is not finite, of whatever layer and micro-batch: no byte of
 * weights and states changes, it is counted, and the next good step ends as if the bad one had
 * never been tried.
 *
 * The linker hands ls_ops_run() to this file (--wrap), which spoils one element of what backward
 * writes of one parameter's gradient, in the first or the last of the steps of the plan that do.
 */
#include <stdatomic.h>

#include "device.h"
#include "model_test.h"

enum { S = 8, ACCUMULATE = 3, V = 19, LAYERS = 3, PARAMS_MAX = 64 };

/* ---- spoiling a gradient --------------------------------------------------------------------- */

/* Set while the lanes are idle; step -1: nothing is spoilt. */
static struct {
    int64_t step; /* of the plan */
    float value;
    atomic_int times;
} spoilt = {.step = -1};

static _Thread_local int64_t step_at_work; /* of this lane */

static void note_step(void *context, int lane, int64_t tag, uint64_t now_ns)
{
    (void)context;
    (void)lane;
    (void)now_ns;
    step_at_work = tag;
}

static void ignore_end(void *context, int lane, int64_t tag, uint64_t began_ns, uint64_t now_ns)
{
    (void)context;
    (void)lane;
    (void)tag;
    (void)began_ns;
    (void)now_ns;
}

static const ls_device_observer observer = {note_step, ignore_end, NULL};

static float *written_by(ls_op op, const ls_op_args *args)
{
    switch (op) {
    case LS_OP_matmul: return args->matmul.c;
    case LS_OP_embedding_backward: return args->embedding_backward.dw;
    case LS_OP_rmsnorm_backward: return args->rmsnorm_backward.dw;
    default: return NULL;
    }
}

/* NOLINTBEGIN(readability-identifier-naming): the linker's names */
ls_status __real_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args);
ls_status __wrap_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args);

ls_status __wrap_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args)
{
    const ls_status status = __real_ls_ops_run(ops, op, stream, args);
    if (spoilt.step >= 0 && step_at_work == spoilt.step) {
        written_by(op, args)[3] = spoilt.value;
        spoilt.times++;
    }
    return status;
}
/* NOLINTEND(readability-identifier-naming) */

/* ---- steps ----------------------------------------------------------------------------------- */

static model_batch make_batch(uint64_t number)
{
    const int64_t rows = (int64_t)S * ACCUMULATE;
    model_batch b = {.rows = rows,
                     .tokens = malloc((size_t)rows * sizeof(int32_t)),
                     .targets = malloc((size_t)rows * sizeof(int32_t)),
                     .positions = malloc((size_t)rows * sizeof(int64_t)),
                     .doc_start = malloc((size_t)rows * sizeof(int64_t))};

    for (int64_t n = 0; n < rows; n++) {
        b.tokens[n] = (int32_t)ls_rng_below(number, 1, (uint64_t)n, V);
        b.targets[n] = (int32_t)ls_rng_below(number, 2, (uint64_t)n, V);
        b.positions[n] = n % S;
        b.doc_start[n] = n - n % S;
    }
    return b;
}

static void free_batch(model_batch *b)
{
    free(b->tokens);
    free(b->targets);
    free(b->positions);
    free(b->doc_start);
}

static void take_step(model *m, uint64_t number)
{
    model_batch batch = make_batch(number);
    m->batch = &batch;
    step_model(m, 1e-2);
    free_batch(&batch);
}

/* All weights and states, in the order in which they are saved; release with free(). */
static unsigned char *copy_state(const model *m, size_t *bytes)
{
    int32_t tensors[LS_DECODER_SAVED_MAX * PARAMS_MAX];
    unsigned char *copy = NULL;

    assert_in_range(m->instance.decoder.n_params, 1, PARAMS_MAX);
    const int64_t n = ls_decoder_save_order(&m->instance.decoder, tensors);
    *bytes = 0;
    for (int64_t i = 0; i < n; i++) {
        const size_t more = ls_tensor_bytes(&m->instance.decoder.tape.tensors[tensors[i]]);
        copy = realloc(copy, *bytes + more);
        assert_non_null(copy);
        memcpy(copy + *bytes, ls_instance_tensor(&m->instance, tensors[i]), more);
        *bytes += more;
    }
    return copy;
}

typedef struct shape {
    ls_dtype dtype;
    ls_moments moments;
    bool layer_major, tied;
    ls_dtype gradients;
} shape;

static void open_shape(model *m, const shape *s)
{
    static const model_batch none = {S * ACCUMULATE, NULL, NULL, NULL, NULL};
    ls_decoder_options options = tiny_options(V, LAYERS, S, ACCUMULATE);

    options.shape.tied = s->tied;
    options.dtype = s->dtype;
    options.layer_major = s->layer_major;
    options.moments = s->moments;
    options.gradients = s->gradients;
    open_model_threads(m, &options, &none, 10000.0, 1);
    ls_device_observe(m->instance.device, &observer);
    ls_weights_random(&m->instance, 11, 0.1);
    assert_int_equal(ls_instance_fill_copies(&m->instance), LS_OK);
}

/* ---- one bad step ---------------------------------------------------------------------------- */

typedef struct spot {
    const char *param;
    bool last; /* the last that adds to it, in the last micro-batch; else the first, in the first */
    float value;
} spot;

/* Whether a step of backward adds to what the parameter's gradient is made of.  Layers share parts
 * and arrivals, and so do the embedding and the head. */
static bool adds_to(const ls_plan *plan, const ls_step *step, const ls_param *p)
{
    if (step->kind != LS_CALL_OP || step->layer != p->layer ||
        (step->op != LS_OP_embedding_backward && step->op != LS_OP_matmul &&
         step->op != LS_OP_rmsnorm_backward))
        return false;
    for (int i = 0; i < step->n_operands; i++) {
        const ls_step_operand *o = &plan->operands[step->first_operand + i];
        const bool is_sum = o->tensor == p->grad || o->tensor == p->part || o->tensor == p->arrival;
        if (o->tensor >= 0 && is_sum && (o->access & LS_ACCESS_WRITE)) return true;
    }
    return false;
}

static int64_t find_step(const model *m, const spot *where)
{
    const ls_plan *plan = &m->instance.plan;
    const int32_t param = ls_instance_find_param(&m->instance, where->param);
    const int64_t first = plan->segment_first[LS_SEGMENT_STEP];
    const bool is_head = strcmp(where->param, "lm_head.weight") == 0;
    int64_t found = -1, n = 0;

    assert_true(param >= 0);
    for (int64_t i = first; i < first + plan->segment_steps[LS_SEGMENT_STEP]; i++) {
        const ls_step *step = &plan->steps[i];
        if (!adds_to(plan, step, &m->instance.decoder.params[param])) continue;
        if (step->layer < 0 && !m->instance.decoder.options.shape.tied &&
            is_head != (step->phase == LS_PHASE_LOSS))
            continue;
        n++;
        if (found < 0 || where->last) found = i;
    }
    assert_true(n >= ACCUMULATE);
    return found;
}

static void take_bad_step(model *m, const spot *where)
{
    size_t bytes, bytes_after;
    unsigned char *before = copy_state(m, &bytes);
    const ls_update_control control = *m->control;

    spoilt.times = 0;
    spoilt.value = where->value;
    spoilt.step = find_step(m, where);
    take_step(m, 77);
    spoilt.step = -1;
    assert_int_equal(spoilt.times, 1);
    unsigned char *after = copy_state(m, &bytes_after);
    assert_int_equal(bytes, bytes_after);
    assert_memory_equal(before, after, bytes);
    assert_int_equal(m->control->skip, 1);
    assert_true(m->control->skipped == control.skipped + 1);
    assert_true(m->control->skipped_in_a_row == control.skipped_in_a_row + 1);
    assert_int_equal(m->control->updates, control.updates);
    assert_true(m->control->beta1_power == control.beta1_power);
    assert_true(m->control->beta2_power == control.beta2_power);
    assert_true(!isfinite(m->control->grad_norm));
    free(before);
    free(after);
}

/* Where two good steps lead. */
typedef struct outcome {
    unsigned char *state;
    size_t bytes;
    double norm; /* of the second */
} outcome;

/* With bad ones between them, unless there is no such spot. */
static outcome take_steps(const shape *s, const spot *where)
{
    outcome out;
    model m;

    open_shape(&m, s);
    take_step(&m, 1);
    for (int bad = 0; bad < 2 && where != NULL; bad++) take_bad_step(&m, where);
    take_step(&m, 2);
    assert_int_equal(m.control->skip, 0);
    assert_int_equal(m.control->skipped_in_a_row, 0);
    out.norm = m.control->grad_norm;
    out.state = copy_state(&m, &out.bytes);
    close_model(&m);
    return out;
}

static void check_spot(const shape *s, const outcome *without, const spot *where)
{
    const outcome with = take_steps(s, where);

    assert_true(with.norm == without->norm);
    assert_int_equal(with.bytes, without->bytes);
    assert_memory_equal(with.state, without->state, with.bytes);
    free(with.state);
}

static void check_shape(const shape *s)
{
    static const char *const params[] = {
        "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.mlp.down_proj.weight", "model.layers.2.post_attention_layernorm.weight",
        "lm_head.weight"};
    static const float values[] = {NAN, INFINITY, -INFINITY};
    const size_t n_params = sizeof params / sizeof *params - (s->tied ? 1 : 0);
    const outcome without = take_steps(s, NULL);

    for (size_t p = 0; p < n_params; p++)
        for (int last = 0; last < 2; last++)
            for (size_t v = 0; v < sizeof values / sizeof *values; v++)
                check_spot(s, &without, &(spot){params[p], last, values[v]});
    free(without.state);
}

static void a_bad_step_leaves_no_trace(void **state)
{
    static const shape shapes[] = {{LS_DTYPE_BF16, LS_MOMENTS_F32, false, false, LS_DTYPE_F32},
                                   {LS_DTYPE_F32, LS_MOMENTS_F32, true, true, LS_DTYPE_F32},
                                   {LS_DTYPE_BF16, LS_MOMENTS_Q8, true, false, LS_DTYPE_BF16},
                                   {LS_DTYPE_BF16, LS_MOMENTS_Q4, false, true, LS_DTYPE_BF16},
                                   {LS_DTYPE_F32, LS_MOMENTS_BF16, false, false, LS_DTYPE_BF16}};

    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) check_shape(&shapes[s]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_bad_step_leaves_no_trace)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
