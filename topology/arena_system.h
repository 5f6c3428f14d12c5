/*
 * arena_system.h - the calls by which arenas reach the kernel, in one table that tests replace; and
 * the parts of opening an arena.
 *
 *   arena.c        options, close, describe
 *   arena_host.c   limits, reservation, and the order of the parts below
 *   arena_huge.c   which huge pages, and how many were granted
 *   arena_node.c   bind to a NUMA node; see where the pages are
 *   arena_touch.c  back every page, in parallel
 *   arena_file.c   a file instead of memory
 *
 * Layer: topology, internal.
 */
#ifndef LS_ARENA_SYSTEM_H
#define LS_ARENA_SYSTEM_H

#include <stddef.h>
#include <sys/types.h>

#include "arena.h"

/* Each call is libc's, errno included, unless it says otherwise. */
typedef struct ls_arena_system {
    const char *root;    /* prefix of /proc and /sys; "": this machine */
    uint64_t page_bytes; /* 0: this machine's; 65536 on Grace */
    void *(*map)(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
    int (*unmap)(void *at, size_t bytes);
    int (*protect)(void *at, size_t bytes, int protection);
    int (*advise)(void *at, size_t bytes, int advice); /* called by several threads at once */
    /* NULL: built without libnuma. */
    long (*bind)(void *at, unsigned long bytes, int mode, const unsigned long *nodes,
                 unsigned long max_node, unsigned flags);
    long (*query_pages)(int pid, unsigned long count, void **pages, const int *nodes, int *status,
                        int flags);
    int (*make_file)(char *path_template); /* mkstemp */
    int (*unlink)(const char *path);
    int (*allocate)(int fd, off_t offset, off_t bytes); /* posix_fallocate: returns the error */
    int (*close)(int fd);
} ls_arena_system;

extern const ls_arena_system ls_arena_real_system;

struct ls_arena {
    ls_arena_info info;
    const ls_arena_system *system;
    uint64_t page_bytes;
    char name[64];
    void *mapping; /* with the guard pages on both sides; NULL: nothing is mapped */
    uint64_t mapping_bytes;
};

/* ls_arena_open() on another system; *system outlives the arena. */
ls_status ls_arena_open_on(const ls_arena_system *system, const ls_arena_options *options,
                           ls_arena **arena);

/* Fill an arena whose name, system, page_bytes and info.place are set.  What is mapped when they
 * fail, ls_arena_close() unmaps. */
ls_status ls_arena_open_host(ls_arena *arena, const ls_arena_options *options);
ls_status ls_arena_open_file(ls_arena *arena, const ls_arena_options *options);

/* Unmap what is mapped. */
void ls_arena_unmap(ls_arena *arena);

/* Add a sentence to info.note. */
void ls_arena_add_note(ls_arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* size rounded up to whole pages; false: too large. */
bool ls_arena_round_up(uint64_t size, uint64_t page_bytes, uint64_t *rounded);

/* The largest reserved huge page that suits size_bytes and of which enough are free (on numa_node,
 * if bound); 0: none, and the note says why if any are reserved. */
uint64_t ls_arena_find_hugetlb(ls_arena *arena, const ls_arena_options *options);

/* The size of a transparent huge page, or 0: none to be had, and the note says why. */
uint64_t ls_arena_find_thp(ls_arena *arena);

/* Bytes of the arena that transparent huge pages back. */
uint64_t ls_arena_count_thp(const ls_arena *arena);

/* Fail unless the node is there and may be used; before anything is mapped. */
ls_status ls_arena_check_node(const ls_arena *arena, int node);

/* Let all pages of the arena come from the node; before any is touched. */
ls_status ls_arena_bind(ls_arena *arena, int node);

/* See on which node a sample of pages is. */
ls_status ls_arena_check_pages(ls_arena *arena, bool allow_wrong_node);

/*
 * Back every page.  strict: only by the call that fails where writing to a page would be a signal.
 * Returns 0 or an errno; EINVAL if strict and the kernel (before 5.14) has no such call.
 */
int ls_arena_touch(ls_arena *arena, int n_threads, bool strict);

#endif
