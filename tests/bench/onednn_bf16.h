/*
 * onednn_bf16.h - oneDNN's own bf16 matrix multiplication, to measure ours against.
 *
 * The trainer does not call it: it divides sums between threads as it sees fit.
 */
#ifndef LS_ONEDNN_BF16_H
#define LS_ONEDNN_BF16_H

#include "ops.h"

typedef struct onednn_bf16 onednn_bf16;

/* Prepare c = op(a) op(b) on the operands of args, all bf16.  NULL if oneDNN refuses. */
onednn_bf16 *onednn_bf16_create(const ls_matmul_args *args);

/* Run it on all OpenMP threads and wait; 0, or -1 on failure. */
int onednn_bf16_run(onednn_bf16 *multiplication);

void onednn_bf16_destroy(onednn_bf16 *multiplication);

#endif
