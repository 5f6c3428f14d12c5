/*
 * choices.h - what `auto` means: chunk, query block and save policy for this model and machine.
 * Layer: engine.
 */
#ifndef LS_CHOICES_H
#define LS_CHOICES_H

#include "cost.h"
#include "trainer.h"

struct ls_search;

#define LS_CHUNK_ROWS           2048  /* if auto, on a CPU; fewer where the sequences are shorter */
#define LS_QUERY_BLOCK_ROWS     8192  /* the same */
#define LS_GPU_CHUNK_ROWS       16384 /* the most that are tried up to half a million tokens */
#define LS_GPU_QUERY_BLOCK_ROWS 65536

/*
 * Fill in every choice the config leaves open.
 *   hardware  NULL: host memory alone
 * LS_ERR_NO_MEMORY: whatever is chosen does not fit; LS_ERR_INVALID: the run file asks for what
 * this model or machine cannot do (the text names the key).
 */
ls_status ls_choices_make(const ls_run_config *config, const ls_model_config *model,
                          const ls_hardware *hardware, bool train, ls_choices *choices);

/*
 * The same for a plan that is only looked at: where nothing fits, the choice that needs least.
 *   search  [out] what else was tried (choice_search.h); NULL: not asked for
 * LS_ERR_NO_MEMORY: the plan itself would have too many steps to be built.
 */
ls_status ls_choices_make_any(const ls_run_config *config, const ls_model_config *model,
                              const ls_hardware *hardware, bool train, struct ls_search *search,
                              ls_choices *choices);

/*
 * Place the classes of tensors: as the config says, else weights resident where that fits.
 *   choices  the placement is set; with frozen, its weights mode and ring slots are kept
 */
ls_status ls_choices_place(const ls_run_config *config, const ls_model_config *model,
                           const ls_hardware *hardware, bool train, bool frozen,
                           ls_choices *choices);

/* What a plan is tried for. */
typedef struct ls_trial {
    const ls_run_config *config;
    const ls_model_config *model;
    const ls_hardware *hardware; /* NULL: host memory alone */
    const ls_cost_model *rates;  /* complete; NULL: times are not asked for */
    bool train;
} ls_trial;

/* How weights are used, where the run file leaves it open. */
typedef struct ls_weights_wish {
    ls_place_mode mode;
    int64_t ring_slots; /* 0: the policy's */
    const char *reason;
} ls_weights_wish;

/* Place the classes, nothing frozen, and say what the plan then takes.
 *   weights  NULL: as the config says, else resident where that fits
 * LS_ERR_NO_MEMORY: no room to build it. */
ls_status ls_choices_measure_as(const ls_trial *trial, const ls_weights_wish *weights,
                                ls_choices *choices, ls_plan_cost *cost);

/* The same for training, with weights as the config says, and without times. */
ls_status ls_choices_measure(const ls_run_config *config, const ls_model_config *model,
                             const ls_hardware *hardware, ls_choices *choices, ls_plan_cost *cost);

/*
 * Rows of a chunk, a query block and a tile of logits: what the run file gives, else the i-th of
 * what there is to choose from for this hardware.
 *   ls_choices_rows()  how many those are; first_only: that are looked at before others
 */
void ls_choices_set_rows(const ls_trial *trial, int i, ls_choices *choices);
int ls_choices_rows(const ls_trial *trial, bool first_only);

/* Threads of the optimizer: as the config says, else as many as a profile measured to be enough
 * for the host memory (`best_threads`); 0: all cores. */
int ls_choices_optimizer_threads(const ls_run_config *config, const ls_hardware *hardware);

#define LS_CHOICES_ATTEMPTS 5 /* placements that are tried, the first that fits is taken */

/*
 * The same for each placement that would be tried, in order.  Without a device there is but one.
 *   choices  its placement is not read
 */
ls_status ls_choices_measure_each(const ls_run_config *config, const ls_model_config *model,
                                  const ls_hardware *hardware, const ls_choices *choices,
                                  ls_plan_cost costs[LS_CHOICES_ATTEMPTS]);

/* Refuse a plan that would itself fill the memory: LS_ERR_NO_MEMORY. */
ls_status ls_choices_check_plan(const ls_run_config *config, const ls_model_config *model,
                                const ls_choices *choices);

/* Room on a place; UINT64_MAX: not known to be limited.  hardware NULL: this machine's host memory
 * alone. */
uint64_t ls_choices_room(const ls_hardware *hardware, ls_place_kind place);

#define LS_CHOICES_KEY_BYTES 64

/* Whether the run file places something on nvme; if so, the first key that does. */
bool ls_choices_find_nvme(const ls_run_config *config, char key[LS_CHOICES_KEY_BYTES]);

/*
 * The decoder these choices describe.
 *   choices  must outlive its building
 */
ls_decoder_options ls_choices_decoder(const ls_run_config *config, const ls_model_config *model,
                                      const ls_choices *choices, bool train);

#endif
