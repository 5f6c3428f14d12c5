/* evaluate.c - held-out loss of a checkpoint; how far it has come is shown by the heartbeat. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "checkpoint_dir.h"
#include "clock.h"
#include "heartbeat.h"
#include "job.h"
#include "json.h"
#include "progress.h"
#include "run_model.h"
#include "run_warning.h"
#include "weights.h"

typedef struct evaluation {
    ls_hardware hardware;
    ls_trainer trainer;
    ls_loss_stats *losses;
    int64_t tokens; /* of all its sequences */
    uint64_t start_ns;
    double tokens_shown;  /* at most what is done; the next line does not go back */
    ls_progress progress; /* of the heartbeat's thread, then of the loop's */
} evaluation;

static void note_rejected(void *context, const char *directory, const char *reason)
{
    const ls_job_options *options = context;
    if (!options->quiet) fprintf(stderr, "passed over %s: %s\n", directory, reason);
}

/* A checkpoint in whatever dtype it has, or a plain Hugging Face directory (no state.json); text
 * says what was loaded. */
static ls_status load_directory(ls_trainer *trainer, const char *directory,
                                char text[LS_WEIGHTS_TEXT_BYTES])
{
    ls_weights_report loaded;
    cJSON *state = NULL;
    bool is_checkpoint;

    LS_TRY(ls_checkpoint_verify_if_any(directory, &is_checkpoint));
    LS_TRY(ls_run_model_check(trainer->config, trainer->model, directory, false));
    LS_TRY(ls_weights_load(&trainer->instance, directory, &loaded));
    ls_weights_describe(&trainer->instance, &loaded, text);
    if (!is_checkpoint) return LS_OK;
    LS_TRY(ls_checkpoint_state_read(directory, &state));
    const ls_status status =
        ls_json_get_whole(directory, state, "step", 0, LS_JSON_WHOLE_MAX, &trainer->step);
    cJSON_Delete(state);
    return status;
}

static void note_loaded(const ls_job_options *options, const char *directory, const char *what)
{
    if (!options->quiet)
        fprintf(stderr, "loaded %s%s%s\n", directory, *what != '\0' ? ": " : "", what);
}

ls_status ls_job_load(ls_trainer *trainer, const char *checkpoint, const ls_job_options *options)
{
    char text[LS_WEIGHTS_TEXT_BYTES], *newest = NULL;

    if (checkpoint != NULL) {
        LS_TRY(load_directory(trainer, checkpoint, text));
        note_loaded(options, checkpoint, text);
        return LS_OK;
    }
    LS_TRY(ls_checkpoint_find_newest(trainer->config->output, note_rejected, (void *)options,
                                     &newest, NULL));
    if (newest == NULL)
        return LS_FAIL(LS_ERR_IO,
                       "%s/checkpoints: no checkpoint; train first, or give --checkpoint",
                       trainer->config->output);
    ls_status status = ls_run_model_check(trainer->config, trainer->model, newest, false);
    if (status == LS_OK) status = ls_checkpoint_load(trainer, newest);
    if (status == LS_OK) note_loaded(options, newest, "");
    free(newest);
    return status;
}

/* ---- the evaluation ------------------------------------------------------------------------ */

static void show_progress(evaluation *e, double done)
{
    if (done > e->tokens_shown) e->tokens_shown = done;
    ls_progress_eval(&e->progress, &(ls_progress_evaluation){
                                       .tokens = (int64_t)e->tokens_shown,
                                       .tokens_all = e->tokens,
                                       .loss = atomic_load(&e->losses->mean_seen),
                                       .elapsed_s = 1e-9 * (double)(ls_clock_ns() - e->start_ns)});
}

/* An event, on the heartbeat's thread: whole batches, and the share of the one at work. */
static void show_beat(void *context, const ls_heartbeat_beat *beat)
{
    evaluation *e = context;
    const ls_run_config *c = e->trainer.config;
    const double batch = (double)(c->sequence_tokens * c->sequences);

    const double done = (double)atomic_load(&e->losses->rows_seen) + beat->fraction * batch;

    if (done < (double)e->tokens) show_progress(e, done); /* the end is shown when it is sure */
}

/* The tokens of the whole sequences that `tokens` reach into, as far as there are any. */
static int64_t count_tokens(const ls_trainer *trainer, int64_t tokens)
{
    const int64_t S = trainer->config->sequence_tokens;
    const int64_t all = ls_loader_describe(trainer->valid_data).sequences_per_epoch;
    const int64_t n = tokens / S + (tokens % S != 0);
    return (n < all ? n : all) * S;
}

static ls_status evaluate(evaluation *e, const ls_job_options *options)
{
    const ls_heartbeat_options heartbeat_options = {.event = show_beat, .context = e};
    ls_heartbeat *heartbeat = NULL;

    e->progress = ls_progress_open(0, options->quiet);
    e->start_ns = ls_clock_ns();
    if (!options->quiet) LS_TRY(ls_heartbeat_start(&e->trainer, &heartbeat_options, &heartbeat));
    const ls_status status = ls_trainer_eval(&e->trainer, e->tokens, e->losses);
    ls_heartbeat_stop(heartbeat, status == LS_OK ? LS_HEARTBEAT_DONE : LS_HEARTBEAT_FAILED);
    if (status == LS_OK) show_progress(e, (double)e->tokens);
    ls_progress_close(&e->progress);
    if (status != LS_OK || e->losses->labels > 0) return status;
    return LS_FAIL(
        LS_ERR_INVALID,
        "data.valid: of the %lld held-out tokens that were read none is to be predicted, "
        "so there is no loss; give a larger --tokens, or look at PREFIX.mask",
        (long long)e->tokens);
}

ls_status ls_job_eval(const ls_run_config *config, const ls_model_config *model,
                      const ls_eval_request *request, const ls_job_options *options,
                      ls_loss_stats *losses)
{
    evaluation e = {.losses = losses};

    if (config->valid.n_paths == 0 && config->valid_fraction <= 0.0)
        return LS_FAIL(LS_ERR_INVALID,
                       "data.valid: the run file names no held-out data; give data.valid or "
                       "data.valid_fraction");
    LS_TRY(ls_hardware_open(config->hardware, true, &e.hardware));
    const ls_trainer_options trainer_options = {
        .train = false, .stop = options->stop, .hardware = &e.hardware};
    ls_status status = ls_trainer_open(config, model, &trainer_options, &e.trainer);
    if (status == LS_OK) {
        if (!options->quiet) ls_run_warnings_print(config, &e.hardware);
        status = ls_job_load(&e.trainer, request->checkpoint, options);
        e.tokens = count_tokens(&e.trainer, request->tokens);
        if (status == LS_OK) status = evaluate(&e, options);
        ls_trainer_close(&e.trainer);
    }
    ls_hardware_close(&e.hardware);
    return status;
}
