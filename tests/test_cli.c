/*
 * test_cli.c - the program as people and schedulers meet it: runs that repeat and resume to the
 * bit, signals, deadlines, what a run leaves on disk, bad input, full and read-only disks.
 */
#include "cli_test.h"

#include <cjson/cJSON.h>
#include <math.h>

#include "checkpoint_dir.h"

/* ---- repeat, resume ------------------------------------------------------------------------ */

static void check_repeats(const char *precision, const char *accumulate)
{
    const char *set[] = {precision, accumulate};

    assert_ok(ls_directory_remove(at("a")));
    assert_ok(ls_directory_remove(at("b")));
    assert_ok(ls_directory_remove(at("c")));
#define REPEAT(code, output, ...)                                                                  \
    RUN(code, "train", "run.yaml", "--set", "output=" output, "--set", set[0], "--set", set[1],    \
        __VA_ARGS__)
    REPEAT(0, "a", "--quiet");
    REPEAT(0, "b", "--quiet");
    assert_same_run("a", "b", 30);
    const outcome *stopped = REPEAT(75, "c", "--stop-after", "13");
    assert_says(stopped->err, "stopped after step 13 of 30");
    assert_int_equal(last_step("c"), 13);
    REPEAT(0, "c", "--resume");
    assert_same_run("a", "c", 30);
    assert_says(REPEAT(0, "c", "--resume")->err, "already complete: step 30 of 30 is saved in c");
    assert_string_equal(REPEAT(0, "c", "--resume", "--quiet", "--stop-after", "13")->err, "");
    assert_same_run("a", "c", 30);
#undef REPEAT
}

static void test_bf16_repeats_and_resumes(void **state)
{
    (void)state;
    check_repeats("precision=bf16", "batch.accumulate=1");
}

static void test_fp32_repeats_and_resumes(void **state)
{
    (void)state;
    check_repeats("precision=fp32", "batch.accumulate=1");
}

static void test_accumulation_repeats_and_resumes(void **state)
{
    (void)state;
    check_repeats("precision=bf16", "batch.accumulate=2");
}

static void test_packed_moments_repeat_and_resume(void **state)
{
    (void)state;
    check_repeats("precision=bf16", "optimizer.moments=q8");
    RUN(2, "train", "run.yaml", "--set", "output=a", "--set", "precision=bf16", "--resume");
}

static void test_biases_repeat_and_resume(void **state)
{
    (void)state;
    put_changed(at("qwen2.yaml"), model_yaml, "model_type: llama", "model_type: qwen2");
    check_repeats("precision=bf16", "model=qwen2.yaml");
    char *config = need_bytes(at("a/checkpoints/step-00000030/config.json"), NULL);
    assert_says(config, "Qwen2ForCausalLM");
    free(config);
    RUN(0, "eval", "run.yaml", "--set", "model=a/checkpoints/step-00000030", "--set",
        "init=pretrained", "--checkpoint", "a/checkpoints/step-00000030", "--tokens", "256");
}

/* A run directory may be moved, or copied: it goes on under its new name to the same bits. */
static void test_moved_run_resumes(void **state)
{
    (void)state;
    RUN(75, "train", "run.yaml", "--set", "output=home", "--stop-after", "13");
    assert_ok(ls_directory_make(at("away")));
    assert_int_equal(rename(at("home"), at("away/run")), 0);
    const outcome *resumed = RUN(0, "train", "run.yaml", "--set", "output=away/run", "--resume");
    assert_says(resumed->err, "resumed from away/run/checkpoints/step-00000013");
    assert_null(strstr(resumed->err, "already complete"));
    RUN(0, "train", "run.yaml", "--set", "output=stayed");
    assert_same_run("away/run", "stayed", 30);
    assert_false(is_there(at("home")));
}

/* ---- signals, deadline --------------------------------------------------------------------- */

/* A run without an end, whose rate does not depend on where the end is. */
#define LONG_RUN(output)                                                                           \
    "train", "run.yaml", "--set", "output=" output, "--set", "batch.accumulate=2", "--set",        \
        "optimizer.schedule=constant", "--set", "eval.every_steps=0", "--set", "data.valid=null"

/* Wait until the record has a line of this step; the program must be alive all that time. */
static void wait_for_step(pid_t pid, const char *output, int64_t step)
{
    char key[64];
    snprintf(key, sizeof key, "{\"step\":%lld,", (long long)step);
    for (;;) {
        char *text = get_bytes(at("%s/record.jsonl", output), NULL);
        const bool found = text != NULL && strstr(text, key) != NULL;
        free(text);
        if (found) return;
        if (waitpid(pid, NULL, WNOHANG) != 0) fail_msg("the run ended before step %s", key);
        sleep_ms(1);
    }
}

