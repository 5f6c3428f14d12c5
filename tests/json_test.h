/* json_test.h - reading documents in tests: what must be there is, or the test fails. */
#ifndef LS_JSON_TEST_H
#define LS_JSON_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cjson/cJSON.h>

#include "json.h"

/* Release with cJSON_Delete(). */
static inline cJSON *parse(const char *text)
{
    cJSON *json = cJSON_Parse(text);
    if (json == NULL) fail_msg("not JSON: %s", text);
    return json;
}

/* A member, along "key.key". */
static inline const cJSON *get(const cJSON *json, const char *path)
{
    const cJSON *item = ls_json_find_path(json, path);
    if (item == NULL) fail_msg("no %s", path);
    return item;
}

static inline double number(const cJSON *json, const char *path)
{
    const cJSON *item = get(json, path);
    if (!cJSON_IsNumber(item)) fail_msg("%s is no number", path);
    return item->valuedouble;
}

static inline void assert_text(const cJSON *json, const char *path, const char *text)
{
    const cJSON *item = get(json, path);
    if (!cJSON_IsString(item)) fail_msg("%s is no text", path);
    assert_string_equal(item->valuestring, text);
}

#endif
