/*
 * test_report.c - runs made up from measured noise: the noise band tells a slowdown from a repeat;
 * tables, pages and data sets of runs; data sets that were damaged.
 */
#include "report_test.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>

#include "chart.h"
#include "crc32c.h"
#include "meter.h"
#include "statistics.h"

static ls_comparison compare_draws(uint64_t seed, double factor)
{
    static double a[N_STEPS], b[N_STEPS];
    ls_typical typical[2];

    draw_steps(2 * seed, 1.0, a);
    draw_steps(2 * seed + 1, factor, b);
    assert_int_equal(ls_typical_of(a, N_STEPS, &typical[0]), LS_OK);
    assert_int_equal(ls_typical_of(b, N_STEPS, &typical[1]), LS_OK);
    return ls_compare(&typical[0], &typical[1]);
}

/* A hundred pairs: at most 1% of repeats is called different, and 5% is seen nearly always. */
static void test_noise_band(void **state)
{
    int repeats = 0, slower = 0, faster = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        repeats += compare_draws(seed, 1.0).verdict != 0;
        slower += compare_draws(seed, 1.05).verdict == 1;
        faster += compare_draws(seed, 1.0 / 1.05).verdict == -1;
    }
    print_message("of 100: %d repeats differ, %d slower, %d faster\n", repeats, slower, faster);
    assert_true(repeats <= 3);
    assert_true(slower >= 90 && faster >= 90);
}

static void test_few_steps_tell_nothing(void **state)
{
    const double few[] = {1.0, 1.1, 0.9, 1.0, 1.0};
    ls_typical typical;

    (void)state;
    assert_int_equal(ls_typical_of(few, 5, &typical), LS_OK);
    assert_true(typical.median == 1.0 && isnan(typical.noise));
    assert_int_equal(ls_compare(&typical, &typical).verdict, 2);
    assert_int_equal(ls_typical_of(few, 0, &typical), LS_OK);
    assert_true(isnan(typical.median));
}

/* The cold steps at the beginning do not count. */
static void test_warm_up_is_left_out(void **state)
{
    double values[40];
    ls_typical typical;

    (void)state;
    for (int i = 0; i < 40; i++) values[i] = i < 4 ? 100.0 : 1.0 + 0.01 * (i % 3);
    values[20] = (double)NAN; /* not measured */
    assert_int_equal(ls_typical_of(values, 40, &typical), LS_OK);
    assert_int_equal(typical.n, 35);
    assert_true(typical.most < 2.0);
}

/* ---- runs ---------------------------------------------------------------------------------- */

static void test_table(void **state)
{
    (void)state;
    const char *const runs[] = {make_run("table", 300, 1.0), make_run("slow", 300, 1.3)};
    assert_int_equal(report(runs, 2, NULL, NULL), LS_OK);
    assert_has(printed, "held-out loss                         2.5                2.5\n");
    assert_has(printed, "module W                              400                400\n");
    assert_has(printed, "module J/token");
    assert_has(printed, " -23.1% (+-");
    assert_has(printed, " +30.0% (+-");
    assert_has(printed, "never add"); /* rails */
    assert_has(printed, "copies in, GB/s                        40");
    assert_has(printed,
               "  of the link's                       0.8"); /* 50 GB/s, the profile says */
    assert_null(strstr(printed, "copies out"));
}

/* Tags are closed in the order in which they were opened. */
static void assert_nested(const char *html)
{
    static const char *const empty[] = {"meta", "link",   "line",    "rect",
                                        "path", "circle", "!doctype"};
    char open[64][16];
    int n = 0;

    for (const char *c = strchr(html, '<'); c != NULL; c = strchr(c + 1, '<')) {
        char name[16] = "";
        const bool closes = c[1] == '/';
        sscanf(c + 1 + closes, "%15[a-z0-9!]", name);
        bool alone = false;
        for (size_t e = 0; e < sizeof empty / sizeof empty[0]; e++)
            alone |= strcmp(name, empty[e]) == 0;
        if (strcmp(name, "style") == 0 && !closes) c = strstr(c, "</style");
        if (strcmp(name, "style") == 0 || alone) continue;
        if (closes && (n == 0 || strcmp(open[n - 1], name) != 0))
            fail_msg("</%s> closes <%s>: %.80s", name, n > 0 ? open[n - 1] : "", c);
        if (closes)
            n--;
        else
            snprintf(open[n++], sizeof open[0], "%s", name);
        assert_true(n < 60);
    }
    assert_int_equal(n, 0);
}

