/* test_yaml.c - the tree and its places; what is refused, where, and in which words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "yaml_tree.h"

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

static ls_yaml *parse(const char *text)
{
    ls_yaml *document = NULL;
    if (ls_yaml_parse("f.yaml", text, strlen(text), &document) != LS_OK) fail_msg("%s", ls_error());
    return document;
}

static void refuse(const char *text, size_t bytes, const char *message)
{
    ls_yaml *document = NULL;
    assert_int_equal(ls_yaml_parse("f.yaml", text, bytes, &document), LS_ERR_INVALID);
    assert_null(document);
    if (strstr(ls_error(), message) == NULL) fail_msg("'%s' lacks '%s'", ls_error(), message);
}

static const char *path_of(const ls_yaml_node *node)
{
    static char path[LS_YAML_PATH_BYTES];
    assert_non_null(node);
    return ls_yaml_path(node, path, sizeof path);
}

static void nodes_know_their_line_and_path(void **state)
{
    ls_yaml *document = parse("# comment\n"
                              "a: 1\n"
                              "b:\n"
                              "  c: two words\n"
                              "  list:\n"
                              "    - x\n"
                              "    - {k: 'v'}\n"
                              "\n"
                              "d:\n"
                              "e: |\n"
                              "  text\n");
    const ls_yaml_node *root = ls_yaml_root(document), *node;

    (void)state;
    assert_int_equal(root->kind, LS_YAML_MAP);
    assert_int_equal(root->n_children, 4);
    assert_int_equal(ls_yaml_find(root, "a")->line, 2);
    node = ls_yaml_find_path(root, "b.c");
    assert_string_equal(node->text, "two words");
    assert_int_equal(node->line, 4);
    assert_string_equal(path_of(node), "b.c");
    node = ls_yaml_find_path(root, "b.list");
    assert_int_equal(node->line, 5);
    assert_int_equal(node->n_children, 2);
    assert_int_equal(node->last->line, 7);
    node = ls_yaml_find(node->last, "k");
    assert_true(node->quoted);
    assert_string_equal(path_of(node), "b.list[1].k");
    assert_true(ls_yaml_is_null(ls_yaml_find(root, "d")));
    assert_string_equal(ls_yaml_find(root, "e")->text, "text\n");
    assert_null(ls_yaml_find(root, "nothing"));
    assert_null(ls_yaml_find_path(root, "a.b.c"));
    assert_null(ls_yaml_find_path(root, "nothing.at.all"));
    ls_yaml_free(document);
}

static void json_is_read_as_it_is(void **state)
{
    ls_yaml *document = parse("{\n\t\"a\":1,\"b\": {\"c\":[1,2.5,\"x\\u00e9\\n\"]},\n\t\"n\": null,"
                              " \"t\":true\n}\n");
    const ls_yaml_node *root = ls_yaml_root(document);

    (void)state;
    assert_string_equal(ls_yaml_find(root, "a")->text, "1");
    assert_int_equal(ls_yaml_find(root, "n")->line, 3);
    assert_string_equal(ls_yaml_find_path(root, "b.c")->last->text, "x\xc3\xa9\n");
    assert_true(ls_yaml_is_null(ls_yaml_find(root, "n")));
    ls_yaml_free(document);
}

static void bom_and_crlf_are_accepted(void **state)
{
    ls_yaml *document = parse("\xef\xbb\xbf"
                              "a: 1\r\nb: two\r\n");
    (void)state;
    assert_string_equal(ls_yaml_find(ls_yaml_root(document), "a")->text, "1");
    assert_string_equal(ls_yaml_find(ls_yaml_root(document), "b")->text, "two");
    assert_int_equal(ls_yaml_find(ls_yaml_root(document), "b")->line, 2);
    ls_yaml_free(document);
}

static void what_is_not_allowed_is_refused_at_its_line(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"a: 1\nb: 2\na: 3\n", "f.yaml:3: a: given twice, first on line 1"},
        {"m:\n  x: 1\n  y: 2\n  x: 3\n", "f.yaml:4: m.x: given twice, first on line 2"},
        {"{\"a\": 1,\n \"a\": 2}", "f.yaml:2: a: given twice, first on line 1"},
        {"a: 1\nb: &x 2\n", "f.yaml:2: anchors"},
        {"a: &x [1]\n", "f.yaml:1: anchors"},
        {"a: &x {}\n", "f.yaml:1: anchors"},
        {"a: *x\n", "f.yaml:1: aliases"},
        {"a: 1\nb: !!int 2\n", "f.yaml:2: tags"},
        {"a: !x [1]\n", "f.yaml:1: tags"},
        {"a: 1\n---\nb: 2\n", "f.yaml:2: a second document"},
        {"? [a]\n: 1\n", "f.yaml:1: a key must be one word"},
        {"? {a: b}\n: 1\n", "f.yaml:1: a key must be one word"},
        {"'': 1\n", "f.yaml:1: a key is empty"},
        {"a: 1\n\tb: 2\n", "f.yaml:2: does not parse"},
        {"a: [1, 2\n", "does not parse"},
        {"a: b: c\n", "f.yaml:1: does not parse"},
        {"a: \"x\\0y\"\n", "f.yaml:1: a zero byte"},
        {"", "f.yaml: is empty"},
        {"# only a comment\n\n", "f.yaml: is empty"},
        {"a: 1\nb: 2 \x01\n", "f.yaml:2: does not parse"},
        {"a: \xff\xfe\n", "f.yaml:1: does not parse"},
        {"a: \xc0\x80\n", "f.yaml:1: does not parse"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++)
        refuse(cases[i].text, strlen(cases[i].text), cases[i].message);
    refuse("a\0b: 1\n", 7, "does not parse");
}

/* text: n times `what` after `before`. */
static char *repeat(const char *before, const char *what, size_t n)
{
    const size_t n_before = strlen(before), n_what = strlen(what);
    char *text = malloc(n_before + n * n_what + 1);

    assert_non_null(text);
    memcpy(text, before, n_before + 1);
    for (size_t i = 0; i < n; i++) memcpy(text + n_before + i * n_what, what, n_what + 1);
    return text;
}

