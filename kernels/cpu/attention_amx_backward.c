/*
 * attention_amx_backward.c - attention backward on AMX tiles, for bf16 and K a multiple of 32.
 *
 * Per query tile and 64 keys of the task's key tile, with l and delta of the whole row:
 *
 *     s^T = k q^T     dp^T = v d_o^T     p = 2^(s - lse)     ds = p (dp - delta) scale
 *     dv += p^T d_o   dk += ds^T q       dq^T += k^T ds^T
 *
 * dk and dv are summed where they lie, one tile pair at a time; dq^T of the query tile is summed
 * over the key tile on the stack and added to dq once, in turn.  p and ds are rounded to bf16 for
 * their products.
 *
 * 10 K FLOPs a pair on the matrix unit (160 cycles for 16 x 16 pairs at K = 64) and some 18 vector
 * instructions for 16 pairs (140 cycles): bound by both.
 */
#include "attention_amx.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    TILE_KEYS = LS_ATTENTION_KEY_TILE,
    STEP_KEYS = 64,
    PACK_BYTES = LS_ATTENTION_QUERY_TILE * AMX_WIDTH_MOST * 2,
};

typedef struct state {
    const ls_attention_backward_task *task;
    const ls_attention_backward_args *args;
    ls_attention_rows rows;
    int64_t head, row;
    _Alignas(64) float offset[LS_ATTENTION_QUERY_TILE]; /* lse, in powers of 2 */
    _Alignas(64) float delta[LS_ATTENTION_QUERY_TILE];  /* delta scale */
    _Alignas(64) char q_across[PACK_BYTES];             /* terms along the head, for s */
    _Alignas(64) char q_down[PACK_BYTES];               /* terms down the rows, for dk */
    _Alignas(64) char d_o_across[PACK_BYTES];
    _Alignas(64) char d_o_down[PACK_BYTES];
    _Alignas(64) char k_turned[TILE_KEYS * AMX_WIDTH_MOST * 2]; /* [key / 32][K / 16] tiles */
    _Alignas(64) float s[AMX_GROUPS][STEP_KEYS][16];
    _Alignas(64) float dp[AMX_GROUPS][STEP_KEYS][16];
    _Alignas(64) char p[STEP_KEYS / 16][2][TILE_BYTES];  /* rows of 32 queries */
    _Alignas(64) char ds[STEP_KEYS / 16][2][TILE_BYTES]; /* rows of 32 queries */
    /* ds in pairs of keys.  Within 32 queries the first tile holds queries 0-3, 8-11, 16-19 and
     * 24-27, the second the others: that is how the unpack instructions deal them out. */
    _Alignas(64) char ds_pairs[STEP_KEYS / 32][AMX_GROUPS][TILE_BYTES];
    _Alignas(64) float dq[AMX_GROUPS][AMX_WIDTH_MOST][16]; /* dq^T, queries dealt like ds_pairs */
    _Alignas(64) uint16_t k_tail[AMX_KEYS * AMX_WIDTH_MOST];
    _Alignas(64) uint16_t v_tail[AMX_KEYS * AMX_WIDTH_MOST];
} state;

/* ---- products ------------------------------------------------------------------------------ */

static key_rows rows_at(const state *st, const void *from, const uint16_t *tail, int64_t key)
{
    const ls_attention_backward_args *args = st->args;
    if (key + AMX_KEYS > args->M) return (key_rows){(const char *)tail, 2 * args->K};
    return (key_rows){(const char *)from + 2 * (key * args->G + st->task->group) * args->K,
                      2 * args->G * args->K};
}

/* s^T or dp^T: 32 keys times two groups of queries. */
static void scores_multiply(float (*to)[16], float (*to_next)[16], key_rows keys,
                            const char *across, int64_t K)
{
    const char *at = keys.at;

    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t k = 0; k < K; k += TILE_TERMS, at += 64, across += TILE_BYTES) {
        TILE_LOAD(4, at, keys.row_bytes);
        TILE_LOAD(6, across, 64);
        TILE_MULTIPLY(0, 4, 6);
        TILE_LOAD(7, across + K / 32 * TILE_BYTES, 64);
        TILE_MULTIPLY(1, 4, 7);
        TILE_LOAD(5, at + 16 * keys.row_bytes, keys.row_bytes);
        TILE_MULTIPLY(2, 5, 6);
        TILE_MULTIPLY(3, 5, 7);
    }
    TILE_STORE(0, to[0], 64);
    TILE_STORE(1, to_next[0], 64);
    TILE_STORE(2, to[16], 64);
    TILE_STORE(3, to_next[16], 64);
}

