/*
 * test_cli_topo.c - longspan topo: the document's keys and sources for each machine, the table,
 * what is refused with which exit code, and a driver that is there, broken or absent.
 */
#include "cli_test.h"
#include "machine_test.h"

#include <math.h>

#include "json_test.h"

/* The object of this name in a list. */
static const cJSON *named(const cJSON *json, const char *list, const char *name)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, get(json, list)) if (strcmp(get(item, "name")->valuestring, name) ==
                                                  0) return item;
    fail_msg("no %s in %s", name, list);
    return NULL;
}

static const cJSON *link_of(const cJSON *json, const char *from, const char *to)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, get(json, "links"))
    {
        if (strcmp(get(item, "from")->valuestring, from) == 0 &&
            strcmp(get(item, "to")->valuestring, to) == 0)
            return item;
    }
    fail_msg("no link from %s to %s", from, to);
    return NULL;
}

static void assert_number(const cJSON *json, const char *path, double value)
{
    const cJSON *item = get(json, path);
    if (!cJSON_IsNumber(item) || fabs(item->valuedouble - value) > 1e-9 * value)
        fail_msg("%s is %.17g", path, item->valuedouble);
}

static void assert_null_at(const cJSON *json, const char *path)
{
    if (!cJSON_IsNull(get(json, path))) fail_msg("%s is not null", path);
}

/* A fact: "yes", "no" or "unknown", and its source. */
static void assert_fact(const cJSON *json, const char *name, const char *value, const char *source)
{
    char path[64];

    snprintf(path, sizeof path, "facts.%s", name);
    const cJSON *fact = get(json, path), *given = get(fact, "value");
    const char *text = cJSON_IsNull(given) ? "unknown" : cJSON_IsTrue(given) ? "yes" : "no";
    if (strcmp(text, value) != 0) fail_msg("%s is %s, not %s", path, text, value);
    assert_text(fact, "source", source);
}

static char machines[256]; /* where they are unpacked; "machines" in the scratch folder */

static int make_folders_of_test(void **state)
{
    if (make_scratch(state) != 0 || make_machines_folder(machines, sizeof machines) != 0) return -1;
    return symlink(machines, at("machines"));
}

static int remove_folders_of_test(void **state)
{
    if (unlink(at("machines")) != 0 || ls_directory_remove(machines) != LS_OK) return -1;
    return remove_scratch(state);
}

/* Unpack a machine; its folder, as the program is told. */
static const char *unpack(const char *machine)
{
    static char paths[4][128];
    static unsigned next;
    char *path = paths[next++ % 4];

    unpack_machine(machine, at("machines/%s", machine));
    snprintf(path, sizeof paths[0], "machines/%s", machine);
    return path;
}

static cJSON *topo(const char *machine)
{
    return parse(RUN(0, "topo", "--json", "--from", unpack(machine))->out);
}

/* ---- each machine --------------------------------------------------------------------------- */

typedef struct expectation {
    const char *machine, *profile;
    int n_places, n_links, n_units;
    const char *c2c_link, *c2c_source, *coherent, *coherent_source, *hbm_is_numa, *numa_source;
} expectation;

static const expectation expectations[] = {
    {"gh200-480gb-numa", "gh200-96gb-480gb", 2, 1, 2, "yes", "spec", "yes", "discovered", "yes",
     "discovered"},
    {"gh200-480gb-cdmm", "gh200-96gb-480gb", 2, 1, 2, "yes", "spec", "yes", "discovered", "no",
     "discovered"},
    {"gh200-120gb", "gh200-96gb-120gb", 2, 1, 2, "yes", "spec", "yes", "discovered", "yes",
     "discovered"},
    {"gh200-quad", "gh200-96gb-120gb", 8, 22, 8, "yes", "spec", "yes", "discovered", "yes",
     "discovered"},
    {"gh200-nvl2", "gh200-144gb-480gb", 4, 5, 4, "yes", "spec", "yes", "discovered", "yes",
     "discovered"},
    {"x86-h200-pcie", "h200-pcie", 3, 3, 3, "no", "spec", "no", "spec", "no", "discovered"},
    {"hgx-h200", "h200-sxm", 10, 17, 10, "no", "spec", "no", "spec", "no", "discovered"},
    {"laptop", "cpu", 1, 0, 1, "no", "discovered", "no", "discovered", "no", "discovered"},
    {"container", "cpu", 1, 0, 1, "unknown", "unknown", "unknown", "unknown", "unknown", "unknown"},
};

