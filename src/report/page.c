/*
 * page.c - report.html: one file without a script, a font or a picture from elsewhere; every chart
 * also as an .svg beside it.
 */
#include "page.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "new_file.h"

/* ---- tables -------------------------------------------------------------------------------- */

static void put_cell(ls_page *p, const char *text)
{
    fputs("<td>", p->file);
    ls_chart_write_text(p->file, text);
    fputs("</td>", p->file);
}

static void put_number(ls_page *p, double value)
{
    char text[32];
    put_cell(p, isfinite(value) ? ls_chart_number(text, value) : "–");
}

static void begin_row(ls_page *p, const char *name)
{
    fputs("<tr><th>", p->file);
    ls_chart_write_text(p->file, name);
    fputs("</th>", p->file);
}

static void put_row(ls_page *p, const char *name, size_t offset)
{
    bool any = false;
    double value;

    for (int r = 0; r < p->n_runs; r++) {
        memcpy(&value, (const char *)&p->runs[r] + offset, sizeof value);
        any |= isfinite(value);
    }
    if (!any) return;
    begin_row(p, name);
    for (int r = 0; r < p->n_runs; r++) {
        memcpy(&value, (const char *)&p->runs[r] + offset, sizeof value);
        put_number(p, value);
    }
    fputs("</tr>\n", p->file);
}

#define ROW(p, name, member) put_row(p, name, offsetof(ls_run_summary, member))

static void put_comparison(ls_page *p, const ls_typical *base, const ls_typical *other,
                           bool more_is_good)
{
    const ls_comparison c = ls_compare(base, other);
    char text[64];

    const char *class = c.verdict == 1 || c.verdict == -1
                            ? (c.verdict == 1) == more_is_good ? "good" : "bad"
                            : "dim";
    fprintf(p->file, "<td class=\"%s\">", class);
    ls_chart_write_text(p->file, ls_report_compare(text, base, other));
    fputs("</td>", p->file);
}

static void put_measured(ls_page *p, const char *name, size_t offset, bool more_is_good)
{
    char number[32], text[64];

    begin_row(p, name);
    for (int r = 0; r < p->n_runs; r++) {
        const ls_typical *t = (const void *)((const char *)&p->runs[r] + offset);
        if (isfinite(t->noise))
            snprintf(text, sizeof text, "%s ± %.1f%%", ls_chart_number(number, t->median),
                     100.0 * t->noise / t->median);
        put_cell(p, isfinite(t->noise)    ? text
                    : isfinite(t->median) ? ls_chart_number(number, t->median)
                                          : "–");
    }
    fputs("</tr>\n", p->file);
    if (p->n_runs < 2) return;
    begin_row(p, "against the first");
    put_cell(p, "");
    for (int r = 1; r < p->n_runs; r++)
        put_comparison(p, (const void *)((const char *)&p->runs[0] + offset),
                       (const void *)((const char *)&p->runs[r] + offset), more_is_good);
    fputs("</tr>\n", p->file);
}

static void put_rail_rows(ls_page *p)
{
    char name[64];

    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) {
        const size_t at = (size_t)rail * sizeof(double);
        snprintf(name, sizeof name, "%s, W", ls_rail_name(rail));
        put_row(p, name, offsetof(ls_run_summary, watts) + at);
        snprintf(name, sizeof name, "%s, W at rest", ls_rail_name(rail));
        put_row(p, name, offsetof(ls_run_summary, idle_watts) + at);
        snprintf(name, sizeof name, "%s, J per token", ls_rail_name(rail));
        put_row(p, name, offsetof(ls_run_summary, joules_per_token) + at);
        snprintf(name, sizeof name, "%s, J per model TFLOP", ls_rail_name(rail));
        put_row(p, name, offsetof(ls_run_summary, joules_per_tflop) + at);
    }
}

