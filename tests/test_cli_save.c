/*
 * test_cli_save.c - memory.save: every policy, and any mixture, gives the same run to the bit on
 * host and device memory; what `auto` chooses and keeps; what fits where a policy does not.  Under
 * sanitizers policies that differ from another in a number alone are left out, and the others run
 * on either kind of machine by turns.
 */
#include "cli_test.h"

#include "json_test.h"

enum { STEPS = 4 };

#ifdef LS_SANITIZED /* many times slower */
enum { BY_TURNS = 1 };
#else
enum { BY_TURNS = 0 };
#endif

/* Deep, with small chunks: what is saved outweighs what is at work. */
static const char deep_yaml[] = "model: deep.yaml\n"
                                "data: {train: data/train, valid: data/valid}\n"
                                "sequence: {tokens: 64, chunk: 16, query_block: 32}\n"
                                "batch: {sequences: 2, accumulate: 2}\n"
                                "optimizer: {lr: 3e-3, warmup_steps: 2}\n"
                                "memory: {threads: {compute: 1, optimizer: 1}}\n"
                                "steps: 4\n"
                                "seed: 7\n"
                                "eval: {every_steps: 2, tokens: 128}\n"
                                "checkpoint: {every_steps: 2, keep: 2}\n"
                                "output: out\n";

#define MIXED                                                                                      \
    "[{layers: 0-4, policy: o+x/2}, {layers: 6, policy: x+qkv+o}, {layers: 7-8, policy: x/2}"
#define MIXED_HOST MIXED "]"
#define MIXED_HBM  MIXED ", {layers: 9-11, policy: x+o, place: hbm}]"

static int make_deep(void **state)
{
    if (make_scratch(state) != 0) return -1;
    put_text(at("deep.run.yaml"), deep_yaml);
    put_changed(at("deep.yaml"), model_yaml, "num_hidden_layers: 2", "num_hidden_layers: 12");
    return 0;
}

/* "KEY=VALUE"; four live at a time. */
static const char *set(const char *key, const char *value)
{
    static char texts[4][512];
    static unsigned next;
    char *text = texts[next++ % 4];

    snprintf(text, sizeof texts[0], "%s=%s", key, value);
    return text;
}

#define TRAIN(code, hardware, save, output, ...)                                                   \
    RUN(code, "train", "deep.run.yaml", "--quiet", "--hardware", hardware, "--set",                \
        set("memory.save", save), "--set", set("output", output), __VA_ARGS__)

static cJSON *read_run(const char *output)
{
    cJSON *run = NULL;
    assert_ok(ls_json_read(at("%s/run.json", output), &run));
    return run;
}

static cJSON *plan(int code, const char *hardware, const char *save)
{
    const outcome *done = RUN(code, "plan", "deep.run.yaml", "--json", "--hardware", hardware,
                              "--set", set("memory.save", save));
    cJSON *json = cJSON_Parse(done->out);
    if (json == NULL) fail_msg("not JSON: %s", done->out);
    return json;
}

static double peak_of(const char *hardware, const char *save, const char *place)
{
    cJSON *json = plan(0, hardware, save);
    char path[64];

    snprintf(path, sizeof path, "peak_bytes.%s", place);
    const double bytes = number(json, path);
    cJSON_Delete(json);
    return bytes;
}

/* ---- the same bits --------------------------------------------------------------------------- */

static void test_every_policy(void **state)
{
    static const char *const policies[] = {"x",   "x+qkv+o", "o+x/5", "o+x/64", "x/3", MIXED_HOST,
#ifndef LS_SANITIZED
                                           "x+o", "o+x/2",   "o+x/4", "x/2"
#endif
    };
    static const char *const machines[] = {"cpu", "emulated-gh200"};

    (void)state;
    TRAIN(0, "cpu", "auto", "auto", "--set", "seed=7");
    for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++)
        for (size_t m = 0; m < 2; m++) {
            if (BY_TURNS && (p + m) % 2 != 0) continue;
            TRAIN(0, machines[m], policies[p], "other", "--set", "seed=7");
            cJSON *run = read_run("other");
            assert_text(run, "plan.save", policies[p][0] == '[' ? "mixed" : policies[p]);
            cJSON_Delete(run);
            assert_same_run("auto", "other", STEPS);
            assert_ok(ls_directory_remove(at("other")));
        }
}