static void test_machines(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof expectations / sizeof expectations[0]; i++) {
        const expectation *e = &expectations[i];
        cJSON *json = topo(e->machine);
        assert_text(json, "profile", e->profile);
        assert_int_equal(cJSON_GetArraySize(get(json, "places")), e->n_places);
        assert_int_equal(cJSON_GetArraySize(get(json, "links")), e->n_links);
        assert_int_equal(cJSON_GetArraySize(get(json, "units")), e->n_units);
        assert_fact(json, "c2c_link", e->c2c_link, e->c2c_source);
        assert_fact(json, "coherent", e->coherent, e->coherent_source);
        assert_fact(json, "hbm_is_numa", e->hbm_is_numa, e->numa_source);
        assert_true(cJSON_IsArray(get(json, "advice")));
        cJSON_Delete(json);
    }
}

/* The keys of the contract, with values of each kind of source. */
static void test_document(void **state)
{
    cJSON *json = topo("gh200-480gb-numa");
    const cJSON *hbm = named(json, "places", "hbm0"), *gpu = named(json, "units", "gpu0");
    const cJSON *link = link_of(json, "host0", "hbm0");

    (void)state;
    assert_text(hbm, "kind", "hbm");
    assert_number(hbm, "numa_node", 1);
    assert_number(hbm, "capacity_bytes", 97280 * 1048576.0);
    assert_text(hbm, "source", "discovered");
    assert_number(hbm, "free_bytes", (97280 - 600 - 20480) * 1048576.0);
    assert_number(hbm, "page_cache_bytes", 20480 * 1048576.0);
    assert_number(hbm, "page_bytes", 2097152);
    assert_text(hbm, "sources.page_bytes.source", "spec");
    assert_number(hbm, "read_bytes_per_s", 3.73e12);
    assert_text(hbm, "sources.read_bytes_per_s.source", "published");
    assert_number(link, "bytes_per_s", 378e9);
    assert_number(link, "reverse_bytes_per_s", 297e9);
    assert_number(link, "latency_ns", 818);
    assert_true(cJSON_IsTrue(get(link, "coherent")));
    assert_text(link, "source", "published");
    assert_text(link, "via", "c2c");
    assert_text(gpu, "kind", "gpu");
    assert_text(gpu, "model", "NVIDIA GH200 480GB");
    assert_text(gpu, "bus_id", "0009:01:00.0");
    assert_null_at(gpu, "cuda_device"); /* CUDA was not asked */
    assert_number(gpu, "bf16_flops_per_s", 989e12);
    assert_number(gpu, "cores", 132);
    assert_number(named(json, "units", "cpu0"), "cores", 72);
    assert_number(json, "system.huge_page_bytes", 512 << 20);
    assert_number(json, "system.memlock_bytes", 8388608);
    assert_text(json, "system.memory_limit_bytes", "unlimited");
    assert_true(cJSON_IsFalse(get(json, "system.numa_balancing")));
    assert_text(cJSON_GetArrayItem(get(json, "advice"), 0), "topic", "page_cache");
    assert_true(cJSON_IsTrue(get(cJSON_GetArrayItem(get(json, "advice"), 0), "needs_root")));
    cJSON_Delete(json);
}

/* What nobody told is null, its source "unknown". */
static void test_unknown(void **state)
{
    const char *from = unpack("gh200-480gb-cdmm");
    cJSON *json = parse(RUN(0, "topo", "--json", "--hardware", "none", "--from", from)->out);
    const cJSON *hbm = named(json, "places", "hbm0");

    (void)state;
    assert_null_at(json, "profile");
    assert_null_at(hbm, "numa_node");
    assert_null_at(hbm, "capacity_bytes");
    assert_text(hbm, "source", "unknown");
    assert_null_at(link_of(json, "host0", "hbm0"), "bytes_per_s");
    assert_text(link_of(json, "host0", "hbm0"), "source", "unknown");
    cJSON_Delete(json);
}

