/*
 * checkpoint.h - a trainer's whole state as a directory, and back.
 *
 *   config.json  model-*.safetensors  model.safetensors.index.json     loads in Transformers
 *   optimizer-*.safetensors                                            master_lo, m, v
 *   state.json                                                         position, choices, manifest
 *
 * A state is saved tensor by tensor, in the order of the plan's save steps, while training goes on:
 * the plan sees to it that a tensor is written before it changes.
 *
 * Layer: engine.  Threads: a saver belongs to one thread at a time and may work beside the
 * trainer's owner; loading is done between steps, by the owner.
 */
#ifndef LS_CHECKPOINT_H
#define LS_CHECKPOINT_H

#include <cjson/cJSON.h>

#include "trainer.h"

typedef struct ls_checkpoint_saver ls_checkpoint_saver;

/*
 * Begin the checkpoint of a position, below the config's output; end it with
 * ls_checkpoint_save_end() or _abort().
 *   trainer      must outlive the saver, which reads nothing of it that steps change but the
 *                tensors it is told to save
 *   position     copied
 *   config_json  the resolved config; copied
 *   saver        [out]
 * LS_ERR_IO (not enough room, or not writable), LS_ERR_NO_MEMORY.
 */
ls_status ls_checkpoint_save_begin(const ls_trainer *trainer, const ls_position *position,
                                   const cJSON *config_json, ls_checkpoint_saver **saver);

/*
 * Write the next tensor.
 *   tensor  index into the tape's tensors; each of ls_decoder_save_order() once, in its order
 * LS_ERR_IO, LS_ERR_NO_MEMORY; then only abort is left.
 */
ls_status ls_checkpoint_save_tensor(ls_checkpoint_saver *saver, int32_t tensor);

/*
 * All tensors are written: make the checkpoint valid and durable, and drop old ones beyond
 * checkpoint.keep.  Releases the saver in any case.
 * LS_ERR_INVALID (tensors are missing), LS_ERR_IO, LS_ERR_NO_MEMORY: earlier checkpoints are
 * intact.
 */
ls_status ls_checkpoint_save_end(ls_checkpoint_saver *saver);

/* Remove what was written and release the saver.  NULL is allowed. */
void ls_checkpoint_save_abort(ls_checkpoint_saver *saver);

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

/*
 * Begin a stage: weights, lo, m, v and the powers of beta of a checkpoint; the position stays, so
 * that steps, schedule and data begin anew, and so do the counts of skipped steps.
 * LS_ERR_INVALID (no checkpoint, or its optimizer has another precision or other moments: the text
 * names the key), LS_ERR_CORRUPT, LS_ERR_IO.
 */
ls_status ls_checkpoint_carry(ls_trainer *trainer, const char *directory);

#endif
