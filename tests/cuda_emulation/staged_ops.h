/*
 * staged_ops.h - the CUDA ops on operands in host memory, so that the tests of the CPU ops run them
 * too: every operand is copied to device memory of exactly its size, the op runs, and all comes
 * back.  What an op touches beyond its operands faults, or is found when the memory is freed.
 *
 * Layer: tests.  Threads: one.
 */
#ifndef LS_STAGED_OPS_H
#define LS_STAGED_OPS_H

#include "ops.h"

extern const ls_ops ls_ops_staged;

#endif
