/*
 * profile_keys.h - the keys of a hardware profile as tables, which the reader, the writer and the
 * JSON schema go by: figures, each with how it is written and where it lies; the maps they stand
 * in.
 *
 * Layer: topology, internal.  Threads: constant data.
 */
#ifndef LS_PROFILE_KEYS_H
#define LS_PROFILE_KEYS_H

#include <stddef.h>

typedef enum ls_profile_value {
    LS_PROFILE_BYTES, /* "96GB" */
    LS_PROFILE_REAL,
    LS_PROFILE_TRUTH
} ls_profile_value;

typedef struct ls_profile_key {
    const char *key;
    ls_profile_value kind;
    double most;   /* greatest value */
    size_t offset; /* of an ls_quantity in the struct that the table is for */
} ls_profile_key;

typedef struct ls_profile_keys {
    const ls_profile_key *keys;
    size_t n;
} ls_profile_keys;

extern const ls_profile_keys ls_profile_place_keys;    /* of ls_place */
extern const ls_profile_keys ls_profile_link_keys;     /* of ls_link */
extern const ls_profile_keys ls_profile_unit_keys;     /* of ls_unit */
extern const ls_profile_keys ls_profile_fraction_keys; /* of ls_efficiency */
extern const ls_profile_keys ls_profile_watts_keys;    /* of a quantity alone: a power state's */
extern const ls_profile_keys ls_profile_throttle_keys; /* of ls_profile */
extern const ls_profile_keys ls_profile_limit_keys;    /* of ls_power_cap */

/* The maps that a profile consists of. */
typedef enum ls_profile_section {
    LS_PROFILE_DOCUMENT = 0,
    LS_PROFILE_MATCH,
    LS_PROFILE_BOUNDS,
    LS_PROFILE_PLACE,
    LS_PROFILE_LINK,
    LS_PROFILE_UNIT,
    LS_PROFILE_EFFICIENCY,
    LS_PROFILE_THROTTLE,
    LS_PROFILE_NVME,
    LS_PROFILE_LIMITS,
    LS_PROFILE_SECTIONS
} ls_profile_section;

/* What may stand in a map: words and figures, of each the required ones first. */
typedef struct ls_profile_map {
    const char *const *words;
    size_t n_words, n_words_required;
    const ls_profile_keys *figures; /* NULL: none */
    size_t n_figures_required;
} ls_profile_map;

extern const ls_profile_map ls_profile_maps[LS_PROFILE_SECTIONS];

/* Lists of words that a value may be; each ends with NULL. */
extern const char *const ls_profile_sources[];
extern const char *const ls_profile_places[];
extern const char *const ls_profile_units[];
extern const char *const ls_profile_reaches[];

/* How many there are. */
size_t ls_profile_count(const char *const *words);

#endif
