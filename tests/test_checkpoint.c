/* test_checkpoint.c - a checkpoint holds the state as each tensor was saved and the position as it
 * was begun, whatever the trainer has done since; one that is not complete leaves nothing. */
#include "checkpoint_test.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "checkpoint_dir.h"
#include "safetensors.h"

/* ---- what a run holds of the system -------------------------------------------------------- */

/* Open descriptors; those of files that are gone count against the disk all the same. */
static int count_descriptors(int *n_deleted)
{
    ls_name_list list;

    *n_deleted = 0;
    assert_ok(ls_directory_list("/proc/self/fd", &list));
    for (int64_t i = 0; i < list.n_names; i++) {
        char path[300], target[600];
        snprintf(path, sizeof path, "/proc/self/fd/%s", list.names[i]);
        const ssize_t n = readlink(path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        *n_deleted += strstr(target, " (deleted)") != NULL;
    }
    const int n = (int)list.n_names;
    ls_name_list_free(&list);
    return n;
}

/* 512-byte blocks of a folder and all that is in it. */
static int64_t count_blocks(const char *path)
{
    ls_name_list list;
    struct stat about;
    ls_path_kind kind;

    assert_int_equal(lstat(path, &about), 0);
    int64_t blocks = about.st_blocks;
    assert_ok(ls_path_describe_link(path, &kind));
    if (kind != LS_PATH_DIRECTORY) return blocks;
    assert_ok(ls_directory_list(path, &list));
    for (int64_t i = 0; i < list.n_names; i++) {
        char *below = ls_path_join(path, list.names[i]);
        assert_non_null(below);
        blocks += count_blocks(below);
        free(below);
    }
    ls_name_list_free(&list);
    return blocks;
}

/* ---- saving -------------------------------------------------------------------------------- */

static int64_t count_checkpoints(const subject *s)
{
    char *path = ls_path_join(s->config.output, "checkpoints");
    ls_name_list list;

    assert_ok(ls_directory_list(path, &list));
    const int64_t n = list.n_names;
    ls_name_list_free(&list);
    free(path);
    return n;
}

/* Every file but state.json itself is in the manifest, and so has a checksum. */
static void assert_manifest(const char *directory)
{
    cJSON *state = NULL;
    ls_name_list list;

    assert_ok(ls_checkpoint_state_read(directory, &state));
    assert_ok(ls_directory_list(directory, &list));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(state, "manifest")),
                     list.n_names - 1);
    ls_name_list_free(&list);
    cJSON_Delete(state);
}

/* The newest checkpoint, loaded over another state, is this version. */
static void assert_newest(subject *s, int version)
{
    char *directory = NULL;
    int64_t step = 0;

    assert_ok(ls_checkpoint_find_newest(s->config.output, NULL, NULL, &directory, &step));
    assert_int_equal(step, version);
    assert_manifest(directory);
    fill_state(s, version + 100);
    assert_ok(ls_checkpoint_load(&s->trainer, directory));
    assert_state(s, version);
    free(directory);
}

static void test_save_while_training(void **state)
{
    static const struct {
        const char *precision, *frozen, *moments;
    } cases[] = {{"bf16", NULL, "fp32"},
                 {"fp32", NULL, "fp32"},
                 {"bf16", "model.layers.0.*", "fp32"},
                 {"bf16", NULL, "bf16"},
                 {"bf16", "model.layers.0.*", "q8"},
                 {"fp32", NULL, "q4"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        subject s;
        moments = cases[i].moments;
        open_subject(&s, "run", cases[i].precision, cases[i].frozen);
        for (int version = 1; version <= 4; version++) {
            assert_ok(save(&s, version));
            assert_newest(&s, version);
            assert_int_equal(count_checkpoints(&s), version < 2 ? version : 2);
        }
        assert_ok(ls_directory_remove(s.config.output));
        close_subject(&s);
    }
    moments = "fp32";
}

/* Matrices are packed, with a scale for each block; vectors are not. */
static void test_packed_moments(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        ls_dtype dtype;
        int64_t elements;
    } expected[] = {{"lm_head.weight.m", LS_DTYPE_U8, 512}, /* 40 x 8: blocks are whole */
                    {"lm_head.weight.m_scale", LS_DTYPE_F32, 2},
                    {"lm_head.weight.v", LS_DTYPE_U8, 512},
                    {"lm_head.weight.v_scale", LS_DTYPE_F32, 2},
                    {"model.norm.weight.v", LS_DTYPE_F32, 8}};
    subject s;
    ls_safetensors *file = NULL;

    moments = "q8";
    open_subject(&s, "packed", "bf16", NULL);
    moments = "fp32";
    assert_ok(save(&s, 1));
    assert_ok(ls_safetensors_open(
        at("packed/checkpoints/step-00000001/optimizer-00001-of-00001.safetensors"), &file));
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const ls_safetensors_entry *entry = ls_safetensors_find(file, expected[i].name);
        assert_non_null(entry);
        assert_int_equal(entry->dtype, expected[i].dtype);
        assert_int_equal(entry->n_dims, 1);
        assert_int_equal(entry->dims[0], expected[i].elements);
    }
    assert_null(ls_safetensors_find(file, "model.norm.weight.v_scale"));
    ls_safetensors_close(file);
    close_subject(&s);
}

