/*
 * attention_amx_forward.c - attention forward on AMX tiles, for bf16 and K a multiple of 32.
 *
 * Per 64 queries and 128 keys:  s^T = k q^T,  p = 2^(s - m) in vectors of 16 queries,
 * o^T += v^T p^T.  v^T is laid out once per call, in the workspace.  The running maximum m is
 * raised, and o rescaled, only when scores exceed it by more than 2^8: the factor cancels in o / l
 * and costs fp32 nothing.  p is rounded to bf16 for its product; its sum l is not.
 *
 * 4 K FLOPs a pair on the matrix unit (64 cycles for 16 x 16 pairs at K = 64), and some 14 vector
 * instructions for 16 pairs (110 cycles): bound by the exponentials.
 */
#include "attention_amx.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "bf16.h"
#include "cpu_features.h"

enum { STEP_KEYS = 128 };

typedef struct state {
    const ls_attention_forward_args *args;
    const ls_attention_rows *rows;
    int64_t head, row, group; /* group: key/value head */
    __m512 m[AMX_GROUPS], l[AMX_GROUPS];
    _Alignas(64) float s[AMX_GROUPS][STEP_KEYS][16];             /* s^T */
    _Alignas(64) float o[AMX_GROUPS][AMX_WIDTH_MOST][16];        /* o^T, not yet divided by l */
    _Alignas(64) char p[AMX_GROUPS][STEP_KEYS / 32][TILE_BYTES]; /* p^T, pairs of keys */
    _Alignas(64) char q[AMX_GROUPS * AMX_WIDTH_MOST / 32 * TILE_BYTES];
    _Alignas(64) uint16_t k_tail[AMX_KEYS * AMX_WIDTH_MOST];
} state;

/* ---- values, transposed once per call ------------------------------------------------------ */

static int64_t key_groups(int64_t M)
{
    return (M + LS_ATTENTION_KEY_TILE - 1) / LS_ATTENTION_KEY_TILE *
           (LS_ATTENTION_KEY_TILE / AMX_KEYS);
}

uint64_t ls_attention_amx_forward_bytes(const ls_attention_forward_args *args)
{
    return (uint64_t)(args->G * key_groups(args->M) * args->K * AMX_KEYS * 2) + 64;
}

/* v^T of 32 keys: [K / 16][TILE_BYTES]. */
static char *values_at(const ls_attention_forward_args *args, int64_t group, int64_t key)
{
    char *start = (char *)args->workspace + (64 - (uintptr_t)args->workspace % 64) % 64;
    return start + (group * key_groups(args->M) + key / AMX_KEYS) * args->K * AMX_KEYS * 2;
}

void ls_attention_amx_forward_prepare(const ls_attention_forward_args *args, int64_t group,
                                      int64_t key_tile)
{
    const int64_t stride = args->G * args->K;
    int64_t key = key_tile * LS_ATTENTION_KEY_TILE;

    for (int64_t end = key + LS_ATTENTION_KEY_TILE; key < end && key < args->M; key += AMX_KEYS) {
        char *to = values_at(args, group, key);
        const uint16_t *from = (const uint16_t *)args->v + (key * args->G + group) * args->K;
        for (int64_t k = 0; k < args->K; k += 32, to += 2 * TILE_BYTES)
            tiles_pack_turned(to, from + k, stride, 32, args->M - key);
    }
}

/* ---- products ------------------------------------------------------------------------------ */

static key_rows keys_at(const state *st, int64_t key)
{
    const ls_attention_forward_args *args = st->args;
    if (key + AMX_KEYS > args->M) return (key_rows){(const char *)st->k_tail, 2 * args->K};
    return (key_rows){(const char *)args->k + 2 * (key * args->G + st->group) * args->K,
                      2 * args->G * args->K};
}

/* s^T of the 32 keys from key on, for query groups pair and pair + 1; at row j of the step. */
static void scores_multiply(state *st, int64_t key, int64_t j, int pair)
{
    const int64_t K = st->args->K;
    const key_rows keys = keys_at(st, key);
    const char *q = st->q + pair * K / 32 * TILE_BYTES, *at = keys.at;

    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t k = 0; k < K; k += TILE_TERMS, at += 64, q += TILE_BYTES) {
        TILE_LOAD(4, at, keys.row_bytes);
        TILE_LOAD(6, q, 64);
        TILE_MULTIPLY(0, 4, 6);
        TILE_LOAD(7, q + K / 32 * TILE_BYTES, 64);
        TILE_MULTIPLY(1, 4, 7);
        TILE_LOAD(5, at + 16 * keys.row_bytes, keys.row_bytes);
        TILE_MULTIPLY(2, 5, 6);
        TILE_MULTIPLY(3, 5, 7);
    }
    TILE_STORE(0, st->s[pair][j], 64);
    TILE_STORE(1, st->s[pair + 1][j], 64);
    TILE_STORE(2, st->s[pair][j + 16], 64);
    TILE_STORE(3, st->s[pair + 1][j + 16], 64);
}

