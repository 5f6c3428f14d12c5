/* host_cores.c - cpulist of the node, thread_siblings_list and cache of each of its CPUs. */
#define _GNU_SOURCE /* NOLINT: the libc's name; for CPU sets */
#include "host_cores.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "discover.h"

#define CPUS          "/sys/devices/system/cpu"
#define CACHE_INDICES 8

int ls_cpu_list_parse(const char *text, unsigned char flags[LS_CORES_MAX])
{
    int n = 0;

    while (*text != '\0') {
        char *end;
        const long first = strtol(text, &end, 10);
        long last = first;
        if (end == text || first < 0) break;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        for (long cpu = first; cpu <= last && cpu < LS_CORES_MAX; cpu++) {
            n += !flags[cpu];
            flags[cpu] = 1;
        }
        if (*end != ',') break;
        text = end + 1;
    }
    return n;
}

static void read_affinity(unsigned char flags[LS_CORES_MAX])
{
    cpu_set_t set;

    memset(flags, 1, LS_CORES_MAX); /* more CPUs than a set holds: all are tried */
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    for (int cpu = 0; cpu < LS_CORES_MAX; cpu++)
        flags[cpu] = cpu < CPU_SETSIZE && CPU_ISSET((size_t)cpu, &set);
}

static void read_node(const char *root, int numa_node, unsigned char flags[LS_CORES_MAX])
{
    char text[LS_SYSFS_BYTES];

    memset(flags, 0, LS_CORES_MAX);
    if (ls_sysfs_text(text, sizeof text, root, "/sys/devices/system/node/node%d/cpulist",
                      numa_node) ||
        ls_sysfs_text(text, sizeof text, root, CPUS "/online"))
        ls_cpu_list_parse(text, flags);
    else
        memset(flags, 1, LS_CORES_MAX);
}

/* Clear the flags of the other hardware threads of this core. */
static void drop_siblings(const char *root, int cpu, unsigned char flags[LS_CORES_MAX])
{
    unsigned char siblings[LS_CORES_MAX] = {0};
    char text[LS_SYSFS_BYTES];

    if (!ls_sysfs_text(text, sizeof text, root, CPUS "/cpu%d/topology/thread_siblings_list", cpu))
        return;
    ls_cpu_list_parse(text, siblings);
    for (int other = cpu + 1; other < LS_CORES_MAX; other++)
        if (siblings[other]) flags[other] = 0;
}

/* The index of the cache of the highest level, or -1. */
static int find_last_level(const char *root, int cpu)
{
    int64_t level, level_most = 0;
    int last = -1;

    for (int i = 0; i < CACHE_INDICES; i++) {
        if (!ls_sysfs_whole(&level, root, CPUS "/cpu%d/cache/index%d/level", cpu, i) ||
            level <= level_most)
            continue;
        level_most = level;
        last = i;
    }
    return last;
}

/* "117504K" */
static uint64_t parse_size(const char *text)
{
    char *unit;
    const uint64_t number = strtoull(text, &unit, 10);
    return number << (*unit == 'M' ? 20 : *unit == 'K' ? 10 : 0);
}

/* The last-level caches of all cores, each counted once. */
static uint64_t sum_caches(const char *root, const ls_host_cores *cores)
{
    unsigned char counted[LS_CORES_MAX] = {0};
    char text[LS_SYSFS_BYTES];
    uint64_t bytes = 0;

    for (int c = 0; c < cores->n; c++) {
        const int cpu = cores->cpus[c], index = counted[cpu] ? -1 : find_last_level(root, cpu);
        if (index < 0) continue;
        if (ls_sysfs_text(text, sizeof text, root, CPUS "/cpu%d/cache/index%d/shared_cpu_list", cpu,
                          index))
            ls_cpu_list_parse(text, counted);
        if (ls_sysfs_text(text, sizeof text, root, CPUS "/cpu%d/cache/index%d/size", cpu, index))
            bytes += parse_size(text);
    }
    return bytes;
}

ls_status ls_host_cores_find(const char *root, int numa_node, const unsigned char *allowed,
                             ls_host_cores *cores)
{
    unsigned char flags[LS_CORES_MAX], affinity[LS_CORES_MAX];
    ls_host_cores found = {.n = 0};

    read_node(root, numa_node, flags);
    if (allowed == NULL) {
        read_affinity(affinity);
        allowed = affinity;
    }
    for (int cpu = 0; cpu < LS_CORES_MAX; cpu++) flags[cpu] = flags[cpu] && allowed[cpu];
    for (int cpu = 0; cpu < LS_CORES_MAX; cpu++) {
        if (!flags[cpu]) continue;
        found.cpus[found.n++] = cpu;
        drop_siblings(root, cpu, flags);
    }
    if (found.n == 0)
        return LS_FAIL(LS_ERR_UNSUPPORTED,
                       "NUMA node %d has no CPU that this process may use, so that its memory "
                       "cannot be measured from near; see taskset -p and the job's cpuset",
                       numa_node);
    found.cache_bytes = sum_caches(root, &found);
    *cores = found;
    return LS_OK;
}
