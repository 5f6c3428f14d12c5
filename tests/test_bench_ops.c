/*
 * test_bench_ops.c - longspan bench ops below the program: every shape runs, and what was measured
 * becomes a table, a document, and the rates by which plans are timed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_ops.h"
#include "cost.h"
#include "json.h"

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != LS_OK) fail_msg("%s: %s", #call, ls_error());                                \
    } while (0)

static void assert_near(double value, double expected)
{
    if (fabs(value - expected) > 1e-3 * expected) fail_msg("%.9g, not %.9g", value, expected);
}

/* Shapes so small that each call is over at once. */
static void test_measured(void **state)
{
    const ls_bench_ops_options options = {.repetitions = 1, .rows_max = 32};
    ls_bench_ops bench;
    int of_op[LS_OP_COUNT] = {0};

    (void)state;
    assert_ok(ls_bench_ops_measure(&options, &bench));
    assert_true(bench.n_rows > 0 && bench.threads >= 1);
    for (int i = 0; i < bench.n_rows; i++) {
        const ls_bench_op *row = &bench.rows[i];
        assert_true(row->seconds.median > 0 && row->bytes > 0);
        of_op[row->op]++;
    }
    assert_int_equal(of_op[LS_OP_matmul], 2 * 4 * 3 + 2 * 3); /* dtypes, widths, forms; on few */
    assert_int_equal(of_op[LS_OP_attention_forward], 2 * 3);
    assert_int_equal(of_op[LS_OP_attention_backward], 2 * 3);
    assert_int_equal(of_op[LS_OP_rmsnorm_forward], 2 + 1);
    assert_int_equal(of_op[LS_OP_adamw], 2 + 1);
    /* 32 x 32 x 32; one block of 32 rows of 4 heads sees its triangle. */
    assert_true(bench.rows[0].flops == 2.0 * 32 * 32 * 32);
    assert_true(!bench.rows[1].is_gradient && bench.rows[2].is_gradient);
    assert_true(bench.rows[12].flops == 4.0 * 4 * 64 * (32 * 33 / 2));
    assert_string_equal(bench.rows[12].shape, "32 of 32");
    /* A quarter of the rows, looked up by the size of all. */
    const ls_bench_op *few = &bench.rows[bench.n_rows - 13]; /* before twelve ops on rows */
    assert_true(few->few && few->op == LS_OP_matmul && few->size == 32);
    assert_string_equal(few->shape, "32x32x8 dw");
    assert_string_equal(few[1].shape, "8x32");
}

/* Operands move on from call to call, and begin a turn as they were filled: the sum that the last
 * call has left is where that call was, and nowhere else. */
static void test_operands_move(void **state)
{
    enum { CALLS = 21, PLACES = 16, N = 1024 };
    const ls_op_args small = {.add = {.n = N, .dtype = LS_DTYPE_F32}};
    const ls_op_args large = {.add = {.n = PLACES * N, .dtype = LS_DTYPE_F32}};
    ls_bench_calls *calls = calloc(1, sizeof *calls);
    const float *sums;
    ls_spread seconds[2];

    (void)state;
    assert_non_null(calls);
    calls->ops = &ls_ops_cpu;
    ls_bench_calls_add(calls, LS_OP_add, &large, PLACES * N * sizeof(float), 1);
    ls_bench_calls_add(calls, LS_OP_add, &small, N * sizeof(float), 1);
    assert_ok(ls_bench_calls_open(calls, NULL));
    assert_true(calls->calls[0].n_places == 1 && calls->calls[1].n_places == PLACES);
    assert_ok(ls_bench_calls_time(calls, CALLS - 1, 0, seconds)); /* and one to warm up */
    sums = (const float *)(const void *)(calls->base + calls->operand_bytes_max);
    for (int place = 0; place < PLACES; place++) {
        const float filled = sums[PLACES * N]; /* an operand that is read */
        const bool is_last = place == (CALLS - 1) % PLACES;
        assert_true(filled > 0.01f && filled < 0.02f);
        assert_true(sums[place * N] == (is_last ? 2 * filled : filled));
    }
    ls_bench_calls_close(calls);
    free(calls);
}

static ls_bench_op row(ls_op op, double size, ls_dtype dtype, double flops, double seconds)
{
    return (ls_bench_op){.op = op,
                         .size = size,
                         .dtype = dtype,
                         .flops = flops,
                         .bytes = 10,
                         .shape = "a shape",
                         .kernel = "plain",
                         .seconds = {seconds, seconds, seconds}};
}

