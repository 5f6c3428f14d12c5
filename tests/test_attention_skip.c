/*
 * test_attention_skip.c - tiles of queries and keys between which the mask lets no pair through are
 * skipped, not computed and masked: for every kernel, every document layout and window; on the GPU
 * for the kernels of the tensor cores.
 *
 * Whether a kernel computes a pair of tiles is observed: with NaN in the values of a key tile,
 * every query tile that multiplies with it gets NaN, be its probabilities 0, and every other keeps
 * its bits.  So the tile pairs computed can be counted, and must be those with a pair to compute.
 */
#include "ops_test.h"

#include "cpu/attention_tile.h"

enum {
#if defined(LS_TEST_CUDA)
    N = 320, /* tokens: 5 tiles of each */
    K = 64,
    QUERY_TILE = 64,
    KEY_TILE = 64,
#else
    N = 560, /* tokens: 9 query tiles, 3 key tiles */
    K = 32,  /* every kernel has it */
    QUERY_TILE = LS_ATTENTION_QUERY_TILE,
    KEY_TILE = LS_ATTENTION_KEY_TILE,
#endif
    H = 1,
    G = 1,
    DOCUMENTS_MOST = 8,
    QUERY_TILES = (N + QUERY_TILE - 1) / QUERY_TILE,
    KEY_TILES = (N + KEY_TILE - 1) / KEY_TILE,
};

typedef struct layout {
    const char *name;
    int64_t documents[DOCUMENTS_MOST]; /* tokens of each; the last one again and again */
    int64_t window;
    int tile_pairs, tile_pairs_cuda; /* with a pair to compute */
} layout;

static const layout layouts[] = {
    {"one document", {N}, 0, 15, 15},
    {"many documents", {100}, 0, 11, 10},
    {"documents of one token", {1}, 0, 9, 5},
    {"long and short documents", {1, 300, 1, 1, 250, 100, 3}, 0, 11, 15},
    {"an empty tail", {300, 1}, 0, 10, 15},
    {"a window", {N}, 100, 12, 12},
    {"documents and a window", {300, 80}, 50, 11, 9},
};

/* One layout for one kernel: operands, and where results go. */
typedef struct bench {
    const layout *layout;
    ls_dtype dtype;
    int64_t doc_start[N];
    int has_pair[QUERY_TILES][KEY_TILES];
    void *q, *k, *v, *d_o, *o;
    float *lse, *delta, *dq, *dk, *dv;
} bench;

static void fill_doc_start(bench *b)
{
    const int64_t *documents = b->layout->documents;
    int64_t length = 0;

    for (int64_t start = 0, d = 0; start < N; start += length) {
        if (d < DOCUMENTS_MOST && documents[d] > 0) length = documents[d++];
        for (int64_t i = start; i < start + length && i < N; i++) b->doc_start[i] = start;
    }
}

static int is_seen(const bench *b, int64_t query, int64_t key)
{
    return key <= query && key >= b->doc_start[query] &&
           (b->layout->window == 0 || key > query - b->layout->window);
}

static void fill_has_pair(bench *b)
{
    for (int64_t query = 0; query < N; query++)
        for (int64_t key = 0; key < N; key++)
            b->has_pair[query / QUERY_TILE][key / KEY_TILE] |= is_seen(b, query, key);
}

static bench make_bench(const layout *of, ls_dtype dtype)
{
    bench b = {.layout = of, .dtype = dtype};
    fill_doc_start(&b);
    fill_has_pair(&b);
    b.q = make_noise((int64_t)N * H * K, dtype, 1, 2.0);
    b.k = make_noise((int64_t)N * G * K, dtype, 2, 2.0);
    b.v = make_noise((int64_t)N * G * K, dtype, 3, 1.0);
    b.d_o = make_noise((int64_t)N * H * K, dtype, 4, 1.0);
    b.o = make_buffer((int64_t)N * H * K, dtype);
    b.lse = make_buffer((int64_t)N * H, LS_DTYPE_F32);
    b.delta = make_noise((int64_t)N * H, LS_DTYPE_F32, 5, 1.0);
    b.dq = make_buffer((int64_t)N * H * K, LS_DTYPE_F32);
    b.dk = make_buffer((int64_t)N * G * K, LS_DTYPE_F32);
    b.dv = make_buffer((int64_t)N * G * K, LS_DTYPE_F32);
    return b;
}

