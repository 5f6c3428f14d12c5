/*
 * test_prometheus.c - the file for Prometheus: every line in its exposition format, the figures
 * those of the records, nothing for what is not known, always a whole file.
 */
#include "io_test.h"

#include <math.h>

#include "prometheus.h"

static ls_step_record make_step(int64_t step)
{
    ls_step_record r = {.step = step,
                        .attempt = 1,
                        .tokens = 1000,
                        .tokens_total = 1000 * step,
                        .labels = 999,
                        .loss = 2.5,
                        .grad_norm = 0.125,
                        .lr = 3e-4,
                        .step_s = 0.5,
                        .tokens_per_s = 2000,
                        .mfu_causal = (double)NAN,
                        .predicted_step_s = (double)NAN,
                        .lane_busy_s = {0.25, 0, 0, 0.125, 0, 0},
                        .skipped = step == 2,
                        .peak_bytes_host = 1 << 20,
                        .energy = {.known = true}};

    for (int rail = 0; rail < LS_RAIL_COUNT; rail++)
        r.energy.joules[rail] = r.energy.coverage[rail] = (double)NAN;
    r.energy.coverage[LS_RAIL_MODULE] = 1.0;
    r.energy.joules[LS_RAIL_MODULE] = 100.0;
    return r;
}

static char *read_metrics(const char *path)
{
    static char text[20000];
    FILE *file = fopen(path, "rb");

    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    assert_int_equal(fclose(file), 0);
    return text;
}

/* "longspan_NAME{labels} VALUE", of the family that the comments above it announce. */
static void check_line(const char *line, const char *family)
{
    const char *brace = strchr(line, '{'), *end = strrchr(line, '}');
    char *rest;

    assert_non_null(brace);
    assert_non_null(end);
    assert_int_equal((size_t)(brace - line), strlen(family));
    assert_memory_equal(line, family, strlen(family));
    assert_memory_equal(brace, "{run=\"", 6);
    assert_int_equal(end[1], ' ');
    const double value = strtod(end + 2, &rest);
    assert_true(rest > end + 2 && *rest == '\0');
    assert_true(!isnan(value));
}

static void check_format(const char *metrics)
{
    char text[20000], family[100] = "", type[20] = "";
    int n_values = 0;

    snprintf(text, sizeof text, "%s", metrics);
    assert_int_equal(text[strlen(text) - 1], '\n');
    for (char *line = text, *end; *line != '\0'; line = end + 1) {
        end = strchr(line, '\n');
        *end = '\0';
        if (strncmp(line, "# HELP ", 7) == 0) {
            assert_int_equal(sscanf(line, "# HELP %99s", family), 1);
            n_values = 0;
        } else if (strncmp(line, "# TYPE ", 7) == 0) {
            char again[100];
            assert_int_equal(sscanf(line, "# TYPE %99s %19s", again, type), 2);
            assert_string_equal(again, family);
            assert_true(strcmp(type, "gauge") == 0 || strcmp(type, "counter") == 0);
            const char *ending = strstr(family, "_total");
            assert_int_equal(strcmp(type, "counter") == 0, ending != NULL && ending[6] == '\0');
        } else {
            check_line(line, family);
            n_values++;
        }
    }
    assert_true(n_values > 0);
}

static void has(const char *metrics, const char *line)
{
    if (strstr(metrics, line) == NULL) fail_msg("no '%s' in:\n%s", line, metrics);
}

static void figures_are_those_of_the_records(void **state)
{
    (void)state;
    const char *path = at("demo.prom");
    ls_prometheus *metrics = NULL;
    char *text;

    assert_ok(ls_prometheus_open(path, "runs/a \"b\" \\c", 10, &metrics));
    text = read_metrics(path);
    check_format(text);
    has(text, "longspan_running{run=\"runs/a \\\"b\\\" \\\\c\"} 1\n");
    assert_null(strstr(text, "longspan_step{"));

    for (int64_t step = 1; step <= 3; step++) {
        const ls_step_record line = make_step(step);
        ls_prometheus_step(metrics, &line);
    }
    ls_prometheus_eval(metrics, &(ls_eval_record){.step = 3, .loss = 2.25, .tokens = 7});
    text = read_metrics(path);
    check_format(text);
    has(text, "longspan_step{run=\"runs/a \\\"b\\\" \\\\c\"} 3\n");
    has(text, "\"} 2.5\n");
    has(text, "longspan_tokens_total{run=\"runs/a \\\"b\\\" \\\\c\"} 3000\n");
    has(text, "longspan_steps_skipped_total{run=\"runs/a \\\"b\\\" \\\\c\"} 1\n");
    has(text, ",lane=\"compute\"} 0.75\n");
    has(text, ",rail=\"module\"} 300\n");
    has(text, ",place=\"host\"} 1048576\n");
    has(text, "longspan_eval_loss{run=\"runs/a \\\"b\\\" \\\\c\"} 2.25\n");
    assert_null(strstr(text, "mfu"));
    assert_null(strstr(text, "predicted"));
    assert_null(strstr(text, "rail=\"gpu\""));
    assert_null(strstr(text, "place=\"hbm\""));

    const ls_step_record last = make_step(4); /* within a second of the file before */
    ls_prometheus_step(metrics, &last);
    has(read_metrics(path), "longspan_step{run=\"runs/a \\\"b\\\" \\\\c\"} 3\n");
    ls_prometheus_close(metrics);
    text = read_metrics(path);
    check_format(text);
    has(text, "longspan_step{run=\"runs/a \\\"b\\\" \\\\c\"} 4\n");
    has(text, "longspan_running{run=\"runs/a \\\"b\\\" \\\\c\"} 0\n");
    assert_false(is_there(at("demo.prom.tmp")));
}

static void what_is_not_finite_is_told(void **state)
{
    (void)state;
    ls_step_record line = make_step(1);
    ls_prometheus *metrics = NULL;

    assert_ok(ls_prometheus_open(at("inf.prom"), "r", 10, &metrics));
    line.grad_norm = (double)INFINITY;
    line.labels = 0;
    ls_prometheus_step(metrics, &line);
    ls_prometheus_close(metrics);
    const char *text = read_metrics(at("inf.prom"));
    check_format(text);
    has(text, "longspan_grad_norm{run=\"r\"} +Inf\n");
    assert_null(strstr(text, "longspan_loss{"));
}

static void only_the_first_file_must_succeed(void **state)
{
    (void)state;
    ls_prometheus *metrics = NULL;
    const ls_step_record line = make_step(1);

    assert_fails(ls_prometheus_open(at("none/x.prom"), "r", 1, &metrics), LS_ERR_IO,
                 "none/x.prom: cannot write");
    assert_null(metrics);

    assert_ok(ls_directory_make(at("gone")));
    assert_ok(ls_prometheus_open(at("gone/x.prom"), "r", 1, &metrics));
    assert_ok(ls_directory_remove(at("gone")));
    (void)LS_FAIL(LS_ERR_INVALID, "an error of before");
    ls_prometheus_step(metrics, &line);
    ls_prometheus_close(metrics);
    assert_string_equal(ls_error(), "an error of before");

    ls_prometheus_step(NULL, &line);
    ls_prometheus_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_those_of_the_records),
        cmocka_unit_test(what_is_not_finite_is_told),
        cmocka_unit_test(only_the_first_file_must_succeed),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
