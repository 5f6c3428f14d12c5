/*
 * plan_changes.h - what would make a plan faster: each change is made, and the plan with it
 * simulated.
 *
 * Settings cost nothing and come first, then settings that change the training, then hardware; of
 * each kind what gains most.  What gains less than half a percent of tokens per second is no
 * change worth a line.
 *
 * Layer: engine.  Threads: no shared state.
 */
#ifndef LS_PLAN_CHANGES_H
#define LS_PLAN_CHANGES_H

#include "choice_search.h"

#define LS_PLAN_CHANGES_MAX   3
#define LS_CHANGE_WORDS_BYTES 384

typedef enum ls_change_kind {
    LS_CHANGE_SETTING = 0, /* of the run file, that leaves the training as it is */
    LS_CHANGE_TRAINING,    /* of the run file, that does not */
    LS_CHANGE_HARDWARE
} ls_change_kind;

/* "setting", "training", "hardware"; never NULL. */
const char *ls_change_kind_name(ls_change_kind kind);

typedef struct ls_plan_change {
    ls_change_kind kind;
    char words[LS_CHANGE_WORDS_BYTES];
    double step_s, tokens_per_s;
    double gain_fraction; /* of tokens per second */
} ls_plan_change;

typedef struct ls_plan_changes {
    ls_plan_change changes[LS_PLAN_CHANGES_MAX];
    int n;
    bool is_partial; /* the plan is too long to search for others: only better rates were tried */
} ls_plan_changes;

/*
 * Find them for a plan that fits.
 *   search   how it was chosen
 *   step_s   its simulated time
 * None where times are not known.  LS_ERR_NO_MEMORY.
 */
ls_status ls_plan_changes_find(const ls_trial *trial, const ls_plan *plan, const ls_search *search,
                               double step_s, ls_plan_changes *changes);

#endif
