/*
 * run_config.c - a run file by the table: known keys only, each value or its default, then what
 * must agree between keys.
 */
#include "run_config.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "profile.h"
#include "run_schema.h"
#include "text.h"

#define KEYS_MAX 64

_Static_assert(sizeof(ls_dtype) == sizeof(int) && sizeof(ls_documents) == sizeof(int) &&
                   sizeof(ls_tokens_format) == sizeof(int) &&
                   sizeof(ls_schedule_kind) == sizeof(int) &&
                   sizeof(ls_weights_mode) == sizeof(int),
               "the table stores words as int");

/* ---- known keys --------------------------------------------------------------------------------
 */

/* The keys of a section ("": the top level) in the table's order, each once. */
static size_t collect_keys(const char *section, char names[KEYS_MAX][LS_YAML_KEY_BYTES_MAX + 1],
                           const char *keys[KEYS_MAX])
{
    size_t n_fields, n = 0;
    const ls_run_field *fields = ls_run_fields(&n_fields);

    for (size_t i = 0; i < n_fields; i++) {
        char of[LS_YAML_KEY_BYTES_MAX + 1];
        const char *key = ls_run_field_split(fields[i].path, of);
        if (section[0] == '\0' && of[0] != '\0')
            key = of; /* the section itself is a key of the top level */
        else if (strcmp(of, section) != 0)
            continue;
        if (n > 0 && strcmp(keys[n - 1], key) == 0) continue;
        assert(n < KEYS_MAX);
        snprintf(names[n], sizeof names[n], "%s", key);
        keys[n] = names[n];
        n++;
    }
    return n;
}

/* The path of a key with this name in another section, or NULL: "lr" is "optimizer.lr". */
static const char *find_elsewhere(const char *name)
{
    size_t n_fields;
    const ls_run_field *fields = ls_run_fields(&n_fields);

    for (size_t i = 0; i < n_fields; i++) {
        char section[LS_YAML_KEY_BYTES_MAX + 1];
        if (strcmp(ls_run_field_split(fields[i].path, section), name) == 0) return fields[i].path;
    }
    return NULL;
}

static ls_status check_section(const ls_yaml_node *map, const char *section)
{
    char names[KEYS_MAX][LS_YAML_KEY_BYTES_MAX + 1], allowed[600];
    const char *keys[KEYS_MAX];
    const size_t n = collect_keys(section, names, keys);

    for (const ls_yaml_node *child = map->first; child != NULL; child = child->next) {
        const char *elsewhere;
        bool known = false;
        for (size_t i = 0; i < n && !known; i++) known = strcmp(child->key, keys[i]) == 0;
        elsewhere = known ? NULL : find_elsewhere(child->key);
        if (elsewhere != NULL)
            return LS_YAML_FAIL(child, LS_ERR_INVALID,
                                "unknown key, did you mean '%s'? allowed: %s", elsewhere,
                                ls_text_join(allowed, sizeof allowed, keys, n));
    }
    return ls_yaml_check_keys(map, keys, n);
}

/* Every key in the tree is one of the table's, and every section is a map (or empty). */
static ls_status check_tree(const ls_yaml_node *root)
{
    size_t n_fields;
    const ls_run_field *fields = ls_run_fields(&n_fields);

    LS_TRY(ls_yaml_get_map(root));
    LS_TRY(check_section(root, ""));
    for (size_t i = 0; i < n_fields; i++) {
        char section[LS_YAML_KEY_BYTES_MAX + 1];
        const ls_yaml_node *map;
        ls_run_field_split(fields[i].path, section);
        map = ls_yaml_find(root, section);
        if (map == NULL || ls_yaml_is_null(map)) continue;
        LS_TRY(ls_yaml_get_map(map));
        LS_TRY(check_section(map, section));
    }
    return LS_OK;
}

