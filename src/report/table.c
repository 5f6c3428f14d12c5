/* table.c - the terminal's view: figures as rows, runs as columns, so that names have room. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "chart.h"
#include "summary.h"
#include "text.h"

#define NAME_WIDTH  22
#define VALUE_WIDTH 18

const char *ls_report_compare(char text[64], const ls_typical *base, const ls_typical *other)
{
    const ls_comparison c = ls_compare(base, other);

    if (isnan(c.ratio))
        snprintf(text, 64, "-");
    else if (c.verdict == 2)
        snprintf(text, 64, "x%.3f (too few)", c.ratio);
    else if (c.verdict == 0)
        snprintf(text, 64, "same within %.1f%%", 100.0 * c.band);
    else
        snprintf(text, 64, "%+.1f%% (+-%.1f%%)", 100.0 * (c.ratio - 1.0), 100.0 * c.band);
    return text;
}

static void put_name(FILE *f, const char *name)
{
    fprintf(f, "%-*.*s", NAME_WIDTH, NAME_WIDTH - 1, name);
}

/* As many characters as a column has. */
static void put_label(FILE *f, const char *label)
{
    const size_t bytes = ls_text_cut(label, VALUE_WIDTH);

    fprintf(f, " %*s%.*s", VALUE_WIDTH - (int)ls_text_letters(label, bytes), "", (int)bytes, label);
}

static void put_value(FILE *f, double value)
{
    char text[32];

    if (isfinite(value))
        fprintf(f, " %*s", VALUE_WIDTH, ls_chart_number(text, value));
    else
        fprintf(f, " %*s", VALUE_WIDTH, "-");
}

/* With its noise. */
static void put_typical(FILE *f, const ls_typical *t)
{
    char number[32], text[64];

    if (!isfinite(t->median)) {
        put_value(f, (double)NAN);
        return;
    }
    if (isfinite(t->noise))
        snprintf(text, sizeof text, "%s +-%.1f%%", ls_chart_number(number, t->median),
                 100.0 * t->noise / t->median);
    else
        snprintf(text, sizeof text, "%s", ls_chart_number(number, t->median));
    fprintf(f, " %*s", VALUE_WIDTH, text);
}

typedef double figure(const ls_run_summary *s);

static double figure_steps(const ls_run_summary *s)
{
    return (double)s->steps;
}
static double figure_skipped(const ls_run_summary *s)
{
    return (double)s->skipped;
}
static double figure_tokens(const ls_run_summary *s)
{
    return s->tokens;
}
static double figure_loss(const ls_run_summary *s)
{
    return s->loss;
}
static double figure_eval_loss(const ls_run_summary *s)
{
    return s->eval_loss;
}
static double figure_mfu(const ls_run_summary *s)
{
    return s->mfu_causal.median;
}
static double figure_megatron(const ls_run_summary *s)
{
    return s->mfu_megatron.median;
}
static double figure_alst(const ls_run_summary *s)
{
    return s->tflops_alst.median;
}
static double figure_predicted(const ls_run_summary *s)
{
    return s->predicted;
}
static double figure_host(const ls_run_summary *s)
{
    return s->peak_host;
}
static double figure_hbm(const ls_run_summary *s)
{
    return s->peak_hbm;
}

static double figure_in(const ls_run_summary *s)
{
    return 1e-9 * s->copy_rate[0];
}
static double figure_out(const ls_run_summary *s)
{
    return 1e-9 * s->copy_rate[1];
}
static double figure_in_part(const ls_run_summary *s)
{
    return s->link_fraction[0];
}
static double figure_out_part(const ls_run_summary *s)
{
    return s->link_fraction[1];
}

static void put_figure(FILE *f, const char *name, figure *of, const ls_run_summary *runs, int n)
{
    bool any = false;

    for (int r = 0; r < n; r++) any |= isfinite(of(&runs[r]));
    if (!any) return;
    put_name(f, name);
    for (int r = 0; r < n; r++) put_value(f, of(&runs[r]));
    fputc('\n', f);
}

