/*
 * test_cli_nvme.c - tensors in a file of a disk: the same losses and checkpoints to the bit, in the
 * plan and the record a place of its own, and nothing left of it, however a run ends; a disk that
 * is not there or too small is refused before anything begins.
 */
#define _DEFAULT_SOURCE /* NOLINT: the libc's name; for getrusage() and kill() */
#include "cli_test.h"

#include <sys/resource.h>

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
                                "checkpoint: {every_steps: 3, keep: 2}\n"
                                "output: host\n";

/* ---- profiles with a disk -------------------------------------------------------------------- */

#define NVME "nvme: {path: disk}\n"
#define RATES                                                                                      \
    "bytes_per_s: {value: 6e9, source: assumed}, reverse_bytes_per_s: {value: 4e9, source: "       \
    "assumed}"

static const char cpu_yaml[] = "name: cpu-disk\n"
                               "places: [{kind: nvme}]\n" NVME;

static const char small_yaml[] =
    "name: small\n"
    "places: [{kind: nvme, capacity_bytes: {value: 64KiB, source: profile}}]\n" NVME;

/* A profile of the repository with a place more, the rates of its link, and `end`. */
static void put_profile(const char *file, const char *like, const char *rates, const char *end)
{
    static char text[16384], source[512];

    snprintf(source, sizeof source, LS_SOURCE_DIR "/configs/hardware/%s.yaml", like);
    char *profile = need_bytes(source, NULL);
    char *links = strstr(profile, "links:\n");
    assert_non_null(links);
    *links = '\0';
    snprintf(text, sizeof text, "%s  - {kind: nvme}\nlinks:\n%s%s%s", profile, rates,
             links + strlen("links:\n"), end);
    put_text(at("%s", file), text);
    free(profile);
}

static int make_deep(void **state)
{
    if (make_scratch(state) != 0) return -1;
    put_text(at("deep-run.yaml"), deep_yaml);
    put_changed(at("deep.yaml"), model_yaml, "num_hidden_layers: 2", "num_hidden_layers: 12");
    assert_ok(ls_directory_make(at("disk")));
    put_text(at("cpu.yaml"), cpu_yaml);
    put_text(at("small.yaml"), small_yaml);
    put_profile("emulated.yaml", "emulated-gh200", "", NVME);
    put_profile("elsewhere.yaml", "gh200-96gb-120gb", "  - {from: nvme, to: host, " RATES "}\n",
                "nvme: {path: /no/such/disk}\n");
    put_profile("unrated.yaml", "gh200-96gb-120gb", "", "nvme: {path: /no/such/disk}\n");
    return 0;
}

static const char *set(const char *key, const char *value)
{
    static char texts[4][512];
    static unsigned next;
    char *text = texts[next++ % 4];

    snprintf(text, sizeof texts[0], "%s=%s", key, value);
    return text;
}

#define ON(hardware, key, value) "deep-run.yaml", "--hardware", hardware, "--set", set(key, value)
#define TRAIN(code, hardware, key, value, output, ...)                                             \
    RUN(code, "train", ON(hardware, key, value), "--quiet", "--set", set("output", output),        \
        __VA_ARGS__)

static cJSON *plan(int code, const char *hardware, const char *key, const char *value)
{
    const outcome *done = RUN(code, "plan", ON(hardware, key, value), "--json");
    cJSON *json = cJSON_Parse(done->out);
    if (json == NULL) fail_msg("not JSON: %s", done->out);
    return json;
}

static double number(const cJSON *json, const char *path)
{
    const cJSON *item = ls_json_find_path(json, path);
    if (!cJSON_IsNumber(item)) fail_msg("no number %s", path);
    return item->valuedouble;
}

/* Of the record's last line. */
static double recorded(const char *output, const char *path)
{
    char *text = need_bytes(at("%s/record.jsonl", output), NULL), *next, *line, *last = NULL;

    for (line = strtok_r(text, "\n", &next); line != NULL; line = strtok_r(NULL, "\n", &next))
        if (strstr(line, "eval_loss\"") == NULL) last = line;
    cJSON *json = last != NULL ? cJSON_Parse(last) : NULL;
    const double value = number(json, path);
    cJSON_Delete(json);
    free(text);
    return value;
}