/* dk or dv: 32 keys times 32 dimensions, summed over the 64 queries; a is p or ds of the keys. */
static void keys_multiply(float *to, int64_t to_bytes, char (*a)[2][TILE_BYTES], const char *down,
                          int64_t K)
{
    char *top = (char *)to, *bottom = top + 16 * to_bytes;

    TILE_LOAD(0, top, to_bytes);
    TILE_LOAD(1, top + 64, to_bytes);
    TILE_LOAD(2, bottom, to_bytes);
    TILE_LOAD(3, bottom + 64, to_bytes);
    for (int half = 0; half < 2; half++, down += K / 16 * TILE_BYTES) {
        TILE_LOAD(4, a[0][half], 64);
        TILE_LOAD(6, down, 64);
        TILE_MULTIPLY(0, 4, 6);
        TILE_LOAD(7, down + TILE_BYTES, 64);
        TILE_MULTIPLY(1, 4, 7);
        TILE_LOAD(5, a[1][half], 64);
        TILE_MULTIPLY(2, 5, 6);
        TILE_MULTIPLY(3, 5, 7);
    }
    TILE_STORE(0, top, to_bytes);
    TILE_STORE(1, top + 64, to_bytes);
    TILE_STORE(2, bottom, to_bytes);
    TILE_STORE(3, bottom + 64, to_bytes);
}

/* Add to 32 rows of dk or dv, of which n_rows exist. */
static void keys_add(const state *st, float *to, int64_t n_rows, char (*a)[2][TILE_BYTES],
                     const char *down)
{
    const int64_t K = st->args->K, stride = st->args->G * K;

    for (int64_t k = 0; k < K; k += 32, down += 2 * TILE_BYTES) {
        if (n_rows >= AMX_KEYS) {
            keys_multiply(to + k, 4 * stride, a, down, K);
            continue;
        }
        _Alignas(64) float sums[AMX_KEYS][32];
        memset(sums, 0, sizeof sums);
        for (int64_t i = 0; i < n_rows; i++) memcpy(sums[i], to + i * stride + k, sizeof sums[i]);
        keys_multiply(sums[0], sizeof sums[0], a, down, K);
        for (int64_t i = 0; i < n_rows; i++) memcpy(to + i * stride + k, sums[i], sizeof sums[i]);
    }
}

/* dq^T: 32 dimensions times 32 queries (the two tiles from group on), over the step's keys. */
static void queries_multiply(state *st, int64_t key, int n_keys, int64_t k, int group)
{
    const int64_t K = st->args->K;
    const int64_t first = key - st->task->key_tile * TILE_KEYS;
    const char *keys = st->k_turned + (first / 32 * (K / 16) + k / 16) * TILE_BYTES;

    TILE_LOAD(0, st->dq[group][k], 64);
    TILE_LOAD(1, st->dq[group + 1][k], 64);
    TILE_LOAD(2, st->dq[group][k + 16], 64);
    TILE_LOAD(3, st->dq[group + 1][k + 16], 64);
    for (int j = 0; j < n_keys / 32; j++, keys += K / 16 * TILE_BYTES) {
        TILE_LOAD(4, keys, 64);
        TILE_LOAD(6, st->ds_pairs[j][group], 64);
        TILE_MULTIPLY(0, 4, 6);
        TILE_LOAD(7, st->ds_pairs[j][group + 1], 64);
        TILE_MULTIPLY(1, 4, 7);
        TILE_LOAD(5, keys + TILE_BYTES, 64);
        TILE_MULTIPLY(2, 5, 6);
        TILE_MULTIPLY(3, 5, 7);
    }
    TILE_STORE(0, st->dq[group][k], 64);
    TILE_STORE(1, st->dq[group + 1][k], 64);
    TILE_STORE(2, st->dq[group][k + 16], 64);
    TILE_STORE(3, st->dq[group + 1][k + 16], 64);
}

/* ---- p and ds ------------------------------------------------------------------------------ */

/* What the rows of p and ds of one group of 16 queries are computed from. */
typedef struct group_terms {
    __m512 offset, delta;
    __m512i first, last;
} group_terms;

static inline group_terms group_read(const state *st, int group, int32_t key)
{
    const __m512i start = _mm512_set1_epi32(key);
    return (group_terms){_mm512_load_ps(st->offset + 16 * group),
                         _mm512_load_ps(st->delta + 16 * group),
                         _mm512_sub_epi32(_mm512_loadu_si512(st->rows.first + 16 * group), start),
                         _mm512_sub_epi32(_mm512_loadu_si512(st->rows.last + 16 * group), start)};
}

