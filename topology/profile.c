/* profile.c - reads a hardware profile: a strict schema, every refusal with its line. */
#include "profile.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "profile_keys.h"
#include "text.h"
#include "yaml_tree.h"

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))
#define KEYS_MAX    16

/* ---- numbers with a source ------------------------------------------------------------------ */

static ls_status read_value(const ls_yaml_node *node, const ls_profile_key *key, double *value)
{
    const ls_yaml_range range = {.least = 0, .most = key->most, .above = true};
    const char *text;
    uint64_t bytes;
    bool truth;

    switch (key->kind) {
    case LS_PROFILE_REAL: return ls_yaml_get_real(node, range, value);
    case LS_PROFILE_TRUTH:
        LS_TRY(ls_yaml_get_bool(node, &truth));
        *value = truth;
        return LS_OK;
    case LS_PROFILE_BYTES:
        LS_TRY(ls_yaml_get_text(node, &text));
        if (ls_text_parse_bytes(text, &bytes) != LS_OK)
            return LS_YAML_FAIL(node, LS_ERR_INVALID, "%s; allowed: bytes, such as 96GB or 64KiB",
                                ls_error());
        if (bytes == 0 || (double)bytes > key->most)
            return LS_YAML_FAIL(node, LS_ERR_INVALID,
                                "%llu bytes are out of range; allowed: 1 "
                                "to %.0f",
                                (unsigned long long)bytes, key->most);
        *value = (double)bytes;
        return LS_OK;
    }
    assert(false);
    return LS_ERR_INVALID;
}

static ls_status get_word(const ls_yaml_node *node, const char *const *words, size_t *word)
{
    return ls_yaml_get_word(node, words, ls_profile_count(words), word);
}

static ls_status read_quantity(const ls_yaml_node *node, const ls_profile_key *key,
                               ls_quantity *quantity)
{
    static const char *const keys[] = {"value", "source"};
    const ls_yaml_node *value = ls_yaml_find(node, "value"), *source = ls_yaml_find(node, "source");
    ls_source parsed = LS_SOURCE_UNKNOWN;
    size_t word;

    if (node->kind != LS_YAML_MAP || value == NULL || source == NULL)
        return LS_YAML_FAIL(node, LS_ERR_INVALID,
                            "wants {value: ..., source: ...}, so that it is "
                            "known where the number is from");
    LS_TRY(ls_yaml_check_keys(node, keys, N_OF(keys)));
    LS_TRY(get_word(source, ls_profile_sources, &word));
    const bool known = ls_source_parse(ls_profile_sources[word], &parsed);
    assert(known);
    (void)known;
    LS_TRY(read_value(value, key, &quantity->value));
    quantity->source = parsed;
    quantity->from = "profile";
    return LS_OK;
}

static ls_status read_quantities(const ls_yaml_node *map, const ls_profile_keys *keys, void *data)
{
    for (size_t k = 0; k < keys->n; k++) {
        const ls_yaml_node *node = ls_yaml_find(map, keys->keys[k].key);
        void *place = (char *)data + keys->keys[k].offset;
        if (node != NULL) LS_TRY(read_quantity(node, &keys->keys[k], place));
    }
    return LS_OK;
}

static ls_status need(const ls_yaml_node *map, const char *key)
{
    if (ls_yaml_find(map, key) != NULL) return LS_OK;
    return LS_YAML_FAIL(map, LS_ERR_INVALID, "lacks '%s'", key);
}

/* The keys of the section and no others, the required ones among them. */
static ls_status check_keys(const ls_yaml_node *map, ls_profile_section section)
{
    const ls_profile_map *known = &ls_profile_maps[section];
    const size_t n_figures = known->figures != NULL ? known->figures->n : 0;
    const char *keys[KEYS_MAX];
    size_t n = 0;

    assert(known->n_words + n_figures <= KEYS_MAX);
    LS_TRY(ls_yaml_get_map(map));
    for (size_t w = 0; w < known->n_words; w++) keys[n++] = known->words[w];
    for (size_t f = 0; f < n_figures; f++) keys[n++] = known->figures->keys[f].key;
    LS_TRY(ls_yaml_check_keys(map, keys, n));
    for (size_t w = 0; w < known->n_words_required; w++) LS_TRY(need(map, known->words[w]));
    for (size_t f = 0; f < known->n_figures_required; f++)
        LS_TRY(need(map, known->figures->keys[f].key));
    return LS_OK;
}

