/*
 * test_cost.c - the rates that a machine's figures give a plan's steps, and what is said where one
 * is missing.
 */
#include "cost_test.h"

static void test_model_of_machine(void **state)
{
    ls_topology *machine = make_rated_machine();
    ls_cost_model model = make_rated_model(machine);

    (void)state;
    assert_string_equal(model.why_unknown, "");
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_MATMUL], 7), 500);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_ATTENTION_FORWARD], 16), 100);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_ATTENTION_FORWARD], 1024), 100);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_ATTENTION_FORWARD], 2048), 150);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_ATTENTION_FORWARD], 1e9), 200);
    assert_near(model.bytes_per_s[LS_RESOURCE_HOST], 100);
    assert_near(model.bytes_per_s[LS_RESOURCE_LINK], 75);
    machine->places[1].read_bytes_per_s = figure(30);
    model = make_rated_model(
        machine); /* copies prove that memory gives more than a triad of its cores */
    assert_near(model.bytes_per_s[LS_RESOURCE_HOST], 75);
    assert_near(model.host_lane_bytes_per_s, 30);
    free(machine);
}

/* Products into gradients of weights have a curve of their own, or are as any; of each curve what
 * calls take besides is told by any of its points. */
static void test_gradients_of_weights(void **state)
{
    ls_topology *machine = make_rated_machine();
    ls_unit *gpu = &machine->units[0];
    ls_cost_model model = make_rated_model(machine);

    (void)state;
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_MATMUL_GRADIENT], 7), 500);
    assert_true(model.rates[LS_RATE_MATMUL_GRADIENT].call_s == 0);
    gpu->efficiencies[0].call_ns = figure(2e9);
    model = make_rated_model(machine);
    assert_near(model.rates[LS_RATE_MATMUL_GRADIENT].call_s, 2);
    add_efficiency(gpu, "matmul", "dw-64", 0.25);
    add_efficiency(gpu, "matmul", "dw-256", 0.75);
    gpu->efficiencies[gpu->n_efficiencies - 2].call_ns = figure(3e9);
    model = make_rated_model(machine);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_MATMUL_GRADIENT], 64), 250);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_MATMUL_GRADIENT], 128), 500);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_MATMUL_GRADIENT], 1000), 750);
    assert_near(model.rates[LS_RATE_MATMUL_GRADIENT].call_s, 3);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_MATMUL], 128), 500);
    assert_near(model.rates[LS_RATE_MATMUL].call_s, 2);
    free(machine);
}

/* Each figure that a plan needs: without it there is no time, and the text names it. */
static void test_unknown(void **state)
{
    ls_topology *machine = make_rated_machine();

    (void)state;
    machine->units[0].n_efficiencies = 1;
    assert_string_equal(make_rated_model(machine).why_unknown,
                        "gpu0: efficiency of attention_forward is not known");
    machine->units[0].bf16_flops_per_s.source = LS_SOURCE_UNKNOWN;
    assert_string_equal(make_rated_model(machine).why_unknown,
                        "gpu0: bf16_flops_per_s is not known");
    free(machine);
    machine = make_rated_machine();
    machine->places[0].read_bytes_per_s.source = LS_SOURCE_UNKNOWN;
    assert_string_equal(make_rated_model(machine).why_unknown,
                        "hbm: read_bytes_per_s is not known");
    machine->places[1].read_bytes_per_s.source = LS_SOURCE_UNKNOWN;
    assert_string_equal(make_rated_model(machine).why_unknown,
                        "host0: read_bytes_per_s is not known");
    free(machine);
    machine = make_rated_machine();
    machine->links[0].bytes_per_s.source = LS_SOURCE_UNKNOWN;
    assert_string_equal(make_rated_model(machine).why_unknown,
                        "host0: bytes_per_s of the link to the GPU is not known");
    machine->n_units = 0;
    assert_string_equal(make_rated_model(machine).why_unknown,
                        "gpu: its FLOP/s are not known; add it to the profile's units");
    free(machine);
}

/* The rate of a disk is wanted by plans that have a file alone. */
static void test_unknown_disk(void **state)
{
    ls_plan_arena arenas[] = {{.place = LS_PLACE_HOST, .bytes = 1}, {.place = LS_PLACE_NVME}};
    const ls_plan plan = {.arenas = arenas, .n_arenas = 2};
    ls_topology *machine = make_rated_machine();
    ls_cost_model model = make_rated_model(machine);

    (void)state;
    arenas[1].bytes = 1;
    ls_cost_model_fit(&model, &plan);
    assert_string_equal(model.why_unknown, "");
    machine->links[1].bytes_per_s.source = LS_SOURCE_UNKNOWN;
    model = make_rated_model(machine);
    arenas[1].bytes = 0;
    ls_cost_model_fit(&model, &plan);
    assert_string_equal(model.why_unknown, "");
    arenas[1].bytes = 1;
    ls_cost_model_fit(&model, &plan);
    assert_string_equal(
        model.why_unknown,
        "nvme: bytes_per_s of the link to host memory is not known; add {from: nvme, to: "
        "host, bytes_per_s: {value: N, source: spec}} to the profile's links");
    free(machine);
}

/* Nobody knows a rate of links between devices. */
static void test_unknown_comm(void **state)
{
    ls_step steps[] = {{.lane = LS_LANE_DISK_OUT}, {.lane = LS_LANE_COMPUTE}};
    const ls_plan plan = {.steps = steps, .n_steps = 2};
    ls_topology *machine = make_rated_machine();
    ls_cost_model model = make_rated_model(machine);

    (void)state;
    ls_cost_model_fit(&model, &plan);
    assert_string_equal(model.why_unknown, "");
    steps[1].lane = LS_LANE_COMM;
    ls_cost_model_fit(&model, &plan);
    assert_string_equal(model.why_unknown, "comm: profiles have no rate of a link between devices");
    free(machine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_of_machine), cmocka_unit_test(test_gradients_of_weights),
        cmocka_unit_test(test_unknown),          cmocka_unit_test(test_unknown_disk),
        cmocka_unit_test(test_unknown_comm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
