/*
 * host_cores.h - the cores of a NUMA node that this process may run on, and their cache, by sysfs.
 *
 * Layer: topology, internal.  Threads: plain data.
 */
#ifndef LS_HOST_CORES_H
#define LS_HOST_CORES_H

#include <stdint.h>

#include "status.h"

#define LS_CORES_MAX 1024 /* of a node, and CPU numbers */

typedef struct ls_host_cores {
    int n, cpus[LS_CORES_MAX]; /* one CPU of each core, ascending */
    uint64_t cache_bytes;      /* their last-level caches together; 0: not known */
} ls_host_cores;

/*
 * Look below root ("": this machine).
 *
 *   allowed  [LS_CORES_MAX] CPUs that may be used; NULL: those this process is allowed
 *
 * Without NUMA in sysfs all CPUs are of the node.  LS_ERR_UNSUPPORTED: the node has no CPU that we
 * may use (memory without cores, or a cpuset of other nodes).
 */
ls_status ls_host_cores_find(const char *root, int numa_node, const unsigned char *allowed,
                             ls_host_cores *cores);

/* Set flags[i] for each i of "0-3,8,10-11"; returns how many were set below LS_CORES_MAX. */
int ls_cpu_list_parse(const char *text, unsigned char flags[LS_CORES_MAX]);

#endif
