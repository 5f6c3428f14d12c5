/* plan_job.c - the plan of a run, as training would make it, and what is said of it. */
#include "plan_job.h"

#include <errno.h>
#include <string.h>

#include "choices.h"
#include "clock.h"
#include "plan_text.h"
#include "plan_trace.h"
#include "run_warning.h"
#include "save_search.h"
#include "text.h"

#define ERROR_BYTES 1024

/* ---- building ------------------------------------------------------------------------------ */

typedef struct plan_job {
    const ls_run_config *config;
    const ls_model_config *model;
    ls_hardware hardware;
    ls_plan_show *show;
    void *context;
    bool wants_changes, verbose;
    double search_s, build_s; /* of processor time */
} plan_job;

/* Where there is no room: which policy would have it. */
static ls_status add_nearest(const plan_job *job, ls_plan_report *report)
{
    const double flops = ls_plan_report_segment(report, LS_SEGMENT_STEP).flops;
    ls_save_nearest nearest;

    if (!ls_plan_report_may_save_less(report)) return LS_OK;
    LS_TRY(ls_save_find_nearest(job->config, job->model, &job->hardware, &report->choices, flops,
                                &nearest));
    ls_plan_report_set_nearest(&nearest, report);
    return LS_OK;
}

/* What would make it faster. */
static ls_status find_changes(const plan_job *job, const ls_plan *plan, ls_plan_report *report)
{
    const ls_hardware *h = &job->hardware;
    const ls_cost_model rates =
        ls_cost_model_make(h->topology, h->has_device && !h->emulated, job->config->precision);
    const ls_trial trial = {job->config, job->model, h,
                            rates.why_unknown[0] == '\0' ? &rates : NULL, true};

    if (!report->fits || report->search->chosen.choices.chunk == 0) return LS_OK;
    return ls_plan_changes_find(&trial, plan, report->search, report->times.simulation.step_s,
                                &report->changes);
}

static void note_times(const plan_job *job, const ls_plan_report *report)
{
    char steps[LS_TEXT_BYTES];

    fprintf(stderr,
            "longspan: plan of %s steps: searched in %.3f s, built in %.3f s, checked in %.3f s of "
            "processor time\n",
            ls_text_count(steps, sizeof steps, report->plan->n_steps), job->search_s, job->build_s,
            report->check_s);
}

static ls_status show_plan(plan_job *job, const ls_choices *choices, const ls_decoder *decoder,
                           const ls_search *search)
{
    ls_plan_report report;
    ls_plan plan;

    const double before = ls_clock_processor_seconds();
    LS_TRY(ls_plan_lower(&decoder->tape, &choices->placement, job->hardware.ops, &plan));
    job->build_s += ls_clock_processor_seconds() - before;
    ls_status status =
        ls_plan_report_make(job->config, &job->hardware, choices, decoder, &plan, &report);
    if (status == LS_OK && job->verbose) note_times(job, &report);
    report.search = search;
    if (status == LS_OK && job->wants_changes) status = find_changes(job, &plan, &report);
    if (status == LS_OK) status = add_nearest(job, &report);
    if (status == LS_OK) status = job->show(&report, job->context);
    ls_plan_free(&plan);
    return status;
}

static ls_status build_and_show(plan_job *job)
{
    ls_decoder decoder;
    ls_choices choices;
    ls_search search;

    const double start = ls_clock_processor_seconds();
    LS_TRY(ls_choices_make_any(job->config, job->model, &job->hardware, true, &search, &choices));
    const double chosen = ls_clock_processor_seconds();
    const ls_decoder_options options = ls_choices_decoder(job->config, job->model, &choices, true);
    LS_TRY(ls_decoder_build(&options, &decoder));
    job->search_s = chosen - start;
    job->build_s = ls_clock_processor_seconds() - chosen;
    const ls_status status = show_plan(job, &choices, &decoder, &search);
    ls_decoder_free(&decoder);
    return status;
}

/* There is no plan, and why says the reason. */
static ls_status show_refusal(const plan_job *job, const char *why)
{
    const ls_choices none = {.chunk = 0};
    const ls_decoder_options options = ls_choices_decoder(job->config, job->model, &none, true);
    ls_plan_report report;

    ls_plan_report_refuse(job->config, &job->hardware, &options, why, &report);
    return job->show(&report, job->context);
}

