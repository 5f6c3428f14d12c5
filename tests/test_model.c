/*
 * test_model.c - the laws of a whole model on golden weights: its parameters, 20 steps of training,
 * chunking, saving, accumulating, repeating and threads.  test_families.c compares each family with
 * PyTorch.  Under sanitizers every 13th mixture of save policies is tried: each policy of each
 * layer, not each with each.
 */
#include "golden_test.h"

/* Every tensor of the fixture is a parameter, in PyTorch's order; only matrices decay. */
static void parameters_are_pytorchs_and_only_matrices_decay(void **state)
{
    static const char *const of_a_layer[] = {
        "self_attn.q_proj.weight", "self_attn.q_proj.bias",   "self_attn.k_proj.weight",
        "self_attn.k_proj.bias",   "self_attn.v_proj.weight", "self_attn.v_proj.bias",
        "self_attn.o_proj.weight", "self_attn.o_proj.bias",   "mlp.gate_proj.weight"};
    golden g;
    model m;

    (void)state;
    open_both(&g, &m, "llama_bias", LS_DTYPE_BF16);
    const ls_decoder *d = &m.instance.decoder;
    for (int32_t i = 0; i < 9; i++)
        assert_non_null(strstr(model_param_name(&m, 1 + i), of_a_layer[i]));
    int64_t n = 0;
    for (int32_t i = 0; i < d->n_params; i++)
        n += ls_tensor_elements(&d->tape.tensors[d->params[i].weight]);
    assert_int_equal(n, ls_decoder_params(&d->options.shape));
    int32_t n_updates = 0;
    for (int64_t c = 0; c < d->tape.segment_calls[LS_SEGMENT_STEP]; c++) {
        const ls_call *call = &d->tape.calls[d->tape.segment_first[LS_SEGMENT_STEP] + c];
        if (call->kind != LS_CALL_OP || call->op != LS_OP_adamw) continue;
        const bool matrix = d->tape.tensors[call->operands[0].tensor].n_dims == 2;
        assert_true((call->args.adamw.weight_decay > 0.0f) == matrix);
        n_updates++;
    }
    assert_int_equal(n_updates, d->n_params);
    close_model(&m);
    close_golden(&g);
}

static void random_biases_are_zero(void **state)
{
    golden g;
    model m;

    (void)state;
    open_both(&g, &m, "llama_bias", LS_DTYPE_F32);
    ls_weights_random(&m.instance, 1, 0.1);
    for (int32_t i = 0; i < m.instance.decoder.n_params; i++) {
        const char *name = model_param_name(&m, i);
        if (strstr(name, ".bias") != NULL)
            assert_true(ls_weights_master(&m.instance, i, 3) == 0.0f);
        if (strstr(name, "norm") != NULL) assert_true(ls_weights_master(&m.instance, i, 3) == 1.0f);
    }
    close_model(&m);
    close_golden(&g);
}

static void twenty_adamw_steps_track_pytorch(void **state)
{
    golden g;
    model m;
    cJSON *train = NULL;

    (void)state;
    open_both(&g, &m, "llama_small", LS_DTYPE_F32);
    assert_int_equal(ls_json_read(GOLDEN "train_small.json", &train), LS_OK);
    const cJSON *losses = ls_json_find_path(train, "loss");
    const cJSON *norms = ls_json_find_path(train, "grad_norm");
    assert_int_equal(cJSON_GetArraySize(losses), 20);
    for (int step = 0; step < 20; step++) {
        const double loss = step_model(&m, 1e-3);
        const double expected = cJSON_GetArrayItem(losses, step)->valuedouble;
        const double norm = cJSON_GetArrayItem(norms, step)->valuedouble;
        if (!(fabs(loss - expected) <= 1e-4 * expected))
            fail_msg("step %d: loss %.7f, PyTorch %.7f", step, loss, expected);
        assert_true(fabs(m.control->grad_norm - norm) <= 1e-3 * norm);
    }
    cJSON_Delete(train);
    close_model(&m);
    close_golden(&g);
}

/* ---- laws ---------------------------------------------------------------------------------- */

