/* test_disk_file.c - whole reads and writes under short and interrupted calls, durable
 * replacement, folders, and disks that are full, read-only or broken. */
#include "disk_file.h"

#include "io_test.h"

static void test_round_trip(void **state)
{
    (void)state;
    ls_disk_file file = LS_DISK_FILE_CLOSED;
    char back[16] = "";
    uint64_t bytes = 0;

    assert_ok(ls_disk_file_open(at("trip"), LS_DISK_FILE_CREATE, &file));
    assert_ok(ls_disk_file_write(&file, "hello ", 6));
    assert_ok(ls_disk_file_write(&file, "world", 5));
    assert_ok(ls_disk_file_write_at(&file, "W", 1, 6));
    assert_ok(ls_disk_file_sync(&file));
    assert_ok(ls_disk_file_size(&file, &bytes));
    assert_int_equal(bytes, 11);
    assert_ok(ls_disk_file_read_at(&file, back, 5, 6));
    assert_string_equal(back, "World");
    assert_fails(ls_disk_file_read_at(&file, back, 6, 6), LS_ERR_CORRUPT, "cut short");
    ls_disk_file_close(&file);
    ls_disk_file_close(&file); /* closed twice is closed */
    ls_disk_file_close(NULL);
}

/* Every call interrupted once and at most 3 bytes long: the same file results. */
static void test_short_calls(void **state)
{
    (void)state;
    ls_disk_file file = LS_DISK_FILE_CLOSED;
    const char text[] = "twenty-two bytes long.";
    char back[sizeof text] = "";

    arm_faults(-1, false, 0);
    fault_chunk = 3;
    assert_ok(ls_disk_file_open(at("short"), LS_DISK_FILE_CREATE, &file));
    assert_ok(ls_disk_file_write(&file, text, sizeof text));
    assert_ok(ls_disk_file_write_at(&file, text, sizeof text, 100));
    assert_ok(ls_disk_file_read_at(&file, back, sizeof text, 0));
    assert_string_equal(back, text);
    assert_ok(ls_disk_file_read_at(&file, back, sizeof text, 100));
    assert_string_equal(back, text);
    assert_true(fault_calls > 14); /* it really went in pieces */
    ls_disk_file_close(&file);
    disarm_faults();
}

static ssize_t write_nothing(int fd, const void *data, size_t bytes)
{
    (void)fd, (void)data, (void)bytes;
    return 0;
}

static void test_errors_name_the_remedy(void **state)
{
    (void)state;
    static const struct {
        int error;
        const char *text;
    } cases[] = {{ENOSPC, "disk is full"},
                 {EDQUOT, "quota"},
                 {EROFS, "read-only"},
                 {EACCES, "owner and the mode"},
                 {EIO, "kernel log"}};
    ls_disk_file file = LS_DISK_FILE_CLOSED;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(ls_disk_file_open(at("remedy"), LS_DISK_FILE_CREATE, &file));
        fault_fds = 0;
        arm_faults(0, true, cases[i].error);
        assert_fails(ls_disk_file_write(&file, "x", 1), LS_ERR_IO, cases[i].text);
        assert_fails(ls_disk_file_write_at(&file, "x", 1, 0), LS_ERR_IO, "remedy");
        assert_fails(ls_disk_file_sync(&file), LS_ERR_IO, cases[i].text);
        disarm_faults();
        ls_disk_file_close(&file);
    }
    ls_file_ops ops = *ls_file_ops_libc();
    ops.write = write_nothing;
    assert_ok(ls_disk_file_open(at("remedy"), LS_DISK_FILE_CREATE, &file));
    ls_file_ops_replace(&ops);
    assert_fails(ls_disk_file_write(&file, "x", 1), LS_ERR_IO, "full"); /* and no endless loop */
    ls_file_ops_replace(NULL);
    ls_disk_file_close(&file);
    assert_fails(ls_disk_file_open(at("absent"), LS_DISK_FILE_READ, &file), LS_ERR_IO, "absent");
    assert_fails(ls_disk_file_open(test_folder, LS_DISK_FILE_READ, &file), LS_ERR_INVALID,
                 "not a regular file");
    assert_fails(ls_disk_file_open("/dev/null", LS_DISK_FILE_READ, &file), LS_ERR_INVALID,
                 "not a regular file");
}

static void test_read_all(void **state)
{
    (void)state;
    char *data = NULL;
    uint64_t bytes = 0;

    put_file(at("all"), "a\0b", 3);
    assert_ok(ls_disk_file_read_all(at("all"), 3, &data, &bytes));
    assert_int_equal(bytes, 3);
    assert_memory_equal(data, "a\0b", 4);
    free(data);
    assert_fails(ls_disk_file_read_all(at("all"), 2, &data, NULL), LS_ERR_CORRUPT, "3 bytes");
    put_file(at("all"), "", 0);
    assert_ok(ls_disk_file_read_all(at("all"), 2, &data, NULL));
    assert_string_equal(data, "");
    free(data);
}

static void assert_content(const char *path, const char *wanted)
{
    char *data = NULL;
    assert_ok(ls_disk_file_read_all(path, 1000, &data, NULL));
    assert_string_equal(data, wanted);
    free(data);
}

