/*
 * profile_keys.h - the keys of a hardware profile as tables: the reader (profile.c) and the JSON
 * schema (profile_schema.c) follow them.
 *
 * Layer: topology, internal.  Threads: constant data.
 */
#ifndef LS_PROFILE_KEYS_H
#define LS_PROFILE_KEYS_H

#include <stddef.h>

typedef enum ls_value_kind { LS_VALUE_BYTES, LS_VALUE_REAL, LS_VALUE_TRUTH } ls_value_kind;

/* The key of a {value, source}: how the value is written, its greatest, and where it goes. */
typedef struct ls_quantity_key {
    const char *key;
    ls_value_kind kind;
    double most;
    size_t offset;
} ls_quantity_key;

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

/* What may stand in a map: words and quantities, of each the required ones
 * first. */
typedef struct ls_profile_keys {
    const char *const *words;
    size_t n_words, n_required;
    const ls_quantity_key *quantities;
    size_t n_quantities, n_quantities_required;
} ls_profile_keys;

extern const ls_profile_keys ls_profile_keys_of[LS_PROFILE_SECTIONS];

/* The key whose values are the watts of power_states, by names of their own. */
extern const ls_quantity_key ls_profile_watts;

/* A list of words; ends with NULL. */
extern const char *const ls_profile_sources[],
    *const ls_profile_places[], *const ls_profile_units[], *const ls_profile_reaches[];

/* How many there are. */
size_t ls_profile_count(const char *const *words);

#endif
