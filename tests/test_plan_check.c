/*
 * test_plan_check.c - the checker accepts the plans of real decoders, and nothing less: every wait
 * and every carry of them is needed, and every other rule has a plan that breaks it alone.  Under
 * sanitizers every fifth wait of a plan is tried, from another one on in each plan.
 */
#include "placement_test.h"
#include "plan_test.h"

/* ---- real plans, one thing changed --------------------------------------------------------- */

/* What a mutation may change of a plan. */
typedef struct waits_copy {
    ls_step *steps;
    int64_t *waits;
    ls_carry *carries;
    int64_t n_waits;
} waits_copy;

static void *copy_of(const void *data, size_t bytes)
{
    void *copy = malloc(bytes + 1);
    memcpy(copy, data, bytes);
    return copy;
}

static waits_copy copy_waits(const ls_plan *p)
{
    return (waits_copy){copy_of(p->steps, (size_t)p->n_steps * sizeof *p->steps),
                        copy_of(p->waits, (size_t)p->n_waits * sizeof *p->waits),
                        copy_of(p->carries, (size_t)p->n_carries * sizeof *p->carries), p->n_waits};
}

static void restore_waits(ls_plan *p, const waits_copy *copy)
{
    p->n_waits = copy->n_waits;
    memcpy(p->steps, copy->steps, (size_t)p->n_steps * sizeof *p->steps);
    memcpy(p->waits, copy->waits, (size_t)p->n_waits * sizeof *p->waits);
    memcpy(p->carries, copy->carries, (size_t)p->n_carries * sizeof *p->carries);
}

static void free_waits(waits_copy *copy)
{
    free(copy->steps);
    free(copy->waits);
    free(copy->carries);
}

#ifdef LS_SANITIZED /* many times slower */
enum { WAITS_STEP = 5 };
#else
enum { WAITS_STEP = 1 };
#endif

/* Without any one wait something races, and the checker names two steps that do. */
static void remove_each_wait(ls_plan *plan, order_model *m, const waits_copy *copy)
{
    static int64_t n_plans;

    for (int64_t w = n_plans++ % WAITS_STEP; w < copy->n_waits; w += WAITS_STEP) {
        remove_wait(plan, w);
        assert_int_equal(check_verdict(plan), VERDICT_RACE);
        assert_true(race_is_named_rightly(m));
        restore_waits(plan, copy);
    }
}

/* The checker's verdict is the model's; returns whether it is a race. */
static bool agree_on_race(const ls_plan *plan, order_model *m)
{
    const verdict found = check_verdict(plan);
    assert_int_equal(found == VERDICT_RACE, find_race(m, -1));
    if (found == VERDICT_RACE) assert_true(race_is_named_rightly(m));
    if (found == VERDICT_SPARE) assert_true(spare_is_named_rightly(m));
    return found == VERDICT_RACE;
}

/* The step before on the same lane of the segment; -1: none. */
static int64_t step_before(const ls_plan *plan, int64_t step, int segment)
{
    for (int64_t s = step - 1; s >= plan->segment_first[segment]; s--)
        if (plan->steps[s].lane == plan->steps[step].lane) return s;
    return -1;
}

/* Let each carry end one step too early, or not at all, in each segment where it ends. */
static void weaken_each_carry(ls_plan *plan, order_model *m)
{
    int64_t races = 0;

    for (int32_t c = 0; c < plan->n_carries; c++)
        for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
            int64_t *const end = &plan->carries[c].ends[s];
            const int64_t original = *end;
            if (original < 0) continue;
            *end = -1;
            races += agree_on_race(plan, m);
            *end = step_before(plan, original, s);
            races += agree_on_race(plan, m);
            *end = original;
        }
    assert_true(races > plan->n_carries);
}

static void needs_all_it_has(const ls_decoder_options *options, const ls_placement *placement,
                             bool and_its_carries)
{
    ls_decoder decoder;
    ls_plan plan;

    build_placed_plan(options, placement, &decoder, &plan);
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) assert_true(plan.segment_steps[s] > 0);
    assert_int_equal(check_verdict(&plan), VERDICT_OK);

    order_model m = open_order_model(&plan, 2);
    waits_copy copy = copy_waits(&plan);
    assert_true(plan.n_waits > 0 && plan.n_carries > 0);
    assert_false(find_race(&m, -1));
    remove_each_wait(&plan, &m, &copy);
    if (and_its_carries) weaken_each_carry(&plan, &m);
    free_waits(&copy);
    close_order_model(&m);
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);
}

