/*
 * attention_forward.cu - attention of one (query block, key block), merged into the running O and
 * LSE: the plain kernel, for any head width that shared memory holds.
 *
 * Online softmax over tiles of 32 keys.  4 K FLOPs per pair and head, all on fp32 units, whose rate
 * and that of shared memory bound it: some 5 % of what tensor cores would do.  At the least it
 * reads q, k, v and writes o and LSE once; k and v are read once for each tile of 16 rows.
 */
#include "attention.cuh"
#include "attention_variants.h"

template <typename T> struct forward_call {
    T *o;
    float *lse, *o_acc;
    const T *q, *k, *v;
    ls_attention_shape s;
    int accumulate, last;
};

/* Where things lie in shared memory. */
struct forward_tiles {
    float *q, *k, *v, *o; /* [TILE, K + 1], [ACROSS, K + 1], [ACROSS, K + 1], [TILE, K + 1] */
    float *p;             /* [TILE, ACROSS] */
    ls_key_range *range;  /* [TILE] */
};

LS_DEVICE forward_tiles lay_out(float *shared, int64_t K)
{
    forward_tiles t;
    t.range = reinterpret_cast<ls_key_range *>(shared);
    t.q = reinterpret_cast<float *>(t.range + LS_TILE);
    t.k = t.q + LS_TILE * (K + 1);
    t.v = t.k + LS_ACROSS * (K + 1);
    t.o = t.v + LS_ACROSS * (K + 1);
    t.p = t.o + LS_TILE * (K + 1);
    return t;
}

static size_t forward_bytes(int64_t K)
{
    return LS_TILE * sizeof(ls_key_range) + ls_tile_bytes(2 * LS_TILE + 2 * LS_ACROSS, K) +
           LS_TILE * LS_ACROSS * sizeof(float);
}

/* A row's running maximum and sum; the same in every lane of its warp. */
struct running {
    float most, sum;
};

/* Start o of the warp's rows, and their running sums: empty, or as the key blocks before left
 * them. */
template <typename T>
LS_DEVICE running start_row(const forward_call<T> &c, float *o, int64_t n, int64_t head)
{
    const int64_t row = n * c.s.H + head;
    running r = {-INFINITY, 0.0f};
    if (n < c.s.N && c.accumulate) r.most = c.lse[row];
    const bool empty = r.most == -INFINITY;
    if (!empty) r.sum = 1.0f;
    for (int64_t k = threadIdx.x % LS_WARP; k < c.s.K; k += LS_WARP)
        o[k] = empty ? 0.0f : c.o_acc[row * c.s.K + k];
    return r;
}

/* Merge the tile of keys from first on into one row. */
template <typename T>
LS_DEVICE void add_keys(const forward_call<T> &c, const forward_tiles &t, int row, int64_t first,
                        running *r)
{
    const int lane = static_cast<int>(threadIdx.x) % LS_WARP;
    const int64_t width = c.s.K + 1;
    const ls_lane_range in = ls_lanes_of(t.range[row], first);
    float *p = t.p + row * LS_ACROSS;
    float most = r->most, sum = 0.0f;

    if (in.begin >= in.end) return; /* the whole warp */
    if (lane >= in.begin && lane < in.end)
        p[lane] = c.s.scale * ls_dot(t.q + row * width, t.k + lane * width, c.s.K);
    __syncwarp();
    for (int j = in.begin; j < in.end; j++) most = fmaxf(most, p[j]);
    const float keep = ls_exp32(r->most - most);
    float own = 0.0f;
    if (lane >= in.begin && lane < in.end) own = ls_exp32(p[lane] - most);
    __syncwarp();
    p[lane] = own;
    __syncwarp();
    for (int j = in.begin; j < in.end; j++) sum += p[j];
    for (int64_t k = lane; k < c.s.K; k += LS_WARP) {
        float value = t.o[row * width + k] * keep;
        for (int j = in.begin; j < in.end; j++) value = fmaf(p[j], t.v[j * width + k], value);
        t.o[row * width + k] = value;
    }
    r->sum = r->sum * keep + sum;
    r->most = most;
}

