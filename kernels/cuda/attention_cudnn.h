/*
 * attention_cudnn.h - cuDNN's scaled dot-product attention, as little of it as is used: a graph for
 * a shape, and runs of that graph.
 *
 *     open --> build a graph for a shape --> run it on operands, again and again
 *
 * attention_cudnn.cpp has it by cuDNN's C++ frontend, attention_cudnn_absent.c for builds without,
 * tests/cuda_emulation/cudnn.cpp in double precision on the host.  Who calls it when, with which
 * memory, is attention_vendor.c's.
 *
 * Layer: kernels, private to kernels/cuda.  Threads: one at a time; attention_vendor.c sees to it.
 */
#ifndef LS_ATTENTION_CUDNN_H
#define LS_ATTENTION_CUDNN_H

#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * bf16 in and out.  Row n of q sees key m if m <= n + M - N (causal; else all), and if window > 0
 * then m > n + M - N - window.  Compared as bytes: no padding.
 */
typedef struct ls_cudnn_shape {
    int64_t N, M, H, G, K, window;
    float scale;
    int16_t causal, backward;
} ls_cudnn_shape;

/* Forward writes o and lse; backward reads them and d_o, and writes dq, dk, dv. */
typedef struct ls_cudnn_operands {
    const void *q, *k, *v; /* [N, H, K], [M, G, K], [M, G, K] bf16 */
    void *o;               /* [N, H, K] bf16 */
    float *lse;            /* [H, N], natural log: as no other layout is read by all versions */
    const void *d_o;       /* [N, H, K] bf16; backward alone, as what follows */
    void *dq, *dk, *dv;    /* [N, H, K], [M, G, K], [M, G, K] bf16 */
    void *workspace;       /* ls_cudnn_graph_bytes(), 256-byte aligned */
} ls_cudnn_operands;

typedef struct ls_cudnn_graph ls_cudnn_graph;

/* Load the library; again and again is allowed.  LS_ERR_UNSUPPORTED: not in this build, or not on
 * this machine; the text says which. */
ls_status ls_cudnn_open(void);

/* As CUDNN_VERSION counts: 91900 is 9.19.0.  Once open. */
int32_t ls_cudnn_version(void);

/*
 * Plan a shape.
 *   workspace_max  no engine may want more
 *   graph          [out] release with ls_cudnn_graph_free()
 * LS_ERR_UNSUPPORTED: no engine takes the shape so, and which wanted how much; LS_ERR_DEVICE.
 */
ls_status ls_cudnn_graph_build(const ls_cudnn_shape *shape, uint64_t workspace_max,
                               ls_cudnn_graph **graph);

void ls_cudnn_graph_free(ls_cudnn_graph *graph);

uint64_t ls_cudnn_graph_bytes(const ls_cudnn_graph *graph);

/* "eng6_k24=26"; lives as long as the graph. */
const char *ls_cudnn_graph_engine(const ls_cudnn_graph *graph);

/* Queue it on a stream, a cudaStream_t.  LS_ERR_DEVICE, its text naming the shape. */
ls_status ls_cudnn_graph_run(ls_cudnn_graph *graph, void *stream,
                             const ls_cudnn_operands *operands);

#ifdef __cplusplus
}
#endif

#endif
