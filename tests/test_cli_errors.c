/*
 * test_cli_errors.c - bad usage, bad config, bad files, no room: the documented exit code, a
 * message that says where, what and how to go on, and nothing harmed.
 */
#include "cli_test.h"

#include <sys/resource.h>
#include <sys/stat.h>

/* ---- usage and config ---------------------------------------------------------------------- */

static void test_usage(void **state)
{
    (void)state;
    assert_says(RUN(2, "trian")->err, "no command 'trian'");
    assert_says(RUN(2, "train")->err, "want one RUN.yaml");
    assert_says(RUN(2, "train", "run.yaml", "--resum")->err, "unknown option '--resum'");
    assert_says(RUN(2, "train", "run.yaml", "--resum")->err, "--resume");
    assert_says(RUN(2, "train", "run.yaml", "--stop-after", "0")->err, "whole number from 1");
    assert_says(RUN(2, "train", "run.yaml", "--deadline", "soon")->err, "want +2h30m");
    assert_says(RUN(2, "train", "run.yaml", "--replan")->err, "--replan goes with --resume");
    assert_says(RUN(2, "tokenize", "text-train")->err, "want --out PREFIX");
    assert_says(RUN(0, "train", "--help")->out, "example:");
    assert_says(RUN(0, "eval", "--help")->out, "example:");
    assert_says(RUN(0, "tokenize", "--help")->out, "example:");
    assert_says(RUN(0, "--version")->out, "attention bf16");
}

/* Days and times that no calendar has; mktime() would take them for others. */
static void test_impossible_dates(void **state)
{
    static const char *const bad[] = {"2027-13-41T99:99", "2099-02-29T00:00", "2099-00-10T00:00",
                                      "2099-04-31T12:00", "2099-01-00T12:00", "2099-01-01T24:00",
                                      "2099-01-01T12:60", "2099--1-01T12:00", "2099-01-01T12:00:75",
                                      "2099-01-01T-1:00"};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_says(RUN(2, "train", "run.yaml", "--dry-run", "--deadline", bad[i])->err,
                    "want +2h30m, 2027-01-31T18:00");
    RUN(0, "train", "run.yaml", "--dry-run", "--deadline", "2096-02-29T23:59:59");
}

/* A change to the run file, and what the message must hold beside FILE:LINE:. */
static void test_run_file(void **state)
{
    static const struct {
        const char *from, *to, *says[3];
    } cases[] = {
        {"steps: 30", "stepz: 30", {"stepz: unknown key", "did you mean 'steps'", "allowed:"}},
        {"{lr: 3e-3", "{lrr: 3e-3", {"optimizer.lrr: unknown key", "'lr'", "allowed:"}},
        {"seed: 7", "steps: 7", {"steps: given twice", "first on line 8", "keep one"}},
        {"{tokens: 64}", "{tokens: 64GiB}", {"sequence.tokens: '64GiB'", "64GiB", "allowed:"}},
        {"steps: 30", "steps: many", {"steps: 'many'", "many", "allowed:"}},
        {"bf16", "fp8", {"precision: 'fp8'", "bf16", "fp32"}},
        {"{lr: 3e-3", "{lr: -1", {"optimizer.lr:", "-1", "allowed: more than 0"}},
        {"warmup_steps: 2", "warmup_steps: 31", {"optimizer.warmup_steps: 31", "30", "allowed:"}},
        {"model.yaml", "none.yaml", {"model: ", "none.yaml", "allowed:"}},
        {"output: run", "output: [", {"", "", ""}},
    };
    char place[64];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int line = put_changed(at("bad.yaml"), run_yaml, cases[i].from, cases[i].to);
        const outcome *done = RUN(2, "train", "bad.yaml");
        if (cases[i].says[0][0] != '\0')
            snprintf(place, sizeof place, "bad.yaml:%d: ", line);
        else
            snprintf(place, sizeof place, "bad.yaml:"); /* the parser knows where it gave up */
        assert_says(done->err, place);
        for (int s = 0; s < 3; s++) assert_says(done->err, cases[i].says[s]);
    }
    assert_says(RUN(2, "train", "run.yaml", "--set", "stepz=3")->err, "--set stepz: unknown key");
    assert_says(RUN(2, "train", "none.yaml")->err, "none.yaml: No such file");
    assert_false(is_there(at("run")));
}

