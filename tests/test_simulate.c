/*
 * test_simulate.c - the clock of a plan: costs by hand, contention by hand, and the laws that hold
 * for any plan on any machine.
 *
 * The plans by hand have one arena for each place and steps that carry their cost in operands; the
 * plans of the laws are real ones, lowered from small decoders.
 */
#include "cost_test.h"

#include "check.h"
#include "placement_test.h"
#include "plan_test.h"
#include "simulate.h"

/* ---- plans by hand ------------------------------------------------------------------------- */

enum { HBM_ARENA, HOST_ARENA, NVME_ARENA };

typedef struct hand_plan {
    ls_plan plan;
    ls_plan_arena arenas[3];
    ls_step steps[8];
    ls_step_operand operands[16];
    ls_op_args args[8];
    int64_t waits[8];
    ls_carry carries[2];
} hand_plan;

static void start(hand_plan *h)
{
    *h = (hand_plan){
        .arenas = {{.place = LS_PLACE_HBM}, {.place = LS_PLACE_HOST}, {.place = LS_PLACE_NVME}}};
    h->plan.arenas = h->arenas;
    h->plan.steps = h->steps;
    h->plan.operands = h->operands;
    h->plan.args = h->args;
    h->plan.waits = h->waits;
    h->plan.carries = h->carries;
    h->plan.n_arenas = 3;
}

/* Append a step; wait >= 0: for that step, < -1: for carry -2 - wait, -1: for none. */
static ls_step *add(hand_plan *h, ls_lane lane, ls_call_kind kind, ls_op op, int64_t wait)
{
    const int64_t index = h->plan.n_steps++;
    ls_step *step = &h->steps[index];

    h->plan.segment_steps[LS_SEGMENT_STEP]++;
    *step = (ls_step){.kind = kind,
                      .op = op,
                      .lane = lane,
                      .args = index,
                      .first_operand = h->plan.n_operands,
                      .first_wait = h->plan.n_waits};
    if (wait != -1) {
        h->waits[h->plan.n_waits++] = wait >= 0 ? wait : ls_wait_carry(-2 - wait);
        step->n_waits = 1;
    }
    return step;
}

static void touch(hand_plan *h, ls_step *step, int arena, uint64_t bytes)
{
    h->operands[h->plan.n_operands++] =
        (ls_step_operand){.span = {.arena = arena, .bytes = bytes}, .access = LS_ACCESS_READ};
    step->n_operands++;
    step->bytes += bytes;
}

/* A matrix product of so many FLOPs (at 500 a second) over so many bytes of HBM. */
static ls_step *add_matmul(hand_plan *h, double flops, uint64_t bytes, int64_t wait)
{
    ls_step *step = add(h, LS_LANE_COMPUTE, LS_CALL_OP, LS_OP_matmul, wait);
    h->args[step->args].matmul = (ls_matmul_args){.M = 64, .N = 64, .K = 64};
    step->flops = flops;
    touch(h, step, HBM_ARENA, bytes);
    return step;
}

static ls_step *add_copy(hand_plan *h, ls_lane lane, uint64_t bytes, int64_t wait)
{
    ls_step *step = add(h, lane, LS_CALL_COPY, LS_OP_zero, wait);
    touch(h, step, HBM_ARENA, bytes);
    touch(h, step, HOST_ARENA, bytes);
    return step;
}

static ls_step *add_update(hand_plan *h, uint64_t bytes, int64_t wait)
{
    ls_step *step = add(h, LS_LANE_HOST, LS_CALL_OP, LS_OP_adamw, wait);
    touch(h, step, HOST_ARENA, bytes);
    return step;
}

/* A copy between device memory and a file. */
static void add_file_copy(hand_plan *h, ls_lane lane, uint64_t bytes, int64_t wait)
{
    ls_step *step = add(h, lane, LS_CALL_COPY, LS_OP_zero, wait);
    touch(h, step, HBM_ARENA, bytes);
    touch(h, step, NVME_ARENA, bytes);
    if (lane == LS_LANE_COPY_OUT) h->operands[h->plan.n_operands - 1].access = LS_ACCESS_WRITE;
}

