/*
 * record.h - what a run leaves behind: record.jsonl, one line per optimizer step or evaluation.
 *
 * Every line carries the same keys in the same order; what has no sensor is null, and run.json's
 * "missing" says why.  Lines are appended whole with one write, so a killed run leaves a readable
 * prefix; a torn last line is cut off when the file is opened to continue.
 *
 * Layer: telemetry (uses base).  Threads: one owner.
 */
#ifndef LS_RECORD_H
#define LS_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "phases.h"
#include "status.h"

/* The lanes of lane_busy_s, in the record's order. */
#define LS_RECORD_LANES 6
extern const char *const ls_record_lane_names[LS_RECORD_LANES];

typedef struct ls_record_bin {
    int64_t from, to; /* positions or distances [from, to) */
    double loss;      /* mean; bins without labels are left out */
} ls_record_bin;

typedef struct ls_record_source {
    char *name_json; /* the data set, as a JSON text in quotes */
    double loss;     /* mean */
    int64_t labels;  /* 0: not written */
} ls_record_source;

typedef struct ls_record_losses {
    const ls_record_bin *by_position, *by_distance;
    const ls_record_source *by_source;
    int n_positions, n_distances;
    int64_t n_sources;
} ls_record_losses;

/* Joules of a stretch, by rail; NAN: not known.  See power.h. */
typedef struct ls_record_energy {
    bool known; /* there is a recorder; else all is null */
    double joules[LS_RAIL_COUNT];
    double
        coverage[LS_RAIL_COUNT]; /* NAN: the rail has no sensor, and is left out of what follows */
    int method[LS_RAIL_COUNT];
    double phase_joules[LS_RAIL_COUNT][LS_PHASES_MAX];
    double phase_seconds[LS_PHASES_MAX];
    const char *const *phases; /* [n_phases] names */
    int n_phases;
} ls_record_energy;

/* One optimizer step.  NaN in a double means "not measured" and is written as null. */
typedef struct ls_step_record {
    int64_t step;
    int attempt;
    int64_t tokens, tokens_total; /* padding not counted */
    double pairs;                 /* unmasked (query, key) pairs */
    int64_t labels;               /* 0: the loss is null */
    double loss, grad_norm, grad_norm_clipped;
    bool clipped, skipped;
    double lr, step_s, tokens_per_s;
    double mfu_causal, mfu_megatron, tflops_alst;
    double predicted_step_s; /* NAN: not known; the same of mfu_* */
    double flops_model;      /* 6 N tokens + 12 H K L pairs; recomputing and padding do not count */
    double lane_busy_s[LS_RECORD_LANES];
    bool has_device;                        /* else copies and device memory are null */
    uint64_t bytes_copy_in, bytes_copy_out; /* between places, since the step before */
    uint64_t peak_bytes_hbm;                /* what the plan reserves there */
    uint64_t peak_bytes_host;               /* largest resident set of the process; beside nvme the
                                               largest at the end of a step, no mapped file's */
    uint64_t peak_bytes_nvme;               /* the file that the plan reserves; 0: null */
    ls_record_energy energy;
    const char *kernel_matmul, *kernel_attention, *kernel_attention_backward;
    ls_record_losses losses;
} ls_step_record;

typedef struct ls_eval_record {
    int64_t step;
    int attempt;
    double loss;
    int64_t tokens; /* labels; 0: the loss is null */
    double seconds;
    ls_record_energy energy;
    ls_record_losses losses;
} ls_eval_record;

typedef struct ls_record ls_record;

/*
 * Open DIR/record.jsonl: emptied, or continued.
 *   next_attempt  [out] with resume: 1 + the largest attempt in the file; else 1
 * LS_ERR_IO, LS_ERR_NO_MEMORY.
 */
ls_status ls_record_open(const char *directory, bool resume, ls_record **record, int *next_attempt);

/* NULL is allowed. */
void ls_record_close(ls_record *record);

/* Append a line.  LS_ERR_IO (say, a full disk: nothing of the line stays; or the file was removed),
 * LS_ERR_NO_MEMORY. */
ls_status ls_record_step(ls_record *record, const ls_step_record *step);
ls_status ls_record_eval(ls_record *record, const ls_eval_record *eval);

/*
 * Whether DIR/record.jsonl holds an evaluation at a step; no file: false.
 * LS_ERR_IO.
 */
ls_status ls_record_find_eval(const char *directory, int64_t step, bool *found);

#endif
