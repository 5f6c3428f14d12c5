/*
 * arena_host.c - host memory: check the limits, reserve, bind, ask for huge pages, touch, look.
 *
 * The order is the point.  Limits come first: the kernel grants any mapping and kills the process
 * at first touch.  Binding comes before the first page; looking comes after the last.
 *
 *   | guard page | base ... base + size_bytes | guard page |
 *
 * The guards make a stray access a fault and keep the kernel from merging two arenas.
 */
#define _GNU_SOURCE /* NOLINT: the libc's name; for MAP_ANONYMOUS and madvise */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "arena_system.h"
#include "host_memory.h"

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif

#define FLAGS (MAP_PRIVATE | MAP_ANONYMOUS)

static double gib(uint64_t bytes)
{
    return (double)bytes / 0x1p30;
}

static ls_status check_limits(const ls_arena *arena, const ls_arena_options *o)
{
    const ls_host_memory memory = ls_host_memory_read_at(arena->system->root);
    const uint64_t size = arena->info.size_bytes;
    ls_host_memory node;

    if (size > memory.available_bytes)
        return LS_FAIL(LS_ERR_NO_MEMORY,
                       "%s: the plan needs %.3f GiB, %s leaves %.3f GiB (%.3f GiB by %s, of which "
                       "%.3f GiB are in use); shorten the sequence or the batch, or use a policy "
                       "that saves less",
                       arena->name, gib(size), memory.limit, gib(memory.available_bytes),
                       gib(memory.limit_bytes),
                       memory.source[0] != '\0' ? memory.source : memory.limit,
                       gib(memory.used_bytes));
    if (!o->bind || !ls_host_memory_read_node(arena->system->root, o->numa_node, &node))
        return LS_OK;
    if (size > node.available_bytes)
        return LS_FAIL(LS_ERR_NO_MEMORY,
                       "%s: the plan needs %.3f GiB, NUMA node %d leaves %.3f GiB of its %.3f GiB "
                       "(free memory and page cache); end other programs there, choose another "
                       "node, shorten the sequence, or use a policy that saves less",
                       arena->name, gib(size), o->numa_node, gib(node.available_bytes),
                       gib(node.limit_bytes));
    return LS_OK;
}

static ls_status fail_map(const ls_arena *arena, const char *call, int error)
{
    return LS_FAIL(LS_ERR_NO_MEMORY,
                   "%s: %s of %.3f GiB: %s; see ulimit -v and the sysctl vm.overcommit_memory",
                   arena->name, call, gib(arena->info.size_bytes), strerror(error));
}

/* Map info.size_bytes at a multiple of align, no page backed.  What aligning leaves over, at most a
 * huge page of address space without memory, widens the guards. */