/* Whichever call fails, the file holds the old text or the new, and nothing lies beside it. */
static void test_atomic(void **state)
{
    (void)state;
    bool done = false;

    assert_ok(ls_directory_make(at("atomic")));
    assert_ok(ls_disk_file_write_atomic(at("atomic/file"), "old", 3));
    for (int call = 0; !done; call++) {
        arm_faults(call, false, EIO);
        const ls_status status = ls_disk_file_write_atomic(at("atomic/file"), "new", 3);
        done = fault_calls <= call;
        const bool renamed = fault_calls > 4; /* create, write, sync, rename, then the folder */
        disarm_faults();
        assert_int_equal(status, done ? LS_OK : LS_ERR_IO);
        assert_content(at("atomic/file"), renamed && (done || call == 4) ? "new" : "old");
        ls_name_list list;
        assert_ok(ls_directory_list(at("atomic"), &list));
        assert_int_equal(list.n_names, 1);
        ls_name_list_free(&list);
        if (!done) assert_ok(ls_disk_file_write_atomic(at("atomic/file"), "old", 3));
    }
}

static void test_folders(void **state)
{
    (void)state;
    ls_name_list list;
    ls_path_kind kind;

    assert_ok(ls_directory_make(at("tree/a/b//c/")));
    assert_ok(ls_directory_make(at("tree/a/b/c")));
    put_file(at("tree/z"), "1", 1);
    put_file(at("tree/B"), "1", 1);
    put_file(at("tree/a/b/c/deep"), "1", 1);
    put_file(at("outside"), "kept", 4);
    assert_int_equal(symlink(at("outside"), at("tree/link")), 0);
    assert_ok(ls_directory_make(at("kept")));
    put_file(at("kept/file"), "kept", 4);
    assert_int_equal(symlink(at("kept"), at("tree/a/folder_link")), 0);
    assert_int_equal(symlink("nowhere", at("tree/a/dangling")), 0);
    assert_ok(ls_directory_list(at("tree"), &list));
    assert_int_equal(list.n_names, 4);
    assert_string_equal(list.names[0], "B");
    assert_string_equal(list.names[1], "a");
    assert_string_equal(list.names[3], "z");
    ls_name_list_free(&list);
    ls_name_list_free(NULL);
    assert_ok(ls_path_describe(at("tree/link"), &kind));
    assert_int_equal(kind, LS_PATH_FILE);
    assert_ok(ls_path_describe_link(at("tree/link"), &kind));
    assert_int_equal(kind, LS_PATH_OTHER);
    assert_fails(ls_directory_make(at("tree/z/x")), LS_ERR_IO, "tree/z");
    assert_fails(ls_directory_list(at("none"), &list), LS_ERR_IO, "none");
    assert_fails(ls_directory_sync(at("none")), LS_ERR_IO, "none");
    assert_ok(ls_directory_sync(at("tree")));
    assert_ok(ls_directory_remove(at("tree")));
    assert_false(is_there(at("tree")));
    assert_content(at("outside"), "kept"); /* links were not followed */
    assert_content(at("kept/file"), "kept");
    assert_ok(ls_directory_remove(at("tree")));
}

static void test_room(void **state)
{
    (void)state;
    uint64_t free_bytes = 0;

    assert_ok(ls_directory_free_bytes(test_folder, &free_bytes));
    assert_ok(ls_directory_require(test_folder, 0, "nothing"));
    assert_fails(ls_directory_require(test_folder, UINT64_MAX, "the thing"), LS_ERR_IO,
                 "the thing needs 18446744073709551615 bytes");
}

static void test_full_disk(void **state)
{
    (void)state;
    static char block[65536];
    ls_disk_file file = LS_DISK_FILE_CLOSED;
    ls_status status = LS_OK;

    mount_small(at("small"), 256);
    assert_ok(ls_disk_file_write_atomic(at("small/note"), "old", 3));
    assert_fails(ls_directory_require(at("small"), 1 << 20, "it"), LS_ERR_IO, "free");
    assert_ok(ls_disk_file_open(at("small/big"), LS_DISK_FILE_CREATE, &file));
    for (int i = 0; i < 8 && status == LS_OK; i++) {
        status = ls_disk_file_write(&file, block, sizeof block);
    }
    ls_disk_file_close(&file);
    assert_int_equal(status, LS_ERR_IO);
    assert_non_null(strstr(ls_error(), "disk is full"));
    assert_fails(ls_disk_file_write_atomic(at("small/note"), block, sizeof block), LS_ERR_IO,
                 "disk is full");
    assert_content(at("small/note"), "old");
    unmount(at("small"));
}

static void test_readonly_disk(void **state)
{
    (void)state;
    mount_small(at("frozen"), 256);
    assert_ok(ls_disk_file_write_atomic(at("frozen/note"), "old", 3));
    remount_readonly(at("frozen"));
    assert_fails(ls_disk_file_write_atomic(at("frozen/note"), "new", 3), LS_ERR_IO, "read-only");
    assert_fails(ls_directory_make(at("frozen/x")), LS_ERR_IO, "read-only");
    assert_fails(ls_disk_file_remove(at("frozen/note")), LS_ERR_IO, "read-only");
    assert_content(at("frozen/note"), "old");
    unmount(at("frozen"));
}

static void test_paths(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"a/b", "a"}, {"a", "."}, {"/a", "/"}, {"a/b/c", "a/b"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *parent = ls_path_parent(cases[i][0]);
        assert_string_equal(parent, cases[i][1]);
        free(parent);
    }
    char *joined = ls_path_join("a", "b");
    assert_string_equal(joined, "a/b");
    free(joined);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_short_calls),
        cmocka_unit_test(test_errors_name_the_remedy),
        cmocka_unit_test(test_read_all),
        cmocka_unit_test(test_atomic),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_readonly_disk),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
