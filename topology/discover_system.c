/* discover_system.c - pages, limits and kernel settings that decide how fast memory is. */
#define _GNU_SOURCE /* NOLINT: the libc's name; for scandir */
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "discover.h"

#define HUGE   "/sys/kernel/mm/hugepages"
#define THP    "/sys/kernel/mm/transparent_hugepage"
#define NO_END ((int64_t)1 << 62) /* cgroup v1 writes "no limit" as a number beyond this */

/* ---- pages ---------------------------------------------------------------------------------- */

/* The word in brackets: "always [madvise] never". */
static void read_choice(char *choice, size_t size, const char *root, const char *path)
{
    char text[256];

    choice[0] = '\0';
    if (!ls_sysfs_text(text, sizeof text, root, "%s", path)) return;
    const char *from = strchr(text, '['), *to = from != NULL ? strchr(from, ']') : NULL;
    if (to != NULL) snprintf(choice, size, "%.*s", (int)(to - from - 1), from + 1);
}

static int by_size(const void *a, const void *b)
{
    const uint64_t x = ((const ls_huge_size *)a)->bytes, y = ((const ls_huge_size *)b)->bytes;
    return x < y ? -1 : x > y;
}

static void read_huge_sizes(const char *root, ls_system *system)
{
    char path[LS_SYSFS_BYTES];
    const struct dirent *entry;

    if (snprintf(path, sizeof path, "%s" HUGE, root) >= (int)sizeof path) return;
    DIR *folder = opendir(path);
    if (folder == NULL) return;
    while ((entry = readdir(folder)) != NULL && system->n_huge_sizes < LS_HUGE_SIZES_MAX) {
        ls_huge_size *size = &system->huge_sizes[system->n_huge_sizes];
        uint64_t kib;
        if (sscanf(entry->d_name, "hugepages-%" SCNu64 "kB", &kib) != 1) continue;
        size->bytes = kib * 1024;
        if (ls_sysfs_whole(&size->total, root, HUGE "/%s/nr_hugepages", entry->d_name) &&
            ls_sysfs_whole(&size->free, root, HUGE "/%s/free_hugepages", entry->d_name))
            system->n_huge_sizes++;
    }
    closedir(folder);
    qsort(system->huge_sizes, (size_t)system->n_huge_sizes, sizeof system->huge_sizes[0], by_size);
}

