/*
 * fuzz_run_config.c - any bytes as a run file, the part after a zero byte as a --set; a config that
 * is accepted is sound, and its resolved form is a run file that gives the same config.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "run_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_config(const ls_run_config *c)
{
    assert(c->model_path != NULL && c->output != NULL && c->train.n_paths >= 1);
    assert(c->sequence_tokens >= 2 && c->sequences >= 1 && c->accumulate >= 1 && c->steps >= 1);
    assert(c->chunk >= 0 && c->chunk <= c->sequence_tokens);
    assert(c->sequences * c->sequence_tokens <= INT32_MAX);
    assert(c->schedule.lr > 0 && c->schedule.lr_min >= 0 && c->schedule.lr_min <= c->schedule.lr);
    assert(c->beta1 >= 0 && (float)c->beta1 < 1 && (float)c->eps > 0);
    for (int64_t i = 0; i < c->n_groups; i++) assert(c->groups[i].match != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *zero = memchr(data, '\0', bytes);
    const size_t n_text = zero != NULL ? (size_t)(zero - data) : bytes;
    char *set =
        strndup(zero != NULL ? (const char *)zero + 1 : "", zero != NULL ? bytes - n_text - 1 : 0);
    const char *const sets[] = {set};
    ls_run_config config, again;
    cJSON *json = NULL, *json_again = NULL;
    char *text;

    assert(set != NULL);
    if (ls_run_config_parse("input", (const char *)data, n_text, sets, zero != NULL, &config) !=
        LS_OK) {
        assert(strncmp(ls_error(), "input:", 6) == 0 || strncmp(ls_error(), "--set", 5) == 0);
        free(set);
        return 0;
    }
    check_config(&config);
    assert(ls_run_config_to_json(&config, &json) == LS_OK);
    text = cJSON_PrintUnformatted(json);
    assert(text != NULL);
    if (ls_run_config_parse("again", text, strlen(text), NULL, 0, &again) == LS_OK) {
        assert(ls_run_config_to_json(&again, &json_again) == LS_OK);
        assert(ls_run_config_difference(json, json_again, false) == NULL);
        cJSON_Delete(json_again);
        ls_run_config_free(&again);
    } else { /* a relative model path is now looked for from elsewhere */
        assert(strstr(ls_error(), ": model: ") != NULL);
    }
    cJSON_free(text);
    cJSON_Delete(json);
    ls_run_config_free(&config);
    free(set);
    return 0;
}
