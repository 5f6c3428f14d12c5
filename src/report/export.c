/* export.c - the tables' lines, their schema, and what a reader must know. */
#include "export.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "export_schema.h"
#include "json.h"
#include "new_file.h"
#include "summary.h"

/* ---- cells --------------------------------------------------------------------------------- */

/* Behind a comma, but for the first of a line. */
static void put_text(FILE *f, bool first, const char *text)
{
    const bool quoted = strpbrk(text, ",\"\n\r") != NULL;

    if (!first) fputc(',', f);
    if (quoted) fputc('"', f);
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"') fputc('"', f);
        fputc(*c == '\n' || *c == '\r' ? ' ' : *c, f);
    }
    if (quoted) fputc('"', f);
}

static void put_whole(FILE *f, bool first, int64_t value)
{
    fprintf(f, "%s%" PRId64, first ? "" : ",", value);
}

/* Empty if it is not finite. */
static void put_real(FILE *f, double value)
{
    char text[40] = "";

    if (isfinite(value)) snprintf(text, sizeof text, "%.15g", value);
    for (char *c = text; *c != '\0'; c++)
        if (*c == ',') *c = '.'; /* some locales' decimal point */
    fprintf(f, ",%s", text);
}

/* ---- tables -------------------------------------------------------------------------------- */

static const char *text_of(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return text != NULL ? text : "";
}

static double number_of(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
}

/* Facts that meters told of power limits: "nvml0.module.limit 900.0 W now; ..." */
static void put_limits(FILE *f, const cJSON *facts)
{
    static const char limit[] = ".limit";
    char text[1024] = "";
    const cJSON *fact;

    cJSON_ArrayForEach(fact, facts)
    {
        const size_t at = strlen(text), n = fact->string != NULL ? strlen(fact->string) : 0;
        if (n < sizeof limit || strcmp(fact->string + n - (sizeof limit - 1), limit) != 0) continue;
        if (!cJSON_IsString(fact)) continue;
        snprintf(text + at, sizeof text - at, "%s%s %s", at > 0 ? "; " : "", fact->string,
                 fact->valuestring);
    }
    put_text(f, false, text);
}

static void put_run(FILE *f, int number, const ls_run_summary *run)
{
    static const char *const texts[] = {"version", "started", "hardware", "machine.cpu"};
    static const char *const numbers[] = {"machine.cores", "machine.memory_bytes",
                                          "machine.page_bytes"};
    static const char *const sizes[] = {"model.parameters", "config.sequence.tokens",
                                        "config.batch.sequences", "config.batch.accumulate"};
    static const char *const choices[] = {"config.precision", "plan.save", "build.matmul",
                                          "build.attention"};
    const ls_run_data *d = run->data;

    put_whole(f, true, number);
    put_text(f, false, d->label);
    for (int i = 0; i < 4; i++) put_text(f, false, ls_run_data_text(d, texts[i]));
    put_text(f, false, ls_run_data_text(d, "power.facts.nvml0"));
    put_text(f, false, ls_run_data_text(d, "power.facts.driver"));
    put_limits(f, d->run != NULL ? ls_json_find_path(d->run, "power.facts") : NULL);
    for (int i = 0; i < 3; i++) put_real(f, ls_run_data_number(d, numbers[i]));
    put_text(f, false, ls_run_data_text(d, "model.config.model_type"));
    for (int i = 0; i < 4; i++) put_real(f, ls_run_data_number(d, sizes[i]));
    for (int i = 0; i < 4; i++) put_text(f, false, ls_run_data_text(d, choices[i]));
    put_real(f, ls_run_data_number(d, "power.samples_hz"));
    fputc('\n', f);
}

static void put_runs(FILE *f, int number, const ls_run_summary *run)
{
    put_run(f, number, run);
}

