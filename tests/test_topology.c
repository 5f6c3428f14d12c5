/*
 * test_topology.c - machines as data: what discovery makes of each; what it says of what it cannot
 * know; and what is refused.
 */
#include "machine_test.h"

#include <math.h>

#include "topology.h"

#ifndef LS_HAVE_HWLOC
#define LS_HAVE_HWLOC 0
#endif

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

static char scratch[256];

static const char *at(const char *name)
{
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

static int make_scratch(void **state)
{
    (void)state;
    return make_machines_folder(scratch, sizeof scratch);
}

static int remove_scratch(void **state)
{
    (void)state;
    return ls_directory_remove(scratch) == LS_OK ? 0 : -1;
}

/* ---- reading -------------------------------------------------------------------------------- */

static ls_topology *discover(const char *from)
{
    ls_topology *t = NULL;
    if (ls_topology_discover(from, &t) != LS_OK)
        fail_msg("%s: %s", from != NULL ? from : "this machine", ls_error());
    return t;
}

static ls_topology *discover_machine(const char *name)
{
    unpack_machine(name, at(name));
    return discover(at(name));
}

/* Unpack a machine, write one file anew, and look. */
static ls_topology *discover_changed(const char *name, const char *path, const char *text)
{
    unpack_machine(name, at("changed"));
    put_machine_file(at("changed"), path, text);
    ls_topology *t = discover(at("changed"));
    assert_int_equal(ls_directory_remove(at("changed")), LS_OK);
    return t;
}

static ls_topology *discover_xml(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, MACHINES "/%s.xml", name);
    return discover(path);
}

static const ls_place *place(const ls_topology *t, const char *name)
{
    const ls_place *found = ls_topology_find_place(t, name);
    if (found == NULL) fail_msg("%s has no %s", t->origin, name);
    return found;
}

static const ls_unit *unit(const ls_topology *t, const char *name)
{
    for (int u = 0; u < t->n_units; u++)
        if (strcmp(t->units[u].name, name) == 0) return &t->units[u];
    fail_msg("%s has no %s", t->origin, name);
    return NULL;
}

static const ls_link *link_of(const ls_topology *t, const char *from, const char *to)
{
    const ls_link *found = ls_topology_find_link(t, from, to);
    if (found == NULL) fail_msg("%s has no link from %s to %s", t->origin, from, to);
    return found;
}

/* Up to the rounding of a formula written in another order. */
static bool same(double a, double b)
{
    return a == b || fabs(a - b) <= 1e-12 * fabs(b);
}

static void assert_is(ls_quantity quantity, double value, ls_source source, const char *from)
{
    if (quantity.source != source || !same(quantity.value, value) ||
        (from != NULL && strcmp(quantity.from, from) != 0))
        fail_msg("%.17g (%s: %s), not %.17g (%s: %s)", quantity.value,
                 ls_source_name(quantity.source), quantity.from != NULL ? quantity.from : "-",
                 value, ls_source_name(source), from != NULL ? from : "any");
}

#define assert_discovered(quantity, value, from)                                                   \
    assert_is((quantity), (value), LS_SOURCE_DISCOVERED, (from))
#define assert_unknown(quantity) assert_false(ls_known(quantity))

static bool advises(const ls_topology *t, const char *topic)
{
    for (int a = 0; a < t->n_advice; a++)
        if (strcmp(t->advice[a].topic, topic) == 0) return true;
    return false;
}

static void assert_advice(const ls_topology *t, const char *const *topics, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!advises(t, topics[i])) fail_msg("%s: no advice on %s", t->origin, topics[i]);
    if (t->n_advice == (int)n) return;
    for (int a = 0; a < t->n_advice; a++) print_message("%s\n", t->advice[a].topic);
    fail_msg("%s: %d topics of advice, not %zu", t->origin, t->n_advice, n);
}

static void assert_missing(const ls_topology *t, const char *what)
{
    for (int m = 0; m < t->n_missing; m++)
        if (strcmp(t->missing[m].what, what) == 0) return;
    fail_msg("%s: '%s' is not said to be missing", t->origin, what);
}

/* ---- Grace Hopper --------------------------------------------------------------------------- */

#define MIB 1048576.0

