/*
 * test_cli_resume.c - what a run directory is held to: the model that its weights were made with,
 * and one trainer at a time.
 */
#include "cli_test.h"

static int train_a_run(void **state)
{
    if (make_scratch(state) != 0) return -1;
    RUN(75, "train", "run.yaml", "--stop-after", "2");
    return 0;
}

/* ---- the model ----------------------------------------------------------------------------- */

#define QUIET_RUN "run.yaml", "--quiet"

typedef struct change {
    const char *from, *to;   /* in model.yaml */
    const char *field;       /* that the message names */
    const char *there, *now; /* its values */
    bool computes_the_same;  /* eval does not mind */
} change;

static const change changes[] = {
    {"rope_theta: 10000.0", "rope_theta: 500000.0", "rope_theta", "10000", "500000", false},
    {"rms_norm_eps: 1.0e-5", "rms_norm_eps: 1.0e-1", "rms_norm_eps", "1e-05", "0.1", false},
    {"num_attention_heads: 4\nnum_key_value_heads: 2\nhead_dim: 8",
     "num_attention_heads: 2\nnum_key_value_heads: 1\nhead_dim: 16", "num_attention_heads", "4",
     "2", false},
    {"model_type: llama", "model_type: mistral\nsliding_window: 8", "model_type", "\"llama\"",
     "\"mistral\"", false},
    {"rope_theta", "rope_scaling: {rope_type: linear, factor: 2.0}\nrope_theta", "rope_scaling",
     "null", "{\"rope_type\":\"linear\",\"factor\":2}", false},
    {"num_hidden_layers: 2", "num_hidden_layers: 3", "num_hidden_layers", "2", "3", false},
    {"intermediate_size: 64", "intermediate_size: 72", "intermediate_size", "64", "72", false},
    {"tie_word_embeddings: false", "tie_word_embeddings: true", "tie_word_embeddings", "false",
     "true", false},
    {"initializer_range: 0.02", "initializer_range: 0.03", "initializer_range", "0.02", "0.03",
     true},
    {"eos_token_id: 256", "eos_token_id: 257", "eos_token_id", "256", "257", true},
};

static void check_change(const change *c)
{
    char part[256];

    put_changed(at("model.yaml"), model_yaml, c->from, c->to);
    const outcome *done = RUN(2, "train", QUIET_RUN, "--resume");
    snprintf(part, sizeof part,
             "model: %s of model.yaml differs from the run that run/checkpoints/step-00000002 "
             "belongs to: %s there, %s now; set it back to %s, or start a new run with another "
             "output",
             c->field, c->there, c->now, c->there);
    assert_says(done->err, part);
    RUN(2, "train", QUIET_RUN, "--resume", "--replan");

    const int code = c->computes_the_same ? 0 : 2;
    done = RUN(code, "eval", QUIET_RUN, "--json");
    if (code == 0) return;
    snprintf(part, sizeof part,
             "model: %s of model.yaml is %s, but the weights in run/checkpoints/step-00000002 were "
             "made with %s; set it to %s, or give model: run/checkpoints/step-00000002",
             c->field, c->now, c->there, c->there);
    assert_says(done->err, part);
    RUN(2, "eval", QUIET_RUN, "--checkpoint", "run/checkpoints/step-00000002");
    RUN(2, "eval", QUIET_RUN, "--sample", "1");
}

static void test_another_model_is_refused(void **state)
{
    (void)state;
    char *before = need_bytes(at("run/record.jsonl"), NULL);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) check_change(&changes[i]);
    char *after = need_bytes(at("run/record.jsonl"), NULL);
    assert_string_equal(before, after);
    free(before);
    free(after);
}

/* Other words for the same model. */
static void test_the_same_model_resumes(void **state)
{
    (void)state;
    put_changed(at("model.yaml"), model_yaml, "head_dim: 8\n", "# as the rest says\n");
    RUN(0, "eval", QUIET_RUN, "--json");
    RUN(75, "train", QUIET_RUN, "--resume", "--stop-after", "3");
    put_text(at("model.yaml"), model_yaml);
    RUN(0, "eval", QUIET_RUN, "--set", "model=run/checkpoints/step-00000003", "--json");
    put_changed(
        at("model.yaml"), model_yaml, "max_position_embeddings: 1073741824",
        "max_position_embeddings: 1073741825"); /* as the refusal of longer sequences advises */
    RUN(75, "train", QUIET_RUN, "--resume", "--stop-after", "4");
    put_text(at("model.yaml"), model_yaml);
}

