/*
 * run_model.h - the model of a run file as this run computes it: with the run's rope_scaling and
 * sliding window, and for its length.  Checkpoints write this model's config.json.
 *
 * Layer: engine.  Threads: none.
 */
#ifndef LS_RUN_MODEL_H
#define LS_RUN_MODEL_H

#include "model_config.h"
#include "run_config.h"

/*
 * Read the model at config->model_path and put the run's rope_scaling in place of its own:
 *   linear, ntk     original_tokens becomes max_position_embeddings, as these types mean it
 *   others          max_position_embeddings grows to what the scaling covers; a new rope_theta
 *                   alone is taken to cover the run
 *   ntk beyond it   (the model's own too) becomes the theta it has at the run's length, so that the
 *                   saved model turns by the frequencies it was trained with, at every length
 *
 * LS_ERR_INVALID: the scaling does not suit the model, or sequences are longer than it covers; the
 * message ends with a line for the run file that does.  And whatever
 * ls_model_config_read() returns.
 */
ls_status ls_run_model_read(const ls_run_config *config, ls_model_config *model);

/*
 * Whether the weights in a folder were made with this model, by the config.json beside them; a
 * folder without one is not looked at.
 *   model   of ls_run_model_read()
 *   resume  every field must agree; else only those that change what the weights compute, and not
 *           what the run file itself chooses (rope_scaling, sequence.window)
 * LS_ERR_INVALID: names the first field that differs, with both values.  And whatever
 * ls_model_config_read() returns.
 */
ls_status ls_run_model_check(const ls_run_config *config, const ls_model_config *model,
                             const char *directory, bool resume);

#endif
