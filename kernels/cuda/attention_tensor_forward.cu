/*
 * attention_tensor_forward.cu - attention of one (query block, key block), merged into the running
 * O and LSE, on tensor cores: bf16, heads of 64 or 128.
 *
 * A block takes 128 rows of one head, a warp 32 of them, and walks the keys that any of them sees
 * by tiles of 64, in ascending order (online softmax; the form of FlashAttention-2, Dao 2023).  O
 * and the scores stay in registers, queries lie in shared memory, keys and values arrive there by
 * asynchronous copies, one tile ahead.  A warp skips keys that none of its rows sees and masks
 * those that only some of them see.  Scores are kept in units of log 2, so that a probability is
 * one fma and one exp2.
 *
 * 4 K FLOPs per pair and head.  At the least it reads q, k, v once and writes o and LSE, 2 to 6
 * bytes an element; a block reads its keys, 4 K bytes each, from L2 mostly: 128 FLOPs a byte.
 * What bounds it: mma.sync, then exp2 and shared memory (tests/bench/records/cuda-attention.md).
 */
#include "attention_tensor.cuh"

enum {
    ROWS = 128,
    WARP_ROWS = ROWS / LS_TENSOR_WARPS,
    ROW_TILES = WARP_ROWS / 16, /* of a warp */
};

struct tensor_forward_call {
    ls_bf16x *o;
    float *lse, *o_acc;
    const ls_bf16x *q, *k, *v;
    ls_attention_shape s;
    float scale; /* in units of log 2 */
    int accumulate, last;
};

/* Keys whose scores a warp holds at a time: of a tile's 64 as many as leave room for O. */
template <int K> struct forward_part {
    enum { KEYS = K > 64 ? 32 : 64, COLUMNS = KEYS / 8 };
};

/* Shared memory: queries, two tiles of keys and values, the keys of each row. */
template <int K> struct forward_shared {
    enum {
        TILE = LS_TENSOR_KEYS * 2 * K,
        Q = 0,
        KV = ROWS * 2 * K,
        KEYS = KV + 4 * TILE,
        BYTES = KEYS + ROWS * static_cast<int>(sizeof(ls_row_keys)),
    };
    static_assert(BYTES % LS_TILE_ALIGN == 0 && KV % LS_TILE_ALIGN == 0, "tiles are aligned");

    /* Where the tile from key on lies, its values behind it: two places in turn. */
    LS_DEVICE ls_shared_at keys_from(ls_shared_at base, int key)
    {
        return base + KV + static_cast<unsigned>(key / LS_TENSOR_KEYS % 2 * 2 * TILE);
    }
};

/* A thread's part of its warp's rows: row 16 m + 8 half + lane / 4 has most[m][half]. */
template <int K> struct forward_rows {
    float o[ROW_TILES][K / 8][4];
    float most[ROW_TILES][2], sum[ROW_TILES][2]; /* the sum: of this thread's columns */
};

/* Start from what the key blocks before left behind. */
template <int K>
LS_DEVICE void start_row(forward_rows<K> &r, const tensor_forward_call &c, int m, int half,
                         int64_t row)
{
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    const float lse = c.lse[row];
    if (lse == -INFINITY) return;
    const double most = static_cast<double>(lse) * LS_LOG2E;
    r.most[m][half] = static_cast<float>(most);
    const float sum = ls_exp2(static_cast<float>(most - static_cast<double>(r.most[m][half])));
    if (lane % 4 == 0) r.sum[m][half] = sum;
    LS_UNROLL
    for (int j = 0; j < K / 8; j++) {
        const float2 o = ls_load2(c.o_acc + row * K + 8 * j + lane % 4 * 2);
        r.o[m][j][2 * half] = o.x * sum;
        r.o[m][j][2 * half + 1] = o.y * sum;
    }
}

template <int K>
LS_DEVICE void start_rows(forward_rows<K> &r, const tensor_forward_call &c, int64_t first_row,
                          int64_t head)
{
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    LS_UNROLL
    for (int m = 0; m < ROW_TILES; m++) {
        ls_clear(r.o[m]);
        LS_UNROLL
        for (int half = 0; half < 2; half++) {
            const int64_t n = first_row + 16 * m + 8 * half + lane / 4;
            r.most[m][half] = -INFINITY;
            r.sum[m][half] = 0.0f;
            if (c.accumulate && n < c.s.N) start_row(r, c, m, half, n * c.s.H + head);
        }
    }
}

/* Scores of keys that a row does not see become -inf. */
template <int COLUMNS>
LS_DEVICE void mask_scores(float (&scores)[ROW_TILES][COLUMNS][4], const ls_row_keys *keys,
                           int first_key)
{
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    LS_UNROLL
    for (int row = 0; row < 2 * ROW_TILES; row++) { /* of this thread's */
        const int m = row / 2, half = row % 2;
        const ls_row_keys seen = keys[8 * row + lane / 4];
        LS_UNROLL
        for (int i = 0; i < 2 * COLUMNS; i++) {
            const int key = first_key + i / 2 * 8 + lane % 4 * 2 + i % 2;
            if (key < seen.first || key > seen.last) scores[m][i / 2][2 * half + i % 2] = -INFINITY;
        }
    }
}

