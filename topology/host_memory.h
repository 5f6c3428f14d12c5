/* host_memory.h - how much host memory this process may still use.  Layer: topology. */
#ifndef LS_HOST_MEMORY_H
#define LS_HOST_MEMORY_H

#include <stdint.h>

typedef struct ls_host_memory {
    uint64_t available_bytes; /* the smallest of the limits below; UINT64_MAX if none is known */
    const char *limit;        /* which limit that is: "MemAvailable", "cgroup memory limit", ... */
} ls_host_memory;

/* Read /proc/meminfo and the cgroup's limit and use (v2, then v1); what is absent does not limit.
 */
ls_host_memory ls_host_memory_read(void);

#endif