/* Each file holds its tensors in the order in which they were saved. */
static void test_order_in_files(void **state)
{
    (void)state;
    static const char *const names[] = {"model", "optimizer"};
    subject s;

    open_subject(&s, "order", "bf16", NULL);
    assert_ok(save(&s, 1));
    for (int f = 0; f < 2; f++) {
        char path[600];
        ls_safetensors *file = NULL;
        int64_t at_entry = 0;
        snprintf(path, sizeof path, "%s/checkpoints/step-00000001/%s-00001-of-00001.safetensors",
                 s.config.output, names[f]);
        assert_ok(ls_safetensors_open(path, &file));
        for (int64_t i = 0; i < s.n; i++) {
            const ls_tensor *t = &s.trainer.instance.decoder.tape.tensors[s.order[i]];
            if ((t->role == LS_ROLE_WEIGHTS) != (f == 0)) continue;
            assert_true(at_entry < ls_safetensors_count(file));
            const ls_safetensors_entry *entry = ls_safetensors_get(file, at_entry++);
            assert_string_equal(entry->name, t->name);
            assert_int_equal(entry->dtype, t->dtype);
            assert_int_equal(entry->size_bytes, ls_tensor_bytes(t));
        }
        assert_int_equal(at_entry, ls_safetensors_count(file));
        ls_safetensors_close(file);
    }
    close_subject(&s);
}

/* Whatever rotation removes is closed, unmapped and gone: the third save and the hundredth leave as
 * much. */
static void test_hundred_saves(void **state)
{
    int deleted, deleted_before;
    subject s;

    (void)state;
    open_subject(&s, "hundred", "bf16", NULL);
    for (int version = 1; version <= 3; version++) assert_ok(save(&s, version));
    const int descriptors = count_descriptors(&deleted_before);
    const int64_t blocks = count_blocks(at("hundred"));
    for (int version = 4; version <= 100; version++) assert_ok(save(&s, version));
    assert_int_equal(count_descriptors(&deleted), descriptors);
    assert_int_equal(deleted, deleted_before);
    assert_true(count_blocks(at("hundred")) <= blocks + 2 * 8); /* state.json has longer numbers */
    assert_newest(&s, 100);
    close_subject(&s);
}

/* In fp32 a frozen parameter has no state at all. */
static void test_all_frozen(void **state)
{
    (void)state;
    subject s;
    ls_name_list list;

    open_subject(&s, "frozen", "fp32", "*");
    assert_ok(save(&s, 1));
    assert_ok(ls_directory_list(at("frozen/checkpoints/step-00000001"), &list));
    for (int64_t i = 0; i < list.n_names; i++) {
        assert_null(strstr(list.names[i], "optimizer"));
    }
    assert_int_equal(list.n_names, 4); /* config, state, weights and their index */
    ls_name_list_free(&list);
    assert_newest(&s, 1);
    close_subject(&s);
}
/* A checkpoint of another precision, and one of other training data. */
static void test_load_refuses(void **state)
{
    (void)state;
    char directory[600];
    subject s;

    snprintf(directory, sizeof directory, "%s", at("refuse/checkpoints/step-00000001"));
    open_subject(&s, "refuse", "bf16", NULL);
    assert_ok(save(&s, 1));
    close_subject(&s);
    open_subject(&s, "refuse", "fp32", NULL);
    assert_fails(ls_checkpoint_load(&s.trainer, directory), LS_ERR_CORRUPT,
                 "model.embed_tokens.weight is missing, or has another shape or dtype");
    close_subject(&s);
    n_train_tokens = 250;
    open_subject(&s, "refuse", "bf16", NULL);
    n_train_tokens = 200;
    move_trainer(&s, 7);
    assert_fails(ls_checkpoint_load(&s.trainer, directory), LS_ERR_INVALID,
                 "data.train: the shards are not those");
    assert_int_equal(s.trainer.step, 7);
    close_subject(&s);
}