/* The most of a row's scores, over the four lanes that hold it. */
template <int COLUMNS> LS_DEVICE float find_most(const float (&scores)[COLUMNS][4], int half)
{
    float most = scores[0][2 * half];
    LS_UNROLL
    for (int i = 1; i < 2 * COLUMNS; i++) most = fmaxf(most, scores[i / 2][2 * half + i % 2]);
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    return fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
}

/* Scores become probabilities, relative to the new most; returns what the old ones shrink by. */
template <int K, int COLUMNS>
LS_DEVICE float weigh_row(forward_rows<K> &r, float (&scores)[COLUMNS][4], int m, int half,
                          float scale)
{
    const float most = fmaxf(r.most[m][half], scale * find_most(scores, half));
    const float base = most == -INFINITY ? 0.0f : most; /* nothing seen yet: all become 0 */
    const float keep = ls_exp2(r.most[m][half] - base);
    float sum = 0.0f;
    LS_UNROLL
    for (int i = 0; i < 2 * COLUMNS; i++) {
        float *score = &scores[i / 2][2 * half + i % 2];
        *score = ls_exp2(fmaf(*score, scale, -base));
        sum += *score;
    }
    r.most[m][half] = most;
    r.sum[m][half] = fmaf(r.sum[m][half], keep, sum);
    return keep;
}

template <int K, int COLUMNS>
LS_DEVICE void weigh(forward_rows<K> &r, float (&scores)[ROW_TILES][COLUMNS][4], float scale)
{
    LS_UNROLL
    for (int m = 0; m < ROW_TILES; m++) {
        const float keep_0 = weigh_row(r, scores[m], m, 0, scale);
        const float keep_1 = weigh_row(r, scores[m], m, 1, scale);
        if (__ballot_sync(0xffffffffu, keep_0 != 1.0f || keep_1 != 1.0f) == 0) continue;
        LS_UNROLL
        for (int j = 0; j < K / 8; j++) {
            r.o[m][j][0] *= keep_0;
            r.o[m][j][1] *= keep_0;
            r.o[m][j][2] *= keep_1;
            r.o[m][j][3] *= keep_1;
        }
    }
}

/* Merge a part of a tile of keys into a warp's rows.  q, k, v: this lane's addresses in the tiles.
 */
template <int K>
LS_DEVICE void add_keys(forward_rows<K> &r, ls_shared_at q, ls_shared_at k, ls_shared_at v,
                        bool all, const ls_row_keys *keys, int first_key, float scale)
{
    enum { KEYS = forward_part<K>::KEYS, COLUMNS = forward_part<K>::COLUMNS };
    float scores[ROW_TILES][COLUMNS][4];
    LS_UNROLL
    for (int m = 0; m < ROW_TILES; m++) ls_clear(scores[m]);
    LS_UNROLL
    for (int i = 0; i < K / 16; i++) {
        unsigned a[ROW_TILES][4];
        LS_UNROLL
        for (int m = 0; m < ROW_TILES; m++)
            ls_load_matrices(a[m], ls_right(ls_down<K>(q, 16 * m), i));
        LS_UNROLL
        for (int pair = 0; pair < COLUMNS / 2; pair++) {
            unsigned b[4];
            ls_load_matrices(b, ls_right(ls_down<K>(k, 16 * pair), i));
            LS_UNROLL
            for (int m = 0; m < ROW_TILES; m++) {
                ls_mma(scores[m][2 * pair], a[m], b);
                ls_mma(scores[m][2 * pair + 1], a[m], b + 2);
            }
        }
    }
    if (!all) mask_scores(scores, keys, first_key);
    weigh(r, scores, scale);
    LS_UNROLL
    for (int i = 0; i < KEYS / 16; i++) {
        unsigned a[ROW_TILES][4];
        LS_UNROLL
        for (int m = 0; m < ROW_TILES; m++) ls_pack_columns(a[m], scores[m], i);
        LS_UNROLL
        for (int pair = 0; pair < K / 16; pair++) {
            unsigned b[4];
            ls_load_matrices_transposed(b, ls_right(ls_down<K>(v, 16 * i), pair));
            LS_UNROLL
            for (int m = 0; m < ROW_TILES; m++) {
                ls_mma(r.o[m][2 * pair], a[m], b);
                ls_mma(r.o[m][2 * pair + 1], a[m], b + 2);
            }
        }
    }
}

