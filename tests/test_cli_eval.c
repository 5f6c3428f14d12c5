/*
 * test_cli_eval.c - longspan eval: how much of the held-out data it takes, and what it shows
 * meanwhile.
 */
#include "cli_test.h"

#include <cjson/cJSON.h>
#include <math.h>

#include "clock.h"
#include "progress.h"

/* ---- how much ------------------------------------------------------------------------------ */

static double count_tokens(const char *json_text)
{
    cJSON *json = cJSON_Parse(json_text);
    const cJSON *tokens = cJSON_GetObjectItemCaseSensitive(json, "tokens");

    if (!cJSON_IsNumber(tokens)) fail_msg("no tokens in: %s", json_text);
    const double n = tokens->valuedouble;
    cJSON_Delete(json);
    return n;
}

#define MORE            "--set", "data.valid=data/train"
#define EVAL(code, ...) RUN(code, "eval", "run.yaml", "--json", __VA_ARGS__)

/* Sequences have 64 tokens. */
static void test_tokens_limit_the_data(void **state)
{
    (void)state;
    char *all = strdup(EVAL(0, "--quiet")->out);
    char *one = strdup(EVAL(0, "--tokens", "64")->out);
    assert_true(count_tokens(one) > 0 && count_tokens(one) < 64);
    assert_true(count_tokens(all) > 4 * 64);
    assert_string_equal(EVAL(0, "--tokens", "1")->out, one);
    char *two = strdup(EVAL(0, "--tokens", "128")->out);
    assert_true(count_tokens(two) > count_tokens(one) && count_tokens(two) < 128);
    assert_string_equal(EVAL(0, "--tokens", "65")->out, two);
    char *more = strdup(EVAL(0, MORE, "--tokens", "1024")->out);
    assert_true(count_tokens(more) > 512 && count_tokens(more) < 1024);
    assert_string_equal(EVAL(0, MORE, "--tokens=1k")->out, more);
    assert_string_equal(EVAL(0, "--tokens", "1M")->out, all);
    assert_string_equal(EVAL(0, "--tokens", "9223372036854775807")->out, all);
    assert_string_equal(EVAL(0, "--set", "eval.tokens=64")->out, all); /* that is for training */
    free(all);
    free(one);
    free(two);
    free(more);
}

static void test_tokens_are_checked(void **state)
{
    static const char *const bad[] = {
        "0", "-1", "many", "1T", "64K", "64kk", "1.5k", "", "9007199254740992k"};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_says(EVAL(2, "--tokens", bad[i])->err, "want a whole number from 1, or 64k");
    const outcome *done = RUN(2, "eval", "run.yaml", "--tokens", "64", "--sample", "3");
    assert_says(done->err, "not with --sample");
    done = RUN(0, "eval", "--help");
    assert_says(done->out, "--tokens N");
    assert_says(done->out, "whatever eval.tokens says");
}

/* ---- what is shown ------------------------------------------------------------------------- */

static int count(const char *text, const char *part)
{
    int n = 0;
    for (text = strstr(text, part); text != NULL; text = strstr(text + 1, part)) n++;
    return n;
}

/* Not on a terminal: which checkpoint, and at the end how much and how fast. */
static void test_progress_is_plain_lines(void **state)
{
    (void)state;
    char line[64];
    const outcome *done = EVAL(0, "--tokens", "256");
    const char *loss = strstr(done->out, "\"loss\":");

    assert_non_null(loss);
    snprintf(line, sizeof line, "eval 256/256 tokens  loss %.4f  ", strtod(loss + 7, NULL));
    assert_says(done->err, "loaded run/checkpoints/step-00000030\n");
    assert_says(done->err, line);
    assert_says(done->err, " tok/s  ETA 0s\n");
    assert_null(strchr(done->err, '\r'));
    assert_null(strchr(done->err, '\033'));
    assert_string_equal(EVAL(0, "--quiet")->err, "");
}

/* What the calls print; at most one live. */
static char *catch_progress(ls_progress *progress, const ls_progress_evaluation *evaluations, int n)
{
    const int kept = dup(STDERR_FILENO);
    const int file = open(at("caught.txt"), O_CREAT | O_TRUNC | O_WRONLY, 0666);
    static char *text;

    assert_true(kept >= 0 && file >= 0);
    assert_true(dup2(file, STDERR_FILENO) >= 0);
    for (int i = 0; i < n; i++) ls_progress_eval(progress, &evaluations[i]);
    ls_progress_close(progress);
    fflush(stderr);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    close(file);
    free(text);
    text = need_bytes(at("caught.txt"), NULL);
    return text;
}

