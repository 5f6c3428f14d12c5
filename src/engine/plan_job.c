/* plan_job.c - the plan of a run, as training would make it, and what is said of it. */
#include <errno.h>
#include <string.h>

#include "choices.h"
#include "job.h"
#include "plan_maximize.h"
#include "plan_report.h"
#include "plan_text.h"
#include "run_warning.h"

typedef struct plan_job {
    const ls_run_config *config;
    const ls_model_config *model;
    ls_hardware hardware;
    ls_plan_format format;
    FILE *file;
} plan_job;

/* Write a document, and give it up. */
static ls_status print_json(cJSON *json, FILE *file)
{
    char *text = cJSON_PrintUnformatted(json);

    cJSON_Delete(json);
    if (text == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the plan's document");
    fprintf(file, "%s\n", text);
    cJSON_free(text);
    return LS_OK;
}

static ls_status flush(FILE *file)
{
    if (fflush(file) == 0 && !ferror(file)) return LS_OK;
    return LS_FAIL(LS_ERR_IO, "writing the plan: %s", strerror(errno));
}

static ls_status print_document(const ls_plan_report *report, FILE *file)
{
    cJSON *json = NULL;

    LS_TRY(ls_plan_report_to_json(report, &json));
    return print_json(json, file);
}

static ls_status print_report(const ls_plan_report *report, ls_plan_format format, FILE *file)
{
    ls_status status = LS_OK;

    switch (format) {
    case LS_PLAN_TABLES: ls_plan_report_print(report, file); break;
    case LS_PLAN_JSON: status = print_document(report, file); break;
    case LS_PLAN_TEXT: status = ls_plan_write_text(report->plan, file); break;
    }
    return status == LS_OK ? flush(file) : status;
}

static ls_status report_plan(const plan_job *job, const ls_choices *choices,
                             const ls_decoder *decoder, ls_plan_report *report)
{
    ls_plan plan;

    LS_TRY(ls_plan_lower(&decoder->tape, &choices->placement, &ls_ops_cpu, &plan));
    ls_status status =
        ls_plan_report_make(job->config, &job->hardware, choices, decoder, &plan, report);
    if (status == LS_OK) status = print_report(report, job->format, job->file);
    ls_plan_free(&plan);
    report->plan = NULL;
    return status;
}

static ls_status build_and_report(const plan_job *job, ls_plan_report *report)
{
    ls_decoder decoder;
    ls_choices choices;

    LS_TRY(ls_choices_make_any(job->config, job->model, &job->hardware, true, &choices));
    const ls_decoder_options options = ls_choices_decoder(job->config, job->model, &choices, true);
    LS_TRY(ls_decoder_build(&options, &decoder));
    const ls_status status = report_plan(job, &choices, &decoder, report);
    ls_decoder_free(&decoder);
    return status;
}

/* A program that asked for a document gets one, though there was no room to build the plan. */
static ls_status report_refusal(const plan_job *job)
{
    const ls_choices none = {.chunk = 0};
    const ls_decoder_options options = ls_choices_decoder(job->config, job->model, &none, true);
    ls_plan_report report;

    ls_plan_report_refuse(job->config, &job->hardware, &options, ls_error(), &report);
    if (job->format == LS_PLAN_JSON) LS_TRY(print_report(&report, job->format, job->file));
    return ls_plan_report_verdict(&report);
}

static ls_status plan_on_hardware(const plan_job *job)
{
    ls_plan_report report;
    const ls_status status = build_and_report(job, &report);

    if (status == LS_ERR_NO_MEMORY) return report_refusal(job);
    return status == LS_OK ? ls_plan_report_verdict(&report) : status;
}

ls_status ls_job_plan(const ls_run_config *config, const ls_model_config *model,
                      ls_plan_format format, FILE *file, const ls_job_options *options)
{
    plan_job job = {.config = config, .model = model, .format = format, .file = file};

    LS_TRY(ls_hardware_open(config->hardware, false, &job.hardware));
    if (!options->quiet) ls_run_warnings_print(config, model);
    const ls_status status = plan_on_hardware(&job);
    ls_hardware_close(&job.hardware);
    return status;
}

static ls_status print_maximum(const ls_maximum *maximum, bool json, FILE *file)
{
    cJSON *document = NULL;

    if (json) {
        LS_TRY(ls_maximum_to_json(maximum, &document));
        LS_TRY(print_json(document, file));
    } else {
        ls_maximum_print(maximum, file);
    }
    LS_TRY(flush(file));
    return ls_maximum_verdict(maximum);
}

ls_status ls_job_maximize(const ls_run_config *config, const ls_model_config *model, bool json,
                          FILE *file, const ls_job_options *options)
{
    ls_hardware hardware;
    ls_maximum maximum;

    LS_TRY(ls_hardware_open(config->hardware, false, &hardware));
    if (!options->quiet) ls_run_warnings_print(config, model);
    ls_status status = ls_maximum_find(config, model, &hardware, &maximum);
    if (status == LS_OK) status = print_maximum(&maximum, json, file);
    ls_hardware_close(&hardware);
    return status;
}
