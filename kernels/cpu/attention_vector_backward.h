/*
 * attention_vector_backward.h - the backward half of attention_vector.h.
 *
 * A task converts its keys once, turned as well as they are, and gathers their dk and dv in
 * scratch.  Scores are computed with queries down the rows and keys across the lanes, so that
 * queries, of which every tile is read once per task, need no turning.
 *
 * Layer: kernels, private.
 */

typedef struct backward_state {
    const ls_attention_backward_task *task;
    const ls_attention_backward_args *args;
    ls_attention_rows rows;
    int64_t head, width;                   /* K, padded */
    int64_t key, n_keys;                   /* of the task */
    float offset[QUERIES], delta[QUERIES]; /* offset: lse in units of ln 2 */
    float *q, *d_o, *dq;        /* [QUERIES][width]; dq is multiplied by scale at the end, as dk */
    float *p, *ds;              /* [QUERIES][KEYS]: s, then p;  dp, then ds / scale */
    float *k, *dk, *dv;         /* [n_keys][width] */
    float *k_turned, *v_turned; /* steps of [width][KEYS] */
    _Alignas(64) float scratch[(3 * QUERIES + 5 * LS_ATTENTION_KEY_TILE) * WIDTH_MOST +
                               2 * QUERIES * KEYS];
} backward_state;

/* The keys of one step. */
typedef struct key_step {
    int64_t first; /* in the task's tile, a multiple of KEYS */
    int64_t n_keys;
    int accumulate; /* dq has something */
} key_step;

static void backward_start(backward_state *st, const ls_attention_backward_task *task)
{
    const ls_attention_backward_args *args = task->plan->args;
    const int64_t width = padded(args->K);

    st->task = task;
    st->args = args;
    st->width = width;
    st->key = task->key_tile * LS_ATTENTION_KEY_TILE;
    st->n_keys =
        args->M - st->key < LS_ATTENTION_KEY_TILE ? args->M - st->key : LS_ATTENTION_KEY_TILE;
    st->p = st->scratch;
    st->ds = st->p + QUERIES * KEYS;
    st->q = st->ds + QUERIES * KEYS;
    st->d_o = st->q + QUERIES * width;
    st->dq = st->d_o + QUERIES * width;
    st->k = st->dq + QUERIES * width;
    st->dk = st->k + LS_ATTENTION_KEY_TILE * width;
    st->dv = st->dk + LS_ATTENTION_KEY_TILE * width;
    st->k_turned = st->dv + LS_ATTENTION_KEY_TILE * width;
    st->v_turned = st->k_turned + LS_ATTENTION_KEY_TILE * width;
}

static void task_keys_read(backward_state *st)
{
    const ls_attention_backward_args *args = st->args;
    const int64_t K = args->K, width = st->width;
    rows_place place = {.at = (st->key * args->G + st->task->group) * K,
                        .stride = args->G * K,
                        .n_rows = st->n_keys,
                        .n_cols = K,
                        .dtype = args->dtype};

    place.from = args->k;
    rows_read(st->k, width, &place);
    place.from = args->v;
    rows_read(st->dv, width, &place);
    for (int64_t j = 0; j < st->n_keys; j += KEYS) {
        const int64_t counts[2] = {st->n_keys - j < KEYS ? st->n_keys - j : KEYS, K};
        rows_turn(st->k_turned + j * width, KEYS, st->k + j * width, width, counts);
        rows_turn(st->v_turned + j * width, KEYS, st->dv + j * width, width, counts);
    }
    memset(st->dk, 0, (size_t)(st->n_keys * width) * sizeof *st->dk);
    memset(st->dv, 0, (size_t)(st->n_keys * width) * sizeof *st->dv);
}

/* Add what was gathered of dk or dv, times factor. */
static void keys_add(const backward_state *st, float *to, const float *from, float factor)
{
    const int64_t K = st->args->K, G = st->args->G;
    for (int64_t j = 0; j < st->n_keys; j++) {
        float *row = to + ((st->key + j) * G + st->task->group) * K;
        for (int64_t k = 0; k < K; k++) row[k] += factor * from[j * st->width + k];
    }
}

static void queries_read(backward_state *st, int64_t tile)
{
    const ls_attention_backward_args *args = st->args;
    const int64_t row = tile * QUERIES * args->H + st->head, n_rows = st->rows.n_rows;
    rows_place place = {.at = row * args->K,
                        .stride = args->H * args->K,
                        .n_rows = n_rows,
                        .n_cols = args->K,
                        .dtype = args->dtype};

    place.from = args->q;
    rows_read(st->q, st->width, &place);
    place.from = args->d_o;
    rows_read(st->d_o, st->width, &place);
    for (int64_t i = 0; i < n_rows; i++) {
        const float lse = args->lse[row + i * args->H];
        st->offset[i] = lse > -INFINITY ? lse * LOG2_E : -NEVER; /* p = 0 */
        st->delta[i] = args->delta[row + i * args->H];
    }
}