static void real_plans_need_all_they_have(void **state)
{
    const ls_decoder_options shapes[] = {grouped_options(), tied_options(), saved_options()};

    (void)state;
    for (int64_t i = 0; i < COUNT_OF(shapes); i++) needs_all_it_has(&shapes[i], NULL, true);
}

static void plans_with_copies_need_all_they_have(void **state)
{
    static const ls_place_mode modes[] = {LS_MODE_STREAM, LS_MODE_RESIDENT, LS_MODE_DIRECT};
    const ls_decoder_options shapes[] = {grouped_options(), tied_options(), saved_options()};

    (void)state;
    for (int64_t i = 0; i < COUNT_OF(shapes); i++)
        for (int64_t mode = 0; mode < COUNT_OF(modes); mode++) {
            const ls_placement placement = place_weights(modes[mode], (i + mode) % 2 == 0);
            needs_all_it_has(&shapes[i], &placement, i == mode);
        }
}

/* ---- one small plan, one rule broken ------------------------------------------------------- */

enum { W = 0, A, B, N_TENSORS };                                /* tensors */
enum { FILL = 0, WORK, UPDATE, EVAL_FILL, EVAL_WORK, N_STEPS }; /* steps */
enum { BY_COMPUTE = 0, BY_HOST, N_CARRIES };                    /* carries */
enum { TENSOR_BYTES = 256, ARENA_BYTES = N_TENSORS * TENSOR_BYTES };
enum {
    FILL_A = 0,
    WORK_W,
    WORK_A,
    WORK_B,
    UPDATE_A,
    UPDATE_B,
    UPDATE_W,
    EVAL_FILL_A
}; /* operands */

/*
 *   step   disk_in: FILL a    compute: WORK a, w -> b    host: UPDATE a, b -> w (commit)
 *   eval   disk_in: FILL a    compute: WORK a, w -> b
 */
typedef struct tiny_plan {
    ls_plan plan;
    ls_plan_arena arenas[1];
    ls_plan_tensor tensors[N_TENSORS];
    ls_step steps[N_STEPS];
    ls_step_operand operands[16];
    ls_carry carries[N_CARRIES];
    int64_t waits[16];
    ls_plan_limits limits;
} tiny_plan;

static void add_step(tiny_plan *p, ls_call_kind kind, ls_lane lane)
{
    p->steps[p->plan.n_steps++] = (ls_step){.kind = kind,
                                            .lane = lane,
                                            .layer = -1,
                                            .chunk = -1,
                                            .first_operand = p->plan.n_operands,
                                            .first_wait = p->plan.n_waits};
}

/* This and add_wait(): to the step added last. */
static void add_operand(tiny_plan *p, int32_t tensor, ls_access access)
{
    p->operands[p->plan.n_operands++] = (ls_step_operand){p->tensors[tensor].span, tensor, access};
    p->steps[p->plan.n_steps - 1].n_operands++;
}

static void add_wait(tiny_plan *p, int64_t wait)
{
    p->waits[p->plan.n_waits++] = wait;
    p->steps[p->plan.n_steps - 1].n_waits++;
}

static void add_fill_and_work(tiny_plan *p)
{
    add_step(p, LS_CALL_BATCH, LS_LANE_DISK_IN);
    add_operand(p, A, LS_ACCESS_WRITE);
    add_wait(p, ls_wait_carry(BY_COMPUTE));
    add_wait(p, ls_wait_carry(BY_HOST));
    add_step(p, LS_CALL_LOSS, LS_LANE_COMPUTE);
    add_operand(p, W, LS_ACCESS_READ);
    add_operand(p, A, LS_ACCESS_READ);
    add_operand(p, B, LS_ACCESS_WRITE);
    add_wait(p, p->plan.n_steps - 2);
}

