/* topology.c - the machine as a table: finding and adding its parts; the order of discovery. */
#include "topology.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "discover.h"

/* ---- sources -------------------------------------------------------------------------------- */

static const char *const source_names[LS_SOURCE_COUNT] = {
    "unknown", "assumed", "spec", "published", "discovered", "profile", "measured"};

const char *ls_source_name(ls_source source)
{
    assert((unsigned)source < LS_SOURCE_COUNT);
    return source_names[source];
}

bool ls_source_parse(const char *text, ls_source *source)
{
    for (int s = 0; s < LS_SOURCE_COUNT; s++) {
        if (strcmp(text, source_names[s]) != 0) continue;
        *source = (ls_source)s;
        return true;
    }
    return false;
}

/* ---- finding -------------------------------------------------------------------------------- */

const char *ls_unit_kind_name(ls_unit_kind kind)
{
    return kind == LS_UNIT_GPU ? "gpu" : "cpu";
}

const ls_place *ls_topology_find_place(const ls_topology *t, const char *name)
{
    for (int p = 0; p < t->n_places; p++)
        if (strcmp(t->places[p].name, name) == 0) return &t->places[p];
    return NULL;
}

const ls_place *ls_topology_find_host(const ls_topology *t, int numa_node)
{
    for (int p = 0; p < t->n_places; p++)
        if (t->places[p].kind == LS_PLACE_HOST && t->places[p].numa_node == numa_node)
            return &t->places[p];
    return NULL;
}

const ls_unit *ls_topology_find_unit(const ls_topology *t, ls_unit_kind kind)
{
    for (int u = 0; u < t->n_units; u++)
        if (t->units[u].kind == kind) return &t->units[u];
    return NULL;
}

static bool is_real_gpu(const ls_topology *t, const ls_unit *unit)
{
    return unit->kind == LS_UNIT_GPU && (unit->place < 0 || !t->places[unit->place].emulated);
}

const ls_unit *ls_topology_find_real_gpu(const ls_topology *t)
{
    const ls_unit *found = NULL;

    for (int u = 0; u < t->n_units; u++) {
        const ls_unit *unit = &t->units[u];
        if (!is_real_gpu(t, unit)) continue;
        if (unit->cuda_rank == 1) return unit;
        if (found == NULL) found = unit;
    }
    return found;
}

const ls_place *ls_topology_find_device_memory(const ls_topology *t)
{
    const ls_unit *gpu = ls_topology_find_real_gpu(t);

    if (gpu != NULL && gpu->place >= 0) return &t->places[gpu->place];
    for (int p = 0; p < t->n_places; p++)
        if (t->places[p].kind == LS_PLACE_HBM) return &t->places[p];
    return NULL;
}

const ls_link *ls_topology_find_link(const ls_topology *t, const char *from, const char *to)
{
    for (int l = 0; l < t->n_links; l++)
        if (strcmp(t->links[l].from, from) == 0 && strcmp(t->links[l].to, to) == 0)
            return &t->links[l];
    return NULL;
}

/* ---- adding --------------------------------------------------------------------------------- */

static ls_status add_place(ls_topology *t, ls_place_kind kind, int number, ls_place **place)
{
    if (t->n_places == LS_PLACES_MAX)
        return LS_FAIL(LS_ERR_UNSUPPORTED, "%s has more than %d places of memory", t->origin,
                       LS_PLACES_MAX);
    *place = &t->places[t->n_places++];
    memset(*place, 0, sizeof **place);
    (*place)->kind = kind;
    (*place)->numa_node = -1;
    snprintf((*place)->name, sizeof(*place)->name, "%s%d", ls_place_name(kind), number);
    return LS_OK;
}

static ls_status add_unit(ls_topology *t, ls_unit_kind kind, int number, ls_unit **unit)
{
    if (t->n_units == LS_UNITS_MAX)
        return LS_FAIL(LS_ERR_UNSUPPORTED, "%s has more than %d units", t->origin, LS_UNITS_MAX);
    *unit = &t->units[t->n_units++];
    memset(*unit, 0, sizeof **unit);
    (*unit)->kind = kind;
    (*unit)->place = -1;
    snprintf((*unit)->name, sizeof(*unit)->name, "%s%d", ls_unit_kind_name(kind), number);
    return LS_OK;
}