/* Figures that were not measured, to be followed. */
static void make_known(ls_bench_ops *bench)
{
    const ls_bench_op rows[] = {
        row(LS_OP_matmul, 64, LS_DTYPE_BF16, 100, 1), /* with the next: 400 in 5 s */
        row(LS_OP_matmul, 64, LS_DTYPE_BF16, 300, 4),
        row(LS_OP_matmul, 512, LS_DTYPE_BF16, 400, 2), /* the best: 200 */
        row(LS_OP_matmul, 512, LS_DTYPE_F32, 300, 1),
        row(LS_OP_attention_forward, 2048, LS_DTYPE_BF16, 100, 1),
        row(LS_OP_attention_backward, 2048, LS_DTYPE_BF16, 50, 1),
        row(LS_OP_swiglu_forward, 0, LS_DTYPE_BF16, 0, 2),
    };

    *bench = (ls_bench_ops){.ops = &ls_ops_cpu, .repetitions = 3, .threads = 2, .n_rows = 7};
    memcpy(bench->rows, rows, sizeof rows);
}

static void test_profile(void **state)
{
    ls_topology *machine = calloc(1, sizeof *machine);
    ls_bench_ops bench;

    (void)state;
    assert_non_null(machine);
    make_known(&bench);
    machine->n_units = machine->n_places = 1;
    machine->units[0] = (ls_unit){.kind = LS_UNIT_CPU, .name = "cpu0"};
    machine->places[0] = (ls_place){
        .kind = LS_PLACE_HOST, .name = "host0", .read_bytes_per_s = ls_discovered(1e9, "test")};
    ls_bench_ops_fill(&bench, &machine->units[0]);
    assert_near(machine->units[0].bf16_flops_per_s.value, 200);
    assert_near(machine->units[0].fp32_flops_per_s.value, 300);
    assert_int_equal(machine->units[0].bf16_flops_per_s.source, LS_SOURCE_MEASURED);
    assert_int_equal(machine->units[0].n_efficiencies, 5); /* two of a shape are one */
    const ls_cost_model model = ls_cost_model_make(machine, false, LS_DTYPE_BF16);
    assert_string_equal(model.why_unknown, "");
    assert_near(model.op_bytes_per_s[LS_OP_swiglu_forward], 5); /* 10 bytes in 2 s */
    assert_near(model.op_bytes_per_s[LS_OP_matmul], 0);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_MATMUL], 64), 80);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_MATMUL], 512), 200);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_ATTENTION_FORWARD], 2048), 100);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_ATTENTION_BACKWARD], 2048), 50);
    free(machine);
}

/* Gradients of weights: a shape of their own in the profile. */
static void test_gradients(void **state)
{
    ls_unit unit = {.kind = LS_UNIT_CPU};
    ls_bench_ops bench;

    (void)state;
    make_known(&bench);
    bench.rows[1].is_gradient = true;
    ls_bench_ops_fill(&bench, &unit);
    assert_int_equal(unit.n_efficiencies, 6);
    assert_string_equal(unit.efficiencies[0].shape, "64");
    assert_near(unit.efficiencies[0].fraction.value, 100 / 200.0);
    assert_string_equal(unit.efficiencies[1].shape, "dw-64");
    assert_near(unit.efficiencies[1].fraction.value, 300 / 4.0 / 200);
}

/* On few rows and on many a call of an op takes 2 s besides its work, whatever the size. */
static void test_call_seconds(void **state)
{
    const ls_bench_op rows[] = {
        row(LS_OP_matmul, 64, LS_DTYPE_BF16, 400, 2 + 4),
        row(LS_OP_matmul, 64, LS_DTYPE_BF16, 400, 2 + 4),
        row(LS_OP_matmul, 256, LS_DTYPE_BF16, 2000, 2 + 10),
        row(LS_OP_matmul, 512, LS_DTYPE_BF16, 1400, 2 + 5), /* 280, and 200 with what it takes */
        row(LS_OP_matmul, 64, LS_DTYPE_BF16, 100, 2 + 1),
        row(LS_OP_matmul, 64, LS_DTYPE_BF16, 100, 2 + 1),
        row(LS_OP_matmul, 256, LS_DTYPE_BF16, 400, 9), /* a larger size says less */
        row(LS_OP_attention_forward, 2048, LS_DTYPE_BF16, 100, 1),
        row(LS_OP_attention_backward, 2048, LS_DTYPE_BF16, 50, 1),
        row(LS_OP_swiglu_forward, 0, LS_DTYPE_BF16, 0, 3 + 1),
        row(LS_OP_swiglu_forward, 0, LS_DTYPE_BF16, 0, 3 + 0.5),
        row(LS_OP_add, 0, LS_DTYPE_BF16, 0, 1), /* less work took longer: nothing is known */
        row(LS_OP_add, 0, LS_DTYPE_BF16, 0, 4),
    };
    ls_topology *machine = calloc(1, sizeof *machine);
    ls_bench_ops bench = {.ops = &ls_ops_cpu, .n_rows = sizeof rows / sizeof rows[0]};

    (void)state;
    assert_non_null(machine);
    memcpy(bench.rows, rows, sizeof rows);
    bench.rows[4].few = bench.rows[5].few = bench.rows[6].few = true;
    bench.rows[10].few = bench.rows[12].few = true;
    bench.rows[10].bytes = bench.rows[12].bytes = 5;
    snprintf(bench.rows[10].shape, sizeof bench.rows[10].shape, "fewer");
    machine->n_units = machine->n_places = 1;
    machine->units[0] = (ls_unit){.kind = LS_UNIT_CPU, .name = "cpu0"};
    machine->places[0] = (ls_place){
        .kind = LS_PLACE_HOST, .name = "host0", .read_bytes_per_s = ls_discovered(1e9, "test")};
    ls_bench_ops_fill(&bench, &machine->units[0]);
    assert_int_equal(machine->units[0].n_efficiencies, 7);
    assert_near(machine->units[0].bf16_flops_per_s.value, 280);
    const ls_cost_model model = ls_cost_model_make(machine, false, LS_DTYPE_BF16);
    assert_near(model.rates[LS_RATE_MATMUL].call_s, 2);
    assert_near(model.op_call_s[LS_OP_swiglu_forward], 3);
    assert_true(model.rates[LS_RATE_ATTENTION_FORWARD].call_s == 0 &&
                model.op_call_s[LS_OP_add] == 0);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_MATMUL], 64), 100);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_MATMUL], 256), 2400 / 17.0);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_MATMUL], 512), 280);
    assert_near(model.op_bytes_per_s[LS_OP_swiglu_forward], 10);
    assert_near(model.op_bytes_per_s[LS_OP_add], 3);
    free(machine);
}