static void build_tiny_plan(tiny_plan *p)
{
    static const char *const names[N_TENSORS] = {"w", "a", "b"};

    memset(p, 0, sizeof *p);
    p->plan = (ls_plan){.arenas = p->arenas,
                        .tensors = p->tensors,
                        .steps = p->steps,
                        .operands = p->operands,
                        .waits = p->waits,
                        .carries = p->carries,
                        .n_arenas = 1,
                        .n_tensors = N_TENSORS,
                        .n_groups = N_TENSORS,
                        .n_carries = N_CARRIES};
    p->arenas[0] = (ls_plan_arena){LS_PLACE_HOST, ARENA_BYTES};
    p->limits = (ls_plan_limits){{[LS_PLACE_HOST] = ARENA_BYTES}};
    for (int t = 0; t < N_TENSORS; t++) {
        p->tensors[t].tensor.persistent = t == W;
        snprintf(p->tensors[t].tensor.name, LS_TENSOR_NAME_BYTES, "%s", names[t]);
        p->tensors[t].span = (ls_span){0, (uint64_t)t * TENSOR_BYTES, TENSOR_BYTES};
    }
    add_fill_and_work(p);
    add_step(p, LS_CALL_REPORT, LS_LANE_HOST);
    p->steps[UPDATE].commit = true;
    add_operand(p, A, LS_ACCESS_READ);
    add_operand(p, B, LS_ACCESS_READ);
    add_operand(p, W, LS_ACCESS_READ_WRITE);
    add_wait(p, WORK);
    add_fill_and_work(p);
    p->plan.segment_first[LS_SEGMENT_EVAL] = EVAL_FILL;
    p->plan.segment_steps[LS_SEGMENT_STEP] = EVAL_FILL;
    p->plan.segment_steps[LS_SEGMENT_EVAL] = N_STEPS - EVAL_FILL;
    p->carries[BY_COMPUTE] = (ls_carry){LS_LANE_COMPUTE, A, {WORK, -1, EVAL_WORK, -1}};
    p->carries[BY_HOST] = (ls_carry){LS_LANE_HOST, A, {UPDATE, -1, -1, -1}};
}

/* Move a tensor, and with it what steps touch of it. */
static void place(tiny_plan *p, int32_t tensor, uint64_t offset)
{
    for (int64_t i = 0; i < p->plan.n_operands; i++)
        if (p->operands[i].tensor == tensor) p->operands[i].span.offset = offset;
    p->tensors[tensor].span.offset = offset;
}

typedef void breaker(tiny_plan *p);

/* Contents. */
static void share_live_bytes(tiny_plan *p)
{
    place(p, B, TENSOR_BYTES + 64);
}
static void read_first(tiny_plan *p)
{
    p->operands[FILL_A].access = LS_ACCESS_READ;
}
static void read_what_the_step_left(tiny_plan *p)
{
    p->operands[EVAL_FILL_A].access = LS_ACCESS_READ;
}
static void read_part_first(tiny_plan *p)
{
    p->operands[FILL_A].span.bytes -= 16;
}
static void write_into_kept(tiny_plan *p)
{
    place(p, A, TENSOR_BYTES - 16);
}
static void keep_two(tiny_plan *p)
{
    place(p, A, TENSOR_BYTES - 16);
    p->tensors[A].tensor.persistent = true;
}

/* Room. */
static void limit_host(tiny_plan *p)
{
    p->limits.place_bytes[LS_PLACE_HOST]--;
}
static void need_gpu(tiny_plan *p)
{
    p->arenas[0] = (ls_plan_arena){LS_PLACE_HBM, UINT64_C(3) << 30};
    p->limits.place_bytes[LS_PLACE_HBM] = UINT64_C(5) << 29;
}
static void end_beyond(tiny_plan *p)
{
    p->arenas[0].bytes--;
}
static void start_beyond(tiny_plan *p)
{
    place(p, B, UINT64_MAX - 16);
}
static void lie_nowhere(tiny_plan *p)
{
    p->tensors[A].span.arena = 1;
    for (int64_t i = 0; i < p->plan.n_operands; i++)
        if (p->operands[i].tensor == A) p->operands[i].span.arena = 1;
}
static void lie_before_all(tiny_plan *p)
{
    p->tensors[A].span.arena = -1;
    for (int64_t i = 0; i < p->plan.n_operands; i++)
        if (p->operands[i].tensor == A) p->operands[i].span.arena = -1;
}