static void put_steps(FILE *f, int number, const ls_run_summary *run)
{
    for (int64_t i = 0; i < run->data->n_steps; i++) {
        const ls_run_step *s = &run->data->steps[i];
        const double reals[] = {s->tokens,       s->pairs,       s->loss,
                                s->grad_norm,    s->lr,          s->step_s,
                                s->tokens_per_s, s->flops_model, s->mfu_causal,
                                s->mfu_megatron, s->tflops_alst, s->predicted_step_s};
        put_whole(f, true, number);
        put_whole(f, false, s->step);
        put_whole(f, false, s->attempt);
        for (size_t r = 0; r < sizeof reals / sizeof reals[0]; r++) put_real(f, reals[r]);
        for (int lane = 0; lane < LS_RUN_LANES; lane++) put_real(f, s->lane_busy_s[lane]);
        put_real(f, s->bytes_in);
        put_real(f, s->bytes_out);
        put_real(f, s->peak_host);
        put_real(f, s->peak_hbm);
        for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) put_real(f, s->joules[rail]);
        fputc('\n', f);
    }
}

static void put_evals(FILE *f, int number, const ls_run_summary *run)
{
    for (int64_t i = 0; i < run->data->n_evals; i++) {
        const ls_run_eval *e = &run->data->evals[i];
        put_whole(f, true, number);
        put_whole(f, false, e->step);
        put_real(f, e->loss);
        put_real(f, e->tokens);
        put_real(f, e->seconds);
        fputc('\n', f);
    }
}

static void put_positions(FILE *f, int number, const ls_run_summary *run)
{
    for (int64_t i = 0; i < run->data->n_bins; i++) {
        const ls_run_bin *b = &run->data->bins[i];
        put_whole(f, true, number);
        put_real(f, b->from);
        put_real(f, b->to);
        put_real(f, b->loss);
        fputc('\n', f);
    }
}

static void put_power(FILE *f, int number, const ls_run_summary *run)
{
    const ls_run_data *d = run->data;

    for (int64_t i = 0; i < d->n_samples; i++) {
        const ls_run_sample *s = &d->samples[i];
        for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) {
            if (!isfinite(s->watts[rail])) continue;
            put_whole(f, true, number);
            put_real(f, s->time_s);
            put_text(f, false, s->phase >= 0 ? d->phases[s->phase] : "");
            put_text(f, false, ls_rail_name(rail));
            put_real(f, s->watts[rail]);
            fputc('\n', f);
        }
    }
}

static bool is_rail(const char *name)
{
    for (ls_rail rail = LS_RAIL_NONE; rail < LS_RAIL_COUNT; rail++)
        if (strcmp(ls_rail_name(rail), name) == 0) return true;
    return false;
}

static void put_sensors(FILE *f, int number, const ls_run_summary *run)
{
    static const char *const texts[] = {"id", "rail", "kind", "method", "unit"};
    static const char *const numbers[] = {"scale", "window_s", "update_period_s", "wrap_joules"};
    const cJSON *sensor;

    if (run->data->run == NULL) return;
    cJSON_ArrayForEach(sensor, ls_json_find_path(run->data->run, "power.sensors"))
    {
        if (!is_rail(text_of(sensor, "rail"))) continue; /* not written by this program */
        put_whole(f, true, number);
        for (int i = 0; i < 5; i++) put_text(f, false, text_of(sensor, texts[i]));
        for (int i = 0; i < 4; i++) put_real(f, number_of(sensor, numbers[i]));
        put_text(f, false, text_of(sensor, "contains"));
        put_text(f, false, text_of(sensor, "source"));
        fputc('\n', f);
    }
}

/* Of a Grace the socket, of an x86 host the packages; they are never both there. */
static double cpu_figure(const double *rails)
{
    return isfinite(rails[LS_RAIL_GRACE]) ? rails[LS_RAIL_GRACE] : rails[LS_RAIL_CPU];
}

