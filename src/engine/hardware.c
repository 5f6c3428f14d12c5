/* hardware.c - from a profile's name to places with room. */
#include "hardware.h"

#include <stdio.h>
#include <string.h>

#include "host_memory.h"

static void read_throttle(const ls_profile *profile, ls_hardware *h)
{
    if (ls_known(profile->throttle_in_bytes_per_s))
        h->in_bytes_per_s = profile->throttle_in_bytes_per_s.value;
    if (ls_known(profile->throttle_out_bytes_per_s))
        h->out_bytes_per_s = profile->throttle_out_bytes_per_s.value;
}

/* A profile of another machine, or of none: what it says is all there is. */
static ls_status describe(const ls_profile *profile, ls_hardware *h)
{
    snprintf(h->profile, sizeof h->profile, "%s", profile->name);
    read_throttle(profile, h);
    return ls_profile_describe(profile, &h->topology);
}

static ls_status merge(const ls_profile *profile, const char *reason, ls_hardware *h)
{
    snprintf(h->profile, sizeof h->profile, "%s", profile->name);
    read_throttle(profile, h);
    return ls_profile_merge(profile, reason, h->topology);
}

static ls_status choose(ls_hardware *h)
{
    char reason[LS_REASON_BYTES];
    ls_profile *profile;

    LS_TRY(ls_topology_discover(NULL, &h->topology));
    LS_TRY(ls_profile_choose(h->topology, &profile, reason, sizeof reason));
    const ls_status status = merge(profile, reason, h);
    ls_profile_free(profile);
    return status;
}

static bool has_device_memory(const ls_topology *machine)
{
    for (int i = 0; i < machine->n_places; i++)
        if (machine->places[i].kind == LS_PLACE_HBM) return true;
    return false;
}

/* Emulated hardware and the CPU run anywhere; others where the machine is that kind. */
static ls_status open_profile(const ls_profile *profile, bool to_run, ls_hardware *h)
{
    if (profile->emulated || !has_device_memory(&profile->machine)) return describe(profile, h);
    if (!to_run) {
        h->is_elsewhere = true;
        return describe(profile, h);
    }
    LS_TRY(ls_topology_discover(NULL, &h->topology));
    LS_TRY(merge(profile, "the run file names it", h));
    return LS_FAIL(LS_ERR_UNSUPPORTED,
                   "hardware: %s: this build computes on the CPU only; allowed now: auto, cpu, "
                   "emulated-gh200, emulated-h200-pcie (longspan plan takes any)",
                   profile->name);
}

static void find_room(ls_hardware *h)
{
    const ls_host_memory memory = ls_host_memory_read();
    const ls_place *host = NULL;

    for (int p = 0; p < LS_PLACE_COUNT; p++) h->available_bytes[p] = 0;
    h->available_bytes[LS_PLACE_HOST] = memory.available_bytes;
    h->limit = memory.limit;
    for (int i = 0; i < h->topology->n_places; i++) {
        const ls_place *place = &h->topology->places[i];
        const bool usable = h->is_elsewhere || place->emulated;
        if (place->kind == LS_PLACE_HOST && host == NULL) host = place;
        if (place->kind != LS_PLACE_HBM || !usable || h->has_device) continue;
        h->has_device = true;
        h->emulated = place->emulated;
        h->available_bytes[LS_PLACE_HBM] =
            ls_known(place->capacity_bytes) ? (uint64_t)place->capacity_bytes.value : UINT64_MAX;
    }
    if (!h->is_elsewhere || host == NULL || !ls_known(host->capacity_bytes)) return;
    h->available_bytes[LS_PLACE_HOST] = (uint64_t)host->capacity_bytes.value;
    h->limit = "capacity in the profile";
}

/* Memory is bound only where a device uses it and there is more than one node. */
static int find_host_node(const ls_hardware *h)
{
    const ls_unit *gpu = ls_topology_find_real_gpu(h->topology);
    int n_nodes = 0;

    for (int i = 0; i < h->topology->n_places; i++)
        n_nodes += h->topology->places[i].kind == LS_PLACE_HOST;
    if (!h->has_device || h->is_elsewhere || gpu == NULL || !ls_known(gpu->host_node)) return -1;
    return n_nodes > 1 ? (int)gpu->host_node.value : -1;
}

static ls_status open_named(const char *name, bool to_run, ls_hardware *h)
{
    ls_profile *profile;

    if (strcmp(name, "auto") == 0) return choose(h);
    LS_TRY(ls_profile_read(name, &profile));
    const ls_status status = open_profile(profile, to_run, h);
    ls_profile_free(profile);
    return status;
}

ls_status ls_hardware_open(const char *name, bool to_run, ls_hardware *hardware)
{
    ls_hardware opened = {.topology = NULL};
    const ls_status status = open_named(name, to_run, &opened);

    if (status != LS_OK) {
        ls_hardware_close(&opened);
        return status;
    }
    find_room(&opened);
    opened.host_node = find_host_node(&opened);
    *hardware = opened;
    return LS_OK;
}

void ls_hardware_close(ls_hardware *hardware)
{
    if (hardware == NULL) return;
    ls_topology_free(hardware->topology);
    memset(hardware, 0, sizeof *hardware);
}
