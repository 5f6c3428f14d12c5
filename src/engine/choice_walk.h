/*
 * choice_walk.h - private to the search: what it has tried, and how it tries more.
 *
 * Layer: engine, private.
 */
#ifndef LS_CHOICE_WALK_H
#define LS_CHOICE_WALK_H

#include "choice_search.h"
#include "save_search.h"

#define LS_CANDIDATES_MAX 128
#define LS_MEASURED_MAX   (3 * LS_CANDIDATES_MAX) /* of three passes */

/* What was asked for, and what came of it; the same in every pass, whatever room that leaves. */
typedef struct ls_measured {
    ls_choices asked;
    ls_weights_wish weights; /* slots and mode; reason NULL: as the run file says */
    ls_choices choices;
    ls_plan_cost cost;
} ls_measured;

typedef struct ls_searching {
    const ls_trial *trial;
    const ls_choices *base;
    uint64_t limit[LS_PLACE_COUNT];
    double closed_limit;   /* of bytes that a formula counts */
    double weight_bytes;   /* of a copy of them all */
    int n_policies;        /* of the ladder, that `auto` may take */
    ls_candidate *kept;    /* [LS_CANDIDATES_MAX] */
    ls_measured *measured; /* [n_measured], room for LS_MEASURED_MAX */
    int n_measured;
    double lacking_bytes; /* that both places together lack for what is not tried so; INFINITY */
    int n_kept, best;     /* best: of those that fit; -1: none */
    int64_t steps_left;
    ls_search *result;
} ls_searching;

/* What is made least of: a bound of seconds, or FLOPs. */
double ls_search_value(const ls_searching *s, const ls_plan_cost *cost);

/* Whether more arithmetic makes a plan that was tried slower: it computes without pause, or
 * arithmetic is all that is known. */
bool ls_search_is_bound_by_compute(const ls_searching *s, int k);

/* Measure a plan and keep what it takes.
 *   weights  NULL: as the run file says
 *   tried    [out] its index; -1: there was no budget for it */
ls_status ls_search_try(ls_searching *s, const ls_choices *choices, const ls_weights_wish *weights,
                        int *tried);

/* The same with one policy for all layers; -1 also where a closed formula rules it out. */
ls_status ls_search_try_policy(ls_searching *s, const ls_choices *base, int policy, int *tried);

/* Bytes of what a policy keeps on the host of all layers, by closed formula. */
double ls_search_kept_bytes(const ls_searching *s, bool layer_major, int policy);

/*
 * Try mixtures of the policies that have no room with those that have.
 *   measured  their indices; -1: not yet
 *   first     the richest that fits; -1: none does
 */
ls_status ls_search_mix(ls_searching *s, const ls_choices *base, int measured[LS_SAVE_POLICIES],
                        int first);

/* Leave as many of the last layers in device memory as there is room for: fewer copies. */
ls_status ls_search_hold_more(ls_searching *s, int from);

#endif