/* p and ds of 32 queries (two groups), for the step's keys. */
static inline void probabilities_write(state *st, int half, int32_t key, int n_keys, int is_masked)
{
    const __m512 scale = _mm512_set1_ps(st->args->scale);
    const __m512 scale_2 = _mm512_set1_ps(st->args->scale * LOG2_E);
    const group_terms terms[2] = {group_read(st, 2 * half, key), group_read(st, 2 * half + 1, key)};

    for (int j = 0; j < n_keys; j += 2) {
        __m512i ds_rows[2];
        for (int i = 0; i < 2; i++) {
            __m512 p[2], ds[2];
            for (int g = 0; g < 2; g++) {
                const __m512 s = _mm512_load_ps(st->s[2 * half + g][j + i]);
                const __m512 dp = _mm512_load_ps(st->dp[2 * half + g][j + i]);
                p[g] = lanes_exp2(_mm512_fmsub_ps(s, scale_2, terms[g].offset));
                ds[g] = _mm512_mul_ps(p[g], _mm512_fmsub_ps(dp, scale, terms[g].delta));
                if (!is_masked) continue;
                const __mmask16 seen = lanes_seeing(terms[g].first, terms[g].last, j + i);
                p[g] = _mm512_maskz_mov_ps(seen, p[g]);
                ds[g] = _mm512_maskz_mov_ps(seen, ds[g]);
            }
            const int tile = j / 16, at = (j % 16 + i) * 64;
            ds_rows[i] = (__m512i)_mm512_cvtne2ps_pbh(ds[1], ds[0]);
            _mm512_store_si512(st->p[tile][half] + at, (__m512i)_mm512_cvtne2ps_pbh(p[1], p[0]));
            _mm512_store_si512(st->ds[tile][half] + at, ds_rows[i]);
        }
        char(*pairs)[TILE_BYTES] = &st->ds_pairs[j / 32][2 * half];
        const int at = j % 32 / 2 * 64;
        _mm512_store_si512(pairs[0] + at, _mm512_unpacklo_epi16(ds_rows[0], ds_rows[1]));
        _mm512_store_si512(pairs[1] + at, _mm512_unpackhi_epi16(ds_rows[0], ds_rows[1]));
    }
}

static void probabilities_write_masked(state *st, int half, int32_t key, int n_keys)
{
    probabilities_write(st, half, key, n_keys, 1);
}

static void probabilities_write_full(state *st, int half, int32_t key, int n_keys)
{
    probabilities_write(st, half, key, n_keys, 0);
}

/* ---- a query tile -------------------------------------------------------------------------- */

/* Two B operands for each 32 rows, terms down the rows: to[row / 32][K / 16]. */
static void rows_pack_down(char *to, const uint16_t *from, int64_t stride, int64_t n_rows,
                           int64_t K)
{
    for (int64_t row = 0; row < LS_ATTENTION_QUERY_TILE; row += 32)
        for (int64_t k = 0; k < K; k += 32, to += 2 * TILE_BYTES)
            tiles_pack_interleaved(to, from + (n_rows > row ? row * stride : 0) + k, stride, 32,
                                   n_rows - row);
}

static void query_tile_read(state *st, int64_t head, int64_t tile)
{
    const ls_attention_backward_args *args = st->args;
    const ls_attention_shape shape = ls_attention_backward_shape(args);
    const int64_t stride = args->H * args->K, K = args->K;

    st->head = head;
    st->row = tile * LS_ATTENTION_QUERY_TILE;
    ls_attention_rows_read(&st->rows, &shape, st->row);
    const int64_t at = st->row * args->H + head;
    const uint16_t *q = (const uint16_t *)args->q + at * K;
    const uint16_t *d_o = (const uint16_t *)args->d_o + at * K;
    rows_pack_across(st->q_across, q, stride, st->rows.n_rows, K);
    rows_pack_down(st->q_down, q, stride, st->rows.n_rows, K);
    rows_pack_across(st->d_o_across, d_o, stride, st->rows.n_rows, K);
    rows_pack_down(st->d_o_down, d_o, stride, st->rows.n_rows, K);
    for (int i = 0; i < LS_ATTENTION_QUERY_TILE; i++) {
        const int is_there = i < st->rows.n_rows;
        const float lse = is_there ? args->lse[at + i * args->H] : 0.0f;
        st->offset[i] = lse > -INFINITY ? lse * LOG2_E : 1e30f; /* p = 0 */
        st->delta[i] = is_there ? args->delta[at + i * args->H] * args->scale : 0.0f;
    }
    for (int group = 0; group < AMX_GROUPS; group++)
        memset(st->dq[group], 0, (size_t)K * sizeof st->dq[group][0]);
}

