/*
 * run_schema_json.c - the table of keys as a JSON schema, which editors check a run file with.
 *
 * Each kind is a fragment of JSON text with the row's numbers put in; the schema is only ever built
 * to be written to a file, so it is parsed from text instead of assembled item by item.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "json.h"
#include "run_schema.h"

#define FRAGMENT_BYTES 4096
#define PLACES_BYTES   128

#define COUNT_PATTERN "{\"type\": \"string\", \"pattern\": \"^[0-9]+([.][0-9]+)?[kKMG]?$\"}"

/* {"enum": ["a", "b"]} of the words. */
static void format_words(char *text, size_t size, const ls_run_field *field)
{
    int at = snprintf(text, size, "{\"enum\": [");

    for (size_t i = 0; i < field->n_words; i++)
        at +=
            snprintf(text + at, size - (size_t)at, "%s\"%s\"", i > 0 ? ", " : "", field->words[i]);
    snprintf(text + at, size - (size_t)at, "]}");
}

static void format_real(char *text, size_t size, ls_yaml_range range)
{
    snprintf(text, size, "{\"type\": \"number\", \"%s\": %.9g, \"%s\": %.9g}",
             range.above ? "exclusiveMinimum" : "minimum", range.least,
             range.below ? "exclusiveMaximum" : "maximum", range.most);
}

static void format_rope(char *text, size_t size)
{
    char map[FRAGMENT_BYTES - 64];

    ls_rope_run_schema(map, sizeof map);
    snprintf(text, size, "{\"anyOf\": [{\"type\": \"null\"}, %s]}", map);
}

/* "hbm", "host", ... */
static void format_places(char *text, size_t size)
{
    size_t at = 0;

    for (int p = 0; p < LS_PLACE_COUNT; p++)
        at += (size_t)snprintf(text + at, size - at, "%s\"%s\"", p > 0 ? ", " : "",
                               ls_place_name((ls_place_kind)p));
}

static void format_save(char *text, size_t size)
{
    static const char strided[] = "(o[+])?x/([2-9]|[1-9][0-9]+)";
    char places[PLACES_BYTES];

    format_places(places, sizeof places);
    snprintf(text, size,
             "{\"anyOf\": [{\"enum\": [\"auto\", \"x\", \"x+o\", \"x+qkv+o\"]}, "
             "{\"type\": \"string\", \"pattern\": \"^%s$\"}, "
             "{\"type\": \"array\", \"minItems\": 1, \"maxItems\": %d, \"items\": "
             "{\"type\": \"object\", \"additionalProperties\": false, "
             "\"required\": [\"layers\", \"policy\"], \"properties\": {"
             "\"layers\": {\"anyOf\": [{\"type\": \"integer\", \"minimum\": 0}, "
             "{\"type\": \"string\", \"pattern\": \"^[0-9]+(-[0-9]+)?$\"}]}, "
             "\"policy\": {\"type\": \"string\", "
             "\"pattern\": \"^(x|x[+]o|x[+]qkv[+]o|%s)$\"}, "
             "\"place\": {\"enum\": [%s]}}}}]}",
             strided, LS_SAVE_RANGES_MAX, strided, places);
}

/* {"x": {"enum": ["hbm", "host"]}, ...} of all classes and places. */
static void format_place(char *text, size_t size)
{
    const char *names[LS_CLASS_COUNT];
    ls_tensor_class classes[LS_CLASS_COUNT];
    const size_t n = ls_run_list_classes(names, classes);
    char places[PLACES_BYTES];
    int at = snprintf(text, size,
                      "{\"type\": \"object\", \"additionalProperties\": false, \"properties\": {");

    format_places(places, sizeof places);
    for (size_t c = 0; c < n; c++)
        at += snprintf(text + at, size - (size_t)at, "%s\"%s\": {\"enum\": [%s]}",
                       c > 0 ? ", " : "", names[c], places);
    snprintf(text + at, size - (size_t)at, "}}");
}

/* Patterns know digits, not numbers. */
static void format_bins(char *text, size_t size, const ls_run_field *field)
{
    assert(field->least == 1 && field->most == 256);
    snprintf(text, size,
             "{\"anyOf\": [{\"type\": \"null\"}, {\"type\": \"string\", \"pattern\": "
             "\"^(log2|linear:([1-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-6]))$\"}]}");
}