/* ---- what is not complete ------------------------------------------------------------------ */

static void test_incomplete(void **state)
{
    (void)state;
    subject s;

    open_subject(&s, "incomplete", "bf16", NULL);
    assert_ok(save(&s, 1));
    for (int64_t n = 0; n < s.n; n += 3) {
        for (int aborted = 0; aborted < 2; aborted++) {
            ls_checkpoint_saver *saver = NULL;
            assert_ok(begin(&s, 2, &saver));
            assert_int_equal(count_checkpoints(&s), 2); /* one is being written */
            for (int64_t i = 0; i < n; i++) {
                assert_ok(ls_checkpoint_save_tensor(saver, s.order[i]));
            }
            if (aborted) {
                ls_checkpoint_save_abort(saver);
            } else {
                assert_fails(ls_checkpoint_save_end(saver), LS_ERR_INVALID, "tensors were written");
            }
            assert_int_equal(count_checkpoints(&s), 1);
        }
    }
    ls_checkpoint_save_abort(NULL);
    assert_newest(&s, 1);
    close_subject(&s);
}

/* Saving a tensor out of turn is a bug, and stops the program. */
static void test_wrong_order(void **state)
{
    (void)state;
    const struct rlimit no_core = {0, 0};
    ls_checkpoint_saver *saver = NULL;
    subject s;
    int code = 0;

    open_subject(&s, "turn", "bf16", NULL);
    assert_ok(begin(&s, 1, &saver));
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (signal(SIGABRT, SIG_DFL) == SIG_ERR || setrlimit(RLIMIT_CORE, &no_core) != 0) _exit(2);
        close(STDERR_FILENO);
        (void)ls_checkpoint_save_tensor(saver, s.order[1]);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_true(WIFSIGNALED(code) && WTERMSIG(code) == SIGABRT);
    ls_checkpoint_save_abort(saver);
    close_subject(&s);
}

/* Whichever system call fails, the newest checkpoint is the one before or the new one, whole; and
 * as long as it is the one before, nothing else is left. */
static void test_faults(void **state)
{
    (void)state;
    subject s;
    int64_t step = 2, n_before = 0, n_after = 0;

    open_subject(&s, "fault", "bf16", NULL);
    for (int call = 0;; call++) {
        char *directory = NULL;
        assert_true(call < 1000);
        if (step == 2) {
            assert_ok(ls_directory_remove(s.config.output));
            assert_ok(save(&s, 1));
        }
        arm_faults(call, false, ENOSPC);
        const ls_status status = save(&s, 2);
        const bool reached = fault_calls > call;
        disarm_faults();
        if (!reached) {
            assert_ok(status);
            break;
        }
        assert_ok(ls_checkpoint_find_newest(s.config.output, NULL, NULL, &directory, &step));
        free(directory);
        assert_true(step == 1 || step == 2);
        assert_newest(&s, (int)step);
        n_before += step == 1;
        n_after += step == 2;
        if (step == 2) continue;
        assert_int_equal(status, LS_ERR_IO);
        assert_int_equal(count_checkpoints(&s), 1);
    }
    assert_true(n_before > s.n && n_after > 0);
    assert_newest(&s, 2);
    close_subject(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_save_while_training),
        cmocka_unit_test(test_packed_moments),
        cmocka_unit_test(test_order_in_files),
        cmocka_unit_test(test_hundred_saves),
        cmocka_unit_test(test_all_frozen),
        cmocka_unit_test(test_load_refuses),
        cmocka_unit_test(test_incomplete),
        cmocka_unit_test(test_wrong_order),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