static void assert_latest(const char *output, int64_t step)
{
    char *latest = need_bytes(at("%s/latest", output), NULL), want[64];
    snprintf(want, sizeof want, "step-%08lld\n", (long long)step);
    assert_string_equal(latest, want);
    free(latest);
    assert_ok(
        ls_checkpoint_verify(at("%s/checkpoints/step-%08lld", output, (long long)step), true));
}

/* Signals at three points, likely inside a step; then the run ends as if there had been none. */
static void check_signal(int number)
{
    int64_t step = 0;
    char steps[64];

    assert_ok(ls_directory_remove(at("long")));
    assert_ok(ls_directory_remove(at("whole")));
    for (int i = 0; i < 3; i++) {
        const pid_t pid = START(LONG_RUN("long"), "--set", "steps=1000000", "--set",
                                "checkpoint.every_steps=0", "--resume");
        wait_for_step(pid, "long", step + 2);
        sleep_ms(3 * i);
        assert_int_equal(kill(pid, number), 0);
        const outcome *stopped = finish_as(75, pid);
        assert_says(stopped->err, "everything is saved");
        step = last_step("long");
        assert_latest("long", step);
    }
    snprintf(steps, sizeof steps, "steps=%lld", (long long)step + 3);
    RUN(0, LONG_RUN("long"), "--set", steps, "--resume");
    RUN(0, LONG_RUN("whole"), "--set", steps);
    assert_same_run("long", "whole", step + 3);
}

static void test_sigterm_saves(void **state)
{
    (void)state;
    check_signal(SIGTERM);
}

static void test_sigint_saves(void **state)
{
    (void)state;
    check_signal(SIGINT);
}

/* Stopped, given two signals, woken: both are there before it runs on. */
static void test_second_signal_exits_at_once(void **state)
{
    int status;

    (void)state;
    assert_ok(ls_directory_remove(at("long")));
    assert_ok(ls_directory_remove(at("whole")));
    const pid_t pid =
        START(LONG_RUN("long"), "--set", "steps=1000000", "--set", "checkpoint.every_steps=2");
    wait_for_step(pid, "long", 5);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(kill(pid, SIGINT), 0);
    assert_int_equal(kill(pid, SIGCONT), 0);
    const outcome *ended = finish(pid);
    if (ended->code != 128 + SIGTERM && ended->code != 128 + SIGINT)
        fail_msg("exit code %d: %s", ended->code, ended->err);
    assert_null(strstr(ended->err, "everything is saved"));

    char steps[64];
    const int64_t last = last_step("long") + 3;
    snprintf(steps, sizeof steps, "steps=%lld", (long long)last);
    RUN(0, LONG_RUN("long"), "--set", steps, "--resume");
    RUN(0, LONG_RUN("whole"), "--set", steps);
    assert_same_run("long", "whole", last);
}

static void test_deadline_saves(void **state)
{
    (void)state;
    assert_ok(ls_directory_remove(at("long")));
    const outcome *stopped =
        RUN(75, LONG_RUN("long"), "--set", "steps=1000000", "--deadline", "+1s");
    assert_says(stopped->err, "continue with --resume");
    assert_true(last_step("long") > 0);
    assert_latest("long", last_step("long"));
    RUN(75, LONG_RUN("long"), "--set", "steps=1000000", "--resume", "--deadline", "@1");
}

/* ---- what a run leaves --------------------------------------------------------------------- */

static const cJSON *need(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (item == NULL) fail_msg("no key '%s'", key);
    return item;
}

static void need_all(const cJSON *object, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++) need(object, keys[i]);
}

/* [[from, to, loss], ...] from position 0 up to at most S, without gaps, all finite. */
static void check_bins(const cJSON *bins)
{
    const cJSON *bin;
    double end = 0.0;

    assert_true(cJSON_GetArraySize(bins) >= 3);
    cJSON_ArrayForEach(bin, bins)
    {
        assert_int_equal(cJSON_GetArraySize(bin), 3);
        const double from = cJSON_GetArrayItem(bin, 0)->valuedouble;
        const double to = cJSON_GetArrayItem(bin, 1)->valuedouble;
        const double loss = cJSON_GetArrayItem(bin, 2)->valuedouble;
        assert_true(from >= end && to > from && to <= 64.0);
        assert_true(isfinite(loss) && loss > 0.0);
        end = to;
    }
}