/* What a rail drew in one attempt, and in each phase of it. */
static void put_rail_energy(FILE *f, int number, int64_t attempt, const cJSON *rail,
                            const cJSON *summary)
{
    const cJSON *seconds = cJSON_GetObjectItemCaseSensitive(summary, "phase_seconds"), *phase;
    const cJSON *joules = cJSON_GetObjectItemCaseSensitive(rail, "phase_joules");
    const cJSON *methods = cJSON_GetObjectItemCaseSensitive(rail, "methods");
    const char *method = text_of(rail, "method");

    put_whole(f, true, number);
    put_whole(f, false, attempt);
    put_text(f, false, rail->string);
    put_text(f, false, "");
    put_real(f, number_of(summary, "seconds"));
    put_real(f, number_of(rail, "joules"));
    put_text(f, false, method);
    put_real(f, number_of(rail, "coverage"));
    put_real(f, number_of(cJSON_GetObjectItemCaseSensitive(methods, method), "error_joules"));
    put_real(f, number_of(rail, "disagreement"));
    put_real(f, number_of(rail, "idle_watts"));
    fputc('\n', f);
    cJSON_ArrayForEach(phase, seconds)
    {
        if (phase->string == NULL || !cJSON_IsNumber(phase)) continue;
        put_whole(f, true, number);
        put_whole(f, false, attempt);
        put_text(f, false, rail->string);
        put_text(f, false, phase->string);
        put_real(f, phase->valuedouble);
        put_real(f, number_of(joules, phase->string));
        put_text(f, false, method);
        fputs(",,,,\n", f);
    }
}

static void put_attempt(FILE *f, int number, double attempt, const cJSON *summary)
{
    const cJSON *rail;

    if (!(attempt >= 1.0 && attempt < 1e9)) return;
    cJSON_ArrayForEach(rail, cJSON_GetObjectItemCaseSensitive(summary, "rails"))
    {
        if (rail->string != NULL && is_rail(rail->string))
            put_rail_energy(f, number, (int64_t)attempt, rail, summary);
    }
}

static void put_energy(FILE *f, int number, const ls_run_summary *run)
{
    const cJSON *json = run->data->run, *earlier;

    if (json == NULL) return;
    cJSON_ArrayForEach(earlier, cJSON_GetObjectItemCaseSensitive(json, "power_earlier"))
        put_attempt(f, number, number_of(earlier, "attempt"),
                    cJSON_GetObjectItemCaseSensitive(earlier, "summary"));
    put_attempt(f, number, number_of(json, "attempt"), ls_json_find_path(json, "power.summary"));
}

static bool has_energy(const ls_run_step *step)
{
    static const ls_rail rails[] = {LS_RAIL_MODULE, LS_RAIL_GRACE, LS_RAIL_CPU, LS_RAIL_GPU,
                                    LS_RAIL_DRAM};

    for (size_t r = 0; r < sizeof rails / sizeof rails[0]; r++)
        if (isfinite(step->joules[rails[r]])) return isfinite(step->step_s);
    return false;
}

static void put_codecarbon(FILE *f, int number, const ls_run_summary *run)
{
    const double *watts = run->watts, *joules = run->joules_all;
    const double parts[] = {cpu_figure(joules), joules[LS_RAIL_GPU], joules[LS_RAIL_DRAM]};
    double sum = (double)NAN, seconds = 0.0;

    for (int p = 0; p < 3; p++)
        if (isfinite(parts[p])) sum = isnan(sum) ? parts[p] : sum + parts[p];
    if (isfinite(joules[LS_RAIL_MODULE])) sum = joules[LS_RAIL_MODULE];
    for (int64_t i = 0; i < run->data->n_steps; i++)
        seconds += has_energy(&run->data->steps[i]) ? run->data->steps[i].step_s : 0.0;
    put_whole(f, true, number);
    put_text(f, false, ls_run_data_text(run->data, "started"));
    put_text(f, false, run->data->label);
    put_real(f, seconds);
    put_real(f, cpu_figure(watts));
    put_real(f, watts[LS_RAIL_GPU]);
    put_real(f, watts[LS_RAIL_DRAM]);
    for (int p = 0; p < 3; p++) put_real(f, parts[p] / 3.6e6);
    put_real(f, sum / 3.6e6);
    put_real(f, ls_run_data_number(run->data, "machine.cores"));
    put_text(f, false, ls_run_data_text(run->data, "machine.cpu"));
    put_text(f, false, "machine");
    fputc('\n', f);
}

