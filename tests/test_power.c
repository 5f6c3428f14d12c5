/*
 * test_power.c - joules against the exact integral of what simulated meters drew: RAPL,
 * every way in which meters lie, and what is refused rather than guessed.
 */
#include "power_machine.h"

#include <fcntl.h>

static const waveform square = {WAVE_SQUARE, 90.0, 310.0, 7.0};
static const waveform ramp = {WAVE_RAMP, 60.0, 240.0, 5.0};
static const waveform dram_power = {WAVE_SQUARE, 8.0, 30.0, 3.0};

/* ---- RAPL ---------------------------------------------------------------------------------- */

#define ZONE "/sys/class/powercap/intel-rapl:"

static void put_zone(const char *zone, const char *name)
{
    char path[256];

    snprintf(path, sizeof path, ZONE "%s/name", zone);
    put_machine_file(root, path, name);
    snprintf(path, sizeof path, ZONE "%s/max_energy_range_uj", zone);
    put_machine_file(root, path, "3000000000"); /* 3 kJ: it wraps within a test */
}

static void add_rapl(const char *path, waveform w)
{
    add_meter(METER_RAPL, path, w)->wrap_j = 3000.0;
}

/* Two packages with cores and memory, a psys above them, and the same again by another driver. */
static void make_intel(void)
{
    make_machine();
    put_zone("0", "package-1"); /* the number of a zone is not that of a package */
    put_zone("0:0", "core");
    put_zone("0:1", "dram");
    put_zone("1", "package-0");
    put_zone("2", "psys");
    put_machine_file(root, "/sys/class/powercap/intel-rapl-mmio:0/name", "package-0");
    put_machine_file(root, "/sys/class/powercap/intel-rapl-mmio:0/energy_uj", "5");
    add_rapl(ZONE "0/energy_uj", square);
    add_rapl(ZONE "0:0/energy_uj", square);
    add_rapl(ZONE "0:1/energy_uj", dram_power);
    add_rapl(ZONE "1/energy_uj", ramp);
    add_rapl(ZONE "2/energy_uj", square);
}

static void test_rapl_is_labelled(void **state)
{
    static ls_meters m;

    (void)state;
    make_intel();
    open_meters(&m, NO_NVML);
    const ls_sensor *package = find_sensor(&m, "rapl.package-1");
    assert_non_null(package);
    assert_true(package->rail == LS_RAIL_CPU && package->domain == 1);
    assert_non_null(strstr(package->source, "intel-rapl:0/"));
    assert_true(package->wrap_joules == 3000.0);
    const ls_sensor *dram = find_sensor(&m, "rapl.package-1.dram");
    assert_non_null(dram);
    assert_true(dram->rail == LS_RAIL_DRAM && dram->kind == LS_SENSOR_ENERGY);
    assert_non_null(find_sensor(&m, "rapl.package-0"));
    assert_null(find_sensor(&m, "rapl.package-0.dram"));
    assert_non_null(strstr(why_missing(&m, "rapl.psys"), "holds the packages"));
    assert_true(ls_meters_have_power(&m));
    ls_meters_close(&m);
}

static const cJSON *member(const cJSON *json, const char *path)
{
    const cJSON *item = ls_json_find_path(json, path);
    if (item == NULL) fail_msg("no %s", path);
    return item;
}

/* A sum over the sensors of a count that run.json has of each. */
static int count_all(const char *key)
{
    const cJSON *sensor;
    cJSON *json = NULL;
    int n = 0;

    assert_int_equal(ls_power_describe(power, false, &json), LS_OK);
    cJSON_ArrayForEach(sensor, member(json, "sensors"))
    {
        const cJSON *count = cJSON_GetObjectItemCaseSensitive(sensor, key);
        if (count != NULL) n += (int)count->valuedouble;
    }
    cJSON_Delete(json);
    return n;
}

