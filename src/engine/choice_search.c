/*
 * choice_search.c - the space of plans, walked from what is likely best.
 *
 * Saves form a ladder from what recomputes least: the first rung that fits is the best one alone,
 * and where richer ones have no room, the last layers take a richer one: bytes and time grow by
 * layers, so of two rungs as many layers as fit is the best mixture.  From the best of these the
 * other axes are varied one by one.  Every plan tried is measured as it would be built; nothing is
 * believed of it that is only a formula's.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "choice_walk.h"
#include "simulate.h"

#define MEASURED_STEPS_MAX  (INT64_C(3) << 20) /* of all plans measured within a share of memory */
#define SIMULATED_STEPS_MAX (INT64_C(1) << 20) /* the same of those simulated */
#define SIMULATED_MAX       24

double ls_search_value(const ls_searching *s, const ls_plan_cost *cost)
{
    return s->result->times_known ? cost->lower_bound_s : cost->flops;
}

static bool has_room(const ls_searching *s, const ls_plan_cost *cost)
{
    for (int p = 0; p < LS_PLACE_COUNT; p++)
        if (cost->place_bytes[p] > s->limit[p]) return false;
    return true;
}

bool ls_search_is_bound_by_compute(const ls_searching *s, int k)
{
    return !s->result->times_known ||
           strcmp(s->kept[k].cost.bound_by, ls_lane_name(LS_LANE_COMPUTE)) == 0;
}

/* ---- one plan ------------------------------------------------------------------------------ */

static bool are_same_wishes(const ls_weights_wish *a, const ls_weights_wish *b)
{
    if (a->reason == NULL || b->reason == NULL) return a->reason == b->reason;
    return a->mode == b->mode && a->ring_slots == b->ring_slots &&
           strcmp(a->reason, b->reason) == 0;
}

/* Measured in an earlier pass; NULL: not yet. */
static const ls_measured *find_measured(const ls_searching *s, const ls_choices *asked,
                                        const ls_weights_wish *weights)
{
    for (int m = 0; m < s->n_measured; m++) {
        const ls_choices *before = &s->measured[m].asked;
        if (before->chunk == asked->chunk && before->query_block == asked->query_block &&
            before->layer_major == asked->layer_major &&
            memcmp(&before->saves, &asked->saves, sizeof asked->saves) == 0 &&
            are_same_wishes(&s->measured[m].weights, weights))
            return &s->measured[m];
    }
    return NULL;
}

/* What the plan of these choices takes; they become what would be built. */
static ls_status measure(ls_searching *s, const ls_weights_wish *weights, ls_candidate *c)
{
    const ls_weights_wish wish = weights != NULL ? *weights : (ls_weights_wish){.reason = NULL};
    const ls_measured *known = find_measured(s, &c->choices, &wish);
    const ls_choices asked = c->choices;

    if (known != NULL) {
        c->choices = known->choices;
        c->cost = known->cost;
        return LS_OK;
    }
    LS_TRY(ls_choices_measure_as(s->trial, weights, &c->choices, &c->cost));
    s->steps_left -= c->cost.n_steps;
    s->result->n_measured++;
    if (s->n_measured < LS_MEASURED_MAX)
        s->measured[s->n_measured++] = (ls_measured){asked, wish, c->choices, c->cost};
    return LS_OK;
}

ls_status ls_search_try(ls_searching *s, const ls_choices *choices, const ls_weights_wish *weights,
                        int *tried)
{
    ls_candidate *c = &s->kept[s->n_kept];

    *tried = -1;
    if (s->n_kept == LS_CANDIDATES_MAX || (s->n_kept > 0 && s->steps_left <= 0)) {
        s->result->n_pruned++;
        return LS_OK;
    }
    *c = (ls_candidate){.choices = *choices, .rich = -1, .lean = -1};
    LS_TRY(measure(s, weights, c));
    c->fits = has_room(s, &c->cost);
    *tried = s->n_kept++;
    if (c->fits &&
        (s->best < 0 || ls_search_value(s, &c->cost) < ls_search_value(s, &s->kept[s->best].cost)))
        s->best = *tried;
    return LS_OK;
}

double ls_search_kept_bytes(const ls_searching *s, bool layer_major, int policy)
{
    const ls_trial *t = s->trial;
    ls_saves saves = {.n_layers = (int32_t)t->model->num_hidden_layers};

    ls_saves_set(&saves, ls_save_ladder[policy]);
    return ls_save_host_bytes(t->config, t->model, &saves) *
           (layer_major ? (double)t->config->accumulate : 1.0);
}