/* ---- files --------------------------------------------------------------------------------- */

static ls_status open_file(const char *directory, const char *name, ls_new_file *file)
{
    char path[4200];

    snprintf(path, sizeof path, "%s/%s", directory, name);
    return ls_new_file_open(path, file);
}

static ls_status write_table(const char *directory, int table, const ls_run_summary *runs,
                             int n_runs)
{
    static void (*const put[LS_TABLES])(FILE *, int, const ls_run_summary *) = {
        put_runs,   put_steps, put_evals,   put_positions,
        put_energy, put_power, put_sensors, put_codecarbon};
    const ls_table *t = &ls_tables[table];
    char name[64];
    ls_new_file made;

    snprintf(name, sizeof name, "%s.csv", t->name);
    LS_TRY(open_file(directory, name, &made));
    for (int c = 0; c < t->n_columns; c++) put_text(made.file, c == 0, t->columns[c].name);
    fputc('\n', made.file);
    for (int r = 0; r < n_runs; r++) put[table](made.file, r + 1, &runs[r]);
    return ls_new_file_close(&made, LS_OK);
}

static void put_readme(FILE *f, const ls_run_summary *runs, int n_runs, const char *version)
{
    fprintf(f,
            "# Training runs of longspan %s\n\nTables as CSV (UTF-8, a header, empty cells where "
            "nothing was measured); their columns as JSON Schema in `schema.json`. Check the set "
            "with `longspan report --validate DIR`.\n\nEnergy: rails overlap. `module` holds `gpu` "
            "and `grace`, `grace` holds `cpu` and `sysio`, `gpu` holds `gpu_memory`: never add "
            "them. On an x86 host `cpu` is the processor packages and `dram` lies beside it. What "
            "each sensor contains is in `sensors.csv`. Nothing is estimated.\n\n## Runs\n\n",
            version);
    for (int r = 0; r < n_runs; r++)
        fprintf(f, "%d. `%s`: %s, %s, profile %s, %lld steps\n", r + 1, runs[r].data->label,
                ls_run_data_text(runs[r].data, "machine.cpu"),
                ls_run_data_text(runs[r].data, "model.config.model_type"),
                ls_run_data_text(runs[r].data, "hardware"), (long long)runs[r].steps);
    for (int t = 0; t < LS_TABLES; t++) {
        fprintf(f, "\n## %s.csv\n\n%s\n\n| column | unit | |\n|---|---|---|\n", ls_tables[t].name,
                ls_tables[t].about);
        for (int c = 0; c < ls_tables[t].n_columns; c++)
            fprintf(f, "| %s | %s | %s |\n", ls_tables[t].columns[c].name,
                    ls_tables[t].columns[c].unit, ls_tables[t].columns[c].about);
    }
}

ls_status ls_report_export(const char *directory, const ls_run_summary *runs, int n_runs,
                           const char *version)
{
    char path[4200];
    cJSON *schema = NULL;
    ls_new_file readme;

    for (int t = 0; t < LS_TABLES; t++) LS_TRY(write_table(directory, t, runs, n_runs));
    LS_TRY(open_file(directory, "README.md", &readme));
    put_readme(readme.file, runs, n_runs, version);
    LS_TRY(ls_new_file_close(&readme, LS_OK));
    LS_TRY(ls_export_schema(&schema));
    snprintf(path, sizeof path, "%s/schema.json", directory);
    const ls_status status = ls_json_write(path, schema);
    cJSON_Delete(schema);
    return status;
}
