/* test_checkpoint_dir.c - a checkpoint is whole or absent whichever system call is the last; a
 * damaged one is passed over with its reason; rotation keeps what can be resumed from. */
#include "checkpoint_dir.h"

#include <cjson/cJSON.h>

#include "checkpoint_names.h"
#include "checkpoint_state.h"
#include "crc32c.h"
#include "io_test.h"

static char run_dir[400];

static void begin_run(const char *name)
{
    snprintf(run_dir, sizeof run_dir, "%s", at(name));
}

static const char *in_run(const char *name)
{
    static char paths[4][600];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", run_dir, name);
    return path;
}

/* A checkpoint of two files whose content tells which save it was. */
static ls_status save(int64_t step, const char *content)
{
    ls_checkpoint_writer *writer = NULL;
    LS_TRY(ls_checkpoint_begin(run_dir, step, 1000, &writer));
    ls_status status = ls_checkpoint_write(writer, "config.json", "{}", 2);
    if (status == LS_OK) {
        status = ls_checkpoint_write(writer, "weights", content, strlen(content));
    }
    if (status != LS_OK) {
        ls_checkpoint_abort(writer);
        return status;
    }
    cJSON *state = cJSON_CreateObject();
    assert_non_null(cJSON_AddNumberToObject(state, "step", (double)step));
    assert_non_null(cJSON_AddStringToObject(state, "content", content));
    status = ls_checkpoint_commit(writer, state);
    cJSON_Delete(state);
    return status;
}

static int n_rejected;
static char rejected_reason[1024];

static void note_rejected(void *context, const char *directory, const char *reason)
{
    assert_ptr_equal(context, run_dir);
    assert_non_null(strstr(directory, "step-"));
    snprintf(rejected_reason, sizeof rejected_reason, "%s", reason);
    n_rejected++;
}

/* The newest valid checkpoint is of this step and holds this content; step -1: there is none. */
static void expect_newest(int64_t wanted_step, const char *content)
{
    char *directory = NULL;
    int64_t step = 0;

    n_rejected = 0;
    assert_ok(ls_checkpoint_find_newest(run_dir, note_rejected, run_dir, &directory, &step));
    assert_int_equal(step, wanted_step);
    if (wanted_step < 0) {
        assert_null(directory);
        return;
    }
    cJSON *state = NULL;
    assert_ok(ls_checkpoint_state_read(directory, &state));
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(state, "content")->valuestring, content);
    cJSON_Delete(state);
    char *path = ls_path_join(directory, "weights"), *data = NULL;
    assert_ok(ls_disk_file_read_all(path, 100, &data, NULL));
    assert_string_equal(data, content);
    free(data);
    free(path);
    free(directory);
}

static void expect_latest(const char *wanted)
{
    char *text = NULL;
    assert_ok(ls_disk_file_read_all(in_run("latest"), 100, &text, NULL));
    assert_string_equal(text, wanted);
    free(text);
}

static int64_t count_entries(void)
{
    ls_name_list list;
    assert_ok(ls_directory_list(in_run("checkpoints"), &list));
    const int64_t n = list.n_names;
    ls_name_list_free(&list);
    return n;
}

static void test_save_and_find(void **state)
{
    (void)state;
    begin_run("run");
    expect_newest(-1, "");
    assert_ok(save(100, "first"));
    assert_true(is_there(in_run("checkpoints/step-00000100/state.json")));
    expect_newest(100, "first");
    expect_latest("step-00000100\n");
    assert_ok(save(200, "second"));
    expect_newest(200, "second");
    expect_latest("step-00000200\n");
    assert_ok(save(200, "again")); /* the same step anew */
    expect_newest(200, "again");
    assert_ok(save(123456789012, "large"));
    expect_newest(123456789012, "large");
    assert_int_equal(count_entries(), 3);

    cJSON *read = NULL;
    assert_ok(ls_checkpoint_state_read(in_run("checkpoints/step-00000100"), &read));
    const cJSON *manifest = cJSON_GetObjectItemCaseSensitive(read, "manifest");
    assert_int_equal(cJSON_GetArraySize(manifest), 2);
    const cJSON *entry = cJSON_GetArrayItem(manifest, 1);
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(entry, "file")->valuestring, "weights");
    assert_int_equal(cJSON_GetObjectItemCaseSensitive(entry, "bytes")->valueint, 5);
    char crc[16];
    snprintf(crc, sizeof crc, "%08x", ls_crc32c(0, "first", 5));
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(entry, "crc32c")->valuestring, crc);
    cJSON_Delete(read);
}