/* A step waits for what `end` did in the repetition before. */
static void wait_for_step_before(hand_plan *h, int64_t step, int64_t end)
{
    h->carries[0] = (ls_carry){.lane = h->steps[end].lane, .ends = {end, -1, -1, -1}};
    h->plan.n_carries = 1;
    h->steps[step].n_waits = 1;
    h->steps[step].first_wait = h->plan.n_waits;
    h->waits[h->plan.n_waits++] = ls_wait_carry(0);
}

static ls_simulation simulate(const hand_plan *h)
{
    ls_topology *machine = make_rated_machine();
    const ls_cost_model model = make_rated_model(machine);
    ls_simulation result;

    assert_ok(ls_simulate(&h->plan, &model, NULL, NULL, &result));
    free(machine);
    return result;
}

static void test_single_lane(void **state)
{
    hand_plan h;

    (void)state;
    start(&h);
    add_matmul(&h, 1000, 10, -1); /* 2 s of arithmetic */
    add_matmul(&h, 100, 1500, 0); /* 3 s of bytes */
    ls_simulation s = simulate(&h);
    assert_near(s.step_s, 5);
    assert_near(s.lower_bound_s, 5);
    assert_string_equal(s.bound_by, "compute");
    assert_near(s.lane_busy_s[LS_LANE_COMPUTE], 5);
    assert_near(s.resource_s[LS_RESOURCE_HBM], 1510.0 / 500);
    /* What a kernel reads in host memory comes over the link. */
    touch(&h, &h.steps[1], HOST_ARENA, 400);
    assert_near(simulate(&h).step_s, 2 + 400.0 / 40);
}

/* A copy in (2 s), the product of it (4 s), a copy out (8 s): the next step's copy in overlaps. */
static void test_overlap(void **state)
{
    hand_plan h;

    (void)state;
    start(&h);
    add_copy(&h, LS_LANE_COPY_IN, 100, -1);
    add_matmul(&h, 2000, 10, 0);
    add_copy(&h, LS_LANE_COPY_OUT, 200, 1);
    ls_simulation s = simulate(&h);
    assert_near(s.first_s, 14);
    assert_near(s.step_s, 8);
    assert_string_equal(s.bound_by, "copy_out");
    wait_for_step_before(&h, 0, 2); /* nothing overlaps */
    s = simulate(&h);
    assert_near(s.step_s, 14);
    assert_near(s.lower_bound_s, 8);
}

/* From a file 10 bytes/s, to it 5, both ways 12; host memory is passed twice. */
static void test_file(void **state)
{
    hand_plan h;

    (void)state;
    start(&h);
    add_file_copy(&h, LS_LANE_COPY_IN, 100, -1);
    ls_simulation s = simulate(&h);
    assert_near(s.step_s, 10);
    assert_near(s.resource_s[LS_RESOURCE_NVME_IN], 10);
    assert_near(s.resource_s[LS_RESOURCE_NVME_OUT], 0);
    assert_near(s.resource_s[LS_RESOURCE_HOST], 2.0 * 100 / 100);
    assert_near(s.resource_s[LS_RESOURCE_LINK_IN], 2);
    start(&h);
    add_file_copy(&h, LS_LANE_COPY_OUT, 100, -1);
    s = simulate(&h);
    assert_near(s.step_s, 20);
    assert_near(s.resource_s[LS_RESOURCE_NVME_OUT], 20);
    start(&h); /* 10 + 5 are wanted of 12: 0.8 of full speed for 12.5 s, then 50 of 100 alone */
    add_file_copy(&h, LS_LANE_COPY_IN, 100, -1);
    add_file_copy(&h, LS_LANE_COPY_OUT, 100, -1);
    wait_for_step_before(&h, 0, 1);
    assert_near(simulate(&h).first_s, 12.5 + 10);
    start(&h); /* moments of the optimizer: what it reads and writes */
    ls_step *update = add_update(&h, 100, -1);
    touch(&h, update, NVME_ARENA, 30);
    h.operands[h.plan.n_operands - 1].access = LS_ACCESS_READ_WRITE;
    s = simulate(&h);
    assert_near(s.step_s, 6); /* 30 out at 5; host: (100 + 60) / 100 */
    assert_near(s.resource_s[LS_RESOURCE_NVME_IN], 3);
    assert_near(s.resource_s[LS_RESOURCE_NVME], 5);
    assert_near(s.resource_s[LS_RESOURCE_HOST], (100 + 2 * 60) / 100.0);
}