/* What only the machine or the model can refuse is told with its place as well. */
static void test_keys_that_do_not_fit(void **state)
{
    static const struct {
        const char *key, *says;
    } cases[] = {
        {"place: {m: hbm}", "memory.place.m: hbm, but this hardware has no device"},
        {"place: {staging: nvme}", "memory.place.staging: nvme, but it is at work"},
        {"save: [{layers: 0-99, policy: x}]", "memory.save[0].layers: 0-99, but"},
        {"weights: stream", "memory.weights: stream, but"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[400], place[300];
        snprintf(text, sizeof text, "memory: {%s, ", cases[i].key);
        const int line = put_changed(at("bad.yaml"), run_yaml, "memory: {", text);
        snprintf(place, sizeof place, "bad.yaml:%d: %s", line, cases[i].says);
        assert_says(RUN(2, "train", "bad.yaml")->err, place);
    }
    assert_says(RUN(2, "train", "run.yaml", "--set", "memory.weights=stream")->err,
                "error: --set memory.weights: stream, but");
    assert_false(is_there(at("run")));
}

static void test_model_file(void **state)
{
    char place[64];

    (void)state;
    put_changed(at("bad.yaml"), run_yaml, "model.yaml", "bad-model.yaml");
    int line = put_changed(at("bad-model.yaml"), model_yaml, "head_dim", "heads_dim");
    snprintf(place, sizeof place, "bad-model.yaml:%d: heads_dim", line);
    assert_says(RUN(2, "train", "bad.yaml")->err, place);
    line = put_changed(at("bad-model.yaml"), model_yaml, "hidden_size: 32", "hidden_size: wide");
    snprintf(place, sizeof place, "bad-model.yaml:%d: hidden_size", line);
    assert_says(RUN(2, "train", "bad.yaml")->err, place);
    assert_false(is_there(at("run")));
}

/* ---- data ---------------------------------------------------------------------------------- */

static void test_shards(void **state)
{
    size_t bytes = 0;

    (void)state;
    const outcome *done = RUN(2, "train", "run.yaml", "--set", "data.train=data/none");
    assert_says(done->err, "data.train: data/none.bin does not exist");
    assert_says(done->err, "longspan tokenize --out data/none");
    done = RUN(2, "train", "run.yaml", "--set", "data.valid=data/none");
    assert_says(done->err, "data.valid: data/none.bin does not exist");

    done = RUN(2, "train", "run.yaml", "--set", "data.format=raw-u16", "--set",
               "data.train=data/none");
    assert_says(done->err, "data.train: data/none.bin does not exist");
    char *bin = need_bytes(at("data/train.bin"), &bytes);
    put_bytes(at("data/alone.bin"), bin, bytes);
    done = RUN(2, "train", "run.yaml", "--set", "data.train=data/alone");
    assert_says(done->err, "data.train: data/alone.idx does not exist");
    put_bytes(at("data/cut.bin"), bin, bytes);
    free(bin);
    char *index = need_bytes(at("data/train.idx"), &bytes);
    put_bytes(at("data/cut.idx"), index, bytes - 9);
    free(index);
    done = RUN(1, "train", "run.yaml", "--set", "data.train=data/cut");
    assert_says(done->err, "data/cut.idx: ");
    assert_says(done->err, "bytes");

    put_changed(at("small.yaml"), model_yaml, "vocab_size: 272", "vocab_size: 256");
    char *model = need_bytes(at("small.yaml"), NULL);
    put_changed(at("small.yaml"), model, "eos_token_id: 256", "eos_token_id: 255");
    free(model);
    done = RUN(2, "train", "run.yaml", "--set", "model=small.yaml");
    if (strstr(done->err, "data/train.bin: token ") == NULL) /* one of the two is read first */
        assert_says(done->err, "data/valid.bin: token ");
    assert_says(done->err, "is id 256, but the vocabulary has 256");
    assert_false(is_there(at("run")));
}

/* ---- checkpoints and run directories ------------------------------------------------------- */

static void test_run_directory(void **state)
{
    (void)state;
#define USED(code, ...) RUN(code, "train", "run.yaml", "--set", "output=used", __VA_ARGS__)
    assert_says(RUN(1, "eval", "run.yaml", "--set", "output=used")->err, "no checkpoint");
    USED(75, "--stop-after", "10");
    char *before = need_bytes(at("used/record.jsonl"), NULL);
    assert_says(USED(2, "--quiet")->err, "used already holds a run; continue it with --resume");
    assert_says(USED(2, "--resume", "--set", "optimizer.lr=1e-3")->err,
                "optimizer.lr differs from the run that used/checkpoints/step-00000010 belongs to: "
                "0.003 there, 0.001 now; set it back to 0.003, or start a new run with another "
                "output");
    assert_says(USED(2, "--resume", "--set", "seed=8")->err,
                "seed differs from the run that used/checkpoints/step-00000010 belongs to: 7 "
                "there, 8 now; set it back to 7, or");
    assert_says(USED(2, "--resume", "--set", "sequence.tokens=32")->err, ": 64 there, 32 now;");
    assert_says(USED(2, "--resume", "--set", "data.train=[data/train, data/valid]")->err,
                "data.train differs from the run that used/checkpoints/step-00000010 belongs to: "
                "[\"data/train\"] there, [\"data/train\",\"data/valid\"] now;");
    assert_says(USED(2, "--resume", "--set", "memory.save=x")->err,
                ": \"auto\" there, \"x\" now; set it back to \"auto\", allow the change with "
                "--replan, or start");
    char *after = need_bytes(at("used/record.jsonl"), NULL);
    assert_string_equal(before, after);
    free(before);
    free(after);
    USED(75, "--resume", "--replan", "--set", "memory.save=x", "--stop-after", "12");
    USED(0, "--resume", "--replan", "--set", "steps=14", "--set", "eval.every_steps=7", "--set",
         "checkpoint.keep=1");
    assert_int_equal(last_step("used"), 14);
#undef USED
}

/* A step that the run never comes to, or has left behind. */
static void test_stop_after_out_of_reach(void **state)
{
    (void)state;
#define STOP(code, step, ...)                                                                      \
    RUN(code, "train", "run.yaml", "--set", "output=reach", "--stop-after", step, __VA_ARGS__)
    assert_says(STOP(2, "31", "--quiet")->err, "--stop-after 31: the run ends at step 30 (steps);");
    assert_says(STOP(2, "31", "--dry-run")->err, "or raise steps");
    assert_false(is_there(at("reach")));
    STOP(75, "20", "--quiet");
    char *before = need_bytes(at("reach/record.jsonl"), NULL);
    assert_says(STOP(2, "19", "--resume")->err, "--stop-after 19: the run in reach is at step 20");
    assert_says(STOP(75, "20", "--resume")->err, "stopped after step 20 of 30 (--stop-after)");
    char *after = need_bytes(at("reach/record.jsonl"), NULL);
    assert_string_equal(before, after);
    free(before);
    free(after);
    STOP(0, "30", "--resume");
    assert_int_equal(last_step("reach"), 30);
#undef STOP
}

/* A pipe under a name of the run directory: nobody waits for its other end. */
static void test_pipes_in_the_run_directory(void **state)
{
    static const char *const names[] = {"record.jsonl", "power.csv"};

    (void)state;
    RUN(75, "train", "run.yaml", "--set", "output=piped", "--stop-after", "1");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const bool has_meters = is_there(at("piped/power.csv"));
        if (i == 1 && !has_meters) continue; /* nothing is written there */
        if (is_there(at("piped/%s", names[i])))
            assert_int_equal(unlink(at("piped/%s", names[i])), 0);
        assert_int_equal(mkfifo(at("piped/%s", names[i]), 0600), 0);
        const outcome *done = RUN(i == 0 ? 1 : 75, "train", "run.yaml", "--set", "output=piped",
                                  "--resume", "--stop-after", "2");
        if (i == 0) assert_says(done->err, "piped/record.jsonl is no plain file; move it away");
        assert_int_equal(unlink(at("piped/%s", names[i])), 0);
    }
}