/* A text of at most size - 1 bytes. */
static ls_status read_label(const ls_yaml_node *node, char *label, size_t size)
{
    const char *text;

    LS_TRY(ls_yaml_get_text(node, &text));
    if (strlen(text) >= size)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "is a text of %zu bytes; allowed: at most %zu",
                            strlen(text), size - 1);
    memcpy(label, text, strlen(text) + 1);
    return LS_OK;
}

/* ---- places --------------------------------------------------------------------------------- */

static ls_status read_place(const ls_yaml_node *node, ls_topology *t)
{
    const ls_yaml_node *kind = ls_yaml_find(node, "kind");
    size_t word;

    LS_TRY(check_keys(node, LS_PROFILE_PLACE));
    LS_TRY(get_word(kind, ls_profile_places, &word));
    const char *name = ls_profile_places[word];
    if (ls_topology_find_place(t, name) != NULL)
        return LS_YAML_FAIL(kind, LS_ERR_INVALID, "'%s' is described twice", name);
    ls_place *place = &t->places[t->n_places++];
    place->kind = (ls_place_kind)word;
    place->numa_node = -1;
    snprintf(place->name, sizeof place->name, "%s", name);
    return read_quantities(node, &ls_profile_place_keys, place);
}

/* ---- links ---------------------------------------------------------------------------------- */

static ls_status read_end(const ls_yaml_node *map, const char *key, const ls_topology *t,
                          const char **name)
{
    const ls_yaml_node *node = ls_yaml_find(map, key);
    size_t word;

    LS_TRY(get_word(node, ls_profile_places, &word));
    *name = ls_profile_places[word];
    if (ls_topology_find_place(t, *name) != NULL) return LS_OK;
    return LS_YAML_FAIL(node, LS_ERR_INVALID, "there is no '%s' among places", *name);
}

static ls_status read_link(const ls_yaml_node *node, ls_topology *t)
{
    const ls_yaml_node *via = ls_yaml_find(node, "via"), *reach = ls_yaml_find(node, "reach");
    const char *from, *to;
    size_t remote = 0;

    LS_TRY(check_keys(node, LS_PROFILE_LINK));
    LS_TRY(read_end(node, "from", t, &from));
    LS_TRY(read_end(node, "to", t, &to));
    if (reach != NULL) LS_TRY(get_word(reach, ls_profile_reaches, &remote));
    for (int l = 0; l < t->n_links; l++)
        if (strcmp(t->links[l].from, from) == 0 && strcmp(t->links[l].to, to) == 0 &&
            t->links[l].remote == (remote != 0))
            return LS_YAML_FAIL(node, LS_ERR_INVALID,
                                "the %s link from %s to %s is described twice",
                                ls_profile_reaches[remote], from, to);
    if (t->n_links == LS_LINKS_MAX) return LS_YAML_FAIL(node, LS_ERR_INVALID, "too many links");
    ls_link *link = &t->links[t->n_links++];
    snprintf(link->from, sizeof link->from, "%s", from);
    snprintf(link->to, sizeof link->to, "%s", to);
    link->remote = remote != 0;
    if (via != NULL) LS_TRY(read_label(via, link->via, sizeof link->via));
    return read_quantities(node, &ls_profile_link_keys, link);
}

/* ---- units ---------------------------------------------------------------------------------- */

