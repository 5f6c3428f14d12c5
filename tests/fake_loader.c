/*
 * fake_loader.c - stands for libcuda.so.1 where cuDNN only plans: it loads kernels, in appearance,
 * and has nothing to run them on.
 */
#define API __attribute__((visibility("default")))

#define NO_DRIVER 34 /* CUDA_ERROR_STUB_LIBRARY */

API int cuLibraryLoadData(void **library);
API int cuLibraryUnload(void *library);
API int cuLibraryGetKernel(void **kernel);

int cuLibraryLoadData(void **library)
{
    static int loaded;
    *library = &loaded;
    return 0;
}

int cuLibraryUnload(void *library)
{
    (void)library;
    return 0;
}

int cuLibraryGetKernel(void **kernel)
{
    static int found;
    *kernel = &found;
    return 0;
}

/* What else cuDNN looks for when it starts. */
#define REFUSED(name)                                                                              \
    API int name(void);                                                                            \
    int name(void)                                                                                 \
    {                                                                                              \
        return NO_DRIVER;                                                                          \
    }

REFUSED(cuInit)
REFUSED(cuCtxGetCurrent)
REFUSED(cuCtxGetLimit)
REFUSED(cuCtxPopCurrent)
REFUSED(cuCtxPushCurrent)
REFUSED(cuDeviceGet)
REFUSED(cuDeviceGetCount)
REFUSED(cuDriverGetVersion)
REFUSED(cuGetErrorName)
REFUSED(cuGetErrorString)
REFUSED(cuKernelGetAttribute)
REFUSED(cuKernelSetAttribute)
REFUSED(cuLaunchCooperativeKernel)
REFUSED(cuLaunchKernel)
REFUSED(cuLaunchKernelEx)
REFUSED(cuLibraryLoadFromFile)
REFUSED(cuLinkAddData)
REFUSED(cuLinkComplete)
REFUSED(cuLinkCreate)
REFUSED(cuLinkDestroy)
REFUSED(cuOccupancyMaxPotentialClusterSize)
REFUSED(cuStreamGetCtx)