/* An op with several kernels: a rate of each, by name; plans take those that are listed first. */
static void test_several_kernels(void **state)
{
    ls_topology *machine = calloc(1, sizeof *machine);
    ls_bench_ops bench;
    ls_bench_op ours = row(LS_OP_attention_forward, 2048, LS_DTYPE_BF16, 100, 2);
    const ls_unit *unit;

    (void)state;
    assert_non_null(machine);
    unit = &machine->units[0];
    make_known(&bench);
    bench.rows[4].kernel = "cudnn";
    ours.kernel = "mma";
    bench.rows[bench.n_rows++] = ours;
    machine->n_units = machine->n_places = 1;
    machine->units[0] = (ls_unit){.kind = LS_UNIT_CPU, .name = "cpu0"};
    machine->places[0] = (ls_place){
        .kind = LS_PLACE_HOST, .name = "host0", .read_bytes_per_s = ls_discovered(1e9, "test")};
    ls_bench_ops_fill(&bench, &machine->units[0]);
    assert_int_equal(unit->n_efficiencies, 6);
    assert_string_equal(unit->efficiencies[0].kernel, "");
    assert_string_equal(unit->efficiencies[2].kernel, "cudnn");
    assert_near(unit->efficiencies[2].fraction.value, 100.0 / 200.0);
    assert_string_equal(unit->efficiencies[3].kernel, "");
    assert_string_equal(unit->efficiencies[5].kernel, "mma");
    assert_near(unit->efficiencies[5].fraction.value, 50.0 / 200.0);
    const ls_cost_model model = ls_cost_model_make(machine, false, LS_DTYPE_BF16);
    assert_near(ls_rate_curve_at(&model.rates[LS_RATE_ATTENTION_FORWARD], 2048), 100);
    free(machine);
}

static void test_document(void **state)
{
    cJSON *json = cJSON_CreateObject();
    ls_bench_ops bench;

    (void)state;
    make_known(&bench);
    assert_ok(ls_bench_ops_to_json(&bench, json));
    const cJSON *ops = cJSON_GetObjectItem(json, "ops");
    assert_int_equal(cJSON_GetArraySize(ops), 7);
    const cJSON *first = cJSON_GetArrayItem(ops, 1), *last = cJSON_GetArrayItem(ops, 6);
    assert_string_equal(cJSON_GetObjectItem(first, "op")->valuestring, "matmul");
    assert_string_equal(cJSON_GetObjectItem(first, "dtype")->valuestring, "BF16");
    assert_near(cJSON_GetObjectItem(first, "seconds_median")->valuedouble, 4);
    assert_near(cJSON_GetObjectItem(first, "flops_per_s")->valuedouble, 75);
    assert_near(cJSON_GetObjectItem(first, "bytes_per_s")->valuedouble, 2.5);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(last, "flops_per_s")));
    cJSON_Delete(json);
}

static void test_table(void **state)
{
    ls_bench_ops bench;
    char text[4096];
    FILE *file = fmemopen(text, sizeof text, "w");

    (void)state;
    make_known(&bench);
    assert_non_null(file);
    ls_bench_ops_print(&bench, file);
    fclose(file);
    assert_non_null(strstr(text, "medians of 3 on 2 threads"));
    assert_non_null(strstr(text, "attention_backward"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measured),  cmocka_unit_test(test_operands_move),
        cmocka_unit_test(test_profile),   cmocka_unit_test(test_call_seconds),
        cmocka_unit_test(test_gradients), cmocka_unit_test(test_several_kernels),
        cmocka_unit_test(test_document),  cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
