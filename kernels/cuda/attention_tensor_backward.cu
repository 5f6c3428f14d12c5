/*
 * attention_tensor_backward.cu - the gradients of one (query block, key block) on tensor cores:
 * bf16, heads of 64 or 128.
 *
 * Two kernels, so that every sum has one owner and one order.  dq: a block takes 64 rows of a head,
 * a warp 16 of them, and walks key tiles of 64.  dk, dv: a block takes 64 keys of a key/value head,
 * a warp 16 of them, and walks the tiles of 64 rows that see any, and for each the heads of the
 * group.  There the scores are transposed, keys by rows, so that probabilities and their gradients
 * go from one product into the next in registers, as in the forward kernel.  Tiles arrive by
 * asynchronous copies, one ahead; those without a pair are skipped.
 *
 * 6 K FLOPs per pair and head for dq and 8 K for dk, dv, where sharing scores would take 10 K.  At
 * the least they read q, k, v, d_o, LSE and delta and add to dq, dk and dv once.  What bounds them:
 * shared memory, whence each warp reads each tile twice, then mma.sync
 * (tests/bench/records/cuda-attention.md).
 */
#include "attention_tensor.cuh"

enum {
    ROWS = LS_TENSOR_KEYS,        /* of a row tile: as many as keys of a key tile */
    OWN = 16,                     /* rows or keys of a warp */
    SCAN = 8 * LS_TENSOR_THREADS, /* rows that are looked through at once */
};

struct tensor_backward_call {
    float *dq, *dk, *dv;
    const ls_bf16x *q, *k, *v, *d_o;
    const float *lse, *delta;
    ls_attention_shape s;
    float log2_scale; /* of scores in units of log 2 */
    int accumulate;
};

/* What is added to a score in units of log 2, so that exp2 of it is the probability: 0 for all of a
 * row whose LSE is -inf. */
LS_DEVICE float shift_of(float lse)
{
    return lse == -INFINITY ? lse : lse * static_cast<float>(-LS_LOG2E);
}

/* ---- dq --------------------------------------------------------------------------------------
 */

template <int K> struct dq_shared {
    enum {
        TILE = LS_TENSOR_KEYS * 2 * K,
        KEYS = 4 * TILE, /* behind two tiles of keys and values */
        BYTES = KEYS + ROWS * static_cast<int>(sizeof(ls_row_keys)),
    };
    static_assert(BYTES % LS_TILE_ALIGN == 0, "tiles are aligned");

    /* Where the tile from key on lies, its values behind it: two places in turn. */
    LS_DEVICE ls_shared_at keys_from(ls_shared_at base, int key)
    {
        return base + static_cast<unsigned>(key / LS_TENSOR_KEYS % 2 * 2 * TILE);
    }
};

/* A thread's part of its warp's rows, lane / 4 and 8 more. */
template <int K> struct dq_rows {
    unsigned q[K / 16][4], d_o[K / 16][4];
    float dq[K / 8][4];
    float shift[2], delta[2];
};

/* Fragments of a of 16 rows of x [N, H, K]; 0 beyond the end. */
template <int K>
LS_DEVICE void load_rows(unsigned (&a)[K / 16][4], const ls_bf16x *x, const ls_attention_shape &s,
                         int64_t first_row, int64_t head)
{
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    LS_UNROLL
    for (int word = 0; word < 4 * (K / 16); word++) {
        const int i = word / 4, part = word % 4;
        const int64_t n = first_row + lane / 4 + part % 2 * 8;
        const int64_t at = (n * s.H + head) * K + 16 * i + lane % 4 * 2 + part / 2 * 8;
        a[i][part] = n < s.N ? *reinterpret_cast<const unsigned *>(x + at) : 0u;
    }
}