/* Both packages add up; the cores, psys and the mmio copy do not count again; counters wrap. */
static void test_rapl_joules(void **state)
{
    (void)state;
    make_intel();
    open_power(NO_NVML);
    enter_phase(PHASE_FORWARD, 0.05);
    run_until(60.0);
    const ls_power_sums sums = take_sums(60.0);
    assert_near(sums.joules[LS_RAIL_CPU],
                exact_joules(&square, 0.05, 60.0) + exact_joules(&ramp, 0.05, 60.0), 0.01);
    assert_near(sums.joules[LS_RAIL_DRAM], exact_joules(&dram_power, 0.05, 60.0), 0.01);
    assert_int_equal(sums.method[LS_RAIL_CPU], LS_METHOD_COUNTER);
    assert_true(isnan(sums.joules[LS_RAIL_GPU]) && isnan(sums.coverage[LS_RAIL_GPU]));
    assert_true(count_all("wraps") >= 6); /* 3 kJ at 350 W, for a minute, and memory's */
    assert_int_equal(count_all("resets") + count_all("gaps") + count_all("failed"), 0);
    close_power();
}

/* Phases of 12 s whose power differs by a factor of three, changing between two questions. */
static void test_phases_get_what_they_drew(void **state)
{
    const waveform w = {WAVE_SQUARE, 100.0, 300.0, 24.06};
    double exact[2] = {0.0, 0.0};

    (void)state;
    make_machine();
    put_zone("0", "package-0");
    add_rapl(ZONE "0/energy_uj", w);
    open_power(NO_NVML);
    const double first = 24.06 * ceil(START_S / 24.06) - START_S; /* power is high from here */
    run_until(first);
    for (int i = 0; i < 8; i++) {
        const double at = first + 12.03 * i;
        run_until(at);
        enter_phase(i % 2 == 0 ? PHASE_FORWARD : PHASE_BACKWARD, at);
        exact[i % 2] += exact_joules(&w, at, at + 12.03);
    }
    run_until(first + 8 * 12.03);
    const ls_power_sums sums = take_sums(first + 8 * 12.03);
    assert_near(sums.phase_joules[LS_RAIL_CPU][PHASE_FORWARD], exact[0], 0.01);
    assert_near(sums.phase_joules[LS_RAIL_CPU][PHASE_BACKWARD], exact[1], 0.01);
    assert_near(sums.phase_seconds[PHASE_BACKWARD], 4 * 12.03, 1e-6);
    assert_near(sums.phase_joules[LS_RAIL_CPU][0] + sums.phase_joules[LS_RAIL_CPU][1],
                sums.joules[LS_RAIL_CPU], 1e-9);
    assert_true(isnan(sums.phase_joules[LS_RAIL_CPU][PHASE_UPDATE]));
    close_power();
}

/* Steps that end between two questions: each is right, and all of them are the whole. */
static void test_steps_add_up(void **state)
{
    double all = 0.0, at = 1.0;

    (void)state;
    make_intel();
    open_power(NO_NVML);
    run_until(1.0);
    enter_phase(PHASE_FORWARD, 1.0);
    for (int step = 0; step < 20; step++) {
        const double from = at;
        at += 1.37;
        run_until(at);
        const ls_power_sums sums = take_sums(at);
        assert_near(sums.joules[LS_RAIL_DRAM], exact_joules(&dram_power, from, at), 0.15);
        assert_near(sums.seconds, 1.37, 1e-6);
        all += sums.joules[LS_RAIL_DRAM];
    }
    assert_near(all, exact_joules(&dram_power, 1.0, at), 0.01);
    close_power();
}

