/*
 * test_power_nvml.c - NVML as drivers differ: which scopes answer, whose the energy counter is, how
 * often power looks; joules against the exact integral, labels against the script.  And a sensor
 * that hangs, under the real thread.
 */
#include "power_machine.h"

#include <fcntl.h>

static const waveform gpu_power = {WAVE_SQUARE, 110.0, 620.0, 9.0};
static const waveform module_power = {WAVE_SQUARE, 240.0, 790.0, 9.0};
static const waveform memory_power = {WAVE_RAMP, 25.0, 75.0, 4.0};

static void *library;
static fake_nvml_script *script;

/* A GH200 whose driver knows all scopes, with a counter of the whole module. */
static void make_gh200(void)
{
    make_machine();
    *script = (fake_nvml_script){
        .now_s = START_S,
        .n_gpus = 1,
        .power = {gpu_power, module_power, memory_power},
        .supports_average = {1, 1, 1},
        .supports_instant = {1, 1, 0},
        .supports_energy = {1, 0, 0},
        .counter_scope = FAKE_MODULE,
        .period_s = 0.1,
        .stamps = 1,
    };
}

static void run_gpu_until(double end_s)
{
    while (clock_s + 0.05 < end_s) {
        clock_s += 0.1;
        script->now_s = START_S + clock_s;
        ls_power_tick(power, virtual_ns(clock_s));
    }
}

static ls_power_sums run_minute(void)
{
    open_power(FAKE_NVML);
    run_gpu_until(2.0);
    enter_phase(PHASE_FORWARD, 2.0);
    run_gpu_until(60.0);
    return take_sums(60.0);
}

static void assert_rail(const ls_power_sums *sums, ls_rail rail, ls_method method,
                        const waveform *w)
{
    assert_int_equal(sums->method[rail], method);
    assert_near(sums->joules[rail], exact_joules(w, 2.0, 60.0), 0.01);
}

static void test_all_scopes(void **state)
{
    (void)state;
    make_gh200();
    const ls_power_sums sums = run_minute();
    assert_rail(&sums, LS_RAIL_GPU, LS_METHOD_INSTANT, &gpu_power);
    assert_rail(&sums, LS_RAIL_MODULE, LS_METHOD_COUNTER, &module_power); /* as its slope tells */
    assert_rail(&sums, LS_RAIL_GPU_MEMORY, LS_METHOD_AVERAGE, &memory_power);
    close_power();
}

/* On a card of its own the same field counts the GPU. */
static void test_counter_of_the_gpu(void **state)
{
    (void)state;
    make_gh200();
    script->counter_scope = FAKE_GPU;
    const ls_power_sums sums = run_minute();
    assert_rail(&sums, LS_RAIL_GPU, LS_METHOD_COUNTER, &gpu_power);
    assert_rail(&sums, LS_RAIL_MODULE, LS_METHOD_INSTANT, &module_power);
    close_power();
}

/* Some GH200 answer NOT_SUPPORTED for the GPU: its rail stays null, not the module's. */
static void test_gpu_scope_not_supported(void **state)
{
    (void)state;
    make_gh200();
    script->supports_average[FAKE_GPU] = script->supports_instant[FAKE_GPU] = 0;
    const ls_power_sums sums = run_minute();
    assert_true(isnan(sums.joules[LS_RAIL_GPU]));
    assert_rail(&sums, LS_RAIL_MODULE, LS_METHOD_COUNTER, &module_power);
    assert_non_null(strstr(ls_power_reason(power, LS_RAIL_GPU), "NOT_SUPPORTED"));
    close_power();
}

/* Nothing tells the two apart: the counter is nobody's. */
static void test_counter_that_cannot_be_told(void **state)
{
    (void)state;
    make_gh200();
    script->power[FAKE_MODULE] = gpu_power;
    const ls_power_sums sums = run_minute();
    assert_int_equal(sums.method[LS_RAIL_GPU], LS_METHOD_INSTANT);
    assert_int_equal(sums.method[LS_RAIL_MODULE], LS_METHOD_INSTANT);
    close_power();
}

/* A PCIe card without a module: the counter is the GPU's from the start. */
static void test_pcie_card(void **state)
{
    (void)state;
    make_gh200();
    script->supports_average[FAKE_MODULE] = script->supports_instant[FAKE_MODULE] = 0;
    script->counter_scope = FAKE_GPU;
    const ls_power_sums sums = run_minute();
    assert_rail(&sums, LS_RAIL_GPU, LS_METHOD_COUNTER, &gpu_power);
    assert_true(isnan(sums.coverage[LS_RAIL_MODULE]));
    close_power();
}

