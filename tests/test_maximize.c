/*
 * test_maximize.c - longspan plan --maximize tokens finds what trying every length finds, on
 * machines of a few MiB whose host or device memory is the limit.  Under sanitizers, where every
 * process starts slowly, only lengths around the longest and every eighth are tried.
 */
#include "cli_test.h"

#include <cjson/cJSON.h>

#include "json.h"

#define BLOCK         16 /* of queries */
#define BLOCKS_BEYOND 2  /* tried after the first that does not fit */

#ifdef LS_SANITIZED
#define TRIED_EVERY 8
#define HELD_TRIED  1 /* policies that hold layers */
#else
#define TRIED_EVERY 1
#define HELD_TRIED  2
#endif

static void put_machine(const char *file, const char *hbm, const char *host)
{
    char text[512];

    snprintf(text, sizeof text,
             "name: tiny\n"
             "about: a machine of a few MiB\n"
             "places:\n"
             "  - kind: hbm\n"
             "    capacity_bytes: {value: %s, source: profile}\n"
             "  - kind: host\n"
             "    capacity_bytes: {value: %s, source: profile}\n"
             "links:\n"
             "  - from: host\n"
             "    to: hbm\n"
             "    bytes_per_s: {value: 50e9, source: profile}\n"
             "    coherent: {value: false, source: profile}\n",
             hbm, host);
    put_text(at("%s", file), text);
}

static const char *model = "model=model.yaml", *weights = "memory.weights=auto";

#define PLAN(...)                                                                                  \
    finish(START("plan", "run.yaml", "--quiet", "--json", "--set", "sequence.query_block=16",      \
                 "--set", "sequence.chunk=8", "--set", "batch.sequences=1", "--set", model,        \
                 "--set", weights, __VA_ARGS__))

static cJSON *parse(const outcome *done)
{
    cJSON *json = cJSON_Parse(done->out);
    if (json == NULL) fail_msg("not JSON: '%s' %s", done->out, done->err);
    return json;
}

static double number(const cJSON *json, const char *path)
{
    const cJSON *item = ls_json_find_path(json, path);
    if (!cJSON_IsNumber(item)) fail_msg("no number %s", path);
    return item->valuedouble;
}

/* The plan of one length. */
static cJSON *plan_length(const char *machine, const char *save, int64_t tokens)
{
    char policy[192], length[64];

    snprintf(policy, sizeof policy, "memory.save=%s", save);
    snprintf(length, sizeof length, "sequence.tokens=%lld", (long long)tokens);
    const outcome *done = PLAN("--hardware", machine, "--set", policy, "--set", length);
    if (done->code != 0 && done->code != 3) fail_msg("exit code %d: %s", done->code, done->err);
    return parse(done);
}

static bool fits(const char *machine, const char *save, int64_t blocks)
{
    cJSON *plan = plan_length(machine, save, blocks * BLOCK);
    const bool fit = cJSON_IsTrue(cJSON_GetObjectItem(plan, "fits"));

    cJSON_Delete(plan);
    return fit;
}

/* By trying one length after the other: up to the longest they fit, and what is longer does not. */
static void try_all(const char *machine, const char *save, int64_t longest)
{
    for (int64_t blocks = 1; blocks <= longest + 1 + BLOCKS_BEYOND; blocks++) {
        const bool fit = blocks <= longest;
        if (blocks + 1 < longest && blocks % TRIED_EVERY != 0) continue;
        if (fits(machine, save, blocks) != fit)
            fail_msg("%s on %s: %lld tokens %s, the longest is said to be %lld", save, machine,
                     (long long)(blocks * BLOCK), fit ? "do not fit" : "fit",
                     (long long)(longest * BLOCK));
    }
}

/* memory.save of a row: a policy, or a list where the last of the two layers are held. */
static const char *name_saves(const cJSON *longest, char text[128])
{
    const char *save = cJSON_GetObjectItem(longest, "save")->valuestring;
    const int held = (int)number(longest, "hbm_layers");

    snprintf(text, 128, "%s", save);
    if (held == 1)
        snprintf(text, 128, "[{layers: 0, policy: %s}, {layers: 1, policy: %s, place: hbm}]", save,
                 save);
    if (held == 2) snprintf(text, 128, "[{layers: 0-1, policy: %s, place: hbm}]", save);
    assert_in_range(held, 0, 2);
    return text;
}

/* Of that length, what is said is what its plan says. */
static void assert_is_planned(const char *machine, const cJSON *longest)
{
    char text[128];
    const char *save = name_saves(longest, text);
    cJSON *plan = plan_length(machine, save, (int64_t)number(longest, "tokens"));

    assert_true(number(plan, "peak_bytes.hbm") == number(longest, "peak_bytes.hbm"));
    assert_true(number(plan, "peak_bytes.host") == number(longest, "peak_bytes.host"));
    assert_string_equal(ls_json_find_path(plan, "choices.weights")->valuestring,
                        cJSON_GetObjectItem(longest, "weights")->valuestring);
    cJSON_Delete(plan);
}

/* Returns how many policies have a length; n_held: those that hold layers in device memory, each
 * longer than without. */
