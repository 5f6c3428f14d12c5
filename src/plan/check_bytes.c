/* check_bytes.c - atoms of the arenas, and what they hold when they are read. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define TEXT_BYTES 192

/* ---- cutting ------------------------------------------------------------------------------- */

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

static int64_t add_span(cut *cuts, int64_t n, const ls_span *span)
{
    if (span->arena < 0 || span->bytes == 0) return n;
    cuts[n++] = (cut){span->arena, span->offset};
    cuts[n++] = (cut){span->arena, span->offset + span->bytes};
    return n;
}

static int64_t collect_cuts(const ls_plan *plan, cut *cuts)
{
    int64_t n = 0, unique = 0;

    for (int32_t i = 0; i < plan->n_tensors; i++) n = add_span(cuts, n, &plan->tensors[i].span);
    for (int64_t i = 0; i < plan->n_operands; i++) {
        const ls_step_operand *o = &plan->operands[i];
        const ls_span *whole = o->tensor >= 0 ? &plan->tensors[o->tensor].span : NULL;
        if (whole != NULL && (o->span.offset != whole->offset || o->span.bytes != whole->bytes))
            n = add_span(cuts, n, &o->span);
    }
    qsort(cuts, (size_t)n, sizeof *cuts, compare_cuts);
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || compare_cuts(&cuts[i], &cuts[unique - 1]) != 0) cuts[unique++] = cuts[i];
    return unique;
}

/* Atom i begins at cut i; the last cut of an arena begins none, but keeps its number. */
static void fill_atoms(const ls_plan *plan, const cut *cuts, int64_t n, ls_atoms *atoms)
{
    atoms->n = n;
    for (int64_t i = 0; i < n; i++) {
        const bool last = i + 1 == n || cuts[i + 1].arena != cuts[i].arena;
        atoms->arena[i] = cuts[i].arena;
        atoms->offset[i] = cuts[i].offset;
        atoms->bytes[i] = last ? 0 : cuts[i + 1].offset - cuts[i].offset;
    }
    for (int64_t i = 0; i < (int64_t)plan->n_tensors; i++) {
        const ls_span *s = &plan->tensors[i].span;
        if (s->bytes == 0) continue;
        atoms->tensor_first[i] = find_cut(cuts, n, s->arena, s->offset);
        atoms->tensor_end[i] = find_cut(cuts, n, s->arena, s->offset + s->bytes);
    }
    for (int64_t i = 0; i < plan->n_operands; i++) {
        const ls_step_operand *o = &plan->operands[i];
        if (o->tensor < 0 || o->span.bytes == 0) continue;
        const ls_span *whole = &plan->tensors[o->tensor].span;
        if (o->span.offset == whole->offset && o->span.bytes == whole->bytes) {
            atoms->first[i] = atoms->tensor_first[o->tensor];
            atoms->end[i] = atoms->tensor_end[o->tensor];
        } else {
            atoms->first[i] = find_cut(cuts, n, o->span.arena, o->span.offset);
            atoms->end[i] = find_cut(cuts, n, o->span.arena, o->span.offset + o->span.bytes);
        }
    }
}

ls_status ls_atoms_cut(const ls_plan *plan, ls_atoms *atoms)
{
    const size_t n_operands = (size_t)plan->n_operands, n_tensors = (size_t)plan->n_tensors;
    cut *cuts = malloc((2 * (n_operands + n_tensors) + 1) * sizeof *cuts);
    ls_status status = LS_OK;

    memset(atoms, 0, sizeof *atoms);
    const size_t n = cuts != NULL ? (size_t)collect_cuts(plan, cuts) : 0;
    atoms->arena = malloc((n + 1) * sizeof *atoms->arena);
    atoms->offset = malloc((n + 1) * sizeof *atoms->offset);
    atoms->bytes = malloc((n + 1) * sizeof *atoms->bytes);
    atoms->first = calloc(n_operands + 1, sizeof *atoms->first);
    atoms->end = calloc(n_operands + 1, sizeof *atoms->end);
    atoms->tensor_first = calloc(n_tensors + 1, sizeof *atoms->tensor_first);
    atoms->tensor_end = calloc(n_tensors + 1, sizeof *atoms->tensor_end);
    if (cuts == NULL || atoms->arena == NULL || atoms->offset == NULL || atoms->bytes == NULL ||
        atoms->first == NULL || atoms->end == NULL || atoms->tensor_first == NULL ||
        atoms->tensor_end == NULL) {
        ls_atoms_free(atoms);
        status = LS_FAIL(LS_ERR_NO_MEMORY, "check of %zu operands", n_operands);
    } else {
        fill_atoms(plan, cuts, (int64_t)n, atoms);
    }
    free(cuts);
    return status;
}

void ls_atoms_free(ls_atoms *atoms)
{
    free(atoms->arena);
    free(atoms->offset);
    free(atoms->bytes);
    free(atoms->first);
    free(atoms->end);
    free(atoms->tensor_first);
    free(atoms->tensor_end);
    memset(atoms, 0, sizeof *atoms);
}

