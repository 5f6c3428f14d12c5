/*
 * knowledge.h - private to order.c: what is known to have finished when a step starts.
 *
 * Two things: for each lane the latest step of this segment (a vector clock), and a set of carries.
 * Both follow from the step before on the same lane and from what the step waits for.  What a
 * segment may take for granted at its start, and what a carry implies (carries that have ended
 * whenever it has), depends on the segments before, hence on their waits.
 *
 * Layer: plan, private.
 */
#ifndef LS_KNOWLEDGE_H
#define LS_KNOWLEDGE_H

#include "plan.h"

/* A set of carries is an array of these. */
typedef uint64_t ls_carry_word;

#define LS_CARRY_WORD_BITS 64

static inline bool ls_carries_have(const ls_carry_word *set, int32_t carry)
{
    return (set[carry / LS_CARRY_WORD_BITS] >> (carry % LS_CARRY_WORD_BITS)) & 1u;
}

static inline void ls_carries_add(ls_carry_word *set, int32_t carry)
{
    set[carry / LS_CARRY_WORD_BITS] |= (ls_carry_word)1 << (carry % LS_CARRY_WORD_BITS);
}

static inline void ls_carries_remove(ls_carry_word *set, int32_t carry)
{
    set[carry / LS_CARRY_WORD_BITS] &= ~((ls_carry_word)1 << (carry % LS_CARRY_WORD_BITS));
}

/* What may be taken for granted when a segment starts. */
typedef struct ls_knowledge_entry {
    ls_carry_word *lanes;   /* [LS_LANE_COUNT, n_words] known to the first step of each lane */
    ls_carry_word *implied; /* [n_carries, n_words] ended whenever this carry has */
} ls_knowledge_entry;

/* The step that ends a carry in a segment. */
typedef struct ls_carry_end {
    int64_t step;
    int32_t carry;
} ls_carry_end;

typedef struct ls_knowledge {
    const ls_plan *plan;
    int64_t n_words; /* of a set */
    ls_knowledge_entry entries[LS_SEGMENT_COUNT], next[LS_SEGMENT_COUNT];
    int64_t *clocks;      /* [n_steps, LS_LANE_COUNT]: latest step known finished, -1: none */
    ls_carry_word *known; /* [n_sets, n_words] sets of carries known finished */
    int64_t *set_of;      /* [n_steps] a step's in known; most have that of the step before */
    int64_t n_sets;       /* of the segment at work */
    int64_t own_set_step; /* the step whose set no other has; -1: none */
    int64_t lane_last[LS_LANE_COUNT]; /* of the segment at work */
    ls_carry_word *ended; /* [LS_SEGMENT_COUNT, n_words] carries that a segment ends anew */
    ls_carry_end *ends;   /* [LS_SEGMENT_COUNT, n_carries] these by lane, then step */
    int32_t lane_ends[LS_SEGMENT_COUNT][LS_LANE_COUNT + 1]; /* where a lane's begin in ends */
    ls_carry_word *reached;                                 /* a set, scratch */
} ls_knowledge;

/* Allocate for a plan whose steps and carries are final; ls_knowledge_close() releases. */
ls_status ls_knowledge_open(const ls_plan *plan, ls_knowledge *knowledge);
void ls_knowledge_close(ls_knowledge *knowledge);

/* Assume of every segment's start that a carry implies itself and a lane is in order, no more. */
void ls_knowledge_assume_least(ls_knowledge *knowledge);

/* Set what every succession of segments grants, for the waits that the plan has. */
void ls_knowledge_find_entries(ls_knowledge *knowledge);

/* Begin a segment; then a step of it, which knows what its lane knew; then what it waits for. */
void ls_knowledge_start_segment(ls_knowledge *knowledge);
void ls_knowledge_start_step(ls_knowledge *knowledge, ls_segment_kind segment, int64_t step);
void ls_knowledge_learn_step(ls_knowledge *knowledge, int64_t step, int64_t from);
void ls_knowledge_learn_carry(ls_knowledge *knowledge, ls_segment_kind segment, int64_t step,
                              int32_t carry);

static inline const ls_carry_word *ls_known_at(const ls_knowledge *k, int64_t step)
{
    return &k->known[k->set_of[step] * k->n_words];
}

static inline int64_t *ls_clock_at(const ls_knowledge *k, int64_t step)
{
    return &k->clocks[step * LS_LANE_COUNT];
}

static inline ls_carry_word *ls_implied_by(const ls_knowledge *k, const ls_knowledge_entry *e,
                                           int32_t carry)
{
    return &e->implied[carry * k->n_words];
}

#endif
