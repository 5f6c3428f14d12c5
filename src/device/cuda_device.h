/*
 * cuda_device.h - the CUDA device from within: its lanes (device_cuda.c), and what the driver and
 * the GPU's memory are asked for (cuda_machine.c).
 *
 * Layer: device, private.  Threads: as device.h says.
 */
#ifndef LS_CUDA_DEVICE_H
#define LS_CUDA_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda_ops.h"
#include "device_backend.h"
#include "host_lanes.h"

#define LS_CUDA_KEEPS_MAX 8 /* reservations, and as many attachments */

typedef CUresult wait_value_function(CUstream stream, CUdeviceptr at, cuuint64_t value,
                                     unsigned int flags);

/* The events around one command; free once it has been seen to finish and nobody waits for it. */
typedef struct mark {
    cudaEvent_t start, end;
    int lane, users;
    struct mark *next; /* of all */
} mark;

typedef struct command {
    mark *mark;
    int64_t tag;
    ls_op op; /* LS_OP_COUNT: a copy */
    uint64_t bytes;
} command;

typedef struct gpu_lane {
    cudaStream_t stream; /* NULL: a lane of the host */
    uint64_t submitted, retired;
    command *ring; /* [n_commands] */
    uint64_t n_commands;
    ls_lane_stats stats;
} gpu_lane;

typedef struct cuda_device {
    ls_device base;
    ls_host_lanes *host;
    pthread_mutex_t mutex; /* guards lanes and marks; held in no call that waits */
    int n_lanes;
    gpu_lane lanes[LS_DEVICE_LANES_MAX];
    mark *marks;
    char *counters; /* [n_lanes] of COUNTER_BYTES: commands a host lane has finished */
    bool released;  /* counters are ahead; guarded by the host lanes' mutex */
    wait_value_function *wait_value;
    bool reads_host; /* kernels read any host memory, attached or not */
    void *reserved[LS_CUDA_KEEPS_MAX], *attached[LS_CUDA_KEEPS_MAX];
    int n_reserved, n_attached;
    ls_device_observer observer; /* set while the lanes are idle */
    cudaEvent_t origin;          /* passed at origin_ns by the host's clock; NULL: not observed */
    uint64_t origin_ns;
} cuda_device;

static inline cuda_device *cuda_of(const ls_device *device)
{
    return (cuda_device *)(uintptr_t)device;
}

static inline ls_status check(cudaError_t error, const char *what)
{
    return error == cudaSuccess ? LS_OK : ls_cuda_fail((int)error, what);
}

#define CUDA_TRY(call, what) LS_TRY(check((call), (what)))

/* cuStreamWaitValue64, asked of the runtime.  LS_ERR_UNSUPPORTED: the driver has none. */
ls_status ls_cuda_find_wait_value(cuda_device *device);

/* Whether kernels read any host memory through its page tables. */
bool ls_cuda_reads_host(void);

/* Memory of the device, and host memory that its copies may go by; released by close. */
ls_status ls_cuda_reserve(ls_device *device, uint64_t bytes, void **base);
ls_status ls_cuda_attach(ls_device *device, void *base, uint64_t bytes);
void ls_cuda_release_memory(cuda_device *device);

#endif