/* A PMD maps as many pages as there are 8-byte entries in one: huge = page * page / 8. */
static void read_pages(const char *root, ls_system *system)
{
    int64_t huge = 0;

    if (root[0] == '\0')
        ls_quantity_fill(&system->page_bytes,
                         ls_discovered((double)sysconf(_SC_PAGESIZE), "sysconf"));
    if (ls_sysfs_whole(&huge, root, THP "/hpage_pmd_size") && huge > 0) {
        system->huge_page_bytes = ls_discovered((double)huge, "hpage_pmd_size");
        ls_quantity_fill(&system->page_bytes,
                         ls_discovered(sqrt(8.0 * (double)huge), "hpage_pmd_size"));
    }
    read_choice(system->huge_pages, sizeof system->huge_pages, root, THP "/enabled");
    read_choice(system->huge_defrag, sizeof system->huge_defrag, root, THP "/defrag");
    read_huge_sizes(root, system);
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* What the CPU is called, where hwloc has no name for it: Arm's kernels tell a part number only. */
static void fill_cpu_models(const char *cpuinfo, ls_topology *t)
{
    const char *model = ls_sysfs_line(cpuinfo, "model name");
    const char *part = ls_sysfs_line(cpuinfo, "CPU part");

    if (model == NULL && part != NULL && strncmp(part, "0xd4f", 5) == 0) model = "Neoverse V2";
    for (int u = 0; u < t->n_units; u++)
        if (model != NULL && t->units[u].kind == LS_UNIT_CPU && t->units[u].model[0] == '\0')
            snprintf(t->units[u].model, sizeof t->units[u].model, "%.*s", (int)strcspn(model, "\n"),
                     model);
}

static void read_kernel(const char *root, ls_topology *t)
{
    ls_system *system = &t->system;
    char text[LS_SYSFS_BYTES];

    ls_sysfs_text(system->kernel, sizeof system->kernel, root, "/proc/sys/kernel/osrelease");
    if (!ls_sysfs_text(text, sizeof text, root, "/proc/cpuinfo")) return;
    const char *name = ls_sysfs_line(text, "CPU implementer") != NULL ? "aarch64"
                       : ls_sysfs_line(text, "vendor_id") != NULL     ? "x86_64"
                                                                      : "";
    snprintf(system->architecture, sizeof system->architecture, "%s", name);
    fill_cpu_models(text, t);
}

/* A boot parameter decides; without it, how the kernel was built. */
static void read_init_on_alloc(const char *root, ls_system *system)
{
    char text[LS_SYSFS_BYTES];
    static char config[1 << 20];

    if (!ls_sysfs_text(text, sizeof text, root, "/proc/cmdline")) return;
    const char *given = strstr(text, "init_on_alloc=");
    if (given != NULL) {
        given += strlen("init_on_alloc=");
        system->init_on_alloc = ls_discovered(
            *given == '1' || *given == 'y' || strncmp(given, "on", 2) == 0, "cmdline");
        return;
    }
    if (!ls_sysfs_text(config, sizeof config, root, "/boot/config-%s", system->kernel)) return;
    system->init_on_alloc = ls_discovered(
        ls_sysfs_line(config, "CONFIG_INIT_ON_ALLOC_DEFAULT_ON=y") != NULL, "kernel config");
}

static void read_settings(const char *root, ls_system *system)
{
    int64_t value;

    if (ls_sysfs_whole(&value, root, "/proc/sys/kernel/numa_balancing"))
        system->numa_balancing = ls_discovered((double)value, "sysctl");
    ls_sysfs_text(system->cpu_governor, sizeof system->cpu_governor, root,
                  "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    read_init_on_alloc(root, system);
}

/* ---- limits of this process ----------------------------------------------------------------- */

static void read_memlock(const char *root, ls_system *system)
{
    char text[LS_SYSFS_BYTES];

    if (!ls_sysfs_text(text, sizeof text, root, "/proc/self/limits")) return;
    const char *soft = ls_sysfs_line(text, "Max locked memory");
    if (soft == NULL) return;
    system->memlock_bytes =
        ls_discovered(strncmp(soft, "unlimited", 9) == 0 ? INFINITY : strtod(soft, NULL), "rlimit");
}

/* The path of this process in the hierarchy of `controller` ("": version 2). */
static bool find_cgroup(const char *text, const char *controller, char *path, size_t size)
{
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        const char *names = strchr(line, ':');
        const char *end = names != NULL ? strchr(names + 1, ':') : NULL;
        if (end == NULL) return false;
        const size_t length = (size_t)(end - names - 1);
        if (length != strlen(controller) || strncmp(names + 1, controller, length) != 0) continue;
        snprintf(path, size, "%.*s", (int)strcspn(end + 1, "\n"), end + 1);
        return true;
    }
    return false;
}

typedef struct cgroup_files {
    const char *folder, *limit, *used;
} cgroup_files;

/* Keep the limit that leaves least: a limit of any folder above holds too. */
static void keep_limit(const char *root, const cgroup_files *files, const char *path,
                       ls_system *system)
{
    int64_t limit, used = 0;

    if (!ls_sysfs_whole(&limit, root, "%s%s/%s", files->folder, path, files->limit)) return;
    if (limit >= NO_END) return;
    ls_sysfs_whole(&used, root, "%s%s/%s", files->folder, path, files->used);
    if ((double)(limit - used) >=
        system->memory_limit_bytes.value - system->memory_limit_used_bytes.value)
        return;
    system->memory_limit_bytes = ls_discovered((double)limit, "cgroup");
    system->memory_limit_used_bytes = ls_discovered((double)used, "cgroup");
}

static void read_memory_limit(const char *root, ls_system *system)
{
    static const cgroup_files v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                    "memory.usage_in_bytes"};
    static const cgroup_files v2 = {"/sys/fs/cgroup", "memory.max", "memory.current"};
    char text[LS_SYSFS_BYTES], path[LS_SYSFS_BYTES];

    if (!ls_sysfs_text(text, sizeof text, root, "/proc/self/cgroup")) return;
    const bool is_v1 = find_cgroup(text, "memory", path, sizeof path);
    if (!is_v1 && !find_cgroup(text, "", path, sizeof path)) return;
    system->memory_limit_bytes = ls_discovered(INFINITY, "cgroup");
    system->memory_limit_used_bytes = ls_discovered(0, "cgroup");
    for (;;) {
        keep_limit(root, is_v1 ? &v1 : &v2, path, system);
        char *last = strrchr(path, '/');
        if (last == NULL) break;
        *last = '\0';
    }
}