template <int K>
LS_DEVICE void start_rows(dq_rows<K> &r, const tensor_backward_call &c, int64_t first_row,
                          int64_t head)
{
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    load_rows<K>(r.q, c.q, c.s, first_row, head);
    load_rows<K>(r.d_o, c.d_o, c.s, first_row, head);
    ls_clear(r.dq);
    LS_UNROLL
    for (int half = 0; half < 2; half++) {
        const int64_t n = first_row + lane / 4 + 8 * half;
        r.shift[half] = n < c.s.N ? shift_of(c.lse[n * c.s.H + head]) : 0.0f;
        r.delta[half] = n < c.s.N ? c.delta[n * c.s.H + head] : 0.0f;
    }
}

/* d_p becomes the gradient of the scores, but for the scale; 0 where a row does not see a key. */
template <int K>
LS_DEVICE void weigh_keys(const dq_rows<K> &r, float (&d_p)[LS_TENSOR_COLUMNS][4],
                          const float (&scores)[LS_TENSOR_COLUMNS][4], float log2_scale, bool all,
                          const ls_row_keys *keys, int first_key)
{
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    LS_UNROLL
    for (int half = 0; half < 2; half++) {
        ls_row_keys seen = {0, INT_MAX};
        if (!all) seen = keys[lane / 4 + 8 * half];
        LS_UNROLL
        for (int i = 0; i < 2 * LS_TENSOR_COLUMNS; i++) {
            const int at = 2 * half + i % 2;
            const int key = first_key + i / 2 * 8 + lane % 4 * 2 + i % 2;
            const float p = ls_exp2(fmaf(scores[i / 2][at], log2_scale, r.shift[half]));
            const float ds = p * (d_p[i / 2][at] - r.delta[half]);
            d_p[i / 2][at] = key < seen.first || key > seen.last ? 0.0f : ds;
        }
    }
}

/* What a tile of keys adds.  The addresses are those of this lane: of k and v for their scores, of
 * k for its sum. */
template <int K>
LS_DEVICE void add_keys(dq_rows<K> &r, ls_shared_at k, ls_shared_at v, ls_shared_at k_summed,
                        float log2_scale, bool all, const ls_row_keys *keys, int first_key)
{
    float scores[LS_TENSOR_COLUMNS][4], d_p[LS_TENSOR_COLUMNS][4];
    ls_clear(scores);
    ls_clear(d_p);
    LS_UNROLL
    for (int i = 0; i < K / 16; i++) {
        ls_multiply_rows<K>(scores, r.q[i], ls_right(k, i));
        ls_multiply_rows<K>(d_p, r.d_o[i], ls_right(v, i));
    }
    weigh_keys(r, d_p, scores, log2_scale, all, keys, first_key);
    LS_UNROLL
    for (int i = 0; i < LS_TENSOR_KEYS / 16; i++) {
        unsigned a[4];
        ls_pack_columns(a, d_p, i);
        ls_multiply_columns<K>(r.dq, a, ls_down<K>(k_summed, 16 * i));
    }
}

/* Write or add the scaled sums d [16, K] to rows first .. of x [end, heads, K]. */
template <int K>
LS_DEVICE void end_sums(float *x, const float (&d)[K / 8][4], float scale, bool add, int64_t first,
                        int64_t end, int64_t heads, int64_t head)
{
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    LS_UNROLL
    for (int half = 0; half < 2; half++) {
        const int64_t n = first + lane / 4 + 8 * half;
        if (n >= end) continue;
        LS_UNROLL
        for (int j = 0; j < K / 8; j++) {
            float *to = x + (n * heads + head) * K + 8 * j + lane % 4 * 2;
            float2 before = {0.0f, 0.0f};
            if (add) before = ls_load2(to);
            ls_store2(to, fmaf(d[j][2 * half], scale, before.x),
                      fmaf(d[j][2 * half + 1], scale, before.y));
        }
    }
}

