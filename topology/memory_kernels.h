/*
 * memory_kernels.h - loops whose time is that of the memory below them.
 *
 * Plain loads and stores, no library call: a memcpy may choose non-temporal stores.
 *
 * Layer: topology, internal.  Threads: no shared state.
 */
#ifndef LS_MEMORY_KERNELS_H
#define LS_MEMORY_KERNELS_H

#include <stdint.h>

#include "measure.h"

/* Bytes of one parameter in the buffer of LS_TRAFFIC_UPDATE, and those that go by for it. */
#define LS_UPDATE_BUFFER_BYTES  16
#define LS_UPDATE_TRAFFIC_BYTES 28

/* Slices begin and end here: whole cache lines of every stream of an update. */
#define LS_SLICE_BYTES 4096

/*
 * Pass once over data[0 .. bytes), aligned to and a multiple of LS_SLICE_BYTES.
 * Returns what keeps a compiler from leaving the loop out; *traffic_bytes: bytes read and written.
 */
uint64_t ls_memory_pass(ls_traffic traffic, void *data, uint64_t bytes, double *traffic_bytes);

/* Nodes of a chain are this far apart: a prefetcher fetches a line with its neighbour. */
#define LS_CHAIN_STRIDE_BYTES 128

/* Make data[0 .. bytes) one cycle through all of its bytes / LS_CHAIN_STRIDE_BYTES nodes in random
 * order (Sattolo 1986); the first 8 bytes of a node are the index of the next. */
void ls_chain_make(void *data, uint64_t bytes, uint64_t seed);

/* Follow the chain from node `from` for n loads, each of which waits for the one before it; where
 * it ends. */
uint64_t ls_chain_follow(const void *data, uint64_t from, uint64_t n);

#endif
