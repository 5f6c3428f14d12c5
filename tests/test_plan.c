/*
 * test_plan.c - real decoder tapes become plans: who lies where, who runs on which lane, what is
 * computed twice.  The order of the steps is proven in test_plan_check.c.
 */
#include "arena.h"
#include "layout.h"
#include "plan_test.h"

/* ---- where tensors lie --------------------------------------------------------------------- */

static ls_decoder_options evaluation_options(void)
{
    ls_decoder_options options = grouped_options();
    options.train = false;
    return options;
}

static bool spans_overlap(const ls_span *a, const ls_span *b)
{
    return a->arena == b->arena && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

static bool touches(const ls_plan *plan, int64_t step, int32_t tensor)
{
    const ls_step *s = &plan->steps[step];
    for (int32_t i = 0; i < s->n_operands; i++)
        if (plan->operands[s->first_operand + i].tensor == tensor) return true;
    return false;
}

/* Whether one of them is touched between two touches of the other, in one run of a segment. */
static bool lives_overlap(const ls_plan *plan, int32_t a, int32_t b)
{
    for (int segment = 0; segment < LS_SEGMENT_COUNT; segment++) {
        const int64_t first = plan->segment_first[segment];
        int changes = 0; /* from steps of the one to steps of the other */
        bool of_a = false, of_b = false;
        for (int64_t s = first; s < first + plan->segment_steps[segment]; s++) {
            const bool now_a = touches(plan, s, a), now_b = touches(plan, s, b);
            if (now_a && now_b) return true;
            changes += (now_a && of_b) || (now_b && of_a);
            if (now_a || now_b) of_a = now_a, of_b = now_b;
        }
        if (changes > 1) return true;
    }
    return false;
}

static bool only_compute_touches(const ls_plan *plan, int32_t tensor)
{
    for (int64_t s = 0; s < plan->n_steps; s++)
        if (plan->steps[s].lane != LS_LANE_COMPUTE && touches(plan, s, tensor)) return false;
    return true;
}

static void assert_may_share(const ls_plan *plan, int32_t a, int32_t b)
{
    const int32_t both[] = {a, b};

    for (int i = 0; i < 2; i++) {
        const ls_tensor *t = &plan->tensors[both[i]].tensor;
        assert_true(!t->persistent && t->param < 0);
        assert_true(t->role >= LS_ROLE_X && t->role != LS_ROLE_BATCH); /* tables list those alone */
        assert_true(only_compute_touches(plan, both[i]));
    }
    assert_false(lives_overlap(plan, a, b));
}

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + LS_ARENA_ALIGN - 1) / LS_ARENA_ALIGN * LS_ARENA_ALIGN;
}

static bool is_touched(const ls_plan *plan, int32_t tensor)
{
    for (int64_t i = 0; i < plan->n_operands; i++)
        if (plan->operands[i].tensor == tensor) return true;
    return plan->tensors[tensor].tensor.persistent;
}

/* Every law of the layout that can be seen in the plan; returns the bytes if nobody shared any. */
static uint64_t assert_well_laid_out(const ls_plan *plan, uint64_t arena_bytes)
{
    uint64_t end = 0, apart = 0;

    for (int32_t a = 0; a < plan->n_tensors; a++) {
        const ls_span *span = &plan->tensors[a].span;
        assert_int_equal(span->arena, 0);
        assert_true(span->bytes == ls_tensor_bytes(&plan->tensors[a].tensor) ||
                    (span->bytes == 0 && !is_touched(plan, a)));
        assert_true(span->offset % LS_ARENA_ALIGN == 0);
        if (round_up(span->offset + span->bytes) > end) end = round_up(span->offset + span->bytes);
        apart += round_up(span->bytes);
        for (int32_t b = 0; b < a; b++)
            if (spans_overlap(span, &plan->tensors[b].span)) assert_may_share(plan, a, b);
    }
    assert_true(arena_bytes == end);
    return apart;
}