static ls_status reserve(ls_arena *arena, uint64_t align)
{
    const ls_arena_system *system = arena->system;
    const uint64_t page = arena->page_bytes, size = arena->info.size_bytes;
    const uint64_t span = size + align + 2 * page;

    char *start = system->map(NULL, span, PROT_NONE, FLAGS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return fail_map(arena, "mmap", errno);
    arena->mapping = start;
    arena->mapping_bytes = span;
    const uint64_t at = (uint64_t)(uintptr_t)start + page;
    char *base = start + page + ((at + align - 1) / align * align - at);
    if (system->protect(base, size, PROT_READ | PROT_WRITE) != 0)
        return fail_map(arena, "mprotect", errno);
    arena->info.base = base;
    return LS_OK;
}

static ls_status fail_touch(const ls_arena *arena, int error)
{
    return LS_FAIL(error == ENOMEM || error == EFAULT ? LS_ERR_NO_MEMORY : LS_ERR_DEVICE,
                   "%s: backing %.3f GiB with pages: %s; other programs may have taken the memory "
                   "meanwhile",
                   arena->name, gib(arena->info.size_bytes), strerror(error));
}

/* Reserved huge pages.  *obtained is false, with nothing mapped, where the kernel gives none. */
static ls_status open_hugetlb(ls_arena *arena, const ls_arena_options *o, uint64_t huge_bytes,
                              bool *obtained)
{
    ls_arena_info *info = &arena->info;
    const int size_flag = __builtin_ctzll(huge_bytes) << MAP_HUGE_SHIFT;

    *obtained = false;
    if (!ls_arena_round_up(o->size_bytes, huge_bytes, &info->size_bytes)) return LS_OK;
    void *base = arena->system->map(NULL, info->size_bytes, PROT_READ | PROT_WRITE,
                                    FLAGS | MAP_HUGETLB | size_flag, -1, 0);
    if (base == MAP_FAILED) {
        ls_arena_add_note(arena, "mmap of reserved pages of %llu kB: %s",
                          (unsigned long long)huge_bytes / 1024, strerror(errno));
        return LS_OK;
    }
    arena->mapping = info->base = base;
    arena->mapping_bytes = info->size_bytes;
    info->huge_page_bytes = huge_bytes;
    if (o->bind) LS_TRY(ls_arena_bind(arena, o->numa_node));
    const int error = ls_arena_touch(arena, o->touch_threads, true);
    if (error != 0) {
        ls_arena_add_note(arena, "backing reserved pages of %llu kB: %s%s",
                          (unsigned long long)huge_bytes / 1024, strerror(error),
                          error == EINVAL ? " (Linux before 5.14 cannot tell when they run out)"
                                          : "");
        ls_arena_unmap(arena);
        info->huge_page_bytes = 0;
        return LS_OK;
    }
    info->huge_pages = LS_HUGE_HUGETLB;
    info->huge_backed_bytes = info->size_bytes;
    *obtained = true;
    return LS_OK;
}

/* Transparent ones: ask, before the first touch. */
static void ask_thp(ls_arena *arena)
{
    ls_arena_info *info = &arena->info;

    if (arena->system->advise(info->base, info->size_bytes, MADV_HUGEPAGE) != 0) {
        ls_arena_add_note(arena, "transparent huge pages refused: madvise: %s", strerror(errno));
        info->huge_page_bytes = 0;
        return;
    }
    info->huge_pages = LS_HUGE_THP;
}

static void count_thp(ls_arena *arena)
{
    ls_arena_info *info = &arena->info;
    const uint64_t whole = info->size_bytes / info->huge_page_bytes * info->huge_page_bytes;

    info->huge_backed_bytes = ls_arena_count_thp(arena);
    if (info->huge_backed_bytes < whole)
        ls_arena_add_note(arena,
                          "%.3f of %.3f GiB in transparent huge pages: memory is fragmented (as "
                          "root: echo 1 > /proc/sys/vm/compact_memory)",
                          gib(info->huge_backed_bytes), gib(info->size_bytes));
    if (info->huge_backed_bytes > 0) return;
    info->huge_pages = LS_HUGE_NONE;
    info->huge_page_bytes = 0;
}

/* Ordinary pages, or transparent huge ones. */
static ls_status open_pages(ls_arena *arena, const ls_arena_options *o)
{
    ls_arena_info *info = &arena->info;

    if (!ls_arena_round_up(o->size_bytes, arena->page_bytes, &info->size_bytes))
        return LS_FAIL(LS_ERR_INVALID, "%s: arena of %llu bytes", arena->name,
                       (unsigned long long)o->size_bytes);
    LS_TRY(check_limits(arena, o));
    info->huge_page_bytes = o->huge_pages ? ls_arena_find_thp(arena) : 0;
    LS_TRY(reserve(arena, info->huge_page_bytes > 0 ? info->huge_page_bytes : arena->page_bytes));
    if (o->bind) LS_TRY(ls_arena_bind(arena, o->numa_node));
    if (info->huge_page_bytes > 0) ask_thp(arena);
    if (o->touch_threads == 0) return LS_OK;
    const int error = ls_arena_touch(arena, o->touch_threads, false);
    if (error != 0) return fail_touch(arena, error);
    if (info->huge_pages == LS_HUGE_THP) count_thp(arena);
    return LS_OK;
}

ls_status ls_arena_open_host(ls_arena *arena, const ls_arena_options *options)
{
    bool obtained = false;

    if (options->bind) LS_TRY(ls_arena_check_node(arena, options->numa_node));
    if (options->huge_pages && options->touch_threads > 0) {
        const uint64_t huge_bytes = ls_arena_find_hugetlb(arena, options);
        if (huge_bytes > 0) LS_TRY(open_hugetlb(arena, options, huge_bytes, &obtained));
    }
    if (!obtained) LS_TRY(open_pages(arena, options));
    if (!options->bind || options->touch_threads == 0) return LS_OK;
    return ls_arena_check_pages(arena, options->allow_wrong_node);
}
