/*
 * run_json.c - a resolved config as JSON, two of them compared, and the table as a JSON schema.
 *
 * Comparing works on JSON, since the earlier config comes out of a checkpoint: field by field of
 * the table, so that keys a later version adds count as their defaults.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "json.h"
#include "run_schema.h"

/* ---- writing -----------------------------------------------------------------------------------
 */

static cJSON *create_paths(const ls_path_list *list)
{
    cJSON *array;

    if (list->n_paths == 0) return cJSON_CreateNull();
    array = cJSON_CreateArray();
    for (int64_t i = 0; array != NULL && i < list->n_paths; i++)
        if (ls_json_append(array, cJSON_CreateString(list->paths[i])) != LS_OK) {
            cJSON_Delete(array);
            return NULL;
        }
    return array;
}

static cJSON *create_word(const ls_run_field *field, const void *at)
{
    int value;

    memcpy(&value, at, sizeof value);
    for (size_t i = 0; i < field->n_words; i++)
        if (value == (field->values != NULL ? field->values[i] : (int)i))
            return cJSON_CreateString(field->words[i]);
    assert(false && "a value without a word");
    return NULL;
}

static cJSON *create_whole(const ls_run_field *field, const void *at)
{
    int64_t value;

    memcpy(&value, at, sizeof value);
    if (value == 0 && field->kind == LS_RUN_COUNT_AUTO) return cJSON_CreateString("auto");
    if (value == 0 && field->kind == LS_RUN_COUNT_NULL) return cJSON_CreateNull();
    if (value == 0 && field->least > 0) return cJSON_CreateNull(); /* not given */
    return cJSON_CreateNumber((double)value);
}

static cJSON *create_bins(const ls_run_config *config)
{
    char text[32];

    if (!config->position_bins) return cJSON_CreateNull();
    if (config->position_bins_count == 0) return cJSON_CreateString("log2");
    snprintf(text, sizeof text, "linear:%lld", (long long)config->position_bins_count);
    return cJSON_CreateString(text);
}

static cJSON *create_groups(const ls_run_config *config)
{
    cJSON *array = cJSON_CreateArray();

    for (int64_t i = 0; array != NULL && i < config->n_groups; i++) {
        const ls_run_group *group = &config->groups[i];
        cJSON *item = cJSON_CreateObject();
        if (ls_json_append(array, item) == LS_OK &&
            cJSON_AddStringToObject(item, "match", group->match) != NULL &&
            cJSON_AddNumberToObject(item, "lr_scale", group->lr_scale) != NULL &&
            cJSON_AddBoolToObject(item, "frozen", group->frozen) != NULL)
            continue;
        cJSON_Delete(array);
        return NULL;
    }
    return array;
}

static cJSON *create_places(const ls_run_config *config)
{
    cJSON *object = cJSON_CreateObject();

    for (int c = 0; object != NULL && c < LS_CLASS_COUNT; c++) {
        if (config->places[c] == 0) continue;
        if (cJSON_AddStringToObject(object, ls_class_name((ls_tensor_class)c),
                                    ls_place_name((ls_place_kind)(config->places[c] - 1))) != NULL)
            continue;
        cJSON_Delete(object);
        return NULL;
    }
    return object;
}

static cJSON *create_threads(const ls_run_config *config)
{
    static const char *const keys[] = {"compute", "optimizer", "copy"};
    const int64_t threads[] = {config->compute_threads, config->optimizer_threads,
                               config->copy_threads};
    cJSON *object;

    if (threads[0] == 0 && threads[1] == 0 && threads[2] == 0) return cJSON_CreateString("auto");
    object = cJSON_CreateObject();
    for (size_t i = 0; object != NULL && i < 3; i++) {
        if (threads[i] == 0) continue;
        if (cJSON_AddNumberToObject(object, keys[i], (double)threads[i]) != NULL) continue;
        cJSON_Delete(object);
        return NULL;
    }
    return object;
}

static cJSON *create_step_list(const ls_run_config *config)
{
    cJSON *array = cJSON_CreateArray();

    for (int64_t i = 0; array != NULL && i < config->n_trace_steps; i++)
        if (ls_json_append(array, cJSON_CreateNumber((double)config->trace_steps[i])) != LS_OK) {
            cJSON_Delete(array);
            return NULL;
        }
    return array;
}

cJSON *ls_run_field_to_json(const ls_run_field *field, const ls_run_config *config)
{
    const void *at = (const char *)config + field->offset;

    switch (field->kind) {
    case LS_RUN_TEXT:
    case LS_RUN_TEXT_NULL:
        return *(char *const *)at != NULL ? cJSON_CreateString(*(char *const *)at)
                                          : cJSON_CreateNull();
    case LS_RUN_PATHS: return create_paths(at);
    case LS_RUN_SAVE:
        return config->save_auto ? cJSON_CreateString("auto") : ls_saves_to_json(&config->saves);
    case LS_RUN_WORD: return create_word(field, at);
    case LS_RUN_SWITCH: return cJSON_CreateString(field->words[*(const bool *)at ? 1 : 0]);
    case LS_RUN_WHOLE:
    case LS_RUN_COUNT:
    case LS_RUN_COUNT_AUTO:
    case LS_RUN_COUNT_NULL: return create_whole(field, at);
    case LS_RUN_REAL:
        if (field->range.above && *(const double *)at <= field->range.least)
            return cJSON_CreateNull(); /* not given */
        return cJSON_CreateNumber(*(const double *)at);
    case LS_RUN_ROPE:
        return config->rope_scaling_given ? ls_rope_run_json(&config->rope_scaling)
                                          : cJSON_CreateNull();
    case LS_RUN_BINS: return create_bins(config);
    case LS_RUN_GROUPS: return create_groups(config);
    case LS_RUN_PLACE: return create_places(config);
    case LS_RUN_THREADS: return create_threads(config);
    case LS_RUN_STEP_LIST: return create_step_list(config);
    }
    assert(false && "a kind without a writer");
    return NULL;
}

