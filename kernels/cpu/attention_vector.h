/*
 * attention_vector.h - attention in fp32 vectors, for both element types and K up to 256; included
 * by attention_plain.c, attention_avx2.c and attention_avx512.c, which define ATTENTION_KERNEL.
 *
 * Tiles are converted to fp32 scratch on the stack.  Scores are computed transposed, keys down the
 * rows and queries across the lanes, so that maxima and sums of a row need no shuffles.  All
 * products run through one register-blocked loop (vector_products.h), which bounds the speed:
 * forward 4 K FLOPs a pair, backward 10 K.
 *
 * Layer: kernels, private.
 */
#include "attention_tile.h"

#include <math.h>

#include "bf16.h"
#include "vector_products.h"

enum {
    WIDTH_MOST = 256,
    QUERIES = LS_ATTENTION_QUERY_TILE,
    KEYS = 32, /* taken at a time */
    ROUND = 16,
    HALF_SCRATCH = QUERIES * WIDTH_MOST / 2, /* 64 rows of 128, or 32 of 256 */
};

#define LOG2_E 1.44269504088896341f
#define LN_2   0.69314718055994531f
#define NEVER  (-1e30f) /* a maximum below every score: finite, so that differences are numbers */

/* K rounded up to whole vectors of any width. */
static int64_t width_padded(int64_t K)
{
    return (K + ROUND - 1) / ROUND * ROUND;
}

/* to[row][to_stride] = from's rows in fp32, the rest of n_padded rows and columns 0. */
static void rows_read(float *to, int64_t to_stride, const void *from, const int64_t from_strides[2],
                      const int64_t counts[3], ls_dtype dtype)
{
    const int64_t n_rows = counts[0], n_cols = counts[1], n_padded = counts[2];
    for (int64_t i = 0; i < n_padded; i++) {
        float *row = to + i * to_stride;
        const int64_t at = from_strides[0] + i * from_strides[1];
        if (i >= n_rows) {
            memset(row, 0, (size_t)to_stride * sizeof *row);
            continue;
        }
        if (dtype == LS_DTYPE_F32)
            memcpy(row, (const float *)from + at, (size_t)n_cols * sizeof *row);
        else
            for (int64_t k = 0; k < n_cols; k++)
                row[k] = ls_bf16_to_f32(((const ls_bf16 *)from)[at + k]);
        for (int64_t k = n_cols; k < to_stride; k++) row[k] = 0.0f;
    }
}

/* to[k][to_stride] = from[row][k]: n_rows become lanes. */
static void rows_turn(float *to, int64_t to_stride, const float *from, int64_t from_stride,
                      int64_t n_rows, int64_t K)
{
    for (int64_t k = 0; k < K; k++)
        for (int64_t i = 0; i < n_rows; i++) to[k * to_stride + i] = from[i * from_stride + k];
}

/* Lanes of queries lane .. lane + VF_LANES of rows that see key. */
static inline vi lanes_seeing(const ls_attention_rows *rows, int lane, int32_t key)
{
    const vi at = (vi){0} + key;
    return (vi_load(rows->first + lane) <= at) & (at <= vi_load(rows->last + lane));
}

static inline vf vf_keep(vi mask, vf value)
{
    return (vf)(mask & (vi)value);
}

/* ---- forward ------------------------------------------------------------------------------- */

typedef struct forward_state {
    const ls_attention_forward_args *args;
    const ls_attention_rows *rows;
    int64_t width; /* K, padded */
    float m[QUERIES], l[QUERIES];
    float q[WIDTH_MOST * QUERIES]; /* [K][QUERIES] */
    float o[WIDTH_MOST * QUERIES]; /* [K][QUERIES], not yet divided by l */
    float k[KEYS * WIDTH_MOST];    /* [KEYS][width] */
    float v[KEYS * WIDTH_MOST];    /* [KEYS][width] */
    float s[KEYS * QUERIES];       /* [KEYS][QUERIES]: scores, then probabilities */
} forward_state;

