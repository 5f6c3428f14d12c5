/*
 * rope_scaling_text.c - scalings in config.json and in run files, by one table of keys.
 *
 * A key has a name in either place (NULL: it has none there) and belongs to some types; a type's
 * map may hold no other.  Where Transformers would take a default or ignore a key in silence, so
 * does this only if the result is the same model.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "json.h"
#include "rope_scaling.h"
#include "text.h"

#define REAL_MIN 1e-30

typedef enum spelling {
    SPELLING_MODEL = 0, /* config.json */
    SPELLING_RUN,
    SPELLING_COUNT,
} spelling;

typedef enum key_kind {
    KEY_REAL = 0,
    KEY_TOKENS,
    KEY_FLAG, /* stored as its opposite */
    KEY_FACTORS,
} key_kind;

typedef struct rope_key {
    const char *names[SPELLING_COUNT];
    key_kind kind;
    size_t offset;
    unsigned required[SPELLING_COUNT], optional[SPELLING_COUNT]; /* types, a bit each */
    ls_yaml_range range;
} rope_key;

#define AT(member) offsetof(ls_rope_scaling, member)
#define NAME(name)                                                                                 \
    {                                                                                              \
        name, name                                                                                 \
    }
#define SAME(types)                                                                                \
    {                                                                                              \
        types, types                                                                               \
    }

#define LINEAR            (1u << LS_ROPE_LINEAR)
#define NTK               (1u << LS_ROPE_NTK)
#define YARN              (1u << LS_ROPE_YARN)
#define LLAMA3            (1u << LS_ROPE_LLAMA3)
#define LONGROPE          (1u << LS_ROPE_LONGROPE)
#define SHORT_OF_LONGROPE (LINEAR | NTK | YARN | LLAMA3)
#define ALL               (1u << LS_ROPE_DEFAULT | SHORT_OF_LONGROPE | LONGROPE)

static const rope_key keys[] = {
    {NAME("factor"),
     KEY_REAL,
     AT(factor),
     {SHORT_OF_LONGROPE, SHORT_OF_LONGROPE | LONGROPE},
     {LONGROPE, 0},
     {.least = 1, .most = 1e9}},
    {{"original_max_position_embeddings", "original_tokens"},
     KEY_TOKENS,
     AT(original_tokens),
     SAME(LLAMA3 | LONGROPE),
     {YARN, LINEAR | NTK | YARN},
     {.least = 1, .most = INT32_MAX}},
    {NAME("rope_theta"),
     KEY_REAL,
     AT(theta),
     SAME(0),
     SAME(ALL),
     {.least = REAL_MIN, .most = 1e12}},
    {NAME("attention_factor"),
     KEY_REAL,
     AT(attention_factor),
     SAME(0),
     SAME(YARN | LONGROPE),
     {.least = 1e-6, .most = 1e6}},
    {NAME("beta_fast"), KEY_REAL, AT(beta_fast), SAME(0), SAME(YARN), {.least = 1e-6, .most = 1e9}},
    {NAME("beta_slow"), KEY_REAL, AT(beta_slow), SAME(0), SAME(YARN), {.least = 1e-6, .most = 1e9}},
    {NAME("mscale"), KEY_REAL, AT(mscale), SAME(0), SAME(YARN), {.least = 0, .most = 1e6}},
    {NAME("mscale_all_dim"),
     KEY_REAL,
     AT(mscale_all_dim),
     SAME(0),
     SAME(YARN),
     {.least = 0, .most = 1e6}},
    {NAME("truncate"), KEY_FLAG, AT(no_truncate), SAME(0), SAME(YARN), {.least = 0, .most = 0}},
    {NAME("low_freq_factor"),
     KEY_REAL,
     AT(low_freq_factor),
     SAME(LLAMA3),
     SAME(0),
     {.least = 1e-6, .most = 1e9}},
    {NAME("high_freq_factor"),
     KEY_REAL,
     AT(high_freq_factor),
     SAME(LLAMA3),
     SAME(0),
     {.least = 1e-6, .most = 1e9}},
    {NAME("short_factor"),
     KEY_FACTORS,
     AT(short_factor),
     SAME(LONGROPE),
     SAME(0),
     {.least = 1e-6, .most = 1e9}},
    {NAME("long_factor"),
     KEY_FACTORS,
     AT(long_factor),
     SAME(LONGROPE),
     SAME(0),
     {.least = 1e-6, .most = 1e9}},
};

#define N_KEYS (sizeof keys / sizeof keys[0])

