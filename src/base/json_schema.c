/* json_schema.c - schema and document walked side by side. */
#include "json_schema.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define PATH_BYTES 256

typedef struct walk {
    const cJSON *root; /* of the schema, for $ref */
    const char *name;
    char path[PATH_BYTES]; /* of the item at work: "energy_j.gpu" */
} walk;

static ls_status check(walk *w, const cJSON *schema, const cJSON *item);

static const char *place(const walk *w)
{
    return w->path[0] != '\0' ? w->path : "the document";
}

/* ---- types --------------------------------------------------------------------------------- */

static const char *type_of(const cJSON *item)
{
    if (cJSON_IsObject(item)) return "object";
    if (cJSON_IsArray(item)) return "array";
    if (cJSON_IsString(item)) return "string";
    if (cJSON_IsBool(item)) return "boolean";
    if (cJSON_IsNull(item)) return "null";
    return "number";
}

static bool has_type(const cJSON *item, const char *type)
{
    if (strcmp(type, "integer") != 0) return strcmp(type_of(item), type) == 0;
    return cJSON_IsNumber(item) && item->valuedouble >= floor(item->valuedouble) &&
           item->valuedouble <= floor(item->valuedouble);
}

static ls_status check_type(const walk *w, const cJSON *types, const cJSON *item)
{
    char wanted[96] = "";
    const cJSON *type;

    if (cJSON_IsString(types)) {
        if (has_type(item, types->valuestring)) return LS_OK;
        snprintf(wanted, sizeof wanted, "%s", types->valuestring);
    }
    cJSON_ArrayForEach(type, types)
    {
        if (!cJSON_IsString(type)) continue;
        if (has_type(item, type->valuestring)) return LS_OK;
        const size_t n = strlen(wanted);
        snprintf(wanted + n, sizeof wanted - n, "%s%s", n > 0 ? " or " : "", type->valuestring);
    }
    return LS_FAIL(LS_ERR_CORRUPT, "%s: %s is of type %s, not %s", w->name, place(w), type_of(item),
                   wanted);
}

/* ---- keywords ------------------------------------------------------------------------------ */

static ls_status check_enum(const walk *w, const cJSON *values, const cJSON *item)
{
    const cJSON *value;

    cJSON_ArrayForEach(value, values) if (cJSON_Compare(value, item, true)) return LS_OK;
    return LS_FAIL(LS_ERR_CORRUPT, "%s: %s is none of the values allowed", w->name, place(w));
}

static ls_status check_limit(const walk *w, const cJSON *limit, const cJSON *item, bool least)
{
    if (!cJSON_IsNumber(item)) return LS_OK;
    const bool inside =
        least ? item->valuedouble >= limit->valuedouble : item->valuedouble <= limit->valuedouble;
    if (inside) return LS_OK;
    return LS_FAIL(LS_ERR_CORRUPT, "%s: %s is %g, %s %g", w->name, place(w), item->valuedouble,
                   least ? "less than" : "more than", limit->valuedouble);
}

static ls_status check_required(const walk *w, const cJSON *keys, const cJSON *item)
{
    const cJSON *key;

    if (!cJSON_IsObject(item)) return LS_OK;
    cJSON_ArrayForEach(key, keys) if (!cJSON_HasObjectItem(item, key->valuestring)) return LS_FAIL(
        LS_ERR_CORRUPT, "%s: %s has no '%s'", w->name, place(w), key->valuestring);
    return LS_OK;
}

/* Into a member or element and back. */
static ls_status check_inner(walk *w, const cJSON *schema, const cJSON *item, const char *step)
{
    const size_t n = strlen(w->path);

    snprintf(w->path + n, sizeof w->path - n, "%s%s", n > 0 ? "." : "", step);
    const ls_status status = check(w, schema, item);
    w->path[n] = '\0';
    return status;
}

