/* page_charts.c - figures of runs as series of charts. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "new_file.h"
#include "page.h"

/* ---- numbers of a chart -------------------------------------------------------------------- */

static void begin_chart(ls_page *p, const char *id, const char *title, const char *x, const char *y)
{
    p->n_arena = 0;
    memset(&p->chart, 0, sizeof p->chart);
    p->chart.id = id;
    p->chart.title = title;
    p->chart.x_label = x;
    p->chart.y_label = y;
}

static double *take(ls_page *p, int64_t n)
{
    double *at = p->arena + p->n_arena;
    p->n_arena += n;
    return p->n_arena <= p->arena_max ? at : NULL;
}

static ls_status write_svg(const ls_page *p)
{
    char path[4200];
    ls_new_file svg;

    snprintf(path, sizeof path, "%s/%s.svg", p->out, p->chart.id);
    LS_TRY(ls_new_file_open(path, &svg));
    ls_chart_write(svg.file, &p->chart, true);
    return ls_new_file_close(&svg, LS_OK);
}

static ls_status end_chart(ls_page *p)
{
    if (!ls_chart_has_data(&p->chart)) return LS_OK;
    fputs("<figure><figcaption>", p->file);
    ls_chart_write_text(p->file, p->chart.title);
    fputs("</figcaption>\n", p->file);
    ls_chart_write(p->file, &p->chart, false);
    if (p->chart.note != NULL) {
        fputs("<p class=\"note\">", p->file);
        ls_chart_write_text(p->file, p->chart.note);
        fputs("</p>", p->file);
    }
    fputs("</figure>\n", p->file);
    return write_svg(p);
}

/* A member of each step over the step's number. */
static void add_member(ls_page *p, const ls_run_data *d, const char *name, size_t offset, int color)
{
    double *x = take(p, d->n_steps), *y = take(p, d->n_steps);

    if (x == NULL || y == NULL) return;
    for (int64_t i = 0; i < d->n_steps; i++) {
        x[i] = (double)d->steps[i].step;
        memcpy(&y[i], (const char *)&d->steps[i] + offset, sizeof y[i]);
    }
    ls_chart_series *s = ls_chart_add(&p->chart, name, x, y, d->n_steps);
    if (s != NULL) s->color = color;
}

#define ADD(p, d, name, member, color) add_member(p, d, name, offsetof(ls_run_step, member), color)

/* ---- charts of all runs -------------------------------------------------------------------- */

static void add_evals(ls_page *p, const ls_run_data *d, int color)
{
    double *x = take(p, d->n_evals), *y = take(p, d->n_evals);

    if (x == NULL || y == NULL || d->n_evals == 0) return;
    for (int64_t i = 0; i < d->n_evals; i++) {
        x[i] = (double)d->evals[i].step;
        y[i] = d->evals[i].loss;
    }
    /* beside others a mark's colour is its run's, and the note says what marks are */
    ls_chart_series *s = ls_chart_add(&p->chart, p->n_runs > 1 ? "" : "held-out", x, y, d->n_evals);
    if (s == NULL) return;
    s->points = true;
    s->color = color;
}

static ls_status chart_loss(ls_page *p)
{
    begin_chart(p, "loss", "Loss", "step", "nats per token");
    for (int r = 0; r < p->n_runs; r++) {
        ADD(p, p->runs[r].data, p->n_runs > 1 ? p->runs[r].data->label : "training", loss, r);
        add_evals(p, p->runs[r].data, p->n_runs > 1 ? r : 1);
    }
    if (p->n_runs > 1) p->chart.note = "Lines: training. Marks: held-out.";
    return end_chart(p);
}

static ls_status chart_speed(ls_page *p)
{
    begin_chart(p, "tokens_per_s", "Throughput", "step", "tokens/s");
    p->chart.y_from_zero = true;
    for (int r = 0; r < p->n_runs; r++)
        ADD(p, p->runs[r].data, p->runs[r].data->label, tokens_per_s, r);
    p->chart.note = "Tokens of the data; padding does not count.";
    return end_chart(p);
}

static ls_status chart_position(ls_page *p)
{
    begin_chart(p, "loss_by_position", "Loss by position", "position in the sequence, tokens",
                "nats per token");
    p->chart.x_log = true;
    for (int r = 0; r < p->n_runs; r++) {
        const ls_run_data *d = p->runs[r].data;
        double *x = take(p, d->n_bins), *y = take(p, d->n_bins);
        if (x == NULL || y == NULL || d->n_bins == 0) continue;
        for (int64_t b = 0; b < d->n_bins; b++) {
            x[b] = 0.5 * (d->bins[b].from + d->bins[b].to);
            y[b] = d->bins[b].loss;
        }
        ls_chart_add(&p->chart, d->label, x, y, d->n_bins)->color = r;
    }
    p->chart.note = "Of the latest evaluation, else of the last step; each bin at its middle.";
    return end_chart(p);
}

