/* test_heartbeat.c - while the program trains, heartbeat.json is always whole and says where. */
#include "cli_test.h"

#include <cjson/cJSON.h>

enum { BEATS = 3, POLLS_MAX = 1200, POLL_MS = 50 };

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

/* Number or null, and never negative. */
static void assert_eta(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    assert_true(cJSON_IsNull(item) || (cJSON_IsNumber(item) && item->valuedouble >= 0.0));
}

static void check_beat(const cJSON *beat, double *step)
{
    assert_true(number(beat, "step") >= *step);
    *step = number(beat, "step");
    assert_true(number(beat, "steps") == 1000000.0);
    assert_in_range(number(beat, "layer") + 1, 0, 2);
    assert_true(number(beat, "block") >= -1.0);
    assert_true(number(beat, "fraction") >= 0.0 && number(beat, "fraction") < 1.0);
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
    int beats = 0;

    (void)state;
    const pid_t pid = START("train", "run.yaml", "--set", "output=beat", "--set", "steps=1000000",
                            "--set", "eval.every_steps=0", "--set", "checkpoint.every_steps=0");
    for (int poll = 0; poll < POLLS_MAX && beats < BEATS; poll++) {
        sleep_ms(POLL_MS);
        char *text = get_bytes(at("beat/heartbeat.json"), NULL);
        if (text == NULL) continue;
        cJSON *beat = cJSON_Parse(text);
        if (beat == NULL) fail_msg("heartbeat is not whole: '%s'", text);
        check_beat(beat, &step);
        if (number(beat, "time") > last_time) {
            if (beats == 1) first_step = step; /* the first may come before a step is reported */
            if (beats > 0) assert_true(number(beat, "time") - last_time > 0.5);
            last_time = number(beat, "time");
            beats++;
        }
        cJSON_Delete(beat);
        free(text);
    }
    assert_int_equal(beats, BEATS);
    assert_true(step > first_step);
    kill(pid, SIGTERM);
    finish_as(75, pid);

    char *text = need_bytes(at("beat/heartbeat.json"), NULL); /* the last beat is of the end */
    cJSON *beat = cJSON_Parse(text);
    assert_non_null(beat);
    assert_in_range(number(beat, "step"), last_step("beat"), last_step("beat") + 1);
    cJSON_Delete(beat);
    free(text);
    assert_false(is_there(at("beat/.heartbeat.json.tmp")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_heartbeat_is_whole_and_moves)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
