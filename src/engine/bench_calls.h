/*
 * bench_calls.h - calls of ops on operands of their own, timed in turns: on the lane of a device
 * where a run's ops would be, with a lane for the optimizer beside it.
 *
 *     operand 0 |call 0|call 1|...|call 0|    operand 1 |call 0|call 1|...    ...    workspace
 *
 * Each operand has a room of its own, in which it moves on from call to call: as in a step, caches
 * near the cores do not hold what it left there.
 *
 * Layer: engine (uses device, kernels).  Threads: one timing at a time.
 */
#ifndef LS_BENCH_CALLS_H
#define LS_BENCH_CALLS_H

#include "arena.h"
#include "bench.h"
#include "ops.h"

#define LS_BENCH_CALLS_MAX 96

typedef struct ls_bench_call {
    ls_op op;
    ls_op_args args;         /* operands are filled in when it runs */
    uint64_t operand_bytes;  /* of the largest operand */
    double bytes;            /* of all of them */
    uint64_t n_places, next; /* where an operand may lie, and where it is next */
    double samples[LS_REPETITIONS_MAX];
} ls_bench_call;

typedef struct ls_bench_calls {
    const ls_ops *ops;
    ls_bench_call calls[LS_BENCH_CALLS_MAX];
    int n;
    uint64_t operand_bytes_max, workspace_bytes_max; /* of all calls */
    ls_arena *arena;                                 /* the CPU's operands */
    ls_device *device;
    char *base;
} ls_bench_calls;

/* Append a call.  At most LS_BENCH_CALLS_MAX. */
void ls_bench_calls_add(ls_bench_calls *calls, ls_op op, const ls_op_args *args,
                        uint64_t operand_bytes, double bytes);

/* Reserve the operands' memory and start the lanes; open_device NULL: the CPU.  LS_ERR_NO_MEMORY,
 * or what the device fails with; ls_bench_calls_close() then too. */
ls_status ls_bench_calls_open(ls_bench_calls *calls, ls_device_opener *open_device);

/* Seconds of each call by its index: repetitions in turns, each of as many calls as last
 * least_seconds.  What an op fails with. */
ls_status ls_bench_calls_time(ls_bench_calls *calls, int repetitions, double least_seconds,
                              ls_spread *seconds);

void ls_bench_calls_close(ls_bench_calls *calls);

#endif