template <int K>
__global__ void __launch_bounds__(LS_TENSOR_THREADS, 2)
    attention_tensor_dq_kernel(tensor_backward_call c)
{
    typedef dq_shared<K> at;
    LS_SHARED(unsigned char, shared);
    const ls_shared_at base = ls_shared_address(shared);
    ls_row_keys *keys = reinterpret_cast<ls_row_keys *>(shared + at::KEYS);
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    const int own = static_cast<int>(threadIdx.x) / LS_WARP * OWN; /* the warp's first row */
    /* Late rows see most: they start first. */
    const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * ROWS;
    const int head = static_cast<int>(blockIdx.y), heads = static_cast<int>(c.s.H);
    const int groups = static_cast<int>(c.s.G), group = head / (heads / groups);

    if (threadIdx.x < ROWS)
        keys[threadIdx.x] = ls_row_keys_of(c.s, first_row + static_cast<int>(threadIdx.x));
    __syncthreads();
    const ls_span all = ls_span_of_rows(keys, ROWS);
    const ls_span seen = ls_span_of_rows(keys + own, OWN);
    const int end = all.last + 1;
    int key = all.first / LS_TENSOR_KEYS * LS_TENSOR_KEYS;
    if (key < end)
        ls_copy_tiles<K, LS_TENSOR_KEYS, LS_TENSOR_THREADS, 2>(at::keys_from(base, key), c.k, c.v,
                                                               key, all.first, end, groups, group);
    ls_copies_commit();
    dq_rows<K> r;
    start_rows(r, c, first_row + own, head);
    for (; key < end; key += LS_TENSOR_KEYS) {
        const int next = key + LS_TENSOR_KEYS;
        ls_copies_wait();
        __syncthreads(); /* all see the tile, and none reads the one before any more */
        if (next < end)
            ls_copy_tiles<K, LS_TENSOR_KEYS, LS_TENSOR_THREADS, 2>(
                at::keys_from(base, next), c.k, c.v, next, 0, end, groups, group);
        ls_copies_commit();
        if (!ls_sees_any(seen, key, LS_TENSOR_KEYS)) continue; /* the whole warp */
        const ls_shared_at k = at::keys_from(base, key);
        add_keys<K>(r, k + ls_words_then_rows<K>(lane), k + at::TILE + ls_words_then_rows<K>(lane),
                    k + ls_rows_then_words<K>(lane), c.log2_scale,
                    ls_sees_all(seen, key, LS_TENSOR_KEYS), keys + own, key);
    }
    end_sums<K>(c.dq, r.dq, c.s.scale, c.accumulate != 0, first_row + own, c.s.N, c.s.H, head);
}

/* ---- dk, dv ----------------------------------------------------------------------------------
 */

/* Shared memory: the block's keys and values; two row tiles of q and d_o, of LSE and delta for one
 * head; the keys that the rows of two tiles see. */
template <int K> struct dkv_shared {
    enum {
        TILE = ROWS * 2 * K,
        ROW_TILES = 2 * TILE,
        NUMBERS = ROW_TILES + 4 * TILE,
        KEYS = NUMBERS + 4 * ROWS * static_cast<int>(sizeof(float)),
        BYTES = KEYS + 2 * ROWS * static_cast<int>(sizeof(ls_row_keys)),
    };
    static_assert(TILE % LS_TILE_ALIGN == 0 && BYTES % LS_TILE_ALIGN == 0, "tiles are aligned");
};

/* A thread's part of the gradients of its warp's keys. */
template <int K> struct dkv_rows {
    float dk[K / 8][4], dv[K / 8][4];
};

/* One step of a block's walk: a row tile, one head of the group, and which of the two places holds
 * the keys that its rows see. */
struct turn {
    int row, head, place;
};

/* The rows that may see keys first_key .. first_key + 64: begin .. end, begin a multiple of ROWS.
 */
struct row_range {
    int begin, end;
};

