/*
 * arena.h - one reservation of memory at one place of the machine.
 *
 * The plan computes every offset before the first step, so an arena is opened once, carved by
 * arithmetic, and closed at exit: there is no free list and nothing is allocated while training.
 *
 *   base                                                              base + size_bytes
 *   |  weights  |  states  |  activations  |  chunk workspace  |  staging  |
 *
 * Host memory is bound to its NUMA node before any page exists, touched by several threads at once,
 * and then looked at: where the pages are, and how many are huge, is reported as the kernel tells
 * it, never as it was asked.  What cannot fit is refused before the first page is touched.
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

#define LS_ARENA_NOTE_BYTES 320

typedef struct ls_arena ls_arena;

typedef enum ls_arena_kind {
    LS_ARENA_HOST = 0,     /* memory of this process */
    LS_ARENA_EMULATED_HBM, /* the same, passed off as a device's: needs a capacity */
    LS_ARENA_FILE,         /* a preallocated file, mapped shared; it has no name once open, so
                              nothing stays behind even where the process is killed */
} ls_arena_kind;

typedef enum ls_huge_pages {
    LS_HUGE_NONE = 0,
    LS_HUGE_THP,     /* transparent: granted page by page, counted after touch */
    LS_HUGE_HUGETLB, /* reserved by the administrator */
} ls_huge_pages;

/* What to reserve.  Zero-initialise, then set fields by name. */
typedef struct ls_arena_options {
    uint64_t size_bytes; /* > 0; rounded up to whole pages of the size obtained */
    ls_arena_kind kind;
    const char *name;        /* in messages: "host0"; NULL: "host memory", "hbm" or "nvme" */
    uint64_t capacity_bytes; /* refuse more; 0: no such limit */
    int touch_threads;       /* host: back every page before returning, with so many threads
                                (one without OpenMP); 0: pages are backed at first use, and neither
                                looked at nor counted */
    bool bind;               /* host: to numa_node */
    int numa_node;           /* OS index */
    bool allow_wrong_node;   /* report pages on another node instead of failing */
    bool huge_pages;         /* host: reserved ones if enough are free and touch_threads > 0, else
                                transparent ones */
    const char *directory;   /* file: where to make it */
} ls_arena_options;

/* What was really obtained. */
typedef struct ls_arena_info {
    void *base; /* page-aligned, to the huge page if there are any; zero-filled */
    uint64_t size_bytes;
    ls_place_kind place;
    ls_huge_pages huge_pages;
    uint64_t huge_page_bytes;   /* 0: none */
    uint64_t huge_backed_bytes; /* in huge pages after touch; 0 before */
    bool touched;
    int numa_node;     /* bound to; -1: not bound */
    int pages_checked; /* of a sample, the first and the last included; 0: not looked at */
    int pages_wrong;   /* of those, on another node (only with allow_wrong_node) */
    int wrong_node;    /* where the first of them is; -1: none is */
    char note[LS_ARENA_NOTE_BYTES]; /* why less was granted than asked, "" if nothing was */
} ls_arena_info;

/*
 * Reserve memory.
 *
 *   options  copied, texts as well
 *   arena    [out] release with ls_arena_close()
 *
 * Blocks while pages are touched or a file is allocated.  Returns LS_OK, or
 *   LS_ERR_INVALID      size_bytes is 0 or overflows when rounded up; fields that exclude each
 *                       other; the NUMA node does not exist, went offline, or is forbidden
 *   LS_ERR_NO_MEMORY    more than capacity_bytes, than this process may still use (machine or
 *                       cgroup), than the node has left, than the file system has left; no address
 *                       space
 *   LS_ERR_UNSUPPORTED  binding in a build without libnuma, by a kernel without NUMA, or in a
 *                       container that forbids it
 *   LS_ERR_DEVICE       after touch, pages are on another node than asked
 *   LS_ERR_IO           the file cannot be made
 * After a failure nothing is mapped and no file is left.
 */
ls_status ls_arena_open(const ls_arena_options *options, ls_arena **arena);

/* Unmap the reservation.  NULL is allowed.  Pointers into the arena become invalid. */
void ls_arena_close(ls_arena *arena);

ls_arena_info ls_arena_describe(const ls_arena *arena);

/* "none", "thp", "hugetlb"; never NULL. */
const char *ls_huge_pages_name(ls_huge_pages kind);

#endif