template <typename T>
LS_DEVICE void end_row(const forward_call<T> &c, const float *o, int64_t n, int64_t head,
                       const running &r)
{
    const int64_t row = n * c.s.H + head;
    if (n >= c.s.N) return;
    for (int64_t k = threadIdx.x % LS_WARP; k < c.s.K; k += LS_WARP) {
        const float value = r.sum > 0.0f ? o[k] / r.sum : 0.0f;
        if (c.o_acc != nullptr) c.o_acc[row * c.s.K + k] = value;
        if (c.last) ls_narrow(&c.o[row * c.s.K + k], value);
    }
    if (threadIdx.x % LS_WARP == 0)
        c.lse[row] =
            r.sum > 0.0f
                ? static_cast<float>(static_cast<double>(r.most) + log(static_cast<double>(r.sum)))
                : -INFINITY;
}

template <typename T>
__global__ void __launch_bounds__(LS_ATTENTION_THREADS, 3)
    attention_forward_kernel(forward_call<T> c)
{
    LS_SHARED(float, shared);
    const forward_tiles t = lay_out(shared, c.s.K);
    /* Late rows see most: they start first. */
    const int64_t first_row = static_cast<int64_t>(gridDim.x - 1 - blockIdx.x) * LS_TILE;
    const int64_t head = blockIdx.y, group = head / (c.s.H / c.s.G);
    const int own = static_cast<int>(threadIdx.x) / LS_WARP * LS_OWN;
    running r[LS_OWN]; /* loops over it are unrolled: it stays in registers */

    if (threadIdx.x < LS_TILE) t.range[threadIdx.x] = ls_keys_of_row(c.s, first_row + threadIdx.x);
    ls_load_tile(t.q, c.q, first_row, LS_TILE, c.s.N, c.s.H, head, c.s);
    LS_UNROLL
    for (int i = 0; i < LS_OWN; i++)
        r[i] = start_row(c, t.o + (own + i) * (c.s.K + 1), first_row + own + i, head);
    __syncthreads();
    const ls_key_range span = ls_span_of(t.range);
    for (int64_t key = span.first; key <= span.last; key += LS_ACROSS) {
        ls_load_tile(t.k, c.k, key, LS_ACROSS, c.s.M, c.s.G, group, c.s);
        ls_load_tile(t.v, c.v, key, LS_ACROSS, c.s.M, c.s.G, group, c.s);
        __syncthreads();
        LS_UNROLL
        for (int i = 0; i < LS_OWN; i++) add_keys(c, t, own + i, key, &r[i]);
        __syncthreads();
    }
    LS_UNROLL
    for (int i = 0; i < LS_OWN; i++)
        end_row(c, t.o + (own + i) * (c.s.K + 1), first_row + own + i, head, r[i]);
}

ls_status ls_cuda_attention_forward_plain(void *stream, const ls_attention_forward_args *args)
{
    const size_t bytes = forward_bytes(args->K);
    assert(args->o_acc != NULL || (args->last && !args->accumulate));
    LS_TRY(ls_check_width("attention_forward", args->K, bytes));
    if (args->N == 0) return LS_OK;
    LS_DISPATCH(args->dtype, {
        const forward_call<T> call = {static_cast<T *>(args->o),
                                      args->lse,
                                      args->o_acc,
                                      static_cast<const T *>(args->q),
                                      static_cast<const T *>(args->k),
                                      static_cast<const T *>(args->v),
                                      ls_shape_of(args, ls_is_aligned(args->q, args->k, args->v)),
                                      args->accumulate,
                                      args->last};
        return ls_launch("attention_forward", attention_forward_kernel<T>,
                         ls_grid(ls_ceil_div(args->N, LS_TILE), args->H), LS_ATTENTION_THREADS,
                         bytes, stream, call);
    });
}
