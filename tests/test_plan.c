/*
 * test_plan.c - the lowering of real decoder tapes obeys the plan's laws.
 *
 * An independent model of the order (reachability over lane order and waits, by breadth-first
 * search) says whether each conflicting pair of steps is ordered, and whether any wait is spare.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "decoder.h"
#include "plan.h"

static ls_decoder_options small_options(void)
{
    return (ls_decoder_options){
        .shape = {.V = 37, .D = 16, .F = 24, .L = 2, .H = 4, .G = 2, .K = 8, .eps = 1e-5f},
        .dtype = LS_DTYPE_BF16,
        .S = 12,
        .sequences = 2,
        .accumulate = 2,
        .chunk = 5,
        .query_block = 10,
        .key_block = 7,
        .loss_rows = 7,
        .train = true,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .adam_eps = 1e-8f,
        .weight_decay = 0.1f,
        .clip_norm = 1.0f};
}

static void build(const ls_decoder_options *options, ls_decoder *decoder, ls_plan *plan)
{
    assert_int_equal(ls_decoder_build(options, decoder), LS_OK);
    assert_int_equal(ls_plan_lower(&decoder->tape, &ls_ops_cpu, plan), LS_OK);
}

static void spans_are_disjoint_and_inside(void **state)
{
    const ls_decoder_options options = small_options();
    ls_decoder decoder;
    ls_plan plan;

    (void)state;
    build(&options, &decoder, &plan);
    for (int32_t i = 0; i < plan.n_tensors; i++) {
        const ls_span a = plan.tensors[i].span;
        assert_true(a.bytes == ls_tensor_bytes(&plan.tensors[i].tensor));
        assert_true(a.offset % 256 == 0);
        assert_true(a.offset + a.bytes <= plan.arenas[a.arena].bytes);
        for (int32_t j = 0; j < i; j++) {
            const ls_span b = plan.tensors[j].span;
            assert_true(a.arena != b.arena || a.offset + a.bytes <= b.offset ||
                        b.offset + b.bytes <= a.offset);
        }
    }
    uint64_t by_role = 0;
    for (int role = 0; role < LS_ROLE_COUNT; role++)
        by_role += ls_plan_role_bytes(&plan, LS_PLACE_HOST, (ls_role)role);
    assert_true(by_role <= ls_plan_place_bytes(&plan, LS_PLACE_HOST));
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);
}

static bool conflict(const ls_plan *plan, const ls_step *a, const ls_step *b)
{
    for (int i = 0; i < a->n_operands; i++)
        for (int j = 0; j < b->n_operands; j++) {
            const ls_step_operand *x = &plan->operands[a->first_operand + i];
            const ls_step_operand *y = &plan->operands[b->first_operand + j];
            if (x->tensor < 0 || x->tensor != y->tensor) continue;
            if (!((x->access | y->access) & LS_ACCESS_WRITE)) continue;
            if (x->span.offset < y->span.offset + y->span.bytes &&
                y->span.offset < x->span.offset + x->span.bytes)
                return true;
        }
    return false;
}

/* before[i]: step first + i happens before `to`.  skip: a wait that is left out. */
static void find_ancestors(const ls_plan *plan, int64_t first, int64_t to, int64_t skip,
                           bool *before, int64_t *stack)
{
    int64_t n = 0;
    memset(before, 0, (size_t)(to - first + 1) * sizeof *before);
    before[to - first] = true;
    stack[n++] = to;
    while (n > 0) {
        const int64_t s = stack[--n];
        for (int64_t p = s - 1; p >= first; p--)
            if (plan->steps[p].lane == plan->steps[s].lane) {
                if (!before[p - first]) before[p - first] = true, stack[n++] = p;
                break;
            }
        for (int64_t w = 0; w < plan->steps[s].n_waits; w++) {
            const int64_t index = plan->steps[s].first_wait + w, on = plan->waits[index];
            if (index != skip && !before[on - first]) before[on - first] = true, stack[n++] = on;
        }
    }
}

static bool segment_is_ordered(const ls_plan *plan, ls_segment_kind segment, int64_t skip)
{
    const int64_t first = plan->segment_first[segment], n = plan->segment_steps[segment];
    bool *before = calloc((size_t)n, sizeof *before);
    int64_t *stack = calloc((size_t)n, sizeof *stack);
    bool ordered = true;

    for (int64_t b = first; b < first + n && ordered; b++) {
        bool cross = false;
        for (int64_t a = first; a < b; a++)
            cross = cross || (plan->steps[a].lane != plan->steps[b].lane &&
                              conflict(plan, &plan->steps[a], &plan->steps[b]));
        if (!cross) continue;
        find_ancestors(plan, first, b, skip, before, stack);
        for (int64_t a = first; a < b && ordered; a++)
            if (conflict(plan, &plan->steps[a], &plan->steps[b])) ordered = before[a - first];
    }
    free(before);
    free(stack);
    return ordered;
}