static void tensors_share_bytes_only_while_one_is_dead(void **state)
{
    const ls_decoder_options shapes[] = {grouped_options(), tied_options(), saved_options(),
                                         evaluation_options()};
    uint64_t shared = 0;

    (void)state;
    for (int64_t i = 0; i < COUNT_OF(shapes); i++) {
        ls_decoder decoder;
        ls_plan plan;
        uint64_t by_role = 0, bytes = 0;

        build_plan(&shapes[i], &decoder, &plan);
        assert_int_equal(plan.n_arenas, 1);
        assert_true(ls_plan_place_bytes(&plan, LS_PLACE_HOST) == plan.arenas[0].bytes);
        const uint64_t apart = assert_well_laid_out(&plan, plan.arenas[0].bytes);
        assert_true(plan.arenas[0].bytes <= apart);
        shared += apart - plan.arenas[0].bytes;
        for (int32_t t = 0; t < plan.n_tensors; t++) bytes += plan.tensors[t].span.bytes;
        for (int role = 0; role < LS_ROLE_COUNT; role++)
            by_role += ls_plan_role_bytes(&plan, LS_PLACE_HOST, (ls_role)role);
        assert_true(by_role == bytes);
        ls_plan_free(&plan);
        ls_decoder_free(&decoder);
    }
    assert_true(shared > 0);
}

enum { LAID_TENSORS = 12, LAID_STEPS = 24 };

/* Two segments of steps that touch two tensors each, mostly on the compute lane. */
static void draw_lives(dice *d, ls_plan *plan)
{
    for (int32_t i = 0; i < LAID_TENSORS; i++) {
        ls_tensor *t = &plan->tensors[i].tensor;
        *t = (ls_tensor){.n_dims = 1, .dtype = LS_DTYPE_U8};
        t->dims[0] = 1 + below(d, 2000);
        t->role = (ls_role)(LS_ROLE_X + below(d, LS_ROLE_COUNT - LS_ROLE_X));
        t->param = chance(d, 10) ? 0 : -1;
        t->persistent = chance(d, 10);
    }
    for (int64_t s = 0; s < LAID_STEPS; s++) {
        ls_step *step = &plan->steps[s];
        *step = (ls_step){.first_operand = 2 * s, .n_operands = 2};
        step->lane = chance(d, 5) ? LS_LANE_HOST : LS_LANE_COMPUTE;
        for (int64_t i = 2 * s; i < 2 * s + 2; i++) /* one tensor after the other, on the whole */
            plan->operands[i].tensor =
                (int32_t)((s * LAID_TENSORS / LAID_STEPS + below(d, 3)) % LAID_TENSORS);
    }
    plan->segment_first[LS_SEGMENT_DRAIN] = LAID_STEPS / 2;
    plan->segment_steps[LS_SEGMENT_STEP] = LAID_STEPS / 2;
    plan->segment_steps[LS_SEGMENT_DRAIN] = LAID_STEPS / 2;
}

static void note_lives(const ls_plan *plan, ls_lifetimes *lives)
{
    assert_int_equal(ls_lifetimes_reach(lives, plan->n_tensors - 1), LS_OK);
    for (int64_t s = 0; s < plan->n_steps; s++)
        for (int64_t i = 2 * s; i < 2 * s + 2; i++)
            ls_tensor_life_note(&lives->of[plan->operands[i].tensor], ls_plan_segment_of(plan, s),
                                s, plan->steps[s].lane);
}

static void any_lives_are_kept_apart(void **state)
{
    int shared = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 500; seed++) {
        ls_plan_tensor tensors[LAID_TENSORS] = {0};
        ls_step steps[LAID_STEPS];
        ls_step_operand operands[2 * LAID_STEPS];
        ls_plan_arena arena = {LS_PLACE_HOST, 0};
        ls_plan plan = {.arenas = &arena,
                        .n_arenas = 1,
                        .tensors = tensors,
                        .steps = steps,
                        .operands = operands,
                        .n_tensors = LAID_TENSORS,
                        .n_steps = LAID_STEPS,
                        .n_operands = 2 * LAID_STEPS};
        ls_lifetimes lives = {0};
        dice d = {seed, 0};

        draw_lives(&d, &plan);
        note_lives(&plan, &lives);
        assert_int_equal(ls_plan_lay_out(&plan, &lives, NULL), LS_OK);
        ls_lifetimes_free(&lives);
        shared += arena.bytes < assert_well_laid_out(&plan, arena.bytes);
    }
    assert_true(shared > 250);
}

