/*
 * attention_vector_forward.h - the forward half of attention_vector.h.
 *
 * Scores are computed transposed, keys down the rows and queries across the lanes, so that maxima
 * and sums of a query need no shuffles, and keys and values are read as they are stored.  The
 * output is kept transposed too, and undivided; it is rescaled only when a maximum rises.
 *
 * Layer: kernels, private.
 */

enum { GROUP = 4 }; /* vectors softened together: a maximum alone would wait for itself */

_Static_assert(QUERIES % (GROUP * VF_LANES) == 0, "whole groups");

/* An operand of fp32 rows. */
typedef struct key_rows {
    const float *at;
    int64_t stride;
} key_rows;

typedef struct forward_state {
    const ls_attention_forward_task *task;
    const ls_attention_forward_args *args;
    const ls_attention_rows *rows;
    int64_t width;                /* K, padded */
    float m[QUERIES], l[QUERIES]; /* maximum in units of ln 2, sum */
    float *q, *o;                 /* [K][QUERIES] */
    float *s;                     /* [KEYS][QUERIES]: scores, not yet scaled, then probabilities */
    float *k, *v; /* [KEYS][width]; k is scratch for the turned output at either end */
    _Alignas(64) float scratch[4 * KEYS * WIDTH_MOST + KEYS * QUERIES];
} forward_state;

/* o and l continue from o_acc and lse, or start at 0. */
static void output_start(forward_state *st)
{
    const ls_attention_forward_args *args = st->args;
    const int64_t at = st->task->row * args->H + st->task->head, K = args->K;

    for (int i = 0; i < QUERIES; i++) {
        const int64_t row = at + i * args->H;
        float *o = st->k + i * st->width;
        const int is_there = args->accumulate && i < st->rows->n_rows && args->lse[row] > -INFINITY;
        st->m[i] = is_there ? args->lse[row] * LOG2_E : NEVER;
        st->l[i] = is_there ? 1.0f : 0.0f;
        if (is_there)
            memcpy(o, args->o_acc + row * K, (size_t)K * sizeof *o);
        else
            memset(o, 0, (size_t)K * sizeof *o);
    }
    rows_turn(st->o, QUERIES, st->k, st->width, (int64_t[2]){QUERIES, K});
}

static void forward_start(forward_state *st, const ls_attention_forward_task *task)
{
    const ls_attention_forward_args *args = task->args;
    const int64_t K = args->K, width = padded(K), n_rows = task->rows->n_rows;

    st->task = task;
    st->args = args;
    st->rows = task->rows;
    st->width = width;
    st->q = st->scratch;
    st->o = st->q + width * QUERIES;
    st->s = st->o + width * QUERIES;
    st->k = st->s + KEYS * QUERIES;
    st->v = st->k + KEYS * width;
    const rows_place place = {.from = args->q,
                              .at = (task->row * args->H + task->head) * K,
                              .stride = args->H * K,
                              .n_rows = n_rows,
                              .n_cols = K,
                              .dtype = args->dtype};
    rows_read(st->k, width, &place);
    memset(st->k + n_rows * width, 0, (size_t)((QUERIES - n_rows) * width) * sizeof *st->k);
    rows_turn(st->q, QUERIES, st->k, width, (int64_t[2]){QUERIES, K});
    output_start(st);
}

/* Overwrite the scores of pairs that are masked. */
static void scores_mask(const forward_state *st, int32_t key, int n_keys)
{
    for (int lane = 0; lane < QUERIES; lane += VF_LANES) {
        const vi first = vi_load(st->rows->first + lane), last = vi_load(st->rows->last + lane);
        for (int j = 0; j < n_keys; j++) {
            float *s = st->s + j * QUERIES + lane;
            const vi at = (vi){0} + (key + j);
            vf_store(s, vf_select((first <= at) & (at <= last), vf_load(s), vf_set(UNSEEN)));
        }
    }
}

/* Raise the maximum of one vector of queries, and scale what was summed under the old one. */
static void maximum_raise(forward_state *st, int lane, vf raised)
{
    const vf factor = vf_exp2(vf_load(st->m + lane) - raised);
    vf_store(st->m + lane, raised);
    vf_store(st->l + lane, vf_load(st->l + lane) * factor);
    for (int64_t k = 0; k < st->args->K; k++) {
        float *o = st->o + k * QUERIES + lane;
        vf_store(o, vf_load(o) * factor);
    }
}

