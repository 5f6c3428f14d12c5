/*
 * check.h - private to the plan's checker: its parts and the byte map they share.
 *
 * The checker knows nothing of how plans are made.  It cuts every arena at all places where a span
 * begins or ends; between two cuts lies an atom, which every span holds in full or not at all.
 *
 * Layer: plan, private.
 */
#ifndef LS_CHECK_H
#define LS_CHECK_H

#include "plan.h"

typedef struct ls_atoms {
    int64_t n;
    int32_t *arena;                     /* [n] */
    uint64_t *offset, *bytes;           /* [n], sorted by arena and offset */
    int64_t *first, *end;               /* [n_operands] atoms of an operand's span; absent: empty */
    int64_t *tensor_first, *tensor_end; /* [n_tensors] of a tensor's span */
} ls_atoms;

/* Cut; release with ls_atoms_free().  LS_OK or LS_ERR_NO_MEMORY. */
ls_status ls_atoms_cut(const ls_plan *plan, ls_atoms *atoms);
void ls_atoms_free(ls_atoms *atoms);

/* "bytes 512 to 1024 of arena 0" */
void ls_atoms_describe(const ls_atoms *atoms, int64_t atom, char *text, size_t text_bytes);

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
