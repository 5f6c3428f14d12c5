/* test_json.c - JSON files: read whole or not at all, typed members, atomic writing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json.h"

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

static cJSON *parse(const char *text)
{
    cJSON *json = NULL;
    if (ls_json_parse("f.json", text, strlen(text), &json) != LS_OK) fail_msg("%s", ls_error());
    return json;
}

static void what_does_not_parse_is_refused(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {{"", "f.json:1: does not parse"},
                 {"{\"a\": 1,\n\"b\": }", "f.json:2: does not parse"},
                 {"{\"a\": 1", "does not parse"},
                 {"{} x", "f.json:1: does not parse"},
                 {"[1]", "f.json: is not a JSON object"},
                 {"3", "f.json: is not a JSON object"},
                 {"{\"a\": 1, \"b\": 2, \"a\": 3}", "f.json: key 'a' is given twice"},
                 {"{\"x\": [{\"a\": 1, \"a\": 1}]}", "f.json: key 'a' is given twice"}};

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        cJSON *json = NULL;
        assert_int_equal(ls_json_parse("f.json", cases[i].text, strlen(cases[i].text), &json),
                         LS_ERR_CORRUPT);
        assert_null(json);
        if (strstr(ls_error(), cases[i].message) == NULL)
            fail_msg("'%s' lacks '%s'", ls_error(), cases[i].message);
    }
}

/* Said to be JSON by ls_json_is_valid(): then cJSON takes it, or had no memory. */
static void check_valid(const char *text, size_t bytes, bool expected)
{
    cJSON *json = cJSON_ParseWithLengthOpts(text, bytes, NULL, 0);
    const bool valid = ls_json_is_valid(text, bytes);

    if (valid != expected) fail_msg("'%.*s' is%s JSON", (int)bytes, text, valid ? "" : " not");
    if (valid && json == NULL) fail_msg("cJSON refuses '%.*s'", (int)bytes, text);
    cJSON_Delete(json);
}

static void what_cjson_refuses_is_not_valid(void **state)
{
    static const char *const valid[] = {
        "{}",
        " [ ] ",
        "\n{\"a\" : [1, -0, 0.5e-7, 12E+3, true, false, null], \"b\":{\"c\":[[]]}}\r\t",
        "\"\\u00e9 \\ud7ff \\uE000 \\\" \\/ \\n\"",
        "3",
        "\"\xc3\xa9\""};
    static const char *const bad[] = {
        "",         " ",        "{",          "}",       "{]",        "[1,]",        "[,1]",
        "{\"a\"}",  "{\"a\":}", "{\"a\":1,}", "{a:1}",   "{\"a\" 1}", "[1 2]",       "tru",
        "nul",      "-",        "+1",         ".5",      "1.",        "1e",          "1e+",
        "0x1",      "01",       "\"a",        "\"\\x\"", "\"\\u12\"", "\"\\ud800\"", "\"\\udfff\"",
        "\"a\nb\"", "{} {}",    "[1]]",       "'a'",     "NaN"};
    static const char others[] = "{}[]:,\"\\ud8019.eE-+ tfn\n\x01";
    char text[2 * CJSON_NESTING_LIMIT + 4], changed[64];

    (void)state;
    for (size_t i = 0; i < N_OF(valid); i++) check_valid(valid[i], strlen(valid[i]), true);
    for (size_t i = 0; i < N_OF(bad); i++) check_valid(bad[i], strlen(bad[i]), false);
    for (int depth = CJSON_NESTING_LIMIT - 1; depth <= CJSON_NESTING_LIMIT + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        check_valid(text, 2 * (size_t)depth, depth <= CJSON_NESTING_LIMIT);
    }
    for (size_t n = 60; n < 70; n++) {
        memset(text, '1', n);
        check_valid(text, n, n <= 62);
    }
    for (uint32_t seed = 0; seed < 200000; seed++) { /* any byte of a text as any other */
        const char *from = valid[seed % N_OF(valid)];
        const size_t n = strlen(from);
        uint32_t draw = seed * 2654435761u;
        if (n > sizeof changed) continue;
        memcpy(changed, from, n);
        for (int c = 0; c < 2; c++, draw = draw * 1664525u + 1013904223u)
            changed[(draw >> 16) % n] = others[(draw >> 8) % sizeof others];
        if (ls_json_is_valid(changed, n)) check_valid(changed, n, true);
    }
}

