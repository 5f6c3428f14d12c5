/*
 * arena.h - one reservation of memory at one place of the machine.
 *
 * The plan computes every offset before the first step, so an arena is opened once, carved by
 * arithmetic, and closed at exit: there is no free list and nothing is allocated while training.
 *
 *   base                                                              base + size_bytes
 *   |  weights  |  states  |  activations  |  chunk workspace  |  staging  |
 *
 * Layer: topology (uses base).  Threads: open and close from one thread; an open arena is
 * immutable.
 */
#ifndef LS_ARENA_H
#define LS_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#include "place.h"
#include "status.h"

/* Spans start on this boundary: a cache-line pair, and what DMA and SIMD loads like. */
#define LS_ARENA_ALIGN 256

typedef struct ls_arena ls_arena;

/* What to reserve.  Zero-initialise, then set fields by name. */
typedef struct ls_arena_options {
    uint64_t size_bytes; /* > 0; rounded up to whole pages */
    bool huge_pages;     /* ask for transparent huge pages */
} ls_arena_options;

/* What was really obtained. */
typedef struct ls_arena_info {
    void *base; /* page-aligned, zero-filled */
    uint64_t size_bytes;
    ls_place_kind place;
    bool huge_pages; /* the kernel accepted the request; granting it page by page is up to it */
} ls_arena_info;

/*
 * Reserve host memory.  Pages are backed on first touch.
 *
 *   options  copied
 *   arena    [out] release with ls_arena_close()
 *
 * Returns LS_OK, or
 *   LS_ERR_INVALID    size_bytes is 0 or overflows when rounded up
 *   LS_ERR_NO_MEMORY  more than this process may still use (machine or cgroup), or no address space
 */
ls_status ls_arena_open(const ls_arena_options *options, ls_arena **arena);

/* Unmap the reservation.  NULL is allowed.  Pointers into the arena become invalid. */
void ls_arena_close(ls_arena *arena);

ls_arena_info ls_arena_describe(const ls_arena *arena);

#endif
