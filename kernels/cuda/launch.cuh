/*
 * launch.cuh - how an op starts a kernel, so that nvcc and the tests' emulation both compile it.
 *
 *     return ls_launch("add", add_kernel<T>, grid, threads, shared_bytes, stream, args...);
 *     LS_SHARED(float, tile);     in a kernel: its dynamic shared memory; there is no other kind;
 *                                 aligned to 256 bytes if the kernel asks for a multiple of them
 *
 * Layer: kernels, private to kernels/cuda.
 */
#ifndef LS_LAUNCH_CUH
#define LS_LAUNCH_CUH

#include <assert.h>

#include "cuda_ops.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#define LS_SHARED(type, name)                                                                      \
    extern __shared__ __align__(256) unsigned char ls_shared_bytes[];                              \
    type *name = reinterpret_cast<type *>(ls_shared_bytes)

template <typename... P, typename... A>
static inline cudaError_t ls_call(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                                  cudaStream_t stream, A... args)
{
    kernel<<<grid, block, shared_bytes, stream>>>(args...);
    return cudaGetLastError();
}
#define LS_UNROLL _Pragma("unroll")
#else
#include "cuda_emulation.h"
#define ls_call ls_emulated_call
#define LS_UNROLL
#endif

#define LS_DEVICE static __device__ __forceinline__

enum { LS_SHARED_BYTES_USUAL = 48 * 1024, LS_SHARED_BYTES_MAX = 227 * 1024 };

/* Queue a kernel.  More shared memory than usual must be asked for first. */
template <typename... P, typename... A>
static inline ls_status ls_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                                  size_t shared_bytes, void *stream, A... args)
{
    cudaError_t error = cudaSuccess;
    if (shared_bytes > LS_SHARED_BYTES_USUAL)
        error = cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(shared_bytes));
    if (error == cudaSuccess)
        error =
            ls_call(kernel, grid, block, shared_bytes, static_cast<cudaStream_t>(stream), args...);
    return error == cudaSuccess ? LS_OK : ls_cuda_fail(error, name);
}

static inline int64_t ls_ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

/* A grid of n blocks along x. */
static inline dim3 ls_grid(int64_t n, int64_t y = 1)
{
    assert(n >= 1 && n <= INT32_MAX && y >= 1 && y <= 65535);
    return dim3(static_cast<unsigned>(n), static_cast<unsigned>(y));
}

/* Run the statement with T the element type that dtype names. */
#define LS_DISPATCH(dtype, ...)                                                                    \
    do {                                                                                           \
        assert((dtype) == LS_DTYPE_F32 || (dtype) == LS_DTYPE_BF16);                               \
        if ((dtype) == LS_DTYPE_BF16) {                                                            \
            using T = ls_bf16x;                                                                    \
            __VA_ARGS__                                                                            \
        } else {                                                                                   \
            using T = float;                                                                       \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    } while (0)

#endif