static void test_writer_refuses(void **state)
{
    (void)state;
    static const char *const names[] = {"", ".", "..", "a/b", ".x", "state.json", "twice"};
    ls_checkpoint_writer *writer = NULL;

    begin_run("refuse");
    assert_fails(ls_checkpoint_begin(run_dir, -1, 0, &writer), LS_ERR_INVALID, "-1");
    assert_fails(ls_checkpoint_begin(run_dir, 1, UINT64_MAX, &writer), LS_ERR_IO, "free");
    assert_ok(ls_checkpoint_begin(run_dir, 1, 0, &writer));
    assert_ok(ls_checkpoint_write(writer, "twice", "x", 1));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(ls_checkpoint_write(writer, names[i], "x", 1), LS_ERR_INVALID);
    }
    ls_checkpoint_abort(writer);
    ls_checkpoint_abort(NULL);
    assert_int_equal(count_entries(), 0);

    /* A registered file that is not what was registered. */
    for (int kind = 0; kind < 4; kind++) {
        cJSON *given = kind == 3 ? cJSON_CreateArray() : cJSON_CreateObject();
        if (kind == 2) cJSON_AddArrayToObject(given, "manifest");
        assert_ok(ls_checkpoint_begin(run_dir, 1, 0, &writer));
        if (kind == 0) assert_ok(ls_checkpoint_add(writer, "absent", 3, 0));
        if (kind == 1) {
            put_file(in_run("short"), "ab", 2);
            char *path = ls_path_join(ls_checkpoint_folder(writer), "short");
            assert_ok(ls_disk_file_rename(in_run("short"), path));
            free(path);
            assert_ok(ls_checkpoint_add(writer, "short", 3, 0));
        }
        assert_int_not_equal(ls_checkpoint_commit(writer, given), LS_OK);
        cJSON_Delete(given);
        assert_int_equal(count_entries(), 0);
    }
}

static void damage(const char *path, long offset, char byte)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, offset, offset < 0 ? SEEK_END : SEEK_SET), 0);
    assert_int_equal(fputc(byte, file), byte);
    assert_int_equal(fclose(file), 0);
}

static void test_damage(void **state)
{
    (void)state;
    char *directory = NULL;
    const char *step2 = "checkpoints/step-00000002";

    for (int kind = 0; kind < 7; kind++) {
        char name[32];
        snprintf(name, sizeof name, "damage%d", kind);
        begin_run(name);
        assert_ok(save(1, "one"));
        assert_ok(save(2, "two"));
        assert_ok(ls_checkpoint_verify(in_run(step2), true));
        switch (kind) {
        case 0: damage(in_run("checkpoints/step-00000002/weights"), 1, 'W'); break;
        case 1: put_file(in_run("checkpoints/step-00000002/weights"), "tw", 2); break;
        case 2: assert_ok(ls_disk_file_remove(in_run("checkpoints/step-00000002/weights"))); break;
        case 3:
            assert_ok(ls_disk_file_remove(in_run("checkpoints/step-00000002/state.json")));
            break;
        case 4: damage(in_run("checkpoints/step-00000002/state.json"), 3, 'X'); break;
        case 5: damage(in_run("checkpoints/step-00000002/state.json"), -8, 'X'); break;
        case 6: put_file(in_run("checkpoints/step-00000002/state.json"), "", 0); break;
        default: fail();
        }
        assert_int_equal(ls_checkpoint_verify(in_run(step2), false), kind == 0 ? LS_OK
                                                                     : kind == 2 || kind == 3
                                                                         ? LS_ERR_IO
                                                                         : LS_ERR_CORRUPT);
        expect_newest(1, "one");
        assert_int_equal(n_rejected, 1);
        assert_non_null(strstr(rejected_reason, "step-00000002"));
        damage(in_run("checkpoints/step-00000001/weights"), 0, 'X');
        assert_fails(ls_checkpoint_find_newest(run_dir, NULL, NULL, &directory, NULL),
                     LS_ERR_CORRUPT, "none of its 2");
    }
}

