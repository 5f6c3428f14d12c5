/*
 * test_crash_points.c - the laws of checkpoints on a simulated disk that is cut off anywhere.
 *
 * A history is a run in several lives.  Each life makes the run's folder, finds the newest
 * checkpoint, rotates and goes on from it: begin, files, commit, rotate, step after step, some
 * twice.  It ends at a random call, by a failure of the disk or after its steps; then power goes,
 * or only the process.  The last life is left in peace.
 *
 *   1  what is found as newest holds every byte that one save wrote
 *   2  once a commit has returned LS_OK, that checkpoint, a later save of its step or one of a
 *      later step is found
 *   3  under a final name nothing is torn, missing or mixed; RUN/latest names the checkpoint
 *      last committed or resumed from
 *   4  leftovers of earlier lives are gone once a run has resumed from a checkpoint or completed
 *      one; folders, which need room, once one has begun
 *
 *   test_crash_points [POINTS [SEED]]    so many crashes, from the history of this seed on
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cjson/cJSON.h>
#include <signal.h>

#include "checkpoint_dir.h"
#include "directory.h"
#include "disk_file.h"
#include "safetensors_set.h"
#include "simulated_disk.h"

#define RUN        "disk/runs/run"
#define ROOT       RUN "/checkpoints"
#define LIFE_STEPS 3
#define LIFE_CALLS 500 /* about as many as a life of so many steps makes */
#define LIVES_MAX  12
#define STEPS_MAX  (LIFE_STEPS * (LIVES_MAX + 1))
#define N_TENSORS  5

static const ls_safetensors_tensor tensors[N_TENSORS] = {
    {"embed", LS_DTYPE_F32, 2, {10, 12}},      {"embed.m", LS_DTYPE_F32, 2, {10, 12}},
    {"norm", LS_DTYPE_F32, 1, {30}},           {"norm.m", LS_DTYPE_F32, 1, {30}},
    {"norm.master_lo", LS_DTYPE_I16, 1, {30}},
};
static const bool of_model[N_TENSORS] = {true, false, true, false, false};
static const char *const files[] = {"config.json",
                                    "model-00001-of-00001.safetensors",
                                    "model.safetensors.index.json",
                                    "optimizer-00001-of-00001.safetensors",
                                    "optimizer.safetensors.index.json",
                                    "state.json"};
#define N_FILES ((int)(sizeof files / sizeof files[0]))

#ifdef LS_SANITIZED
static int64_t n_points = 2000;
#else
static int64_t n_points = 10000;
#endif
static uint64_t first_seed = 1;

/* ---- processes ----------------------------------------------------------------------------- */

/* Names of temporary folders hold the process id: each life has its own, or, as in a container,
 * that of the life before.  No other process is alive. */
static pid_t pid = 100;

pid_t __wrap_getpid(void);
int __wrap_kill(pid_t of, int number);

pid_t __wrap_getpid(void)
{
    return pid;
}

int __wrap_kill(pid_t of, int number)
{
    (void)number;
    if (of == pid) return 0;
    errno = ESRCH;
    return -1;
}

/* ---- a history ----------------------------------------------------------------------------- */

static struct {
    int64_t keep;
    int64_t n_saves;                        /* begun so far; the content of each is its own */
    int64_t committed_step, committed_save; /* the newest whose commit returned LS_OK; -1: none */
    bool latest_may_be[STEPS_MAX + 1];      /* by step; at STEPS_MAX: RUN/latest is absent */
    bool quiet;                             /* the last life: no cut and no fault */
    char broken[512];                       /* the first law broken; "" */
} history;

