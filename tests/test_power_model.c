/*
 * Energy of simulated steps: states by hand with whole numbers, what caps leave, and the laws that
 * hold for any plan on any machine.
 */
#include "cost_test.h"

#include "placement_test.h"
#include "plan_test.h"
#include "simulate.h"

/* ---- a machine ----------------------------------------------------------------------------- */

static void add_state(ls_unit *unit, const char *name, double watts)
{
    ls_power_state *state = &unit->power_states[unit->n_power_states++];
    snprintf(state->name, sizeof state->name, "%s", name);
    state->watts = figure(watts);
}

/* GPU: 10 W at rest, 110 at work, 60 for memory; CPU: 5, 25, 15.  No caps. */
static ls_topology *make_machine(void)
{
    ls_topology *t = calloc(1, sizeof *t);

    assert_non_null(t);
    t->n_units = 2;
    t->units[0] = (ls_unit){.kind = LS_UNIT_GPU, .name = "gpu0"};
    t->units[1] = (ls_unit){.kind = LS_UNIT_CPU, .name = "cpu0"};
    add_state(&t->units[0], "idle", 10);
    add_state(&t->units[0], "tensor", 110);
    add_state(&t->units[0], "memory", 60);
    add_state(&t->units[1], "idle", 5);
    add_state(&t->units[1], "busy", 25);
    add_state(&t->units[1], "memory", 15);
    return t;
}

static void set_cap(ls_topology *t, const char *name, double watts)
{
    ls_power_cap *cap = &t->system.power_caps[t->system.n_power_caps++];
    snprintf(cap->name, sizeof cap->name, "%s", name);
    cap->watts = figure(watts);
}

/* 1000 FLOP/s, HBM of 500 bytes/s, host memory of 100, a link of 50 each way. */
static ls_cost_model make_model(const ls_topology *machine)
{
    ls_cost_model model = {.peak_flops_per_s = 1000,
                           .in_place_bytes_per_s = 40,
                           .host_lane_bytes_per_s = 100,
                           .has_device = true,
                           .power = ls_power_model_make(machine, true)};

    for (int r = 0; r < LS_RESOURCE_COUNT; r++) model.bytes_per_s[r] = INFINITY;
    model.bytes_per_s[LS_RESOURCE_HBM] = 500;
    model.bytes_per_s[LS_RESOURCE_HOST] = 100;
    model.bytes_per_s[LS_RESOURCE_LINK_IN] = model.bytes_per_s[LS_RESOURCE_LINK_OUT] = 50;
    for (int r = 0; r < LS_RATE_COUNT; r++)
        model.rates[r] = (ls_rate_curve){.sizes = {1}, .flops_per_s = {1000}, .n = 1};
    return model;
}

/* ---- states -------------------------------------------------------------------------------- */

static void assert_unknown(const ls_topology *machine, bool has_gpu, const char *why)
{
    assert_string_equal(ls_power_model_make(machine, has_gpu).why_unknown, why);
}

static void test_unknown(void **state)
{
    ls_topology *machine = make_machine();

    (void)state;
    assert_unknown(machine, true, "");
    machine->units[0].n_power_states = 2;
    assert_unknown(machine, true, "gpu0: power state 'memory' is not known");
    assert_unknown(machine, false, ""); /* no GPU computes: its states are not wanted */
    machine->units[0].n_power_states = 3;
    machine->units[0].power_states[1].watts = figure(9);
    assert_unknown(machine, true, "gpu0: power state 'tensor' is less than 'idle'");
    machine->units[0].power_states[1].watts = figure(110);
    machine->units[1].power_states[1].watts.source = LS_SOURCE_UNKNOWN;
    assert_unknown(machine, false, "cpu0: power state 'busy' is not known");
    machine->units[1].power_states[1].watts = figure(25);
    machine->units[0].power_cap_watts = figure(10);
    assert_unknown(machine, true, "gpu0: power_cap_watts leaves nothing above power state 'idle'");
    machine->units[0].power_cap_watts.source = LS_SOURCE_UNKNOWN;
    set_cap(machine, "profile", 35);
    assert_unknown(machine, true,
                   "module: its power cap leaves the GPU nothing while the CPU is at work");
    machine->n_units = 1;
    assert_unknown(machine, true, "cpu: the unit is not known");
    free(machine);
}