static const char *const types[SPELLING_COUNT][LS_ROPE_TYPE_COUNT] = {
    {"default", "linear", "dynamic", "yarn", "llama3", "longrope"},
    {"default", "linear", "ntk", "yarn", "llama3", "longrope"},
};

static bool belongs(const rope_key *key, spelling s, ls_rope_type type)
{
    return ((key->required[s] | key->optional[s]) >> type & 1u) != 0;
}

/* ---- reading -----------------------------------------------------------------------------------
 */

/* Where the type stands, or NULL. */
static const ls_yaml_node *find_type(const ls_yaml_node *map, spelling s)
{
    const ls_yaml_node *type = s == SPELLING_MODEL ? ls_yaml_find(map, "rope_type") : NULL;
    return type != NULL ? type : ls_yaml_find(map, "type");
}

static ls_status read_type(const ls_yaml_node *map, spelling s, ls_rope_type *type)
{
    const ls_yaml_node *node = find_type(map, s), *older = ls_yaml_find(map, "type");
    char allowed[LS_ROPE_TEXT_BYTES];
    size_t index, older_index;

    ls_text_join(allowed, sizeof allowed, types[s], LS_ROPE_TYPE_COUNT);
    for (size_t i = 0; i < N_KEYS && node == NULL; i++)
        if (keys[i].offset != AT(theta) && ls_yaml_find(map, keys[i].names[s]) != NULL)
            return LS_YAML_FAIL(map, LS_ERR_INVALID, "%s is missing; allowed: %s",
                                s == SPELLING_MODEL ? "rope_type" : "type", allowed);
    *type = LS_ROPE_DEFAULT;
    if (node == NULL) return LS_OK;
    LS_TRY(ls_yaml_get_word(node, types[s], LS_ROPE_TYPE_COUNT, &index));
    *type = (ls_rope_type)index;
    if (older == NULL) return LS_OK;
    LS_TRY(ls_yaml_get_word(older, types[s], LS_ROPE_TYPE_COUNT, &older_index));
    if (older_index == index) return LS_OK;
    return LS_YAML_FAIL(older, LS_ERR_INVALID,
                        "is %s, but rope_type beside it is %s; allowed: one value",
                        types[s][older_index], types[s][index]);
}

/* Only keys of the type; the type's own names are always known. */
static ls_status check_keys(const ls_yaml_node *map, spelling s, ls_rope_type type)
{
    const char *names[N_KEYS + 3];
    size_t n = 0;

    if (s == SPELLING_MODEL) names[n++] = "rope_type";
    names[n++] = "type";
    if (s == SPELLING_MODEL) names[n++] = "partial_rotary_factor";
    for (size_t i = 0; i < N_KEYS; i++)
        if (belongs(&keys[i], s, type)) names[n++] = keys[i].names[s];
    return ls_yaml_check_keys(map, names, n);
}

static ls_status read_factors(const ls_yaml_node *node, ls_yaml_range range,
                              ls_rope_factors *factors)
{
    LS_TRY(ls_yaml_get_list(node));
    if (node->n_children > LS_ROPE_FACTORS_MAX)
        return LS_YAML_FAIL(node, LS_ERR_UNSUPPORTED, "has %zu numbers; allowed: at most %d",
                            node->n_children, LS_ROPE_FACTORS_MAX);
    for (const ls_yaml_node *item = node->first; item != NULL; item = item->next)
        LS_TRY(ls_yaml_get_real(item, range, &factors->values[factors->n++]));
    return LS_OK;
}

static ls_status read_value(const ls_yaml_node *node, const rope_key *key, spelling s,
                            ls_rope_scaling *rope)
{
    void *at = (char *)rope + key->offset;
    const int64_t least = (int64_t)key->range.least, most = (int64_t)key->range.most;
    bool flag;

    switch (key->kind) {
    case KEY_REAL: return ls_yaml_get_real(node, key->range, at);
    case KEY_TOKENS:
        return s == SPELLING_RUN ? ls_yaml_get_count(node, least, most, at)
                                 : ls_yaml_get_whole(node, least, most, at);
    case KEY_FACTORS: return read_factors(node, key->range, at);
    case KEY_FLAG: break;
    }
    LS_TRY(ls_yaml_get_bool(node, &flag));
    *(bool *)at = !flag;
    return LS_OK;
}

