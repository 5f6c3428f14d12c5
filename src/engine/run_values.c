/*
 * run_values.c - nodes of the tree into fields of ls_run_config, one function for each kind.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run_schema.h"
#include "text.h"

#define GROUPS_MAX      256
#define TRACE_STEPS_MAX 256

static ls_status fail_memory(const ls_yaml_node *node)
{
    return LS_YAML_FAIL(node, LS_ERR_NO_MEMORY, "out of memory");
}

static bool is_word(const ls_yaml_node *node, const char *word)
{
    return node->kind == LS_YAML_SCALAR && strcmp(node->text, word) == 0;
}

static ls_status read_text(const ls_yaml_node *node, char **text)
{
    const char *borrowed;

    LS_TRY(ls_yaml_get_text(node, &borrowed));
    *text = strdup(borrowed);
    return *text == NULL ? fail_memory(node) : LS_OK;
}

static ls_status read_paths(const ls_yaml_node *node, ls_path_list *list)
{
    const bool single = node->kind == LS_YAML_SCALAR;
    const ls_yaml_node *item = single ? node : node->first;
    const size_t n = single ? 1 : node->n_children;

    if (node->kind == LS_YAML_MAP || n == 0)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "names no file; allowed: a PREFIX, or a list");
    list->paths = calloc(n, sizeof *list->paths);
    if (list->paths == NULL) return fail_memory(node);
    for (; item != NULL; item = single ? NULL : item->next) {
        LS_TRY(read_text(item, &list->paths[list->n_paths]));
        list->n_paths++;
    }
    return LS_OK;
}

static ls_status read_word(const ls_run_field *field, const ls_yaml_node *node, void *at)
{
    size_t index;
    int value;

    LS_TRY(ls_yaml_get_word(node, field->words, field->n_words, &index));
    value = field->values != NULL ? field->values[index] : (int)index;
    memcpy(at, &value, sizeof value); /* any enum of ours: run_config.c asserts their size */
    return LS_OK;
}

static ls_status read_switch(const ls_run_field *field, const ls_yaml_node *node, bool *at)
{
    size_t index;

    LS_TRY(ls_yaml_get_word(node, field->words, field->n_words, &index));
    *at = index == 1;
    return LS_OK;
}

static ls_status read_whole(const ls_run_field *field, const ls_yaml_node *node, void *at)
{
    int64_t value;

    if (field->kind == LS_RUN_WHOLE)
        LS_TRY(ls_yaml_get_whole(node, field->least, field->most, &value));
    else if ((field->kind == LS_RUN_COUNT_AUTO && is_word(node, "auto")) ||
             (field->kind == LS_RUN_COUNT_NULL && ls_yaml_is_null(node)))
        value = 0;
    else
        LS_TRY(ls_yaml_get_count(node, field->least, field->most, &value));
    memcpy(at, &value, sizeof value); /* int64_t, or uint64_t: the range is not negative */
    return LS_OK;
}

static ls_status read_rope(const ls_yaml_node *node, ls_run_config *config)
{
    char quoted[LS_TEXT_BYTES];

    if (ls_yaml_is_null(node)) return LS_OK;
    if (node->kind != LS_YAML_MAP)
        return LS_YAML_FAIL(
            node, LS_ERR_INVALID, "%s is not known; allowed: null, {type: yarn, factor: 4, ...}",
            node->kind == LS_YAML_LIST ? "a list"
                                       : ls_text_quote(quoted, sizeof quoted, node->text));
    LS_TRY(ls_rope_read_run(node, &config->rope_scaling));
    config->rope_scaling_given = true;
    return LS_OK;
}