static ls_status read_efficiency(const ls_yaml_node *node, ls_unit *unit)
{
    const ls_yaml_node *op = ls_yaml_find(node, "op"), *shape = ls_yaml_find(node, "shape");
    const ls_yaml_node *kernel = ls_yaml_find(node, "kernel");

    LS_TRY(check_keys(node, LS_PROFILE_EFFICIENCY));
    if (unit->n_efficiencies == LS_EFFICIENCIES_MAX)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "more than %d efficiencies", LS_EFFICIENCIES_MAX);
    ls_efficiency *efficiency = &unit->efficiencies[unit->n_efficiencies++];
    LS_TRY(read_label(op, efficiency->op, sizeof efficiency->op));
    LS_TRY(read_label(shape, efficiency->shape, sizeof efficiency->shape));
    if (kernel != NULL) LS_TRY(read_label(kernel, efficiency->kernel, sizeof efficiency->kernel));
    LS_TRY(read_quantities(node, &ls_profile_fraction_keys, efficiency));
    if (ls_known(efficiency->fraction) != ls_known(efficiency->bytes_per_s)) return LS_OK;
    return LS_YAML_FAIL(node, LS_ERR_INVALID, "wants one of 'fraction' and 'bytes_per_s'");
}

static ls_status read_power_states(const ls_yaml_node *map, ls_unit *unit)
{
    LS_TRY(ls_yaml_get_map(map));
    for (const ls_yaml_node *node = map->first; node != NULL; node = node->next) {
        if (unit->n_power_states == LS_POWER_STATES_MAX || strlen(node->key) >= LS_NAME_BYTES)
            return LS_YAML_FAIL(node, LS_ERR_INVALID,
                                "allowed: at most %d states, of at most %d "
                                "bytes each",
                                LS_POWER_STATES_MAX, LS_NAME_BYTES - 1);
        ls_power_state *state = &unit->power_states[unit->n_power_states++];
        snprintf(state->name, sizeof state->name, "%s", node->key);
        LS_TRY(read_quantity(node, &ls_profile_watts_keys.keys[0], &state->watts));
    }
    return LS_OK;
}

static ls_status read_unit(const ls_yaml_node *node, ls_topology *t)
{
    const ls_yaml_node *kind = ls_yaml_find(node, "kind"), *model = ls_yaml_find(node, "model");
    const ls_yaml_node *curves = ls_yaml_find(node, "efficiency");
    const ls_yaml_node *states = ls_yaml_find(node, "power_states");
    size_t word;

    LS_TRY(check_keys(node, LS_PROFILE_UNIT));
    LS_TRY(get_word(kind, ls_profile_units, &word));
    if (ls_topology_find_unit(t, (ls_unit_kind)word) != NULL)
        return LS_YAML_FAIL(kind, LS_ERR_INVALID, "'%s' is described twice",
                            ls_profile_units[word]);
    ls_unit *unit = &t->units[t->n_units++];
    unit->kind = (ls_unit_kind)word;
    snprintf(unit->name, sizeof unit->name, "%s", ls_profile_units[word]);
    const ls_place *place =
        ls_topology_find_place(t, ls_profile_places[word == 0 ? LS_PLACE_HBM : LS_PLACE_HOST]);
    unit->place = place != NULL ? (int)(place - t->places) : -1;
    if (model != NULL) LS_TRY(read_label(model, unit->model, sizeof unit->model));
    LS_TRY(read_quantities(node, &ls_profile_unit_keys, unit));
    if (states != NULL) LS_TRY(read_power_states(states, unit));
    if (curves == NULL) return LS_OK;
    LS_TRY(ls_yaml_get_list(curves));
    for (const ls_yaml_node *curve = curves->first; curve != NULL; curve = curve->next)
        LS_TRY(read_efficiency(curve, unit));
    return LS_OK;
}

/* ---- match ---------------------------------------------------------------------------------- */

static ls_status read_words(const ls_yaml_node *list, char words[][LS_NAME_BYTES], int *n)
{
    LS_TRY(ls_yaml_get_list(list));
    for (const ls_yaml_node *node = list->first; node != NULL; node = node->next) {
        if (*n == LS_MATCH_WORDS_MAX)
            return LS_YAML_FAIL(node, LS_ERR_INVALID, "allowed: at most %d words",
                                LS_MATCH_WORDS_MAX);
        LS_TRY(read_label(node, words[*n], LS_NAME_BYTES));
        (*n)++;
    }
    return LS_OK;
}