/* A state.json cut at every byte, or with any byte changed, is refused. */
static void test_seal(void **state)
{
    (void)state;
    cJSON *built = cJSON_CreateObject(), *parsed = NULL;
    char *text = NULL;

    assert_non_null(cJSON_AddStringToObject(built, "key", "value"));
    assert_ok(ls_checkpoint_state_print(built, &text));
    const size_t length = strlen(text);
    assert_ok(ls_checkpoint_state_parse(text, length, "state", &parsed));
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(parsed, "key")->valuestring, "value");
    assert_fails(ls_checkpoint_state_print(parsed, &text), LS_ERR_INVALID, "self_crc32c");
    cJSON_Delete(parsed);
    for (size_t n = 0; n < length; n++) {
        assert_int_equal(ls_checkpoint_state_parse(text, n, "state", &parsed), LS_ERR_CORRUPT);
    }
    for (size_t i = 0; i < length; i++) {
        text[i] ^= 1;
        assert_fails(ls_checkpoint_state_parse(text, length, "state", &parsed), LS_ERR_CORRUPT,
                     "checksum");
        text[i] ^= 1;
    }
    free(text);
    cJSON_Delete(built);
    built = cJSON_CreateObject();
    assert_fails(ls_checkpoint_state_print(built, &text), LS_ERR_INVALID, "object");
    cJSON_Delete(built);
}

static void test_malformed_manifest(void **state)
{
    (void)state;
    static const struct {
        const char *json, *text;
    } cases[] = {
        {"{\"a\":1}", "no manifest"},
        {"{\"manifest\":{}}", "no manifest"},
        {"{\"manifest\":[1]}", "names no file"},
        {"{\"manifest\":[{}]}", "names no file"},
        {"{\"manifest\":[{\"file\":\"../x\",\"bytes\":1,\"crc32c\":\"00000000\"}]}", "no file"},
        {"{\"manifest\":[{\"file\":\"..\",\"bytes\":1,\"crc32c\":\"00000000\"}]}", "no file"},
        {"{\"manifest\":[{\"file\":\"x\",\"bytes\":-1,\"crc32c\":\"00000000\"}]}", "of x"},
        {"{\"manifest\":[{\"file\":\"x\",\"bytes\":1.5,\"crc32c\":\"00000000\"}]}", "of x"},
        {"{\"manifest\":[{\"file\":\"x\",\"bytes\":1e99,\"crc32c\":\"00000000\"}]}", "of x"},
        {"{\"manifest\":[{\"file\":\"x\",\"bytes\":1,\"crc32c\":\"0\"}]}", "of x"},
        {"{\"manifest\":[{\"file\":\"x\",\"bytes\":1,\"crc32c\":\"0000000g\"}]}", "of x"},
        {"{\"manifest\":[{\"file\":\"x\",\"bytes\":1,\"crc32c\":0}]}", "of x"},
    };

    assert_ok(ls_directory_make(at("manifest")));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cJSON *built = cJSON_Parse(cases[i].json);
        char *text = NULL;
        assert_non_null(built);
        assert_ok(ls_checkpoint_state_print(built, &text));
        put_file(at("manifest/state.json"), text, strlen(text));
        free(text);
        cJSON_Delete(built);
        assert_fails(ls_checkpoint_verify(at("manifest"), false), LS_ERR_CORRUPT, cases[i].text);
    }
}

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        ls_checkpoint_role role;
        int64_t step, pid;
    } cases[] = {
        {"step-00000100", LS_CHECKPOINT_ROLE_FINAL, 100, 0},
        {"step-100000000", LS_CHECKPOINT_ROLE_FINAL, 100000000, 0},
        {"step-100", LS_CHECKPOINT_ROLE_NONE, 0, 0},
        {"step-000000100", LS_CHECKPOINT_ROLE_NONE, 0, 0},
        {"step-00000100x", LS_CHECKPOINT_ROLE_NONE, 0, 0},
        {"step-", LS_CHECKPOINT_ROLE_NONE, 0, 0},
        {"step-99999999999999999999", LS_CHECKPOINT_ROLE_NONE, 0, 0},
        {".tmp-step-00000007-12", LS_CHECKPOINT_ROLE_TMP, 7, 12},
        {".old-step-00000007-12", LS_CHECKPOINT_ROLE_OLD, 7, 12},
        {".tmp-step-00000007", LS_CHECKPOINT_ROLE_NONE, 0, 0},
        {".tmp-step-00000007-12x", LS_CHECKPOINT_ROLE_NONE, 0, 0},
        {".tmp-step-00000007--1", LS_CHECKPOINT_ROLE_NONE, 0, 0},
        {"other", LS_CHECKPOINT_ROLE_NONE, 0, 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ls_checkpoint_name parsed = ls_checkpoint_name_parse(cases[i].name);
        assert_int_equal(parsed.role, cases[i].role);
        if (parsed.role == LS_CHECKPOINT_ROLE_NONE) continue;
        assert_int_equal(parsed.step, cases[i].step);
        assert_int_equal(parsed.pid, cases[i].pid);
    }
}

