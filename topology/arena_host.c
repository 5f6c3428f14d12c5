/* arena_host.c - host arenas: check the limits, mmap, ask for huge pages. */
#define _GNU_SOURCE /* NOLINT: the libc's name; for MAP_ANONYMOUS and madvise */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "arena.h"
#include "host_memory.h"

struct ls_arena {
    ls_arena_info info;
};

/* Refuse before touching: the kernel would grant the mapping and kill us at first touch. */
static ls_status check_limits(uint64_t size_bytes)
{
    const ls_host_memory memory = ls_host_memory_read();
    if (size_bytes <= memory.available_bytes) return LS_OK;
    return LS_FAIL(LS_ERR_NO_MEMORY,
                   "host memory: the plan needs %.3f GiB, %s leaves %.3f GiB; shorten the sequence "
                   "or the batch, or use a policy that saves less",
                   (double)size_bytes / 0x1p30, memory.limit,
                   (double)memory.available_bytes / 0x1p30);
}

ls_status ls_arena_open(const ls_arena_options *options, ls_arena **arena)
{
    assert(options != NULL);
    assert(arena != NULL);

    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    if (options->size_bytes == 0 || options->size_bytes > UINT64_MAX - page_bytes)
        return LS_FAIL(LS_ERR_INVALID, "arena of %llu bytes",
                       (unsigned long long)options->size_bytes);
    const uint64_t size_bytes = (options->size_bytes + page_bytes - 1) / page_bytes * page_bytes;
    LS_TRY(check_limits(size_bytes));

    ls_arena *opened = calloc(1, sizeof *opened);
    if (opened == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "arena handle");
    void *base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        free(opened);
        return LS_FAIL(LS_ERR_NO_MEMORY, "host memory: mmap of %.3f GiB: %s",
                       (double)size_bytes / 0x1p30, strerror(errno));
    }
    opened->info = (ls_arena_info){
        .base = base, .size_bytes = size_bytes, .place = LS_PLACE_HOST, .huge_pages = false};
#ifdef MADV_HUGEPAGE
    if (options->huge_pages)
        opened->info.huge_pages = madvise(base, size_bytes, MADV_HUGEPAGE) == 0;
#endif
    *arena = opened;
    return LS_OK;
}

void ls_arena_close(ls_arena *arena)
{
    if (arena == NULL) return;
    munmap(arena->info.base, arena->info.size_bytes);
    free(arena);
}

ls_arena_info ls_arena_describe(const ls_arena *arena)
{
    assert(arena != NULL);
    return arena->info;
}
