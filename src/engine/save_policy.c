/* save_policy.c - policies as words, ranges of layers as JSON, and what they mean for a layer. */
#include "save_policy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "json.h"
#include "text.h"

/* ---- words --------------------------------------------------------------------------------- */

/* The K of "x/K". */
static bool parse_stride(const char *text, int32_t *stride)
{
    int64_t value;

    if (strncmp(text, "x/", 2) != 0 || text[2] < '0' || text[2] > '9') return false;
    if (ls_text_parse_whole(text + 2, &value) != LS_OK || value < 2 || value > INT32_MAX)
        return false;
    *stride = (int32_t)value;
    return true;
}

bool ls_save_policy_parse(const char *text, ls_save_policy *policy)
{
    static const struct {
        const char *word;
        ls_save_policy policy;
    } words[] = {{"x", {.x_stride = 1}},
                 {"x+o", {.o = true, .x_stride = 1}},
                 {"x+qkv+o", {.o = true, .qkv = true, .x_stride = 1}}};
    const bool with_o = strncmp(text, "o+", 2) == 0;
    ls_save_policy strided = {.o = with_o};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(text, words[i].word) == 0) {
            *policy = words[i].policy;
            return true;
        }
    if (!parse_stride(with_o ? text + 2 : text, &strided.x_stride)) return false;
    *policy = strided;
    return true;
}

const char *ls_save_policy_name(ls_save_policy policy, char buffer[LS_SAVE_NAME_BYTES])
{
    const char *plain = policy.qkv ? "x+qkv+o" : policy.o ? "x+o" : "x";

    if (policy.x_stride > 1)
        snprintf(buffer, LS_SAVE_NAME_BYTES, "%sx/%" PRId32, policy.o ? "o+" : "", policy.x_stride);
    else
        snprintf(buffer, LS_SAVE_NAME_BYTES, "%s", plain);
    return buffer;
}

static bool parse_layer(const char *text, int32_t *layer)
{
    int64_t value;

    if (text[0] < '0' || text[0] > '9' || ls_text_parse_whole(text, &value) != LS_OK ||
        value >= LS_SAVE_LAYERS_ALL)
        return false;
    *layer = (int32_t)value;
    return true;
}

bool ls_save_layers_parse(const char *text, int32_t *first, int32_t *last)
{
    const char *dash = strchr(text, '-');
    char begin[16];
    const int n = dash != NULL ? (int)(dash - text) : (int)strlen(text);
    int32_t from, to;

    if (snprintf(begin, sizeof begin, "%.*s", n, text) >= (int)sizeof begin) return false;
    if (!parse_layer(begin, &from) || !parse_layer(dash != NULL ? dash + 1 : begin, &to))
        return false;
    if (from > to) return false;
    *first = from;
    *last = to;
    return true;
}

/* ---- layers -------------------------------------------------------------------------------- */

void ls_saves_set(ls_saves *saves, ls_save_policy policy)
{
    saves->n_ranges = 1;
    saves->ranges[0] = (ls_save_range){.last = LS_SAVE_LAYERS_ALL, .policy = policy};
}

static const ls_save_range *find_range(const ls_saves *saves, int32_t layer)
{
    for (int32_t i = 0; i < saves->n_ranges; i++)
        if (layer >= saves->ranges[i].first && layer <= saves->ranges[i].last)
            return &saves->ranges[i];
    return NULL;
}

ls_layer_save ls_saves_of(const ls_saves *saves, int32_t layer)
{
    const ls_save_range *range = find_range(saves, layer);

    if (range == NULL) return (ls_layer_save){.x = true};
    return (ls_layer_save){.x = (layer - range->first) % range->policy.x_stride == 0,
                           .o = range->policy.o,
                           .qkv = range->policy.qkv};
}

int ls_saves_place(const ls_saves *saves, int32_t layer)
{
    const ls_save_range *range = find_range(saves, layer);
    return range != NULL ? range->place : 0;
}

static bool is_plain(ls_save_policy policy)
{
    return !policy.o && !policy.qkv && policy.x_stride == 1;
}

const char *ls_saves_name(const ls_saves *saves, char buffer[LS_SAVE_NAME_BYTES])
{
    const ls_save_policy plain = {.x_stride = 1};
    const ls_save_range *first = &saves->ranges[0];
    int32_t i = 0;

    if (saves->n_ranges == 1 && first->first == 0 && first->last >= saves->n_layers - 1)
        return ls_save_policy_name(first->policy, buffer);
    while (i < saves->n_ranges && is_plain(saves->ranges[i].policy)) i++;
    if (i == saves->n_ranges) return ls_save_policy_name(plain, buffer);
    snprintf(buffer, LS_SAVE_NAME_BYTES, "mixed");
    return buffer;
}