static void every_conflict_is_ordered_and_no_wait_is_spare(void **state)
{
    const ls_decoder_options options = small_options();
    ls_decoder decoder;
    ls_plan plan;

    (void)state;
    build(&options, &decoder, &plan);
    assert_true(plan.n_waits > 0);
    for (int segment = 0; segment < LS_SEGMENT_COUNT; segment++) {
        const int64_t first = plan.segment_first[segment];
        assert_true(plan.segment_steps[segment] > 0);
        assert_true(segment_is_ordered(&plan, (ls_segment_kind)segment, -1));
        for (int64_t s = first; s < first + plan.segment_steps[segment]; s++)
            for (int64_t w = 0; w < plan.steps[s].n_waits; w++)
                assert_false(segment_is_ordered(&plan, (ls_segment_kind)segment,
                                                plan.steps[s].first_wait + w));
    }
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);
}

/* Nothing is read before something wrote it, except what lives across segments. */
static void reads_follow_writes(void **state)
{
    ls_decoder_options options = small_options();

    (void)state;
    for (int policy = 0; policy < 3; policy++) {
        ls_decoder decoder;
        ls_plan plan;
        options.save_o = policy >= 1;
        options.save_qkv = policy >= 2;
        build(&options, &decoder, &plan);
        bool *written = calloc((size_t)plan.n_tensors, sizeof *written);
        for (int32_t i = 0; i < plan.n_tensors; i++) {
            const ls_role role = plan.tensors[i].tensor.role;
            written[i] = role == LS_ROLE_WEIGHTS || role == LS_ROLE_LO || role == LS_ROLE_M ||
                         role == LS_ROLE_V || i == decoder.inputs.control ||
                         i == decoder.inputs.rope_table;
        }
        for (int64_t s = 0; s < plan.segment_steps[LS_SEGMENT_STEP]; s++) {
            const ls_step *step = &plan.steps[s];
            for (int pass = 0; pass < 2; pass++)
                for (int i = 0; i < step->n_operands; i++) {
                    const ls_step_operand *o = &plan.operands[step->first_operand + i];
                    if (o->tensor < 0) continue;
                    if (pass == 0 && (o->access & LS_ACCESS_READ)) assert_true(written[o->tensor]);
                    if (pass == 1 && (o->access & LS_ACCESS_WRITE)) written[o->tensor] = true;
                }
        }
        free(written);
        ls_plan_free(&plan);
        ls_decoder_free(&decoder);
    }
}

static int64_t count_recomputed(const ls_plan *plan, ls_op op)
{
    int64_t n = 0;
    for (int64_t s = 0; s < plan->n_steps; s++)
        n += plan->steps[s].kind == LS_STEP_OP && plan->steps[s].op == op &&
             plan->steps[s].recompute;
    return n;
}

static void saving_o_recomputes_no_attention(void **state)
{
    ls_decoder_options options = small_options();
    ls_decoder decoder;
    ls_plan plan;

    (void)state;
    build(&options, &decoder, &plan);
    assert_true(count_recomputed(&plan, LS_OP_attention_forward) > 0);
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);

    options.save_o = true;
    build(&options, &decoder, &plan);
    assert_int_equal(count_recomputed(&plan, LS_OP_attention_forward), 0);
    assert_true(count_recomputed(&plan, LS_OP_rope) > 0);
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);

    options.save_qkv = true;
    build(&options, &decoder, &plan);
    assert_int_equal(count_recomputed(&plan, LS_OP_rope), 0);
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);
}

static void bad_sizes_are_refused(void **state)
{
    ls_decoder_options options = small_options();
    ls_decoder decoder;

    (void)state;
    options.chunk = 0;
    assert_int_equal(ls_decoder_build(&options, &decoder), LS_ERR_INVALID);
    options = small_options();
    options.shape.G = 3;
    assert_int_equal(ls_decoder_build(&options, &decoder), LS_ERR_INVALID);
    assert_non_null(strstr(ls_error(), "kv heads"));
    options = small_options();
    options.save_qkv = true;
    assert_int_equal(ls_decoder_build(&options, &decoder), LS_ERR_INVALID);
}

static void parameter_counts_are_the_models(void **state)
{
    const ls_decoder_shape llama2_7b = {
        .V = 32000, .D = 4096, .F = 11008, .L = 32, .H = 32, .G = 32, .K = 128};
    (void)state;
    assert_true(ls_decoder_params(&llama2_7b) == 6738415616); /* as published */
    assert_true(ls_decoder_matmul_params(&llama2_7b) == 6738415616 - 32000 * 4096 - 65 * 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_are_disjoint_and_inside),
        cmocka_unit_test(every_conflict_is_ordered_and_no_wait_is_spare),
        cmocka_unit_test(reads_follow_writes),
        cmocka_unit_test(saving_o_recomputes_no_attention),
        cmocka_unit_test(bad_sizes_are_refused),
        cmocka_unit_test(parameter_counts_are_the_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
