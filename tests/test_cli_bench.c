/*
 * test_cli_bench.c - longspan bench links on a buffer of a megabyte: the document, the table, a
 * profile that is saved and used, and what is refused with which exit code, before any measuring.
 */
#include "cli_test.h"

#include <math.h>

#include "json_test.h"

#define SMALL "--bytes", "1MiB", "--quiet"

/* The first row with these texts under "kind" and another key. */
static const cJSON *row_of(const cJSON *json, const char *kind, const char *key, const char *text)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, get(json, "links"))
    {
        const cJSON *item = ls_json_find_path(row, key);
        if (strcmp(get(row, "kind")->valuestring, kind) == 0 && cJSON_IsString(item) &&
            strcmp(item->valuestring, text) == 0)
            return row;
    }
    fail_msg("no %s row with %s %s", kind, key, text);
    return NULL;
}

static void test_document(void **state)
{
    static const char *const traffics[] = {"read", "write", "copy", "update"};
    cJSON *json = parse(RUN(0, "bench", "links", "--json", SMALL, "--hardware", "cpu")->out);

    (void)state;
    assert_string_equal(get(json, "machine.profile")->valuestring, "cpu");
    for (size_t t = 0; t < 4; t++) {
        const cJSON *row = row_of(json, "memory", "traffic", traffics[t]);
        assert_true(number(row, "bytes_per_s") >= number(row, "bytes_per_s_min"));
        assert_true(number(row, "bytes_per_s") <= number(row, "bytes_per_s_max"));
        assert_true(number(row, "bytes_per_s_min") > 0);
        assert_true(number(row, "buffer_bytes") == 1 << 20);
        assert_true(number(row, "threads") == 1);
    }
    const cJSON *copy = row_of(json, "copy", "way", "in");
    assert_true(cJSON_IsNull(get(copy, "bytes_per_s")));
    assert_says(get(copy, "missing")->valuestring, "emulated-gh200");
    cJSON_Delete(json);
}

static void test_table(void **state)
{
    const outcome *done = RUN(0, "bench", "--bytes", "1MiB"); /* links is all there is */

    (void)state;
    assert_says(done->out, "without huge pages");
    assert_says(done->out, "plain stores");
    assert_says(done->out, "latency");
    assert_says(done->out, "host <> hbm: not measured");
    assert_says(done->err, "measuring host0");
}

/* ---- saving --------------------------------------------------------------------------------- */

static double saved_figure(const cJSON *list, const char *name, const char *name_key,
                           const char *key)
{
    const cJSON *item;
    char path[128];

    cJSON_ArrayForEach(item, list)
    {
        if (strcmp(get(item, name_key)->valuestring, name) != 0) continue;
        snprintf(path, sizeof path, "sources.%s.source", key);
        if (strcmp(get(item, path)->valuestring, "measured") != 0)
            fail_msg("%s: not measured", key);
        return number(item, key);
    }
    fail_msg("no %s", name);
    return 0;
}

static void assert_close(double value, double expected)
{
    if (fabs(value - expected) > 0.0006 * expected) fail_msg("%.9g, not %.9g", value, expected);
}

/* The host's and the link's figures in a document of topo are those that bench told. */
static void assert_measured(const cJSON *topo, const cJSON *bench, const char *host,
                            const char *hbm)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, get(bench, "links"))
    {
        const cJSON *traffic = ls_json_find_path(row, "traffic");
        if (traffic == NULL || !cJSON_IsTrue(get(row, "best")) ||
            !cJSON_IsTrue(get(row, "huge_pages")) ||
            strcmp(get(row, "to")->valuestring, "host0") != 0)
            continue;
        const char *name = traffic->valuestring;
        const char *key = strcmp(name, "read") == 0    ? "read_bytes_per_s"
                          : strcmp(name, "write") == 0 ? "write_bytes_per_s"
                                                       : NULL;
        if (key != NULL)
            assert_close(saved_figure(get(topo, "places"), host, "name", key),
                         number(row, "bytes_per_s"));
        if (strcmp(name, "update") == 0)
            assert_close(saved_figure(get(topo, "places"), host, "name", "best_threads"),
                         number(row, "threads"));
    }
    assert_close(saved_figure(get(topo, "places"), host, "name", "latency_ns"),
                 number(row_of(bench, "latency", "to", "host0"), "latency_ns"));
    if (hbm == NULL) return;
    assert_close(saved_figure(get(topo, "links"), hbm, "to", "bytes_per_s"),
                 number(row_of(bench, "copy", "way", "in"), "bytes_per_s"));
    assert_close(saved_figure(get(topo, "links"), hbm, "to", "reverse_bytes_per_s"),
                 number(row_of(bench, "copy", "way", "out"), "bytes_per_s"));
    assert_close(saved_figure(get(topo, "links"), hbm, "to", "both_bytes_per_s"),
                 number(row_of(bench, "copy", "way", "both"), "bytes_per_s"));
}