LS_DEVICE row_range rows_of_keys(const ls_attention_shape &s, int first_key)
{
    const int64_t begin = s.k_start + first_key - s.q_start; /* rows before see none of them */
    int64_t end = s.N;
    if (s.window > 0 && begin + LS_TENSOR_KEYS - 1 + s.window < end)
        end = begin + LS_TENSOR_KEYS - 1 + s.window;
    if (begin >= end) return {0, 0};
    return {begin > 0 ? static_cast<int>(begin / ROWS * ROWS) : 0, static_cast<int>(end)};
}

LS_DEVICE bool overlaps(const ls_row_keys &seen, int first_key, int n_keys)
{
    return seen.first <= seen.last && seen.first < first_key + n_keys && seen.last >= first_key;
}

/* Does any of SCAN rows see a key of the tile?  The same answer in all threads. */
LS_DEVICE bool any_row_sees(const ls_attention_shape &s, int row, int end, int first_key)
{
    int vote = 0;
    for (int n = row + static_cast<int>(threadIdx.x); n < row + SCAN && n < end;
         n += LS_TENSOR_THREADS)
        vote |= overlaps(ls_row_keys_of(s, n), first_key, LS_TENSOR_KEYS);
    return __syncthreads_or(vote) != 0;
}

/* The first row tile from row on that sees a key of the tile, and in keys what its rows see; end or
 * more: there is none. */
LS_DEVICE int find_row_tile(const ls_attention_shape &s, ls_row_keys *keys, int row, int end,
                            int first_key)
{
    for (; row < end; row += ROWS) {
        if (row % SCAN == 0 && !any_row_sees(s, row, end, first_key)) {
            row += SCAN - ROWS;
            continue;
        }
        int vote = 0;
        if (threadIdx.x < ROWS) {
            const int n = row + static_cast<int>(threadIdx.x);
            keys[threadIdx.x] = ls_row_keys_of(s, n);
            vote = overlaps(keys[threadIdx.x], first_key, LS_TENSOR_KEYS);
        }
        if (__syncthreads_or(vote)) return row;
    }
    return row;
}

LS_DEVICE turn next_turn(const ls_attention_shape &s, ls_row_keys *keys, const turn &now, int end,
                         int first_key, int group)
{
    const int per_group = static_cast<int>(s.H / s.G), first_head = group * per_group;
    if (now.head + 1 < first_head + per_group) return {now.row, now.head + 1, now.place};
    const int place = now.place ^ 1;
    return {find_row_tile(s, keys + place * ROWS, now.row + ROWS, end, first_key), first_head,
            place};
}

/* How a warp's keys stand to the rows of a tile. */
enum class pairs { none, some, all };

LS_DEVICE pairs find_pairs(const ls_row_keys *keys, int first_key)
{
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    bool any = false, all = true;
    LS_UNROLL
    for (int i = 0; i < ROWS / LS_WARP; i++) {
        const ls_row_keys seen = keys[lane + i * LS_WARP];
        any = any || overlaps(seen, first_key, OWN);
        all = all && seen.first <= first_key && seen.last >= first_key + OWN - 1;
    }
    if (__ballot_sync(0xffffffffu, any) == 0) return pairs::none;
    return __ballot_sync(0xffffffffu, all) == 0xffffffffu ? pairs::all : pairs::some;
}

/* Scores become probabilities and d_p the gradient of the scores, but for the scale: of keys
 * lane / 4 and 8 more by rows; 0 where a row does not see a key. */
