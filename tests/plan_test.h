/*
 * plan_test.h - what the tests of the plan share: decoders small enough to look at every step of,
 * and a model of the order that has nothing in common with the checker.
 *
 * The model unrolls a succession of segments into one graph and asks what is reachable:
 *
 *     step a  ->  step b of the same lane, the next one, in whichever segment it is
 *     step a  ->  step b that waits for a
 *     step a  ->  step b that waits for a carry which a, of all steps before that segment, ended
 * last
 *
 * How long must a succession be?  Leave out a segment that lies between two others: lane order runs
 * through the gap, and a carry is then the work of an earlier step of the same lane, so what is
 * ordered now was ordered before.  Hence two accesses that nothing orders stay so when every detour
 * between their segments is left out, and what remains meets each kind once, the first at most
 * twice.  Where any segment may follow, as now, two segments are enough.
 *
 * Layer: tests.  Header only.
 */
#ifndef LS_PLAN_TEST_H
#define LS_PLAN_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "decoder.h"
#include "plan.h"
#include "rng.h"

#define COUNT_OF(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

/* ---- decoders ------------------------------------------------------------------------------ */

/* Grouped heads, two micro-batches; every size uneven, so that the last chunk, block and tile are
 * shorter than the others. */
static inline ls_decoder_options grouped_options(void)
{
    return (ls_decoder_options){
        .shape = {.V = 37, .D = 16, .F = 24, .L = 2, .H = 4, .G = 2, .K = 8, .eps = 1e-5f},
        .dtype = LS_DTYPE_BF16,
        .S = 12,
        .sequences = 2,
        .accumulate = 2,
        .chunk = 5,
        .query_block = 10,
        .key_block = 7,
        .loss_rows = 7,
        .train = true,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .adam_eps = 1e-8f,
        .weight_decay = 0.1f,
        .clip_norm = 1.0f};
}

/* All heads alike, the head's weight is the embedding's, fp32, keys block by block. */
static inline ls_decoder_options tied_options(void)
{
    ls_decoder_options options = grouped_options();
    options.shape.G = options.shape.H;
    options.shape.tied = true;
    options.dtype = LS_DTYPE_F32;
    options.accumulate = 1;
    options.key_block = 5;
    return options;
}

/* Nothing of attention is computed twice; three micro-batches. */
static inline ls_decoder_options saved_options(void)
{
    ls_decoder_options options = grouped_options();
    options.shape.L = 3;
    options.accumulate = 3;
    options.key_block = 0;
    options.save_o = options.save_qkv = true;
    return options;
}

/* placement: NULL: all in host memory */
static inline void build_placed_plan(const ls_decoder_options *options,
                                     const ls_placement *placement, ls_decoder *decoder,
                                     ls_plan *plan)
{
    assert_int_equal(ls_decoder_build(options, decoder), LS_OK);
    assert_int_equal(ls_plan_lower(&decoder->tape, placement, &ls_ops_cpu, plan), LS_OK);
}

static inline void build_plan(const ls_decoder_options *options, ls_decoder *decoder, ls_plan *plan)
{
    build_placed_plan(options, NULL, decoder, plan);
}

/* ---- chance -------------------------------------------------------------------------------- */

/* Throws of a seed: the same numbers in the same order, whatever is drawn with them. */
typedef struct dice {
    uint64_t seed, thrown;
} dice;

static inline int64_t below(dice *d, int64_t n)
{
    return (int64_t)ls_rng_below(d->seed, 0, d->thrown++, (uint64_t)n);
}

static inline bool chance(dice *d, int64_t percent)
{
    return below(d, 100) < percent;
}

/* ---- waits --------------------------------------------------------------------------------- */

/* Take a wait out of its step and out of the plan's list. */
static inline void remove_wait(ls_plan *plan, int64_t wait)
{
    memmove(&plan->waits[wait], &plan->waits[wait + 1],
            (size_t)(plan->n_waits - wait - 1) * sizeof *plan->waits);
    plan->n_waits--;
    for (int64_t s = 0; s < plan->n_steps; s++) {
        ls_step *step = &plan->steps[s];
        if (wait >= step->first_wait && wait < step->first_wait + step->n_waits)
            step->n_waits--;
        else if (step->first_wait > wait)
            step->first_wait--;
    }
}

/* ---- the model of the order ---------------------------------------------------------------- */

enum { SUCCESSION_MAX = 6 };

typedef struct order_model {
    const ls_plan *plan;
    int64_t *first_conflict; /* [n_steps + 1] into conflicts */
    int64_t *conflicts;      /* steps of other lanes that touch the same bytes, one side writing */
    int longest;             /* successions have at most so many segments */
    int64_t without;         /* a wait that is left out, -1: none */
    int64_t only_earlier, only_later; /* look at no other two steps; -1: at all */

    int length; /* of the succession at hand */
    ls_segment_kind kinds[SUCCESSION_MAX];
    int64_t first_node[SUCCESSION_MAX + 1]; /* a node is a step of one segment of the succession */
    int64_t lane_last[SUCCESSION_MAX + 1][LS_LANE_COUNT]; /* node before segment i; -1: none */
    int64_t n_words;
    uint64_t *before; /* [nodes, n_words] the nodes that each node comes after, and itself */

    int64_t earlier, later; /* the two steps of the race that was found */
    bool same_segment;      /* they ran in one and the same segment of the succession */
} order_model;

