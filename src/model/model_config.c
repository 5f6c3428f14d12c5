/*
 * model_config.c - a table of fields: where each goes and what it may be.
 *
 * JSON and YAML arrive as one tree.  Each field of the file is looked up in the table, so an
 * unknown one cannot slip through; then what must agree between fields is checked.  The bounds keep
 * every product of dimensions, and 16 bytes for each parameter, inside 63 bits.
 */
#include "model_config.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "json.h"
#include "model_family.h"
#include "text.h"
#include "yaml_tree.h"

#define REAL_MIN 1e-30 /* not zero as fp32 either */

typedef enum field_kind {
    FIELD_IGNORED = 0, /* cannot change the maths */
    FIELD_WHOLE,
    FIELD_POSITIVE_REAL,
    FIELD_BOOL,
    FIELD_TOKEN_IDS,
    FIELD_WORD,  /* must be the word `only` */
    FIELD_FALSE, /* must be false or absent */
    FIELD_ZERO,  /* must be 0 or absent */
    FIELD_NULL,  /* must be null or absent */
    FIELD_ARCHITECTURES,
    FIELD_TOGETHER, /* read after all, with those it belongs to */
} field_kind;

typedef struct model_field {
    const char *name;
    field_kind kind;
    bool required;
    size_t offset;
    int64_t most;
    const char *note; /* WORD: the word; refused kinds: what to do instead */
} model_field;

#define AT(member) offsetof(ls_model_config, member)

static const model_field fields[] = {
    {"vocab_size", FIELD_WHOLE, true, AT(vocab_size), 1 << 22, NULL},
    {"hidden_size", FIELD_WHOLE, true, AT(hidden_size), 1 << 18, NULL},
    {"intermediate_size", FIELD_WHOLE, true, AT(intermediate_size), 1 << 20, NULL},
    {"num_hidden_layers", FIELD_WHOLE, true, AT(num_hidden_layers), 1 << 14, NULL},
    {"num_attention_heads", FIELD_WHOLE, true, AT(num_attention_heads), 1 << 12, NULL},
    {"num_key_value_heads", FIELD_WHOLE, false, AT(num_key_value_heads), 1 << 12, NULL},
    {"head_dim", FIELD_WHOLE, false, AT(head_dim), 1 << 12, NULL},
    {"max_position_embeddings", FIELD_WHOLE, true, AT(max_position_embeddings), INT32_MAX, NULL},
    {"rms_norm_eps", FIELD_POSITIVE_REAL, false, AT(rms_norm_eps), 1, NULL},
    {"rope_theta", FIELD_POSITIVE_REAL, false, AT(rope_scaling.theta), 1000000000000, NULL},
    {"initializer_range", FIELD_POSITIVE_REAL, false, AT(initializer_range), 100, NULL},
    {"tie_word_embeddings", FIELD_BOOL, false, AT(tie_word_embeddings), 0, NULL},
    {"bos_token_id", FIELD_TOKEN_IDS, false, AT(bos_token_id), 0, NULL},
    {"eos_token_id", FIELD_TOKEN_IDS, false, AT(eos_token_id), 0, NULL},
    {"pad_token_id", FIELD_TOKEN_IDS, false, AT(pad_token_id), 0, NULL},
    {"model_type", FIELD_TOGETHER, true, 0, 0, NULL},
    {"architectures", FIELD_ARCHITECTURES, false, 0, 0, NULL},
    {"hidden_act", FIELD_WORD, false, 0, 0, "silu"},
    {"rope_parameters", FIELD_TOGETHER, false, 0, 0, NULL},
    {"rope_scaling", FIELD_TOGETHER, false, 0, 0, NULL},
    {"original_max_position_embeddings", FIELD_TOGETHER, false, 0, 0, NULL},
    {"attention_bias", FIELD_TOGETHER, false, 0, 0, NULL},
    {"sliding_window", FIELD_TOGETHER, false, 0, 0, NULL},
    {"use_sliding_window", FIELD_TOGETHER, false, 0, 0, NULL},
    {"max_window_layers", FIELD_TOGETHER, false, 0, 0, NULL},
    {"layer_types", FIELD_TOGETHER, false, 0, 0, NULL},
    {"use_mrope", FIELD_FALSE, false, 0, 0, NULL},
    {"quantization_config", FIELD_NULL, false, 0, 0, "convert the weights to BF16 or F32 first"},
    {"mlp_bias", FIELD_FALSE, false, 0, 0, NULL},
    {"rope_interleaved", FIELD_FALSE, false, 0, 0, NULL},
    {"is_encoder_decoder", FIELD_FALSE, false, 0, 0, NULL},
    {"add_cross_attention", FIELD_FALSE, false, 0, 0, NULL},
    {"attention_dropout", FIELD_ZERO, false, 0, 0, NULL},
    {"chunk_size_feed_forward", FIELD_IGNORED, false, 0, 0, NULL},
    {"pretraining_tp", FIELD_IGNORED, false, 0, 0, NULL}, /* splits sums, same result */
    {"torch_dtype", FIELD_IGNORED, false, 0, 0, NULL},
    {"dtype", FIELD_IGNORED, false, 0, 0, NULL},
    {"use_cache", FIELD_IGNORED, false, 0, 0, NULL},
    {"transformers_version", FIELD_IGNORED, false, 0, 0, NULL},
    {"transformers.js_config", FIELD_IGNORED, false, 0, 0, NULL},
    {"_name_or_path", FIELD_IGNORED, false, 0, 0, NULL},
    {"_attn_implementation_autoset", FIELD_IGNORED, false, 0, 0, NULL},
    {"is_llama_config", FIELD_IGNORED, false, 0, 0, NULL},
    {"max_sequence_length", FIELD_IGNORED, false, 0, 0, NULL}, /* older max_position_embeddings */
    {"unk_token_id", FIELD_IGNORED, false, 0, 0, NULL},
    {"sep_token_id", FIELD_IGNORED, false, 0, 0, NULL},
    {"decoder_start_token_id", FIELD_IGNORED, false, 0, 0, NULL},
    {"tokenizer_class", FIELD_IGNORED, false, 0, 0, NULL},
    {"return_dict", FIELD_IGNORED, false, 0, 0, NULL},
    {"output_attentions", FIELD_IGNORED, false, 0, 0, NULL},
    {"output_hidden_states", FIELD_IGNORED, false, 0, 0, NULL},
    {"is_decoder", FIELD_IGNORED, false, 0, 0, NULL},
    {"problem_type", FIELD_IGNORED, false, 0, 0, NULL},
    {"id2label", FIELD_IGNORED, false, 0, 0, NULL},
    {"label2id", FIELD_IGNORED, false, 0, 0, NULL},
    {"task_specific_params", FIELD_IGNORED, false, 0, 0, NULL},
    {"finetuning_task", FIELD_IGNORED, false, 0, 0, NULL},
    {"do_sample", FIELD_IGNORED, false, 0, 0, NULL},
    {"temperature", FIELD_IGNORED, false, 0, 0, NULL},
    {"top_k", FIELD_IGNORED, false, 0, 0, NULL},
    {"top_p", FIELD_IGNORED, false, 0, 0, NULL},
    {"repetition_penalty", FIELD_IGNORED, false, 0, 0, NULL},
    {"max_length", FIELD_IGNORED, false, 0, 0, NULL},
    {"min_length", FIELD_IGNORED, false, 0, 0, NULL},
};