/* Of a unit's states the more demanding counts, each by how much is asked of it. */
static void test_draw(void **state)
{
    ls_topology *machine = make_machine();
    const ls_power_model model = ls_power_model_make(machine, true);
    ls_power_load load = {.tensor = 0};
    ls_power_draw draw = ls_power_draw_of(&model, &load);

    (void)state;
    assert_near(draw.gpu_w, 10);
    assert_near(draw.cpu_w, 5);
    load = (ls_power_load){.tensor = 0.2, .device_memory = 0.5, .host_memory = 0.5};
    draw = ls_power_draw_of(&model, &load);
    assert_near(draw.gpu_w, 10 + 25);
    assert_near(draw.cpu_w, 5 + 5);
    load = (ls_power_load){.tensor = 1, .device_memory = 1, .host_memory = 1, .cpu_busy = true};
    draw = ls_power_draw_of(&model, &load);
    assert_near(draw.gpu_w, 110);
    assert_near(draw.cpu_w, 25);
    assert_near(draw.clock, 1);
    free(machine);
}

/* The CPU first; the module's own word before the profile's; the GPU's cap where it is tighter. */
static void test_caps(void **state)
{
    ls_topology *machine = make_machine();
    const ls_power_load load = {.tensor = 1, .device_memory = 1, .cpu_busy = true};

    (void)state;
    set_cap(machine, "Grace Power Socket 0", 1);
    set_cap(machine, "module", 75);
    set_cap(machine, "profile", 1000);
    ls_power_model model = ls_power_model_make(machine, true);
    ls_power_draw draw = ls_power_draw_of(&model, &load);
    assert_near(draw.cpu_w, 25);
    assert_near(draw.gpu_w, 50);
    assert_near(draw.clock, pow(40.0 / 100, 1 / 1.5));
    assert_near(draw.memory_rate, 40.0 / 50);
    machine->units[0].power_cap_watts = figure(40);
    model = ls_power_model_make(machine, true);
    draw = ls_power_draw_of(&model, &load);
    assert_near(draw.gpu_w, 40);
    assert_near(draw.clock, pow(30.0 / 100, 1 / 1.5));
    free(machine);
}

/* ---- a plan by hand ------------------------------------------------------------------------ */

typedef struct hand_plan {
    ls_plan plan;
    ls_plan_arena arenas[2];
    ls_step steps[2];
    ls_step_operand operands[2];
    ls_op_args args[2];
    int64_t waits[1];
} hand_plan;

/* A product of 4000 FLOP on the GPU, and after it an update of 200 bytes of host memory. */
static void make_plan(hand_plan *h)
{
    *h = (hand_plan){.arenas = {{.place = LS_PLACE_HBM}, {.place = LS_PLACE_HOST}}};
    h->plan = (ls_plan){.arenas = h->arenas,
                        .n_arenas = 2,
                        .steps = h->steps,
                        .n_steps = 2,
                        .operands = h->operands,
                        .n_operands = 2,
                        .args = h->args,
                        .waits = h->waits};
    h->plan.segment_steps[LS_SEGMENT_STEP] = 2;
    h->args[0].matmul = (ls_matmul_args){.M = 64, .N = 64, .K = 64};
    h->steps[0] = (ls_step){.kind = LS_CALL_OP,
                            .op = LS_OP_matmul,
                            .lane = LS_LANE_COMPUTE,
                            .n_operands = 1,
                            .flops = 4000,
                            .bytes = 500};
    h->steps[1] = (ls_step){.kind = LS_CALL_OP,
                            .op = LS_OP_adamw,
                            .lane = LS_LANE_HOST,
                            .args = 1,
                            .first_operand = 1,
                            .n_waits = 1,
                            .n_operands = 1,
                            .bytes = 200};
    h->operands[0] =
        (ls_step_operand){.span = {.arena = 0, .bytes = 500}, .access = LS_ACCESS_READ};
    h->operands[1] =
        (ls_step_operand){.span = {.arena = 1, .bytes = 200}, .access = LS_ACCESS_READ};
}