static void test_gh200_numa(void **state)
{
    static const char *const topics[] = {"page_cache", "memlock"};
    ls_topology *t = discover_machine("gh200-480gb-numa");
    const ls_unit *gpu = unit(t, "gpu0");

    (void)state;
    assert_int_equal(t->n_places, 2); /* of 9 nodes: spares hold nothing */
    assert_int_equal(t->n_units, 2);
    assert_int_equal(place(t, "host0")->numa_node, 0);
    assert_int_equal(place(t, "host0")->kind, LS_PLACE_HOST);
    assert_discovered(place(t, "host0")->capacity_bytes, 490037 * MIB, NULL);
    assert_discovered(place(t, "host0")->page_bytes, 65536, "hpage_pmd_size");
    /* Free is what is not used, and the files that can be dropped: all cached less shared memory.
     */
    assert_discovered(place(t, "host0")->free_bytes, (490037 - 9000 - 500) * MIB, "sysfs");
    assert_int_equal(place(t, "hbm0")->numa_node, 1);
    assert_int_equal(place(t, "hbm0")->kind, LS_PLACE_HBM);
    /* Kept by hwloc, which hides such nodes unless told otherwise. */
    assert_discovered(place(t, "hbm0")->capacity_bytes, 97280 * MIB,
                      LS_HAVE_HWLOC ? "hwloc" : "nvidia driver");
    assert_discovered(place(t, "hbm0")->free_bytes, (97280 - 600 - 20480) * MIB, "sysfs");
    assert_discovered(place(t, "hbm0")->page_cache_bytes, 20480 * MIB, "sysfs");
    assert_string_equal(gpu->bus_id, "0009:01:00.0");
    assert_string_equal(gpu->model, "NVIDIA GH200 480GB");
    assert_discovered(gpu->host_node, 0, NULL);
    assert_is(t->facts.c2c_link, 1, LS_SOURCE_SPEC, "product name");
    assert_discovered(t->facts.coherent, 1, "uvm_ats_mode");
    assert_discovered(t->facts.hbm_is_numa, 1, NULL);
    assert_discovered(unit(t, "cpu0")->cores, 72, NULL);
    assert_int_equal(t->n_links, 1);
    assert_string_equal(link_of(t, "host0", "hbm0")->via, "c2c");
    assert_unknown(link_of(t, "host0", "hbm0")->bytes_per_s);
    assert_discovered(t->system.huge_page_bytes, 512 * MIB, "hpage_pmd_size");
    assert_string_equal(t->system.huge_pages, "madvise");
    assert_int_equal(t->system.n_huge_sizes, 3);
    assert_int_equal(t->system.huge_sizes[0].bytes, 2 << 20);
    assert_discovered(t->system.numa_balancing, 0, "sysctl");
    assert_discovered(t->system.init_on_alloc, 0, "cmdline");
    assert_discovered(t->system.memlock_bytes, 8388608, "rlimit");
    assert_int_equal(t->system.n_power_caps, 4);
    assert_string_equal(t->system.power_caps[1].name, "Grace Power Socket 0");
    assert_discovered(t->system.power_caps[1].watts, 500, "hwmon");
    assert_unknown(t->system.power_caps[0].watts);
    assert_advice(t, topics, N_OF(topics));
    assert_missing(t, "cuda");
    ls_topology_free(t);
}

static void test_gh200_cdmm(void **state)
{
    static const char *const topics[] = {"cdmm",           "page_size",     "huge_pages",
                                         "numa_balancing", "init_on_alloc", "cpu_governor",
                                         "power_meter"};
    ls_topology *t = discover_machine("gh200-480gb-cdmm");

    (void)state;
    assert_is(t->facts.c2c_link, 1, LS_SOURCE_SPEC, "product name");
    assert_discovered(t->facts.coherent, 1, "uvm_ats_mode");
    assert_discovered(t->facts.hbm_is_numa, 0, "nvidia driver");
    assert_int_equal(place(t, "hbm0")->numa_node, -1);
    assert_unknown(place(t, "hbm0")->capacity_bytes);
    assert_unknown(place(t, "hbm0")->free_bytes);
    assert_discovered(unit(t, "gpu0")->host_node, 0, NULL);
    assert_discovered(place(t, "host0")->page_bytes, 4096, "hpage_pmd_size");
    assert_discovered(t->system.init_on_alloc, 1, "kernel config");
    assert_string_equal(t->system.memory_mode, "driver");
    assert_true(isinf(t->system.memlock_bytes.value));
    assert_int_equal(t->system.n_power_caps, 0);
    assert_advice(t, topics, N_OF(topics));
    ls_topology_free(t);
}