LS_DEVICE void weigh_rows(float (&scores)[LS_TENSOR_COLUMNS][4], float (&d_p)[LS_TENSOR_COLUMNS][4],
                          const float *lse, const float *delta, float log2_scale, bool all,
                          const ls_row_keys *keys, int first_key)
{
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    LS_UNROLL
    for (int i = 0; i < 2 * LS_TENSOR_COLUMNS; i++) {
        const int row = i / 2 * 8 + lane % 4 * 2 + i % 2;
        const float shift = shift_of(lse[row]), row_delta = delta[row];
        ls_row_keys seen = {0, INT_MAX};
        if (!all) seen = keys[row];
        LS_UNROLL
        for (int half = 0; half < 2; half++) {
            const int at = 2 * half + i % 2, key = first_key + lane / 4 + 8 * half;
            const bool sees = key >= seen.first && key <= seen.last;
            const float p = ls_exp2(fmaf(scores[i / 2][at], log2_scale, shift));
            const float ds = p * (d_p[i / 2][at] - row_delta);
            scores[i / 2][at] = sees ? p : 0.0f;
            d_p[i / 2][at] = sees ? ds : 0.0f;
        }
    }
}

/* What a row tile of one head adds.  The addresses are those of this lane: of its warp's keys and
 * values, and in the row tile for scores and for sums. */
template <int K>
LS_DEVICE void add_rows(dkv_rows<K> &r, ls_shared_at own, ls_shared_at tile, ls_shared_at summed,
                        const float *lse, const float *delta, float log2_scale, bool all,
                        const ls_row_keys *keys, int first_key)
{
    enum { TILE = dkv_shared<K>::TILE }; /* from k to v, from q to d_o */
    float scores[LS_TENSOR_COLUMNS][4], d_p[LS_TENSOR_COLUMNS][4];
    ls_clear(scores);
    ls_clear(d_p);
    LS_UNROLL
    for (int i = 0; i < K / 16; i++) {
        unsigned a[4];
        ls_load_matrices(a, ls_right(own, i));
        ls_multiply_rows<K>(scores, a, ls_right(tile, i));
        ls_load_matrices(a, ls_right(own + TILE, i));
        ls_multiply_rows<K>(d_p, a, ls_right(tile + TILE, i));
    }
    weigh_rows(scores, d_p, lse, delta, log2_scale, all, keys, first_key);
    LS_UNROLL
    for (int i = 0; i < ROWS / 16; i++) {
        unsigned a[4];
        ls_pack_columns(a, scores, i);
        ls_multiply_columns<K>(r.dv, a, ls_down<K>(summed + TILE, 16 * i));
        ls_pack_columns(a, d_p, i);
        ls_multiply_columns<K>(r.dk, a, ls_down<K>(summed, 16 * i));
    }
}

/* Begin to copy what a turn needs. */
template <int K>
LS_DEVICE void copy_rows(const tensor_backward_call &c, ls_shared_at base, const turn &t, int stage)
{
    typedef dkv_shared<K> at;
    const int rows = static_cast<int>(c.s.N), thread = static_cast<int>(threadIdx.x);
    const ls_shared_at tiles = base + at::ROW_TILES + static_cast<unsigned>(stage * 2 * at::TILE);
    const unsigned number = static_cast<unsigned>((stage * 2 * ROWS + thread) * 4);
    ls_copy_tiles<K, ROWS, LS_TENSOR_THREADS, 2>(tiles, c.q, c.d_o, t.row, 0, rows,
                                                 static_cast<int>(c.s.H), t.head);
    const float *numbers = thread < ROWS ? c.lse : c.delta;
    const int64_t n = t.row + thread % ROWS;
    ls_copy4_async(base + at::NUMBERS + number, n < rows ? numbers + n * c.s.H + t.head : numbers,
                   n < rows);
}