ls_status ls_topology_add_host(ls_topology *t, int numa_node, ls_place **place)
{
    const ls_place *known = ls_topology_find_host(t, numa_node);

    if (known != NULL) {
        *place = &t->places[known - t->places];
        return LS_OK;
    }
    LS_TRY(add_place(t, LS_PLACE_HOST, numa_node, place));
    (*place)->numa_node = numa_node;
    return LS_OK;
}

ls_status ls_topology_add_cpu(ls_topology *t, int numa_node, ls_unit **unit)
{
    for (int u = 0; u < t->n_units; u++) {
        if (t->units[u].kind != LS_UNIT_CPU || t->units[u].host_node.value != numa_node) continue;
        *unit = &t->units[u];
        return LS_OK;
    }
    LS_TRY(add_unit(t, LS_UNIT_CPU, numa_node, unit));
    return LS_OK;
}

/* "[domain:]bus:device[.function]" as "0009:01:00.0", as NVML, CUDA, PCI and /proc all name it. */
static bool normalize_bus_id(const char *text, char *bus_id, size_t size)
{
    unsigned domain = 0, bus, device, function = 0;
    int n = 0;

    if (sscanf(text, "%8x:%2x:%2x%n", &domain, &bus, &device, &n) != 3) {
        domain = 0;
        if (sscanf(text, "%2x:%2x%n", &bus, &device, &n) != 2) return false;
    }
    if (text[n] == '.') {
        int rest = 0;
        if (sscanf(text + n, ".%1x%n", &function, &rest) != 1) return false;
        n += rest;
    }
    if (text[n] != '\0') return false;
    snprintf(bus_id, size, "%04x:%02x:%02x.%x", domain, bus, device, function);
    return true;
}

static int count_units(const ls_topology *t, ls_unit_kind kind)
{
    int n = 0;
    for (int u = 0; u < t->n_units; u++) n += t->units[u].kind == kind;
    return n;
}

ls_status ls_topology_add_gpu(ls_topology *t, const char *text, ls_unit **unit)
{
    char bus_id[LS_NAME_BYTES];
    ls_place *memory;

    if (!normalize_bus_id(text, bus_id, sizeof bus_id))
        return LS_FAIL(LS_ERR_INVALID, "%s: '%.40s' is no PCI address", t->origin, text);
    for (int u = 0; u < t->n_units; u++) {
        if (t->units[u].kind != LS_UNIT_GPU || strcmp(t->units[u].bus_id, bus_id) != 0) continue;
        *unit = &t->units[u];
        return LS_OK;
    }
    const int number = count_units(t, LS_UNIT_GPU);
    LS_TRY(add_place(t, LS_PLACE_HBM, number, &memory));
    LS_TRY(add_unit(t, LS_UNIT_GPU, number, unit));
    snprintf((*unit)->bus_id, sizeof(*unit)->bus_id, "%s", bus_id);
    (*unit)->place = (int)(memory - t->places);
    return LS_OK;
}

ls_place *ls_topology_gpu_memory(ls_topology *t, const ls_unit *gpu)
{
    assert(gpu->place >= 0 && gpu->place < t->n_places);
    return &t->places[gpu->place];
}

ls_status ls_topology_add_link(ls_topology *t, const char *from, const char *to, ls_link **link)
{
    const ls_link *known = ls_topology_find_link(t, from, to);

    if (known != NULL) {
        *link = &t->links[known - t->links];
        return LS_OK;
    }
    if (t->n_links == LS_LINKS_MAX)
        return LS_FAIL(LS_ERR_UNSUPPORTED, "%s has more than %d links", t->origin, LS_LINKS_MAX);
    *link = &t->links[t->n_links++];
    memset(*link, 0, sizeof **link);
    snprintf((*link)->from, sizeof(*link)->from, "%s", from);
    snprintf((*link)->to, sizeof(*link)->to, "%s", to);
    return LS_OK;
}

