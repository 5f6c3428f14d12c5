/*
 * measure_host.h - the probe of a host memory: threads pinned to the cores of its NUMA node, and a
 * buffer that they touch first.
 *
 * Layer: topology.  Threads: one probe at a time is measured, from one thread.
 */
#ifndef LS_MEASURE_HOST_H
#define LS_MEASURE_HOST_H

#include "host_cores.h"
#include "measure.h"

typedef struct ls_host_probe ls_host_probe;

/*
 * A probe for the memory of a node.
 *
 *   cores         of the node; copied
 *   numa_node     where the pages must lie: the first pages are looked up after the first touch
 *   buffer_bytes  as ls_buffer_choose() gives it
 *   probe         [out] free with ls_host_probe_free(), when nothing of it is open
 *
 * LS_ERR_NO_MEMORY.  Its functions fail with LS_ERR_NO_MEMORY (the buffer), LS_ERR_DEVICE (no
 * thread on a core), LS_ERR_UNSUPPORTED (the system put pages on another node).
 */
ls_status ls_host_probe_make(const ls_host_cores *cores, int numa_node, uint64_t buffer_bytes,
                             ls_host_probe **probe);

void ls_host_probe_free(ls_host_probe *probe);

/* For ls_memory_sweep_measure(); valid as long as the probe. */
ls_memory_probe ls_host_probe_functions(ls_host_probe *probe);

#endif