static void assert_empty(const char *folder)
{
    ls_name_list list = {NULL, 0};

    assert_ok(ls_directory_list(at("%s", folder), &list));
    if (list.n_names > 0) fail_msg("%s holds %s", folder, list.names[0]);
    ls_name_list_free(&list);
}

/* ---- the same bits --------------------------------------------------------------------------- */

#define ALL "{x: nvme, o: nvme, kv: nvme, dkv: nvme, grad: nvme, lo: nvme, m: nvme, v: nvme}"

static const char *const settings[][2] = {
    {"memory.place", "{x: nvme, o: nvme, kv: nvme}"},
    {"memory.place", ALL},
    {"memory.save", "[{layers: 0-7, policy: x+o, place: nvme}, {layers: 8-11, policy: x}]"},
};

enum { SETTINGS = sizeof settings / sizeof settings[0] };

/* The file is in the plan what it is in the record, and host memory has so much less. */
static void check_bytes(const char *machine, const char *const setting[2])
{
    cJSON *in_file = plan(0, machine, setting[0], setting[1]);
    cJSON *run = NULL;
    double classes = 0;
    const cJSON *class;

    assert_ok(ls_json_read(at("file/run.json"), &run));
    const double bytes = number(in_file, "peak_bytes.nvme");
    assert_true(bytes > 0);
    assert_true(bytes <= number(in_file, "available_bytes.nvme"));
    assert_true(recorded("file", "peak_bytes.nvme") == bytes);
    assert_true(number(run, "plan.nvme_bytes") == bytes);
    assert_null(cJSON_GetObjectItem(cJSON_GetObjectItem(run, "missing"), "peak_bytes.nvme"));
    cJSON_ArrayForEach(class, ls_json_find_path(in_file, "classes"))
    {
        if (strcmp(cJSON_GetObjectItem(class, "place")->valuestring, "nvme") == 0)
            classes += cJSON_GetObjectItem(class, "bytes")->valuedouble;
    }
    assert_true(classes + number(in_file, "shared_bytes.nvme") >= bytes / 2 && classes > 0);
    if (strstr(setting[1], "policy") == NULL) {
        cJSON *in_memory = plan(0, machine, "memory.place", "{}");
        assert_true(number(in_file, "peak_bytes.host") < number(in_memory, "peak_bytes.host"));
        assert_true(number(in_memory, "peak_bytes.nvme") == 0);
        cJSON_Delete(in_memory);
    }
    cJSON_Delete(in_file);
    cJSON_Delete(run);
}

static void test_the_same_bits(void **state)
{
    static const char *const machines[] = {"cpu.yaml", "emulated.yaml"};

    (void)state;
    TRAIN(0, "cpu", "memory.place", "{}", "host", "--set", "seed=7");
    for (size_t m = 0; m < 2; m++)
        for (size_t s = 0; s < SETTINGS; s++) {
            TRAIN(0, machines[m], settings[s][0], settings[s][1], "file", "--set", "seed=7");
            assert_same_run("host", "file", STEPS);
            assert_empty("disk");
            check_bytes(machines[m], settings[s]);
            assert_ok(ls_directory_remove(at("file")));
        }
}

/* Nothing of the file is needed to go on; elsewhere than before only with --replan. */
static void test_resume(void **state)
{
    (void)state;
    TRAIN(75, "cpu.yaml", settings[1][0], settings[1][1], "file", "--stop-after", "2");
    assert_empty("disk");
    TRAIN(75, "cpu.yaml", settings[1][0], settings[1][1], "file", "--stop-after", "4", "--resume");
    assert_says(TRAIN(2, "cpu.yaml", "memory.place", "{}", "file", "--resume")->err,
                "memory.place");
    TRAIN(0, "emulated.yaml", settings[0][0], settings[0][1], "file", "--resume", "--replan");
    assert_same_run("host", "file", STEPS);
    const outcome *done = RUN(0, "eval", ON("cpu.yaml", settings[0][0], settings[0][1]), "--json",
                              "--set", "output=file");
    char *in_file = strdup(done->out);
    assert_string_equal(RUN(0, "eval", "deep-run.yaml", "--json", "--set", "output=file")->out,
                        in_file);
    free(in_file);
    assert_ok(ls_directory_remove(at("file")));
}