/* Two hundred milliseconds of ten samples a second are not to be told. */
static void test_short_is_refused(void **state)
{
    (void)state;
    make_intel();
    open_power(NO_NVML);
    enter_phase(PHASE_FORWARD, 0.0);
    run_until(5.0);
    take_sums(5.0);
    run_until(5.2);
    ls_power_sums sums = take_sums(5.2);
    assert_true(isnan(sums.joules[LS_RAIL_CPU]));
    assert_true(sums.coverage[LS_RAIL_CPU] > 0.95);
    for (int i = 0; i < 20; i++) { /* long together, but each visit is short */
        enter_phase(i % 2, clock_s);
        run_until(clock_s + 0.2);
    }
    sums = take_sums(clock_s);
    assert_true(isfinite(sums.joules[LS_RAIL_CPU]));
    assert_true(isnan(sums.phase_joules[LS_RAIL_CPU][PHASE_BACKWARD]));
    close_power();
}

/* Lanes rest for microseconds between commands: no phase ends by that, and no energy is lost. */
static void test_pauses_are_no_phases(void **state)
{
    static ls_phases p = {.idle = PHASE_IDLE};
    uint64_t ns[LS_PHASES_MAX], at = virtual_ns(0.0);
    ls_phase_sums sums = {{0.0}, {0}};

    (void)state;
    for (int i = 0; i < 3000; i++) { /* the first half forward: 20 us of work, 80 us of nothing */
        ls_phases_change(&p, i < 1500 ? PHASE_FORWARD : PHASE_BACKWARD, at);
        ls_phases_change(&p, PHASE_IDLE, at + 20000);
        at += 100000;
    }
    ls_phases_change(&p, PHASE_UPDATE, at);
    ls_phases_change(&p, PHASE_FORWARD, at + 1000000); /* short, but not nothing */
    ls_phases_change(&p, PHASE_UPDATE, at + 2000000);  /* an interruption of the update is */
    ls_phases_change(&p, PHASE_IDLE, at + 5000000);
    ls_phases_times(&p, at + 10000000, ns);
    assert_int_equal(ns[PHASE_FORWARD], 150000000 - 80000); /* a pause is what comes behind */
    assert_int_equal(ns[PHASE_BACKWARD], 150000000);
    assert_int_equal(ns[PHASE_UPDATE], 5000000 + 80000);
    assert_int_equal(ns[PHASE_IDLE], 5000000);
    assert_int_equal(p.spans[PHASE_FORWARD], 1);
    assert_int_equal(p.spans[PHASE_IDLE], 1);
    ls_phases_share(&p, &(ls_energy_piece){virtual_ns(0.0), at + 10000000, 100.0, 100.0}, &sums);
    assert_near(sums.joules[PHASE_BACKWARD], 15.0, 1e-9);
    assert_int_equal(sums.covered_ns[PHASE_UPDATE], 5000000 + 80000);
}

/* Energy becomes known late: what began meanwhile has no part in it. */
static void test_late_energy(void **state)
{
    static ls_phases p = {.idle = PHASE_IDLE};
    ls_phase_sums sums = {{0.0}, {0}};

    (void)state;
    ls_phases_change(&p, PHASE_FORWARD, virtual_ns(0.0));
    ls_phases_change(&p, PHASE_BACKWARD, virtual_ns(10.0));
    ls_phases_change(&p, PHASE_UPDATE, virtual_ns(12.0));
    ls_phases_share(&p, &(ls_energy_piece){virtual_ns(8.0), virtual_ns(11.0), 10.0, 10.0}, &sums);
    assert_int_equal(sums.covered_ns[PHASE_FORWARD], 2000000000);
    assert_int_equal(sums.covered_ns[PHASE_BACKWARD], 1000000000);
    assert_int_equal(sums.covered_ns[PHASE_UPDATE], 0);
    assert_near(sums.joules[PHASE_BACKWARD], 10.0, 1e-9);
}

/* More changes than are remembered: what fell out is nobody's, the rest is right. */
static void test_the_history_is_bounded(void **state)
{
    static ls_phases p = {.idle = PHASE_IDLE};
    ls_phase_sums sums = {{0.0}, {0}};
    const int n = 3 * LS_PHASE_CHANGES;

    (void)state;
    for (int i = 0; i < n; i++) ls_phases_change(&p, i % 2, virtual_ns(0.01 * i));
    ls_phases_share(&p, &(ls_energy_piece){virtual_ns(0.0), virtual_ns(0.01 * n), 50.0, 50.0},
                    &sums);
    assert_near(sums.joules[0] + sums.joules[1], 50.0 * 0.01 * LS_PHASE_CHANGES, 1e-6);
}

