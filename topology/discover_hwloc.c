/*
 * discover_hwloc.c - NUMA nodes, cores, GPUs and who is near whom, by hwloc.
 *
 * The memory of a Grace Hopper's GPU is a NUMA node of subtype GPUMemory, which hwloc before 2.11
 * drops unless told to keep it; it is a GPU's memory here, never the host's.  Spare nodes of the
 * driver hold no bytes and are skipped.  hwloc gives nodes without CPUs the CPUs of their
 * neighbours, so that each CPU is counted for the first node that has it.
 */
#include "discover.h"

#if LS_HAVE_HWLOC
#include <assert.h>
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#if HWLOC_API_VERSION < 0x00020100 || HWLOC_API_VERSION >= 0x00030000
#error "hwloc 2.1 or a later 2.x is needed"
#endif

#define XML_BYTES_MAX (64 << 20)
#define PCI_NVIDIA    0x10de
#define PCI_DISPLAY   0x03 /* base class: display and 3D controllers */

const char *ls_discover_hwloc_version(void)
{
    static char text[32];
    const unsigned version = hwloc_get_api_version();
    snprintf(text, sizeof text, "%u.%u", version >> 16, version >> 8 & 0xff);
    return text;
}

/* A topology being read, and the CPUs of each host node that are its own. */
typedef struct reader {
    ls_topology *t;
    hwloc_topology_t hwloc;
    hwloc_bitmap_t claimed;
    hwloc_bitmap_t cpus[LS_PLACES_MAX]; /* of t->places */
    bool xml;
} reader;

static const char *find_info(hwloc_obj_t object, const char *name)
{
    return hwloc_obj_get_info_by_name(object, name);
}

static bool is_gpu_memory(hwloc_obj_t node)
{
    return node->subtype != NULL && strcmp(node->subtype, "GPUMemory") == 0;
}

/* ---- host memory and CPUs ------------------------------------------------------------------- */

static ls_status add_cpu(reader *r, int numa_node, hwloc_const_bitmap_t cpus)
{
    int cores = hwloc_get_nbobjs_inside_cpuset_by_type(r->hwloc, cpus, HWLOC_OBJ_CORE);
    hwloc_obj_t package =
        hwloc_get_next_obj_covering_cpuset_by_type(r->hwloc, cpus, HWLOC_OBJ_PACKAGE, NULL);
    ls_unit *unit;

    if (hwloc_bitmap_iszero(cpus)) return LS_OK;
    if (cores <= 0) cores = hwloc_bitmap_weight(cpus); /* no core known: its hardware threads */
    LS_TRY(ls_topology_add_cpu(r->t, numa_node, &unit));
    unit->host_node = ls_discovered(numa_node, "hwloc");
    unit->cores = ls_discovered(cores, "hwloc");
    for (int p = 0; p < r->t->n_places; p++)
        if (r->t->places[p].kind == LS_PLACE_HOST && r->t->places[p].numa_node == numa_node)
            unit->place = p;
    const char *model = package != NULL ? find_info(package, "CPUModel") : NULL;
    if (model != NULL) snprintf(unit->model, sizeof unit->model, "%s", model);
    return LS_OK;
}

