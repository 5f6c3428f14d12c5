/*
 * test_kill.c - a run that is ended again and again at random moments, and continued, ends as one
 * that was left in peace: weights, moments, remainders, position, losses and evaluations.
 *
 * A life is one start of the program with --resume.  It ends by SIGKILL, SIGTERM, SIGINT,
 * --stop-after, --deadline or because the run is complete; then the next run begins.  Moments are
 * drawn over the whole length of a run, or aimed at its start or at a checkpoint being written.
 * Between lives every checkpoint under a final name is whole and none has been lost.
 *
 *   test_kill [ENDS]    so many lives that do not complete a run, in each test; by default 8
 */
#include "cli_test.h"

#include <cjson/cJSON.h>

#include "checkpoint_dir.h"
#include "clock.h"

#define STEPS   40
#define TRAIN   "train", "often.yaml"
#define RUN_DIR "run" /* as in the run file, so that even state.json is the same */

typedef enum ending {
    ENDING_KILL,
    ENDING_TERMINATE,
    ENDING_INTERRUPT,
    ENDING_STOP_AFTER,
    ENDING_DEADLINE,
    ENDING_COUNT
} ending;

static const char *const ending_names[] = {"SIGKILL", "SIGTERM", "SIGINT", "--stop-after",
                                           "--deadline"};

static int n_ends = 8;
static double whole_ms; /* how long a run takes that is left in peace */

/* What lives ended in; for the report. */
static struct {
    int starting, training, saving, complete;
} seen;

static uint64_t draw(uint64_t below)
{
    static uint64_t state = 1;
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % below;
}

static void sleep_us(long us)
{
    const struct timespec pause = {0, 1000 * us};
    nanosleep(&pause, NULL);
}

static double now_ms(void)
{
    return 1e-6 * (double)ls_clock_ns();
}

/* ---- what lies on the disk ----------------------------------------------------------------- */

/* Entries of the checkpoints' folder that begin so; none if it is not there yet. */
static int count_checkpoints(const char *begin)
{
    ls_name_list list = {NULL, 0};
    int n = 0;

    if (!is_there(at(RUN_DIR "/checkpoints"))) return 0;
    assert_ok(ls_directory_list(at(RUN_DIR "/checkpoints"), &list));
    for (int64_t i = 0; i < list.n_names; i++)
        n += strncmp(list.names[i], begin, strlen(begin)) == 0;
    ls_name_list_free(&list);
    return n;
}

/* The newest step under a final name, -1 if there is none; each of them is whole. */
static int64_t newest_step(void)
{
    ls_name_list list = {NULL, 0};
    long long newest = -1;

    if (!is_there(at(RUN_DIR "/checkpoints"))) return -1;
    assert_ok(ls_directory_list(at(RUN_DIR "/checkpoints"), &list));
    for (int64_t i = 0; i < list.n_names; i++) { /* sorted: the last is the newest */
        if (sscanf(list.names[i], "step-%lld", &newest) != 1) continue;
        assert_ok(ls_checkpoint_verify(at(RUN_DIR "/checkpoints/%s", list.names[i]), true));
    }
    ls_name_list_free(&list);
    return newest;
}

static void assert_json(const char *path)
{
    char *text = get_bytes(path, NULL);
    cJSON *json = text != NULL ? cJSON_Parse(text) : NULL;

    if (text != NULL && json == NULL) fail_msg("%s is not whole: %s", path, text);
    cJSON_Delete(json);
    free(text);
}

/* Of samples all lines but the last are whole: as many cells as the header has. */
static void assert_whole_samples(void)
{
    char *text = get_bytes(at(RUN_DIR "/power.csv"), NULL);
    int cells = -1, n = 0;

    for (const char *c = text; c != NULL && *c != '\0'; c++) {
        n += *c == ',';
        if (*c != '\n') continue;
        if (cells < 0) cells = n;
        assert_int_equal(n, cells);
        n = 0;
    }
    free(text);
}

