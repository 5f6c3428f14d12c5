/*
 * cuda_emulation.h - what a .cu file sees in place of nvcc: the same kernels, run by the host.
 *
 * A kernel is an ordinary function.  A block's threads are fibers of one host thread: each runs
 * until it meets a barrier or a warp exchange, and which one runs next is drawn at random, so a
 * missing barrier shows as a result that depends on the seed.  Barriers know the line they stand
 * on: threads that meet at different ones, or of which some have returned, end the program.
 *
 *     ls_launch(kernel, grid, block, shared_bytes, stream, args...)   queued on the stream
 *     LS_SHARED(float, tile)    dynamic shared memory: poisoned before each block, a guard page
 *                               behind it
 *
 * CUDA's own headers give types and prototypes; the files beside this one give the symbols.
 * Layer: tests.  Threads: device work runs on whichever host thread waits, one at a time.
 */
#ifndef LS_CUDA_EMULATION_H
#define LS_CUDA_EMULATION_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include <cuda_runtime.h>

#include "status.h"

#undef __global__
#undef __device__
#undef __host__
#undef __launch_bounds__
#undef __forceinline__
#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

/* ---- a running thread ----------------------------------------------------------------------- */

struct ls_emulated_thread {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
};

extern ls_emulated_thread ls_emulated_now;

#define threadIdx (ls_emulated_now.thread)
#define blockIdx  (ls_emulated_now.block)
#define blockDim  (ls_emulated_now.block_dim)
#define gridDim   (ls_emulated_now.grid_dim)

/* ---- launches ------------------------------------------------------------------------------- */

struct ls_emulated_launch {
    const void *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    std::function<void()> body; /* of one thread */
};

/* Check the configuration as the runtime does, and queue it. */
cudaError_t ls_emulated_submit(const ls_emulated_launch &launch, cudaStream_t stream);

template <typename... P, typename... A>
static inline cudaError_t ls_emulated_call(void (*kernel)(P...), dim3 grid, dim3 block,
                                           size_t shared_bytes, cudaStream_t stream, A... args)
{
    const ls_emulated_launch launch = {reinterpret_cast<const void *>(kernel), grid, block,
                                       shared_bytes, [=] { kernel(args...); }};
    return ls_emulated_submit(launch, stream);
}

void *ls_emulated_shared();
#define LS_SHARED(type, name) type *name = static_cast<type *>(ls_emulated_shared())

/* ---- barriers and warps --------------------------------------------------------------------- */

int ls_emulated_barrier(int vote, const char *file, int line); /* the or of all votes */

/* What a lane hands to its warp. */
struct ls_emulated_words {
    uint64_t word[3];
};

/* Hand in words, wait for the lanes of mask, return what each of them handed in. */
const ls_emulated_words *ls_emulated_exchange(unsigned mask, const ls_emulated_words &words,
                                              const char *file, int line);

/* This thread's lane, checked to be in mask. */
unsigned ls_emulated_lane(unsigned mask, const char *file, int line);

/* The value of lane (mine & keep) ^ flip. */
template <typename T>
static inline T ls_emulated_shuffle(unsigned mask, T value, unsigned keep, unsigned flip,
                                    const char *file, int line)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves 8 bytes at most");
    ls_emulated_words bits = {{0, 0, 0}};
    std::memcpy(bits.word, &value, sizeof value);
    const unsigned from = (ls_emulated_lane(mask, file, line) & keep) ^ flip;
    std::memcpy(&value, ls_emulated_exchange(mask, bits, file, line)[from].word, sizeof value);
    return value;
}

static inline unsigned ls_emulated_ballot(unsigned mask, bool vote, const char *file, int line)
{
    const ls_emulated_words *votes = ls_emulated_exchange(mask, {{vote, 0, 0}}, file, line);
    unsigned bits = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && votes[lane].word[0] != 0) bits |= 1u << lane;
    return bits;
}

#define __syncthreads()        ((void)ls_emulated_barrier(0, __FILE__, __LINE__))
#define __syncthreads_or(vote) ls_emulated_barrier((vote), __FILE__, __LINE__)
#define __syncwarp()           ((void)ls_emulated_exchange(~0u, {{0, 0, 0}}, __FILE__, __LINE__))
#define __shfl_xor_sync(mask, value, flip)                                                         \
    ls_emulated_shuffle((mask), (value), ~0u, (unsigned)(flip), __FILE__, __LINE__)
#define __ballot_sync(mask, vote) ls_emulated_ballot((mask), (vote), __FILE__, __LINE__)

/* ---- tensor cores and asynchronous copies: tensor.cpp --------------------------------------- */

/* ldmatrix.sync.aligned.m8n8.x1/.x2/.x4[.trans].shared.b16: n matrices into as many registers. */
void ls_emulated_ldmatrix(unsigned *registers, int n, bool transposed, const void *row,
                          const char *file, int line);

/* mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32: d += a b */
void ls_emulated_mma(float *d, const unsigned *a, const unsigned *b, const char *file, int line);

/* cp.async.ca/.cg.shared.global: 4, 8 or 16 bytes, of which the first from_global come from there
 * and the rest are 0.  Until a wait for its group the destination holds NaN. */
void ls_emulated_copy_async(void *shared, const void *global, int bytes, int from_global,
                            const char *file, int line);
void ls_emulated_copy_async_commit();
void ls_emulated_copy_async_wait(int groups_left);

/* ---- arithmetic: what rounds once on the device rounds once here ---------------------------- */

static inline unsigned __float_as_uint(float value)
{
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float __uint_as_float(unsigned bits)
{
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to nearest, never contracted with what stands around them. */
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline float __fsub_rn(float a, float b)
{
    return a - b;
}

static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

static inline float __fsqrt_rn(float a)
{
    return std::sqrt(a);
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return std::fma(a, b, c);
}

static inline int __ffs(int bits)
{
    return __builtin_ffs(bits);
}

#endif