/* Turn the scores of n_keys keys into probabilities, for one group of vectors of queries. */
static void lanes_soften(forward_state *st, int lane, int n_keys)
{
    const vf scale = vf_set(st->args->scale * LOG2_E);
    vf most[GROUP], m[GROUP], sum[GROUP];

    for (int g = 0; g < GROUP; g++) most[g] = vf_set(NEVER);
    for (int j = 0; j < n_keys; j++)
        for (int g = 0; g < GROUP; g++)
            most[g] = vf_max(most[g], vf_load(st->s + j * QUERIES + lane + g * VF_LANES));
    for (int g = 0; g < GROUP; g++) {
        const int at = lane + g * VF_LANES;
        most[g] *= scale;
        m[g] = vf_load(st->m + at);
        if (vi_any(most[g] > m[g])) maximum_raise(st, at, vf_max(m[g], most[g]));
        m[g] = vf_load(st->m + at);
        sum[g] = vf_load(st->l + at);
    }
    for (int j = 0; j < n_keys; j++)
        for (int g = 0; g < GROUP; g++) {
            float *s = st->s + j * QUERIES + lane + g * VF_LANES;
            const vf p = vf_exp2(vf_fma(vf_load(s), scale, -m[g]));
            sum[g] += p;
            vf_store(s, p);
        }
    for (int g = 0; g < GROUP; g++) vf_store(st->l + lane + g * VF_LANES, sum[g]);
}

/* Rows of k or v of this head in fp32: where they are, or converted into scratch. */
static key_rows keys_read(const forward_state *st, const void *from, float *scratch, int64_t key,
                          int n_keys)
{
    const ls_attention_forward_args *args = st->args;
    const int64_t group = st->task->head / (args->H / args->G);
    const rows_place place = {.from = from,
                              .at = (key * args->G + group) * args->K,
                              .stride = args->G * args->K,
                              .n_rows = n_keys,
                              .n_cols = args->K,
                              .dtype = args->dtype};
    if (args->dtype == LS_DTYPE_F32)
        return (key_rows){(const float *)from + place.at, place.stride};
    rows_read(scratch, st->width, &place);
    return (key_rows){scratch, st->width};
}

static void forward_step(forward_state *st, int32_t key, int n_keys)
{
    const ls_attention_forward_args *args = st->args;
    const key_rows k = keys_read(st, args->k, st->k, key, n_keys);

    product_run(&(product){.c = st->s,
                           .c_stride = QUERIES,
                           .a = k.at,
                           .a_row = k.stride,
                           .a_term = 1,
                           .b = st->q,
                           .b_stride = QUERIES,
                           .n_rows = n_keys,
                           .n_cols = QUERIES,
                           .n_terms = args->K});
    if (key < st->rows->first_max || key + n_keys - 1 > st->rows->last_min)
        scores_mask(st, key, n_keys);
    for (int lane = 0; lane < QUERIES; lane += GROUP * VF_LANES) lanes_soften(st, lane, n_keys);
    const key_rows v = keys_read(st, args->v, st->v, key, n_keys);
    product_run(&(product){.c = st->o,
                           .c_stride = QUERIES,
                           .a = v.at,
                           .a_row = 1,
                           .a_term = v.stride,
                           .b = st->s,
                           .b_stride = QUERIES,
                           .n_rows = args->K,
                           .n_cols = QUERIES,
                           .n_terms = n_keys,
                           .accumulate = 1});
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

static void forward_finish(forward_state *st)
{
    const ls_attention_forward_args *args = st->args;

    rows_turn(st->k, st->width, st->o, QUERIES, (int64_t[2]){args->K, QUERIES});
    for (int i = 0; i < st->rows->n_rows; i++) {
        const int64_t row = (st->task->row + i) * args->H + st->task->head;
        const float l = st->l[i];
        args->lse[row] = l > 0.0f ? st->m[i] * LN_2 + logf(l) : -INFINITY;
        row_write(args, row * args->K, st->k + i * st->width, l > 0.0f ? 1.0f / l : 0.0f);
    }
}

static void forward(const ls_attention_forward_task *task)
{
    const int32_t end = task->rows->last_max + 1;
    forward_state st;

    forward_start(&st, task);
    for (int32_t key = task->rows->first_min; key < end; key += KEYS)
        forward_step(&st, key, end - key < KEYS ? end - key : KEYS);
    forward_finish(&st);
}