static void members_are_typed(void **state)
{
    cJSON *json = parse("{\"t\": \"x\", \"n\": 42, \"big\": 9007199254740993, \"x\": 1.5,"
                        " \"b\": true, \"o\": {\"p\": {\"q\": 7}}, \"l\": [1], \"huge\": 1e300}\n");
    const char *text = NULL;
    const cJSON *item = NULL;
    int64_t n = 0;
    double x = 0;
    bool b = false;

    (void)state;
    assert_int_equal(ls_json_get_text("f", json, "t", &text), LS_OK);
    assert_string_equal(text, "x");
    assert_int_equal(ls_json_get_whole("f", json, "n", 0, 42, &n), LS_OK);
    assert_int_equal(n, 42);
    assert_int_equal(ls_json_get_whole("f", json, "n", 0, 41, &n), LS_ERR_CORRUPT);
    assert_string_equal(ls_error(), "f: 'n' is 42; allowed: 0 to 41");
    assert_int_equal(ls_json_get_whole("f", json, "x", 0, 9, &n), LS_ERR_CORRUPT);
    assert_int_equal(ls_json_get_whole("f", json, "huge", INT64_MIN, INT64_MAX, &n),
                     LS_ERR_CORRUPT);
    assert_int_equal(ls_json_get_real("f", json, "x", &x), LS_OK);
    assert_true(x > 1.49 && x < 1.51);
    assert_int_equal(ls_json_get_bool("f", json, "b", &b), LS_OK);
    assert_true(b);
    assert_int_equal(ls_json_get_bool("f", json, "n", &b), LS_ERR_CORRUPT);
    assert_int_equal(ls_json_get_object("f", json, "o", &item), LS_OK);
    assert_int_equal(ls_json_get_array("f", json, "l", &item), LS_OK);
    assert_int_equal(ls_json_get_array("f", json, "o", &item), LS_ERR_CORRUPT);
    assert_int_equal(ls_json_get_object("f", json, "l", &item), LS_ERR_CORRUPT);
    assert_int_equal(ls_json_get_text("f", json, "T", &text), LS_ERR_CORRUPT);
    assert_string_equal(ls_error(), "f: 'T' is missing");
    assert_int_equal(ls_json_find_path(json, "o.p.q")->valueint, 7);
    assert_null(ls_json_find_path(json, "o.q.p"));
    assert_null(ls_json_find_path(json, "t.x"));
    cJSON_Delete(json);
}

/* In a container every process may have the id of the one before it. */
static void leftovers_of_the_same_process_id_do_not_block(void **state)
{
    char folder[] = LS_BINARY_DIR "/json-XXXXXX", path[sizeof folder + 32], left[sizeof path + 48];
    cJSON *json = parse("{\"x\": 1}"), *again = NULL;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/f.json", folder);
    for (int counter = 0; counter < 64; counter++) {
        snprintf(left, sizeof left, "%s.tmp-%ld-%d", path, (long)getpid(), counter);
        FILE *file = fopen(left, "w");
        assert_non_null(file);
        fputs("{\"x\": 22222222222222222222", file);
        fclose(file);
    }
    assert_int_equal(ls_json_write(path, json), LS_OK);
    assert_int_equal(ls_json_read(path, &again), LS_OK);
    assert_true(cJSON_Compare(json, again, 1));
    cJSON_Delete(again);
    cJSON_Delete(json);
    for (int counter = 0; counter < 64; counter++) {
        snprintf(left, sizeof left, "%s.tmp-%ld-%d", path, (long)getpid(), counter);
        unlink(left);
    }
    unlink(path);
    assert_int_equal(rmdir(folder), 0);
}

static void writing_replaces_the_file_and_leaves_nothing_else(void **state)
{
    char folder[] = LS_BINARY_DIR "/json-XXXXXX", path[sizeof folder + 32], blocked[sizeof path];
    cJSON *json = parse("{\"x\": 0.1, \"s\": \"a\\\"b\"}"), *again = NULL;
    int n_files = 0;
    DIR *dir;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/f.json", folder);
    snprintf(blocked, sizeof blocked, "%s/blocked", folder);
    assert_int_equal(ls_json_write(path, json), LS_OK);
    assert_int_equal(ls_json_write(path, json), LS_OK);
    assert_int_equal(ls_json_read(path, &again), LS_OK);
    assert_true(cJSON_Compare(json, again, 1));
    cJSON_Delete(again);

    assert_int_equal(mkdir(blocked, 0700), 0); /* a rename onto a folder fails at the last moment */
    assert_int_equal(ls_json_write(blocked, json), LS_ERR_IO);
    dir = opendir(folder);
    assert_non_null(dir);
    while (readdir(dir) != NULL) n_files++;
    closedir(dir);
    assert_int_equal(n_files, 4); /* . .. f.json blocked */

    again = NULL;
    assert_int_equal(ls_json_read(blocked, &again), LS_ERR_IO);
    assert_int_equal(ls_json_read("no such file.json", &again), LS_ERR_IO);
    assert_null(again);
    unlink(path);
    rmdir(blocked);
    assert_int_equal(rmdir(folder), 0);
    cJSON_Delete(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_parse_is_refused),
        cmocka_unit_test(what_cjson_refuses_is_not_valid),
        cmocka_unit_test(members_are_typed),
        cmocka_unit_test(leftovers_of_the_same_process_id_do_not_block),
        cmocka_unit_test(writing_replaces_the_file_and_leaves_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