/* Files with their own name are whole at any moment. */
static void assert_whole_files(void)
{
    char *latest = get_bytes(at(RUN_DIR "/latest"), NULL);

    assert_json(at(RUN_DIR "/run.json"));
    assert_json(at(RUN_DIR "/heartbeat.json"));
    assert_whole_samples();
    if (latest == NULL) return;
    latest[strcspn(latest, "\n")] = '\0';
    if (!is_there(at(RUN_DIR "/checkpoints/%s", latest))) fail_msg("latest names '%s'", latest);
    free(latest);
}

/* ---- one life ------------------------------------------------------------------------------ */

static bool has_ended(pid_t pid)
{
    siginfo_t info = {.si_pid = 0};
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
    return info.si_pid != 0;
}

typedef enum moment { MOMENT_START, MOMENT_ANY, MOMENT_SAVE, MOMENT_COUNT } moment;

/* Until a moment of the start or of the whole of a run, or while it writes a checkpoint. */
static void wait_for_moment(pid_t pid)
{
    static const uint64_t permille[] = {
        [MOMENT_START] = 60, [MOMENT_ANY] = 1000, [MOMENT_SAVE] = 2000};
    const moment aim = (moment)draw(MOMENT_COUNT);
    const double end = now_ms() + 1e-3 * whole_ms * (double)draw(permille[aim]);

    while (now_ms() < end && !has_ended(pid)) {
        if (aim == MOMENT_SAVE && count_checkpoints(".tmp-") > 0) {
            sleep_us((long)draw(8000));
            return;
        }
        sleep_us(300);
    }
}

static pid_t start_life(ending how, int64_t newest)
{
    char value[64];

    if (how == ENDING_STOP_AFTER) {
        const long long step = (long long)newest + 1 + (long long)draw(12);
        snprintf(value, sizeof value, "%lld",
                 step < STEPS ? step : STEPS); /* no later one is taken */
        return START(TRAIN, "--resume", "--stop-after", strcmp(value, "0") == 0 ? "1" : value);
    }
    if (how == ENDING_DEADLINE) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        snprintf(value, sizeof value, "@%.3f",
                 (double)now.tv_sec + 1e-9 * (double)now.tv_nsec +
                     1e-6 * whole_ms * (double)draw(1500));
        return START(TRAIN, "--resume", "--deadline", value);
    }
    return START(TRAIN, "--resume");
}

static void note_end(size_t record_bytes_before)
{
    size_t bytes = 0;

    free(get_bytes(at(RUN_DIR "/record.jsonl"), &bytes));
    if (count_checkpoints(".") > 0)
        seen.saving++;
    else if (bytes > record_bytes_before)
        seen.training++;
    else
        seen.starting++;
}

static void check_end(ending how, const outcome *done)
{
    static const int numbers[] = {SIGKILL, SIGTERM, SIGINT};

    if (done->code == 0) return; /* it was complete */
    if (how == ENDING_KILL) {
        assert_int_equal(done->code, 1000 + SIGKILL);
        return;
    }
    /* Before main() has asked for it, a signal ends the program as any other. */
    if (how < ENDING_STOP_AFTER && done->code == 1000 + numbers[how] && done->err[0] == '\0')
        return;
    if (done->code != 75)
        fail_msg("%s: exit code %d: %s", ending_names[how], done->code, done->err);
    const char *says = strstr(done->err, "stopped after step ");
    assert_says(done->err, "everything is saved, continue with --resume");
    assert_int_equal(newest_step(), strtoll(says + strlen("stopped after step "), NULL, 10));
    assert_int_equal(count_checkpoints("."), 0);
}

