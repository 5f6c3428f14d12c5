/* summary.c - medians of steps, sums of joules over the steps that have them. */
#include "summary.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* A member of each step as an array. */
static ls_status typical_of_member(const ls_run_data *d, size_t offset, ls_typical *typical)
{
    double *values = malloc(((size_t)d->n_steps + 1) * sizeof *values);

    if (values == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a summary of a run");
    for (int64_t s = 0; s < d->n_steps; s++)
        memcpy(&values[s], (const char *)&d->steps[s] + offset, sizeof values[s]);
    const ls_status status = ls_typical_of(values, d->n_steps, typical);
    free(values);
    return status;
}

#define TYPICAL(d, member, typical) typical_of_member(d, offsetof(ls_run_step, member), typical)

static void sum_energy(const ls_run_data *d, ls_rail rail, ls_run_summary *s)
{
    double joules = 0.0, tokens = 0.0, flops = 0.0, seconds = 0.0, all_s = 0.0;
    double of_tokens = 0.0, of_flops = 0.0; /* joules of the steps that tell these */

    for (int64_t i = 0; i < d->n_steps; i++) {
        const ls_run_step *step = &d->steps[i];
        all_s += isfinite(step->step_s) ? step->step_s : 0.0;
        if (!isfinite(step->joules[rail]) || !isfinite(step->step_s)) continue;
        joules += step->joules[rail];
        seconds += step->step_s;
        if (isfinite(step->tokens)) {
            of_tokens += step->joules[rail];
            tokens += step->tokens;
        }
        if (isfinite(step->flops_model)) {
            of_flops += step->joules[rail];
            flops += step->flops_model;
        }
    }
    const bool any = seconds > 0.0;
    s->joules_all[rail] = any ? joules : (double)NAN;
    s->joules_per_token[rail] = tokens > 0.0 ? of_tokens / tokens : (double)NAN;
    s->joules_per_tflop[rail] = flops > 0.0 ? 1e12 * of_flops / flops : (double)NAN;
    s->watts[rail] = any ? joules / seconds : (double)NAN;
    s->known[rail] = all_s > 0.0 ? seconds / all_s : 0.0;
}

static void sum_time(const ls_run_data *d, ls_run_summary *s)
{
    double seconds = 0.0, predicted = 0.0;

    for (int64_t i = 0; i < d->n_steps; i++) {
        const ls_run_step *step = &d->steps[i];
        if (!isfinite(step->step_s)) continue;
        seconds += step->step_s;
        predicted += step->predicted_step_s;
        for (int lane = 0; lane < LS_RUN_LANES; lane++)
            s->lane_busy[lane] += step->lane_busy_s[lane];
        for (int f = 0; f < d->n_phases; f++)
            if (isfinite(step->phase_s[f])) s->phase_s[f] += step->phase_s[f];
    }
    for (int lane = 0; lane < LS_RUN_LANES; lane++) s->lane_busy[lane] /= seconds;
    for (int f = 0; f < d->n_phases; f++) s->phase_s[f] /= (double)d->n_steps;
    s->predicted = predicted / seconds;
}

/* What the copy lanes moved while they were busy, and what part of the profile's link that is. */
static void sum_copies(const ls_run_data *d, ls_run_summary *s)
{
    static const char *const keys[2] = {"link.copy_in_bytes_per_s", "link.copy_out_bytes_per_s"};

    for (int way = 0; way < 2; way++) {
        double bytes = 0.0, seconds = 0.0;
        for (int64_t i = 0; i < d->n_steps; i++) {
            const ls_run_step *step = &d->steps[i];
            const double moved = way == 0 ? step->bytes_in : step->bytes_out;
            if (!isfinite(moved) || !isfinite(step->lane_busy_s[1 + way])) continue;
            bytes += moved;
            seconds += step->lane_busy_s[1 + way];
        }
        s->copy_rate[way] = bytes > 0.0 && seconds > 0.0 ? bytes / seconds : (double)NAN;
        s->link_fraction[way] = s->copy_rate[way] / ls_run_data_number(d, keys[way]);
    }
}

static void sum_steps(const ls_run_data *d, ls_run_summary *s)
{
    s->peak_host = s->peak_hbm = (double)NAN;
    for (int64_t i = 0; i < d->n_steps; i++) {
        s->tokens += d->steps[i].tokens;
        s->skipped += d->steps[i].skipped;
        s->peak_host = fmax(s->peak_host, d->steps[i].peak_host);
        s->peak_hbm = fmax(s->peak_hbm, d->steps[i].peak_hbm);
    }
    s->loss = d->n_steps > 0 ? d->steps[d->n_steps - 1].loss : (double)NAN;
    s->eval_loss = d->n_evals > 0 ? d->evals[d->n_evals - 1].loss : (double)NAN;
}

ls_status ls_run_summarize(const ls_run_data *data, ls_run_summary *s)
{
    *s = (ls_run_summary){.data = data, .steps = data->n_steps};
    LS_TRY(TYPICAL(data, step_s, &s->step_s));
    LS_TRY(TYPICAL(data, tokens_per_s, &s->tokens_per_s));
    LS_TRY(TYPICAL(data, mfu_causal, &s->mfu_causal));
    LS_TRY(TYPICAL(data, mfu_megatron, &s->mfu_megatron));
    LS_TRY(TYPICAL(data, tflops_alst, &s->tflops_alst));
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) {
        const size_t offset = offsetof(ls_run_step, joules) + (size_t)rail * sizeof(double);
        LS_TRY(typical_of_member(data, offset, &s->joules[rail]));
        sum_energy(data, rail, s);
    }
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) {
        char path[96];
        snprintf(path, sizeof path, "power.summary.rails.%s.idle_watts", ls_rail_name(rail));
        s->idle_watts[rail] = ls_run_data_number(data, path);
    }
    sum_time(data, s);
    sum_copies(data, s);
    sum_steps(data, s);
    return LS_OK;
}

ls_rail ls_report_rail(const ls_run_summary *runs, int n_runs)
{
    static const ls_rail order[] = {LS_RAIL_MODULE, LS_RAIL_GPU, LS_RAIL_CPU};

    for (size_t o = 0; o < sizeof order / sizeof order[0]; o++) {
        int n = 0;
        for (int r = 0; r < n_runs; r++) n += isfinite(runs[r].joules_per_token[order[o]]);
        if (n == n_runs) return order[o];
    }
    return LS_RAIL_NONE;
}
