/* device_cpu.c - the CPU as a device: every lane is a thread of the host. */
#include <stddef.h>
#include <stdlib.h>

#include "device_backend.h"
#include "host_lanes.h"

typedef struct cpu_device {
    ls_device base;
    ls_host_lanes *lanes;
} cpu_device;

static ls_host_lanes *lanes_of(const ls_device *device)
{
    return ((const cpu_device *)device)->lanes;
}

static void close_device(ls_device *device)
{
    ls_host_lanes_close(lanes_of(device));
    free(device);
}

static ls_status submit_op(ls_device *device, int lane, int64_t tag, ls_op op,
                           const ls_op_args *args)
{
    return ls_host_lanes_submit_op(lanes_of(device), lane, tag, op, args);
}

static ls_status submit_copy(ls_device *device, int lane, int64_t tag, void *to, const void *from,
                             uint64_t bytes)
{
    return ls_host_lanes_submit_copy(lanes_of(device), lane, tag, to, from, bytes);
}

static ls_status submit_call(ls_device *device, int lane, int64_t tag, ls_device_call *call,
                             void *context, int64_t argument)
{
    return ls_host_lanes_submit_call(lanes_of(device), lane, tag, call, context, argument);
}

static ls_status submit_wait(ls_device *device, int lane, int other, uint64_t ticket)
{
    return ls_host_lanes_submit_wait(lanes_of(device), lane, other, ticket);
}

static uint64_t ticket_of(const ls_device *device, int lane)
{
    return ls_host_lanes_ticket(lanes_of(device), lane);
}

static ls_status sync_device(ls_device *device, int64_t *failed_tag)
{
    return ls_host_lanes_sync(lanes_of(device), failed_tag);
}

static void wait_ticket(ls_device *device, int lane, uint64_t ticket)
{
    ls_host_lanes_wait(lanes_of(device), lane, ticket);
}

static void observe(ls_device *device, const ls_device_observer *observer)
{
    ls_host_lanes_observe(lanes_of(device), observer);
}

static ls_lane_stats read_stats(ls_device *device, int lane)
{
    return ls_host_lanes_stats(lanes_of(device), lane);
}

static int64_t read_running(ls_device *device, int lane)
{
    return ls_host_lanes_running(lanes_of(device), lane);
}

static const ls_device_backend backend = {
    .name = "cpu",
    .ops = &ls_ops_cpu,
    .close = close_device,
    .submit_op = submit_op,
    .submit_copy = submit_copy,
    .submit_call = submit_call,
    .submit_wait = submit_wait,
    .ticket = ticket_of,
    .sync = sync_device,
    .wait = wait_ticket,
    .observe = observe,
    .stats = read_stats,
    .running = read_running,
};

ls_status ls_device_open_cpu(const ls_device_options *options, ls_device **device)
{
    cpu_device *opened = calloc(1, sizeof *opened);

    if (opened == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "device of %d lanes", options->n_lanes);
    opened->base.backend = &backend;
    const ls_status status = ls_host_lanes_open(options, NULL, &opened->lanes);
    if (status != LS_OK) {
        free(opened);
        return status;
    }
    *device = &opened->base;
    return LS_OK;
}
