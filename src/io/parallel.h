/*
 * parallel.h - many independent pieces of blocking work, a few threads.
 *
 * For reads that a disk answers side by side.  Pieces are taken in ascending order; what is
 * reported is the failure of the first piece that fails, whatever the number of threads.
 *
 * Layer: io (uses base).  Threads: the caller's own works too, and is all there is if no other can
 * be started.  Blocks until every piece that was begun has ended.
 */
#ifndef LS_PARALLEL_H
#define LS_PARALLEL_H

#include <stdint.h>

#include "status.h"

#define LS_PARALLEL_THREADS_MAX 16

/* Piece `index` of the work; several run at once. */
typedef ls_status ls_parallel_piece(void *context, int64_t index);

/*
 * Run pieces 0 .. n - 1.
 *   threads  at most so many, and at most LS_PARALLEL_THREADS_MAX
 * Returns LS_OK or what the first failing piece returned; no piece behind it is begun afterwards.
 */
ls_status ls_parallel_run(int64_t n, int threads, ls_parallel_piece *piece, void *context);

#endif