/* What dead runs left is cleaned away or put back; a live run's folders are left alone. */
static void test_leftovers(void **state)
{
    (void)state;
    char live[64], path[700];

    begin_run("leftovers");
    assert_ok(save(1, "one"));
    assert_ok(ls_directory_make(in_run("checkpoints/.tmp-step-00000002-2147483646")));
    put_file(in_run("checkpoints/.tmp-step-00000002-2147483646/weights"), "half", 4);
    snprintf(live, sizeof live, "checkpoints/.tmp-step-00000002-%ld", (long)getppid());
    assert_ok(ls_directory_make(in_run(live)));
    assert_ok(ls_directory_make(in_run("checkpoints/notes")));
    /* Killed between setting the old aside and naming the new. */
    assert_ok(ls_disk_file_rename(in_run("checkpoints/step-00000001"),
                                  in_run("checkpoints/.old-step-00000001-2147483646")));
    expect_newest(1, "one");
    assert_true(is_there(in_run("checkpoints/.tmp-step-00000002-2147483646"))); /* only looked */
    /* Killed before removing what had been replaced. */
    assert_ok(ls_directory_make(in_run("checkpoints/.old-step-00000001-2147483646")));
    assert_ok(save(3, "three"));
    assert_false(is_there(in_run("checkpoints/.tmp-step-00000002-2147483646")));
    assert_false(is_there(in_run("checkpoints/.old-step-00000001-2147483646")));
    assert_true(is_there(in_run(live)));
    assert_true(is_there(in_run("checkpoints/notes")));
    expect_newest(3, "three");
    snprintf(path, sizeof path, "%s", in_run(live));
    assert_ok(ls_directory_remove(path));
    assert_int_equal(count_entries(), 3);
}

/* The same for files cut off while they were being replaced. */
static void test_files_beside(void **state)
{
    (void)state;
    static const char *const dead[] = {"latest.tmp-2147483646", "run.json.tmp-2147483646-7"};
    static const char *const kept[] = {"latest.tmp-", "latest.tmp-x", "latest.tmp-7x",
                                       ".tmp-2147483646", "tmp-2147483646"};
    char live[64];

    begin_run("beside");
    assert_ok(save(1, "one"));
    snprintf(live, sizeof live, "latest.tmp-%ld", (long)getppid());
    put_file(in_run(live), "step", 4);
    for (size_t i = 0; i < sizeof dead / sizeof *dead; i++) put_file(in_run(dead[i]), "st", 2);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) put_file(in_run(kept[i]), "st", 2);
    assert_ok(ls_checkpoint_rotate(run_dir, 1, 1));
    for (size_t i = 0; i < sizeof dead / sizeof *dead; i++) assert_false(is_there(in_run(dead[i])));
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) assert_true(is_there(in_run(kept[i])));
    assert_true(is_there(in_run(live)));
}