/* Sums are taken within a phase that is then found to have been nothing. */
static void test_a_phase_that_is_taken_back(void **state)
{
    (void)state;
    make_intel();
    open_power(NO_NVML);
    run_until(1.0);
    enter_phase(PHASE_FORWARD, 1.0);
    run_until(3.0);
    enter_phase(PHASE_UPDATE, 3.0);
    take_sums(3.001);
    enter_phase(PHASE_FORWARD, 3.0015);
    run_until(9.0);
    const ls_power_sums sums = take_sums(9.0);
    assert_true(sums.phase_seconds[PHASE_UPDATE] == 0.0);
    assert_near(sums.phase_seconds[PHASE_FORWARD], 6.0, 1e-3);
    assert_near(sums.joules[LS_RAIL_DRAM], exact_joules(&dram_power, 3.0, 9.0), 0.02);
    close_power();
}

static void test_permission_denied_is_said(void **state)
{
    static ls_meters m;

    (void)state;
    make_intel();
    set_time(0.0);
    char path[1024];
    for (int i = 0; i < meters.n; i++) {
        snprintf(path, sizeof path, "%s%s", root, meters.of[i].path);
        assert_int_equal(chmod(path, 0400), 0);
    }
    const bool is_root = geteuid() == 0;
    if (is_root) assert_int_equal(seteuid(65534), 0);
    if (!is_root) assert_int_equal(chmod(path, 0), 0);
    ls_meters_open(&(ls_meter_options){root, NO_NVML}, &m);
    if (is_root) {
        assert_int_equal(seteuid(0), 0);
        assert_false(ls_meters_have_power(&m));
        assert_non_null(strstr(why_missing(&m, "rapl.package-0"), "permission denied"));
        assert_non_null(strstr(why_missing(&m, "rapl.package-0"), "chmod a+r"));
    }
    ls_meters_close(&m);
}

/* ---- meters that fail ---------------------------------------------------------------------- */

/* A meter turns bad in the middle of the run: what it then says is no energy. */
static void check_failing(int failing_state, bool recovers)
{
    make_machine();
    add_socket(0, "new");
    open_power(NO_NVML);
    run_until(2.0);
    enter_phase(PHASE_FORWARD, 2.0);
    take_sums(2.0);
    meters.of[1].state = (unsigned)failing_state;
    run_until(32.0);
    ls_power_sums sums = take_sums(32.0);
    assert_true(isnan(sums.joules[LS_RAIL_GRACE]));
    assert_true(sums.coverage[LS_RAIL_GRACE] < 0.5);
    assert_true(isfinite(sums.joules[LS_RAIL_MODULE])); /* the others go on */
    if (recovers) {
        meters.of[1].state = METER_WORKS;
        run_until(33.0);
        take_sums(33.0);
        run_until(53.0);
        sums = take_sums(53.0);
        assert_near(sums.joules[LS_RAIL_GRACE], exact_joules(&grace_power, 33.0, 53.0), 0.01);
    }
    close_power();
}

static void test_vanishing(void **state)
{
    (void)state;
    check_failing(METER_GONE, true);
}

static void test_garbage(void **state)
{
    (void)state;
    check_failing(METER_GARBAGE, true);
}

static void test_frozen(void **state)
{
    (void)state;
    check_failing(METER_FROZEN, true);
}

/* A frozen counter is not one that says that nothing was drawn. */
static void test_frozen_counter(void **state)
{
    (void)state;
    make_intel();
    open_power(NO_NVML);
    enter_phase(PHASE_FORWARD, 0.0);
    run_until(2.0);
    take_sums(2.0);
    meters.of[0].state = METER_FROZEN;
    run_until(40.0);
    const ls_power_sums sums = take_sums(40.0);
    assert_true(isnan(sums.joules[LS_RAIL_CPU])); /* one package alone is not the rail */
    assert_true(isfinite(sums.joules[LS_RAIL_DRAM]));
    close_power();
}

