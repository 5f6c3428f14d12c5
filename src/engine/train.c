/*
 * train.c - the training loop: open or resume, step, record, evaluate, save, stop.
 *
 * The loop runs ahead of the lanes: it submits the next step while the one before is still being
 * finished, and a checkpoint is written by the step after it.  Steps are recorded by events, as
 * they complete.  A stop (signal, deadline) inside a step abandons it if its update has not been
 * submitted: weights, moments and position are then those of the step before, which is saved.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "checkpoint_dir.h"
#include "choices.h"
#include "clock.h"
#include "heartbeat.h"
#include "job.h"
#include "plan_job.h"
#include "progress.h"
#include "run_file.h"
#include "run_folder.h"
#include "run_meters.h"
#include "run_model.h"
#include "run_record.h"
#include "run_warning.h"

#define TEXT_BYTES  1024
#define VALUE_BYTES 200 /* of a config's value in a message */

typedef struct training {
    const ls_run_config *config;
    const ls_train_options *train;
    const ls_job_options *options;
    cJSON *config_json;
    ls_run_folder folder;
    ls_hardware hardware;
    ls_trainer trainer;
    ls_loss_stats eval_losses;
    ls_run_meters *meters;
    ls_prediction prediction; /* of a step, by the profile's rates */
    time_t started;

    pthread_mutex_t mutex; /* of what follows: the loop and events on lanes share it */
    ls_run_record record;
    ls_progress progress;
    bool warned_of_no_label;
    int64_t saved_step; /* of the newest checkpoint; -1: none */
} training;

/* ---- events -------------------------------------------------------------------------------- */

/* Once: data that begins so may go on so. */
static void warn_of_no_label(training *t, const ls_step_result *r)
{
    if (t->warned_of_no_label) return;
    t->warned_of_no_label = true;
    ls_progress_note(&t->progress,
                     "warning: step %lld: none of its %lld tokens is to be predicted, so it has no "
                     "loss and no gradient; look at PREFIX.mask of data.train, and at documents of "
                     "one token",
                     (long long)r->step, (long long)r->tokens);
}

/* An event, on the host lane. */
static ls_status step_done(void *context, const ls_step_result *r, const ls_loss_stats *losses)
{
    training *t = context;

    pthread_mutex_lock(&t->mutex);
    ls_progress_step_done(&t->progress,
                          &(ls_progress_step){.step = r->step,
                                              .labels = r->labels,
                                              .loss = r->loss,
                                              .tokens_per_s = (double)r->tokens / r->seconds,
                                              .step_s = r->seconds,
                                              .lr = r->lr,
                                              .grad_norm = r->grad_norm,
                                              .skipped = r->skipped});
    if (r->labels == 0) warn_of_no_label(t, r);
    const ls_status status = ls_run_record_step(&t->record, r, losses);
    pthread_mutex_unlock(&t->mutex);
    return status;
}

/* An event, on the disk_out lane. */
static ls_status save_done(void *context, int64_t step, double seconds)
{
    training *t = context;

    pthread_mutex_lock(&t->mutex);
    t->saved_step = step;
    ls_progress_note(&t->progress, "saved %s/checkpoints/step-%08lld (%.2f s)", t->config->output,
                     (long long)step, seconds);
    pthread_mutex_unlock(&t->mutex);
    return LS_OK;
}

/* An event, on the heartbeat's thread. */
static void show_beat(void *context, const ls_heartbeat_beat *beat)
{
    training *t = context;
    const ls_progress_within within = {.step = beat->step,
                                       .segment = ls_segment_name(beat->segment),
                                       .phase = ls_phase_name(beat->phase),
                                       .layer = beat->layer,
                                       .block = beat->block,
                                       .fraction = beat->fraction,
                                       .elapsed_s = beat->elapsed_s,
                                       .step_eta_s = beat->step_eta_s,
                                       .run_eta_s = beat->run_eta_s};
    ls_run_meters_flush(t->meters);
    pthread_mutex_lock(&t->mutex);
    ls_progress_step_within(&t->progress, &within);
    pthread_mutex_unlock(&t->mutex);
}