static void test_page(void **state)
{
    static const char *const never[] = {"http:", "https:", "<script", "src=",  "@import",
                                        "nan",   "inf\"",  "<fast>",  "<card>"};
    static const char *const always[] = {"prefers-color-scheme:dark",
                                         "name=\"viewport\"",
                                         "A &lt;fast&gt; CPU",
                                         "no driver &amp; no",
                                         "Power by rail",
                                         "Loss by position",
                                         "Energy per token, rail module",
                                         "forward",
                                         "grace.module-0",
                                         "all of the latest attempt",
                                         "<tr><th>eval</th><td>3</td><td>1.2k</td></tr>",
                                         "nats per token"};

    (void)state;
    const char *const runs[] = {make_run("page <b>", 120, 1.0), make_run("page-2", 120, 1.3)};
    char *out = strdup(at("out"));
    assert_int_equal(report(runs, 2, out, NULL), LS_OK);
    char *html = read_text(at("out/report.html"));
    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
        if (strstr(html, never[i]) != NULL) fail_msg("'%s' in the page", never[i]);
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++) assert_has(html, always[i]);
    assert_null(strstr(html, "page <b>"));
    assert_nested(html);
    assert_true(is_there(at("out/power_and_tokens_per_s.svg")));
    char *svg = read_text(at("out/power_1.svg"));
    assert_has(svg, "xmlns=");
    assert_has(svg, "module");
    assert_nested(svg);
    free(svg);
    free(html);
    free(out);
}

