/*
 * plan_text_test.h - plans written as text and read back.
 */
#ifndef LS_PLAN_TEXT_TEST_H
#define LS_PLAN_TEXT_TEST_H

#include "plan_test.h"
#include "plan_text.h"

static inline char *write_plan(const ls_plan *plan, size_t *bytes)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, bytes);

    assert_non_null(file);
    assert_int_equal(ls_plan_write_text(plan, file), LS_OK);
    fclose(file);
    return text;
}

static inline void read_plan(const char *text, size_t bytes, ls_plan *plan)
{
    if (ls_plan_read_text("text", text, bytes, plan) != LS_OK) fail_msg("%s", ls_error());
}

static inline bool same_span(ls_span a, ls_span b)
{
    return a.arena == b.arena && a.offset == b.offset && a.bytes == b.bytes;
}

static inline bool same_tensor(const ls_plan_tensor *a, const ls_plan_tensor *b)
{
    const ls_tensor *x = &a->tensor, *y = &b->tensor;
    return strcmp(x->name, y->name) == 0 && x->n_dims == y->n_dims &&
           memcmp(x->dims, y->dims, sizeof x->dims) == 0 && x->dtype == y->dtype &&
           x->role == y->role && x->layer == y->layer && x->param == y->param &&
           x->persistent == y->persistent && same_span(a->span, b->span) && a->group == b->group &&
           a->source == b->source;
}

/* Args of any op, by their tables; host calls have none. */
static inline bool same_args(const ls_step *step, const ls_op_args *a, const ls_op_args *b)
{
    static const size_t bytes[] = {8, 4, 4, sizeof(ls_dtype)}; /* by ls_field_type */
    int n;
    const ls_op_field *fields = ls_op_fields(step->op, &n);

    if (step->kind != LS_CALL_OP) return memcmp(a, b, sizeof *a) == 0;
    for (int i = 0; i < n; i++)
        if (memcmp((const char *)a + fields[i].offset, (const char *)b + fields[i].offset,
                   bytes[fields[i].type]) != 0)
            return false;
    for (int i = 0; i < ls_op_describe(step->op)->n_operands; i++) {
        const size_t offset = ls_op_describe(step->op)->operands[i].offset;
        if (memcmp((const char *)a + offset, (const char *)b + offset, sizeof(void *)) != 0)
            return false;
    }
    return true;
}

static inline bool same_step(const ls_plan *p, const ls_plan *q, int64_t index)
{
    const ls_step *a = &p->steps[index], *b = &q->steps[index];

    if (a->kind != b->kind || a->op != b->op || a->lane != b->lane || a->phase != b->phase ||
        a->layer != b->layer || a->chunk != b->chunk || a->commit != b->commit ||
        a->recompute != b->recompute || memcmp(&a->flops, &b->flops, sizeof a->flops) != 0 ||
        a->bytes != b->bytes || a->n_operands != b->n_operands || a->n_waits != b->n_waits ||
        !same_args(a, &p->args[a->args], &q->args[b->args]))
        return false;
    for (int32_t i = 0; i < a->n_operands; i++) {
        const ls_step_operand *x = &p->operands[a->first_operand + i];
        const ls_step_operand *y = &q->operands[b->first_operand + i];
        if (!same_span(x->span, y->span) || x->tensor != y->tensor || x->access != y->access)
            return false;
    }
    for (int32_t w = 0; w < a->n_waits; w++)
        if (p->waits[a->first_wait + w] != q->waits[b->first_wait + w]) return false;
    return true;
}

static inline bool same_plan(const ls_plan *p, const ls_plan *q)
{
    if (p->n_arenas != q->n_arenas || p->n_tensors != q->n_tensors || p->n_groups != q->n_groups ||
        p->n_carries != q->n_carries || p->n_steps != q->n_steps ||
        p->n_operands != q->n_operands || p->n_waits != q->n_waits)
        return false;
    if (memcmp(p->segment_first, q->segment_first, sizeof p->segment_first) != 0 ||
        memcmp(p->segment_steps, q->segment_steps, sizeof p->segment_steps) != 0)
        return false;
    for (int32_t i = 0; i < p->n_arenas; i++)
        if (p->arenas[i].place != q->arenas[i].place || p->arenas[i].bytes != q->arenas[i].bytes)
            return false;
    for (int32_t i = 0; i < p->n_tensors; i++)
        if (!same_tensor(&p->tensors[i], &q->tensors[i])) return false;
    for (int32_t i = 0; i < p->n_carries; i++)
        if (p->carries[i].lane != q->carries[i].lane ||
            p->carries[i].group != q->carries[i].group ||
            memcmp(p->carries[i].ends, q->carries[i].ends, sizeof p->carries[i].ends) != 0)
            return false;
    for (int64_t s = 0; s < p->n_steps; s++)
        if (!same_step(p, q, s)) return false;
    return true;
}

#endif
