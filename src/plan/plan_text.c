/* plan_text.c - a plan, written line by line.  The order of words is that of plan_text_read.c. */
#include "plan_text.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "exact_real.h"

/* How wide the columns are that differ from plan to plan. */
typedef struct columns {
    int tensor, step;
} columns;

static columns measure_columns(const ls_plan *plan)
{
    columns c = {1, snprintf(NULL, 0, "%" PRId64, plan->n_steps)};
    for (int32_t i = 0; i < plan->n_tensors; i++) {
        const int n = (int)strlen(plan->tensors[i].tensor.name);
        if (n > c.tensor) c.tensor = n;
    }
    return c;
}

/* " key=12", or " key=-" for a negative number, which means none. */
static void write_optional(FILE *file, const char *key, int64_t value, int width)
{
    char text[24] = "-";
    if (value >= 0) snprintf(text, sizeof text, "%" PRId64, value);
    fprintf(file, " %s=%-*s", key, width, text);
}

static void write_tensor(const ls_plan_tensor *t, int width, FILE *file)
{
    const ls_tensor *tensor = &t->tensor;

    fprintf(file, "tensor   %-*s dims=", width, tensor->name);
    for (int d = 0; d < tensor->n_dims; d++)
        fprintf(file, "%s%" PRId64, d > 0 ? "x" : "", tensor->dims[d]);
    fprintf(file, " dtype=%s role=%s", ls_dtype_name(tensor->dtype), ls_role_name(tensor->role));
    write_optional(file, "layer", tensor->layer, 0);
    write_optional(file, "param", tensor->param, 0);
    fprintf(file, "%s arena=%d offset=%" PRIu64 " bytes=%" PRIu64 " group=%d",
            tensor->persistent ? " persistent" : "", t->span.arena, t->span.offset, t->span.bytes,
            t->group);
    if (t->source >= 0) fprintf(file, " copy of=%d", t->source);
    fputc('\n', file);
}

static void write_carry(const ls_plan *plan, int32_t index, FILE *file)
{
    const ls_carry *carry = &plan->carries[index];

    fprintf(file, "carry    ~%d lane=%s group=%d ends", index, ls_lane_name(carry->lane),
            carry->group);
    for (int s = 0; s < LS_SEGMENT_COUNT; s++)
        write_optional(file, ls_segment_name((ls_segment_kind)s), carry->ends[s], 0);
    fputc('\n', file);
}

/* ---- steps --------------------------------------------------------------------------------- */

static void write_operand(const ls_plan *plan, const ls_step_operand *operand, FILE *file)
{
    static const char *const accesses[] = {"-", "r", "w", "rw"};

    if (operand->tensor < 0) {
        fputc('-', file);
        return;
    }
    const ls_plan_tensor *t = &plan->tensors[operand->tensor];
    assert(operand->span.arena == t->span.arena && operand->span.offset >= t->span.offset);
    fprintf(file, "%s:%s+%" PRIu64 ":%" PRIu64, accesses[operand->access], t->tensor.name,
            operand->span.offset - t->span.offset, operand->span.bytes);
}

static void write_operands(const ls_plan *plan, const ls_step *step, FILE *file)
{
    const ls_op_info *info = step->kind == LS_CALL_OP ? ls_op_describe(step->op) : NULL;

    assert(info == NULL || step->n_operands == info->n_operands);
    for (int32_t i = 0; i < step->n_operands; i++) {
        fputc(' ', file);
        if (info != NULL) fprintf(file, "%s=", info->operands[i].name);
        write_operand(plan, &plan->operands[step->first_operand + i], file);
    }
}

static void write_field(const ls_op_field *field, const ls_op_args *args, FILE *file)
{
    const char *at = (const char *)args + field->offset;
    char text[LS_EXACT_REAL_BYTES];

    fprintf(file, " %s=", field->name);
    switch ((ls_field_type)field->type) {
    case LS_FIELD_I64: fprintf(file, "%" PRId64, *(const int64_t *)at); break;
    case LS_FIELD_I32: fprintf(file, "%" PRId32, *(const int32_t *)at); break;
    case LS_FIELD_F32: fputs(ls_exact_real_print(text, (double)*(const float *)at), file); break;
    case LS_FIELD_DTYPE: fputs(ls_dtype_name(*(const ls_dtype *)at), file); break;
    }
}