/* Overwrite the scores of pairs that are masked. */
static void pairs_mask(const backward_state *st, const key_step *step)
{
    static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int64_t j = 0; j < step->n_keys; j += VF_LANES) {
        const vi at = vi_load(lanes) + (int32_t)(st->key + step->first + j);
        for (int i = 0; i < st->rows.n_rows; i++) {
            float *s = st->p + i * KEYS + j;
            const vi seen = (at >= st->rows.first[i]) & (at <= st->rows.last[i]);
            vf_store(s, vf_select(seen, vf_load(s), vf_set(UNSEEN)));
        }
    }
}

/* p and ds from s and dp, in place. */
static void pairs_differentiate(const backward_state *st, int64_t n_cols)
{
    const vf scale = vf_set(st->args->scale * LOG2_E);
    for (int i = 0; i < st->rows.n_rows; i++) {
        const vf offset = vf_set(st->offset[i]), delta = vf_set(st->delta[i]);
        for (int64_t j = 0; j < n_cols; j += VF_LANES) {
            float *s = st->p + i * KEYS + j, *dp = st->ds + i * KEYS + j;
            const vf p = vf_exp2(vf_fma(vf_load(s), scale, -offset));
            vf_store(s, p);
            vf_store(dp, p * (vf_load(dp) - delta));
        }
    }
}

/* p and ds of one step: rows are queries, lanes are keys. */
static void pairs_compute(backward_state *st, const key_step *step)
{
    const int64_t first = st->key + step->first, last = first + step->n_keys - 1;
    product scores = {.c = st->p,
                      .c_stride = KEYS,
                      .a = st->q,
                      .a_row = st->width,
                      .a_term = 1,
                      .b = st->k_turned + step->first * st->width,
                      .b_stride = KEYS,
                      .n_rows = st->rows.n_rows,
                      .n_cols = padded(step->n_keys),
                      .n_terms = st->args->K};

    product_run(&scores);
    if (first < st->rows.first_max || last > st->rows.last_min) pairs_mask(st, step);
    scores.c = st->ds;
    scores.a = st->d_o;
    scores.b = st->v_turned + step->first * st->width;
    product_run(&scores);
    pairs_differentiate(st, scores.n_cols);
}

static void backward_step(backward_state *st, const key_step *step)
{
    const int64_t width = st->width;
    product keys_sum = {.c = st->dv + step->first * width,
                        .c_stride = width,
                        .a = st->p,
                        .a_row = 1,
                        .a_term = KEYS,
                        .b = st->d_o,
                        .b_stride = width,
                        .n_rows = step->n_keys,
                        .n_cols = width,
                        .n_terms = st->rows.n_rows,
                        .accumulate = 1};

    pairs_compute(st, step);
    product_run(&keys_sum);
    keys_sum.c = st->dk + step->first * width;
    keys_sum.a = st->ds;
    keys_sum.b = st->q;
    product_run(&keys_sum);
    product_run(&(product){.c = st->dq,
                           .c_stride = width,
                           .a = st->ds,
                           .a_row = KEYS,
                           .a_term = 1,
                           .b = st->k + step->first * width,
                           .b_stride = width,
                           .n_rows = st->rows.n_rows,
                           .n_cols = width,
                           .n_terms = step->n_keys,
                           .accumulate = step->accumulate});
}

/* A query tile against the keys of the task it sees; dq is added in turn. */
static void queries_run(backward_state *st, int64_t tile)
{
    const ls_attention_backward_args *args = st->args;
    const int64_t before = st->rows.first_min - st->key, seen = st->rows.last_max + 1 - st->key;
    const int64_t start = before > 0 ? before / KEYS * KEYS : 0;
    const int64_t end = seen < st->n_keys ? seen : st->n_keys;

    queries_read(st, tile);
    for (int64_t key = start; key < end; key += KEYS)
        backward_step(st, &(key_step){key, end - key < KEYS ? end - key : KEYS, key > start});
    ls_attention_turn_wait(st->task, st->head, tile);
    for (int i = 0; i < st->rows.n_rows; i++) {
        float *row = args->dq + ((tile * QUERIES + i) * args->H + st->head) * args->K;
        for (int64_t k = 0; k < args->K; k++) row[k] += args->scale * st->dq[i * st->width + k];
    }
    ls_attention_turn_pass(st->task, st->head, tile);
}

static void backward(const ls_attention_backward_task *task)
{
    const ls_attention_backward_args *args = task->plan->args;
    const ls_attention_shape shape = ls_attention_backward_shape(args);
    const int64_t per_group = args->H / args->G, n_tiles = task->plan->n_query_tiles;
    backward_state st;

    backward_start(&st, task);
    task_keys_read(&st);
    for (st.head = task->group * per_group; st.head < (task->group + 1) * per_group; st.head++) {
        int64_t tile = ls_attention_query_tile_next(task, 0);
        for (; tile < n_tiles; tile = ls_attention_query_tile_next(task, tile + 1)) {
            ls_attention_rows_read(&st.rows, &shape, tile * QUERIES);
            queries_run(&st, tile);
        }
    }
    keys_add(&st, args->dk, st.dk, args->scale);
    keys_add(&st, args->dv, st.dv, 1.0f);
}
