/*
 * test_cli_stop.c - SIGINT and SIGTERM to the commands that have nothing to save: they end soon,
 * with 128 + the signal's number, say so in their own words and leave no half-written file.
 * (Training: test_cli.c; here only where its record is taken away.)
 */
#include "cli_test.h"

/* Token ids below the vocabulary of a model that never ends a sample by itself. */
static void put_raw_shard(const char *path, long bytes)
{
    put_text(path, "");
    assert_int_equal(truncate(path, bytes), 0);
}

#define ENDLESS                                                                                    \
    "run.yaml", "--set", "model=endless.yaml", "--set", "data.format=raw-u16", "--set",            \
        "data.train=data/zeros", "--set", "data.valid=data/endless", "--set", "output=endless"

static int make_endless_run(void **state)
{
    char *model;

    if (make_scratch(state) != 0) return -1;
    put_changed(at("endless.yaml"), model_yaml, "vocab_size: 272", "vocab_size: 256");
    model = need_bytes(at("endless.yaml"), NULL);
    put_changed(at("endless.yaml"), model, "eos_token_id: 256", "eos_token_id: 255");
    free(model);
    put_raw_shard(at("data/zeros.bin"), 1 << 16);
    put_raw_shard(at("data/endless.bin"), 1L << 24);
    RUN(75, "train", ENDLESS, "--set", "data.valid=data/zeros", "--stop-after", "2");
    return 0;
}

/* Of the program before. */
static void forget_output(void)
{
    put_text(at("stdout.txt"), "");
    put_text(at("stderr.txt"), "");
}

/* Wait until the program, alive all that time, has written something. */
static void wait_for_output(pid_t pid, const char *name, const char *part)
{
    for (;;) {
        size_t bytes;
        char *text = get_bytes(at("%s", name), &bytes);
        const bool found = text != NULL && bytes > 0 && strstr(text, part) != NULL;
        free(text);
        if (found) return;
        if (waitpid(pid, NULL, WNOHANG) != 0) fail_msg("the program ended before it wrote that");
        sleep_ms(1);
    }
}

static void check_stopped(pid_t pid, int number)
{
    assert_int_equal(kill(pid, number), 0);
    const outcome *stopped = finish_as(128 + number, pid);
    assert_says(stopped->err, "stopp");
    assert_null(strstr(stopped->err, "saving"));
    assert_null(strstr(stopped->err, "saved;"));
    assert_null(strstr(stopped->err, "error"));
}

/* ---- eval ---------------------------------------------------------------------------------- */

/* The names in the run directory, and what the newest heartbeat says. */
static void assert_untouched(const char *before)
{
    ls_name_list list;
    char *after = need_bytes(at("endless/heartbeat.json"), NULL);

    assert_string_equal(before, after);
    free(after);
    assert_ok(ls_directory_list(at("endless"), &list));
    assert_int_equal(list.n_names, 6);
    ls_name_list_free(&list);
}

static void check_eval(int number)
{
    char *before = need_bytes(at("endless/heartbeat.json"), NULL);
    forget_output();
    pid_t pid = START("eval", ENDLESS, "--json");
    wait_for_output(pid, "stderr.txt", "loaded endless/checkpoints/step-00000002");
    check_stopped(pid, number);
    char *out = need_bytes(at("stdout.txt"), NULL);
    assert_string_equal(out, "");
    free(out);

    forget_output();
    pid = START("eval", ENDLESS, "--sample", "1000000000");
    wait_for_output(pid, "stdout.txt", "");
    check_stopped(pid, number);
    assert_untouched(before);
    free(before);
}

static void test_sigint_ends_eval(void **state)
{
    (void)state;
    check_eval(SIGINT);
}

static void test_sigterm_ends_eval(void **state)
{
    (void)state;
    check_eval(SIGTERM);
}

/* ---- plan ---------------------------------------------------------------------------------- */

/* Wait until the program catches SIGTERM. */
static void wait_for_handler(pid_t pid)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%ld/status", (long)pid);
    for (;;) {
        char *text = need_bytes(path, NULL);
        const char *caught = strstr(text, "SigCgt:");
        const bool found = caught != NULL && strtoull(caught + 7, NULL, 16) >> (SIGTERM - 1) & 1;
        free(text);
        if (found) return;
        if (waitpid(pid, NULL, WNOHANG) != 0) fail_msg("the program ended too early");
        sleep_ms(1);
    }
}