static ls_status chart_joules_per_token(ls_page *p)
{
    const ls_rail rail = ls_report_rail(p->runs, p->n_runs);
    char title[96];

    if (rail == LS_RAIL_NONE) return LS_OK;
    snprintf(title, sizeof title, "Energy per token, rail %s", ls_rail_name(rail));
    begin_chart(p, "joules_per_token", title, "step", "J per token");
    p->chart.y_from_zero = true;
    for (int r = 0; r < p->n_runs; r++) {
        const ls_run_data *d = p->runs[r].data;
        double *x = take(p, d->n_steps), *y = take(p, d->n_steps);
        if (x == NULL || y == NULL) continue;
        for (int64_t i = 0; i < d->n_steps; i++) {
            x[i] = (double)d->steps[i].step;
            y[i] = d->steps[i].joules[rail] / d->steps[i].tokens;
        }
        ls_chart_add(&p->chart, d->label, x, y, d->n_steps)->color = r;
    }
    return end_chart(p);
}

/* A mark for each run. */
static ls_status chart_power_and_speed(ls_page *p)
{
    const ls_rail rail = ls_report_rail(p->runs, p->n_runs);
    char title[96];

    if (rail == LS_RAIL_NONE || p->n_runs < 2) return LS_OK;
    snprintf(title, sizeof title, "Power and throughput, rail %s", ls_rail_name(rail));
    begin_chart(p, "power_and_tokens_per_s", title, "tokens/s", "W");
    p->chart.y_from_zero = true;
    for (int r = 0; r < p->n_runs; r++) {
        double *x = take(p, 1), *y = take(p, 1);
        if (x == NULL || y == NULL) continue;
        x[0] = p->runs[r].tokens_per_s.median;
        y[0] = p->runs[r].watts[rail];
        ls_chart_series *s = ls_chart_add(&p->chart, p->runs[r].data->label, x, y, 1);
        if (s == NULL) continue;
        s->points = true;
        s->color = r;
    }
    return end_chart(p);
}

/* ---- charts of one run --------------------------------------------------------------------- */

static const char *name_chart(char text[64], const char *what, int run, int n_runs)
{
    if (n_runs > 1)
        snprintf(text, 64, "%s_%d", what, run + 1);
    else
        snprintf(text, 64, "%s", what);
    return text;
}

static ls_status chart_lanes(ls_page *p, int run)
{
    const ls_run_data *d = p->runs[run].data;
    char id[64];

    begin_chart(p, name_chart(id, "step_by_lane", run, p->n_runs), "Step time by lane", "step",
                "s");
    p->chart.y_from_zero = true;
    ADD(p, d, "step", step_s, 7);
    for (int lane = 0; lane < LS_RUN_LANES; lane++)
        if (p->runs[run].lane_busy[lane] > 0.0)
            add_member(p, d, ls_run_lane_names[lane],
                       offsetof(ls_run_step, lane_busy_s) + (size_t)lane * sizeof(double), lane);
    if (isfinite(p->runs[run].predicted)) ADD(p, d, "predicted", predicted_step_s, 6);
    p->chart.note = "Lanes work side by side: they do not add up to the step.";
    return end_chart(p);
}

static ls_status chart_live(ls_page *p, int run)
{
    const ls_run_data *d = p->runs[run].data;
    const int64_t n = d->n_levels;
    double *x, *host, *hbm;
    char id[64];

    begin_chart(p, name_chart(id, "memory_of_a_step", run, p->n_runs),
                "Memory over the traced steps", "s", "bytes in use");
    p->chart.y_from_zero = true;
    x = take(p, n);
    host = take(p, n);
    hbm = take(p, n);
    if (x == NULL || host == NULL || hbm == NULL) return LS_OK;
    for (int64_t i = 0; i < n; i++) {
        x[i] = d->levels[i].time_s;
        host[i] = d->levels[i].host;
        hbm[i] = d->levels[i].hbm > 0.0 ? d->levels[i].hbm : (double)NAN;
    }
    ls_chart_add(&p->chart, "host", x, host, n);
    if (isfinite(p->runs[run].peak_hbm)) ls_chart_add(&p->chart, "device", x, hbm, n);
    p->chart.note = "Bytes of the plan that hold something, by the compute lane's place in it.";
    return end_chart(p);
}