static void check_step_line(const cJSON *line, const cJSON *missing)
{
    static const char *const keys[] = {"step",
                                       "attempt",
                                       "tokens",
                                       "tokens_total",
                                       "pairs",
                                       "loss",
                                       "grad_norm",
                                       "grad_norm_clipped",
                                       "clipped",
                                       "skipped",
                                       "lr",
                                       "step_s",
                                       "tokens_per_s",
                                       "mfu_causal",
                                       "mfu_megatron",
                                       "tflops_alst",
                                       "lane_busy_s",
                                       "bytes",
                                       "peak_bytes",
                                       "energy_j",
                                       "predicted_step_s",
                                       "kernels",
                                       "loss_by_position",
                                       "loss_by_distance",
                                       "loss_by_source"};
    static const char *const lanes[] = {"compute", "copy_in", "copy_out",
                                        "host",    "disk_in", "disk_out"};
    static const char *const copies[] = {"copy_in", "copy_out", "disk_in", "disk_out"};
    static const char *const places[] = {"hbm", "host", "nvme"};
    static const char *const rails[] = {"gpu", "module", "cpu"};
    const cJSON *item;

    need_all(line, keys, sizeof keys / sizeof keys[0]);
    need_all(need(line, "lane_busy_s"), lanes, 6);
    need_all(need(line, "bytes"), copies, 4);
    need_all(need(line, "peak_bytes"), places, 3);
    need_all(need(line, "energy_j"), rails, 3);
    cJSON_ArrayForEach(item, line) if (cJSON_IsNull(item)) need(missing, item->string);
    assert_true(need(line, "loss")->valuedouble > 0.0);
    assert_true(need(need(line, "peak_bytes"), "host")->valuedouble > 0.0);
    assert_true(need(line, "grad_norm_clipped")->valuedouble <= 1.0 + 1e-6);
    check_bins(need(line, "loss_by_position"));
    check_bins(need(line, "loss_by_distance"));
    need(need(line, "loss_by_source"), "data/train");
}

/* Every line of the record; the tokens that its step lines sum to, the number of eval lines. */
static int check_lines(const char *output, const cJSON *missing, int64_t *tokens)
{
    char *text = need_bytes(at("%s/record.jsonl", output), NULL), *next;
    int n_evals = 0;
    double total = 0.0, attempt = 1.0;

    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        cJSON *object = cJSON_Parse(line);
        assert_non_null(object);
        assert_true(need(object, "attempt")->valuedouble >= attempt);
        attempt = need(object, "attempt")->valuedouble;
        if (cJSON_GetObjectItemCaseSensitive(object, "eval_loss") != NULL) {
            check_bins(need(object, "eval_loss_by_position"));
            check_bins(need(object, "eval_loss_by_distance"));
            need(need(object, "eval_loss_by_source"), "data/valid");
            n_evals++;
        } else {
            check_step_line(object, missing);
            total += need(object, "tokens")->valuedouble;
            assert_true(need(object, "tokens_total")->valuedouble == total);
        }
        cJSON_Delete(object);
    }
    free(text);
    *tokens = (int64_t)total;
    return n_evals;
}

static cJSON *read_run_json(const char *output)
{
    static const char *const keys[] = {"schema", "version", "command", "config",  "machine",
                                       "plan",   "build",   "missing", "warnings"};
    char *text = need_bytes(at("%s/run.json", output), NULL);
    cJSON *run = cJSON_Parse(text);

    free(text);
    assert_non_null(run);
    need_all(run, keys, sizeof keys / sizeof keys[0]);
    assert_string_equal(need(run, "command")->valuestring, "train");
    return run;
}

/* One sequence per step, as many steps as an epoch has: its tokens are the shard's, no padding. */
static void test_record_is_complete(void **state)
{
    char steps[64];
    int64_t tokens;
    const int64_t n = (train_tokens + 63) / 64;

    (void)state;
    assert_true(train_tokens % 64 != 0); /* else nothing is padded */
    snprintf(steps, sizeof steps, "steps=%lld", (long long)n);
#define EPOCH(code, ...)                                                                           \
    RUN(code, "train", "run.yaml", "--set", "output=epoch", "--set", "batch.sequences=1", "--set", \
        steps, __VA_ARGS__)
    EPOCH(75, "--stop-after", "4");
    EPOCH(75, "--stop-after", "9", "--resume");
    EPOCH(0, "--resume");
#undef EPOCH
    cJSON *run = read_run_json("epoch");
    assert_true(need(run, "attempt")->valuedouble == 3.0);
    const int n_evals = check_lines("epoch", need(run, "missing"), &tokens);
    assert_int_equal(tokens, train_tokens);
    assert_int_equal(n_evals, n / 10 + (n % 10 != 0));
    cJSON_Delete(run);
}

