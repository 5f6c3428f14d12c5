/*
 * run_schema.h - the keys of a run file as a table; within run_*.c only.
 *
 * Layer: engine.  Threads: constant data.
 */
#ifndef LS_RUN_SCHEMA_H
#define LS_RUN_SCHEMA_H

#include "run_config.h"
#include "yaml_tree.h"

typedef enum ls_run_kind {
    LS_RUN_TEXT = 0,   /* char * */
    LS_RUN_TEXT_NULL,  /* the same; NULL is null */
    LS_RUN_PATHS,      /* ls_path_list: one text or a list */
    LS_RUN_WORD,       /* an enum, by words and values */
    LS_RUN_SWITCH,     /* bool: false is the first word, true the second */
    LS_RUN_WHOLE,      /* int64_t, or uint64_t within its range */
    LS_RUN_COUNT,      /* int64_t, "512k" */
    LS_RUN_COUNT_AUTO, /* the same; 0 is "auto" */
    LS_RUN_COUNT_NULL, /* the same; 0 is null */
    LS_RUN_REAL,       /* double */
    LS_RUN_ROPE,       /* rope_scaling and rope_scaling_given; null: not given */
    LS_RUN_BINS,       /* position_bins and position_bins_count */
    LS_RUN_GROUPS,     /* groups and n_groups */
    LS_RUN_SAVE,       /* save_auto and saves */
    LS_RUN_PLACE,      /* places: class to place */
    LS_RUN_THREADS,    /* compute_threads, optimizer_threads, copy_threads */
    LS_RUN_STEP_LIST,  /* trace_steps and n_trace_steps */
} ls_run_kind;

typedef enum ls_run_resume {
    LS_RUN_FIXED = 0,  /* must stay when a run resumes */
    LS_RUN_MAY_REPLAN, /* may change with --replan */
    LS_RUN_MAY_CHANGE,
} ls_run_resume;

typedef struct ls_run_field {
    const char *path; /* "key" or "section.key" */
    ls_run_kind kind;
    size_t offset;        /* in ls_run_config */
    const char *fallback; /* default, as text; NULL: none */
    bool required;
    ls_run_resume resume;
    int64_t least, most; /* whole numbers and counts */
    ls_yaml_range range; /* reals */
    const char *const *words;
    const int *values; /* of words; NULL: their index */
    size_t n_words;
    const char *about; /* one line, for the JSON schema */
} ls_run_field;

/* All keys, in the order of the contract. */
const ls_run_field *ls_run_fields(size_t *n_fields);

/* "section" of a path copied to section (""  for a key of the top level); returns the key. */
const char *ls_run_field_split(const char *path, char section[LS_YAML_KEY_BYTES_MAX + 1]);

/* Read a node into the field's place in config.  What was allocated there before a failure is
 * freed with the config. */
ls_status ls_run_field_read(const ls_run_field *field, const ls_yaml_node *node,
                            ls_run_config *config);

/* The same with the field's default, if it has one. */
ls_status ls_run_field_read_default(const ls_run_field *field, ls_run_config *config);

/* The classes whose place a run file may give, all but the batch, and their names; how many. */
size_t ls_run_list_classes(const char *names[LS_CLASS_COUNT],
                           ls_tensor_class classes[LS_CLASS_COUNT]);

/* Keep where each key stands (run_place.c); name: of the file.  LS_ERR_NO_MEMORY. */
ls_status ls_run_places_keep(const ls_yaml_node *root, const char *name, ls_run_config *config);
void ls_run_places_free(ls_run_config *config);

/* Read memory.save (run_save.c). */
ls_status ls_run_save_read(const ls_yaml_node *node, ls_run_config *config);

/* The field's value in config as JSON; NULL: out of memory. */
cJSON *ls_run_field_to_json(const ls_run_field *field, const ls_run_config *config);

#endif