#define N_FIELDS (sizeof fields / sizeof fields[0])

/* Fail with LS_ERR_UNSUPPORTED for a scalar that is fine in itself, but not here. */
static ls_status refuse_value(const ls_yaml_node *node, const char *allowed, const char *note)
{
    char quoted[LS_TEXT_BYTES];
    const char *what = node->kind == LS_YAML_LIST ? "a list"
                       : node->kind == LS_YAML_MAP
                           ? "a map"
                           : ls_text_quote(quoted, sizeof quoted, node->text);

    return LS_YAML_FAIL(node, LS_ERR_UNSUPPORTED,
                        "%s is not supported by this version; allowed: "
                        "%s%s%s",
                        what, allowed, note != NULL ? "; " : "", note != NULL ? note : "");
}

static ls_status read_word(const ls_yaml_node *node, const char *only)
{
    const char *text;

    LS_TRY(ls_yaml_get_text(node, &text));
    return strcmp(text, only) == 0 ? LS_OK : refuse_value(node, only, NULL);
}

static ls_status read_architectures(const ls_yaml_node *node, ls_model_family family)
{
    if (ls_yaml_is_null(node)) return LS_OK;
    LS_TRY(ls_yaml_get_list(node));
    for (const ls_yaml_node *name = node->first; name != NULL; name = name->next)
        LS_TRY(read_word(name, ls_model_family_architecture(family)));
    return LS_OK;
}

