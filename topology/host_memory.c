/*
 * host_memory.c - limits from /proc/meminfo, cgroups and NUMA nodes.
 *
 * A cgroup is limited by all folders above it, so each is looked at, from the process's own up to
 * the root of the mount.  In a container that mount may begin below the hierarchy's root, and
 * /proc/self/mountinfo tells where.
 */
#define _GNU_SOURCE /* NOLINT: the libc's name; for getline */
#include "host_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include "discover.h"

#define PATH_BYTES   4096
#define FOLDER_SHOWN (LS_HOST_MEMORY_SOURCE_BYTES - 32) /* of a longer path the beginning */
#define STAT_BYTES   16384
#define NODES        "/sys/devices/system/node"
#define V1_NO_LIMIT  (INT64_C(1) << 62) /* "no limit" is written as a number beyond this */

static void keep_smaller(ls_host_memory *memory, const ls_host_memory *other)
{
    ls_host_memory kept = *other;

    kept.available_bytes =
        kept.limit_bytes > kept.used_bytes ? kept.limit_bytes - kept.used_bytes : 0;
    if (kept.available_bytes < memory->available_bytes) *memory = kept;
}

static FILE *open_below(const char *root, const char *path)
{
    char full[PATH_BYTES];

    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full) return NULL;
    return fopen(full, "re");
}

/* "KEY: 123 kB" in bytes. */
static bool read_kib(const char *text, const char *key, uint64_t *bytes)
{
    const char *value = ls_sysfs_line(text, key);
    uint64_t kib;

    if (value == NULL || sscanf(value, "%" SCNu64, &kib) != 1) return false;
    *bytes = kib * 1024;
    return true;
}

static void keep_available(const char *root, ls_host_memory *memory)
{
    ls_host_memory machine = {.limit = "MemAvailable", .source = "/proc/meminfo"};
    char text[LS_SYSFS_BYTES];

    if (ls_sysfs_text(text, sizeof text, root, "/proc/meminfo") &&
        read_kib(text, "MemAvailable:", &machine.limit_bytes))
        keep_smaller(memory, &machine);
}

static void keep_address_space(const char *root, ls_host_memory *memory)
{
    ls_host_memory space = {.limit = "address space limit (ulimit -v)"};
    struct rlimit limit;
    char text[256];
    uint64_t pages;

    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    space.limit_bytes = limit.rlim_cur;
    if (ls_sysfs_text(text, sizeof text, root, "/proc/self/statm") &&
        sscanf(text, "%" SCNu64, &pages) == 1)
        space.used_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    keep_smaller(memory, &space);
}

/* ---- cgroups -------------------------------------------------------------------------------- */

/* How a version of cgroups names its files. */
typedef struct hierarchy {
    const char *controller, *fs_type, *mount; /* mount: where mountinfo tells nothing */
    const char *limits[2], *used;
    const char *caches[2]; /* in memory.stat: files that can be given back */
} hierarchy;

static const hierarchy hierarchies[] = {
    {"",
     "cgroup2",
     "/sys/fs/cgroup",
     {"memory.max", "memory.high"},
     "memory.current",
     {"active_file ", "inactive_file "}},
    {"memory",
     "cgroup",
     "/sys/fs/cgroup/memory",
     {"memory.limit_in_bytes", NULL},
     "memory.usage_in_bytes",
     {"total_active_file ", "total_inactive_file "}},
};

/* Whether word is one of the words of a list that commas part; "" is a list of "" alone. */
static bool is_listed(const char *list, size_t length, const char *word)
{
    const size_t word_length = strlen(word);

    for (const char *at = list, *end = list + length; at <= end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma != NULL ? comma : end;
        if ((size_t)(stop - at) == word_length && memcmp(at, word, word_length) == 0) return true;
        at = stop + 1;
    }
    return false;
}

