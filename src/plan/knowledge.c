/* knowledge.c - what steps know, and what carries imply over all successions of segments. */
#include "knowledge.h"

#include <stdlib.h>
#include <string.h>

static void add_all(const ls_knowledge *k, ls_carry_word *set, const ls_carry_word *others)
{
    for (int64_t w = 0; w < k->n_words; w++) set[w] |= others[w];
}

static bool have_all(const ls_knowledge *k, const ls_carry_word *set, const ls_carry_word *others)
{
    for (int64_t w = 0; w < k->n_words; w++)
        if (others[w] & ~set[w]) return false;
    return true;
}

void ls_knowledge_start_segment(ls_knowledge *k)
{
    k->n_sets = 0;
    k->own_set_step = -1;
    for (int lane = 0; lane < LS_LANE_COUNT; lane++) k->lane_last[lane] = -1;
}

/* ---- steps --------------------------------------------------------------------------------- */

/* A set for a step alone, that begins as this one; NULL: empty. */
static ls_carry_word *give_set(ls_knowledge *k, int64_t index, const ls_carry_word *as)
{
    ls_carry_word *set = &k->known[k->n_sets * k->n_words];
    const size_t bytes = (size_t)k->n_words * sizeof *set;

    if (as != NULL)
        memcpy(set, as, bytes);
    else
        memset(set, 0, bytes);
    k->set_of[index] = k->n_sets++;
    k->own_set_step = index;
    return set;
}

/* The step's own set; until it knows more than the step before it has that one's. */
static ls_carry_word *own_set(ls_knowledge *k, int64_t index)
{
    ls_carry_word *set = &k->known[k->set_of[index] * k->n_words];
    return k->own_set_step == index ? set : give_set(k, index, set);
}

static void learn_carries(ls_knowledge *k, int64_t index, const ls_carry_word *others)
{
    if (!have_all(k, ls_known_at(k, index), others)) add_all(k, own_set(k, index), others);
}

void ls_knowledge_learn_step(ls_knowledge *k, int64_t index, int64_t from)
{
    int64_t *clock = ls_clock_at(k, index);
    const int64_t *other = ls_clock_at(k, from);

    for (int lane = 0; lane < LS_LANE_COUNT; lane++)
        if (other[lane] > clock[lane]) clock[lane] = other[lane];
    if (k->set_of[from] != k->set_of[index]) learn_carries(k, index, ls_known_at(k, from));
}

void ls_knowledge_start_step(ls_knowledge *k, ls_segment_kind segment, int64_t index)
{
    const ls_lane lane = k->plan->steps[index].lane;
    const int64_t previous = k->lane_last[lane];
    int64_t *clock = ls_clock_at(k, index);

    k->own_set_step = -1;
    if (previous >= 0) {
        memcpy(clock, ls_clock_at(k, previous), LS_LANE_COUNT * sizeof *clock);
        k->set_of[index] = k->set_of[previous];
    } else {
        for (int l = 0; l < LS_LANE_COUNT; l++) clock[l] = -1;
        give_set(k, index, &k->entries[segment].lanes[lane * k->n_words]);
    }
    clock[lane] = index;
    k->lane_last[lane] = index;
}

void ls_knowledge_learn_carry(ls_knowledge *k, ls_segment_kind segment, int64_t index,
                              int32_t carry)
{
    if (!ls_carries_have(ls_known_at(k, index), carry)) ls_carries_add(own_set(k, index), carry);
    learn_carries(k, index, ls_implied_by(k, &k->entries[segment], carry));
}

/* Compute clocks and known carries again, for the waits there are. */
static void replay_segment(ls_knowledge *k, ls_segment_kind segment)
{
    const ls_plan *plan = k->plan;
    const int64_t first = plan->segment_first[segment];

    ls_knowledge_start_segment(k);
    for (int64_t s = first; s < first + plan->segment_steps[segment]; s++) {
        ls_knowledge_start_step(k, segment, s);
        for (int32_t w = 0; w < plan->steps[s].n_waits; w++) {
            const int64_t wait = plan->waits[plan->steps[s].first_wait + w];
            if (ls_wait_is_carry(wait))
                ls_knowledge_learn_carry(k, segment, s, (int32_t)ls_wait_carry(wait));
            else
                ls_knowledge_learn_step(k, s, wait);
        }
    }
}

/* ---- what carries imply -------------------------------------------------------------------- */

/* Carries that a segment ends anew, as far as a walk along one lane knows them to have ended. */
typedef struct walk {
    ls_segment_kind segment;
    int32_t next[LS_LANE_COUNT]; /* of a lane, in ends */
    ls_carry_word *reached;
} walk;

static walk begin_walk(const ls_knowledge *k, ls_segment_kind segment)
{
    walk w = {.segment = segment, .reached = k->reached};

    memcpy(w.next, k->lane_ends[segment], sizeof w.next);
    memset(w.reached, 0, (size_t)k->n_words * sizeof *w.reached);
    return w;
}

