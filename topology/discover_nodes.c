/* discover_nodes.c - NUMA nodes and CPUs by sysfs, for builds without hwloc. */
#include <stdlib.h>
#include <unistd.h>

#include "discover.h"

#define FROM     "sysfs"
#define NODES    "/sys/devices/system/node"
#define GPUS     "/proc/driver/nvidia/gpus"
#define NODE_MAX 1024

/* The driver brings a GPU's memory online as a node: no host memory. */
static bool is_gpu_node(const char *root, int node, ls_topology *t)
{
    char status[512];

    for (int u = 0; u < t->n_units; u++) {
        if (!ls_sysfs_text(status, sizeof status, root, GPUS "/%s/numa_status", t->units[u].bus_id))
            continue;
        const char *line = ls_sysfs_line(status, "Node:");
        if (line != NULL && strtol(line, NULL, 10) == node) return true;
    }
    return false;
}

static ls_status add_gpu_name(const char *root, const char *name, ls_topology *t)
{
    ls_unit *gpu;
    (void)root;
    return ls_topology_add_gpu(t, name, &gpu);
}

static ls_status add_node(const char *root, int node, ls_topology *t)
{
    char text[LS_SYSFS_BYTES];
    ls_place *place;
    ls_unit *unit;

    if (!ls_sysfs_text(text, sizeof text, root, NODES "/node%d/meminfo", node) ||
        ls_sysfs_node_bytes(text, node, "MemTotal") <= 0 || is_gpu_node(root, node, t))
        return LS_OK;
    LS_TRY(ls_topology_add_host(t, node, &place));
    if (!ls_sysfs_text(text, sizeof text, root, NODES "/node%d/cpumap", node)) return LS_OK;
    const int cpus = ls_sysfs_mask_count(text, text);
    if (cpus == 0) return LS_OK;
    LS_TRY(ls_topology_add_cpu(t, node, &unit));
    unit->host_node = ls_discovered(node, FROM);
    unit->cores = ls_discovered(cpus, "sysfs, threads counted");
    unit->place = (int)(place - t->places);
    return LS_OK;
}

static ls_status add_whole_memory(const char *root, ls_topology *t)
{
    char text[LS_SYSFS_BYTES];
    ls_place *place;
    ls_unit *unit;

    if (!ls_sysfs_text(text, sizeof text, root, "/proc/meminfo")) return LS_OK;
    const char *total = ls_sysfs_line(text, "MemTotal:");
    if (total == NULL) return LS_OK;
    LS_TRY(ls_topology_add_host(t, 0, &place));
    place->capacity_bytes = ls_discovered(strtod(total, NULL) * 1024, "meminfo");
    const char *available = ls_sysfs_line(text, "MemAvailable:");
    if (available != NULL)
        place->free_bytes = ls_discovered(strtod(available, NULL) * 1024, "meminfo");
    LS_TRY(ls_topology_add_cpu(t, 0, &unit));
    unit->host_node = ls_discovered(0, FROM);
    unit->place = (int)(place - t->places);
    if (root[0] == '\0')
        unit->cores = ls_discovered((double)sysconf(_SC_NPROCESSORS_ONLN), "sysconf");
    return LS_OK;
}

ls_status ls_discover_nodes(const char *root, ls_topology *t)
{
    bool listed;

    LS_TRY(ls_sysfs_each(root, GPUS, t, add_gpu_name, &listed));
    for (int node = 0; node < NODE_MAX; node++) LS_TRY(add_node(root, node, t));
    for (int p = 0; p < t->n_places; p++)
        if (t->places[p].kind == LS_PLACE_HOST) return LS_OK;
    return add_whole_memory(root, t); /* a kernel without NUMA */
}