/* The cgroup of this process, "/a/b"; lines are "ID:CONTROLLERS:PATH". */
static bool find_cgroup(const char *root, const hierarchy *h, char path[PATH_BYTES])
{
    FILE *file = open_below(root, "/proc/self/cgroup");
    char *line = NULL;
    size_t size = 0;
    bool found = false;

    if (file == NULL) return false;
    while (!found && getline(&line, &size, file) > 0) {
        const char *names = strchr(line, ':');
        const char *end = names != NULL ? strchr(names + 1, ':') : NULL;
        if (end == NULL || !is_listed(names + 1, (size_t)(end - names - 1), h->controller))
            continue;
        snprintf(path, PATH_BYTES, "%.*s", (int)strcspn(end + 1, "\n"), end + 1);
        found = true;
    }
    free(line);
    fclose(file);
    return found;
}

/* What of the hierarchy is mounted (top, "/" or "/docker/1f3a") and where. */
static bool read_mount(const char *line, const hierarchy *h, char top[PATH_BYTES],
                       char mount[PATH_BYTES])
{
    char type[32], options[256];
    const char *rest = strstr(line, " - ");

    if (rest == NULL || sscanf(rest, " - %31s %*s %255s", type, options) != 2) return false;
    if (strcmp(type, h->fs_type) != 0) return false;
    if (h->controller[0] != '\0' && !is_listed(options, strlen(options), h->controller))
        return false;
    return sscanf(line, "%*s %*s %*s %4095s %4095s", top, mount) == 2;
}

static void find_mount(const char *root, const hierarchy *h, char top[PATH_BYTES],
                       char mount[PATH_BYTES])
{
    FILE *file = open_below(root, "/proc/self/mountinfo");
    char *line = NULL;
    size_t size = 0;
    bool found = false;

    while (file != NULL && !found && getline(&line, &size, file) > 0)
        found = read_mount(line, h, top, mount);
    if (!found) {
        snprintf(top, PATH_BYTES, "/");
        snprintf(mount, PATH_BYTES, "%s", h->mount);
    }
    free(line);
    if (file != NULL) fclose(file);
}

/* The path below what is mounted: what the mount hides above it cannot be read. */
static const char *cut_top(const char *path, const char *top)
{
    const size_t length = strcmp(top, "/") == 0 ? 0 : strlen(top);

    if (strstr(path, "/..") != NULL || strncmp(path, top, length) != 0) return "";
    if (path[length] != '/' && path[length] != '\0') return "";
    return strcmp(path + length, "/") == 0 ? "" : path + length;
}

static void keep_cgroup(const char *root, const hierarchy *h, const char *folder,
                        ls_host_memory *memory)
{
    char stat[STAT_BYTES];
    int64_t limit, used = 0;
    uint64_t cached = 0;

    ls_sysfs_whole(&used, root, "%s/%s", folder, h->used);
    if (ls_sysfs_text(stat, sizeof stat, root, "%s/memory.stat", folder))
        for (int c = 0; c < 2; c++) {
            const char *value = ls_sysfs_line(stat, h->caches[c]);
            if (value != NULL) cached += strtoull(value, NULL, 10);
        }
    for (int l = 0; l < 2 && h->limits[l] != NULL; l++) {
        ls_host_memory cgroup = {.limit = "cgroup memory limit"};
        if (!ls_sysfs_whole(&limit, root, "%s/%s", folder, h->limits[l])) continue;
        if (limit < 0 || limit >= V1_NO_LIMIT) continue;
        cgroup.limit_bytes = (uint64_t)limit;
        cgroup.used_bytes = (uint64_t)used > cached ? (uint64_t)used - cached : 0;
        snprintf(cgroup.source, sizeof cgroup.source, "%.*s/%s", FOLDER_SHOWN, folder,
                 h->limits[l]);
        keep_smaller(memory, &cgroup);
    }
}