/* Of the rail cpu in the data set of a run. */
static void find_watts(const char *run, double *least, double *most)
{
    char set[600], path[700], *next;
    const char *const runs[] = {run};

    snprintf(set, sizeof set, "%s-set", run);
    assert_int_equal(report(runs, 1, NULL, set), LS_OK);
    snprintf(path, sizeof path, "%s/power.csv", set);
    char *csv = read_text(path);
    *least = INFINITY;
    *most = 0.0;
    for (char *line = strtok_r(csv, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        const char *cpu = strstr(line, ",cpu,");
        if (cpu != NULL) *least = fmin(*least, strtod(cpu + 5, NULL));
        if (cpu != NULL) *most = fmax(*most, strtod(cpu + 5, NULL));
    }
    free(csv);
}

/* Watts in the picture are those of the file, from a counter and from a meter. */
static void test_samples(void **state)
{
    double least, most;

    (void)state;
    find_watts(make_run("samples", 30, 1.0), &least, &most);
    assert_true(fabs(least - 200.0) < 1e-6 && fabs(most - 200.0) < 1e-6);
}

/* A counter of 500 W that moves every 100 ms, asked every 20; at last twice within 16 ms. */
static void test_samples_between_looks(void **state)
{
    const char *run = make_run("looks", 30, 1.0);
    double least, most;
    char path[600];

    (void)state;
    snprintf(path, sizeof path, "%s/power.csv", run);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("attempt,time_ns,step,phase,read_us,rapl.package-0.uJ\n", f);
    for (long long i = 0; i <= 500; i++)
        fprintf(f, "1,%lld,1,forward,30,%lld\n", 1000000000 + 20000000 * i, i / 5 * 50000000);
    fprintf(f, "1,%lld,1,forward,30,%lld\n", 1000000000 + 20000000 * 500LL + 16000000,
            101 * 50000000LL);
    fclose(f);
    find_watts(run, &least, &most);
    assert_true(fabs(least - 500.0) < 1e-6 && fabs(most - 500.0) < 1e-6);
}

/* ---- data sets ----------------------------------------------------------------------------- */

/* Replace the first `from` behind the n-th line of a table. */
static void damage(const char *path, int line, const char *from, const char *to)
{
    char *text = read_text(path), *at_line = text;

    for (int i = 1; i < line; i++) at_line = strchr(at_line, '\n') + 1;
    char *found = strstr(at_line, from);
    assert_non_null(found);
    FILE *f = fopen(path, "w");
    fprintf(f, "%.*s%s%s", (int)(found - text), text, to, found + strlen(from));
    fclose(f);
    free(text);
}

static void test_data_set(void **state)
{
    static const struct {
        const char *file, *from, *to, *says;
        int line;
    } damages[] = {
        {"steps.csv", "1,7,1,1024", "1,7.5,1,1024", "steps.csv:8: step is '7.5': it must be whole",
         8},
        {"steps.csv", "1,7,1,1024", "1,,1,1024", "steps.csv:8: step is '': it must be there", 8},
        {"steps.csv", "1,7,1,1024", "1,7,1,many", "tokens is 'many': it must be a number", 8},
        {"steps.csv", "1,7,1,1024", "1,7,1,-4", "tokens is '-4': it is less", 8},
        {"steps.csv", "1,7,1,1024", "3,7,1,1024", "runs.csv has no such run", 8},
        {"steps.csv", "1,7,1,1024,", "1,7,1,", "31 cells, not 32", 8},
        {"evals.csv", "loss", "lost", "evals.csv:1: column 3 is 'lost', not 'loss'", 1},
        {"runs.csv", "\"A <fast>", "\"\"A <fast>", "runs.csv:2", 2},
        {"power.csv", "module", "\"module", "a quote is not closed", 3},
        {"power.csv", "module", "bananas", "rail is 'bananas': there is no such", 3},
        {"sensors.csv", ",module,", ",banana,", "rail is 'banana': there is no such", 2},
        {"schema.json", "\"minimum\"", "\"maximum\"", "schema.json: not the schema", 1},
    };

    (void)state;
    const char *const runs[] = {make_run("set-1", 40, 1.0), make_run("set-2", 40, 1.0)};
    char *set = strdup(at("set"));
    assert_int_equal(report(runs, 2, NULL, set), LS_OK);
    assert_int_equal(validate(set), LS_OK);
    assert_has(printed, "steps      80 lines of 32 columns");
    char *readme = read_text(at("set/README.md"));
    assert_has(readme, "never add");
    assert_has(readme, "| energy_module_j | J |");
    char *energy = read_text(at("set/codecarbon.csv")), *line = strchr(energy, '\n') + 1;
    for (int c = 0; c < 10; c++) line = strchr(line, ',') + 1;
    double seconds = 0.0, drawn[N_STEPS];
    draw_steps(6, 1.0, drawn);
    for (int i = 0; i < 40; i++) seconds += drawn[i];
    const double kwh = 400.0 * seconds / 3.6e6; /* the module's */
    assert_true(fabs(strtod(line, NULL) / kwh - 1.0) < 1e-4);
    free(energy);
    energy = read_text(at("set/energy.csv")); /* of the attempt that ended */
    assert_has(energy,
               "\n1,1,module,,10,4000,meter,0.5,2,,90\n1,1,module,forward,4,1700,meter,,,,\n"
               "1,2,module,,20,8000,meter,,,,\n1,2,module,eval,3,1200,meter,,,,\n2,1,");
    free(energy);
    energy = read_text(at("set/runs.csv"));
    assert_has(energy,
               ",A GPU,580.1,nvml0.module.limit 900.0 W now; grace.module-0.limit 1000.0 W now,");
    free(energy);
    free(readme);
    for (size_t d = 0; d < sizeof damages / sizeof damages[0]; d++) {
        char path[600];
        assert_int_equal(report(runs, 2, NULL, set), LS_OK);
        snprintf(path, sizeof path, "%s/%s", set, damages[d].file);
        damage(path, damages[d].line, damages[d].from, damages[d].to);
        if (validate(set) != LS_ERR_CORRUPT) fail_msg("damage %zu was not found", d);
        assert_has(ls_error(), damages[d].says);
    }
    assert_int_equal(report(runs, 2, NULL, set), LS_OK);
    assert_int_equal(unlink(at("set/evals.csv")), 0);
    assert_int_equal(validate(set), LS_ERR_IO);
    assert_int_equal(report(runs, 2, NULL, set), LS_OK);
    assert_int_equal(unlink(at("set/README.md")), 0);
    assert_int_equal(validate(set), LS_ERR_CORRUPT);
    assert_has(ls_error(), "README.md: missing");
    free(set);
}

/* ---- event files ---------------------------------------------------------------------------- */

typedef struct scalar {
    double time_s;
    int64_t step;
    char tag[80];
    float value;
} scalar;

static uint64_t read_little(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;) value = value << 8 | at[i];
    return value;
}

static uint64_t read_varint(const unsigned char **at)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        const unsigned char byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
}

/* Fields of an Event, a Summary and its Value by the keys of their .proto files: number x 8 + wire
 * type.  Lengths of what lies within are entered, not skipped. */
