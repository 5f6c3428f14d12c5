/* plan_changes.c - a change at a time, simulated. */
#include "plan_changes.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "simulate.h"
#include "text.h"

#define GAIN_LEAST   0.005
#define TRIED_MAX    16
#define BIGGER_STEPS (INT64_C(1) << 20) /* a plan of more is not built twice as large */
#define SEARCH_STEPS (INT64_C(1) << 17) /* for a plan of more no other is searched for */

typedef struct changing {
    const ls_trial *trial;
    const ls_search *search;
    double step_s;
    ls_plan_change tried[TRIED_MAX];
    int n;
} changing;

const char *ls_change_kind_name(ls_change_kind kind)
{
    static const char *const names[] = {"setting", "training", "hardware"};
    assert(kind >= LS_CHANGE_SETTING && kind <= LS_CHANGE_HARDWARE);
    return names[kind];
}

static double count_tokens(const ls_run_config *c)
{
    return (double)c->sequence_tokens * (double)c->sequences * (double)c->accumulate;
}

static void note(changing *c, ls_change_kind kind, const char *words, double tokens, double step_s)
{
    const double before = count_tokens(c->trial->config) / c->step_s, now = tokens / step_s;
    ls_plan_change *change = &c->tried[c->n];

    if (c->n == TRIED_MAX || now < before * (1 + GAIN_LEAST)) return;
    *change = (ls_plan_change){
        .kind = kind, .step_s = step_s, .tokens_per_s = now, .gain_fraction = now / before - 1};
    snprintf(change->words, sizeof change->words, "%s", words);
    c->n++;
}

static ls_status simulate(const ls_trial *t, const ls_choices *choices, double *step_s)
{
    ls_simulation simulation;
    ls_decoder decoder;
    ls_plan plan;
    const ls_decoder_options options = ls_choices_decoder(t->config, t->model, choices, true);
    const ls_ops *ops = t->hardware->ops != NULL ? t->hardware->ops : &ls_ops_cpu;

    LS_TRY(ls_decoder_build(&options, &decoder));
    ls_status status = ls_plan_lower(&decoder.tape, &choices->placement, ops, &plan);
    if (status == LS_OK) {
        status = ls_simulate(&plan, t->rates, NULL, NULL, &simulation);
        ls_plan_free(&plan);
    }
    ls_decoder_free(&decoder);
    if (status == LS_OK) *step_s = simulation.step_s;
    return status;
}

/* ---- settings ------------------------------------------------------------------------------ */

/* The run with another setting, searched as it would be: seconds of a step, 0 where none fits, and
 * what was chosen. */
static ls_status search_setting(const changing *c, const ls_run_config *config, double *step_s,
                                char name[LS_CANDIDATE_NAME_BYTES])
{
    const ls_trial *t = c->trial;
    ls_choices choices;
    ls_search search;

    *step_s = 0;
    if (ls_choices_make_any(config, t->model, t->hardware, true, &search, &choices) != LS_OK ||
        search.chosen.choices.chunk == 0)
        return LS_OK; /* it is no change to one that fits */
    ls_candidate_name(&search.chosen, name);
    *step_s = search.chosen.step_s;
    if (*step_s > 0) return LS_OK;
    ls_trial changed = *t;
    changed.config = config;
    return simulate(&changed, &choices, step_s);
}

static ls_status try_setting(changing *c, ls_change_kind kind, const char *key,
                             const ls_run_config *config)
{
    char words[LS_CHANGE_WORDS_BYTES], name[LS_CANDIDATE_NAME_BYTES];
    double step_s;

    LS_TRY(search_setting(c, config, &step_s, name));
    if (step_s == 0) return LS_OK;
    snprintf(words, sizeof words, "%s (%s)", key, name);
    note(c, kind, words, count_tokens(config), step_s);
    return LS_OK;
}

