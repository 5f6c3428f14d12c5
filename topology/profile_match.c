/* profile_match.c - a profile's conditions against a machine, and the choice among the built in. */
#include "profile_match.h"

#include <stdio.h>
#include <string.h>

#include "discover.h"
#include "text.h"

/* A comparison under way: the profile's side and the machine's, for one GPU. */
typedef struct comparison {
    const ls_match *match;
    const ls_topology *t;
    const ls_unit *gpu;
    char *why;
    size_t size;
} comparison;

#define EXPLAIN(c, ...) snprintf((c)->why, (c)->size, __VA_ARGS__)

static const char *from_text(ls_quantity quantity)
{
    return quantity.from != NULL ? quantity.from : ls_source_name(quantity.source);
}

static bool has_any_word(const char *label, const char words[][LS_NAME_BYTES], int n)
{
    for (int w = 0; w < n; w++)
        if (ls_label_has_word(label, words[w])) return true;
    return false;
}

static const char *join_words(char *text, size_t size, const char words[][LS_NAME_BYTES], int n)
{
    const char *pointers[LS_MATCH_WORDS_MAX];
    for (int w = 0; w < n; w++) pointers[w] = words[w];
    return ls_text_join(text, size, pointers, (size_t)n);
}

static ls_match_result match_name(const comparison *c)
{
    const ls_match *m = c->match;
    char words[LS_TEXT_BYTES];

    if (m->n_gpu == 0 && m->n_not_gpu == 0) return LS_MATCH_YES;
    if (c->gpu->model[0] == '\0') {
        EXPLAIN(c, "the name of %s is not known", c->gpu->name);
        return LS_MATCH_UNKNOWN;
    }
    if (m->n_gpu > 0 && !has_any_word(c->gpu->model, m->gpu, m->n_gpu)) {
        EXPLAIN(c, "it is for a GPU with %s in its name, %s here is '%s'",
                join_words(words, sizeof words, m->gpu, m->n_gpu), c->gpu->name, c->gpu->model);
        return LS_MATCH_NO;
    }
    if (!has_any_word(c->gpu->model, m->not_gpu, m->n_not_gpu)) return LS_MATCH_YES;
    EXPLAIN(c, "it is for a GPU without %s in its name, %s here is '%s'",
            join_words(words, sizeof words, m->not_gpu, m->n_not_gpu), c->gpu->name, c->gpu->model);
    return LS_MATCH_NO;
}

static ls_match_result match_fact(const comparison *c, const char *what, ls_quantity wanted,
                                  ls_quantity here)
{
    if (!ls_known(wanted)) return LS_MATCH_YES;
    if (!ls_known(here)) {
        EXPLAIN(c, "whether %s has %s is not known", c->gpu->name, what);
        return LS_MATCH_UNKNOWN;
    }
    if ((wanted.value != 0) == (here.value != 0)) return LS_MATCH_YES;
    EXPLAIN(c, "it is for a GPU %s %s, %s here has %s (%s: %s)",
            wanted.value != 0 ? "with" : "without", what, c->gpu->name,
            here.value != 0 ? "it" : "none", ls_source_name(here.source), from_text(here));
    return LS_MATCH_NO;
}

static ls_match_result match_bytes(const comparison *c, const char *what, ls_bounds wanted,
                                   const ls_place *place)
{
    char least[LS_TEXT_BYTES], most[LS_TEXT_BYTES], here[LS_TEXT_BYTES];

    if (wanted.most == 0) return LS_MATCH_YES;
    if (place == NULL || !ls_known(place->capacity_bytes)) {
        EXPLAIN(c, "the size of %s's %s is not known", c->gpu->name, what);
        return LS_MATCH_UNKNOWN;
    }
    const double bytes = place->capacity_bytes.value;
    if (bytes >= wanted.least && bytes <= wanted.most) return LS_MATCH_YES;
    EXPLAIN(c, "it is for %s to %s of %s, %s here has %s (%s: %s)",
            ls_text_bytes(least, sizeof least, (uint64_t)wanted.least),
            ls_text_bytes(most, sizeof most, (uint64_t)wanted.most), what, place->name,
            ls_text_bytes(here, sizeof here, (uint64_t)bytes),
            ls_source_name(place->capacity_bytes.source), from_text(place->capacity_bytes));
    return LS_MATCH_NO;
}

/* The host memory nearest to the GPU.  Where nothing tells which that is, all of them decide if
 * they agree. */
static ls_match_result match_host(const comparison *c)
{
    static const char what[] = "host memory";
    const ls_bounds wanted = c->match->host_bytes;
    int n = 0, n_results[LS_MATCH_YES + 1] = {0};

    if (ls_known(c->gpu->host_node))
        return match_bytes(c, what, wanted,
                           ls_topology_find_host(c->t, (int)c->gpu->host_node.value));
    for (int p = 0; p < c->t->n_places; p++) {
        if (c->t->places[p].kind != LS_PLACE_HOST) continue;
        n++;
        n_results[match_bytes(c, what, wanted, &c->t->places[p])]++;
    }
    if (n > 0 && n_results[LS_MATCH_NO] == n) return LS_MATCH_NO;
    if (n > 0 && n_results[LS_MATCH_YES] == n) return LS_MATCH_YES;
    return match_bytes(c, what, wanted, NULL);
}

