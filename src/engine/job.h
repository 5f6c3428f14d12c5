/*
 * job.h - whole jobs from a run file: plan, train, evaluate, sample.  What longspan.h offers, with
 * the engine's own types.
 *
 * Layer: engine.  Threads: one job at a time; the stop flag may be set from anywhere.
 */
#ifndef LS_JOB_H
#define LS_JOB_H

#include <stdatomic.h>
#include <stdio.h>

#include "trainer.h"

typedef struct ls_job_options {
    const char *version; /* of the program, for run.json */
    const atomic_bool *stop;
    bool quiet, verbose;
    bool wants_changes; /* plans: simulate what would make them faster */
} ls_job_options;

typedef enum ls_plan_format {
    LS_PLAN_TABLES = 0, /* plan_report.h */
    LS_PLAN_JSON,       /* the same as a document */
    LS_PLAN_TEXT        /* plan_text.h */
} ls_plan_format;

/*
 * Build and check the plan that training would follow, and write it to file in this form.  Nothing
 * is reserved for it.
 *   trace  a file for the simulated step, as trace.json has a measured one; NULL: none
 * LS_ERR_INVALID, LS_ERR_IO: no trace (times are not known; it cannot be written).
 * LS_ERR_NO_MEMORY: written, but this machine has no room for it; or the plan itself is too large
 * to be built, which only the document tells.
 */
ls_status ls_job_plan(const ls_run_config *config, const ls_model_config *model,
                      ls_plan_format format, const char *trace, FILE *file,
                      const ls_job_options *options);

#define LS_PROFILES_COMPARED_MAX 16

/*
 * The same plan on several kinds of hardware: a table with a line for each, or an array of their
 * documents.  Nothing is built that ls_job_plan() would not build.
 *   profiles  names or files, with a comma between two
 * LS_ERR_NO_MEMORY: written, but it fits none of them.
 */
ls_status ls_job_compare(const ls_run_config *config, const ls_model_config *model,
                         const char *profiles, bool json, FILE *file,
                         const ls_job_options *options);

/*
 * The longest sequence.tokens that have room, for each of several save policies, in whole query
 * blocks, as a table or a document.  LS_ERR_NO_MEMORY: written, but there are none.
 */
ls_status ls_job_maximize(const ls_run_config *config, const ls_model_config *model, bool json,
                          FILE *file, const ls_job_options *options);

typedef struct ls_train_options {
    bool resume, replan, dry_run;
    int64_t stop_after; /* 0: no */
    double deadline;    /* seconds since the epoch; 0: none */
} ls_train_options;

/*
 * Train to the last step.  LS_ERR_INVALID: options or config do not go with what output holds;
 * nothing there has changed.  LS_ERR_STOPPED: stopped early, and a checkpoint holds everything.
 * Other statuses: as what failed; the run directory keeps its newest whole checkpoint.
 */
ls_status ls_job_train(const ls_run_config *config, const ls_model_config *model,
                       const ls_train_options *train, const ls_job_options *options);

typedef struct ls_eval_request {
    const char *checkpoint; /* NULL: the newest of the run that verifies */
    int64_t tokens;         /* of the held-out data at most, in whole sequences; INT64_MAX: all */
} ls_eval_request;

/* Held-out loss of a checkpoint into losses (opened).  LS_ERR_STOPPED: asked to stop. */
ls_status ls_job_eval(const ls_run_config *config, const ls_model_config *model,
                      const ls_eval_request *request, const ls_job_options *options,
                      ls_loss_stats *losses);

typedef void ls_sample_sink(void *context, int32_t token);

typedef struct ls_sample_request {
    const char *checkpoint; /* NULL: the newest */
    const int32_t *prompt;  /* [n_prompt] */
    int64_t n_prompt, n_tokens;
    int64_t end_token; /* what a document starts after, and what ends generation; -1: none */
    ls_sample_sink *sink;
    void *context;
} ls_sample_request;

/* Generate at temperature 1, seeded by the config's seed, until n_tokens or end_token. */
ls_status ls_job_sample(const ls_run_config *config, const ls_model_config *model,
                        const ls_sample_request *request, const ls_job_options *options);

/* Load the weights of checkpoint (NULL: the newest) into a trainer opened without train. */
ls_status ls_job_load(ls_trainer *trainer, const char *checkpoint, const ls_job_options *options);

#endif
