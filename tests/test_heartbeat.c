/* test_heartbeat.c - while the program trains, heartbeat.json is always whole and says where, in
 * forward and in backward; after it, how the run ended. */
#include "cli_test.h"

#include <cjson/cJSON.h>
#include <sys/resource.h>

enum {
    BEATS = 3,
    POLLS_MAX = 2400, /* 120 beats or so, each at a moment of its own */
    POLL_MS = 50,
    LAYERS = 2, /* of model_yaml */
    BLOCKS = 8, /* of its sequences' 2 x 64 tokens, by 16 */
};

/* Which phases were caught within a layer and a block of it. */
typedef struct seen {
    bool forward, backward, a_later_layer, a_later_block;
} seen;

static double number(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsNumber(item)) fail_msg("heartbeat: %s is no number", key);
    return item->valuedouble;
}

static void assert_text(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsString(item) || item->valuestring[0] == '\0') fail_msg("heartbeat: %s", key);
}

static void assert_state(const cJSON *beat, const char *expected)
{
    assert_text(beat, "state");
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(beat, "state")->valuestring, expected);
}

/* The beat in the file. */
static cJSON *read_beat(const char *output)
{
    char *text = need_bytes(at("%s/heartbeat.json", output), NULL);
    cJSON *beat = cJSON_Parse(text);

    if (beat == NULL) fail_msg("heartbeat is not whole: '%s'", text);
    free(text);
    return beat;
}

/* Number or null, and never negative. */
static void assert_eta(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    assert_true(cJSON_IsNull(item) || (cJSON_IsNumber(item) && item->valuedouble >= 0.0));
}

static bool is_phase(const cJSON *beat, const char *phase)
{
    return strcmp(cJSON_GetObjectItemCaseSensitive(beat, "phase")->valuestring, phase) == 0;
}

static void look_where(const cJSON *beat, seen *where)
{
    const double layer = number(beat, "layer"), block = number(beat, "block");

    assert_true(layer >= -1.0 && layer < LAYERS);
    assert_true(block >= -1.0 && block < BLOCKS);
    if (layer < 0.0 || block < 0.0) return;
    where->forward |= is_phase(beat, "forward");
    where->backward |= is_phase(beat, "backward");
    where->a_later_layer |= layer > 0.0;
    where->a_later_block |= block > 0.0;
}

static bool is_everywhere(const seen *where)
{
    return where->forward && where->backward && where->a_later_layer && where->a_later_block;
}

static void check_beat(const cJSON *beat, double *step)
{
    assert_true(number(beat, "step") >= *step);
    *step = number(beat, "step");
    assert_true(number(beat, "steps") == 1000000.0);
    assert_true(number(beat, "fraction") >= 0.0 && number(beat, "fraction") < 1.0);
    assert_state(beat, "running");
    assert_text(beat, "segment");
    assert_text(beat, "phase");
    assert_eta(beat, "step_eta_s");
    assert_eta(beat, "run_eta_s");
    assert_eta(beat, "loss");
}

/* Reads the file all the time, as a monitor would: it is absent at first, then always whole. */
static void test_heartbeat_is_whole_and_moves(void **state)
{
    double last_time = 0.0, first_step = 0.0, step = 0.0;
    seen where = {.forward = false};
    int beats = 0;

    (void)state;
    const pid_t pid = START("train", "run.yaml", "--set", "output=beat", "--set", "steps=1000000",
                            "--set", "eval.every_steps=0", "--set", "checkpoint.every_steps=0",
                            "--set", "sequence.chunk=16", "--set", "sequence.query_block=16");
    for (int poll = 0; poll < POLLS_MAX && (beats < BEATS || !is_everywhere(&where)); poll++) {
        sleep_ms(POLL_MS);
        char *text = get_bytes(at("beat/heartbeat.json"), NULL);
        if (text == NULL) continue;
        cJSON *beat = cJSON_Parse(text);
        if (beat == NULL) fail_msg("heartbeat is not whole: '%s'", text);
        check_beat(beat, &step);
        look_where(beat, &where);
        if (number(beat, "time") > last_time) {
            if (beats == 1) first_step = step; /* the first may come before a step is reported */
            if (beats > 0) assert_true(number(beat, "time") - last_time > 0.5);
            last_time = number(beat, "time");
            beats++;
        }
        cJSON_Delete(beat);
        free(text);
    }
    assert_true(beats >= BEATS);
    assert_true(where.forward && where.backward);
    assert_true(where.a_later_layer && where.a_later_block);
    assert_true(step > first_step);
    kill(pid, SIGTERM);
    finish_as(75, pid);

    cJSON *beat = read_beat("beat"); /* the last one is of the end */
    assert_state(beat, "stopped");
    assert_true(number(beat, "step") == (double)last_step("beat"));
    assert_true(number(beat, "fraction") == 1.0);
    assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(beat, "run_eta_s")));
    cJSON_Delete(beat);
    assert_false(is_there(at("beat/.heartbeat.json.tmp")));
}