/* One id, a list of ids, or none: null, or -1 as some models write it. */
static ls_status read_token_ids(const ls_yaml_node *node, ls_token_ids *ids)
{
    const ls_yaml_node *item = node->kind == LS_YAML_LIST ? node->first : node;

    memset(ids, 0, sizeof *ids);
    if (ls_yaml_is_null(node)) return LS_OK;
    if (node->kind == LS_YAML_LIST && node->n_children > LS_TOKEN_IDS_MAX)
        return LS_YAML_FAIL(node, LS_ERR_UNSUPPORTED, "holds %zu ids; allowed: at most %d",
                            node->n_children, LS_TOKEN_IDS_MAX);
    for (; item != NULL; item = item == node ? NULL : item->next) {
        int64_t id;
        LS_TRY(ls_yaml_get_whole(item, -1, INT32_MAX, &id));
        if (id >= 0) ids->ids[ids->n++] = id;
    }
    return LS_OK;
}

/* Fail unless the value is the one that leaves this part of the maths out. */
static ls_status read_absent(const ls_yaml_node *node, const model_field *field)
{
    bool present = false;
    double amount = 0;
    const ls_yaml_range amounts = {.least = 0, .most = 1};

    if (ls_yaml_is_null(node)) return LS_OK;
    switch (field->kind) {
    case FIELD_FALSE: LS_TRY(ls_yaml_get_bool(node, &present)); break;
    case FIELD_ZERO: LS_TRY(ls_yaml_get_real(node, amounts, &amount)); break;
    default: return refuse_value(node, "null", field->note);
    }
    if (present) return refuse_value(node, "false", field->note);
    return amount > 0 ? refuse_value(node, "0", field->note) : LS_OK;
}

static ls_status read_field(const ls_yaml_node *node, const model_field *field,
                            ls_model_config *config)
{
    void *value = (char *)config + field->offset;
    const ls_yaml_range range = {.least = REAL_MIN, .most = (double)field->most};

    if (!field->required && ls_yaml_is_null(node) && field->kind != FIELD_TOKEN_IDS) return LS_OK;
    switch (field->kind) {
    case FIELD_IGNORED: return LS_OK;
    case FIELD_WHOLE: return ls_yaml_get_whole(node, 1, field->most, value);
    case FIELD_POSITIVE_REAL: return ls_yaml_get_real(node, range, value);
    case FIELD_BOOL: return ls_yaml_get_bool(node, value);
    case FIELD_TOKEN_IDS: return read_token_ids(node, value);
    case FIELD_WORD: return read_word(node, field->note);
    case FIELD_ARCHITECTURES: return read_architectures(node, config->family);
    case FIELD_TOGETHER: return LS_OK;
    case FIELD_FALSE:
    case FIELD_ZERO:
    case FIELD_NULL: break;
    }
    return read_absent(node, field);
}

static ls_status check_token_ids(const ls_yaml_node *root, const char *name, ls_token_ids ids,
                                 int64_t vocab_size)
{
    for (int64_t i = 0; i < ids.n; i++)
        if (ids.ids[i] >= vocab_size)
            return LS_YAML_FAIL(
                ls_yaml_find(root, name), LS_ERR_INVALID,
                "%lld is outside the vocabulary; allowed: 0 to vocab_size - 1 = %lld",
                (long long)ids.ids[i], (long long)vocab_size - 1);
    return LS_OK;
}

/* Whether the scaling can be computed for this model at all; at what length, the run decides. */
static ls_status check_rope(const ls_yaml_node *root, const ls_model_config *config)
{
    const ls_yaml_node *node = ls_yaml_find(root, "rope_parameters");
    char why[LS_ROPE_TEXT_BYTES];

    if (ls_rope_fits(&config->rope_scaling, config->head_dim, 0, why)) return LS_OK;
    if (node == NULL || ls_yaml_is_null(node)) node = ls_yaml_find(root, "rope_scaling");
    return LS_YAML_FAIL(node, LS_ERR_INVALID, "%s", why);
}