static void forward_start(forward_state *st, const ls_attention_forward_task *task)
{
    const ls_attention_forward_args *args = task->args;
    const int64_t K = args->K, n_rows = task->rows->n_rows;
    const int64_t at = task->row * args->H + task->head;

    st->args = args;
    st->rows = task->rows;
    st->width = width_padded(K);
    rows_read(st->o, st->width, args->q, (int64_t[2]){at * K, args->H * K},
              (int64_t[3]){n_rows, K, QUERIES}, args->dtype); /* o is free until below */
    rows_turn(st->q, QUERIES, st->o, st->width, QUERIES, K);
    for (int i = 0; i < QUERIES; i++) {
        const int64_t row = at + i * args->H;
        const int is_there = args->accumulate && i < n_rows && args->lse[row] > -INFINITY;
        st->m[i] = is_there ? args->lse[row] * LOG2_E : NEVER;
        st->l[i] = is_there ? 1.0f : 0.0f;
        for (int64_t k = 0; k < K; k++)
            st->o[k * QUERIES + i] = is_there ? args->o_acc[row * K + k] : 0.0f;
    }
}

/* Turn the scores of n_keys keys into probabilities, for one vector of queries. */
static inline void lanes_soften(forward_state *st, int lane, int32_t key, int n_keys, int is_masked)
{
    const vf scale = vf_set(st->args->scale * LOG2_E);
    vf most = vf_set(NEVER), m = vf_load(st->m + lane), sum = vf_load(st->l + lane);

    for (int j = 0; j < n_keys; j++) {
        const vf s = vf_load(st->s + j * QUERIES + lane) * scale;
        most =
            vf_max(most, is_masked ? vf_select(lanes_seeing(st->rows, lane, key + j), s, most) : s);
    }
    if (vi_any(most > m)) {
        const vf raised = vf_max(m, most), factor = vf_exp2(m - raised);
        m = raised;
        sum *= factor;
        for (int64_t k = 0; k < st->args->K; k++) {
            float *o = st->o + k * QUERIES + lane;
            vf_store(o, vf_load(o) * factor);
        }
    }
    for (int j = 0; j < n_keys; j++) {
        float *s = st->s + j * QUERIES + lane;
        vf p = vf_exp2(vf_fma(vf_load(s), scale, -m));
        if (is_masked) p = vf_keep(lanes_seeing(st->rows, lane, key + j), p);
        sum += p;
        vf_store(s, p);
    }
    vf_store(st->m + lane, m);
    vf_store(st->l + lane, sum);
}

static void forward_step(forward_state *st, int64_t group, int32_t key, int n_keys)
{
    const ls_attention_forward_args *args = st->args;
    const int64_t K = args->K;
    const int64_t strides[2] = {(key * args->G + group) * K, args->G * K};
    const int64_t counts[3] = {n_keys, K, n_keys};
    const int is_masked = key < st->rows->first_max || key + n_keys - 1 > st->rows->last_min;

    rows_read(st->k, st->width, args->k, strides, counts, args->dtype);
    rows_read(st->v, st->width, args->v, strides, counts, args->dtype);
    product_run(&(product){.c = st->s,
                           .c_stride = QUERIES,
                           .a = st->k,
                           .a_row = st->width,
                           .a_term = 1,
                           .b = st->q,
                           .b_stride = QUERIES,
                           .n_rows = n_keys,
                           .n_cols = QUERIES,
                           .n_terms = K});
    for (int lane = 0; lane < QUERIES; lane += VF_LANES) {
        if (is_masked)
            lanes_soften(st, lane, key, n_keys, 1);
        else
            lanes_soften(st, lane, key, n_keys, 0);
    }
    product_run(&(product){.c = st->o,
                           .c_stride = QUERIES,
                           .a = st->v,
                           .a_row = 1,
                           .a_term = st->width,
                           .b = st->s,
                           .b_stride = QUERIES,
                           .n_rows = K,
                           .n_cols = QUERIES,
                           .n_terms = n_keys,
                           .accumulate = 1});
}

static void forward_finish(forward_state *st, const ls_attention_forward_task *task)
{
    const ls_attention_forward_args *args = st->args;
    for (int i = 0; i < st->rows->n_rows; i++) {
        const int64_t row = (task->row + i) * args->H + task->head;
        const float weight = st->l[i] > 0.0f ? 1.0f / st->l[i] : 0.0f;
        args->lse[row] = st->l[i] > 0.0f ? st->m[i] * LN_2 + logf(st->l[i]) : -INFINITY;
        for (int64_t k = 0; k < args->K; k++) {
            const float value = st->o[k * QUERIES + i] * weight;
            const int64_t at = row * args->K + k;
            if (args->o_acc != NULL) args->o_acc[at] = value;
            if (!args->last) continue;
            if (args->dtype == LS_DTYPE_F32)
                ((float *)args->o)[at] = value;
            else
                ((ls_bf16 *)args->o)[at] = ls_bf16_from_f32(value);
        }
    }
}

