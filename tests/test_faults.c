/*
 * test_faults.c - whatever call fails, a run ends with an error that says so, gives everything
 * back, and can be continued to the same bits.
 *
 * One run trains two steps and stops, resumes to the end and evaluates.  It is repeated with the
 * n-th allocation, disk access or thread failing, and with all from the n-th on, for ever larger n
 * until a run ends before its n-th.  Each repetition is a process of its own, so that a crash or a
 * deadlock is told from a failed check.
 *
 *   test_faults [DENSE]     every n up to DENSE, then steps of 30% (default 8)
 */
#include "cli_test.h"

#include "fault_test.h"

#include <math.h>
#include <sys/wait.h>

#include "checkpoint_dir.h"
#include "longspan.h"

#define STEPS     4
#define ALARM_S   60
#define REFERENCE "reference"

/* LeakSanitizer's, where it is built in: what was allocated inside libraries counts too. */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak)); /* NOLINT: its name */

static long dense = 8;
static double reference_loss;

/* ---- the run ------------------------------------------------------------------------------- */

typedef struct outcome_of_run {
    int code;
    double loss; /* held-out, with code 0 */
} outcome_of_run;

static int train(const char *output, bool resume, int64_t stop_after)
{
    char set[64];
    const char *const sets[] = {set};
    const longspan_run run = {.path = "run.yaml", .sets = sets, .n_sets = 1, .quiet = true};
    const longspan_train_options options = {.resume = resume, .stop_after = stop_after};

    snprintf(set, sizeof set, "output=%s", output);
    return longspan_train(&run, &options);
}

static int evaluate(const char *output, double *loss)
{
    char set[64];
    const char *const sets[] = {set};
    const longspan_run run = {.path = "run.yaml", .sets = sets, .n_sets = 1, .quiet = true};
    longspan_eval_result result;

    snprintf(set, sizeof set, "output=%s", output);
    const int code = longspan_eval(&run, NULL, &result);
    if (code == 0) *loss = result.loss;
    return code;
}

static outcome_of_run run_all(const char *output)
{
    outcome_of_run r = {.code = 0};

    ls_error_adopt("", "");
    r.code = train(output, false, 2);
    if (r.code == LONGSPAN_ERROR_STOPPED) r.code = train(output, true, 0);
    if (r.code == 0) r.code = evaluate(output, &r.loss);
    return r;
}

/* ---- what must hold after it --------------------------------------------------------------- */

static int count_open_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void check_given_back(int files_before)
{
    held_unwatch();
    if (held.n_blocks != 0) {
        for (size_t s = 0; s < HELD_SLOTS; s++)
            if (held.blocks[s])
                fprintf(stderr, "leaked: %p '%.40s'\n", held.blocks[s],
                        (const char *)held.blocks[s]);
        fail_msg("%ld blocks were not freed", held.n_blocks);
    }
    if (held.n_maps != 0) fail_msg("%ld mappings are left", held.n_maps);
    if (held.n_threads != 0) fail_msg("%ld threads were not joined", held.n_threads);
    const int files = count_open_files();
    if (files != files_before) fail_msg("%d files are open, not %d", files, files_before);
    if (__lsan_do_recoverable_leak_check != NULL && __lsan_do_recoverable_leak_check() != 0)
        fail_msg("memory is leaked");
}

/* The result is that of what failed, and has a text. */
static void check_code(fault_kind kind, int code)
{
    static const int expected[FAULT_KINDS] = {LONGSPAN_ERROR_NO_MEMORY, LONGSPAN_ERROR_IO,
                                              LONGSPAN_ERROR_DEVICE};
    const char *text = longspan_error();

    if (text[0] == '\0') fail_msg("result %d has no text", code);
    if (code == expected[kind]) return;
    /* a run file that cannot be read is one; a checkpoint that cannot be read is passed over */
    if (kind == FAULT_DISK && code == LONGSPAN_ERROR_INVALID && strstr(text, ".yaml: Input"))
        return;
    if (kind == FAULT_DISK && code == LONGSPAN_ERROR_CORRUPT && strstr(text, "is whole")) return;
    fail_msg("result %d, not %d: %s (%s)", code, expected[kind], text, longspan_error_origin());
}

/* Every checkpoint with its final name is whole, and `latest` names one. */
static void check_folder(const char *output)
{
    ls_name_list list = {NULL, 0};

    if (is_there(at("%s/checkpoints", output)))
        assert_ok(ls_directory_list(at("%s/checkpoints", output), &list));
    for (int64_t i = 0; i < list.n_names; i++)
        if (list.names[i][0] != '.')
            assert_ok(ls_checkpoint_verify(at("%s/checkpoints/%s", output, list.names[i]), true));
    ls_name_list_free(&list);
    if (!is_there(at("%s/latest", output))) return;
    char *latest = need_bytes(at("%s/latest", output), NULL);
    latest[strcspn(latest, "\n")] = '\0';
    assert_true(is_there(at("%s/checkpoints/%s", output, latest)));
    free(latest);
}

static void check_results(const char *output, double loss)
{
    assert_same_run(REFERENCE, output, STEPS);
    assert_true(loss == reference_loss);
}