/* ---- what bytes hold ----------------------------------------------------------------------- */

/* Each byte of a read was last written by the same tensor, in this segment unless it persists. */
static void follow_contents(const ls_plan *plan, int segment, int32_t *holder)
{
    const int64_t first = plan->segment_first[segment];

    for (uint64_t byte = 0; byte < plan->arenas[0].bytes; byte++) holder[byte] = -1;
    for (int32_t t = 0; t < plan->n_tensors; t++)
        for (uint64_t byte = 0; byte < plan->tensors[t].span.bytes; byte++)
            if (plan->tensors[t].tensor.persistent) holder[plan->tensors[t].span.offset + byte] = t;
    for (int64_t s = first; s < first + plan->segment_steps[segment]; s++)
        for (int write = 0; write < 2; write++)
            for (int32_t i = 0; i < plan->steps[s].n_operands; i++) {
                const ls_step_operand *o = &plan->operands[plan->steps[s].first_operand + i];
                if (!(o->access & (write ? LS_ACCESS_WRITE : LS_ACCESS_READ))) continue;
                for (uint64_t byte = o->span.offset; byte < o->span.offset + o->span.bytes; byte++)
                    if (write)
                        holder[byte] = o->tensor;
                    else
                        assert_int_equal(holder[byte], o->tensor);
            }
}

static void reads_find_what_was_written(void **state)
{
    const ls_decoder_options shapes[] = {grouped_options(), tied_options(), saved_options(),
                                         evaluation_options()};

    (void)state;
    for (int64_t i = 0; i < COUNT_OF(shapes); i++) {
        ls_decoder decoder;
        ls_plan plan;
        build_plan(&shapes[i], &decoder, &plan);
        int32_t *holder = malloc(plan.arenas[0].bytes * sizeof *holder);
        for (int segment = 0; segment < LS_SEGMENT_COUNT; segment++)
            follow_contents(&plan, segment, holder);
        free(holder);
        ls_plan_free(&plan);
        ls_decoder_free(&decoder);
    }
}

/* ---- steps --------------------------------------------------------------------------------- */

static ls_lane expected_lane(const ls_step *step)
{
    static const ls_lane lanes[LS_CALL_KIND_COUNT] = {
        [LS_CALL_BATCH] = LS_LANE_DISK_IN,    [LS_CALL_LOSS] = LS_LANE_HOST,
        [LS_CALL_SCHEDULE] = LS_LANE_HOST,    [LS_CALL_REPORT] = LS_LANE_HOST,
        [LS_CALL_SAVE] = LS_LANE_DISK_OUT,    [LS_CALL_SAVE_BEGIN] = LS_LANE_DISK_OUT,
        [LS_CALL_SAVE_END] = LS_LANE_DISK_OUT};
    if (step->kind != LS_CALL_OP) return lanes[step->kind];
    return step->op == LS_OP_sumsq || step->op == LS_OP_add_sumsq || step->op == LS_OP_adamw ||
                   step->op == LS_OP_norm_finish
               ? LS_LANE_HOST
               : LS_LANE_COMPUTE;
}

