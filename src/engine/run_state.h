/*
 * run_state.h - what state.json says of a run: its position, its frozen choices, its config.
 *
 * Everything that a resumed run needs beside the tensors; the manifest of the files is added by
 * checkpoint_dir.h.
 *
 * Layer: engine.  Threads: no shared state.
 */
#ifndef LS_RUN_STATE_H
#define LS_RUN_STATE_H

#include <cjson/cJSON.h>

#include "trainer.h"

/*
 * Describe a run at a position.
 *   trainer  config, choices and the identity of the training data are read, and nothing else
 *   state    [out] cJSON_Delete()
 */
ls_status ls_run_state_build(const ls_trainer *trainer, const ls_position *position,
                             const cJSON *config_json, cJSON **state);

/*
 * The position that a state holds.
 *   name      of the checkpoint, for messages
 *   identity  of the training data at hand
 * LS_ERR_CORRUPT (a field is missing or out of range), LS_ERR_INVALID (other training data).
 */
ls_status ls_run_state_read_position(const char *name, const cJSON *state, uint32_t identity,
                                     ls_position *position);

/* The optimizer's part of it alone: powers of beta, counts. */
ls_status ls_run_state_read_control(const char *name, const cJSON *state,
                                    ls_update_control *control);

/* The choices that a state froze; without thread counts.  LS_ERR_CORRUPT. */
ls_status ls_run_state_read_choices(const char *name, const cJSON *state, ls_choices *choices);

#endif
