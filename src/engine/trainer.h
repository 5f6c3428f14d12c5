/*
 * trainer.h - a run at work: config, model, data and instance, and the steps they take.
 *
 * The trainer's position is (step, next_sequence, tokens_total, control): with the weights, m and v
 * it is all that a checkpoint needs, and all that changes from step to step.
 *
 * Layer: engine.  Threads: one owner; the batch and loss callbacks run on the host lane.
 */
#ifndef LS_TRAINER_H
#define LS_TRAINER_H

#include <stdatomic.h>

#include "instance.h"
#include "loader.h"
#include "loss_stats.h"
#include "model_config.h"
#include "run_config.h"

/* The plan's free choices; frozen in a checkpoint, because bits depend on them. */
typedef struct ls_choices {
    int64_t chunk, query_block, loss_rows;
    bool save_o, save_qkv;
    int compute_threads, optimizer_threads; /* 0: all cores */
} ls_choices;

typedef struct ls_trainer_options {
    bool train;                /* with gradients, moments and the training data */
    const ls_choices *choices; /* NULL: choose; else use these */
    const atomic_bool *stop;   /* set by a signal; may be NULL */
    double deadline;           /* seconds since the epoch; 0: none */
} ls_trainer_options;

typedef struct ls_trainer {
    const ls_run_config *config;
    const ls_model_config *model;
    ls_trainer_options options;
    ls_choices choices;
    ls_instance instance;
    ls_loader *train_data, *valid_data;
    ls_update_control *control; /* in the instance's arena; NULL without train */

    int64_t step, next_sequence, tokens_total;
    double save_seconds; /* how long saving takes, as far as is known */

    /* What the callbacks work on. */
    ls_loader *source;
    int64_t first_sequence, sequences_left;
    ls_loss_stats *collected;
} ls_trainer;

/* What a step did. */
typedef struct ls_step_result {
    int64_t tokens, labels;
    double pairs, seconds;
    double loss; /* mean over labels */
    double grad_norm, grad_norm_clipped, lr;
    bool clipped, skipped;
} ls_step_result;

/*
 * Open data and instance.  Weights are not set: load or initialise them next.
 *   config, model  must outlive the trainer
 *   trainer        [out] at its final address; ls_trainer_close() ends it
 */
ls_status ls_trainer_open(const ls_run_config *config, const ls_model_config *model,
                          const ls_trainer_options *options, ls_trainer *trainer);

/* NULL and a zeroed trainer are allowed. */
void ls_trainer_close(ls_trainer *trainer);

/* Random or pretrained weights, as the config says, and the RoPE table. */
ls_status ls_trainer_init_weights(ls_trainer *trainer);

/*
 * One optimizer step.  losses receives the labels' statistics.
 * LS_ERR_STOPPED: stopped before the update; weights and position are as before the call.
 */
ls_status ls_trainer_step(ls_trainer *trainer, ls_loss_stats *losses, ls_step_result *result);

/* Held-out loss over the first `tokens` tokens of the validation data (all if there are fewer). */
ls_status ls_trainer_eval(ls_trainer *trainer, int64_t tokens, ls_loss_stats *losses);

/* Model FLOPs of a step: 6 N_mat tokens + 12 H K L pairs. */
double ls_trainer_model_flops(const ls_trainer *trainer, int64_t tokens, double pairs);

/* TFLOP of a step as ALST counts: recompute included, attention as if not causal. */
double ls_trainer_alst_flops(const ls_trainer *trainer, int64_t tokens);

#endif