/* The last layers' tensors stay: fewer bytes are copied and kept on the host, the bits are those.
 */
static void test_layers_in_device_memory(void **state)
{
    (void)state;
    TRAIN(0, "emulated-gh200", MIXED_HBM, "mixed", "--set", "memory.weights=stream");
    assert_same_run("auto", "mixed", STEPS);
    cJSON *run = read_run("mixed");
    assert_text(run, "plan.save", "mixed");
    const cJSON *layers = ls_json_find_path(run, "plan.save_layers");
    assert_int_equal(cJSON_GetArraySize(layers), 4);
    assert_text(cJSON_GetArrayItem(layers, 3), "layers", "9-11");
    assert_text(cJSON_GetArrayItem(layers, 3), "policy", "x+o");
    assert_text(cJSON_GetArrayItem(layers, 3), "place", "hbm");
    assert_null(cJSON_GetObjectItem(cJSON_GetArrayItem(layers, 2), "place"));
    cJSON_Delete(run);
    assert_true(peak_of("emulated-gh200", MIXED_HBM, "host") <
                peak_of("emulated-gh200", MIXED ", {layers: 9-11, policy: x+o}]", "host"));
    /* All of them: nothing of the class is left to leave. */
    assert_true(peak_of("emulated-gh200", "[{layers: 0-11, policy: x+o, place: hbm}]", "host") <
                peak_of("emulated-gh200", "x/8", "host"));
    cJSON *all = plan(0, "emulated-gh200", "[{layers: 0-11, policy: x+o, place: hbm}]");
    const cJSON *class;
    cJSON_ArrayForEach(class, ls_json_find_path(all, "classes"))
    {
        const char *name = ls_json_find_path(class, "class")->valuestring;
        if (strcmp(name, "x") != 0 && strcmp(name, "o") != 0) continue;
        assert_text(class, "place", "hbm");
        assert_text(class, "reason", "of the layers that memory.save puts here, and of others");
    }
    const outcome *done = RUN(0, "plan", "deep.run.yaml", "--json", "--hardware", "emulated-gh200",
                              "--set", "memory.save=x+o", "--set", "memory.place={x: hbm, o: hbm}");
    cJSON *by_class = cJSON_Parse(done->out);
    assert_true(number(all, "peak_bytes.hbm") == number(by_class, "peak_bytes.hbm"));
    cJSON_Delete(by_class);
    assert_text(all, "choices.save", "x+o"); /* one policy, wherever it is kept */
    cJSON_Delete(all);
}

/* ---- auto, and what is nearest ----------------------------------------------------------------
 */

/* Another machine, for plans. */
static void put_machine(const char *name, double host_bytes, double hbm_bytes, bool emulated)
{
    static const char profile[] =
        "name: small\n"
        "emulated: %s\n"
        "places:\n"
        "  - {kind: hbm, capacity_bytes: {value: %.0f, source: profile}}\n"
        "  - {kind: host, capacity_bytes: {value: %.0f, source: profile}}\n"
        "links:\n"
        "  - {from: host, to: hbm, bytes_per_s: {value: 10e9, source: profile}}\n";
    char text[1024];

    snprintf(text, sizeof text, profile, emulated ? "true" : "false", hbm_bytes, host_bytes);
    put_text(at("%s", name), text);
}

/* The least room of which 15 sixteenths hold so many bytes. */
static double room_for(double bytes)
{
    uint64_t room = (uint64_t)bytes;

    while (room - room / 16 < (uint64_t)bytes) room++;
    return (double)room;
}

static double flops_of(const cJSON *json)
{
    return number(cJSON_GetArrayItem(ls_json_find_path(json, "segments"), 0), "flops");
}

/* Host memory beside a GPU with room for a policy's plan and a sixteenth: `auto` is that policy, or
 * a richer one of which layers stay in device memory; with a byte less that is so. */
