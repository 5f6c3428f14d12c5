/*
 * json.c - around cJSON.
 *
 * cJSON (1.7.15) prints 15 digits and takes the result for the same number if it is nearly so; it
 * keeps both of two equal keys, and no lines.  Files of ours hold thousands of keys in one
 * object at most (a weight map), so the check for doubles sorts the names of each object.
 */
#include "json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "text.h"

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static ls_status check_object(const char *name, const cJSON *object)
{
    const size_t n = (size_t)cJSON_GetArraySize(object);
    char quoted[LS_TEXT_BYTES];
    const char **names;
    const cJSON *item;
    ls_status status = LS_OK;
    size_t i = 0;

    if (n < 2) return LS_OK;
    names = malloc(n * sizeof *names);
    if (names == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "%s: out of memory", name);
    cJSON_ArrayForEach(item, object) names[i++] = item->string;
    qsort(names, n, sizeof *names, compare_names);
    for (i = 1; i < n && status == LS_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = LS_FAIL(LS_ERR_CORRUPT, "%s: key %s is given twice", name,
                             ls_text_quote(quoted, sizeof quoted, names[i]));
    free(names);
    return status;
}

/* Recursion is bounded by the nesting limit of cJSON's parser. */
static ls_status check_keys(const char *name, const cJSON *json)
{
    const cJSON *item;

    if (cJSON_IsObject(json)) LS_TRY(check_object(name, json));
    if (!cJSON_IsObject(json) && !cJSON_IsArray(json)) return LS_OK;
    cJSON_ArrayForEach(item, json) LS_TRY(check_keys(name, item));
    return LS_OK;
}

ls_status ls_json_parse(const char *name, const char *text, size_t bytes, cJSON **json)
{
    const char *end = NULL;
    cJSON *parsed = cJSON_ParseWithLengthOpts(text, bytes, &end, 0);
    ls_status status;
    int line = 1;

    for (; parsed != NULL && end < text + bytes; end++)
        if (strchr(" \t\r\n", *end) == NULL || *end == '\0') break;
    if (parsed == NULL && ls_json_is_valid(text, bytes)) {
        status = LS_FAIL(LS_ERR_NO_MEMORY, "%s: out of memory", name);
    } else if (parsed == NULL || end < text + bytes) {
        for (const char *c = text; c < end && c < text + bytes; c++) line += *c == '\n';
        status = LS_FAIL(LS_ERR_CORRUPT, "%s:%d: does not parse as JSON", name, line);
    } else if (!cJSON_IsObject(parsed)) {
        status = LS_FAIL(LS_ERR_CORRUPT, "%s: is not a JSON object", name);
    } else {
        status = check_keys(name, parsed);
    }
    if (status == LS_OK)
        *json = parsed;
    else
        cJSON_Delete(parsed);
    return status;
}

ls_status ls_json_read(const char *path, cJSON **json)
{
    char *text;
    uint64_t bytes;
    ls_status status;

    LS_TRY(ls_file_read(path, LS_JSON_FILE_BYTES_MAX, &text, &bytes));
    status = ls_json_parse(path, text, bytes, json);
    free(text);
    return status;
}

ls_status ls_json_write(const char *path, const cJSON *json)
{
    char *text = cJSON_Print(json);
    ls_status status;
    size_t n;

    if (text == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "write %s: out of memory", path);
    n = strlen(text);
    text[n] = '\n'; /* in place of the terminating zero: the length is passed on */
    status = ls_file_write(path, text, n + 1);
    cJSON_free(text);
    return status;
}

static ls_status find_member(const char *name, const cJSON *object, const char *key,
                             const cJSON **item)
{
    *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (*item == NULL) return LS_FAIL(LS_ERR_CORRUPT, "%s: '%s' is missing", name, key);
    return LS_OK;
}

ls_status ls_json_get_text(const char *name, const cJSON *object, const char *key,
                           const char **text)
{
    const cJSON *item;
    LS_TRY(find_member(name, object, key, &item));
    if (!cJSON_IsString(item)) return LS_FAIL(LS_ERR_CORRUPT, "%s: '%s' is not a text", name, key);
    *text = item->valuestring;
    return LS_OK;
}

ls_status ls_json_get_whole(const char *name, const cJSON *object, const char *key, int64_t least,
                            int64_t most, int64_t *value)
{
    const cJSON *item;
    double number;

    LS_TRY(find_member(name, object, key, &item));
    number = cJSON_IsNumber(item) ? item->valuedouble : 0.5;
    if (!isfinite(number) || fabs(number) > (double)LS_JSON_WHOLE_MAX || floor(number) < number)
        return LS_FAIL(LS_ERR_CORRUPT, "%s: '%s' is not a whole number", name, key);
    if ((int64_t)number < least || (int64_t)number > most)
        return LS_FAIL(LS_ERR_CORRUPT, "%s: '%s' is %lld; allowed: %lld to %lld", name, key,
                       (long long)number, (long long)least, (long long)most);
    *value = (int64_t)number;
    return LS_OK;
}

ls_status ls_json_get_real(const char *name, const cJSON *object, const char *key, double *value)
{
    const cJSON *item;
    LS_TRY(find_member(name, object, key, &item));
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
        return LS_FAIL(LS_ERR_CORRUPT, "%s: '%s' is not a finite number", name, key);
    *value = item->valuedouble;
    return LS_OK;
}

ls_status ls_json_get_bool(const char *name, const cJSON *object, const char *key, bool *value)
{
    const cJSON *item;
    LS_TRY(find_member(name, object, key, &item));
    if (!cJSON_IsBool(item))
        return LS_FAIL(LS_ERR_CORRUPT, "%s: '%s' is not true or false", name, key);
    *value = cJSON_IsTrue(item) != 0;
    return LS_OK;
}

ls_status ls_json_get_object(const char *name, const cJSON *object, const char *key,
                             const cJSON **item)
{
    const cJSON *found;
    LS_TRY(find_member(name, object, key, &found));
    if (!cJSON_IsObject(found))
        return LS_FAIL(LS_ERR_CORRUPT, "%s: '%s' is not an object", name, key);
    *item = found;
    return LS_OK;
}

ls_status ls_json_get_array(const char *name, const cJSON *object, const char *key,
                            const cJSON **item)
{
    const cJSON *found;
    LS_TRY(find_member(name, object, key, &found));
    if (!cJSON_IsArray(found))
        return LS_FAIL(LS_ERR_CORRUPT, "%s: '%s' is not an array", name, key);
    *item = found;
    return LS_OK;
}

const cJSON *ls_json_find_path(const cJSON *object, const char *path)
{
    char key[64];

    for (const char *dot = strchr(path, '.'); dot != NULL; dot = strchr(path, '.')) {
        const int n = snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
        if (n < 0 || (size_t)n >= sizeof key) return NULL;
        object = cJSON_GetObjectItemCaseSensitive(object, key);
        path = dot + 1;
    }
    return cJSON_GetObjectItemCaseSensitive(object, path);
}

cJSON *ls_json_create_exact(double value)
{
    char text[32];
    double back;

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        for (char *c = text; *c != '\0'; c++)
            if (*c == ',') *c = '.';                               /* some locales' decimal point */
        if (ls_text_parse_real(text, &back) != LS_OK) return NULL; /* out of memory */
        if (!(back < value) && !(back > value)) break;
    }
    return cJSON_CreateRaw(text);
}

ls_status ls_json_add(cJSON *object, const char *key, cJSON *item)
{
    if (item != NULL && cJSON_AddItemToObject(object, key, item)) return LS_OK;
    cJSON_Delete(item);
    return LS_FAIL(LS_ERR_NO_MEMORY, "out of memory for JSON key '%s'", key);
}

ls_status ls_json_append(cJSON *array, cJSON *item)
{
    if (item != NULL && cJSON_AddItemToArray(array, item)) return LS_OK;
    cJSON_Delete(item);
    return LS_FAIL(LS_ERR_NO_MEMORY, "out of memory for a JSON list");
}