/* Carries, as of the end of the segment, known to a step that comes after those walked to. */
static void known_after(const ls_knowledge *k, walk *w, int64_t step, ls_carry_word *set)
{
    const ls_carry_end *ends = &k->ends[(int64_t)w->segment * k->plan->n_carries];
    const ls_carry_word *ended = &k->ended[(int64_t)w->segment * k->n_words];
    const ls_carry_word *known = ls_known_at(k, step);
    const int64_t *clock = ls_clock_at(k, step);

    for (int lane = 0; lane < LS_LANE_COUNT; lane++) {
        int32_t *next = &w->next[lane];
        for (; *next < k->lane_ends[w->segment][lane + 1] && ends[*next].step <= clock[lane];
             (*next)++)
            ls_carries_add(w->reached, ends[*next].carry);
    }
    for (int64_t i = 0; i < k->n_words; i++) set[i] = w->reached[i] | (known[i] & ~ended[i]);
}

/* What was known before the segment, less what it ends anew. */
static void known_through(const ls_knowledge *k, ls_segment_kind segment,
                          const ls_carry_word *before, ls_carry_word *set)
{
    const ls_carry_word *ended = &k->ended[(int64_t)segment * k->n_words];
    for (int64_t i = 0; i < k->n_words; i++) set[i] = before[i] & ~ended[i];
}

/* What the end of a lane, and of each carry that this segment ends on it, grants. */
static void leave_lane(const ls_knowledge *k, ls_segment_kind segment, ls_lane lane,
                       ls_knowledge_entry *after)
{
    const ls_carry_end *ends = &k->ends[(int64_t)segment * k->plan->n_carries];
    ls_carry_word *set = &after->lanes[(int64_t)lane * k->n_words];
    walk w = begin_walk(k, segment);

    for (int32_t i = k->lane_ends[segment][lane]; i < k->lane_ends[segment][lane + 1]; i++)
        known_after(k, &w, ends[i].step, ls_implied_by(k, after, ends[i].carry));
    if (k->lane_last[lane] >= 0)
        known_after(k, &w, k->lane_last[lane], set);
    else
        known_through(k, segment, &k->entries[segment].lanes[(int64_t)lane * k->n_words], set);
}

/* What a successor may take for granted after this segment; its lane_last is still that of it. */
static void leave_segment(const ls_knowledge *k, ls_segment_kind segment, ls_knowledge_entry *after)
{
    const ls_plan *plan = k->plan;

    for (ls_lane lane = 0; lane < LS_LANE_COUNT; lane++) leave_lane(k, segment, lane, after);
    for (int32_t c = 0; c < plan->n_carries; c++) {
        if (plan->carries[c].ends[segment] < 0)
            known_through(k, segment, ls_implied_by(k, &k->entries[segment], c),
                          ls_implied_by(k, after, c));
        ls_carries_add(ls_implied_by(k, after, c), c);
        ls_carries_add(&after->lanes[(int64_t)plan->carries[c].lane * k->n_words], c);
    }
}

static size_t lanes_words(const ls_knowledge *k)
{
    return (size_t)(LS_LANE_COUNT * k->n_words);
}

static size_t implied_words(const ls_knowledge *k)
{
    return (size_t)(k->plan->n_carries * k->n_words);
}

/* Everything has ended before the first segment. */
static void assume_all(const ls_knowledge *k, ls_knowledge_entry *e)
{
    memset(e->lanes, 0xff, lanes_words(k) * sizeof(ls_carry_word));
    memset(e->implied, 0xff, implied_words(k) * sizeof(ls_carry_word));
}

/* In-lane order, and nothing else. */
static void assume_least(const ls_knowledge *k, ls_knowledge_entry *e)
{
    memset(e->lanes, 0, lanes_words(k) * sizeof(ls_carry_word));
    memset(e->implied, 0, implied_words(k) * sizeof(ls_carry_word));
    for (int32_t c = 0; c < k->plan->n_carries; c++) {
        ls_carries_add(&e->lanes[(int64_t)k->plan->carries[c].lane * k->n_words], c);
        ls_carries_add(ls_implied_by(k, e, c), c);
    }
}

void ls_knowledge_assume_least(ls_knowledge *k)
{
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) assume_least(k, &k->entries[s]);
}

/* Keep in e only what other grants too; true if that changed it. */
static bool meet(const ls_knowledge *k, ls_knowledge_entry *e, const ls_knowledge_entry *other)
{
    bool changed = false;
    for (size_t w = 0; w < lanes_words(k); w++) {
        changed = changed || (e->lanes[w] & ~other->lanes[w]);
        e->lanes[w] &= other->lanes[w];
    }
    for (size_t w = 0; w < implied_words(k); w++) {
        changed = changed || (e->implied[w] & ~other->implied[w]);
        e->implied[w] &= other->implied[w];
    }
    return changed;
}

