/*
 * exact_real.c - the bits of a double, printed and read by hand.
 *
 * Reading is lenient about spelling, then prints what it read: only the same text is accepted.
 */
#include "exact_real.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { MANTISSA_BITS = 53, FRACTION_DIGITS = 13, EXPONENT_MAX = 9999 };

const char *ls_exact_real_print(char buffer[LS_EXACT_REAL_BYTES], double value)
{
    char digits[FRACTION_DIGITS + 1];
    int exponent, n = FRACTION_DIGITS;

    assert(isfinite(value));
    if (fabs(value) < 0x1p63 && trunc(value) == value && !(value == 0.0 && signbit(value))) {
        snprintf(buffer, LS_EXACT_REAL_BYTES, "%lld", (long long)value);
        return buffer;
    }
    const char *sign = signbit(value) ? "-" : "";
    if (value == 0.0) {
        snprintf(buffer, LS_EXACT_REAL_BYTES, "%s0x0p+0", sign);
        return buffer;
    }
    const uint64_t mantissa = (uint64_t)ldexp(frexp(fabs(value), &exponent), MANTISSA_BITS);
    const uint64_t fraction = mantissa & ((UINT64_C(1) << (MANTISSA_BITS - 1)) - 1);
    snprintf(digits, sizeof digits, "%013llx", (unsigned long long)fraction);
    while (n > 0 && digits[n - 1] == '0') n--;
    digits[n] = '\0';
    snprintf(buffer, LS_EXACT_REAL_BYTES, "%s0x1%s%sp%+d", sign, n > 0 ? "." : "", digits,
             exponent - 1);
    return buffer;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Digits of base 10 or 16 up to the limit of what they may add up to; moves *text behind them. */
static uint64_t read_digits(const char **text, unsigned base, uint64_t limit)
{
    uint64_t sum = 0;
    for (; hex_digit(**text) >= 0 && hex_digit(**text) < (int)base; (*text)++) {
        if (sum > limit / base) break; /* too many: the text is then not the one printed */
        sum = sum * base + (uint64_t)hex_digit(**text);
    }
    return sum;
}

/* 0x1.fffp-3 after its sign. */
static double read_hexadecimal(const char *text)
{
    uint64_t mantissa = read_digits(&text, 16, 1);
    long places = 0;

    if (*text == '.') {
        const char *first = ++text;
        const uint64_t fraction = read_digits(&text, 16, UINT64_C(1) << (MANTISSA_BITS - 1));
        places = 4 * (long)(text - first);
        mantissa = places < MANTISSA_BITS ? mantissa << places | fraction : 0;
    }
    if (*text != 'p') return 0.0;
    const bool negative = text[1] == '-';
    text += text[1] == '-' || text[1] == '+' ? 2 : 1;
    const int exponent = (int)read_digits(&text, 10, EXPONENT_MAX);
    return ldexp((double)mantissa, (negative ? -exponent : exponent) - (int)places);
}

bool ls_exact_real_parse(const char *text, size_t n, double *value)
{
    char copy[LS_EXACT_REAL_BYTES], again[LS_EXACT_REAL_BYTES];
    const char *at = copy;

    if (n == 0 || n >= sizeof copy || memchr(text, '\0', n) != NULL) return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    const bool negative = *at == '-';
    at += negative ? 1 : 0;
    const bool hexadecimal = at[0] == '0' && at[1] == 'x';
    if (hexadecimal) at += 2;
    const double magnitude =
        hexadecimal ? read_hexadecimal(at) : (double)read_digits(&at, 10, INT64_MAX);
    const double read = negative ? -magnitude : magnitude;
    if (!isfinite(read) || strcmp(ls_exact_real_print(again, read), copy) != 0) return false;
    *value = read;
    return true;
}