static void test_container(void **state)
{
    cJSON *json = topo("container");

    (void)state;
    assert_number(json, "system.memory_limit_bytes", 17179869184.0);
    assert_number(json, "system.memory_limit_used_bytes", 3221225472.0);
    assert_number(named(json, "places", "host0"), "capacity_bytes", 64000 * 1048576.0);
    cJSON_Delete(json);
}

/* ---- the table ------------------------------------------------------------------------------ */

static void test_table(void **state)
{
    const char *from = unpack("gh200-480gb-cdmm");
    const char *out = RUN(0, "topo", "--from", from)->out;

    (void)state;
    assert_says(out, "machine  machines/gh200-480gb-cdmm (aarch64, Linux 6.8.0-1021-nvidia; by ");
    assert_says(out, "profile  gh200-96gb-480gb: chosen by auto: gpu0 is 'NVIDIA GH200 480GB'");
    assert_says(out, "host0        0  478.6 GiB d ");
    assert_says(out, "hbm0         -  95.0 GiB p    unknown ");
    assert_says(out, "host0 > hbm0       378 GB/s p     297 GB/s p ");
    assert_says(out, "HBM is a NUMA node       no (discovered: nvidia driver)");
    assert_says(out, "  numa_balancing the kernel unmaps pages");
    assert_says(out, "[root]");
    assert_says(out, "  cuda           the driver can be asked on the machine itself only");
}

static void test_this_machine(void **state)
{
    (void)state;
    assert_says(RUN(0, "topo")->out, "machine  this machine (");
    cJSON *json = parse(RUN(0, "topo", "--json", "--hardware", "emulated-gh200")->out);
    assert_true(cJSON_IsTrue(get(named(json, "places", "hbm0"), "emulated")));
    assert_fact(json, "coherent", "yes", "profile");
    cJSON_Delete(json);
}

/* ---- snapshots ------------------------------------------------------------------------------ */

#define SNAPSHOT(...)                                                                              \
    start((const char *const[]){"/bin/bash", LS_SOURCE_DIR "/scripts/snapshot_machine.sh",         \
                                __VA_ARGS__, NULL})

/* Leave out what a moment changes, and what only the machine itself can tell. */
static void drop_passing(cJSON *json)
{
    cJSON *system = cJSON_GetObjectItem(json, "system"), *place;

    cJSON_DeleteItemFromObject(json, "machine");
    cJSON_DeleteItemFromObject(json, "missing"); /* the driver's libraries */
    cJSON_DeleteItemFromObject(system, "memory_limit_used_bytes");
    cJSON_DeleteItemFromObject(system, "nccl");
    cJSON_DeleteItemFromObject(cJSON_GetObjectItem(system, "sources"), "page_bytes"); /* sysconf */
    cJSON_ArrayForEach(place, cJSON_GetObjectItem(json, "places"))
    {
        cJSON_DeleteItemFromObject(place, "free_bytes");
        cJSON_DeleteItemFromObject(place, "page_cache_bytes");
        cJSON_DeleteItemFromObject(cJSON_GetObjectItem(place, "sources"), "page_bytes");
    }
}

static void test_snapshot(void **state)
{
    (void)state;
    assert_says(finish_as(0, SNAPSHOT("snapshot"))->out, "longspan topo --from snapshot");
    cJSON *here = parse(RUN(0, "topo", "--json")->out);
    cJSON *there = parse(RUN(0, "topo", "--json", "--from", "snapshot")->out);
    assert_text(there, "machine", "snapshot");
    drop_passing(here);
    drop_passing(there);
    if (!cJSON_Compare(here, there, 1))
        fail_msg("%s\nis not\n%s", cJSON_PrintUnformatted(there), cJSON_PrintUnformatted(here));
    cJSON_Delete(here);
    cJSON_Delete(there);
    assert_says(finish_as(2, SNAPSHOT("snapshot"))->err, "snapshot is there already");
    assert_says(finish_as(2, SNAPSHOT("-x"))->err, "scripts/snapshot_machine.sh DIR");
}

