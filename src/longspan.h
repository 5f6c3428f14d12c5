/*
 * longspan.h - the public C API: topo, bench, plan, train, evaluate, sample, tokenize, report.
 *
 * Each call does one whole job, as the command of the same name does.  Functions
 * return 0 when done, else a negative code (LONGSPAN_ERROR_...); longspan_error() then describes
 * what went wrong, where, and the remedy.  Results are written only on 0, except where a field
 * says otherwise.
 *
 * This is the only installed header.  Threads: one job at a time in a process;
 * longspan_request_stop() may be called from anywhere, signal handlers included.
 */
#ifndef LONGSPAN_H
#define LONGSPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LONGSPAN_VERSION_MAJOR 0
#define LONGSPAN_VERSION_MINOR 1
#define LONGSPAN_VERSION_PATCH 0

/* Negative results. */
#define LONGSPAN_ERROR_INVALID     (-1) /* a bad config, argument or command line */
#define LONGSPAN_ERROR_NO_MEMORY   (-2) /* does not fit this machine */
#define LONGSPAN_ERROR_IO          (-3)
#define LONGSPAN_ERROR_DEVICE      (-4)
#define LONGSPAN_ERROR_UNSUPPORTED (-5) /* not in this build, or not on this machine */
#define LONGSPAN_ERROR_CORRUPT     (-6) /* a file does not parse or verify */
#define LONGSPAN_ERROR_STOPPED     (-7) /* asked to stop; training has saved everything: run again */

/* "0.1.0" */
const char *longspan_version(void);

/* The text of the latest failure of this thread; never NULL. */
const char *longspan_error(void);

/* "file.c:123": where in the source that failure was detected; for bug reports. */
const char *longspan_error_origin(void);

/* Version, build options, optional parts and kernels of this machine as lines of text. */
void longspan_describe_build(char *text, size_t text_bytes);

/* A run file and what overrides it. */
typedef struct longspan_run {
    const char *path;        /* RUN.yaml */
    const char *const *sets; /* "key.path=value" */
    int n_sets;
    bool quiet;   /* no progress, no notes; errors are still reported by the result */
    bool verbose; /* more notes: plan, kernels, time by op */
} longspan_run;

/* ---- topo ---------------------------------------------------------------------------------- */

/*
 * Describe a machine and write it to file, as tables or as one JSON document.
 *
 *   from      NULL: this machine; a folder with a copy of another's /proc and /sys; a file written
 *             by `lstopo FILE.xml`; or a hardware profile's .yaml, alone
 *   hardware  the profile merged into it: "auto", "none", a name, or a file
 *
 * LONGSPAN_ERROR_INVALID also where the machine contradicts the profile.  Not while another thread
 * reads or sets environment variables.
 */
int longspan_topo(const char *from, const char *hardware, bool json, FILE *file);

/* ---- bench --------------------------------------------------------------------------------- */

typedef struct longspan_bench_options {
    const char *hardware; /* the profile to start from: "auto", a name, or a file */
    const char *save;     /* FILE.yaml for that profile with the measured figures; NULL: none */
    const char *bytes;    /* of a buffer, "1GiB"; NULL: four times the last-level cache */
    bool json;            /* one document instead of tables */
    bool quiet;           /* no progress on stderr */
} longspan_bench_options;

/*
 * Measure the memory of this machine and its links, and write the result to file.  Takes about half
 * a minute, and the memory of a buffer.  save: a new file, or one that holds a profile.
 * LONGSPAN_ERROR_NO_MEMORY: not even a buffer of twice the last-level cache may be used.
 */
int longspan_bench_links(const longspan_bench_options *options, FILE *file);

/*
 * Measure the kernels of this machine by shape, and write the result to file; some ten seconds.
 * save: the profile gets the CPU's peak rates and what share of them matrix products and attention
 * reach, which is what plans are timed by.  bytes is not used.
 */
int longspan_bench_ops(const longspan_bench_options *options, FILE *file);

/*
 * Measure the AdamW update against a loop with the same memory traffic and no arithmetic, by number
 * of threads, and write the result to file.  bytes: of the parameters' state, 16 for each; NULL:
 * 256 Mi parameters or what half of the free memory holds.  Neither hardware nor save is used.
 */
int longspan_bench_optimizer(const longspan_bench_options *options, FILE *file);

/* ---- plan ---------------------------------------------------------------------------------- */

typedef enum longspan_plan_format {
    LONGSPAN_PLAN_TABLES = 0, /* for people */
    LONGSPAN_PLAN_JSON,       /* one document */
    LONGSPAN_PLAN_TEXT        /* the plan itself, a line for each tensor and step */
} longspan_plan_format;

/*
 * Build and check the plan of a run as training would, and write what is asked for to file.  Reads
 * no data and no weights.  LONGSPAN_ERROR_NO_MEMORY: this machine has no room for it; that has been
 * written all the same, but where the plan itself would be too large only as JSON.
 */
int longspan_plan(const longspan_run *run, longspan_plan_format format, FILE *file);

/*
 * The same, and the simulated step written to a file of its own, as trace.json has a measured one
 * (Chrome's trace events, for Perfetto).
 *   trace  its path
 * LONGSPAN_ERROR_INVALID: times are not known; the text names the figure that is missing.
 */
int longspan_plan_trace(const longspan_run *run, longspan_plan_format format, const char *trace,
                        FILE *file);