static void note_eval(training *t, const ls_eval_record *line)
{
    if (line->tokens > 0)
        ls_progress_note(&t->progress, "step %lld: held-out loss %.4f (%lld tokens)",
                         (long long)line->step, line->loss, (long long)line->tokens);
    else
        ls_progress_note(&t->progress,
                         "warning: step %lld: no held-out loss: none of the %lld tokens that were "
                         "read is to be predicted; raise eval.tokens, or look at PREFIX.mask of "
                         "data.valid",
                         (long long)line->step, (long long)atomic_load(&t->eval_losses.rows_seen));
}

/* No event but the heartbeat's comes while this records: evaluating waits for everything that was
 * submitted. */
static ls_status evaluate(training *t)
{
    LS_TRY(ls_trainer_sync(&t->trainer));
    const uint64_t start_ns = ls_clock_ns();

    ls_run_meters_eval_begin(t->meters);
    LS_TRY(ls_trainer_eval(&t->trainer, t->config->eval_tokens, &t->eval_losses));
    const double seconds = 1e-9 * (double)(ls_clock_ns() - start_ns);
    ls_eval_record line;
    const ls_status status = ls_run_record_eval(&t->record, &t->eval_losses, seconds, &line);
    pthread_mutex_lock(&t->mutex);
    note_eval(t, &line);
    pthread_mutex_unlock(&t->mutex);
    return status;
}

/* ---- open, resume -------------------------------------------------------------------------- */

static void note_rejected(void *context, const char *directory, const char *reason)
{
    ls_progress_note(context, "passed over %s: %s", directory, reason);
}

/* A resumed run's config may differ only where it may. */
static ls_status check_config(const training *t, const cJSON *before, const char *directory)
{
    const cJSON *now = t->config_json;
    const char *key = ls_run_config_difference(before, now, t->train->replan);
    char was[VALUE_BYTES], is[VALUE_BYTES];

    if (key == NULL) return LS_OK;
    const bool replan_allows = key != ls_run_config_difference(before, now, true);
    return LS_FAIL(LS_ERR_INVALID,
                   "%s differs from the run that %s belongs to: %s there, %s now; set it back to "
                   "%s, %sor start a new run with another output",
                   key, directory, ls_run_config_show(before, key, was, sizeof was),
                   ls_run_config_show(now, key, is, sizeof is), was,
                   replan_allows ? "allow the change with --replan, " : "");
}

/* Frozen choices of the checkpoint, unless --replan. */
static ls_status adopt_choices(training *t, const ls_model_config *model, const char *directory,
                               ls_choices *choices)
{
    cJSON *before = NULL;

    LS_TRY(ls_checkpoint_read_choices(directory, choices, &before));
    ls_status status = check_config(t, before, directory);
    if (status == LS_OK) status = ls_run_model_check(t->config, model, directory, true);
    cJSON_Delete(before);
    choices->compute_threads = (int)t->config->compute_threads;
    choices->optimizer_threads = ls_choices_optimizer_threads(t->config, &t->hardware);
    return status;
}

static ls_status init_weights(training *t)
{
    ls_weights_report loaded;
    char text[LS_WEIGHTS_TEXT_BYTES];

    LS_TRY(ls_trainer_init_weights(&t->trainer, &loaded));
    if (loaded.n_tensors > 0)
        ls_progress_note(&t->progress, "loaded %s: %s", t->config->model_path,
                         ls_weights_describe(&t->trainer.instance, &loaded, text));
    if (t->config->init == LS_INIT_OPTIMIZER)
        ls_progress_note(&t->progress,
                         "loaded %s: weights, masters and moments after %lld updates; steps, "
                         "schedule and data begin anew",
                         t->config->model_path, (long long)t->trainer.control->updates);
    return LS_OK;
}

