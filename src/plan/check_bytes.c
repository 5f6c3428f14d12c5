/* check_bytes.c - what the bytes of arenas hold when they are read. */
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define TEXT_BYTES 192

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
        const ls_atom_range atoms = ls_atoms_of_tensor(c->atoms, t);
        for (int64_t a = atoms.first; a < atoms.end; a++) {
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
                const ls_atom_range atoms = ls_atoms_of_operand(c->atoms, i);
                for (int64_t a = atoms.first; a < atoms.end; a++)
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
