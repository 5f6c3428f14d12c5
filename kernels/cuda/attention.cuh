/*
 * attention.cuh - what the plain attention kernels share: tiles, and the keys a row sees.
 *
 * A block takes a tile of 16 rows of one head (forward, dq) or of 16 keys of one key/value head
 * (dk, dv) and walks the other side 32 at a time, a lane to each.  Tiles lie in shared memory as
 * fp32, their rows one word longer than K, so that lanes that read a column each meet their own
 * bank.  Sums run in ascending order, whoever adds.
 *
 * Layer: kernels, private to kernels/cuda.
 */
#ifndef LS_ATTENTION_CUH
#define LS_ATTENTION_CUH

#include <math.h>

#include "element.cuh"

enum {
    LS_TILE = 16,   /* rows or keys that a block owns */
    LS_ACROSS = 32, /* of the other side at a time: one for each lane */
    LS_ATTENTION_WARPS = 4,
    LS_OWN = LS_TILE / LS_ATTENTION_WARPS, /* of a warp */
    LS_ATTENTION_THREADS = LS_ATTENTION_WARPS * LS_WARP,
};

/* Shapes and mask of one call. */
struct ls_attention_shape {
    const int64_t *doc_start; /* [N] */
    int64_t N, M, H, G, K;
    int64_t q_start, k_start, window;
    float scale;
    bool vector; /* rows of a head are 16-byte aligned */
};

/* The keys that a row sees: first .. last of the key block; first > last: none. */
struct ls_key_range {
    int64_t first, last;
};

LS_DEVICE ls_key_range ls_keys_of_row(const ls_attention_shape &s, int64_t n)
{
    ls_key_range range = {0, -1};
    if (n >= s.N) return range;
    const int64_t position = s.q_start + n;
    range.first = s.doc_start[n];
    if (s.window > 0 && range.first < position - s.window + 1)
        range.first = position - s.window + 1;
    range.first = range.first > s.k_start ? range.first - s.k_start : 0;
    range.last = position - s.k_start;
    if (range.last > s.M - 1) range.last = s.M - 1;
    return range;
}

/* Where a row's keys lie among the 32 from first on: [begin, end); begin >= end: nowhere. */
struct ls_lane_range {
    int begin, end;
};

LS_DEVICE ls_lane_range ls_lanes_of(const ls_key_range &seen, int64_t first)
{
    const int64_t begin = seen.first > first ? seen.first - first : 0;
    const int64_t end = seen.last - first + 1;
    return {static_cast<int>(begin < LS_WARP ? begin : +LS_WARP),
            static_cast<int>(end < 0         ? 0
                             : end < LS_WARP ? end
                                             : +LS_WARP)};
}

/* The keys that any row of a tile sees. */
LS_DEVICE ls_key_range ls_span_of(const ls_key_range *ranges)
{
    ls_key_range span = {INT64_MAX, -1};
    for (int i = 0; i < LS_TILE; i++) {
        if (ranges[i].first > ranges[i].last) continue;
        if (ranges[i].first < span.first) span.first = ranges[i].first;
        if (ranges[i].last > span.last) span.last = ranges[i].last;
    }
    return span;
}

/* Rows first .. first + n_rows of x [rows, heads, K], those of one head, to tile [n_rows, K + 1];
 * 0 beyond the end. */
template <typename T>
LS_DEVICE void ls_load_tile(float *tile, const T *x, int64_t first, int n_rows, int64_t rows,
                            int64_t heads, int64_t head, const ls_attention_shape &s)
{
    const int per_row = static_cast<int>((s.K + LS_EIGHT - 1) / LS_EIGHT);
    for (int unit = static_cast<int>(threadIdx.x); unit < n_rows * per_row;
         unit += LS_ATTENTION_THREADS) {
        const int row = unit / per_row, i = unit % per_row * LS_EIGHT;
        float value[LS_EIGHT] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        if (first + row < rows)
            ls_load8(value, x + ((first + row) * heads + head) * s.K, i, s.K, s.vector);
        for (int k = 0; k < LS_EIGHT && i + k < s.K; k++) tile[row * (s.K + 1) + i + k] = value[k];
    }
}

LS_DEVICE float ls_dot(const float *a, const float *b, int64_t K)
{
    float sum = 0.0f;
    for (int64_t k = 0; k < K; k++) sum = fmaf(a[k], b[k], sum);
    return sum;
}

/* Bytes of n rows of a tile. */
static inline size_t ls_tile_bytes(int64_t n, int64_t K)
{
    return static_cast<size_t>(n * (K + 1)) * sizeof(float);
}

template <typename A> static inline ls_attention_shape ls_shape_of(const A *args, bool vector)
{
    assert(args->N >= 0 && args->M >= 0 && args->G >= 1 && args->H % args->G == 0 && args->K >= 1);
    return {args->doc_start,
            args->N,
            args->M,
            args->H,
            args->G,
            args->K,
            args->q_start,
            args->k_start,
            args->window,
            args->scale,
            vector && args->K % LS_EIGHT == 0};
}

static inline ls_status ls_check_width(const char *name, int64_t K, size_t shared_bytes)
{
    if (shared_bytes <= LS_SHARED_BYTES_MAX) return LS_OK;
    return LS_FAIL(LS_ERR_UNSUPPORTED,
                   "%s: heads of width %lld need %zu bytes of shared memory, the "
                   "GPU has %d",
                   name, static_cast<long long>(K), shared_bytes,
                   static_cast<int>(LS_SHARED_BYTES_MAX));
}

#endif
