/* choice_why.c - why a plan was chosen over the next, in numbers that were measured. */
#include <stdio.h>
#include <string.h>

#include "choice_search.h"
#include "text.h"

const char *ls_candidate_name(const ls_candidate *candidate, char text[LS_CANDIDATE_NAME_BYTES])
{
    const ls_choices *c = &candidate->choices;
    const ls_class_placement *weights = &c->placement.classes[LS_CLASS_WEIGHTS];
    char save[LS_SAVES_TEXT_BYTES], ring[32] = "";

    if (weights->mode == LS_MODE_STREAM)
        snprintf(ring, sizeof ring, " through %lld slots", (long long)c->placement.ring_slots);
    snprintf(text, LS_CANDIDATE_NAME_BYTES, "chunk %lld, query block %lld, save %s, weights %s%s%s",
             (long long)c->chunk, (long long)c->query_block, ls_saves_describe(&c->saves, save),
             ls_mode_name(weights->mode), ring, c->layer_major ? ", layer by layer" : "");
    return text;
}

/* How much longer, and for what. */
static void explain_runner_up(ls_search *r)
{
    const ls_candidate *a = &r->chosen, *b = &r->runner_up;
    const double more_flops = b->cost.flops / a->cost.flops - 1.0;
    char name[LS_CANDIDATE_NAME_BYTES];

    ls_candidate_name(b, name);
    if (a->step_s > 0 && b->step_s > 0) {
        const double waits_a = a->step_s - a->cost.lower_bound_s;
        const double waits_b = b->step_s - b->cost.lower_bound_s;
        snprintf(r->why, sizeof r->why,
                 "%s: %.4g s, %.3g%% more: %+.3g s on its busiest (%s), %+.3g s of waits", name,
                 b->step_s, 100.0 * (b->step_s / a->step_s - 1.0),
                 b->cost.lower_bound_s - a->cost.lower_bound_s, b->cost.bound_by,
                 waits_b - waits_a);
    } else if (r->times_known) {
        snprintf(r->why, sizeof r->why,
                 "%s: not simulated: %.4g s at best (%s), the chosen %.4g s at best; %.3g%% more "
                 "arithmetic",
                 name, b->cost.lower_bound_s, b->cost.bound_by, a->cost.lower_bound_s,
                 100.0 * more_flops);
    } else {
        snprintf(r->why, sizeof r->why, "%s: %.3g%% more arithmetic", name, 100.0 * more_flops);
    }
}

static void explain_order(const ls_trial *trial, const ls_candidate *other, ls_search *r)
{
    const bool layer_major = r->chosen.choices.layer_major;
    const char *const is = layer_major ? "layer" : "sequence";
    const char *const is_not = layer_major ? "sequence" : "layer";

    if (trial->config->accumulate == 1)
        snprintf(r->why_order, sizeof r->why_order, "one micro-batch: there is no order");
    else if (trial->config->accumulate_order != 0)
        snprintf(r->why_order, sizeof r->why_order, "batch.accumulate_order asks for it");
    else if (!r->times_known)
        snprintf(r->why_order, sizeof r->why_order, "%s: %s; times are not known", is,
                 layer_major ? "the other does not fit"
                             : "keeps the activations of one micro-batch at a time");
    else if (other == NULL)
        snprintf(r->why_order, sizeof r->why_order, "%s: %s does not fit", is, is_not);
    else if (r->chosen.step_s > 0 && other->step_s > 0)
        snprintf(r->why_order, sizeof r->why_order, "%s: %.4g s a step, %s %.4g s", is,
                 r->chosen.step_s, is_not, other->step_s);
    else
        snprintf(r->why_order, sizeof r->why_order,
                 "%s: %.4g s a step at best, %s, not simulated, %.4g s at best", is,
                 r->chosen.cost.lower_bound_s, is_not, other->cost.lower_bound_s);
}

static void explain_refused(const uint64_t limit[LS_PLACE_COUNT], ls_search *r)
{
    const ls_candidate *c = &r->refused;
    char name[LS_CANDIDATE_NAME_BYTES], bytes[LS_TEXT_BYTES];
    int p = 0;

    while (p < LS_PLACE_COUNT - 1 && c->cost.place_bytes[p] <= limit[p]) p++;
    r->refused_place = (ls_place_kind)p;
    r->refused_short_bytes = c->cost.place_bytes[p] - limit[p];
    ls_candidate_name(c, name);
    snprintf(r->why_refused, sizeof r->why_refused, "%s: %.3g%% less %s, but short of %s by %s",
             name,
             100.0 * (r->times_known ? 1.0 - c->cost.lower_bound_s / r->chosen.cost.lower_bound_s
                                     : 1.0 - c->cost.flops / r->chosen.cost.flops),
             r->times_known ? "time" : "arithmetic", ls_place_name((ls_place_kind)p),
             ls_text_bytes(bytes, sizeof bytes, r->refused_short_bytes));
}

void ls_search_explain(const ls_trial *trial, const ls_candidate *other,
                       const uint64_t limit[LS_PLACE_COUNT], ls_search *search)
{
    explain_order(trial, other, search);
    if (search->has_runner_up) explain_runner_up(search);
    if (search->has_refused) explain_refused(limit, search);
}