/* What two keys must agree on. */
static ls_status check_pairs(const ls_yaml_node *map, const ls_rope_scaling *rope)
{
    const double fast = rope->beta_fast > 0 ? rope->beta_fast : 32;
    const double slow = rope->beta_slow > 0 ? rope->beta_slow : 1;

    if (rope->type == LS_ROPE_LLAMA3 && rope->high_freq_factor <= rope->low_freq_factor)
        return LS_YAML_FAIL(ls_yaml_find(map, "high_freq_factor"), LS_ERR_INVALID,
                            "%g is not above low_freq_factor = %g; allowed: more than that",
                            rope->high_freq_factor, rope->low_freq_factor);
    if (rope->type == LS_ROPE_YARN && fast < slow)
        return LS_YAML_FAIL(map, LS_ERR_INVALID,
                            "beta_fast = %g is below beta_slow = %g; allowed: beta_fast from "
                            "beta_slow up",
                            fast, slow);
    return LS_OK;
}

/* What the map gives; fallback_tokens: an original length given elsewhere, or 0. */
static ls_status read_map(const ls_yaml_node *map, spelling s, int64_t fallback_tokens,
                          ls_rope_scaling *rope)
{
    ls_rope_scaling read = {0};

    LS_TRY(ls_yaml_get_map(map));
    LS_TRY(read_type(map, s, &read.type));
    LS_TRY(check_keys(map, s, read.type));
    for (size_t i = 0; i < N_KEYS; i++) {
        const rope_key *key = &keys[i];
        const ls_yaml_node *node = ls_yaml_find(map, key->names[s]);
        const bool required = (key->required[s] >> read.type & 1u) != 0;
        if (!belongs(key, s, read.type)) continue;
        if (node != NULL && (required || !ls_yaml_is_null(node)))
            LS_TRY(read_value(node, key, s, &read));
        else if (required && !(key->kind == KEY_TOKENS && fallback_tokens > 0))
            return LS_YAML_FAIL(map, LS_ERR_INVALID, "%s is missing; type %s needs it",
                                key->names[s], types[s][read.type]);
    }
    LS_TRY(check_pairs(map, &read));
    *rope = read;
    return LS_OK;
}

ls_status ls_rope_read_run(const ls_yaml_node *map, ls_rope_scaling *rope)
{
    return read_map(map, SPELLING_RUN, 0, rope);
}

/* Part of the head's width only: another model. */
static ls_status check_partial(const ls_yaml_node *map)
{
    const ls_yaml_range factors = {.least = REAL_MIN, .most = 1};
    const ls_yaml_node *node = ls_yaml_find(map, "partial_rotary_factor");
    char quoted[LS_TEXT_BYTES];
    double factor = 1;

    if (node != NULL && !ls_yaml_is_null(node)) LS_TRY(ls_yaml_get_real(node, factors, &factor));
    if (factor >= 1) return LS_OK;
    return LS_YAML_FAIL(node, LS_ERR_UNSUPPORTED, "%s is not supported by this version; allowed: 1",
                        ls_text_quote(quoted, sizeof quoted, node->text));
}

/* One value may stand in the map and beside it. */
static ls_status join_theta(const ls_yaml_node *map, double beside, ls_rope_scaling *rope)
{
    const ls_yaml_node *root_node = ls_yaml_find(map->parent, "rope_theta");
    const bool both = root_node != NULL && !ls_yaml_is_null(root_node) && rope->theta > 0;

    if (both && (rope->theta < beside || rope->theta > beside))
        return LS_YAML_FAIL(ls_yaml_find(map, "rope_theta"), LS_ERR_INVALID,
                            "is %g, but rope_theta beside it is %g; allowed: one value",
                            rope->theta, beside);
    if (rope->theta <= 0) rope->theta = beside;
    return LS_OK;
}

static ls_status join_tokens(const ls_yaml_node *map, int64_t beside, ls_rope_scaling *rope)
{
    const ls_yaml_node *node = ls_yaml_find(map, "original_max_position_embeddings");

    if (rope->original_tokens > 0 && beside > 0 && rope->original_tokens != beside)
        return LS_YAML_FAIL(node, LS_ERR_INVALID,
                            "is %lld, but original_max_position_embeddings beside it is %lld; "
                            "allowed: one value",
                            (long long)rope->original_tokens, (long long)beside);
    if (rope->original_tokens == 0) rope->original_tokens = beside;
    return LS_OK;
}