static void limits_hold(void **state)
{
    static const struct {
        const char *before, *what;
        size_t n;
        const char *message;
    } cases[] = {
        {"a: ", "[", 100000, "nested too deep"},
        {"", "{a: ", 50000, "nested too deep"},
        {"", "- ", 100000, "nested too deep"},
        {"", "- x\n", LS_YAML_ITEMS_MAX + 1, "too many values in one list"},
        {"", "- [a, b, c, d, e, f, g]\n", LS_YAML_NODES_MAX / 8 + 1, "too many values in one file"},
        {"", "k", LS_YAML_KEY_BYTES_MAX + 1, NULL},
        {"", "# 34567\n", LS_YAML_FILE_BYTES_MAX / 8 + 1, "larger than"},
    };
    char *text;
    ls_yaml *document;

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        if (cases[i].message == NULL) continue;
        text = repeat(cases[i].before, cases[i].what, cases[i].n);
        refuse(text, strlen(text), cases[i].message);
        free(text);
    }
    text = repeat("", "k", LS_YAML_KEY_BYTES_MAX + 3);
    memcpy(text + LS_YAML_KEY_BYTES_MAX, ": 1", 3);
    document = parse(text); /* exactly at the limit */
    ls_yaml_free(document);
    free(text);
    text = repeat("", "k", LS_YAML_KEY_BYTES_MAX + 4);
    memcpy(text + LS_YAML_KEY_BYTES_MAX + 1, ": 1", 3);
    refuse(text, strlen(text), "is longer than");
    free(text);
}

static void a_file_that_cannot_be_read_is_named(void **state)
{
    ls_yaml *document = NULL;

    (void)state;
    assert_int_equal(ls_yaml_read(LS_BINARY_DIR "/no such.yaml", &document), LS_ERR_INVALID);
    assert_non_null(strstr(ls_error(), "/no such.yaml: No such file"));
    assert_int_equal(ls_yaml_read(LS_BINARY_DIR, &document), LS_ERR_INVALID);
    assert_non_null(strstr(ls_error(), "is a folder"));
    assert_int_equal(ls_yaml_read("/dev/null", &document), LS_ERR_INVALID);
    assert_non_null(strstr(ls_error(), "is empty"));
    assert_int_equal(ls_yaml_read("/dev/zero", &document), LS_ERR_INVALID);
    assert_non_null(strstr(ls_error(), "too large"));
    assert_null(document);
}

