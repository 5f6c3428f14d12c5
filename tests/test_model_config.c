/* test_model_config.c - one reader for YAML and config.json; what it refuses; what it writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json.h"
#include "model_config.h"

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

/* A whole model, and room for one more line. */
static const char base[] = "model_type: llama\n"
                           "vocab_size: 320\n"
                           "hidden_size: 64\n"
                           "intermediate_size: 96\n"
                           "num_hidden_layers: 2\n"
                           "num_attention_heads: 4\n"
                           "max_position_embeddings: 128\n";

static ls_status parse_with(const char *more, ls_model_config *config)
{
    char text[4096];
    const int n = snprintf(text, sizeof text, "%s%s", base, more);
    assert_true(n > 0 && (size_t)n < sizeof text);
    return ls_model_config_parse("m.yaml", text, (size_t)n, config);
}

static void absent_fields_take_transformers_defaults(void **state)
{
    ls_model_config config;

    (void)state;
    if (parse_with("", &config) != LS_OK) fail_msg("%s", ls_error());
    assert_int_equal(config.num_key_value_heads, 4);
    assert_int_equal(config.head_dim, 16);
    assert_true(config.rms_norm_eps > 0.99e-6 && config.rms_norm_eps < 1.01e-6);
    assert_true(config.rope_scaling.theta > 9999 && config.rope_scaling.theta < 10001);
    assert_true(config.initializer_range > 0.0199 && config.initializer_range < 0.0201);
    assert_false(config.tie_word_embeddings);
    assert_int_equal(config.eos_token_id.n, 0);
}

static void given_fields_are_taken(void **state)
{
    ls_model_config config;

    (void)state;
    if (parse_with("num_key_value_heads: 2\nhead_dim: 32\nrms_norm_eps: 1.0e-5\nrope_theta: 5e5\n"
                   "tie_word_embeddings: true\nbos_token_id: 0\neos_token_id: [1, 2]\n"
                   "pad_token_id: -1\nhidden_act: silu\nattention_bias: false\nrope_scaling: null\n"
                   "attention_dropout: 0.0\nuse_cache: true\n_name_or_path: x\n",
                   &config) != LS_OK)
        fail_msg("%s", ls_error());
    assert_int_equal(config.num_key_value_heads, 2);
    assert_int_equal(config.head_dim, 32);
    assert_true(config.rope_scaling.theta > 499999 && config.rope_scaling.theta < 500001);
    assert_true(config.tie_word_embeddings);
    assert_int_equal(config.bos_token_id.n, 1);
    assert_int_equal(config.eos_token_id.n, 2);
    assert_int_equal(config.eos_token_id.ids[1], 2);
    assert_int_equal(config.pad_token_id.n, 0);
}

static void both_rope_spellings_are_read(void **state)
{
    ls_model_config config;

    (void)state;
    assert_int_equal(
        parse_with("rope_parameters: {rope_type: default, rope_theta: 2e4}\n", &config), LS_OK);
    assert_true(config.rope_scaling.theta > 19999 && config.rope_scaling.theta < 20001);
    /* the same value twice, whichever comes first in the file */
    assert_int_equal(parse_with("rope_parameters: {rope_theta: 3e4}\nrope_theta: 30000\n", &config),
                     LS_OK);
    assert_true(config.rope_scaling.theta > 29999 && config.rope_scaling.theta < 30001);
    assert_int_equal(parse_with("rope_parameters: {rope_theta: 3e4}\nrope_theta: 1e4\n", &config),
                     LS_ERR_INVALID);
    assert_string_equal(ls_error(), "m.yaml:8: rope_parameters.rope_theta: is 30000, but "
                                    "rope_theta beside it is 10000; allowed: one value");
}