static ls_status open_trainer(training *t, const ls_model_config *model)
{
    ls_trainer_options options = {
        .train = true,
        .stop = t->options->stop,
        .deadline = t->train->deadline,
        .config_json = t->config_json,
        .hardware = &t->hardware,
        .events = {.step = step_done, .saved = save_done, .context = t},
    };
    ls_choices choices;
    char *directory = NULL;
    ls_status status = LS_OK;

    t->saved_step = -1;
    if (t->train->resume)
        LS_TRY(ls_checkpoint_find_newest(t->config->output, note_rejected, &t->progress, &directory,
                                         NULL));
    if (directory != NULL) {
        status = adopt_choices(t, model, directory, &choices);
        if (status == LS_OK && !t->train->replan) {
            status = ls_choices_place(t->config, model, &t->hardware, true, true, &choices);
            options.choices = &choices;
        }
    }
    if (status == LS_OK) status = ls_trainer_open(t->config, model, &options, &t->trainer);
    status = ls_plan_explain(t->config, model, t->options, status);
    if (status == LS_OK && directory == NULL) status = init_weights(t);
    if (status == LS_OK && directory != NULL) {
        status = ls_checkpoint_load(&t->trainer, directory);
        t->saved_step = t->trainer.step;
    }
    if (status == LS_OK && directory != NULL) /* a killed run may have left that undone */
        status = ls_checkpoint_rotate(t->config->output, t->config->checkpoint_keep, t->saved_step);
    if (status == LS_OK && t->train->resume) {
        if (directory != NULL)
            ls_progress_note(&t->progress, "resumed from %s", directory);
        else
            ls_progress_note(&t->progress, "no checkpoint in %s: starting at step 0",
                             t->config->output);
    }
    free(directory);
    return status;
}

/* --stop-after against the run file, before anything is opened. */
static ls_status check_stop_after(const training *t)
{
    const int64_t last = t->config->schedule.steps;

    if (t->train->stop_after <= last) return LS_OK;
    return LS_FAIL(LS_ERR_INVALID,
                   "--stop-after %lld: the run ends at step %lld (steps); give a step up to that, "
                   "or raise steps",
                   (long long)t->train->stop_after, (long long)last);
}

/* --stop-after against the checkpoint; a run that is complete has nothing to stop. */
static ls_status check_not_passed(const training *t)
{
    const int64_t step = t->trainer.step;

    if (t->train->stop_after == 0 || t->train->stop_after >= step) return LS_OK;
    if (step >= t->config->schedule.steps) return LS_OK;
    return LS_FAIL(
        LS_ERR_INVALID,
        "--stop-after %lld: the run in %s is at step %lld already; give a later step, or "
        "leave it out",
        (long long)t->train->stop_after, t->config->output, (long long)step);
}

/* With final: what the meters say of the whole run. */
static ls_status write_run_file(const training *t, bool final)
{
    return ls_run_file_write(&t->trainer, &(ls_run_file_options){.config_json = t->config_json,
                                                                 .version = t->options->version,
                                                                 .attempt = t->record.attempt,
                                                                 .started = t->started,
                                                                 .meters = t->meters,
                                                                 .prediction = &t->prediction,
                                                                 .final = final});
}

static ls_status open_run(training *t, const ls_model_config *model)
{
    LS_TRY(ls_run_folder_open(t->config->output, t->train->resume, &t->progress, &t->folder));
    LS_TRY(ls_run_config_to_json(t->config, &t->config_json));
    LS_TRY(open_trainer(t, model));
    LS_TRY(ls_plan_predict(&t->hardware, &t->trainer.instance.plan, t->config->precision,
                           &t->prediction));
    LS_TRY(ls_trainer_losses_open(t->config, true, &t->eval_losses));
    LS_TRY(check_not_passed(t));
    LS_TRY(ls_run_folder_make(&t->folder));
    LS_TRY(ls_run_record_open(&t->record, &t->trainer, &t->prediction, &t->eval_losses,
                              t->train->resume));
    t->started = time(NULL);
    LS_TRY(ls_run_meters_open(&t->trainer, t->train->resume, t->record.attempt, &t->meters));
    t->record.meters = t->meters;
    return write_run_file(t, false);
}

static void close_run(training *t)
{
    ls_run_meters_close(t->meters);
    ls_trainer_close(&t->trainer); /* before what its events need */
    ls_hardware_close(&t->hardware);
    ls_progress_close(&t->progress);
    ls_run_record_close(&t->record);
    ls_loss_stats_close(&t->eval_losses);
    cJSON_Delete(t->config_json);
    ls_run_folder_close(&t->folder); /* when nothing writes there any more */
}

/* ---- the loop ------------------------------------------------------------------------------ */

static ls_status fail_hopeless(const training *t)
{
    return LS_FAIL(LS_ERR_DEVICE,
                   "step %lld: the gradient was not finite more than %lld times in a row "
                   "(optimizer.skip_nonfinite_max); lower optimizer.lr or look at the data",
                   (long long)atomic_load(&t->trainer.hopeless_step),
                   (long long)t->config->skip_nonfinite_max);
}