/* Only 1-second means, new every 100 ms or every second, with and without times of their own. */
static void test_averages(void **state)
{
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        make_gh200();
        memset(script->supports_instant, 0, sizeof script->supports_instant);
        memset(script->supports_energy, 0, sizeof script->supports_energy);
        script->power[FAKE_GPU] = (waveform){WAVE_RAMP, 100.0, 500.0, 20.0};
        script->period_s = variant % 2 == 0 ? 0.1 : 1.0;
        script->stamps = variant / 2;
        script->counter_scope = FAKE_MODULE;
        const ls_power_sums sums = run_minute();
        assert_rail(&sums, LS_RAIL_GPU, LS_METHOD_AVERAGE, &script->power[FAKE_GPU]);
        close_power();
    }
}

/* A mean of the last second is of half a second ago: without that shift a ramp's phases are off. */
static void check_shift(double period_s, double tolerance)
{
    const waveform w = {WAVE_RAMP, 0.0, 600.0, 2000.0}; /* 0.3 W more each second */

    make_gh200();
    script->period_s = period_s;
    script->stamps = period_s < 1.0;
    memset(script->supports_instant, 0, sizeof script->supports_instant);
    script->power[FAKE_GPU] = w;
    script->counter_scope = FAKE_MEMORY; /* of no use here */
    open_power(FAKE_NVML);
    run_gpu_until(2.0);
    enter_phase(PHASE_FORWARD, 2.0);
    run_gpu_until(42.0);
    enter_phase(PHASE_BACKWARD, 42.0);
    run_gpu_until(82.0);
    const ls_power_sums sums = take_sums(82.0);
    /* half a second is 0.15 W of 300 W, 5e-4: so much would be off without shift, and as much by
     * taking for samples what is only said again */
    assert_near(sums.phase_joules[LS_RAIL_GPU][PHASE_FORWARD], exact_joules(&w, 2.0, 42.0),
                tolerance);
    close_power();
}

static void test_windows_are_shifted(void **state)
{
    (void)state;
    check_shift(0.1, 5e-5);
    check_shift(1.0, 2e-4);
}

/* What was counted across a reset is unknown; before and after it is right. */
static void test_counter_reset(void **state)
{
    (void)state;
    make_gh200();
    script->supports_average[FAKE_MODULE] = script->supports_instant[FAKE_MODULE] = 0;
    script->counter_scope = FAKE_GPU;
    script->reset_s = START_S + 30.02;
    const ls_power_sums sums = run_minute();
    assert_rail(&sums, LS_RAIL_GPU, LS_METHOD_COUNTER, &gpu_power);
    assert_true(sums.coverage[LS_RAIL_GPU] < 1.0);
    close_power();
}

static void test_library_that_does_not_start(void **state)
{
    (void)state;
    make_gh200();
    script->broken = 1;
    open_power(FAKE_NVML);
    assert_false(ls_power_has_rail(power, LS_RAIL_GPU));
    assert_non_null(strstr(ls_power_reason(power, LS_RAIL_GPU), "does not start"));
    close_power();
}

/* Clocks, temperature and the reasons for lower clocks are recorded beside. */
static void test_states_and_limits(void **state)
{
    static ls_meters m;
    bool limit = false;
    int states = 0;

    (void)state;
    make_gh200();
    ls_meters_open(&(ls_meter_options){root, FAKE_NVML}, &m);
    for (int s = 0; s < m.n_sensors; s++)
        states +=
            strncmp(m.sensors[s].id, "nvml0.", 6) == 0 && m.sensors[s].kind == LS_SENSOR_STATE;
    assert_int_equal(states, 4);
    for (int f = 0; f < m.n_facts; f++)
        limit |= strcmp(m.facts[f].what, "nvml0.module.limit") == 0 &&
                 strcmp(m.facts[f].why, "1000.0 W now") == 0;
    assert_true(limit);
    ls_meters_close(&m);
}