ls_status ls_search_try_policy(ls_searching *s, const ls_choices *base, int policy, int *tried)
{
    ls_choices choices = *base;

    *tried = -1;
    ls_saves_set(&choices.saves, ls_save_ladder[policy]);
    if (ls_search_kept_bytes(s, base->layer_major, policy) > s->closed_limit) {
        s->result->n_pruned++;
        return LS_OK;
    }
    LS_TRY(ls_search_try(s, &choices, NULL, tried));
    if (*tried >= 0) s->kept[*tried].rich = s->kept[*tried].lean = policy;
    return LS_OK;
}

/* ---- saves --------------------------------------------------------------------------------- */

static ls_status walk_saves(ls_searching *s, const ls_choices *base)
{
    int measured[LS_SAVE_POLICIES], first = -1;

    if (!s->trial->config->save_auto) return ls_search_try(s, base, NULL, &first);
    for (int p = 0; p < LS_SAVE_POLICIES; p++) measured[p] = -1;
    for (int p = 0; p < s->n_policies; p++) {
        LS_TRY(ls_search_try_policy(s, base, p, &measured[p]));
        if (measured[p] < 0 || !s->kept[measured[p]].fits) continue;
        if (first < 0) first = p;
        /* Below it there is but more arithmetic. */
        if (ls_search_is_bound_by_compute(s, measured[p])) break;
    }
    return first != 0 ? ls_search_mix(s, base, measured, first) : LS_OK;
}

/* ---- rows ---------------------------------------------------------------------------------- */

static bool are_same_rows(const ls_choices *a, const ls_choices *b)
{
    return a->chunk == b->chunk && a->query_block == b->query_block;
}

/* Whether fewer rows might help what was tried from here on: device memory alone had no room. */
static bool lacks_device_memory(const ls_searching *s, int first)
{
    for (int k = first; k < s->n_kept; k++)
        if (s->kept[k].cost.place_bytes[LS_PLACE_HBM] > s->limit[LS_PLACE_HBM]) return true;
    return first == s->n_kept;
}

/* Whether what both places together had no room for might fit with fewer rows: bytes grow linearly
 * with them, so that all further halvings save no more than the last one did.
 *   before  bytes lacking with the rows before; INFINITY: there were none */
static bool may_save_enough(double before, double lacking)
{
    return lacking < INFINITY && before - lacking >= lacking;
}

/* The first rows with which something fits, and what saves do there. */
static ls_status walk_rows(ls_searching *s, bool layer_major)
{
    const int n = ls_choices_rows(s->trial, true), before = s->n_kept;
    ls_choices choices = *s->base, last = {.chunk = 0};
    bool found = false, may_help = true;
    double lacking = INFINITY;

    choices.layer_major = layer_major;
    for (int i = 0; i < n && !found && may_help; i++) {
        const int first = s->n_kept;
        const double lacked = lacking;
        ls_choices_set_rows(s->trial, i, &choices);
        if (are_same_rows(&choices, &last)) continue;
        const ls_status status = ls_choices_check_plan(s->trial->config, s->trial->model, &choices);
        if (status != LS_OK) return i == 0 && before == 0 ? status : LS_OK;
        s->lacking_bytes = INFINITY;
        LS_TRY(walk_saves(s, &choices));
        lacking = s->lacking_bytes;
        last = choices;
        for (int k = first; k < s->n_kept; k++) found |= s->kept[k].fits;
        may_help = lacks_device_memory(s, first) || may_save_enough(lacked, lacking);
    }
    return LS_OK;
}

/* Whether a plan of those rows has been measured for these saves, or would go beyond the budget. */
static bool is_out(const ls_searching *s, const ls_choices *choices, const ls_candidate *from)
{
    const double steps =
        (double)from->cost.n_steps * (double)from->choices.chunk / (double)choices->chunk;

    if (steps > (double)s->steps_left) return true;
    for (int k = 0; k < s->n_kept; k++)
        if (are_same_rows(&s->kept[k].choices, choices) &&
            s->kept[k].choices.layer_major == choices->layer_major &&
            memcmp(&s->kept[k].choices.saves, &choices->saves, sizeof choices->saves) == 0)
            return true;
    return false;
}