static void put_summary(ls_page *p)
{
    fputs("<div class=\"scroll\"><table><tr><th></th>", p->file);
    for (int r = 0; r < p->n_runs; r++) {
        fprintf(p->file, "<th class=\"run\"><span style=\"color:var(--c%d)\">■</span> ",
                r % LS_CHART_COLORS);
        ls_chart_write_text(p->file, p->runs[r].data->label);
        fputs("</th>", p->file);
    }
    fputs("</tr>\n", p->file);
    begin_row(p, "steps");
    for (int r = 0; r < p->n_runs; r++) put_number(p, (double)p->runs[r].steps);
    fputs("</tr>\n", p->file);
    ROW(p, "tokens", tokens);
    ROW(p, "loss, last step", loss);
    ROW(p, "held-out loss", eval_loss);
    put_measured(p, "tokens/s", offsetof(ls_run_summary, tokens_per_s), true);
    put_measured(p, "step, s", offsetof(ls_run_summary, step_s), false);
    ROW(p, "MFU, causal", mfu_causal.median);
    ROW(p, "MFU, Megatron's count", mfu_megatron.median);
    ROW(p, "TFLOP/s, ALST's count", tflops_alst.median);
    ROW(p, "predicted / measured step", predicted);
    ROW(p, "copies in while they run, bytes/s", copy_rate[0]);
    ROW(p, "of the link's", link_fraction[0]);
    ROW(p, "copies out while they run, bytes/s", copy_rate[1]);
    ROW(p, "of the link's", link_fraction[1]);
    ROW(p, "peak host memory, bytes", peak_host);
    ROW(p, "peak device memory, bytes", peak_hbm);
    put_rail_rows(p);
    fputs("</table></div>\n<p class=\"note\">Medians of steps after the warm-up, ± the standard "
          "error told from blocks of neighbouring steps. A difference is coloured if it lies "
          "outside the noise of both runs (99%, at least 1%). Rails overlap (module holds gpu and "
          "grace; grace holds cpu and sysio): never add them. – : not measured.</p>\n",
          p->file);
}

/* Seconds and joules of each phase in a step, of one run. */
static void put_phases(ls_page *p, int run)
{
    const ls_run_summary *s = &p->runs[run];
    const ls_run_data *d = s->data;
    double joules[LS_RUN_PHASES_MAX];

    if (d->n_phases == 0) return;
    fputs("<div class=\"scroll\"><table><tr><th>phase</th><th class=\"run\">s per step</th>",
          p->file);
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++)
        if (d->has_rail[rail]) fprintf(p->file, "<th class=\"run\">%s, J</th>", ls_rail_name(rail));
    fputs("</tr>\n", p->file);
    for (int f = 0; f < d->n_phases; f++) {
        begin_row(p, d->phases[f]);
        put_number(p, s->phase_s[f]);
        for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) {
            int64_t n = 0;
            joules[f] = 0.0;
            for (int64_t i = 0; i < d->n_steps; i++)
                if (isfinite(d->steps[i].phase_joules[rail][f])) {
                    joules[f] += d->steps[i].phase_joules[rail][f];
                    n++;
                }
            if (d->has_rail[rail]) put_number(p, n > 0 ? joules[f] / (double)n : (double)NAN);
        }
        fputs("</tr>\n", p->file);
    }
    fputs("</table></div>\n<p class=\"note\">A phase is what the compute lane does; joules are the "
          "mean of the steps in which the phase is longer than a few windows of the rail's meter."
          "</p>\n",
          p->file);
}