static void breaks(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void breaks(const char *format, ...)
{
    va_list args;

    if (history.broken[0]) return;
    va_start(args, format);
    vsnprintf(history.broken, sizeof history.broken, format, args);
    va_end(args);
}

static uint8_t pattern(int64_t save, int tensor, uint64_t byte)
{
    return (uint8_t)((uint64_t)(37 * save + 11 * tensor) + 7 * byte + (byte >> 8));
}

static uint64_t fill(int64_t save, int tensor, uint8_t *data)
{
    uint64_t bytes = 0;

    if (ls_safetensors_tensor_bytes(&tensors[tensor], &bytes) != LS_OK) abort();
    for (uint64_t b = 0; b < bytes; b++) data[b] = pattern(save, tensor, b);
    return bytes;
}

/* ---- save, as the engine does -------------------------------------------------------------- */

static ls_status register_file(void *context, const char *name, uint64_t bytes, uint32_t crc)
{
    return ls_checkpoint_add(context, name, bytes, crc);
}

static ls_status open_set(ls_checkpoint_writer *writer, bool model, ls_safetensors_set_writer **set)
{
    const ls_safetensors_set_options options = {.directory = ls_checkpoint_folder(writer),
                                                .base = model ? "model" : "optimizer",
                                                .on_file = register_file,
                                                .context = writer};
    ls_safetensors_tensor chosen[N_TENSORS];
    int64_t n = 0;

    for (int i = 0; i < N_TENSORS; i++) {
        if (of_model[i] == model) chosen[n++] = tensors[i];
    }
    return ls_safetensors_set_writer_open(&options, chosen, n, set);
}

static ls_status write_sets(ls_checkpoint_writer *writer, int64_t save)
{
    ls_safetensors_set_writer *sets[2] = {NULL, NULL};
    uint8_t data[1024];

    ls_status status = open_set(writer, true, &sets[true]);
    if (status == LS_OK) status = open_set(writer, false, &sets[false]);
    for (int i = 0; i < N_TENSORS && status == LS_OK; i++) {
        assert_true(fill(save, i, data) <= sizeof data);
        status = ls_safetensors_set_writer_append(sets[of_model[i]], data);
    }
    if (status == LS_OK) status = ls_safetensors_set_writer_finish(sets[true]);
    if (status == LS_OK) status = ls_safetensors_set_writer_finish(sets[false]);
    ls_safetensors_set_writer_close(sets[true]);
    ls_safetensors_set_writer_close(sets[false]);
    return status;
}

static ls_status write_files(ls_checkpoint_writer *writer, int64_t save)
{
    char text[64];
    const int n = snprintf(text, sizeof text, "{\"save\": %lld}", (long long)save);

    LS_TRY(ls_checkpoint_write(writer, "config.json", text, (uint64_t)n));
    return write_sets(writer, save);
}

static void expect_latest(int64_t step)
{
    memset(history.latest_may_be, 0, sizeof history.latest_may_be);
    history.latest_may_be[step] = true;
}

static ls_status commit(ls_checkpoint_writer *writer, int64_t step, int64_t save)
{
    cJSON *state = cJSON_CreateObject();

    assert_non_null(cJSON_AddNumberToObject(state, "step", (double)step));
    assert_non_null(cJSON_AddNumberToObject(state, "save", (double)save));
    history.latest_may_be[step] = true;
    const ls_status status = ls_checkpoint_commit(writer, state);
    cJSON_Delete(state);
    if (status != LS_OK) return status;
    expect_latest(step);
    if (step >= history.committed_step) {
        history.committed_step = step;
        history.committed_save = save;
    }
    return LS_OK;
}

static void check_folders(const char *when, int n_expected);
static void check_leftovers(const char *when);

static ls_status save_step(int64_t step)
{
    const int64_t save = ++history.n_saves;
    ls_checkpoint_writer *writer = NULL;

    LS_TRY(ls_checkpoint_begin(RUN, step, 1000, &writer));
    check_folders("a checkpoint has begun", 1);
    const ls_status status = write_files(writer, save);
    if (status != LS_OK) {
        ls_checkpoint_abort(writer);
        return status;
    }
    LS_TRY(commit(writer, step, save));
    LS_TRY(ls_checkpoint_rotate(RUN, history.keep, step));
    check_leftovers("a checkpoint is complete");
    return LS_OK;
}

/* ---- the laws ------------------------------------------------------------------------------ */

/* Law 4: so many folders under other than final names. */
static void check_folders(const char *when, int n_expected)
{
    const disk_node *root = disk_walk(ROOT, NULL, NULL);
    int n = 0;

    for (int i = 0; root && i < root->now.names->n; i++) {
        n += root->now.names->of[i].name[0] == '.';
    }
    if (n != n_expected) breaks("%d temporary folders, not %d, when %s", n, n_expected, when);
}

/* Law 4: no temporary names at all. */
static void check_leftovers(const char *when)
{
    const disk_node *run = disk_walk(RUN, NULL, NULL);
    char own[64];

    snprintf(own, sizeof own, "latest.tmp-%ld", (long)pid);
    for (int i = 0; run && i < run->now.names->n; i++) {
        const char *name = run->now.names->of[i].name;
        if (strcmp(name, own) == 0) continue; /* the next commit replaces it */
        if (strcmp(name, "latest") != 0 && strcmp(name, "checkpoints") != 0) {
            breaks("%s is left in RUN when %s", name, when);
        }
    }
    check_folders(when, 0);
}

/* Law 3 for one folder. */
static void check_final(const char *name, const disk_node *folder)
{
    if (!folder->is_folder || folder->now.names->n != N_FILES) {
        breaks("%s has %d files, not %d", name, folder->now.names->n, N_FILES);
        return;
    }
    for (int i = 0; i < N_FILES; i++) {
        const disk_node *file = disk_child(folder, files[i]);
        if (!file) breaks("%s lacks %s", name, files[i]);
        if (file && file->torn) breaks("%s/%s is torn", name, files[i]);
    }
}

static void check_latest(void)
{
    const disk_node *latest = disk_walk(RUN "/latest", NULL, NULL);
    char text[64] = "", path[64];
    int step = STEPS_MAX;

    if (latest) {
        const disk_content *content = &latest->now.content;
        snprintf(text, sizeof text, "%.*s", (int)content->bytes, content->data);
        if (latest->torn || sscanf(text, "step-%8d\n", &step) != 1 || strlen(text) != 14) {
            breaks("RUN/latest is torn: '%s'", text);
            return;
        }
    }
    if (step < 0 || step > STEPS_MAX || !history.latest_may_be[step]) {
        breaks("RUN/latest is '%.13s', not of the last commit", text);
    }
    snprintf(path, sizeof path, ROOT "/%.13s", text);
    if (latest && !disk_walk(path, NULL, NULL))
        breaks("RUN/latest names %s, which is absent", path);
}

/* Law 1: as a run reads it. */
static ls_status check_set(const char *directory, bool model, int64_t save)
{
    ls_safetensors_set *set = NULL;
    ls_status status = ls_safetensors_set_open(directory, model ? "model" : "optimizer", &set);

    for (int i = 0; i < N_TENSORS && status == LS_OK; i++) {
        uint8_t data[1024], wanted[1024];
        if (of_model[i] != model) continue;
        const uint64_t bytes = fill(save, i, wanted);
        const int64_t index = ls_safetensors_set_find(set, tensors[i].name);
        if (index < 0 || ls_safetensors_set_get(set, index)->size_bytes != bytes) {
            breaks("%s has no tensor %s", directory, tensors[i].name);
            break;
        }
        status = ls_safetensors_set_read(set, index, 0, bytes, data);
        if (status == LS_OK && memcmp(data, wanted, bytes) != 0) {
            breaks("%s: %s is not what save %lld wrote", directory, tensors[i].name,
                   (long long)save);
        }
    }
    ls_safetensors_set_close(set);
    return status;
}

static ls_status check_newest(const char *directory, int64_t step)
{
    cJSON *state = NULL;
    char *text = NULL, *path = ls_path_join(directory, "config.json"), wanted[64];

    assert_non_null(path);
    ls_status status = ls_checkpoint_state_read(directory, &state);
    if (status == LS_OK) status = ls_disk_file_read_all(path, 100, &text, NULL);
    free(path);
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(state, "save");
    const int64_t save = cJSON_IsNumber(member) ? (int64_t)member->valuedouble : -1;
    cJSON_Delete(state);
    snprintf(wanted, sizeof wanted, "{\"save\": %lld}", (long long)save);
    if (status == LS_OK && strcmp(text, wanted) != 0)
        breaks("%s: config.json: %s", directory, text);
    free(text);
    if (status == LS_OK) status = check_set(directory, true, save);
    if (status == LS_OK) status = check_set(directory, false, save);
    if (step == history.committed_step && save < history.committed_save) {
        breaks("save %lld of step %lld was committed, save %lld is found",
               (long long)history.committed_save, (long long)step, (long long)save);
    }
    return status;
}

static void note_rejected(void *context, const char *directory, const char *reason)
{
    (void)context;
    breaks("%s is passed over: %s", directory, reason);
}

/* All laws, from outside. */
static void check_laws(void)
{
    const disk_node *root = disk_walk(ROOT, NULL, NULL);
    char *directory = NULL;
    int64_t step = -1;

    for (int i = 0; root && i < root->now.names->n; i++) {
        const char *name = root->now.names->of[i].name;
        if (strncmp(name, "step-", 5) == 0) check_final(name, root->now.names->of[i].node);
    }
    disk_arm(&(disk_plan){.cut_at = -1, .halting = true});
    ls_status status = ls_checkpoint_find_newest(RUN, note_rejected, NULL, &directory, &step);
    if (status == LS_OK && step < history.committed_step) {
        breaks("step %lld was committed, step %lld is found", (long long)history.committed_step,
               (long long)step);
    }
    if (status == LS_OK && directory) status = check_newest(directory, step);
    if (status != LS_OK) breaks("a restart fails: %s", ls_error());
    free(directory);
    disk_disarm();
    check_latest(); /* what was set aside is back now */
}

/* ---- lives --------------------------------------------------------------------------------- */

static disk_plan draw_plan(const char *idle_sync)
{
    disk_plan plan = {.cut_at = -1, .halting = disk_random(2), .idle_sync = idle_sync};

    /* Between the calls that make things last is where the order matters; and a life that is cut
     * off soon works on what the one before has left. */
    const bool any = disk_random(2);
    plan.cut_calls = any ? DISK_CALL_ANY : DISK_CALL_SYNC | DISK_CALL_NAMES;
    const uint64_t n_calls = any ? LIFE_CALLS : LIFE_CALLS / 6;
    plan.cut_at = (int64_t)disk_random(n_calls >> disk_random(5));
    plan.fault_at = (int64_t)disk_random(LIFE_CALLS);
    plan.n_faults = 1 + (int64_t)disk_random(3);
    switch (disk_random(8)) {
    case 0: /* a device that fails now and then */
        plan.fault_error = EIO;
        plan.fault_calls = DISK_CALL_ANY;
        break;
    case 1: /* full from then on, as seen at once or only when pages are written out */
        plan.fault_error = ENOSPC;
        plan.fault_calls = disk_random(2) ? DISK_CALL_SPACE : DISK_CALL_SPACE | DISK_CALL_SYNC;
        plan.n_faults = INT64_MAX;
        break;
    case 2: /* an fsync that loses what it was to write, and says so once */
        plan.fault_error = EIO;
        plan.fault_calls = DISK_CALL_SYNC;
        plan.n_faults = 1;
        break;
    default: break;
    }
    return plan;
}

/* Some steps from the newest checkpoint on, or up to a failure. */
static ls_status live(void)
{
    char *directory = NULL;
    int64_t step = -1, last;

    LS_TRY(ls_directory_make(RUN));
    LS_TRY(ls_checkpoint_find_newest(RUN, NULL, NULL, &directory, &step));
    free(directory);
    if (step >= 0) {
        history.latest_may_be[step] = true;
        LS_TRY(ls_checkpoint_rotate(RUN, history.keep, step));
        expect_latest(step);
        check_leftovers("a run has resumed");
        if (disk_random(4) == 0) LS_TRY(save_step(step));
    }
    for (last = step + LIFE_STEPS; step < last;) {
        LS_TRY(save_step(++step));
        if (disk_random(4) == 0) LS_TRY(save_step(step));
    }
    return LS_OK;
}

/* One life; whether it was cut off in the middle. */
static bool live_once(const disk_plan *plan)
{
    if (disk_random(2)) pid++;
    disk_arm(plan);
    const ls_status status = live();
    const bool is_cut = disk.is_cut;
    disk_disarm();
    if (history.quiet && status != LS_OK) breaks("an undisturbed life fails: %s", ls_error());
    check_laws();
    return is_cut;
}

static void begin_history(uint64_t seed)
{
    memset(&history, 0, sizeof history);
    history.committed_step = -1;
    history.latest_may_be[STEPS_MAX] = true;
    disk_open(seed);
    history.keep = 1 + (int64_t)disk_random(2);
    disk_arm(&(disk_plan){.cut_at = -1});
    assert_int_equal(disk_call_mkdir("disk", 0777), 0);
    disk_sync_names(tree.nodes[0]);
    disk_disarm();
}

static void end_history(const char *idle_sync)
{
    history.quiet = true;
    (void)live_once(&(disk_plan){.cut_at = -1, .halting = true, .idle_sync = idle_sync});
    check_leftovers("the run is over");
    const disk_node *root = disk_walk(ROOT, NULL, NULL);
    if (!root || root->now.names->n > history.keep) breaks("too many checkpoints are kept");
    disk_cut();
    check_laws();
    disk_close();
}

/* The number of cuts in the middle of a life; history.broken tells of a broken law. */
static int64_t run_history(uint64_t seed, const char *idle_sync)
{
    const int64_t n_lives = 1 + (int64_t)(seed % LIVES_MAX);
    int64_t n_cuts = 0;

    begin_history(seed);
    for (int64_t life = 0; life < n_lives; life++) {
        const disk_plan plan = draw_plan(idle_sync);
        n_cuts += live_once(&plan);
        if (disk_random(3) == 0) continue; /* only the process was killed */
        disk_cut();
        check_laws();
    }
    end_history(idle_sync);
    return n_cuts;
}

/* ---- tests --------------------------------------------------------------------------------- */

static void test_laws_hold(void **state)
{
    uint64_t seed = first_seed;

    (void)state;
    for (int64_t n = 0; n < n_points; seed++) {
        n += run_history(seed, NULL);
        if (history.broken[0]) {
            fail_msg("seed %llu: %s\nagain: test_crash_points 1 %llu", (unsigned long long)seed,
                     history.broken, (unsigned long long)seed);
        }
    }
    print_message("%lld crash points, seeds %llu to %llu\n", (long long)n_points,
                  (unsigned long long)first_seed, (unsigned long long)seed - 1);
}

/* ls_directory_make() alone: what it made is there whatever a power cut takes. */
static void test_made_folders_last(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + 100; seed++) {
        begin_history(seed);
        disk_arm(&(disk_plan){.cut_at = -1});
        if (ls_directory_make("disk/a/b/c") != LS_OK) fail_msg("%s", ls_error());
        disk_disarm();
        disk_cut();
        assert_non_null(disk_walk("disk/a/b/c", NULL, NULL));
        disk_close();
    }
}

/* A disk that forgets one kind of fsync breaks a law: each is needed, and its loss is seen. */
static void test_each_sync_is_needed(void **state)
{
    static const char *const idle[] = {
        "config.json", "model-*",     "optimizer-*", "model.safetensors.index*",
        "state.json",  ".tmp-step-*", "checkpoints", "latest.tmp*",
        "run",         "runs",        "disk",
    };

    (void)state;
    for (size_t i = 0; i < sizeof idle / sizeof idle[0]; i++) {
        uint64_t seed = first_seed, n = 0;
        do {
            (void)run_history(seed++, idle[i]);
        } while (!history.broken[0] && ++n < 300);
        if (!history.broken[0]) fail_msg("nobody misses the fsync of %s", idle[i]);
        print_message("without the fsync of %s: %s\n", idle[i], history.broken);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_laws_hold),
        cmocka_unit_test(test_made_folders_last),
        cmocka_unit_test(test_each_sync_is_needed),
    };
    if (argc > 1) n_points = strtoll(argv[1], NULL, 10);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
