/*
 * test_cli_power.c - the program on a machine with meters: joules in record.jsonl, samples in
 * power.csv, sensors in run.json, lanes in trace.json; resumed, killed, and without any meter.
 */
#include "cli_test.h"

#include <cjson/cJSON.h>
#include <math.h>

#include "json.h"

#define MODULE_W 400.0
#define GRACE_W  120.0

static void put_meter(int hwmon, const char *label, double watts)
{
    char text[64];

    assert_ok(ls_directory_make(at("sys/sys/class/hwmon/hwmon%d", hwmon)));
    put_text(at("sys/sys/class/hwmon/hwmon%d/power1_oem_info", hwmon), label);
    put_text(at("sys/sys/class/hwmon/hwmon%d/power1_average_interval", hwmon), "50\n");
    snprintf(text, sizeof text, "%.0f\n", 1e6 * watts);
    put_text(at("sys/sys/class/hwmon/hwmon%d/power1_average", hwmon), text);
}

/* Over a slow link steps are long enough to be told by meters of 50 ms, and cost next to nothing.
 */
static const char slow_yaml[] =
    "name: slow\n"
    "emulated: true\n"
    "places:\n"
    "  - {kind: hbm, capacity_bytes: {value: 4MiB, source: profile}}\n"
    "  - {kind: host}\n"
    "links:\n"
    "  - {from: host, to: hbm, bytes_per_s: {value: 1e9, source: profile}}\n"
    "throttle: {in_bytes_per_s: {value: 5e5, source: profile}}\n"; /* 144 kB a step */

#define TRAIN(code, output, ...)                                                                   \
    RUN(code, "train", "run.yaml", "--set", "output=" output, "--hardware", "slow.yaml", "--set",  \
        "memory.weights=stream", "--set", "steps=6", "--set", "eval.every_steps=0", "--set",       \
        "record.samples_hz=50", "--set", "record.prometheus=" output ".prom", __VA_ARGS__)

static const cJSON *member(const cJSON *json, const char *path)
{
    const cJSON *item = ls_json_find_path(json, path);
    if (item == NULL) fail_msg("no %s in %.300s", path, cJSON_Print(json));
    return item;
}

static cJSON *read_json(const char *path)
{
    cJSON *json = NULL;
    assert_ok(ls_json_read(path, &json));
    return json;
}

/* ---- the record ---------------------------------------------------------------------------- */

static void check_step(const cJSON *line)
{
    const double seconds = member(line, "step_s")->valuedouble;
    const cJSON *module = member(line, "energy_j.module");

    assert_true(cJSON_IsNull(member(line, "energy_j.gpu")));
    assert_true(member(line, "flops_model")->valuedouble > 1e6);
    if (cJSON_IsNull(module)) return; /* too short, or the meter's thread was held up */
    assert_true(seconds > 0.1);
    const double covered = module->valuedouble / MODULE_W;
    assert_true(fabs(member(line, "energy_j.grace")->valuedouble / GRACE_W / covered - 1.0) < 1e-3);
    assert_string_equal(member(line, "energy_method.module")->valuestring, "meter");
    assert_true(member(line, "energy_coverage.module")->valuedouble > 0.95);
    double phases = 0.0;
    for (const cJSON *p = member(line, "phase_s")->child; p; p = p->next) phases += p->valuedouble;
    assert_true(fabs(phases / covered - 1.0) < 0.06);
}

static int check_record(const char *output)
{
    char *text = need_bytes(at("%s/record.jsonl", output), NULL), *next;
    int n_known = 0;

    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        cJSON *json = cJSON_Parse(line);
        assert_non_null(json);
        check_step(json);
        n_known += cJSON_IsNumber(member(json, "energy_j.module"));
        cJSON_Delete(json);
    }
    free(text);
    return n_known;
}

/* ---- power.csv ----------------------------------------------------------------------------- */

/* Whole lines with as many cells as the header; times that go on.  Returns how many. */
static int check_csv(const char *path, int attempts)
{
    char *text = need_bytes(path, NULL), *next;
    int n = 0, n_told = 0, cells = 0, last_attempt = 0;
    double last_ns = 0.0;

    assert_int_equal(strncmp(text, "attempt,time_ns,step,phase,read_us,grace.module-0.uW,", 53), 0);
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        int commas = 0;
        for (const char *c = line; *c != '\0'; c++) commas += *c == ',';
        if (cells == 0) cells = commas;
        assert_int_equal(commas, cells);
        if (n++ == 0) continue;
        char *end;
        const int attempt = (int)strtol(line, &end, 10);
        const double ns = strtod(end + 1, NULL);
        assert_true(attempt > last_attempt || ns > last_ns);
        last_attempt = attempt;
        last_ns = ns;
        n_told += strstr(line, ",40000000") != NULL;
    }
    assert_int_equal(last_attempt, attempts);
    assert_true(n_told > 0); /* not each: on a busy machine a sensor may rest */
    free(text);
    return n - 1;
}