/* 4 s of arithmetic, during 2 of which the CPU updates what the step before made. */
static void test_energy_by_hand(void **state)
{
    ls_topology *machine = make_machine();
    ls_cost_model model = make_model(machine);
    ls_simulation s;
    hand_plan h;

    (void)state;
    make_plan(&h);
    assert_ok(ls_simulate(&h.plan, &model, NULL, NULL, &s));
    assert_near(s.first_s, 4 + 2);
    assert_near(s.step_s, 4);
    assert_near(s.gpu_j, 4 * 110);
    assert_near(s.cpu_j, 2 * 25 + 2 * 5);
    assert_near(s.watts_peak, 110 + 25);
    assert_near(s.capped_s, 0);

    set_cap(machine, "profile",
            75); /* of 100 W: 75 - 25 - 10 while the CPU works, then 75 - 5 - 10 */
    model = make_model(machine);
    assert_ok(ls_simulate(&h.plan, &model, NULL, NULL, &s));
    const double slow = pow(0.4, 1 / 1.5), slowed = pow(0.6, 1 / 1.5);
    assert_near(s.step_s, 2 + (4 - 2 * slow) / slowed);
    assert_near(s.lower_bound_s, 4 / slowed); /* as if the CPU were at rest all the time */
    assert_near(s.lane_alone_s[LS_LANE_COMPUTE], 4 / slowed);
    assert_near(s.lane_alone_s[LS_LANE_HOST], 2);
    assert_near(s.resource_s[LS_RESOURCE_HBM], 1); /* 50 W of 60: memory is not slowed */
    assert_near(s.gpu_j + s.cpu_j, 75 * s.step_s);
    assert_near(s.capped_s, s.step_s);
    assert_near(s.watts_peak, 75);

    h.steps[0].flops = 0; /* 4 s of bytes: of 50 W 45 - 25 - 10 while the CPU works, then 30 */
    h.operands[0].span.bytes = 2000;
    machine->system.power_caps[0].watts = figure(45);
    model = make_model(machine);
    assert_ok(ls_simulate(&h.plan, &model, NULL, NULL, &s));
    assert_near(s.step_s, 2 + (4 - 2 * 0.2) / 0.6);
    assert_near(s.lower_bound_s, 4 / 0.6);
    assert_near(s.lane_alone_s[LS_LANE_COMPUTE], 4 / 0.6);
    assert_near(s.resource_s[LS_RESOURCE_HBM], 4 / 0.6);

    machine->units[0].n_power_states = 0; /* nothing known: no energy, and no cap slows */
    model = make_model(machine);
    assert_ok(ls_simulate(&h.plan, &model, NULL, NULL, &s));
    assert_near(s.step_s, 4);
    assert_near(s.lower_bound_s, 4);
    assert_near(s.gpu_j + s.cpu_j, 0);
    free(machine);
}

/* ---- laws ---------------------------------------------------------------------------------- */

static ls_cost_model random_model(const ls_topology *machine, dice *d)
{
    ls_cost_model model = make_model(machine);

    for (int r = 0; r <= LS_RESOURCE_LINK_OUT; r++)
        model.bytes_per_s[r] *= exp((double)(below(d, 6001) - 3000) / 1000);
    return model;
}

static ls_simulation simulate_with(const ls_plan *plan, const ls_cost_model *model)
{
    ls_simulation s;

    assert_ok(ls_simulate(plan, model, NULL, NULL, &s));
    return s;
}

/* At least what resting would take, at most what everything at work would; never more than the cap;
 * and a cap costs time. */
static void check_laws(const ls_plan *plan, dice *d)
{
    ls_topology *machine = make_machine();
    ls_cost_model model = random_model(machine, d);
    const ls_simulation free_run = simulate_with(plan, &model);
    const double cap = 40 + (double)below(d, 95);
    const double eps = 1e-9;

    assert_true(free_run.gpu_j >= 10 * free_run.step_s * (1 - eps));
    assert_true(free_run.cpu_j >= 5 * free_run.step_s * (1 - eps));
    assert_true(free_run.gpu_j + free_run.cpu_j <=
                free_run.watts_peak * free_run.step_s * (1 + eps));
    assert_true(free_run.watts_peak <= 135 * (1 + eps));
    model.power.module_cap_w = cap;
    const ls_simulation capped = simulate_with(plan, &model);
    assert_true(capped.watts_peak <= cap * (1 + eps));
    assert_true(capped.gpu_j + capped.cpu_j <= cap * capped.step_s * (1 + eps));
    assert_true(capped.gpu_j >= 10 * capped.step_s * (1 - eps));
    assert_true(capped.lower_bound_s <= capped.step_s * (1 + eps));
    assert_true(capped.lower_bound_s >= free_run.lower_bound_s * (1 - eps));
    assert_true(capped.capped_s >= 0 && capped.capped_s <= capped.step_s * (1 + eps));
    if (free_run.watts_peak <= cap) assert_near(capped.step_s, free_run.step_s);
    /* Copies that are slowed give way to others: by a little it may be faster. */
    assert_true(capped.step_s >= 0.9 * free_run.step_s);
    free(machine);
}

static void test_laws(void **state)
{
    static const ls_place_mode modes[] = {LS_MODE_DIRECT, LS_MODE_STREAM, LS_MODE_RESIDENT};
    const ls_decoder_options options = grouped_options();
    dice d = {.seed = 20261201};

    (void)state;
    for (int m = 0; m < COUNT_OF(modes); m++) {
        const ls_placement placement = place_weights(modes[m], m == 1);
        ls_decoder decoder;
        ls_plan plan;
        build_placed_plan(&options, &placement, &decoder, &plan);
        for (int round = 0; round < 20; round++) check_laws(&plan, &d);
        ls_plan_free(&plan);
        ls_decoder_free(&decoder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown), cmocka_unit_test(test_draw),
        cmocka_unit_test(test_caps),    cmocka_unit_test(test_energy_by_hand),
        cmocka_unit_test(test_laws),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