static void test_gh200_120gb(void **state)
{
    ls_topology *t = discover_machine("gh200-120gb");

    (void)state;
    assert_discovered(place(t, "host0")->capacity_bytes, 118784 * MIB, NULL);
    assert_discovered(place(t, "hbm0")->capacity_bytes, 97280 * MIB, NULL);
    assert_string_equal(unit(t, "gpu0")->model, "NVIDIA GH200 120GB");
    assert_string_equal(t->system.huge_pages, "always");
    assert_int_equal(t->n_advice, 0);
    ls_topology_free(t);
}

static void test_gh200_quad(void **state)
{
    static const char *const topics[] = {"page_cache"};
    ls_topology *t = discover_machine("gh200-quad");

    (void)state;
    assert_int_equal(t->n_places, 8); /* of 36 nodes */
    assert_int_equal(t->n_units, 8);
    for (int g = 0; g < 4; g++) {
        char hbm[16], gpu[16], cpu[16], bus_id[16];
        snprintf(hbm, sizeof hbm, "hbm%d", g);
        snprintf(gpu, sizeof gpu, "gpu%d", g);
        snprintf(cpu, sizeof cpu, "cpu%d", g);
        snprintf(bus_id, sizeof bus_id, "%04x:01:00.0", 16 * g + 9);
        assert_int_equal(place(t, hbm)->numa_node, 4 + 8 * g);
        assert_string_equal(unit(t, gpu)->bus_id, bus_id);
        assert_discovered(unit(t, gpu)->host_node, g, NULL);
        assert_discovered(unit(t, cpu)->cores, 72, NULL);
        assert_discovered(unit(t, cpu)->host_node, g, NULL);
        for (int h = 0; h < 4; h++) {
            char host[16];
            snprintf(host, sizeof host, "host%d", h);
            assert_int_equal(link_of(t, host, hbm)->remote, h != g);
            assert_string_equal(link_of(t, host, hbm)->via, h == g ? "c2c" : "");
        }
    }
    assert_int_equal(t->n_links, 16 + 6);
    assert_true(link_of(t, "host1", "host3")->remote);
    assert_int_equal(t->system.n_power_caps, 16);
    assert_advice(t, topics, N_OF(topics)); /* node 20 only */
    assert_non_null(strstr(t->advice[0].text, "hbm2 (NUMA node 20)"));
    ls_topology_free(t);
}

static void test_gh200_nvl2(void **state)
{
    ls_topology *t = discover_machine("gh200-nvl2");

    (void)state;
    assert_int_equal(t->n_places, 4);
    assert_int_equal(place(t, "hbm0")->numa_node, 2);
    assert_int_equal(place(t, "hbm1")->numa_node, 10);
    assert_discovered(place(t, "hbm1")->capacity_bytes, 146432 * MIB, NULL);
    assert_discovered(unit(t, "gpu1")->host_node, 1, NULL);
    assert_true(link_of(t, "host0", "hbm1")->remote);
    assert_false(link_of(t, "host1", "hbm1")->remote);
    ls_topology_free(t);
}

/* ---- x86 ------------------------------------------------------------------------------------ */

static void test_x86_h200_pcie(void **state)
{
    static const char *const topics[] = {"numa_balancing", "init_on_alloc", "memlock"};
    ls_topology *t = discover_machine("x86-h200-pcie");
    const ls_unit *gpu = unit(t, "gpu0");

    (void)state;
    assert_int_equal(t->n_places, 3);
    assert_int_equal(t->n_units, 3); /* the display controller of another vendor is none */
    assert_string_equal(gpu->bus_id, "0000:ab:00.0");
    assert_discovered(gpu->host_node, 1, NULL);
    assert_is(t->facts.c2c_link, 0, LS_SOURCE_SPEC, "product name");
    assert_is(t->facts.coherent, 0, LS_SOURCE_SPEC, NULL);
    assert_discovered(t->facts.hbm_is_numa, 0, "nvidia driver");
    assert_unknown(place(t, "hbm0")->capacity_bytes);
    assert_false(link_of(t, "host1", "hbm0")->remote);
    assert_true(link_of(t, "host0", "hbm0")->remote);
    assert_string_equal(link_of(t, "host1", "hbm0")->via, "pcie 5.0 x16");
    assert_is(link_of(t, "host1", "hbm0")->bytes_per_s, 32e9 * 16 / 8 * 128 / 130, LS_SOURCE_SPEC,
              "PCIe link");
    assert_unknown(link_of(t, "host0", "hbm0")->bytes_per_s);
    assert_discovered(unit(t, "cpu1")->cores, 56, NULL);
    assert_string_equal(t->system.power_caps[0].name, "package-0");
    assert_discovered(t->system.power_caps[0].watts, 350, "rapl");
    assert_advice(t, topics, N_OF(topics));
    ls_topology_free(t);
}

