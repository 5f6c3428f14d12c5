/*
 * run_config.h - a run file, read, checked and resolved: every key typed, every default filled in.
 *
 * The keys, their defaults and what they may be are one table (run_schema.c).  Values of the
 * command line ("key.path=value") go through the same table.  What is impossible fails with
 * LS_ERR_INVALID, what this version cannot do with LS_ERR_UNSUPPORTED, each as "FILE:LINE:
 * key.path: what is wrong; allowed: ..." ("--set key.path: ..." for the command line).
 *
 * Paths: `model` is looked for in the folder of the run file, then in the folder above it (so that
 * configs/runs/demo.yaml may say models/byte-3m.yaml); given on the command line, in the working
 * directory.  `data` and `output` are relative to the working directory.
 *
 * Layer: engine (uses base, io, model).  Threads: plain data; read only once read.
 */
#ifndef LS_RUN_CONFIG_H
#define LS_RUN_CONFIG_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dtype.h"
#include "loader.h"
#include "place.h"
#include "rope_scaling.h"
#include "save_policy.h"
#include "schedule.h"
#include "status.h"
#include "tokens.h"

typedef struct ls_path_list {
    char **paths;
    int64_t n_paths;
} ls_path_list;

/* Tensors whose full Hugging Face name matches a glob (as fnmatch(3) without flags). */
typedef struct ls_run_group {
    char *match;
    double lr_scale; /* 1 if not given */
    bool frozen;
} ls_run_group;

typedef enum ls_weights_mode {
    LS_WEIGHTS_AUTO = 0,
    LS_WEIGHTS_RESIDENT,
    LS_WEIGHTS_DIRECT,
    LS_WEIGHTS_STREAM,
} ls_weights_mode;

/* Where a run's first weights come from; the latter two: from the model directory. */
typedef enum ls_run_init {
    LS_INIT_RANDOM = 0,
    LS_INIT_PRETRAINED,
    LS_INIT_OPTIMIZER, /* with the optimizer's state: a stage after another */
} ls_run_init;

typedef struct ls_run_config {
    char *model_path; /* resolved: opens as it stands */
    ls_run_init init;
    char *hardware; /* "auto", a profile's name or its file */
    ls_dtype precision;
    bool fast; /* determinism: unordered vendor kernels are allowed */
    bool rope_scaling_given;
    ls_rope_scaling rope_scaling; /* what the run file gives; 0: as the model says */

    ls_path_list train, valid; /* prefixes; valid may be empty */
    double valid_fraction;     /* 0: not given */
    ls_tokens_format format;
    int64_t min_document; /* shorter documents are left out */

    int64_t sequence_tokens;
    char *
        sequence_tokens_place; /* for messages that need the model: "FILE:LINE: sequence.tokens:" */
    char *rope_scaling_place;
    int64_t chunk, query_block; /* tokens; 0: auto */
    ls_documents documents;
    int64_t window; /* tokens; 0: as the model says */

    int64_t sequences, accumulate; /* per micro-batch; micro-batches per step */
    int accumulate_order;          /* 0 auto, 1 sequence, 2 layer */

    ls_schedule schedule; /* whole: steps too */
    double beta1, beta2, eps, weight_decay;
    double clip_norm;      /* 0: off */
    int moments;           /* ls_moments */
    ls_dtype gradients;    /* as they leave and wait */
    bool serial_updates;   /* the next forward waits for all of them */
    int64_t device_layers; /* updated where they compute */
    ls_run_group *groups;
    int64_t n_groups;
    int64_t skip_nonfinite_max;

    ls_weights_mode weights;
    int64_t ring_slots;         /* 0: auto */
    int places[LS_CLASS_COUNT]; /* memory.place: 1 + ls_place_kind; 0: not given */
    bool save_auto;             /* memory.save */
    ls_saves saves;             /* unless auto */
    int64_t compute_threads, optimizer_threads, copy_threads; /* 0: auto */

    int64_t steps;
    uint64_t seed; /* at most 2^48, which JSON keeps exactly */

    int64_t eval_every_steps; /* 0: never; always 0 without held-out data */
    int64_t eval_tokens;
    bool position_bins;          /* loss by position is wanted */
    int64_t position_bins_count; /* of equal width; 0: widths double (log2) */

    int64_t checkpoint_every_steps; /* 0: only when the run ends or stops */
    int64_t checkpoint_keep;

    bool record_power;
    int64_t *trace_steps; /* increasing */
    int64_t n_trace_steps;
    int64_t samples_hz;
    int64_t idle_s;   /* of rest before the first step */
    char *prometheus; /* file of the latest figures; NULL: none */

    char *output;

    char *file;            /* as it was named */
    char **places_of_keys; /* [keys of the schema] before messages about them; NULL: not given */
} ls_run_config;

/*
 * Read a run file.
 *   sets    [n_sets] "key.path=value", applied in order; not kept
 *   config  [out] release with ls_run_config_free()
 * Returns LS_OK, LS_ERR_INVALID, LS_ERR_UNSUPPORTED (above), LS_ERR_IO, LS_ERR_NO_MEMORY.
 */
ls_status ls_run_config_read(const char *path, const char *const *sets, size_t n_sets,
                             ls_run_config *config);

/* The same from memory; name is the file's path, for messages and to find the model from. */
ls_status ls_run_config_parse(const char *name, const char *text, size_t bytes,
                              const char *const *sets, size_t n_sets, ls_run_config *config);

/* NULL and a zeroed config are allowed. */
void ls_run_config_free(ls_run_config *config);

/* A job has failed with status: if its message begins with a key of the run file, put before it
 * where that stands ("FILE:LINE: "), as if reading had found it.  Returns status. */
ls_status ls_run_config_locate(const ls_run_config *config, ls_status status);

/* The resolved config as run.json and state.json keep it, in the run file's shape; paths and
 * numbers as this program understood them, counts in tokens.  LS_ERR_NO_MEMORY. */
ls_status ls_run_config_to_json(const ls_run_config *config, cJSON **json);

/*
 * The first key that differs between two resolved configs and may not change when a run resumes
 * (with replan: nor then); NULL if there is none.  A key that one of them lacks counts as its
 * default.  The text is constant.
 */
const char *ls_run_config_difference(const cJSON *before, const cJSON *now, bool replan);

/* The value of a key of the table in a resolved config (its default, where it lacks it) as JSON,
 * cut with "..." to the buffer, which is returned: for messages. */
const char *ls_run_config_show(const cJSON *config, const char *key, char *buffer, size_t size);

/* A number that is the same for resolved configs between which a run may resume without replan.
 * LS_ERR_NO_MEMORY. */
ls_status ls_run_config_hash(const cJSON *config, uint64_t *hash);

/* The table as a JSON schema, for editors.  LS_ERR_NO_MEMORY. */
ls_status ls_run_config_schema(cJSON **schema);

#endif