static ls_status check_members(walk *w, const cJSON *schema, const cJSON *item)
{
    const cJSON *properties = cJSON_GetObjectItemCaseSensitive(schema, "properties");
    const cJSON *others = cJSON_GetObjectItemCaseSensitive(schema, "additionalProperties");
    const cJSON *member;

    if (!cJSON_IsObject(item)) return LS_OK;
    cJSON_ArrayForEach(member, item)
    {
        const cJSON *known = cJSON_GetObjectItemCaseSensitive(properties, member->string);
        if (known == NULL && cJSON_IsFalse(others))
            return LS_FAIL(LS_ERR_CORRUPT, "%s: %s has '%s', which is not known", w->name, place(w),
                           member->string);
        const cJSON *inner = known != NULL ? known : cJSON_IsObject(others) ? others : NULL;
        if (inner != NULL) LS_TRY(check_inner(w, inner, member, member->string));
    }
    return LS_OK;
}

static ls_status check_items(walk *w, const cJSON *schema, const cJSON *item)
{
    const cJSON *element;
    char index[24];
    int i = 0;

    if (!cJSON_IsArray(item)) return LS_OK;
    cJSON_ArrayForEach(element, item)
    {
        snprintf(index, sizeof index, "%d", i++);
        LS_TRY(check_inner(w, schema, element, index));
    }
    return LS_OK;
}

/* The failure that is told is that of the last alternative. */
static ls_status check_any(walk *w, const cJSON *alternatives, const cJSON *item)
{
    ls_status status = LS_ERR_CORRUPT;
    const cJSON *one;

    cJSON_ArrayForEach(one, alternatives)
    {
        status = check(w, one, item);
        if (status == LS_OK || status == LS_ERR_INVALID) break;
    }
    return status;
}

static ls_status check_reference(walk *w, const cJSON *reference, const cJSON *item)
{
    static const char start[] = "#/$defs/";
    const char *text = cJSON_IsString(reference) ? reference->valuestring : "";
    const cJSON *defs = cJSON_GetObjectItemCaseSensitive(w->root, "$defs");
    const bool ours = strncmp(text, start, sizeof start - 1) == 0;
    const cJSON *found =
        ours ? cJSON_GetObjectItemCaseSensitive(defs, text + sizeof start - 1) : NULL;

    if (found == NULL)
        return LS_FAIL(LS_ERR_INVALID, "%s: the schema refers to '%s', which it has not", w->name,
                       text);
    return check(w, found, item);
}

static ls_status check_keyword(walk *w, const cJSON *schema, const cJSON *keyword,
                               const cJSON *item)
{
    static const char *const silent[] = {"$schema", "$defs",       "$id",
                                         "title",   "description", "additionalProperties"};
    const char *name = keyword->string;

    if (strcmp(name, "type") == 0) return check_type(w, keyword, item);
    if (strcmp(name, "enum") == 0) return check_enum(w, keyword, item);
    if (strcmp(name, "minimum") == 0) return check_limit(w, keyword, item, true);
    if (strcmp(name, "maximum") == 0) return check_limit(w, keyword, item, false);
    if (strcmp(name, "required") == 0) return check_required(w, keyword, item);
    if (strcmp(name, "properties") == 0) return check_members(w, schema, item);
    if (strcmp(name, "items") == 0) return check_items(w, keyword, item);
    if (strcmp(name, "anyOf") == 0) return check_any(w, keyword, item);
    if (strcmp(name, "$ref") == 0) return check_reference(w, keyword, item);
    for (size_t i = 0; i < sizeof silent / sizeof silent[0]; i++)
        if (strcmp(name, silent[i]) == 0) return LS_OK;
    return LS_FAIL(LS_ERR_INVALID, "%s: the schema has '%s', which is not known here", w->name,
                   name);
}

static ls_status check(walk *w, const cJSON *schema, const cJSON *item)
{
    const cJSON *keyword;

    cJSON_ArrayForEach(keyword, schema) LS_TRY(check_keyword(w, schema, keyword, item));
    /* without `properties` the others are all there is */
    if (!cJSON_HasObjectItem(schema, "properties") &&
        cJSON_HasObjectItem(schema, "additionalProperties"))
        return check_members(w, schema, item);
    return LS_OK;
}

ls_status ls_json_schema_check(const cJSON *schema, const cJSON *document, const char *name)
{
    walk w = {.root = schema, .name = name};
    return check(&w, schema, document);
}
