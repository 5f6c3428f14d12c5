/*
 * attention_vendor.c - cuDNN's attention as a variant: who may call it, graphs, scratch.
 *
 * cuDNN knows no documents, and masks by the diagonal of its last row and key alone.  So it takes
 * blocks whose keys all rows may see but for causality and window, with keys up to the block's end
 * or wholly before it.  Lengths are multiples of 128: a shorter last tile of keys has given NaN in
 * dq where log-sum-exps are below -88, in every version looked at.
 *
 * Scratch of a call, in this order, each part at 256 bytes:
 *   forward    lse [H, N]; o in bf16, used if it is to be merged; cuDNN's
 *   backward   lse [H, N]; stand-in o, dq, dk, dv in bf16; cuDNN's
 * Graphs are kept by shape until the program ends: a plan has tens of shapes.
 */
#include "attention_vendor.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_ops.h"

enum { LENGTH_MULTIPLE = 128, SCRATCH_ALIGN = 256, NOTE_BYTES = 256 };

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
     "backward on Hopper reads workspace that nothing wrote (NaN in gradients), and from 33k "
     "tokens "
     "on memory that is not its own"},
};

/* Versions whose forward has given equal bits in two runs of scripts/gpu_check.sh: none has run. */
static const int32_t forward_repeats[] = {0};

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

/* What forward and backward have in common. */
typedef struct block {
    int64_t N, M, H, G, K, q_start, k_start, window;
    float scale;
    bool backward, one_document, any_order;
    ls_dtype dtype;
} block;

#define BLOCK_OF(args, is_backward)                                                                \
    {                                                                                              \
        (args)->N, (args)->M, (args)->H, (args)->G, (args)->K, (args)->q_start, (args)->k_start,   \
            (args)->window, (args)->scale, (is_backward), (args)->one_document != 0,               \
            (args)->any_order != 0, (args)->dtype                                                  \
    }

static block block_of(ls_op op, const ls_op_args *args)
{
    if (op == LS_OP_attention_backward) return (block)BLOCK_OF(&args->attention_backward, true);
    assert(op == LS_OP_attention_forward);
    return (block)BLOCK_OF(&args->attention_forward, false);
}

/*
 * The shape that cuDNN is to be asked for: keys behind the last row are left out.  False: its masks
 * can not say what this block's is.
 */
static bool find_shape(const block *b, ls_cudnn_shape *shape)
{
    const int64_t seen =
        b->q_start + b->N - b->k_start; /* keys from k_start to the last row's own */
    const bool causal = b->M >= seen;
    const bool windowed = b->window > 0 && b->window < seen;

    memset(shape, 0, sizeof *shape);
    *shape = (ls_cudnn_shape){.N = b->N,
                              .M = causal ? seen : b->M,
                              .H = b->H,
                              .G = b->G,
                              .K = b->K,
                              .window = windowed ? b->window : 0,
                              .scale = b->scale,
                              .causal = causal,
                              .backward = b->backward};
    if (b->N == 0 || b->q_start < b->k_start) return false; /* rows that see nothing */
    if (causal) return true;
    return !windowed && b->k_start + b->M <= b->q_start + 1;
}

/* Whether cuDNN may take blocks of this shape, if the documents allow. */
static bool may_take(const block *b, ls_cudnn_shape *shape)
{
    if (b->dtype != LS_DTYPE_BF16 || (b->K != 64 && b->K != 128)) return false;
    if (!find_shape(b, shape)) return false;
    if (shape->N % LENGTH_MULTIPLE != 0 || shape->M % LENGTH_MULTIPLE != 0) return false;
    const int32_t version = find_version();
    if (version == 0 || find_fault(version, b->backward) != NULL) return false;
    return b->any_order || (!b->backward && repeats_forward(version));
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
    const block b = block_of(op, args);
    ls_cudnn_shape shape;
    return b.one_document && is_aligned(op, args) && may_take(&b, &shape);
}

/* ---- scratch -------------------------------------------------------------------------------- */

static uint64_t times(int64_t a, int64_t b, int64_t c, uint64_t bytes)
{
    return (uint64_t)a * (uint64_t)b * (uint64_t)c * bytes;
}

uint64_t ls_cudnn_workspace_most(const ls_cudnn_shape *s)
{
    if (!s->backward) return LS_CUDNN_SLACK_BYTES;
    const uint64_t heads = s->G < s->H ? 2 * times(s->M, s->H, s->K, sizeof(uint16_t)) : 0;
    return times(s->N, s->H, s->K, sizeof(float)) + times(s->N, s->H, 1, sizeof(float)) + heads +
           LS_CUDNN_SLACK_BYTES;
}

/* Where the parts lie in the workspace; bytes is their sum. */
typedef struct scratch {
    uint64_t lse, o, dq, dk, dv, library, bytes;
} scratch;

static uint64_t add_part(scratch *s, uint64_t bytes)
{
    const uint64_t at = s->bytes;
    s->bytes += (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    return at;
}

static scratch lay_out(const ls_cudnn_shape *shape)
{
    const uint64_t queries = times(shape->N, shape->H, shape->K, sizeof(uint16_t));
    const uint64_t keys = times(shape->M, shape->G, shape->K, sizeof(uint16_t));
    scratch s = {.bytes = 0};

    s.lse = add_part(&s, times(shape->N, shape->H, 1, sizeof(float)));
    s.o = add_part(&s, queries);
    if (shape->backward) {
        s.dq = add_part(&s, queries);
        s.dk = add_part(&s, keys);
        s.dv = add_part(&s, keys);
    }
    s.library = add_part(&s, ls_cudnn_workspace_most(shape));
    return s;
}

/* One block of all keys writes o itself. */
static bool is_merged(const ls_attention_forward_args *args)
{
    return args->o_acc != NULL || args->accumulate || !args->last;
}

uint64_t ls_cuda_attention_vendor_bytes(ls_op op, const ls_op_args *args)
{
    const block b = block_of(op, args);
    ls_cudnn_shape shape;
    return may_take(&b, &shape) ? lay_out(&shape).bytes + SCRATCH_ALIGN : 0;
}

static void *part_at(void *workspace, uint64_t offset)
{
    assert(workspace != NULL);
    const uintptr_t start = (uintptr_t)workspace + SCRATCH_ALIGN - 1;
    return (void *)(start / SCRATCH_ALIGN * SCRATCH_ALIGN + offset);
}

/* ---- calls ---------------------------------------------------------------------------------- */

ls_status ls_cuda_attention_forward_vendor(void *stream, const ls_attention_forward_args *args)
{
    const block b = BLOCK_OF(args, false);
    const bool merged = is_merged(args);
    ls_cudnn_shape shape;

    const bool fits = find_shape(&b, &shape);
    assert(fits);
    (void)fits;
    const scratch s = lay_out(&shape);
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
    const block b = BLOCK_OF(args, true);
    ls_cudnn_shape shape;

    const bool fits = find_shape(&b, &shape);
    assert(fits);
    (void)fits;
    const scratch s = lay_out(&shape);
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