static ls_status read_bins(const ls_run_field *field, const ls_yaml_node *node,
                           ls_run_config *config)
{
    static const char linear[] = "linear:";
    char quoted[LS_TEXT_BYTES];
    int64_t n;

    config->position_bins = !ls_yaml_is_null(node);
    config->position_bins_count = 0;
    if (!config->position_bins || is_word(node, "log2")) return LS_OK;
    if (node->kind == LS_YAML_SCALAR && strncmp(node->text, linear, sizeof linear - 1) == 0 &&
        ls_text_parse_whole(node->text + sizeof linear - 1, &n) == LS_OK && n >= field->least &&
        n <= field->most) {
        config->position_bins_count = n;
        return LS_OK;
    }
    return LS_YAML_FAIL(node, LS_ERR_INVALID,
                        "%s is not known; allowed: log2, linear:N (N bins, %lld to %lld), null",
                        node->kind != LS_YAML_SCALAR
                            ? "a list or map"
                            : ls_text_quote(quoted, sizeof quoted, node->text),
                        (long long)field->least, (long long)field->most);
}

static ls_status read_group(const ls_yaml_node *node, ls_run_group *group)
{
    static const char *const keys[] = {"match", "lr_scale", "frozen"};
    const ls_yaml_range scales = {.least = 0, .most = 1e4};
    const ls_yaml_node *match, *scale, *frozen;

    LS_TRY(ls_yaml_get_map(node));
    LS_TRY(ls_yaml_check_keys(node, keys, sizeof keys / sizeof keys[0]));
    match = ls_yaml_find(node, "match");
    scale = ls_yaml_find(node, "lr_scale");
    frozen = ls_yaml_find(node, "frozen");
    if (match == NULL)
        return LS_YAML_FAIL(node, LS_ERR_INVALID,
                            "match is missing; allowed: a glob on full tensor names");
    if (scale == NULL && frozen == NULL)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "changes nothing; allowed: lr_scale or frozen");
    group->lr_scale = 1;
    if (scale != NULL) LS_TRY(ls_yaml_get_real(scale, scales, &group->lr_scale));
    if (frozen != NULL) LS_TRY(ls_yaml_get_bool(frozen, &group->frozen));
    return read_text(match, &group->match);
}

static ls_status read_groups(const ls_yaml_node *node, ls_run_config *config)
{
    LS_TRY(ls_yaml_get_list(node));
    if (node->n_children > GROUPS_MAX)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "holds %zu groups; allowed: at most %d",
                            node->n_children, GROUPS_MAX);
    if (node->n_children == 0) return LS_OK;
    config->groups = calloc(node->n_children, sizeof *config->groups);
    if (config->groups == NULL) return fail_memory(node);
    for (const ls_yaml_node *item = node->first; item != NULL; item = item->next) {
        LS_TRY(read_group(item, &config->groups[config->n_groups]));
        config->n_groups++;
    }
    return LS_OK;
}

size_t ls_run_list_classes(const char *names[LS_CLASS_COUNT],
                           ls_tensor_class classes[LS_CLASS_COUNT])
{
    size_t n = 0;
    for (int c = 0; c < LS_CLASS_COUNT; c++) {
        if (c == LS_CLASS_BATCH) continue;
        names[n] = ls_class_name((ls_tensor_class)c);
        classes[n++] = (ls_tensor_class)c;
    }
    return n;
}

static ls_status read_place(const ls_yaml_node *node, ls_run_config *config)
{
    const char *names[LS_CLASS_COUNT], *places[LS_PLACE_COUNT];
    ls_tensor_class classes[LS_CLASS_COUNT];
    const size_t n = ls_run_list_classes(names, classes);

    for (int p = 0; p < LS_PLACE_COUNT; p++) places[p] = ls_place_name((ls_place_kind)p);
    LS_TRY(ls_yaml_get_map(node));
    LS_TRY(ls_yaml_check_keys(node, names, n));
    for (size_t i = 0; i < n; i++) {
        const ls_yaml_node *class = ls_yaml_find(node, names[i]);
        size_t place;
        if (class == NULL) continue;
        LS_TRY(ls_yaml_get_word(class, places, LS_PLACE_COUNT, &place));
        config->places[classes[i]] = 1 + (int)place;
    }
    return LS_OK;
}