/* The first and the last always; between them one every ten seconds. */
static void test_progress_lines_are_rare(void **state)
{
    const ls_progress_evaluation steps[] = {{.tokens = 500, .tokens_all = 4000, .loss = NAN},
                                            {.tokens = 1000, .tokens_all = 4000, .loss = 2.5},
                                            {.tokens = 2000, .tokens_all = 4000, .loss = 2.25}};
    const ls_progress_evaluation half = {
        .tokens = 2000, .tokens_all = 4000, .loss = 2.25, .elapsed_s = 4.0};
    const ls_progress_evaluation last = {
        .tokens = 4000, .tokens_all = 4000, .loss = 2.125, .elapsed_s = 8.0};
    ls_progress progress = {.terminal = false};

    (void)state;
    char *text = catch_progress(&progress, steps, 3);
    assert_int_equal(count(text, "\n"), 1);
    assert_says(text, "eval 500/4000 tokens  loss ?  ");
    progress.last_ns = ls_clock_ns() - 9000000000u;
    assert_string_equal(catch_progress(&progress, &half, 1), "");
    progress.last_ns = ls_clock_ns() - 10000000000u;
    assert_string_equal(catch_progress(&progress, &half, 1),
                        "eval 2000/4000 tokens  loss 2.2500  500 tok/s  ETA 4s\n");
    assert_string_equal(catch_progress(&progress, &last, 1),
                        "eval 4000/4000 tokens  loss 2.1250  500 tok/s  ETA 0s\n");
    progress.quiet = true;
    assert_string_equal(catch_progress(&progress, &last, 1), "");
}

/* One line, redrawn, ended when it is done. */
static void test_progress_on_a_terminal_is_one_line(void **state)
{
    const ls_progress_evaluation steps[] = {
        {.tokens = 1000, .tokens_all = 4000, .loss = 2.5, .elapsed_s = 1.0},
        {.tokens = 2000, .tokens_all = 4000, .loss = 2.25, .elapsed_s = 2.0}};
    ls_progress progress = {.terminal = true};

    (void)state;
    assert_string_equal(catch_progress(&progress, steps, 2),
                        "\reval 1000/4000 tokens  loss 2.5000  1000 tok/s  ETA 3s\033[K"
                        "\reval 2000/4000 tokens  loss 2.2500  1000 tok/s  ETA 2s\033[K\n");
}

/* More than a second of it, so that the heartbeat shows the way; no file of the run changes. */
static void test_progress_moves(void **state)
{
    const char *at_tokens;
    long shown = 0;

    (void)state;
    put_text(at("data/long.bin"), "");
    assert_int_equal(truncate(at("data/long.bin"), 1L << 24), 0);
    char *before = need_bytes(at("run/heartbeat.json"), NULL);
    put_text(at("stderr.txt"), "");
    const pid_t pid = START("eval", "run.yaml", "--set", "data.valid=data/long", "--set",
                            "data.train=data/long", "--set", "data.format=raw-u16");
    while (shown == 0) {
        char *text = get_bytes(at("stderr.txt"), NULL);
        if (text != NULL && (at_tokens = strstr(text, "eval ")) != NULL &&
            strchr(at_tokens, '\n') != NULL)
            shown = atol(at_tokens + 5);
        free(text);
        if (waitpid(pid, NULL, WNOHANG) != 0) fail_msg("eval ended without a word");
        sleep_ms(10);
    }
    assert_in_range(shown, 1, (1L << 23) - 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
    finish_as(1000 + SIGKILL, pid);
    char *after = need_bytes(at("run/heartbeat.json"), NULL);
    assert_string_equal(before, after);
    free(before);
    free(after);
}

static int make_run(void **state)
{
    if (make_scratch(state) != 0) return -1;
    RUN(0, "train", "run.yaml");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_limit_the_data),
        cmocka_unit_test(test_tokens_are_checked),
        cmocka_unit_test(test_progress_is_plain_lines),
        cmocka_unit_test(test_progress_lines_are_rare),
        cmocka_unit_test(test_progress_on_a_terminal_is_one_line),
        cmocka_unit_test(test_progress_moves),
    };
    return cmocka_run_group_tests(tests, make_run, remove_scratch);
}