/* The same of the whole attempt, by run.json: saves and evaluations lie between steps. */
static void put_attempt_phases(ls_page *p, int run)
{
    const cJSON *json = p->runs[run].data->run, *rail, *phase;
    const cJSON *seconds =
        json != NULL ? ls_json_find_path(json, "power.summary.phase_seconds") : NULL;
    const cJSON *rails = json != NULL ? ls_json_find_path(json, "power.summary.rails") : NULL;

    if (!cJSON_IsObject(seconds) || !cJSON_IsObject(rails)) return;
    fputs("<div class=\"scroll\"><table><tr><th>phase</th><th class=\"run\">s, all of the latest "
          "attempt</th>",
          p->file);
    cJSON_ArrayForEach(rail, rails)
    {
        fputs("<th class=\"run\">", p->file);
        ls_chart_write_text(p->file, rail->string);
        fputs(", J</th>", p->file);
    }
    fputs("</tr>\n", p->file);
    cJSON_ArrayForEach(phase, seconds)
    {
        begin_row(p, phase->string);
        put_number(p, cJSON_GetNumberValue(phase));
        cJSON_ArrayForEach(rail, rails)
        {
            const cJSON *joules = cJSON_GetObjectItemCaseSensitive(rail, "phase_joules");
            put_number(
                p, cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(joules, phase->string)));
        }
        fputs("</tr>\n", p->file);
    }
    fputs("</table></div>\n", p->file);
}

static void put_sensors(ls_page *p, int run)
{
    static const char *const keys[] = {"id", "rail", "method", "unit", "contains", "source"};
    const cJSON *run_json = p->runs[run].data->run, *sensor, *note;

    fputs("<details><summary>Sensors</summary><div class=\"scroll\"><table><tr>", p->file);
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        fprintf(p->file, "<th>%s</th>", keys[k]);
    fputs("</tr>\n", p->file);
    cJSON_ArrayForEach(sensor, ls_json_find_path(run_json, "power.sensors"))
    {
        fputs("<tr>", p->file);
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(sensor, keys[k]));
            put_cell(p, text != NULL ? text : "–");
        }
        fputs("</tr>\n", p->file);
    }
    fputs("</table></div><ul>\n", p->file);
    cJSON_ArrayForEach(note, ls_json_find_path(run_json, "missing"))
    {
        fputs("<li><code>", p->file);
        ls_chart_write_text(p->file, note->string != NULL ? note->string : "");
        fputs("</code>: ", p->file);
        ls_chart_write_text(p->file, cJSON_IsString(note) ? note->valuestring : "");
        fputs("</li>\n", p->file);
    }
    fputs("</ul></details>\n", p->file);
}

static void put_facts(ls_page *p, int run)
{
    static const char *const facts[][2] = {
        {"started", "started"},
        {"version", "version"},
        {"hardware", "hardware"},
        {"machine", "machine.cpu"},
        {"model", "model.config.model_type"},
        {"precision", "config.precision"},
        {"save", "plan.save"},
        {"matmul", "build.matmul"},
    };

    fputs("<p class=\"facts\">", p->file);
    for (size_t f = 0; f < sizeof facts / sizeof facts[0]; f++) {
        const char *text = ls_run_data_text(p->runs[run].data, facts[f][1]);
        if (text[0] == '\0') continue;
        fprintf(p->file, "<span><b>%s</b> ", facts[f][0]);
        ls_chart_write_text(p->file, text);
        fputs("</span> ", p->file);
    }
    fputs("</p>\n", p->file);
}

/* ---- the page ------------------------------------------------------------------------------ */

