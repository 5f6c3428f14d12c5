/*
 * golden_test.h - the golden values in tests/golden (made by scripts/golden.py), and a model on
 * their weights and batch.
 */
#ifndef LS_GOLDEN_TEST_H
#define LS_GOLDEN_TEST_H

#include "model_test.h"

#define GOLDEN LS_SOURCE_DIR "/tests/golden/"

typedef struct golden {
    cJSON *json;
    ls_safetensors *tensors;
    ls_decoder_options options;
    double theta;
    model_batch batch;
} golden;

static inline void *read_tensor(const golden *g, const char *name)
{
    const ls_safetensors_entry *entry = ls_safetensors_find(g->tensors, name);
    assert_non_null(entry);
    void *data = malloc(entry->size_bytes);
    assert_non_null(data);
    assert_int_equal(ls_safetensors_read(g->tensors, entry, 0, entry->size_bytes, data), LS_OK);
    return data;
}

static inline double number(const golden *g, const char *path)
{
    const cJSON *item = ls_json_find_path(g->json, path);
    if (!cJSON_IsNumber(item)) fail_msg("golden value %s is missing", path);
    return item->valuedouble;
}

static inline double config_number(const golden *g, const char *key)
{
    char path[128];
    snprintf(path, sizeof path, "config.%s", key);
    return number(g, path);
}

static inline double read_theta(const golden *g)
{
    const cJSON *old = ls_json_find_path(g->json, "config.rope_theta");
    if (cJSON_IsNumber(old)) return old->valuedouble;
    return number(g, "config.rope_parameters.rope_theta");
}

static inline void open_golden(golden *g, const char *name)
{
    char path[512];

    memset(g, 0, sizeof *g);
    snprintf(path, sizeof path, GOLDEN "%s.json", name);
    assert_int_equal(ls_json_read(path, &g->json), LS_OK);
    snprintf(path, sizeof path, GOLDEN "%s.safetensors", name);
    assert_int_equal(ls_safetensors_open(path, &g->tensors), LS_OK);

    const cJSON *tied = ls_json_find_path(g->json, "config.tie_word_embeddings");
    const bool all_bias = cJSON_IsTrue(ls_json_find_path(g->json, "config.attention_bias"));
    const bool qwen2 = strncmp(name, "qwen2", 5) == 0;
    const cJSON *window = ls_json_find_path(g->json, "config.sliding_window");
    const int64_t S = (int64_t)number(g, "batch.sequence_tokens");
    const int64_t sequences = (int64_t)number(g, "batch.sequences");
    g->options =
        (ls_decoder_options){.shape = {.V = (int64_t)config_number(g, "vocab_size"),
                                       .D = (int64_t)config_number(g, "hidden_size"),
                                       .F = (int64_t)config_number(g, "intermediate_size"),
                                       .L = (int64_t)config_number(g, "num_hidden_layers"),
                                       .H = (int64_t)config_number(g, "num_attention_heads"),
                                       .G = (int64_t)config_number(g, "num_key_value_heads"),
                                       .K = (int64_t)config_number(g, "head_dim"),
                                       .eps = (float)config_number(g, "rms_norm_eps"),
                                       .tied = cJSON_IsTrue(tied),
                                       .qkv_bias = all_bias || qwen2,
                                       .o_bias = all_bias,
                                       .qk_norm = strncmp(name, "qwen3", 5) == 0},
                             .dtype = LS_DTYPE_F32,
                             .S = S,
                             .sequences = sequences,
                             .accumulate = 1,
                             .chunk = S * sequences,
                             .query_block = S * sequences,
                             .loss_rows = S * sequences,
                             .window = cJSON_IsNumber(window) ? (int64_t)window->valuedouble : 0,
                             .train = true,
                             .beta1 = 0.9f,
                             .beta2 = 0.95f,
                             .adam_eps = 1e-8f,
                             .weight_decay = 0.1f,
                             .clip_norm = 1.0f};
    g->theta = read_theta(g);
    g->batch = (model_batch){.rows = S * sequences,
                             .tokens = read_tensor(g, "tokens"),
                             .targets = read_tensor(g, "targets"),
                             .positions = read_tensor(g, "positions"),
                             .doc_start = read_tensor(g, "doc_start")};
}

static inline void close_golden(golden *g)
{
    cJSON_Delete(g->json);
    ls_safetensors_close(g->tensors);
    free(g->batch.tokens);
    free(g->batch.targets);
    free(g->batch.positions);
    free(g->batch.doc_start);
}

static inline void load_golden_weights(const golden *g, model *m)
{
    for (int32_t i = 0; i < m->instance.decoder.n_params; i++) {
        const char *name = model_param_name(m, i);
        uint16_t *bf16 = read_tensor(g, name);
        const int64_t n = ls_tensor_elements(
            &m->instance.decoder.tape.tensors[m->instance.decoder.params[i].weight]);
        for (int64_t e = 0; e < n; e++)
            ls_weights_store(&m->instance, i, e, ls_f32_from_bits((uint32_t)bf16[e] << 16));
        free(bf16);
    }
}

static inline void open_golden_model(const golden *g, const ls_decoder_options *options, model *m)
{
    open_model(m, options, &g->batch, g->theta);
    load_golden_weights(g, m);
}

/* Golden values, and their model in dtype with nothing cut. */
static inline void open_both(golden *g, model *m, const char *name, ls_dtype dtype)
{
    open_golden(g, name);
    g->options.dtype = dtype;
    open_golden_model(g, &g->options, m);
}

/* Relative error of a parameter's gradient against the reference. */
static inline double golden_gradient_error(const golden *g, const model *m, int32_t param)
{
    char name[256];
    int64_t n;
    double difference, norm;
    const float *gradient = model_gradient(m, param, &n);

    snprintf(name, sizeof name, "grad.%s", model_param_name(m, param));
    float *expected = read_tensor(g, name);
    measure_difference(gradient, expected, n, &difference, &norm);
    free(expected);
    const double least = 1e-6 * number(g, "grad_norm");
    return difference / (norm > least ? norm : least);
}

#endif