static void test_checkpoints_rotate(void **state)
{
    ls_name_list list;

    (void)state;
    RUN(0, "train", "run.yaml", "--set", "output=rotate", "--set", "checkpoint.every_steps=4",
        "--set", "checkpoint.keep=3");
    assert_ok(ls_directory_list(at("rotate/checkpoints"), &list));
    assert_int_equal(list.n_names, 3);
    ls_name_list_free(&list);
    assert_true(is_there(at("rotate/checkpoints/step-00000024")));
    assert_true(is_there(at("rotate/checkpoints/step-00000028")));
    assert_latest("rotate", 30);
}

static void test_damaged_checkpoint_is_passed_over(void **state)
{
    (void)state;
    RUN(0, "train", "run.yaml", "--set", "output=sound");
    RUN(0, "train", "run.yaml", "--set", "output=hurt");
    damage(at("hurt/checkpoints/step-00000030/optimizer-00001-of-00001.safetensors"));
    const outcome *resumed = RUN(0, "train", "run.yaml", "--set", "output=hurt", "--resume");
    assert_says(resumed->err, "passed over hurt/checkpoints/step-00000030: ");
    assert_says(resumed->err, "resumed from hurt/checkpoints/step-00000020");
    assert_same_run("sound", "hurt", 30);

    damage(at("hurt/checkpoints/step-00000020/model-00001-of-00001.safetensors"));
    damage(at("hurt/checkpoints/step-00000030/state.json"));
    resumed = RUN(1, "train", "run.yaml", "--set", "output=hurt", "--resume");
    assert_says(resumed->err, "none of its 2 checkpoints is whole");
}

static void test_dry_run_writes_nothing(void **state)
{
    (void)state;
    const outcome *done = RUN(0, "train", "run.yaml", "--set", "output=dry", "--dry-run");
    assert_says(done->out, "weights ");
    assert_says(done->out, "total ");
    assert_says(done->out, ": fits");
    assert_false(is_there(at("dry")));
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (text = strstr(text, part); text != NULL; text = strstr(text + 1, part)) n++;
    return n;
}

/* Longer than the model was made for: refused by every command, with what would allow it. */
static void test_too_many_positions(void **state)
{
    static const char says[] = "beyond.yaml:4: sequence.tokens: 64 is beyond the 32 positions that "
                               "the RoPE of short.yaml covers; allowed: 2 to 32, "
                               "max_position_embeddings: 64 in short.yaml (the weights start at "
                               "random), or this line in the run file: rope_scaling: ";

    (void)state;
    put_changed(at("short.yaml"), model_yaml, "embeddings: 1073741824", "embeddings: 32");
    put_changed(at("beyond.yaml"), run_yaml, "model.yaml", "short.yaml");
#define BEYOND(code, command, ...)                                                                 \
    RUN(code, command, "beyond.yaml", "--set", "output=beyond", __VA_ARGS__)
    assert_says(BEYOND(2, "train", "--dry-run")->err, says);
    assert_says(BEYOND(2, "train", "--quiet")->err, says);
    assert_says(BEYOND(2, "eval", "--json")->err, says);
    assert_says(BEYOND(2, "plan", "--json")->err, says);
    assert_false(is_there(at("beyond")));
#undef BEYOND
    put_changed(at("short.yaml"), model_yaml, "embeddings: 1073741824", "embeddings: 64");
    const outcome *done = RUN(0, "train", "beyond.yaml", "--set", "output=within");
    assert_int_equal(count(done->err, "warning"), 0);
    cJSON *run = read_run_json("within");
    assert_int_equal(cJSON_GetArraySize(need(run, "warnings")), 0);
    cJSON_Delete(run);
}

/* ---- eval ---------------------------------------------------------------------------------- */

