/* profile_merge.c - puts a profile's figures into a machine; a machine from a profile alone. */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "discover.h"
#include "profile_match.h"
#include "text.h"

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

/* ---- figures -------------------------------------------------------------------------------- */

static const size_t place_figures[] = {
    offsetof(ls_place, capacity_bytes),   offsetof(ls_place, page_bytes),
    offsetof(ls_place, read_bytes_per_s), offsetof(ls_place, write_bytes_per_s),
    offsetof(ls_place, latency_ns),       offsetof(ls_place, best_threads),
};

static const size_t link_figures[] = {
    offsetof(ls_link, bytes_per_s),       offsetof(ls_link, reverse_bytes_per_s),
    offsetof(ls_link, both_bytes_per_s),  offsetof(ls_link, read_bytes_per_s),
    offsetof(ls_link, write_bytes_per_s), offsetof(ls_link, latency_ns),
    offsetof(ls_link, coherent),
};

static const size_t unit_figures[] = {
    offsetof(ls_unit, cores),
    offsetof(ls_unit, bf16_flops_per_s),
    offsetof(ls_unit, fp32_flops_per_s),
    offsetof(ls_unit, power_cap_watts),
};

static void merge_figures(void *kept, const void *other, const size_t *offsets, size_t n)
{
    for (size_t f = 0; f < n; f++) {
        ls_quantity *to = (ls_quantity *)(void *)((char *)kept + offsets[f]);
        const ls_quantity *from =
            (const ls_quantity *)(const void *)((const char *)other + offsets[f]);
        ls_quantity_merge(to, *from);
    }
}

static void merge_unit(ls_unit *unit, const ls_unit *other)
{
    merge_figures(unit, other, unit_figures, N_OF(unit_figures));
    if (unit->model[0] == '\0') memcpy(unit->model, other->model, sizeof unit->model);
    if (other->n_efficiencies > 0) {
        memcpy(unit->efficiencies, other->efficiencies, sizeof unit->efficiencies);
        unit->n_efficiencies = other->n_efficiencies;
    }
    if (other->n_power_states > 0) {
        memcpy(unit->power_states, other->power_states, sizeof unit->power_states);
        unit->n_power_states = other->n_power_states;
    }
}

/* ---- parts that only the profile knows ------------------------------------------------------ */

/* A machine's GPUs and their memory give way to emulated ones. */
static void remove_gpus(ls_topology *t)
{
    int moved[LS_PLACES_MAX], n_places = 0, n_units = 0, n_links = 0;

    for (int l = 0; l < t->n_links; l++)
        if (ls_topology_find_place(t, t->links[l].to)->kind != LS_PLACE_HBM)
            t->links[n_links++] = t->links[l];
    for (int p = 0; p < t->n_places; p++) {
        moved[p] = t->places[p].kind == LS_PLACE_HBM ? -1 : n_places;
        if (moved[p] >= 0) t->places[n_places++] = t->places[p];
    }
    for (int u = 0; u < t->n_units; u++) {
        if (t->units[u].kind == LS_UNIT_GPU) continue;
        t->units[n_units] = t->units[u];
        if (t->units[u].place >= 0) t->units[n_units].place = moved[t->units[u].place];
        n_units++;
    }
    t->n_places = n_places;
    t->n_units = n_units;
    t->n_links = n_links;
}

static const ls_place *first_host(const ls_topology *t)
{
    for (int p = 0; p < t->n_places; p++)
        if (t->places[p].kind == LS_PLACE_HOST) return &t->places[p];
    return NULL;
}

static ls_status add_emulated_gpu(const ls_profile *profile, ls_topology *t)
{
    const ls_link *described = ls_topology_find_link(&profile->machine, "host", "hbm");
    const ls_place *host = first_host(t);
    ls_link *link;
    ls_unit *gpu;

    if (host == NULL || t->n_places == LS_PLACES_MAX || t->n_units == LS_UNITS_MAX)
        return LS_FAIL(LS_ERR_UNSUPPORTED, "%s has no room for an emulated GPU", t->origin);
    ls_place *memory = &t->places[t->n_places++];
    *memory = *ls_topology_find_place(&profile->machine, "hbm");
    snprintf(memory->name, sizeof memory->name, "hbm0");
    memory->emulated = true;
    gpu = &t->units[t->n_units++];
    memset(gpu, 0, sizeof *gpu);
    gpu->kind = LS_UNIT_GPU;
    gpu->place = t->n_places - 1;
    gpu->host_node = ls_quantity_make(host->numa_node, LS_SOURCE_PROFILE, "profile");
    snprintf(gpu->name, sizeof gpu->name, "gpu0");
    gpu->facts.hbm_is_numa = ls_quantity_make(0, LS_SOURCE_PROFILE, "profile");
    LS_TRY(ls_topology_add_link(t, host->name, memory->name, &link));
    if (described == NULL) return LS_OK;
    gpu->facts.coherent = described->coherent;
    gpu->facts.c2c_link =
        ls_quantity_make(strcmp(described->via, "c2c") == 0, LS_SOURCE_PROFILE, "profile");
    return LS_OK;
}