void ls_topology_add_missing(ls_topology *t, const char *what, const char *format, ...)
{
    va_list args;

    if (t->n_missing == LS_MISSING_MAX) return;
    ls_missing *missing = &t->missing[t->n_missing++];
    snprintf(missing->what, sizeof missing->what, "%s", what);
    va_start(args, format);
    vsnprintf(missing->why, sizeof missing->why, format, args);
    va_end(args);
}

/* ---- joining -------------------------------------------------------------------------------- */

static ls_quantity join(ls_quantity a, ls_quantity b)
{
    if (!ls_known(a) || !ls_known(b) || a.value != b.value) return (ls_quantity){0};
    return a.source < b.source ? a : b; /* as sure as the less sure */
}

void ls_topology_join_facts(ls_topology *t)
{
    bool first = true;

    for (int u = 0; u < t->n_units; u++) {
        const ls_facts *facts = &t->units[u].facts;
        if (t->units[u].kind != LS_UNIT_GPU) continue;
        if (first) t->facts = *facts;
        t->facts.c2c_link = join(t->facts.c2c_link, facts->c2c_link);
        t->facts.coherent = join(t->facts.coherent, facts->coherent);
        t->facts.hbm_is_numa = join(t->facts.hbm_is_numa, facts->hbm_is_numa);
        first = false;
    }
    if (!first || !t->sees_pci) return;
    const ls_quantity none = ls_discovered(0, "no NVIDIA GPU");
    t->facts = (ls_facts){none, none, none};
}

/* From each host memory to each GPU's, and between host memories. */
static ls_status add_links(ls_topology *t)
{
    ls_link *link;

    for (int u = 0; u < t->n_units; u++) {
        const ls_unit *gpu = &t->units[u];
        if (gpu->kind != LS_UNIT_GPU) continue;
        for (int p = 0; p < t->n_places; p++) {
            const ls_place *host = &t->places[p];
            if (host->kind != LS_PLACE_HOST) continue;
            LS_TRY(ls_topology_add_link(t, host->name, t->places[gpu->place].name, &link));
            link->remote = ls_known(gpu->host_node) && gpu->host_node.value != host->numa_node;
            link->coherent = gpu->facts.coherent;
            if (!link->remote && ls_is_true(gpu->facts.c2c_link))
                snprintf(link->via, sizeof link->via, "c2c");
        }
    }
    for (int p = 0; p < t->n_places; p++)
        for (int q = p + 1; q < t->n_places; q++) {
            if (t->places[p].kind != LS_PLACE_HOST || t->places[q].kind != LS_PLACE_HOST) continue;
            LS_TRY(ls_topology_add_link(t, t->places[p].name, t->places[q].name, &link));
            link->remote = true;
            link->coherent = ls_discovered(1, "host memory");
        }
    return LS_OK;
}

/* A GPU beside one host memory needs no locality to be told; otherwise it is named as missing. */
static void fill_only_host(ls_topology *t)
{
    int n_hosts = 0, node = -1;

    for (int p = 0; p < t->n_places; p++) {
        if (t->places[p].kind != LS_PLACE_HOST) continue;
        n_hosts++;
        node = t->places[p].numa_node;
    }
    for (int u = 0; u < t->n_units; u++) {
        ls_unit *gpu = &t->units[u];
        if (gpu->kind != LS_UNIT_GPU) continue;
        if (n_hosts == 1) ls_quantity_fill(&gpu->host_node, ls_discovered(node, "only host node"));
        if (!ls_known(gpu->host_node))
            ls_topology_add_missing(t, "host node",
                                    "nothing tells which host memory is nearest to %s", gpu->name);
    }
}

/* ---- discovery ------------------------------------------------------------------------------ */