/* Operands. */
static void reach_beyond(tiny_plan *p)
{
    p->operands[WORK_A].span.bytes++;
}
static void reach_past(tiny_plan *p)
{
    p->operands[WORK_A].span.offset += 16;
}
static void reach_before(tiny_plan *p)
{
    p->operands[WORK_A].span.offset--;
}
static void reach_around(tiny_plan *p)
{
    p->operands[WORK_A].span.bytes = UINT64_MAX;
}
static void reach_elsewhere(tiny_plan *p)
{
    p->operands[WORK_A].span.arena = 1;
}
static void touch_no_tensor(tiny_plan *p)
{
    p->operands[WORK_A].tensor = N_TENSORS;
}

/* Waits and carries. */
static void wait_later(tiny_plan *p)
{
    p->waits[p->steps[WORK].first_wait] = UPDATE;
}
static void wait_later_on_no_lane(tiny_plan *p)
{
    wait_later(p);
    p->steps[UPDATE].lane = LS_LANE_COUNT;
}
static void wait_self(tiny_plan *p)
{
    p->waits[p->steps[WORK].first_wait] = WORK;
}
static void wait_back(tiny_plan *p)
{
    add_wait(p, WORK);
}
static void wait_ahead(tiny_plan *p)
{
    p->waits[p->steps[WORK].first_wait] = EVAL_FILL;
}
static void wait_nobody(tiny_plan *p)
{
    add_wait(p, N_STEPS);
}
static void wait_no_carry(tiny_plan *p)
{
    add_wait(p, ls_wait_carry(N_CARRIES));
}
static void wait_far(tiny_plan *p)
{
    add_wait(p, INT64_MIN);
}
static void wait_twice(tiny_plan *p)
{
    add_wait(p, EVAL_FILL);
}
static void end_on_other_lane(tiny_plan *p)
{
    p->carries[BY_HOST].ends[LS_SEGMENT_STEP] = WORK;
}
static void end_elsewhere(tiny_plan *p)
{
    p->carries[BY_COMPUTE].ends[LS_SEGMENT_EVAL] = WORK;
}
static void end_nowhere(tiny_plan *p)
{
    p->carries[BY_HOST].ends[LS_SEGMENT_EVAL] = N_STEPS;
}
static void end_in_absent(tiny_plan *p)
{
    p->carries[BY_COMPUTE].ends[LS_SEGMENT_DRAIN] = FILL;
}
static void carry_no_lane(tiny_plan *p)
{
    p->carries[BY_HOST].lane = LS_LANE_COUNT;
}

/* Segments and steps. */
static void commit_early(tiny_plan *p)
{
    p->steps[FILL].commit = true;
}
static void share_steps(tiny_plan *p)
{
    p->plan.segment_first[LS_SEGMENT_EVAL]--;
}
static void miss_a_step(tiny_plan *p)
{
    p->plan.segment_steps[LS_SEGMENT_EVAL]--;
}
static void run_out_of_steps(tiny_plan *p)
{
    p->plan.segment_steps[LS_SEGMENT_EVAL]++;
}
static void start_early(tiny_plan *p)
{
    p->plan.segment_first[LS_SEGMENT_STEP] = -1;
}
static void have_fewer_than_none(tiny_plan *p)
{
    p->plan.segment_steps[LS_SEGMENT_DRAIN] = -1;
}
static void no_lane(tiny_plan *p)
{
    p->steps[WORK].lane = LS_LANE_COUNT;
}
static void no_kind(tiny_plan *p)
{
    p->steps[WORK].kind = LS_CALL_KIND_COUNT;
}
static void no_phase(tiny_plan *p)
{
    p->steps[WORK].phase = LS_PHASE_COUNT;
}
static void no_op(tiny_plan *p)
{
    p->steps[WORK].kind = LS_CALL_OP;
    p->steps[WORK].op = LS_OP_COUNT;
}
static void no_operand(tiny_plan *p)
{
    p->steps[EVAL_WORK].n_operands++;
}
static void operands_before(tiny_plan *p)
{
    p->steps[FILL].first_operand = -1;
}
static void fewer_operands(tiny_plan *p)
{
    p->steps[FILL].n_operands = -1;
}
static void no_wait(tiny_plan *p)
{
    p->steps[EVAL_WORK].n_waits++;
}
static void waits_before(tiny_plan *p)
{
    p->steps[FILL].first_wait = -1;
}
static void fewer_waits(tiny_plan *p)
{
    p->steps[FILL].n_waits = -1;
}

