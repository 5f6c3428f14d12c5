/* plan_job.c - the plan of a run, as training would make it, and what is said of it. */
#include <errno.h>
#include <string.h>

#include "choices.h"
#include "job.h"
#include "plan_report.h"
#include "plan_text.h"
#include "run_warning.h"

static ls_status print_json(const ls_plan_report *report, FILE *file)
{
    cJSON *json = NULL;

    LS_TRY(ls_plan_report_to_json(report, &json));
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    if (text == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the plan's document");
    fprintf(file, "%s\n", text);
    cJSON_free(text);
    return LS_OK;
}

static ls_status print_report(const ls_plan_report *report, ls_plan_format format, FILE *file)
{
    ls_status status = LS_OK;

    switch (format) {
    case LS_PLAN_TABLES: ls_plan_report_print(report, file); break;
    case LS_PLAN_JSON: status = print_json(report, file); break;
    case LS_PLAN_TEXT: status = ls_plan_write_text(report->plan, file); break;
    }
    if (status == LS_OK && (fflush(file) != 0 || ferror(file)))
        status = LS_FAIL(LS_ERR_IO, "writing the plan: %s", strerror(errno));
    return status;
}

static ls_status report_plan(const ls_run_config *config, const ls_hardware *hardware,
                             const ls_choices *choices, const ls_decoder *decoder,
                             ls_plan_format format, FILE *file)
{
    ls_plan_report report;
    ls_plan plan;

    LS_TRY(ls_plan_lower(&decoder->tape, &choices->placement, &ls_ops_cpu, &plan));
    ls_status status = ls_plan_report_make(config, hardware, choices, decoder, &plan, &report);
    if (status == LS_OK) status = print_report(&report, format, file);
    if (status == LS_OK) status = ls_plan_report_verdict(&report);
    ls_plan_free(&plan);
    return status;
}

static ls_status plan_on(const ls_run_config *config, const ls_model_config *model,
                         const ls_hardware *hardware, ls_plan_format format, FILE *file)
{
    ls_decoder decoder;
    ls_choices choices;

    LS_TRY(ls_choices_make_any(config, model, hardware, true, &choices));
    const ls_decoder_options decoder_options = ls_choices_decoder(config, model, &choices, true);
    LS_TRY(ls_decoder_build(&decoder_options, &decoder));
    const ls_status status = report_plan(config, hardware, &choices, &decoder, format, file);
    ls_decoder_free(&decoder);
    return status;
}

ls_status ls_job_plan(const ls_run_config *config, const ls_model_config *model,
                      ls_plan_format format, FILE *file, const ls_job_options *options)
{
    ls_hardware hardware;

    LS_TRY(ls_hardware_open(config->hardware, false, &hardware));
    if (!options->quiet) ls_run_warnings_print(config, model);
    const ls_status status = plan_on(config, model, &hardware, format, file);
    ls_hardware_close(&hardware);
    return status;
}
