/* host_memory.c - limits from /proc/meminfo and cgroups, each a text file with one number. */
#include "host_memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define PATH_BYTES 512

static bool read_number(const char *path, uint64_t *number)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    const bool found = fscanf(file, "%" SCNu64, number) == 1; /* "max" is no number: no limit */
    fclose(file);
    return found;
}

static bool read_mem_available(uint64_t *bytes)
{
    char line[256];
    bool found = false;
    FILE *file = fopen("/proc/meminfo", "re");

    if (file == NULL) return false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        uint64_t kib;
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1) {
            *bytes = kib * 1024;
            found = true;
        }
    }
    fclose(file);
    return found;
}

/* The cgroup path of this process: v2 has the line "0::/path". */
static bool read_cgroup_path(char *path, size_t path_bytes)
{
    char line[PATH_BYTES];
    bool found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");

    if (file == NULL) return false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::", 3) == 0) {
            snprintf(path, path_bytes, "%s", line + 3);
            found = true;
        }
    }
    fclose(file);
    return found;
}

static void keep_smaller(ls_host_memory *memory, uint64_t limit, uint64_t used, const char *name)
{
    const uint64_t free_bytes = limit > used ? limit - used : 0;
    if (free_bytes < memory->available_bytes) {
        memory->available_bytes = free_bytes;
        memory->limit = name;
    }
}

ls_host_memory ls_host_memory_read(void)
{
    ls_host_memory memory = {UINT64_MAX, "no limit"};
    char cgroup[PATH_BYTES], path[2 * PATH_BYTES];
    uint64_t limit, used;

    if (read_mem_available(&limit)) keep_smaller(&memory, limit, 0, "MemAvailable");
    if (read_cgroup_path(cgroup, sizeof cgroup)) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", cgroup);
        if (read_number(path, &limit)) {
            snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", cgroup);
            keep_smaller(&memory, limit, read_number(path, &used) ? used : 0,
                         "cgroup memory limit");
        }
    }
    if (read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", &limit) &&
        read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes", &used))
        keep_smaller(&memory, limit, used, "cgroup memory limit");

    struct rlimit address_space;
    if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY)
        keep_smaller(&memory, (uint64_t)address_space.rlim_cur, 0,
                     "address space limit (ulimit -v)");
    return memory;
}
