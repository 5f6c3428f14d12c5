/*
 * host_memory.h - how much host memory this process may still use: what the machine has left, what
 * its cgroups allow, what one NUMA node has left.
 *
 * Layer: topology.  Threads: no shared state; every call reads the files anew.
 */
#ifndef LS_HOST_MEMORY_H
#define LS_HOST_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#define LS_HOST_MEMORY_SOURCE_BYTES 320

typedef struct ls_host_memory {
    uint64_t available_bytes; /* the smallest of the limits below; UINT64_MAX if none is known */
    const char *limit;        /* which limit that is: "MemAvailable", "cgroup memory limit", ... */
    uint64_t limit_bytes, used_bytes; /* of that limit; what can be given back is not used */
    char source[LS_HOST_MEMORY_SOURCE_BYTES]; /* the file that states it; "": none */
} ls_host_memory;

/*
 * The least of: MemAvailable; memory.max and memory.high of this process's cgroup and of each of
 * its ancestors (version 2), memory.limit_in_bytes of the same (version 1), files that can be given
 * back not counted as used; the limit on address space.  What is absent does not limit.  The
 * locked-memory limit plays no part: nothing is locked.
 */
ls_host_memory ls_host_memory_read(void);

/* The same of a machine whose /proc and /sys lie below root ("": this one). */
ls_host_memory ls_host_memory_read_at(const char *root);

/*
 * What NUMA node `node` can still hold: its MemFree and page cache, less what the kernel keeps back
 * of its zones (as MemAvailable reckons).  False, and *memory as it was: there is no such node, it
 * has no memory, or it is offline.
 */
bool ls_host_memory_read_node(const char *root, int node, ls_host_memory *memory);

#endif