void ls_atoms_describe(const ls_atoms *atoms, int64_t atom, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "bytes %" PRIu64 " to %" PRIu64 " of arena %d", atoms->offset[atom],
             atoms->offset[atom] + atoms->bytes[atom], atoms->arena[atom]);
}

/* ---- contents ------------------------------------------------------------------------------ */

typedef struct contents {
    const ls_plan *plan;
    const ls_atoms *atoms;
    int32_t *keeper; /* [n atoms] the persistent tensor that owns it, -1: none */
    int32_t *holder; /* [n atoms] whose content it has, -1: nobody's */
} contents;

static ls_status find_keepers(contents *c)
{
    for (int64_t a = 0; a < c->atoms->n; a++) c->keeper[a] = -1;
    for (int32_t t = 0; t < c->plan->n_tensors; t++) {
        const ls_tensor *tensor = &c->plan->tensors[t].tensor;
        if (!tensor->persistent) continue;
        for (int64_t a = c->atoms->tensor_first[t]; a < c->atoms->tensor_end[t]; a++) {
            if (c->keeper[a] >= 0)
                return LS_FAIL(LS_ERR_INVALID,
                               "plan: tensors %s and %s share bytes, but both outlive segments",
                               c->plan->tensors[c->keeper[a]].tensor.name, tensor->name);
            c->keeper[a] = t;
        }
    }
    return LS_OK;
}

static ls_status check_read(const contents *c, int64_t step, const ls_step_operand *operand,
                            int64_t atom)
{
    const char *name = c->plan->tensors[operand->tensor].tensor.name;
    char text[TEXT_BYTES], bytes[TEXT_BYTES];

    if (c->holder[atom] == operand->tensor) return LS_OK;
    ls_plan_describe_step(c->plan, step, text, sizeof text);
    ls_atoms_describe(c->atoms, atom, bytes, sizeof bytes);
    if (c->holder[atom] < 0)
        return LS_FAIL(LS_ERR_INVALID, "plan: %s reads %s (%s) before anything has written it",
                       text, bytes, name);
    return LS_FAIL(LS_ERR_INVALID, "plan: %s reads %s as %s, but there %s has been written over it",
                   text, bytes, name, c->plan->tensors[c->holder[atom]].tensor.name);
}

static ls_status check_write(contents *c, int64_t step, const ls_step_operand *operand,
                             int64_t atom)
{
    const int32_t keeper = c->keeper[atom];
    char text[TEXT_BYTES], bytes[TEXT_BYTES];

    c->holder[atom] = operand->tensor;
    if (keeper < 0 || keeper == operand->tensor) return LS_OK;
    ls_plan_describe_step(c->plan, step, text, sizeof text);
    ls_atoms_describe(c->atoms, atom, bytes, sizeof bytes);
    return LS_FAIL(LS_ERR_INVALID, "plan: %s writes %s as %s, but they belong to %s", text, bytes,
                   c->plan->tensors[operand->tensor].tensor.name,
                   c->plan->tensors[keeper].tensor.name);
}

static ls_status check_segment(contents *c, int segment)
{
    const ls_plan *plan = c->plan;
    const int64_t first = plan->segment_first[segment];

    memcpy(c->holder, c->keeper, (size_t)c->atoms->n * sizeof *c->holder);
    for (int64_t s = first; s < first + plan->segment_steps[segment]; s++) {
        const ls_step *step = &plan->steps[s];
        for (int pass = 0; pass < 2; pass++) /* a step reads before it writes */
            for (int64_t i = step->first_operand; i < step->first_operand + step->n_operands; i++) {
                const ls_step_operand *o = &plan->operands[i];
                if (!(o->access & (pass == 0 ? LS_ACCESS_READ : LS_ACCESS_WRITE))) continue;
                for (int64_t a = c->atoms->first[i]; a < c->atoms->end[i]; a++)
                    LS_TRY(pass == 0 ? check_read(c, s, o, a) : check_write(c, s, o, a));
            }
    }
    return LS_OK;
}

ls_status ls_check_contents(const ls_plan *plan, const ls_atoms *atoms)
{
    contents c = {.plan = plan,
                  .atoms = atoms,
                  .keeper = malloc(((size_t)atoms->n + 1) * sizeof *c.keeper),
                  .holder = malloc(((size_t)atoms->n + 1) * sizeof *c.holder)};
    ls_status status;

    if (c.keeper == NULL || c.holder == NULL) {
        status = LS_FAIL(LS_ERR_NO_MEMORY, "check of %lld atoms", (long long)atoms->n);
    } else {
        status = find_keepers(&c);
        for (int s = 0; s < LS_SEGMENT_COUNT && status == LS_OK; s++) status = check_segment(&c, s);
    }
    free(c.keeper);
    free(c.holder);
    return status;
}
