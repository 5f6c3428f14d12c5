/*
 * trainer.h - a run at work: config, model, data and instance, and the segments they submit.
 *
 * Segments are submitted one after the other without waiting: the updates of a step run while the
 * next forward already uses the layers that are updated, and a checkpoint is written while the step
 * after it computes.  What a segment works on is a job; what a step did is told by an event.
 *
 * The trainer's position is that after everything submitted; it and the weights, m, v and lo are
 * all that a checkpoint needs, and all that changes from step to step.
 *
 * Layer: engine.  Threads: one owner submits; jobs run on the lanes' threads, and so do the events.
 */
#ifndef LS_TRAINER_H
#define LS_TRAINER_H

#include <stdatomic.h>

#include "companions.h"
#include "hardware.h"
#include "instance.h"
#include "loader.h"
#include "loss_stats.h"
#include "model_config.h"
#include "run_config.h"
#include "weights.h"

struct cJSON;
struct ls_checkpoint_saver;

/* The plan's free choices; frozen in a checkpoint, because bits depend on them. */
typedef struct ls_choices {
    int64_t chunk, query_block, loss_rows;
    ls_saves saves;                         /* n_layers set */
    bool layer_major;                       /* batch.accumulate_order */
    int compute_threads, optimizer_threads; /* 0: all cores */
    ls_placement placement;                 /* bits do not depend on it */
} ls_choices;

/* Where a run stands between two steps. */
typedef struct ls_position {
    int64_t step, next_sequence, tokens_total;
    ls_update_control control; /* beta powers and counters */
} ls_position;

/* What a step did. */
typedef struct ls_step_result {
    int64_t step, tokens, tokens_total, labels, skipped_in_a_row;
    double pairs, seconds;
    double loss; /* mean over labels; NAN without any */
    double grad_norm, grad_norm_clipped, lr;
    bool clipped, skipped;
    double lane_busy_s[LS_LANE_COUNT];    /* since the step before */
    uint64_t copied_bytes[LS_LANE_COUNT]; /* since the step before */
} ls_step_result;

/* Told as soon as it has happened, on the thread of a lane; a failure stops the run. */
typedef struct ls_trainer_events {
    ls_status (*step)(void *context, const ls_step_result *result, const ls_loss_stats *losses);
    ls_status (*saved)(void *context, int64_t step, double seconds);
    void *context;
} ls_trainer_events;

typedef struct ls_trainer_options {
    bool train;                      /* with gradients, moments and the training data */
    const ls_choices *choices;       /* NULL: choose; else use these */
    const ls_hardware *hardware;     /* NULL: host memory alone; else outlives the trainer */
    const atomic_bool *stop;         /* set by a signal; may be NULL */
    double deadline;                 /* seconds since the epoch; 0: none */
    const struct cJSON *config_json; /* the resolved config, for checkpoints; with train */
    ls_trainer_events events;        /* functions may be NULL */
} ls_trainer_options;

struct ls_trainer;

/* What one segment works on. */
typedef struct ls_trainer_job {
    struct ls_trainer *trainer;
    ls_loader *source;
    int64_t first_sequence, sequences_left;
    ls_loss_stats *losses;
    ls_loader_counts counts;     /* of the whole step */
    int64_t step, next_sequence; /* the trainer's position before it */
    double lr;
    uint64_t start_ns; /* when its first batch was filled */
    ls_lane_marks end; /* the job may be used again when these have run */
} ls_trainer_job;

#define LS_TRAINER_JOBS 3 /* segments in flight at most */

typedef struct ls_trainer {
    const ls_run_config *config;
    const ls_model_config *model;
    ls_trainer_options options;
    ls_choices choices;
    ls_instance instance;
    ls_loader *train_data, *valid_data;
    ls_companions companions;   /* of the model's folder, for checkpoints */
    ls_update_control *control; /* in the instance's arena; NULL without train */
    float *loss_scale;          /* there too */

    int64_t step, next_sequence; /* after everything submitted */
    ls_trainer_job jobs[LS_TRAINER_JOBS];
    int64_t n_jobs; /* so far: the next one uses slot n_jobs % LS_TRAINER_JOBS */

    /* Of the lanes' threads; tokens_total is ordered as control is. */
    int64_t tokens_total;                 /* up to the latest complete step */
    ls_loss_stats losses;                 /* of the step at work; host lane */
    uint64_t reported_ns;                 /* when the latest step was complete; host lane */
    uint64_t lane_busy_ns[LS_LANE_COUNT]; /* up to then; host lane */
    uint64_t lane_copied_bytes[LS_LANE_COUNT];
    struct ls_checkpoint_saver *saver; /* being written, or NULL; disk_out lane */
    uint64_t save_start_ns;
    _Atomic(double) save_seconds, step_seconds; /* how long each takes, as far as is known */
    _Atomic(int64_t) working_step;              /* being taken now; 0: none yet */
    _Atomic(uint64_t) working_since_ns;
    _Atomic(double) last_loss;      /* of the latest complete step */
    _Atomic(int64_t) hopeless_step; /* where too many in a row had been skipped: nothing is taken
                                     * or reported from there on; 0: all is well */
} ls_trainer;

/*
 * Open data and instance.  Weights are not set: load or initialise them next.
 *   config, model  must outlive the trainer
 *   trainer        [out] at its final address; ls_trainer_close() ends it
 */
ls_status ls_trainer_open(const ls_run_config *config, const ls_model_config *model,
                          const ls_trainer_options *options, ls_trainer *trainer);

/* Finishes what was submitted; a checkpoint that is not complete is removed.  NULL and a zeroed
 * trainer are allowed. */
void ls_trainer_close(ls_trainer *trainer);

/* Random or pretrained weights, as the config says, with moments of 0; or those of a checkpoint
 * with its optimizer.
 *   loaded  [out] of pretrained ones alone, else all 0 */
ls_status ls_trainer_init_weights(ls_trainer *trainer, ls_weights_report *loaded);

/*
 * Submit one optimizer step; with save, the state before it is saved meanwhile.
 * LS_ERR_STOPPED: stopped before the update; the step has not been taken, and nothing is running.
 */
ls_status ls_trainer_submit_step(ls_trainer *trainer, bool save);

/* Save the state and wait for it; nothing but ls_trainer_close() may follow. */
ls_status ls_trainer_drain(ls_trainer *trainer);

/* Wait for everything submitted. */
ls_status ls_trainer_sync(ls_trainer *trainer);

/* Statistics of the run's bins and of its sources, held out or for training; config must outlive
 * them.  LS_ERR_NO_MEMORY. */
ls_status ls_trainer_losses_open(const ls_run_config *config, bool valid, ls_loss_stats *losses);

/*
 * Held-out loss over the first `tokens` tokens of the validation data (all if there are fewer), in
 * whole sequences, its sources in turn; waits for everything submitted.
 */
ls_status ls_trainer_eval(ls_trainer *trainer, int64_t tokens, ls_loss_stats *losses);

/* Model FLOPs of a step: 6 N_mat tokens + 12 H K L pairs. */
double ls_trainer_model_flops(const ls_trainer *trainer, int64_t tokens, double pairs);

/* TFLOP of a step as ALST counts: recompute included, attention as if not causal. */
double ls_trainer_alst_flops(const ls_trainer *trainer, int64_t tokens);

/* The sequences of a micro-batch; an evaluation's last has fewer. */
ls_loader_range ls_trainer_batch_range(const ls_trainer_job *job, int64_t micro_batch);

/* An ls_document_query of a job.  Reads nothing from disk. */
bool ls_trainer_holds_one_document(void *job, int64_t last_row, int64_t first_key);

#endif