static ls_status read_bounds(const ls_yaml_node *node, ls_bounds *bounds)
{
    static const ls_profile_key bytes = {"bytes", LS_PROFILE_BYTES, 1e16, 0};
    const ls_yaml_node *least = ls_yaml_find(node, "least"), *most = ls_yaml_find(node, "most");

    LS_TRY(check_keys(node, LS_PROFILE_BOUNDS));
    LS_TRY(read_value(least, &bytes, &bounds->least));
    LS_TRY(read_value(most, &bytes, &bounds->most));
    if (bounds->least <= bounds->most) return LS_OK;
    return LS_YAML_FAIL(node, LS_ERR_INVALID, "least is more than most");
}

static ls_status read_fact(const ls_yaml_node *node, ls_quantity *fact)
{
    bool truth;

    if (node == NULL) return LS_OK;
    LS_TRY(ls_yaml_get_bool(node, &truth));
    *fact = ls_quantity_make(truth, LS_SOURCE_SPEC, "profile");
    return LS_OK;
}

static ls_status read_match(const ls_yaml_node *node, ls_match *match)
{
    const ls_yaml_node *gpu = ls_yaml_find(node, "gpu"), *not_gpu = ls_yaml_find(node, "not_gpu");
    const ls_yaml_node *hbm = ls_yaml_find(node, "hbm_bytes");
    const ls_yaml_node *host = ls_yaml_find(node, "host_bytes");

    LS_TRY(check_keys(node, LS_PROFILE_MATCH));
    if (gpu != NULL) LS_TRY(read_words(gpu, match->gpu, &match->n_gpu));
    if (not_gpu != NULL) LS_TRY(read_words(not_gpu, match->not_gpu, &match->n_not_gpu));
    LS_TRY(read_fact(ls_yaml_find(node, "c2c_link"), &match->c2c_link));
    LS_TRY(read_fact(ls_yaml_find(node, "coherent"), &match->coherent));
    if (hbm != NULL) LS_TRY(read_bounds(hbm, &match->hbm_bytes));
    return host != NULL ? read_bounds(host, &match->host_bytes) : LS_OK;
}

/* ---- the document --------------------------------------------------------------------------- */

typedef ls_status read_item(const ls_yaml_node *node, ls_topology *t);

static ls_status read_list(const ls_yaml_node *root, const char *key, read_item *read,
                           ls_topology *t)
{
    const ls_yaml_node *list = ls_yaml_find(root, key);

    if (list == NULL) return LS_OK;
    LS_TRY(ls_yaml_get_list(list));
    for (const ls_yaml_node *node = list->first; node != NULL; node = node->next)
        LS_TRY(read(node, t));
    return LS_OK;
}

static ls_status read_throttle(const ls_yaml_node *node, ls_profile *profile)
{
    if (!profile->emulated)
        return LS_YAML_FAIL(node, LS_ERR_INVALID, "only an emulated profile has links to throttle");
    LS_TRY(check_keys(node, LS_PROFILE_THROTTLE));
    return read_quantities(node, &ls_profile_throttle_keys, profile);
}

static ls_status read_limits(const ls_yaml_node *node, ls_topology *t)
{
    ls_power_cap *cap = &t->system.power_caps[0];

    LS_TRY(check_keys(node, LS_PROFILE_LIMITS));
    snprintf(cap->name, sizeof cap->name, "%s", "profile");
    t->system.n_power_caps = 1;
    return read_quantities(node, &ls_profile_limit_keys, cap);
}

static ls_status read_nvme(const ls_yaml_node *node, ls_topology *t)
{
    const ls_place *place = ls_topology_find_place(t, "nvme");
    const ls_yaml_node *path = ls_yaml_find(node, "path");

    LS_TRY(check_keys(node, LS_PROFILE_NVME));
    if (place == NULL) return LS_YAML_FAIL(node, LS_ERR_INVALID, "there is no 'nvme' among places");
    return read_label(path, t->places[place - t->places].path, sizeof place->path);
}