static void set_replaces_and_adds(void **state)
{
    ls_yaml *document = parse("a: 1\nb: {c: 2, d: 3}\ne: [1]\n");
    const ls_yaml_node *root = ls_yaml_root(document), *node;

    (void)state;
    assert_int_equal(ls_yaml_set(document, "b.c=4"), LS_OK);
    assert_int_equal(ls_yaml_set(document, "b.c=5"), LS_OK);
    assert_int_equal(ls_yaml_set(document, "b.d={x: y=z}"), LS_OK);
    assert_int_equal(ls_yaml_set(document, "n.o.p=[1, 2]"), LS_OK);
    assert_int_equal(ls_yaml_set(document, "a.q=6"), LS_OK); /* a becomes a map */
    assert_int_equal(ls_yaml_set(document, "z=\"\""), LS_OK);
    node = ls_yaml_find_path(root, "b.c");
    assert_string_equal(node->text, "5");
    assert_true(ls_yaml_is_set(node));
    assert_false(ls_yaml_is_set(ls_yaml_find(root, "e")));
    assert_string_equal(ls_yaml_find_path(root, "b.d.x")->text, "y=z");
    assert_string_equal(path_of(ls_yaml_find_path(root, "n.o.p")->last), "n.o.p[1]");
    assert_string_equal(ls_yaml_find_path(root, "a.q")->text, "6");
    assert_string_equal(ls_yaml_find(root, "z")->text, "");
    assert_int_equal(root->n_children, 5);

    LS_YAML_FAIL(node, LS_ERR_INVALID, "wrong");
    assert_string_equal(ls_error(), "--set b.c: wrong");
    LS_YAML_FAIL(ls_yaml_find_path(root, "b.d.x"), LS_ERR_INVALID, "wrong");
    assert_string_equal(ls_error(), "--set b.d: b.d.x: wrong");
    LS_YAML_FAIL(ls_yaml_find(root, "e")->first, LS_ERR_INVALID, "wrong");
    assert_string_equal(ls_error(), "f.yaml:3: e[0]: wrong");
    ls_yaml_free(document);
}

static void set_refuses_what_is_no_assignment(void **state)
{
    static const char *const bad[] = {
        "",     "a",    "=1",     "a.=1",   ".a=1",           "a..b=1",
        "a.b=", "a=[1", "a=&x 1", "a=!t 1", "a={b: 1, b: 2}", "a.b.c.d.e.f.g.h.i=1"};
    ls_yaml *document = parse("a: 1\n");
    ls_yaml *list = parse("- 1\n");

    (void)state;
    for (size_t i = 0; i < N_OF(bad); i++) {
        if (ls_yaml_set(document, bad[i]) != LS_ERR_INVALID) fail_msg("'%s'", bad[i]);
        if (strncmp(ls_error(), "--set", 5) != 0) fail_msg("'%s'", ls_error());
    }
    assert_string_equal(ls_yaml_find(ls_yaml_root(document), "a")->text, "1");
    assert_int_equal(ls_yaml_set(list, "a=1"), LS_ERR_INVALID);
    ls_yaml_free(document);
    ls_yaml_free(list);
}

#define GET(text_, call_, message_)                                                                \
    do {                                                                                           \
        ls_yaml *document_ = parse(text_);                                                         \
        const ls_yaml_node *node = ls_yaml_find(ls_yaml_root(document_), "k");                     \
        assert_int_equal((call_), (message_) == NULL ? LS_OK : LS_ERR_INVALID);                    \
        if ((message_) != NULL) assert_string_equal(ls_error(), (message_));                       \
        ls_yaml_free(document_);                                                                   \
    } while (0)

