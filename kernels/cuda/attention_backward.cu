/*
 * attention_backward.cu - delta, and the gradients of one (query block, key block): plain kernels.
 *
 * Two kernels, since without atomics one of dq and (dk, dv) belongs to others: dq by tiles of rows
 * and dk, dv by tiles of keys, each of which computes the scores anew.  So 14 K FLOPs per pair and
 * head in place of 10 K, on fp32 units, whose rate and that of shared memory bound it.  At the
 * least they read q, k, v, d_o, LSE and delta and add to dq, dk and dv once.
 */
#include "attention.cuh"
#include "attention_variants.h"

template <typename T> struct backward_call {
    float *dq, *dk, *dv;
    const T *q, *k, *v, *d_o;
    const float *lse, *delta;
    ls_attention_shape s;
    int accumulate;
};

/* ---- delta: 2 K FLOPs and 2 K elements a row and head, bound by memory ------------------------
 */

enum { DELTA_ROWS = 4 };

template <typename T>
__global__ void __launch_bounds__(DELTA_ROWS *LS_WARP)
    attention_delta_kernel(float *delta, const T *d_o, const T *o, int64_t n_rows, int64_t K,
                           bool vector)
{
    const int64_t row = static_cast<int64_t>(blockIdx.x) * DELTA_ROWS + threadIdx.x / LS_WARP;
    double sum = 0.0;

    if (row >= n_rows) return; /* the whole warp */
    for (int64_t k = threadIdx.x % LS_WARP * LS_EIGHT; k < K; k += LS_WARP * LS_EIGHT) {
        float a[LS_EIGHT], b[LS_EIGHT];
        ls_load8(a, d_o + row * K, k, K, vector);
        ls_load8(b, o + row * K, k, K, vector);
        for (int i = 0; i < LS_EIGHT; i++)
            sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    }
    sum = ls_warp_sum(sum);
    if (threadIdx.x % LS_WARP == 0) delta[row] = static_cast<float>(sum);
}

ls_status ls_cuda_attention_delta(void *stream, const ls_attention_delta_args *args)
{
    const int64_t n_rows = args->N * args->H;
    assert(args->N >= 0 && args->H >= 1 && args->K >= 1);
    if (n_rows == 0) return LS_OK;
    LS_DISPATCH(args->dtype, {
        return ls_launch("attention_delta", attention_delta_kernel<T>,
                         ls_grid(ls_ceil_div(n_rows, DELTA_ROWS)), DELTA_ROWS * LS_WARP, 0, stream,
                         args->delta, static_cast<const T *>(args->d_o),
                         static_cast<const T *>(args->o), n_rows, args->K,
                         args->K % LS_EIGHT == 0 && ls_is_aligned(args->d_o, args->o));
    });
}

/* ---- one pair ---------------------------------------------------------------------------------
 */

struct pair_terms {
    float p, ds;
};

/* Row q, key k: rows of tiles. */
LS_DEVICE pair_terms weigh(const float *q, const float *k, const float *d_o, const float *v,
                           float lse, float delta, const ls_attention_shape &s)
{
    pair_terms t;
    t.p = ls_exp32(s.scale * ls_dot(q, k, s.K) - lse);
    t.ds = t.p * (ls_dot(d_o, v, s.K) - delta) * s.scale;
    return t;
}

/* ---- dq: a block owns 16 rows of a head -------------------------------------------------------
 */

struct dq_tiles {
    float *q, *d_o, *dq, *k, *v; /* [TILE, K + 1] each, then [ACROSS, K + 1] */
    float *ds;                   /* [TILE, ACROSS] */
    ls_key_range *range;         /* [TILE] */
};

LS_DEVICE dq_tiles lay_out_dq(float *shared, int64_t K)
{
    dq_tiles t;
    t.range = reinterpret_cast<ls_key_range *>(shared);
    t.q = reinterpret_cast<float *>(t.range + LS_TILE);
    t.d_o = t.q + LS_TILE * (K + 1);
    t.dq = t.d_o + LS_TILE * (K + 1);
    t.k = t.dq + LS_TILE * (K + 1);
    t.v = t.k + LS_ACROSS * (K + 1);
    t.ds = t.v + LS_ACROSS * (K + 1);
    return t;
}

static size_t dq_bytes(int64_t K)
{
    return LS_TILE * sizeof(ls_key_range) + ls_tile_bytes(3 * LS_TILE + 2 * LS_ACROSS, K) +
           LS_TILE * LS_ACROSS * sizeof(float);
}