/* A file, or a link to nothing, where the run directory or one above it would be. */
static void test_output_is_no_folder(void **state)
{
    static const struct {
        const char *output, *says;
    } cases[] = {
        {"output=plain", "output: plain is a file, not a folder; move it away, or choose another"},
        {"output=plain/a/b", "output: plain/a/b: plain is a file, not a folder; move it away"},
        {"output=dangling", "output: dangling is a link to nothing, not a folder; move it away"},
        {"output=/dev/null", "output: /dev/null is a device, pipe or socket, not a folder;"},
    };

    (void)state;
    put_text(at("plain"), "precious\n");
    assert_int_equal(symlink("nowhere", at("dangling")), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_says(RUN(2, "train", "run.yaml", "--set", cases[i].output)->err, cases[i].says);
        assert_says(RUN(2, "train", "run.yaml", "--resume", "--set", cases[i].output)->err,
                    cases[i].says);
    }
    assert_says(RUN(2, "train", "run.yaml", "--dry-run", "--set", "output=plain")->err, "output: ");
    assert_says(RUN(1, "tokenize", "--out", "plain/x", "text-valid")->err,
                "make folder plain: File exists (something else has that name: move it away");
    char *text = need_bytes(at("plain"), NULL);
    assert_string_equal(text, "precious\n");
    free(text);

    assert_ok(ls_directory_make(at("folder")));
    assert_int_equal(symlink("folder", at("linked")), 0);
    RUN(75, "train", "run.yaml", "--set", "output=linked/run/", "--stop-after", "1");
    assert_true(is_there(at("folder/run/latest")));
}