/* What was begun is continued as a person would, and ends as if nothing had happened. */
static void run_again(const char *output)
{
    double loss = NAN;
    const bool resume = is_there(at("%s/record.jsonl", output));

    assert_int_equal(train(output, resume, 0), 0);
    assert_int_equal(evaluate(output, &loss), 0);
    check_results(output, loss);
}

/* ---- one fault ----------------------------------------------------------------------------- */

enum { FIRED = 0, NOT_FIRED = 10, BAD = 1 }; /* exit codes of a repetition; their sums */

static struct {
    fault_kind kind;
    bool lasting;
    long n;
} trial;

static const char *const kinds[] = {"memory", "disk", "thread"};

static void one_fault(void **state)
{
    const int files_before = count_open_files();
    const char *call;

    (void)state;
    held_watch();
    fault_arm(trial.kind, trial.n, trial.lasting);
    const outcome_of_run r = run_all("run");
    fault_disarm();
    call = atomic_load(&fault.fired);
    fprintf(stderr, "%s %s%ld (%s): %d %s\n", kinds[trial.kind], trial.lasting ? "from " : "",
            trial.n, call ? call : "-", r.code, r.code ? longspan_error() : "");
    check_given_back(files_before);
    check_folder("run");
    if (r.code == 0) {
        check_results("run", r.loss);
    } else {
        if (call == NULL) fail_msg("result %d without a fault: %s", r.code, longspan_error());
        check_code(trial.kind, r.code);
        run_again("run");
        check_folder("run");
    }
}

/* The repetition in a process of its own; its output is shown if it fails. */
static int try_fault(void)
{
    const struct CMUnitTest test[] = {cmocka_unit_test(one_fault)};
    int status = 0;

    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const int log = open(at("fault.txt"), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0666);
        if (log < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0) _exit(99);
        close(log);
        alarm(ALARM_S);
        const int failed = cmocka_run_group_tests(test, NULL, NULL);
        fflush(NULL);
        _exit((failed != 0 ? BAD : 0) + (atomic_load(&fault.fired) == NULL ? NOT_FIRED : FIRED));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int64_t n_bad;

static void sweep(fault_kind kind, bool lasting)
{
    long n = 1, n_trials = 0;

    for (;; n = n < dense ? n + 1 : n + n * 3 / 10 + 1) {
        trial.kind = kind;
        trial.lasting = lasting;
        trial.n = n;
        const int code = try_fault();
        n_trials++;
        assert_ok(ls_directory_remove(at("run")));
        if (code == NOT_FIRED) break;
        if (code == FIRED) continue;
        char *log = get_bytes(at("fault.txt"), NULL);
        printf("%s, %s %ld: %s %d\n%s\n", kinds[kind], lasting ? "all from call" : "call", n,
               code > 1000 ? "signal" : "exit code", code > 1000 ? code - 1000 : code,
               log ? log : "");
        free(log);
        n_bad++;
        if (code == NOT_FIRED + BAD) break;
    }
    printf("%s, %s: %ld repetitions, up to call %ld\n", kinds[kind],
           lasting ? "all from the n-th on" : "the n-th alone", n_trials, n);
}

static void test_sweep(fault_kind kind)
{
    n_bad = 0;
    sweep(kind, false);
    sweep(kind, true);
    assert_int_equal(n_bad, 0);
}

static void test_memory(void **state)
{
    (void)state;
    test_sweep(FAULT_MEMORY);
}

static void test_disk(void **state)
{
    (void)state;
    test_sweep(FAULT_DISK);
}

static void test_threads(void **state)
{
    (void)state;
    test_sweep(FAULT_THREAD);
}

/* ---- the folder ---------------------------------------------------------------------------- */

static const char tiny_yaml[] = "model: model.yaml\n"
                                "precision: bf16\n"
                                "data: {train: data/train, valid: data/valid}\n"
                                "sequence: {tokens: 64}\n"
                                "batch: {sequences: 1}\n"
                                "optimizer: {lr: 3e-3, warmup_steps: 2}\n"
                                "memory: {threads: {compute: 1, optimizer: 1}}\n"
                                "steps: 4\n"
                                "seed: 7\n"
                                "eval: {every_steps: 4, tokens: 64}\n"
                                "checkpoint: {every_steps: 2, keep: 1}\n"
                                "output: run\n";

/* The run without a fault, in a process of its own too: this one stays without threads. */
static int make_reference(void **state)
{
    int status = 0;

    if (make_scratch(state) != 0 || chdir(scratch) != 0) return -1;
    put_text("run.yaml", tiny_yaml);
    const pid_t pid = fork();
    if (pid == 0) {
        const outcome_of_run r = run_all(REFERENCE);
        if (r.code != 0) fprintf(stderr, "without a fault: %s\n", longspan_error());
        put_bytes("loss", &r.loss, sizeof r.loss);
        _exit(r.code != 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (status != 0) return -1;
    char *loss = need_bytes("loss", NULL);
    memcpy(&reference_loss, loss, sizeof reference_loss);
    free(loss);
    wrap_cjson();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_disk),
        cmocka_unit_test(test_threads),
    };
    if (argc > 1) dense = strtol(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, make_reference, remove_scratch);
}