static void what_cannot_be_trained_is_refused_by_name(void **state)
{
    static const struct {
        const char *more;
        ls_status status;
        const char *message;
    } cases[] = {
        {"hiden_size: 64\n", LS_ERR_INVALID,
         "m.yaml:8: hiden_size: unknown key, did you mean 'hidden_size'?"},
        {"num_local_experts: 8\n", LS_ERR_INVALID, "m.yaml:8: num_local_experts: unknown key"},
        {"auto_map: {}\n", LS_ERR_INVALID, "m.yaml:8: auto_map: unknown key"},
        {"attention_bias: 1\n", LS_ERR_INVALID, "m.yaml:8: attention_bias: '1' is not a truth"},
        {"mlp_bias: true\n", LS_ERR_UNSUPPORTED, "m.yaml:8: mlp_bias: 'true'"},
        {"attention_dropout: 0.1\n", LS_ERR_UNSUPPORTED, "m.yaml:8: attention_dropout: '0.1'"},
        {"hidden_act: gelu\n", LS_ERR_UNSUPPORTED,
         "hidden_act: 'gelu' is not supported by this "
         "version; allowed: silu"},
        {"rope_scaling: {rope_type: llama3, factor: 8}\n", LS_ERR_INVALID,
         "m.yaml:8: rope_scaling: original_max_position_embeddings is missing"},
        {"rope_parameters: {rope_type: default, factor: 4}\n", LS_ERR_INVALID,
         "rope_parameters.factor: unknown key"},
        {"rope_parameters: {partial_rotary_factor: 0.5}\n", LS_ERR_UNSUPPORTED,
         "partial_rotary_factor: '0.5' is not supported"},
        {"sliding_window: 4096\n", LS_ERR_UNSUPPORTED, "use sequence.window in the run file"},
        {"quantization_config: {bits: 4}\n", LS_ERR_UNSUPPORTED, "quantization_config: a map"},
        {"architectures: [MistralForCausalLM]\n", LS_ERR_UNSUPPORTED,
         "architectures[0]: 'MistralForCausalLM' is not supported"},
        {"num_key_value_heads: 3\n", LS_ERR_INVALID,
         "m.yaml:8: num_key_value_heads: 3 does not divide num_attention_heads = 4"},
        {"num_key_value_heads: 8\n", LS_ERR_INVALID, "num_key_value_heads: 8 does not divide"},
        {"head_dim: 15\n", LS_ERR_INVALID, "m.yaml:8: head_dim: a head width (head_dim) of 15"},
        {"head_dim: 0\n", LS_ERR_INVALID, "head_dim: 0 is out of range; allowed: 1 to 4,096"},
        {"eos_token_id: 320\n", LS_ERR_INVALID, "eos_token_id: 320 is outside the vocabulary"},
        {"eos_token_id: [1, many]\n", LS_ERR_INVALID, "eos_token_id[1]: 'many' is not a whole"},
        {"rms_norm_eps: 0\n", LS_ERR_INVALID, "rms_norm_eps: '0' is out of range"},
        {"rms_norm_eps: nan\n", LS_ERR_INVALID, "rms_norm_eps: 'nan' is not a number"},
        {"rope_theta: -1\n", LS_ERR_INVALID, "rope_theta: '-1' is out of range"},
        {"rope_theta: [1]\n", LS_ERR_INVALID, "rope_theta: is a list, not one value"},
        {"tie_word_embeddings: 1\n", LS_ERR_INVALID, "tie_word_embeddings: '1' is not a truth"},
        {"vocab_size: 12\n", LS_ERR_INVALID, "m.yaml:8: vocab_size: given twice, first on line 2"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        ls_model_config config;
        memset(&config, 0x5a, sizeof config);
        assert_int_equal(parse_with(cases[i].more, &config), cases[i].status);
        assert_int_equal(((unsigned char *)&config)[0], 0x5a); /* outputs only on LS_OK */
        if (strstr(ls_error(), cases[i].message) == NULL)
            fail_msg("'%s' lacks '%s'", ls_error(), cases[i].message);
    }
}

/* base with one line replaced, or dropped where by is "". */
static ls_status parse_replaced(const char *key, const char *by, ls_model_config *config)
{
    char text[1024] = "";
    const char *line = base;

    while (*line != '\0') {
        const char *end = strchr(line, '\n') + 1;
        const size_t n = strlen(text);
        if (strncmp(line, key, strlen(key)) == 0)
            snprintf(text + n, sizeof text - n, "%s", by);
        else
            snprintf(text + n, sizeof text - n, "%.*s", (int)(end - line), line);
        line = end;
    }
    return ls_model_config_parse("m.yaml", text, strlen(text), config);
}

static void sizes_are_bounded_and_required(void **state)
{
    static const struct {
        const char *key, *by;
        ls_status status;
        const char *message;
    } cases[] = {
        {"hidden_size", "", LS_ERR_INVALID, "m.yaml:1: hidden_size: is missing"},
        {"model_type", "", LS_ERR_INVALID, "m.yaml:1: model_type: is missing"},
        {"model_type", "model_type: gpt2\n", LS_ERR_UNSUPPORTED,
         "m.yaml:1: model_type: 'gpt2' is not supported by this version; allowed: llama, qwen2, "},
        {"hidden_size", "hidden_size: 68\n", LS_ERR_UNSUPPORTED, "allowed: multiples of 8"},
        {"hidden_size", "hidden_size: 64.0\n", LS_ERR_INVALID, "'64.0' is not a whole number"},
        {"hidden_size", "hidden_size: -64\n", LS_ERR_INVALID, "-64 is out of range"},
        {"hidden_size", "hidden_size: 9223372036854775808\n", LS_ERR_INVALID, "too large"},
        {"hidden_size", "hidden_size: 2147483648\n", LS_ERR_INVALID, "allowed: 1 to 262,144"},
        {"hidden_size", "hidden_size: '64'\n", LS_ERR_INVALID, "is a text in quotes"},
        {"num_attention_heads", "num_attention_heads: 5\n", LS_ERR_INVALID,
         "num_attention_heads: 5 does not divide hidden_size = 64"},
        {"num_hidden_layers", "num_hidden_layers: 0\n", LS_ERR_INVALID, "0 is out of range"},
        {"vocab_size", "vocab_size:\n", LS_ERR_INVALID, "m.yaml:2: vocab_size: has no value"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        ls_model_config config;
        assert_int_equal(parse_replaced(cases[i].key, cases[i].by, &config), cases[i].status);
        if (strstr(ls_error(), cases[i].message) == NULL)
            fail_msg("'%s' lacks '%s'", ls_error(), cases[i].message);
    }
}

static void largest_model_counts_without_overflow(void **state)
{
    static const char text[] = "{\"model_type\": \"llama\", \"vocab_size\": 4194304,"
                               " \"hidden_size\": 262144, \"intermediate_size\": 1048576,"
                               " \"num_hidden_layers\": 16384, \"num_attention_heads\": 4096,"
                               " \"head_dim\": 4096, \"max_position_embeddings\": 2147483647}";
    ls_model_config config;

    (void)state;
    if (ls_model_config_parse("m.json", text, strlen(text), &config) != LS_OK)
        fail_msg("%s", ls_error());
    assert_true(ls_model_config_parameters(&config) > 0);
    assert_true(ls_model_config_parameters(&config) <= INT64_MAX / 16);
}

static void the_shipped_model_is_as_it_says(void **state)
{
    ls_model_config config;

    (void)state;
    if (ls_model_config_read(LS_SOURCE_DIR "/configs/models/byte-3m.yaml", &config) != LS_OK)
        fail_msg("%s", ls_error());
    assert_int_equal(config.vocab_size, 272);
    assert_int_equal(config.num_key_value_heads, 2);
    assert_int_equal(config.eos_token_id.ids[0], 256);
    /* 2 x 272 x 256, 4 x (256 x (256 + 128 + 128 + 256) + 3 x 256 x 704 + 2 x 256), 256 */
    assert_int_equal(ls_model_config_parameters(&config), 139264 + 4 * 737792 + 256);
}

static void assert_same(const ls_model_config *a, const ls_model_config *b)
{
    assert_int_equal(a->vocab_size, b->vocab_size);
    assert_int_equal(a->hidden_size, b->hidden_size);
    assert_int_equal(a->intermediate_size, b->intermediate_size);
    assert_int_equal(a->num_hidden_layers, b->num_hidden_layers);
    assert_int_equal(a->num_attention_heads, b->num_attention_heads);
    assert_int_equal(a->num_key_value_heads, b->num_key_value_heads);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->max_position_embeddings, b->max_position_embeddings);
    assert_memory_equal(&a->rms_norm_eps, &b->rms_norm_eps, sizeof a->rms_norm_eps);
    assert_memory_equal(&a->rope_scaling, &b->rope_scaling, sizeof a->rope_scaling);
    assert_memory_equal(&a->initializer_range, &b->initializer_range, sizeof a->initializer_range);
    assert_int_equal(a->tie_word_embeddings, b->tie_word_embeddings);
    assert_int_equal(a->family, b->family);
    assert_int_equal(a->sliding_window, b->sliding_window);
    assert_int_equal(a->qkv_bias, b->qkv_bias);
    assert_int_equal(a->o_bias, b->o_bias);
    assert_int_equal(a->qk_norm, b->qk_norm);
    assert_memory_equal(&a->bos_token_id, &b->bos_token_id, sizeof a->bos_token_id);
    assert_memory_equal(&a->eos_token_id, &b->eos_token_id, sizeof a->eos_token_id);
    assert_memory_equal(&a->pad_token_id, &b->pad_token_id, sizeof a->pad_token_id);
}

static void what_is_written_reads_back_from_its_folder(void **state)
{
    static const char more[] = "num_key_value_heads: 2\nhead_dim: 32\nrms_norm_eps: 1.2345678901e-5"
                               "\nrope_theta: 10000.000000000002\ntie_word_embeddings: true\n"
                               "attention_bias: true\n"
                               "eos_token_id: [1, 2, 3]\npad_token_id: 7\n";
    char folder[] = LS_BINARY_DIR "/model-XXXXXX", path[sizeof folder + 32];
    ls_model_config config, again;
    cJSON *json = NULL;

    (void)state;
    assert_int_equal(parse_with(more, &config), LS_OK);
    assert_int_equal(ls_model_config_to_json(&config, LS_DTYPE_BF16, &json), LS_OK);
    assert_string_equal(cJSON_GetObjectItem(json, "torch_dtype")->valuestring, "bfloat16");
    assert_string_equal(cJSON_GetObjectItem(json, "model_type")->valuestring, "llama");
    assert_string_equal(
        cJSON_GetArrayItem(cJSON_GetObjectItem(json, "architectures"), 0)->valuestring,
        "LlamaForCausalLM");
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(json, "bos_token_id")));
    assert_non_null(ls_json_find_path(json, "rope_parameters.rope_theta"));
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(ls_json_write(path, json), LS_OK);
    cJSON_Delete(json);
    if (ls_model_config_read(folder, &again) != LS_OK) fail_msg("%s", ls_error());
    assert_same(&config, &again);
    assert_int_equal(ls_model_config_to_json(&config, LS_DTYPE_F32, &json), LS_OK);
    assert_string_equal(cJSON_GetObjectItem(json, "torch_dtype")->valuestring, "float32");
    cJSON_Delete(json);
    unlink(path);
    assert_int_equal(ls_model_config_read(folder, &again), LS_ERR_INVALID);
    assert_non_null(strstr(ls_error(), "/config.json: No such file"));
    assert_int_equal(rmdir(folder), 0);
}