/* What one field alone cannot tell. */
static ls_status check_config(const ls_yaml_node *root, const ls_model_config *config)
{
    const ls_yaml_node *kv_heads = ls_yaml_find(root, "num_key_value_heads");
    const ls_yaml_node *head_dim = ls_yaml_find(root, "head_dim");

    if (config->hidden_size % 8 != 0)
        return LS_YAML_FAIL(ls_yaml_find(root, "hidden_size"), LS_ERR_UNSUPPORTED,
                            "%lld is not supported by this version; allowed: multiples of 8",
                            (long long)config->hidden_size);
    if (config->num_attention_heads % config->num_key_value_heads != 0)
        return LS_YAML_FAIL(kv_heads, LS_ERR_INVALID,
                            "%lld does not divide num_attention_heads = %lld; allowed: a divisor",
                            (long long)config->num_key_value_heads,
                            (long long)config->num_attention_heads);
    if (config->head_dim % 2 != 0)
        return LS_YAML_FAIL(head_dim != NULL ? head_dim : ls_yaml_find(root, "hidden_size"),
                            LS_ERR_INVALID,
                            "a head width (head_dim) of %lld cannot be rotated in pairs; allowed: "
                            "even widths",
                            (long long)config->head_dim);
    LS_TRY(check_rope(root, config));
    LS_TRY(check_token_ids(root, "bos_token_id", config->bos_token_id, config->vocab_size));
    LS_TRY(check_token_ids(root, "eos_token_id", config->eos_token_id, config->vocab_size));
    return check_token_ids(root, "pad_token_id", config->pad_token_id, config->vocab_size);
}

/* What depends on other fields when it is not given. */
static ls_status derive_fields(const ls_yaml_node *root, ls_model_config *config)
{
    if (config->family != LS_MODEL_LLAMA && ls_yaml_find(root, "num_key_value_heads") == NULL)
        return LS_YAML_FAIL(root, LS_ERR_INVALID,
                            "num_key_value_heads: is missing; every %s gives it",
                            ls_model_family_name(config->family));
    if (config->num_key_value_heads == 0) config->num_key_value_heads = config->num_attention_heads;
    if (config->head_dim == 0) config->head_dim = ls_model_family_head_dim(config->family);
    if (config->head_dim != 0) return LS_OK;
    if (config->hidden_size % config->num_attention_heads != 0)
        return LS_YAML_FAIL(ls_yaml_find(root, "num_attention_heads"), LS_ERR_INVALID,
                            "%lld does not divide hidden_size = %lld; allowed: a divisor, or give "
                            "head_dim",
                            (long long)config->num_attention_heads, (long long)config->hidden_size);
    config->head_dim = config->hidden_size / config->num_attention_heads;
    return LS_OK;
}

static ls_status check_names(const ls_yaml_node *root, ls_model_family family)
{
    const char *names[N_FIELDS];
    size_t n = 0;

    for (size_t i = 0; i < N_FIELDS; i++)
        if (ls_model_family_has(family, fields[i].name)) names[n++] = fields[i].name;
    return ls_yaml_check_keys(root, names, n);
}

static ls_status read_fields(const ls_yaml_node *root, ls_model_config *config)
{
    const ls_yaml_node *node;

    LS_TRY(ls_yaml_get_map(root));
    /* first, since the fields of another kind of model would all be unknown */
    LS_TRY(ls_model_family_find(root, &config->family));
    LS_TRY(check_names(root, config->family));
    for (size_t i = 0; i < N_FIELDS; i++) {
        node = ls_yaml_find(root, fields[i].name);
        if (node != NULL)
            LS_TRY(read_field(node, &fields[i], config));
        else if (fields[i].required)
            return LS_YAML_FAIL(root, LS_ERR_INVALID, "%s: is missing; every model gives it",
                                fields[i].name);
    }
    LS_TRY(ls_rope_read_model(root, config->max_position_embeddings, &config->rope_scaling));
    LS_TRY(ls_model_family_read(root, config));
    LS_TRY(derive_fields(root, config));
    return check_config(root, config);
}

static ls_status read_document(const ls_yaml *document, ls_model_config *config)
{
    /* Transformers' defaults */
    ls_model_config read = {
        .rms_norm_eps = 1e-6, .rope_scaling.theta = 10000, .initializer_range = 0.02};

    LS_TRY(read_fields(ls_yaml_root(document), &read));
    *config = read;
    return LS_OK;
}

ls_status ls_model_config_parse(const char *name, const char *text, size_t bytes,
                                ls_model_config *config)
{
    ls_yaml *document;
    ls_status status;

    LS_TRY(ls_yaml_parse(name, text, bytes, &document));
    status = read_document(document, config);
    ls_yaml_free(document);
    return status;
}

/* What is not there, or not for us, reading names. */
static ls_status look_for_folder(const char *path, bool *is_folder)
{
    struct stat about;
    const bool found = stat(path, &about) == 0;

    *is_folder = found && S_ISDIR(about.st_mode);
    if (found || (errno != EIO && errno != ENOMEM)) return LS_OK;
    return LS_FAIL(LS_ERR_IO, "%s: %s", path, strerror(errno));
}