static void test_save(void **state)
{
    cJSON *bench = parse(
        RUN(0, "bench", "links", "--json", SMALL, "--hardware", "cpu", "--save", "this-node.yaml")
            ->out);
    cJSON *alone = parse(RUN(0, "topo", "--json", "--from", "this-node.yaml")->out);
    cJSON *merged = parse(RUN(0, "topo", "--json", "--hardware", "this-node.yaml")->out);

    (void)state;
    assert_string_equal(get(merged, "profile")->valuestring, "this-node");
    assert_measured(alone, bench, "host", NULL);
    assert_measured(merged, bench, "host0", NULL);
    char *text = need_bytes(at("this-node.yaml"), NULL);
    assert_says(text, "NOT OF THE MEMORY"); /* a megabyte is in the caches: the file says so */
    free(text);
    cJSON_Delete(bench);
    cJSON_Delete(alone);
    cJSON_Delete(merged);
}

/* An emulated profile keeps its throttle and its size, and gains figures. */
static void test_save_emulated(void **state)
{
    cJSON *bench = parse(RUN(0, "bench", "links", "--json", SMALL, "--hardware", "emulated-gh200",
                             "--save", "./emulated.yaml")
                             ->out);
    cJSON *alone = parse(RUN(0, "topo", "--json", "--from", "emulated.yaml")->out);
    cJSON *merged = parse(RUN(0, "topo", "--json", "--hardware", "emulated.yaml")->out);
    const cJSON *copy = row_of(bench, "copy", "way", "in");

    (void)state;
    assert_measured(alone, bench, "host", "hbm");
    assert_measured(merged, bench, "host0", "hbm0");
    assert_true(number(copy, "throttle_bytes_per_s") == 3.78e9);
    assert_true(number(row_of(bench, "copy", "way", "out"), "throttle_bytes_per_s") == 2.97e9);
    assert_true(number(row_of(bench, "copy", "way", "both"), "throttle_bytes_per_s") == 5.94e9);
    assert_close(number(copy, "throttle_ratio"), 3.78e9 / number(copy, "unthrottled_bytes_per_s"));
    /* Once more over itself: it is a profile, and may be replaced. */
    RUN(0, "bench", "links", SMALL, "--hardware", "emulated.yaml", "--save", "emulated.yaml");
    char *text = need_bytes(at("emulated.yaml"), NULL);
    assert_says(text, "in_bytes_per_s: {value: 3780000000, source: profile}");
    assert_says(text, "capacity_bytes: {value: 67108864, source: profile}");
    free(text);
    cJSON_Delete(bench);
    cJSON_Delete(alone);
    cJSON_Delete(merged);
}

/* A name that would end the comment in the file does not. */
static void test_save_from_odd_name(void **state)
{
    (void)state;
    put_text(at("odd.yaml"), "name: \"odd\\nname: evil\"\n");
    RUN(0, "bench", SMALL, "--hardware", "odd.yaml", "--save", "even.yaml");
    char *text = need_bytes(at("even.yaml"), NULL);
    assert_says(text, "from profile 'odd?name: evil'");
    assert_says(text, "\nname: \"even\"\n");
    free(text);
}

/* ---- optimizer ------------------------------------------------------------------------------ */