static void format_value(char *text, size_t size, const ls_run_field *field)
{
    char whole[128];

    snprintf(whole, sizeof whole, "{\"type\": \"integer\", \"minimum\": %lld, \"maximum\": %lld}",
             (long long)field->least, (long long)field->most);
    switch (field->kind) {
    case LS_RUN_TEXT: snprintf(text, size, "{\"type\": \"string\", \"minLength\": 1}"); return;
    case LS_RUN_TEXT_NULL:
        snprintf(text, size, "{\"type\": [\"string\", \"null\"], \"minLength\": 1}");
        return;
    case LS_RUN_PATHS:
        snprintf(text, size,
                 "{\"type\": [\"string\", \"array\"], \"minLength\": 1, "
                 "\"minItems\": 1, \"items\": {\"type\": \"string\"}}");
        return;
    case LS_RUN_SAVE: format_save(text, size); return;
    case LS_RUN_WORD:
    case LS_RUN_SWITCH: format_words(text, size, field); return;
    case LS_RUN_WHOLE: snprintf(text, size, "%s", whole); return;
    case LS_RUN_COUNT: snprintf(text, size, "{\"anyOf\": [%s, " COUNT_PATTERN "]}", whole); return;
    case LS_RUN_COUNT_AUTO:
        snprintf(text, size, "{\"anyOf\": [%s, {\"const\": \"auto\"}, " COUNT_PATTERN "]}", whole);
        return;
    case LS_RUN_COUNT_NULL:
        snprintf(text, size, "{\"anyOf\": [%s, {\"type\": \"null\"}, " COUNT_PATTERN "]}", whole);
        return;
    case LS_RUN_REAL: format_real(text, size, field->range); return;
    case LS_RUN_ROPE: format_rope(text, size); return;
    case LS_RUN_BINS: format_bins(text, size, field); return;
    case LS_RUN_GROUPS:
        snprintf(text, size,
                 "{\"type\": \"array\", \"items\": {\"type\": \"object\", "
                 "\"additionalProperties\": false, \"required\": [\"match\"], "
                 "\"properties\": {\"match\": {\"type\": \"string\"}, \"lr_scale\": "
                 "{\"type\": \"number\", \"minimum\": 0}, "
                 "\"frozen\": {\"type\": \"boolean\"}}}}");
        return;
    case LS_RUN_PLACE: format_place(text, size); return;
    case LS_RUN_THREADS:
        snprintf(text, size,
                 "{\"anyOf\": [{\"const\": \"auto\"}, {\"type\": \"object\", "
                 "\"additionalProperties\": false, \"properties\": {\"compute\": %s, "
                 "\"optimizer\": %s, \"copy\": %s}}]}",
                 whole, whole, whole);
        return;
    case LS_RUN_STEP_LIST:
        snprintf(text, size, "{\"type\": \"array\", \"items\": %s}", whole);
        return;
    }
    assert(false && "a kind without a schema");
}

static cJSON *create_value(const ls_run_field *field)
{
    char text[FRAGMENT_BYTES], about[256];
    cJSON *value;

    format_value(text, sizeof text, field);
    value = cJSON_Parse(text);
    snprintf(about, sizeof about, "%s%s%s", field->about,
             field->fallback != NULL ? "; default " : "",
             field->fallback != NULL ? field->fallback : "");
    if (value != NULL && cJSON_AddStringToObject(value, "description", about) != NULL) return value;
    cJSON_Delete(value);
    return NULL;
}

/* An object schema that knows only the keys put into its properties. */
static cJSON *add_object(cJSON *parent, const char *key)
{
    cJSON *object = cJSON_Parse("{\"type\": \"object\", \"additionalProperties\": false, "
                                "\"required\": [], \"properties\": {}}");
    return ls_json_add(parent, key, object) == LS_OK ? object : NULL;
}

static ls_status add_field(cJSON *root, const ls_run_field *field)
{
    char section[LS_YAML_KEY_BYTES_MAX + 1];
    const char *key = ls_run_field_split(field->path, section);
    cJSON *object = root;

    if (section[0] != '\0') {
        cJSON *properties = cJSON_GetObjectItemCaseSensitive(root, "properties");
        object = cJSON_GetObjectItemCaseSensitive(properties, section);
        if (object == NULL) object = add_object(properties, section);
        if (object == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "out of memory for the schema");
    }
    if (field->required)
        LS_TRY(ls_json_append(cJSON_GetObjectItemCaseSensitive(object, "required"),
                              cJSON_CreateString(key)));
    return ls_json_add(cJSON_GetObjectItemCaseSensitive(object, "properties"), key,
                       create_value(field));
}

ls_status ls_run_config_schema(cJSON **schema)
{
    size_t n_fields;
    const ls_run_field *fields = ls_run_fields(&n_fields);
    cJSON *built = cJSON_Parse(
        "{\"$schema\": \"http://json-schema.org/draft-07/schema#\", \"title\": \"longspan run "
        "file\", \"type\": \"object\", \"additionalProperties\": false, \"required\": [\"data\"], "
        "\"properties\": {}}");
    ls_status status = LS_OK;

    if (built == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "out of memory for the schema");
    for (size_t i = 0; i < n_fields && status == LS_OK; i++) status = add_field(built, &fields[i]);
    if (status == LS_OK)
        *schema = built;
    else
        cJSON_Delete(built);
    return status;
}