static inline bool steps_conflict(const ls_plan *plan, int64_t a, int64_t b)
{
    const ls_step *x = &plan->steps[a], *y = &plan->steps[b];
    if (x->lane == y->lane) return false;
    for (int32_t i = 0; i < x->n_operands; i++)
        for (int32_t j = 0; j < y->n_operands; j++) {
            const ls_step_operand *p = &plan->operands[x->first_operand + i];
            const ls_step_operand *q = &plan->operands[y->first_operand + j];
            if (p->tensor < 0 || q->tensor < 0 || p->span.arena != q->span.arena) continue;
            if (p->access == LS_ACCESS_NONE || q->access == LS_ACCESS_NONE) continue;
            if (!((p->access | q->access) & LS_ACCESS_WRITE)) continue;
            if (p->span.offset < q->span.offset + q->span.bytes &&
                q->span.offset < p->span.offset + p->span.bytes)
                return true;
        }
    return false;
}

static inline void list_conflicts(order_model *m)
{
    const int64_t n_steps = m->plan->n_steps;
    int64_t n = 0, capacity = 64;

    m->first_conflict = malloc((size_t)(n_steps + 1) * sizeof *m->first_conflict);
    m->conflicts = malloc((size_t)capacity * sizeof *m->conflicts);
    for (int64_t b = 0; b < n_steps; b++) {
        m->first_conflict[b] = n;
        for (int64_t a = 0; a < n_steps; a++) {
            if (!steps_conflict(m->plan, a, b)) continue;
            if (n == capacity) {
                capacity *= 2;
                m->conflicts = realloc(m->conflicts, (size_t)capacity * sizeof *m->conflicts);
            }
            m->conflicts[n++] = a;
        }
    }
    m->first_conflict[n_steps] = n;
}

/* Waits and carries of the plan may change while the model is open; steps and spans may not. */
static inline order_model open_order_model(const ls_plan *plan, int longest)
{
    order_model m = {
        .plan = plan, .longest = longest, .without = -1, .only_earlier = -1, .only_later = -1};
    int64_t largest = 0;

    assert_true(longest <= SUCCESSION_MAX);
    for (int s = 0; s < LS_SEGMENT_COUNT; s++)
        if (plan->segment_steps[s] > largest) largest = plan->segment_steps[s];
    m.n_words = (largest * longest + 63) / 64;
    m.before = malloc((size_t)(largest * longest * m.n_words + 1) * sizeof *m.before);
    list_conflicts(&m);
    return m;
}

static inline void close_order_model(order_model *m)
{
    free(m->first_conflict);
    free(m->conflicts);
    free(m->before);
}

static inline int64_t node_of(const order_model *m, int place, int64_t step)
{
    return m->first_node[place] + step - m->plan->segment_first[m->kinds[place]];
}

static inline bool comes_before(const order_model *m, int64_t earlier, int64_t later)
{
    return (m->before[later * m->n_words + earlier / 64] >> (earlier % 64)) & 1u;
}

static inline void follow(order_model *m, int64_t node, int64_t other)
{
    for (int64_t w = 0; w < m->n_words; w++)
        m->before[node * m->n_words + w] |= m->before[other * m->n_words + w];
}

/* The node that ended a carry last before the segment at this place; -1: none has. */
static inline int64_t find_carry_end(const order_model *m, int place, int64_t carry)
{
    for (int p = place - 1; p >= 0; p--) {
        const int64_t end = m->plan->carries[carry].ends[m->kinds[p]];
        if (end >= 0) return node_of(m, p, end);
    }
    return -1;
}

/* Add the edges of the last segment of the succession. */
static inline void unroll_last(order_model *m)
{
    const int place = m->length - 1;
    const int64_t first = m->plan->segment_first[m->kinds[place]];
    const int64_t n = m->plan->segment_steps[m->kinds[place]];
    int64_t *last = m->lane_last[place + 1];

    m->first_node[place + 1] = m->first_node[place] + n;
    memcpy(last, m->lane_last[place], sizeof m->lane_last[place]);
    for (int64_t s = first; s < first + n; s++) {
        const ls_step *step = &m->plan->steps[s];
        const int64_t node = node_of(m, place, s);
        memset(&m->before[node * m->n_words], 0, (size_t)m->n_words * sizeof *m->before);
        m->before[node * m->n_words + node / 64] |= (uint64_t)1 << (node % 64);
        if (last[step->lane] >= 0) follow(m, node, last[step->lane]);
        last[step->lane] = node;
        for (int64_t w = step->first_wait; w < step->first_wait + step->n_waits; w++) {
            const int64_t wait = m->plan->waits[w];
            const int64_t other = ls_wait_is_carry(wait)
                                      ? find_carry_end(m, place, ls_wait_carry(wait))
                                      : node_of(m, place, wait);
            if (w != m->without && other >= 0) follow(m, node, other);
        }
    }
}