static void check_blocks(const char *name)
{
    static const struct {
        int64_t chunk, query_block, key_block, loss_rows;
    } cuts[] = {
        {96, 192, 0, 96}, {27, 27, 0, 27}, {27, 54, 31, 5}, {64, 64, 64, 64},
        {7, 96, 40, 13},  {1, 1, 0, 1},    {1, 64, 1, 192}, {50, 192, 7, 100},
    };
    golden g;
    model whole, cut;

    open_golden(&g, name);
    open_golden_model(&g, &g.options, &whole);
    const double loss = step_model(&whole, 0.0);
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        ls_decoder_options options = g.options;
        options.chunk = cuts[i].chunk;
        options.query_block = cuts[i].query_block;
        options.key_block = cuts[i].key_block;
        options.loss_rows = cuts[i].loss_rows;
        open_golden_model(&g, &options, &cut);
        const double cut_loss = step_model(&cut, 0.0);
        assert_true(fabs(cut_loss - loss) <= 5e-6 * loss);
        const double worst = compare_gradients(&cut, &whole);
        if (!(worst <= 5e-6))
            fail_msg("chunk %lld, query block %lld, key block %lld: gradients off by %.2e",
                     (long long)options.chunk, (long long)options.query_block,
                     (long long)options.key_block, worst);
        close_model(&cut);
    }
    close_model(&whole);
    close_golden(&g);
}

static void blocks_do_not_change_the_result(void **state)
{
    (void)state;
    check_blocks("llama_small");
    check_blocks("llama_bias");
    check_blocks("qwen3_small");
    check_blocks("mistral_small");
}

/* Each layer by the bits of *context: its two are o and qkv, and whether x. */
static void save_by_mask(void *context, int32_t layer, ls_layer_save *save)
{
    const unsigned bits = *(const unsigned *)context >> (3 * layer);
    save->x = bits & 1u;
    save->o = bits & 2u;
    save->qkv = (bits & 4u) && save->o;
}

/* Twice the same, and under every save policy: the same bits, in both dtypes. */
static void check_policies(const char *name)
{
    static const struct {
        bool o, qkv;
        int64_t x_stride;
    } policies[] = {{false, false, 1}, {true, false, 1},  {true, true, 1}, {true, false, 2},
                    {true, false, 3},  {false, false, 2}, {true, true, 3}};
    golden g;
    model first, again;

    open_golden(&g, name);
    g.options.chunk = 27;
    g.options.query_block = 81;
    g.options.loss_rows = 50;
    for (ls_dtype dtype = LS_DTYPE_F32; dtype <= LS_DTYPE_BF16; dtype++) {
        g.options.dtype = dtype;
        g.options.save_o = g.options.save_qkv = false;
        open_golden_model(&g, &g.options, &first);
        const double loss = step_model(&first, 0.0);
        for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
            g.options.save_o = policies[p].o;
            g.options.save_qkv = policies[p].qkv;
            g.options.x_stride = policies[p].x_stride;
            open_golden_model(&g, &g.options, &again);
            const double again_loss = step_model(&again, 0.0);
            assert_memory_equal(&loss, &again_loss, sizeof loss);
            assert_same_gradients(&first, &again);
            close_model(&again);
        }
        close_model(&first);
    }
    close_golden(&g);
}

static void equal_blocks_give_equal_bits(void **state)
{
    (void)state;
    check_policies("llama_small");
    check_policies("llama_bias");
    check_policies("qwen3_small");
}

#ifdef LS_SANITIZED /* many times slower */
enum { MIXTURES_STEP = 13 };
#else
enum { MIXTURES_STEP = 1 };
#endif

/* Every layer keeps something else: all 512 ways for three layers. */
static void any_mixture_of_policies_gives_equal_bits(void **state)
{
    golden g;
    model all, mixed;

    (void)state;
    open_golden(&g, "llama_small");
    assert_int_equal(g.options.shape.L, 3);
    g.options.chunk = 41;
    g.options.query_block = 81;
    open_golden_model(&g, &g.options, &all);
    const double loss = step_model(&all, 0.0);
    for (unsigned mask = 0; mask < 512; mask += MIXTURES_STEP) {
        g.options.save_rule = save_by_mask;
        g.options.save_context = &mask;
        open_golden_model(&g, &g.options, &mixed);
        const double mixed_loss = step_model(&mixed, 0.0);
        assert_memory_equal(&loss, &mixed_loss, sizeof loss);
        assert_same_gradients(&all, &mixed);
        close_model(&mixed);
    }
    close_model(&all);
    close_golden(&g);
}