static ls_status read_fields(const ls_yaml_node *root, ls_run_config *config)
{
    size_t n_fields;
    const ls_run_field *fields = ls_run_fields(&n_fields);

    for (size_t i = 0; i < n_fields; i++) {
        const ls_yaml_node *node = ls_yaml_find_path(root, fields[i].path);
        const bool optional = !fields[i].required && fields[i].fallback == NULL;
        if (node != NULL && optional && ls_yaml_is_null(node)) continue; /* as if not given */
        if (node != NULL)
            LS_TRY(ls_run_field_read(&fields[i], node, config));
        else if (fields[i].required)
            return LS_YAML_FAIL(root, LS_ERR_INVALID, "%s: is missing; allowed: %s", fields[i].path,
                                fields[i].about);
        else
            LS_TRY(ls_run_field_read_default(&fields[i], config));
    }
    return LS_OK;
}

/* ---- the model's path --------------------------------------------------------------------------
 */

/* folder[0 .. n) / path, allocated. */
static char *join_path(const char *folder, size_t n, const char *path)
{
    const size_t size = n + strlen(path) + 2;
    char *joined = malloc(size);

    if (joined == NULL) return NULL;
    if (n == 0)
        snprintf(joined, size, "%s", path);
    else
        snprintf(joined, size, "%.*s%s%s", (int)n, folder, folder[n - 1] == '/' ? "" : "/", path);
    return joined;
}

/* What cannot be told counts as there: reading it says what is the matter. */
static bool exists(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

/* Replace config->model_path by the path that opens; name is the run file's. */
static ls_status resolve_model(const ls_yaml_node *node, const char *name, ls_run_config *config)
{
    const char *slash = strrchr(name, '/');
    const size_t n = slash == NULL ? 0 : (size_t)(slash - name) + 1;
    char *beside = NULL, *above = NULL, *up = NULL, **found = NULL;
    ls_status status = LS_OK;

    assert(config->model_path != NULL); /* a required key */
    if (ls_yaml_is_set(node) || config->model_path[0] == '/') {
        if (exists(config->model_path)) return LS_OK;
        return LS_YAML_FAIL(node, LS_ERR_INVALID,
                            "%s does not exist; allowed: a model YAML or a Hugging Face directory",
                            config->model_path);
    }
    beside = join_path(name, n, config->model_path);
    up = join_path("..", 2, config->model_path);
    if (up != NULL) above = join_path(name, n, up);
    if (beside == NULL || above == NULL)
        status = LS_YAML_FAIL(node, LS_ERR_NO_MEMORY, "out of memory");
    else if (exists(beside))
        found = &beside;
    else if (exists(above))
        found = &above;
    else
        status = LS_YAML_FAIL(node, LS_ERR_INVALID,
                              "neither %s nor %s exists; allowed: a path from the run file's "
                              "folder or the one above it",
                              beside, above);
    if (found != NULL) {
        free(config->model_path);
        config->model_path = *found;
        *found = NULL;
    }
    free(beside);
    free(above);
    free(up);
    return status;
}

/* A profile's file that the run file names lies beside it; else in the working directory. */
static ls_status resolve_hardware(const ls_yaml_node *node, const char *name, ls_run_config *config)
{
    const char *slash = strrchr(name, '/');

    if (node == NULL || ls_yaml_is_set(node) || slash == NULL || config->hardware[0] == '/' ||
        !ls_profile_is_file(config->hardware))
        return LS_OK;
    char *beside = join_path(name, (size_t)(slash - name) + 1, config->hardware);
    if (beside == NULL) return LS_YAML_FAIL(node, LS_ERR_NO_MEMORY, "out of memory");
    if (!exists(beside)) {
        free(beside);
        return LS_OK;
    }
    free(config->hardware);
    config->hardware = beside;
    return LS_OK;
}

/* ---- what must agree between keys --------------------------------------------------------------
 */

/* Fail at the key's place, or for a default at the file's start, with the key named. */
static ls_status fail_key(const ls_yaml_node *root, const char *path, ls_status status,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));
static ls_status fail_key(const ls_yaml_node *root, const char *path, ls_status status,
                          const char *format, ...)
{
    const ls_yaml_node *node = ls_yaml_find_path(root, path);
    char what[512];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (node != NULL) return LS_YAML_FAIL(node, status, "%s", what);
    return LS_YAML_FAIL(root, status, "%s: the default %s", path, what);
}