static ls_status add_nvme(const ls_profile *profile, ls_topology *t)
{
    const ls_place *nvme = ls_topology_find_place(&profile->machine, "nvme");
    const ls_place *host = first_host(t);
    ls_link *link;

    if (nvme == NULL || ls_topology_find_place(t, "nvme") != NULL) return LS_OK;
    if (t->n_places == LS_PLACES_MAX)
        return LS_FAIL(LS_ERR_UNSUPPORTED, "%s has no room for an nvme place", t->origin);
    t->places[t->n_places++] = *nvme;
    if (host == NULL) return LS_OK;
    LS_TRY(ls_topology_add_link(t, "nvme", host->name, &link));
    return LS_OK;
}

/* ---- merging -------------------------------------------------------------------------------- */

/* The figures of a link hold for GPUs whose nearest host memory is known. */
static bool is_located(const ls_topology *t, const ls_link *link)
{
    for (int u = 0; u < t->n_units; u++)
        if (t->units[u].kind == LS_UNIT_GPU && t->units[u].place >= 0 &&
            strcmp(t->places[t->units[u].place].name, link->to) == 0)
            return ls_known(t->units[u].host_node);
    return true;
}

static void merge_links(const ls_topology *described, ls_topology *t)
{
    for (int l = 0; l < t->n_links; l++) {
        ls_link *link = &t->links[l];
        const ls_place *from = ls_topology_find_place(t, link->from);
        const ls_place *to = ls_topology_find_place(t, link->to);
        assert(from != NULL && to != NULL);
        if (!is_located(t, link)) continue;
        for (int d = 0; d < described->n_links; d++) {
            const ls_link *other = &described->links[d];
            if (strcmp(other->from, ls_place_name(from->kind)) != 0 ||
                strcmp(other->to, ls_place_name(to->kind)) != 0 || other->remote != link->remote)
                continue;
            merge_figures(link, other, link_figures, N_OF(link_figures));
            if (link->via[0] == '\0') memcpy(link->via, other->via, sizeof link->via);
        }
    }
}

static void merge_parts(const ls_topology *described, ls_topology *t)
{
    for (int p = 0; p < t->n_places; p++) {
        const ls_place *other = ls_topology_find_place(described, ls_place_name(t->places[p].kind));
        if (other != NULL) merge_figures(&t->places[p], other, place_figures, N_OF(place_figures));
    }
    for (int u = 0; u < t->n_units; u++) {
        const ls_unit *other = ls_topology_find_unit(described, t->units[u].kind);
        if (other != NULL) merge_unit(&t->units[u], other);
    }
    merge_links(described, t);
    if (described->system.n_power_caps > 0 && t->system.n_power_caps < LS_POWER_CAPS_MAX)
        t->system.power_caps[t->system.n_power_caps++] = described->system.power_caps[0];
}

/* A profile may set aside less memory than there is, not more. */
static ls_status check_capacities(const ls_profile *profile, const ls_topology *t)
{
    for (int p = 0; p < t->n_places; p++) {
        const ls_place *here = profile->emulated ? first_host(t) : &t->places[p];
        const ls_place *other = ls_topology_find_place(
            &profile->machine, profile->emulated ? "hbm" : ls_place_name(here->kind));
        char wanted[LS_TEXT_BYTES], had[LS_TEXT_BYTES];
        if (other == NULL || here == NULL || !ls_known(here->capacity_bytes) ||
            other->capacity_bytes.source != LS_SOURCE_PROFILE ||
            other->capacity_bytes.value <= here->capacity_bytes.value)
            continue;
        return LS_FAIL(LS_ERR_INVALID,
                       "hardware: profile %s (%s) contradicts %s: it takes %s for %s, %s has %s",
                       profile->name, profile->origin, t->origin,
                       ls_text_bytes(wanted, sizeof wanted, (uint64_t)other->capacity_bytes.value),
                       other->name, here->name,
                       ls_text_bytes(had, sizeof had, (uint64_t)here->capacity_bytes.value));
    }
    return LS_OK;
}