static ls_status check_unpacked(const char *path)
{
    static const char packed[] = ".tree";
    const size_t n = strlen(path), n_ending = strlen(packed);

    if (n < n_ending || strcmp(path + n - n_ending, packed) != 0) return LS_OK;
    return LS_FAIL(LS_ERR_INVALID,
                   "%s: a machine packed in one file; make its folder by "
                   "'scripts/unpack_machine.sh FILE%s DIR' and give that",
                   path, packed);
}

static ls_status choose_readers(const char *from, ls_discovery *where, ls_topology *t)
{
    struct stat info;

    *where = (ls_discovery){.root = ""};
    snprintf(t->origin, sizeof t->origin, "%s", from != NULL ? from : "this machine");
    if (from == NULL) return LS_OK;
    if (stat(from, &info) != 0) return LS_FAIL(LS_ERR_INVALID, "%s: %s", from, strerror(errno));
    if (S_ISDIR(info.st_mode)) {
        char path[LS_SYSFS_BYTES];
        where->root = from;
        if (snprintf(path, sizeof path, "%s/sys/devices/system", from) < (int)sizeof path &&
            stat(path, &info) == 0)
            return LS_OK;
        return LS_FAIL(LS_ERR_INVALID,
                       "%s: no sys/devices/system below it; want a copy of a machine's /proc and "
                       "/sys, or an XML file written by lstopo",
                       from);
    }
    LS_TRY(check_unpacked(from));
    where->root = NULL;
    where->xml = from;
    return LS_OK;
}

static void name_readers(const ls_discovery *where, ls_topology *t)
{
    const char *hwloc = ls_discover_hwloc_version();

    snprintf(t->readers, sizeof t->readers, "%s%s%s", hwloc != NULL ? "hwloc API " : "no hwloc",
             hwloc != NULL ? hwloc : "", where->root != NULL ? ", sysfs" : "");
    if (hwloc == NULL) ls_topology_add_missing(t, "hwloc", "built without it: no cores, only CPUs");
    if (where->root == NULL)
        ls_topology_add_missing(t, "sysfs", "an hwloc file tells no settings, limits or use");
    if (where->root == NULL || where->root[0] != '\0')
        ls_topology_add_missing(t, "cuda", "the driver can be asked on the machine itself only");
}

static ls_status read_parts(const ls_discovery *where, ls_topology *t)
{
    if (ls_discover_hwloc_version() != NULL)
        LS_TRY(ls_discover_hwloc(where, t));
    else
        LS_TRY(ls_discover_nodes(where->root, t));
    if (where->root != NULL) {
        ls_discover_system(where->root, t);
        LS_TRY(ls_discover_sysfs(where->root, t));
        if (where->root[0] == '\0') LS_TRY(ls_discover_cuda(t));
    }
    for (int u = 0; u < t->n_units; u++)
        if (t->units[u].kind == LS_UNIT_GPU) ls_gpu_model_fill(t, &t->units[u]);
    fill_only_host(t);
    LS_TRY(add_links(t));
    if (t->n_places > 0) return LS_OK;
    return LS_FAIL(LS_ERR_INVALID, "%s: no memory found: this describes no machine", t->origin);
}

ls_status ls_topology_discover(const char *from, ls_topology **topology)
{
    ls_discovery where;
    ls_topology *t = calloc(1, sizeof *t);

    if (t == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the machine's description");
    ls_status status = choose_readers(from, &where, t);
    if (status == LS_OK && where.xml != NULL && ls_discover_hwloc_version() == NULL)
        status = LS_FAIL(LS_ERR_UNSUPPORTED,
                         "%s: this build has no hwloc, which reads such files; build with "
                         "libhwloc-dev, or give a folder with the machine's /proc and /sys",
                         from);
    if (status == LS_OK) {
        name_readers(&where, t);
        status = read_parts(&where, t);
    }
    if (status != LS_OK) {
        ls_topology_free(t);
        return status;
    }
    ls_topology_join_facts(t);
    ls_topology_advise(t);
    *topology = t;
    return LS_OK;
}

void ls_topology_free(ls_topology *topology)
{
    free(topology);
}
