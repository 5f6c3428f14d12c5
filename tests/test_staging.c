/*
 * test_staging.c - tapes by hand, and the copies that a placement with streaming puts into them:
 * one rule each, as a list of what runs in plan order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "placement_test.h"
#include "plan.h"

enum { ROWS = 4, ROW_BYTES = 64, BYTES = ROWS * ROW_BYTES, TEXT_BYTES = 512 };

/* ---- a tape by hand ------------------------------------------------------------------------ */

/* Of weights and gradients: of the only parameter of a layer. */
static int32_t add_tensor(ls_tape *tape, const char *name, ls_role role, int32_t layer,
                          bool persistent)
{
    const bool is_param = role == LS_ROLE_WEIGHTS || role == LS_ROLE_GRAD;
    ls_tensor t = {.n_dims = 2,
                   .dims = {ROWS, ROW_BYTES},
                   .dtype = LS_DTYPE_U8,
                   .role = role,
                   .layer = layer,
                   .param = is_param ? layer : -1,
                   .persistent = persistent};
    int32_t added;

    snprintf(t.name, sizeof t.name, "%s%d", name, layer);
    assert_int_equal(ls_tape_add_tensor(tape, &t, &added), LS_OK);
    return added;
}

/* A call on some rows of a tensor: of the compute lane, or of the host that fills or reads it. */
static void add_call(ls_tape *tape, ls_call_kind kind, ls_phase phase, ls_view view,
                     ls_access access)
{
    ls_call call = {.kind = kind,
                    .op = LS_OP_swiglu_forward,
                    .phase = phase,
                    .layer = -1,
                    .chunk = -1,
                    .n_operands = 1,
                    .operands = {view},
                    .access = {(uint8_t)access}};
    assert_int_equal(ls_tape_add_call(tape, &call), LS_OK);
}

static void compute(ls_tape *tape, ls_phase phase, int32_t tensor, ls_access access)
{
    add_call(tape, LS_CALL_OP, phase, ls_view_whole(tape, tensor), access);
}

/* "in w0; op; out x1": what runs of a segment, in plan order. */
static void list_steps(const ls_plan *plan, ls_segment_kind segment, char text[TEXT_BYTES])
{
    const int64_t first = plan->segment_first[segment];
    size_t n = 0;

    text[0] = '\0';
    for (int64_t s = first; s < first + plan->segment_steps[segment]; s++) {
        const ls_step *step = &plan->steps[s];
        const ls_step_operand *operands = &plan->operands[step->first_operand];
        const bool in = step->lane != LS_LANE_COPY_OUT;
        const char *name = ls_call_kind_name(step->kind), *what = "";
        if (step->kind == LS_CALL_COPY) {
            name = in ? "in " : "out ";
            what = plan->tensors[operands[in ? 1 : 0].tensor].tensor.name;
        }
        n += (size_t)snprintf(text + n, TEXT_BYTES - n, "%s%s%s", n > 0 ? "; " : "", name, what);
        assert_true(n < TEXT_BYTES);
    }
}

/* Streamed through so many layers' slots; the plan must prove itself. */
static void lower(const ls_tape *tape, int64_t ring_slots, ls_plan *plan)
{
    const ls_placement_wish wish = {
        .weights_given = true, .weights = LS_MODE_STREAM, .ring_slots = ring_slots};
    ls_placement placement;

    decide_placement(false, &wish, &placement);
    assert_int_equal(ls_plan_lower(tape, &placement, &ls_ops_cpu, plan), LS_OK);
    if (ls_plan_check(plan, NULL) != LS_OK) fail_msg("%s", ls_error());
}

/* Lower the tape and give it back. */
static void check_steps(ls_tape *tape, int64_t ring_slots, const char *step, const char *eval)
{
    ls_plan plan;
    char text[TEXT_BYTES];

    lower(tape, ring_slots, &plan);
    list_steps(&plan, LS_SEGMENT_STEP, text);
    assert_string_equal(text, step);
    list_steps(&plan, LS_SEGMENT_EVAL, text);
    assert_string_equal(text, eval);
    ls_plan_free(&plan);
    ls_tape_free(tape);
}

/* ---- what is copied ------------------------------------------------------------------------ */

/* Nobody reads it in the segment that writes it, but it outlives that. */
static void what_persists_is_copied_out(void **state)
{
    ls_tape tape = {0};
    const int32_t x = add_tensor(&tape, "x", LS_ROLE_X, 0, true);

    (void)state;
    ls_tape_begin_segment(&tape, LS_SEGMENT_STEP);
    compute(&tape, LS_PHASE_FORWARD, x, LS_ACCESS_WRITE);
    ls_tape_begin_segment(&tape, LS_SEGMENT_EVAL);
    compute(&tape, LS_PHASE_FORWARD, x, LS_ACCESS_READ);
    check_steps(&tape, 2, "op; out x0", "in x0; op");
}