static int compare(const char *machine, int code, int *n_held)
{
    const cJSON *longest;
    double without[2] = {0, 0}; /* tokens of o+x/4, x/4 */
    int n = 0;
    const outcome *done = PLAN("--maximize", "tokens", "--hardware", machine);

    if (done->code != code) fail_msg("exit code %d: %s", done->code, done->err);
    cJSON *json = parse(done);
    assert_true(number(json, "query_block") == BLOCK && number(json, "chunk") == 8);
    cJSON_ArrayForEach(longest, cJSON_GetObjectItem(json, "maximize"))
    {
        char text[128];
        const char *save = name_saves(longest, text);
        const char *policy = cJSON_GetObjectItem(longest, "save")->valuestring;
        const double tokens = number(longest, "tokens");
        double *plain = &without[policy[0] == 'x'];
        if (number(longest, "hbm_layers") > 0) {
            assert_true(tokens > *plain);
            (*n_held)++;
        } else if (strstr(policy, "x/4") != NULL) {
            *plain = tokens;
        }
        try_all(machine, save, (int64_t)tokens / BLOCK);
        if (tokens > 0)
            assert_is_planned(machine, longest);
        else
            assert_true(cJSON_IsNull(cJSON_GetObjectItem(longest, "peak_bytes")));
        n += tokens > 0 && number(longest, "hbm_layers") == 0;
    }
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "maximize")), 5 + *n_held);
    cJSON_Delete(json);
    return n;
}

static void test_host_is_the_limit(void **state)
{
    (void)state;
    put_machine("host.yaml", "4MiB", "610KiB");
    int n_held = 0;
    assert_int_equal(compare("host.yaml", 0, &n_held), 5);
    assert_int_equal(n_held, 2);
}

static void test_device_is_the_limit(void **state)
{
    (void)state;
    put_machine("device.yaml", "225KiB", "4MiB");
    int n_held = 0;
    assert_int_equal(compare("device.yaml", 0, &n_held), 5);
    assert_int_equal(n_held, 0);
}

static void test_nothing_has_room(void **state)
{
    (void)state;
    put_machine("none.yaml", "4MiB", "560KiB");
    int n_held = 0;
    assert_int_equal(compare("none.yaml", 3, &n_held), 0);
    assert_says(PLAN("--maximize", "tokens", "--hardware", "none.yaml")->err,
                "one query block of 16 tokens do not fit tiny");
}

/* ---- how many layers are held -------------------------------------------------------------- */

#define LAYERS      12
#define LAYERS_TEXT "12"
#define GROUP       4 /* of x/4 and o+x/4: layers are held in groups */

/* Whether a plan of the deep model fits that holds the saves of its last layers. */
static bool fits_held(const char *machine, const char *save, int held, int64_t blocks)
{
    char text[192];

    snprintf(text, sizeof text,
             "[{layers: 0-%d, policy: %s}, {layers: %d-%d, policy: %s, place: hbm}]",
             LAYERS - held - 1, save, LAYERS - held, LAYERS - 1, save);
    if (held == LAYERS)
        snprintf(text, sizeof text, "[{layers: 0-%d, policy: %s, place: hbm}]", LAYERS - 1, save);
    if (held == 0) snprintf(text, sizeof text, "%s", save);
    return fits(machine, text, blocks);
}

/* What is held in device memory is had from nothing else's room: as few groups as this length
 * fits with, and no number of them fits one that is longer. */
static void assert_holds_no_more(const char *machine, const cJSON *longest)
{
    const char *save = cJSON_GetObjectItem(longest, "save")->valuestring;
    const int held = (int)number(longest, "hbm_layers");
    const int64_t blocks = (int64_t)number(longest, "tokens") / BLOCK;

    assert_int_equal(held % GROUP, 0);
    for (int fewer = 0; fewer < held; fewer += GROUP)
        if (fits_held(machine, save, fewer, blocks))
            fail_msg("%s: %lld blocks fit with %d layers held, not only with %d", save,
                     (long long)blocks, fewer, held);
    assert_true(fits_held(machine, save, held, blocks));
    for (int any = 0; any <= LAYERS; any += GROUP)
        if (fits_held(machine, save, any, blocks + 1))
            fail_msg("%s: %lld blocks fit with %d layers held, not only %lld", save,
                     (long long)blocks + 1, any, (long long)blocks);
}

/* Host memory for few of the saves, device memory for some groups of layers. */
static void test_holds_no_more_than_needed(void **state)
{
    const cJSON *longest;
    int n_held = 0;

    (void)state;
    put_changed(at("deep.yaml"), model_yaml, "num_hidden_layers: 2",
                "num_hidden_layers: " LAYERS_TEXT);
    put_machine("deep-machine.yaml", "600KiB", "2200KiB");
    model = "model=deep.yaml";
    weights = "memory.weights=resident";
    cJSON *json = parse(PLAN("--maximize", "tokens", "--hardware", "deep-machine.yaml"));
    cJSON_ArrayForEach(longest, cJSON_GetObjectItem(json, "maximize"))
    {
        const int held = (int)number(longest, "hbm_layers");
        if (held == 0) continue;
        n_held++;
        assert_true(held < LAYERS);
        if (n_held <= HELD_TRIED) assert_holds_no_more("deep-machine.yaml", longest);
    }
    cJSON_Delete(json);
    model = "model=model.yaml";
    weights = "memory.weights=auto";
    assert_int_equal(n_held, 2);
}

static void test_table_and_usage(void **state)
{
    (void)state;
    put_machine("host.yaml", "4MiB", "610KiB");
    const outcome *done = RUN(0, "plan", "run.yaml", "--maximize", "tokens", "--hardware",
                              "host.yaml", "--set", "sequence.query_block=16");
    assert_says(done->out, "whole query blocks of 16");
    assert_says(done->out, "\n  o+x/4 ");
    assert_says(done->out, "\n  available ");
    assert_says(RUN(2, "plan", "run.yaml", "--maximize", "speed")->err, "allowed: tokens");
    assert_says(RUN(2, "plan", "run.yaml", "--maximize", "tokens", "--print")->err, "not two");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_is_the_limit), cmocka_unit_test(test_device_is_the_limit),
        cmocka_unit_test(test_nothing_has_room),  cmocka_unit_test(test_holds_no_more_than_needed),
        cmocka_unit_test(test_table_and_usage),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