/* A config.json as Transformers 4 writes it for a Llama 3.2. */
static void a_hugging_face_config_is_read(void **state)
{
    static const char text[] =
        "{\n  \"architectures\": [\n    \"LlamaForCausalLM\"\n  ],\n"
        "  \"attention_bias\": false,\n  \"attention_dropout\": 0.0,\n  \"bos_token_id\": 128000,\n"
        "  \"eos_token_id\": [\n    128001,\n    128008\n  ],\n  \"head_dim\": 64,\n"
        "  \"hidden_act\": \"silu\",\n  \"hidden_size\": 2048,\n  \"initializer_range\": 0.02,\n"
        "  \"intermediate_size\": 8192,\n  \"max_position_embeddings\": 131072,\n"
        "  \"mlp_bias\": false,\n  \"model_type\": \"llama\",\n  \"num_attention_heads\": 32,\n"
        "  \"num_hidden_layers\": 16,\n  \"num_key_value_heads\": 8,\n  \"pretraining_tp\": 1,\n"
        "  \"rms_norm_eps\": 1e-05,\n  \"rope_scaling\": {\n    \"factor\": 32.0,\n"
        "    \"high_freq_factor\": 4.0,\n    \"low_freq_factor\": 1.0,\n"
        "    \"original_max_position_embeddings\": 8192,\n    \"rope_type\": \"llama3\"\n  },\n"
        "  \"rope_theta\": 500000.0,\n"
        "  \"tie_word_embeddings\": true,\n  \"torch_dtype\": \"bfloat16\",\n"
        "  \"transformers_version\": \"4.45.0.dev0\",\n  \"use_cache\": true,\n"
        "  \"vocab_size\": 128256\n}\n";
    ls_model_config config;

    (void)state;
    if (ls_model_config_parse("config.json", text, strlen(text), &config) != LS_OK)
        fail_msg("%s", ls_error());
    assert_int_equal(ls_model_config_parameters(&config), 1235814400);
    assert_int_equal(config.eos_token_id.ids[1], 128008);
    assert_int_equal(config.rope_scaling.type, LS_ROPE_LLAMA3);
    assert_true(config.rope_scaling.theta > 499999 && config.rope_scaling.theta < 500001);
    assert_int_equal(config.rope_scaling.original_tokens, 8192);
}

