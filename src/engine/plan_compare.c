/* plan_compare.c - the plan of one run on several kinds of hardware, a line for each. */
#include <string.h>

#include "choices.h"
#include "json.h"
#include "plan_job.h"
#include "text.h"

#define PATH_BYTES 4096

typedef struct comparison {
    FILE *file;
    cJSON *documents; /* NULL: a table */
    int n_fitting, n_shown, n_impossible;
    char why_impossible[LS_PLAN_WHY_BYTES]; /* of the latest */
    char whys[LS_PROFILES_COMPARED_MAX][LS_NAME_BYTES + 2 + LS_PLAN_WHY_BYTES];
    int n_whys;
} comparison;

/* ---- table --------------------------------------------------------------------------------- */

static void print_head(FILE *file)
{
    fprintf(file, "%-20s %-4s %11s %11s %11s %11s  %-12s %7s %9s %9s %9s %9s\n", "profile", "fits",
            "hbm", "of", "host", "of", "weights", "waits", "GB in", "GB out", "s/step", "tokens/s");
}

/* Peak bytes of a place and what it has; dashes where it has none. */
static void print_place(const ls_plan_report *r, ls_place_kind place, FILE *file)
{
    const uint64_t available = r->available.place_bytes[place];
    char peak[LS_TEXT_BYTES], of[LS_TEXT_BYTES];

    if (available == 0)
        fprintf(file, " %11s %11s", "-", "-");
    else
        fprintf(file, " %11s %11s",
                r->plan != NULL
                    ? ls_text_bytes(peak, sizeof peak, ls_plan_place_bytes(r->plan, place))
                    : "?",
                ls_text_bytes(of, sizeof of, available));
}

static void print_weights(const ls_plan_report *r, FILE *file)
{
    const ls_place_mode mode = r->choices.placement.classes[LS_CLASS_WEIGHTS].mode;
    char text[32];

    if (mode == LS_MODE_STREAM)
        snprintf(text, sizeof text, "%s, %lld", ls_mode_name(mode),
                 (long long)r->choices.placement.ring_slots);
    else
        snprintf(text, sizeof text, "%s", ls_mode_name(mode));
    fprintf(file, "  %-12s", text);
}

static void print_times(const ls_plan_times *t, FILE *file)
{
    if (t->why_unknown[0] == '\0')
        fprintf(file, " %9.4g %9.4g", t->simulation.step_s, t->tokens_per_s);
    else
        fprintf(file, " %9s %9s", "?", "?");
}

/* Few plans have a file: it has no column. */
static void print_nvme(const ls_plan_report *r, FILE *file)
{
    const uint64_t peak = ls_plan_place_bytes(r->plan, LS_PLACE_NVME);
    char needs[LS_TEXT_BYTES], has[LS_TEXT_BYTES];

    if (peak > 0)
        fprintf(file, "  nvme %s of %s", ls_text_bytes(needs, sizeof needs, peak),
                ls_text_bytes(has, sizeof has, r->available.place_bytes[LS_PLACE_NVME]));
}

static void print_line(const ls_plan_report *r, FILE *file)
{
    fprintf(file, "%-20s %-4s", r->hardware->profile, r->fits ? "yes" : "no");
    print_place(r, LS_PLACE_HBM, file);
    print_place(r, LS_PLACE_HOST, file);
    if (r->plan == NULL) {
        fputs("  not built\n", file);
        return;
    }
    const ls_segment_totals step = ls_plan_report_segment(r, LS_SEGMENT_STEP);
    print_weights(r, file);
    fprintf(file, " %7lld %9.4g %9.4g", (long long)step.waits, 1e-9 * step.copy_in_bytes,
            1e-9 * step.copy_out_bytes);
    print_times(&r->times, file);
    print_nvme(r, file);
    fputc('\n', file);
}

/* ---- both forms ---------------------------------------------------------------------------- */

static ls_status show(const ls_plan_report *report, void *context)
{
    comparison *c = context;
    cJSON *json = NULL;

    c->n_shown++;
    c->n_fitting += report->fits;
    if (c->documents != NULL) {
        LS_TRY(ls_plan_report_to_json(report, &json));
        return ls_json_append(c->documents, json);
    }
    print_line(report, c->file);
    if (!report->fits)
        snprintf(c->whys[c->n_whys++], sizeof c->whys[0], "%s: %s", report->hardware->profile,
                 report->why);
    return LS_OK;
}

static ls_status finish(const comparison *c)
{
    if (c->documents != NULL) LS_TRY(ls_plan_print_json(c->documents, c->file));
    for (int w = 0; w < c->n_whys; w++) fprintf(c->file, "\n%s\n", c->whys[w]);
    LS_TRY(ls_plan_flush(c->file));
    if (c->n_fitting > 0) return LS_OK;
    if (c->n_impossible == c->n_shown)
        return LS_FAIL(LS_ERR_INVALID, "--compare: the run is possible on none of these: %s",
                       c->why_impossible);
    return LS_FAIL(LS_ERR_NO_MEMORY, "--compare: the plan fits none of these");
}

/* The next of the names that commas part. */
static ls_status next_name(const char **names, char *name, size_t size)
{
    const size_t length = strcspn(*names, ",");

    if (length == 0 || length >= size)
        return LS_FAIL(LS_ERR_INVALID,
                       "--compare: want profiles' names or files, with a comma between two");
    snprintf(name, size, "%.*s", (int)length, *names);
    *names += length;
    return LS_OK;
}

/* All names are good before the first line is written. */
static ls_status check_names(const char *names)
{
    char name[PATH_BYTES];

    for (int n = 0;; n++) {
        ls_hardware hardware;
        if (n == LS_PROFILES_COMPARED_MAX)
            return LS_FAIL(LS_ERR_INVALID, "--compare: at most %d profiles",
                           LS_PROFILES_COMPARED_MAX);
        LS_TRY(next_name(&names, name, sizeof name));
        LS_TRY(ls_hardware_open(name, false, &hardware));
        ls_hardware_close(&hardware);
        if (*names++ == '\0') return LS_OK;
    }
}

/* What the run file asks for may be impossible on one machine and possible on the next. */
static ls_status show_one(const ls_run_config *config, const ls_model_config *model,
                          const char *name, const ls_job_options *options, comparison *c)
{
    const ls_status status = ls_plan_on_hardware(config, model, name, options, show, c);

    if (status != LS_ERR_INVALID && status != LS_ERR_UNSUPPORTED) return status;
    c->n_impossible++;
    snprintf(c->why_impossible, sizeof c->why_impossible, "%s", ls_error());
    return ls_plan_refuse_on_hardware(config, model, name, show, c);
}

static ls_status show_all(const ls_run_config *config, const ls_model_config *model,
                          const char *names, const ls_job_options *options, comparison *c)
{
    ls_job_options once = *options; /* warnings of the run are not repeated */
    char name[PATH_BYTES];

    if (c->documents == NULL) print_head(c->file);
    do {
        LS_TRY(next_name(&names, name, sizeof name));
        LS_TRY(show_one(config, model, name, &once, c));
        once.quiet = true;
    } while (*names++ != '\0');
    return finish(c);
}

ls_status ls_job_compare(const ls_run_config *config, const ls_model_config *model,
                         const char *profiles, bool json, FILE *file, const ls_job_options *options)
{
    comparison c = {.file = file};

    LS_TRY(check_names(profiles));
    if (json) c.documents = cJSON_CreateArray();
    if (json && c.documents == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the plans' documents");
    const ls_status status = show_all(config, model, profiles, options, &c);
    cJSON_Delete(c.documents);
    return status;
}
