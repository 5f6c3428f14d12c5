/*
 * test_cli_hardware.c - one run file on different hardware: the same losses and checkpoints to the
 * bit, within the device memory that the profile gives; and what hardware cannot do is refused.
 */
#include "cli_test.h"

#include <cjson/cJSON.h>

#include "json.h"

enum { STEPS = 6 };

/* Deep, with small chunks: what is saved outweighs what is at work. */
static const char deep_yaml[] = "model: deep.yaml\n"
                                "data: {train: data/train, valid: data/valid}\n"
                                "sequence: {tokens: 64, chunk: 16, query_block: 32}\n"
                                "batch: {sequences: 2, accumulate: 2}\n"
                                "optimizer: {lr: 3e-3, warmup_steps: 2}\n"
                                "memory: {save: x+qkv+o, threads: {compute: 1, optimizer: 1}}\n"
                                "steps: 6\n"
                                "seed: 7\n"
                                "eval: {every_steps: 3, tokens: 256}\n"
                                "checkpoint: {every_steps: 2, keep: 2}\n"
                                "output: host\n";

static int make_deep(void **state)
{
    if (make_scratch(state) != 0) return -1;
    put_text(at("deep-run.yaml"), deep_yaml);
    put_changed(at("deep.yaml"), model_yaml, "num_hidden_layers: 2", "num_hidden_layers: 12");
    return 0;
}

static void train(const char *hardware, const char *weights, const char *slots, const char *output)
{
    const char *const sets[] = {at("hardware=%s", hardware), at("memory.weights=%s", weights),
                                at("memory.ring_slots=%s", slots), at("output=%s", output)};
    const size_t folder = strlen(scratch) + 1; /* at() is for paths; here only a place for text */
    RUN(0, "train", "deep-run.yaml", "--quiet", "--set", sets[0] + folder, "--set",
        sets[1] + folder, "--set", sets[2] + folder, "--set", sets[3] + folder);
}

static double number_of(const char *text, const char *path)
{
    cJSON *json = cJSON_Parse(text);
    const cJSON *item = json != NULL ? ls_json_find_path(json, path) : NULL;

    if (!cJSON_IsNumber(item)) fail_msg("no number %s in %s", path, text);
    const double value = item->valuedouble;
    cJSON_Delete(json);
    return value;
}

static void assert_run_has(const char *output, const char *path, const char *text)
{
    cJSON *run = NULL;

    assert_ok(ls_json_read(at("%s/run.json", output), &run));
    const cJSON *item = ls_json_find_path(run, path);
    if (!cJSON_IsString(item)) fail_msg("run.json has no text %s", path);
    assert_string_equal(item->valuestring, text);
    cJSON_Delete(run);
}

/* ---- the same bits --------------------------------------------------------------------------- */

static void test_every_profile_and_mode(void **state)
{
    static const char *const profiles[] = {"emulated-gh200", "emulated-h200-pcie"};
    static const char *const modes[][2] = {{"auto", "auto"},   {"resident", "auto"},
                                           {"direct", "auto"}, {"stream", "2"},
                                           {"stream", "3"},    {"stream", "7"}};

    (void)state;
    train("cpu", "auto", "auto", "host");
    assert_run_has("host", "hardware", "cpu");
    for (size_t p = 0; p < sizeof profiles / sizeof profiles[0]; p++)
        for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
            train(profiles[p], modes[m][0], modes[m][1], "device");
            assert_run_has("device", "hardware", profiles[p]);
            assert_run_has("device", "plan.placement.weights.mode",
                           m == 0 ? "resident" : modes[m][0]);
            assert_same_run("host", "device", STEPS);
            assert_ok(ls_directory_remove(at("device")));
        }
}

/* A profile whose device memory is half of what keeping everything there would take. */
static void put_half_profile(void)
{
    static const char profile[] =
        "name: half\n"
        "emulated: true\n"
        "places:\n"
        "  - {kind: hbm, capacity_bytes: {value: %.0f, source: profile}}\n"
        "  - {kind: host}\n"
        "links:\n"
        "  - {from: host, to: hbm, bytes_per_s: {value: 10e9, source: profile}}\n";
    char text[1024];
    const outcome *all =
        RUN(0, "plan", "deep-run.yaml", "--json", "--hardware", "emulated-gh200", "--set",
            "memory.weights=resident", "--set", "memory.place={x: hbm, o: hbm, kv: hbm}");

    snprintf(text, sizeof text, profile, number_of(all->out, "peak_bytes.hbm") / 2);
    put_text(at("half.yaml"), text);
}