/* ---- families ------------------------------------------------------------------------------ */

/* A model of this type in JSON, and more fields. */
static ls_status parse_family(const char *type, const char *more, ls_model_config *config)
{
    char text[4096];
    const int n = snprintf(text, sizeof text,
                           "{\"model_type\": \"%s\", \"vocab_size\": 320, \"hidden_size\": 64,\n"
                           "\"intermediate_size\": 96, \"num_hidden_layers\": 2,\n"
                           "\"num_attention_heads\": 4, \"max_position_embeddings\": 128%s%s}\n",
                           type, more[0] != '\0' ? ",\n" : "", more);
    assert_true(n > 0 && (size_t)n < sizeof text);
    return ls_model_config_parse("m.json", text, (size_t)n, config);
}

#define KV "\"num_key_value_heads\": 2, "

static void families_differ_in_biases_and_window(void **state)
{
    static const struct {
        const char *type, *more;
        bool qkv_bias, o_bias;
        int64_t window;
    } cases[] = {
        {"llama", "", false, false, 0},
        {"llama", "\"attention_bias\": true", true, true, 0},
        {"llama", "\"attention_bias\": null, \"sliding_window\": null", false, false, 0},
        {"qwen2", KV "\"architectures\": [\"Qwen2ForCausalLM\"]", true, false, 0},
        {"qwen2", KV "\"use_sliding_window\": false, \"sliding_window\": 64", true, false, 0},
        {"qwen2", KV "\"use_sliding_window\": true, \"sliding_window\": 64", true, false, 0},
        {"qwen2",
         KV "\"use_sliding_window\": true, \"sliding_window\": 64, "
            "\"max_window_layers\": 2, \"layer_types\": [\"full_attention\", "
            "\"full_attention\"]",
         true, false, 0},
        {"qwen2",
         KV "\"use_sliding_window\": true, \"sliding_window\": 64, "
            "\"max_window_layers\": 0, \"layer_types\": [\"sliding_attention\", "
            "\"sliding_attention\"]",
         true, false, 64},
        {"qwen2",
         KV "\"use_sliding_window\": true, \"sliding_window\": null, "
            "\"max_window_layers\": 0, \"attention_bias\": true",
         true, false, 0},
        {"mistral", KV "\"sliding_window\": null", false, false, 0},
        {"mistral", KV "\"sliding_window\": 96, \"attention_bias\": false", false, false, 96},
        {"mistral", "\"num_key_value_heads\": null", false, false, 4096},
        {"qwen3", KV "\"architectures\": [\"Qwen3ForCausalLM\"]", false, false, 0},
        {"qwen3", KV "\"attention_bias\": true, \"use_sliding_window\": true", true, true, 0},
        {"qwen3",
         KV "\"use_sliding_window\": true, \"sliding_window\": 64, \"max_window_layers\": 0, "
            "\"layer_types\": [\"sliding_attention\", \"sliding_attention\"]",
         false, false, 64},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        ls_model_config config;
        if (parse_family(cases[i].type, cases[i].more, &config) != LS_OK)
            fail_msg("%s, %s: %s", cases[i].type, cases[i].more, ls_error());
        assert_int_equal(config.qk_norm, strcmp(cases[i].type, "qwen3") == 0);
        if (config.qkv_bias != cases[i].qkv_bias || config.o_bias != cases[i].o_bias ||
            config.sliding_window != cases[i].window)
            fail_msg("%s, %s: biases %d %d, window %lld", cases[i].type, cases[i].more,
                     config.qkv_bias, config.o_bias, (long long)config.sliding_window);
    }
}