static void test_optimizer(void **state)
{
    cJSON *json = parse(RUN(0, "bench", "optimizer", "--json", SMALL)->out);
    const cJSON *row;

    (void)state;
    assert_true(number(json, "optimizer.params") == 65536);
    assert_true(number(json, "optimizer.threads") >= 1);
    assert_true(number(json, "optimizer.ratio_min") > 0);
    assert_true(cJSON_IsTrue(get(json, "in_cache")));
    assert_true(cJSON_IsArray(get(json, "machine.places")));
    cJSON_ArrayForEach(row, get(json, "optimizer.by_threads"))
    {
        assert_true(number(row, "ns_per_param") >= number(row, "ns_per_param_min"));
        assert_true(number(row, "ratio") >= number(row, "ratio_min"));
        assert_true(number(row, "ratio") <= number(row, "ratio_max"));
        assert_true(number(row, "traffic_ns_per_param_min") > 0);
    }
    char *kernel = strdup(get(json, "optimizer.kernel")->valuestring);
    cJSON_Delete(json);
    assert_says(RUN(0, "--version")->out, kernel);
    const outcome *done = RUN(0, "bench", "optimizer", "--bytes", "1MiB");
    assert_says(done->out, kernel);
    assert_says(done->out, "figures of the caches");
    assert_says(done->err, "measuring AdamW");
    free(kernel);
}

/* ---- refusals ------------------------------------------------------------------------------- */

#define REFUSED(code, part, ...) assert_refused(RUN((code), "bench", __VA_ARGS__), (part))

/* Before anything is measured or written. */
static void assert_refused(const outcome *done, const char *part)
{
    assert_says(done->err, part);
    assert_null(strstr(done->err, "longspan: measuring"));
    assert_int_equal(done->n_out, 0);
}

static void test_refusals(void **state)
{
    (void)state;
    put_text(at("notes.yaml"), "shopping: [milk]\n");
    REFUSED(2, "--bytes: not used by ops", "ops", "--bytes", "2MiB");
    REFUSED(2, "--save: not used by optimizer", "optimizer", "--save", "x.yaml");
    REFUSED(2, "--hardware: not used by optimizer", "optimizer", "--hardware", "cpu");
    REFUSED(2, "--bytes 12: too few; allowed: 1MiB or more", "optimizer", "--bytes", "12");
    REFUSED(2, "'disk' is not in this version; allowed now: links, ops, optimizer", "disk");
    REFUSED(2, "'all' is not in this version; allowed now: links, ops, optimizer", "all");
    REFUSED(2, "no benchmark 'lniks'; allowed now: links, ops, optimizer", "lniks");
    REFUSED(2, "takes no 'more'", "links", "more");
    REFUSED(2, "--set", "links", "--set", "a=b");
    REFUSED(2, "unknown option '--fast'", "links", "--fast");
    REFUSED(2, "--bytes 12: too few; allowed: 1MiB or more", "links", "--bytes", "12");
    REFUSED(2, "--bytes: 'much' is not a size in bytes", "links", "--bytes", "much");
    REFUSED(2, "--bytes: '256M' has no unit of bytes: write 256MiB", "links", "--bytes", "256M");
    REFUSED(2, "is no profile", "links", "--hardware", "gh2000");
    REFUSED(2, "not overwritten", "links", "--save", "notes.yaml");
    REFUSED(2, "allowed: NAME.yaml", "links", "--save", "profile.json");
    REFUSED(1, "No such file or directory", "links", "--save", "no/such/x.yaml");
    char *text = need_bytes(at("notes.yaml"), NULL);
    assert_string_equal(text, "shopping: [milk]\n");
    free(text);
    /* No machine has that much: 2^59 bytes. */
    REFUSED(3, "free some memory, or ask for less with --bytes", "links", "--bytes", "524288TiB");
}

static void test_help(void **state)
{
    (void)state;
    assert_says(RUN(0, "bench", "--help")->out, "example: longspan bench links");
    assert_says(RUN(0, "--help")->out, "bench");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_document),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_save),
        cmocka_unit_test(test_save_emulated),
        cmocka_unit_test(test_save_from_odd_name),
        cmocka_unit_test(test_optimizer),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_help),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