static void put_measured(FILE *f, const char *name, size_t offset, const ls_run_summary *runs,
                         int n)
{
    char text[64];

    put_name(f, name);
    for (int r = 0; r < n; r++)
        put_typical(f, (const ls_typical *)(const void *)((const char *)&runs[r] + offset));
    fputc('\n', f);
    if (n < 2) return;
    put_name(f, "  against the first");
    for (int r = 0; r < n; r++) {
        const ls_typical *base = (const void *)((const char *)&runs[0] + offset);
        const ls_typical *other = (const void *)((const char *)&runs[r] + offset);
        fprintf(f, " %*s", VALUE_WIDTH, r == 0 ? "" : ls_report_compare(text, base, other));
    }
    fputc('\n', f);
}

static void put_rail(FILE *f, ls_rail rail, const ls_run_summary *runs, int n)
{
    char name[64];
    bool any = false;

    for (int r = 0; r < n; r++) any |= isfinite(runs[r].watts[rail]);
    if (!any) return;
    snprintf(name, sizeof name, "%s W", ls_rail_name(rail));
    put_name(f, name);
    for (int r = 0; r < n; r++) put_value(f, runs[r].watts[rail]);
    snprintf(name, sizeof name, "%s W at rest", ls_rail_name(rail));
    fputc('\n', f);
    put_name(f, name);
    for (int r = 0; r < n; r++) put_value(f, runs[r].idle_watts[rail]);
    snprintf(name, sizeof name, "%s J/token", ls_rail_name(rail));
    fputc('\n', f);
    put_name(f, name);
    for (int r = 0; r < n; r++) put_value(f, runs[r].joules_per_token[rail]);
    snprintf(name, sizeof name, "%s J/TFLOP", ls_rail_name(rail));
    fputc('\n', f);
    put_name(f, name);
    for (int r = 0; r < n; r++) put_value(f, runs[r].joules_per_tflop[rail]);
    fputc('\n', f);
}

static void put_power(FILE *f, const ls_run_summary *runs, int n)
{
    bool any = false;

    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) {
        put_rail(f, rail, runs, n);
        for (int r = 0; r < n; r++) any |= isfinite(runs[r].watts[rail]);
    }
    if (any)
        fputs("rails overlap (module holds gpu and grace): never add them\n", f);
    else
        fputs("no energy: no sensor covered the steps; run.json says why (missing)\n", f);
}

void ls_report_table(FILE *file, const ls_run_summary *runs, int n_runs)
{
    put_name(file, "run");
    for (int r = 0; r < n_runs; r++) put_label(file, runs[r].data->label);
    fputc('\n', file);
    put_figure(file, "steps", figure_steps, runs, n_runs);
    put_figure(file, "steps skipped", figure_skipped, runs, n_runs);
    put_figure(file, "tokens", figure_tokens, runs, n_runs);
    put_figure(file, "loss, last step", figure_loss, runs, n_runs);
    put_figure(file, "held-out loss", figure_eval_loss, runs, n_runs);
    put_measured(file, "tokens/s", offsetof(ls_run_summary, tokens_per_s), runs, n_runs);
    put_measured(file, "step, s", offsetof(ls_run_summary, step_s), runs, n_runs);
    put_figure(file, "MFU causal", figure_mfu, runs, n_runs);
    put_figure(file, "MFU megatron", figure_megatron, runs, n_runs);
    put_figure(file, "TFLOP/s alst", figure_alst, runs, n_runs);
    put_figure(file, "predicted / measured", figure_predicted, runs, n_runs);
    put_figure(file, "copies in, GB/s", figure_in, runs, n_runs); /* while they run */
    put_figure(file, "  of the link's", figure_in_part, runs, n_runs);
    put_figure(file, "copies out, GB/s", figure_out, runs, n_runs);
    put_figure(file, "  of the link's", figure_out_part, runs, n_runs);
    put_figure(file, "peak host, bytes", figure_host, runs, n_runs);
    put_figure(file, "peak hbm, bytes", figure_hbm, runs, n_runs);
    put_power(file, runs, n_runs);
    for (int r = 0; r < n_runs; r++)
        if (runs[r].data->n_lines_torn > 0)
            fprintf(file, "%s: its last line is torn (killed, or still running)\n",
                    runs[r].data->label);
    for (int r = 0; r < n_runs; r++)
        if (runs[r].data->fault[0] != '\0')
            fprintf(file, "%s: %s\n", runs[r].data->label, runs[r].data->fault);
}
