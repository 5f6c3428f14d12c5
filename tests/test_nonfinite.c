/*
 * test_nonfinite.c - a gradient that is not finite, of whatever layer and micro-batch: no byte of
 * weights and states changes, it is counted, and the next good step ends as if the bad one had
 * never been tried.
 *
 * The linker hands ls_ops_run() to this file (--wrap), which spoils one element of one parameter's
 * gradient after the first or the last of the ops that add to it in a step.
 */
#include <stdatomic.h>

#include "model_test.h"

enum { S = 8, ACCUMULATE = 3, V = 19, LAYERS = 3, PARAMS_MAX = 64 };

/* ---- spoiling a gradient --------------------------------------------------------------------- */

/* Set while the lanes are idle; the compute lane counts. */
static struct {
    const void *gradient;
    float value;
    int at, calls; /* which of the calls that add to it; how many came */
} spoilt;

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
    float *gradient = written_by(op, args);
    const ls_status status = __real_ls_ops_run(ops, op, stream, args);
    if (gradient != NULL && gradient == spoilt.gradient && spoilt.calls++ == spoilt.at)
        gradient[3] = spoilt.value;
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
} shape;

static void open_shape(model *m, const shape *s)
{
    static const model_batch none = {S * ACCUMULATE, NULL, NULL, NULL, NULL};
    const ls_decoder_options options = {.shape = {.V = V,
                                                  .D = 16,
                                                  .F = 24,
                                                  .L = LAYERS,
                                                  .H = 2,
                                                  .G = 1,
                                                  .K = 8,
                                                  .eps = 1e-5f,
                                                  .tied = s->tied},
                                        .dtype = s->dtype,
                                        .S = S,
                                        .sequences = 1,
                                        .accumulate = ACCUMULATE,
                                        .layer_major = s->layer_major,
                                        .chunk = 5,
                                        .query_block = S,
                                        .loss_rows = 5,
                                        .train = true,
                                        .beta1 = 0.9f,
                                        .beta2 = 0.95f,
                                        .adam_eps = 1e-8f,
                                        .weight_decay = 0.1f,
                                        .clip_norm = 1.0f,
                                        .moments = s->moments};

    spoilt.gradient = NULL;
    open_model_threads(m, &options, &none, 10000.0, 1);
    ls_weights_random(&m->instance, 11, 0.1);
    assert_int_equal(ls_instance_fill_copies(&m->instance), LS_OK);
}

/* ---- one bad step ---------------------------------------------------------------------------- */

typedef struct spot {
    const char *param;
    bool last; /* the last call that adds to it, of the last micro-batch at work; else the first */
    float value;
} spot;

/* How many calls of a step add to the gradient. */
static int count_calls(model *m, const void *gradient, uint64_t number)
{
    spoilt.gradient = gradient;
    spoilt.at = -1;
    spoilt.calls = 0;
    take_step(m, number);
    spoilt.gradient = NULL;
    return spoilt.calls;
}

static void take_bad_step(model *m, const void *gradient, const spot *where, int calls)
{
    size_t bytes, bytes_after;
    unsigned char *before = copy_state(m, &bytes);
    const ls_update_control control = *m->control;

    spoilt.at = where->last ? calls - 1 : 0;
    spoilt.calls = 0;
    spoilt.value = where->value;
    spoilt.gradient = gradient;
    take_step(m, 77);
    spoilt.gradient = NULL;
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

/* A good step, bad ones, a good step: as without the bad ones. */
static void check_spot(const shape *s, const spot *where)
{
    size_t bytes, bytes_without;
    model m;

    open_shape(&m, s);
    const int32_t param = ls_instance_find_param(&m.instance, where->param);
    assert_true(param >= 0);
    const void *gradient = ls_instance_tensor(&m.instance, m.instance.decoder.params[param].grad);
    const int calls = count_calls(&m, gradient, 1);
    assert_true(calls >= ACCUMULATE);
    for (int bad = 0; bad < 2; bad++) take_bad_step(&m, gradient, where, calls);
    take_step(&m, 2);
    assert_int_equal(m.control->skip, 0);
    assert_int_equal(m.control->skipped_in_a_row, 0);
    const double norm = m.control->grad_norm;
    unsigned char *with = copy_state(&m, &bytes);
    close_model(&m);

    open_shape(&m, s);
    take_step(&m, 1);
    take_step(&m, 2);
    unsigned char *without = copy_state(&m, &bytes_without);
    assert_true(m.control->grad_norm == norm);
    close_model(&m);
    assert_int_equal(bytes, bytes_without);
    assert_memory_equal(with, without, bytes);
    free(with);
    free(without);
}

static void a_bad_step_leaves_no_trace(void **state)
{
    (void)state;
    static const shape shapes[] = {{LS_DTYPE_BF16, LS_MOMENTS_F32, false, false},
                                   {LS_DTYPE_F32, LS_MOMENTS_F32, true, true},
                                   {LS_DTYPE_BF16, LS_MOMENTS_Q8, true, false},
                                   {LS_DTYPE_BF16, LS_MOMENTS_Q4, false, true},
                                   {LS_DTYPE_F32, LS_MOMENTS_BF16, false, false}};
    static const char *const params[] = {
        "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.mlp.down_proj.weight", "model.layers.2.post_attention_layernorm.weight"};
    const float values[] = {NAN, INFINITY, -INFINITY};
    int n = 0;

    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t p = 0; p < sizeof params / sizeof *params; p++)
            for (int last = 0; last < 2; last++)
                check_spot(&shapes[s], &(spot){params[p], last, values[n++ % 3]});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_bad_step_leaves_no_trace)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