/* The other rows for a plan that is there; until_fits: the largest that fit will do. */
static ls_status vary_rows(ls_searching *s, int from, bool until_fits)
{
    const int n = ls_choices_rows(s->trial, until_fits);
    const ls_candidate origin = s->kept[from];

    for (int i = 0; i < n; i++) {
        ls_choices choices = origin.choices;
        int tried;
        ls_choices_set_rows(s->trial, i, &choices);
        /* Smaller chunks never compute less. */
        const bool is_slower = !until_fits && choices.chunk < origin.choices.chunk &&
                               ls_search_is_bound_by_compute(s, from);
        if (is_slower || is_out(s, &choices, &origin)) {
            s->result->n_pruned++;
            continue;
        }
        if (ls_choices_check_plan(s->trial->config, s->trial->model, &choices) != LS_OK) continue;
        LS_TRY(ls_search_try(s, &choices, NULL, &tried));
        if (until_fits && tried >= 0 && s->kept[tried].fits) return LS_OK;
    }
    return LS_OK;
}

/* The fastest of what only device memory has no room for; -1: none. */
static int find_blocked(const ls_searching *s)
{
    int found = -1;

    for (int k = 0; k < s->n_kept; k++) {
        const ls_plan_cost *cost = &s->kept[k].cost;
        if (s->kept[k].fits || cost->place_bytes[LS_PLACE_HOST] > s->limit[LS_PLACE_HOST]) continue;
        if (ls_search_value(s, cost) >= ls_search_value(s, &s->kept[s->best].cost)) continue;
        if (found < 0 || ls_search_value(s, cost) < ls_search_value(s, &s->kept[found].cost))
            found = k;
    }
    return found;
}

/* ---- weights, and what stays in device memory -------------------------------------------------
 */

static const struct {
    ls_weights_wish wish;
    bool coherent; /* worth a try only where the GPU reads host memory at the link's rate */
} weights_tried[] = {
    {{LS_MODE_RESIDENT, 0, "a copy of them all fits device memory, and is the fastest found"},
     false},
    {{LS_MODE_STREAM, 2, "faster than a copy of them all, or leaves more room"}, false},
    {{LS_MODE_STREAM, 3, "faster than a copy of them all, or leaves more room"}, false},
    {{LS_MODE_STREAM, 4, "faster than a copy of them all, or leaves more room"}, false},
    {{LS_MODE_DIRECT, 0, "kernels read them over the link faster than copies come"}, true},
};

enum { N_WEIGHTS = sizeof weights_tried / sizeof weights_tried[0] };

static bool is_weights(const ls_placement *p, const ls_weights_wish *wish)
{
    return p->classes[LS_CLASS_WEIGHTS].mode == wish->mode &&
           (wish->mode != LS_MODE_STREAM || p->ring_slots == wish->ring_slots);
}

static bool may_take(const ls_run_config *config, const ls_weights_wish *wish)
{
    if (config->places[LS_CLASS_WEIGHTS] > 0) return false;
    if (config->weights != LS_WEIGHTS_AUTO &&
        (config->weights != LS_WEIGHTS_STREAM || wish->mode != LS_MODE_STREAM))
        return false;
    return config->ring_slots == 0 || wish->mode != LS_MODE_STREAM ||
           wish->ring_slots == config->ring_slots;
}

/* Where a plan computes without pause, one other mode for comparison: none can gain much. */
static ls_status vary_weights(ls_searching *s, int from)
{
    const ls_candidate origin = s->kept[from];
    const ls_class_placement *before = &origin.choices.placement.classes[LS_CLASS_WEIGHTS];

    for (int w = 0; w < N_WEIGHTS; w++) {
        const ls_weights_wish *wish = &weights_tried[w].wish;
        ls_weights_wish taken = *wish;
        int tried;
        if (!origin.choices.placement.has_device || !may_take(s->trial->config, wish)) continue;
        if (weights_tried[w].coherent && !origin.choices.placement.coherent) continue;
        if (is_weights(&origin.choices.placement, wish)) continue;
        if (wish->mode == before->mode) taken.reason = before->reason; /* slots alone differ */
        LS_TRY(ls_search_try(s, &origin.choices, &taken, &tried));
        if (ls_search_is_bound_by_compute(s, from)) return LS_OK;
    }
    return LS_OK;
}

/* ---- the best few, simulated --------------------------------------------------------------- */