/* Wait for everything, and save what is not saved yet. */
static ls_status finish(training *t)
{
    LS_TRY(ls_trainer_sync(&t->trainer));
    if (atomic_load(&t->trainer.hopeless_step) > 0) return fail_hopeless(t);
    return t->saved_step == t->trainer.step ? LS_OK : ls_trainer_drain(&t->trainer);
}

static ls_status save_and_stop(training *t, const char *why)
{
    LS_TRY(finish(t));
    return LS_FAIL(LS_ERR_STOPPED,
                   "stopped after step %lld of %lld (%s); everything is saved, "
                   "continue with --resume",
                   (long long)t->trainer.step, (long long)t->config->schedule.steps, why);
}

/* Whether another step and a save still end before the deadline. */
static bool deadline_near(const training *t)
{
    return t->train->deadline > 0.0 && ls_clock_epoch_seconds() +
                                               atomic_load(&t->trainer.step_seconds) +
                                               2.0 * atomic_load(&t->trainer.save_seconds) >
                                           t->train->deadline;
}

static bool due(int64_t step, int64_t every, int64_t last)
{
    return every > 0 && (step % every == 0 || step == last);
}

/* A stop in the middle of an evaluation saves the step before it and leaves the evaluation to the
 * resumed run. */
static ls_status make_up_evaluation(training *t)
{
    const ls_run_config *c = t->config;
    const int64_t step = t->trainer.step;
    bool found = false;

    if (step == 0 || !due(step, c->eval_every_steps, c->schedule.steps)) return LS_OK;
    LS_TRY(ls_record_find_eval(c->output, step, &found));
    return found ? LS_OK : evaluate(t);
}

static ls_status run_steps(training *t)
{
    const ls_run_config *c = t->config;
    const int64_t last = c->schedule.steps;
    bool save = false; /* the next step saves the state it starts from */

    const ls_status made_up = make_up_evaluation(t);
    if (made_up == LS_ERR_STOPPED) return save_and_stop(t, "asked to stop");
    LS_TRY(made_up);
    if (t->trainer.step == t->train->stop_after && t->trainer.step < last && t->trainer.step > 0)
        return save_and_stop(t, "--stop-after");
    while (t->trainer.step < last) {
        if (deadline_near(t)) return save_and_stop(t, "deadline");
        ls_status status = ls_trainer_submit_step(&t->trainer, save);
        const int64_t step = t->trainer.step;
        if (status == LS_OK) {
            save = due(step, c->checkpoint_every_steps, last);
            if (due(step, c->eval_every_steps, last)) status = evaluate(t);
        }
        if (status == LS_ERR_STOPPED) return save_and_stop(t, "asked to stop");
        LS_TRY(status);
        if (step == t->train->stop_after && step < last) return save_and_stop(t, "--stop-after");
    }
    return finish(t);
}

/* The plan, then whether the data can be read. */
static ls_status dry_run(training *t, const ls_model_config *model)
{
    const ls_trainer_options options = {.train = true, .hardware = &t->hardware};
    LS_TRY(ls_job_plan(t->config, model, LS_PLAN_TABLES, NULL, stdout, t->options));
    return ls_trainer_open(t->config, model, &options, &t->trainer);
}

static void note_start(training *t)
{
    const ls_instance *instance = &t->trainer.instance;
    const ls_ops *ops = ls_device_ops(instance->device);
    char save[LS_SAVE_NAME_BYTES];

    ls_progress_note(
        &t->progress, "%s: %.2fM parameters, %lld tokens per step, save %s, %.0f MiB",
        t->config->output, 1e-6 * (double)ls_decoder_params(&instance->decoder.options.shape),
        (long long)(t->config->sequence_tokens * t->config->sequences * t->config->accumulate),
        ls_saves_name(&t->trainer.choices.saves, save),
        (double)ls_plan_place_bytes(&instance->plan, LS_PLACE_HOST) / 0x1p20);
    if (t->trainer.choices.placement.has_device)
        ls_progress_note(&t->progress,
                         "hardware %s: %.0f MiB of device memory, weights %s; host memory %s",
                         t->hardware.profile,
                         (double)ls_plan_place_bytes(&instance->plan, LS_PLACE_HBM) / 0x1p20,
                         ls_mode_name(t->trainer.choices.placement.classes[LS_CLASS_WEIGHTS].mode),
                         t->hardware.host_reason);
    if (ls_plan_place_bytes(&instance->plan, LS_PLACE_NVME) > 0)
        ls_progress_note(&t->progress, "nvme: %.0f MiB in a file in %s, which ends with this run",
                         (double)ls_plan_place_bytes(&instance->plan, LS_PLACE_NVME) / 0x1p20,
                         t->hardware.nvme_path);
    ls_progress_note(&t->progress, "kernels: matmul %s, attention %s",
                     ops->kernel_name(LS_OP_matmul, t->config->precision, 0),
                     ops->kernel_name(LS_OP_attention_forward, t->config->precision,
                                      t->trainer.model->head_dim));
    if (t->config->fast && ops->vendor_note != NULL)
        ls_progress_note(&t->progress, "determinism fast: cuDNN for blocks within one document: %s",
                         ops->vendor_note());
    if (!t->options->quiet) ls_run_warnings_print(t->config, &t->hardware);
}

