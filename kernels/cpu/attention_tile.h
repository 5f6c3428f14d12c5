/*
 * attention_tile.h - what the CPU attention kernels share: tiles, the keys a row sees, and who
 * computes what in which order.
 *
 *              keys k_start ..          A query tile is QUERY_TILE rows of one head, a key tile is
 *            +----+----+----+----+      KEY_TILE rows of one key/value head.  Tiles that no pair
 *   queries  | m  |    |    |    |      reaches are skipped; tiles on the diagonal or on the edge
 *   q_start  | .. | m  |    |    |      of a document or window are masked (m); the rest (..) are
 *      ..    |    | m  | m  |    |      computed in full.
 *            +----+----+----+----+
 *
 * Forward: one task is one (head, query tile) and walks its key tiles in ascending order.  A kernel
 * may take several tasks of one key/value head at once, to convert their keys once; that changes
 * no sum.
 * Backward: one task is one (key/value head, key tile); it owns that tile's dk and dv and walks
 * the heads of its group and their query tiles.  dq of one (head, query tile) is added to by the
 * key tiles in DESCENDING order: a task waits for its turn.  Tasks start in that order too, so the
 * lowest unfinished task never waits, whatever the number of threads; and since every task starts
 * on its diagonal, one query tile behind the task before it, the others rarely do.
 *
 * So every sum's order is a function of shapes and documents alone.
 *
 * Layer: kernels, private.  Threads: tasks of one call run at once.
 */
#ifndef LS_ATTENTION_TILE_H
#define LS_ATTENTION_TILE_H

#include <stdatomic.h>
#include <stdint.h>

#include "ops.h"

enum {
    LS_ATTENTION_QUERY_TILE = 64,
    LS_ATTENTION_KEY_TILE = 256,
    LS_ATTENTION_FORWARD_TASKS_MOST = 4, /* of one call of a kernel */
};

typedef enum ls_attention_variant {
    LS_ATTENTION_VARIANT_AUTO = 0,
    LS_ATTENTION_VARIANT_REFERENCE, /* scalar, any K */
    LS_ATTENTION_VARIANT_PLAIN,     /* vectors of the build's baseline */
    LS_ATTENTION_VARIANT_AVX2,
    LS_ATTENTION_VARIANT_AVX512,
    LS_ATTENTION_VARIANT_AMX,
    LS_ATTENTION_VARIANT_COUNT
} ls_attention_variant;

/* Shapes and mask of one call, common to forward and backward. */
typedef struct ls_attention_shape {
    const int64_t *doc_start; /* [N] */
    int64_t N, M, H, G, K;
    int64_t q_start, k_start, window;
    float scale;
    ls_dtype dtype;
} ls_attention_shape;

/* The keys that the rows of one query tile see, as indices into the key block. */
typedef struct ls_attention_rows {
    int n_rows;
    int32_t first[LS_ATTENTION_QUERY_TILE]; /* row i sees first[i] .. last[i]; first > last: none */
    int32_t last[LS_ATTENTION_QUERY_TILE];
    int32_t first_min, last_max; /* over rows that see a key; first_min > last_max: none does */
    int32_t first_max, last_min; /* keys in first_max .. last_min are seen by every row */
} ls_attention_rows;

/* Read the rows from row on; rows past the end see everything, so that they mask nothing. */
void ls_attention_rows_read(ls_attention_rows *rows, const ls_attention_shape *shape, int64_t row);

/* The span of keys that any row sees: first_min and last_max; first_min > last_max if none. */
ls_attention_rows ls_attention_rows_span(const ls_attention_shape *shape);

/* ---- forward ------------------------------------------------------------------------------- */

typedef struct ls_attention_forward_task {
    const ls_attention_forward_args *args;
    const ls_attention_rows *rows; /* at least one row sees a key */
    int64_t head, row;
} ls_attention_forward_task;

/* ---- backward ------------------------------------------------------------------------------ */