static void step_run(state *st, int32_t key, int n_keys)
{
    const ls_attention_backward_args *args = st->args;
    const int64_t K = args->K, at = (key * args->G + st->task->group) * K;
    const int is_full = key >= st->rows.first_max && key + n_keys - 1 <= st->rows.last_min;

    for (int half = 0; half < 2; half++) {
        const int64_t pack = half * 2 * (K / 32) * TILE_BYTES;
        for (int j = 0; j < n_keys; j += 32) {
            scores_multiply(st->s[2 * half] + j, st->s[2 * half + 1] + j,
                            rows_at(st, args->k, st->k_tail, key + j), st->q_across + pack, K);
            scores_multiply(st->dp[2 * half] + j, st->dp[2 * half + 1] + j,
                            rows_at(st, args->v, st->v_tail, key + j), st->d_o_across + pack, K);
        }
    }
    for (int half = 0; half < 2; half++)
        (is_full ? probabilities_write_full : probabilities_write_masked)(st, half, key, n_keys);
    for (int j = 0; j < n_keys; j += 32) {
        const int64_t offset = at + j * args->G * K, n_rows = args->M - key - j;
        keys_add(st, args->dv + offset, n_rows, st->p + j / 16, st->d_o_down);
        keys_add(st, args->dk + offset, n_rows, st->ds + j / 16, st->q_down);
    }
    for (int64_t k = 0; k < K; k += 32)
        for (int group = 0; group < AMX_GROUPS; group += 2)
            queries_multiply(st, key, n_keys, k, group);
}

/* dq += the tile's sum: the caller has the turn. */
static void queries_add(const state *st)
{
    const ls_attention_backward_args *args = st->args;

    for (int group = 0; group < AMX_GROUPS; group++)
        for (int64_t k = 0; k < args->K; k += 16) {
            __m512i rows[16];
            for (int i = 0; i < 16; i++) rows[i] = _mm512_load_si512(st->dq[group][k + i]);
            lanes_transpose(rows);
            for (int i = 0; i < 16; i++) {
                const int row = group / 2 * 32 + i / 4 * 8 + group % 2 * 4 + i % 4;
                if (row >= st->rows.n_rows) continue;
                float *to = args->dq + ((st->row + row) * args->H + st->head) * args->K + k;
                _mm512_storeu_ps(to,
                                 _mm512_add_ps(_mm512_loadu_ps(to), _mm512_castsi512_ps(rows[i])));
            }
        }
}

/* ---- a task -------------------------------------------------------------------------------- */

static void key_tile_read(state *st)
{
    const ls_attention_backward_args *args = st->args;
    const int64_t stride = args->G * args->K, group = st->task->group;
    const int64_t tail = args->M / AMX_KEYS * AMX_KEYS;
    int64_t key = st->task->key_tile * TILE_KEYS;
    char *to = st->k_turned;

    for (int64_t end = key + TILE_KEYS; key < end && key < args->M; key += AMX_KEYS) {
        const uint16_t *from = (const uint16_t *)args->k + (key * args->G + group) * args->K;
        for (int64_t k = 0; k < args->K; k += 32, to += 2 * TILE_BYTES)
            tiles_pack_turned(to, from + k, stride, 32, args->M - key);
        if (key != tail) continue;
        const uint16_t *v = (const uint16_t *)args->v + (key * args->G + group) * args->K;
        rows_pad(st->k_tail, from, stride, args->M - tail, args->K);
        rows_pad(st->v_tail, v, stride, args->M - tail, args->K);
    }
}

static void query_tile_run(state *st)
{
    const int32_t start = (int32_t)(st->task->key_tile * TILE_KEYS), end = start + TILE_KEYS;
    const int32_t first = st->rows.first_min / AMX_KEYS * AMX_KEYS;
    const int32_t last = (st->rows.last_max / AMX_KEYS + 1) * AMX_KEYS;
    const int32_t stop = last < end ? last : end;

    for (int32_t key = first > start ? first : start; key < stop; key += STEP_KEYS)
        step_run(st, key, stop - key < STEP_KEYS ? stop - key : STEP_KEYS);
}

void ls_attention_amx_backward(const ls_attention_backward_task *task)
{
    const ls_attention_backward_args *args = task->plan->args;
    const int64_t per_group = args->H / args->G, n_tiles = task->plan->n_query_tiles;
    state st;

    assert(args->K <= AMX_WIDTH_MOST);
    st.task = task;
    st.args = args;
    tiles_configure();
    key_tile_read(&st);
    for (int64_t head = task->group * per_group; head < (task->group + 1) * per_group; head++) {
        int64_t tile = ls_attention_query_tile_next(task, 0);
        for (; tile < n_tiles; tile = ls_attention_query_tile_next(task, tile + 1)) {
            query_tile_read(&st, head, tile);
            query_tile_run(&st);
            ls_attention_turn_wait(task, head, tile);
            queries_add(&st);
            ls_attention_turn_pass(task, head, tile);
        }
    }
    tiles_release();
}