static void put_head(FILE *f, const char *title)
{
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">"
          "\n<title>",
          f);
    ls_chart_write_text(f, title);
    fputs("</title>\n<style>\n", f);
    ls_chart_write_style(f);
    fputs("body{margin:0 auto;padding:1rem;max-width:1560px;background:var(--bg);color:var(--fg);"
          "font:15px/1.45 system-ui,sans-serif}\n"
          "h1{font-size:1.3rem;margin:.2rem 0 1rem}h2{font-size:1.1rem;margin:1.6rem 0 .4rem;"
          "overflow-wrap:anywhere}\n"
          ".charts{display:grid;gap:1rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,"
          "440px),1fr))}\n"
          "figure{margin:0;padding:.6rem;background:var(--card);border-radius:8px;min-width:0}\n"
          "figcaption{font-weight:600;margin-bottom:.3rem}\n"
          ".scroll{overflow-x:auto;background:" /* a shade at the side where there is more */
          "linear-gradient(90deg,var(--bg) 40%,transparent) 0 0/2rem 100% no-repeat local,"
          "linear-gradient(270deg,var(--bg) 40%,transparent) 100% 0/2rem 100% no-repeat local,"
          "linear-gradient(90deg,var(--grid),transparent) 0 0/.7rem 100% no-repeat scroll,"
          "linear-gradient(270deg,var(--grid),transparent) 100% 0/.7rem 100% no-repeat scroll}\n"
          "table{border-collapse:collapse;margin:.3rem 0}\n"
          "th,td{padding:.25rem .7rem;border-bottom:1px solid var(--grid);text-align:right;"
          "white-space:nowrap}\n"
          "th{text-align:left;font-weight:500;color:var(--dim)}th.run{text-align:right;"
          "color:var(--fg)}\n"
          "details td{text-align:left;white-space:normal}li{overflow-wrap:anywhere}\n"
          ".good{color:var(--good)}.bad{color:var(--bad)}.dim,.note{color:var(--dim)}\n"
          ".note{font-size:.85rem;margin:.3rem 0}.facts span{margin-right:1rem;"
          "display:inline-block}\n"
          "summary{cursor:pointer;margin:.6rem 0}\n@media(max-width:600px){th{white-space:normal;"
          "padding-left:0}th,td{padding:.25rem "
          ".3rem;font-size:.85rem}body{padding:.7rem}figure{padding:.3rem}}\n</style></"
          "head><body>\n<h1>",
          f);
    ls_chart_write_text(f, title);
    fputs("</h1>\n", f);
}

static ls_status put_run(ls_page *p, int run)
{
    fputs("<h2>", p->file);
    ls_chart_write_text(p->file, p->runs[run].data->label);
    fputs("</h2>\n", p->file);
    put_facts(p, run);
    fputs("<div class=\"charts\">\n", p->file);
    LS_TRY(ls_page_run_charts(p, run));
    fputs("</div>\n", p->file);
    put_phases(p, run);
    put_attempt_phases(p, run);
    put_sensors(p, run);
    return LS_OK;
}

static ls_status put_page(ls_page *p, const char *version)
{
    char title[256];

    snprintf(title, sizeof title, "longspan: %s%s", p->runs[0].data->label,
             p->n_runs > 1 ? " and others" : "");
    put_head(p->file, title);
    put_summary(p);
    fputs("<div class=\"charts\">\n", p->file);
    LS_TRY(ls_page_shared_charts(p));
    fputs("</div>\n", p->file);
    for (int run = 0; run < p->n_runs; run++) LS_TRY(put_run(p, run));
    fputs("<p class=\"note\">longspan ", p->file);
    ls_chart_write_text(p->file, version);
    fputs("</p></body></html>\n", p->file);
    return LS_OK;
}

ls_status ls_report_page(const char *out, const ls_run_summary *runs, int n_runs,
                         const char *version)
{
    ls_page *p = calloc(1, sizeof *p);
    char path[4200];
    ls_new_file page;
    ls_status status;

    if (p == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a page");
    *p = (ls_page){.out = out, .runs = runs, .n_runs = n_runs};
    p->arena_max = ls_page_count_numbers(runs, n_runs);
    p->arena = calloc((size_t)p->arena_max, sizeof *p->arena);
    snprintf(path, sizeof path, "%s/report.html", out);
    if (p->arena == NULL)
        status = LS_FAIL(LS_ERR_NO_MEMORY, "a page");
    else
        status = ls_new_file_open(path, &page);
    if (status == LS_OK) {
        p->file = page.file;
        status = ls_new_file_close(&page, put_page(p, version));
    }
    free(p->arena);
    free(p);
    return status;
}