static ls_status add_host(reader *r, hwloc_obj_t node)
{
    const struct hwloc_numanode_attr_s *memory = &node->attr->numanode;
    ls_place *place;

    LS_TRY(ls_topology_add_host(r->t, (int)node->os_index, &place));
    place->capacity_bytes = ls_discovered((double)memory->local_memory, "hwloc");
    /* Below another root hwloc takes this machine's page size, a file keeps its own. */
    if (r->xml && memory->page_types_len > 0 && memory->page_types[0].size > 0) {
        place->page_bytes = ls_discovered((double)memory->page_types[0].size, "hwloc");
        r->t->system.page_bytes = place->page_bytes;
    }
    hwloc_bitmap_t own = hwloc_bitmap_alloc();
    if (own == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a set of CPUs");
    r->cpus[place - r->t->places] = own;
    hwloc_bitmap_andnot(own, node->cpuset, r->claimed);
    hwloc_bitmap_or(r->claimed, r->claimed, own);
    return add_cpu(r, place->numa_node, own);
}

static ls_status add_hosts(reader *r)
{
    for (hwloc_obj_t node = NULL;
         (node = hwloc_get_next_obj_by_type(r->hwloc, HWLOC_OBJ_NUMANODE, node)) != NULL;)
        if (node->attr->numanode.local_memory > 0 && !is_gpu_memory(node))
            LS_TRY(add_host(r, node));
    return LS_OK;
}

/* ---- GPUs ----------------------------------------------------------------------------------- */

/* The one host node with CPUs among these, if it is one. */
static ls_quantity nearest_host(const reader *r, hwloc_const_bitmap_t cpus)
{
    int n = 0, node = -1;

    if (cpus == NULL) return (ls_quantity){0};
    for (int p = 0; p < r->t->n_places; p++) {
        if (r->cpus[p] == NULL || !hwloc_bitmap_intersects(r->cpus[p], cpus)) continue;
        n++;
        node = r->t->places[p].numa_node;
    }
    return n == 1 ? ls_discovered(node, "hwloc") : (ls_quantity){0};
}

static ls_status add_gpu_memory(reader *r, hwloc_obj_t node)
{
    const char *bus_id = find_info(node, "PCIBusID");
    ls_unit *gpu;

    if (bus_id == NULL) {
        ls_topology_add_missing(r->t, "gpu of node",
                                "NUMA node %u is a GPU's memory; of which "
                                "GPU, hwloc does not say",
                                node->os_index);
        return LS_OK;
    }
    LS_TRY(ls_topology_add_gpu(r->t, bus_id, &gpu));
    ls_place *memory = ls_topology_gpu_memory(r->t, gpu);
    memory->numa_node = (int)node->os_index;
    memory->capacity_bytes = ls_discovered((double)node->attr->numanode.local_memory, "hwloc");
    ls_quantity_fill(&gpu->facts.hbm_is_numa, ls_discovered(1, "hwloc"));
    ls_quantity_fill(&gpu->host_node, nearest_host(r, node->cpuset));
    return LS_OK;
}

/* "NVIDIA H200": by the driver if it was asked, by the PCI data base, or by the device id. */
static const char *find_model(hwloc_obj_t device)
{
    const char *model = NULL;

    for (hwloc_obj_t child = device->io_first_child; child != NULL; child = child->next_sibling)
        if (model == NULL) model = find_info(child, "GPUModel");
    if (model == NULL) model = ls_gpu_model_by_device(device->attr->pcidev.device_id);
    return model != NULL ? model : find_info(device, "PCIDevice");
}

static ls_status add_gpu(reader *r, hwloc_obj_t device)
{
    const struct hwloc_pcidev_attr_s *pci = &device->attr->pcidev;
    char bus_id[LS_NAME_BYTES];
    ls_unit *gpu;

    snprintf(bus_id, sizeof bus_id, "%04x:%02x:%02x.%x", (unsigned)pci->domain, pci->bus, pci->dev,
             pci->func);
    LS_TRY(ls_topology_add_gpu(r->t, bus_id, &gpu));
    hwloc_obj_t ancestor = hwloc_get_non_io_ancestor_obj(r->hwloc, device);
    ls_quantity_fill(&gpu->host_node, nearest_host(r, ancestor->cpuset));
    const char *model = find_model(device);
    if (model != NULL && gpu->model[0] == '\0')
        snprintf(gpu->model, sizeof gpu->model, "%s", model);
    return LS_OK;
}

static ls_status add_gpus(reader *r)
{
    for (hwloc_obj_t device = NULL; (device = hwloc_get_next_pcidev(r->hwloc, device)) != NULL;) {
        r->t->sees_pci = true;
        if (device->attr->pcidev.vendor_id == PCI_NVIDIA &&
            device->attr->pcidev.class_id >> 8 == PCI_DISPLAY)
            LS_TRY(add_gpu(r, device));
    }
    for (hwloc_obj_t node = NULL;
         (node = hwloc_get_next_obj_by_type(r->hwloc, HWLOC_OBJ_NUMANODE, node)) != NULL;)
        if (node->attr->numanode.local_memory > 0 && is_gpu_memory(node))
            LS_TRY(add_gpu_memory(r, node));
    return LS_OK;
}

static ls_status read_objects(ls_topology *t, hwloc_topology_t hwloc, bool xml)
{
    reader r = {.t = t, .hwloc = hwloc, .claimed = hwloc_bitmap_alloc(), .xml = xml};

    if (r.claimed == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a set of CPUs");
    const char *architecture = find_info(hwloc_get_root_obj(hwloc), "Architecture");
    if (xml && architecture != NULL)
        snprintf(t->system.architecture, sizeof t->system.architecture, "%s", architecture);
    ls_status status = add_hosts(&r);
    if (status == LS_OK) status = add_gpus(&r);
    for (int p = 0; p < LS_PLACES_MAX; p++) hwloc_bitmap_free(r.cpus[p]);
    hwloc_bitmap_free(r.claimed);
    return status;
}

/* ---- loading -------------------------------------------------------------------------------- */

/* hwloc takes another root from the environment only. */
static const char *const root_variables[] = {"HWLOC_FSROOT", "HWLOC_COMPONENTS"};

#define N_ROOT_VARIABLES (sizeof root_variables / sizeof root_variables[0])

/* "0-3,8" and nothing else, empty too, of numbers that a machine may have. */
static bool is_index_list(const char *text)
{
    enum { INDEX_MAX = 1 << 20 };
    bool goes_on = false;

    while (goes_on || (*text != '\0' && *text != '\n')) {
        char *end;
        if (*text < '0' || *text > '9') return false;
        const long first = strtol(text, &end, 10);
        long last = first;
        if (*end == '-') {
            if (end[1] < '0' || end[1] > '9') return false;
            last = strtol(end + 1, &end, 10);
        }
        if (last < first || last > INDEX_MAX) return false;
        goes_on = *end == ',';
        text = goes_on ? end + 1 : end;
        if (!goes_on && *text != '\0' && *text != '\n') return false;
    }
    return true;
}

/* hwloc asserts that the kernel's lists make sense; those of a root that someone made may not. */
static ls_status check_lists(const char *root)
{
    static const char *const paths[] = {
        "/sys/devices/system/node/online", "/sys/devices/system/node/possible",
        "/sys/devices/system/cpu/online", "/sys/devices/system/cpu/possible"};
    char text[LS_SYSFS_BYTES];

    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        if (ls_sysfs_text(text, sizeof text, root, "%s", paths[i]) && !is_index_list(text))
            return LS_FAIL(LS_ERR_INVALID, "%s%s: '%.40s' is no list of indices; want one as 0-3,8",
                           root, paths[i], text);
    return LS_OK;
}

static ls_status load_root(const char *root, hwloc_topology_t hwloc)
{
    const char *const values[N_ROOT_VARIABLES] = {root, "linux,stop"};
    char *before[N_ROOT_VARIABLES] = {NULL};

    LS_TRY(check_lists(root));
    for (size_t v = 0; v < N_ROOT_VARIABLES; v++) {
        const char *value = getenv(root_variables[v]);
        before[v] = value != NULL ? strdup(value) : NULL;
        setenv(root_variables[v], values[v], 1);
    }
    const int failed = hwloc_topology_load(hwloc);
    for (size_t v = 0; v < N_ROOT_VARIABLES; v++) {
        if (before[v] != NULL)
            setenv(root_variables[v], before[v], 1);
        else
            unsetenv(root_variables[v]);
        free(before[v]);
    }
    if (failed) return LS_FAIL(LS_ERR_INVALID, "%s: hwloc finds no machine below it", root);
    return LS_OK;
}

static ls_status load_xml(const char *path, hwloc_topology_t hwloc)
{
    struct stat info;

    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > XML_BYTES_MAX)
        return LS_FAIL(LS_ERR_INVALID, "%s: want a file of at most %d MiB, written by lstopo", path,
                       XML_BYTES_MAX >> 20);
    if (hwloc_topology_set_xml(hwloc, path) != 0 || hwloc_topology_load(hwloc) != 0)
        return LS_FAIL(LS_ERR_INVALID,
                       "%s: hwloc %s cannot read it as a machine; want a file written by "
                       "'lstopo FILE.xml' of hwloc 2.x",
                       path, ls_discover_hwloc_version());
    return LS_OK;
}

ls_status ls_discover_hwloc(const ls_discovery *where, ls_topology *t)
{
    hwloc_topology_t hwloc;
    ls_status status = LS_OK;

    if (hwloc_get_api_version() >> 16 != HWLOC_API_VERSION >> 16)
        return LS_FAIL(LS_ERR_UNSUPPORTED, "built with hwloc %d, but hwloc %s is loaded",
                       HWLOC_API_VERSION >> 16, ls_discover_hwloc_version());
    setenv("HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES", "1", 0);
    if (hwloc_topology_init(&hwloc) != 0) return LS_FAIL(LS_ERR_NO_MEMORY, "an hwloc topology");
    hwloc_topology_set_io_types_filter(hwloc, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (where->xml != NULL)
        status = load_xml(where->xml, hwloc);
    else if (where->root[0] != '\0')
        status = load_root(where->root, hwloc);
    else if (hwloc_topology_load(hwloc) != 0)
        status = LS_FAIL(LS_ERR_UNSUPPORTED, "hwloc %s cannot read this machine",
                         ls_discover_hwloc_version());
    if (status == LS_OK) status = read_objects(t, hwloc, where->xml != NULL);
    hwloc_topology_destroy(hwloc);
    return status;
}

#else

#include <assert.h>

const char *ls_discover_hwloc_version(void)
{
    return NULL;
}

ls_status ls_discover_hwloc(const ls_discovery *where, ls_topology *t)
{
    (void)where;
    (void)t;
    assert(false);
    return LS_ERR_UNSUPPORTED;
}

#endif