/* Each key that the run file gives and that might be left to the search. */
static ls_status try_open(changing *c)
{
    const ls_run_config *given = c->trial->config;
    ls_run_config open = *given; /* views: nothing of them is released */

    if (given->chunk > 0 || given->query_block > 0) {
        open.chunk = open.query_block = 0;
        LS_TRY(try_setting(c, LS_CHANGE_SETTING, "sequence.chunk, query_block: auto", &open));
    }
    open = *given;
    if (given->weights != LS_WEIGHTS_AUTO || given->ring_slots > 0) {
        open.weights = LS_WEIGHTS_AUTO;
        open.ring_slots = 0;
        LS_TRY(try_setting(c, LS_CHANGE_SETTING, "memory.weights, ring_slots: auto", &open));
    }
    open = *given;
    if (!given->save_auto) {
        open.save_auto = true;
        LS_TRY(try_setting(c, LS_CHANGE_SETTING, "memory.save: auto", &open));
    }
    open = *given;
    if (given->accumulate > 1 && given->accumulate_order != 0) {
        open.accumulate_order = 0;
        LS_TRY(try_setting(c, LS_CHANGE_SETTING, "batch.accumulate_order: auto", &open));
    }
    open = *given;
    if (given->serial_updates) {
        open.serial_updates = false;
        LS_TRY(try_setting(c, LS_CHANGE_SETTING, "optimizer.updates: overlap", &open));
    }
    return LS_OK;
}

/* Whether the compute lane alone takes nearly the whole step: less work elsewhere gains nothing. */
static bool is_busy_computing(const changing *c)
{
    return c->search->chosen.cost.compute_s * (1 + GAIN_LEAST) >= c->step_s;
}

/* A part of the updates where the layers compute: the best of a quarter, a half and all of them. */
static ls_status try_device_layers(changing *c)
{
    const ls_trial *t = c->trial;
    const int64_t L = t->model->num_hidden_layers;
    char words[LS_CHANGE_WORDS_BYTES], name[LS_CANDIDATE_NAME_BYTES];
    ls_run_config changed = *t->config;
    double least_s = 0, step_s;

    if (!t->hardware->has_device || changed.moments != LS_MOMENTS_F32 || is_busy_computing(c))
        return LS_OK;
    for (int64_t parts = 4; parts >= 1; parts /= 2) {
        changed.device_layers = (L + parts - 1) / parts;
        if (changed.device_layers == t->config->device_layers) continue;
        LS_TRY(search_setting(c, &changed, &step_s, name));
        if (step_s == 0 || (least_s > 0 && step_s >= least_s)) continue;
        least_s = step_s;
        snprintf(words, sizeof words, "optimizer.device_layers: %lld (%s)",
                 (long long)changed.device_layers, name);
    }
    if (least_s > 0) note(c, LS_CHANGE_SETTING, words, count_tokens(t->config), least_s);
    return LS_OK;
}

static ls_status try_training(changing *c)
{
    const ls_run_config *given = c->trial->config;
    ls_run_config changed = *given;

    if (is_busy_computing(c)) return LS_OK;
    if (given->moments == LS_MOMENTS_F32) {
        changed.moments = LS_MOMENTS_BF16;
        LS_TRY(try_setting(c, LS_CHANGE_TRAINING, "optimizer.moments: bf16, lossy", &changed));
    }
    changed = *given;
    if (given->gradients == LS_DTYPE_F32) {
        changed.gradients = LS_DTYPE_BF16;
        LS_TRY(try_setting(c, LS_CHANGE_TRAINING, "optimizer.gradients: bf16, lossy", &changed));
    }
    changed = *given;
    changed.accumulate *= 2;
    if (2 * c->search->chosen.cost.n_steps > BIGGER_STEPS) return LS_OK;
    return try_setting(c, LS_CHANGE_TRAINING, "batch.accumulate: twice as many", &changed);
}

/* ---- hardware ------------------------------------------------------------------------------ */

typedef enum better { LINK, HOST, HBM, MATMUL, ATTENTION, N_FIGURES } better;

static void scale_curve(ls_rate_curve *curve, double factor)
{
    for (int i = 0; i < curve->n; i++) curve->flops_per_s[i] *= factor;
}

