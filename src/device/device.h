/*
 * device.h - what runs steps: lanes in order, tickets across lanes.
 *
 * A device has lanes.  Commands of one lane run in submission order; commands of different lanes
 * run at any time unless one waits for another's ticket.  Submitting never waits for work to
 * finish, only for room in the lane's queue.  A failure stops the device: commands behind it are
 * dropped, waits are released, and the first failure is what ls_device_sync() returns.
 *
 *   submit --> [lane queue] --> runs in order; ticket n of a lane = its n-th command
 *
 * Backends: cpu (lanes are threads), cuda (lanes are streams, or threads of the host).
 * Layer: device (uses topology, kernels).  Threads: one thread submits and syncs.
 */
#ifndef LS_DEVICE_H
#define LS_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "host_cores.h"
#include "ops.h"
#include "status.h"

#define LS_DEVICE_LANES_MAX  8
#define LS_DEVICE_COMMANDS   64 /* of a lane whose options do not say */
#define LS_DEVICE_NOTE_BYTES 256

typedef struct ls_device ls_device;

/* Work that is no op: runs on the lane's thread (cpu), or as a host callback. */
typedef ls_status ls_device_call(void *context, int64_t argument);

/* Time as throttled copies see it; tests have their own. */
typedef struct ls_device_clock {
    uint64_t (*now_ns)(void *context);
    void (*sleep_until_ns)(void *context, uint64_t ns);
    void *context;
} ls_device_clock;

typedef struct ls_device_options {
    int n_lanes;                           /* 1 .. LS_DEVICE_LANES_MAX */
    int lane_threads[LS_DEVICE_LANES_MAX]; /* threads of the ops on a lane; 0: all cores */
    /* Commands that a lane may have before who submits more waits for the oldest; 0: 64. */
    int lane_commands[LS_DEVICE_LANES_MAX];
    /* The lane's threads, those of its ops too, stay on these cores; NULL: wherever they may. */
    const ls_host_cores *lane_cores[LS_DEVICE_LANES_MAX];
    /* Copies of a lane take at least this long, as over a link that slow; 0: as fast as they go. */
    double lane_bytes_per_s[LS_DEVICE_LANES_MAX];
    const ls_device_clock *clock; /* that throttling goes by; NULL: the real one */
    /* The lane's ops and copies are a GPU's; it takes no calls.  The cpu device has no such lanes:
     * it runs all of them on the host. */
    bool lane_on_gpu[LS_DEVICE_LANES_MAX];
} ls_device_options;

/* What a lane has done since the device was opened. */
typedef struct ls_lane_stats {
    uint64_t busy_ns; /* time inside commands */
    uint64_t op_ns[LS_OP_COUNT];
    uint64_t op_calls[LS_OP_COUNT];
    uint64_t copied_bytes;
} ls_lane_stats;

/* Open the CPU device: one thread for each lane.  LS_ERR_NO_MEMORY, LS_ERR_DEVICE (no thread,
 * or not on its cores). */
ls_status ls_device_open_cpu(const ls_device_options *options, ls_device **device);

typedef ls_status ls_device_opener(const ls_device_options *options, ls_device **device);

/*
 * Open the first GPU; in builds with CUDA.  LS_ERR_UNSUPPORTED: no driver, no GPU, one that the
 * kernels were not built for, no cuBLASLt; LS_ERR_NO_MEMORY; LS_ERR_DEVICE.  The text says which.
 */
ls_status ls_device_open_cuda(const ls_device_options *options, ls_device **device);

/* Whether ls_device_open_cuda() would find a GPU: LS_OK or why not.  Costs a driver start. */
ls_status ls_device_probe_cuda(void);

/* "cpu", "cuda"; never NULL. */
const char *ls_device_name(const ls_device *device);

/* What was not had as asked, for the user; "" if nothing. */
const char *ls_device_note(const ls_device *device);

/* Finish what was submitted, end the lanes, release what was reserved and attached.  NULL is
 * allowed. */
void ls_device_close(ls_device *device);

/* The op table of the backend. */
const ls_ops *ls_device_ops(const ls_device *device);

/* Whether it has memory of its own, which the host cannot touch. */
bool ls_device_has_memory(const ls_device *device);

/* Reserve memory of the device's own, until it is closed.  LS_ERR_NO_MEMORY. */
ls_status ls_device_reserve(ls_device *device, uint64_t bytes, void **base);

/*
 * Let ops on the device's lanes address host memory [base, base + bytes), until it is closed; it
 * must stay mapped till then.  LS_ERR_DEVICE, LS_ERR_UNSUPPORTED: it cannot.
 */
ls_status ls_device_attach(ls_device *device, void *base, uint64_t bytes);

/* Queue an op.  args are copied; tag is given back with a failure. */
ls_status ls_device_submit_op(ls_device *device, int lane, int64_t tag, ls_op op,
                              const ls_op_args *args);

/* Queue a copy between places: to and from do not overlap. */
ls_status ls_device_submit_copy(ls_device *device, int lane, int64_t tag, void *to,
                                const void *from, uint64_t bytes);

/* Queue a call. */
ls_status ls_device_submit_call(ls_device *device, int lane, int64_t tag, ls_device_call *call,
                                void *context, int64_t argument);

/* What is submitted to lane from now on starts after ticket of lane other has finished. */
ls_status ls_device_submit_wait(ls_device *device, int lane, int other, uint64_t ticket);

/* The ticket of the lane's latest submitted command; 0 before the first. */
uint64_t ls_device_ticket(const ls_device *device, int lane);

/*
 * Wait until all lanes are idle.  Returns the first failure since the last sync, its text as
 * ls_error() and its tag through failed_tag (-1: none); the device can be used again afterwards.
 */
ls_status ls_device_sync(ls_device *device, int64_t *failed_tag);

/*
 * Wait until the lane has finished this ticket (after a failure: has dropped it, unless it was
 * running).  Whether all is well, ls_device_sync() says.
 */
void ls_device_wait(ls_device *device, int lane, uint64_t ticket);

/* Told of every command that runs (waits do not), on the thread of its lane: when it begins, and
 * when it has ended; of a GPU's commands both at once when they are seen to have ended, on any
 * thread, one at a time.  Must return at once. */
typedef struct ls_device_observer {
    void (*began)(void *context, int lane, int64_t tag, uint64_t now_ns);
    void (*ended)(void *context, int lane, int64_t tag, uint64_t began_ns, uint64_t now_ns);
    void *context;
} ls_device_observer;

/* From the next command on, until the device closes.  Nothing is submitted meanwhile. */
void ls_device_observe(ls_device *device, const ls_device_observer *observer);

/* Copy the counters of a lane, as of now.  Any thread. */
ls_lane_stats ls_device_stats(ls_device *device, int lane);

/* The tag of the command that the lane runs, or ran last; -1 before its first.  Any thread. */
int64_t ls_device_running(ls_device *device, int lane);

#endif
