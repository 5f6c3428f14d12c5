/*
 * profile_schema.c - the tables of keys as a JSON schema, which editors check a hardware profile
 * with.
 *
 * Quantities follow from the tables alone.  Words have a fragment of JSON each; one without a
 * fragment is a bug, found whenever the schema is made.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "json.h"
#include "profile.h"
#include "profile_keys.h"

#define FRAGMENT_BYTES 512

#define TEXT      "{\"type\": \"string\"}"
#define TRUTH     "{\"type\": \"boolean\"}"
#define BYTES     "{\"$ref\": \"#/definitions/bytes\"}"
#define BOUNDS    "{\"$ref\": \"#/definitions/bounds\"}"
#define DIGITS(x) #x
#define NUMBER(x) DIGITS(x)
#define NAMES                                                                                      \
    "{\"type\": \"array\", \"items\": {\"type\": \"string\"}, \"maxItems\": " NUMBER(              \
        LS_MATCH_WORDS_MAX) "}"
#define STATES   "{\"type\": \"object\", \"maxProperties\": " NUMBER(LS_POWER_STATES_MAX) "}"
#define LIST(of) "{\"type\": \"array\", \"items\": {\"$ref\": \"#/definitions/" of "\"}}"
#define PART(of) "{\"$ref\": \"#/definitions/" of "\"}"
#define BYTES_OF                                                                                   \
    "{\"anyOf\": [{\"type\": \"integer\", \"minimum\": 1}, {\"type\": \"string\", "                \
    "\"pattern\": \"^[0-9]+([.][0-9]+)? ?([KMGT]iB|[kMGT]?B)?$\"}]}"

/* What may stand at a word of a section. */
typedef struct word_schema {
    ls_profile_section section;
    const char *word, *schema; /* schema NULL: one of `words` */
    const char *const *words;
    const char *about;
} word_schema;

static const word_schema word_schemas[] = {
    {LS_PROFILE_DOCUMENT, "name", TEXT, NULL, "what hardware: NAME and the file are called"},
    {LS_PROFILE_DOCUMENT, "about", TEXT, NULL, "one line for people"},
    {LS_PROFILE_DOCUMENT, "emulated", TRUTH, NULL, "its HBM is carved from host memory"},
    {LS_PROFILE_DOCUMENT, "match", PART("match"), NULL, "what a machine must be"},
    {LS_PROFILE_DOCUMENT, "places", LIST("place"), NULL, "memory"},
    {LS_PROFILE_DOCUMENT, "links", LIST("link"), NULL, "between places"},
    {LS_PROFILE_DOCUMENT, "units", LIST("unit"), NULL, "what computes"},
    {LS_PROFILE_DOCUMENT, "throttle", PART("throttle"), NULL, "rates of emulated links"},
    {LS_PROFILE_DOCUMENT, "nvme", PART("nvme"), NULL, "the place of that kind"},
    {LS_PROFILE_DOCUMENT, "limits", PART("limits"), NULL, "what the machine is held to"},
    {LS_PROFILE_MATCH, "gpu", NAMES, NULL, "one of these is a word of the GPU's name"},
    {LS_PROFILE_MATCH, "not_gpu", NAMES, NULL, "none of these is"},
    {LS_PROFILE_MATCH, "c2c_link", TRUTH, NULL, "NVLink-C2C is there"},
    {LS_PROFILE_MATCH, "coherent", TRUTH, NULL, "the GPU reads host memory by the host's pages"},
    {LS_PROFILE_MATCH, "hbm_bytes", BOUNDS, NULL, "of each GPU"},
    {LS_PROFILE_MATCH, "host_bytes", BOUNDS, NULL, "of the host node nearest to it"},
    {LS_PROFILE_BOUNDS, "least", BYTES, NULL, NULL},
    {LS_PROFILE_BOUNDS, "most", BYTES, NULL, NULL},
    {LS_PROFILE_PLACE, "kind", NULL, ls_profile_places, NULL},
    {LS_PROFILE_LINK, "from", NULL, ls_profile_places, NULL},
    {LS_PROFILE_LINK, "to", NULL, ls_profile_places, NULL},
    {LS_PROFILE_LINK, "via", TEXT, NULL, "c2c, pcie 5.0 x16, ..."},
    {LS_PROFILE_LINK, "reach", NULL, ls_profile_reaches, "remote: another node's memory"},
    {LS_PROFILE_UNIT, "kind", NULL, ls_profile_units, NULL},
    {LS_PROFILE_UNIT, "model", TEXT, NULL, NULL},
    {LS_PROFILE_UNIT, "efficiency", LIST("efficiency"), NULL,
     "shares of the peak, or bytes per second of an op that they bound"},
    {LS_PROFILE_UNIT, "power_states", STATES, NULL,
     "watts by state: idle, tensor, memory of a GPU; idle, busy, memory of a CPU"},
    {LS_PROFILE_EFFICIENCY, "op", TEXT, NULL, NULL},
    {LS_PROFILE_EFFICIENCY, "shape", TEXT, NULL,
     "ends in its size, such as causal-32k; dw-1024: of gradients of weights; else of any size"},
    {LS_PROFILE_EFFICIENCY, "kernel", TEXT, NULL, "of several that the op has; absent: any"},
    {LS_PROFILE_NVME, "path", TEXT, NULL, "a folder on it; a relative one from where this file is"},
};