static const struct {
    breaker *break_rule;
    ls_status status;
    const char *says[2];
} broken[] = {
    {share_live_bytes,
     LS_ERR_INVALID,
     {"step 2 (report", "as a, but there b has been written over it"}},
    {read_first, LS_ERR_INVALID, {"step 0 (batch", "(a) before anything has written it"}},
    {read_what_the_step_left,
     LS_ERR_INVALID,
     {"step 3 (batch", "(a) before anything has written it"}},
    {read_part_first,
     LS_ERR_INVALID,
     {"step 1 (loss", "bytes 496 to 512 of arena 0 (a) before anything"}},
    {write_into_kept, LS_ERR_INVALID, {"writes bytes 240 to 256 of arena 0 as a", "belong to w"}},
    {keep_two, LS_ERR_INVALID, {"w and a share bytes", "both outlive segments"}},
    {limit_host, LS_ERR_NO_MEMORY, {"host needs 768 B", "767 B may be used"}},
    {need_gpu, LS_ERR_NO_MEMORY, {"hbm needs 3.0 GiB", "2.5 GiB may be used"}},
    {end_beyond, LS_ERR_INVALID, {"tensor b, bytes 512 to 768", "beyond arena 0 of 767 bytes"}},
    {start_beyond, LS_ERR_INVALID, {"tensor b", "beyond arena 0"}},
    {lie_nowhere, LS_ERR_INVALID, {"tensor a lies in arena 1", "there are 1"}},
    {lie_before_all, LS_ERR_INVALID, {"tensor a lies in arena -1", ""}},
    {reach_beyond, LS_ERR_INVALID, {"step 1 (loss", "operand 1 lies outside its tensor a"}},
    {reach_past, LS_ERR_INVALID, {"step 1 (loss", "operand 1 lies outside its tensor a"}},
    {reach_before, LS_ERR_INVALID, {"step 1 (loss", "operand 1 lies outside its tensor a"}},
    {reach_around, LS_ERR_INVALID, {"step 1 (loss", "operand 1 lies outside its tensor a"}},
    {reach_elsewhere, LS_ERR_INVALID, {"step 1 (loss", "operand 1 lies outside its tensor a"}},
    {touch_no_tensor, LS_ERR_INVALID, {"step 1 (loss", "operand 1 lies outside its tensor"}},
    {wait_later, LS_ERR_INVALID, {"cycle: step 1 (loss", "waits for step 2 (report"}},
    {wait_later_on_no_lane, LS_ERR_INVALID, {"step 2 has", "does not exist"}},
    {wait_self, LS_ERR_INVALID, {"cycle: step 1 (loss", "waits for step 1 (loss"}},
    {wait_back, LS_ERR_INVALID, {"step 4 (loss", "waits for step 1 (loss"}},
    {wait_ahead, LS_ERR_INVALID, {"step 1 (loss", "of another segment; only a carry"}},
    {wait_nobody, LS_ERR_INVALID, {"waits for step 5", "does not exist"}},
    {wait_no_carry, LS_ERR_INVALID, {"waits for carry 2", "there are 2"}},
    {wait_far, LS_ERR_INVALID, {"waits for carry 9223372036854775807", "there are 2"}},
    {wait_twice, LS_ERR_INVALID, {"spare wait: step 4 (loss", "need not wait for step 3 (batch"}},
    {end_on_other_lane, LS_ERR_INVALID, {"carry 1 (lane host)", "segment step with step 1"}},
    {end_elsewhere, LS_ERR_INVALID, {"carry 0 (lane compute)", "segment eval with step 1"}},
    {end_nowhere, LS_ERR_INVALID, {"carry 1 (lane host)", "segment eval with step 5"}},
    {end_in_absent, LS_ERR_INVALID, {"carry 0 (lane compute)", "segment drain with step 0"}},
    {carry_no_lane, LS_ERR_INVALID, {"carry 1 has lane 7", "does not exist"}},
    {commit_early, LS_ERR_INVALID, {"step 1 (loss", "follows a commit step"}},
    {share_steps, LS_ERR_INVALID, {"segments step and eval", "share steps"}},
    {miss_a_step, LS_ERR_INVALID, {"segments have 4 steps", "the plan 5"}},
    {run_out_of_steps, LS_ERR_INVALID, {"segment eval: steps 3 to 6", "the plan has 5"}},
    {start_early, LS_ERR_INVALID, {"segment step: steps -1 to 2", "the plan has 5"}},
    {have_fewer_than_none, LS_ERR_INVALID, {"segment drain", "the plan has 5"}},
    {no_lane, LS_ERR_INVALID, {"step 1 has", "does not exist"}},
    {no_kind, LS_ERR_INVALID, {"step 1 has", "does not exist"}},
    {no_phase, LS_ERR_INVALID, {"step 1 has", "does not exist"}},
    {no_op, LS_ERR_INVALID, {"step 1 has", "does not exist"}},
    {no_operand, LS_ERR_INVALID, {"step 4 has", "does not exist"}},
    {operands_before, LS_ERR_INVALID, {"step 0 has", "does not exist"}},
    {fewer_operands, LS_ERR_INVALID, {"step 0 has", "does not exist"}},
    {no_wait, LS_ERR_INVALID, {"step 4 has", "does not exist"}},
    {waits_before, LS_ERR_INVALID, {"step 0 has", "does not exist"}},
    {fewer_waits, LS_ERR_INVALID, {"step 0 has", "does not exist"}},
};