static void note_op_times(training *t)
{
    for (int lane = 0; lane < LS_LANE_COUNT; lane++) {
        const ls_lane_stats stats = ls_device_stats(t->trainer.instance.device, lane);
        for (int op = 0; op < LS_OP_COUNT; op++)
            if (stats.op_calls[op] > 0)
                ls_progress_note(&t->progress, "  whole run, %-8s %-20s %10.2f ms in %llu calls",
                                 ls_lane_name((ls_lane)lane), ls_op_describe((ls_op)op)->name,
                                 1e-6 * (double)stats.op_ns[op],
                                 (unsigned long long)stats.op_calls[op]);
    }
}

/* A resumed run that has nothing left to do says so. */
static void note_complete(training *t)
{
    if (t->trainer.step < t->config->schedule.steps) return;
    ls_progress_note(
        &t->progress, "already complete: step %lld of %lld is saved in %s; raise steps to train on",
        (long long)t->trainer.step, (long long)t->config->schedule.steps, t->config->output);
}

static ls_heartbeat_state find_state(ls_status status)
{
    if (status == LS_OK) return LS_HEARTBEAT_DONE;
    return status == LS_ERR_STOPPED ? LS_HEARTBEAT_STOPPED : LS_HEARTBEAT_FAILED;
}

/* The run's own status stays, unless the file cannot be written. */
static ls_status finish_run_file(const training *t, ls_status status)
{
    char error[TEXT_BYTES], origin[TEXT_BYTES];

    snprintf(error, sizeof error, "%s", ls_error());
    snprintf(origin, sizeof origin, "%s", ls_error_origin());
    LS_TRY(write_run_file(t, true));
    ls_error_adopt(error, origin);
    return status;
}

static ls_status open_and_run(training *t, const ls_model_config *model)
{
    const ls_heartbeat_options beats = {
        .directory = t->config->output, .event = show_beat, .context = t};
    ls_heartbeat *heartbeat = NULL;

    LS_TRY(open_run(t, model));
    note_start(t);
    note_complete(t);
    LS_TRY(ls_heartbeat_start(&t->trainer, &beats, &heartbeat));
    ls_run_meters_start(t->meters);
    ls_status status = run_steps(t);
    ls_heartbeat_stop(heartbeat, find_state(status));
    if (status == LS_OK || status == LS_ERR_STOPPED) status = finish_run_file(t, status);
    if (t->options->verbose && t->trainer.step > 0) note_op_times(t);
    return status;
}

ls_status ls_job_train(const ls_run_config *config, const ls_model_config *model,
                       const ls_train_options *train, const ls_job_options *options)
{
    training t = {.config = config, .train = train, .options = options};
    ls_status status;

    pthread_mutex_init(&t.mutex, NULL);
    t.progress = ls_progress_open(config->schedule.steps, options->quiet);
    status = check_stop_after(&t);
    if (status == LS_OK) status = ls_run_folder_check(config->output);
    if (status == LS_OK) status = ls_hardware_open(config->hardware, true, &t.hardware);
    if (status == LS_OK) ls_hardware_expect_kernels(config->fast, &t.hardware);
    if (status == LS_OK) status = train->dry_run ? dry_run(&t, model) : open_and_run(&t, model);
    close_run(&t);
    pthread_mutex_destroy(&t.mutex);
    return status;
}