/* ---- power caps ----------------------------------------------------------------------------- */

static void add_power_cap(const char *root, const char *folder, int index, ls_system *system)
{
    ls_power_cap *cap = &system->power_caps[system->n_power_caps];
    int64_t microwatts;

    if (system->n_power_caps == LS_POWER_CAPS_MAX) return;
    memset(cap, 0, sizeof *cap);
    if (!ls_sysfs_text(cap->name, sizeof cap->name, root, "%s/power%d_oem_info", folder, index))
        return;
    if (ls_sysfs_whole(&microwatts, root, "%s/power%d_cap", folder, index))
        cap->watts = ls_discovered((double)microwatts / 1e6, "hwmon");
    if (ls_sysfs_whole(&microwatts, root, "%s/power%d_cap_max", folder, index))
        cap->watts_max = ls_discovered((double)microwatts / 1e6, "hwmon");
    system->n_power_caps++;
}

/* Kernels differ in which of two folders holds an ACPI power meter's files. */
static void read_hwmon(const char *root, ls_system *system)
{
    static const char *const folders[] = {"/sys/class/hwmon/hwmon%d",
                                          "/sys/class/hwmon/hwmon%d/device"};
    char folder[128];

    for (int meter = 0; meter < 64; meter++)
        for (size_t f = 0; f < 2; f++) {
            snprintf(folder, sizeof folder, f == 0 ? folders[0] : folders[1], meter);
            for (int index = 1; index <= 4; index++) add_power_cap(root, folder, index, system);
        }
}

static void read_rapl(const char *root, ls_system *system)
{
    for (int package = 0; package < 8 && system->n_power_caps < LS_POWER_CAPS_MAX; package++) {
        ls_power_cap *cap = &system->power_caps[system->n_power_caps];
        int64_t microwatts;
        memset(cap, 0, sizeof *cap);
        if (!ls_sysfs_text(cap->name, sizeof cap->name, root,
                           "/sys/class/powercap/intel-rapl:%d/name", package))
            continue;
        if (ls_sysfs_whole(&microwatts, root,
                           "/sys/class/powercap/intel-rapl:%d/constraint_0_power_limit_uw",
                           package))
            cap->watts = ls_discovered((double)microwatts / 1e6, "rapl");
        system->n_power_caps++;
    }
}

/* ---- the NVIDIA driver ---------------------------------------------------------------------- */

static void read_driver(const char *root, ls_system *system)
{
    char text[LS_SYSFS_BYTES];
    int64_t ats;

    ls_sysfs_text(system->driver, sizeof system->driver, root, "/sys/module/nvidia/version");
    if (ls_sysfs_whole(&ats, root, "/sys/module/nvidia_uvm/parameters/uvm_ats_mode"))
        system->ats_mode = ls_discovered((double)ats, "uvm_ats_mode");
    if (!ls_sysfs_text(text, sizeof text, root, "/proc/driver/nvidia/params")) return;
    const char *mode = ls_sysfs_line(text, "CoherentGPUMemoryMode:");
    if (mode == NULL) return;
    if (*mode == '"') mode++;
    snprintf(system->memory_mode, sizeof system->memory_mode, "%.*s", (int)strcspn(mode, "\"\n"),
             mode);
}

void ls_discover_system(const char *root, ls_topology *t)
{
    ls_system *system = &t->system;

    read_kernel(root, t);
    read_pages(root, system);
    read_settings(root, system);
    read_memlock(root, system);
    read_memory_limit(root, system);
    read_hwmon(root, system);
    read_rapl(root, system);
    read_driver(root, system);
    for (int p = 0; p < t->n_places; p++)
        if (t->places[p].kind == LS_PLACE_HOST)
            ls_quantity_fill(&t->places[p].page_bytes, system->page_bytes);
}