static void test_auto_goes_down_the_ladder(void **state)
{
    static const char *const ladder[] = {"x+qkv+o", "x+o", "o+x/2", "o+x/4", "x"};
    double bytes[5], flops[5];

    (void)state;
    put_machine("small.yaml", 1e12, 1e12, false);
    for (int p = 0; p < 5; p++) {
        cJSON *json = plan(0, "small.yaml", ladder[p]);
        bytes[p] = number(json, "peak_bytes.host");
        flops[p] = flops_of(json);
        cJSON_Delete(json);
    }
    for (int p = 0; p < 5; p++) {
        for (int less = 0; less < 2; less++) {
            put_machine("small.yaml", room_for(bytes[p]) - less, 1e12, false);
            cJSON *json = plan(0, "small.yaml", "auto");
            if (p == 0 && less == 0) assert_text(json, "choices.save", ladder[0]);
            assert_true(number(json, "peak_bytes.host") <= bytes[p] - less);
            assert_true(flops_of(json) >= flops[0] && flops_of(json) <= flops[p]);
            cJSON_Delete(json);
        }
    }
}

/* Two layers do: rows are what device memory holds. */
static cJSON *plan_rows(int code, const char *chunk, const char *query_block)
{
    const outcome *done =
        RUN(code, "plan", "deep.run.yaml", "--json", "--hardware", "small.yaml", "--set",
            "memory.save=x+o", "--set", "sequence.tokens=64k", "--set", "model=model.yaml", "--set",
            "batch.accumulate_order=sequence", "--set", set("sequence.chunk", chunk), "--set",
            set("sequence.query_block", query_block));
    return cJSON_Parse(done->out);
}

/* On a GPU blocks are large; where device memory has no room for these, the largest that fit. */
static void test_auto_rows_fit_device_memory(void **state)
{
    static const char *const sizes[][2] = {
        {"16k", "64k"}, {"8k", "32k"}, {"4k", "16k"}, {"2k", "8k"}};
    int chosen = 0, different = 0;

    (void)state;
    for (double hbm = 1e9; chosen < 3; hbm *= 0.7) {
        put_machine("small.yaml", 1e12, hbm, false);
        cJSON *json = plan_rows(0, "auto", "auto");
        const int before = chosen;
        while (number(json, "choices.chunk") < 16384 >> chosen) chosen++;
        assert_true(number(json, "choices.chunk") == 16384 >> chosen);
        assert_true(number(json, "choices.query_block") == 65536 >> chosen);
        cJSON_Delete(json);
        cJSON_Delete(plan_rows(0, sizes[chosen][0], sizes[chosen][1]));
        if (chosen == before) continue;
        different++;
        cJSON_Delete(plan_rows(3, sizes[chosen - 1][0], sizes[chosen - 1][1]));
    }
    assert_true(different >= 2);
    cJSON *json = plan_rows(0, "1k", "auto"); /* what is given stands */
    assert_true(number(json, "choices.chunk") == 1024);
    cJSON_Delete(json);
}