/* Both ways at once want 75 bytes/s of a link that has 60; then the rest goes alone. */
static void test_link_shared(void **state)
{
    hand_plan h;

    (void)state;
    start(&h);
    add_copy(&h, LS_LANE_COPY_IN, 100, -1);  /* 2 s alone */
    add_copy(&h, LS_LANE_COPY_OUT, 100, -1); /* 4 s alone */
    wait_for_step_before(&h, 0, 1);
    both_ways = 60;
    const ls_simulation s = simulate(&h);
    both_ways = 75;
    /* 0.8 of full speed for 2.5 s: in is done, 50 bytes out are left: 2 s. */
    assert_near(s.first_s, 4.5);
    assert_near(s.lane_alone_s[LS_LANE_COPY_OUT], 4);
    assert_near(s.lower_bound_s, 4);
}

/* The optimizer alone takes all of host memory; beside a copy it takes two thirds. */
static void test_host_memory_shared(void **state)
{
    hand_plan h;

    (void)state;
    start(&h);
    add_copy(&h, LS_LANE_COPY_IN, 100, -1); /* 2 s alone, 50 bytes/s */
    add_update(&h, 400, -1);                /* 4 s alone, 100 bytes/s */
    wait_for_step_before(&h, 0, 1);
    const ls_simulation s = simulate(&h);
    /* 2/3 of full speed for 3 s: the copy is done; 200 of 400 bytes are left: 2 s. */
    assert_near(s.first_s, 5);
    assert_near(s.resource_s[LS_RESOURCE_HOST], 5);
    assert_string_equal(s.bound_by, "host");
    assert_true(s.step_s >= s.lower_bound_s * (1 - 1e-12));
}

/* ---- laws ---------------------------------------------------------------------------------- */

typedef struct counting {
    const ls_plan *plan;
    int64_t steps;
    double bytes, last_end[LS_LANE_COUNT], busy;
    int repetitions;
} counting;

static void count_step(void *context, int64_t step, int repetition, double start_s, double end_s)
{
    counting *c = context;
    const ls_lane lane = c->plan->steps[step].lane;

    assert_true(start_s >= c->last_end[lane] && end_s >= start_s);
    c->last_end[lane] = end_s;
    if (repetition + 1 > c->repetitions) c->repetitions = repetition + 1;
    if (repetition > 0) return;
    c->steps++;
    c->bytes += (double)c->plan->steps[step].bytes;
}

/* A machine whose figures are up to e^3 times those of make_rated_machine(), either way. */
static ls_cost_model random_model(dice *d)
{
    ls_topology *machine = make_rated_machine();
    ls_cost_model model = ls_cost_model_make(machine, true, LS_DTYPE_BF16);
    double *const figures[] = {&model.bytes_per_s[LS_RESOURCE_HBM],
                               &model.bytes_per_s[LS_RESOURCE_HOST],
                               &model.bytes_per_s[LS_RESOURCE_LINK_IN],
                               &model.bytes_per_s[LS_RESOURCE_LINK_OUT],
                               &model.bytes_per_s[LS_RESOURCE_LINK],
                               &model.in_place_bytes_per_s,
                               &model.host_lane_bytes_per_s,
                               &model.launch_latency_s};

    for (int64_t i = 0; i < COUNT_OF(figures); i++)
        *figures[i] *= exp((double)(below(d, 6001) - 3000) / 1000);
    free(machine);
    return model;
}

static ls_simulation simulate_with(const ls_plan *plan, const ls_cost_model *model)
{
    ls_simulation s;

    assert_ok(ls_simulate(plan, model, NULL, NULL, &s));
    return s;
}