/* Whether the run is complete. */
static bool live(ending how)
{
    static const int numbers[] = {SIGKILL, SIGTERM, SIGINT};
    const int64_t before = newest_step();
    size_t record_bytes = 0;

    free(get_bytes(at(RUN_DIR "/record.jsonl"), &record_bytes));
    put_text(at("stderr.txt"), ""); /* a life may end before it gets to emptying it */
    const pid_t pid = start_life(how, before);
    if (how < ENDING_STOP_AFTER) {
        wait_for_moment(pid);
        assert_int_equal(kill(pid, numbers[how]), 0);
    }
    const outcome *done = finish(pid);
    check_end(how, done);
    assert_whole_files();
    const int64_t newest = newest_step();
    if (newest < before)
        fail_msg("%s: step %lld was saved, step %lld is the newest", ending_names[how],
                 (long long)before, (long long)newest);
    if (done->code == 0)
        seen.complete++;
    else
        note_end(record_bytes);
    return done->code == 0;
}

/* ---- runs ---------------------------------------------------------------------------------- */

/* The results of the last evaluation at a step, without what a clock measured; NULL if none. */
static char *find_eval(char *record, int step)
{
    char begin[64], *found = NULL;

    snprintf(begin, sizeof begin, "\n{\"step\":%d,", step);
    for (char *line = strstr(record, begin); line != NULL; line = strstr(line + 1, begin)) {
        char *loss = strstr(line, "\"eval_loss\":"), *end = strchr(line + 1, '\n');
        if (loss != NULL && end != NULL && loss < end) found = loss;
    }
    if (found == NULL) return NULL;
    char *end = strstr(found, ",\"eval_s\""), *bins = strstr(found, "\"eval_loss_by_position\":");
    const size_t n_bins = strcspn(bins, "\n");
    char *kept = malloc((size_t)(end - found) + n_bins + 1);
    assert_non_null(kept);
    sprintf(kept, "%.*s%.*s", (int)(end - found), found, (int)n_bins, bins);
    return kept;
}

static void assert_same_evals(void)
{
    char *record = need_bytes(at(RUN_DIR "/record.jsonl"), NULL);
    char *record_whole = need_bytes(at("whole/record.jsonl"), NULL);
    int n = 0;

    for (int step = 1; step <= STEPS; step++) {
        char *eval = find_eval(record, step), *eval_whole = find_eval(record_whole, step);
        if ((eval == NULL) != (eval_whole == NULL))
            fail_msg("the evaluation at step %d is in one record only", step);
        if (eval != NULL) assert_string_equal(eval, eval_whole);
        n += eval != NULL;
        free(eval);
        free(eval_whole);
    }
    assert_int_equal(n, STEPS / 3 + 1);
    free(record);
    free(record_whole);
}

static void assert_no_leftovers(void)
{
    static const char *const names[] = {"checkpoints", "heartbeat.json", "latest",
                                        "power.csv",   "record.jsonl",   "run.json"};
    ls_name_list list;
    int64_t n = 0;

    assert_ok(ls_directory_list(at(RUN_DIR), &list));
    for (int64_t i = 0; i < list.n_names; i++) {
        if (strcmp(list.names[i], "trace.json") == 0) continue; /* of its steps' life, if any */
        assert_in_range(n, 0, sizeof names / sizeof names[0] - 1);
        assert_string_equal(list.names[i], names[n++]);
    }
    assert_int_equal(n, sizeof names / sizeof names[0]);
    ls_name_list_free(&list);
    assert_int_equal(count_checkpoints(""), 2);
    assert_int_equal(count_checkpoints("step-"), 2);
}

/* The run is complete: compare it, and make room for the next. */
static void close_run(void)
{
    static const char state[] = "checkpoints/step-00000040/state.json";

    assert_same_run(RUN_DIR, "whole", STEPS);
    assert_same_file(at(RUN_DIR "/%s", state), at("whole/%s", state));
    assert_same_evals();
    assert_no_leftovers();
    assert_ok(ls_directory_remove(at(RUN_DIR)));
}