static void test_checkpoint_files(void **state)
{
    static const char weights[] =
        "saved/checkpoints/step-00000030/model-00001-of-00001.safetensors";
    size_t bytes = 0;

    (void)state;
#define EVAL_SAVED                                                                                 \
    "eval", "run.yaml", "--set", "output=saved", "--checkpoint", "saved/checkpoints/step-00000030"
    RUN(0, "train", "run.yaml", "--set", "output=saved");
    assert_says(RUN(1, "eval", "run.yaml", "--checkpoint", "none")->err, "none");
    char *file = need_bytes(at("%s", weights), &bytes);
    memset(file, 0xff, 8); /* the length of the header */
    put_bytes(at("%s", weights), file, bytes);
    const outcome *done = RUN(1, EVAL_SAVED);
    assert_says(done->err, "model-00001-of-00001.safetensors has checksum");
    assert_int_equal(unlink(at("saved/checkpoints/step-00000030/state.json")), 0);
    done = RUN(1, EVAL_SAVED); /* a plain model directory now: nothing but the file says so */
    assert_says(done->err, "model-00001-of-00001.safetensors: the header claims");
    memset(file, 0, 8);
    file[0] = 100;
    put_bytes(at("%s", weights), file, bytes);
    done = RUN(1, EVAL_SAVED);
    assert_says(done->err, "model-00001-of-00001.safetensors");
    free(file);
#undef EVAL_SAVED
}

/* ---- saves cut off half-way ---------------------------------------------------------------- */

/* The entries of a run's checkpoints: n of them, the newest by its final name. */
static void assert_checkpoints(const char *output, int64_t n, const char *newest)
{
    ls_name_list list;

    assert_ok(ls_directory_list(at("%s/checkpoints", output), &list));
    assert_int_equal(list.n_names, n);
    if (n > 0) {
        char *latest = need_bytes(at("%s/latest", output), NULL);
        assert_string_equal(list.names[n - 1], newest);
        assert_int_equal(strncmp(latest, newest, strlen(newest)), 0);
        free(latest);
    }
    ls_name_list_free(&list);
}

/* How large a file the programs started from here on may write: they must see the write fail, not
 * be killed by the signal that comes with it. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static int lift_limit(void **state)
{
    (void)state;
    limit_files(RLIM_INFINITY);
    return 0;
}

/* The save of step 20 ends in the optimizer's file, after config.json and the weights. */
#define HALF_WAY_BYTES 200000

/* After a save that was cut off: the older checkpoint serves, and the run ends as if never cut. */
static void check_cut_run(const char *output)
{
    char setting[64];

    snprintf(setting, sizeof setting, "output=%s", output);
    assert_says(RUN(0, "eval", "run.yaml", "--set", setting, "--json")->out, "\"loss\":");
    lift_limit(NULL);
    const outcome *resumed = RUN(0, "train", "run.yaml", "--set", setting, "--resume");
    assert_says(resumed->err, "/checkpoints/step-00000010");
    assert_checkpoints(output, 2, "step-00000030");
    if (!is_there(at("uncut"))) RUN(0, "train", "run.yaml", "--set", "output=uncut");
    assert_same_run(output, "uncut", 30);
}

