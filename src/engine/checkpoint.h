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

#include "trainer.h"

/* Called for each checkpoint that was passed over, with the reason. */
typedef void ls_checkpoint_note(void *context, const char *text);

/*
 * Save under OUTPUT/checkpoints and drop old ones beyond checkpoint.keep.
 * LS_ERR_IO: nothing changed, earlier checkpoints are intact.
 */
ls_status ls_checkpoint_save(ls_trainer *trainer);

/* What a checkpoint says of the run that wrote it. */
typedef struct ls_checkpoint_info {
    int64_t step;
    ls_choices choices;
    char *config_text; /* the resolved config as JSON; freed by ls_checkpoint_info_free */
} ls_checkpoint_info;

/*
 * The newest checkpoint below output that verifies (checksums read).
 *   path   [out] NULL if there is no checkpoint at all; else free()
 * LS_ERR_CORRUPT: there are checkpoints, but none verifies.
 */
ls_status ls_checkpoint_find(const char *output, ls_checkpoint_note *note, void *context,
                             char **path);

ls_status ls_checkpoint_read_info(const char *path, ls_checkpoint_info *info);
void ls_checkpoint_info_free(ls_checkpoint_info *info);

/*
 * Fill the trainer from a checkpoint: weights, and with train also lo, m, v and the position.
 * LS_ERR_CORRUPT (a tensor is missing, of another shape or dtype), LS_ERR_IO.
 */
ls_status ls_checkpoint_load(ls_trainer *trainer, const char *path);

#endif