static ls_cost_model times_faster(ls_cost_model model, double factor)
{
    for (int r = 0; r < LS_RATE_COUNT; r++)
        for (int i = 0; i < model.rates[r].n; i++) model.rates[r].flops_per_s[i] *= factor;
    for (int r = 0; r < LS_RESOURCE_COUNT; r++) model.bytes_per_s[r] *= factor;
    model.in_place_bytes_per_s *= factor;
    model.host_lane_bytes_per_s *= factor;
    model.launch_latency_s /= factor;
    model.copy_latency_s /= factor;
    return model;
}

static void check_laws(const ls_plan *plan, dice *d)
{
    const ls_cost_model model = random_model(d);
    const ls_simulation s = simulate_with(plan, &model);
    counting c = {.plan = plan};
    ls_simulation again;
    double bytes = 0;

    assert_true(s.step_s >= s.lower_bound_s * (1 - 1e-9));
    for (int l = 0; l < LS_LANE_COUNT; l++)
        assert_true(s.lane_busy_s[l] >= s.lane_alone_s[l] * (1 - 1e-9));
    /* Everything twice as fast: half the time. */
    const ls_cost_model twice = times_faster(model, 2);
    assert_true(fabs(simulate_with(plan, &twice).step_s - s.step_s / 2) <= 1e-6 * s.step_s);
    /* What it visits is the plan: every step, in the order of its lane, with all its bytes. */
    assert_ok(ls_simulate(plan, &model, count_step, &c, &again));
    assert_true(memcmp(&again, &s, sizeof s) == 0);
    for (int64_t i = 0; i < plan->segment_steps[LS_SEGMENT_STEP]; i++)
        bytes += (double)plan->steps[i].bytes;
    assert_int_equal(c.steps, plan->segment_steps[LS_SEGMENT_STEP]);
    assert_true(c.bytes == bytes);
}

/* One figure is better, all else equal: by how much a step is longer then.  Where lanes share it
 * may be, by a few percent at worst: a copy that starts sooner takes its share of memory sooner. */
static double raise_one(const ls_plan *plan, dice *d)
{
    ls_cost_model model = random_model(d), better = model;
    const int64_t which = below(d, LS_RESOURCE_COUNT);

    better.bytes_per_s[which] *= 1.0 + (double)(1 + below(d, 7000)) / 1000;
    return simulate_with(plan, &better).step_s / simulate_with(plan, &model).step_s;
}

/* The same where no two lanes share what is limited: never longer. */
static double raise_one_unshared(const ls_plan *plan, dice *d)
{
    ls_cost_model model = random_model(d), better;

    for (int r = 0; r < LS_RESOURCE_COUNT; r++)
        if (r != LS_RESOURCE_LINK_OUT) model.bytes_per_s[r] = INFINITY;
    better = model;
    double *const figures[] = {&better.bytes_per_s[LS_RESOURCE_LINK_OUT],
                               &better.host_lane_bytes_per_s, &better.in_place_bytes_per_s,
                               &better.rates[LS_RATE_MATMUL].flops_per_s[0]};
    *figures[below(d, COUNT_OF(figures))] *= 1.0 + (double)(1 + below(d, 7000)) / 1000;
    return simulate_with(plan, &better).step_s / simulate_with(plan, &model).step_s;
}

static void test_laws(void **state)
{
    static const ls_place_mode modes[] = {LS_MODE_DIRECT, LS_MODE_STREAM, LS_MODE_RESIDENT};
    const ls_decoder_options shapes[] = {grouped_options(), saved_options()};
    dice d = {.seed = 20261130};

    (void)state;
    for (int i = 0; i < COUNT_OF(shapes); i++)
        for (int m = 0; m < COUNT_OF(modes); m++) {
            const ls_placement placement = place_weights(modes[m], m == 1);
            ls_decoder decoder;
            ls_plan plan;
            build_placed_plan(&shapes[i], &placement, &decoder, &plan);
            for (int round = 0; round < 20; round++) {
                check_laws(&plan, &d);
                assert_true(raise_one(&plan, &d) <= 1.1);
                assert_true(raise_one_unshared(&plan, &d) <= 1 + 1e-9);
            }
            ls_plan_free(&plan);
            ls_decoder_free(&decoder);
        }
}

/* ---- a CPU --------------------------------------------------------------------------------- */

