/*
 * device_backend.h - what a device is made of: the functions behind device.h.
 *
 * Layer: device, private.
 */
#ifndef LS_DEVICE_BACKEND_H
#define LS_DEVICE_BACKEND_H

#include "device.h"

typedef struct ls_device_backend {
    const char *name;
    const ls_ops *ops;
    void (*close)(ls_device *device);
    ls_status (*submit_op)(ls_device *device, int lane, int64_t tag, ls_op op,
                           const ls_op_args *args);
    ls_status (*submit_copy)(ls_device *device, int lane, int64_t tag, void *to, const void *from,
                             uint64_t bytes);
    ls_status (*submit_call)(ls_device *device, int lane, int64_t tag, ls_device_call *call,
                             void *context, int64_t argument);
    ls_status (*submit_wait)(ls_device *device, int lane, int other, uint64_t ticket);
    uint64_t (*ticket)(const ls_device *device, int lane);
    ls_status (*sync)(ls_device *device, int64_t *failed_tag);
    void (*wait)(ls_device *device, int lane, uint64_t ticket);
    void (*observe)(ls_device *device, const ls_device_observer *observer);
    ls_lane_stats (*stats)(ls_device *device, int lane);
    int64_t (*running)(ls_device *device, int lane);
    /* NULL: no memory of its own */
    ls_status (*reserve)(ls_device *device, uint64_t bytes, void **base);
    ls_status (*attach)(ls_device *device, void *base, uint64_t bytes);
} ls_device_backend;

/* Every backend's struct begins with this. */
struct ls_device {
    const ls_device_backend *backend;
    char note[LS_DEVICE_NOTE_BYTES];
};

#endif
