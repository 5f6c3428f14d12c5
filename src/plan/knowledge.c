/* knowledge.c - what steps know, and what carries imply over all successions of segments. */
#include "knowledge.h"

#include <stdlib.h>
#include <string.h>

static void add_all(const ls_knowledge *k, ls_carry_word *set, const ls_carry_word *others)
{
    for (int64_t w = 0; w < k->n_words; w++) set[w] |= others[w];
}

void ls_knowledge_start_segment(ls_knowledge *k)
{
    for (int lane = 0; lane < LS_LANE_COUNT; lane++) k->lane_last[lane] = -1;
}

/* What a step knows by following another: the step before on its lane, or one it waits for. */
void ls_knowledge_learn_step(ls_knowledge *k, int64_t index, int64_t from)
{
    int64_t *clock = ls_clock_at(k, index);
    const int64_t *other = ls_clock_at(k, from);

    for (int lane = 0; lane < LS_LANE_COUNT; lane++)
        if (other[lane] > clock[lane]) clock[lane] = other[lane];
    add_all(k, ls_known_at(k, index), ls_known_at(k, from));
}

void ls_knowledge_start_step(ls_knowledge *k, ls_segment_kind segment, int64_t index)
{
    const ls_lane lane = k->plan->steps[index].lane;
    const int64_t previous = k->lane_last[lane];

    for (int l = 0; l < LS_LANE_COUNT; l++) ls_clock_at(k, index)[l] = -1;
    memset(ls_known_at(k, index), 0, (size_t)k->n_words * sizeof(ls_carry_word));
    if (previous >= 0)
        ls_knowledge_learn_step(k, index, previous);
    else
        add_all(k, ls_known_at(k, index), &k->entries[segment].lanes[lane * k->n_words]);
    ls_clock_at(k, index)[lane] = index;
    k->lane_last[lane] = index;
}

void ls_knowledge_learn_carry(ls_knowledge *k, ls_segment_kind segment, int64_t index,
                              int32_t carry)
{
    ls_carries_add(ls_known_at(k, index), carry);
    add_all(k, ls_known_at(k, index), ls_implied_by(k, &k->entries[segment], carry));
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

/* Carries, as of the end of the segment, known to a step of it. */
static void known_after(const ls_knowledge *k, ls_segment_kind segment, int64_t step,
                        ls_carry_word *set)
{
    const ls_plan *plan = k->plan;

    for (int32_t c = 0; c < plan->n_carries; c++) {
        const int64_t end = plan->carries[c].ends[segment];
        const bool is_known = end >= 0 ? ls_clock_at(k, step)[plan->carries[c].lane] >= end
                                       : ls_carries_have(ls_known_at(k, step), c);
        if (is_known) ls_carries_add(set, c);
    }
}

/* What was known before the segment, less what it ends anew. */
static void known_through(const ls_knowledge *k, ls_segment_kind segment,
                          const ls_carry_word *before, ls_carry_word *set)
{
    add_all(k, set, before);
    for (int32_t c = 0; c < k->plan->n_carries; c++)
        if (k->plan->carries[c].ends[segment] >= 0) ls_carries_remove(set, c);
}

/* What a successor may take for granted after this segment; its lane_last is still that of it. */
static void leave_segment(const ls_knowledge *k, ls_segment_kind segment, ls_knowledge_entry *after)
{
    const ls_plan *plan = k->plan;
    const ls_knowledge_entry *before = &k->entries[segment];
    const size_t words = (size_t)k->n_words;

    memset(after->lanes, 0, LS_LANE_COUNT * words * sizeof(ls_carry_word));
    memset(after->implied, 0, (size_t)plan->n_carries * words * sizeof(ls_carry_word));
    for (int lane = 0; lane < LS_LANE_COUNT; lane++) {
        ls_carry_word *set = &after->lanes[lane * k->n_words];
        if (k->lane_last[lane] >= 0)
            known_after(k, segment, k->lane_last[lane], set);
        else
            known_through(k, segment, &before->lanes[lane * k->n_words], set);
        for (int32_t c = 0; c < plan->n_carries; c++)
            if ((int)plan->carries[c].lane == lane) ls_carries_add(set, c);
    }
    for (int32_t c = 0; c < plan->n_carries; c++) {
        ls_carry_word *set = ls_implied_by(k, after, c);
        if (plan->carries[c].ends[segment] >= 0)
            known_after(k, segment, plan->carries[c].ends[segment], set);
        else
            known_through(k, segment, ls_implied_by(k, before, c), set);
        ls_carries_add(set, c);
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
    bool changed = true;

    for (int s = 0; s < LS_SEGMENT_COUNT; s++) assume_all(k, &k->entries[s]);
    while (changed) {
        changed = false;
        for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
            if (k->plan->segment_steps[s] == 0) continue;
            replay_segment(k, (ls_segment_kind)s);
            leave_segment(k, (ls_segment_kind)s, &k->next[s]);
            for (int n = 0; n < LS_SEGMENT_COUNT; n++)
                if (ls_segment_follows((ls_segment_kind)s, (ls_segment_kind)n))
                    changed = meet(k, &k->entries[n], &k->next[s]) || changed;
        }
    }
}

/* ---- open, close --------------------------------------------------------------------------- */

ls_status ls_knowledge_open(const ls_plan *plan, ls_knowledge *k)
{
    const size_t n_steps = (size_t)plan->n_steps;
    bool failed;

    memset(k, 0, sizeof *k);
    k->plan = plan;
    k->n_words = plan->n_carries / LS_CARRY_WORD_BITS + 1;
    k->clocks = malloc((n_steps * LS_LANE_COUNT + 1) * sizeof *k->clocks);
    k->known = malloc((n_steps + 1) * (size_t)k->n_words * sizeof *k->known);
    failed = k->clocks == NULL || k->known == NULL;
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        ls_knowledge_entry *const both[] = {&k->entries[s], &k->next[s]};
        for (int i = 0; i < 2; i++) {
            both[i]->lanes = malloc(lanes_words(k) * sizeof(ls_carry_word));
            both[i]->implied = malloc((implied_words(k) + 1) * sizeof(ls_carry_word));
            failed = failed || both[i]->lanes == NULL || both[i]->implied == NULL;
        }
    }
    if (!failed) return LS_OK;
    ls_knowledge_close(k);
    return LS_FAIL(LS_ERR_NO_MEMORY, "order of %zu steps", n_steps);
}

void ls_knowledge_close(ls_knowledge *k)
{
    free(k->clocks);
    free(k->known);
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        free(k->entries[s].lanes);
        free(k->entries[s].implied);
        free(k->next[s].lanes);
        free(k->next[s].implied);
    }
    memset(k, 0, sizeof *k);
}