/* A policy without room: the one that keeps most of those that fit, in words and in numbers. */
static void test_nearest(void **state)
{
    static const char *const ladder[] = {"x+o", "o+x/2", "o+x/4", "o+x/8", "x", "x/2", "x/4"};
    double flops = 0;

    (void)state;
    for (int p = 0; p < 7; p++) {
        put_machine("small.yaml", 1e12, 1e12, false);
        cJSON *fitting = plan(0, "small.yaml", ladder[p]);
        const double host = number(fitting, "peak_bytes.host");
        put_machine("small.yaml", host, 1e12, false);
        cJSON *json = plan(3, "small.yaml", "x+qkv+o");
        assert_true(cJSON_IsFalse(cJSON_GetObjectItem(json, "fits")));
        assert_text(json, "nearest.save", ladder[p]);
        assert_true(number(json, "nearest.peak_bytes.host") == host);
        assert_true(number(json, "nearest.peak_bytes.hbm") == number(fitting, "peak_bytes.hbm"));
        const double extra = number(json, "nearest.extra_flops_fraction");
        const double asked =
            number(cJSON_GetArrayItem(ls_json_find_path(json, "segments"), 0), "flops");
        flops = number(cJSON_GetArrayItem(ls_json_find_path(fitting, "segments"), 0), "flops");
        assert_true(extra > 0 && extra == flops / asked - 1.0);
        cJSON_Delete(fitting);
        cJSON_Delete(json);
    }
    const outcome *done =
        RUN(3, "plan", "deep.run.yaml", "--hardware", "small.yaml", "--set", "memory.save=x+qkv+o");
    assert_says(done->out, "nearest: memory.save: x/4 fits: hbm ");
    assert_says(done->out, "% more arithmetic\n");
    assert_says(done->err, "; memory.save: x/4 fits: hbm ");
    put_machine("small.yaml", 1e12, 1000, false);
    cJSON *json = plan(3, "small.yaml", "x+o");
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(json, "nearest")));
    assert_says(ls_json_find_path(json, "why")->valuestring, "; no policy of memory.save fits");
    cJSON_Delete(json);
}

/* Training that has no room says what the plan says, and leaves nothing behind. */
static void test_training_without_room_names_the_nearest(void **state)
{
    static const char held[] = "[{layers: 0-11, policy: x+qkv+o, place: hbm}]";

    (void)state;
    put_machine("small.yaml", 1e12, 1000, true);
    cJSON *json = plan(3, "small.yaml", held); /* what it takes at the least */
    const double least = number(json, "peak_bytes.hbm");
    cJSON_Delete(json);
    put_machine("small.yaml", 1e12, least, true);
    TRAIN(75, "small.yaml", held, "roomy", "--stop-after", "1");
    put_machine("small.yaml", 1e12, least - 1, true);
    char *why = strdup(RUN(3, "plan", "deep.run.yaml", "--quiet", "--hardware", "small.yaml",
                           "--set", set("memory.save", held))
                           ->err);
    const outcome *done = TRAIN(3, "small.yaml", held, "none", "--stop-after", "1");
    assert_string_equal(done->err, why);
    assert_says(why, "hbm memory: the plan is short by ");
    assert_says(why, "; memory.save: x+qkv+o fits: hbm ");
    assert_says(why, "% more arithmetic\n");
    assert_false(is_there(at("none")));
    free(why);
}

/* Where device memory lacks room for the richest policy, training takes what plan printed: rows,
 * weights, the policy of each layer, what stays in device memory; and the bits are those of any. */
static void test_training_takes_what_plan_printed(void **state)
{
    static const char *const keys[] = {"chunk", "query_block", "weights", "save", "save_layers"};

    (void)state;
    put_machine("small.yaml", 1e12, 1000, true); /* what it takes at the least, all cut to blocks */
    cJSON *json = plan(3, "small.yaml", "x+o");
    put_machine("small.yaml", 1e12, number(json, "peak_bytes.hbm"), true);
    cJSON_Delete(json);
    json = plan(0, "small.yaml", "auto");
    assert_true(number(json, "search.measured") >= 2);
    TRAIN(0, "small.yaml", "auto", "printed", "--set", "seed=7");
    cJSON *run = read_run("printed");
    assert_true(number(run, "plan.host_bytes") == number(json, "peak_bytes.host"));
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        const cJSON *planned = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "choices"), keys[k]);
        const cJSON *taken = cJSON_GetObjectItem(cJSON_GetObjectItem(run, "plan"), keys[k]);
        if (strcmp(keys[k], "weights") == 0)
            taken = ls_json_find_path(run, "plan.placement.weights.mode");
        if (!cJSON_Compare(planned, taken, true)) fail_msg("%s differs", keys[k]);
    }
    cJSON_Delete(run);
    cJSON_Delete(json);
    assert_same_run("auto", "printed", STEPS);
}

