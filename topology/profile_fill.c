/* profile_fill.c - what a machine tells of itself goes into a profile where that says nothing. */
#include <stdio.h>
#include <string.h>

#include "profile.h"
#include "profile_keys.h"

/* What was discovered is a fact of this machine, but must not stand against what the next one, on
 * which the file may be used, tells of itself: a profile has it as the specification. */
static ls_quantity as_claim(ls_quantity quantity)
{
    if (quantity.source == LS_SOURCE_DISCOVERED) quantity.source = LS_SOURCE_SPEC;
    quantity.from = "profile";
    return quantity;
}

static int fill_quantities(const ls_profile_keys *keys, void *kept, const void *told)
{
    int n_known = 0;

    for (size_t k = 0; k < keys->n; k++) {
        ls_quantity *to = (ls_quantity *)(void *)((char *)kept + keys->keys[k].offset);
        const ls_quantity *from =
            (const ls_quantity *)(const void *)((const char *)told + keys->keys[k].offset);
        if (!ls_known(*to) && ls_known(*from)) *to = as_claim(*from);
        n_known += ls_known(*to);
    }
    return n_known;
}

static ls_place *find_or_add_place(ls_topology *t, ls_place_kind kind)
{
    const char *name = ls_place_name(kind);
    const ls_place *found = ls_topology_find_place(t, name);

    if (found != NULL) return &t->places[found - t->places];
    ls_place *place = &t->places[t->n_places++]; /* a profile has at most one of each kind */
    memset(place, 0, sizeof *place);
    place->kind = kind;
    place->numa_node = -1;
    snprintf(place->name, sizeof place->name, "%s", name);
    return place;
}

static void fill_link(ls_topology *t, const ls_topology *machine, const ls_link *told)
{
    const char *from = ls_place_name(ls_topology_find_place(machine, told->from)->kind);
    const char *to = ls_place_name(ls_topology_find_place(machine, told->to)->kind);
    ls_link *link = NULL;

    if (ls_topology_find_place(t, from) == NULL || ls_topology_find_place(t, to) == NULL) return;
    for (int l = 0; l < t->n_links && link == NULL; l++)
        if (strcmp(t->links[l].from, from) == 0 && strcmp(t->links[l].to, to) == 0 &&
            t->links[l].remote == told->remote)
            link = &t->links[l];
    if (link == NULL) {
        if (t->n_links == LS_LINKS_MAX) return;
        link = &t->links[t->n_links++];
        memset(link, 0, sizeof *link);
        snprintf(link->from, sizeof link->from, "%s", from);
        snprintf(link->to, sizeof link->to, "%s", to);
        link->remote = told->remote;
    }
    fill_quantities(&ls_profile_link_keys, link, told);
    if (link->via[0] == '\0') memcpy(link->via, told->via, sizeof link->via);
}

static void fill_unit(ls_topology *t, const ls_unit *told)
{
    const ls_unit *found = ls_topology_find_unit(t, told->kind);
    ls_unit *unit = found != NULL ? &t->units[found - t->units] : &t->units[t->n_units];

    if (found == NULL) {
        memset(unit, 0, sizeof *unit);
        unit->kind = told->kind;
        unit->place = -1;
        snprintf(unit->name, sizeof unit->name, "%s", ls_unit_kind_name(told->kind));
    }
    const int n_known = fill_quantities(&ls_profile_unit_keys, unit, told);
    if (unit->model[0] == '\0') memcpy(unit->model, told->model, sizeof unit->model);
    if (found == NULL && (n_known > 0 || unit->model[0] != '\0')) t->n_units++;
}

void ls_profile_fill(ls_profile *profile, const ls_topology *machine, const ls_place *host)
{
    const ls_unit *gpu = ls_topology_find_unit(machine, LS_UNIT_GPU);
    const ls_unit *cpu = ls_topology_find_unit(machine, LS_UNIT_CPU);
    ls_topology *t = &profile->machine;

    if (host != NULL)
        fill_quantities(&ls_profile_place_keys, find_or_add_place(t, LS_PLACE_HOST), host);
    if (gpu != NULL && gpu->place >= 0)
        fill_quantities(&ls_profile_place_keys, find_or_add_place(t, LS_PLACE_HBM),
                        &machine->places[gpu->place]);
    for (int l = 0; l < machine->n_links; l++) fill_link(t, machine, &machine->links[l]);
    if (gpu != NULL) fill_unit(t, gpu);
    if (cpu != NULL) fill_unit(t, cpu);
}
