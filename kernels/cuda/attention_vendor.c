/*
 * attention_vendor.c - cuDNN's attention as a variant: who may call it, graphs, scratch.
 *
 * Graphs are kept by shape until the program ends: a plan has tens of shapes.
 */
#include "attention_vendor.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_ops.h"

enum { NOTE_BYTES = 256 };

/* ---- versions ------------------------------------------------------------------------------- */

/* What versions before a fixed one do wrong, at the lengths and masks that are asked for here. */
static const struct {
    int32_t fixed;
    bool backward; /* that alone */
    const char *fault;
} faults[] = {
    {90600, false,
     "masks from the bottom right need lengths that are multiples of 64, and no window"},
    {91800, true,
     "backward on Hopper reads workspace that nothing wrote (NaN), and beyond its memory from 33k "
     "tokens on"},
};

/* Versions whose forward has given equal bits in two runs of scripts/gpu_check.sh; 0: none yet. */
static int32_t forward_repeats[] = {0};

void ls_cuda_attention_vendor_repeats(int32_t version)
{
    forward_repeats[0] = version;
}

static const char *find_fault(int32_t version, bool backward)
{
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        if (version < faults[i].fixed && (backward || !faults[i].backward)) return faults[i].fault;
    return NULL;
}

static bool repeats_forward(int32_t version)
{
    for (size_t i = 0; i < sizeof forward_repeats / sizeof forward_repeats[0]; i++)
        if (forward_repeats[i] == version) return true;
    return false;
}

/* ---- the library and its graphs ------------------------------------------------------------- */

typedef struct kept {
    ls_cudnn_shape shape;
    ls_cudnn_graph *graph;
} kept;

static struct {
    pthread_mutex_t mutex;
    bool asked;      /* whether there is a library */
    int32_t version; /* 0: none */
    char note[NOTE_BYTES];
    kept *graphs; /* [n_graphs] */
    int64_t n_graphs, room;
} vendor = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* The version, or 0; the mutex is held. */
static int32_t open_library(void)
{
    if (vendor.asked) return vendor.version;
    vendor.asked = true;
    vendor.version = 0;
    if (ls_cudnn_open() != LS_OK) {
        snprintf(vendor.note, sizeof vendor.note, "none: %s", ls_error());
        return 0;
    }
    const int32_t version = ls_cudnn_version();
    const char *forward = find_fault(version, false), *backward = find_fault(version, true);
    const char *fault = forward != NULL ? forward : backward;
    snprintf(vendor.note, sizeof vendor.note, "%d.%d.%d%s%s%s", (int)(version / 10000),
             (int)(version / 100 % 100), (int)(version % 100),
             forward != NULL    ? ", not used: "
             : backward != NULL ? ", forward alone: "
                                : "",
             fault != NULL ? fault : "", fault != NULL ? "; newer versions are said not to" : "");
    vendor.version = version;
    return version;
}

static int32_t find_version(void)
{
    pthread_mutex_lock(&vendor.mutex);
    const int32_t version = open_library();
    pthread_mutex_unlock(&vendor.mutex);
    return version;
}

const char *ls_cuda_attention_vendor_note(void)
{
    (void)find_version();
    return vendor.note;
}

void ls_cuda_attention_vendor_close(void)
{
    pthread_mutex_lock(&vendor.mutex);
    for (int64_t i = 0; i < vendor.n_graphs; i++) ls_cudnn_graph_free(vendor.graphs[i].graph);
    free(vendor.graphs);
    vendor.graphs = NULL;
    vendor.n_graphs = vendor.room = 0;
    vendor.asked = false;
    pthread_mutex_unlock(&vendor.mutex);
}

static ls_status make_room(void)
{
    if (vendor.n_graphs < vendor.room) return LS_OK;
    const int64_t room = vendor.room > 0 ? 2 * vendor.room : 16;
    kept *graphs = realloc(vendor.graphs, (size_t)room * sizeof *graphs);
    if (graphs == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "graphs of attention");
    vendor.graphs = graphs;
    vendor.room = room;
    return LS_OK;
}

/* The graph of a shape, built at its first use; the mutex is held. */
static ls_status find_graph(const ls_cudnn_shape *shape, ls_cudnn_graph **graph)
{
    for (int64_t i = 0; i < vendor.n_graphs; i++)
        if (memcmp(&vendor.graphs[i].shape, shape, sizeof *shape) == 0) {
            *graph = vendor.graphs[i].graph;
            return LS_OK;
        }
    LS_TRY(make_room());
    LS_TRY(ls_cudnn_graph_build(shape, ls_cudnn_workspace_most(shape), graph));
    vendor.graphs[vendor.n_graphs++] = (kept){*shape, *graph};
    return LS_OK;
}

static ls_status run_graph(void *stream, const ls_cudnn_shape *shape,
                           const ls_cudnn_operands *operands)
{
    ls_cudnn_graph *graph;

    pthread_mutex_lock(&vendor.mutex);
    ls_status status = find_graph(shape, &graph);
    if (status == LS_OK) status = ls_cudnn_graph_run(graph, stream, operands);
    pthread_mutex_unlock(&vendor.mutex);
    return status;
}

/* ---- which calls ---------------------------------------------------------------------------- */