/* hwloc lends the expander the CPUs of its neighbours, and finds the GPU near all of them. */
static void test_x86_snc_cxl(void **state)
{
    ls_topology *t = discover_machine("x86-snc-cxl");

    (void)state;
    assert_int_equal(t->n_places, 4);
    assert_int_equal(t->n_units, 3); /* two halves of the CPU, the GPU */
    assert_discovered(unit(t, "cpu0")->cores, 32, NULL);
    assert_discovered(unit(t, "cpu1")->cores, 32, NULL);
    assert_discovered(place(t, "host2")->capacity_bytes, 128000 * MIB, NULL);
    assert_discovered(unit(t, "gpu0")->host_node, 1, "sysfs");
    assert_true(link_of(t, "host0", "hbm0")->remote);
    assert_true(link_of(t, "host2", "hbm0")->remote);
    ls_topology_free(t);
}

/* Where nothing tells which of them is nearest, none is. */
static void test_unknown_host(void **state)
{
    ls_topology *t =
        discover_changed("x86-snc-cxl", "/sys/bus/pci/devices/0000:ab:00.0/numa_node", "-1");

    (void)state;
    assert_unknown(unit(t, "gpu0")->host_node);
    assert_missing(t, "host node");
    ls_topology_free(t);
}

static void test_hgx(void **state)
{
    ls_topology *t = discover_machine("hgx-h200");

    (void)state;
    assert_int_equal(t->n_places, 10);
    assert_int_equal(t->n_units, 10); /* the NVSwitch is none */
    assert_string_equal(unit(t, "gpu0")->bus_id, "0000:1b:00.0");
    assert_string_equal(unit(t, "gpu7")->bus_id, "0000:df:00.0");
    assert_discovered(unit(t, "gpu3")->host_node, 0, NULL);
    assert_discovered(unit(t, "gpu4")->host_node, 1, NULL);
    assert_is(t->facts.c2c_link, 0, LS_SOURCE_SPEC, "product name");
    ls_topology_free(t);
}

static void test_laptop(void **state)
{
    static const char *const topics[] = {"memlock"};
    ls_topology *t = discover_machine("laptop");

    (void)state;
    assert_int_equal(t->n_places, 1);
    assert_int_equal(t->n_units, 1);
    assert_int_equal(t->n_links, 0);
    assert_discovered(unit(t, "cpu0")->cores, LS_HAVE_HWLOC ? 2 : 4, NULL);
    assert_true(t->sees_pci);
    assert_discovered(t->facts.c2c_link, 0, "no NVIDIA GPU");
    assert_true(isinf(t->system.memory_limit_bytes.value));
    assert_unknown(t->system.init_on_alloc); /* not on the command line, no kernel config */
    assert_advice(t, topics, N_OF(topics));
    ls_topology_free(t);
}

static void test_container(void **state)
{
    static const char *const topics[] = {"memory_limit", "memlock"};
    ls_topology *t = discover_machine("container");

    (void)state;
    assert_discovered(t->system.memory_limit_bytes, 17179869184.0, "cgroup");
    assert_discovered(t->system.memory_limit_used_bytes, 3221225472.0, "cgroup");
    assert_discovered(place(t, "host0")->capacity_bytes, 64000 * MIB, NULL);
    assert_false(t->sees_pci); /* so that nothing is said of GPUs */
    assert_unknown(t->facts.c2c_link);
    assert_unknown(t->facts.coherent);
    assert_unknown(t->facts.hbm_is_numa);
    assert_missing(t, "pci");
    assert_advice(t, topics, N_OF(topics));
    ls_topology_free(t);
}

static void test_this_machine(void **state)
{
    ls_topology *t = discover(NULL);

    (void)state;
    assert_string_equal(t->origin, "this machine");
    assert_true(t->n_places >= 1);
    assert_int_equal(t->places[0].kind, LS_PLACE_HOST);
    assert_true(t->places[0].capacity_bytes.value > 0);
    assert_true(t->system.page_bytes.value >= 4096);
    assert_non_null(ls_topology_find_unit(t, LS_UNIT_CPU));
    ls_topology_free(t);
}

/* ---- changed machines ----------------------------------------------------------------------- */

