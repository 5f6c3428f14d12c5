/*
 * discover_sysfs.c - what /sys and /proc tell and hwloc does not: memory in use by node, the GPUs'
 * PCI links, and the NVIDIA driver's word on each GPU.
 */
#define _GNU_SOURCE /* NOLINT: the libc's name; for scandir and versionsort */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "discover.h"

#define FROM  "sysfs"
#define NODES "/sys/devices/system/node"
#define PCI   "/sys/bus/pci/devices"
#define GPUS  "/proc/driver/nvidia/gpus"

/* ---- memory of a node ----------------------------------------------------------------------- */

static void fill_use(const char *root, ls_place *place)
{
    char meminfo[LS_SYSFS_BYTES];

    if (place->numa_node < 0 ||
        !ls_sysfs_text(meminfo, sizeof meminfo, root, NODES "/node%d/meminfo", place->numa_node))
        return;
    const double total = ls_sysfs_node_bytes(meminfo, place->numa_node, "MemTotal");
    const double unused = ls_sysfs_node_bytes(meminfo, place->numa_node, "MemFree");
    const double file = ls_sysfs_node_bytes(meminfo, place->numa_node, "FilePages");
    const double shared = ls_sysfs_node_bytes(meminfo, place->numa_node, "Shmem");
    const double cache = file >= 0 && shared >= 0 && file > shared ? file - shared : file;

    if (total >= 0) ls_quantity_fill(&place->capacity_bytes, ls_discovered(total, FROM));
    if (cache >= 0) ls_quantity_fill(&place->page_cache_bytes, ls_discovered(cache, FROM));
    if (unused < 0) return;
    const double back = place->kind == LS_PLACE_HOST && cache > 0 ? cache : 0;
    ls_quantity_fill(&place->free_bytes, ls_discovered(unused + back, FROM));
}

/* ---- PCI ------------------------------------------------------------------------------------ */

/* Bytes/s of a link after its line code, before packet headers. */
static double pcie_bytes_per_s(double gigatransfers, int64_t width)
{
    const double code = gigatransfers < 8    ? 8.0 / 10
                        : gigatransfers < 64 ? 128.0 / 130
                                             : 242.0 / 256;
    return gigatransfers * 1e9 * code * (double)width / 8;
}

static const char *pcie_generation(double gigatransfers)
{
    static const struct {
        double most;
        const char *name;
    } generations[] = {{2.5, "1.0"}, {5, "2.0"}, {8, "3.0"}, {16, "4.0"}, {32, "5.0"}, {64, "6.0"}};
    for (size_t g = 0; g < sizeof generations / sizeof generations[0]; g++)
        if (gigatransfers <= generations[g].most) return generations[g].name;
    return "?";
}

/* The link rate drops while a GPU idles, so its greatest counts; the width is what it got. */
static ls_status fill_pcie(const char *root, const char *bus_id, ls_topology *t, ls_unit *gpu)
{
    char speed[64];
    int64_t width = 0;
    ls_link *link;

    if (!ls_is_false(gpu->facts.c2c_link) || !ls_known(gpu->host_node)) return LS_OK;
    const ls_place *host = ls_topology_find_host(t, (int)gpu->host_node.value);
    if (host == NULL ||
        !ls_sysfs_text(speed, sizeof speed, root, PCI "/%s/max_link_speed", bus_id) ||
        !ls_sysfs_whole(&width, root, PCI "/%s/current_link_width", bus_id))
        return LS_OK;
    const double gigatransfers = strtod(speed, NULL);
    if (gigatransfers <= 0 || width <= 0 || width > 32) return LS_OK;
    LS_TRY(ls_topology_add_link(t, host->name, t->places[gpu->place].name, &link));
    snprintf(link->via, sizeof link->via, "pcie %s x%d", pcie_generation(gigatransfers),
             (int)width);
    const ls_quantity rate =
        ls_quantity_make(pcie_bytes_per_s(gigatransfers, width), LS_SOURCE_SPEC, "PCIe link");
    ls_quantity_fill(&link->bytes_per_s, rate);
    ls_quantity_fill(&link->reverse_bytes_per_s, rate);
    return LS_OK;
}

/* The one host node that has some of the CPUs near a device; a Grace's GPU has no numa_node. */
static ls_quantity node_of_cpus(const char *root, const char *bus_id, const ls_topology *t)
{
    char near[LS_SYSFS_BYTES], own[LS_SYSFS_BYTES];
    int n = 0, node = -1;

    if (!ls_sysfs_text(near, sizeof near, root, PCI "/%s/local_cpus", bus_id))
        return (ls_quantity){0};
    for (int p = 0; p < t->n_places; p++) {
        if (t->places[p].kind != LS_PLACE_HOST ||
            !ls_sysfs_text(own, sizeof own, root, NODES "/node%d/cpumap", t->places[p].numa_node) ||
            ls_sysfs_mask_count(near, own) == 0)
            continue;
        n++;
        node = t->places[p].numa_node;
    }
    return n == 1 ? ls_discovered(node, FROM) : (ls_quantity){0};
}

