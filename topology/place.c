/* place.c - names of places. */
#include "place.h"

#include <assert.h>

const char *ls_place_name(ls_place_kind kind)
{
    static const char *const names[LS_PLACE_COUNT] = {"hbm", "host", "nvme"};
    assert((unsigned)kind < LS_PLACE_COUNT);
    return names[kind];
}