static void read_event(const unsigned char *at, const unsigned char *end, scalar *s)
{
    bool inside = false; /* a Summary's Value */

    while (at < end) {
        const uint64_t key = read_varint(&at);
        uint64_t n = 0;
        switch (key) {
        case 0x09: /* wall_time, double */
            n = read_little(at, 8);
            memcpy(&s->time_s, &n, sizeof n);
            at += 8;
            break;
        case 0x10: s->step = (int64_t)read_varint(&at); break;
        case 0x1a: /* file_version */
            n = read_varint(&at);
            snprintf(s->tag, sizeof s->tag, "%.*s", (int)n, (const char *)at);
            at += n;
            break;
        case 0x2a: /* summary */ assert_true(read_varint(&at) == (uint64_t)(end - at)); break;
        case 0x0a: /* its value; in that, the tag */
            n = read_varint(&at);
            if (!inside) {
                assert_true(n == (uint64_t)(end - at));
                inside = true;
                break;
            }
            snprintf(s->tag, sizeof s->tag, "%.*s", (int)n, (const char *)at);
            at += n;
            break;
        case 0x15: { /* simple_value, float */
            const uint32_t bits = (uint32_t)read_little(at, 4);
            memcpy(&s->value, &bits, sizeof bits);
            at += 4;
            break;
        }
        default: fail_msg("key 0x%llx", (unsigned long long)key);
        }
    }
    assert_true(at == end);
}

static uint32_t mask(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

/* All records of a file; how many. */
static int read_events(const char *path, scalar *scalars, int most)
{
    static unsigned char data[1 << 18];
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    const size_t bytes = fread(data, 1, sizeof data, f);
    fclose(f);
    assert_true(bytes < sizeof data);
    const unsigned char *at = data, *end = data + bytes;
    int n = 0;

    while (at < end) {
        const uint64_t length = read_little(at, 8);
        assert_true((uint64_t)(end - at) >= 16 + length && n < most);
        assert_int_equal(read_little(at + 8, 4), mask(ls_crc32c_table(0, at, 8)));
        assert_int_equal(read_little(at + 12 + length, 4),
                         mask(ls_crc32c_table(0, at + 12, length)));
        scalars[n] = (scalar){.step = -1};
        read_event(at + 12, at + 12 + length, &scalars[n++]);
        at += 16 + length;
    }
    return n;
}

static void assert_scalar(const scalar *scalars, int n, int64_t step, const char *tag, double value)
{
    for (int i = 0; i < n; i++)
        if (scalars[i].step == step && strcmp(scalars[i].tag, tag) == 0) {
            assert_true(scalars[i].value == (float)value);
            return;
        }
    fail_msg("no %s of step %lld", tag, (long long)step);
}

static void test_tensorboard(void **state)
{
    static scalar scalars[2000];
    const char *const run = make_run("board", 40, 1.0);
    char *folder = strdup(at("events"));
    const char *const twice[] = {run, run};
    const ls_report_options options = {
        .runs = twice, .n_runs = 2, .tensorboard = folder, .version = "0.1.0"};
    FILE *f = fmemopen(printed, sizeof printed, "w");

    (void)state;
    assert_non_null(f);
    assert_int_equal(ls_report(&options, f), LS_OK);
    fclose(f);
    assert_has(printed, "tensorboard --logdir");
    const int n =
        read_events(at("events/board/events.out.tfevents.1767323045.longspan.0"), scalars, 2000);
    assert_string_equal(scalars[0].tag, "brain.Event:2");
    assert_true(scalars[0].time_s == 1767323045.0);                      /* 2026-01-02T03:04:05Z */
    assert_scalar(scalars, n, 7, "loss/train", strtod("2.85714", NULL)); /* as recorded: %g */
    assert_scalar(scalars, n, 7, "loss/lr", 0.001);
    assert_scalar(scalars, n, 40, "loss/held_out", 2.5);
    assert_scalar(scalars, n, 40, "memory/host_bytes", 5e9);
    for (int i = 1; i < n; i++) {
        assert_true(scalars[i].time_s >= scalars[i - 1].time_s);
        assert_true(strstr(scalars[i].tag, "mfu") == NULL); /* not measured */
    }
    assert_true(scalars[n - 1].time_s > scalars[0].time_s + 1.0);
    assert_int_equal(
        read_events(at("events/board-2/events.out.tfevents.1767323045.longspan.0"), scalars, 2000),
        n);
    free(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_noise_band),
        cmocka_unit_test(test_few_steps_tell_nothing),
        cmocka_unit_test(test_warm_up_is_left_out),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_samples_between_looks),
        cmocka_unit_test(test_data_set),
        cmocka_unit_test(test_tensorboard),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