/* Whether cuDNN may take blocks of this shape, if the documents allow. */
static bool may_take(ls_op op, const ls_op_args *args)
{
    const bool backward = op == LS_OP_attention_backward;
    const bool any_order =
        backward ? args->attention_backward.any_order : args->attention_forward.any_order;
    ls_cudnn_shape shape;

    if (!ls_vendor_shape_find(op, args, &shape)) return false;
    if (!any_order && (backward || forward_repeats[0] == 0)) return false; /* not even loaded */
    const int32_t version = find_version();
    if (version == 0 || find_fault(version, backward) != NULL) return false;
    return any_order || repeats_forward(version);
}

/* Whether cuDNN's 16-byte accesses reach q, k, v, and what else it reads or writes in place. */
static bool is_aligned(ls_op op, const ls_op_args *args)
{
    const ls_attention_forward_args *f = &args->attention_forward;
    const ls_attention_backward_args *b = &args->attention_backward;
    const uintptr_t all =
        op == LS_OP_attention_forward
            ? (uintptr_t)f->q | (uintptr_t)f->k | (uintptr_t)f->v | (uintptr_t)f->o
            : (uintptr_t)b->q | (uintptr_t)b->k | (uintptr_t)b->v | (uintptr_t)b->d_o;
    return all % 16 == 0;
}

bool ls_cuda_attention_takes_vendor(ls_op op, const ls_op_args *args)
{
    const bool one_document = op == LS_OP_attention_backward ? args->attention_backward.one_document
                                                             : args->attention_forward.one_document;
    return one_document && is_aligned(op, args) && may_take(op, args);
}

uint64_t ls_cuda_attention_vendor_bytes(ls_op op, const ls_op_args *args)
{
    return may_take(op, args) ? ls_vendor_scratch_bytes(op, args) : 0;
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* One block of all keys writes o itself. */
static bool is_merged(const ls_attention_forward_args *args)
{
    return args->o_acc != NULL || args->accumulate || !args->last;
}

static void *part_at(void *workspace, uint64_t offset)
{
    assert(workspace != NULL);
    const uintptr_t start = (uintptr_t)workspace + LS_VENDOR_SCRATCH_ALIGN - 1;
    return (void *)(start / LS_VENDOR_SCRATCH_ALIGN * LS_VENDOR_SCRATCH_ALIGN + offset);
}

ls_status ls_cuda_attention_forward_vendor(void *stream, const ls_attention_forward_args *args)
{
    const ls_op_args any = {.attention_forward = *args};
    const bool merged = is_merged(args);
    ls_cudnn_shape shape;

    const bool fits = ls_vendor_shape_find(LS_OP_attention_forward, &any, &shape);
    assert(fits);
    (void)fits;
    const ls_vendor_scratch s = ls_vendor_scratch_lay_out(&shape);
    float *lse = part_at(args->workspace, s.lse);
    void *o = merged ? part_at(args->workspace, s.o) : args->o;
    const ls_cudnn_operands operands = {.q = args->q,
                                        .k = args->k,
                                        .v = args->v,
                                        .o = o,
                                        .lse = lse,
                                        .workspace = part_at(args->workspace, s.library)};
    LS_TRY(run_graph(stream, &shape, &operands));
    if (!merged) return ls_cuda_turn(stream, args->lse, lse, args->H, args->N);
    const ls_cuda_merge_args merge = {.o = args->last ? args->o : NULL,
                                      .lse = args->lse,
                                      .o_acc = args->o_acc,
                                      .piece = o,
                                      .piece_lse = lse,
                                      .N = args->N,
                                      .H = args->H,
                                      .K = args->K,
                                      .accumulate = args->accumulate};
    return ls_cuda_attention_merge(stream, &merge);
}

/* y = x, or y += x, from bf16 in fp32 */
static ls_status widen(void *stream, float *y, const void *x, int64_t n, int32_t accumulate)
{
    const ls_add_sumsq_args args = {
        .y = y, .x = x, .n = n, .accumulate = accumulate, .x_dtype = LS_DTYPE_BF16};
    return ls_cuda_add_sumsq(stream, &args);
}

ls_status ls_cuda_attention_backward_vendor(void *stream, const ls_attention_backward_args *args)
{
    const ls_op_args any = {.attention_backward = *args};
    ls_cudnn_shape shape;

    const bool fits = ls_vendor_shape_find(LS_OP_attention_backward, &any, &shape);
    assert(fits);
    (void)fits;
    const ls_vendor_scratch s = ls_vendor_scratch_lay_out(&shape);
    const int64_t n_queries = args->N * args->H * args->K, n_keys = shape.M * args->G * args->K;
    const ls_cudnn_operands operands = {.q = args->q,
                                        .k = args->k,
                                        .v = args->v,
                                        .o = part_at(args->workspace, s.o),
                                        .lse = part_at(args->workspace, s.lse),
                                        .d_o = args->d_o,
                                        .dq = part_at(args->workspace, s.dq),
                                        .dk = part_at(args->workspace, s.dk),
                                        .dv = part_at(args->workspace, s.dv),
                                        .workspace = part_at(args->workspace, s.library)};
    LS_TRY(ls_cuda_turn(stream, operands.lse, args->lse, args->N, args->H));
    LS_TRY(ls_cuda_attention_stand_in(stream, operands.o, args->d_o, args->delta, args->N * args->H,
                                      args->K));
    LS_TRY(run_graph(stream, &shape, &operands));
    LS_TRY(widen(stream, args->dq, operands.dq, n_queries, args->accumulate));
    LS_TRY(widen(stream, args->dk, operands.dk, n_keys, 1));
    return widen(stream, args->dv, operands.dv, n_keys, 1);
}