/* What the run left for Prometheus: its last figures, and that it has ended. */
static void check_metrics(const char *path)
{
    char *text = need_bytes(path, NULL);

    assert_says(text, "longspan_running{run=\"all\"} 0\n");
    assert_says(text, "longspan_step{run=\"all\"} 6\n");
    assert_says(text, "longspan_energy_joules_total{run=\"all\",rail=\"module\"} ");
    assert_says(text, "longspan_memory_peak_bytes{run=\"all\",place=\"hbm\"} ");
    free(text);
}

/* ---- trace.json ---------------------------------------------------------------------------- */

static void check_trace(const char *output)
{
    char *text = need_bytes(at("%s/trace.json", output), NULL);
    cJSON *trace = cJSON_Parse(text);
    int spans = 0, steps = 0, watts = 0, lanes = 0, live = 0;
    const cJSON *event;

    assert_true(cJSON_IsArray(trace)); /* whole: the run has ended */
    cJSON_ArrayForEach(event, trace)
    {
        const char *phase = member(event, "ph")->valuestring;
        const char *name = member(event, "name")->valuestring;
        if (strcmp(phase, "X") == 0 && strcmp(name, "matmul") == 0) {
            assert_true(member(event, "dur")->valuedouble >= 0.0);
            assert_true(member(event, "args.layer")->valuedouble >= -1.0);
            spans++;
        }
        steps += strcmp(phase, "X") == 0 && strncmp(name, "step ", 5) == 0;
        lanes += strcmp(phase, "M") == 0 && strcmp(name, "thread_name") == 0;
        if (strcmp(phase, "C") == 0 && strcmp(name, "live bytes") == 0) {
            assert_true(member(event, "args.host")->valuedouble > 100000.0);
            live++;
        }
        if (strcmp(phase, "C") == 0 && strcmp(name, "watts") == 0) {
            assert_true(fabs(member(event, "args.module")->valuedouble - MODULE_W) < 0.1);
            watts++;
        }
    }
    assert_true(spans > 20);
    assert_true(live > 10);
    assert_true(watts > 0);
    assert_int_equal(steps, 2);
    assert_int_equal(lanes, 7);
    cJSON_Delete(trace);
    free(text);
}

static void test_everything_is_recorded(void **state)
{
    (void)state;
    TRAIN(75, "all", "--set", "record.trace_steps=[2, 3]", "--set", "record.idle_s=1",
          "--stop-after", "4");
    cJSON *first = read_json(at("all/run.json"));
    assert_true(
        fabs(member(first, "power.summary.rails.module.idle_watts")->valuedouble - MODULE_W) < 1.0);
    const double joules = member(first, "power.summary.rails.module.joules")->valuedouble;
    assert_int_equal(cJSON_GetArraySize(member(first, "power_earlier")), 0);
    cJSON_Delete(first);
    assert_true(check_record("all") > 0);
    check_trace("all");
    const int before = check_csv(at("all/power.csv"), 1);
    put_text(at("torn"), "1,2,3");
    char command[1024];
    snprintf(command, sizeof command, "cat %s/torn >> %s/all/power.csv", scratch, scratch);
    assert_int_equal(system(command), 0); /* NOLINT: as a crash would leave it */
    TRAIN(0, "all", "--resume");
    assert_true(check_csv(at("all/power.csv"), 2) > before);
    assert_false(is_there(at("all/power-before-2.csv")));
    check_metrics(at("all.prom"));

    cJSON *run = read_json(at("all/run.json"));
    const cJSON *sensor = cJSON_GetArrayItem(member(run, "power.sensors"), 0);
    assert_string_equal(member(sensor, "id")->valuestring, "grace.module-0");
    assert_true(cJSON_IsNumber(member(run, "power.summary.rails.module.joules")));
    const cJSON *earlier = member(run, "power_earlier");
    assert_int_equal(cJSON_GetArraySize(earlier), 1); /* what the first attempt drew is kept */
    assert_true(member(earlier->child, "attempt")->valuedouble == 1);
    assert_true(member(earlier->child, "summary.rails.module.joules")->valuedouble == joules);
    assert_says(member(run, "missing")->child->string, "energy_j.gpu");
    cJSON_Delete(run);
}

/* What the run left is looked at. */
static void test_report(void **state)
{
    (void)state;
    const outcome *done = RUN(0, "report", "all", "other", "--out", "report", "--export", "set");
    assert_says(done->out, "module J/token");
    assert_says(done->out, "against the first");
    assert_true(is_there(at("report/report.html")) && is_there(at("report/power_1.svg")) &&
                is_there(at("report/memory_of_a_step_1.svg")));
    done = RUN(0, "report", "--validate", "set");
    assert_says(done->out, "steps      8 lines");
    assert_says(RUN(2, "report")->err, "no run directory");
    assert_says(RUN(2, "report", "all", "--validate", "set")->err, "takes nothing else");
    assert_says(RUN(1, "report", "text-train")->err, "give a run directory");
    RUN(1, "report", "--validate", "all");
}