/* Teams of threads divide every op, the optimizer's too. */
static void any_number_of_threads_gives_equal_bits(void **state)
{
    golden g;
    model one, many;

    (void)state;
    open_golden(&g, "llama_bias");
    g.options.chunk = 27;
    g.options.query_block = 81;
    for (g.options.dtype = LS_DTYPE_F32; g.options.dtype <= LS_DTYPE_BF16; g.options.dtype++) {
        open_golden_model(&g, &g.options, &one);
        step_model(&one, 1e-3);
        const double loss = step_model(&one, 0.0);      /* of weights that one step has changed */
        for (int threads = 0; threads < 5; threads++) { /* 0: one on each core */
            open_model_threads(&many, &g.options, &g.batch, g.theta, threads);
            load_golden_weights(&g, &many);
            step_model(&many, 1e-3);
            const double many_loss = step_model(&many, 0.0);
            assert_memory_equal(&loss, &many_loss, sizeof loss);
            assert_same_gradients(&one, &many);
            close_model(&many);
        }
        close_model(&one);
    }
    close_golden(&g);
}

/* A stale gradient or statistic would show in the second of two equal steps. */
static void a_step_leaves_nothing_behind(void **state)
{
    golden g;
    model once, twice;

    (void)state;
    open_golden(&g, "llama_tied");
    open_golden_model(&g, &g.options, &once);
    open_golden_model(&g, &g.options, &twice);
    const double loss = step_model(&once, 0.0);
    step_model(&twice, 0.0);
    const double second = step_model(&twice, 0.0);
    assert_memory_equal(&loss, &second, sizeof loss);
    assert_same_gradients(&once, &twice);
    close_model(&once);
    close_model(&twice);
    close_golden(&g);
}

/* Four sequences with very different numbers of labels, one of them none. */
static void make_uneven_batch(const golden *g, model_batch *batch)
{
    enum { S = 40, ROWS = 4 * S };
    static const double masked[] = {0.0, 0.9, 1.0, 0.5};
    static int32_t tokens[ROWS], targets[ROWS];
    static int64_t positions[ROWS], doc_start[ROWS];

    for (int n = 0; n < ROWS; n++) {
        const uint64_t counter = (uint64_t)n;
        tokens[n] = (int32_t)ls_rng_below(3, 0, counter, (uint64_t)g->options.shape.V);
        targets[n] = (int32_t)ls_rng_below(3, 1, counter, (uint64_t)g->options.shape.V);
        if (ls_rng_uniform(3, 2, counter) < masked[n / S]) targets[n] = LS_TARGET_IGNORE;
        positions[n] = n % S;
        doc_start[n] = n / S * S;
    }
    *batch = (model_batch){ROWS, tokens, targets, positions, doc_start};
}

static void micro_batches_add_up(void **state)
{
    golden g;
    model one, many;
    model_batch batch;

    (void)state;
    open_golden(&g, "llama_small");
    model_batch own = g.batch;
    make_uneven_batch(&g, &batch);
    g.batch = batch;
    g.options.S = 40;
    g.options.sequences = 4;
    g.options.chunk = g.options.query_block = g.options.loss_rows = 40;
    open_golden_model(&g, &g.options, &one);
    const double loss = step_model(&one, 0.0);
    for (int64_t accumulate = 2; accumulate <= 4; accumulate *= 2) {
        g.options.accumulate = accumulate;
        g.options.sequences = 4 / accumulate;
        open_golden_model(&g, &g.options, &many);
        const double many_loss = step_model(&many, 0.0);
        assert_true(fabs(many_loss - loss) <= 5e-6 * loss);
        assert_true(compare_gradients(&many, &one) <= 5e-6);
        close_model(&many);
    }
    close_model(&one);
    g.batch = own;
    close_golden(&g);
}

