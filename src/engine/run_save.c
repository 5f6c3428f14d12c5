/*
 * run_save.c - memory.save of a run file: one policy, or policies by ranges of layers.
 *
 * How many layers the model has is not known here: what reaches beyond them is refused when choices
 * are made.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "run_schema.h"
#include "text.h"

#define POLICIES "x, x+o, x+qkv+o, o+x/K, x/K (K: 2 or more)"

static ls_status refuse_policy(const ls_yaml_node *node, const char *allowed)
{
    static const char *const words[] = {"x", "x+o", "x+qkv+o", "o+x/4", "x/4"};
    char quoted[LS_TEXT_BYTES], meant[LS_TEXT_BYTES] = "; ";
    const char *nearest;

    if (node->kind != LS_YAML_SCALAR)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "is a %s, not one value; allowed: %s",
                            node->kind == LS_YAML_MAP ? "map" : "list", allowed);
    if (ls_yaml_is_null(node))
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "has no value; allowed: %s", allowed);
    nearest = ls_text_nearest(node->text, words, sizeof words / sizeof words[0]);
    if (nearest != NULL && strlen(node->text) > 2)
        snprintf(meant, sizeof meant, ", did you mean '%s'? ", nearest);
    return LS_YAML_FAIL(node, LS_ERR_INVALID, "%s is not known%sallowed: %s",
                        ls_text_quote(quoted, sizeof quoted, node->text), meant, allowed);
}

static ls_status read_layers(const ls_yaml_node *node, const ls_saves *before, ls_save_range *range)
{
    const char *text;
    char quoted[LS_TEXT_BYTES];

    LS_TRY(ls_yaml_get_text(node, &text));
    if (!ls_save_layers_parse(text, &range->first, &range->last))
        return LS_YAML_FAIL(node, LS_ERR_INVALID,
                            "%s is not known; allowed: a layer (7), or the first and the last of a "
                            "range (0-23)",
                            ls_text_quote(quoted, sizeof quoted, text));
    for (int32_t i = 0; i < before->n_ranges; i++) {
        const ls_save_range *other = &before->ranges[i];
        if (range->first <= other->last && other->first <= range->last)
            return LS_YAML_FAIL(node, LS_ERR_INVALID,
                                "%s names layers of memory.save[%" PRId32 "] (%" PRId32 "-%" PRId32
                                ") again; allowed: each layer once",
                                text, i, other->first, other->last);
    }
    return LS_OK;
}

static ls_status read_range(const ls_yaml_node *node, const ls_saves *before, ls_save_range *range)
{
    static const char *const keys[] = {"layers", "policy", "place"};
    const char *places[LS_PLACE_COUNT];
    const ls_yaml_node *layers, *policy, *place;
    size_t index;

    for (int p = 0; p < LS_PLACE_COUNT; p++) places[p] = ls_place_name((ls_place_kind)p);
    LS_TRY(ls_yaml_get_map(node));
    LS_TRY(ls_yaml_check_keys(node, keys, sizeof keys / sizeof keys[0]));
    layers = ls_yaml_find(node, "layers");
    policy = ls_yaml_find(node, "policy");
    place = ls_yaml_find(node, "place");
    if (layers == NULL)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "layers is missing; allowed: 7, or 0-23");
    if (policy == NULL)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "policy is missing; allowed: " POLICIES);
    *range = (ls_save_range){0};
    LS_TRY(read_layers(layers, before, range));
    if (policy->kind != LS_YAML_SCALAR || !ls_save_policy_parse(policy->text, &range->policy))
        return refuse_policy(policy, POLICIES);
    if (place == NULL) return LS_OK;
    LS_TRY(ls_yaml_get_word(place, places, LS_PLACE_COUNT, &index));
    range->place = 1 + (int)index;
    return LS_OK;
}

static ls_status read_list(const ls_yaml_node *node, ls_saves *saves)
{
    if (node->n_children == 0 || node->n_children > LS_SAVE_RANGES_MAX)
        return LS_YAML_FAIL(node, LS_ERR_INVALID,
                            "holds %zu ranges of layers; allowed: 1 to %d, or one policy",
                            node->n_children, LS_SAVE_RANGES_MAX);
    for (const ls_yaml_node *item = node->first; item != NULL; item = item->next) {
        LS_TRY(read_range(item, saves, &saves->ranges[saves->n_ranges]));
        saves->n_ranges++;
    }
    return LS_OK;
}

ls_status ls_run_save_read(const ls_yaml_node *node, ls_run_config *config)
{
    ls_save_policy policy;

    config->save_auto = node->kind == LS_YAML_SCALAR && strcmp(node->text, "auto") == 0;
    config->saves = (ls_saves){0};
    if (config->save_auto) return LS_OK;
    if (node->kind == LS_YAML_LIST) return read_list(node, &config->saves);
    if (node->kind != LS_YAML_SCALAR || !ls_save_policy_parse(node->text, &policy))
        return refuse_policy(node, "auto, " POLICIES
                                   ", or a list of {layers: 0-23, policy: x+o, place: host}");
    ls_saves_set(&config->saves, policy);
    return LS_OK;
}
