/* test_cli_tokenize.c - longspan tokenize: it never reads its own output, and writes files with
 * names. */
#include "cli_test.h"

static void check_refused(const char *prefix, const char *input)
{
    size_t bytes = 0, bytes_after = 0;
    char *before = need_bytes(at("own/p.bin"), &bytes);

    assert_says(RUN(2, "tokenize", "--out", prefix, input)->err,
                "is the output, and lies among the inputs: write it elsewhere");
    char *after = need_bytes(at("own/p.bin"), &bytes_after);
    assert_int_equal(bytes, bytes_after);
    assert_memory_equal(before, after, bytes);
    free(before);
    free(after);
}

/* The second run, by whatever path the shard and its folder are named. */
static void test_own_output_is_no_input(void **state)
{
    (void)state;
    put_corpus("own", 2, 3);
    assert_int_equal(symlink("own", at("link")), 0);
    assert_int_equal(symlink("own/p.idx", at("index")), 0);
    RUN(0, "tokenize", "--out", "own/p", "own");
    check_refused("own/p", "own");
    check_refused("./own/p", "own");
    check_refused("own/p", "./own");
    check_refused("own/../own/p", "own");
    check_refused("link/p", "own");
    check_refused("own/p", "link");
    check_refused("own/p", "link/p.bin");
    check_refused("own/p", "index");
    check_refused(at("own/p"), "own");
    RUN(0, "tokenize", "--out", "own-elsewhere/p", "own/00.txt", "own/01.txt");
    RUN(0, "tokenize", "--out", "own/p", "own/00.txt", "own/01.txt");
    assert_same_file(at("own/p.bin"), at("own-elsewhere/p.bin"));
}

/* What a killed tokenize left behind is no text; a text whose name only looks so is. */
static void test_half_written_output_is_no_input(void **state)
{
    (void)state;
    put_corpus("killed", 2, 5);
    RUN(0, "tokenize", "--out", "killed-alone/p", "killed");
    put_text(at("killed/p.bin.tmp-4711"), "half of a shard");
    put_text(at("killed/p.idx.tmp-4711"), "half of an index");
    assert_says(RUN(0, "tokenize", "--out", "killed-all/p", "killed")->out, "2 documents");
    assert_same_file(at("killed-all/p.bin"), at("killed-alone/p.bin"));
    put_text(at("killed/notes.bin.tmp-x"), "a text");
    assert_says(RUN(0, "tokenize", "--out", "killed-more/p", "killed")->out, "3 documents");
}

static void test_current_folder(void **state)
{
    char line[512];

    (void)state;
    put_corpus("here", 2, 4);
    snprintf(line, sizeof line, "cd here && exec '%s' tokenize --out p .", PROGRAM);
    const char *const argv[] = {"/bin/sh", "-c", line, NULL};
    finish_as(0, start(argv));
    assert_says(finish_as(2, start(argv))->err, "p.bin is the output, and lies among the inputs");
}

/* Nothing is made, not even a folder. */
static void test_prefix_names_a_file(void **state)
{
    static const char *const bad[] = {"", ".", "..", "/", "new/", "new/.", "new/..", "new//"};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_says(RUN(2, "tokenize", "--out", bad[i], "text-valid")->err,
                    "ends in no file's name");
    assert_false(is_there(at("new")));
    assert_false(is_there(at(".bin")));
    RUN(0, "tokenize", "--out", "new/.hidden", "text-valid");
    assert_true(is_there(at("new/.hidden.idx")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_output_is_no_input),
        cmocka_unit_test(test_half_written_output_is_no_input),
        cmocka_unit_test(test_current_folder),
        cmocka_unit_test(test_prefix_names_a_file),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