static void test_half_of_the_memory(void **state)
{
    (void)state;
    put_half_profile();
    const outcome *plan = RUN(0, "plan", "deep-run.yaml", "--json", "--hardware", "half.yaml");
    const double planned = number_of(plan->out, "peak_bytes.hbm");
    assert_true(planned <= number_of(plan->out, "available_bytes.hbm"));
    train("half.yaml", "stream", "auto", "device");
    assert_same_run("host", "device", STEPS);
    const outcome *full = RUN(3, "train", "deep-run.yaml", "--hardware", "half.yaml", "--set",
                              "memory.weights=resident", "--set",
                              "memory.place={x: hbm, o: hbm, kv: hbm}", "--set", "output=full");
    assert_says(full->err, "hbm");
    assert_false(is_there(at("full")));
    assert_ok(ls_directory_remove(at("device")));
}

/* Copies are counted, and only where there are any. */
static void test_the_record_counts_copies(void **state)
{
    (void)state;
    train("emulated-gh200", "stream", "2", "device");
    char *device = need_bytes(at("device/record.jsonl"), NULL);
    char *host = need_bytes(at("host/record.jsonl"), NULL);
    *strchr(device, '\n') = '\0';
    *strchr(host, '\n') = '\0';
    assert_true(number_of(device, "bytes.copy_in") > 0);
    assert_true(number_of(device, "bytes.copy_out") > 0);
    assert_true(number_of(device, "peak_bytes.hbm") > 0);
    assert_says(host, "\"bytes\":{\"copy_in\":null,\"copy_out\":null,");
    assert_says(host, "\"peak_bytes\":{\"hbm\":null,");
    free(device);
    free(host);
    assert_ok(ls_directory_remove(at("device")));
}

#define STREAMED                                                                                   \
    "--hardware", "emulated-gh200", "--set", "memory.weights=stream", "--set",                     \
        "memory.ring_slots=2", "--set", "steps=1", "--set", "optimizer.warmup_steps=0", "--set",   \
        "output=one"

/* What a plan copies in a step is what a step then copies. */
static void test_planned_copies(void **state)
{
    cJSON *plan = cJSON_Parse(RUN(0, "plan", "deep-run.yaml", "--json", STREAMED)->out);
    const cJSON *step = cJSON_GetArrayItem(ls_json_find_path(plan, "segments"), 0);

    (void)state;
    assert_non_null(step);
    RUN(0, "train", "deep-run.yaml", "--quiet", STREAMED);
    char *record = need_bytes(at("one/record.jsonl"), NULL);
    *strchr(record, '\n') = '\0';
    assert_true(number_of(record, "bytes.copy_in") ==
                ls_json_find_path(step, "copy_in_bytes")->valuedouble);
    assert_true(number_of(record, "bytes.copy_out") ==
                ls_json_find_path(step, "copy_out_bytes")->valuedouble);
    free(record);
    cJSON_Delete(plan);
    assert_ok(ls_directory_remove(at("one")));
}

/* Stop and resume keep the choice that was made; another needs --replan, and changes no bit. */
static void test_resume(void **state)
{
    (void)state;
    RUN(75, "train", "deep-run.yaml", "--quiet", "--stop-after", "3", "--set", "output=device",
        "--hardware", "emulated-gh200", "--set", "memory.weights=stream");
    const outcome *other = RUN(2, "train", "deep-run.yaml", "--resume", "--set", "output=device",
                               "--hardware", "cpu", "--set", "memory.weights=stream");
    assert_says(other->err, "hardware");
    RUN(75, "train", "deep-run.yaml", "--quiet", "--resume", "--stop-after", "5", "--set",
        "output=device", "--hardware", "emulated-gh200", "--set", "memory.weights=stream");
    assert_run_has("device", "plan.placement.weights.mode", "stream");
    RUN(0, "train", "deep-run.yaml", "--quiet", "--resume", "--replan", "--set", "output=device",
        "--hardware", "emulated-h200-pcie");
    assert_run_has("device", "plan.placement.weights.mode", "resident");
    assert_same_run("host", "device", STEPS);
    RUN(0, "eval", "deep-run.yaml", "--json", "--set", "output=device");
    char *on_host =
        strdup(finish(START("eval", "deep-run.yaml", "--json", "--set", "output=device"))->out);
    const outcome *on_device = RUN(0, "eval", "deep-run.yaml", "--json", "--set", "output=device",
                                   "--hardware", "emulated-gh200");
    assert_string_equal(on_device->out, on_host);
    free(on_host);
}