static void test_rotate(void **state)
{
    (void)state;
    begin_run("rotate");
    assert_ok(ls_checkpoint_rotate(run_dir, 1, 1)); /* nothing there yet */
    assert_fails(ls_checkpoint_rotate(run_dir, 0, 1), LS_ERR_INVALID, "keep");
    for (int step = 1; step <= 5; step++) assert_ok(save(step, "x"));
    assert_ok(ls_checkpoint_rotate(run_dir, 6, 5));
    assert_int_equal(count_entries(), 5);
    assert_ok(ls_checkpoint_rotate(run_dir, 3, 5));
    assert_int_equal(count_entries(), 3);
    assert_false(is_there(in_run("checkpoints/step-00000002")));
    assert_true(is_there(in_run("checkpoints/step-00000003")));
    /* 4 and 5 are damaged: 3 is what a restart needs, whatever `keep` says. */
    put_file(in_run("checkpoints/step-00000004/weights"), "", 0);
    put_file(in_run("checkpoints/step-00000005/weights"), "", 0);
    assert_ok(ls_checkpoint_rotate(run_dir, 1, 5));
    assert_true(is_there(in_run("checkpoints/step-00000003")));
    assert_false(is_there(in_run("checkpoints/step-00000004")));
    expect_newest(3, "x");
}

/* A run passes over damaged checkpoints and goes on from an older one: however many of them there
 * are, what it commits from then on is kept. */
static void test_rotate_keeps_what_was_committed(void **state)
{
    (void)state;
    begin_run("passed-over");
    for (int step = 3; step <= 5; step++) assert_ok(save(step, "old"));
    damage(in_run("checkpoints/step-00000004/weights"), 1, 'X'); /* of the same size */
    damage(in_run("checkpoints/step-00000005/weights"), 1, 'X');
    expect_newest(3, "old");
    assert_int_equal(n_rejected, 2);
    assert_ok(save(4, "new"));
    assert_ok(ls_checkpoint_rotate(run_dir, 1, 4));
    expect_newest(4, "new");
    assert_int_equal(n_rejected, 1);
    assert_ok(save(5, "new"));
    assert_ok(ls_checkpoint_rotate(run_dir, 1, 5));
    expect_newest(5, "new");
    assert_int_equal(n_rejected, 0);
    assert_int_equal(count_entries(), 1);
}

/*
 * Saving step 2 (and saving it anew) is cut off at every system call in turn, by a crash after it
 * or by one call that fails.  Then a restart finds step 2 whole or step 1 whole, and saves.
 */
static void cut_saves(bool stays, bool again)
{
    bool reached = true;

    for (int call = 0; reached; call++) {
        char name[64];
        snprintf(name, sizeof name, "cut-%d-%d-%d", stays, again, call);
        begin_run(name);
        assert_ok(save(1, "one"));
        if (again) assert_ok(save(2, "old"));
        arm_faults(call, stays, call % 2 ? EIO : ENOSPC);
        const ls_status status = save(2, "new");
        reached = fault_calls > call;
        disarm_faults();
        if (!reached) assert_ok(status);
        /* A call that fails, unlike a crash, leaves the older one of the step under its name. */
        if (!stays && again) assert_true(is_there(in_run("checkpoints/step-00000002")));
        /* What a restart finds, whether or not the save reported success. */
        char *directory = NULL;
        int64_t step = 0;
        n_rejected = 0;
        assert_ok(ls_checkpoint_find_newest(run_dir, note_rejected, run_dir, &directory, &step));
        assert_int_equal(n_rejected, 0);
        if (again || status == LS_OK) assert_int_equal(step, 2);
        cJSON *read = NULL;
        assert_ok(ls_checkpoint_state_read(directory, &read));
        const char *content = cJSON_GetObjectItemCaseSensitive(read, "content")->valuestring;
        if (status == LS_OK) assert_string_equal(content, "new");
        assert_true(step == 2 ? strcmp(content, "new") == 0 || again : strcmp(content, "one") == 0);
        cJSON_Delete(read);
        free(directory);
        assert_ok(save(3, "three"));
        expect_newest(3, "three");
        assert_int_equal(count_entries(), step == 2 ? 3 : 2); /* no leftovers */
        assert_ok(ls_directory_remove(run_dir));
    }
}