static ls_status check_data(const ls_yaml_node *root, ls_run_config *config)
{
    const bool held_out = config->valid.n_paths > 0 || config->valid_fraction > 0;

    if (config->valid.n_paths > 0 && config->valid_fraction > 0)
        return fail_key(root, "data.valid_fraction", LS_ERR_INVALID,
                        "stands beside data.valid; allowed: one of the two");
    if (config->min_document > config->sequence_tokens)
        return fail_key(root, "data.min_document", LS_ERR_INVALID,
                        "%lld is more than sequence.tokens = %lld; allowed: 0 to that",
                        (long long)config->min_document, (long long)config->sequence_tokens);
    if (held_out || config->eval_every_steps == 0) return LS_OK;
    if (ls_yaml_find_path(root, "eval.every_steps") != NULL)
        return fail_key(root, "eval.every_steps", LS_ERR_INVALID,
                        "%lld, but there is nothing to evaluate on; allowed: 0, or give data.valid "
                        "or data.valid_fraction",
                        (long long)config->eval_every_steps);
    config->eval_every_steps = 0;
    return LS_OK;
}

/* Blocks and chunks may straddle sequences: they are rows of the whole micro-batch. */
static ls_status check_rows(const ls_yaml_node *root, const char *key, int64_t rows, int64_t most)
{
    if (rows <= most) return LS_OK;
    return fail_key(root, key, LS_ERR_INVALID,
                    "%lld is more than the %lld tokens of a micro-batch (sequence.tokens x "
                    "batch.sequences); allowed: 1 to that, or auto",
                    (long long)rows, (long long)most);
}

static ls_status check_sizes(const ls_yaml_node *root, const ls_run_config *config)
{
    const int64_t tokens = config->sequence_tokens, batch_max = INT32_MAX;

    if (config->sequences > batch_max / tokens)
        return fail_key(root, "batch.sequences", LS_ERR_INVALID,
                        "%lld of %lld tokens are too many for one micro-batch; allowed: 1 to %lld "
                        "(then batch.accumulate)",
                        (long long)config->sequences, (long long)tokens,
                        (long long)(batch_max / tokens));
    LS_TRY(check_rows(root, "sequence.chunk", config->chunk, tokens * config->sequences));
    return check_rows(root, "sequence.query_block", config->query_block,
                      tokens * config->sequences);
}

static ls_status check_schedule(const ls_yaml_node *root, const ls_run_config *config)
{
    const ls_schedule *s = &config->schedule;

    if (s->lr_min > s->lr)
        return fail_key(root, "optimizer.lr_min", LS_ERR_INVALID,
                        "%g is more than optimizer.lr = %g; allowed: 0 to that", s->lr_min, s->lr);
    if (s->warmup_steps > config->steps)
        return fail_key(root, "optimizer.warmup_steps", LS_ERR_INVALID,
                        "%lld is more than steps = %lld; allowed: 0 to that",
                        (long long)s->warmup_steps, (long long)config->steps);
    if (s->kind != LS_SCHEDULE_WSD && s->decay_steps != 0)
        return fail_key(root, "optimizer.decay_steps", LS_ERR_INVALID,
                        "belongs to schedule wsd; allowed: leave it out");
    if (s->kind == LS_SCHEDULE_WSD && s->decay_steps == 0)
        return fail_key(root, "optimizer.schedule", LS_ERR_INVALID,
                        "wsd needs optimizer.decay_steps; allowed: 1 to %lld",
                        (long long)(config->steps - s->warmup_steps));
    if (s->warmup_steps + s->decay_steps > config->steps)
        return fail_key(root, "optimizer.decay_steps", LS_ERR_INVALID,
                        "%lld is more than steps - warmup_steps = %lld; allowed: 1 to that",
                        (long long)s->decay_steps, (long long)(config->steps - s->warmup_steps));
    return LS_OK;
}

static ls_status check_device_layers(const ls_yaml_node *root, const ls_run_config *config)
{
    if (config->device_layers == 0 || config->moments == LS_MOMENTS_F32) return LS_OK;
    return fail_key(root, "optimizer.device_layers", LS_ERR_INVALID,
                    "%lld, but a GPU updates moments in fp32 alone; allowed: 0, or "
                    "optimizer.moments: fp32",
                    (long long)config->device_layers);
}

