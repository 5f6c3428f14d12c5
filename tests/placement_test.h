/*
 * placement_test.h - placements on a machine with device memory behind a link, for tests whose
 * device memory is a second arena.
 *
 * Layer: tests.  Header only.
 */
#ifndef LS_PLACEMENT_TEST_H
#define LS_PLACEMENT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "place.h"
#include "topology.h"

/* What the policy makes of a wish there. */
static inline void decide_placement(bool coherent, const ls_placement_wish *wish,
                                    ls_placement *placement)
{
    ls_topology *machine = calloc(1, sizeof *machine);

    assert_non_null(machine);
    machine->n_places = 2;
    machine->places[0] = (ls_place){.kind = LS_PLACE_HOST, .name = "host0"};
    machine->places[1] = (ls_place){.kind = LS_PLACE_HBM, .name = "hbm0"};
    machine->n_links = 1;
    machine->links[0] = (ls_link){.from = "host0",
                                  .to = "hbm0",
                                  .coherent = ls_quantity_make(coherent, LS_SOURCE_PROFILE, "")};
    assert_int_equal(ls_placement_decide(machine, wish, placement), LS_OK);
    free(machine);
}

/* Weights in a mode, streamed ones through two layers' slots. */
static inline ls_placement place_weights(ls_place_mode mode, bool coherent)
{
    const ls_placement_wish wish = {.weights_given = true, .weights = mode, .ring_slots = 2};
    ls_placement placement;

    decide_placement(coherent, &wish, &placement);
    return placement;
}

#endif
