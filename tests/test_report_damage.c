/*
 * test_report_damage.c - reports of runs that were killed, damaged or made up: told or left out,
 * never a crash, never a figure out of what is none.
 */
#include "report_test.h"

#include <math.h>

#include "text.h"

/* A run that is killed while it writes a line is a run all the same; one that was damaged is not.
 */
static void test_torn_and_damaged(void **state)
{
    char path[600];

    (void)state;
    const char *const runs[] = {make_run("torn", 30, 1.0)};
    snprintf(path, sizeof path, "%s/record.jsonl", runs[0]);
    FILE *f = fopen(path, "a");
    fputs("{\"step\":31,\"att", f);
    fclose(f);
    assert_int_equal(report(runs, 1, NULL, NULL), LS_OK);
    assert_has(printed, "torn");
    f = fopen(path, "a");
    fputs("\n{\"step\":32,\"loss\":1}\n", f);
    fclose(f);
    assert_int_equal(report(runs, 1, NULL, NULL), LS_ERR_CORRUPT);
    assert_has(ls_error(), "record.jsonl:32:");
    const char *const nowhere[] = {at("nowhere")};
    assert_int_equal(report(nowhere, 1, NULL, NULL), LS_ERR_IO);
    assert_has(ls_error(), "give a run directory");
}

/* Numbers that no program wrote are no counts. */
static void test_absurd_numbers(void **state)
{
    char path[600];

    (void)state;
    const char *const runs[] = {make_run("absurd", 30, 1.0)};
    snprintf(path, sizeof path, "%s/record.jsonl", runs[0]);
    FILE *f = fopen(path, "a");
    fputs("{\"step\":1e300,\"attempt\":-1e300,\"tokens\":1e300,\"step_s\":1e-300}\n", f);
    fclose(f);
    const ls_status status = report(runs, 1, NULL, NULL); /* told or left out, never undefined */
    assert_true(status == LS_OK || status == LS_ERR_CORRUPT);
}

/* Of a run without run.json and power.csv there is still its record. */
static void test_record_alone(void **state)
{
    char path[600];

    (void)state;
    const char *const runs[] = {make_run("alone", 30, 1.0)};
    snprintf(path, sizeof path, "%s/run.json", runs[0]);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/power.csv", runs[0]);
    assert_int_equal(unlink(path), 0);
    char *out = strdup(at("alone-out"));
    assert_int_equal(report(runs, 1, out, out), LS_OK);
    free(out);
}

/* ---- one file of a run put in place of another --------------------------------------------- */

/* A run whose file has this text instead; reported with pages and a data set, which is valid. */
static void report_changed(const char *name, const char *file, const char *text)
{
    char path[600], out[600], set[600];
    const char *const runs[] = {make_run(name, 30, 1.0)};

    snprintf(path, sizeof path, "%s/%s", runs[0], file);
    put_file(path, text, strlen(text));
    snprintf(out, sizeof out, "%s-out", runs[0]);
    snprintf(set, sizeof set, "%s-set", runs[0]);
    if (report(runs, 1, out, set) != LS_OK) fail_msg("%s: %s", name, ls_error());
    if (validate(set) != LS_OK) fail_msg("%s: %s", name, ls_error());
    assert_int_equal(report(runs, 1, NULL, NULL), LS_OK); /* what it prints */
}

static void test_power_csv_of_others(void **state)
{
    (void)state;
    report_changed("power-narrow", "power.csv", "a\nb\nc\n");
    assert_has(printed, "/power-narrow/power.csv:1: 1 columns, not attempt, ");
    report_changed("power-pair", "power.csv", "a,b\n1,2\n");
    assert_has(printed, "power.csv:1: 2 columns");
    report_changed("power-empty", "power.csv", "");
    report_changed("power-head", "power.csv", "attempt,time_ns,step,phase,read_us\n");
    report_changed("power-bare", "power.csv", "attempt,time_ns,step,phase,read_us\n1,2,3,x,4\n");
}

static void test_run_json_of_others(void **state)
{
    (void)state;
    report_changed("json-cut", "run.json", "{\"schema\":1,");
    assert_has(printed, "/json-cut/run.json:1: does not parse as JSON; left out");
    report_changed("json-list", "run.json", "[1,2]");
    assert_has(printed, "/json-list/run.json: is not a JSON object; left out");
    report_changed("json-missing", "run.json",
                   "{\"missing\":[1,\"a\"],\"power\":{\"sensors\":{\"a\":1}},\"machine\":[]}");
    report_changed("json-sensors", "run.json", "{\"power\":{\"sensors\":[1,null,[],{}]}}");
}

