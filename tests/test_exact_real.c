/* test_exact_real.c - every double survives as text, and only the one spelling is read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exact_real.h"

static void check_round_trip(double value)
{
    char text[LS_EXACT_REAL_BYTES];
    double read = NAN;

    ls_exact_real_print(text, value);
    if (!ls_exact_real_parse(text, strlen(text), &read)) fail_msg("%s is refused", text);
    if (memcmp(&read, &value, sizeof read) != 0)
        fail_msg("%s reads as %a, not %a", text, read, value);
    /* The C library reads the same out of it. */
    const double strict = strtod(text, NULL);
    if (memcmp(&strict, &value, sizeof strict) != 0) fail_msg("%s is not %a", text, value);
}

static void values_read_back(void **state)
{
    static const double values[] = {0.0,           -0.0,
                                    1.0,           -1.0,
                                    0.1,           -1e-8,
                                    1.5,           0x1p52,
                                    0x1p53,        0x1p62,
                                    0x1p63,        -0x1p63,
                                    0x1p64,        DBL_MAX,
                                    DBL_MIN,       -DBL_MAX,
                                    1e22,          0.999,
                                    (double)0.95f, 0x1p-1074,
                                    0x1.8p-1073,   0x0.fffffffffffffp-1022};
    uint64_t bits = 1;

    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) check_round_trip(values[i]);
    for (int i = 0; i < 20000; i++) {
        double value;
        bits = bits * 6364136223846793005u + 1442695040888963407u;
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value)) check_round_trip(value);
    }
}

static void texts_are_as_documented(void **state)
{
    char text[LS_EXACT_REAL_BYTES];

    (void)state;
    assert_string_equal(ls_exact_real_print(text, 640.0), "640");
    assert_string_equal(ls_exact_real_print(text, 0.1), "0x1.999999999999ap-4");
    assert_string_equal(ls_exact_real_print(text, 0.5), "0x1p-1");
    assert_string_equal(ls_exact_real_print(text, -0.0), "-0x0p+0");
}

static void other_spellings_are_refused(void **state)
{
    static const char *const texts[] = {"",
                                        "-",
                                        "+1",
                                        "01",
                                        "1.0",
                                        "1e3",
                                        " 1",
                                        "1 ",
                                        "0x1",
                                        "0x1p-1x",
                                        "0x1.0p-1",
                                        "0x1P-1",
                                        "0x1.Ap-1",
                                        "0x2p-2",
                                        "0x1.p-1",
                                        "0x1p1",
                                        "0x1p+1",
                                        "0x0p+0",
                                        "inf",
                                        "nan",
                                        "-inf",
                                        "0x1p+1024",
                                        "0x1p-1075",
                                        "9007199254740993",
                                        "9223372036854775808",
                                        "0x1.00000000000001p-1",
                                        "0x1.fffffffffffff8p-1",
                                        "0x1p-01",
                                        "0x1p--1",
                                        "-0",
                                        "99999999999999999999999999999999",
                                        "0x1.ffffffffffffffffffffffp-4"};
    double value;

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (ls_exact_real_parse(texts[i], strlen(texts[i]), &value))
            fail_msg("'%s' is accepted", texts[i]);
    assert_false(ls_exact_real_parse("1\0", 2, &value));
    assert_true(ls_exact_real_parse("12", 1, &value)); /* as many bytes as said */
    assert_true(value == 1.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_read_back),
        cmocka_unit_test(texts_are_as_documented),
        cmocka_unit_test(other_spellings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
