/*
 * choices.h - what `auto` means: chunk, query block and save policy for this model and machine.
 * Layer: engine.
 */
#ifndef LS_CHOICES_H
#define LS_CHOICES_H

#include "trainer.h"

#define LS_QUERY_BLOCK_ROWS 8192 /* if auto; fewer where the sequences are shorter */

/*
 * Fill in every choice the config leaves open.
 *   hardware  NULL: host memory alone
 * Saving more is chosen while the whole plan keeps
 * within half of the memory that is available.  LS_ERR_NO_MEMORY: whatever is chosen does not fit.
 */
ls_status ls_choices_make(const ls_run_config *config, const ls_model_config *model,
                          const ls_hardware *hardware, bool train, ls_choices *choices);

/* The same for a plan that is only looked at: where nothing fits, the choice that needs least.
 * LS_ERR_NO_MEMORY: the plan itself would have too many steps to be built. */
ls_status ls_choices_make_any(const ls_run_config *config, const ls_model_config *model,
                              const ls_hardware *hardware, bool train, ls_choices *choices);

/*
 * Place the classes of tensors: as the config says, else weights resident where that fits.
 *   choices  the placement is set; with frozen, its weights mode and ring slots are kept
 */
ls_status ls_choices_place(const ls_run_config *config, const ls_model_config *model,
                           const ls_hardware *hardware, bool train, bool frozen,
                           ls_choices *choices);

/* The decoder these choices describe. */
ls_decoder_options ls_choices_decoder(const ls_run_config *config, const ls_model_config *model,
                                      const ls_choices *choices, bool train);

/* "x", "x+o" or "x+qkv+o" */
const char *ls_choices_save_name(const ls_choices *choices);

#endif