static void test_hbm_offline(void **state)
{
    ls_topology *t =
        discover_changed("gh200-120gb", "/proc/driver/nvidia/gpus/0009:01:00.0/numa_status",
                         "Node:      1\nStatus:    online_failed\nSize: 17c0000000");

    (void)state;
    assert_discovered(t->facts.hbm_is_numa, 0, "nvidia driver");
    assert_int_equal(place(t, "hbm0")->numa_node, -1);
    assert_discovered(place(t, "hbm0")->capacity_bytes, 97280 * MIB, NULL);
    assert_null(ls_topology_find_host(t, 1)); /* nor is it host memory then */
    assert_true(advises(t, "hbm_node"));
    assert_missing(t, "hbm node");
    ls_topology_free(t);
}

static void test_ats_off(void **state)
{
    ls_topology *t =
        discover_changed("gh200-120gb", "/sys/module/nvidia_uvm/parameters/uvm_ats_mode", "0");

    (void)state;
    assert_discovered(t->facts.coherent, 0, "uvm_ats_mode");
    assert_is(t->facts.c2c_link, 1, LS_SOURCE_SPEC, NULL);
    assert_discovered(t->facts.hbm_is_numa, 1, NULL);
    assert_true(advises(t, "ats"));
    ls_topology_free(t);
}

/* With EGM on, Linux sees a fifth of a 480 GB part's memory. */
static void test_hidden_memory(void **state)
{
    ls_topology *t = discover_changed("gh200-480gb-numa", "/sys/devices/system/node/node0/meminfo",
                                      "Node 0 MemTotal: 99000000 kB\nNode 0 MemFree: 90000000 kB");

    (void)state;
    assert_true(advises(t, "hidden_memory"));
    ls_topology_free(t);
}

/* The release with the mended proxy, and the one before; elsewhere than on aarch64 both are fine.
 */
static void test_nccl(void **state)
{
    static const char *const versions[] = {"2.29.2", "2.29.3", ""};
    ls_topology *t;

    (void)state;
    unpack_machine("gh200-480gb-numa", at("nccl"));
    assert_int_equal(ls_topology_discover(at("nccl"), &t), LS_OK);
    for (int grace = 1; grace >= 0; grace--) {
        snprintf(t->system.architecture, sizeof t->system.architecture, "%s",
                 grace ? "aarch64" : "x86_64");
        for (int v = 0; v < 3; v++) {
            snprintf(t->system.nccl, sizeof t->system.nccl, "%s", versions[v]);
            ls_topology_advise(t);
            assert_int_equal(advises(t, "nccl"), grace && v == 0);
        }
    }
    ls_topology_free(t);
}

static void test_no_driver(void **state)
{
    unpack_machine("x86-h200-pcie", at("bare"));
    assert_int_equal(ls_directory_remove(at("bare/proc/driver")), LS_OK);
    assert_int_equal(ls_directory_remove(at("bare/sys/module")), LS_OK);
    ls_topology *t = discover(at("bare"));

    (void)state;
    assert_string_equal(unit(t, "gpu0")->model, "NVIDIA H200 NVL"); /* by its PCI id */
    assert_true(advises(t, "driver"));
    ls_topology_free(t);
}

/* Two GPUs of which one memory is no node: the machine as a whole has no single answer. */
static void test_facts_differ(void **state)
{
    ls_topology *t =
        discover_changed("gh200-nvl2", "/proc/driver/nvidia/gpus/0019:01:00.0/numa_status",
                         "Node:      10\nStatus:    offline\nSize: 23c0000000");

    (void)state;
    assert_discovered(unit(t, "gpu0")->facts.hbm_is_numa, 1, NULL);
    assert_discovered(unit(t, "gpu1")->facts.hbm_is_numa, 0, NULL);
    assert_unknown(t->facts.hbm_is_numa);
    assert_is(t->facts.c2c_link, 1, LS_SOURCE_SPEC, NULL);
    ls_topology_free(t);
}