/* Of what is written in part, the rest is fetched; of two parts that meet, nothing is. */
static void a_part_leaves_as_a_whole(void **state)
{
    ls_tape tape = {0};
    const int32_t x = add_tensor(&tape, "x", LS_ROLE_X, 0, true);

    (void)state;
    ls_tape_begin_segment(&tape, LS_SEGMENT_STEP);
    add_call(&tape, LS_CALL_OP, LS_PHASE_FORWARD, ls_view_rows(&tape, x, 2, 2), LS_ACCESS_WRITE);
    add_call(&tape, LS_CALL_OP, LS_PHASE_FORWARD, ls_view_rows(&tape, x, 0, 2), LS_ACCESS_WRITE);
    ls_tape_begin_segment(&tape, LS_SEGMENT_EVAL);
    add_call(&tape, LS_CALL_OP, LS_PHASE_FORWARD, ls_view_rows(&tape, x, 0, 1), LS_ACCESS_WRITE);
    add_call(&tape, LS_CALL_OP, LS_PHASE_FORWARD, ls_view_rows(&tape, x, 2, 2), LS_ACCESS_WRITE);
    check_steps(&tape, 2, "op; op; out x0", "in x0; op; op; out x0");
}

static void a_part_alone_leaves_alone(void **state)
{
    ls_tape tape = {0};
    const int32_t x = add_tensor(&tape, "x", LS_ROLE_X, 0, true);

    (void)state;
    ls_tape_begin_segment(&tape, LS_SEGMENT_STEP);
    add_call(&tape, LS_CALL_OP, LS_PHASE_FORWARD, ls_view_rows(&tape, x, 0, 3), LS_ACCESS_WRITE);
    ls_tape_begin_segment(&tape, LS_SEGMENT_EVAL);
    add_call(&tape, LS_CALL_OP, LS_PHASE_FORWARD, ls_view_rows(&tape, x, 0, 3), LS_ACCESS_WRITE);
    add_call(&tape, LS_CALL_OP, LS_PHASE_FORWARD, ls_view_rows(&tape, x, 1, 3), LS_ACCESS_READ);
    check_steps(&tape, 2, "op; out x0", "in x0; op; out x0; op");
}

/* One that stays is not copied; one that another of its class has displaced is. */
static void a_visit_ends_when_another_is_wanted(void **state)
{
    ls_tape tape = {0};
    const int32_t x = add_tensor(&tape, "x", LS_ROLE_X, 0, false);
    const int32_t y = add_tensor(&tape, "x", LS_ROLE_X, 1, false);

    (void)state;
    ls_tape_begin_segment(&tape, LS_SEGMENT_STEP);
    compute(&tape, LS_PHASE_FORWARD, x, LS_ACCESS_WRITE);
    compute(&tape, LS_PHASE_BACKWARD, x, LS_ACCESS_READ);
    ls_tape_begin_segment(&tape, LS_SEGMENT_EVAL);
    compute(&tape, LS_PHASE_FORWARD, x, LS_ACCESS_WRITE);
    compute(&tape, LS_PHASE_FORWARD, y, LS_ACCESS_WRITE);
    compute(&tape, LS_PHASE_BACKWARD, x, LS_ACCESS_READ);
    check_steps(&tape, 2, "op; op", "op; out x0; in x0; op; op");
}

/* What the host fills anew is fetched anew, and not before it is filled. */
static void what_is_filled_anew_is_fetched_anew(void **state)
{
    ls_tape tape = {0};
    const int32_t b = add_tensor(&tape, "b", LS_ROLE_BATCH, -1, false);

    (void)state;
    ls_tape_begin_segment(&tape, LS_SEGMENT_STEP);
    for (int micro_batch = 0; micro_batch < 2; micro_batch++) {
        add_call(&tape, LS_CALL_BATCH, LS_PHASE_BATCH, ls_view_whole(&tape, b), LS_ACCESS_WRITE);
        compute(&tape, LS_PHASE_FORWARD, b, LS_ACCESS_READ);
    }
    ls_tape_begin_segment(&tape, LS_SEGMENT_EVAL);
    compute(&tape, LS_PHASE_FORWARD, b, LS_ACCESS_WRITE);
    add_call(&tape, LS_CALL_LOSS, LS_PHASE_LOSS, ls_view_whole(&tape, b), LS_ACCESS_READ);
    check_steps(&tape, 2, "batch; in b-1; op; batch; in b-1; op", "op; out b-1; loss");
}

/* ---- slots --------------------------------------------------------------------------------- */