static void typed_values_say_what_is_allowed(void **state)
{
    static const char *const words[] = {"cosine", "linear"};
    const ls_yaml_range open = {.above = true, .most = 1, .below = true};
    const char *none = NULL;
    const char *text;
    int64_t n = 0;
    double x = 0;
    bool b = false;
    size_t index = 9;

    (void)state;
    GET("k: 5", ls_yaml_get_whole(node, 1, 5, &n), none);
    assert_int_equal(n, 5);
    GET("k: 6", ls_yaml_get_whole(node, 1, 5, &n),
        "f.yaml:1: k: 6 is out of range; allowed: 1 to 5");
    GET("k: -3", ls_yaml_get_whole(node, 0, 5000, &n),
        "f.yaml:1: k: -3 is out of range; allowed: 0 to 5,000");
    GET("k: '5'", ls_yaml_get_whole(node, 1, 5, &n),
        "f.yaml:1: k: '5' is a text in quotes, not a number; allowed: 1 to 5");
    GET("k: many", ls_yaml_get_whole(node, 1, 5, &n),
        "f.yaml:1: k: 'many' is not a whole number; allowed: 1 to 5");
    GET("k: [1]", ls_yaml_get_whole(node, 1, 5, &n),
        "f.yaml:1: k: is a list, not one value; allowed: 1 to 5");
    GET("k:", ls_yaml_get_whole(node, 1, 5, &n), "f.yaml:1: k: has no value; allowed: 1 to 5");
    assert_int_equal(n, 5);
    GET("k: 2k", ls_yaml_get_count(node, 2, 1 << 20, &n), none);
    assert_int_equal(n, 2048);
    GET("k: 2M", ls_yaml_get_count(node, 2, 1 << 20, &n),
        "f.yaml:1: k: '2M' is out of range; allowed: 2 to 1M");
    GET("k: 2kb", ls_yaml_get_count(node, 2, 1 << 20, &n),
        "f.yaml:1: k: '2kb' is not a count; write digits, or digits and k, M or G (512k = "
        "524,288); allowed: 2 to 1M");
    GET("k: 0.5", ls_yaml_get_real(node, open, &x), none);
    assert_true(x > 0.49 && x < 0.51);
    GET("k: 0", ls_yaml_get_real(node, open, &x),
        "f.yaml:1: k: '0' is out of range; allowed: more than 0 to less than 1");
    GET("k: 1", ls_yaml_get_real(node, open, &x),
        "f.yaml:1: k: '1' is out of range; allowed: more than 0 to less than 1");
    GET("k: .nan", ls_yaml_get_real(node, open, &x),
        "f.yaml:1: k: '.nan' is not a number; allowed: more than 0 to less than 1");
    GET("k: true", ls_yaml_get_bool(node, &b), none);
    assert_true(b);
    GET("k: yes", ls_yaml_get_bool(node, &b),
        "f.yaml:1: k: 'yes' is not a truth value; allowed: true, false");
    GET("k: linear", ls_yaml_get_word(node, words, 2, &index), none);
    assert_int_equal(index, 1);
    GET("k: cosin", ls_yaml_get_word(node, words, 2, &index),
        "f.yaml:1: k: 'cosin' is not known, did you mean 'cosine'? allowed: cosine, linear");
    GET("k: step", ls_yaml_get_word(node, words, 2, &index),
        "f.yaml:1: k: 'step' is not known; allowed: cosine, linear");
    GET("k: {}", ls_yaml_get_word(node, words, 2, &index),
        "f.yaml:1: k: is a map, not one value; allowed: cosine, linear");
    GET("k: x y", ls_yaml_get_text(node, &text), none);
    GET("k: ''", ls_yaml_get_text(node, &text), "f.yaml:1: k: is an empty text; allowed: a text");
    GET("k: {linaer: 1}", ls_yaml_check_keys(node, words, 2),
        "f.yaml:1: k.linaer: unknown key, did you mean 'linear'? allowed: cosine, linear");
    GET("k: {linear: 1}", ls_yaml_check_keys(node, words, 2), none);
    GET("k: 1", ls_yaml_get_map(node), "f.yaml:1: k: '1' is one value; allowed: keys and values");
    GET("k: [1]", ls_yaml_get_map(node), "f.yaml:1: k: is a list; allowed: keys and values");
    GET("k: {}", ls_yaml_get_list(node), "f.yaml:1: k: is a map; allowed: a list");
}

static void a_long_file_name_keeps_its_line(void **state)
{
    char *name = repeat("", "folder/", 100);
    ls_yaml *document = NULL;

    (void)state;
    assert_int_equal(ls_yaml_parse(name, "a: 1\na: 2", 9, &document), LS_ERR_INVALID);
    assert_non_null(strstr(ls_error(), "folder/:2: a: given twice"));
    free(name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_know_their_line_and_path),
        cmocka_unit_test(json_is_read_as_it_is),
        cmocka_unit_test(bom_and_crlf_are_accepted),
        cmocka_unit_test(what_is_not_allowed_is_refused_at_its_line),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(a_file_that_cannot_be_read_is_named),
        cmocka_unit_test(set_replaces_and_adds),
        cmocka_unit_test(set_refuses_what_is_no_assignment),
        cmocka_unit_test(typed_values_say_what_is_allowed),
        cmocka_unit_test(a_long_file_name_keeps_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
