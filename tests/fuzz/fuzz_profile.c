/*
 * fuzz_profile.c - any bytes as a hardware profile; one that is accepted has every figure with a
 * source and in range, and can be described, merged into a machine or refused, and printed.
 */
#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profile.h"
#include "topology_report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_quantity(ls_quantity quantity)
{
    assert(isfinite(quantity.value) && quantity.value >= 0);
    assert((quantity.source == LS_SOURCE_UNKNOWN) == (quantity.from == NULL));
}

static void check_links(const ls_topology *t)
{
    for (int l = 0; l < t->n_links; l++) {
        assert(ls_topology_find_place(t, t->links[l].from) != NULL);
        assert(ls_topology_find_place(t, t->links[l].to) != NULL);
        check_quantity(t->links[l].bytes_per_s);
        check_quantity(t->links[l].coherent);
    }
    for (int u = 0; u < t->n_units; u++) assert(t->units[u].place < t->n_places);
}

/* A machine of one host node and one GPU, whose sizes are not known. */
static ls_topology *make_machine(void)
{
    ls_topology *t = calloc(1, sizeof *t);

    assert(t != NULL);
    strcpy(t->origin, "machine");
    t->n_places = 2;
    t->places[0] = (ls_place){.kind = LS_PLACE_HOST, .name = "host0"};
    t->places[1] = (ls_place){.kind = LS_PLACE_HBM, .name = "hbm0", .numa_node = -1};
    t->n_units = 1;
    t->units[0] = (ls_unit){.kind = LS_UNIT_GPU, .name = "gpu0", .place = 1};
    t->units[0].host_node = ls_discovered(0, "fuzz");
    t->n_links = 1;
    t->links[0] = (ls_link){.from = "host0", .to = "hbm0"};
    return t;
}

static void print_json(const ls_topology *t)
{
    cJSON *json;
    assert(ls_topology_to_json(t, &json) == LS_OK);
    cJSON_Delete(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    ls_profile *profile;
    ls_topology *t = NULL;

    if (ls_profile_parse("input", (const char *)data, bytes, &profile) != LS_OK) {
        assert(strncmp(ls_error(), "input:", 6) == 0);
        return 0;
    }
    check_links(&profile->machine);
    for (int p = 0; p < profile->machine.n_places; p++)
        check_quantity(profile->machine.places[p].capacity_bytes);
    assert(ls_profile_describe(profile, &t) == LS_OK);
    print_json(t);
    ls_topology_free(t);
    t = make_machine();
    if (ls_profile_merge(profile, NULL, t) == LS_OK)
        check_links(t);
    else
        assert(strstr(ls_error(), "contradicts") != NULL);
    print_json(t);
    ls_topology_free(t);
    ls_profile_free(profile);
    return 0;
}