/* The worst of all conditions, with its reason: each writes only when it is not met. */
static ls_match_result match_gpu(const comparison *c)
{
    const ls_match *m = c->match;
    const ls_facts *facts = &c->gpu->facts;
    const ls_place *memory = c->gpu->place >= 0 ? &c->t->places[c->gpu->place] : NULL;
    ls_match_result result = match_name(c), next;

    if (result != LS_MATCH_NO &&
        (next = match_fact(c, "a C2C link", m->c2c_link, facts->c2c_link)) < result)
        result = next;
    if (result != LS_MATCH_NO &&
        (next = match_fact(c, "coherent addressing", m->coherent, facts->coherent)) < result)
        result = next;
    if (result != LS_MATCH_NO && (next = match_bytes(c, "HBM", m->hbm_bytes, memory)) < result)
        result = next;
    if (result != LS_MATCH_NO && (next = match_host(c)) < result) result = next;
    return result;
}

static bool wants_gpu(const ls_match *m)
{
    return m->n_gpu > 0 || ls_known(m->c2c_link) || m->hbm_bytes.most > 0;
}

ls_match_result ls_profile_match(const ls_profile *profile, const ls_topology *t, char *why,
                                 size_t size)
{
    comparison c = {.match = &profile->match, .t = t, .why = why, .size = size};
    ls_match_result result = LS_MATCH_YES;
    int n_gpus = 0;

    if (profile->emulated) return LS_MATCH_YES;
    for (int u = 0; u < t->n_units && result != LS_MATCH_NO; u++) {
        if (t->units[u].kind != LS_UNIT_GPU) continue;
        n_gpus++;
        c.gpu = &t->units[u];
        const ls_match_result next = match_gpu(&c);
        if (next < result) result = next;
    }
    if (n_gpus > 0 || !wants_gpu(c.match)) return result;
    EXPLAIN(&c, "it is for a machine with a GPU, none %s here",
            t->sees_pci ? "is" : "is known to be");
    return t->sees_pci ? LS_MATCH_NO : LS_MATCH_UNKNOWN;
}

/* ---- auto ----------------------------------------------------------------------------------- */

/* "unknown, the largest 119.0 GiB" */
static void describe_largest_host(const ls_topology *t, char *text, size_t size)
{
    char bytes[LS_TEXT_BYTES];
    double largest = 0;

    for (int p = 0; p < t->n_places; p++)
        if (t->places[p].kind == LS_PLACE_HOST && ls_known(t->places[p].capacity_bytes) &&
            t->places[p].capacity_bytes.value > largest)
            largest = t->places[p].capacity_bytes.value;
    if (largest > 0)
        snprintf(text, size, "unknown, the largest %s",
                 ls_text_bytes(bytes, sizeof bytes, (uint64_t)largest));
}

static void describe_gpu(const ls_topology *t, const ls_unit *gpu, char *text, size_t size)
{
    char hbm[LS_TEXT_BYTES] = "unknown", host[2 * LS_TEXT_BYTES] = "unknown";
    const ls_quantity memory =
        gpu->place >= 0 ? t->places[gpu->place].capacity_bytes : (ls_quantity){0};
    const ls_place *near =
        ls_known(gpu->host_node) ? ls_topology_find_host(t, (int)gpu->host_node.value) : NULL;

    if (ls_known(memory)) ls_text_bytes(hbm, sizeof hbm, (uint64_t)memory.value);
    if (near != NULL && ls_known(near->capacity_bytes))
        ls_text_bytes(host, sizeof host, (uint64_t)near->capacity_bytes.value);
    else if (!ls_known(gpu->host_node))
        describe_largest_host(t, host, sizeof host);
    snprintf(text, size, "%s is '%s', HBM %s, nearest host memory %s", gpu->name,
             gpu->model[0] != '\0' ? gpu->model : "unknown", hbm, host);
}

/*
 * The profile that the GPUs match; else the first that they do not contradict: the one of least
 * memory among those of a name, which is known then; else NULL.  why: what is not known.
 */
static ls_status find_match(const ls_topology *t, ls_profile **found, bool *sure, char *why,
                            size_t size)
{
    const ls_unit *gpu = ls_topology_find_real_gpu(t);
    int n_possible = 0;
    char note[LS_NOTE_BYTES];

    *found = NULL;
    *sure = false;
    for (const ls_builtin_profile *b = ls_builtin_profiles; b->name != NULL && !*sure; b++) {
        ls_profile *profile;
        LS_TRY(ls_profile_parse(b->name, b->text, strlen(b->text), &profile));
        const ls_match_result result = wants_gpu(&profile->match)
                                           ? ls_profile_match(profile, t, note, sizeof note)
                                           : LS_MATCH_NO;
        *sure = result == LS_MATCH_YES;
        if (*sure || (result == LS_MATCH_UNKNOWN && n_possible++ == 0)) {
            ls_profile_free(*found);
            *found = profile;
            snprintf(why, size, "%s", *sure ? "" : note);
        } else {
            ls_profile_free(profile);
        }
    }
    if (*sure || n_possible <= 1 || gpu->model[0] != '\0') return LS_OK;
    ls_profile_free(*found);
    *found = NULL;
    return LS_OK;
}

ls_status ls_profile_choose(const ls_topology *t, ls_profile **profile, char *reason, size_t size)
{
    const ls_unit *gpu = ls_topology_find_real_gpu(t);
    char facts[LS_NOTE_BYTES], why[LS_NOTE_BYTES] = "";
    bool sure = false;

    *profile = NULL;
    if (gpu == NULL) {
        snprintf(reason, size, "chosen by auto: no NVIDIA GPU %s",
                 t->sees_pci ? "is here" : "is known to be here");
    } else {
        describe_gpu(t, gpu, facts, sizeof facts);
        LS_TRY(find_match(t, profile, &sure, why, sizeof why));
        snprintf(reason, size, "chosen by auto: %s%s%s", facts,
                 sure               ? ""
                 : *profile != NULL ? "; the first that nothing known contradicts, though "
                                    : "; no built-in profile is sure to fit it",
                 *profile != NULL ? why : "");
    }
    return *profile != NULL ? LS_OK : ls_profile_read("cpu", profile);
}