static void test_cut_saves(void **state)
{
    (void)state;
    for (int stays = 0; stays < 2; stays++) {
        for (int again = 0; again < 2; again++) cut_saves(stays, again);
    }
}

/* The calls that make names and content last, one line each, in order. */
static char trace[4096];

static void add_trace(const char *verb, const char *path)
{
    const size_t used = strlen(trace);
    const char *name = strrchr(path, '/');
    snprintf(trace + used, sizeof trace - used, "%s %s\n", verb, name ? name + 1 : path);
}

static int trace_fsync(int fd)
{
    char link[64], path[700];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    assert_true(n > 0);
    path[n] = '\0';
    add_trace("sync", path);
    return ls_file_ops_libc()->fsync(fd);
}

static int trace_rename(const char *from, const char *to)
{
    add_trace("name", to);
    return ls_file_ops_libc()->rename(from, to);
}

/* Content is durable before its folder's names, those before the final name, that before latest. */
static void test_durability(void **state)
{
    (void)state;
    char wanted[1024];
    const long pid = (long)getpid();
    ls_file_ops ops = *ls_file_ops_libc();

    begin_run("durability");
    assert_ok(save(1, "one"));
    assert_ok(save(2, "two")); /* which `latest` names, so that it changes below */
    ops.fsync = trace_fsync;
    ops.rename = trace_rename;
    ls_file_ops_replace(&ops);
    assert_ok(save(1, "again"));
    ls_file_ops_replace(NULL);
    snprintf(wanted, sizeof wanted,
             "sync config.json\nsync weights\nsync state.json\nsync .tmp-step-00000001-%ld\n"
             "name .old-step-00000001-%ld\nname step-00000001\nsync checkpoints\n"
             "sync latest.tmp-%ld\nname latest\nsync durability\n",
             pid, pid, pid);
    assert_string_equal(trace, wanted);
}

/* Rotation cut off anywhere leaves only whole checkpoints under final names. */
static void test_cut_rotation(void **state)
{
    (void)state;
    bool reached = true;

    for (int call = 0; reached; call++) {
        begin_run("cut-rotation");
        for (int step = 1; step <= 3; step++) assert_ok(save(step, "x"));
        arm_faults(call, true, EIO);
        const ls_status status = ls_checkpoint_rotate(run_dir, 1, 3);
        reached = fault_calls > call;
        disarm_faults();
        assert_int_equal(status, reached ? LS_ERR_IO : LS_OK);
        for (int step = 1; step <= 3; step++) {
            char name[64];
            snprintf(name, sizeof name, "checkpoints/step-%08d", step);
            if (is_there(in_run(name))) assert_ok(ls_checkpoint_verify(in_run(name), true));
        }
        expect_newest(3, "x");
        assert_ok(ls_directory_remove(run_dir));
    }
}

static void test_full_disk(void **state)
{
    (void)state;
    static char big[300000];
    ls_checkpoint_writer *writer = NULL;

    mount_small(at("small"), 256);
    begin_run("small/run");
    assert_ok(save(1, "one"));
    assert_fails(ls_checkpoint_begin(run_dir, 2, 1 << 20, &writer), LS_ERR_IO,
                 "the checkpoint needs 1048576 bytes");
    assert_ok(ls_checkpoint_begin(run_dir, 2, 0, &writer)); /* need unknown */
    assert_fails(ls_checkpoint_write(writer, "weights", big, sizeof big), LS_ERR_IO, "full");
    ls_checkpoint_abort(writer);
    expect_newest(1, "one");
    assert_ok(save(2, "two")); /* the room was given back */
    expect_newest(2, "two");
    remount_readonly(at("small"));
    assert_fails(save(3, "three"), LS_ERR_IO, "read-only");
    expect_newest(2, "two");
    unmount(at("small"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_save_and_find),
        cmocka_unit_test(test_writer_refuses),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_seal),
        cmocka_unit_test(test_malformed_manifest),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_leftovers),
        cmocka_unit_test(test_files_beside),
        cmocka_unit_test(test_rotate),
        cmocka_unit_test(test_rotate_keeps_what_was_committed),
        cmocka_unit_test(test_durability),
        cmocka_unit_test(test_cut_saves),
        cmocka_unit_test(test_cut_rotation),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