/* o^T += v^T p^T for 32 dimensions and two query groups, over the step's n_keys. */
static void values_multiply(state *st, int64_t key, int n_keys, int64_t k, int pair)
{
    const int64_t K = st->args->K;
    const char *v = values_at(st->args, st->group, key) + k / 16 * TILE_BYTES;

    TILE_LOAD(0, st->o[pair][k], 64);
    TILE_LOAD(1, st->o[pair + 1][k], 64);
    TILE_LOAD(2, st->o[pair][k + 16], 64);
    TILE_LOAD(3, st->o[pair + 1][k + 16], 64);
    for (int j = 0; j < n_keys / AMX_KEYS; j++, v += K / 16 * TILE_BYTES) {
        TILE_LOAD(4, v, 64);
        TILE_LOAD(6, st->p[pair][j], 64);
        TILE_MULTIPLY(0, 4, 6);
        TILE_LOAD(7, st->p[pair + 1][j], 64);
        TILE_MULTIPLY(1, 4, 7);
        TILE_LOAD(5, v + TILE_BYTES, 64);
        TILE_MULTIPLY(2, 5, 6);
        TILE_MULTIPLY(3, 5, 7);
    }
    TILE_STORE(0, st->o[pair][k], 64);
    TILE_STORE(1, st->o[pair + 1][k], 64);
    TILE_STORE(2, st->o[pair][k + 16], 64);
    TILE_STORE(3, st->o[pair + 1][k + 16], 64);
}

/* ---- softmax ------------------------------------------------------------------------------- */

/* The largest score of each query among the step's keys it sees; -inf if none. */
static inline __m512 lanes_most(const float (*s)[16], int n_keys, int is_masked, __m512i first,
                                __m512i last)
{
    __m512 most[4];
    for (int i = 0; i < 4; i++) most[i] = _mm512_set1_ps(-INFINITY);
    for (int j = 0; j < n_keys; j += 4)
        for (int i = 0; i < 4; i++) {
            const __m512 x = _mm512_load_ps(s[j + i]);
            const __mmask16 seen = is_masked ? lanes_seeing(first, last, j + i) : 0xffff;
            most[i] = _mm512_mask_max_ps(most[i], seen, most[i], x);
        }
    return _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3]));
}

/* Raise the maximum of a group to at least `most`, and rescale what was summed under the old. */
static void maximum_raise(state *st, int group, __m512 most)
{
    const __m512 raised = _mm512_max_ps(st->m[group], most);
    const __m512 factor = lanes_exp2(_mm512_sub_ps(st->m[group], raised));
    st->m[group] = raised;
    st->l[group] = _mm512_mul_ps(st->l[group], factor);
    for (int64_t k = 0; k < st->args->K; k++)
        _mm512_store_ps(st->o[group][k], _mm512_mul_ps(_mm512_load_ps(st->o[group][k]), factor));
}

/* p^T of one query group, in pairs of keys, and its sum. */
static inline void group_soften(state *st, int group, int32_t key, int n_keys, int is_masked)
{
    const __m512i half = _mm512_set1_epi32(0x8000), start = _mm512_set1_epi32(key);
    const __m512i first = _mm512_sub_epi32(_mm512_loadu_si512(st->rows->first + group * 16), start);
    const __m512i last = _mm512_sub_epi32(_mm512_loadu_si512(st->rows->last + group * 16), start);
    const __m512 scale = _mm512_set1_ps(st->args->scale * LOG2_E), slack = _mm512_set1_ps(8.0f);
    const float(*s)[16] = (const float(*)[16])st->s[group];
    const __m512 most = _mm512_mul_ps(lanes_most(s, n_keys, is_masked, first, last), scale);
    if (_mm512_cmp_ps_mask(most, _mm512_add_ps(st->m[group], slack), _CMP_GT_OQ))
        maximum_raise(st, group, most);

    const __m512 m = st->m[group];
    __m512 sum[2] = {st->l[group], _mm512_setzero_ps()};
    char *to = st->p[group][0];
    for (int j = 0; j < n_keys; j += 2, to += 64) {
        __m512i bits[2];
        for (int i = 0; i < 2; i++) {
            __m512 p = lanes_exp2(_mm512_fmsub_ps(_mm512_load_ps(s[j + i]), scale, m));
            if (is_masked) p = _mm512_maskz_mov_ps(lanes_seeing(first, last, j + i), p);
            sum[i] = _mm512_add_ps(sum[i], p);
            bits[i] = _mm512_add_epi32(_mm512_castps_si512(p), half); /* rounds the upper half */
        }
        _mm512_store_si512(
            to, _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(bits[0], 16), bits[1]));
    }
    st->l[group] = _mm512_add_ps(sum[0], sum[1]);
}

static void group_soften_masked(state *st, int group, int32_t key, int n_keys)
{
    group_soften(st, group, key, n_keys, 1);
}

static void group_soften_full(state *st, int group, int32_t key, int n_keys)
{
    group_soften(st, group, key, n_keys, 0);
}