/* Weights are fetched as early as the ring allows. */
static void a_ring_fetches_ahead(void **state)
{
    static const char *const steps[] = {"in w0; in w1; op; in w2; op; in w3; op; op",
                                        "in w0; in w1; in w2; op; in w3; op; op; op"};

    (void)state;
    for (int64_t ring_slots = 2; ring_slots <= 3; ring_slots++) {
        ls_tape tape = {0};
        ls_plan plan;
        int32_t w[4];
        for (int32_t l = 0; l < 4; l++) w[l] = add_tensor(&tape, "w", LS_ROLE_WEIGHTS, l, true);
        ls_tape_begin_segment(&tape, LS_SEGMENT_STEP);
        for (int l = 0; l < 4; l++) compute(&tape, LS_PHASE_FORWARD, w[l], LS_ACCESS_READ);
        lower(&tape, ring_slots, &plan);
        assert_int_equal(ls_plan_role_bytes(&plan, LS_PLACE_HBM, LS_ROLE_WEIGHTS),
                         ring_slots * BYTES);
        ls_plan_free(&plan);
        check_steps(&tape, ring_slots, steps[ring_slots - 2], "");
    }
}

/* A head, of its own size, has a slot from the start; it is fetched after all layers that are
 * wanted before it.  Were it first, all of them would wait for its update, which is the last. */
static void weights_come_as_they_are_wanted(void **state)
{
    ls_tensor head = {.name = "head",
                      .n_dims = 2,
                      .dims = {ROWS, 2 * ROW_BYTES},
                      .dtype = LS_DTYPE_U8,
                      .role = LS_ROLE_WEIGHTS,
                      .layer = -1,
                      .param = 4,
                      .persistent = true};
    ls_tape tape = {0};
    int32_t w[4], h;

    (void)state;
    assert_int_equal(ls_tape_add_tensor(&tape, &head, &h), LS_OK);
    for (int32_t l = 0; l < 4; l++) w[l] = add_tensor(&tape, "w", LS_ROLE_WEIGHTS, l, true);
    ls_tape_begin_segment(&tape, LS_SEGMENT_STEP);
    for (int l = 0; l < 4; l++) compute(&tape, LS_PHASE_FORWARD, w[l], LS_ACCESS_READ);
    compute(&tape, LS_PHASE_FORWARD, h, LS_ACCESS_READ);
    check_steps(&tape, 2, "in w0; in w1; op; in w2; op; in w3; in head; op; op; op", "");
}

/* Through a single slot nothing is copied ahead: who computes copies. */
static void a_single_slot_is_filled_by_who_computes(void **state)
{
    ls_tape tape = {0};
    ls_plan plan;
    int32_t w[3];

    (void)state;
    for (int32_t l = 0; l < 3; l++) w[l] = add_tensor(&tape, "w", LS_ROLE_WEIGHTS, l, true);
    ls_tape_begin_segment(&tape, LS_SEGMENT_STEP);
    for (int l = 0; l < 3; l++) compute(&tape, LS_PHASE_FORWARD, w[l], LS_ACCESS_READ);
    lower(&tape, 1, &plan);
    for (int64_t s = 0; s < plan.n_steps; s++)
        assert_int_equal(plan.steps[s].lane, LS_LANE_COMPUTE);
    ls_plan_free(&plan);
    check_steps(&tape, 1, "in w0; op; in w1; op; in w2; op", "");
}

/* Gradients of two layers; of other classes one more than are at work at once. */
static void others_have_a_spare_slot(void **state)
{
    static const ls_role roles[] = {LS_ROLE_GRAD, LS_ROLE_X};

    (void)state;
    for (int r = 0; r < 2; r++) {
        ls_tape tape = {0};
        ls_plan plan;
        ls_tape_begin_segment(&tape, LS_SEGMENT_STEP);
        for (int32_t l = 0; l < 4; l++) {
            const int32_t t = add_tensor(&tape, "t", roles[r], l, true);
            compute(&tape, LS_PHASE_BACKWARD, t, LS_ACCESS_READ_WRITE);
        }
        lower(&tape, 2, &plan);
        assert_int_equal(ls_plan_role_bytes(&plan, LS_PLACE_HBM, roles[r]), 2 * BYTES);
        ls_plan_free(&plan);
        check_steps(&tape, 2,
                    "in t0; in t1; op; out t0; in t2; op; out t1; in t3; op; out t2; op; out t3",
                    "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_persists_is_copied_out),
        cmocka_unit_test(a_part_leaves_as_a_whole),
        cmocka_unit_test(a_part_alone_leaves_alone),
        cmocka_unit_test(a_visit_ends_when_another_is_wanted),
        cmocka_unit_test(what_is_filled_anew_is_fetched_anew),
        cmocka_unit_test(a_ring_fetches_ahead),
        cmocka_unit_test(weights_come_as_they_are_wanted),
        cmocka_unit_test(a_single_slot_is_filled_by_who_computes),
        cmocka_unit_test(others_have_a_spare_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