/* Bytes over C2C: the mean since the look before, both ways of one pair of samples. */
static void test_c2c(void **state)
{
    static ls_meters m;
    ls_reading tx = {.ok = false}, rx = {.ok = false};

    (void)state;
    make_gh200();
    script->supports_gpm = 1;
    script->c2c[0] = (waveform){WAVE_RAMP, 1000.0, 9000.0, 10.0};
    script->c2c[1] = (waveform){WAVE_CONSTANT, 350000.0, 0.0, 0.0};
    script->now_s = 10.0;
    ls_meters_open(&(ls_meter_options){root, FAKE_NVML}, &m);
    const ls_sensor *out = find_sensor(&m, "nvml0.c2c_tx"), *in = find_sensor(&m, "nvml0.c2c_rx");
    assert_true(out != NULL && in != NULL && strcmp(out->unit, "KiB/s") == 0);
    assert_false(out->read(out, &tx)); /* one sample tells nothing */
    assert_false(in->read(in, &rx));
    script->now_s = 12.5; /* a quarter of the ramp */
    assert_true(out->read(out, &tx) && in->read(in, &rx));
    assert_int_equal(tx.raw, 2000 * 1024);
    assert_int_equal(rx.raw, INT64_C(350000) * 1024);
    script->now_s = 15.0;
    assert_true(out->read(out, &tx) && in->read(in, &rx));
    assert_int_equal(tx.raw, 4000 * 1024);
    ls_meters_close(&m);

    script->supports_gpm = 0; /* before Hopper */
    ls_meters_open(&(ls_meter_options){root, FAKE_NVML}, &m);
    assert_null(find_sensor(&m, "nvml0.c2c_tx"));
    bool said = false;
    for (int i = 0; i < m.n_missing; i++) said |= strcmp(m.missing[i].what, "nvml0.c2c_tx") == 0;
    assert_true(said);
    ls_meters_close(&m);
}

/* ---- the thread ---------------------------------------------------------------------------- */

#define PACKAGE "/sys/class/powercap/intel-rapl:0"

static void release(const char *path)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC); /* waits for the reader that hangs */
    assert_true(fd >= 0);
    close(fd);
}

/* A counter turns into a pipe that nobody writes: a reader of it sleeps for good.  Phases and sums
 * still return, and closing gives up on it. */
static void test_a_hanging_sensor_holds_nothing_up(void **state)
{
    char path[1024];
    ls_power_sums sums;
    double watts[LS_RAIL_COUNT];

    (void)state;
    make_machine();
    put_machine_file(root, PACKAGE "/name", "package-0");
    put_machine_file(root, PACKAGE "/energy_uj", "1000000");
    ls_power_options options = power_options("/nowhere/libnvidia-ml.so.1");
    options.by_hand = false;
    options.clock_ns = NULL;
    options.samples_hz = 200;
    assert_int_equal(ls_power_open(&options, &power), LS_OK);
    assert_true(ls_power_has_rail(power, LS_RAIL_CPU));

    snprintf(path, sizeof path, "%s" PACKAGE "/energy_uj", root);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0666), 0);
    cJSON *json = NULL;
    const char *hangs = NULL;
    while (hangs == NULL || strcmp(hangs, "rapl.package-0") != 0) {
        cJSON_Delete(json);
        assert_int_equal(ls_power_describe(power, true, &json), LS_OK);
        hangs = cJSON_GetStringValue(ls_json_find_path(json, "hangs"));
    }
    cJSON_Delete(json);
    for (int i = 0; i < 1000; i++) {
        ls_power_phase(power, i % N_PHASES, i, virtual_ns(i));
        ls_power_take(power, virtual_ns(i), &sums);
        ls_power_watts(power, watts);
    }
    assert_true(isnan(sums.joules[LS_RAIL_CPU]));
    close_power();
    release(path); /* it comes back, and cleans up behind itself */
}

/* One that hangs when it is looked for costs the run its power, nothing else. */
static void test_a_sensor_that_hangs_at_once(void **state)
{
    char path[1024];

    (void)state;
    make_machine();
    put_machine_file(root, PACKAGE "/name", "package-0");
    snprintf(path, sizeof path, "%s" PACKAGE "/energy_uj", root);
    assert_int_equal(mkfifo(path, 0666), 0);
    ls_power_options options = power_options("/nowhere/libnvidia-ml.so.1");
    options.by_hand = false;
    assert_int_equal(ls_power_open(&options, &power), LS_ERR_DEVICE);
    assert_non_null(strstr(ls_error(), "has not answered"));
    release(path);
    power = NULL;
}

static int load_fake(void **state)
{
    library = dlopen(FAKE_NVML, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return -1;
    void *symbol = dlsym(library, "fake_nvml");
    memcpy(&script, &symbol, sizeof script);
    return script != NULL ? make_machines(state) : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_scopes),
        cmocka_unit_test(test_counter_of_the_gpu),
        cmocka_unit_test(test_gpu_scope_not_supported),
        cmocka_unit_test(test_counter_that_cannot_be_told),
        cmocka_unit_test(test_pcie_card),
        cmocka_unit_test(test_averages),
        cmocka_unit_test(test_windows_are_shifted),
        cmocka_unit_test(test_counter_reset),
        cmocka_unit_test(test_library_that_does_not_start),
        cmocka_unit_test(test_states_and_limits),
        cmocka_unit_test(test_c2c),
        cmocka_unit_test(test_a_hanging_sensor_holds_nothing_up),
        cmocka_unit_test(test_a_sensor_that_hangs_at_once),
    };
    return cmocka_run_group_tests(tests, load_fake, remove_machines);
}
