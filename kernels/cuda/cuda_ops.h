/*
 * cuda_ops.h - the operations of ops.h on an NVIDIA GPU (sm_90).
 *
 * A stream argument is a cudaStream_t; every op queues its kernels there and returns at once.
 * Operands are what the device can address: its own memory, or host memory that is registered or
 * that the device reads coherently.  Sums have a fixed order that depends on shapes alone.
 *
 * Layer: kernels (uses base).  Threads: as ops.h says.
 */
#ifndef LS_CUDA_OPS_H
#define LS_CUDA_OPS_H

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const ls_ops ls_ops_cuda;

#define LS_OP_PROTOTYPE(name) ls_status ls_cuda_##name(void *stream, const ls_##name##_args *args);
LS_OP_LIST(LS_OP_PROTOTYPE)
#undef LS_OP_PROTOTYPE

uint64_t ls_cuda_matmul_workspace_bytes(const ls_matmul_args *args);

/* Load cuBLASLt before the first matmul.  LS_ERR_UNSUPPORTED: it is not on this machine. */
ls_status ls_cuda_matmul_open(void);

/* A matmul is cut so that no matrix of a call has more elements; for tests. */
extern int64_t ls_cuda_matmul_elements_max;

/* The status of a CUDA call that failed: what names it in the text.  error is a cudaError_t. */
ls_status ls_cuda_fail(int error, const char *what);

#ifdef __cplusplus
}
#endif

#endif
