/*
 * test_faults.c - whatever call fails, a run ends with an error that says so, gives everything
 * back, and can be continued to the same bits.
 *
 * One run trains two steps and stops, resumes to the end and evaluates: in host memory, and with
 * weights streamed through emulated device memory, where a second arena is opened and copies run on
 * lanes of their own.  It is repeated with the n-th call of a function failing, for each function
 * that allocates, reaches the disk or starts a thread; and with all such calls failing from the
 * n-th on; for ever larger n, until a run ends before its n-th.  Each repetition is a process of
 * its own, so that a crash or a deadlock is told from a failed check.
 *
 *   test_faults             n = 1, 2, 3, 6, 12, 24, ...; through device memory n = 1, 8, 64, ...
 *   test_faults full        every n up to 200, then in steps of 30%; and the first call from every
 *                           place in the code
 *   test_faults places      only the first call from every place
 *   test_faults full NAME   of these tests only those with this name ('*': anything)
 */
#define _DEFAULT_SOURCE /* NOLINT: the libc's name; for MAP_ANONYMOUS */
#include "cli_test.h"

#include "fault_test.h"

#include <math.h>
#include <sys/wait.h>

#include "checkpoint_dir.h"
#include "longspan.h"

#define STEPS     4
#define ALARM_S   60 /* a deadlock ends here */
#define DENSE     200
#define REFERENCE "reference"

/* LeakSanitizer's, where it is built in: what was allocated inside libraries counts too. */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak)); /* NOLINT: its name */

static bool full, places_only;
static double reference_loss;
static const char *run_file = "run.yaml"; /* what is run: in host memory or through a device's */

/* ---- the run ------------------------------------------------------------------------------- */

typedef struct outcome_of_run {
    int code;
    double loss; /* held-out, with code 0 */
} outcome_of_run;

static int train(const char *output, bool resume, int64_t stop_after)
{
    char set[64];
    const char *const sets[] = {set};
    const longspan_run run = {.path = run_file, .sets = sets, .n_sets = 1, .quiet = true};
    const longspan_train_options options = {.resume = resume, .stop_after = stop_after};

    snprintf(set, sizeof set, "output=%s", output);
    return longspan_train(&run, &options);
}

static int evaluate(const char *output, double *loss)
{
    char set[64];
    const char *const sets[] = {set};
    const longspan_run run = {.path = run_file, .sets = sets, .n_sets = 1, .quiet = true};
    longspan_eval_result result;

    snprintf(set, sizeof set, "output=%s", output);
    const int code = longspan_eval(&run, NULL, &result);
    if (code != 0) return code;
    *loss = result.loss;
    longspan_eval_free(&result);
    return 0;
}

