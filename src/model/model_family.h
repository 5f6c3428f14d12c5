/*
 * model_family.h - what the supported models differ in: their names, which projections of the
 * attention have biases, norms on the heads of q and k, and the sliding window.  In all else they
 * are one decoder.
 *
 *             biases                         norms   sliding window
 *   llama     q, k, v, o if attention_bias   no      none
 *   qwen2     q, k, v                        no      sliding_window if use_sliding_window
 *   qwen3     q, k, v, o if attention_bias   q, k    the same
 *   mistral   none                           no      sliding_window; 4096 if not given
 *
 * Layer: model (uses base).  Threads: plain data.
 */
#ifndef LS_MODEL_FAMILY_H
#define LS_MODEL_FAMILY_H

#include "model_config.h"
#include "yaml_tree.h"

/* "llama", "LlamaForCausalLM"; never NULL. */
const char *ls_model_family_name(ls_model_family family);
const char *ls_model_family_architecture(ls_model_family family);

/* The head width of a config.json without head_dim; 0: hidden_size / num_attention_heads. */
int64_t ls_model_family_head_dim(ls_model_family family);

/* Whether a config.json of the family may have this field of those that some family has. */
bool ls_model_family_has(ls_model_family family, const char *field);

/* The family that model_type of the root names.  LS_ERR_INVALID: no text; LS_ERR_UNSUPPORTED. */
ls_status ls_model_family_find(const ls_yaml_node *root, ls_model_family *family);

/*
 * Biases and window, by the rules of Transformers' code for the family, from the root's fields.
 *   config  [in] family, num_hidden_layers; [out] qkv_bias, o_bias, qk_norm, sliding_window
 * LS_ERR_INVALID, LS_ERR_UNSUPPORTED (a window in some layers only, among others): with the place.
 */
ls_status ls_model_family_read(const ls_yaml_node *root, ls_model_config *config);

/* The fields that this read, into a config.json.  LS_ERR_NO_MEMORY. */
ls_status ls_model_family_write(const ls_model_config *config, cJSON *json);

#endif