static void forward(const ls_attention_forward_task *task)
{
    const int64_t group = task->head / (task->args->H / task->args->G);
    const int32_t end = task->rows->last_max + 1;
    forward_state st;

    forward_start(&st, task);
    for (int32_t key = task->rows->first_min; key < end; key += KEYS)
        forward_step(&st, group, key, end - key < KEYS ? end - key : KEYS);
    forward_finish(&st, task);
}

/* ---- backward ------------------------------------------------------------------------------ */

typedef struct backward_state {
    const ls_attention_backward_task *task;
    const ls_attention_backward_args *args;
    ls_attention_rows rows;
    int64_t head, width;
    int n_queries; /* taken at a time: 64, or 32 of a wide head */
    int lane;      /* the first of them */
    float offset[QUERIES], delta[QUERIES];
    float q[HALF_SCRATCH], q_turned[HALF_SCRATCH]; /* [n_queries][width], [K][n_queries] */
    float d_o[HALF_SCRATCH], d_o_turned[HALF_SCRATCH];
    float dq[HALF_SCRATCH];         /* [n_queries][width] */
    float k[KEYS / 2 * WIDTH_MOST]; /* [n_keys][width] */
    float v[KEYS / 2 * WIDTH_MOST];
    float sum[KEYS / 2 * WIDTH_MOST]; /* [n_keys][width], on its way to dk or dv */
    float p[KEYS * QUERIES];          /* [n_keys][n_queries]: s, then p */
    float ds[KEYS * QUERIES];         /* dp, then ds */
} backward_state;

static void queries_read(backward_state *st, int64_t tile)
{
    const ls_attention_backward_args *args = st->args;
    const int64_t first = tile * QUERIES + st->lane, n = st->n_queries, K = args->K;
    const int64_t at = first * args->H + st->head, left = st->rows.n_rows - st->lane;
    const int64_t n_rows = left < 0 ? 0 : left < n ? left : n;
    const int64_t strides[2] = {at * K, args->H * K}, counts[3] = {n_rows, K, n};

    rows_read(st->q, st->width, args->q, strides, counts, args->dtype);
    rows_read(st->d_o, st->width, args->d_o, strides, counts, args->dtype);
    rows_turn(st->q_turned, n, st->q, st->width, n, K);
    rows_turn(st->d_o_turned, n, st->d_o, st->width, n, K);
    for (int i = 0; i < n; i++) {
        const float lse = i < n_rows ? args->lse[at + i * args->H] : 0.0f;
        st->offset[i] = lse > -INFINITY ? lse * LOG2_E : -NEVER; /* p = 0 */
        st->delta[i] = i < n_rows ? args->delta[at + i * args->H] : 0.0f;
    }
    memset(st->dq, 0, (size_t)(n * st->width) * sizeof st->dq[0]);
}

/* p and ds from s and dp, in place, for one vector of queries. */
static inline void lanes_differentiate(backward_state *st, int lane, int32_t key, int n_keys,
                                       int is_masked)
{
    const vf scale = vf_set(st->args->scale), scale_2 = vf_set(st->args->scale * LOG2_E);
    const vf offset = vf_load(st->offset + lane), delta = vf_load(st->delta + lane);

    for (int j = 0; j < n_keys; j++) {
        float *s = st->p + j * st->n_queries + lane, *dp = st->ds + j * st->n_queries + lane;
        vf p = vf_exp2(vf_fma(vf_load(s), scale_2, -offset));
        vf ds = p * (vf_load(dp) - delta) * scale;
        if (is_masked) {
            const vi seen = lanes_seeing(&st->rows, st->lane + lane, key + j);
            p = vf_keep(seen, p);
            ds = vf_keep(seen, ds);
        }
        vf_store(s, p);
        vf_store(dp, ds);
    }
}

/* to[key][K] += c[key][n_queries] times rows[n_queries][width] */
static void keys_add(backward_state *st, float *to, const float *c, const float *rows, int n_keys)
{
    const int64_t K = st->args->K, stride = st->args->G * K;
    product_run(&(product){.c = st->sum,
                           .c_stride = st->width,
                           .a = c,
                           .a_row = st->n_queries,
                           .a_term = 1,
                           .b = rows,
                           .b_stride = st->width,
                           .n_rows = n_keys,
                           .n_cols = st->width,
                           .n_terms = st->n_queries});
    for (int j = 0; j < n_keys; j++)
        for (int64_t k = 0; k < K; k++) to[j * stride + k] += st->sum[j * st->width + k];
}