/* The tile of keys from first on, for one row. */
template <typename T>
LS_DEVICE void add_to_dq(const backward_call<T> &c, const dq_tiles &t, int row, int64_t first,
                         float lse, float delta)
{
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    const int64_t width = c.s.K + 1;
    const ls_lane_range in = ls_lanes_of(t.range[row], first);
    float *ds = t.ds + row * LS_ACROSS;

    if (in.begin >= in.end || lse == -INFINITY) return; /* the whole warp */
    if (lane >= in.begin && lane < in.end)
        ds[lane] = weigh(t.q + row * width, t.k + lane * width, t.d_o + row * width,
                         t.v + lane * width, lse, delta, c.s)
                       .ds;
    __syncwarp();
    for (int64_t k = lane; k < c.s.K; k += LS_WARP) {
        float value = t.dq[row * width + k];
        for (int j = in.begin; j < in.end; j++) value = fmaf(ds[j], t.k[j * width + k], value);
        t.dq[row * width + k] = value;
    }
}

template <typename T>
__global__ void __launch_bounds__(LS_ATTENTION_THREADS) attention_dq_kernel(backward_call<T> c)
{
    LS_SHARED(float, shared);
    const dq_tiles t = lay_out_dq(shared, c.s.K);
    const int64_t first_row = static_cast<int64_t>(gridDim.x - 1 - blockIdx.x) * LS_TILE;
    const int64_t head = blockIdx.y, group = head / (c.s.H / c.s.G), K = c.s.K;
    const int own = static_cast<int>(threadIdx.x) / LS_WARP * LS_OWN;
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;

    if (threadIdx.x < LS_TILE) t.range[threadIdx.x] = ls_keys_of_row(c.s, first_row + threadIdx.x);
    ls_load_tile(t.q, c.q, first_row, LS_TILE, c.s.N, c.s.H, head, c.s);
    ls_load_tile(t.d_o, c.d_o, first_row, LS_TILE, c.s.N, c.s.H, head, c.s);
    for (int i = 0; i < LS_OWN; i++)
        for (int64_t k = lane; k < K; k += LS_WARP) t.dq[(own + i) * (K + 1) + k] = 0.0f;
    __syncthreads();
    const ls_key_range span = ls_span_of(t.range);
    for (int64_t key = span.first; key <= span.last; key += LS_ACROSS) {
        ls_load_tile(t.k, c.k, key, LS_ACROSS, c.s.M, c.s.G, group, c.s);
        ls_load_tile(t.v, c.v, key, LS_ACROSS, c.s.M, c.s.G, group, c.s);
        __syncthreads();
        for (int i = 0; i < LS_OWN; i++) {
            const int64_t n = first_row + own + i;
            if (n < c.s.N)
                add_to_dq(c, t, own + i, key, c.lse[n * c.s.H + head], c.delta[n * c.s.H + head]);
        }
        __syncthreads();
    }
    for (int i = 0; i < LS_OWN; i++) {
        const int64_t n = first_row + own + i;
        float *dq = c.dq + (n * c.s.H + head) * K;
        for (int64_t k = lane; n < c.s.N && k < K; k += LS_WARP)
            dq[k] = (c.accumulate ? dq[k] : 0.0f) + t.dq[(own + i) * (K + 1) + k];
    }
}

/* ---- dk, dv: a block owns 16 keys of a key/value head -----------------------------------------
 */

struct dkv_tiles {
    float *k, *v, *dk, *dv; /* [TILE, K + 1] */
    float *q, *d_o;         /* [ACROSS, K + 1] */
    pair_terms *terms;      /* [TILE, ACROSS] */
    ls_key_range *range;    /* [ACROSS] */
};

LS_DEVICE dkv_tiles lay_out_dkv(float *shared, int64_t K)
{
    dkv_tiles t;
    t.range = reinterpret_cast<ls_key_range *>(shared);
    t.terms = reinterpret_cast<pair_terms *>(t.range + LS_ACROSS);
    t.k = reinterpret_cast<float *>(t.terms + LS_TILE * LS_ACROSS);
    t.v = t.k + LS_TILE * (K + 1);
    t.dk = t.v + LS_TILE * (K + 1);
    t.dv = t.dk + LS_TILE * (K + 1);
    t.q = t.dv + LS_TILE * (K + 1);
    t.d_o = t.q + LS_ACROSS * (K + 1);
    return t;
}

static size_t dkv_bytes(int64_t K)
{
    return LS_ACROSS * sizeof(ls_key_range) + LS_TILE * LS_ACROSS * sizeof(pair_terms) +
           ls_tile_bytes(4 * LS_TILE + 2 * LS_ACROSS, K);
}

/* What the tile of rows from first on adds to one key. */
template <typename T>
LS_DEVICE void add_to_dkv(const backward_call<T> &c, const dkv_tiles &t, int own, int64_t key,
                          int64_t first, int64_t head)
{
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    const int64_t width = c.s.K + 1, row = (first + lane) * c.s.H + head;
    const ls_key_range seen = t.range[lane];
    pair_terms *terms = t.terms + own * LS_ACROSS;
    const bool sees = key < c.s.M && key >= seen.first && key <= seen.last;
    const bool counts = sees && c.lse[row] != -INFINITY;

    if (counts)
        terms[lane] = weigh(t.q + lane * width, t.k + own * width, t.d_o + lane * width,
                            t.v + own * width, c.lse[row], c.delta[row], c.s);
    const unsigned rows = __ballot_sync(0xffffffffu, counts);
    __syncwarp(); /* a ballot orders no memory */
    for (int64_t k = lane; k < c.s.K; k += LS_WARP) {
        float dk = t.dk[own * width + k], dv = t.dv[own * width + k];
        for (unsigned left = rows; left != 0; left &= left - 1) {
            const int i = __ffs(static_cast<int>(left)) - 1;
            dk = fmaf(terms[i].ds, t.q[i * width + k], dk);
            dv = fmaf(terms[i].p, t.d_o[i * width + k], dv);
        }
        t.dk[own * width + k] = dk;
        t.dv[own * width + k] = dv;
    }
}