static void free_bench(bench *b)
{
    void *all[] = {b->q, b->k, b->v, b->d_o, b->o, b->lse, b->delta, b->dq, b->dk, b->dv};
    for (int64_t i = 0; i < COUNT_OF(all); i++) free_buffer(all[i]);
}

/* ---- running ------------------------------------------------------------------------------- */

#define FIELDS(b)                                                                                  \
    .q = (b)->q, .k = (b)->k, .v = (b)->v, .doc_start = (b)->doc_start, .N = N, .M = N, .H = H,    \
    .G = G, .K = K, .window = (b)->layout->window, .scale = 0.17f, .dtype = (b)->dtype

static void run_op(ls_op op, ls_op_args *args, void **workspace)
{
    const uint64_t bytes = tested_ops->workspace_bytes(op, args);
    spread_set(1); /* more threads would mostly wait for each other */
    *workspace = bytes > 0 ? make_bytes(bytes) : NULL;
    assert_int_equal(ls_ops_run(tested_ops, op, NULL, args), LS_OK);
    free_buffer(*workspace);
}

static void run_forward(const bench *b)
{
    ls_op_args args = {.attention_forward = {FIELDS(b), .o = b->o, .lse = b->lse, .last = 1}};
    run_op(LS_OP_attention_forward, &args, &args.attention_forward.workspace);
}

static void run_backward(const bench *b)
{
    ls_op_args args = {.attention_backward = {FIELDS(b), .d_o = b->d_o, .lse = b->lse,
                                              .delta = b->delta, .dq = b->dq, .dk = b->dk,
                                              .dv = b->dv}};
    for (int64_t i = 0; i < (int64_t)N * G * K; i++) b->dk[i] = b->dv[i] = 0.0f;
    run_op(LS_OP_attention_backward, &args, &args.attention_backward.workspace);
}

/* ---- observing ----------------------------------------------------------------------------- */

/* Rows of heads of K: which tile, and how large tiles are. */
typedef struct tile {
    int64_t index, rows, heads;
} tile;

static tile query_tile(int64_t index)
{
    return (tile){index, QUERY_TILE, H};
}

static tile key_tile(int64_t index)
{
    return (tile){index, KEY_TILE, G};
}

static int64_t tile_first(tile t)
{
    return t.index * t.rows * t.heads * K;
}

static int64_t tile_end(tile t)
{
    const int64_t end = (t.index + 1) * t.rows;
    return (end < N ? end : N) * t.heads * K;
}

/* The tensor with NaN in a tile; its bits are kept in `before`. */
static void *poison(void *data, ls_dtype dtype, tile t)
{
    const int64_t first = tile_first(t), end = tile_end(t);
    void *before =
        make_copy((char *)data + first * (int64_t)ls_dtype_bytes(dtype), end - first, dtype);
    for (int64_t i = first; i < end; i++) put(data, i, dtype, NAN);
    return before;
}

static void heal(void *data, ls_dtype dtype, tile t, void *before)
{
    const int64_t bytes = (int64_t)ls_dtype_bytes(dtype);
    memcpy((char *)data + tile_first(t) * bytes, before,
           (size_t)((tile_end(t) - tile_first(t)) * bytes));
    free_buffer(before);
}

/* Whether NaN came into a tile of a result; if not, its bits must be those without NaN anywhere. */
static int is_reached(const void *data, const void *clean, ls_dtype dtype, tile t)
{
    const int64_t first = tile_first(t), end = tile_end(t), bytes = (int64_t)ls_dtype_bytes(dtype);

    for (int64_t i = first; i < end; i++)
        if (isnan(get(data, i, dtype))) return 1;
    assert_memory_equal((const char *)data + first * bytes, (const char *)clean + first * bytes,
                        (size_t)((end - first) * bytes));
    return 0;
}

static void report(const bench *b, const char *what, int64_t i, int64_t j, int expected)
{
    fail_msg("%s of %s %s, %s: query tile %d %s key tile %d", what,
             tested_ops->kernel_name(LS_OP_attention_forward, b->dtype, K), ls_dtype_name(b->dtype),
             b->layout->name, (int)i, expected ? "skips" : "does not skip", (int)j);
}

/* ---- the checks ---------------------------------------------------------------------------- */