static ls_status check_place(const ls_yaml_node *root, const ls_run_config *config)
{
    struct stat about;

    if (config->init != LS_INIT_RANDOM &&
        (stat(config->model_path, &about) != 0 || !S_ISDIR(about.st_mode)))
        return fail_key(root, "init", LS_ERR_INVALID,
                        "%s, but model %s is no directory with weights; allowed: random, or a "
                        "Hugging Face directory as model",
                        config->init == LS_INIT_OPTIMIZER ? "pretrained+optimizer" : "pretrained",
                        config->model_path);
    return LS_OK;
}

/* Where a key stands, for a message whose other half is another file's. */
static ls_status keep_place(const ls_yaml_node *root, const char *path, char **place)
{
    const ls_yaml_node *node = ls_yaml_find_path(root, path);
    char at[LS_YAML_PLACE_BYTES], text[LS_YAML_PLACE_BYTES + 64];

    if (node != NULL)
        snprintf(text, sizeof text, "%s:", ls_yaml_place(node, at));
    else
        snprintf(text, sizeof text, "%s: %s: the default", ls_yaml_place(root, at), path);
    *place = strdup(text);
    return *place == NULL ? LS_YAML_FAIL(root, LS_ERR_NO_MEMORY, "out of memory") : LS_OK;
}

/* ---- reading -----------------------------------------------------------------------------------
 */

static ls_status read_document(ls_yaml *document, const char *name, const char *const *sets,
                               size_t n_sets, ls_run_config *config)
{
    const ls_yaml_node *root = ls_yaml_root(document);
    ls_run_config read = {0};
    ls_status status = ls_yaml_get_map(root);

    for (size_t i = 0; i < n_sets && status == LS_OK; i++) status = ls_yaml_set(document, sets[i]);
    if (status == LS_OK) status = check_tree(root);
    if (status == LS_OK) status = read_fields(root, &read);
    if (status == LS_OK) status = resolve_model(ls_yaml_find(root, "model"), name, &read);
    if (status == LS_OK) status = resolve_hardware(ls_yaml_find(root, "hardware"), name, &read);
    if (status == LS_OK) status = check_place(root, &read);
    if (status == LS_OK) status = check_data(root, &read);
    if (status == LS_OK) status = check_sizes(root, &read);
    if (status == LS_OK) status = check_schedule(root, &read);
    if (status == LS_OK) status = check_device_layers(root, &read);
    if (status == LS_OK) status = keep_place(root, "sequence.tokens", &read.sequence_tokens_place);
    if (status == LS_OK) status = keep_place(root, "rope_scaling", &read.rope_scaling_place);
    if (status == LS_OK) status = ls_run_places_keep(root, name, &read);
    if (status == LS_OK) {
        read.schedule.steps = read.steps;
        *config = read;
    } else {
        ls_run_config_free(&read);
    }
    return status;
}

ls_status ls_run_config_parse(const char *name, const char *text, size_t bytes,
                              const char *const *sets, size_t n_sets, ls_run_config *config)
{
    ls_yaml *document;
    ls_status status;

    LS_TRY(ls_yaml_parse(name, text, bytes, &document));
    status = read_document(document, name, sets, n_sets, config);
    ls_yaml_free(document);
    return status;
}

ls_status ls_run_config_read(const char *path, const char *const *sets, size_t n_sets,
                             ls_run_config *config)
{
    ls_yaml *document;
    ls_status status;

    LS_TRY(ls_yaml_read(path, &document));
    status = read_document(document, path, sets, n_sets, config);
    ls_yaml_free(document);
    return status;
}

static void free_paths(ls_path_list *list)
{
    for (int64_t i = 0; i < list->n_paths; i++) free(list->paths[i]);
    free(list->paths);
}

void ls_run_config_free(ls_run_config *config)
{
    if (config == NULL) return;
    for (int64_t i = 0; i < config->n_groups; i++) free(config->groups[i].match);
    free(config->groups);
    free(config->trace_steps);
    free_paths(&config->train);
    free_paths(&config->valid);
    free(config->model_path);
    ls_run_places_free(config);
    free(config->sequence_tokens_place);
    free(config->rope_scaling_place);
    free(config->hardware);
    free(config->prometheus);
    free(config->output);
    memset(config, 0, sizeof *config);
}