/* Two conflicting steps without a path between them, the later one in the last segment. */
static inline bool last_races(order_model *m)
{
    const int place = m->length - 1;
    const int64_t first = m->plan->segment_first[m->kinds[place]];
    const int64_t end = first + m->plan->segment_steps[m->kinds[place]];

    for (int64_t b = first; b < end; b++)
        for (int64_t i = m->first_conflict[b]; i < m->first_conflict[b + 1]; i++) {
            const int64_t a = m->conflicts[i];
            if (m->only_earlier >= 0 && (a != m->only_earlier || b != m->only_later)) continue;
            for (int p = 0; p <= place; p++) {
                const int64_t a_first = m->plan->segment_first[m->kinds[p]];
                if (a < a_first || a >= a_first + m->plan->segment_steps[m->kinds[p]]) continue;
                if (p == place && a >= b) continue;
                if (comes_before(m, node_of(m, p, a), node_of(m, place, b))) continue;
                m->earlier = a;
                m->later = b;
                m->same_segment = p == place;
                return true;
            }
        }
    return false;
}

/* Whether some allowed succession that begins with the one at hand has a race. */
static inline bool some_succession_races(order_model *m)
{
    if (m->length > 0) {
        unroll_last(m);
        if (last_races(m)) return true;
    }
    if (m->length == m->longest) return false;
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        const ls_segment_kind next = (ls_segment_kind)s;
        if (m->plan->segment_steps[s] == 0) continue;
        if (m->length > 0 && !ls_segment_follows(m->kinds[m->length - 1], next)) continue;
        m->kinds[m->length++] = next;
        const bool races = some_succession_races(m);
        m->length--;
        if (races) return true;
    }
    return false;
}

/* Whether a race is possible without this wait (-1: with all of them). */
static inline bool find_race(order_model *m, int64_t without)
{
    m->without = without;
    m->length = 0;
    m->first_node[0] = 0;
    for (int lane = 0; lane < LS_LANE_COUNT; lane++) m->lane_last[0][lane] = -1;
    const bool races = some_succession_races(m);
    m->without = -1;
    return races;
}

/* Whether these two steps may race, in this order. */
static inline bool two_steps_race(order_model *m, int64_t earlier, int64_t later)
{
    m->only_earlier = earlier;
    m->only_later = later;
    const bool races = find_race(m, -1);
    m->only_earlier = m->only_later = -1;
    return races;
}

/* A wait without which nothing races; -1: none. */
static inline int64_t find_spare_wait(order_model *m)
{
    for (int64_t w = 0; w < m->plan->n_waits; w++)
        if (!find_race(m, w)) return w;
    return -1;
}

/* ---- what the checker says ----------------------------------------------------------------- */

typedef enum verdict { VERDICT_OK = 0, VERDICT_RACE, VERDICT_SPARE, VERDICT_COUNT } verdict;

/* The checker's verdict on the order; any other message fails the test. */
static inline verdict check_verdict(const ls_plan *plan)
{
    const ls_status status = ls_plan_check(plan, NULL);
    if (status == LS_OK) return VERDICT_OK;
    assert_int_equal(status, LS_ERR_INVALID);
    if (strncmp(ls_error(), "plan: race: ", strlen("plan: race: ")) == 0) return VERDICT_RACE;
    if (strncmp(ls_error(), "plan: spare wait: ", strlen("plan: spare wait: ")) == 0)
        return VERDICT_SPARE;
    fail_msg("%s", ls_error());
    return VERDICT_COUNT;
}

/* The nth number that follows the word "step " or "carry " in the checker's message; -1: none. */
static inline int64_t number_in_error(const char *word, int nth)
{
    for (const char *at = strstr(ls_error(), word); at != NULL; at = strstr(at, word)) {
        at += strlen(word);
        if (*at >= '0' && *at <= '9' && nth-- == 0) return strtoll(at, NULL, 10);
    }
    return -1;
}

/* The two steps that the checker says race can do so. */
static inline bool race_is_named_rightly(order_model *m)
{
    const int64_t earlier = number_in_error("step ", 0), later = number_in_error("step ", 1);
    return earlier >= 0 && later >= 0 && two_steps_race(m, earlier, later);
}

/* The wait that the checker calls spare can be left out. */
static inline bool spare_is_named_rightly(order_model *m)
{
    const int64_t step = number_in_error("step ", 0), carry = number_in_error("carry ", 0);
    const int64_t wait = carry >= 0 ? ls_wait_carry(carry) : number_in_error("step ", 1);
    const ls_step *s = &m->plan->steps[step];

    for (int64_t w = s->first_wait; w < s->first_wait + s->n_waits; w++)
        if (m->plan->waits[w] == wait) return !find_race(m, w);
    return false;
}

#endif
