/* model_family.c - the rules of each family, as Transformers' configuration and model code has
 * them. */
#include "model_family.h"

#include <assert.h>
#include <string.h>

#include "json.h"

#define MISTRAL_WINDOW 4096 /* of a config.json without sliding_window */
#define QWEN_FULL      28   /* max_window_layers of a config.json without it */
#define QWEN3_HEAD     128  /* head_dim of a config.json without it */
#define TOKENS_MAX     INT32_MAX
#define LAYERS_MAX     (1 << 14)

static const struct {
    const char *name, *architecture;
} families[LS_MODEL_FAMILY_COUNT] = {
    [LS_MODEL_LLAMA] = {"llama", "LlamaForCausalLM"},
    [LS_MODEL_QWEN2] = {"qwen2", "Qwen2ForCausalLM"},
    [LS_MODEL_MISTRAL] = {"mistral", "MistralForCausalLM"},
    [LS_MODEL_QWEN3] = {"qwen3", "Qwen3ForCausalLM"},
};

const char *ls_model_family_name(ls_model_family family)
{
    assert((unsigned)family < LS_MODEL_FAMILY_COUNT);
    return families[family].name;
}

const char *ls_model_family_architecture(ls_model_family family)
{
    assert((unsigned)family < LS_MODEL_FAMILY_COUNT);
    return families[family].architecture;
}

ls_status ls_model_family_find(const ls_yaml_node *root, ls_model_family *family)
{
    const ls_yaml_node *node = ls_yaml_find(root, "model_type");
    const char *name;

    if (node == NULL)
        return LS_YAML_FAIL(root, LS_ERR_INVALID, "model_type: is missing; every model gives it");
    LS_TRY(ls_yaml_get_text(node, &name));
    for (int f = 0; f < LS_MODEL_FAMILY_COUNT; f++)
        if (strcmp(name, families[f].name) == 0) {
            *family = (ls_model_family)f;
            return LS_OK;
        }
    return LS_YAML_FAIL(
        node, LS_ERR_UNSUPPORTED,
        "'%s' is not supported by this version; allowed: llama, qwen2, qwen3, mistral", name);
}

int64_t ls_model_family_head_dim(ls_model_family family)
{
    return family == LS_MODEL_QWEN3 ? QWEN3_HEAD : 0;
}

bool ls_model_family_has(ls_model_family family, const char *field)
{
    static const char *const of_qwen[] = {"use_sliding_window", "max_window_layers", "layer_types"};

    if (strcmp(field, "use_mrope") == 0) return family == LS_MODEL_QWEN2;
    for (size_t i = 0; i < sizeof of_qwen / sizeof of_qwen[0]; i++)
        if (strcmp(field, of_qwen[i]) == 0)
            return family == LS_MODEL_QWEN2 || family == LS_MODEL_QWEN3;
    return true;
}

/* NULL where it is absent or null. */
static const ls_yaml_node *find_given(const ls_yaml_node *root, const char *name)
{
    const ls_yaml_node *node = ls_yaml_find(root, name);
    return node == NULL || ls_yaml_is_null(node) ? NULL : node;
}

static ls_status read_bool(const ls_yaml_node *root, const char *name, bool absent, bool *value)
{
    const ls_yaml_node *node = find_given(root, name);

    *value = absent;
    return node != NULL ? ls_yaml_get_bool(node, value) : LS_OK;
}

/* ---- biases -------------------------------------------------------------------------------- */

/* Transformers reads attention_bias for Llama and Qwen3 alone; in the others it is a wrong belief.
 */
static bool chooses_biases(ls_model_family family)
{
    return family == LS_MODEL_LLAMA || family == LS_MODEL_QWEN3;
}

static ls_status read_biases(const ls_yaml_node *root, ls_model_config *config)
{
    const bool qwen2 = config->family == LS_MODEL_QWEN2;
    bool given;

    LS_TRY(read_bool(root, "attention_bias", qwen2, &given));
    if (!chooses_biases(config->family) && given != qwen2)
        return LS_YAML_FAIL(
            ls_yaml_find(root, "attention_bias"), LS_ERR_UNSUPPORTED,
            "a %s has %s; allowed: %s, or leave it out", ls_model_family_name(config->family),
            qwen2 ? "biases on q, k and v, always" : "none", qwen2 ? "true" : "false");
    config->qkv_bias = given;
    config->o_bias = given && !qwen2;
    return LS_OK;
}

/* ---- window -------------------------------------------------------------------------------- */

static ls_status read_llama_window(const ls_yaml_node *root)
{
    const ls_yaml_node *node = find_given(root, "sliding_window");

    if (node == NULL) return LS_OK;
    return LS_YAML_FAIL(node, LS_ERR_UNSUPPORTED,
                        "a llama has none; allowed: null; use sequence.window in the run file");
}

