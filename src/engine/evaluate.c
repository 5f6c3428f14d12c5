/* evaluate.c - held-out loss of a checkpoint. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "checkpoint_dir.h"
#include "directory.h"
#include "job.h"
#include "run_warning.h"
#include "weights.h"

#define PATH_BYTES 4096

static void note_rejected(void *context, const char *directory, const char *reason)
{
    const ls_job_options *options = context;
    if (!options->quiet) fprintf(stderr, "passed over %s: %s\n", directory, reason);
}

/* A directory with weights but no state.json is a plain Hugging Face directory. */
static ls_status load_directory(ls_trainer *trainer, const char *directory)
{
    char path[PATH_BYTES];
    ls_path_kind kind;

    snprintf(path, sizeof path, "%s/state.json", directory);
    LS_TRY(ls_path_describe(path, &kind));
    if (kind == LS_PATH_ABSENT) return ls_weights_load(&trainer->instance, directory);
    LS_TRY(ls_checkpoint_verify(directory, true));
    return ls_checkpoint_load(trainer, directory);
}

ls_status ls_job_load(ls_trainer *trainer, const char *checkpoint, const ls_job_options *options)
{
    char *newest = NULL;

    if (checkpoint != NULL) return load_directory(trainer, checkpoint);
    LS_TRY(ls_checkpoint_find_newest(trainer->config->output, note_rejected, (void *)options,
                                     &newest, NULL));
    if (newest == NULL)
        return LS_FAIL(LS_ERR_IO,
                       "%s/checkpoints: no checkpoint; train first, or give --checkpoint",
                       trainer->config->output);
    const ls_status status = ls_checkpoint_load(trainer, newest);
    free(newest);
    return status;
}

ls_status ls_job_eval(const ls_run_config *config, const ls_model_config *model,
                      const char *checkpoint, const ls_job_options *options, ls_loss_stats *losses)
{
    ls_hardware hardware;
    const ls_trainer_options trainer_options = {
        .train = false, .stop = options->stop, .hardware = &hardware};
    ls_trainer trainer;
    ls_status status;

    if (config->valid.n_paths == 0 && config->valid_fraction <= 0.0)
        return LS_FAIL(LS_ERR_INVALID,
                       "data.valid: the run file names no held-out data; give data.valid or "
                       "data.valid_fraction");
    LS_TRY(ls_hardware_open(config->hardware, true, &hardware));
    status = ls_trainer_open(config, model, &trainer_options, &trainer);
    if (status == LS_OK) {
        if (!options->quiet) ls_run_warnings_print(config, model);
        status = ls_job_load(&trainer, checkpoint, options);
        if (status == LS_OK) status = ls_trainer_eval(&trainer, INT64_MAX / 2, losses);
        ls_trainer_close(&trainer);
    }
    ls_hardware_close(&hardware);
    return status;
}