/* The choice made at the start holds when there is more room later; --replan chooses anew. */
static void test_resume_keeps_the_choice(void **state)
{
    static const char streamed[] = "memory.weights=stream";

    (void)state;
    put_machine("small.yaml", 1e12, 1000, true); /* what it takes at the least, all cut to blocks */
    const outcome *done = RUN(3, "plan", "deep.run.yaml", "--json", "--hardware", "small.yaml",
                              "--set", "memory.save=x+o", "--set", streamed);
    cJSON *json = cJSON_Parse(done->out);
    put_machine("small.yaml", 1e12, number(json, "peak_bytes.hbm"), true);
    cJSON_Delete(json);
    TRAIN(75, "small.yaml", "auto", "kept", "--set", streamed, "--stop-after", "1");
    cJSON *run = read_run("kept");
    assert_text(run, "plan.save", "x+o");
    cJSON_Delete(run);
    cJSON *saved = NULL;
    assert_ok(ls_json_read(at("kept/checkpoints/step-00000001/state.json"), &saved));
    assert_text(saved, "choices.save", "x+o");
    cJSON_Delete(saved);

    put_machine("small.yaml", 1e12, 1e12, true);
    TRAIN(75, "small.yaml", "auto", "kept", "--set", streamed, "--resume", "--stop-after", "2");
    run = read_run("kept");
    assert_text(run, "plan.save", "x+o");
    cJSON_Delete(run);
    TRAIN(0, "small.yaml", "auto", "kept", "--set", streamed, "--resume", "--replan");
    run = read_run("kept");
    assert_text(run, "plan.save", "x+qkv+o");
    cJSON_Delete(run);
    assert_same_run("auto", "kept", STEPS);
}

/* A list, places and all, goes through a checkpoint; other lists need --replan. */
static void test_resume_keeps_a_list(void **state)
{
    (void)state;
    TRAIN(75, "emulated-gh200", MIXED_HBM, "list", "--stop-after", "1");
    assert_says(TRAIN(2, "emulated-gh200", MIXED_HOST, "list", "--resume")->err,
                "memory.save differs from the run");
    TRAIN(75, "emulated-gh200", MIXED_HBM, "list", "--resume", "--stop-after", "2");
    cJSON *run = read_run("list");
    const cJSON *last = cJSON_GetArrayItem(ls_json_find_path(run, "plan.save_layers"), 3);
    assert_text(last, "layers", "9-11");
    assert_text(last, "place", "hbm");
    assert_true(number(run, "plan.host_bytes") == peak_of("emulated-gh200", MIXED_HBM, "host"));
    cJSON_Delete(run);
    TRAIN(0, "cpu", MIXED_HOST, "list", "--resume", "--replan");
    assert_same_run("auto", "list", STEPS);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void test_refusals(void **state)
{
    (void)state;
    assert_says(TRAIN(2, "cpu", "[{layers: 3, policy: x+o}, {layers: 8-12, policy: x}]", "none",
                      "--set", "seed=7")
                    ->err,
                "memory.save[1].layers: 8-12, but the model has 12 layers; allowed: 0 to 11");
    assert_says(TRAIN(2, "cpu", MIXED_HBM, "none", "--set", "seed=7")->err,
                "memory.save: place hbm of layers from 9 on, but this hardware has no device "
                "memory; allowed: host");
    assert_says(TRAIN(2, "cpu", "x+o/2", "none", "--set", "seed=7")->err,
                "--set memory.save: 'x+o/2' is not known");
    assert_false(is_there(at("none")));
    /* Nothing is kept for backward: neither is refused. */
    RUN(0, "eval", "deep.run.yaml", "--set", "output=auto", "--hardware", "cpu", "--set",
        set("memory.save", MIXED_HBM));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_policy),
        cmocka_unit_test(test_layers_in_device_memory),
        cmocka_unit_test(test_auto_goes_down_the_ladder),
        cmocka_unit_test(test_auto_rows_fit_device_memory),
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_training_without_room_names_the_nearest),
        cmocka_unit_test(test_training_takes_what_plan_printed),
        cmocka_unit_test(test_resume_keeps_the_choice),
        cmocka_unit_test(test_resume_keeps_a_list),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, make_deep, remove_scratch);
}