static ls_status read_mistral_window(const ls_yaml_node *root, int64_t *window)
{
    const ls_yaml_node *node = ls_yaml_find(root, "sliding_window");

    *window = node == NULL ? MISTRAL_WINDOW : 0;
    if (node == NULL || ls_yaml_is_null(node)) return LS_OK;
    return ls_yaml_get_whole(node, 1, TOKENS_MAX, window);
}

/* Layers from max_window_layers on have the window: all of them here, or none. */
static ls_status read_qwen_window(const ls_yaml_node *root, int64_t n_layers, int64_t *window)
{
    const ls_yaml_node *size = find_given(root, "sliding_window");
    const ls_yaml_node *full = find_given(root, "max_window_layers");
    int64_t n_full = QWEN_FULL, n_tokens = 0;
    bool used;

    LS_TRY(read_bool(root, "use_sliding_window", false, &used));
    if (size != NULL) LS_TRY(ls_yaml_get_whole(size, 1, TOKENS_MAX, &n_tokens));
    if (full != NULL) LS_TRY(ls_yaml_get_whole(full, 0, LAYERS_MAX, &n_full));
    *window = 0;
    if (!used || n_full >= n_layers || (size == NULL && ls_yaml_find(root, "sliding_window")))
        return LS_OK;
    if (n_full > 0)
        return LS_YAML_FAIL(full != NULL ? full : ls_yaml_find(root, "use_sliding_window"),
                            LS_ERR_UNSUPPORTED,
                            "sliding windows in the layers from %lld on only (max_window_layers); "
                            "allowed: in all (0) or none (%lld, or use_sliding_window: false)",
                            (long long)n_full, (long long)n_layers);
    if (size == NULL)
        return LS_YAML_FAIL(ls_yaml_find(root, "use_sliding_window"), LS_ERR_INVALID,
                            "sliding_window is missing");
    *window = n_tokens;
    return LS_OK;
}

/* What newer files repeat for each layer. */
static ls_status check_layer_types(const ls_yaml_node *root, const ls_model_config *config)
{
    const ls_yaml_node *list = find_given(root, "layer_types");
    const char *only = config->sliding_window > 0 ? "sliding_attention" : "full_attention";
    const char *type;

    if (list == NULL) return LS_OK;
    LS_TRY(ls_yaml_get_list(list));
    if ((int64_t)list->n_children != config->num_hidden_layers)
        return LS_YAML_FAIL(list, LS_ERR_INVALID, "names %zu layers; allowed: all %lld",
                            list->n_children, (long long)config->num_hidden_layers);
    for (const ls_yaml_node *node = list->first; node != NULL; node = node->next) {
        LS_TRY(ls_yaml_get_text(node, &type));
        if (strcmp(type, only) != 0)
            return LS_YAML_FAIL(node, LS_ERR_UNSUPPORTED,
                                "'%s' is not supported by this version; allowed: %s, which the "
                                "other fields say of all layers",
                                type, only);
    }
    return LS_OK;
}

static ls_status read_window(const ls_yaml_node *root, ls_model_config *config)
{
    switch (config->family) {
    case LS_MODEL_QWEN2:
    case LS_MODEL_QWEN3:
        return read_qwen_window(root, config->num_hidden_layers, &config->sliding_window);
    case LS_MODEL_MISTRAL: return read_mistral_window(root, &config->sliding_window);
    default: return read_llama_window(root);
    }
}

ls_status ls_model_family_read(const ls_yaml_node *root, ls_model_config *config)
{
    config->qk_norm = config->family == LS_MODEL_QWEN3;
    LS_TRY(read_biases(root, config));
    LS_TRY(read_window(root, config));
    return check_layer_types(root, config);
}

/* ---- writing ------------------------------------------------------------------------------- */

static cJSON *create_window(int64_t window)
{
    return window > 0 ? cJSON_CreateNumber((double)window) : cJSON_CreateNull();
}

ls_status ls_model_family_write(const ls_model_config *config, cJSON *json)
{
    const char *const architecture = ls_model_family_architecture(config->family);
    const int64_t window = config->sliding_window;

    LS_TRY(
        ls_json_add(json, "model_type", cJSON_CreateString(ls_model_family_name(config->family))));
    LS_TRY(ls_json_add(json, "architectures", cJSON_CreateStringArray(&architecture, 1)));
    if (chooses_biases(config->family))
        LS_TRY(ls_json_add(json, "attention_bias", cJSON_CreateBool(config->o_bias)));
    if (config->family == LS_MODEL_LLAMA) return ls_json_add(json, "mlp_bias", cJSON_CreateFalse());
    LS_TRY(ls_json_add(json, "sliding_window", create_window(window)));
    if (config->family == LS_MODEL_MISTRAL) return LS_OK;
    LS_TRY(ls_json_add(json, "use_sliding_window", cJSON_CreateBool(window > 0)));
    return ls_json_add(json, "max_window_layers",
                       cJSON_CreateNumber(window > 0 ? 0.0 : (double)config->num_hidden_layers));
}