static void keep_cgroups(const char *root, const hierarchy *h, ls_host_memory *memory)
{
    char path[PATH_BYTES], top[PATH_BYTES], mount[PATH_BYTES], folder[2 * PATH_BYTES];

    if (!find_cgroup(root, h, path)) return;
    find_mount(root, h, top, mount);
    snprintf(folder, sizeof folder, "%s%s", mount, cut_top(path, top));
    const size_t mount_length = strlen(mount);
    for (;;) {
        keep_cgroup(root, h, folder, memory);
        if (strlen(folder) <= mount_length) return;
        *strrchr(folder, '/') = '\0';
    }
}

ls_host_memory ls_host_memory_read_at(const char *root)
{
    ls_host_memory memory = {
        .available_bytes = UINT64_MAX, .limit = "no limit", .limit_bytes = UINT64_MAX};

    keep_available(root, &memory);
    for (size_t h = 0; h < sizeof hierarchies / sizeof hierarchies[0]; h++)
        keep_cgroups(root, &hierarchies[h], &memory);
    keep_address_space(root, &memory);
    return memory;
}

ls_host_memory ls_host_memory_read(void)
{
    return ls_host_memory_read_at("");
}

/* ---- one NUMA node -------------------------------------------------------------------------- */

/* The largest number in "protection: (0, 1872, 1872)": pages held back for other zones. */
static uint64_t read_protection(const char *line)
{
    uint64_t most = 0;

    for (const char *at = strchr(line, '('); at != NULL; at = strchr(at + 1, ',')) {
        const uint64_t pages = strtoull(at + 1, NULL, 10);
        if (pages > most) most = pages;
    }
    return most;
}

/* Bytes of a node that the kernel does not give to programs: by zone its high watermark and what
 * it protects, the same sum as in MemAvailable. */
static uint64_t read_node_reserve(const char *root, int node)
{
    FILE *file = open_below(root, "/proc/zoneinfo");
    char *line = NULL;
    size_t size = 0;
    int of = -1;
    uint64_t pages = 0, high;

    if (file == NULL) return 0;
    while (getline(&line, &size, file) > 0) {
        if (sscanf(line, "Node %d, zone", &of) == 1 || of != node) continue;
        if (sscanf(line, " high %" SCNu64, &high) == 1) pages += high;
        if (strstr(line, "protection:") != NULL) pages += read_protection(line);
    }
    free(line);
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Files of a node that can be given back; shared memory counts as FilePages and cannot. */
static uint64_t read_node_cache(const char *meminfo, int node)
{
    const double active = ls_sysfs_node_bytes(meminfo, node, "Active(file)");
    const double inactive = ls_sysfs_node_bytes(meminfo, node, "Inactive(file)");
    const double files = ls_sysfs_node_bytes(meminfo, node, "FilePages");
    const double shared = ls_sysfs_node_bytes(meminfo, node, "Shmem");

    if (active >= 0 && inactive >= 0) return (uint64_t)(active + inactive);
    return files > shared && shared >= 0 ? (uint64_t)(files - shared) : 0;
}

bool ls_host_memory_read_node(const char *root, int node, ls_host_memory *memory)
{
    ls_host_memory read = {.limit = "NUMA node"};
    char text[LS_SYSFS_BYTES];

    if (!ls_sysfs_text(text, sizeof text, root, NODES "/node%d/meminfo", node)) return false;
    const double total = ls_sysfs_node_bytes(text, node, "MemTotal");
    const double unused = ls_sysfs_node_bytes(text, node, "MemFree");
    if (total <= 0 || unused < 0) return false;
    const uint64_t room = (uint64_t)unused + read_node_cache(text, node);
    const uint64_t reserve = read_node_reserve(root, node);
    const uint64_t available = room > reserve ? room - reserve : 0;

    read.limit_bytes = (uint64_t)total;
    read.used_bytes = read.limit_bytes > available ? read.limit_bytes - available : 0;
    snprintf(read.source, sizeof read.source, NODES "/node%d/meminfo", node);
    read.available_bytes = read.limit_bytes - read.used_bytes;
    *memory = read;
    return true;
}