/* cgroup version 1: no limit is a huge number there. */
static void test_cgroup_v1(void **state)
{
    unpack_machine("laptop", at("v1"));
    put_machine_file(at("v1"), "/proc/self/cgroup", "9:name=systemd:/\n4:memory:/job/7\n0::/");
    put_machine_file(at("v1"), "/sys/fs/cgroup/memory/job/7/memory.limit_in_bytes",
                     "9223372036854771712");
    ls_topology *t = discover(at("v1"));
    assert_true(isinf(t->system.memory_limit_bytes.value));
    ls_topology_free(t);
    put_machine_file(at("v1"), "/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "8589934592");
    put_machine_file(at("v1"), "/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "4294967296");
    t = discover(at("v1"));

    (void)state;
    assert_discovered(t->system.memory_limit_bytes, 8589934592.0, "cgroup");
    assert_discovered(t->system.memory_limit_used_bytes, 4294967296.0, "cgroup");
    ls_topology_free(t);
}

/* ---- XML ------------------------------------------------------------------------------------ */

static void test_xml_gh200(void **state)
{
    if (!LS_HAVE_HWLOC) skip();
    ls_topology *t = discover_xml("gh200-quad");

    (void)state;
    assert_int_equal(t->n_places, 8);
    assert_int_equal(place(t, "hbm3")->numa_node, 28);
    assert_string_equal(unit(t, "gpu3")->bus_id, "0039:01:00.0");
    assert_discovered(unit(t, "gpu3")->host_node, 3, "hwloc");
    assert_discovered(t->facts.hbm_is_numa, 1, "hwloc");
    assert_unknown(t->system.numa_balancing);
    assert_unknown(place(t, "host0")->free_bytes);
    assert_missing(t, "sysfs");
    ls_topology_free(t);
}

static void test_xml_x86(void **state)
{
    if (!LS_HAVE_HWLOC) skip();
    ls_topology *t = discover_xml("x86-h200-pcie");

    (void)state;
    assert_int_equal(t->n_places, 3);
    assert_string_equal(unit(t, "gpu0")->model, "NVIDIA H200 NVL");
    assert_discovered(unit(t, "gpu0")->host_node, 1, "hwloc");
    assert_is(t->facts.c2c_link, 0, LS_SOURCE_SPEC, "product name");
    assert_is(t->facts.coherent, 0, LS_SOURCE_SPEC, NULL);
    ls_topology_free(t);
}

static void refuse(const char *from, ls_status status, const char *part)
{
    ls_topology *t = NULL;
    assert_int_equal(ls_topology_discover(from, &t), status);
    assert_null(t);
    if (strstr(ls_error(), part) == NULL) fail_msg("'%s' lacks '%s'", ls_error(), part);
}

static void test_refused(void **state)
{
    static const char *const broken[] = {
        "", "not XML", "<topology version=\"2.0\">", "<?xml version=\"1.0\"?><html/>",
        "<topology version=\"2.0\"><object type=\"Odd\"/></topology>"};

    (void)state;
    refuse(at("nowhere"), LS_ERR_INVALID, "nowhere: No such file");
    assert_int_equal(ls_directory_make(at("empty")), LS_OK);
    refuse(at("empty"), LS_ERR_INVALID, "want a copy of a machine's /proc and /sys");
    if (LS_HAVE_HWLOC) {
        static const char *const lists[] = {"-1", "0-9223372036854775807", "3-1", "0-", "0,",
                                            "all"};
        unpack_machine("laptop", at("lists"));
        for (size_t i = 0; i < N_OF(lists); i++) {
            put_machine_file(at("lists"), "/sys/devices/system/node/online", lists[i]);
            refuse(at("lists"), LS_ERR_INVALID, "is no list of indices");
        }
    }
    for (size_t b = 0; b < N_OF(broken); b++) {
        put_machine_file(at(""), "broken.xml", broken[b]);
        refuse(at("broken.xml"), LS_HAVE_HWLOC ? LS_ERR_INVALID : LS_ERR_UNSUPPORTED, "broken.xml");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gh200_numa),    cmocka_unit_test(test_gh200_cdmm),
        cmocka_unit_test(test_gh200_120gb),   cmocka_unit_test(test_gh200_quad),
        cmocka_unit_test(test_gh200_nvl2),    cmocka_unit_test(test_x86_h200_pcie),
        cmocka_unit_test(test_hgx),           cmocka_unit_test(test_x86_snc_cxl),
        cmocka_unit_test(test_unknown_host),  cmocka_unit_test(test_laptop),
        cmocka_unit_test(test_container),     cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_hbm_offline),   cmocka_unit_test(test_ats_off),
        cmocka_unit_test(test_hidden_memory), cmocka_unit_test(test_nccl),
        cmocka_unit_test(test_no_driver),     cmocka_unit_test(test_facts_differ),
        cmocka_unit_test(test_cgroup_v1),     cmocka_unit_test(test_xml_gh200),
        cmocka_unit_test(test_xml_x86),       cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
