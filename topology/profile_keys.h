/*
 * profile_keys.h - the figures of a hardware profile: key, how it is written, where it lies.  The
 * reader and the writer go by the same tables.  Layer: topology, internal.
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

#endif