/* A map of the root, and what stands beside it or goes without saying. */
static ls_status read_model_map(const ls_yaml_node *map, int64_t max_position_embeddings,
                                double theta, ls_rope_scaling *rope)
{
    const ls_yaml_node *tokens = ls_yaml_find(map->parent, "original_max_position_embeddings");
    ls_rope_scaling read;
    int64_t beside = 0;

    if (tokens != NULL && !ls_yaml_is_null(tokens))
        LS_TRY(ls_yaml_get_whole(tokens, 1, INT32_MAX, &beside));
    LS_TRY(read_map(map, SPELLING_MODEL, beside, &read));
    LS_TRY(check_partial(map));
    LS_TRY(join_theta(map, theta, &read));
    if (read.type == LS_ROPE_LINEAR || read.type == LS_ROPE_NTK)
        read.original_tokens = max_position_embeddings;
    else if (read.type != LS_ROPE_DEFAULT)
        LS_TRY(join_tokens(map, beside, &read));
    if (read.type == LS_ROPE_YARN && read.original_tokens == 0)
        read.original_tokens = max_position_embeddings;
    if (read.type == LS_ROPE_LONGROPE && read.factor <= 0)
        read.factor = (double)max_position_embeddings / (double)read.original_tokens;
    *rope = read;
    return LS_OK;
}

static bool is_given(const rope_key *key, const ls_rope_scaling *rope)
{
    const void *at = (const char *)rope + key->offset;

    switch (key->kind) {
    case KEY_REAL: return *(const double *)at > 0;
    case KEY_TOKENS: return *(const int64_t *)at > 0;
    case KEY_FACTORS: return ((const ls_rope_factors *)at)->n > 0;
    case KEY_FLAG: break;
    }
    return *(const bool *)at;
}

static size_t value_bytes(const rope_key *key)
{
    static const size_t bytes[] = {sizeof(double), sizeof(int64_t), sizeof(bool),
                                   sizeof(ls_rope_factors)};
    return bytes[key->kind];
}

/* The name of a key in which they differ, or NULL. */
static const char *find_difference(const ls_rope_scaling *a, const ls_rope_scaling *b)
{
    if (a->type != b->type) return "rope_type";
    for (size_t i = 0; i < N_KEYS; i++)
        if (memcmp((const char *)a + keys[i].offset, (const char *)b + keys[i].offset,
                   value_bytes(&keys[i])) != 0)
            return keys[i].names[SPELLING_MODEL];
    return NULL;
}

static const ls_yaml_node *find_map(const ls_yaml_node *root, const char *key)
{
    const ls_yaml_node *node = ls_yaml_find(root, key);
    const bool empty = node == NULL || ls_yaml_is_null(node) ||
                       (node->kind == LS_YAML_MAP && node->n_children == 0);
    return empty ? NULL : node;
}

ls_status ls_rope_read_model(const ls_yaml_node *root, int64_t max_position_embeddings,
                             ls_rope_scaling *rope)
{
    const ls_yaml_node *older = find_map(root, "rope_scaling");
    const ls_yaml_node *map = find_map(root, "rope_parameters");
    const double theta = rope->theta;
    ls_rope_scaling other;
    const char *key;

    if (map == NULL && older == NULL) return LS_OK;
    LS_TRY(read_model_map(map != NULL ? map : older, max_position_embeddings, theta, rope));
    if (map == NULL || older == NULL) return LS_OK;
    LS_TRY(read_model_map(older, max_position_embeddings, rope->theta, &other));
    key = find_difference(rope, &other);
    if (key == NULL) return LS_OK;
    return LS_YAML_FAIL(older, LS_ERR_INVALID,
                        "differs from rope_parameters in %s; allowed: the same in both", key);
}

/* ---- writing -----------------------------------------------------------------------------------
 */

static cJSON *create_number(double value, spelling s)
{
    return s == SPELLING_MODEL ? ls_json_create_exact(value) : cJSON_CreateNumber(value);
}

static cJSON *create_factors(const ls_rope_factors *factors, spelling s)
{
    cJSON *list = cJSON_CreateArray();

    for (int64_t i = 0; list != NULL && i < factors->n; i++)
        if (ls_json_append(list, create_number(factors->values[i], s)) != LS_OK) {
            cJSON_Delete(list);
            return NULL;
        }
    return list;
}

static cJSON *create_value(const rope_key *key, const ls_rope_scaling *rope, spelling s)
{
    const void *at = (const char *)rope + key->offset;

    switch (key->kind) {
    case KEY_REAL: return create_number(*(const double *)at, s);
    case KEY_TOKENS: return cJSON_CreateNumber((double)*(const int64_t *)at);
    case KEY_FACTORS: return create_factors(at, s);
    case KEY_FLAG: break;
    }
    return cJSON_CreateBool(!*(const bool *)at);
}