/* ---- a task -------------------------------------------------------------------------------- */

static void state_start(state *st)
{
    const ls_attention_forward_args *args = st->args;
    const int64_t stride = args->H * args->K, tail = args->M / AMX_KEYS * AMX_KEYS;
    const int64_t at = st->row * args->H + st->head;

    rows_pack_across(st->q, (const uint16_t *)args->q + at * args->K, stride, st->rows->n_rows,
                     args->K);
    if (tail < args->M)
        rows_pad(st->k_tail, (const uint16_t *)args->k + (tail * args->G + st->group) * args->K,
                 args->G * args->K, args->M - tail, args->K);
    for (int group = 0; group < AMX_GROUPS; group++) {
        float m[16], l[16];
        memset(st->o[group], 0, (size_t)args->K * sizeof st->o[group][0]);
        for (int i = 0; i < 16; i++) {
            const int64_t n = group * 16 + i;
            const int is_there =
                args->accumulate && n < st->rows->n_rows && args->lse[at + n * args->H] > -INFINITY;
            m[i] = is_there ? args->lse[at + n * args->H] * LOG2_E : -1e30f;
            l[i] = is_there ? 1.0f : 0.0f;
            if (is_there)
                for (int64_t k = 0; k < args->K; k++)
                    st->o[group][k][i] = args->o_acc[(at + n * args->H) * args->K + k];
        }
        st->m[group] = _mm512_loadu_ps(m);
        st->l[group] = _mm512_loadu_ps(l);
    }
}

/* Write up to 16 rows of 16 dimensions. */
static void square_write(const ls_attention_forward_args *args, int64_t at, int n_rows,
                         const __m512i columns[16])
{
    __m512i rows[16];
    for (int i = 0; i < 16; i++) rows[i] = columns[i];
    lanes_transpose(rows);
    for (int i = 0; i < n_rows; i++, at += args->H * args->K) {
        const __m512 x = _mm512_castsi512_ps(rows[i]);
        if (args->o_acc != NULL) _mm512_storeu_ps(args->o_acc + at, x);
        if (args->last)
            _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)args->o + at),
                                (__m256i)_mm512_cvtneps_pbh(x));
    }
}

static void group_finish(const state *st, int group)
{
    const ls_attention_forward_args *args = st->args;
    const int64_t left = st->rows->n_rows - group * 16, n_rows = left < 16 ? left : 16;
    const int64_t at = (st->row + group * 16) * args->H + st->head;
    const __mmask16 seen = _mm512_cmp_ps_mask(st->l[group], _mm512_setzero_ps(), _CMP_GT_OQ);
    const __m512 weight = _mm512_maskz_div_ps(seen, _mm512_set1_ps(1.0f), st->l[group]);
    float m[16], l[16];

    _mm512_storeu_ps(m, st->m[group]);
    _mm512_storeu_ps(l, st->l[group]);
    for (int64_t i = 0; i < n_rows; i++)
        args->lse[at + i * args->H] = l[i] > 0.0f ? m[i] * LN_2 + logf(l[i]) : -INFINITY;
    for (int64_t k = 0; k < args->K; k += 16) {
        __m512i columns[16];
        for (int i = 0; i < 16; i++)
            columns[i] =
                _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(st->o[group][k + i]), weight));
        square_write(args, at * args->K + k, (int)n_rows, columns);
    }
}

void ls_attention_amx_forward(const ls_attention_forward_task *task, int n_tasks)
{
    const ls_attention_forward_args *args = task->args;
    state st;
    const int32_t end = task->rows->last_max + 1;

    assert(args->K <= AMX_WIDTH_MOST && n_tasks == 1);
    st.args = args;
    st.rows = task->rows;
    st.head = task->head;
    st.row = task->row;
    st.group = task->head / (args->H / args->G);
    tiles_configure();
    state_start(&st);
    for (int32_t key = task->rows->first_min / AMX_KEYS * AMX_KEYS; key < end; key += STEP_KEYS) {
        const int left = (end - key + AMX_KEYS - 1) / AMX_KEYS * AMX_KEYS;
        const int n_keys = left < STEP_KEYS ? left : STEP_KEYS;
        const int is_full =
            key >= task->rows->first_max && key + n_keys - 1 <= task->rows->last_min;
        for (int j = 0; j < n_keys; j += AMX_KEYS)
            for (int pair = 0; pair < AMX_GROUPS; pair += 2) scores_multiply(&st, key + j, j, pair);
        for (int group = 0; group < AMX_GROUPS; group++)
            (is_full ? group_soften_full : group_soften_masked)(&st, group, key, n_keys);
        for (int pair = 0; pair < AMX_GROUPS; pair += 2)
            for (int64_t k = 0; k < args->K; k += 32) values_multiply(&st, key, n_keys, k, pair);
    }
    for (int group = 0; group < AMX_GROUPS && group * 16 < task->rows->n_rows; group++)
        group_finish(&st, group);
    tiles_release();
}