#define SAMPLED "eval", "deep-run.yaml", "--set", "output=host", "--sample", "20"

static void test_samples(void **state)
{
    char *on_host = strdup(RUN(0, SAMPLED, "--hardware", "cpu")->out);

    (void)state;
    assert_string_equal(RUN(0, SAMPLED, "--hardware", "emulated-gh200")->out, on_host);
    assert_string_equal(
        RUN(0, SAMPLED, "--hardware", "emulated-h200-pcie", "--set", "memory.weights=stream")->out,
        on_host);
    free(on_host);
}

#define UPDATED(n) "--set", "optimizer.device_layers=" #n, "--set", "output=updated"

/* Layers updated where they compute: checkpoints hold their states, and a resumed run may have
 * others updated there. */
static void test_device_layers(void **state)
{
    (void)state;
    RUN(75, "train", "deep-run.yaml", "--quiet", "--stop-after", "3", UPDATED(5), "--hardware",
        "emulated-gh200", "--set", "memory.weights=stream");
    const outcome *other = RUN(2, "train", "deep-run.yaml", "--resume", UPDATED(4), "--hardware",
                               "emulated-gh200", "--set", "memory.weights=stream");
    assert_says(other->err, "optimizer.device_layers");
    RUN(75, "train", "deep-run.yaml", "--quiet", "--resume", "--stop-after", "5", UPDATED(5),
        "--hardware", "emulated-gh200", "--set", "memory.weights=stream");
    RUN(0, "train", "deep-run.yaml", "--quiet", "--resume", "--replan", UPDATED(12), "--hardware",
        "emulated-h200-pcie");
    assert_same_run("host", "updated", STEPS);
    assert_ok(ls_directory_remove(at("updated")));
    RUN(0, "train", "deep-run.yaml", "--quiet", UPDATED(7), "--hardware", "cpu");
    assert_same_run("host", "updated", STEPS);
    assert_ok(ls_directory_remove(at("updated")));
}