/* A plan of a million steps. */
static void test_sigterm_ends_plan(void **state)
{
    (void)state;
    put_changed(at("deep.yaml"), model_yaml, "num_hidden_layers: 2", "num_hidden_layers: 32");
    const pid_t pid =
        START("plan", "run.yaml", "--json", "--quiet", "--set", "model=deep.yaml", "--set",
              "batch.sequences=1", "--set", "sequence.tokens=32k", "--set", "sequence.chunk=128",
              "--set", "sequence.query_block=128", "--set", "memory.save=x");
    wait_for_handler(pid);
    check_stopped(pid, SIGTERM);
    char *out = need_bytes(at("stdout.txt"), NULL);
    assert_string_equal(out, "");
    free(out);
}

/* ---- tokenize ------------------------------------------------------------------------------ */

static int64_t count_names(const char *folder)
{
    ls_name_list list;

    if (!is_there(at("%s", folder))) return 0;
    assert_ok(ls_directory_list(at("%s", folder), &list));
    const int64_t n = list.n_names;
    ls_name_list_free(&list);
    return n;
}

/* In the midst of a file of which four gigabytes would have to be written; over an older shard. */
static void check_tokenize(int number)
{
    char folder[32], prefix[64];

    snprintf(folder, sizeof folder, "shards-%d", number);
    snprintf(prefix, sizeof prefix, "%s/x", folder);
    put_raw_shard(at("zeros.txt"), 1L << 31);
    RUN(0, "tokenize", "--out", prefix, "text-valid");
    char *before = need_bytes(at("%s.bin", prefix), NULL);
    const pid_t pid = START("tokenize", "--out", prefix, "zeros.txt");
    while (count_names(folder) < 3) { /* x.bin, x.idx, what is begun */
        if (waitpid(pid, NULL, WNOHANG) != 0) fail_msg("tokenize ended early");
        sleep_ms(1);
    }
    check_stopped(pid, number);
    assert_int_equal(count_names(folder), 2);
    char *after = need_bytes(at("%s.bin", prefix), NULL);
    assert_string_equal(before, after);
    free(before);
    free(after);
}

static void test_sigint_stops_tokenize(void **state)
{
    (void)state;
    check_tokenize(SIGINT);
}

static void test_sigterm_stops_tokenize(void **state)
{
    (void)state;
    check_tokenize(SIGTERM);
}

/* Killed: what was begun stays, under names that nothing reads. */
static void test_killed_tokenize_leaves_no_shard(void **state)
{
    (void)state;
    put_raw_shard(at("zeros.txt"), 1L << 31);
    const pid_t pid = START("tokenize", "--out", "killed/x", "zeros.txt");
    while (count_names("killed") == 0) {
        if (waitpid(pid, NULL, WNOHANG) != 0) fail_msg("tokenize ended early");
        sleep_ms(1);
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    finish_as(1000 + SIGKILL, pid);
    assert_false(is_there(at("killed/x.bin")));
    assert_false(is_there(at("killed/x.idx")));
    assert_ok(ls_directory_remove(at("killed")));
    assert_int_equal(unlink(at("zeros.txt")), 0);
}

/* Training ends too where nobody would ever read what it goes on to write. */
static void test_removed_record_ends_train(void **state)
{
    (void)state;
    forget_output();
    const pid_t pid = START("train", "run.yaml", "--set", "output=gone", "--set", "steps=1000000",
                            "--set", "checkpoint.every_steps=1000000");
    wait_for_output(pid, "gone/record.jsonl", "\n");
    assert_int_equal(unlink(at("gone/record.jsonl")), 0);
    const outcome *done = finish_as(1, pid);
    assert_says(done->err, "gone/record.jsonl was removed while the run wrote it; ");
    assert_false(is_there(at("gone/record.jsonl")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sigint_ends_eval),
        cmocka_unit_test(test_sigterm_ends_eval),
        cmocka_unit_test(test_sigterm_ends_plan),
        cmocka_unit_test(test_sigint_stops_tokenize),
        cmocka_unit_test(test_sigterm_stops_tokenize),
        cmocka_unit_test(test_killed_tokenize_leaves_no_shard),
        cmocka_unit_test(test_removed_record_ends_train),
    };
    return cmocka_run_group_tests(tests, make_endless_run, remove_scratch);
}