/* Two cores, which ops and updates want whole; memory of 100 bytes/s, swiglu of 10 at 20. */
static ls_cost_model make_cpu_model(void)
{
    ls_topology *machine = make_rated_machine();
    ls_unit *cpu = &machine->units[1];

    cpu->cores = figure(2);
    cpu->bf16_flops_per_s = figure(1000);
    add_efficiency(cpu, "matmul", "large", 0.5);
    add_efficiency(cpu, "attention_forward", "causal-1k", 0.1);
    add_efficiency(cpu, "attention_backward", "causal-1k", 0.1);
    cpu->efficiencies[cpu->n_efficiencies] = (ls_efficiency){.op = "swiglu_forward"};
    cpu->efficiencies[cpu->n_efficiencies++].bytes_per_s = figure(20);
    cpu->efficiencies[cpu->n_efficiencies] = (ls_efficiency){.op = "adamw"};
    cpu->efficiencies[cpu->n_efficiencies++].bytes_per_s = figure(400);
    ls_cost_model model = ls_cost_model_make(machine, false, LS_DTYPE_BF16);
    model.launch_latency_s = 0;
    free(machine);
    assert_string_equal(model.why_unknown, "");
    return model;
}

/* The rate that was measured of an op stands, slower than memory or, in caches, faster. */
static void test_measured_rates(void **state)
{
    const ls_cost_model model = make_cpu_model();
    hand_plan h;

    (void)state;
    start(&h);
    touch(&h, add(&h, LS_LANE_COMPUTE, LS_CALL_OP, LS_OP_swiglu_forward, -1), HOST_ARENA, 100);
    ls_step_cost cost = ls_cost_of(&model, &h.plan, 0);
    assert_near(cost.seconds, 5);
    assert_near(cost.bytes[LS_RESOURCE_HOST], 100);
    add_update(&h, 400, -1);
    cost = ls_cost_of(&model, &h.plan, 1);
    assert_near(cost.seconds, 1);
    assert_near(cost.bytes[LS_RESOURCE_HOST], 100); /* no more than memory gives in that time */
}

/* What a call takes besides stands in for the launch that is assumed, on either lane; work alone
 * wants the cores. */
static void test_measured_calls(void **state)
{
    ls_cost_model model = make_cpu_model();
    hand_plan h;

    (void)state;
    model.launch_latency_s = 0.25;
    model.op_call_s[LS_OP_swiglu_forward] = 3;
    model.op_call_s[LS_OP_adamw] = 7;
    start(&h);
    touch(&h, add(&h, LS_LANE_COMPUTE, LS_CALL_OP, LS_OP_swiglu_forward, -1), HOST_ARENA, 100);
    add_update(&h, 400, -1);
    add_matmul(&h, 1000, 10, -1);
    assert_near(ls_cost_of(&model, &h.plan, 0).seconds, 3 + 5);
    assert_near(ls_cost_of(&model, &h.plan, 0).bytes[LS_RESOURCE_CORES], 2 * 5);
    assert_near(ls_cost_of(&model, &h.plan, 1).seconds, 7 + 1);
    assert_near(ls_cost_of(&model, &h.plan, 2).seconds, 0.25 + 2);
    model.rates[LS_RATE_MATMUL_GRADIENT].flops_per_s[0] = 250; /* of a product the form decides */
    model.rates[LS_RATE_MATMUL_GRADIENT].call_s = 9;
    assert_near(ls_cost_of(&model, &h.plan, 2).seconds, 0.25 + 2);
    h.args[h.steps[2].args].matmul.trans_a = 1;
    assert_near(ls_cost_of(&model, &h.plan, 2).seconds, 9 + 4);
}

/* Both lanes want both cores: each goes half as fast.  A copy that a throttle slows wants little.
 */
static void test_cores_shared(void **state)
{
    const ls_cost_model model = make_cpu_model();
    ls_simulation s;
    hand_plan h;

    (void)state;
    start(&h);
    add_matmul(&h, 1000, 10, -1); /* 2 s alone */
    add_update(&h, 1200, -1);     /* 3 s alone; of memory 100 bytes/s, all there is */
    wait_for_step_before(&h, 0, 1);
    assert_ok(ls_simulate(&h.plan, &model, NULL, NULL, &s));
    assert_near(s.first_s, 5);
    assert_near(s.lower_bound_s, 5);
    assert_string_equal(s.bound_by, "cores");
    start(&h);
    add_copy(&h, LS_LANE_COPY_IN, 100, -1); /* 2 s behind its link; twice 100 bytes by one core */
    const ls_step_cost cost = ls_cost_of(&model, &h.plan, 0);
    assert_true(cost.bytes[LS_RESOURCE_CORES] <= cost.seconds);
}