ls_status ls_model_config_read(const char *path, ls_model_config *config)
{
    static const char inside[] = "/config.json";
    ls_yaml *document;
    ls_status status;
    bool is_folder;
    const size_t n = strlen(path);

    LS_TRY(look_for_folder(path, &is_folder));
    char *file = malloc(n + sizeof inside);

    if (file == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "%s: out of memory", path);
    memcpy(file, path, n + 1);
    if (is_folder) memcpy(file + n, inside, sizeof inside);
    status = ls_yaml_read(file, &document);
    free(file);
    LS_TRY(status);
    status = read_document(document, config);
    ls_yaml_free(document);
    return status;
}

/* ---- writing -----------------------------------------------------------------------------------
 */

static cJSON *create_token_ids(const ls_token_ids *ids)
{
    cJSON *list;

    if (ids->n == 0) return cJSON_CreateNull();
    if (ids->n == 1) return cJSON_CreateNumber((double)ids->ids[0]);
    list = cJSON_CreateArray();
    for (int64_t i = 0; list != NULL && i < ids->n; i++)
        if (ls_json_append(list, cJSON_CreateNumber((double)ids->ids[i])) != LS_OK) {
            cJSON_Delete(list);
            return NULL;
        }
    return list;
}

static cJSON *create_field(const ls_model_config *config, const model_field *field)
{
    const void *value = (const char *)config + field->offset;

    switch (field->kind) {
    case FIELD_WHOLE: return cJSON_CreateNumber((double)*(const int64_t *)value);
    case FIELD_POSITIVE_REAL: return ls_json_create_exact(*(const double *)value);
    case FIELD_BOOL: return cJSON_CreateBool(*(const bool *)value);
    case FIELD_TOKEN_IDS: return create_token_ids(value);
    default: return cJSON_CreateString(field->note);
    }
}

/* Transformers 4 reads rope_scaling and the rope_theta of the table, and for longrope the original
 * length beside them; version 5 reads rope_parameters. */
static ls_status add_rope(cJSON *json, const ls_model_config *config)
{
    const ls_rope_scaling *rope = &config->rope_scaling;

    LS_TRY(ls_json_add(json, "rope_scaling", ls_rope_model_json(rope, false)));
    LS_TRY(ls_json_add(json, "rope_parameters", ls_rope_model_json(rope, true)));
    if (rope->type != LS_ROPE_LONGROPE) return LS_OK;
    return ls_json_add(json, "original_max_position_embeddings",
                       cJSON_CreateNumber((double)rope->original_tokens));
}

static ls_status add_constants(cJSON *json, const ls_model_config *config, ls_dtype dtype)
{
    LS_TRY(ls_model_family_write(config, json));
    LS_TRY(ls_json_add(json, "attention_dropout", cJSON_CreateNumber(0)));
    LS_TRY(add_rope(json, config));
    LS_TRY(ls_json_add(json, "torch_dtype",
                       cJSON_CreateString(dtype == LS_DTYPE_BF16 ? "bfloat16" : "float32")));
    return ls_json_add(json, "use_cache", cJSON_CreateTrue());
}

ls_status ls_model_config_to_json(const ls_model_config *config, ls_dtype dtype, cJSON **json)
{
    cJSON *built = cJSON_CreateObject();
    ls_status status = LS_OK;

    assert(dtype == LS_DTYPE_BF16 || dtype == LS_DTYPE_F32);
    if (built == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "out of memory for config.json");
    for (size_t i = 0; i < N_FIELDS && status == LS_OK; i++)
        if (fields[i].kind >= FIELD_WHOLE && fields[i].kind <= FIELD_WORD)
            status = ls_json_add(built, fields[i].name, create_field(config, &fields[i]));
    if (status == LS_OK) status = add_constants(built, config, dtype);
    if (status == LS_OK)
        *json = built;
    else
        cJSON_Delete(built);
    return status;
}

int64_t ls_model_config_parameters(const ls_model_config *config)
{
    const int64_t width = config->hidden_size;
    const int64_t q = config->num_attention_heads * config->head_dim;
    const int64_t kv = config->num_key_value_heads * config->head_dim;
    const int64_t attention = width * (2 * q + 2 * kv);
    const int64_t biases = (config->qkv_bias ? q + 2 * kv : 0) + (config->o_bias ? width : 0);
    const int64_t norms = 2 * width + (config->qk_norm ? 2 * config->head_dim : 0);
    const int64_t layer = attention + biases + 3 * width * config->intermediate_size + norms;
    const int64_t tables = config->tie_word_embeddings ? 1 : 2;

    return config->num_hidden_layers * layer + tables * config->vocab_size * width + width;
}
