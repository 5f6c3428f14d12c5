/*
 * choice_search.h - the fastest plan that fits: what is left `auto` is searched, what a run file
 * gives stands.
 *
 *   space      accumulation order | chunk and query block | save policy of each layer |
 *              weights' mode and ring | what of the last layers stays in device memory
 *   pruned     by closed formulas, before anything is built
 *   measured   bytes by place and a lower bound of a step's time, of the plan itself; no steps kept
 *   simulated  the best few by that bound, each lowered in full
 *
 * Where the machine's rates are not known, fewer FLOPs are faster, and nothing is simulated.  The
 * same run on the same machine is searched in the same way to the same end.
 *
 * Layer: engine.  Threads: no shared state.
 */
#ifndef LS_CHOICE_SEARCH_H
#define LS_CHOICE_SEARCH_H

#include "choices.h"

#define LS_SEARCH_WHY_BYTES     640
#define LS_CANDIDATE_NAME_BYTES 320

typedef struct ls_candidate {
    ls_choices choices;
    ls_plan_cost cost;
    double step_s;          /* simulated; 0: it was not */
    bool fits;              /* within what `auto` may fill */
    int rich, lean;         /* of a mixture: policies of the ladder */
    int32_t n_rich, n_held; /* last layers with the rich one; of these in device memory for good */
} ls_candidate;

typedef struct ls_search {
    bool times_known;
    int n_pruned, n_measured, n_simulated;
    bool has_runner_up, has_refused;
    ls_candidate chosen;
    ls_candidate runner_up;      /* the next by time of those that fit */
    ls_candidate refused;        /* would be faster, but does not fit */
    ls_place_kind refused_place; /* the first that is short */
    uint64_t refused_short_bytes;
    char why[LS_SEARCH_WHY_BYTES];       /* the runner-up lost; "": there is none */
    char why_order[LS_SEARCH_WHY_BYTES]; /* the accumulation order is what it is */
    char why_refused[LS_SEARCH_WHY_BYTES];
} ls_search;

/*
 * Search for a training run.
 *   base    [in] threads, and saves where the run file gives them; else not read
 *   search  [out] what was found
 * LS_OK, with search->n_measured 0 or nothing chosen (chosen.choices.chunk 0) where nothing fits;
 * LS_ERR_NO_MEMORY (no room for the plan itself), LS_ERR_INVALID (the run file asks for what this
 * machine cannot do).
 */
ls_status ls_choice_search(const ls_trial *trial, const ls_choices *base, ls_search *search);

/* Fill in the reasons of a search; limit: what `auto` may fill; other: the fastest of the other
 * accumulation order that fits, or NULL. */
void ls_search_explain(const ls_trial *trial, const ls_candidate *other,
                       const uint64_t limit[LS_PLACE_COUNT], ls_search *search);

/* "chunk 16384, query block 65536, save x+o, weights resident, layer-major"; returns text. */
const char *ls_candidate_name(const ls_candidate *candidate, char text[LS_CANDIDATE_NAME_BYTES]);

#endif
