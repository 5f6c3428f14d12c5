/*
 * arena_node.c - bind to a NUMA node, and see where the pages really are.
 *
 * The policy is set before the first page exists: pages already there, or registered with a GPU,
 * may not move any more.  It is strict (MPOL_BIND), yet it is verified: move_pages without target
 * nodes tells where each of a sample of pages is.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "arena_system.h"
#include "discover.h"
#include "host_memory.h"

#define NODES       "/sys/devices/system/node"
#define NODE_MAX    1024
#define SAMPLE_MAX  4096
#define WORD_BITS   (8 * sizeof(unsigned long))
#define MODE_STRICT 2 /* MPOL_BIND of <linux/mempolicy.h> */

/* Nodes as the kernel lists them, "0-1,4"; "none known" if it does not. */
static const char *list_nodes(const ls_arena *arena, char *list, size_t size)
{
    if (!ls_sysfs_text(list, size, arena->system->root, NODES "/has_memory") || list[0] == '\0')
        snprintf(list, size, "none known");
    return list;
}

/* Nodes that the cpuset lets this process use; false: not told. */
static bool read_allowed(const ls_arena *arena, char *list, size_t size)
{
    char status[LS_SYSFS_BYTES];

    if (!ls_sysfs_text(status, sizeof status, arena->system->root, "/proc/self/status"))
        return false;
    const char *line = ls_sysfs_line(status, "Mems_allowed_list:");
    if (line == NULL) return false;
    snprintf(list, size, "%.*s", (int)strcspn(line, "\n"), line);
    return true;
}

/* Whether "0-1,4" holds the node. */
static bool is_in_list(const char *list, int node)
{
    int first, last, n;

    for (; *list != '\0'; list += *list == ',') {
        if (sscanf(list, "%d%n", &first, &n) != 1) return false;
        last = first;
        list += n;
        if (sscanf(list, "-%d%n", &last, &n) == 1) list += n;
        if (first <= node && node <= last) return true;
    }
    return false;
}

/* What to say of a node that cannot be bound to. */
static ls_status refuse_node(const ls_arena *arena, int node)
{
    char list[256];
    ls_host_memory memory;

    if (node < 0 || node >= NODE_MAX ||
        !ls_host_memory_read_node(arena->system->root, node, &memory))
        return LS_FAIL(LS_ERR_INVALID,
                       "%s: NUMA node %d has no memory, or went offline since it was discovered "
                       "(nodes with memory: %s); `longspan topo` shows the nodes",
                       arena->name, node, list_nodes(arena, list, sizeof list));
    if (read_allowed(arena, list, sizeof list) && !is_in_list(list, node))
        return LS_FAIL(LS_ERR_INVALID,
                       "%s: this process may not use memory of NUMA node %d (its cpuset allows "
                       "%s); ask the scheduler or the container for that node",
                       arena->name, node, list);
    return LS_OK;
}

ls_status ls_arena_check_node(const ls_arena *arena, int node)
{
    if (arena->system->bind == NULL || arena->system->query_pages == NULL)
        return LS_FAIL(LS_ERR_UNSUPPORTED,
                       "%s: memory at NUMA node %d needs a build with libnuma (install "
                       "libnuma-dev, configure with -DLS_NUMA=ON)",
                       arena->name, node);
    return refuse_node(arena, node);
}

static ls_status explain_bind(const ls_arena *arena, int node, int error)
{
    switch (error) {
    case EINVAL:
        LS_TRY(refuse_node(arena, node)); /* it was there a moment ago: it may be gone now */
        return LS_FAIL(LS_ERR_INVALID,
                       "%s: mbind to NUMA node %d: %s; the node may have gone offline since it was "
                       "discovered: see `longspan topo`",
                       arena->name, node, strerror(error));
    case EPERM:
        return LS_FAIL(LS_ERR_UNSUPPORTED,
                       "%s: mbind to NUMA node %d: %s; a container's seccomp profile forbids it: "
                       "give the container CAP_SYS_NICE",
                       arena->name, node, strerror(error));
    case ENOSYS:
        return LS_FAIL(LS_ERR_UNSUPPORTED,
                       "%s: mbind to NUMA node %d: this kernel is built without NUMA", arena->name,
                       node);
    default:
        return LS_FAIL(error == ENOMEM ? LS_ERR_NO_MEMORY : LS_ERR_DEVICE,
                       "%s: mbind of %.3f GiB to NUMA node %d: %s", arena->name,
                       (double)arena->info.size_bytes / 0x1p30, node, strerror(error));
    }
}