static ls_status read_document(const ls_yaml_node *root, ls_profile *profile)
{
    const ls_yaml_node *name = ls_yaml_find(root, "name");
    const ls_yaml_node *emulated = ls_yaml_find(root, "emulated");
    const ls_yaml_node *about = ls_yaml_find(root, "about"), *match = ls_yaml_find(root, "match");
    const ls_yaml_node *throttle = ls_yaml_find(root, "throttle");
    const ls_yaml_node *nvme = ls_yaml_find(root, "nvme"), *limits = ls_yaml_find(root, "limits");
    ls_topology *t = &profile->machine;

    LS_TRY(check_keys(root, LS_PROFILE_DOCUMENT));
    LS_TRY(read_label(name, profile->name, sizeof profile->name));
    if (about != NULL) LS_TRY(read_label(about, profile->about, sizeof profile->about));
    if (emulated != NULL) LS_TRY(ls_yaml_get_bool(emulated, &profile->emulated));
    if (match != NULL) LS_TRY(read_match(match, &profile->match));
    LS_TRY(read_list(root, "places", read_place, t));
    LS_TRY(read_list(root, "links", read_link, t));
    LS_TRY(read_list(root, "units", read_unit, t));
    if (throttle != NULL) LS_TRY(read_throttle(throttle, profile));
    if (nvme != NULL) LS_TRY(read_nvme(nvme, t));
    if (limits != NULL) LS_TRY(read_limits(limits, t));
    const ls_place *hbm = ls_topology_find_place(t, "hbm");
    if (!profile->emulated || (hbm != NULL && ls_known(hbm->capacity_bytes))) return LS_OK;
    return LS_YAML_FAIL(root, LS_ERR_INVALID,
                        "an emulated profile wants a place 'hbm' with capacity_bytes");
}

static ls_status read_tree(const char *name, const ls_yaml *document, ls_profile **profile)
{
    ls_profile *p = calloc(1, sizeof *p);

    if (p == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a hardware profile");
    snprintf(p->origin, sizeof p->origin, "%s", name);
    const ls_status status = read_document(ls_yaml_root(document), p);
    if (status != LS_OK) {
        ls_profile_free(p);
        return status;
    }
    *profile = p;
    return LS_OK;
}

ls_status ls_profile_parse(const char *name, const char *text, size_t bytes, ls_profile **profile)
{
    ls_yaml *document;

    LS_TRY(ls_yaml_parse(name, text, bytes, &document));
    const ls_status status = read_tree(name, document, profile);
    ls_yaml_free(document);
    return status;
}

static ls_status read_file(const char *path, ls_profile **profile)
{
    ls_yaml *document;

    LS_TRY(ls_yaml_read(path, &document));
    const ls_status status = read_tree(path, document, profile);
    ls_yaml_free(document);
    return status;
}

static ls_status fail_unknown(const char *name)
{
    const char *names[32];
    char known[LS_NOTE_BYTES], quoted[LS_TEXT_BYTES];
    size_t n = 0;

    for (const ls_builtin_profile *b = ls_builtin_profiles; b->name != NULL && n < N_OF(names); b++)
        names[n++] = b->name;
    const char *nearest = ls_text_nearest(name, names, n);
    ls_text_join(known, sizeof known, names, n);
    ls_text_quote(quoted, sizeof quoted, name);
    return LS_FAIL(LS_ERR_INVALID,
                   "hardware: %s is no profile%s%s%s; known: auto, %s, or a file (NAME.yaml)",
                   quoted, nearest != NULL ? ", did you mean '" : "",
                   nearest != NULL ? nearest : "", nearest != NULL ? "'?" : "", known);
}

bool ls_profile_is_file(const char *name)
{
    const size_t length = strlen(name);
    return strchr(name, '/') != NULL || (length > 5 && strcmp(name + length - 5, ".yaml") == 0);
}

ls_status ls_profile_read(const char *name, ls_profile **profile)
{
    char path[512];

    if (ls_profile_is_file(name)) return read_file(name, profile);
    if (snprintf(path, sizeof path, "configs/hardware/%s.yaml", name) < (int)sizeof path &&
        access(path, F_OK) == 0)
        return read_file(path, profile);
    for (const ls_builtin_profile *b = ls_builtin_profiles; b->name != NULL; b++) {
        if (strcmp(b->name, name) != 0) continue;
        LS_TRY(ls_profile_parse(name, b->text, strlen(b->text), profile));
        snprintf((*profile)->origin, sizeof(*profile)->origin, "built in");
        return LS_OK;
    }
    return fail_unknown(name);
}

void ls_profile_free(ls_profile *profile)
{
    free(profile);
}
