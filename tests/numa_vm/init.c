/*
 * init.c - the first and only program of a virtual machine with several NUMA nodes: opens arenas
 * there and compares what they report with what the kernel tells by other ways.
 *
 * A line "ok ..." or "FAILED ..." for each check, "skipped ..." where the kernel lacks a part, and
 * at the end "numa_vm: passed" or "numa_vm: failed"; then the machine is switched off.
 */
#define _GNU_SOURCE /* NOLINT: the libc's name; for MAP_ANONYMOUS and mkdir's friends */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <numaif.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "arena_system.h"
#include "discover.h"
#include "host_memory.h"

#define MIB     ((uint64_t)1 << 20)
#define NODES   "/sys/devices/system/node"
#define THP     "/sys/kernel/mm/transparent_hugepage"
#define CGROUPS "/sys/fs/cgroup"

/* As the script starts the machine. */
enum { FIRST_NODE = 0, BARE_NODE = 2, PLUGGED_NODE = 3, NO_NODE = 5 };

static int n_failed, n_passed;

static void check(bool holds, const char *format, ...)
{
    va_list args;

    if (holds)
        n_passed++;
    else
        n_failed++;
    fputs(holds ? "ok      " : "FAILED  ", stdout);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

static bool put(const char *path, const char *text)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const ssize_t length = (ssize_t)strlen(text);

    if (fd < 0) return false;
    const bool written = write(fd, text, (size_t)length) == length;
    close(fd);
    return written;
}

static ls_arena_info info;

/* Opens, and fills info. */
static ls_arena *open_arena(const ls_arena_system *system, const ls_arena_options *options)
{
    ls_arena *arena = NULL;

    memset(&info, 0, sizeof info);
    if (ls_arena_open_on(system, options, &arena) != LS_OK) {
        printf("        %s\n", ls_error());
        return NULL;
    }
    info = ls_arena_describe(arena);
    return arena;
}

static ls_arena *open_real(const ls_arena_options *options)
{
    return open_arena(&ls_arena_real_system, options);
}

static void check_refused(const char *what, const ls_arena_system *system,
                          const ls_arena_options *options, ls_status expected, const char *says)
{
    ls_arena *arena = NULL;
    const ls_status status = ls_arena_open_on(system, options, &arena);

    check(status == expected && strstr(ls_error(), says) != NULL, "%s: %s: %s", what,
          ls_status_name(status), status != LS_OK ? ls_error() : "opened");
    ls_arena_close(arena);
}

/* ---- where the pages are, told by the kernel in two ways ------------------------------------ */

static uint64_t count_elsewhere(const char *base, uint64_t bytes, int node)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t elsewhere = 0;

    for (uint64_t at = 0; at < bytes; at += page) {
        void *pages[1] = {(void *)(uintptr_t)(base + at)};
        int found = -1;
        if (move_pages(0, 1, pages, NULL, &found, 0) != 0 || found != node) elsewhere++;
    }
    return elsewhere;
}

/* The line of numa_maps that begins with the arena's address. */
static bool read_numa_map(const void *base, char *line, size_t size)
{
    char key[32];
    FILE *file = fopen("/proc/self/numa_maps", "re");

    if (file == NULL) return false;
    snprintf(key, sizeof key, "%" PRIxPTR " ", (uintptr_t)base);
    bool found = false;
    while (!found && fgets(line, (int)size, file) != NULL)
        found = strncmp(line, key, strlen(key)) == 0;
    fclose(file);
    return found;
}

static void check_place(const char *what, int node)
{
    char line[512] = "", bound[32], pages[32];
    const uint64_t elsewhere = count_elsewhere(info.base, info.size_bytes, node);

    check(info.numa_node == node && info.pages_checked > 0 && info.pages_wrong == 0 &&
              elsewhere == 0,
          "%s: %" PRIu64 " MiB on node %d by move_pages (%d sampled, %" PRIu64 " elsewhere of all)",
          what, info.size_bytes / MIB, node, info.pages_checked, elsewhere);
    snprintf(bound, sizeof bound, "bind:%d ", node);
    snprintf(pages, sizeof pages, " N%d=", node);
    const bool found = read_numa_map(info.base, line, sizeof line);
    line[strcspn(line, "\n")] = '\0';
    check(found && strstr(line, bound) != NULL && strstr(line, pages) != NULL, "%s: numa_maps: %s",
          what, line);
}