static ls_status chart_memory(ls_page *p, int run)
{
    const ls_run_data *d = p->runs[run].data;
    char id[64];

    begin_chart(p, name_chart(id, "memory", run, p->n_runs), "Memory", "s since the start",
                "bytes");
    p->chart.y_from_zero = true;
    double *x = take(p, d->n_samples), *y = take(p, d->n_samples), *hbm = take(p, d->n_samples);
    if (x == NULL || y == NULL || hbm == NULL) return LS_OK;
    for (int64_t i = 0; i < d->n_samples; i++) {
        x[i] = d->samples[i].time_s;
        y[i] = d->samples[i].resident_bytes;
        hbm[i] = p->runs[run].peak_hbm;
    }
    ls_chart_add(&p->chart, "host, resident", x, y, d->n_samples);
    if (isfinite(p->runs[run].peak_hbm))
        ls_chart_add(&p->chart, "device, reserved", x, hbm, d->n_samples);
    return end_chart(p);
}

/* Stretches of one phase, the shortest left out where there are too many. */
static void shade_phases(ls_page *p, const ls_run_data *d)
{
    double shortest = 0.0;
    bool used[LS_RUN_PHASES_MAX] = {false};
    ls_chart *c = &p->chart;

    for (c->n_bands = LS_CHART_BANDS_MAX; c->n_bands == LS_CHART_BANDS_MAX;
         shortest += shortest + 0.1) {
        int64_t from = 0;
        c->n_bands = 0;
        memset(used, 0, sizeof used);
        for (int64_t i = 1; i <= d->n_samples && c->n_bands < LS_CHART_BANDS_MAX; i++) {
            if (i < d->n_samples && d->samples[i].phase == d->samples[from].phase) continue;
            const int phase = d->samples[from].phase;
            const double start = d->samples[from].time_s;
            const double end = d->samples[i < d->n_samples ? i : i - 1].time_s;
            from = i;
            if (phase < 0 || end - start <= shortest) continue;
            c->bands[c->n_bands++] = (ls_chart_band){start, end, phase};
            used[phase] = true;
        }
    }
    for (int f = 0; f < d->n_phases; f++) {
        if (!used[f]) continue;
        c->band_names[c->n_band_names].color = f;
        snprintf(c->band_names[c->n_band_names++].name, sizeof c->band_names[0].name, "%s",
                 d->phases[f]);
    }
}

static ls_status chart_power(ls_page *p, int run)
{
    const ls_run_data *d = p->runs[run].data;
    char id[64];
    bool any = false;

    begin_chart(p, name_chart(id, "power", run, p->n_runs), "Power by rail", "s since the start",
                "W");
    p->chart.y_from_zero = true;
    double *x = take(p, d->n_samples);
    if (x == NULL) return LS_OK;
    for (int64_t i = 0; i < d->n_samples; i++) x[i] = d->samples[i].time_s;
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) {
        double *y = take(p, d->n_samples);
        bool has = false;
        if (y == NULL) return LS_OK;
        for (int64_t i = 0; i < d->n_samples; i++) {
            y[i] = d->samples[i].watts[rail];
            has |= isfinite(y[i]);
        }
        any |= has;
        if (has) ls_chart_add(&p->chart, ls_rail_name(rail), x, y, d->n_samples)->color = (int)rail;
    }
    if (!any) return LS_OK;
    shade_phases(p, d);
    p->chart.note = "Shaded: what the run was doing. Rails overlap; they do not add up.";
    return end_chart(p);
}

/* ---- all of them --------------------------------------------------------------------------- */

ls_status ls_page_shared_charts(ls_page *p)
{
    LS_TRY(chart_loss(p));
    LS_TRY(chart_speed(p));
    LS_TRY(chart_joules_per_token(p));
    LS_TRY(chart_power_and_speed(p));
    return chart_position(p);
}

ls_status ls_page_run_charts(ls_page *p, int run)
{
    LS_TRY(chart_lanes(p, run));
    LS_TRY(chart_power(p, run));
    LS_TRY(chart_live(p, run));
    return chart_memory(p, run);
}

int64_t ls_page_count_numbers(const ls_run_summary *runs, int n_runs)
{
    int64_t n = 64;
    for (int r = 0; r < n_runs; r++)
        n += 20 * (runs[r].data->n_steps + runs[r].data->n_evals + runs[r].data->n_bins +
                   runs[r].data->n_samples + runs[r].data->n_levels);
    return n;
}