ls_status ls_arena_bind(ls_arena *arena, int node)
{
    unsigned long nodes[NODE_MAX / WORD_BITS] = {0};

    nodes[(size_t)node / WORD_BITS] = 1UL << (size_t)node % WORD_BITS;
    /* The kernel takes one bit less than it is told of. */
    if (arena->system->bind(arena->info.base, arena->info.size_bytes, MODE_STRICT, nodes,
                            NODE_MAX + 1, 0) != 0)
        return explain_bind(arena, node, errno);
    arena->info.numa_node = node;
    return LS_OK;
}

/* Evenly spaced addresses, the first and the last page among them; how many. */
static int choose_pages(const ls_arena *arena, void *pages[SAMPLE_MAX])
{
    const uint64_t n_pages = arena->info.size_bytes / arena->page_bytes;
    const uint64_t n = n_pages < SAMPLE_MAX ? n_pages : SAMPLE_MAX;

    for (uint64_t i = 0; i < n; i++) {
        const uint64_t page = n > 1 ? i * (n_pages - 1) / (n - 1) : 0;
        pages[i] = (char *)arena->info.base + page * arena->page_bytes;
    }
    return (int)n;
}

static void count_pages(ls_arena_info *info, const int found[], int n)
{
    info->pages_checked = info->pages_wrong = 0;
    for (int i = 0; i < n; i++) {
        if (found[i] < 0) continue; /* swapped out: nowhere */
        info->pages_checked++;
        if (found[i] == info->numa_node) continue;
        if (info->pages_wrong++ == 0) info->wrong_node = found[i];
    }
}

ls_status ls_arena_check_pages(ls_arena *arena, bool allow_wrong_node)
{
    ls_arena_info *info = &arena->info;
    void *pages[SAMPLE_MAX];
    int found[SAMPLE_MAX];
    const int n = choose_pages(arena, pages);

    for (int i = 0; i < n; i++) found[i] = -ENOENT;
    const int error =
        arena->system->query_pages(0, (unsigned long)n, pages, NULL, found, 0) < 0 ? errno : 0;
    if (error == 0) count_pages(info, found, n);
    if (info->pages_checked == 0) {
        ls_arena_add_note(arena, "where pages are could not be seen (move_pages: %s)",
                          strerror(error != 0 ? error : ENOENT));
        if (allow_wrong_node) return LS_OK;
        return LS_FAIL(LS_ERR_UNSUPPORTED,
                       "%s: whether its pages are on NUMA node %d cannot be seen: move_pages: %s; "
                       "give the container CAP_SYS_NICE, or allow pages on any node",
                       arena->name, info->numa_node, strerror(error != 0 ? error : ENOENT));
    }
    if (info->pages_wrong == 0) return LS_OK;
    ls_arena_add_note(arena, "%d of %d pages looked at are not on NUMA node %d, the first is on %d",
                      info->pages_wrong, info->pages_checked, info->numa_node, info->wrong_node);
    if (allow_wrong_node) return LS_OK;
    return LS_FAIL(LS_ERR_DEVICE,
                   "%s: asked for NUMA node %d, but %d of %d pages looked at are elsewhere, the "
                   "first on node %d; free memory of node %d (drop its page cache, end other "
                   "programs), or allow pages on any node",
                   arena->name, info->numa_node, info->pages_wrong, info->pages_checked,
                   info->wrong_node, info->numa_node);
}