static ls_status simulate(const ls_searching *s, ls_candidate *c)
{
    const ls_trial *t = s->trial;
    const ls_ops *ops =
        t->hardware != NULL && t->hardware->ops != NULL ? t->hardware->ops : &ls_ops_cpu;
    const ls_decoder_options options = ls_choices_decoder(t->config, t->model, &c->choices, true);
    ls_simulation simulation;
    ls_decoder decoder;
    ls_plan plan;

    LS_TRY(ls_decoder_build(&options, &decoder));
    ls_status status = ls_plan_lower(&decoder.tape, &c->choices.placement, ops, &plan);
    if (status == LS_OK) {
        status = ls_simulate(&plan, t->rates, NULL, NULL, &simulation);
        ls_plan_free(&plan);
    }
    ls_decoder_free(&decoder);
    if (status == LS_OK) c->step_s = simulation.step_s;
    return status;
}

/* The fastest by bound of an order that fits and was not simulated; -1: none. */
static int find_next(const ls_searching *s, int layer_major)
{
    int found = -1;

    for (int k = 0; k < s->n_kept; k++) {
        const ls_candidate *c = &s->kept[k];
        if (!c->fits || c->step_s > 0) continue;
        if ((int)c->choices.layer_major != layer_major) continue;
        if (found < 0 || ls_search_value(s, &c->cost) < ls_search_value(s, &s->kept[found].cost))
            found = k;
    }
    return found;
}

static ls_status simulate_one(ls_searching *s, int k, int64_t *steps_left)
{
    LS_TRY(simulate(s, &s->kept[k]));
    s->result->n_simulated++;
    *steps_left -= s->kept[k].cost.n_steps;
    if (s->kept[s->best].step_s == 0 || s->kept[k].step_s < s->kept[s->best].step_s) s->best = k;
    return LS_OK;
}

/* Of one order, from the least bound on, until no other can be faster or enough have been. */
static ls_status simulate_order(ls_searching *s, int layer_major, int64_t *steps_left)
{
    for (int n = 0; n < SIMULATED_MAX; n++) {
        const int k = find_next(s, layer_major);
        if (k < 0 || (n > 0 && s->kept[k].cost.n_steps > *steps_left) ||
            (s->kept[s->best].step_s > 0 &&
             s->kept[k].cost.lower_bound_s >= s->kept[s->best].step_s))
            break;
        LS_TRY(simulate_one(s, k, steps_left));
    }
    return LS_OK;
}

/* The order with the best bound first: it may leave the other nothing to win. */
static ls_status simulate_best(ls_searching *s)
{
    const int first = s->kept[s->best].choices.layer_major;
    int64_t steps_left = SIMULATED_STEPS_MAX;
    int n_fitting = 0;

    for (int k = 0; k < s->n_kept; k++) n_fitting += s->kept[k].fits;
    if (!s->result->times_known || n_fitting < 2) return LS_OK;
    LS_TRY(simulate_order(s, first, &steps_left));
    return simulate_order(s, !first, &steps_left);
}

/* ---- the whole ----------------------------------------------------------------------------- */

static bool may_be(const ls_run_config *config, bool layer_major)
{
    if (config->accumulate == 1) return !layer_major;
    return config->accumulate_order == 0 || (config->accumulate_order == 2) == layer_major;
}

/* The best of an order that fits; -1: none. */
static int find_best(const ls_searching *s, bool layer_major)
{
    int found = -1;

    for (int k = 0; k < s->n_kept; k++)
        if (s->kept[k].fits && s->kept[k].choices.layer_major == layer_major &&
            (found < 0 ||
             ls_search_value(s, &s->kept[k].cost) < ls_search_value(s, &s->kept[found].cost)))
            found = k;
    return found;
}

static ls_status search_order(ls_searching *s, bool layer_major)
{
    LS_TRY(walk_rows(s, layer_major));
    const int best = find_best(s, layer_major);
    if (best < 0 || !s->result->times_known) return LS_OK;
    LS_TRY(vary_rows(s, best, false));
    const int blocked = find_blocked(s);
    if (blocked >= 0) LS_TRY(vary_rows(s, blocked, true));
    LS_TRY(vary_weights(s, find_best(s, layer_major)));
    const int latest = find_best(s, layer_major);
    return ls_search_is_bound_by_compute(s, latest) ? LS_OK : ls_search_hold_more(s, latest);
}