ls_status ls_plan_on_hardware(const ls_run_config *config, const ls_model_config *model,
                              const char *hardware, const ls_job_options *options,
                              ls_plan_show *show, void *context)
{
    plan_job job = {.config = config,
                    .model = model,
                    .show = show,
                    .context = context,
                    .wants_changes = options->wants_changes,
                    .verbose = options->verbose && !options->quiet};

    LS_TRY(ls_hardware_open(hardware, false, &job.hardware));
    ls_hardware_expect_kernels(config->fast, &job.hardware);
    if (!options->quiet) ls_run_warnings_print(config, &job.hardware);
    ls_status status = build_and_show(&job);
    if (status == LS_ERR_NO_MEMORY) status = show_refusal(&job, ls_error());
    ls_hardware_close(&job.hardware);
    return status;
}

ls_status ls_plan_refuse_on_hardware(const ls_run_config *config, const ls_model_config *model,
                                     const char *hardware, ls_plan_show *show, void *context)
{
    plan_job job = {.config = config, .model = model, .show = show, .context = context};
    char why[LS_PLAN_WHY_BYTES];

    snprintf(why, sizeof why, "%s", ls_error());
    LS_TRY(ls_hardware_open(hardware, false, &job.hardware));
    const ls_status status = show_refusal(&job, why);
    ls_hardware_close(&job.hardware);
    return status;
}

static ls_status keep_report(const ls_plan_report *report, void *context)
{
    *(ls_plan_report *)context = *report; /* for the verdict: its plan is gone then */
    return LS_OK;
}

ls_status ls_plan_explain(const ls_run_config *config, const ls_model_config *model,
                          const ls_job_options *options, ls_status status)
{
    ls_job_options silent = *options;
    ls_plan_report report = {.fits = true};
    char text[ERROR_BYTES], origin[ERROR_BYTES];

    if (status != LS_ERR_NO_MEMORY) return status;
    snprintf(text, sizeof text, "%s", ls_error());
    snprintf(origin, sizeof origin, "%s", ls_error_origin());
    silent.quiet = true;
    if (ls_plan_on_hardware(config, model, config->hardware, &silent, keep_report, &report) ==
            LS_OK &&
        !report.fits)
        return ls_plan_report_verdict(&report);
    ls_error_adopt(text, origin); /* the plan would have had room: it was something else */
    return status;
}

/* ---- one plan ------------------------------------------------------------------------------ */

ls_status ls_plan_print_json(const cJSON *json, FILE *file)
{
    char *text = cJSON_PrintUnformatted(json);

    if (text == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the plan's document");
    fprintf(file, "%s\n", text);
    cJSON_free(text);
    return LS_OK;
}

ls_status ls_plan_flush(FILE *file)
{
    if (fflush(file) == 0 && !ferror(file)) return LS_OK;
    return LS_FAIL(LS_ERR_IO, "writing the plan: %s", strerror(errno));
}

typedef struct printing {
    ls_plan_format format;
    const char *trace; /* NULL: none is asked for */
    FILE *file;
    ls_plan_report shown; /* for the verdict: its plan is gone */
} printing;

static ls_status print_document(const ls_plan_report *report, FILE *file)
{
    cJSON *json = NULL;

    LS_TRY(ls_plan_report_to_json(report, &json));
    const ls_status status = ls_plan_print_json(json, file);
    cJSON_Delete(json);
    return status;
}

/* A program that asked for a document gets one of a plan that was refused, too. */
static ls_status print_plan(const ls_plan_report *report, void *context)
{
    printing *p = context;
    ls_status status = LS_OK;

    p->shown = *report;
    if (p->trace != NULL && report->plan != NULL)
        LS_TRY(ls_plan_trace_write(report->hardware, report->plan, report->config->precision,
                                   p->trace));
    if (p->format == LS_PLAN_JSON) {
        status = print_document(report, p->file);
    } else if (report->plan != NULL) {
        if (p->format == LS_PLAN_TABLES) ls_plan_report_print(report, p->file);
        if (p->format == LS_PLAN_TEXT) status = ls_plan_write_text(report->plan, p->file);
    }
    return status == LS_OK ? ls_plan_flush(p->file) : status;
}

ls_status ls_job_plan(const ls_run_config *config, const ls_model_config *model,
                      ls_plan_format format, const char *trace, FILE *file,
                      const ls_job_options *options)
{
    printing p = {.format = format, .trace = trace, .file = file};
    ls_job_options asked = *options;

    asked.wants_changes = format != LS_PLAN_TEXT;
    LS_TRY(ls_plan_on_hardware(config, model, config->hardware, &asked, print_plan, &p));
    return ls_plan_report_verdict(&p.shown);
}