static void test_failed_save_leaves_nothing(void **state)
{
    (void)state;
#define FAILED(code, ...) RUN(code, "train", "run.yaml", "--set", "output=failed", __VA_ARGS__)
    limit_files(HALF_WAY_BYTES);
    FAILED(1, "--quiet"); /* the first save of a run: nothing to go back to */
    assert_checkpoints("failed", 0, "");
    lift_limit(NULL);
    FAILED(75, "--resume", "--stop-after", "10");

    limit_files(HALF_WAY_BYTES);
    for (int attempt = 0; attempt < 2; attempt++) {
        const outcome *cut = FAILED(1, "--resume");
        assert_says(cut->err, "write failed/checkpoints/.tmp-step-00000020-");
        assert_says(cut->err, "optimizer-00001-of-00001.safetensors: File too large");
        assert_checkpoints("failed", 1, "step-00000010");
    }
#undef FAILED
    check_cut_run("failed");
}

/* What a program left that was killed while it saved. */
static void test_killed_save_is_cleaned_away(void **state)
{
    (void)state;
    RUN(75, "train", "run.yaml", "--set", "output=killed", "--stop-after", "10");
    assert_ok(ls_directory_make(at("killed/checkpoints/.tmp-step-00000020-4242")));
    put_text(at("killed/checkpoints/.tmp-step-00000020-4242/config.json"), "{");
    assert_checkpoints("killed", 2, "step-00000010");
    limit_files(HALF_WAY_BYTES);
    RUN(1, "train", "run.yaml", "--set", "output=killed", "--resume");
    assert_checkpoints("killed", 1, "step-00000010"); /* the leftover is gone */
    check_cut_run("killed");
}

/* ---- no room ------------------------------------------------------------------------------- */

static void test_too_long_a_sequence(void **state)
{
    (void)state;
    put_changed(at("wide.yaml"), model_yaml, "hidden_size: 32", "hidden_size: 16384");
#define LONGEST(command, ...)                                                                      \
    RUN(3, command, "run.yaml", "--set", "model=wide.yaml", "--set", "sequence.tokens=1G",         \
        "--set", "batch.sequences=1", __VA_ARGS__)
    assert_says(LONGEST("train", "--dry-run")->err, "lower sequence.tokens");
    assert_says(LONGEST("train", "--quiet")->err, "1073741824 tokens");
    assert_says(LONGEST("eval", "--json")->err, "leaves");
#undef LONGEST
    assert_false(is_there(at("run")));
}

static bool mount_disk(const char *options)
{
    char command[700];
    assert_ok(ls_directory_make(at("disk")));
    snprintf(command, sizeof command, "mount -t tmpfs -o %s none '%s' 2>/dev/null", options,
             at("disk"));
    return geteuid() == 0 && system(command) == 0;
}

static void change_mount(const char *format)
{
    char command[700];
    snprintf(command, sizeof command, format, at("disk"));
    assert_int_equal(system(command), 0);
}

static int unmount_disk(void **state)
{
    char command[700];
    (void)state;
    snprintf(command, sizeof command, "umount '%s' 2>/dev/null", at("disk"));
    (void)(system(command) != 0); /* skipped: not mounted */
    return 0;
}

#define SKIP_WITHOUT_MOUNT(options)                                                                \
    do {                                                                                           \
        if (mount_disk(options)) break;                                                            \
        print_message("needs the right to mount a file system\n");                                 \
        skip();                                                                                    \
    } while (0)

#define ON_DISK "train", "run.yaml", "--set", "output=disk/run"