const char *ls_saves_describe(const ls_saves *saves, char buffer[LS_SAVES_TEXT_BYTES])
{
    char name[LS_SAVE_NAME_BYTES];
    int n = 0;

    if (saves->n_ranges <= 1 && !(saves->n_ranges == 1 && saves->ranges[0].place != 0)) {
        snprintf(buffer, LS_SAVES_TEXT_BYTES, "%s", ls_saves_name(saves, name));
        return buffer;
    }
    for (int32_t i = 0; i < saves->n_ranges && n < LS_SAVES_TEXT_BYTES - 64; i++) {
        const ls_save_range *r = &saves->ranges[i];
        n += snprintf(buffer + n, LS_SAVES_TEXT_BYTES - (size_t)n,
                      "%s%s in %" PRId32 "-%" PRId32 "%s%s%s", i > 0 ? ", " : "",
                      ls_save_policy_name(r->policy, name), r->first, r->last,
                      r->place != 0 ? " (" : "",
                      r->place != 0 ? ls_place_name((ls_place_kind)(r->place - 1)) : "",
                      r->place != 0 ? ")" : "");
        if (n >= LS_SAVES_TEXT_BYTES - 64 && i + 1 < saves->n_ranges)
            snprintf(buffer + n, LS_SAVES_TEXT_BYTES - (size_t)n, ", ...");
    }
    return buffer;
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static bool add_range(const ls_save_range *range, cJSON *list)
{
    cJSON *item = cJSON_CreateObject();
    char name[LS_SAVE_NAME_BYTES], layers[32];

    if (range->first == range->last)
        snprintf(layers, sizeof layers, "%" PRId32, range->first);
    else
        snprintf(layers, sizeof layers, "%" PRId32 "-%" PRId32, range->first, range->last);
    if (ls_json_append(list, item) != LS_OK) return false;
    if (cJSON_AddStringToObject(item, "layers", layers) == NULL) return false;
    ls_save_policy_name(range->policy, name);
    if (cJSON_AddStringToObject(item, "policy", name) == NULL) return false;
    if (range->place == 0) return true;
    const char *place = ls_place_name((ls_place_kind)(range->place - 1));
    return cJSON_AddStringToObject(item, "place", place) != NULL;
}

static bool is_word(const ls_saves *saves)
{
    return saves->n_ranges == 0 || saves->ranges[0].last == LS_SAVE_LAYERS_ALL;
}

cJSON *ls_saves_to_json(const ls_saves *saves)
{
    char name[LS_SAVE_NAME_BYTES];

    if (is_word(saves)) return cJSON_CreateString(ls_saves_name(saves, name));
    return ls_saves_ranges_to_json(saves);
}

cJSON *ls_saves_ranges_to_json(const ls_saves *saves)
{
    cJSON *list;

    if (is_word(saves)) return cJSON_CreateNull();
    list = cJSON_CreateArray();
    for (int32_t i = 0; list != NULL && i < saves->n_ranges; i++)
        if (!add_range(&saves->ranges[i], list)) {
            cJSON_Delete(list);
            return NULL;
        }
    return list;
}

static ls_status read_policy(const char *name, const char *text, ls_save_policy *policy)
{
    char quoted[LS_TEXT_BYTES];

    if (ls_save_policy_parse(text, policy)) return LS_OK;
    return LS_FAIL(LS_ERR_CORRUPT, "%s: save: %s is no policy", name,
                   ls_text_quote(quoted, sizeof quoted, text));
}

static ls_status read_range(const char *name, const cJSON *item, ls_save_range *range)
{
    const char *layers, *policy, *place;
    char quoted[LS_TEXT_BYTES];

    *range = (ls_save_range){0};
    LS_TRY(ls_json_get_text(name, item, "policy", &policy));
    LS_TRY(read_policy(name, policy, &range->policy));
    LS_TRY(ls_json_get_text(name, item, "layers", &layers));
    if (!ls_save_layers_parse(layers, &range->first, &range->last))
        return LS_FAIL(LS_ERR_CORRUPT, "%s: save: %s are no layers", name,
                       ls_text_quote(quoted, sizeof quoted, layers));
    if (cJSON_GetObjectItemCaseSensitive(item, "place") == NULL) return LS_OK;
    LS_TRY(ls_json_get_text(name, item, "place", &place));
    for (int p = 0; p < LS_PLACE_COUNT; p++)
        if (strcmp(place, ls_place_name((ls_place_kind)p)) == 0) range->place = 1 + p;
    if (range->place != 0) return LS_OK;
    return LS_FAIL(LS_ERR_CORRUPT, "%s: save: %s is no place", name,
                   ls_text_quote(quoted, sizeof quoted, place));
}

ls_status ls_saves_read_json(const char *name, const cJSON *object, const char *key,
                             ls_saves *saves)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key), *item;
    ls_saves read = {0};
    ls_save_policy policy;

    if (!cJSON_IsArray(value)) {
        const char *word;
        LS_TRY(ls_json_get_text(name, object, key, &word));
        LS_TRY(read_policy(name, word, &policy));
        ls_saves_set(&read, policy);
        *saves = read;
        return LS_OK;
    }
    cJSON_ArrayForEach(item, value)
    {
        if (read.n_ranges == LS_SAVE_RANGES_MAX)
            return LS_FAIL(LS_ERR_CORRUPT, "%s: %s: more than %d ranges of layers", name, key,
                           LS_SAVE_RANGES_MAX);
        LS_TRY(read_range(name, item, &read.ranges[read.n_ranges]));
        read.n_ranges++;
    }
    *saves = read;
    return LS_OK;
}