static void what_a_family_has_not_is_refused(void **state)
{
    static const struct {
        const char *type, *more;
        ls_status status;
        const char *message;
    } cases[] = {
        {"llama", "\"use_sliding_window\": false", LS_ERR_INVALID,
         "m.json:4: use_sliding_window: unknown key"},
        {"mistral", KV "\"max_window_layers\": 2", LS_ERR_INVALID,
         "max_window_layers: unknown key"},
        {"qwen2", KV "\"window\": 2", LS_ERR_INVALID, "window: unknown key"},
        {"qwen2", KV "\"dual_chunk_attention_config\": {}", LS_ERR_INVALID,
         "dual_chunk_attention_config: unknown key"},
        {"qwen2", KV "\"use_mrope\": true", LS_ERR_UNSUPPORTED, "use_mrope: 'true' is not"},
        {"qwen2", KV "\"attention_bias\": false", LS_ERR_UNSUPPORTED,
         "attention_bias: a qwen2 has biases on q, k and v, always; allowed: true"},
        {"mistral", KV "\"attention_bias\": true", LS_ERR_UNSUPPORTED,
         "attention_bias: a mistral has none; allowed: false"},
        {"qwen2",
         KV "\"use_sliding_window\": true, \"sliding_window\": 64, "
            "\"max_window_layers\": 1",
         LS_ERR_UNSUPPORTED,
         "max_window_layers: sliding windows in the layers from 1 on only (max_window_layers); "
         "allowed: in all (0) or none (2, or use_sliding_window: false)"},
        {"qwen2", KV "\"use_sliding_window\": true, \"max_window_layers\": 0", LS_ERR_INVALID,
         "use_sliding_window: sliding_window is missing"},
        {"qwen2", KV "\"use_sliding_window\": 1", LS_ERR_INVALID, "'1' is not a truth"},
        {"qwen2", KV "\"layer_types\": [\"full_attention\"]", LS_ERR_INVALID,
         "layer_types: names 1 layers; allowed: all 2"},
        {"qwen2", KV "\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
         LS_ERR_UNSUPPORTED, "layer_types[1]: 'sliding_attention' is not supported"},
        {"mistral", KV "\"sliding_window\": 0", LS_ERR_INVALID,
         "sliding_window: 0 is out of range"},
        {"mistral", KV "\"architectures\": [\"LlamaForCausalLM\"]", LS_ERR_UNSUPPORTED,
         "architectures[0]: 'LlamaForCausalLM' is not supported by this version; allowed: Mistral"},
        {"mistral", "", LS_ERR_INVALID, "num_key_value_heads: is missing; every mistral gives it"},
        {"qwen3", "", LS_ERR_INVALID, "num_key_value_heads: is missing; every qwen3 gives it"},
        {"qwen3", KV "\"use_mrope\": false", LS_ERR_INVALID, "use_mrope: unknown key"},
        {"qwen3_moe", KV "\"head_dim\": 16", LS_ERR_UNSUPPORTED,
         "model_type: 'qwen3_moe' is not supported by this version; allowed: llama, qwen2, qwen3"},
        {"llama", "\"partial_rotary_factor\": 0.5", LS_ERR_INVALID,
         "partial_rotary_factor: unknown key"},
        {"llama", "\"no_rope_layers\": [1, 0]", LS_ERR_INVALID, "no_rope_layers: unknown key"},
        {"llama", "\"logit_scale\": 0.5", LS_ERR_INVALID, "logit_scale: unknown key"},
        {"qwen2", "", LS_ERR_INVALID, "num_key_value_heads: is missing; every qwen2 gives it"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        ls_model_config config;
        if (parse_family(cases[i].type, cases[i].more, &config) != cases[i].status)
            fail_msg("%s, %s: %s", cases[i].type, cases[i].more, ls_error());
        if (strstr(ls_error(), cases[i].message) == NULL)
            fail_msg("'%s' lacks '%s'", ls_error(), cases[i].message);
    }
}

static void every_family_reads_back_as_written(void **state)
{
    static const char *const models[][2] = {
        {"llama", "\"attention_bias\": true"},
        {"qwen2", KV "\"sliding_window\": 64"},
        {"qwen2", KV "\"sliding_window\": 64, \"use_sliding_window\": true, "
                     "\"max_window_layers\": 0"},
        {"mistral", KV "\"sliding_window\": 96"},
        {"qwen3", KV "\"attention_bias\": true"},
        {"qwen3", KV "\"sliding_window\": 64, \"use_sliding_window\": true, "
                     "\"max_window_layers\": 0, \"head_dim\": 16"},
        {"mistral", KV "\"sliding_window\": null"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(models); i++) {
        ls_model_config config, again;
        cJSON *json = NULL;
        assert_int_equal(parse_family(models[i][0], models[i][1], &config), LS_OK);
        assert_int_equal(ls_model_config_to_json(&config, LS_DTYPE_BF16, &json), LS_OK);
        assert_string_equal(cJSON_GetObjectItem(json, "model_type")->valuestring, models[i][0]);
        char *text = cJSON_Print(json);
        if (ls_model_config_parse("m.json", text, strlen(text), &again) != LS_OK)
            fail_msg("%s", ls_error());
        assert_same(&config, &again);
        free(text);
        cJSON_Delete(json);
    }
}

/* As Qwen2.5-7B and Mistral-7B-v0.1 have them. */
static void configs_of_other_families_are_read(void **state)
{
    static const char qwen[] =
        "{\n  \"architectures\": [\n    \"Qwen2ForCausalLM\"\n  ],\n"
        "  \"attention_dropout\": 0.0,\n  \"bos_token_id\": 151643,\n"
        "  \"eos_token_id\": 151643,\n  \"hidden_act\": \"silu\",\n  \"hidden_size\": 3584,\n"
        "  \"initializer_range\": 0.02,\n  \"intermediate_size\": 18944,\n"
        "  \"max_position_embeddings\": 131072,\n  \"max_window_layers\": 28,\n"
        "  \"model_type\": \"qwen2\",\n  \"num_attention_heads\": 28,\n"
        "  \"num_hidden_layers\": 28,\n  \"num_key_value_heads\": 4,\n"
        "  \"rms_norm_eps\": 1e-06,\n  \"rope_theta\": 1000000.0,\n"
        "  \"sliding_window\": 131072,\n  \"tie_word_embeddings\": false,\n"
        "  \"torch_dtype\": \"bfloat16\",\n  \"transformers_version\": \"4.40.1\",\n"
        "  \"use_cache\": true,\n  \"use_mrope\": false,\n  \"use_sliding_window\": false,\n"
        "  \"vocab_size\": 152064\n}\n";
    static const char mistral[] =
        "{\"architectures\": [\"MistralForCausalLM\"], \"bos_token_id\": 1, \"eos_token_id\": 2,\n"
        " \"hidden_act\": \"silu\", \"hidden_size\": 4096, \"initializer_range\": 0.02,\n"
        " \"intermediate_size\": 14336, \"max_position_embeddings\": 32768,\n"
        " \"model_type\": \"mistral\", \"num_attention_heads\": 32, \"num_hidden_layers\": 32,\n"
        " \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0,\n"
        " \"sliding_window\": 4096, \"tie_word_embeddings\": false,\n"
        " \"torch_dtype\": \"bfloat16\", \"transformers_version\": \"4.34.0.dev0\",\n"
        " \"use_cache\": true, \"vocab_size\": 32000}\n";
    ls_model_config config;

    (void)state;
    if (ls_model_config_parse("config.json", qwen, strlen(qwen), &config) != LS_OK)
        fail_msg("%s", ls_error());
    assert_int_equal(ls_model_config_parameters(&config), 7615616512);
    assert_true(config.qkv_bias && !config.o_bias);
    assert_int_equal(config.sliding_window, 0);
    if (ls_model_config_parse("config.json", mistral, strlen(mistral), &config) != LS_OK)
        fail_msg("%s", ls_error());
    assert_int_equal(ls_model_config_parameters(&config), 7241732096);
    assert_int_equal(config.sliding_window, 4096);
}

/* As Qwen3-8B has it; without head_dim it would still be 128. */
static void a_qwen3_config_is_read(void **state)
{
    static const char text[] =
        "{\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false,\n"
        " \"attention_dropout\": 0.0, \"bos_token_id\": 151643, \"eos_token_id\": 151645,\n"
        " %s\"hidden_act\": \"silu\", \"hidden_size\": 4096, \"initializer_range\": 0.02,\n"
        " \"intermediate_size\": 12288, \"max_position_embeddings\": 40960,\n"
        " \"max_window_layers\": 36, \"model_type\": \"qwen3\", \"num_attention_heads\": 32,\n"
        " \"num_hidden_layers\": 36, \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-06,\n"
        " \"rope_scaling\": null, \"rope_theta\": 1000000, \"sliding_window\": null,\n"
        " \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\",\n"
        " \"transformers_version\": \"4.51.0\", \"use_cache\": true,\n"
        " \"use_sliding_window\": false, \"vocab_size\": 151936}\n";
    static const char *const widths[] = {"\"head_dim\": 128, ", ""};

    (void)state;
    for (size_t i = 0; i < N_OF(widths); i++) {
        char json[2048];
        ls_model_config config;
        const int n = snprintf(json, sizeof json, text, widths[i]);
        if (ls_model_config_parse("config.json", json, (size_t)n, &config) != LS_OK)
            fail_msg("%s", ls_error());
        assert_int_equal(ls_model_config_parameters(&config), 8190735360);
        assert_int_equal(config.head_dim, 128);
        assert_true(config.qk_norm && !config.qkv_bias && config.sliding_window == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_fields_take_transformers_defaults),
        cmocka_unit_test(given_fields_are_taken),
        cmocka_unit_test(both_rope_spellings_are_read),
        cmocka_unit_test(what_cannot_be_trained_is_refused_by_name),
        cmocka_unit_test(sizes_are_bounded_and_required),
        cmocka_unit_test(largest_model_counts_without_overflow),
        cmocka_unit_test(the_shipped_model_is_as_it_says),
        cmocka_unit_test(what_is_written_reads_back_from_its_folder),
        cmocka_unit_test(a_hugging_face_config_is_read),
        cmocka_unit_test(families_differ_in_biases_and_window),
        cmocka_unit_test(what_a_family_has_not_is_refused),
        cmocka_unit_test(every_family_reads_back_as_written),
        cmocka_unit_test(configs_of_other_families_are_read),
        cmocka_unit_test(a_qwen3_config_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