/* The run file may look at the weights through another RoPE or window, but says so itself. */
static void test_eval_takes_what_the_run_file_chooses(void **state)
{
    (void)state;
    put_text(at("model.yaml"), model_yaml);
    RUN(0, "eval", QUIET_RUN, "--set", "rope_scaling={type: linear, factor: 2}", "--json");
    RUN(0, "eval", QUIET_RUN, "--set", "sequence.window=16", "--json");
    RUN(0, "eval", QUIET_RUN, "--set", "sequence.tokens=128", "--json");
}

/* ---- one trainer at a time ----------------------------------------------------------------- */

#define ENDLESS                                                                                    \
    "train", QUIET_RUN, "--resume", "--set", "steps=100000000", "--set", "eval.every_steps=0",     \
        "--set", "checkpoint.every_steps=0"

static pid_t start_endless(void)
{
    const pid_t pid = START(ENDLESS);

    for (;;) {
        char *text = get_bytes(at("run/heartbeat.json"), NULL);
        const bool running = text != NULL && strstr(text, "\"running\"") != NULL;
        free(text);
        if (running) return pid;
        if (waitpid(pid, NULL, WNOHANG) != 0) fail_msg("the trainer ended too early");
        sleep_ms(1);
    }
}

static void check_kept_out(pid_t pid)
{
    char part[160];

    snprintf(part, sizeof part,
             "output: run is in use by another longspan, process %ld; wait until it ends, stop it, "
             "or choose another output",
             (long)pid);
    assert_says(RUN(2, "train", QUIET_RUN)->err, part);
    assert_says(RUN(2, "train", QUIET_RUN, "--resume")->err, part);
    assert_says(RUN(2, "train", QUIET_RUN, "--resume", "--replan")->err, part);
    assert_ok(ls_directory_make(at("elsewhere")));
    assert_says(RUN(2, "train", QUIET_RUN, "--resume", "--set", "output=elsewhere/../run")->err,
                "in use by another");
}

/* Beside it runs are read as ever. */
static void test_second_trainer_is_kept_out(void **state)
{
    (void)state;
    put_text(at("model.yaml"), model_yaml);
    const pid_t pid = start_endless();
    check_kept_out(pid);
    RUN(0, "eval", QUIET_RUN, "--json");
    RUN(0, "train", QUIET_RUN, "--dry-run");
    RUN(0, "report", "run");
    check_kept_out(pid);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
    assert_int_equal(kill(pid, SIGTERM), 0);
    finish_as(75, pid);
    assert_false(is_there(at("run/lock")));
}

static void test_killed_trainer_keeps_nobody_out(void **state)
{
    (void)state;
    const pid_t pid = start_endless();
    assert_int_equal(kill(pid, SIGKILL), 0);
    finish_as(1000 + SIGKILL, pid);
    assert_true(is_there(at("run/lock")));
    char step[32];
    snprintf(step, sizeof step, "%lld", (long long)last_step("run") + 1);
    RUN(75, ENDLESS, "--stop-after", step);
    assert_false(is_there(at("run/lock")));
}

/* In a folder that holds no run as well; what is refused there leaves nothing. */
static void test_empty_folder_is_held_too(void **state)
{
    const struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char part[64];

    (void)state;
    assert_ok(ls_directory_make(at("held")));
    const int fd = open(at("held/lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_int_equal(fcntl(fd, F_SETLK, &whole), 0);
    snprintf(part, sizeof part, "another longspan, process %ld;", (long)getpid());
    assert_says(RUN(2, "train", QUIET_RUN, "--set", "output=held")->err, part);
    assert_says(RUN(2, "train", QUIET_RUN, "--set", "output=held", "--resume")->err, part);
    close(fd);
    RUN(2, "train", QUIET_RUN, "--set", "output=held", "--set", "data.train=none");
    ls_name_list list;
    assert_ok(ls_directory_list(at("held"), &list));
    assert_int_equal(list.n_names, 0);
    ls_name_list_free(&list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_another_model_is_refused),
        cmocka_unit_test(test_the_same_model_resumes),
        cmocka_unit_test(test_eval_takes_what_the_run_file_chooses),
        cmocka_unit_test(test_second_trainer_is_kept_out),
        cmocka_unit_test(test_killed_trainer_keeps_nobody_out),
        cmocka_unit_test(test_empty_folder_is_held_too),
    };
    return cmocka_run_group_tests(tests, train_a_run, remove_scratch);
}