static void scale(ls_cost_model *m, better what)
{
    switch (what) {
    case LINK:
        for (ls_resource r = LS_RESOURCE_LINK_IN; r <= LS_RESOURCE_LINK; r++)
            m->bytes_per_s[r] *= 2;
        m->in_place_bytes_per_s *= 2;
        break;
    case HOST:
        m->bytes_per_s[LS_RESOURCE_HOST] *= 2;
        m->host_lane_bytes_per_s *= 2;
        break;
    case HBM: m->bytes_per_s[LS_RESOURCE_HBM] *= 2; break;
    case MATMUL:
        scale_curve(&m->rates[LS_RATE_MATMUL], 1.25);
        scale_curve(&m->rates[LS_RATE_MATMUL_GRADIENT], 1.25);
        break;
    case ATTENTION:
        scale_curve(&m->rates[LS_RATE_ATTENTION_FORWARD], 1.25);
        scale_curve(&m->rates[LS_RATE_ATTENTION_BACKWARD], 1.25);
        break;
    case N_FIGURES: break;
    }
}

/* The same plan on a machine that is better at one thing. */
static ls_status try_rates(changing *c, const ls_plan *plan)
{
    static const char *const words[N_FIGURES] = {
        [LINK] = "a link twice as fast",
        [HOST] = "host memory twice as fast",
        [HBM] = "device memory twice as fast",
        [MATMUL] = "matrix products a quarter faster",
        [ATTENTION] = "attention a quarter faster",
    };
    const double tokens = count_tokens(c->trial->config);

    for (int f = 0; f < N_FIGURES; f++) {
        ls_cost_model rates = *c->trial->rates;
        ls_simulation simulation;
        scale(&rates, (better)f);
        LS_TRY(ls_simulate(plan, &rates, NULL, NULL, &simulation));
        note(c, LS_CHANGE_HARDWARE, words[f], tokens, simulation.step_s);
    }
    return LS_OK;
}

/* What the search had no room for. */
static ls_status try_room(changing *c)
{
    const ls_search *s = c->search;
    char words[LS_CHANGE_WORDS_BYTES], name[LS_CANDIDATE_NAME_BYTES], bytes[LS_TEXT_BYTES];
    double step_s;

    if (!s->has_refused) return LS_OK;
    LS_TRY(simulate(c->trial, &s->refused.choices, &step_s));
    snprintf(words, sizeof words, "more %s memory, by %s (%s)", ls_place_name(s->refused_place),
             ls_text_bytes(bytes, sizeof bytes, s->refused_short_bytes),
             ls_candidate_name(&s->refused, name));
    note(c, LS_CHANGE_HARDWARE, words, count_tokens(c->trial->config), step_s);
    return LS_OK;
}

/* ---- the best few -------------------------------------------------------------------------- */

/* Kinds in their order; of one what gains most. */
static bool is_before(const ls_plan_change *a, const ls_plan_change *b)
{
    if (a->kind != b->kind) return a->kind < b->kind;
    return a->gain_fraction > b->gain_fraction;
}

ls_status ls_plan_changes_find(const ls_trial *trial, const ls_plan *plan, const ls_search *search,
                               double step_s, ls_plan_changes *changes)
{
    changing c = {.trial = trial, .search = search, .step_s = step_s};

    *changes = (ls_plan_changes){.n = 0};
    if (trial->rates == NULL) return LS_OK;
    changes->is_partial = search->chosen.cost.n_steps > SEARCH_STEPS;
    if (!changes->is_partial) {
        LS_TRY(try_open(&c));
        LS_TRY(try_device_layers(&c));
        LS_TRY(try_training(&c));
        LS_TRY(try_room(&c));
    }
    LS_TRY(try_rates(&c, plan));
    for (int i = 1; i < c.n; i++) /* insertion: few, and equal ones keep their order */
        for (int j = i; j > 0 && is_before(&c.tried[j], &c.tried[j - 1]); j--) {
            const ls_plan_change swapped = c.tried[j];
            c.tried[j] = c.tried[j - 1];
            c.tried[j - 1] = swapped;
        }
    for (; changes->n < c.n && changes->n < LS_PLAN_CHANGES_MAX; changes->n++)
        changes->changes[changes->n] = c.tried[changes->n];
    return LS_OK;
}
