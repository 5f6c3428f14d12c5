/* yaml_values.c - typed reading of tree nodes: each refusal says what stands there and what may. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text.h"
#include "yaml_tree.h"

#define ALLOWED_BYTES 600

/* Fail unless node is a scalar with something in it. */
static ls_status check_scalar(const ls_yaml_node *node, const char *allowed)
{
    if (node->kind != LS_YAML_SCALAR)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "is a %s, not one value; allowed: %s",
                            node->kind == LS_YAML_LIST ? "list" : "map", allowed);
    if (ls_yaml_is_null(node))
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "has no value; allowed: %s", allowed);
    return LS_OK;
}

/* Fail unless node is a scalar written without quotes: "300" in quotes is a text. */
static ls_status check_plain(const ls_yaml_node *node, const char *what, const char *allowed)
{
    char quoted[LS_TEXT_BYTES];

    LS_TRY(check_scalar(node, allowed));
    if (!node->quoted) return LS_OK;
    return LS_YAML_FAIL(node, LS_ERR_INVALID, "%s is a text in quotes, not %s; allowed: %s",
                        ls_text_quote(quoted, sizeof quoted, node->text), what, allowed);
}

ls_status ls_yaml_get_whole(const ls_yaml_node *node, int64_t least, int64_t most, int64_t *value)
{
    char low[32], high[32], allowed[LS_TEXT_BYTES];
    int64_t whole;

    snprintf(allowed, sizeof allowed, "%s to %s", ls_text_count(low, sizeof low, least),
             ls_text_count(high, sizeof high, most));
    LS_TRY(check_plain(node, "a number", allowed));
    if (ls_text_parse_whole(node->text, &whole) != LS_OK)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "%s; allowed: %s", ls_error(), allowed);
    if (whole < least || whole > most)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "%s is out of range; allowed: %s", node->text,
                            allowed);
    *value = whole;
    return LS_OK;
}

ls_status ls_yaml_get_count(const ls_yaml_node *node, int64_t least, int64_t most, int64_t *value)
{
    char low[32], high[32], allowed[LS_TEXT_BYTES], quoted[LS_TEXT_BYTES];
    int64_t count;

    snprintf(allowed, sizeof allowed, "%s to %s", ls_text_short_count(low, sizeof low, least),
             ls_text_short_count(high, sizeof high, most));
    LS_TRY(check_scalar(node, allowed));
    if (ls_text_parse_count(node->text, &count) != LS_OK)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "%s; allowed: %s", ls_error(), allowed);
    if (count < least || count > most)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "%s is out of range; allowed: %s",
                            ls_text_quote(quoted, sizeof quoted, node->text), allowed);
    *value = count;
    return LS_OK;
}

ls_status ls_yaml_get_bool(const ls_yaml_node *node, bool *value)
{
    char quoted[LS_TEXT_BYTES];

    LS_TRY(check_plain(node, "true or false", "true, false"));
    if (strcmp(node->text, "true") == 0)
        *value = true;
    else if (strcmp(node->text, "false") == 0)
        *value = false;
    else
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "%s is not a truth value; allowed: true, false",
                            ls_text_quote(quoted, sizeof quoted, node->text));
    return LS_OK;
}

ls_status ls_yaml_get_real(const ls_yaml_node *node, ls_yaml_range range, double *value)
{
    char allowed[LS_TEXT_BYTES], quoted[LS_TEXT_BYTES];
    double real;

    snprintf(allowed, sizeof allowed, "%s%.9g to %s%.9g", range.above ? "more than " : "",
             range.least, range.below ? "less than " : "", range.most);
    LS_TRY(check_plain(node, "a number", allowed));
    const ls_status status = ls_text_parse_real(node->text, &real);
    if (status == LS_ERR_NO_MEMORY) return LS_YAML_FAIL(node, status, "%s", ls_error());
    if (status != LS_OK)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "%s; allowed: %s", ls_error(), allowed);
    if (real < range.least || real > range.most || (range.above && real <= range.least) ||
        (range.below && real >= range.most))
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "%s is out of range; allowed: %s",
                            ls_text_quote(quoted, sizeof quoted, node->text), allowed);
    *value = real;
    return LS_OK;
}

ls_status ls_yaml_get_text(const ls_yaml_node *node, const char **text)
{
    LS_TRY(check_scalar(node, "a text"));
    if (node->text[0] == '\0')
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "is an empty text; allowed: a text");
    *text = node->text;
    return LS_OK;
}

ls_status ls_yaml_get_word(const ls_yaml_node *node, const char *const *words, size_t n_words,
                           size_t *index)
{
    char allowed[ALLOWED_BYTES], quoted[LS_TEXT_BYTES];
    const char *nearest;

    ls_text_join(allowed, sizeof allowed, words, n_words);
    LS_TRY(check_scalar(node, allowed));
    for (size_t i = 0; i < n_words; i++) {
        if (strcmp(node->text, words[i]) != 0) continue;
        *index = i;
        return LS_OK;
    }
    ls_text_quote(quoted, sizeof quoted, node->text);
    nearest = ls_text_nearest(node->text, words, n_words);
    if (nearest != NULL)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "%s is not known, did you mean '%s'? allowed: %s",
                            quoted, nearest, allowed);
    return LS_YAML_FAIL(node, LS_ERR_INVALID, "%s is not known; allowed: %s", quoted, allowed);
}

ls_status ls_yaml_get_map(const ls_yaml_node *node)
{
    char quoted[LS_TEXT_BYTES];

    if (node->kind == LS_YAML_MAP) return LS_OK;
    if (node->kind == LS_YAML_LIST)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "is a list; allowed: keys and values");
    if (ls_yaml_is_null(node))
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "has no value; allowed: keys and values");
    return LS_YAML_FAIL(node, LS_ERR_INVALID, "%s is one value; allowed: keys and values",
                        ls_text_quote(quoted, sizeof quoted, node->text));
}

ls_status ls_yaml_get_list(const ls_yaml_node *node)
{
    char quoted[LS_TEXT_BYTES];

    if (node->kind == LS_YAML_LIST) return LS_OK;
    if (node->kind == LS_YAML_MAP)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "is a map; allowed: a list");
    return LS_YAML_FAIL(node, LS_ERR_INVALID, "%s is one value; allowed: a list",
                        ls_text_quote(quoted, sizeof quoted, node->text));
}

ls_status ls_yaml_check_keys(const ls_yaml_node *map, const char *const *keys, size_t n_keys)
{
    char allowed[ALLOWED_BYTES];

    for (const ls_yaml_node *child = map->first; child != NULL; child = child->next) {
        const char *nearest;
        bool known = false;
        for (size_t i = 0; i < n_keys && !known; i++) known = strcmp(child->key, keys[i]) == 0;
        if (known) continue;
        ls_text_join(allowed, sizeof allowed, keys, n_keys);
        nearest = ls_text_nearest(child->key, keys, n_keys);
        if (nearest != NULL)
            return LS_YAML_FAIL(child, LS_ERR_INVALID,
                                "unknown key, did you mean '%s'? allowed: %s", nearest, allowed);
        return LS_YAML_FAIL(child, LS_ERR_INVALID, "unknown key; allowed: %s", allowed);
    }
    return LS_OK;
}
