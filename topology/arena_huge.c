/*
 * arena_huge.c - huge pages: which to ask for, and how many were granted.
 *
 * Sizes are the kernel's own: a transparent huge page is 2 MiB where pages are 4 KiB and 512 MiB
 * where they are 64 KiB.  Reserved ones (hugetlb) cannot fail to be huge, but are few: they are
 * taken only where the whole arena fits in those that are free on its node.
 */
#define _GNU_SOURCE /* NOLINT: the libc's name; for getline */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena_system.h"
#include "discover.h"

#define THP       "/sys/kernel/mm/transparent_hugepage"
#define HUGE      "/sys/kernel/mm/hugepages"
#define NODE_HUGE "/sys/devices/system/node/node%d/hugepages"
#define SHARE     8 /* an arena of at least so many pages: rounding up wastes at most 1/8 */

static uint64_t read_thp_bytes(const ls_arena *arena)
{
    int64_t bytes;
    return ls_sysfs_whole(&bytes, arena->system->root, THP "/hpage_pmd_size") && bytes > 0
               ? (uint64_t)bytes
               : 0;
}

/* Pages of this size that may still be taken: free ones less those promised to others. */
static int64_t count_free(const ls_arena *arena, const ls_arena_options *o, uint64_t kib)
{
    const char *root = arena->system->root;
    int64_t all = 0, promised = 0, on_node;

    if (!ls_sysfs_whole(&all, root, HUGE "/hugepages-%" PRIu64 "kB/free_hugepages", kib)) return 0;
    ls_sysfs_whole(&promised, root, HUGE "/hugepages-%" PRIu64 "kB/resv_hugepages", kib);
    if (!o->bind) return all - promised;
    if (!ls_sysfs_whole(&on_node, root, NODE_HUGE "/hugepages-%" PRIu64 "kB/free_hugepages",
                        o->numa_node, kib))
        return 0;
    return on_node - promised; /* the promised ones may all be meant to come from there */
}

uint64_t ls_arena_find_hugetlb(ls_arena *arena, const ls_arena_options *o)
{
    const uint64_t transparent = read_thp_bytes(arena);
    const uint64_t least = transparent > 0 ? transparent : 2 * arena->page_bytes;

    /* Every size a kernel has is a power of two; 16 GiB is the largest (64 KiB pages). */
    for (uint64_t bytes = UINT64_C(1) << 34; bytes >= least; bytes /= 2) {
        int64_t reserved;
        if (!ls_sysfs_whole(&reserved, arena->system->root,
                            HUGE "/hugepages-%" PRIu64 "kB/nr_hugepages", bytes / 1024) ||
            reserved == 0 || o->size_bytes / bytes < SHARE)
            continue;
        const int64_t needed = (int64_t)((o->size_bytes + bytes - 1) / bytes);
        const int64_t unused = count_free(arena, o, bytes / 1024);
        if (unused >= needed) return bytes;
        ls_arena_add_note(
            arena, "%" PRId64 " reserved pages of %" PRIu64 " kB needed, %" PRId64 " free%s",
            needed, bytes / 1024, unused > 0 ? unused : 0, o->bind ? " on the node" : "");
    }
    return 0;
}

uint64_t ls_arena_find_thp(ls_arena *arena)
{
    const uint64_t bytes = read_thp_bytes(arena);
    char enabled[128];

    if (bytes == 0) {
        ls_arena_add_note(arena, "this kernel has no transparent huge pages");
        return 0;
    }
    if (ls_sysfs_text(enabled, sizeof enabled, arena->system->root, THP "/enabled") &&
        strstr(enabled, "[never]") != NULL) {
        ls_arena_add_note(arena, "transparent huge pages are set to never (as root: echo madvise "
                                 "> " THP "/enabled)");
        return 0;
    }
    if (arena->info.size_bytes < bytes) {
        ls_arena_add_note(arena, "smaller than a transparent huge page of %" PRIu64 " kB",
                          bytes / 1024);
        return 0;
    }
    return bytes;
}

/* The guard pages keep the arena a mapping of its own, so its lines count nothing else. */
uint64_t ls_arena_count_thp(const ls_arena *arena)
{
    const uint64_t from = (uint64_t)(uintptr_t)arena->info.base;
    const uint64_t to = from + arena->info.size_bytes;
    char path[LS_SYSFS_BYTES], *line = NULL;
    uint64_t start, end, kib, total = 0;
    bool inside = false;
    size_t size = 0;

    snprintf(path, sizeof path, "%s/proc/self/smaps", arena->system->root);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    while (getline(&line, &size, file) > 0) {
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &start, &end) == 2)
            inside = start >= from && end <= to;
        else if (inside && sscanf(line, "AnonHugePages: %" SCNu64, &kib) == 1)
            total += kib * 1024;
    }
    free(line);
    fclose(file);
    return total;
}