static void check_lives(ending first, ending last)
{
    memset(&seen, 0, sizeof seen);
    assert_ok(ls_directory_remove(at(RUN_DIR)));
    while (seen.starting + seen.training + seen.saving < n_ends) {
        const ending how = first + (ending)draw((uint64_t)(last - first) + 1);
        if (live(how)) close_run();
    }
    RUN(0, TRAIN, "--resume");
    close_run();
    print_message("ended in start-up %d, training %d, saving %d; runs completed %d\n",
                  seen.starting, seen.training, seen.saving, seen.complete + 1);
}

/* ---- tests --------------------------------------------------------------------------------- */

static void test_killed(void **state)
{
    (void)state;
    check_lives(ENDING_KILL, ENDING_KILL);
}

static void test_told_to_stop(void **state)
{
    (void)state;
    check_lives(ENDING_TERMINATE, ENDING_INTERRUPT);
    assert_int_equal(seen.saving, 0); /* the program cleans up after itself */
}

/* As if dead processes had been cut off writing a checkpoint and replacing files. */
static void put_leftovers(void)
{
    assert_ok(ls_directory_make(at(RUN_DIR "/checkpoints/.tmp-step-00000020-2147483646")));
    put_text(at(RUN_DIR "/checkpoints/.tmp-step-00000020-2147483646/config.json"), "{\"mo");
    put_text(at(RUN_DIR "/latest.tmp-2147483646"), "step");
    put_text(at(RUN_DIR "/run.json.tmp-2147483646-0"), "{");
}

/* The record ends in the middle of an evaluation's line. */
static void test_cut_evaluation_is_made_up(void **state)
{
    size_t bytes = 0;

    (void)state;
    RUN(75, TRAIN, "--stop-after", "12");
    char *record = need_bytes(at(RUN_DIR "/record.jsonl"), &bytes);
    char *eval = strstr(record, "\n{\"step\":12,\"attempt\":1,\"eval_loss\"");
    assert_non_null(eval);
    assert_ptr_equal(strchr(eval + 1, '\n'), record + bytes - 1); /* the last line */
    put_bytes(at(RUN_DIR "/record.jsonl"), record, (size_t)(eval - record) + 50);
    free(record);
    put_leftovers();
    RUN(0, TRAIN, "--resume");
    close_run();
}

/* Killed after its last commit, a run has nothing left to do but to tidy. */
static void test_complete_run_is_tidied(void **state)
{
    (void)state;
    RUN(0, TRAIN, "--set", "checkpoint.keep=9");
    assert_int_equal(count_checkpoints(""), 9);
    put_leftovers();
    RUN(0, TRAIN, "--resume");
    assert_no_leftovers();
    assert_same_run(RUN_DIR, "whole", STEPS);
    assert_same_evals();
    assert_ok(ls_directory_remove(at(RUN_DIR)));
}

static void test_all_kinds(void **state)
{
    (void)state;
    check_lives(ENDING_KILL, ENDING_DEADLINE);
}

/* The run file of the other tests of the program, with more to interrupt. */
static void put_run_file(void)
{
    static const char *const changes[][2] = {
        {"steps: 30", "steps: 40"},
        {"eval: {every_steps: 10", "eval: {every_steps: 3"},
        {"checkpoint: {every_steps: 10", "checkpoint: {every_steps: 2"},
    };
    char *text = strdup(run_yaml);

    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        assert_non_null(text);
        put_changed(at("often.yaml"), text, changes[i][0], changes[i][1]);
        free(text);
        text = need_bytes(at("often.yaml"), NULL);
    }
    free(text);
}

static int make_runs(void **state)
{
    if (make_scratch(state) != 0) return -1;
    put_run_file();
    const double began = now_ms();
    RUN(0, TRAIN);
    whole_ms = now_ms() - began;
    return rename(at(RUN_DIR), at("whole"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_told_to_stop),
        cmocka_unit_test(test_all_kinds),
        cmocka_unit_test(test_cut_evaluation_is_made_up),
        cmocka_unit_test(test_complete_run_is_tidied),
    };
    if (argc > 1) n_ends = atoi(argv[1]);
    return cmocka_run_group_tests(tests, make_runs, remove_scratch);
}