/* One step for each call, its operands and bytes those of the call. */
static void calls_become_steps(void **state)
{
    const ls_decoder_options options = grouped_options();
    ls_decoder decoder;
    ls_plan plan;

    (void)state;
    build_plan(&options, &decoder, &plan);
    assert_int_equal(plan.n_steps, decoder.tape.n_calls);
    for (int segment = 0; segment < LS_SEGMENT_COUNT; segment++) {
        assert_int_equal(plan.segment_first[segment], decoder.tape.segment_first[segment]);
        assert_int_equal(plan.segment_steps[segment], decoder.tape.segment_calls[segment]);
    }
    for (int64_t s = 0; s < plan.n_steps; s++) {
        const ls_step *step = &plan.steps[s];
        const ls_call *call = &decoder.tape.calls[s];
        uint64_t bytes = 0;
        assert_int_equal(step->kind, call->kind);
        assert_int_equal(step->lane, expected_lane(step));
        assert_int_equal(step->commit, step->phase == LS_PHASE_UPDATE);
        assert_int_equal(step->n_operands, call->n_operands);
        for (int32_t i = 0; i < step->n_operands; i++) {
            const ls_step_operand *o = &plan.operands[step->first_operand + i];
            if (o->access & LS_ACCESS_READ) bytes += o->span.bytes;
            if (o->access & LS_ACCESS_WRITE) bytes += o->span.bytes;
            if (call->operands[i].tensor < 0) continue;
            assert_int_equal(o->tensor, call->operands[i].tensor);
            assert_int_equal(o->access, call->access[i]);
            assert_true(o->span.bytes == call->operands[i].bytes);
            assert_true(o->span.offset ==
                        plan.tensors[o->tensor].span.offset + call->operands[i].offset);
        }
        assert_true(step->bytes == bytes);
    }
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);
}

static int64_t count_recomputed(const ls_plan *plan, ls_op op)
{
    int64_t n = 0;
    for (int64_t s = 0; s < plan->n_steps; s++)
        n += plan->steps[s].kind == LS_CALL_OP && plan->steps[s].op == op &&
             plan->steps[s].recompute;
    return n;
}

static void saving_o_recomputes_no_attention(void **state)
{
    ls_decoder_options options = grouped_options();
    ls_decoder decoder;
    ls_plan plan;

    (void)state;
    build_plan(&options, &decoder, &plan);
    assert_true(count_recomputed(&plan, LS_OP_attention_forward) > 0);
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);

    options.save_o = true;
    build_plan(&options, &decoder, &plan);
    assert_int_equal(count_recomputed(&plan, LS_OP_attention_forward), 0);
    assert_true(count_recomputed(&plan, LS_OP_rope) > 0);
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);

    options.x_stride = 2; /* what is rebuilt between is dense work alone */
    build_plan(&options, &decoder, &plan);
    assert_int_equal(count_recomputed(&plan, LS_OP_attention_forward), 0);
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);

    options.x_stride = 1;
    options.save_qkv = true;
    build_plan(&options, &decoder, &plan);
    assert_int_equal(count_recomputed(&plan, LS_OP_rope), 0);
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);
}