/* A frozen tensor keeps its bytes and has no share in the norm; the others train on. */
static void freeze_some(void *context, const char *name, ls_param *param)
{
    (void)context;
    param->frozen = strstr(name, "norm") != NULL || strstr(name, "layers.1.mlp") != NULL ||
                    strstr(name, "layers.0.self_attn.q_proj.bias") != NULL;
}

static void frozen_parameters_keep_their_bytes(void **state)
{
    golden g;
    model m;

    (void)state;
    open_golden(&g, "llama_bias");
    g.options.param_rule = freeze_some;
    g.options.dtype = LS_DTYPE_BF16;
    open_golden_model(&g, &g.options, &m);
    step_model(&m, 1e-2);
    double norm = 0.0;
    for (int32_t i = 0; i < m.instance.decoder.n_params; i++) {
        const ls_param *p = &m.instance.decoder.params[i];
        const char *name = model_param_name(&m, i);
        uint16_t *before = read_tensor(&g, name);
        const int64_t n = ls_tensor_elements(&m.instance.decoder.tape.tensors[p->weight]);
        const int same =
            memcmp(before, ls_instance_tensor(&m.instance, p->weight), (size_t)n * 2) == 0;
        assert_int_equal(same, p->frozen);
        if (!p->frozen) {
            const float *gradient = model_gradient(&m, i, &(int64_t){0});
            for (int64_t e = 0; e < n; e++) norm += (double)gradient[e] * (double)gradient[e];
        } else {
            assert_int_equal(p->m, -1);
            assert_int_equal(p->lo, -1);
            assert_int_equal(p->grad, -1);
        }
        free(before);
    }
    assert_true(fabs(sqrt(norm) - m.control->grad_norm) <= 1e-9 * sqrt(norm));
    close_model(&m);
    close_golden(&g);
}

/* A weight that is Inf makes the loss and the gradient non-finite: nothing may change. */
static void a_step_that_is_not_finite_changes_nothing(void **state)
{
    golden g;
    model m;

    (void)state;
    open_both(&g, &m, "llama_small", LS_DTYPE_BF16);
    step_model(&m, 1e-3); /* moments that are not zero */
    const int32_t param = ls_instance_find_param(&m.instance, "model.layers.1.mlp.up_proj.weight");
    uint16_t *up = ls_instance_tensor(&m.instance, m.instance.decoder.params[param].weight);
    up[5] = 0x7f80u;

    uint64_t states = 0; /* weights, lo, m, v lie before the gradients */
    for (int role = LS_ROLE_WEIGHTS; role <= LS_ROLE_V; role++)
        for (int32_t i = 0; i < m.instance.plan.n_tensors; i++) {
            const ls_plan_tensor *t = &m.instance.plan.tensors[i];
            if (t->tensor.role == (ls_role)role && t->span.offset + t->span.bytes > states)
                states = t->span.offset + t->span.bytes;
        }
    void *before = malloc(states);
    assert_non_null(before);
    memcpy(before, m.instance.bases[0], states);
    const ls_update_control control = *m.control;
    step_model(&m, 1e-3);
    assert_memory_equal(before, m.instance.bases[0], states);
    assert_int_equal(m.control->skip, 1);
    assert_int_equal(m.control->skipped_in_a_row, 1);
    assert_int_equal(m.control->updates, control.updates);
    assert_true(m.control->beta1_power == control.beta1_power);
    free(before);
    close_model(&m);
    close_golden(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_pytorchs_and_only_matrices_decay),
        cmocka_unit_test(random_biases_are_zero),
        cmocka_unit_test(twenty_adamw_steps_track_pytorch),
        cmocka_unit_test(blocks_do_not_change_the_result),
        cmocka_unit_test(equal_blocks_give_equal_bits),
        cmocka_unit_test(any_mixture_of_policies_gives_equal_bits),
        cmocka_unit_test(any_number_of_threads_gives_equal_bits),
        cmocka_unit_test(a_step_leaves_nothing_behind),
        cmocka_unit_test(micro_batches_add_up),
        cmocka_unit_test(frozen_parameters_keep_their_bytes),
        cmocka_unit_test(a_step_that_is_not_finite_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
