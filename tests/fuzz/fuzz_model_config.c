/*
 * fuzz_model_config.c - any bytes as a model YAML or config.json; a model that is accepted is
 * sound, and what is written of it reads back the same.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "json.h"
#include "model_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    ls_model_config config, again;
    cJSON *json = NULL;
    char *text;

    if (ls_model_config_parse("input", (const char *)data, bytes, &config) != LS_OK) {
        assert(strncmp(ls_error(), "input:", 6) == 0);
        return 0;
    }
    assert(config.num_attention_heads % config.num_key_value_heads == 0);
    assert(config.head_dim > 0 && config.head_dim % 2 == 0 && config.hidden_size % 8 == 0);
    assert(ls_model_config_parameters(&config) > 0);
    assert(ls_model_config_to_json(&config, LS_DTYPE_BF16, &json) == LS_OK);
    text = cJSON_PrintUnformatted(json);
    assert(text != NULL);
    assert(ls_model_config_parse("again", text, strlen(text), &again) == LS_OK);
    assert(memcmp(&config.rope_scaling, &again.rope_scaling, sizeof again.rope_scaling) == 0);
    assert(ls_model_config_parameters(&config) == ls_model_config_parameters(&again));
    cJSON_free(text);
    cJSON_Delete(json);
    return 0;
}