/* Add item to json at path, making its section. */
static ls_status add_at(cJSON *json, const char *path, cJSON *item)
{
    char section[LS_YAML_KEY_BYTES_MAX + 1];
    const char *key = ls_run_field_split(path, section);
    cJSON *object = json;

    if (section[0] != '\0') {
        object = cJSON_GetObjectItemCaseSensitive(json, section);
        if (object == NULL) object = cJSON_AddObjectToObject(json, section);
    }
    if (object != NULL) return ls_json_add(object, key, item);
    cJSON_Delete(item);
    return LS_FAIL(LS_ERR_NO_MEMORY, "out of memory for JSON key '%s'", section);
}

ls_status ls_run_config_to_json(const ls_run_config *config, cJSON **json)
{
    size_t n_fields;
    const ls_run_field *fields = ls_run_fields(&n_fields);
    cJSON *built = cJSON_CreateObject();
    ls_status status = LS_OK;

    if (built == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "out of memory for the config as JSON");
    for (size_t i = 0; i < n_fields && status == LS_OK; i++)
        status = add_at(built, fields[i].path, ls_run_field_to_json(&fields[i], config));
    if (status == LS_OK)
        *json = built;
    else
        cJSON_Delete(built);
    return status;
}

/* ---- comparing ---------------------------------------------------------------------------------
 */

static cJSON *create_default(const ls_run_field *field)
{
    ls_run_config config = {0};
    cJSON *json = NULL;

    if (field->fallback == NULL) return cJSON_CreateNull();
    if (ls_run_field_read_default(field, &config) == LS_OK)
        json = ls_run_field_to_json(field, &config);
    ls_run_config_free(&config);
    return json;
}

/* Two names of one file or folder: "configs/m.yaml", "./configs/m.yaml". */
static bool is_same_file(const cJSON *a, const cJSON *b)
{
    struct stat about_a, about_b;

    return cJSON_IsString(a) && cJSON_IsString(b) && stat(a->valuestring, &about_a) == 0 &&
           stat(b->valuestring, &about_b) == 0 && about_a.st_dev == about_b.st_dev &&
           about_a.st_ino == about_b.st_ino;
}

static bool is_equal(const ls_run_field *field, const cJSON *before, const cJSON *now)
{
    cJSON *fallback = NULL;
    bool equal;

    if (before == NULL && now == NULL) return true;
    if (before == NULL || now == NULL) fallback = create_default(field);
    if (before == NULL) before = fallback;
    if (now == NULL) now = fallback;
    equal = cJSON_Compare(before, now, 1) != 0 ||
            (strcmp(field->path, "model") == 0 && is_same_file(before, now));
    cJSON_Delete(fallback);
    return equal;
}

const char *ls_run_config_difference(const cJSON *before, const cJSON *now, bool replan)
{
    size_t n_fields;
    const ls_run_field *fields = ls_run_fields(&n_fields);

    for (size_t i = 0; i < n_fields; i++) {
        if (fields[i].resume == LS_RUN_MAY_CHANGE) continue;
        if (fields[i].resume == LS_RUN_MAY_REPLAN && replan) continue;
        if (!is_equal(&fields[i], ls_json_find_path(before, fields[i].path),
                      ls_json_find_path(now, fields[i].path)))
            return fields[i].path;
    }
    return NULL;
}

const char *ls_run_config_show(const cJSON *config, const char *key, char *buffer, size_t size)
{
    size_t n_fields;
    const ls_run_field *fields = ls_run_fields(&n_fields);
    const cJSON *value = ls_json_find_path(config, key);
    cJSON *fallback = NULL;

    for (size_t i = 0; i < n_fields && value == NULL; i++)
        if (strcmp(fields[i].path, key) == 0) value = fallback = create_default(&fields[i]);
    char *text = cJSON_PrintUnformatted(value);
    const int n = snprintf(buffer, size, "%s", text != NULL ? text : "(out of memory)");
    if (n >= (int)size) snprintf(buffer + size - 4, 4, "...");
    cJSON_free(text);
    cJSON_Delete(fallback);
    return buffer;
}

/* FNV-1a over a text and its terminating zero. */
static uint64_t hash_text(uint64_t hash, const char *text)
{
    do {
        hash = (hash ^ (uint8_t)*text) * 0x100000001b3u;
    } while (*text++ != '\0');
    return hash;
}

ls_status ls_run_config_hash(const cJSON *config, uint64_t *hash)
{
    size_t n_fields;
    const ls_run_field *fields = ls_run_fields(&n_fields);
    uint64_t sum = 0xcbf29ce484222325u;

    for (size_t i = 0; i < n_fields; i++) {
        const cJSON *value = ls_json_find_path(config, fields[i].path);
        cJSON *fallback = NULL;
        char *text;
        if (fields[i].resume == LS_RUN_MAY_CHANGE) continue;
        if (value == NULL) value = fallback = create_default(&fields[i]);
        text = cJSON_PrintUnformatted(value);
        cJSON_Delete(fallback);
        if (text == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "out of memory for the config's hash");
        sum = hash_text(hash_text(sum, fields[i].path), text);
        cJSON_free(text);
    }
    *hash = sum;
    return LS_OK;
}