/* Keys and values of one key tile after the other; o, then dq, tell who multiplied with them. */
static int count_by_keys(bench *b, void (*run)(const bench *b), void *result, ls_dtype dtype)
{
    int n = 0;
    void *clean;

    run(b);
    clean = make_copy(result, (int64_t)N * H * K, dtype);
    for (int64_t j = 0; j < KEY_TILES; j++) {
        void *k = poison(b->k, b->dtype, key_tile(j)), *v = poison(b->v, b->dtype, key_tile(j));
        run(b);
        heal(b->k, b->dtype, key_tile(j), k);
        heal(b->v, b->dtype, key_tile(j), v);
        for (int64_t i = 0; i < QUERY_TILES; i++) {
            const int expected = b->has_pair[i][j];
            const int reached = is_reached(result, clean, dtype, query_tile(i));
            if (reached != expected)
                report(b, run == run_forward ? "forward" : "dq", i, j, expected);
            n += reached;
        }
    }
    free_buffer(clean);
    return n;
}

/* Queries and d_o of one query tile after the other; dk and dv tell who multiplied with them. */
static int count_by_queries(bench *b)
{
    int n = 0;
    float *dk, *dv;

    run_backward(b);
    dk = make_copy(b->dk, (int64_t)N * G * K, LS_DTYPE_F32);
    dv = make_copy(b->dv, (int64_t)N * G * K, LS_DTYPE_F32);
    for (int64_t i = 0; i < QUERY_TILES; i++) {
        void *q = poison(b->q, b->dtype, query_tile(i));
        void *d_o = poison(b->d_o, b->dtype, query_tile(i));
        run_backward(b);
        heal(b->q, b->dtype, query_tile(i), q);
        heal(b->d_o, b->dtype, query_tile(i), d_o);
        for (int64_t j = 0; j < KEY_TILES; j++) {
            const int expected = b->has_pair[i][j];
            const int reached = is_reached(b->dk, dk, LS_DTYPE_F32, key_tile(j));
            if (reached != expected) report(b, "dk", i, j, expected);
            if (is_reached(b->dv, dv, LS_DTYPE_F32, key_tile(j)) != expected)
                report(b, "dv", i, j, expected);
            n += reached;
        }
    }
    free_buffer(dk);
    free_buffer(dv);
    return n;
}

static void check_layout(const layout *of, ls_dtype dtype)
{
    const int expected = tested_ops == &ls_ops_cpu ? of->tile_pairs : of->tile_pairs_cuda;
    bench b = make_bench(of, dtype);

    assert_int_equal(count_by_keys(&b, run_forward, b.o, dtype), expected);
    run_forward(&b); /* lse without NaN */
    assert_int_equal(count_by_keys(&b, run_backward, b.dq, LS_DTYPE_F32), expected);
    assert_int_equal(count_by_queries(&b), expected);
    free_bench(&b);
}

#if defined(LS_TEST_CUDA)

static void tiles_without_a_pair_are_skipped(void **state)
{
    (void)state;
    assert_string_equal(tested_ops->kernel_name(LS_OP_attention_forward, LS_DTYPE_BF16, K), "mma");
    for (int64_t i = 0; i < COUNT_OF(layouts); i++) check_layout(&layouts[i], LS_DTYPE_BF16);
#if !defined(LS_TEST_DEVICE)
    assert_true(ls_emulation_count().mmas > 0);
    assert_int_equal(ls_emulation_count().matrix_conflicts, 0);
#endif
}

#else

static void tiles_without_a_pair_are_skipped(void **state)
{
    (void)state;
    for (int variant = LS_ATTENTION_VARIANT_PLAIN; variant < LS_ATTENTION_VARIANT_COUNT;
         variant++) {
        if (!ls_cpu_attention_force((ls_attention_variant)variant)) continue;
        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
            FOR_EACH_DTYPE(dtype) check_layout(&layouts[i], dtype);
    }
    ls_cpu_attention_force(LS_ATTENTION_VARIANT_AUTO);
}

/* The reference takes a second for a layout with many pairs; it goes pair by pair anyway. */
static void the_reference_skips_too(void **state)
{
    (void)state;
    assert_int_equal(ls_cpu_attention_force(LS_ATTENTION_VARIANT_REFERENCE), 1);
    check_layout(&layouts[2], LS_DTYPE_F32);
    ls_cpu_attention_force(LS_ATTENTION_VARIANT_AUTO);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_without_a_pair_are_skipped),
#if !defined(LS_TEST_CUDA)
        cmocka_unit_test(the_reference_skips_too),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