/* ---- what run.json says -------------------------------------------------------------------- */

/* Readings in twenty seconds of which each slow ones in a row come every two seconds; 0: none. */
static int count_readings(int slow)
{
    make_intel();
    open_power(NO_NVML);
    for (int tick = 0; tick < 200; tick++) {
        clock_takes_s = tick % 20 < slow ? 0.06 : 0.0; /* more than half of what there is */
        run_until(clock_s + 0.1);
    }
    clock_takes_s = clock_taken_s = 0.0;
    const int n = count_all("readings");
    close_power();
    return n;
}

/* A sensor that is slow each time is asked less often; who was kept waiting for the processor once
 * or twice is not. */
static void test_slow_sensors_rest(void **state)
{
    const int all = count_readings(0);

    (void)state;
    assert_true(all > 0);
    assert_int_equal(count_readings(1), all);
    assert_int_equal(count_readings(2), all);
    assert_true(count_readings(20) < all / 5);
}

static void test_description(void **state)
{
    cJSON *json = NULL;

    (void)state;
    make_machine();
    add_socket(0, "old");
    open_power(NO_NVML);
    enter_phase(PHASE_FORWARD, 0.0);
    run_until(20.0);
    assert_int_equal(ls_power_describe(power, false, &json), LS_OK);
    const cJSON *sensor = cJSON_GetArrayItem(member(json, "sensors"), 0);
    assert_string_equal(member(sensor, "id")->valuestring, "grace.module-0");
    assert_string_equal(member(sensor, "rail")->valuestring, "module");
    assert_string_equal(member(sensor, "unit")->valuestring, "uW");
    assert_true(member(sensor, "window_s")->valuedouble == 0.05);
    assert_near(member(sensor, "update_period_s")->valuedouble, 0.1, 0.01); /* as asked */
    assert_non_null(strstr(member(sensor, "contains")->valuestring, "superchip"));
    assert_true(cJSON_GetArraySize(member(json, "missing")) >= 2); /* rapl, nvml */
    assert_string_equal(ls_power_reason(power, LS_RAIL_GPU),
                        "no " NO_NVML ": no NVIDIA driver is installed here");
    cJSON_Delete(json);
    close_power();
}

/* Two recorders on one node would count its joules twice: the second knows. */
static void test_one_recorder_per_node(void **state)
{
    ls_power *second = NULL;
    cJSON *json = NULL;

    (void)state;
    make_intel();
    open_power(NO_NVML);
    const ls_power_options options = power_options(NO_NVML);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ls_power_open(&options, &second), LS_OK);
        assert_int_equal(ls_power_describe(second, false, &json), LS_OK);
        assert_int_equal(cJSON_IsTrue(member(json, "another_recorder")), i == 0);
        cJSON_Delete(json);
        ls_power_close(second);
        if (i == 0) close_power(); /* the next is alone */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rapl_is_labelled),
        cmocka_unit_test(test_rapl_joules),
        cmocka_unit_test(test_phases_get_what_they_drew),
        cmocka_unit_test(test_steps_add_up),
        cmocka_unit_test(test_short_is_refused),
        cmocka_unit_test(test_pauses_are_no_phases),
        cmocka_unit_test(test_late_energy),
        cmocka_unit_test(test_the_history_is_bounded),
        cmocka_unit_test(test_a_phase_that_is_taken_back),
        cmocka_unit_test(test_permission_denied_is_said),
        cmocka_unit_test(test_vanishing),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_frozen_counter),
        cmocka_unit_test(test_slow_sensors_rest),
        cmocka_unit_test(test_description),
        cmocka_unit_test(test_one_recorder_per_node),
    };
    return cmocka_run_group_tests(tests, make_machines, remove_machines);
}
