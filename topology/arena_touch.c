/*
 * arena_touch.c - back every page now, by several threads.
 *
 * The kernel clears pages at some GB/s a thread, so 480 GB by one thread take minutes.  Each unit
 * is a whole number of huge pages: no two threads fault on one.  MADV_POPULATE_WRITE (Linux 5.14)
 * backs a unit in one call and returns an error where a write would raise SIGBUS; before, a byte of
 * each page is written.
 */
#define _GNU_SOURCE /* NOLINT: the libc's name; for madvise */
#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "arena_system.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define UNIT_BYTES ((uint64_t)16 << 20)

static int populate(const ls_arena_system *system, void *at, uint64_t bytes)
{
    for (;;) {
        if (system->advise(at, bytes, MADV_POPULATE_WRITE) == 0) return 0;
        if (errno != EINTR) return errno;
    }
}

static void write_pages(unsigned char *at, uint64_t bytes, uint64_t page_bytes)
{
    for (uint64_t b = 0; b < bytes; b += page_bytes) *(volatile unsigned char *)(at + b) = 0;
}

static int touch_unit(const ls_arena *arena, uint64_t from, uint64_t bytes, bool strict)
{
    unsigned char *at = (unsigned char *)arena->info.base + from;
    const int error = populate(arena->system, at, bytes);

    if (error != EINVAL || strict) return error;
    write_pages(at, bytes, arena->page_bytes);
    return 0;
}

int ls_arena_touch(ls_arena *arena, int n_threads, bool strict)
{
    const uint64_t size = arena->info.size_bytes, huge = arena->info.huge_page_bytes;
    const uint64_t unit = huge > UNIT_BYTES ? huge : UNIT_BYTES; /* both are powers of two */
    const int64_t n_units = (int64_t)((size + unit - 1) / unit);
    atomic_int failed = 0;

    (void)n_threads;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) num_threads(n_threads)
#endif
    for (int64_t u = 0; u < n_units; u++) {
        const uint64_t from = (uint64_t)u * unit;
        if (atomic_load(&failed) != 0) continue;
        const int error = touch_unit(arena, from, size - from < unit ? size - from : unit, strict);
        if (error != 0) atomic_store(&failed, error);
    }
    if (atomic_load(&failed) == 0) arena->info.touched = true;
    return atomic_load(&failed);
}
