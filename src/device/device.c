/* device.c - device.h by the functions of the backend. */
#include "device.h"

#include <assert.h>
#include <stddef.h>

#include "device_backend.h"

void ls_device_close(ls_device *device)
{
    if (device != NULL) device->backend->close(device);
}

const char *ls_device_name(const ls_device *device)
{
    return device->backend->name;
}

const char *ls_device_note(const ls_device *device)
{
    return device->note;
}

const ls_ops *ls_device_ops(const ls_device *device)
{
    return device->backend->ops;
}

bool ls_device_has_memory(const ls_device *device)
{
    return device->backend->reserve != NULL;
}

ls_status ls_device_reserve(ls_device *device, uint64_t bytes, void **base)
{
    assert(ls_device_has_memory(device) && bytes > 0);
    return device->backend->reserve(device, bytes, base);
}

ls_status ls_device_attach(ls_device *device, void *base, uint64_t bytes)
{
    return device->backend->attach != NULL ? device->backend->attach(device, base, bytes) : LS_OK;
}

ls_status ls_device_submit_op(ls_device *device, int lane, int64_t tag, ls_op op,
                              const ls_op_args *args)
{
    return device->backend->submit_op(device, lane, tag, op, args);
}

ls_status ls_device_submit_copy(ls_device *device, int lane, int64_t tag, void *to,
                                const void *from, uint64_t bytes)
{
    return device->backend->submit_copy(device, lane, tag, to, from, bytes);
}

ls_status ls_device_submit_call(ls_device *device, int lane, int64_t tag, ls_device_call *call,
                                void *context, int64_t argument)
{
    return device->backend->submit_call(device, lane, tag, call, context, argument);
}

ls_status ls_device_submit_wait(ls_device *device, int lane, int other, uint64_t ticket)
{
    assert(other != lane);
    return device->backend->submit_wait(device, lane, other, ticket);
}

uint64_t ls_device_ticket(const ls_device *device, int lane)
{
    return device->backend->ticket(device, lane);
}

ls_status ls_device_sync(ls_device *device, int64_t *failed_tag)
{
    return device->backend->sync(device, failed_tag);
}

void ls_device_wait(ls_device *device, int lane, uint64_t ticket)
{
    device->backend->wait(device, lane, ticket);
}

void ls_device_observe(ls_device *device, const ls_device_observer *observer)
{
    device->backend->observe(device, observer);
}

ls_lane_stats ls_device_stats(ls_device *device, int lane)
{
    return device->backend->stats(device, lane);
}

int64_t ls_device_running(ls_device *device, int lane)
{
    return device->backend->running(device, lane);
}
