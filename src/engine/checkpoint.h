/*
 * checkpoint.h - a trainer's whole state as a directory, and back.
 *
 *   config.json  model-*.safetensors  model.safetensors.index.json     loads in Transformers
 *   optimizer-*.safetensors                                            master_lo, m, v
 *   state.json                                                         position, choices, manifest
 *
 * Layer: engine.  Threads: between steps, by the trainer's owner.
 */
#ifndef LS_CHECKPOINT_H
#define LS_CHECKPOINT_H

#include <cjson/cJSON.h>

#include "trainer.h"

/*
 * Save below the config's output and drop old checkpoints beyond checkpoint.keep.
 *   config_json  the resolved config
 * On LS_ERR_IO earlier checkpoints are intact; LS_ERR_NO_MEMORY.
 */
ls_status ls_checkpoint_save(ls_trainer *trainer, const cJSON *config_json);

/*
 * The choices that the run of a checkpoint froze, and the config it ran with.
 *   config_json  [out] cJSON_Delete()
 */
ls_status ls_checkpoint_read_choices(const char *directory, ls_choices *choices,
                                     cJSON **config_json);

/*
 * Fill the trainer from a checkpoint: weights, and with train also lo, m, v and the position.
 * LS_ERR_CORRUPT (a tensor or a field is missing, or has another shape or type), LS_ERR_IO.
 */
ls_status ls_checkpoint_load(ls_trainer *trainer, const char *directory);

#endif