static void check_end(const char *state, double step)
{
    static const char *const nowhere[] = {"segment", "phase"};
    cJSON *beat = read_beat("end");

    assert_state(beat, state);
    assert_true(number(beat, "step") == step);
    assert_true(number(beat, "layer") == -1.0 && number(beat, "block") == -1.0);
    for (int i = 0; i < 2; i++)
        assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(beat, nowhere[i])));
    if (strcmp(state, "done") == 0) assert_true(number(beat, "run_eta_s") == 0.0);
    cJSON_Delete(beat);
}

/* Stopped, failed (its checkpoint is larger than a file may be), done, and done again. */
static void test_the_last_beat_says_how_it_ended(void **state)
{
    struct rlimit before;

    (void)state;
#define END(code, ...) RUN(code, "train", "run.yaml", "--set", "output=end", __VA_ARGS__)
    END(75, "--stop-after", "4");
    check_end("stopped", 4.0);

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const struct rlimit limit = {100000, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const pid_t pid = START("train", "run.yaml", "--set", "output=end", "--resume");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    finish_as(1, pid);
    cJSON *beat = read_beat("end");
    assert_state(beat, "failed");
    assert_in_range(number(beat, "step"), 10, 12); /* the save of step 10 runs beside step 11 */
    cJSON_Delete(beat);

    END(0, "--resume");
    check_end("done", 30.0);
    END(0, "--resume");
    check_end("done", 30.0);
    END(2, "--resume", "--set", "seed=8"); /* refused: nothing has happened */
    check_end("done", 30.0);
#undef END
}

/* Wait until the record has a line of this attempt. */
static void wait_for_attempt(pid_t pid, int attempt)
{
    char key[32];
    bool found = false;

    snprintf(key, sizeof key, "\"attempt\":%d,", attempt);
    while (!found) {
        char *text = get_bytes(at("killed/record.jsonl"), NULL);
        found = text != NULL && strstr(text, key) != NULL;
        free(text);
        if (waitpid(pid, NULL, WNOHANG) != 0) fail_msg("the run ended early");
        sleep_ms(1);
    }
}

/* A run that is killed leaves "running", one that is stopped does not; the next one says of itself,
 * before its first step, that it is running, and from where. */
static void test_each_run_speaks_for_itself(void **state)
{
    static const int signals[] = {SIGKILL, SIGTERM, SIGKILL};
    double time = 0.0, step = 0.0;

    (void)state;
    for (int attempt = 1; attempt <= 3; attempt++) {
        const int sent = signals[attempt - 1];
        const pid_t pid = START("train", "run.yaml", "--set", "output=killed", "--resume", "--set",
                                "steps=1000000", "--set", "eval.every_steps=0");
        wait_for_attempt(pid, attempt);
        cJSON *beat = read_beat("killed");
        assert_state(beat, "running");
        assert_true(number(beat, "time") > time);
        assert_true(number(beat, "step") >= step);
        time = number(beat, "time");
        cJSON_Delete(beat);
        assert_int_equal(kill(pid, sent), 0);
        finish_as(sent == SIGKILL ? 1000 + SIGKILL : 75, pid);
        beat = read_beat("killed");
        assert_state(beat, sent == SIGKILL ? "running" : "stopped");
        if (sent != SIGKILL) step = number(beat, "step");
        cJSON_Delete(beat);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heartbeat_is_whole_and_moves),
        cmocka_unit_test(test_the_last_beat_says_how_it_ended),
        cmocka_unit_test(test_each_run_speaks_for_itself),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
