/* run_record.c - lines filled from what the trainer, the plan and the meters know. */
#include "run_record.h"

#include <assert.h>
#include <math.h>

#include "process_stats.h"

ls_status ls_run_record_open(ls_run_record *record, ls_trainer *trainer,
                             const ls_prediction *prediction, const ls_loss_stats *eval_losses,
                             bool resume)
{
    const ls_run_config *config = trainer->config;

    *record = (ls_run_record){.trainer = trainer, .prediction = prediction};
    LS_TRY(ls_loss_record_open(eval_losses, &record->eval_losses));
    LS_TRY(ls_loss_record_open(&trainer->losses, &record->step_losses));
    LS_TRY(ls_record_open(config->output, resume, &record->lines, &record->attempt));
    if (config->prometheus == NULL) return LS_OK;
    return ls_prometheus_open(config->prometheus, config->output, config->schedule.steps,
                              &record->metrics);
}

void ls_run_record_close(ls_run_record *record)
{
    ls_prometheus_close(record->metrics);
    ls_record_close(record->lines);
    ls_loss_record_close(&record->eval_losses);
    ls_loss_record_close(&record->step_losses);
}

/* The kernel's peak counts pages of mapped files, which the page cache gives back when it must:
 * where a plan has a file it is looked at what else is resident. */
static uint64_t host_bytes_peak(ls_run_record *record, bool has_file)
{
    if (!has_file) return ls_process_resident_bytes_peak();
    const uint64_t now = ls_process_anonymous_bytes();
    if (now > record->anonymous_bytes_peak) record->anonymous_bytes_peak = now;
    return record->anonymous_bytes_peak;
}

static void fill_model_flops(const ls_run_record *record, const ls_step_result *r,
                             ls_step_record *line)
{
    const double alst = ls_trainer_alst_flops(record->trainer, r->tokens);
    const double peak = record->prediction->peak_flops_per_s > 0
                            ? record->prediction->peak_flops_per_s
                            : (double)NAN;

    line->flops_model = ls_trainer_model_flops(record->trainer, r->tokens, r->pairs);
    line->mfu_causal = line->flops_model / (peak * r->seconds);
    line->mfu_megatron = alst * 6.0 / 8.0 / (peak * r->seconds); /* without recomputing */
    line->tflops_alst = 1e-12 * alst / r->seconds;
}

static void fill_memory(ls_run_record *record, ls_step_record *line)
{
    const ls_plan *plan = &record->trainer->instance.plan;

    line->has_device = record->trainer->choices.placement.has_device;
    line->peak_bytes_hbm = ls_plan_place_bytes(plan, LS_PLACE_HBM);
    line->peak_bytes_nvme = ls_plan_place_bytes(plan, LS_PLACE_NVME);
    line->peak_bytes_host = host_bytes_peak(record, line->peak_bytes_nvme > 0);
}

/* What ran, where that may change from call to call; else what always does. */
static const char *name_attention(const ls_trainer *t, ls_op op)
{
    const ls_ops *ops = ls_device_ops(t->instance.device);
    const char *ran = ops->kernels_ran != NULL ? ops->kernels_ran(op) : "";

    if (ran[0] != '\0') return ran;
    return ops->kernel_name(op, t->config->precision, t->model->head_dim);
}

ls_status ls_run_record_step(ls_run_record *record, const ls_step_result *result,
                             const ls_loss_stats *losses)
{
    const ls_step_result *r = result;
    const ls_trainer *t = record->trainer;
    const ls_ops *ops = ls_device_ops(t->instance.device);
    const ls_dtype dtype = t->config->precision;
    ls_step_record line = {
        .step = r->step,
        .attempt = record->attempt,
        .tokens = r->tokens,
        .tokens_total = r->tokens_total,
        .pairs = r->pairs,
        .labels = r->labels,
        .loss = r->loss,
        .grad_norm = r->grad_norm,
        .grad_norm_clipped = r->grad_norm_clipped,
        .clipped = r->clipped,
        .skipped = r->skipped,
        .lr = r->lr,
        .step_s = r->seconds,
        .tokens_per_s = (double)r->tokens / r->seconds,
        .predicted_step_s = record->prediction->why_unknown[0] == '\0'
                                ? record->prediction->simulation.step_s
                                : (double)NAN,
        .bytes_copy_in =
            r->copied_bytes[LS_LANE_COPY_IN] + r->copied_bytes[LS_LANE_COMPUTE], /* of batches */
        .bytes_copy_out = r->copied_bytes[LS_LANE_COPY_OUT],
        .kernel_matmul = ops->kernel_name(LS_OP_matmul, dtype, 0),
        .kernel_attention = name_attention(t, LS_OP_attention_forward),
        .kernel_attention_backward = name_attention(t, LS_OP_attention_backward),
        .losses = ls_loss_record_fill(&record->step_losses, losses, t->config->position_bins),
    };

    /* The record's keys are fixed: comm gets one with the first op on it. */
    static_assert(LS_RECORD_LANES == LS_LANE_COMM, "the record has every lane that works");
    for (int lane = 0; lane < LS_RECORD_LANES; lane++)
        line.lane_busy_s[lane] = r->lane_busy_s[lane];
    fill_model_flops(record, r, &line);
    fill_memory(record, &line);
    ls_run_meters_step(record->meters, &line);
    ls_prometheus_step(record->metrics, &line);
    return ls_record_step(record->lines, &line);
}

ls_status ls_run_record_eval(ls_run_record *record, const ls_loss_stats *losses, double seconds,
                             ls_eval_record *line)
{
    const ls_trainer *t = record->trainer;

    *line = (ls_eval_record){
        .step = t->step,
        .attempt = record->attempt,
        .loss = ls_loss_stats_mean(losses),
        .tokens = losses->labels,
        .seconds = seconds,
        .losses = ls_loss_record_fill(&record->eval_losses, losses, t->config->position_bins)};
    ls_run_meters_eval_end(record->meters, line);
    ls_prometheus_eval(record->metrics, line);
    return ls_record_eval(record->lines, line);
}