static cJSON *create_map(const ls_rope_scaling *rope, spelling s, bool with_theta)
{
    cJSON *map = cJSON_CreateObject();
    bool whole = map != NULL;

    if (whole)
        whole = cJSON_AddStringToObject(map, s == SPELLING_MODEL ? "rope_type" : "type",
                                        types[s][rope->type]) != NULL;
    for (size_t i = 0; i < N_KEYS && whole; i++) {
        if (!belongs(&keys[i], s, rope->type) || !is_given(&keys[i], rope)) continue;
        if (keys[i].offset == AT(theta) && !with_theta) continue;
        whole = ls_json_add(map, keys[i].names[s], create_value(&keys[i], rope, s)) == LS_OK;
    }
    if (whole) return map;
    cJSON_Delete(map);
    return NULL;
}

cJSON *ls_rope_model_json(const ls_rope_scaling *rope, bool with_theta)
{
    if (rope->type == LS_ROPE_DEFAULT && !with_theta) return cJSON_CreateNull();
    return create_map(rope, SPELLING_MODEL, with_theta);
}

cJSON *ls_rope_run_json(const ls_rope_scaling *rope)
{
    return create_map(rope, SPELLING_RUN, true);
}

const char *ls_rope_run_line(const ls_rope_scaling *rope, char text[LS_ROPE_TEXT_BYTES])
{
    const size_t size = LS_ROPE_TEXT_BYTES;
    int n = snprintf(text, size, "{type: %s", types[SPELLING_RUN][rope->type]);

    for (size_t i = 0; i < N_KEYS && n < (int)size; i++) {
        const rope_key *key = &keys[i];
        const void *at = (const char *)rope + key->offset;
        if (!belongs(key, SPELLING_RUN, rope->type) || !is_given(key, rope)) continue;
        const char *name = key->names[SPELLING_RUN];
        char *end = text + n;
        if (key->kind == KEY_REAL)
            n += snprintf(end, size - (size_t)n, ", %s: %.17g", name, *(const double *)at);
        else if (key->kind == KEY_TOKENS)
            n += snprintf(end, size - (size_t)n, ", %s: %lld", name,
                          (long long)*(const int64_t *)at);
        else if (key->kind == KEY_FLAG)
            n += snprintf(end, size - (size_t)n, ", %s: false", name);
    }
    assert(n + 1 < (int)size);
    snprintf(text + n, size - (size_t)n, "}");
    return text;
}

void ls_rope_run_schema(char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size,
                                "{\"type\": \"object\", \"additionalProperties\": false, "
                                "\"properties\": {\"type\": {\"enum\": [");

    for (int t = 0; t < LS_ROPE_TYPE_COUNT; t++)
        n += (size_t)snprintf(text + n, size - n, "%s\"%s\"", t > 0 ? ", " : "",
                              types[SPELLING_RUN][t]);
    n += (size_t)snprintf(text + n, size - n, "]}");
    for (size_t i = 0; i < N_KEYS; i++) {
        const rope_key *key = &keys[i];
        char value[192];
        const char *const kinds[] = {"number", "integer", "boolean", "number"};
        snprintf(value, sizeof value, "{\"type\": \"%s\", \"minimum\": %.9g, \"maximum\": %.9g}",
                 kinds[key->kind], key->range.least, key->range.most);
        if (key->kind == KEY_FLAG) snprintf(value, sizeof value, "{\"type\": \"boolean\"}");
        n += (size_t)snprintf(text + n, size - n, ", \"%s\": ", key->names[SPELLING_RUN]);
        if (key->kind == KEY_FACTORS)
            n += (size_t)snprintf(text + n, size - n,
                                  "{\"type\": \"array\", \"maxItems\": %d, \"items\": %s}",
                                  LS_ROPE_FACTORS_MAX, value);
        else if (key->kind == KEY_TOKENS)
            n += (size_t)snprintf(text + n, size - n,
                                  "{\"anyOf\": [%s, {\"type\": \"string\", \"pattern\": "
                                  "\"^[0-9]+([.][0-9]+)?[kKMG]?$\"}]}",
                                  value);
        else
            n += (size_t)snprintf(text + n, size - n, "%s", value);
        assert(n < size);
    }
    snprintf(text + n, size - n, "}}");
}
