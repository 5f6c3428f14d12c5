/*
 * run_data.h - a run directory as figures: record.jsonl by step, evaluations, power by rail over
 * time.
 *
 * For each step the last of its lines counts (a resumed run repeats some).  What was not measured
 * is NAN.  A torn last line, of a run that was killed or still runs, is passed over.
 *
 * Layer: report (uses telemetry, base).  Threads: no shared state.
 */
#ifndef LS_RUN_DATA_H
#define LS_RUN_DATA_H

#include <cjson/cJSON.h>

#include "meter.h"

#define LS_RUN_LANES      6
#define LS_RUN_PHASES_MAX 12

extern const char *const ls_run_lane_names[LS_RUN_LANES];

typedef struct ls_run_step {
    int64_t step, attempt;
    double tokens, tokens_total, pairs, loss, grad_norm, lr, step_s, tokens_per_s;
    double mfu_causal, mfu_megatron, tflops_alst, flops_model, predicted_step_s;
    double lane_busy_s[LS_RUN_LANES];
    double bytes_in, bytes_out, peak_hbm, peak_host;
    double joules[LS_RAIL_COUNT];
    double phase_s[LS_RUN_PHASES_MAX];
    double phase_joules[LS_RAIL_COUNT][LS_RUN_PHASES_MAX];
    bool skipped;
} ls_run_step;

typedef struct ls_run_eval {
    int64_t step, attempt;
    double loss, tokens, seconds;
} ls_run_eval;

typedef struct ls_run_bin {
    double from, to, loss;
} ls_run_bin;

/* A line of power.csv, thinned out; watts of a counter are those since the line kept before. */
typedef struct ls_run_sample {
    double time_s; /* since the first */
    int phase;     /* -1: none */
    double watts[LS_RAIL_COUNT];
    double resident_bytes;
} ls_run_sample;

/* Live bytes by place from a moment of the traced steps on. */
typedef struct ls_run_level {
    double time_s; /* since the first of them */
    double hbm, host;
} ls_run_level;

typedef struct ls_run_data {
    char path[4096];
    char label[128];  /* the folder's name, as printable UTF-8 */
    char fault[4608]; /* of run.json or power.csv, which are then missed; "": none */
    cJSON *run;       /* run.json; NULL: none */
    ls_run_step *steps;
    ls_run_eval *evals;
    ls_run_bin *bins; /* of the latest evaluation that has any, else of the latest step */
    ls_run_sample *samples;
    ls_run_level *levels; /* of trace.json */
    int64_t n_steps, n_evals, n_bins, n_samples, n_levels;
    int64_t n_lines_torn;
    char phases[LS_RUN_PHASES_MAX][32];
    int n_phases;
    bool has_rail[LS_RAIL_COUNT]; /* any step has joules of it */
} ls_run_data;

/*
 * Read a run directory.  LS_ERR_IO: no record.jsonl, or it cannot be read; LS_ERR_CORRUPT: a line
 * before the last is neither blank nor a record (named with its number); LS_ERR_NO_MEMORY.
 */
ls_status ls_run_data_read(const char *path, ls_run_data *data);

/* A zeroed one is allowed. */
void ls_run_data_free(ls_run_data *data);

/* A text of run.json by its path ("model.config.model_type"), or "". */
const char *ls_run_data_text(const ls_run_data *data, const char *path);
double ls_run_data_number(const ls_run_data *data, const char *path);

#endif
