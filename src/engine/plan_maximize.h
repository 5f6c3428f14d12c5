/*
 * plan_maximize.h - the longest sequences that fit a machine, one for each save policy.
 *
 * Lengths are whole query blocks.  More tokens never take fewer bytes, so a length that fits and
 * one that does not enclose the answer; each look builds the plan that training would follow.
 *
 * Layer: engine.  Threads: no shared state.
 */
#ifndef LS_PLAN_MAXIMIZE_H
#define LS_PLAN_MAXIMIZE_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "choices.h"

#define LS_MAXIMIZE_POLICIES 3

/* A length that has been looked at. */
typedef struct ls_length {
    int64_t tokens; /* of a sequence; 0: none */
    uint64_t place_bytes[LS_PLACE_COUNT];
    ls_place_mode weights;
    bool fits;
} ls_length;

typedef struct ls_longest {
    const char *save; /* as memory.save has it */
    ls_length length; /* the longest that fits; 0 tokens: not even a query block does */
} ls_longest;

typedef struct ls_maximum {
    const ls_run_config *config;
    const ls_model_config *model;
    const ls_hardware *hardware;
    int64_t chunk, query_block;
    ls_longest longest[LS_MAXIMIZE_POLICIES];
    int64_t n_looks; /* plans built, for those who wonder about the time */
} ls_maximum;

/*
 * Find them.  config, model and hardware must outlive the result.
 * Returns LS_OK, also where nothing fits; LS_ERR_NO_MEMORY (a plan has too many steps to be built);
 * LS_ERR_INVALID (the run file asks for what cannot be, at some length).
 */
ls_status ls_maximum_find(const ls_run_config *config, const ls_model_config *model,
                          const ls_hardware *hardware, ls_maximum *maximum);

/* A table for people; {profile, model, ..., maximize: [{save, tokens, weights, peak_bytes}]}. */
void ls_maximum_print(const ls_maximum *maximum, FILE *file);
ls_status ls_maximum_to_json(const ls_maximum *maximum, cJSON **json);

/* LS_OK, or LS_ERR_NO_MEMORY: no policy has room for a query block. */
ls_status ls_maximum_verdict(const ls_maximum *maximum);

#endif
