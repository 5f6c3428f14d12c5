/* test_run_schema.c - the schema that editors read takes what the program takes, and no more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <regex.h>
#include <stdio.h>
#include <string.h>

#include "json.h"
#include "run_config.h"

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))
#define MODEL       LS_SOURCE_DIR "/configs/models/byte-3m.yaml"

static const cJSON *schema_of(const cJSON *schema, const char *section, const char *key)
{
    const cJSON *at = cJSON_GetObjectItemCaseSensitive(schema, "properties");

    at = cJSON_GetObjectItemCaseSensitive(at, section);
    at = cJSON_GetObjectItemCaseSensitive(at, "properties");
    at = cJSON_GetObjectItemCaseSensitive(at, key);
    assert_non_null(at);
    return at;
}

static bool is_taken(const char *more)
{
    char text[512];
    ls_run_config config;
    const int n = snprintf(text, sizeof text,
                           "model: %s\ndata: {train: x}\noutput: o\nsteps: 300\n%s\n", MODEL, more);

    if (ls_run_config_parse("r.yaml", text, (size_t)n, NULL, 0, &config) != LS_OK) return false;
    ls_run_config_free(&config);
    return true;
}

/* Each number of bins, on both sides of the limits. */
static void the_schema_takes_the_bins_that_the_program_takes(void **state)
{
    cJSON *schema = NULL;
    regex_t pattern;
    char bins[32], text[128];

    (void)state;
    assert_int_equal(ls_run_config_schema(&schema), LS_OK);
    const cJSON *any =
        cJSON_GetObjectItemCaseSensitive(schema_of(schema, "eval", "position_bins"), "anyOf");
    const char *words = cJSON_GetStringValue(
        cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(any, 1), "pattern"));
    assert_non_null(words);
    assert_int_equal(regcomp(&pattern, words, REG_EXTENDED | REG_NOSUB), 0);
    for (int n = 0; n <= 1001; n++) {
        snprintf(bins, sizeof bins, "linear:%d", n);
        snprintf(text, sizeof text, "eval: {position_bins: %s}", bins);
        if ((regexec(&pattern, bins, 0, NULL, 0) == 0) != is_taken(text)) fail_msg("%s", bins);
    }
    regfree(&pattern);
    cJSON_Delete(schema);
}

/* Each class, and names that are none, in each place and elsewhere. */
static void the_schema_takes_the_places_that_the_program_takes(void **state)
{
    static const char *const places[] = {"hbm", "host", "nvme", "disk"};
    cJSON *schema = NULL;
    char text[128];

    (void)state;
    assert_int_equal(ls_run_config_schema(&schema), LS_OK);
    const cJSON *place = schema_of(schema, "memory", "place");
    assert_false(cJSON_HasObjectItem(place, "maxProperties"));
    assert_true(cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(place, "additionalProperties")));
    const cJSON *classes = cJSON_GetObjectItemCaseSensitive(place, "properties");
    for (int c = 0; c < LS_CLASS_COUNT; c++)
        for (size_t p = 0; p < N_OF(places); p++) {
            const char *name = ls_class_name((ls_tensor_class)c);
            const cJSON *words, *word;
            bool allowed = false;
            snprintf(text, sizeof text, "memory: {place: {%s: %s}}", name, places[p]);
            words = cJSON_GetObjectItemCaseSensitive(
                cJSON_GetObjectItemCaseSensitive(classes, name), "enum");
            cJSON_ArrayForEach(word, words) allowed |= strcmp(word->valuestring, places[p]) == 0;
            if (allowed != is_taken(text)) fail_msg("%s", text);
        }
    cJSON_Delete(schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_schema_takes_the_bins_that_the_program_takes),
        cmocka_unit_test(the_schema_takes_the_places_that_the_program_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