static outcome_of_run run_all(const char *output)
{
    outcome_of_run r = {.code = 0};

    ls_error_adopt("", "");
    r.code = train(output, false, 2);
    if (r.code == LONGSPAN_ERROR_STOPPED) { /* "everything is saved" */
        if (access(at("%s/checkpoints/step-00000002", output), F_OK) != 0)
            fail_msg("nothing is saved");
        r.code = train(output, true, 0);
    }
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
    if (held.n_blocks != 0) fail_msg("%ld blocks were not freed", held.n_blocks);
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
    char *latest = need_bytes(at("%s/latest", output), NULL);

    assert_string_equal(latest, "step-00000004\n");
    free(latest);
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

enum { FIRED = 0, BAD = 1, NOT_FIRED = 2 }; /* exit codes of a repetition; their sums */

static const char *const kinds[] = {"memory", "disk", "threads"};

static struct {
    fault_kind kind;
    const char *call; /* NULL: any of the kind */
    long n;
    bool lasting;
} trial;

static void one_fault(void **state)
{
    const int files_before = count_open_files();

    (void)state;
    held_watch();
    fault_arm(trial.kind, trial.call, trial.n, trial.lasting);
    const outcome_of_run r = run_all("run");
    fault_disarm();
    const char *fired = atomic_load(&fault.fired);
    print_message("%s failed; result %d: %s\n", fired != NULL ? fired : "nothing", r.code,
                  r.code != 0 ? longspan_error() : "");
    check_given_back(files_before);
    check_folder("run");
    if (r.code == 0) { /* nothing failed, or nothing that matters */
        check_results("run", r.loss);
        return;
    }
    assert_non_null(fired);
    check_code(trial.kind, r.code);
    run_again("run");
    check_folder("run");
}

/* One repetition, in a process of its own, its output in fault.txt.  Returns its exit code, or 1000
 * and the signal that ended it. */
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
        cmocka_set_test_filter(NULL);
        const int failed = cmocka_run_group_tests(test, NULL, NULL);
        fflush(NULL);
        _exit((failed != 0 ? BAD : 0) + (atomic_load(&fault.fired) == NULL ? NOT_FIRED : 0));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_ok(ls_directory_remove(at("run")));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* ---- all faults ---------------------------------------------------------------------------- */

static long n_trials, n_bad;

static void show_bad(int code)
{
    char *log = need_bytes(at("fault.txt"), NULL);

    n_bad++;
    print_message("%s, %s%s %ld: %s %d\n%s\n", kinds[trial.kind], trial.lasting ? "from " : "",
                  trial.call != NULL ? trial.call : "call", trial.n,
                  code > 1000 ? "signal" : "exit code", code > 1000 ? code - 1000 : code, log);
    free(log);
}

static long next_n(long n)
{
    if (!full && strcmp(run_file, "run.yaml") != 0) return 8 * n;
    if (!full) return n < 3 ? n + 1 : 2 * n;
    return n < DENSE ? n + 1 : n + n * 3 / 10;
}

static void sweep(fault_kind kind, const char *call, bool lasting)
{
    int code = FIRED;

    trial.kind = kind;
    trial.call = call;
    trial.lasting = lasting;
    for (trial.n = 1; code <= BAD; trial.n = next_n(trial.n)) {
        code = try_fault();
        n_trials++;
        if (code != FIRED && code != NOT_FIRED) show_bad(code);
    }
    if (call != NULL && trial.n == next_n(1)) fail_msg("%s is never called", call);
}

static void sweep_places(fault_kind kind)
{
    int code = FIRED;

    trial.kind = kind;
    trial.call = NULL;
    trial.lasting = false;
    for (trial.n = 0; code <= BAD;) {
        code = try_fault();
        n_trials++;
        if (code != FIRED && code != NOT_FIRED) show_bad(code);
    }
}

static void sweep_kind(fault_kind kind, const char *const *calls, int n_calls)
{
    n_trials = n_bad = 0;
    for (int c = 0; c < n_calls && !places_only; c++) sweep(kind, calls[c], false);
    if (!places_only) sweep(kind, NULL, true);
    if (full) sweep_places(kind);
    print_message("%s: %ld repetitions\n", kinds[kind], n_trials);
    assert_int_equal(n_bad, 0);
}

static void sweep_memory(const char *file)
{
    static const char *const calls[] = {"malloc",  "calloc",    "realloc", "strdup",
                                        "strndup", "newlocale", "mmap"};
    run_file = file;
    sweep_kind(FAULT_MEMORY, calls, sizeof calls / sizeof calls[0]);
}

static void sweep_disk(const char *file)
{
    static const char *const calls[] = {
        "open",  "close",   "fopen",  "fclose", "getline",   "opendir", "readdir", "closedir",
        "read",  "write",   "pread",  "lseek",  "ftruncate", "fsync",   "fstat",   "stat",
        "lstat", "statvfs", "rename", "unlink", "rmdir",     "mkdir"};
    run_file = file;
    sweep_kind(FAULT_DISK, calls, sizeof calls / sizeof calls[0]);
}

static void sweep_threads(const char *file)
{
    static const char *const calls[] = {"pthread_create"};
    run_file = file;
    sweep_kind(FAULT_THREAD, calls, 1);
}

static void test_memory(void **state)
{
    (void)state;
    sweep_memory("run.yaml");
}

static void test_disk(void **state)
{
    (void)state;
    sweep_disk("run.yaml");
}

static void test_threads(void **state)
{
    (void)state;
    sweep_threads("run.yaml");
}

static void test_memory_on_device(void **state)
{
    (void)state;
    sweep_memory("device.yaml");
}

/* What reaches the disk is the same as without a device, but for its profile: only at length. */
static void test_disk_on_device(void **state)
{
    (void)state;
    if (full) sweep_disk("device.yaml");
}

static void test_threads_on_device(void **state)
{
    (void)state;
    sweep_threads("device.yaml");
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

/* Room for little more than it needs: the plan's check of it counts too. */
static const char profile_yaml[] =
    "name: small\n"
    "emulated: true\n"
    "places:\n"
    "  - {kind: hbm, capacity_bytes: {value: 4MiB, source: profile}}\n"
    "  - {kind: host}\n"
    "links:\n"
    "  - {from: host, to: hbm, bytes_per_s: {value: 10e9, source: profile}}\n";

static void put_run_files(void)
{
    char text[sizeof tiny_yaml + 64];

    put_text("run.yaml", tiny_yaml);
    put_text("small.yaml", profile_yaml);
    snprintf(text, sizeof text, "%shardware: small.yaml\n", tiny_yaml);
    put_changed("device.yaml", text, "memory: {", "memory: {weights: stream, ring_slots: 2, ");
}

/* The run without a fault, in a process of its own too: this one stays without threads. */
static int make_reference(void **state)
{
    int status = 0;

    if (make_scratch(state) != 0 || chdir(scratch) != 0) return -1;
    put_run_files();
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
    fault_share_places();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),         cmocka_unit_test(test_disk),
        cmocka_unit_test(test_threads),        cmocka_unit_test(test_memory_on_device),
        cmocka_unit_test(test_disk_on_device), cmocka_unit_test(test_threads_on_device),
    };
    places_only = argc > 1 && strcmp(argv[1], "places") == 0;
    full = places_only || (argc > 1 && strcmp(argv[1], "full") == 0);
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, make_reference, remove_scratch);
}