#define PLANNED(n)                                                                                 \
    RUN(0, "plan", "deep-run.yaml", "--json", "--hardware", "gh200-96gb-480gb", "--set",           \
        "memory.weights=resident", "--set", "optimizer.device_layers=" #n)

/* The plan has the updates on another lane, and the states in another memory beside. */
static void test_device_layers_are_costed(void **state)
{
    static const char *const less = "lane_busy_s.host";
    static const char *const more[] = {"lane_busy_s.compute", "peak_bytes.hbm"};
    char *none = strdup(PLANNED(0)->out), *all = strdup(PLANNED(12)->out);

    (void)state;
    assert_true(number_of(all, less) < number_of(none, less));
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        assert_true(number_of(all, more[i]) > number_of(none, more[i]));
    assert_true(number_of(all, "peak_bytes.host") == number_of(none, "peak_bytes.host"));
    free(none);
    free(all);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void test_refusals(void **state)
{
    (void)state;
    put_changed(at("new.yaml"), deep_yaml, "output: host", "output: none");
    assert_says(RUN(2, "train", "new.yaml", "--hardware", "abacus")->err, "abacus");
    assert_says(RUN(2, "plan", "new.yaml", "--hardware", "none/such.yaml")->err, "such.yaml");
    assert_says(RUN(2, "train", "new.yaml", "--set", "memory.ring_slots=65")->err,
                "allowed: 1 to 64");
    assert_says(
        RUN(2, "train", "new.yaml", "--hardware", "cpu", "--set", "memory.weights=stream")->err,
        "memory.weights: stream");
    assert_says(RUN(2, "train", "new.yaml", "--hardware", "emulated-gh200", "--set",
                    "memory.place={m: hbm}")
                    ->err,
                "memory.place.m: hbm");
    assert_says(RUN(2, "plan", "new.yaml", "--hardware", "emulated-gh200", "--set",
                    "memory.place={x: nvme}")
                    ->err,
                "memory.place.x: nvme, but hardware profile emulated-gh200 (");
    assert_says(RUN(2, "plan", "new.yaml", "--hardware", "emulated-gh200", "--set",
                    "optimizer.device_layers=13")
                    ->err,
                "optimizer.device_layers: 13, but the model has 12 layers; allowed: 0 to 12");
    assert_says(RUN(2, "plan", "new.yaml", "--set", "optimizer.device_layers=1", "--set",
                    "optimizer.moments=q8")
                    ->err,
                "optimizer.device_layers: 1, but a GPU updates moments in fp32 alone; allowed: 0, "
                "or optimizer.moments: fp32");
    assert_false(is_there(at("none")));
}

/* A machine that is not here: its plan can be had, but nothing runs. */
static void test_other_machines(void **state)
{
    const outcome *plan;

    (void)state;
    plan = RUN(0, "plan", "deep-run.yaml", "--hardware", "gh200-96gb-480gb", "--set",
               "memory.weights=resident");
    assert_says(plan->out, "hardware: gh200-96gb-480gb");
    assert_says(plan->out, "memory: hbm\n");
    assert_says(plan->out, "resident");
    const outcome *refused = finish(
        START("train", "deep-run.yaml", "--hardware", "gh200-96gb-480gb", "--set", "output=none"));
    assert_true(refused->code == 1 || refused->code == 2);
    assert_says(refused->err, "gh200-96gb-480gb");
    assert_false(is_there(at("none")));
}

/* ---- a GPU that is here ---------------------------------------------------------------------- */

#if LS_HAVE_CUDA
#define WHY_UNUSED "the CUDA runtime finds no driver" /* the library of this test is none to it */
#else
#define WHY_UNUSED "this build has no CUDA device"
#endif

static const char unused_gpu[] =
    "GPU gpu0 (NVIDIA GH200 480GB) found, but " WHY_UNUSED ": computing on the CPU";

static const char *first_warning(const char *output)
{
    static char text[512];
    cJSON *run = NULL;

    assert_ok(ls_json_read(at("%s/run.json", output), &run));
    const cJSON *item = cJSON_GetArrayItem(ls_json_find_path(run, "warnings"), 0);
    snprintf(text, sizeof text, "%s", item != NULL ? item->valuestring : "");
    cJSON_Delete(run);
    return text;
}

/* auto takes the CPU and says so, wherever a user may look; who asks for the CPU knows. */
static void test_gpu_of_no_use(void **state)
{
    (void)state;
    assert_int_equal(setenv("LD_LIBRARY_PATH", LS_BINARY_DIR "/fake_driver", 1), 0);
    assert_says(RUN(0, "train", "deep-run.yaml", "--set", "output=auto")->err, unused_gpu);
    assert_says(RUN(0, "eval", "deep-run.yaml", "--set", "output=auto")->err, unused_gpu);
    const outcome *plan = RUN(0, "plan", "deep-run.yaml");
    assert_says(plan->err, unused_gpu);
    assert_says(plan->out, "hardware: cpu: chosen by auto: GPU gpu0");
    assert_null(strstr(RUN(0, "plan", "deep-run.yaml", "--hardware", "cpu")->err, "GPU"));
    assert_null(strstr(RUN(0, "plan", "deep-run.yaml", "--quiet")->err, "GPU"));
    assert_int_equal(unsetenv("LD_LIBRARY_PATH"), 0);
    assert_run_has("auto", "hardware", "cpu");
    assert_string_equal(first_warning("auto"), unused_gpu);
    assert_string_equal(first_warning("host"), "");
    assert_same_run("host", "auto", STEPS);
    assert_ok(ls_directory_remove(at("auto")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_profile_and_mode),
        cmocka_unit_test(test_half_of_the_memory),
        cmocka_unit_test(test_the_record_counts_copies),
        cmocka_unit_test(test_planned_copies),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_device_layers),
        cmocka_unit_test(test_device_layers_are_costed),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_other_machines),
        cmocka_unit_test(test_gpu_of_no_use),
    };
    return cmocka_run_group_tests(tests, make_deep, remove_scratch);
}
