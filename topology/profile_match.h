/*
 * profile_match.h - does a machine have what a profile is for?  Layer: topology, internal.
 */
#ifndef LS_PROFILE_MATCH_H
#define LS_PROFILE_MATCH_H

#include "profile.h"

typedef enum ls_match_result {
    LS_MATCH_NO = 0,  /* the machine contradicts the profile */
    LS_MATCH_UNKNOWN, /* it does not tell enough */
    LS_MATCH_YES
} ls_match_result;

/* Compare each GPU with what the profile is for; why: both facts, unless the result is YES. */
ls_match_result ls_profile_match(const ls_profile *profile, const ls_topology *topology, char *why,
                                 size_t size);

#endif