/* Sequence-major first: of two that are equal the one that keeps less. */
static ls_status search_orders(ls_searching *s)
{
    for (int order = 0; order < 2; order++) {
        if (!may_be(s->trial->config, order == 1)) continue;
        if (order == 1 && !s->result->times_known && s->best >= 0) continue;
        LS_TRY(search_order(s, order == 1));
    }
    return LS_OK;
}

/* Whether a is before b: by simulated times where there are, else by bounds. */
static bool is_faster(const ls_searching *s, const ls_candidate *a, const ls_candidate *b)
{
    if (a->step_s > 0 && b->step_s > 0) return a->step_s < b->step_s;
    if (a->step_s > 0 || b->step_s > 0) return a->step_s > 0;
    return ls_search_value(s, &a->cost) < ls_search_value(s, &b->cost);
}

static void find_result(const ls_searching *s)
{
    ls_search *r = s->result;
    const ls_candidate *best = &s->kept[s->best], *other = NULL, *next = NULL, *refused = NULL;

    for (int k = 0; k < s->n_kept; k++) {
        const ls_candidate *c = &s->kept[k];
        const bool is_other = c->choices.layer_major != best->choices.layer_major;
        if (k == s->best) continue;
        if (!c->fits) {
            if (ls_search_value(s, &c->cost) < ls_search_value(s, &best->cost) &&
                (refused == NULL ||
                 ls_search_value(s, &c->cost) < ls_search_value(s, &refused->cost)))
                refused = c;
            continue;
        }
        if (next == NULL || is_faster(s, c, next)) next = c;
        if (is_other && (other == NULL || is_faster(s, c, other))) other = c;
    }
    r->chosen = *best;
    r->has_runner_up = next != NULL;
    if (next != NULL) r->runner_up = *next;
    r->has_refused = refused != NULL;
    if (refused != NULL) r->refused = *refused;
    ls_search_explain(s->trial, other, s->limit, r);
}

/* Search within some share of host memory, with some of the ladder. */
static ls_status search_within(ls_searching *s, uint64_t host, int n_policies)
{
    const ls_trial *t = s->trial;

    s->n_kept = 0;
    s->best = -1;
    s->steps_left = MEASURED_STEPS_MAX;
    s->n_policies = n_policies;
    for (int p = 0; p < LS_PLACE_COUNT; p++)
        s->limit[p] = ls_choices_room(t->hardware, (ls_place_kind)p);
    s->limit[LS_PLACE_HOST] = host;
    s->closed_limit = (double)host + (double)s->limit[LS_PLACE_HBM] +
                      (double)s->limit[LS_PLACE_NVME] -
                      ls_save_states_bytes(t->config, t->model, true);
    LS_TRY(search_orders(s));
    if (s->best < 0) return LS_OK;
    LS_TRY(simulate_best(s));
    find_result(s);
    return LS_OK;
}

ls_status ls_choice_search(const ls_trial *trial, const ls_choices *base, ls_search *search)
{
    const uint64_t all = ls_choices_room(trial->hardware, LS_PLACE_HOST);
    const ls_decoder_shape shape = ls_model_config_shape(trial->model);
    ls_searching s = {.trial = trial, .base = base, .result = search};

    s.weight_bytes =
        (double)ls_decoder_params(&shape) * (double)ls_dtype_bytes(trial->config->precision);

    *search = (ls_search){.times_known = trial->rates != NULL};
    s.kept = malloc(LS_CANDIDATES_MAX * sizeof *s.kept);
    s.measured = malloc(LS_MEASURED_MAX * sizeof *s.measured);
    if (s.kept == NULL || s.measured == NULL) {
        free(s.kept);
        free(s.measured);
        return LS_FAIL(LS_ERR_NO_MEMORY, "%d plans to compare", LS_CANDIDATES_MAX);
    }
    ls_status status =
        search_within(&s, trial->config->save_auto ? ls_save_host_limit(trial->hardware) : all,
                      LS_SAVE_POLICIES_WITH_X);
    /* Rather all of the memory than attention once more for layers. */
    if (status == LS_OK && s.best < 0 && trial->config->save_auto)
        status = search_within(&s, all, LS_SAVE_POLICIES_WITH_X);
    if (status == LS_OK && s.best < 0 && trial->config->save_auto)
        status = search_within(&s, all, LS_SAVE_POLICIES);
    free(s.kept);
    free(s.measured);
    return status;
}