/* ---- when forward starts --------------------------------------------------------------------- */

typedef struct moments {
    const ls_plan *plan;
    double forward_s, updated_s; /* of the second step's first op; of the first's last update */
} moments;

static void note_moment(void *context, int64_t index, int repetition, double start_s, double end_s)
{
    moments *m = context;
    const ls_step *step = &m->plan->steps[index];

    if (repetition == 0 && step->op == LS_OP_adamw && step->kind == LS_CALL_OP)
        m->updated_s = end_s;
    if (repetition == 1 && step->lane == LS_LANE_COMPUTE && m->forward_s == 0)
        m->forward_s = start_s;
}

/* Forward starts before the last update, or with serial updates after it. */
static void test_serial_updates(void **state)
{
    const ls_decoder_options options = grouped_options();
    ls_topology *machine = make_rated_machine();
    const ls_cost_model model = make_rated_model(machine);

    (void)state;
    for (int serial = 0; serial < 2; serial++) {
        ls_placement placement = place_weights(LS_MODE_RESIDENT, true);
        ls_decoder decoder;
        ls_plan plan;
        ls_simulation s;
        placement.serial_updates = serial != 0;
        build_placed_plan(&options, &placement, &decoder, &plan);
        assert_ok(ls_plan_check(&plan, NULL));
        moments m = {.plan = &plan};
        assert_ok(ls_simulate(&plan, &model, note_moment, &m, &s));
        assert_true(m.updated_s > 0 && m.forward_s > 0);
        assert_int_equal(m.forward_s >= m.updated_s, serial);
        ls_plan_free(&plan);
        ls_decoder_free(&decoder);
    }
    free(machine);
}

/* ---- what ops touch -------------------------------------------------------------------------- */

/* Rows of a table that are looked up: no more than there are tokens, nor than the table has. */
static void test_touched_bytes(void **state)
{
    const ls_step rope = {.kind = LS_CALL_OP, .op = LS_OP_rope};
    const ls_step forward = {.kind = LS_CALL_OP, .op = LS_OP_embedding_forward};
    const ls_step backward = {.kind = LS_CALL_OP, .op = LS_OP_embedding_backward};
    const ls_op_args positions = {.rope = {.N = 10, .K = 8}};
    const ls_op_args rows = {.embedding_forward = {.N = 10, .D = 8, .dtype = LS_DTYPE_BF16}};
    const ls_op_args sums = {.embedding_backward = {.N = 10, .D = 8, .dtype = LS_DTYPE_BF16}};

    (void)state;
    assert_near(ls_cost_touched_bytes(&rope, &positions, 2, 1e6), 10 * 8 * 4);
    assert_near(ls_cost_touched_bytes(&rope, &positions, 2, 64), 64);
    assert_near(ls_cost_touched_bytes(&rope, &positions, 1, 1e6), 1e6);
    assert_near(ls_cost_touched_bytes(&forward, &rows, 1, 1e6), 10 * 8 * 2);
    assert_near(ls_cost_touched_bytes(&forward, &rows, 0, 1e6), 1e6);
    assert_near(ls_cost_touched_bytes(&backward, &sums, 0, 1e6), 10 * 8 * 4);
    assert_near(ls_cost_touched_bytes(&backward, &sums, 1, 1e6), 1e6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single_lane),        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_link_shared),        cmocka_unit_test(test_file),
        cmocka_unit_test(test_host_memory_shared), cmocka_unit_test(test_laws),
        cmocka_unit_test(test_measured_rates),     cmocka_unit_test(test_measured_calls),
        cmocka_unit_test(test_cores_shared),       cmocka_unit_test(test_serial_updates),
        cmocka_unit_test(test_touched_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