/* Killed while the file is mapped: it has no name then, so the disk has its room back. */
static void test_kill(void **state)
{
    char path[64];

    (void)state;
    const pid_t pid = START("train", ON("cpu.yaml", settings[1][0], settings[1][1]), "--quiet",
                            "--set", "output=file", "--set", "steps=100000");
    while (!is_there(at("file/record.jsonl"))) sleep_ms(5);
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    char *maps = need_bytes(path, NULL);
    assert_says(maps, "/disk/longspan-arena-");
    assert_empty("disk");
    assert_int_equal(kill(pid, SIGKILL), 0);
    finish_as(1000 + SIGKILL, pid);
    assert_empty("disk");
    free(maps);
    assert_ok(ls_directory_remove(at("file")));
}

/* Pages of the file are the page cache's, not the run's, though the kernel's peak has them. */
static void test_resident_memory(void **state)
{
    struct rusage usage;

    (void)state;
    TRAIN(0, "cpu.yaml", "memory.place", "{x: nvme, o: nvme, kv: nvme}", "file", "--set", "steps=1",
          "--set", "sequence.tokens=256", "--set", "sequence.chunk=1k", "--set",
          "sequence.query_block=1k", "--set", "batch={sequences: 32, accumulate: 1}", "--set",
          "optimizer.warmup_steps=0", "--set", "eval.every_steps=0");
    assert_int_equal(getrusage(RUSAGE_CHILDREN, &usage), 0); /* the largest of them: this one */
    const double file = recorded("file", "peak_bytes.nvme");
    assert_true(file > 0x1p24);
    assert_true(1024.0 * (double)usage.ru_maxrss >= recorded("file", "peak_bytes.host") + file);
    assert_ok(ls_directory_remove(at("file")));
}

/* ---- refusals -------------------------------------------------------------------------------- */

/* Profile, what the message says beside the key, the profile and its file. */
static void refuse(const char *profile, const char *why)
{
    put_text(at("bad.yaml"), profile);
    const outcome *done =
        TRAIN(2, "bad.yaml", "memory.place", "{x: nvme}", "none", "--set", "seed=7");
    assert_says(done->err, "memory.place.x: nvme, but ");
    assert_says(done->err, "hardware profile bad (bad.yaml)");
    assert_says(done->err, why);
    assert_false(is_there(at("none")));
}

static void test_no_disk(void **state)
{
    (void)state;
    refuse("name: bad\n", "has no such place; add {kind: nvme} to its places");
    refuse("name: bad\nplaces: [{kind: nvme}]\n", "has no nvme.path; name a folder");
    refuse("name: bad\nplaces: [{kind: nvme}]\nnvme: {path: no/such}\n",
           "is 'no/such': No such file or directory; make that folder");
    refuse("name: bad\nplaces: [{kind: nvme}]\nnvme: {path: run.yaml}\n",
           "is 'run.yaml': Not a directory");
    put_text(at("bad.yaml"), "name: bad\nplaces: [{kind: nvme}]\nnvme: {path: /proc}\n");
    const outcome *closed = finish(START("train", ON("bad.yaml", "memory.place", "{x: nvme}"),
                                         "--quiet", "--set", "output=none"));
    assert_in_range(closed->code, 2, 3); /* root may write there, but it has no room */
    assert_says(closed->err, "/proc");
    assert_false(is_there(at("none")));
    const outcome *done = TRAIN(2, "cpu", "memory.save", settings[2][1], "none", "--set", "seed=7");
    assert_says(done->err, "memory.save[0].place: nvme, but hardware profile cpu (");
    done = TRAIN(2, "cpu.yaml", "memory.place", "{weights: nvme}", "none", "--set", "seed=7");
    assert_says(done->err, "memory.place.weights: nvme, but kernels read norms");
    done = TRAIN(2, "emulated.yaml", "memory.place", "{chunk: nvme}", "none", "--set", "seed=7");
    assert_says(done->err, "memory.place.chunk: nvme, but it is at work");
    assert_empty("disk");
}