/* The workspace of one backward call. */
typedef struct ls_attention_backward_plan {
    const ls_attention_backward_args *args;
    int64_t n_query_tiles, n_key_tiles;
    int32_t *first;        /* [n_query_tiles] first key tile reached */
    int32_t *last;         /* [n_query_tiles] last one; first > last: none */
    int32_t *first_after;  /* [n_query_tiles] least `first` from this tile on */
    _Atomic int32_t *turn; /* [H, n_query_tiles] the key tile that may add to dq now */
} ls_attention_backward_plan;

typedef struct ls_attention_backward_task {
    const ls_attention_backward_plan *plan;
    int64_t group, key_tile;
} ls_attention_backward_task;

/* The next query tile at or after tile that the task's key tile touches; n_query_tiles if none. */
int64_t ls_attention_query_tile_next(const ls_attention_backward_task *task, int64_t tile);

/* Block until it is the task's turn to add to dq of this head and query tile. */
void ls_attention_turn_wait(const ls_attention_backward_task *task, int64_t head, int64_t tile);

/* Let the next key tile add. */
void ls_attention_turn_pass(const ls_attention_backward_task *task, int64_t head, int64_t tile);

/* ---- kernels ------------------------------------------------------------------------------- */

typedef struct ls_attention_kernel {
    const char *name;
    int (*usable)(ls_dtype dtype, int64_t K);
    /* Bytes of args->workspace that forward wants; NULL: none. */
    uint64_t (*forward_workspace_bytes)(const ls_attention_forward_args *args);
    /* Prepare key tile `key_tile` of key/value head `group` in the workspace; NULL: nothing to. */
    void (*forward_prepare)(const ls_attention_forward_args *args, int64_t group, int64_t key_tile);
    /* The tasks are of one key/value head, 1 to forward_tasks. */
    void (*forward)(const ls_attention_forward_task *tasks, int n_tasks);
    int forward_tasks;
    void (*backward)(const ls_attention_backward_task *task);
} ls_attention_kernel;

/* The kernel that runs for these operands on this machine. */
const ls_attention_kernel *ls_attention_kernel_choose(ls_dtype dtype, int64_t K);

/* Workspace of one call. */
uint64_t ls_attention_forward_bytes(const ls_attention_forward_args *args);
uint64_t ls_attention_backward_bytes(const ls_attention_backward_args *args);

/* Force one variant for tests and benchmarks (where it can run; others still run the rest); AUTO
 * restores the choice.  Returns 0 if this machine has not got it.  Not for use while ops run. */
int ls_cpu_attention_force(ls_attention_variant variant);

extern const ls_attention_kernel ls_attention_kernel_reference;
extern const ls_attention_kernel ls_attention_kernel_plain;
extern const ls_attention_kernel ls_attention_kernel_avx2;   /* where the CPU has it */
extern const ls_attention_kernel ls_attention_kernel_avx512; /* where the CPU has it */

uint64_t ls_attention_amx_forward_bytes(const ls_attention_forward_args *args);
void ls_attention_amx_forward_prepare(const ls_attention_forward_args *args, int64_t group,
                                      int64_t key_tile);
void ls_attention_amx_forward(const ls_attention_forward_task *task, int n_tasks);
void ls_attention_amx_backward(const ls_attention_backward_task *task);

/* The args of both directions name these fields alike. */
#define SHAPE_OF(args)                                                                             \
    ((ls_attention_shape){.doc_start = (args)->doc_start,                                          \
                          .N = (args)->N,                                                          \
                          .M = (args)->M,                                                          \
                          .H = (args)->H,                                                          \
                          .G = (args)->G,                                                          \
                          .K = (args)->K,                                                          \
                          .q_start = (args)->q_start,                                              \
                          .k_start = (args)->k_start,                                              \
                          .window = (args)->window,                                                \
                          .scale = (args)->scale,                                                  \
                          .dtype = (args)->dtype})

static inline ls_attention_shape ls_attention_forward_shape(const ls_attention_forward_args *args)
{
    return SHAPE_OF(args);
}

static inline ls_attention_shape ls_attention_backward_shape(const ls_attention_backward_args *args)
{
    return SHAPE_OF(args);
}

#undef SHAPE_OF

#endif
