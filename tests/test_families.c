/*
 * test_families.c - one small model of each family on the golden batch: logits, loss of every token
 * and every gradient against PyTorch/Transformers (made by scripts/golden.py).
 */
#include "golden_test.h"

#define LOGITS_STRIDE 24 /* of the rows whose logits are golden */

static const char *const fixtures[] = {"llama_small", "llama_tied",  "llama_bias",
                                       "qwen2_small", "qwen3_small", "mistral_small"};

enum { N_FIXTURES = sizeof fixtures / sizeof fixtures[0] };

/* An evaluation, whose only tile of logits still holds all rows when it ends. */
static void check_rows(const golden *g, model *m)
{
    const ls_decoder_inputs *in = &m->instance.decoder.inputs;
    const int64_t V = g->options.shape.V;
    const float *nll = ls_instance_tensor(&m->instance, in->nll);
    const float *logits = ls_instance_tensor(&m->instance, in->logits);
    float *golden_nll = read_tensor(g, "nll"), *golden_logits = read_tensor(g, "logits");
    double difference, norm;

    assert_int_equal(ls_instance_run(&m->instance, LS_SEGMENT_EVAL, m), LS_OK);
    for (int64_t n = 0; n < g->batch.rows; n++)
        if (!(fabs((double)nll[n] - (double)golden_nll[n]) <= 1e-5))
            fail_msg("row %lld: loss %.7f, PyTorch %.7f", (long long)n, (double)nll[n],
                     (double)golden_nll[n]);
    for (int64_t n = 0; n < g->batch.rows; n += LOGITS_STRIDE) {
        measure_difference(logits + n * V, golden_logits + n / LOGITS_STRIDE * V, V, &difference,
                           &norm);
        if (!(difference < 1e-5 * norm))
            fail_msg("row %lld: logits off by %.2e", (long long)n, difference / norm);
    }
    free(golden_nll);
    free(golden_logits);
}

static void check_fp32(const char *name)
{
    golden g;
    model m;

    open_both(&g, &m, name, LS_DTYPE_F32);
    const double loss = step_model(&m, 0.0);
    assert_true(fabs(loss - number(&g, "loss")) <= 1e-6 * number(&g, "loss"));
    assert_true(fabs(m.control->grad_norm - number(&g, "grad_norm")) <=
                1e-5 * number(&g, "grad_norm"));
    check_rows(&g, &m);
    for (int32_t i = 0; i < m.instance.decoder.n_params; i++) {
        const double error = golden_gradient_error(&g, &m, i);
        if (!(error < 1e-5))
            fail_msg("%s, %s: gradient off by %.2e", name, model_param_name(&m, i), error);
    }
    close_model(&m);
    close_golden(&g);
}

static void fp32_logits_losses_and_every_gradient_match_pytorch(void **state)
{
    (void)state;
    for (int f = 0; f < N_FIXTURES; f++) check_fp32(fixtures[f]);
}

static double pytorch_bf16_error(const golden *g, const char *name)
{
    const cJSON *errors = ls_json_find_path(g->json, "pytorch_bf16.gradient_error");
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(errors, name);
    assert_true(cJSON_IsNumber(error));
    return error->valuedouble;
}

static void check_bf16(const char *fixture)
{
    golden g;
    model m;

    open_both(&g, &m, fixture, LS_DTYPE_BF16);
    const double loss = step_model(&m, 0.0);
    assert_true(fabs(loss - number(&g, "loss")) <= 1e-3 * number(&g, "loss"));
    for (int32_t i = 0; i < m.instance.decoder.n_params; i++) {
        const char *name = model_param_name(&m, i);
        const double error = golden_gradient_error(&g, &m, i);
        if (!(error <= 1.5 * pytorch_bf16_error(&g, name)))
            fail_msg("%s, %s: gradient off by %.2e, PyTorch's bf16 by %.2e", fixture, name, error,
                     pytorch_bf16_error(&g, name));
    }
    close_model(&m);
    close_golden(&g);
}

static void bf16_gradients_are_as_good_as_pytorchs(void **state)
{
    (void)state;
    for (int f = 0; f < N_FIXTURES; f++) check_bf16(fixtures[f]);
}

/* The fixture's own config.json, through the reader, is the model that the tests above ran. */
static void the_reader_makes_the_same_model_of_its_config(void **state)
{
    (void)state;
    for (int f = 0; f < N_FIXTURES; f++) {
        golden g;
        ls_model_config config;
        open_golden(&g, fixtures[f]);
        char *text = cJSON_Print(cJSON_GetObjectItemCaseSensitive(g.json, "config"));
        if (ls_model_config_parse("config.json", text, strlen(text), &config) != LS_OK)
            fail_msg("%s: %s", fixtures[f], ls_error());
        const ls_decoder_shape *s = &g.options.shape;
        assert_int_equal(config.qkv_bias, s->qkv_bias);
        assert_int_equal(config.o_bias, s->o_bias);
        assert_int_equal(config.qk_norm, s->qk_norm);
        assert_int_equal(config.head_dim, s->K);
        assert_int_equal(config.sliding_window, g.options.window);
        assert_int_equal(ls_model_config_parameters(&config), ls_decoder_params(s));
        free(text);
        close_golden(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp32_logits_losses_and_every_gradient_match_pytorch),
        cmocka_unit_test(bf16_gradients_are_as_good_as_pytorchs),
        cmocka_unit_test(the_reader_makes_the_same_model_of_its_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