static ls_arena_options on_node(int node, uint64_t bytes, bool huge)
{
    return (ls_arena_options){.size_bytes = bytes,
                              .bind = true,
                              .numa_node = node,
                              .touch_threads = 2,
                              .huge_pages = huge};
}

static void check_node(int node)
{
    char what[64];
    const ls_arena_options options = on_node(node, 64 * MIB, false);
    ls_arena *arena = open_real(&options);

    snprintf(what, sizeof what, "node %d", node);
    check(arena != NULL, "%s: opens", what);
    if (arena == NULL) return;
    check_place(what, node);
    memset(info.base, 1, info.size_bytes);
    ls_arena_close(arena);
}

/* ---- huge pages ----------------------------------------------------------------------------- */

static void check_thp(int node, uint64_t thp)
{
    const ls_arena_options options = on_node(node, 64 * MIB > 2 * thp ? 64 * MIB : 2 * thp, true);
    ls_arena *arena = open_real(&options);

    check(arena != NULL && info.huge_pages == LS_HUGE_THP && info.huge_page_bytes == thp &&
              info.huge_backed_bytes == info.size_bytes && (uintptr_t)info.base % thp == 0,
          "thp on node %d: %s, pages of %" PRIu64 " kB, %" PRIu64 " of %" PRIu64 " MiB, %s", node,
          ls_huge_pages_name(info.huge_pages), info.huge_page_bytes / 1024,
          info.huge_backed_bytes / MIB, info.size_bytes / MIB, info.note);
    if (arena != NULL) check_place("thp", node);
    ls_arena_close(arena);
}

static void check_huge(int node)
{
    char path[256];
    int64_t thp = 0;
    const ls_arena_options options = on_node(node, 32 * MIB, true);

    ls_sysfs_whole(&thp, "", THP "/hpage_pmd_size");
    check_thp(node, (uint64_t)thp);

    put(THP "/enabled", "never");
    ls_arena *arena = open_real(&options);
    check(arena != NULL && info.huge_pages == LS_HUGE_NONE && strstr(info.note, "never") != NULL,
          "thp switched off: %s, %s", ls_huge_pages_name(info.huge_pages), info.note);
    ls_arena_close(arena);
    put(THP "/enabled", "madvise");

    snprintf(path, sizeof path, NODES "/node%d/hugepages/hugepages-2048kB/nr_hugepages", node);
    if (!put(path, "16")) {
        printf("skipped hugetlb: no pages of 2 MiB\n");
        return;
    }
    arena = open_real(&options);
    check(arena != NULL && info.huge_pages == LS_HUGE_HUGETLB && info.huge_page_bytes == 2 * MIB &&
              info.huge_backed_bytes == 32 * MIB,
          "hugetlb on node %d: %s, pages of %" PRIu64 " kB, %" PRIu64 " MiB, %s", node,
          ls_huge_pages_name(info.huge_pages), info.huge_page_bytes / 1024,
          info.huge_backed_bytes / MIB, info.note);
    if (arena != NULL) check_place("hugetlb", node);
    ls_arena_close(arena);

    put(path, "15"); /* one too few on this node, though others have memory */
    arena = open_real(&options);
    check(arena != NULL && info.huge_pages != LS_HUGE_HUGETLB &&
              strstr(info.note, "16 reserved pages of 2048 kB needed, 15 free on the node") != NULL,
          "hugetlb too few: %s, %s", ls_huge_pages_name(info.huge_pages), info.note);
    ls_arena_close(arena);
    put(path, "0");
}

/* ---- limits --------------------------------------------------------------------------------- */

