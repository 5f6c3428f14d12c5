/*
 * model_config.h - the shape of a model, with the names and meanings of Hugging Face's config.json.
 *
 * Read from a model YAML, a config.json, or a directory that holds one: the same fields, one
 * reader. Llama, Qwen2, Qwen3 and Mistral are understood (model_family.h).  A field that could
 * change the maths and is not understood is refused by name; so is an unknown one.  Fields that
 * describe the file or how to generate text are accepted and dropped.  Optional fields take
 * Transformers' defaults.
 *
 * Layer: model (uses base).  Threads: plain data.
 */
#ifndef LS_MODEL_CONFIG_H
#define LS_MODEL_CONFIG_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dtype.h"
#include "rope_scaling.h"
#include "status.h"

#define LS_TOKEN_IDS_MAX 16

/* Ids that may be one or several ("eos_token_id": [128001, 128009]). */
typedef struct ls_token_ids {
    int64_t ids[LS_TOKEN_IDS_MAX];
    int64_t n;
} ls_token_ids;

/* What model_type names. */
typedef enum ls_model_family {
    LS_MODEL_LLAMA = 0,
    LS_MODEL_QWEN2,
    LS_MODEL_MISTRAL,
    LS_MODEL_QWEN3,
    LS_MODEL_FAMILY_COUNT
} ls_model_family;

typedef struct ls_model_config {
    ls_model_family family;
    int64_t vocab_size;
    int64_t hidden_size;
    int64_t intermediate_size;
    int64_t num_hidden_layers;
    int64_t num_attention_heads;
    int64_t num_key_value_heads;
    int64_t head_dim;
    int64_t max_position_embeddings;
    double rms_norm_eps;
    ls_rope_scaling rope_scaling; /* complete: theta and what it derives from other fields too */
    double initializer_range;     /* standard deviation of random initial weights */
    bool tie_word_embeddings;
    bool qkv_bias, o_bias;                                 /* of the attention's projections */
    bool qk_norm;                                          /* on each head, before RoPE */
    int64_t sliding_window;                                /* tokens; 0: none */
    ls_token_ids bos_token_id, eos_token_id, pad_token_id; /* n 0: none */
} ls_model_config;

/*
 * Read path: a YAML or JSON file, or a directory with config.json.  LS_ERR_INVALID: it cannot be
 * opened, does not parse, or a field is unknown, missing or impossible; LS_ERR_UNSUPPORTED: a model
 * this version cannot train, the field named; LS_ERR_IO; LS_ERR_NO_MEMORY.
 */
ls_status ls_model_config_read(const char *path, ls_model_config *config);

/* The same from memory; name stands for the file in messages. */
ls_status ls_model_config_parse(const char *name, const char *text, size_t bytes,
                                ls_model_config *config);

/* A config.json that Transformers loads; free with cJSON_Delete.  dtype: of the
 * weights beside it, F32 or BF16.  LS_ERR_NO_MEMORY. */
ls_status ls_model_config_to_json(const ls_model_config *config, ls_dtype dtype, cJSON **json);

/* Trained numbers in the model; a tied head counts once. */
int64_t ls_model_config_parameters(const ls_model_config *config);

#endif