/*
 * The same plan on several hardware profiles: a table with a line for each, or a JSON array of the
 * documents of longspan_plan().
 *   profiles  names or files, with a comma between two
 * LONGSPAN_ERROR_NO_MEMORY: written, but the plan fits none of them.
 */
int longspan_plan_compare(const longspan_run *run, const char *profiles, bool json, FILE *file);

/*
 * The longest sequence.tokens that fit the run's hardware, for each policy of memory.save, as a
 * table or a JSON document.  Of the run file's own length nothing is said.
 * LONGSPAN_ERROR_NO_MEMORY: written, but not even one query block has room.
 */
int longspan_plan_maximize(const longspan_run *run, bool json, FILE *file);

/* ---- train --------------------------------------------------------------------------------- */

typedef struct longspan_train_options {
    bool resume;        /* continue from the newest checkpoint that verifies */
    bool replan;        /* with resume: memory, chunk and placement choices may change */
    bool dry_run;       /* plan, check that it fits, print the memory table, stop */
    int64_t stop_after; /* save and stop once this step is done; 0: no */
    double deadline;    /* seconds since the epoch by which everything must be saved; 0: none */
} longspan_train_options;

/*
 * Train to the run file's last step.  LONGSPAN_ERROR_STOPPED: a signal, stop_after or the deadline
 * ended it early and a checkpoint holds everything.
 */
int longspan_train(const longspan_run *run, const longspan_train_options *options);

/* Ask the job at work to stop: training saves first, the others write nothing.  Async-signal-safe.
 */
void longspan_request_stop(void);

/* ---- eval ---------------------------------------------------------------------------------- */

typedef struct longspan_eval_bin {
    int64_t from, to; /* positions or distances [from, to) */
    double loss;
    int64_t tokens; /* labels */
} longspan_eval_bin;

typedef struct longspan_eval_source {
    char *name; /* the PREFIX of data.valid or data.train */
    double loss;
    int64_t tokens; /* labels; 0: none was read, and loss is NaN */
} longspan_eval_source;

/*
 * Every label counts once by the position of the token it is predicted from, as the model sees it,
 * once by that token's distance from the start of its document in its sequence, and once by the
 * data set it comes from.  Bins without labels are left out.
 */
typedef struct longspan_eval_result {
    double loss;    /* nats per label */
    int64_t tokens; /* labels */
    longspan_eval_bin *by_position, *by_distance;
    longspan_eval_source *by_source;
    int n_positions, n_distances, n_sources;
    bool positions_are_distances; /* they restart with each document: both are the same */
} longspan_eval_result;

typedef struct longspan_eval_options {
    const char *checkpoint; /* a directory; NULL: the newest of the run's output that verifies */
    int64_t tokens;         /* of the held-out data, rounded up to whole sequences; 0: all of it */
} longspan_eval_options;

/*
 * Held-out loss of a checkpoint.  options NULL: the newest, on all held-out data, whatever
 * eval.tokens says for the evaluations within training.  Data sets are cut into sequences each for
 * itself; of several, options->tokens are taken in turn, a sequence of each.
 *   result  [out] release with longspan_eval_free()
 * LONGSPAN_ERROR_INVALID also where no token that was read has a label.
 */
int longspan_eval(const longspan_run *run, const longspan_eval_options *options,
                  longspan_eval_result *result);

/* NULL and a zeroed result are allowed. */
void longspan_eval_free(longspan_eval_result *result);

/* Receives generated bytes as they come. */
typedef void longspan_sample_sink(void *context, const void *bytes, size_t n_bytes);

/* Generate n_tokens after prompt at temperature 1, seeded by the run's seed. */
int longspan_sample(const longspan_run *run, const char *checkpoint, const char *prompt,
                    int64_t n_tokens, longspan_sample_sink *sink, void *context);

/* ---- convert ------------------------------------------------------------------------------- */

typedef struct longspan_convert_result {
    bool to_checkpoint; /* else to a plain Hugging Face folder */
    int64_t tensors, parameters;
    uint64_t bytes; /* of the tensors */
} longspan_convert_result;

/*
 * A Hugging Face folder to a checkpoint of step 0, or a checkpoint (it has a state.json) to a plain
 * Hugging Face folder.  target must not exist; nothing is left of what fails or is stopped.
 */
int longspan_convert(const char *source, const char *target, longspan_convert_result *result);

/* ---- tokenize ------------------------------------------------------------------------------ */

typedef struct longspan_tokenize_result {
    int64_t documents, tokens, empty_files;
} longspan_tokenize_result;

/* Files or folders to PREFIX.bin + PREFIX.idx, one document for each file.  tokenizer: "bytes".
 * Whatever fails or stops it, nothing is left of what was begun. */
int longspan_tokenize(const char *prefix, const char *tokenizer, const char *const *paths,
                      int n_paths, longspan_tokenize_result *result);

/* ---- report -------------------------------------------------------------------------------- */

typedef struct longspan_report_options {
    const char *const *runs; /* [n_runs] run directories; others are held against the first */
    int n_runs;
    const char *out;         /* folder for report.html and its charts; NULL: none */
    const char *export_dir;  /* folder for a data set; NULL: none */
    const char *tensorboard; /* folder for TensorBoard's event files; NULL: none */
} longspan_report_options;

/* Write a table of the runs to file, and what else is asked for. */
int longspan_report(const longspan_report_options *options, FILE *file);

/* Check a data set; LONGSPAN_ERROR_CORRUPT names the cell that is wrong. */
int longspan_report_validate(const char *directory, FILE *file);

#ifdef __cplusplus
}
#endif

#endif