static void check_full_node(int node)
{
    char says[64];
    ls_host_memory memory;

    if (!ls_host_memory_read_node("", node, &memory)) {
        check(false, "node %d can be read", node);
        return;
    }
    const ls_arena_options over = on_node(node, memory.limit_bytes + 16 * MIB, false);
    check(over.size_bytes < ls_host_memory_read().available_bytes,
          "the machine has room for %" PRIu64 " MiB, a node has not", over.size_bytes / MIB);
    snprintf(says, sizeof says, "NUMA node %d leaves", node);
    check_refused("over-commit", &ls_arena_real_system, &over, LS_ERR_NO_MEMORY, says);

    /* All that it is said to have can be touched: nobody is killed. */
    ls_host_memory_read_node("", node, &memory);
    const ls_arena_options all = on_node(node, memory.available_bytes / MIB * MIB, false);
    ls_arena *arena = open_real(&all);
    check(arena != NULL && info.pages_wrong == 0, "all %" PRIu64 " MiB that node %d leaves",
          all.size_bytes / MIB, node);
    ls_arena_close(arena);
}

static void check_cgroups(void)
{
    const ls_arena_options options = on_node(FIRST_NODE, 96 * MIB, false);
    const ls_arena_options other = on_node(BARE_NODE, MIB, false);

    if (mount("none", CGROUPS, "cgroup2", 0, NULL) != 0 ||
        !put(CGROUPS "/cgroup.subtree_control", "+memory +cpuset")) {
        printf("skipped cgroups: %s\n", strerror(errno));
        return;
    }
    mkdir(CGROUPS "/job", 0755);
    put(CGROUPS "/job/cgroup.subtree_control", "+memory");
    mkdir(CGROUPS "/job/step", 0755);
    put(CGROUPS "/job/memory.max", "67108864");
    check(put(CGROUPS "/job/step/cgroup.procs", "0"), "enter a cgroup below one of 64 MiB");
    check_refused("cgroup", &ls_arena_real_system, &options, LS_ERR_NO_MEMORY,
                  CGROUPS "/job/memory.max");
    put(CGROUPS "/job/memory.max", "max");
    check(put(CGROUPS "/job/cpuset.mems", "0-1"), "a cpuset of nodes 0 and 1");
    check_refused("cpuset", &ls_arena_real_system, &other, LS_ERR_INVALID, "cpuset allows 0-1");
    put(CGROUPS "/cgroup.procs", "0");
}

/* ---- nodes that lie and go ------------------------------------------------------------------ */

static long bind_elsewhere(void *at, unsigned long bytes, int mode, const unsigned long *nodes,
                           unsigned long max_node, unsigned flags)
{
    const unsigned long first = 1UL << FIRST_NODE;

    (void)nodes;
    return mbind(at, bytes, mode, &first, max_node < 64 ? max_node : 64, flags);
}

static long bind_unchecked(void *at, unsigned long bytes, int mode, const unsigned long *nodes,
                           unsigned long max_node, unsigned flags)
{
    const unsigned long none = 1UL << NO_NODE;

    (void)nodes;
    return mbind(at, bytes, mode, &none, max_node < 64 ? max_node : 64, flags);
}

static void check_wrong_node(void)
{
    const ls_arena_options there = on_node(BARE_NODE, 16 * MIB, false);
    const ls_arena_options nowhere = on_node(NO_NODE, 16 * MIB, false);
    ls_arena_system system = ls_arena_real_system;

    system.bind = bind_elsewhere;
    check_refused("wrong node", &system, &there, LS_ERR_DEVICE, "elsewhere, the first on node 0");
    check_refused("no such node", &ls_arena_real_system, &nowhere, LS_ERR_INVALID, "has no memory");
    system.bind = bind_unchecked; /* what the kernel says of a node that is gone */
    check_refused("mbind to a node that is gone", &system, &there, LS_ERR_INVALID,
                  "may have gone offline");
}

/* Set the state of all memory blocks of a node; how many took it. */
static int set_blocks(int node, const char *state)
{
    char path[512];
    int n = 0;

    snprintf(path, sizeof path, NODES "/node%d", node);
    DIR *folder = opendir(path);
    if (folder == NULL) return 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (strncmp(entry->d_name, "memory", 6) != 0 || entry->d_name[6] < '0' ||
            entry->d_name[6] > '9')
            continue;
        snprintf(path, sizeof path, "/sys/devices/system/memory/%s/state", entry->d_name);
        n += put(path, state);
    }
    closedir(folder);
    return n;
}