template <int K>
LS_DEVICE void end_row(const forward_rows<K> &r, const tensor_forward_call &c, int m, int half,
                       int64_t n, int64_t head)
{
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    const int64_t row = n * c.s.H + head;
    float sum = r.sum[m][half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (n >= c.s.N) return;
    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    LS_UNROLL
    for (int j = 0; j < K / 8; j++) {
        const int64_t at = row * K + 8 * j + lane % 4 * 2;
        const float first = r.o[m][j][2 * half] * inverse;
        const float second = r.o[m][j][2 * half + 1] * inverse;
        if (c.o_acc != nullptr) ls_store2(c.o_acc + at, first, second);
        if (c.last) *reinterpret_cast<unsigned *>(c.o + at) = ls_pack(first, second);
    }
    if (lane % 4 == 0)
        c.lse[row] = sum > 0.0f
                         ? static_cast<float>(static_cast<double>(r.most[m][half]) / LS_LOG2E +
                                              log(static_cast<double>(sum)))
                         : -INFINITY;
}

template <int K>
__global__ void __launch_bounds__(LS_TENSOR_THREADS, 2)
    attention_tensor_forward_kernel(tensor_forward_call c)
{
    typedef forward_shared<K> at;
    constexpr int PART = forward_part<K>::KEYS;
    LS_SHARED(unsigned char, shared);
    const ls_shared_at base = ls_shared_address(shared);
    ls_row_keys *keys = reinterpret_cast<ls_row_keys *>(shared + at::KEYS);
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    const int own = static_cast<int>(threadIdx.x) / LS_WARP * WARP_ROWS; /* the warp's first row */
    /* Late rows see most: they start first. */
    const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * ROWS;
    const int head = static_cast<int>(blockIdx.y), heads = static_cast<int>(c.s.H);
    const int groups = static_cast<int>(c.s.G), group = head / (heads / groups);
    const int rows = static_cast<int>(c.s.N);

    keys[threadIdx.x] = ls_row_keys_of(c.s, first_row + static_cast<int>(threadIdx.x));
    ls_copy_tiles<K, ROWS, LS_TENSOR_THREADS, 1>(base + at::Q, c.q, nullptr, first_row, 0, rows,
                                                 heads, head);
    __syncthreads();
    const ls_span all = ls_span_of_rows(keys, ROWS);
    const ls_span seen = ls_span_of_rows(keys + own, WARP_ROWS);
    const int end = all.last + 1;
    forward_rows<K> r;
    start_rows(r, c, first_row + own, head);
    int key = all.first / LS_TENSOR_KEYS * LS_TENSOR_KEYS;
    if (key < end)
        ls_copy_tiles<K, LS_TENSOR_KEYS, LS_TENSOR_THREADS, 2>(at::keys_from(base, key), c.k, c.v,
                                                               key, all.first, end, groups, group);
    ls_copies_commit();
    const ls_shared_at q = ls_down<K>(base + at::Q + ls_rows_then_words<K>(lane), own);
    for (; key < end; key += LS_TENSOR_KEYS) {
        const int next = key + LS_TENSOR_KEYS;
        ls_copies_wait();
        __syncthreads(); /* all see the tile, and none reads the one before any more */
        if (next < end)
            ls_copy_tiles<K, LS_TENSOR_KEYS, LS_TENSOR_THREADS, 2>(
                at::keys_from(base, next), c.k, c.v, next, 0, end, groups, group);
        ls_copies_commit();
        for (int part = 0; part < LS_TENSOR_KEYS; part += PART) {
            if (!ls_sees_any(seen, key + part, PART)) continue; /* the whole warp */
            const ls_shared_at tile = ls_down<K>(at::keys_from(base, key), part);
            add_keys<K>(r, q, tile + ls_words_then_rows<K>(lane),
                        tile + at::TILE + ls_rows_then_words<K>(lane),
                        ls_sees_all(seen, key + part, PART), keys + own, key + part, c.scale);
        }
    }
    LS_UNROLL
    for (int i = 0; i < 2 * ROW_TILES; i++)
        end_row<K>(r, c, i / 2, i % 2, first_row + own + 8 * i + lane / 4, head);
}

ls_status ls_cuda_attention_forward_tensor(void *stream, const ls_attention_forward_args *args)
{
    assert(args->o_acc != NULL || (args->last && !args->accumulate));
    assert(ls_is_aligned(args->o, args->o_acc, args->q, args->k, args->v));
    assert(args->N <= LS_TENSOR_INDEX_MAX && args->M <= LS_TENSOR_INDEX_MAX && args->scale > 0.0f);
    if (args->N == 0) return LS_OK;
    const tensor_forward_call call = {
        static_cast<ls_bf16x *>(args->o),
        args->lse,
        args->o_acc,
        static_cast<const ls_bf16x *>(args->q),
        static_cast<const ls_bf16x *>(args->k),
        static_cast<const ls_bf16x *>(args->v),
        ls_shape_of(args, true),
        static_cast<float>(static_cast<double>(args->scale) * LS_LOG2E),
        args->accumulate,
        args->last};
    LS_TENSOR_DISPATCH(args->K, {
        return ls_launch("attention_forward", attention_tensor_forward_kernel<K>,
                         ls_grid(ls_ceil_div(args->N, ROWS), args->H), LS_TENSOR_THREADS,
                         forward_shared<K>::BYTES, stream, call);
    });
}
