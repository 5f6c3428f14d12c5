/*
 * check.h - private to the plan's checker: its parts.  They know nothing of how plans are made.
 *
 * Layer: plan, private.
 */
#ifndef LS_CHECK_H
#define LS_CHECK_H

#include "atoms.h"

/*
 * Taken in plan order, every read finds what its own tensor wrote there in this segment, or what a
 * persistent tensor holds; and nobody writes into a persistent tensor but itself.
 */
ls_status ls_check_contents(const ls_plan *plan, const ls_atoms *atoms);

/* Conflicting accesses are ordered, over every allowed succession of segments; no wait is spare. */
ls_status ls_check_order(const ls_plan *plan, const ls_atoms *atoms);

/*
 * For who makes a plan: of waits that order everything, those that may go, all of them together.
 *   spare  [n_waits] out
 * Returns what ls_check_order() would, spare waits apart.
 */
ls_status ls_find_spare_waits(const ls_plan *plan, const ls_atoms *atoms, bool *spare);

#endif