static void backward_step(backward_state *st, int32_t key, int n_keys)
{
    const ls_attention_backward_args *args = st->args;
    const int64_t K = args->K, at = (key * args->G + st->task->group) * K, n = st->n_queries;
    const int64_t strides[2] = {at, args->G * K}, counts[3] = {n_keys, K, n_keys};
    const int is_masked = key < st->rows.first_max || key + n_keys - 1 > st->rows.last_min;

    rows_read(st->k, st->width, args->k, strides, counts, args->dtype);
    rows_read(st->v, st->width, args->v, strides, counts, args->dtype);
    product_run(&(product){.c = st->p,
                           .c_stride = n,
                           .a = st->k,
                           .a_row = st->width,
                           .a_term = 1,
                           .b = st->q_turned,
                           .b_stride = n,
                           .n_rows = n_keys,
                           .n_cols = n,
                           .n_terms = K});
    product_run(&(product){.c = st->ds,
                           .c_stride = n,
                           .a = st->v,
                           .a_row = st->width,
                           .a_term = 1,
                           .b = st->d_o_turned,
                           .b_stride = n,
                           .n_rows = n_keys,
                           .n_cols = n,
                           .n_terms = K});
    for (int lane = 0; lane < n; lane += VF_LANES) {
        if (is_masked)
            lanes_differentiate(st, lane, key, n_keys, 1);
        else
            lanes_differentiate(st, lane, key, n_keys, 0);
    }
    keys_add(st, args->dv + at, st->p, st->d_o, n_keys);
    keys_add(st, args->dk + at, st->ds, st->q, n_keys);
    product_run(&(product){.c = st->dq,
                           .c_stride = st->width,
                           .a = st->ds,
                           .a_row = 1,
                           .a_term = n,
                           .b = st->k,
                           .b_stride = st->width,
                           .n_rows = n,
                           .n_cols = st->width,
                           .n_terms = n_keys,
                           .accumulate = 1});
}

/* Some queries of a tile against the keys of the task they see; dq is added in turn. */
static void queries_run(backward_state *st, int64_t tile)
{
    const ls_attention_backward_args *args = st->args;
    const int32_t start = (int32_t)(st->task->key_tile * LS_ATTENTION_KEY_TILE);
    const int32_t stop = start + LS_ATTENTION_KEY_TILE, last = st->rows.last_max + 1;
    const int32_t end = last < stop ? last : stop;
    const int most = args->K <= WIDTH_MOST / 2 ? KEYS : KEYS / 2;

    queries_read(st, tile);
    for (int32_t key = st->rows.first_min > start ? st->rows.first_min : start; key < end;
         key += most)
        backward_step(st, key, end - key < most ? end - key : most);
    if (st->lane == 0) ls_attention_turn_wait(st->task, st->head, tile);
    for (int i = 0; i < st->n_queries && st->lane + i < st->rows.n_rows; i++) {
        const int64_t row = (tile * QUERIES + st->lane + i) * args->H + st->head;
        for (int64_t k = 0; k < args->K; k++)
            args->dq[row * args->K + k] += st->dq[i * st->width + k];
    }
}

static void backward(const ls_attention_backward_task *task)
{
    const ls_attention_backward_args *args = task->plan->args;
    const ls_attention_shape shape = ls_attention_backward_shape(args);
    const int64_t per_group = args->H / args->G, n_tiles = task->plan->n_query_tiles;
    backward_state st;

    st.task = task;
    st.args = args;
    st.width = width_padded(args->K);
    st.n_queries = args->K <= WIDTH_MOST / 2 ? QUERIES : QUERIES / 2;
    for (st.head = task->group * per_group; st.head < (task->group + 1) * per_group; st.head++) {
        int64_t tile = ls_attention_query_tile_next(task, 0);
        for (; tile < n_tiles; tile = ls_attention_query_tile_next(task, tile + 1)) {
            ls_attention_rows_read(&st.rows, &shape, tile * QUERIES);
            for (st.lane = 0; st.lane < QUERIES; st.lane += st.n_queries) queries_run(&st, tile);
            ls_attention_turn_pass(task, st.head, tile);
        }
    }
}

static int usable(ls_dtype dtype, int64_t K)
{
    return (dtype == LS_DTYPE_F32 || dtype == LS_DTYPE_BF16) && K <= WIDTH_MOST;
}

const ls_attention_kernel ATTENTION_KERNEL = {
    .name = ATTENTION_NAME, .usable = usable, .forward = forward, .backward = backward};