/* ---- machines in one file -------------------------------------------------------------------- */

#define UNPACK_AS(code, ...)                                                                       \
    finish_as((code),                                                                              \
              start((const char *const[]){"/bin/bash", LS_SOURCE_DIR "/scripts/unpack_machine.sh", \
                                          __VA_ARGS__, NULL}))

/* The script's folder is the tests' own, byte for byte. */
static void test_unpack(void **state)
{
    static const char *const names[] = {"gh200-quad", "x86-snc-cxl", "container"};
    static const char quad[] = MACHINES "/gh200-quad.tree";

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char file[512], folder[64], other[64];
        snprintf(file, sizeof file, MACHINES "/%s.tree", names[i]);
        snprintf(folder, sizeof folder, "machines/unpacked-%s", names[i]);
        snprintf(other, sizeof other, "machines/again-%s", names[i]);
        unpack_machine(names[i], at("%s", other));
        assert_says(UNPACK_AS(0, file, folder)->out, "longspan topo --from machines/unpacked-");
        finish_as(0, start((const char *const[]){"/usr/bin/diff", "-r", folder, other, NULL}));
    }
    assert_says(RUN(0, "topo", "--from", "machines/unpacked-gh200-quad")->out, "gpu3");
    assert_says(RUN(2, "topo", "--from", quad)->err,
                "gh200-quad.tree: a machine packed in one file; make its folder by "
                "'scripts/unpack_machine.sh FILE.tree DIR'");

    put_text(at("up.tree"), "/proc/a = 1\n/proc/../../x = 1\n");
    put_text(at("none.tree"), "# nothing\n");
    assert_says(UNPACK_AS(2, "up.tree", "up")->err, "up.tree:2: want PATH = TEXT, the path from /");
    assert_says(UNPACK_AS(2, "none.tree", "up")->err, "none.tree has no line PATH = TEXT");
    assert_says(UNPACK_AS(2, "no.tree", "up")->err, "no.tree: no such file");
    assert_false(is_there(at("up")));
    assert_says(UNPACK_AS(2, quad, "machines")->err, "machines is there already");
}

static void test_profile_alone(void **state)
{
    const char *file = LS_SOURCE_DIR "/configs/hardware/gh200-96gb-120gb.yaml";
    cJSON *json = parse(RUN(0, "topo", "--json", "--from", file)->out);

    (void)state;
    assert_text(json, "machine", "profile gh200-96gb-120gb");
    assert_number(named(json, "places", "host"), "read_bytes_per_s", 404e9);
    assert_fact(json, "hbm_is_numa", "unknown", "unknown");
    cJSON_Delete(json);
}

/* ---- refused -------------------------------------------------------------------------------- */

static void test_refused(void **state)
{
    (void)state;
    const char *from = unpack("x86-h200-pcie");
    put_text(at("bad.yaml"), "name: bad\nplaces:\n  - {kind: hbm, capacity_bytes: 7}\n");
    put_text(at("broken.xml"), "<topology version=\"2.0\"><object");
    assert_says(RUN(2, "topo", "--from", "nowhere")->err, "nowhere: No such file");
    assert_says(RUN(2, "topo", "--from", "text-train")->err, "no sys/devices/system below it");
    assert_says(RUN(2, "topo", "--hardware", "abacus")->err, "'abacus' is no profile");
    assert_says(RUN(2, "topo", "--hardware", "bad.yaml")->err,
                "bad.yaml:3: places[0].capacity_bytes: wants {value: ..., source: ...}");
    assert_says(RUN(2, "topo", "--from", "bad.yaml")->err, "bad.yaml:3: places[0]");
    assert_says(RUN(2, "topo", "--from", from, "--hardware", "gh200-96gb-480gb")->err,
                "profile gh200-96gb-480gb (built in) contradicts machines/x86-h200-pcie: it is for "
                "a GPU with GH200 "
                "in its name, gpu0 here is 'NVIDIA H200 NVL'");
    assert_says(RUN(2, "topo", "extra")->err, "takes no 'extra'");
    assert_says(RUN(2, "topo", "--set", "seed=1")->err, "there is no run file here");
    assert_says(RUN(0, "topo", "--help")->out, "example:");
#if LS_HAVE_HWLOC
    assert_says(RUN(2, "topo", "--from", "broken.xml")->err, "broken.xml: hwloc ");
#else
    assert_says(RUN(2, "topo", "--from", "broken.xml")->err, "this build has no hwloc");
#endif
}

