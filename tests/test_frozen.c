/*
 * test_frozen.c - frozen parameters: no gradient, no state, no work below the lowest layer that
 * trains; what does train gets the gradients that it would get with everything else.
 */
#include "golden_test.h"

/* What a rule leaves to train: parameters whose name holds one of these. */
static void freeze_all_but(void *context, const char *name, ls_param *param)
{
    const char *const *parts = context;

    param->frozen = true;
    for (; *parts != NULL; parts++)
        if (strstr(name, *parts) != NULL) param->frozen = false;
}

typedef struct freezing {
    const char *name; /* of the fixture */
    const char *parts[3];
    int32_t lowest; /* layer that backward ends with; -1: the embedding */
} freezing;

static const freezing cases[] = {
    {"llama_small", {"layers.2."}, 2},
    {"llama_small", {"layers.1.mlp", "lm_head"}, 1},
    {"llama_small", {"lm_head", "model.norm"}, 3},
    {"llama_small", {"embed_tokens"}, -1},
    {"llama_small", {"layers.0.input_layernorm"}, 0},
    {"llama_bias", {"bias"}, 0},
    {"llama_tied", {"layers.1.self_attn.v_proj"}, 1},
    {"llama_tied", {"embed_tokens"}, -1},
    {"qwen3_small", {"layers.1.self_attn.k_norm"}, 1},
    {"qwen3_small", {"q_proj", "model.norm"}, 0},
};

enum { N_CASES = sizeof cases / sizeof cases[0] };

/* The lowest layer of any call of backward; the embedding's has -1. */
static int32_t lowest_backward(const ls_decoder *d, int64_t *n_calls)
{
    const ls_tape *tape = &d->tape;
    const int64_t first = tape->segment_first[LS_SEGMENT_STEP];
    int32_t lowest = (int32_t)d->options.shape.L;

    *n_calls = 0;
    for (int64_t c = first; c < first + tape->segment_calls[LS_SEGMENT_STEP]; c++) {
        if (tape->calls[c].phase != LS_PHASE_BACKWARD) continue;
        if (tape->calls[c].layer < lowest) lowest = tape->calls[c].layer;
        *n_calls += 1;
    }
    return lowest;
}

/* Only what trains has a gradient, moments and a remainder, and it is the gradient of the whole. */
static void compare_trained(const model *some, const model *all)
{
    for (int32_t i = 0; i < some->instance.decoder.n_params; i++) {
        const ls_param *p = &some->instance.decoder.params[i];
        const int32_t states[] = {p->grad, p->m, p->v, p->lo};
        int64_t n, same;

        for (int s = 0; s < 4; s++) assert_int_equal(states[s] < 0, p->frozen);
        if (p->frozen) continue;
        const float *x = model_gradient(some, i, &n), *y = model_gradient(all, i, &same);
        assert_int_equal(n, same);
        if (memcmp(x, y, (size_t)n * sizeof *x) != 0)
            fail_msg("gradient of %s differs", model_param_name(some, i));
    }
}

static void check_freezing(const freezing *f, ls_dtype dtype, bool o, int64_t x_stride)
{
    golden g;
    model all, some;
    int64_t n_all, n_some;

    open_golden(&g, f->name);
    g.options.dtype = dtype;
    g.options.chunk = 27;
    g.options.query_block = 81;
    g.options.save_o = o;
    g.options.x_stride = x_stride;
    open_golden_model(&g, &g.options, &all);
    g.options.param_rule = freeze_all_but;
    g.options.param_context = (void *)f->parts;
    open_golden_model(&g, &g.options, &some);
    const double loss = step_model(&all, 0.0), same_loss = step_model(&some, 0.0);
    assert_memory_equal(&loss, &same_loss, sizeof loss);
    compare_trained(&some, &all);
    assert_int_equal(lowest_backward(&some.instance.decoder, &n_some), f->lowest);
    lowest_backward(&all.instance.decoder, &n_all);
    assert_true(n_some < n_all);
    close_model(&some);
    close_model(&all);
    close_golden(&g);
}

static void what_trains_gets_the_same_gradients(void **state)
{
    (void)state;
    for (int c = 0; c < N_CASES; c++) {
        check_freezing(&cases[c], LS_DTYPE_BF16, false, 1);
        check_freezing(&cases[c], LS_DTYPE_BF16, true, 2);
    }
}

/* Layers that backward never reaches take turns in two tensors. */
static void layers_below_keep_nothing(void **state)
{
    golden g;
    model m;
    int n_inputs = 0;

    (void)state;
    open_golden(&g, "llama_small");
    g.options.param_rule = freeze_all_but;
    g.options.param_context = (void *)(const char *[]){"lm_head", NULL};
    g.options.save_o = g.options.save_qkv = true;
    open_golden_model(&g, &g.options, &m);
    for (int32_t t = 0; t < m.instance.decoder.tape.n_tensors; t++) {
        const ls_tensor *tensor = &m.instance.decoder.tape.tensors[t];
        n_inputs += strncmp(tensor->name, "x.", 2) == 0;
        if (tensor->role == LS_ROLE_O || tensor->role == LS_ROLE_KV)
            assert_int_equal(tensor->layer, -1); /* shared, not kept */
    }
    assert_int_equal(n_inputs, 3); /* two in turns, and the head's */
    close_model(&m);
    close_golden(&g);
}

/* Ten steps: what is frozen keeps its bytes, a rate of its own scales the first update by itself.
 */
static void scale_rates(void *context, const char *name, ls_param *param)
{
    const float *scale = context;
    if (strstr(name, "mlp") != NULL) param->lr_scale = *scale;
    param->frozen = strstr(name, "layers.0.") != NULL;
}

static void rates_of_groups_scale_updates(void **state)
{
    golden g;
    model plain, scaled;
    float one = 1.0f, quarter = 0.25f;

    (void)state;
    open_golden(&g, "llama_small");
    g.options.weight_decay = 0.0f;
    g.options.param_rule = scale_rates;
    g.options.param_context = &one;
    open_golden_model(&g, &g.options, &plain);
    g.options.param_context = &quarter;
    open_golden_model(&g, &g.options, &scaled);
    step_model(&plain, 0x1p-7);
    step_model(&scaled, 0x1p-7);
    for (int32_t i = 0; i < plain.instance.decoder.n_params; i++) {
        const char *name = model_param_name(&plain, i);
        uint16_t *bf16 = read_tensor(&g, name);
        const double before = (double)ls_bf16_to_f32(bf16[1]);
        const double a = (double)ls_weights_master(&plain.instance, i, 1) - before;
        const double b = (double)ls_weights_master(&scaled.instance, i, 1) - before;
        const double expected = strstr(name, "mlp") != NULL ? 0.25 * a : a;
        free(bf16);
        if (strstr(name, "layers.0.") != NULL)
            assert_true(a == 0.0 && b == 0.0);
        else if (!(fabs(a) > 1e-4 && fabs(b - expected) <= 1e-3 * fabs(a)))
            fail_msg("%s moved by %.3e, with its own rate by %.3e", name, a, b);
    }
    close_model(&plain);
    close_model(&scaled);
    close_golden(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_trains_gets_the_same_gradients),
        cmocka_unit_test(layers_below_keep_nothing),
        cmocka_unit_test(rates_of_groups_scale_updates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