/* Memory that is plugged in after boot, as a driver does with a GPU's, and pulled out again. */
static void check_plugged_node(void)
{
    const ls_arena_options options = on_node(PLUGGED_NODE, 32 * MIB, false);

    set_blocks(PLUGGED_NODE, "offline");
    if (set_blocks(PLUGGED_NODE, "online_movable") == 0) {
        printf("skipped plugged memory: there is none\n");
        return;
    }
    check_node(PLUGGED_NODE);
    check(set_blocks(PLUGGED_NODE, "offline") > 0, "node %d goes offline", PLUGGED_NODE);
    check_refused("offline", &ls_arena_real_system, &options, LS_ERR_INVALID, "went offline");
}

/* ---- files ---------------------------------------------------------------------------------- */

static uint64_t free_bytes(const char *path)
{
    struct statvfs disk;
    return statvfs(path, &disk) == 0 ? (uint64_t)disk.f_bavail * disk.f_frsize : 0;
}

static void check_files(void)
{
    ls_arena_options options = {.size_bytes = 8 * MIB, .kind = LS_ARENA_FILE, .directory = "/disk"};

    mkdir("/disk", 0755);
    if (mount("none", "/disk", "tmpfs", 0, "size=16m") != 0) {
        printf("skipped files: %s\n", strerror(errno));
        return;
    }
    ls_arena *arena = open_real(&options);
    check(arena != NULL && free_bytes("/disk") == 8 * MIB, "file of 8 MiB of a disk of 16 MiB");
    if (arena != NULL) memset(info.base, 1, info.size_bytes);
    ls_arena_close(arena);
    check(free_bytes("/disk") == 16 * MIB, "its space is given back");
    options.size_bytes = 32 * MIB;
    check_refused("full disk", &ls_arena_real_system, &options, LS_ERR_NO_MEMORY, "No space left");
    check(free_bytes("/disk") == 16 * MIB, "nothing is left of it");
}

static void mount_all(void)
{
    static const char *const folders[] = {"/proc", "/sys", "/dev", "/tmp"};

    for (size_t f = 0; f < sizeof folders / sizeof folders[0]; f++) mkdir(folders[f], 0755);
    mount("none", "/dev", "devtmpfs", 0, NULL);
    const int console = open("/dev/console", O_RDWR);
    for (int fd = 0; fd < 3 && console >= 0; fd++) dup2(console, fd);
    mount("none", "/proc", "proc", 0, NULL);
    mount("none", "/sys", "sysfs", 0, NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
}

static void describe_machine(void)
{
    char text[LS_SYSFS_BYTES];

    if (ls_sysfs_text(text, sizeof text, "", "/proc/sys/kernel/osrelease"))
        printf("kernel  %s, pages of %ld bytes\n", text, sysconf(_SC_PAGESIZE));
    for (int node = 0; node < 8; node++) {
        char cpus[64] = "";
        ls_host_memory memory;
        if (!ls_host_memory_read_node("", node, &memory)) continue;
        ls_sysfs_text(cpus, sizeof cpus, "", NODES "/node%d/cpulist", node);
        printf("node %d  %" PRIu64 " MiB, %" PRIu64 " available, cpus: %s\n", node,
               memory.limit_bytes / MIB, memory.available_bytes / MIB,
               cpus[0] != '\0' ? cpus : "none");
    }
}

int main(void)
{
    mount_all();
    describe_machine();
    for (int node = FIRST_NODE; node <= BARE_NODE; node++) check_node(node);
    check_huge(1);
    check_thp(BARE_NODE, 2 * MIB * (uint64_t)sysconf(_SC_PAGESIZE) / 4096 *
                             (uint64_t)sysconf(_SC_PAGESIZE) / 4096);
    check_full_node(BARE_NODE);
    check_wrong_node();
    check_plugged_node();
    check_files();
    check_cgroups();
    printf("numa_vm: %s, %d checks passed, %d failed\n", n_failed == 0 ? "passed" : "failed",
           n_passed, n_failed);
    sync();
    reboot(RB_POWER_OFF);
    return 1;
}