static void bad_sizes_are_refused(void **state)
{
    ls_decoder_options options = grouped_options();
    ls_decoder decoder;

    (void)state;
    options.chunk = 0;
    assert_int_equal(ls_decoder_build(&options, &decoder), LS_ERR_INVALID);
    options = grouped_options();
    options.shape.G = 3;
    assert_int_equal(ls_decoder_build(&options, &decoder), LS_ERR_INVALID);
    assert_non_null(strstr(ls_error(), "kv heads"));
    options = grouped_options();
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

/* ---- what attention has to do ---------------------------------------------------------------- */

/* Pairs that a query sees in its own sequence, within the window, one by one. */
static double count_pairs(const ls_decoder_options *o)
{
    double pairs = 0;

    for (int64_t row = 0; row < o->S * o->sequences; row++)
        for (int64_t key = row / o->S * o->S; key <= row; key++)
            pairs += o->window == 0 || key > row - o->window;
    return pairs;
}

static double add_flops(const ls_plan *plan, ls_op op, int64_t *calls)
{
    double flops = 0;

    *calls = 0;
    for (int64_t s = 0; s < plan->segment_steps[LS_SEGMENT_STEP]; s++)
        if (plan->steps[s].kind == LS_CALL_OP && plan->steps[s].op == op) {
            assert_true(plan->steps[s].flops > 0); /* none that has nothing to do */
            flops += plan->steps[s].flops;
            ++*calls;
        }
    return flops;
}

/* Blocks of keys that a block of queries cannot see, whatever the documents, have no step: the
 * pairs of all steps are those of the sequences and the window, and no more. */
static void attention_has_steps_for_what_is_seen(void **state)
{
    static const struct {
        int64_t sequences, query_block, key_block, window, forward_calls;
    } cases[] = {
        /* calls: by hand, for one layer and one micro-batch; rows 0-11, 12-23, 24-35 are sequences
         */
        {1, 12, 0, 0, 1}, {1, 4, 4, 0, 6}, {3, 12, 0, 0, 3}, {3, 12, 12, 0, 3}, {3, 36, 12, 0, 3},
        {3, 6, 6, 0, 9},  {3, 6, 6, 3, 9}, {1, 2, 2, 3, 11}, {2, 10, 7, 0, 8},  {2, 10, 7, 4, 6},
    };
    const double H = 4, K = 8;

    (void)state;
    for (int64_t i = 0; i < COUNT_OF(cases); i++) {
        ls_decoder_options options = saved_options();
        ls_decoder decoder;
        ls_plan plan;
        int64_t forward_calls, backward_calls;
        options.sequences = cases[i].sequences;
        options.query_block = cases[i].query_block;
        options.key_block = cases[i].key_block;
        options.window = cases[i].window;
        build_plan(&options, &decoder, &plan);
        const double pairs = (double)(options.shape.L * options.accumulate) * count_pairs(&options);
        const double forward = add_flops(&plan, LS_OP_attention_forward, &forward_calls);
        const double backward = add_flops(&plan, LS_OP_attention_backward, &backward_calls);
        if (forward != 4 * H * K * pairs || backward != 10 * H * K * pairs)
            fail_msg("case %lld: %g forward, %g backward, not of %g pairs", (long long)i, forward,
                     backward, pairs);
        assert_int_equal(forward_calls,
                         cases[i].forward_calls * options.shape.L * options.accumulate);
        assert_int_equal(backward_calls, forward_calls);
        ls_plan_free(&plan);
        ls_decoder_free(&decoder);
    }
}

/* How many products with a weight, of so many rows; recomputed ones, or the others of forward. */
static int64_t count_products(const ls_plan *plan, int32_t weight, int64_t rows, bool recompute)
{
    int64_t n = 0;

    for (int64_t i = 0; i < plan->segment_steps[LS_SEGMENT_STEP]; i++) {
        const ls_step *step = &plan->steps[i];
        if (step->kind != LS_CALL_OP || step->op != LS_OP_matmul) continue;
        if (plan->args[step->args].matmul.M != rows || !plan->args[step->args].matmul.trans_b)
            continue;
        if (plan->operands[step->first_operand + 2].tensor != weight) continue;
        n += step->recompute == recompute;
    }
    return n;
}

/* What backward computes again it computes in the rows of forward, even where no chunk divides a
 * block: a product of other rows may have other bits. */
static void products_are_recomputed_in_the_same_rows(void **state)
{
    static const int64_t sizes[][2] = {{5, 5}, {5, 7}, {4, 11}, {3, 24}, {24, 24}};
    int64_t recomputed = 0;

    (void)state;
    for (int64_t i = 0; i < COUNT_OF(sizes); i++) {
        ls_decoder_options options = grouped_options();
        ls_decoder decoder;
        ls_plan plan;
        options.chunk = sizes[i][0];
        options.query_block = sizes[i][1];
        options.key_block = 0;
        build_plan(&options, &decoder, &plan);
        for (int32_t p = 0; p < decoder.n_params; p++)
            for (int64_t rows = 1; rows <= options.chunk; rows++) {
                const int32_t weight = decoder.params[p].weight;
                const int64_t again = count_products(&plan, weight, rows, true);
                if (again == 0) continue;
                assert_int_equal(again, count_products(&plan, weight, rows, false));
                recomputed += again;
            }
        ls_plan_free(&plan);
        ls_decoder_free(&decoder);
    }
    assert_true(recomputed > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_share_bytes_only_while_one_is_dead),
        cmocka_unit_test(any_lives_are_kept_apart),
        cmocka_unit_test(reads_find_what_was_written),
        cmocka_unit_test(calls_become_steps),
        cmocka_unit_test(saving_o_recomputes_no_attention),
        cmocka_unit_test(bad_sizes_are_refused),
        cmocka_unit_test(parameter_counts_are_the_models),
        cmocka_unit_test(attention_has_steps_for_what_is_seen),
        cmocka_unit_test(products_are_recomputed_in_the_same_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