static void test_full_disk(void **state)
{
    static char ballast[3 << 17];

    (void)state;
    SKIP_WITHOUT_MOUNT("size=300k");
    assert_says(RUN(1, ON_DISK)->err, "bytes free: free some space");
    assert_checkpoints("disk/run", 0, "");
    assert_false(is_there(at("disk/run/latest")));
    change_mount("umount '%s'");
    SKIP_WITHOUT_MOUNT("size=800k");
    assert_says(RUN(1, ON_DISK)->err, "bytes free: free some space"); /* one fits, two do not */
    assert_checkpoints("disk/run", 1, "step-00000010");
    change_mount("mount -o remount,size=4m '%s'");
    assert_says(RUN(0, ON_DISK, "--resume")->err,
                "resumed from disk/run/checkpoints/step-00000010");
    RUN(0, "train", "run.yaml", "--set", "output=roomy");
    assert_same_run("disk/run", "roomy", 30);

    change_mount("mount -o remount,size=2m '%s'");
    FILE *file = fopen(at("disk/ballast"), "wb"); /* to the last byte: the record has no room */
    assert_non_null(file);
    while (fwrite(ballast, 1, 4096, file) == 4096 && fflush(file) == 0) continue;
    fclose(file);
    const outcome *full = RUN(1, ON_DISK, "--resume", "--set", "steps=60");
    assert_says(full->err, "No space left");
    assert_int_equal(unlink(at("disk/ballast")), 0);
    RUN(0, ON_DISK, "--resume", "--set", "steps=31");
    assert_int_equal(last_step("disk/run"), 31);
}

/* A report that has no room leaves nothing under a name that someone would open. */
static void test_report_on_a_full_disk(void **state)
{
    ls_name_list list;

    (void)state;
    RUN(0, "train", "run.yaml", "--set", "output=seen");
    SKIP_WITHOUT_MOUNT("size=8k");
    for (int export = 0; export < 2; export ++) {
        const outcome *full =
            RUN(1, "report", "seen", export ? "--export" : "--out", export ? "disk/set" : "disk/r");
        assert_says(full->err, "No space left");
    }
    assert_ok(ls_directory_list(at("disk/r"), &list));
    for (int64_t i = 0; i < list.n_names; i++)
        if (strstr(list.names[i], "report.html") || strstr(list.names[i], ".tmp"))
            fail_msg("%s was left", list.names[i]);
    ls_name_list_free(&list);
}

/* Threads have the stacks that kernels need, whatever `ulimit -s` says. */
static void test_small_stacks(void **state)
{
    struct rlimit before, small;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_STACK, &before), 0);
    small = before;
    small.rlim_cur = 1 << 20;
    assert_int_equal(setrlimit(RLIMIT_STACK, &small), 0);
    RUN(0, "train", "run.yaml", "--set", "output=stacks");
    assert_int_equal(setrlimit(RLIMIT_STACK, &before), 0);
}

static void test_read_only_disk(void **state)
{
    (void)state;
    SKIP_WITHOUT_MOUNT("size=4m");
    RUN(75, ON_DISK, "--stop-after", "10");
    change_mount("mount -o remount,ro '%s'");
    const outcome *refused = RUN(1, ON_DISK, "--resume");
    assert_says(refused->err, "disk/run/");
    assert_says(refused->err, "Read-only file system");
    refused = RUN(1, "train", "run.yaml", "--set", "output=disk/other");
    assert_says(refused->err, "disk/other");
    refused = RUN(1, "tokenize", "--out", "disk/shard", "text-valid");
    assert_says(refused->err, "disk/shard");
    assert_checkpoints("disk/run", 1, "step-00000010");
    RUN(0, "eval", "run.yaml", "--set", "output=disk/run", "--json"); /* reading is all it needs */
    change_mount("mount -o remount,rw '%s'");
    RUN(0, ON_DISK, "--resume");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_usage),
        cmocka_unit_test(test_impossible_dates),
        cmocka_unit_test(test_run_file),
        cmocka_unit_test(test_keys_that_do_not_fit),
        cmocka_unit_test(test_model_file),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_run_directory),
        cmocka_unit_test(test_stop_after_out_of_reach),
        cmocka_unit_test(test_pipes_in_the_run_directory),
        cmocka_unit_test(test_output_is_no_folder),
        cmocka_unit_test(test_checkpoint_files),
        cmocka_unit_test_teardown(test_failed_save_leaves_nothing, lift_limit),
        cmocka_unit_test_teardown(test_killed_save_is_cleaned_away, lift_limit),
        cmocka_unit_test(test_too_long_a_sequence),
        cmocka_unit_test_teardown(test_full_disk, unmount_disk),
        cmocka_unit_test_teardown(test_read_only_disk, unmount_disk),
        cmocka_unit_test_teardown(test_report_on_a_full_disk, unmount_disk),
        cmocka_unit_test(test_small_stacks),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
