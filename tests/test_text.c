/* test_text.c - numbers as people write them, in and out; the nearest word. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text.h"

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

static void whole_numbers_are_read_exactly(void **state)
{
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},
                {"-0", 0},
                {"300", 300},
                {"-1", -1},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775807", -INT64_MAX}};
    static const char *const bad[] = {"",
                                      "-",
                                      "+1",
                                      "01",
                                      "1.0",
                                      "1e3",
                                      "0x10",
                                      "12k",
                                      " 1",
                                      "1 ",
                                      "--1",
                                      "1_000",
                                      "nan",
                                      "9223372036854775808",
                                      "99999999999999999999"};

    (void)state;
    for (size_t i = 0; i < N_OF(good); i++) {
        int64_t value = 77;
        assert_int_equal(ls_text_parse_whole(good[i].text, &value), LS_OK);
        assert_int_equal(value, good[i].value);
    }
    for (size_t i = 0; i < N_OF(bad); i++) {
        int64_t value = 77;
        if (ls_text_parse_whole(bad[i], &value) != LS_ERR_INVALID) fail_msg("'%s'", bad[i]);
        assert_int_equal(value, 77);
    }
}

static void counts_take_powers_of_1024(void **state)
{
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},           {"4096", 4096},      {"512k", 524288},  {"512K", 524288},
                {"2k", 2048},       {"1M", 1048576},     {"1.5M", 1572864}, {"0.5k", 512},
                {"3G", 3221225472}, {"0.015625M", 16384}};
    static const char *const bad[] = {"",
                                      "k",
                                      "2kb",
                                      "2kB",
                                      "2KiB",
                                      "2 k",
                                      "-1",
                                      "1e3",
                                      "1.",
                                      ".5k",
                                      "1.5",
                                      "1m",
                                      "1T",
                                      "1kk",
                                      "0x1k",
                                      "01k",
                                      "inf",
                                      "1.3k",
                                      "9007199254740992G",
                                      "99999999999999999999"};

    (void)state;
    for (size_t i = 0; i < N_OF(good); i++) {
        int64_t value = 77;
        if (ls_text_parse_count(good[i].text, &value) != LS_OK) fail_msg("%s", ls_error());
        assert_int_equal(value, good[i].value);
    }
    for (size_t i = 0; i < N_OF(bad); i++) {
        int64_t value = 77;
        if (ls_text_parse_count(bad[i], &value) != LS_ERR_INVALID) fail_msg("'%s'", bad[i]);
        assert_int_equal(value, 77);
    }
}

static void bytes_take_both_kinds_of_units(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"4096", 4096},          {"1B", 1},
                {"96GiB", 103079215104}, {"96 GiB", 103079215104},
                {"480GB", 480000000000}, {"1.5KiB", 1536},
                {"2TiB", 2199023255552}, {"18446744073709551615", UINT64_MAX},
                {"3MB", 3000000},        {"3kB", 3000}};
    static const char *const bad[] = {
        "",      "GiB",  "12 GiBs", "12gib", "12G",  "12  GiB",     "1.5B",
        "12GB ", "-1GB", "4 ",      "1e9",   "12KB", "17000000TiB", "18446744073709551616"};

    (void)state;
    for (size_t i = 0; i < N_OF(good); i++) {
        uint64_t bytes = 77;
        if (ls_text_parse_bytes(good[i].text, &bytes) != LS_OK) fail_msg("%s", ls_error());
        assert_true(bytes == good[i].bytes);
    }
    for (size_t i = 0; i < N_OF(bad); i++) {
        uint64_t bytes = 77;
        if (ls_text_parse_bytes(bad[i], &bytes) != LS_ERR_INVALID) fail_msg("'%s'", bad[i]);
        assert_true(bytes == 77);
    }
}

/* Of counts, of another case: the answer is what to write. */
static void bytes_name_the_unit_that_is_meant(void **state)
{
    static const char *const answers[][2] = {
        {"256M", "'256M' has no unit of bytes: write 256MiB (1024^2 bytes each) or 256MB (1000^2)"},
        {"1.5 g", "'1.5 g' has no unit of bytes: write 1.5 GiB (1024^3 bytes each) or 1.5 GB"},
        {"64KB", "write 64KiB (1024^1 bytes each) or 64kB (1000^1)"},
        {"2tib", "write 2TiB (1024^4 bytes each) or 2TB (1000^4)"},
        {"3Mi", "write 3MiB"},
        {"3Mbit", "'3Mbit' is not a size in bytes; write digits and a unit: B, KiB, "},
        {"M", "'M' is not a size in bytes"},
        {"17000000TiB", "'17000000TiB' is not a size in bytes"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(answers); i++) {
        uint64_t bytes;
        assert_int_equal(ls_text_parse_bytes(answers[i][0], &bytes), LS_ERR_INVALID);
        if (strstr(ls_error(), answers[i][1]) == NULL)
            fail_msg("'%s' lacks '%s'", ls_error(), answers[i][1]);
    }
}

static void reals_are_finite_decimals(void **state)
{
    static const struct {
        const char *text;
        double value;
    } good[] = {{"3e-4", 3e-4}, {"0.1", 0.1}, {"1", 1},      {"-2.5E+3", -2500},
                {"+1.", 1},     {".5", 0.5},  {"1e-400", 0}, {"1e308", 1e308}};
    static const char *const bad[] = {"",      ".",   "e5",  "1e", "1e+", "nan",   "inf", ".inf",
                                      "-.nan", "0x1", "1,5", " 1", "1 ",  "1e400", "1f",  "1.2.3"};

    (void)state;
    for (size_t i = 0; i < N_OF(good); i++) {
        double value = 77;
        if (ls_text_parse_real(good[i].text, &value) != LS_OK) fail_msg("%s", ls_error());
        assert_true(fabs(value - good[i].value) <= 0);
    }
    for (size_t i = 0; i < N_OF(bad); i++) {
        double value = 77;
        if (ls_text_parse_real(bad[i], &value) != LS_ERR_INVALID) fail_msg("'%s'", bad[i]);
        assert_true(value > 76);
    }
}

/* Every byte may come out of a file: whatever it is, no reader goes astray or accepts it. */
static void single_bytes_are_refused_unless_digits(void **state)
{
    (void)state;
    for (int c = 1; c < 256; c++) {
        const char text[2] = {(char)c, '\0'};
        const int digit = c >= '0' && c <= '9';
        int64_t whole, count;
        uint64_t bytes;
        double real;
        assert_int_equal(ls_text_parse_whole(text, &whole) == LS_OK, digit);
        assert_int_equal(ls_text_parse_count(text, &count) == LS_OK, digit);
        assert_int_equal(ls_text_parse_bytes(text, &bytes) == LS_OK, digit);
        assert_int_equal(ls_text_parse_real(text, &real) == LS_OK, digit);
    }
}

static void printing_is_for_people(void **state)
{
    char b[LS_TEXT_BYTES];

    (void)state;
    assert_string_equal(ls_text_bytes(b, sizeof b, 0), "0 B");
    assert_string_equal(ls_text_bytes(b, sizeof b, 1023), "1023 B");
    assert_string_equal(ls_text_bytes(b, sizeof b, 1536), "1.5 KiB");
    assert_string_equal(ls_text_bytes(b, sizeof b, (1ull << 20) - 1), "1.0 MiB");
    assert_string_equal(ls_text_bytes(b, sizeof b, 96ull << 30), "96.0 GiB");
    assert_string_equal(ls_text_bytes(b, sizeof b, UINT64_MAX), "16.0 EiB");
    assert_string_equal(ls_text_seconds(b, sizeof b, 0), "0 us");
    assert_string_equal(ls_text_seconds(b, sizeof b, 0.0123), "12.3 ms");
    assert_string_equal(ls_text_seconds(b, sizeof b, 59.94), "59.9 s");
    assert_string_equal(ls_text_seconds(b, sizeof b, 59.96), "1 m 00 s");
    assert_string_equal(ls_text_seconds(b, sizeof b, 242), "4 m 02 s");
    assert_string_equal(ls_text_seconds(b, sizeof b, 3599.7), "1 h 00 m");
    assert_string_equal(ls_text_seconds(b, sizeof b, 90000), "1 d 01 h");
    assert_string_equal(ls_text_seconds(b, sizeof b, NAN), "nan s");
    assert_string_equal(ls_text_count(b, sizeof b, 524288), "524,288");
    assert_string_equal(ls_text_count(b, sizeof b, -1000), "-1,000");
    assert_string_equal(ls_text_count(b, sizeof b, 999), "999");
    assert_string_equal(ls_text_count(b, sizeof b, INT64_MIN), "-9,223,372,036,854,775,808");
    assert_string_equal(ls_text_short_count(b, sizeof b, 524288), "512k");
    assert_string_equal(ls_text_short_count(b, sizeof b, 1 << 20), "1M");
    assert_string_equal(ls_text_short_count(b, sizeof b, 1000), "1000");
    assert_string_equal(ls_text_short_count(b, sizeof b, 0), "0");
}

static void quoting_keeps_a_message_on_one_line(void **state)
{
    char b[16];

    (void)state;
    assert_string_equal(ls_text_quote(b, sizeof b, "plain"), "'plain'");
    assert_string_equal(ls_text_quote(b, sizeof b, "a\nb\033c\x7f"), "'a?b?c?'");
    assert_string_equal(ls_text_quote(b, sizeof b, "0123456789"), "'0123456789'");
    assert_string_equal(ls_text_quote(b, sizeof b, "0123456789a"), "'0123456789...'");
    /* cut before a character of two bytes, not inside it */
    assert_string_equal(ls_text_quote(b, sizeof b, "012345678\xc3\xa9xyz"), "'012345678...'");
    for (size_t size = 1; size < sizeof b; size++) {
        memset(b, 'x', sizeof b);
        ls_text_quote(b, size, "0123456789abcdefgh");
        assert_true(strlen(b) < size);
        assert_int_equal(b[size], 'x');
    }
}

static void joining_never_cuts_a_word(void **state)
{
    static const char *const words[] = {"one", "two", "three"};
    char b[32];

    (void)state;
    assert_string_equal(ls_text_join(b, sizeof b, words, 3), "one, two, three");
    assert_string_equal(ls_text_join(b, 17, words, 3), "one, two, ...");
    assert_string_equal(ls_text_join(b, sizeof b, words, 0), "");
}

static void nearest_word_is_what_was_meant(void **state)
{
    static const char *const words[] = {"lr",           "lr_min", "schedule",
                                        "warmup_steps", "beta1",  "beta2"};
    static const struct {
        const char *text, *nearest;
    } cases[] = {{"lr_mni", "lr_min"},
                 {"shedule", "schedule"},
                 {"warmup_step", "warmup_steps"},
                 {"warmup", "warmup_steps"},
                 {"beta", "beta1"},
                 {"momentum", NULL},
                 {"x", NULL},
                 {"", NULL},
                 {"scheduleschedule", NULL}};
    char longest[2000];

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        const char *nearest = ls_text_nearest(cases[i].text, words, N_OF(words));
        if (cases[i].nearest == NULL)
            assert_null(nearest);
        else if (nearest == NULL || strcmp(nearest, cases[i].nearest) != 0)
            fail_msg("'%s' gave '%s'", cases[i].text, nearest != NULL ? nearest : "nothing");
    }
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_null(ls_text_nearest(longest, words, N_OF(words)));
}

static void reading_ignores_the_locale(void **state)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"};
    double value = 0;

    (void)state;
    for (size_t i = 0; i < N_OF(names); i++)
        if (setlocale(LC_ALL, names[i]) != NULL) break;
    assert_int_equal(ls_text_parse_real("0.25", &value), LS_OK);
    setlocale(LC_ALL, "C");
    assert_true(fabs(value - 0.25) <= 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_numbers_are_read_exactly),
        cmocka_unit_test(counts_take_powers_of_1024),
        cmocka_unit_test(bytes_take_both_kinds_of_units),
        cmocka_unit_test(bytes_name_the_unit_that_is_meant),
        cmocka_unit_test(reals_are_finite_decimals),
        cmocka_unit_test(single_bytes_are_refused_unless_digits),
        cmocka_unit_test(printing_is_for_people),
        cmocka_unit_test(quoting_keeps_a_message_on_one_line),
        cmocka_unit_test(joining_never_cuts_a_word),
        cmocka_unit_test(nearest_word_is_what_was_meant),
        cmocka_unit_test(reading_ignores_the_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