static const char *const section_names[LS_PROFILE_SECTIONS] = {
    [LS_PROFILE_MATCH] = "match",  [LS_PROFILE_BOUNDS] = "bounds",
    [LS_PROFILE_PLACE] = "place",  [LS_PROFILE_LINK] = "link",
    [LS_PROFILE_UNIT] = "unit",    [LS_PROFILE_EFFICIENCY] = "efficiency",
    [LS_PROFILE_NVME] = "nvme",    [LS_PROFILE_THROTTLE] = "throttle",
    [LS_PROFILE_LIMITS] = "limits"};

/* {"enum": [...]} */
static cJSON *create_enum(const char *const *words)
{
    cJSON *object = cJSON_CreateObject();
    cJSON *list = cJSON_CreateStringArray(words, (int)ls_profile_count(words));

    if (ls_json_add(object, "enum", list) == LS_OK) return object;
    cJSON_Delete(object);
    return NULL;
}

/* ---- quantities ---------------------------------------------------------------------------- */

static cJSON *create_value(const ls_profile_key *key)
{
    char text[FRAGMENT_BYTES];

    switch (key->kind) {
    case LS_PROFILE_BYTES: return cJSON_Parse(BYTES);
    case LS_PROFILE_TRUTH: return cJSON_Parse(TRUTH);
    case LS_PROFILE_REAL:
        snprintf(text, sizeof text,
                 "{\"type\": \"number\", \"exclusiveMinimum\": 0, \"maximum\": %.9g}", key->most);
        return cJSON_Parse(text);
    }
    assert(false && "a kind without a schema");
    return NULL;
}

static cJSON *create_quantity(const ls_profile_key *key)
{
    cJSON *object = cJSON_Parse("{\"type\": \"object\", \"additionalProperties\": false, "
                                "\"required\": [\"value\", \"source\"], \"properties\": {}}");
    cJSON *properties = cJSON_GetObjectItemCaseSensitive(object, "properties");

    if (ls_json_add(properties, "value", create_value(key)) == LS_OK &&
        ls_json_add(properties, "source", create_enum(ls_profile_sources)) == LS_OK)
        return object;
    cJSON_Delete(object);
    return NULL;
}

/* ---- words --------------------------------------------------------------------------------- */

static const word_schema *find_word(ls_profile_section section, const char *word)
{
    for (size_t w = 0; w < sizeof word_schemas / sizeof word_schemas[0]; w++)
        if (word_schemas[w].section == section && strcmp(word_schemas[w].word, word) == 0)
            return &word_schemas[w];
    assert(false && "a word without a schema");
    return NULL;
}

static ls_status add_word(ls_profile_section section, const char *word, cJSON *properties)
{
    const word_schema *w = find_word(section, word);
    cJSON *schema = w->schema != NULL ? cJSON_Parse(w->schema) : create_enum(w->words);

    LS_TRY(ls_json_add(properties, word, schema));
    if (strcmp(word, "power_states") == 0)
        LS_TRY(ls_json_add(schema, "additionalProperties",
                           create_quantity(&ls_profile_watts_keys.keys[0])));
    if (w->about == NULL) return LS_OK;
    return ls_json_add(schema, "description", cJSON_CreateString(w->about));
}

/* ---- sections ------------------------------------------------------------------------------ */

/* An object that knows only the section's keys. */
static ls_status fill_section(ls_profile_section section, cJSON *object)
{
    const ls_profile_map *map = &ls_profile_maps[section];
    const size_t n_figures = map->figures != NULL ? map->figures->n : 0;

    LS_TRY(ls_json_add(object, "type", cJSON_CreateString("object")));
    LS_TRY(ls_json_add(object, "additionalProperties", cJSON_CreateBool(false)));
    cJSON *required = cJSON_CreateArray();
    LS_TRY(ls_json_add(object, "required", required));
    cJSON *properties = cJSON_CreateObject();
    LS_TRY(ls_json_add(object, "properties", properties));
    for (size_t w = 0; w < map->n_words_required; w++)
        LS_TRY(ls_json_append(required, cJSON_CreateString(map->words[w])));
    for (size_t f = 0; f < map->n_figures_required; f++)
        LS_TRY(ls_json_append(required, cJSON_CreateString(map->figures->keys[f].key)));
    for (size_t w = 0; w < map->n_words; w++) LS_TRY(add_word(section, map->words[w], properties));
    for (size_t f = 0; f < n_figures; f++) {
        const ls_profile_key *key = &map->figures->keys[f];
        LS_TRY(ls_json_add(properties, key->key, create_quantity(key)));
    }
    return LS_OK;
}

static ls_status fill(cJSON *schema)
{
    cJSON *definitions = cJSON_CreateObject();

    LS_TRY(ls_json_add(schema, "$schema",
                       cJSON_CreateString("http://json-schema.org/draft-07/schema#")));
    LS_TRY(ls_json_add(schema, "title", cJSON_CreateString("longspan hardware profile")));
    LS_TRY(fill_section(LS_PROFILE_DOCUMENT, schema));
    LS_TRY(ls_json_add(schema, "definitions", definitions));
    LS_TRY(ls_json_add(definitions, "bytes", cJSON_Parse(BYTES_OF)));
    for (int s = LS_PROFILE_DOCUMENT + 1; s < LS_PROFILE_SECTIONS; s++) {
        cJSON *object = cJSON_CreateObject();
        LS_TRY(ls_json_add(definitions, section_names[s], object));
        LS_TRY(fill_section((ls_profile_section)s, object));
    }
    return LS_OK;
}

ls_status ls_profile_schema(cJSON **schema)
{
    cJSON *built = cJSON_CreateObject();

    if (built == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "out of memory for the schema");
    const ls_status status = fill(built);
    if (status == LS_OK)
        *schema = built;
    else
        cJSON_Delete(built);
    return status;
}