/* Lists where objects belong, numbers below 0 or beyond what can be drawn. */
static void test_lines_of_others(void **state)
{
    (void)state;
    report_changed("lines", "record.jsonl",
                   "{\"step\":1,\"attempt\":1,\"loss\":2,\"step_s\":1,\"tokens\":8}\n\n"
                   "{\"step\":2,\"attempt\":1,\"loss\":1e308,\"step_s\":1e308,\"tokens\":-8}\n  \n"
                   "{\"step\":3,\"attempt\":1,\"loss\":-1e308,\"step_s\":-5,\"tokens\":8,"
                   "\"phase_s\":[1,2],\"energy_phase_j\":{\"gpu\":[1]},\"lane_busy_s\":[1],"
                   "\"loss_by_position\":{\"a\":1}}\n");
    char *svg = read_text(at("lines-out/loss.svg"));
    assert_null(strstr(svg, "nan"));
    assert_null(strstr(svg, "inf"));
    free(svg);
}

/* Joules per token are of the steps that tell both. */
static void test_a_step_without_tokens(void **state)
{
    static const char step[] = "{\"step\":%d,\"attempt\":1,\"loss\":2,\"step_s\":1,\"tokens\":%s,"
                               "\"energy_j\":{\"gpu\":%d}}\n";
    char text[2048] = "";

    (void)state;
    for (int i = 1; i <= 9; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), step, i, i == 5 ? "null" : "100",
                 i == 5 ? 9000 : 300);
    report_changed("untold", "record.jsonl", text);
    const char *line = strstr(printed, "gpu J/token");
    if (line == NULL) fail_msg("%s", printed);
    assert_true(fabs(strtod(line + strlen("gpu J/token"), NULL) - 3.0) < 1e-9);
}

/* The seconds beside the energy of a run are of the steps that the energy is of. */
static void test_steps_without_energy(void **state)
{
    char text[2048] = "";

    (void)state;
    for (int i = 1; i <= 9; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "{\"step\":%d,\"attempt\":1,\"loss\":2,\"step_s\":1,\"tokens\":8,\"energy_j\":"
                 "{\"gpu\":%s}}\n",
                 i, i < 5 ? "null" : "300");
    report_changed("partly", "record.jsonl", text);
    char *csv = read_text(at("partly-set/codecarbon.csv"));
    const char *line = strchr(csv, '\n') + 1;
    for (int c = 0; c < 3; c++) line = strchr(line, ',') + 1;
    assert_true(fabs(strtod(line, NULL) - 5.0) < 1e-9);
    free(csv);
}

/* ---- names --------------------------------------------------------------------------------- */

/* The name of a folder is what it is made of, whatever path leads there. */
static void test_names(void **state)
{
    static const char escapes[] = "esc\033[31m\a", broken[] = "bad\xff\xfe\xc3";
    static const char wide[] = "\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4"
                               "\u65e5\u672c\u8a9e\u65e5\u672c\u8a9e\u65e5\u672c\u8a9e\u65e5";
    char dots[700];

    (void)state;
    const char *const named[] = {make_run(escapes, 30, 1.0), make_run(broken, 30, 1.0),
                                 make_run(wide, 30, 1.0)};
    snprintf(dots, sizeof dots, "%s/../%s/.", named[2], wide);
    const char *const runs[] = {named[0], named[1], dots};
    char *out = strdup(at("names-out"));
    assert_int_equal(report(runs, 3, out, NULL), LS_OK);
    assert_int_equal(report(runs, 3, NULL, NULL), LS_OK);
    assert_null(strchr(printed, '\033'));
    assert_null(strchr(printed, '\a'));
    assert_has(printed, " esc?[31m?");
    assert_has(printed, " bad???");
    assert_has(printed, "\u672c");
    char *svg = read_text(at("names-out/loss.svg"));
    for (const char *at_char = svg; *at_char != '\0'; at_char += ls_text_cut(at_char, 1))
        assert_true((at_char[0] & 0xc0) != 0xc0 || (at_char[1] & 0xc0) == 0x80);
    assert_null(strchr(svg, '\xff'));
    free(svg);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torn_and_damaged),
        cmocka_unit_test(test_absurd_numbers),
        cmocka_unit_test(test_record_alone),
        cmocka_unit_test(test_power_csv_of_others),
        cmocka_unit_test(test_run_json_of_others),
        cmocka_unit_test(test_lines_of_others),
        cmocka_unit_test(test_steps_without_energy),
        cmocka_unit_test(test_a_step_without_tokens),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests_name("report_damage", tests, make_test_folder,
                                       remove_test_folder);
}