static ls_status check_match(const ls_profile *profile, const ls_topology *t)
{
    char why[LS_NOTE_BYTES] = "";

    if (ls_profile_match(profile, t, why, sizeof why) == LS_MATCH_NO)
        return LS_FAIL(LS_ERR_INVALID,
                       "hardware: profile %s (%s) contradicts %s: %s; use 'auto', or a profile of "
                       "this machine",
                       profile->name, profile->origin, t->origin, why);
    return check_capacities(profile, t);
}

static ls_status merge_into(const ls_profile *profile, ls_topology *t)
{
    if (profile->emulated) {
        remove_gpus(t);
        LS_TRY(add_emulated_gpu(profile, t));
    }
    LS_TRY(add_nvme(profile, t));
    merge_parts(&profile->machine, t);
    return LS_OK;
}

ls_status ls_profile_merge(const ls_profile *profile, const char *reason, ls_topology *topology)
{
    LS_TRY(check_match(profile, topology));
    ls_topology *merged = malloc(sizeof *merged);
    if (merged == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the machine's description");
    *merged = *topology;
    const ls_status status = merge_into(profile, merged);
    if (status == LS_OK) {
        snprintf(merged->profile, sizeof merged->profile, "%s", profile->name);
        snprintf(merged->profile_reason, sizeof merged->profile_reason, "%s",
                 reason != NULL ? reason : profile->origin);
        ls_topology_join_facts(merged);
        ls_topology_advise(merged);
        *topology = *merged;
    }
    free(merged);
    return status;
}

/* ---- machines ------------------------------------------------------------------------------- */

ls_status ls_profile_describe(const ls_profile *profile, ls_topology **topology)
{
    ls_topology *t = malloc(sizeof *t);

    if (t == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the machine's description");
    *t = profile->machine;
    snprintf(t->origin, sizeof t->origin, "profile %s", profile->name);
    snprintf(t->readers, sizeof t->readers, "the profile alone");
    snprintf(t->profile, sizeof t->profile, "%s", profile->name);
    snprintf(t->profile_reason, sizeof t->profile_reason, "%s", profile->about);
    for (int u = 0; u < t->n_units; u++) {
        if (t->units[u].kind != LS_UNIT_GPU) continue;
        t->units[u].facts.c2c_link = profile->match.c2c_link;
        t->units[u].facts.coherent = profile->match.coherent;
        const ls_link *link = ls_topology_find_link(t, "host", "hbm");
        if (link != NULL) ls_quantity_merge(&t->units[u].facts.coherent, link->coherent);
    }
    for (int p = 0; p < t->n_places; p++)
        t->places[p].emulated = profile->emulated && t->places[p].kind == LS_PLACE_HBM;
    ls_topology_join_facts(t);
    *topology = t;
    return LS_OK;
}

static ls_status merge_named(const char *hardware, ls_topology *t)
{
    char reason[LS_REASON_BYTES] = "";
    const bool choose = strcmp(hardware, "auto") == 0;
    ls_profile *profile = NULL;

    if (strcmp(hardware, "none") == 0) return LS_OK;
    LS_TRY(choose ? ls_profile_choose(t, &profile, reason, sizeof reason)
                  : ls_profile_read(hardware, &profile));
    const ls_status status = ls_profile_merge(profile, choose ? reason : NULL, t);
    ls_profile_free(profile);
    return status;
}

static ls_status open_profile(const char *path, ls_topology **topology)
{
    ls_profile *profile;

    LS_TRY(ls_profile_read(path, &profile));
    const ls_status status = ls_profile_describe(profile, topology);
    ls_profile_free(profile);
    return status;
}

ls_status ls_machine_open(const char *from, const char *hardware, ls_topology **topology)
{
    const size_t length = from != NULL ? strlen(from) : 0;

    if (length > 5 && strcmp(from + length - 5, ".yaml") == 0) return open_profile(from, topology);
    LS_TRY(ls_topology_discover(from, topology));
    const ls_status status = merge_named(hardware, *topology);
    if (status != LS_OK) {
        ls_topology_free(*topology);
        *topology = NULL;
    }
    return status;
}
