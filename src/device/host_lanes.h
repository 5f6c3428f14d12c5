/*
 * host_lanes.h - lanes as threads: the whole of the cpu device, and what runs the host's lanes of
 * the others.
 *
 * The functions are those of device.h without its table.  A listener is told of every command that
 * has finished, or was dropped, and of the first failure.
 *
 * Layer: device, private.  Threads: one submits and syncs; fail, status, finished, stats, running:
 * any.
 */
#ifndef LS_HOST_LANES_H
#define LS_HOST_LANES_H

#include "device.h"

typedef struct ls_host_lanes ls_host_lanes;

/* Called with the lanes' mutex held: no call back, no waiting. */
typedef struct ls_lane_listener {
    void (*finished)(void *context, int lane, uint64_t ticket);
    void (*failed)(void *context);
    void *context;
} ls_lane_listener;

/* listener: may be NULL. */
ls_status ls_host_lanes_open(const ls_device_options *options, const ls_lane_listener *listener,
                             ls_host_lanes **lanes);
void ls_host_lanes_close(ls_host_lanes *lanes);

ls_status ls_host_lanes_submit_op(ls_host_lanes *lanes, int lane, int64_t tag, ls_op op,
                                  const ls_op_args *args);
ls_status ls_host_lanes_submit_copy(ls_host_lanes *lanes, int lane, int64_t tag, void *to,
                                    const void *from, uint64_t bytes);
ls_status ls_host_lanes_submit_call(ls_host_lanes *lanes, int lane, int64_t tag,
                                    ls_device_call *call, void *context, int64_t argument);
ls_status ls_host_lanes_submit_wait(ls_host_lanes *lanes, int lane, int other, uint64_t ticket);

/* Queue a call that only waits: it counts neither as work nor as what the lane runs. */
ls_status ls_host_lanes_submit_block(ls_host_lanes *lanes, int lane, ls_device_call *call,
                                     void *context, int64_t argument);

/* As ls_device_observe(), for the lanes' own commands; what only waits is not told. */
void ls_host_lanes_observe(ls_host_lanes *lanes, const ls_device_observer *observer);

uint64_t ls_host_lanes_ticket(const ls_host_lanes *lanes, int lane);
ls_status ls_host_lanes_sync(ls_host_lanes *lanes, int64_t *failed_tag);
void ls_host_lanes_wait(ls_host_lanes *lanes, int lane, uint64_t ticket);
ls_lane_stats ls_host_lanes_stats(ls_host_lanes *lanes, int lane);
int64_t ls_host_lanes_running(ls_host_lanes *lanes, int lane);

/* Work elsewhere has failed: as if a command with this tag had, with the text of ls_error(). */
void ls_host_lanes_fail(ls_host_lanes *lanes, ls_status status, int64_t tag);

/* The first failure since the last sync. */
ls_status ls_host_lanes_status(ls_host_lanes *lanes);

/* How many commands of a lane have finished, or were dropped. */
uint64_t ls_host_lanes_finished(ls_host_lanes *lanes, int lane);

#endif
