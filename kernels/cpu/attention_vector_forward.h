/*
 * attention_vector_forward.h - the forward half of attention_vector.h.
 *
 * Scores are computed transposed, keys down the rows and queries across the lanes, so that maxima
 * and sums of a query need no shuffles, and keys and values are read as they are stored.  The
 * output is kept transposed too, and undivided; it is rescaled only when a maximum rises.  A few
 * query tiles go through the keys together, since bf16 keys are converted on the way.
 *
 * Layer: kernels, private.
 */

enum {
    GROUP = 4, /* vectors softened together: a maximum alone would wait for itself */
    TILES = LS_ATTENTION_FORWARD_TASKS_MOST,
};

_Static_assert(QUERIES % (GROUP * VF_LANES) == 0, "whole groups");

/* One task's query tile. */
typedef struct forward_tile {
    const ls_attention_forward_task *task;
    float *q, *o;                 /* [K][QUERIES] */
    float m[QUERIES], l[QUERIES]; /* maximum in units of ln 2, sum */
} forward_tile;

/* Keys in fp32. */
typedef struct key_rows {
    const float *k, *v;
    int64_t stride;
    int32_t key; /* the first */
    int n_keys;
} key_rows;

typedef struct forward_state {
    const ls_attention_forward_args *args;
    int64_t group, width; /* K, padded */
    float *s;             /* [KEYS][QUERIES]: scores, not yet scaled, then probabilities */
    float *k, *v;         /* [KEYS][width]; k is scratch for turning at either end */
    forward_tile tiles[TILES];
    _Alignas(64) float scratch[KEYS * QUERIES + 2 * (KEYS + TILES * QUERIES) * WIDTH_MOST];
} forward_state;

/* o and l continue from o_acc and lse, or start at 0. */
static void output_start(const forward_state *st, forward_tile *tile)
{
    const ls_attention_forward_args *args = st->args;
    const int64_t at = tile->task->row * args->H + tile->task->head, K = args->K;

    for (int i = 0; i < QUERIES; i++) {
        const int64_t row = at + i * args->H;
        float *o = st->k + i * st->width;
        const int is_there =
            args->accumulate && i < tile->task->rows->n_rows && args->lse[row] > -INFINITY;
        tile->m[i] = is_there ? args->lse[row] * LOG2_E : NEVER;
        tile->l[i] = is_there ? 1.0f : 0.0f;
        if (is_there)
            memcpy(o, args->o_acc + row * K, (size_t)K * sizeof *o);
        else
            memset(o, 0, (size_t)K * sizeof *o);
    }
    rows_turn(tile->o, QUERIES, st->k, st->width, (int64_t[2]){QUERIES, K});
}

static void tile_start(const forward_state *st, forward_tile *tile)
{
    const ls_attention_forward_args *args = st->args;
    const int64_t K = args->K, n_rows = tile->task->rows->n_rows;
    const rows_place place = {.from = args->q,
                              .at = (tile->task->row * args->H + tile->task->head) * K,
                              .stride = args->H * K,
                              .n_rows = n_rows,
                              .n_cols = K,
                              .dtype = args->dtype};
    rows_read(st->k, st->width, &place);
    memset(st->k + n_rows * st->width, 0, (size_t)((QUERIES - n_rows) * st->width) * sizeof *st->k);
    rows_turn(tile->q, QUERIES, st->k, st->width, (int64_t[2]){QUERIES, K});
    output_start(st, tile);
}

static void forward_start(forward_state *st, const ls_attention_forward_task *tasks, int n_tasks)
{
    const ls_attention_forward_args *args = tasks->args;
    const int64_t width = padded(args->K);

    st->args = args;
    st->group = tasks->head / (args->H / args->G);
    st->width = width;
    st->s = st->scratch;
    st->k = st->s + KEYS * QUERIES;
    st->v = st->k + KEYS * width;
    for (int t = 0; t < n_tasks; t++) {
        forward_tile *tile = &st->tiles[t];
        tile->task = &tasks[t];
        tile->q = st->v + KEYS * width + 2 * t * QUERIES * width;
        tile->o = tile->q + QUERIES * width;
        tile_start(st, tile);
    }
}

/* Overwrite the scores of pairs that are masked. */
static void scores_mask(float *scores, const ls_attention_rows *rows, int32_t key, int n_keys)
{
    for (int lane = 0; lane < QUERIES; lane += VF_LANES) {
        const vi first = vi_load(rows->first + lane), last = vi_load(rows->last + lane);
        for (int j = 0; j < n_keys; j++) {
            float *s = scores + j * QUERIES + lane;
            const vi at = (vi){0} + (key + j);
            vf_store(s, vf_select((first <= at) & (at <= last), vf_load(s), vf_set(UNSEEN)));
        }
    }
}

/* Raise the maximum of one vector of queries, and scale what was summed under the old one. */
static void maximum_raise(forward_tile *tile, int64_t K, int lane, vf raised)
{
    const vf factor = vf_exp2(vf_load(tile->m + lane) - raised);
    vf_store(tile->m + lane, raised);
    vf_store(tile->l + lane, vf_load(tile->l + lane) * factor);
    for (int64_t k = 0; k < K; k++) {
        float *o = tile->o + k * QUERIES + lane;
        vf_store(o, vf_load(o) * factor);
    }
}