static ls_status add_pci_gpu(const char *root, const char *bus_id, ls_topology *t)
{
    int64_t vendor = 0, class = 0, device = 0, node = -1;
    ls_unit *gpu;

    if (!ls_sysfs_whole(&vendor, root, PCI "/%s/vendor", bus_id) || vendor != 0x10de ||
        !ls_sysfs_whole(&class, root, PCI "/%s/class", bus_id) || class >> 16 != 0x03)
        return LS_OK;
    LS_TRY(ls_topology_add_gpu(t, bus_id, &gpu));
    if (ls_sysfs_whole(&node, root, PCI "/%s/numa_node", bus_id) && node >= 0 &&
        ls_topology_find_host(t, (int)node) != NULL)
        ls_quantity_fill(&gpu->host_node, ls_discovered((double)node, FROM));
    ls_quantity_fill(&gpu->host_node, node_of_cpus(root, bus_id, t));
    if (gpu->model[0] == '\0' && ls_sysfs_whole(&device, root, PCI "/%s/device", bus_id)) {
        const char *model = ls_gpu_model_by_device((unsigned)device);
        if (model != NULL) snprintf(gpu->model, sizeof gpu->model, "%s", model);
    }
    return LS_OK;
}

/* ---- the NVIDIA driver's files -------------------------------------------------------------- */

/* "Node:", "Status:", "Size:" of numa_status; the file is there only if the memory can be a node.
 */
static void fill_numa_status(const char *root, const char *bus_id, ls_topology *t, ls_unit *gpu)
{
    char status[512];
    ls_place *memory = ls_topology_gpu_memory(t, gpu);

    if (!ls_sysfs_text(status, sizeof status, root, GPUS "/%s/numa_status", bus_id)) {
        ls_quantity_fill(&gpu->facts.hbm_is_numa, ls_discovered(0, "nvidia driver"));
        return;
    }
    const char *node = ls_sysfs_line(status, "Node:"), *state = ls_sysfs_line(status, "Status:");
    const char *size = ls_sysfs_line(status, "Size:");
    const bool online =
        state != NULL && strncmp(state, "online", 6) == 0 && (state[6] == '\0' || state[6] == '\n');
    ls_quantity_merge(&gpu->facts.hbm_is_numa, ls_discovered(online, "nvidia driver"));
    if (size != NULL)
        ls_quantity_fill(&memory->capacity_bytes,
                         ls_discovered((double)strtoull(size, NULL, 16), "nvidia driver"));
    if (online && node != NULL) {
        memory->numa_node = (int)strtol(node, NULL, 10);
    } else if (state != NULL) {
        memory->numa_node = -1;
        ls_topology_add_missing(t, "hbm node",
                                "the driver reports the memory of %s as '%.*s', not "
                                "online",
                                gpu->name, (int)strcspn(state, "\n"), state);
    }
}

static ls_status add_driver_gpu(const char *root, const char *bus_id, ls_topology *t)
{
    char text[LS_SYSFS_BYTES];
    ls_unit *gpu;

    LS_TRY(ls_topology_add_gpu(t, bus_id, &gpu));
    if (ls_sysfs_text(text, sizeof text, root, GPUS "/%s/information", bus_id)) {
        const char *model = ls_sysfs_line(text, "Model:");
        if (model != NULL)
            snprintf(gpu->model, sizeof gpu->model, "%.*s", (int)strcspn(model, "\n"), model);
    }
    fill_numa_status(root, bus_id, t, gpu);
    return LS_OK;
}

ls_status ls_discover_sysfs(const char *root, ls_topology *t)
{
    bool listed, driver;

    LS_TRY(ls_sysfs_each(root, PCI, t, add_pci_gpu, &listed));
    LS_TRY(ls_sysfs_each(root, GPUS, t, add_driver_gpu, &driver));
    t->sees_pci = t->sees_pci || listed;
    if (!listed) ls_topology_add_missing(t, "pci", "no /sys/bus/pci/devices");
    for (int p = 0; p < t->n_places; p++) fill_use(root, &t->places[p]);
    for (int u = 0; u < t->n_units; u++) {
        ls_unit *gpu = &t->units[u];
        if (gpu->kind != LS_UNIT_GPU) continue;
        ls_gpu_model_fill(t, gpu);
        LS_TRY(fill_pcie(root, gpu->bus_id, t, gpu));
    }
    return LS_OK;
}