static ls_status read_threads(const ls_run_field *field, const ls_yaml_node *node,
                              ls_run_config *config)
{
    static const char *const keys[] = {"compute", "optimizer", "copy"};
    int64_t *const threads[] = {&config->compute_threads, &config->optimizer_threads,
                                &config->copy_threads};
    char quoted[LS_TEXT_BYTES];

    if (is_word(node, "auto")) return LS_OK;
    if (node->kind == LS_YAML_SCALAR)
        return LS_YAML_FAIL(node, LS_ERR_INVALID,
                            "%s is not known; allowed: auto, {compute: N, optimizer: N, copy: N}",
                            ls_text_quote(quoted, sizeof quoted, node->text));
    LS_TRY(ls_yaml_get_map(node));
    LS_TRY(ls_yaml_check_keys(node, keys, sizeof keys / sizeof keys[0]));
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const ls_yaml_node *lane = ls_yaml_find(node, keys[i]);
        if (lane != NULL) LS_TRY(ls_yaml_get_whole(lane, field->least, field->most, threads[i]));
    }
    return LS_OK;
}

static ls_status read_step_list(const ls_run_field *field, const ls_yaml_node *node,
                                ls_run_config *config)
{
    int64_t last = 0;

    LS_TRY(ls_yaml_get_list(node));
    if (node->n_children > TRACE_STEPS_MAX)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "holds %zu steps; allowed: at most %d",
                            node->n_children, TRACE_STEPS_MAX);
    if (node->n_children == 0) return LS_OK;
    config->trace_steps = calloc(node->n_children, sizeof *config->trace_steps);
    if (config->trace_steps == NULL) return fail_memory(node);
    for (const ls_yaml_node *item = node->first; item != NULL; item = item->next) {
        int64_t step;
        LS_TRY(ls_yaml_get_whole(item, field->least, field->most, &step));
        if (step <= last)
            return LS_YAML_FAIL(item, LS_ERR_INVALID,
                                "%lld comes after %lld; allowed: steps in increasing order",
                                (long long)step, (long long)last);
        config->trace_steps[config->n_trace_steps++] = last = step;
    }
    return LS_OK;
}

ls_status ls_run_field_read(const ls_run_field *field, const ls_yaml_node *node,
                            ls_run_config *config)
{
    void *at = (char *)config + field->offset;

    switch (field->kind) {
    case LS_RUN_TEXT: return read_text(node, at);
    case LS_RUN_TEXT_NULL: return ls_yaml_is_null(node) ? LS_OK : read_text(node, at);
    case LS_RUN_PATHS: return read_paths(node, at);
    case LS_RUN_WORD: return read_word(field, node, at);
    case LS_RUN_SWITCH: return read_switch(field, node, at);
    case LS_RUN_WHOLE:
    case LS_RUN_COUNT:
    case LS_RUN_COUNT_AUTO:
    case LS_RUN_COUNT_NULL: return read_whole(field, node, at);
    case LS_RUN_REAL: return ls_yaml_get_real(node, field->range, at);
    case LS_RUN_ROPE: return read_rope(node, config);
    case LS_RUN_BINS: return read_bins(field, node, config);
    case LS_RUN_GROUPS: return read_groups(node, config);
    case LS_RUN_SAVE: return ls_run_save_read(node, config);
    case LS_RUN_PLACE: return read_place(node, config);
    case LS_RUN_THREADS: return read_threads(field, node, config);
    case LS_RUN_STEP_LIST: return read_step_list(field, node, config);
    }
    assert(false && "a kind without a reader");
    return LS_OK;
}

ls_status ls_run_field_read_default(const ls_run_field *field, ls_run_config *config)
{
    ls_yaml *document;
    ls_status status;

    if (field->fallback == NULL) return LS_OK;
    LS_TRY(ls_yaml_parse("default", field->fallback, strlen(field->fallback), &document));
    status = ls_run_field_read(field, ls_yaml_root(document), config);
    assert(status == LS_OK || status == LS_ERR_NO_MEMORY);
    ls_yaml_free(document);
    return status;
}
