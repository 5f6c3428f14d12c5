/*
 * test_host_memory.c - the least of what limits host memory, in machines made of files: cgroups of
 * both versions with limits at any level, containers, NUMA nodes.
 */
#include "machine_test.h"

#include <unistd.h>

#include "host_memory.h"

#define MIB ((uint64_t)1 << 20)
#define V1  "/sys/fs/cgroup/memory"
#define V2  "/sys/fs/cgroup"

static char root[256];

static void put(const char *path, const char *text)
{
    put_machine_file(root, path, text);
}

static int set_up(void **state)
{
    (void)state;
    if (make_machines_folder(root, sizeof root) != 0) return -1;
    put("/proc/meminfo", "MemTotal: 1048576 kB\nMemFree: 1 kB\nMemAvailable:  524288 kB");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return ls_directory_remove(root) == LS_OK ? 0 : -1;
}

static void check_limit(uint64_t mib, const char *limit, const char *source)
{
    const ls_host_memory memory = ls_host_memory_read_at(root);
    assert_string_equal(memory.limit, limit);
    assert_string_equal(memory.source, source);
    assert_int_equal(memory.available_bytes, mib * MIB);
    assert_int_equal(memory.limit_bytes - memory.used_bytes, mib * MIB);
}

#define CHECK_CGROUP(mib, source) check_limit(mib, "cgroup memory limit", source)

static void put_v2(const char *at, const char *max, const char *current)
{
    char path[256];
    snprintf(path, sizeof path, V2 "%s/memory.max", at);
    put(path, max);
    snprintf(path, sizeof path, V2 "%s/memory.current", at);
    put(path, current);
}

static void put_v1(const char *at, const char *limit, const char *used)
{
    char path[256];
    snprintf(path, sizeof path, V1 "%s/memory.limit_in_bytes", at);
    put(path, limit);
    snprintf(path, sizeof path, V1 "%s/memory.usage_in_bytes", at);
    put(path, used);
}

static void test_no_cgroup(void **state)
{
    (void)state;
    check_limit(512, "MemAvailable", "/proc/meminfo");
    put("/proc/self/cgroup", "0::/job\n7:memory:/job");
    check_limit(512, "MemAvailable", "/proc/meminfo");
}

static void test_nothing_known(void **state)
{
    (void)state;
    put("/proc/meminfo", "MemTotal: 1048576 kB"); /* kernels before 3.14 */
    put("/proc/self/cgroup", "4:memory:/a");
    put_v1("/a", "9223372036854771712", "5");
    const ls_host_memory memory = ls_host_memory_read_at(root);
    assert_string_equal(memory.limit, "no limit");
    assert_true(memory.available_bytes == UINT64_MAX);
}

/* 200, 100 and 150 MiB left at the levels; each is in turn the least. */
static void test_every_level_of_v2(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/slurm/job/step");
    put_v2("", "max", "999");
    put_v2("/slurm", "314572800", "104857600");
    put_v2("/slurm/job", "157286400", "52428800");
    put_v2("/slurm/job/step", "max", "52428800");
    CHECK_CGROUP(100, V2 "/slurm/job/memory.max");
    put_v2("/slurm/job/step", "104857600", "52428800");
    CHECK_CGROUP(50, V2 "/slurm/job/step/memory.max");
    put_v2("/slurm", "314572800", "303038464");
    CHECK_CGROUP(11, V2 "/slurm/memory.max");
    put_v2("", "314572800", "304087040"); /* a namespace's own root has files */
    CHECK_CGROUP(10, V2 "/memory.max");
    put_v2("/slurm/job", "157286400", "209715200"); /* lowered below what is in use */
    const ls_host_memory memory = ls_host_memory_read_at(root);
    assert_int_equal(memory.available_bytes, 0);
}

static void test_high_throttles(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/a");
    put_v2("/a", "209715200", "0");
    put(V2 "/a/memory.high", "max");
    CHECK_CGROUP(200, V2 "/a/memory.max");
    put(V2 "/a/memory.high", "104857600");
    CHECK_CGROUP(100, V2 "/a/memory.high");
}

/* Cached files are given back when memory is short; what is in shared memory is not. */
static void test_cached_files_are_not_used(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/a\n4:memory:/a");
    put_v2("/a", "209715200", "157286400");
    put(V2 "/a/memory.stat", "anon 9\nfile 99999999999\nshmem 5\ninactive_anon 7\nactive_anon 7\n"
                             "inactive_file 52428800\nactive_file 20971520\nunevictable 3");
    CHECK_CGROUP(120, V2 "/a/memory.max");
    put_v1("/a", "104857600", "104857600");
    put(V1 "/a/memory.stat",
        "cache 5\nactive_file 1\ninactive_file 1\ntotal_inactive_file 1048576\n"
        "total_active_file 2097152");
    CHECK_CGROUP(3, V1 "/a/memory.limit_in_bytes");
}

static void test_every_level_of_v1(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "9:name=systemd:/x\n4:cpuset,memory:/job/step\n0::/");
    put_v1("", "9223372036854771712", "5");
    put_v1("/job", "209715200", "104857600");
    put_v1("/job/step", "9223372036854771712", "5");
    CHECK_CGROUP(100, V1 "/job/memory.limit_in_bytes");
    put_v1("/job/step", "20971520", "0");
    CHECK_CGROUP(20, V1 "/job/step/memory.limit_in_bytes");
    put_v1("", "10485760", "0");
    CHECK_CGROUP(10, V1 "/memory.limit_in_bytes");
    put("/proc/self/cgroup", "4:cpuset,memory_pressure:/job"); /* no memory controller */
    check_limit(512, "MemAvailable", "/proc/meminfo");
}