/* ---- the driver ----------------------------------------------------------------------------- */

/* How many of the two libraries are said to be missing; in which words, if they are. */
static int count_missing_drivers(const cJSON *json)
{
    const cJSON *item;
    int n = 0;

    cJSON_ArrayForEach(item, get(json, "missing"))
    {
        const bool cuda = strcmp(get(item, "what")->valuestring, "cuda") == 0;
        const bool nvml = strcmp(get(item, "what")->valuestring, "nvml") == 0;
        n += cuda || nvml;
        if (cuda) assert_text(item, "why", "libcuda.so.1 starts no device: error 100 (no GPU)");
        if (nvml) assert_text(item, "why", "libnvidia-ml.so.1 does not start: error 9");
    }
    return n;
}

static void test_driver(void **state)
{
    (void)state;
    assert_int_equal(setenv("LD_LIBRARY_PATH", LS_BINARY_DIR "/fake_driver", 1), 0);
    cJSON *json = parse(RUN(0, "topo", "--json", "--hardware", "none")->out);
    assert_int_equal(setenv("FAKE_DRIVER", "broken", 1), 0);
    cJSON *broken = parse(RUN(0, "topo", "--json", "--hardware", "none")->out);
    assert_int_equal(unsetenv("FAKE_DRIVER"), 0);
    assert_int_equal(unsetenv("LD_LIBRARY_PATH"), 0);

    const cJSON *gpu = named(json, "units", "gpu0"), *hbm = named(json, "places", "hbm0");
    assert_int_equal(count_missing_drivers(json), 0);
    assert_text(json, "system.nccl", "2.28.9");
    assert_text(gpu, "bus_id", "0009:01:00.0"); /* both libraries speak of one GPU */
    assert_text(gpu, "model", "NVIDIA GH200 480GB");
    assert_int_equal(get(gpu, "cuda_device")->valueint, 0);
    assert_number(gpu, "cores", 132);
    assert_number(gpu, "host_node", 0);
    assert_text(gpu, "sources.host_node.from", "cuda");
    assert_number(gpu, "power_cap_watts", 700);
    assert_number(gpu, "power_cap_watts_max", 900);
    const cJSON *module = named(get(json, "system"), "power_caps", "module");
    assert_number(module, "watts", 1000);
    assert_null_at(module, "watts_max");
    assert_number(hbm, "capacity_bytes", 102005473280.0);
    assert_number(hbm, "free_bytes", 101000000000.0);
    assert_number(hbm, "numa_node", 1);
    assert_fact(json, "c2c_link", "yes", "discovered");
    assert_text(json, "facts.c2c_link.from", "nvml");
    assert_text(json, "facts.coherent.from", "cuda");
    assert_text(json, "facts.hbm_is_numa.from", "cuda");
    assert_int_equal(count_missing_drivers(broken), 2);
    cJSON_Delete(json);
    cJSON_Delete(broken);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machines),      cmocka_unit_test(test_document),
        cmocka_unit_test(test_unknown),       cmocka_unit_test(test_container),
        cmocka_unit_test(test_table),         cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_profile_alone), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_driver),        cmocka_unit_test(test_snapshot),
        cmocka_unit_test(test_unpack),
    };
    return cmocka_run_group_tests(tests, make_folders_of_test, remove_folders_of_test);
}