static void test_no_room(void **state)
{
    (void)state;
    cJSON *json = plan(3, "small.yaml", "memory.place", "{x: nvme}");
    assert_true(number(json, "short_bytes.nvme") ==
                number(json, "peak_bytes.nvme") - number(json, "available_bytes.nvme"));
    assert_true(number(json, "available_bytes.nvme") == 65536);
    assert_true(number(json, "short_bytes.host") == 0);
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(json, "fits")));
    cJSON_Delete(json);
    const outcome *done =
        TRAIN(3, "small.yaml", "memory.place", "{x: nvme}", "none", "--set", "seed=7");
    assert_says(done->err, "nvme: the plan is short by");
    assert_says(done->err, "disk has room for 64.0 KiB; free space there, name another folder");
    assert_false(is_there(at("none")));
}

/* The program with a file system of `size` in memory at disk/, which nobody else sees. */
static outcome *train_on_tmpfs(const char *size, const char *output)
{
    char script[1024];

    snprintf(script, sizeof script,
             "mount -t tmpfs -o size=%s none disk || exit 125; exec " PROGRAM
             " train deep-run.yaml --hardware cpu.yaml --set output=%s --set steps=1 --set "
             "optimizer.warmup_steps=0 --set 'memory.place={x: nvme, m: nvme}'",
             size, output);
    return finish(start((const char *const[]){"/usr/bin/env", "unshare", "--map-root-user",
                                              "--mount", "sh", "-c", script, NULL}));
}

static void test_small_tmpfs(void **state)
{
    (void)state;
    const outcome *done = train_on_tmpfs("64k", "none");
    if (done->code != 3 && strstr(done->err, "nvme") == NULL) {
        print_message("no file system can be mounted here: %s", done->err);
        skip();
    }
    assert_int_equal(done->code, 3);
    assert_says(done->err, "nvme: the plan is short by");
    assert_false(is_there(at("none")));
    done = train_on_tmpfs("16m", "memory");
    if (done->code != 0) fail_msg("exit code %d: %s", done->code, done->err);
    assert_says(done->err, "warning: memory.place.m is nvme, but nvme.path disk of cpu-disk is "
                           "in a file system in memory");
    assert_ok(ls_directory_remove(at("memory")));
}

/* ---- plans of machines that are elsewhere ---------------------------------------------------- */

static void test_plans(void **state)
{
    cJSON *rated = plan(0, "elsewhere.yaml", settings[1][0], settings[1][1]);
    cJSON *in_memory = plan(0, "elsewhere.yaml", "memory.place", "{x: host, o: host, kv: host}");
    cJSON *unrated = plan(0, "unrated.yaml", settings[1][0], settings[1][1]);

    (void)state;
    assert_true(number(rated, "peak_bytes.nvme") > 0);
    assert_true(number(rated, "step_s") > number(in_memory, "step_s"));
    assert_true(cJSON_IsNull(ls_json_find_path(unrated, "step_s")));
    assert_string_equal(ls_json_find_path(unrated, "time_unknown")->valuestring,
                        "nvme: bytes_per_s of the link to host memory is not known; add {from: "
                        "nvme, to: host, bytes_per_s: {value: N, source: spec}} to the profile's "
                        "links");
    cJSON_Delete(unrated);
    unrated = plan(0, "unrated.yaml", "memory.place", "{}");
    assert_true(number(unrated, "step_s") > 0);
    cJSON_Delete(rated);
    cJSON_Delete(in_memory);
    cJSON_Delete(unrated);
    const outcome *table = RUN(0, "plan", ON("cpu.yaml", settings[0][0], settings[0][1]));
    assert_says(table->out, "memory: nvme\n");
    assert_says(table->out, "memory.place asks for it");
    table = RUN(0, "plan", ON("cpu", settings[1][0], settings[1][1]), "--compare",
                "elsewhere.yaml,cpu.yaml,emulated.yaml");
    assert_says(table->out, "  nvme ");
    table = RUN(0, "plan", ON("small.yaml", "memory.place", "{x: nvme}"), "--maximize", "tokens",
                "--set", "batch.sequences=1");
    assert_says(table->out, "; nvme 6");
    assert_says(table->out, " KiB of 64.0 KiB\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_bits), cmocka_unit_test(test_resume),
        cmocka_unit_test(test_kill),          cmocka_unit_test(test_resident_memory),
        cmocka_unit_test(test_no_disk),       cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_small_tmpfs),   cmocka_unit_test(test_plans),
    };
    return cmocka_run_group_tests(tests, make_deep, remove_scratch);
}
