/*
 * atoms.h - private to the checker: every byte of the arenas, as coarse as a plan allows.
 *
 * Arenas are cut at all places where a span begins or ends; between two cuts lies an atom, which
 * every span holds in full or not at all.  A plan has few distinct spans and many operands: what
 * holds for a span is found once for all of them.
 *
 * Layer: plan, private.
 */
#ifndef LS_ATOMS_H
#define LS_ATOMS_H

#include "plan.h"

typedef struct ls_atom_range {
    int64_t first, end;
} ls_atom_range;

typedef struct ls_atoms {
    int64_t n;
    int32_t *arena;           /* [n] */
    uint64_t *offset, *bytes; /* [n], sorted by arena and offset */
    ls_atom_range *spans;     /* [n_spans] of each distinct span; 0: of no bytes */
    int32_t n_spans;
    int32_t *operand_span; /* [n_operands] into spans; of an absent operand 0 */
    int32_t *tensor_span;  /* [n_tensors] */
} ls_atoms;

/* Cut; release with ls_atoms_free().  LS_OK or LS_ERR_NO_MEMORY. */
ls_status ls_atoms_cut(const ls_plan *plan, ls_atoms *atoms);
void ls_atoms_free(ls_atoms *atoms);

/* "bytes 512 to 1024 of arena 0" */
void ls_atoms_describe(const ls_atoms *atoms, int64_t atom, char *text, size_t text_bytes);

static inline ls_atom_range ls_atoms_of_operand(const ls_atoms *atoms, int64_t operand)
{
    return atoms->spans[atoms->operand_span[operand]];
}

static inline ls_atom_range ls_atoms_of_tensor(const ls_atoms *atoms, int32_t tensor)
{
    return atoms->spans[atoms->tensor_span[tensor]];
}

#endif
