/*
 * save_policy.h - what forward keeps of each layer for backward, in the words of run files.
 *
 *   x         the layer's input
 *   x+o       and its attention output with LSE: attention never runs again
 *   x+qkv+o   and its queries, keys and values
 *   o+x/K     attention outputs of all, inputs of every K-th: dense work rebuilds those between
 *   x/K       inputs of every K-th alone: the layers between run again, attention too
 *
 * Policies go by ranges of layers, and K counts from a range's first layer.  A layer that no range
 * names keeps its input.
 *
 * Layer: engine (uses model, topology).  Threads: plain data.
 */
#ifndef LS_SAVE_POLICY_H
#define LS_SAVE_POLICY_H

#include <cjson/cJSON.h>

#include "decoder.h"
#include "place.h"

#define LS_SAVE_RANGES_MAX  LS_LAYER_PLACES_MAX
#define LS_SAVE_LAYERS_ALL  INT32_MAX /* as the last of a range: whatever the model has */
#define LS_SAVE_NAME_BYTES  32
#define LS_SAVES_TEXT_BYTES 160

typedef struct ls_save_policy {
    bool o, qkv;
    int32_t x_stride; /* at least 1 */
} ls_save_policy;

typedef struct ls_save_range {
    int32_t first, last;
    ls_save_policy policy;
    int place; /* 1 + ls_place_kind; 0: not given */
} ls_save_range;

typedef struct ls_saves {
    ls_save_range ranges[LS_SAVE_RANGES_MAX]; /* no layer twice */
    int32_t n_ranges;
    int32_t n_layers; /* of the model; 0: not known yet */
} ls_saves;

/* Whether text is a policy; if so, which. */
bool ls_save_policy_parse(const char *text, ls_save_policy *policy);

/* The policy's word; returns buffer. */
const char *ls_save_policy_name(ls_save_policy policy, char buffer[LS_SAVE_NAME_BYTES]);

/* Whether text is "4" or "0-23", in order; if so, of which layers. */
bool ls_save_layers_parse(const char *text, int32_t *first, int32_t *last);

/* One policy for every layer. */
void ls_saves_set(ls_saves *saves, ls_save_policy policy);

/* What a layer keeps. */
ls_layer_save ls_saves_of(const ls_saves *saves, int32_t layer);

/* Where its x, o, q, k, v lie because the range says so: 1 + ls_place_kind; 0: as the classes say.
 */
int ls_saves_place(const ls_saves *saves, int32_t layer);

/* Where all layers have one policy its word, else "mixed"; returns buffer. */
const char *ls_saves_name(const ls_saves *saves, char buffer[LS_SAVE_NAME_BYTES]);

/* "x+o", or "o+x/8 in 0-19, x+o in 20-31 (hbm)"; cut with "..." where there are many; returns
 * buffer. */
const char *ls_saves_describe(const ls_saves *saves, char buffer[LS_SAVES_TEXT_BYTES]);

/* As memory.save has it, a word or a list; NULL: out of memory. */
cJSON *ls_saves_to_json(const ls_saves *saves);

/* The list alone: null where there is but a word. */
cJSON *ls_saves_ranges_to_json(const ls_saves *saves);

/* Back again from the member `key` of an object of the file `name`.  LS_ERR_CORRUPT. */
ls_status ls_saves_read_json(const char *name, const cJSON *object, const char *key,
                             ls_saves *saves);

#endif