/* Other sensors than before: the old samples are kept beside. */
static void test_other_sensors_on_resume(void **state)
{
    (void)state;
    TRAIN(75, "other", "--stop-after", "1");
    put_meter(7, "SysIO Power Socket 0\n", 8.0);
    TRAIN(75, "other", "--resume", "--stop-after", "2");
    assert_ok(ls_directory_remove(at("sys/sys/class/hwmon/hwmon7")));
    assert_true(check_csv(at("other/power-before-2.csv"), 1) > 0);
    assert_true(check_csv(at("other/power.csv"), 2) > 0);
}

/* A killed run leaves whole samples, but for the last line. */
static void test_killed(void **state)
{
    (void)state;
    const pid_t pid = START("train", "run.yaml", "--set", "output=killed", "--set", "steps=1000000",
                            "--set", "eval.every_steps=0", "--set", "record.trace_steps=[2, 3]",
                            "--set", "record.samples_hz=1000");
    size_t bytes = 0;
    while (bytes < 20000) {
        sleep_ms(20);
        free(get_bytes(at("killed/power.csv"), &bytes));
    }
    kill(pid, SIGKILL);
    finish_as(1000 + SIGKILL, pid);
    char *text = need_bytes(at("killed/power.csv"), &bytes);
    char *last = strrchr(text, '\n');
    assert_non_null(last);
    last[1] = '\0';
    put_text(at("killed/power.csv"), text);
    free(text);
    assert_true(check_csv(at("killed/power.csv"), 1) > 10);
    cJSON *run = read_json(at("killed/run.json")); /* the sensors are known from the start */
    assert_true(cJSON_GetArraySize(member(run, "power.sensors")) >= 4);
    cJSON_Delete(run);
}

/* Off, and without a meter: null with a reason. */
static void test_without_power(void **state)
{
    (void)state;
    TRAIN(75, "off", "--set", "record.power=off", "--stop-after", "1");
    assert_false(is_there(at("off/power.csv")));
    cJSON *run = read_json(at("off/run.json"));
    assert_true(cJSON_IsNull(member(run, "power")));
    assert_string_equal(
        cJSON_GetStringValue(cJSON_GetObjectItem(member(run, "missing"), "energy_j")),
        "record.power is off");
    cJSON_Delete(run);

    assert_int_equal(setenv("LONGSPAN_SYSFS_ROOT", at("nothing"), 1), 0);
    TRAIN(75, "none", "--stop-after", "1");
    assert_int_equal(setenv("LONGSPAN_SYSFS_ROOT", at("sys"), 1), 0);
    run = read_json(at("none/run.json"));
    assert_says(
        cJSON_GetStringValue(cJSON_GetObjectItem(member(run, "missing"), "energy_j.module")),
        "no ACPI power meter");
    assert_true(cJSON_GetArraySize(member(run, "power.sensors")) == 4); /* of the process */
    cJSON_Delete(run);
}

static pid_t ripple;

/* Real meters are never quite still, and one that is counts as frozen. */
static void move_meters(void)
{
    char text[32];

    for (int i = 0;; i++) {
        for (int meter = 1; meter <= 3; meter += 2) {
            snprintf(text, sizeof text, "%.0f\n", 1e6 * (meter == 3 ? MODULE_W : GRACE_W) + i % 2);
            put_text(at("next-value"), text);
            if (rename(at("next-value"), at("sys/sys/class/hwmon/hwmon%d/power1_average", meter)) !=
                0)
                _exit(0);
        }
        sleep_ms(100);
        if (getppid() == 1) _exit(0);
    }
}

static int make_meters(void **state)
{
    if (make_scratch(state) != 0) return -1;
    put_text(at("slow.yaml"), slow_yaml);
    put_meter(3, "Module Power Socket 0\n", MODULE_W);
    put_meter(1, "Grace Power Socket 0\n", GRACE_W);
    fflush(NULL);
    ripple = fork();
    if (ripple == 0) move_meters();
    return setenv("LONGSPAN_SYSFS_ROOT", at("sys"), 1);
}

static int remove_meters(void **state)
{
    kill(ripple, SIGKILL);
    waitpid(ripple, NULL, 0);
    return remove_scratch(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_is_recorded),
        cmocka_unit_test(test_other_sensors_on_resume),
        cmocka_unit_test(test_report),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_without_power),
    };
    return cmocka_run_group_tests(tests, make_meters, remove_meters);
}
