/* cuda_machine.c - what the NVIDIA driver and the GPU offer, and memory of it. */
#include "cuda_device.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- driver and GPU ------------------------------------------------------------------------- */

ls_status ls_cuda_find_wait_value(cuda_device *device)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *function = NULL;

    CUDA_TRY(cudaGetDriverEntryPointByVersion("cuStreamWaitValue64", &function, 12000,
                                              cudaEnableDefault, &found),
             "cuStreamWaitValue64");
    if (found != cudaDriverEntryPointSuccess || function == NULL)
        return LS_FAIL(LS_ERR_UNSUPPORTED, "the NVIDIA driver has no cuStreamWaitValue64");
    memcpy(&device->wait_value, &function, sizeof function); /* no such cast in ISO C */
    return LS_OK;
}

static int attribute_of(enum cudaDeviceAttr attribute)
{
    int value = 0;
    if (cudaDeviceGetAttribute(&value, attribute, 0) != cudaSuccess) (void)cudaGetLastError();
    return value;
}

ls_status ls_device_probe_cuda(void)
{
    int driver = 0, runtime = 0, count = 0;

    CUDA_TRY(cudaDriverGetVersion(&driver), "driver version");
    if (driver == 0) return LS_FAIL(LS_ERR_UNSUPPORTED, "the CUDA runtime finds no driver");
    CUDA_TRY(cudaRuntimeGetVersion(&runtime), "runtime version");
    if (driver / 1000 < runtime / 1000)
        return LS_FAIL(LS_ERR_UNSUPPORTED,
                       "the NVIDIA driver knows CUDA %d.%d, this build needs %d.0: a newer driver",
                       driver / 1000, driver % 1000 / 10, runtime / 1000);
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        return LS_FAIL(LS_ERR_UNSUPPORTED, "the NVIDIA driver shows no GPU: %s",
                       cudaGetErrorString(error));
    }
    const int major = attribute_of(cudaDevAttrComputeCapabilityMajor);
    const int minor = attribute_of(cudaDevAttrComputeCapabilityMinor);
    if (major != 9 || minor != 0)
        return LS_FAIL(LS_ERR_UNSUPPORTED,
                       "the GPU's compute capability is %d.%d; the kernels are built for 9.0",
                       major, minor);
    return LS_OK;
}

bool ls_cuda_reads_host(void)
{
    return attribute_of(cudaDevAttrPageableMemoryAccess) != 0;
}

/* ---- memory -----------------------------------------------------------------------------------
 */

ls_status ls_cuda_reserve(ls_device *device, uint64_t bytes, void **base)
{
    cuda_device *d = cuda_of(device);
    size_t free_bytes = 0, total_bytes = 0;
    void *at = NULL;

    assert(d->n_reserved < LS_CUDA_KEEPS_MAX);
    const cudaError_t error = cudaMalloc(&at, bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&free_bytes, &total_bytes);
        return LS_FAIL(
            LS_ERR_NO_MEMORY,
            "GPU memory: %llu bytes asked for, %llu of %llu are free; end what else uses "
            "the GPU, or plan for less",
            (unsigned long long)bytes, (unsigned long long)free_bytes,
            (unsigned long long)total_bytes);
    }
    CUDA_TRY(error, "GPU memory");
    d->reserved[d->n_reserved++] = at;
    *base = at;
    return LS_OK;
}

/* Where the GPU reads the host's page tables, registering is not needed and may not be had (801):
 * that is told, and no failure. */
ls_status ls_cuda_attach(ls_device *device, void *base, uint64_t bytes)
{
    cuda_device *d = cuda_of(device);

    assert(d->n_attached < LS_CUDA_KEEPS_MAX);
    const cudaError_t error = cudaHostRegister(base, bytes, cudaHostRegisterDefault);
    if (error == cudaSuccess) {
        d->attached[d->n_attached++] = base;
        return LS_OK;
    }
    if (!d->reads_host) return check(error, "cudaHostRegister");
    (void)cudaGetLastError();
    snprintf(d->base.note, sizeof d->base.note,
             "cudaHostRegister of %llu bytes: %s (%d); the GPU reads host memory all the same",
             (unsigned long long)bytes, cudaGetErrorName(error), (int)error);
    return LS_OK;
}

void ls_cuda_release_memory(cuda_device *device)
{
    for (int i = 0; i < device->n_attached; i++) cudaHostUnregister(device->attached[i]);
    for (int i = 0; i < device->n_reserved; i++) cudaFree(device->reserved[i]);
}