/* A container sees the hierarchy from its own folder down, under the path that the host knows. */
static void test_container(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "4:memory:/docker/1f3a/sub");
    put("/proc/self/mountinfo",
        "30 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
        "31 30 0:29 /docker/1f3a /sys/fs/cgroup/cpu rw shared:7 - cgroup cgroup rw,cpu\n"
        "35 30 0:32 /docker/1f3a /sys/fs/cgroup/memory ro master:8 - cgroup cgroup rw,memory");
    put_v1("", "104857600", "0");
    put_v1("/sub", "9223372036854771712", "0");
    CHECK_CGROUP(100, V1 "/memory.limit_in_bytes");
    put_v1("/sub", "52428800", "0");
    CHECK_CGROUP(50, V1 "/sub/memory.limit_in_bytes");
    put("/proc/self/cgroup", "4:memory:/docker/1f3abc/sub"); /* not below what is mounted */
    CHECK_CGROUP(100, V1 "/memory.limit_in_bytes");
    put("/proc/self/cgroup", "4:memory:/../other");
    CHECK_CGROUP(100, V1 "/memory.limit_in_bytes");
}

static void test_v2_mounted_elsewhere(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/a");
    put("/proc/self/mountinfo",
        "31 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 30 0:38 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate");
    put(V2 "/unified/a/memory.max", "104857600");
    put_v2("/a", "1", "0"); /* not a cgroup */
    CHECK_CGROUP(100, V2 "/unified/a/memory.max");
}

/* ---- nodes ---------------------------------------------------------------------------------- */

#define NODE1 "/sys/devices/system/node/node1/meminfo"

static uint64_t read_node_mib(int node)
{
    ls_host_memory memory;

    assert_true(ls_host_memory_read_node(root, node, &memory));
    assert_string_equal(memory.limit, "NUMA node");
    assert_string_equal(memory.source, NODE1);
    assert_int_equal(memory.limit_bytes, 1024 * MIB);
    assert_int_equal(memory.limit_bytes - memory.used_bytes, memory.available_bytes);
    assert_int_equal(memory.available_bytes % MIB, 0);
    return memory.available_bytes / MIB;
}

static void test_node(void **state)
{
    (void)state;
    put(NODE1, "Node 1 MemTotal:     1048576 kB\nNode 1 MemFree:     102400 kB\n"
               "Node 1 FilePages: 51200 kB\nNode 1 Shmem: 20480 kB");
    assert_int_equal(read_node_mib(1), 130);
    put(NODE1, "Node 1 MemTotal: 1048576 kB\nNode 1 MemFree: 102400 kB\n"
               "Node 1 Active(file): 10240 kB\nNode 1 Inactive(file): 5120 kB\n"
               "Node 1 FilePages: 999999 kB\nNode 1 Shmem: 0 kB");
    assert_int_equal(read_node_mib(1), 115);
}

/* What a zone protects and its high watermark are not for programs. */
static void test_node_reserve(void **state)
{
    (void)state;
    char text[1024];
    const unsigned mib = (unsigned)(MIB / (uint64_t)sysconf(_SC_PAGESIZE));

    put(NODE1, "Node 1 MemTotal: 1048576 kB\nNode 1 MemFree: 102400 kB");
    snprintf(text, sizeof text,
             "Node 0, zone   DMA\n  pages free 7\n        high     %u\n        protection: (0, 9)\n"
             "Node 1, zone   DMA32\n  pages free 7\n        min 1\n        high     %u\n"
             "        protection: (0, 0, %u, %u)\n  pagesets\n    cpu: 0\n      high:  999999\n"
             "Node 1, zone   Normal\n        high     %u\n        protection: (0, 0, 0, 0)\n"
             "Node 2, zone   Normal\n        high     %u",
             9 * mib, 2 * mib, 4 * mib, 3 * mib, mib, 9 * mib);
    put("/proc/zoneinfo", text);
    assert_int_equal(read_node_mib(1), 100 - 2 - 4 - 1);
    put(NODE1, "Node 1 MemTotal: 1048576 kB\nNode 1 MemFree: 1024 kB");
    assert_int_equal(read_node_mib(1), 0);
}

static void test_no_node(void **state)
{
    (void)state;
    ls_host_memory memory = {.available_bytes = 42};

    assert_false(ls_host_memory_read_node(root, 1, &memory));
    put(NODE1, "Node 1 MemTotal: 0 kB\nNode 1 MemFree: 0 kB"); /* a spare node of a GH200 */
    assert_false(ls_host_memory_read_node(root, 1, &memory));
    put(NODE1, "");
    assert_false(ls_host_memory_read_node(root, 1, &memory));
    assert_false(ls_host_memory_read_node(root, -1, &memory));
    assert_int_equal(memory.available_bytes, 42);
}

static void test_this_machine(void **state)
{
    (void)state;
    const ls_host_memory memory = ls_host_memory_read();
    assert_true(memory.available_bytes > 0 && memory.available_bytes < UINT64_MAX);
    assert_true(memory.source[0] == '/' || strstr(memory.limit, "ulimit") != NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_no_cgroup),
        TEST(test_nothing_known),
        TEST(test_every_level_of_v2),
        TEST(test_high_throttles),
        TEST(test_cached_files_are_not_used),
        TEST(test_every_level_of_v1),
        TEST(test_container),
        TEST(test_v2_mounted_elsewhere),
        TEST(test_node),
        TEST(test_node_reserve),
        TEST(test_no_node),
        TEST(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
