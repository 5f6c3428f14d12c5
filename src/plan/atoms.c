/*
 * atoms.c - the distinct spans of a plan, by a hash table, and the cuts that these make.
 *
 * Operands are looked up, only distinct spans are sorted: linear in the operands of a plan.
 */
#include "atoms.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_SLOTS_MIN 1024 /* a power of two */

/* ---- distinct spans ------------------------------------------------------------------------ */

typedef struct span_table {
    ls_span *spans; /* [n]; 0: of no bytes */
    int32_t n;
    int32_t *slots; /* [n_slots] into spans; 0: free.  At most half are taken */
    uint32_t n_slots;
} span_table;

/* Multiplicative hashing (Knuth, TAOCP 3, 6.4); offsets and sizes have many zero bits at the end.
 */
static uint32_t find_home(const span_table *t, const ls_span *span)
{
    uint64_t hash = (span->offset + (uint64_t)span->arena) * UINT64_C(0x9e3779b97f4a7c15);

    hash = (hash ^ hash >> 29 ^ span->bytes) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(hash >> 32 ^ hash >> 50) & (t->n_slots - 1);
}

/* The slot that holds the span, or the free one for it. */
static uint32_t find_slot(const span_table *t, const ls_span *span)
{
    uint32_t slot = find_home(t, span);

    for (; t->slots[slot] != 0; slot = (slot + 1) & (t->n_slots - 1)) {
        const ls_span *other = &t->spans[t->slots[slot]];
        if (other->offset == span->offset && other->bytes == span->bytes &&
            other->arena == span->arena)
            break;
    }
    return slot;
}

static ls_status grow_table(span_table *t)
{
    const uint32_t n_slots = t->n_slots > 0 ? 2 * t->n_slots : TABLE_SLOTS_MIN;
    ls_span *spans = realloc(t->spans, (size_t)n_slots / 2 * sizeof *spans);
    if (spans != NULL) t->spans = spans;
    int32_t *slots = calloc(n_slots, sizeof *slots);

    if (spans == NULL || slots == NULL || n_slots > INT32_MAX) {
        free(slots);
        return LS_FAIL(LS_ERR_NO_MEMORY, "check of %d spans", t->n);
    }
    free(t->slots);
    t->slots = slots;
    t->n_slots = n_slots;
    for (int32_t i = 1; i < t->n; i++) t->slots[find_slot(t, &t->spans[i])] = i;
    return LS_OK;
}

static ls_status add_span(span_table *t, const ls_span *span, int32_t *index)
{
    *index = 0;
    if (span->arena < 0 || span->bytes == 0) return LS_OK;
    uint32_t slot = find_slot(t, span);
    if (t->slots[slot] == 0) {
        if ((uint32_t)t->n == t->n_slots / 2) {
            LS_TRY(grow_table(t));
            slot = find_slot(t, span);
        }
        t->spans[t->n] = *span;
        t->slots[slot] = t->n++;
    }
    *index = t->slots[slot];
    return LS_OK;
}

static ls_status collect_spans(const ls_plan *plan, ls_atoms *atoms, span_table *t)
{
    LS_TRY(grow_table(t));
    t->spans[t->n++] = (ls_span){.arena = -1};
    for (int32_t i = 0; i < plan->n_tensors; i++)
        LS_TRY(add_span(t, &plan->tensors[i].span, &atoms->tensor_span[i]));
    for (int64_t i = 0; i < plan->n_operands; i++) {
        const ls_step_operand *o = &plan->operands[i];
        const ls_span *whole = o->tensor >= 0 ? &plan->tensors[o->tensor].span : NULL;
        if (whole == NULL)
            atoms->operand_span[i] = 0;
        else if (o->span.offset == whole->offset && o->span.bytes == whole->bytes)
            atoms->operand_span[i] = atoms->tensor_span[o->tensor];
        else
            LS_TRY(add_span(t, &o->span, &atoms->operand_span[i]));
    }
    return LS_OK;
}

/* ---- cuts ---------------------------------------------------------------------------------- */

typedef struct cut {
    int32_t arena;
    uint64_t offset;
} cut;