/* The greatest entries that every succession of segments grants, for the waits there are. */
void ls_knowledge_find_entries(ls_knowledge *k)
{
    bool changed[LS_SEGMENT_COUNT], any = true;

    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        assume_all(k, &k->entries[s]);
        changed[s] = k->plan->segment_steps[s] > 0;
    }
    while (any) {
        any = false;
        for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
            if (!changed[s]) continue;
            changed[s] = false;
            replay_segment(k, (ls_segment_kind)s);
            leave_segment(k, (ls_segment_kind)s, &k->next[s]);
            for (int n = 0; n < LS_SEGMENT_COUNT; n++)
                if (ls_segment_follows((ls_segment_kind)s, (ls_segment_kind)n) &&
                    meet(k, &k->entries[n], &k->next[s]) && k->plan->segment_steps[n] > 0)
                    changed[n] = any = true;
        }
    }
}

/* ---- open, close --------------------------------------------------------------------------- */

static int compare_ends(const void *a, const void *b)
{
    const ls_carry_end *x = a, *y = b;
    return x->step < y->step ? -1 : x->step > y->step;
}

static void sort_ends(ls_knowledge *k, int segment)
{
    const ls_plan *plan = k->plan;
    ls_carry_end *ends = &k->ends[(int64_t)segment * plan->n_carries];
    int32_t *first = k->lane_ends[segment];
    int32_t n = 0;

    memset(&k->ended[segment * k->n_words], 0, (size_t)k->n_words * sizeof(ls_carry_word));
    for (int lane = 0; lane < LS_LANE_COUNT; lane++) {
        first[lane] = n;
        for (int32_t c = 0; c < plan->n_carries; c++) {
            const ls_carry *carry = &plan->carries[c];
            if ((int)carry->lane != lane || carry->ends[segment] < 0) continue;
            ls_carries_add(&k->ended[segment * k->n_words], c);
            ends[n++] = (ls_carry_end){carry->ends[segment], c};
        }
        qsort(&ends[first[lane]], (size_t)(n - first[lane]), sizeof *ends, compare_ends);
    }
    first[LS_LANE_COUNT] = n;
}

/* A segment's steps have a set each, at most. */
static size_t most_sets(const ls_plan *plan)
{
    int64_t most = 1;
    for (int s = 0; s < LS_SEGMENT_COUNT; s++)
        if (plan->segment_steps[s] > most) most = plan->segment_steps[s];
    return (size_t)most;
}

ls_status ls_knowledge_open(const ls_plan *plan, ls_knowledge *k)
{
    const size_t n_steps = (size_t)plan->n_steps, n_carries = (size_t)plan->n_carries;
    bool failed;

    memset(k, 0, sizeof *k);
    k->plan = plan;
    k->n_words = plan->n_carries / LS_CARRY_WORD_BITS + 1;
    const size_t n_words = (size_t)k->n_words;
    k->clocks = malloc((n_steps * LS_LANE_COUNT + 1) * sizeof *k->clocks);
    k->known = malloc(most_sets(plan) * n_words * sizeof *k->known);
    k->set_of = malloc((n_steps + 1) * sizeof *k->set_of);
    k->ended = malloc(LS_SEGMENT_COUNT * n_words * sizeof *k->ended);
    k->ends = malloc((LS_SEGMENT_COUNT * n_carries + 1) * sizeof *k->ends);
    k->reached = malloc(n_words * sizeof *k->reached);
    failed = k->clocks == NULL || k->known == NULL || k->set_of == NULL || k->ended == NULL ||
             k->ends == NULL || k->reached == NULL;
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        ls_knowledge_entry *const both[] = {&k->entries[s], &k->next[s]};
        for (int i = 0; i < 2; i++) {
            both[i]->lanes = malloc(lanes_words(k) * sizeof(ls_carry_word));
            both[i]->implied = malloc((implied_words(k) + 1) * sizeof(ls_carry_word));
            failed = failed || both[i]->lanes == NULL || both[i]->implied == NULL;
        }
    }
    if (failed) {
        ls_knowledge_close(k);
        return LS_FAIL(LS_ERR_NO_MEMORY,
                       "out of memory: the proof of a plan of %zu steps and %zu carries; a greater "
                       "sequence.chunk, fewer layers or fewer micro-batches make it shorter",
                       n_steps, n_carries);
    }
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) sort_ends(k, s);
    return LS_OK;
}

void ls_knowledge_close(ls_knowledge *k)
{
    free(k->clocks);
    free(k->known);
    free(k->set_of);
    free(k->ended);
    free(k->ends);
    free(k->reached);
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        free(k->entries[s].lanes);
        free(k->entries[s].implied);
        free(k->next[s].lanes);
        free(k->next[s].implied);
    }
    memset(k, 0, sizeof *k);
}