static void write_fields(const ls_plan *plan, const ls_step *step, FILE *file)
{
    int n = 0;
    const ls_op_field *fields = step->kind == LS_CALL_OP ? ls_op_fields(step->op, &n) : NULL;
    for (int i = 0; i < n; i++) write_field(&fields[i], &plan->args[step->args], file);
}

static void write_waits(const ls_plan *plan, const ls_step *step, FILE *file)
{
    for (int32_t w = 0; w < step->n_waits; w++) {
        const int64_t wait = plan->waits[step->first_wait + w];
        fputs(w == 0 ? " waits=" : ",", file);
        if (ls_wait_is_carry(wait))
            fprintf(file, "~%" PRId64, ls_wait_carry(wait));
        else
            fprintf(file, "%" PRId64, wait);
    }
}

static void write_step(const ls_plan *plan, int64_t index, int width, FILE *file)
{
    const ls_step *step = &plan->steps[index];
    const char *kind =
        step->kind == LS_CALL_OP ? ls_op_describe(step->op)->name : ls_call_kind_name(step->kind);
    char flops[LS_EXACT_REAL_BYTES];

    fprintf(file, "step     %-*" PRId64 " %-18s %-8s %-8s", width, index, kind,
            ls_lane_name(step->lane), ls_phase_name(step->phase));
    write_optional(file, "layer", step->layer, 2);
    write_optional(file, "chunk", step->chunk, 3);
    fprintf(file, "%s%s flops=%s bytes=%" PRIu64, step->commit ? " commit" : "",
            step->recompute ? " recompute" : "", ls_exact_real_print(flops, step->flops),
            step->bytes);
    write_operands(plan, step, file);
    write_fields(plan, step, file);
    write_waits(plan, step, file);
    fputc('\n', file);
}

static void write_segment(const ls_plan *plan, int segment, FILE *file)
{
    fprintf(file, "segment  %s first=%" PRId64 " steps=%" PRId64 "\n",
            ls_segment_name((ls_segment_kind)segment), plan->segment_first[segment],
            plan->segment_steps[segment]);
}

/* Steps in order, each segment's line before its first; those without steps come first of all. */
static void write_steps(const ls_plan *plan, int width, FILE *file)
{
    for (int s = 0; s < LS_SEGMENT_COUNT; s++)
        if (plan->segment_steps[s] == 0) write_segment(plan, s, file);
    for (int64_t i = 0; i < plan->n_steps; i++) {
        for (int s = 0; s < LS_SEGMENT_COUNT; s++)
            if (plan->segment_steps[s] > 0 && plan->segment_first[s] == i) {
                fputc('\n', file);
                write_segment(plan, s, file);
            }
        write_step(plan, i, width, file);
    }
}

ls_status ls_plan_write_text(const ls_plan *plan, FILE *file)
{
    const columns width = measure_columns(plan);

    fprintf(file,
            "longspan-plan 1\ncounts   arenas=%d tensors=%d groups=%d carries=%d steps=%" PRId64
            " waits=%" PRId64 "\n\n",
            plan->n_arenas, plan->n_tensors, plan->n_groups, plan->n_carries, plan->n_steps,
            plan->n_waits);
    for (int32_t i = 0; i < plan->n_arenas; i++)
        fprintf(file, "arena    %d place=%s bytes=%" PRIu64 "\n", i,
                ls_place_name(plan->arenas[i].place), plan->arenas[i].bytes);
    fputc('\n', file);
    for (int32_t i = 0; i < plan->n_tensors; i++)
        write_tensor(&plan->tensors[i], width.tensor, file);
    fputc('\n', file);
    for (int32_t i = 0; i < plan->n_carries; i++) write_carry(plan, i, file);
    write_steps(plan, width.step, file);
    fputs("\nend\n", file);
    if (fflush(file) == 0 && !ferror(file)) return LS_OK;
    return LS_FAIL(LS_ERR_IO, "writing the plan: %s", strerror(errno));
}