/* Turn the scores of n_keys keys into probabilities, for one group of vectors of queries. */
static void lanes_soften(const forward_state *st, forward_tile *tile, int lane, int n_keys)
{
    const vf scale = vf_set(st->args->scale * LOG2_E);
    vf most[GROUP], m[GROUP], sum[GROUP];

    for (int g = 0; g < GROUP; g++) most[g] = vf_set(UNSEEN);
    for (int j = 0; j < n_keys; j++)
        for (int g = 0; g < GROUP; g++)
            most[g] = vf_max(most[g], vf_load(st->s + j * QUERIES + lane + g * VF_LANES));
    for (int g = 0; g < GROUP; g++) {
        const int at = lane + g * VF_LANES;
        most[g] *= scale;
        m[g] = vf_load(tile->m + at);
        if (vi_any(most[g] > m[g])) maximum_raise(tile, st->args->K, at, vf_max(m[g], most[g]));
        m[g] = vf_load(tile->m + at);
        sum[g] = vf_load(tile->l + at);
    }
    for (int j = 0; j < n_keys; j++)
        for (int g = 0; g < GROUP; g++) {
            float *s = st->s + j * QUERIES + lane + g * VF_LANES;
            const vf p = vf_exp2(vf_fma(vf_load(s), scale, -m[g]));
            sum[g] += p;
            vf_store(s, p);
        }
    for (int g = 0; g < GROUP; g++) vf_store(tile->l + lane + g * VF_LANES, sum[g]);
}

/* One tile against the keys of a step that it sees. */
static void tile_step(const forward_state *st, forward_tile *tile, const key_rows *keys)
{
    const ls_attention_rows *rows = tile->task->rows;
    const int32_t key = keys->key, left = rows->last_max + 1 - key;
    const int n_keys = left < keys->n_keys ? left : keys->n_keys;

    if (n_keys <= 0 || key + n_keys <= rows->first_min) return;
    product_run(&(product){.c = st->s,
                           .c_stride = QUERIES,
                           .a = keys->k,
                           .a_row = keys->stride,
                           .a_term = 1,
                           .b = tile->q,
                           .b_stride = QUERIES,
                           .n_rows = n_keys,
                           .n_cols = QUERIES,
                           .n_terms = st->args->K});
    if (key < rows->first_max || key + n_keys - 1 > rows->last_min)
        scores_mask(st->s, rows, key, n_keys);
    for (int lane = 0; lane < QUERIES; lane += GROUP * VF_LANES)
        lanes_soften(st, tile, lane, n_keys);
    product_run(&(product){.c = tile->o,
                           .c_stride = QUERIES,
                           .a = keys->v,
                           .a_row = 1,
                           .a_term = keys->stride,
                           .b = st->s,
                           .b_stride = QUERIES,
                           .n_rows = st->args->K,
                           .n_cols = QUERIES,
                           .n_terms = n_keys,
                           .accumulate = 1});
}

/* Keys from key on in fp32: where they are, or converted into scratch. */
static key_rows keys_read(const forward_state *st, int32_t key, int n_keys)
{
    const ls_attention_forward_args *args = st->args;
    rows_place place = {.at = (key * args->G + st->group) * args->K,
                        .stride = args->G * args->K,
                        .n_rows = n_keys,
                        .n_cols = args->K,
                        .dtype = args->dtype};
    if (args->dtype == LS_DTYPE_F32)
        return (key_rows){(const float *)args->k + place.at, (const float *)args->v + place.at,
                          place.stride, key, n_keys};
    place.from = args->k;
    rows_read(st->k, st->width, &place);
    place.from = args->v;
    rows_read(st->v, st->width, &place);
    return (key_rows){st->k, st->v, st->width, key, n_keys};
}

static void row_write(const ls_attention_forward_args *args, int64_t at, const float *o,
                      float weight)
{
    for (int64_t k = 0; k < args->K; k++) {
        const float value = o[k] * weight;
        if (args->o_acc != NULL) args->o_acc[at + k] = value;
        if (!args->last) continue;
        if (args->dtype == LS_DTYPE_F32)
            ((float *)args->o)[at + k] = value;
        else
            ((ls_bf16 *)args->o)[at + k] = ls_bf16_from_f32(value);
    }
}

static void tile_finish(const forward_state *st, const forward_tile *tile)
{
    const ls_attention_forward_args *args = st->args;

    rows_turn(st->k, st->width, tile->o, QUERIES, (int64_t[2]){args->K, QUERIES});
    for (int i = 0; i < tile->task->rows->n_rows; i++) {
        const int64_t row = (tile->task->row + i) * args->H + tile->task->head;
        const float l = tile->l[i];
        args->lse[row] = l > 0.0f ? tile->m[i] * LN_2 + logf(l) : -INFINITY;
        row_write(args, row * args->K, st->k + i * st->width, l > 0.0f ? 1.0f / l : 0.0f);
    }
}

/* Steps start at multiples of KEYS, so that it does not matter which tasks go together. */
static void forward(const ls_attention_forward_task *tasks, int n_tasks)
{
    int32_t first = INT32_MAX, end = 0;
    forward_state st;

    for (int t = 0; t < n_tasks; t++) {
        if (tasks[t].rows->first_min < first) first = tasks[t].rows->first_min;
        if (tasks[t].rows->last_max >= end) end = tasks[t].rows->last_max + 1;
    }
    forward_start(&st, tasks, n_tasks);
    for (int32_t key = first / KEYS * KEYS; key < end; key += KEYS) {
        const key_rows keys = keys_read(&st, key, end - key < KEYS ? end - key : KEYS);
        for (int t = 0; t < n_tasks; t++) tile_step(&st, &st.tiles[t], &keys);
    }
    for (int t = 0; t < n_tasks; t++) tile_finish(&st, &st.tiles[t]);
}