template <int K>
__global__ void __launch_bounds__(LS_TENSOR_THREADS, 2)
    attention_tensor_dkv_kernel(tensor_backward_call c)
{
    typedef dkv_shared<K> at;
    LS_SHARED(unsigned char, shared);
    const ls_shared_at base = ls_shared_address(shared);
    const float *numbers = reinterpret_cast<const float *>(shared + at::NUMBERS);
    ls_row_keys *keys = reinterpret_cast<ls_row_keys *>(shared + at::KEYS);
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    const int own = static_cast<int>(threadIdx.x) / LS_WARP * OWN; /* the warp's first key */
    const int first_key = static_cast<int>(blockIdx.x) * LS_TENSOR_KEYS;
    const int group = static_cast<int>(blockIdx.y);
    const row_range rows = rows_of_keys(c.s, first_key);

    turn now = {find_row_tile(c.s, keys, rows.begin, rows.end, first_key),
                group * static_cast<int>(c.s.H / c.s.G), 0};
    if (now.row >= rows.end) return; /* the whole block: nothing to add */
    ls_copy_tiles<K, LS_TENSOR_KEYS, LS_TENSOR_THREADS, 2>(
        base, c.k, c.v, first_key, 0, static_cast<int>(c.s.M), static_cast<int>(c.s.G), group);
    copy_rows<K>(c, base, now, 0);
    ls_copies_commit();
    dkv_rows<K> r;
    ls_clear(r.dk);
    ls_clear(r.dv);
    const ls_shared_at k = ls_down<K>(base + ls_rows_then_words<K>(lane), own);
    for (int stage = 0; now.row < rows.end; stage ^= 1) {
        ls_copies_wait();
        __syncthreads(); /* all see the tile, and none reads the one before any more */
        const turn next = next_turn(c.s, keys, now, rows.end, first_key, group);
        if (next.row < rows.end) copy_rows<K>(c, base, next, stage ^ 1);
        ls_copies_commit();
        const ls_row_keys *mask = keys + now.place * ROWS;
        const pairs with = find_pairs(mask, first_key + own);
        const ls_shared_at tile =
            base + at::ROW_TILES + static_cast<unsigned>(stage * 2 * at::TILE);
        const float *lse = numbers + stage * 2 * ROWS;
        now = next;
        if (with == pairs::none) continue; /* the whole warp */
        add_rows<K>(r, k, tile + ls_words_then_rows<K>(lane), tile + ls_rows_then_words<K>(lane),
                    lse, lse + ROWS, c.log2_scale, with == pairs::all, mask, first_key + own);
    }
    end_sums<K>(c.dk, r.dk, c.s.scale, true, first_key + own, c.s.M, c.s.G, group);
    end_sums<K>(c.dv, r.dv, 1.0f, true, first_key + own, c.s.M, c.s.G, group);
}

/* ---- both ------------------------------------------------------------------------------------
 */

ls_status ls_cuda_attention_backward_tensor(void *stream, const ls_attention_backward_args *args)
{
    assert(ls_is_aligned(args->dq, args->dk, args->dv, args->q, args->k, args->v, args->d_o));
    assert(args->N <= LS_TENSOR_INDEX_MAX && args->M <= LS_TENSOR_INDEX_MAX && args->scale > 0.0f);
    const tensor_backward_call call = {
        args->dq,
        args->dk,
        args->dv,
        static_cast<const ls_bf16x *>(args->q),
        static_cast<const ls_bf16x *>(args->k),
        static_cast<const ls_bf16x *>(args->v),
        static_cast<const ls_bf16x *>(args->d_o),
        args->lse,
        args->delta,
        ls_shape_of(args, true),
        static_cast<float>(static_cast<double>(args->scale) * LS_LOG2E),
        args->accumulate};
    if (args->N == 0) return LS_OK;
    LS_TENSOR_DISPATCH(args->K, {
        LS_TRY(ls_launch("attention_backward dq", attention_tensor_dq_kernel<K>,
                         ls_grid(ls_ceil_div(args->N, ROWS), args->H), LS_TENSOR_THREADS,
                         dq_shared<K>::BYTES, stream, call));
        if (args->M > 0)
            LS_TRY(ls_launch("attention_backward dk, dv", attention_tensor_dkv_kernel<K>,
                             ls_grid(ls_ceil_div(args->M, LS_TENSOR_KEYS), args->G),
                             LS_TENSOR_THREADS, dkv_shared<K>::BYTES, stream, call));
        return LS_OK;
    });
}