static void each_broken_rule_is_named(void **state)
{
    tiny_plan p;

    (void)state;
    build_tiny_plan(&p);
    assert_int_equal(ls_plan_check(&p.plan, &p.limits), LS_OK);
    for (int64_t i = 0; i < COUNT_OF(broken); i++) {
        build_tiny_plan(&p);
        broken[i].break_rule(&p);
        assert_int_equal(ls_plan_check(&p.plan, &p.limits), broken[i].status);
        for (int s = 0; s < 2; s++)
            if (strstr(ls_error(), broken[i].says[s]) == NULL)
                fail_msg("\"%s\" does not say \"%s\"", ls_error(), broken[i].says[s]);
    }
}

/* Bytes are counted place by place, over all arenas; without limits there is none. */
static void limits_hold_for_all_arenas_of_a_place(void **state)
{
    tiny_plan p;
    ls_plan_arena arenas[] = {
        {LS_PLACE_HOST, ARENA_BYTES}, {LS_PLACE_HBM, 100}, {LS_PLACE_HOST, 20}};

    (void)state;
    build_tiny_plan(&p);
    p.plan.arenas = arenas;
    p.plan.n_arenas = (int32_t)COUNT_OF(arenas);
    p.limits.place_bytes[LS_PLACE_HOST] = ARENA_BYTES + 20;
    p.limits.place_bytes[LS_PLACE_HBM] = 100;
    assert_int_equal(ls_plan_check(&p.plan, &p.limits), LS_OK);
    p.limits.place_bytes[LS_PLACE_HOST]--;
    assert_int_equal(ls_plan_check(&p.plan, &p.limits), LS_ERR_NO_MEMORY);
    assert_int_equal(ls_plan_check(&p.plan, NULL), LS_OK);
}

/* The list of waits may have more than the steps use. */
static void waits_of_no_step_do_not_matter(void **state)
{
    tiny_plan p;

    (void)state;
    build_tiny_plan(&p);
    p.waits[p.plan.n_waits++] = N_STEPS;
    assert_int_equal(ls_plan_check(&p.plan, &p.limits), LS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_plans_need_all_they_have),
        cmocka_unit_test(plans_with_copies_need_all_they_have),
        cmocka_unit_test(each_broken_rule_is_named),
        cmocka_unit_test(waits_of_no_step_do_not_matter),
        cmocka_unit_test(limits_hold_for_all_arenas_of_a_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