static int compare_cuts(const void *a, const void *b)
{
    const cut *x = a, *y = b;
    if (x->arena != y->arena) return x->arena < y->arena ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The cut at this place; it exists. */
static int64_t find_cut(const cut *cuts, int64_t n, int32_t arena, uint64_t offset)
{
    const cut wanted = {arena, offset};
    int64_t low = 0, high = n - 1;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (compare_cuts(&cuts[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int64_t collect_cuts(const span_table *t, cut *cuts)
{
    int64_t n = 0, unique = 0;

    for (int32_t i = 1; i < t->n; i++) {
        cuts[n++] = (cut){t->spans[i].arena, t->spans[i].offset};
        cuts[n++] = (cut){t->spans[i].arena, t->spans[i].offset + t->spans[i].bytes};
    }
    qsort(cuts, (size_t)n, sizeof *cuts, compare_cuts);
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || compare_cuts(&cuts[i], &cuts[unique - 1]) != 0) cuts[unique++] = cuts[i];
    return unique;
}

/* Atom i begins at cut i; the last cut of an arena begins none, but keeps its number. */
static void fill_atoms(const span_table *t, const cut *cuts, ls_atoms *atoms)
{
    for (int64_t i = 0; i < atoms->n; i++) {
        const bool last = i + 1 == atoms->n || cuts[i + 1].arena != cuts[i].arena;
        atoms->arena[i] = cuts[i].arena;
        atoms->offset[i] = cuts[i].offset;
        atoms->bytes[i] = last ? 0 : cuts[i + 1].offset - cuts[i].offset;
    }
    for (int32_t i = 0; i < t->n; i++) {
        const ls_span *s = &t->spans[i];
        atoms->spans[i] =
            s->bytes == 0
                ? (ls_atom_range){0, 0}
                : (ls_atom_range){find_cut(cuts, atoms->n, s->arena, s->offset),
                                  find_cut(cuts, atoms->n, s->arena, s->offset + s->bytes)};
    }
}

static ls_status cut_spans(const span_table *t, ls_atoms *atoms)
{
    cut *cuts = malloc((2 * (size_t)t->n + 1) * sizeof *cuts);
    ls_status status = LS_OK;

    const size_t n = cuts != NULL ? (size_t)collect_cuts(t, cuts) : 0;
    atoms->n = (int64_t)n;
    atoms->n_spans = t->n;
    atoms->arena = malloc((n + 1) * sizeof *atoms->arena);
    atoms->offset = malloc((n + 1) * sizeof *atoms->offset);
    atoms->bytes = malloc((n + 1) * sizeof *atoms->bytes);
    atoms->spans = malloc((size_t)t->n * sizeof *atoms->spans);
    if (cuts == NULL || atoms->arena == NULL || atoms->offset == NULL || atoms->bytes == NULL ||
        atoms->spans == NULL)
        status = LS_FAIL(LS_ERR_NO_MEMORY, "check of %d spans", t->n);
    else
        fill_atoms(t, cuts, atoms);
    free(cuts);
    return status;
}

/* ---- all of it ----------------------------------------------------------------------------- */

ls_status ls_atoms_cut(const ls_plan *plan, ls_atoms *atoms)
{
    const size_t n_operands = (size_t)plan->n_operands, n_tensors = (size_t)plan->n_tensors;
    span_table table = {.n = 0};
    ls_status status;

    *atoms = (ls_atoms){.operand_span = malloc((n_operands + 1) * sizeof *atoms->operand_span),
                        .tensor_span = malloc((n_tensors + 1) * sizeof *atoms->tensor_span)};
    if (atoms->operand_span == NULL || atoms->tensor_span == NULL)
        status = LS_FAIL(LS_ERR_NO_MEMORY, "check of %zu operands", n_operands);
    else
        status = collect_spans(plan, atoms, &table);
    if (status == LS_OK) status = cut_spans(&table, atoms);
    if (status != LS_OK) ls_atoms_free(atoms);
    free(table.spans);
    free(table.slots);
    return status;
}

void ls_atoms_free(ls_atoms *atoms)
{
    free(atoms->arena);
    free(atoms->offset);
    free(atoms->bytes);
    free(atoms->spans);
    free(atoms->operand_span);
    free(atoms->tensor_span);
    memset(atoms, 0, sizeof *atoms);
}

void ls_atoms_describe(const ls_atoms *atoms, int64_t atom, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "bytes %" PRIu64 " to %" PRIu64 " of arena %d", atoms->offset[atom],
             atoms->offset[atom] + atoms->bytes[atom], atoms->arena[atom]);
}
