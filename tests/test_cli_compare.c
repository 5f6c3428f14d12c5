/* test_cli_compare.c - plan --compare: several profiles in one table, also where the run is
 * possible on some of the machines only. */
#include "cli_test.h"

#include "json_test.h"

/* Room for 256 tokens in blocks of rows alone. */
static const char small_yaml[] =
    "name: small\n"
    "emulated: true\n"
    "places:\n"
    "  - {kind: hbm, capacity_bytes: {value: 64KiB, source: profile}}\n"
    "  - {kind: host}\n";

#define COMPARE(code, profiles, ...)                                                               \
    RUN(code, "plan", "run.yaml", "--set", "sequence={tokens: 256, chunk: 2, query_block: 33}",    \
        "--compare", profiles, __VA_ARGS__)

static const char why[] = "sequence.query_block: 33 is no multiple of sequence.chunk 2, so "
                          "activations cannot pass through device memory in blocks; allowed: "
                          "multiples of the chunk, such as 32";

/* The reason stands below; the other machines are shown. */
static void test_one_is_impossible(void **state)
{
    char line[512];

    (void)state;
    snprintf(line, sizeof line, "\n\nsmall: %s\n", why);
    const outcome *done = COMPARE(0, "./small.yaml,cpu", "--quiet");
    assert_says(done->out, "\nsmall                no             ?    64.0 KiB           ? ");
    assert_says(done->out, "\ncpu                  yes ");
    assert_says(done->out, line);
    assert_string_equal(done->err, "");
    assert_says(COMPARE(0, "cpu,./small.yaml", "--quiet")->out, line);
}

static void test_its_document(void **state)
{
    (void)state;
    cJSON *all = cJSON_Parse(COMPARE(0, "./small.yaml,cpu", "--json", "--quiet")->out);
    const cJSON *first = cJSON_GetArrayItem(all, 0), *second = cJSON_GetArrayItem(all, 1);
    assert_true(cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(first, "fits")));
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(first, "why")), why);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(second, "fits")));
    cJSON_Delete(all);
}

/* Then the run file is at fault, as `plan` says of one machine. */
static void test_all_are_impossible(void **state)
{
    (void)state;
    const outcome *done = COMPARE(2, "./small.yaml,./small.yaml", "--quiet");
    assert_says(done->err, "--compare: the run is possible on none of these: sequence.query_block");
    assert_says(done->out, "\nsmall                no ");
}

/* Small places are not "0.000 GiB". */
static void test_units(void **state)
{
    (void)state;
    const outcome *done = RUN(3, "plan", "run.yaml", "--quiet", "--hardware", "./small.yaml");
    assert_says(done->err, "hbm memory: the plan is short by ");
    assert_says(done->err, " KiB, 64.0 KiB are available; ");
    assert_null(strstr(done->err, "GiB"));
}

static int make_machines(void **state)
{
    if (make_scratch(state) != 0) return -1;
    put_text(at("small.yaml"), small_yaml);
    return 0;
}

static const char tiny_yaml[] = "name: tiny\n"
                                "emulated: true\n"
                                "places:\n"
                                "  - {kind: hbm, capacity_bytes: {value: 64KiB, source: profile}}\n"
                                "  - {kind: host}\n";

static void test_compare_table(void **state)
{
    put_text(at("tiny.yaml"), tiny_yaml);
    const outcome *done = RUN(0, "plan", "run.yaml", "--compare", "emulated-gh200,cpu,./tiny.yaml");

    (void)state;
    assert_says(done->out, "profile              fits         hbm          of        host");
    assert_says(done->out, "\nemulated-gh200       yes ");
    assert_says(done->out, " 64.0 MiB ");
    assert_says(done->out, "resident ");
    assert_says(done->out, "\ncpu                  yes            -           - ");
    assert_says(done->out, "\ntiny                 no  ");
    assert_says(done->out, "stream, 3");
    assert_says(done->out, "\n\ntiny: hbm memory: the plan is short by ");
    done = RUN(3, "plan", "run.yaml", "--quiet", "--set", "sequence.tokens=512M", "--set",
               "batch.sequences=1", "--set", "sequence.chunk=16", "--compare", "cpu");
    assert_says(done->out, "\ncpu                  no             -           -           ? ");
    assert_says(done->out, "  not built\n\ncpu: sequence.chunk: ");
    done = RUN(3, "plan", "run.yaml", "--compare", "./tiny.yaml");
    assert_says(done->out, "\ntiny                 no  ");
    assert_says(done->err, "--compare: the plan fits none of these");
}

/* Each document is the one that the profile has alone. */
static void test_compare_documents(void **state)
{
    static const char *const profiles[] = {"emulated-h200-pcie", "cpu"};
    cJSON *all =
        parse(RUN(0, "plan", "run.yaml", "--json", "--compare", "emulated-h200-pcie,cpu")->out);

    (void)state;
    assert_int_equal(cJSON_GetArraySize(all), 2);
    for (int p = 0; p < 2; p++) {
        cJSON *one = parse(RUN(0, "plan", "run.yaml", "--json", "--hardware", profiles[p])->out);
        cJSON *other = cJSON_GetArrayItem(all, p);
        assert_text(other, "profile", profiles[p]);
        cJSON_DeleteItemFromObject(one, "available_bytes"); /* changes from call to call */
        cJSON_DeleteItemFromObject(other, "available_bytes");
        assert_true(cJSON_Compare(one, other, 1));
        cJSON_Delete(one);
    }
    cJSON_Delete(all);
}

static void test_compare_refused(void **state)
{
    (void)state;
    assert_says(RUN(2, "plan", "run.yaml", "--print", "--compare", "cpu")->err, "not two of them");
    assert_says(RUN(2, "plan", "run.yaml", "--compare", "cpu,,cpu")->err, "a comma between two");
    assert_says(RUN(2, "plan", "run.yaml", "--compare", "")->err, "a comma between two");
    assert_says(RUN(2, "plan", "run.yaml", "--compare", "c,c,c,c,c,c,c,c,c,c,c,c,c,c,c,c,c")->err,
                "'c' is no profile");
    const outcome *done =
        RUN(2, "plan", "run.yaml", "--compare",
            "cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu");
    assert_says(done->err, "at most 16 profiles");
    assert_string_equal(done->out, ""); /* nothing is begun */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_is_impossible),  cmocka_unit_test(test_its_document),
        cmocka_unit_test(test_all_are_impossible), cmocka_unit_test(test_units),
        cmocka_unit_test(test_compare_table),      cmocka_unit_test(test_compare_documents),
        cmocka_unit_test(test_compare_refused),
    };
    return cmocka_run_group_tests(tests, make_machines, remove_scratch);
}