/* Does this thread's row, if it has one, see a key of the tile? */
LS_DEVICE int sees_tile(const ls_key_range *ranges, int64_t first_key)
{
    if (threadIdx.x >= LS_ACROSS) return 0;
    const ls_key_range seen = ranges[threadIdx.x];
    return seen.first <= seen.last && seen.first < first_key + LS_TILE && seen.last >= first_key;
}

template <typename T>
__global__ void __launch_bounds__(LS_ATTENTION_THREADS) attention_dkv_kernel(backward_call<T> c)
{
    LS_SHARED(float, shared);
    const dkv_tiles t = lay_out_dkv(shared, c.s.K);
    const int64_t first_key = static_cast<int64_t>(blockIdx.x) * LS_TILE, K = c.s.K;
    const int64_t group = blockIdx.y, per_group = c.s.H / c.s.G;
    const int own = static_cast<int>(threadIdx.x) / LS_WARP * LS_OWN;
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    /* Rows before the keys see none of them. */
    const int64_t ahead = c.s.k_start + first_key - c.s.q_start;
    const int64_t first_row = ahead > 0 ? ahead / LS_ACROSS * LS_ACROSS : 0;

    ls_load_tile(t.k, c.k, first_key, LS_TILE, c.s.M, c.s.G, group, c.s);
    ls_load_tile(t.v, c.v, first_key, LS_TILE, c.s.M, c.s.G, group, c.s);
    for (int i = own; i < own + LS_OWN; i++)
        for (int64_t k = lane; k < K; k += LS_WARP)
            t.dk[i * (K + 1) + k] = t.dv[i * (K + 1) + k] = 0.0f;
    for (int64_t h = group * per_group; h < (group + 1) * per_group; h++)
        for (int64_t row = first_row; row < c.s.N; row += LS_ACROSS) {
            if (threadIdx.x < LS_ACROSS)
                t.range[threadIdx.x] = ls_keys_of_row(c.s, row + threadIdx.x);
            if (!__syncthreads_or(sees_tile(t.range, first_key))) continue;
            ls_load_tile(t.q, c.q, row, LS_ACROSS, c.s.N, c.s.H, h, c.s);
            ls_load_tile(t.d_o, c.d_o, row, LS_ACROSS, c.s.N, c.s.H, h, c.s);
            __syncthreads();
            for (int i = 0; i < LS_OWN; i++) add_to_dkv(c, t, own + i, first_key + own + i, row, h);
            __syncthreads();
        }
    for (int i = own; i < own + LS_OWN; i++) {
        const int64_t at = ((first_key + i) * c.s.G + group) * K;
        for (int64_t k = lane; first_key + i < c.s.M && k < K; k += LS_WARP) {
            c.dk[at + k] += t.dk[i * (K + 1) + k];
            c.dv[at + k] += t.dv[i * (K + 1) + k];
        }
    }
}

/* ---- both -------------------------------------------------------------------------------------
 */

ls_status ls_cuda_attention_backward_plain(void *stream, const ls_attention_backward_args *args)
{
    LS_TRY(ls_check_width("attention_backward", args->K, dkv_bytes(args->K)));
    LS_TRY(ls_check_width("attention_backward", args->K, dq_bytes(args->K)));
    LS_DISPATCH(args->dtype, {
        const backward_call<T> call = {
            args->dq,
            args->dk,
            args->dv,
            static_cast<const T *>(args->q),
            static_cast<const T *>(args->k),
            static_cast<const T *>(args->v),
            static_cast<const T *>(args->d_o),
            args->lse,
            args->delta,
            ls_shape_of(args, ls_is_aligned(args->q, args->k, args->v, args->d_o)),
            args->accumulate};
        if (args->N > 0)
            LS_TRY(ls_launch("attention_backward dq", attention_dq_kernel<T>,
                             ls_grid(ls_ceil_div(args->N, LS_TILE), args->H), LS_ATTENTION_THREADS,
                             dq_bytes(args->K), stream, call));
        if (args->N > 0 && args->M > 0)
            LS_TRY(ls_launch("attention_backward dk, dv", attention_dkv_kernel<T>,
                             ls_grid(ls_ceil_div(args->M, LS_TILE), args->G), LS_ATTENTION_THREADS,
                             dkv_bytes(args->K), stream, call));
        return LS_OK;
    });
}