static char *sample(const char *seed, size_t *bytes)
{
    const outcome *done = RUN(0, "eval", "run.yaml", "--set", "model=bytes.yaml", "--set",
                              "output=bytes", "--set", seed, "--sample", "50", "--prompt", "int ");
    char *copy = malloc(done->n_out + 1);

    assert_non_null(copy);
    memcpy(copy, done->out, done->n_out + 1);
    *bytes = done->n_out - 1;
    assert_int_equal(copy[*bytes], '\n'); /* ends the output, not part of the sample */
    return copy;
}

static void test_eval_agrees_with_itself(void **state)
{
    char table[64];

    (void)state;
    RUN(0, "train", "run.yaml", "--set", "output=judged", "--set", "eval.tokens=1M");
    const outcome *done = RUN(0, "eval", "run.yaml", "--set", "output=judged", "--json");
    cJSON *json = cJSON_Parse(done->out);
    assert_non_null(json);
    const double loss = need(json, "loss")->valuedouble;
    double sum = 0.0, labels = 0.0;
    const cJSON *bin;
    cJSON_ArrayForEach(bin, need(json, "by_position"))
    {
        const double n = need(bin, "tokens")->valuedouble;
        sum += n * need(bin, "loss")->valuedouble;
        labels += n;
    }
    assert_true(labels == need(json, "tokens")->valuedouble);
    assert_true(fabs(sum / labels - loss) < 1e-6);
    cJSON_Delete(json);

    done = RUN(0, "eval", "run.yaml", "--set", "output=judged", "--checkpoint",
               "judged/checkpoints/step-00000030");
    snprintf(table, sizeof table, "held-out loss  %.4f nats", loss);
    assert_says(done->out, table);

    char *record = need_bytes(at("judged/record.jsonl"), NULL), *last = record, *found;
    while ((found = strstr(last + 1, "\"eval_loss\":")) != NULL) last = found;
    assert_true(last != record);
    assert_true(fabs(strtod(last + 12, NULL) - loss) < 1e-6); /* printed with nine digits */
    free(record);
}

/* A vocabulary without padding: only an end of document, one token in hundreds, ends a sample. */
static void test_samples_repeat(void **state)
{
    static const char *const seeds[] = {"seed=7", "seed=8", "seed=9", "seed=10"};
    char *samples[4];
    size_t bytes, longest = 0;

    (void)state;
    put_changed(at("bytes.yaml"), model_yaml, "vocab_size: 272", "vocab_size: 257");
    RUN(0, "train", "run.yaml", "--set", "model=bytes.yaml", "--set", "output=bytes");
    for (int i = 0; i < 4; i++) {
        samples[i] = sample(seeds[i], &bytes);
        assert_true(bytes <= 50);
        if (bytes > longest) longest = bytes;
        char *again = sample(seeds[i], &bytes);
        assert_memory_equal(samples[i], again, bytes + 1);
        free(again);
    }
    assert_int_equal(longest, 50);
    assert_string_not_equal(samples[0], samples[1]);
    for (int i = 0; i < 4; i++) free(samples[i]);
}

/* OpenMP prints its settings as it starts, once for every start of the program. */
static void test_waiting_threads_sleep(void **state)
{
    (void)state;
    assert_int_equal(setenv("OMP_DISPLAY_ENV", "true", 1), 0);
    const outcome *done = RUN(0, "--version");
    assert_int_equal(unsetenv("OMP_DISPLAY_ENV"), 0);
    if (strstr(done->out, "OpenMP            yes") == NULL) return; /* no threads to wait */
    assert_says(done->err, "PASSIVE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_repeats_and_resumes),
        cmocka_unit_test(test_fp32_repeats_and_resumes),
        cmocka_unit_test(test_accumulation_repeats_and_resumes),
        cmocka_unit_test(test_packed_moments_repeat_and_resume),
        cmocka_unit_test(test_biases_repeat_and_resume),
        cmocka_unit_test(test_moved_run_resumes),
        cmocka_unit_test(test_sigterm_saves),
        cmocka_unit_test(test_sigint_saves),
        cmocka_unit_test(test_second_signal_exits_at_once),
        cmocka_unit_test(test_deadline_saves),
        cmocka_unit_test(test_record_is_complete),
        cmocka_unit_test(test_checkpoints_rotate),
        cmocka_unit_test(test_damaged_checkpoint_is_passed_over),
        cmocka_unit_test(test_dry_run_writes_nothing),
        cmocka_unit_test(test_too_many_positions),
        cmocka_unit_test(test_eval_agrees_with_itself),
        cmocka_unit_test(test_samples_repeat),
        cmocka_unit_test(test_waiting_threads_sleep),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
