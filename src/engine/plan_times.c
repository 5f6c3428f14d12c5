/* plan_times.c - a plan's step on the clock of its machine, and the table of it. */
#include "plan_times.h"

#include <string.h>

#include "plan_report.h"
#include "text.h"

#define BAR_COLUMNS 40
#define DAY_S       86400.0
#define KWH_J       3.6e6
#define JOB_HOURS   12 /* a common limit of batch queues */

/* Model FLOPs with attention over all pairs, as if it were not causal. */
static double count_dense_model(const ls_run_config *c, const ls_decoder_options *o)
{
    const ls_decoder_shape *s = &o->shape;
    const double sequences = (double)(c->sequences * c->accumulate);
    const double n = (double)c->sequence_tokens;

    return 6.0 * (double)ls_decoder_matmul_params(s) * sequences * n +
           12.0 * (double)(s->H * s->K * s->L) * sequences * n * n;
}

/* Where bench starts from: a built-in profile by its name, any other by its file. */
static const char *find_profile(const ls_hardware *h)
{
    return strcmp(h->profile_file, "built in") == 0 ? h->profile : h->profile_file;
}

void ls_plan_times_explain(const ls_hardware *hardware, const ls_cost_model *model,
                           char why[LS_TIME_WHY_BYTES])
{
    static const char links[] = "longspan bench links --hardware ";
    const char *measure = hardware->is_elsewhere ? "measure on that machine" : "measure here";
    const char *profile = find_profile(hardware);

    snprintf(why, LS_TIME_WHY_BYTES, "%s", model->why_unknown);
    if (model->why_unknown[0] == '\0' || model->lacks == 0) return;
    const size_t n = strlen(why);
    if (model->lacks == LS_COST_LACKS_LINKS)
        snprintf(why + n, LS_TIME_WHY_BYTES - n,
                 "; %s: %s%s --save FILE.yaml; then plan with --hardware FILE.yaml", measure, links,
                 profile);
    else
        snprintf(why + n, LS_TIME_WHY_BYTES - n,
                 "; %s: longspan bench ops --hardware %s --save FILE.yaml%s%s%s; then plan with "
                 "--hardware FILE.yaml",
                 measure, profile, model->lacks & LS_COST_LACKS_LINKS ? ", " : "",
                 model->lacks & LS_COST_LACKS_LINKS ? links : "",
                 model->lacks & LS_COST_LACKS_LINKS ? "FILE.yaml --save FILE.yaml" : "");
}

ls_status ls_plan_predict(const ls_hardware *hardware, const ls_plan *plan, ls_dtype dtype,
                          ls_prediction *prediction)
{
    const bool on_gpu = hardware->has_device && !hardware->emulated;
    ls_cost_model model = ls_cost_model_make(hardware->topology, on_gpu, dtype);
    ls_prediction made = {.peak_flops_per_s = model.peak_flops_per_s};

    ls_cost_model_fit(&model, plan);
    ls_plan_times_explain(hardware, &model, made.why_unknown);
    memcpy(made.why_no_energy, model.power.why_unknown, sizeof made.why_no_energy);
    if (made.why_unknown[0] == '\0')
        LS_TRY(ls_simulate(plan, &model, NULL, NULL, &made.simulation));
    *prediction = made;
    return LS_OK;
}

static void read_energy(const ls_simulation *s, int64_t tokens, ls_plan_times *times)
{
    const double joules = s->gpu_j + s->cpu_j;

    times->watts_average = joules / s->step_s;
    times->kwh_per_million_tokens = joules / KWH_J / (1e-6 * (double)tokens);
}

ls_status ls_plan_times_make(const ls_plan_report *r, const ls_decoder_options *options,
                             ls_plan_times *times)
{
    const double dense = count_dense_model(r->config, options);
    ls_plan_times made = {.tokens_per_s = 0};
    ls_prediction prediction;

    LS_TRY(ls_plan_predict(r->hardware, r->plan, options->dtype, &prediction));
    memcpy(made.why_unknown, prediction.why_unknown, sizeof made.why_unknown);
    memcpy(made.why_no_energy, prediction.why_no_energy, sizeof made.why_no_energy);
    if (made.why_unknown[0] == '\0') {
        const double step_s = prediction.simulation.step_s;
        made.simulation = prediction.simulation;
        made.tokens_per_s = (double)r->tokens / step_s;
        made.mfu_causal = r->flops_model / (step_s * prediction.peak_flops_per_s);
        made.mfu_megatron = dense / (step_s * prediction.peak_flops_per_s);
        made.tflops_alst = 1e-12 * dense * 8.0 / 6.0 / step_s;
        if (made.why_no_energy[0] == '\0') read_energy(&made.simulation, r->tokens, &made);
    }
    *times = made;
    return LS_OK;
}

/* ---- table --------------------------------------------------------------------------------- */

static void print_lane(const char *name, double seconds, double step_s, FILE *file)
{
    const double share = seconds / step_s;
    const int columns = (int)(share * BAR_COLUMNS + 0.5);

    fprintf(file, "  %-10s %10.4g s %6.1f%%  ", name, seconds, 100.0 * share);
    for (int i = 0; i < columns; i++) fputc('#', file);
    fputc('\n', file);
}

static void print_energy(const ls_plan_times *t, FILE *file)
{
    const ls_simulation *s = &t->simulation;

    if (t->why_no_energy[0] != '\0') {
        fprintf(file, "energy: not known: %s\n", t->why_no_energy);
        return;
    }
    fprintf(file, "energy: %.4g kJ per step, %.4g W on average (", 1e-3 * (s->gpu_j + s->cpu_j),
            t->watts_average);
    if (s->gpu_j > 0) fprintf(file, "gpu %.4g, ", s->gpu_j / s->step_s);
    fprintf(file, "cpu %.4g), %.4g at most; %.4g kWh per million tokens", s->cpu_j / s->step_s,
            s->watts_peak, t->kwh_per_million_tokens);
    if (s->capped_s > 0)
        fprintf(file, "; a power cap slows %.3g%% of the step", 100.0 * s->capped_s / s->step_s);
    fputc('\n', file);
}

void ls_plan_times_print(const ls_plan_report *r, FILE *file)
{
    const ls_plan_times *t = &r->times;
    const ls_simulation *s = &t->simulation;
    char day[LS_TEXT_BYTES];

    if (t->why_unknown[0] != '\0') {
        fprintf(file, "time: not known: %s\n", t->why_unknown);
        return;
    }
    fprintf(file, "time: %.4g s per step (simulated), %.1f%% above its lower bound, which is %s\n",
            s->step_s, 100.0 * (s->step_s / s->lower_bound_s - 1.0), s->bound_by);
    for (int lane = 0; lane < LS_LANE_COUNT; lane++)
        if (s->lane_busy_s[lane] > 0)
            print_lane(ls_lane_name((ls_lane)lane), s->lane_busy_s[lane], s->step_s, file);
    fprintf(file,
            "%.4g tokens/s, %s tokens a day, %.0f sequences in %d hours; MFU %.1f%% causal, %.1f%% "
            "megatron, %.4g TFLOP/s alst\n",
            t->tokens_per_s, ls_text_count(day, sizeof day, (int64_t)(t->tokens_per_s * DAY_S)),
            3600.0 * JOB_HOURS / s->step_s * (double)(r->config->sequences * r->config->accumulate),
            JOB_HOURS, 100.0 * t->mfu_causal, 100.0 * t->mfu_megatron, t->tflops_alst);
    print_energy(t, file);
}
