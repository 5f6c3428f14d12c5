/*
 * text.c - strict readers and short printers.
 *
 * Counts and bytes allow a decimal fraction before the unit ("1.5M") as long as the result is a
 * whole number; they are computed in integers, so 2^53 is no limit.  Reals are checked against the
 * grammar first and converted by strtod in the C locale.
 */
#include "text.h"

#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define N_OF(array) (sizeof(array) / sizeof(array)[0])

#define WORD_BYTES_MAX 64 /* longer texts are nobody's misspelling */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The decimal digits at *text, advancing it; false if they pass limit. */
static bool read_digits(const char **text, uint64_t limit, uint64_t *value)
{
    uint64_t sum = 0;
    for (; is_digit(**text); (*text)++) {
        const uint64_t digit = (uint64_t)(**text - '0');
        if (sum > (limit - digit) / 10) return false;
        sum = sum * 10 + digit;
    }
    *value = sum;
    return true;
}

/* digits [. digits]: whole and fraction * 10^-places; end is what follows. */
static bool read_decimal(const char *text, uint64_t *whole, uint64_t *fraction, uint64_t *scale,
                         const char **end)
{
    *fraction = 0;
    *scale = 1;
    if (!is_digit(*text)) return false;
    if (text[0] == '0' && is_digit(text[1])) return false;
    if (!read_digits(&text, UINT64_MAX, whole)) return false;
    if (*text == '.') {
        const char *first = ++text;
        if (!is_digit(*text) || !read_digits(&text, 999999999, fraction)) return false;
        if (text - first > 9) return false;
        for (; first < text; first++) *scale *= 10;
    }
    *end = text;
    return true;
}

/* (whole + fraction / scale) * unit, if it is a whole number no larger than limit. */
static bool scale_exactly(uint64_t whole, uint64_t fraction, uint64_t scale, uint64_t unit,
                          uint64_t limit, uint64_t *value)
{
    /* fraction < 10^9 and unit <= 2^40: the product may pass 2^64 only just, so it is checked */
    uint64_t part;
    if (__builtin_mul_overflow(fraction, unit, &part) || part % scale != 0) return false;
    part /= scale;
    if (whole > limit / unit || whole * unit > limit - part) return false;
    *value = whole * unit + part;
    return true;
}

ls_status ls_text_parse_whole(const char *text, int64_t *value)
{
    char quoted[LS_TEXT_BYTES];
    const bool negative = text[0] == '-';
    const char *digits = text + (negative ? 1 : 0);
    const bool padded = digits[0] == '0' && digits[1] != '\0';
    uint64_t magnitude;

    if (!is_digit(*digits) || padded || strspn(digits, "0123456789") != strlen(digits))
        return LS_FAIL(LS_ERR_INVALID, "%s is not a whole number",
                       ls_text_quote(quoted, sizeof quoted, text));
    if (!read_digits(&digits, INT64_MAX, &magnitude))
        return LS_FAIL(LS_ERR_INVALID, "%s is too large a number",
                       ls_text_quote(quoted, sizeof quoted, text));
    *value = negative ? -(int64_t)magnitude : (int64_t)magnitude;
    return LS_OK;
}

ls_status ls_text_parse_count(const char *text, int64_t *count)
{
    static const char suffixes[] = "kMG";
    char quoted[LS_TEXT_BYTES];
    uint64_t whole, fraction, scale, value, unit = 1;
    const char *end;

    if (!read_decimal(text, &whole, &fraction, &scale, &end)) goto refused;
    if (*end != '\0') {
        const char suffix = (char)(*end == 'K' ? 'k' : *end);
        const char *at = strchr(suffixes, suffix);
        if (at == NULL || end[1] != '\0') goto refused;
        unit = (uint64_t)1 << (10 * (at - suffixes + 1));
    }
    if (!scale_exactly(whole, fraction, scale, unit, INT64_MAX, &value)) goto refused;
    *count = (int64_t)value;
    return LS_OK;
refused:
    return LS_FAIL(LS_ERR_INVALID,
                   "%s is not a count; write digits, or digits and k, M or G "
                   "(512k = 524,288)",
                   ls_text_quote(quoted, sizeof quoted, text));
}

/* Refuse what is no size.  unit: what follows its number; a unit that is misspelt, such as the M of
 * counts, is answered with the two that may be meant. */
static ls_status refuse_bytes(const char *text, const char *unit)
{
    static const char *const endings[] = {"", "b", "ib", "i"};
    static const char letters[] = "KMGT";
    char quoted[LS_TEXT_BYTES];
    const char *letter = *unit != '\0' ? strchr(letters, toupper((unsigned char)*unit)) : NULL;
    const int n = (int)(unit - text);

    ls_text_quote(quoted, sizeof quoted, text);
    for (size_t i = 0; letter != NULL && n < WORD_BYTES_MAX && i < N_OF(endings); i++)
        if (strcasecmp(unit + 1, endings[i]) == 0)
            return LS_FAIL(LS_ERR_INVALID,
                           "%s has no unit of bytes: write %.*s%ciB (1024^%d bytes each) or "
                           "%.*s%cB (1000^%d)",
                           quoted, n, text, *letter, (int)(letter - letters) + 1, n, text,
                           *letter == 'K' ? 'k' : *letter, (int)(letter - letters) + 1);
    return LS_FAIL(LS_ERR_INVALID,
                   "%s is not a size in bytes; write digits and a unit: B, KiB, "
                   "MiB, GiB, TiB, or kB, MB, GB, TB",
                   quoted);
}

ls_status ls_text_parse_bytes(const char *text, uint64_t *bytes)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"KiB", 1ull << 10},
        {"MiB", 1ull << 20},
        {"GiB", 1ull << 30},
        {"TiB", 1ull << 40},
        {"kB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", 1000000000000},
    };
    uint64_t whole, fraction, scale;
    const char *end;

    if (!read_decimal(text, &whole, &fraction, &scale, &end)) return refuse_bytes(text, "");
    if (*end == ' ' && end[1] != '\0') end++;
    for (size_t i = 0; i < N_OF(units); i++) {
        if (strcmp(end, units[i].name) != 0) continue;
        if (scale_exactly(whole, fraction, scale, units[i].bytes, UINT64_MAX, bytes)) return LS_OK;
        return refuse_bytes(text, "");
    }
    return refuse_bytes(text, end);
}

/* [-+] (digits [. digits] | . digits) [e [-+] digits], to the end. */
static bool is_real(const char *text)
{
    size_t n_whole, n_fraction = 0;

    if (*text == '-' || *text == '+') text++;
    n_whole = strspn(text, "0123456789");
    text += n_whole;
    if (*text == '.') {
        n_fraction = strspn(++text, "0123456789");
        text += n_fraction;
    }
    if (n_whole + n_fraction == 0) return false;
    if (*text == 'e' || *text == 'E') {
        text++;
        if (*text == '-' || *text == '+') text++;
        if (!is_digit(*text)) return false;
        text += strspn(text, "0123456789");
    }
    return *text == '\0';
}

ls_status ls_text_parse_real(const char *text, double *value)
{
    char quoted[LS_TEXT_BYTES];
    locale_t plain, before;
    double real;

    if (!is_real(text))
        return LS_FAIL(LS_ERR_INVALID, "%s is not a number",
                       ls_text_quote(quoted, sizeof quoted, text));
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0) return LS_FAIL(LS_ERR_NO_MEMORY, "out of memory for a locale");
    before = uselocale(plain);
    real = strtod(text, NULL);
    uselocale(before);
    freelocale(plain);
    if (!isfinite(real))
        return LS_FAIL(LS_ERR_INVALID, "%s is too large a number",
                       ls_text_quote(quoted, sizeof quoted, text));
    *value = real;
    return LS_OK;
}

const char *ls_text_bytes(char *buffer, size_t size, uint64_t bytes)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;

    for (; value >= 1024 && unit < 6; unit++) value /= 1024;
    if (unit > 0 && unit < 6 && value >= 1023.95) { /* would print as "1024.0" */
        value /= 1024;
        unit++;
    }
    snprintf(buffer, size, unit == 0 ? "%.0f %s" : "%.1f %s", value, names[unit]);
    return buffer;
}

const char *ls_text_seconds(char *buffer, size_t size, double seconds)
{
    if (!(seconds >= 0) || seconds > 1e15) {
        snprintf(buffer, size, "%g s", seconds);
    } else if (seconds < 0.9995e-3) {
        snprintf(buffer, size, "%.3g us", seconds * 1e6);
    } else if (seconds < 0.9995) {
        snprintf(buffer, size, "%.3g ms", seconds * 1e3);
    } else if (seconds < 59.95) {
        snprintf(buffer, size, "%.1f s", seconds);
    } else {
        const int64_t all = (int64_t)llround(seconds);
        const long long s = all % 60, m = all / 60 % 60, h = all / 3600 % 24, d = all / 86400;
        if (d > 0)
            snprintf(buffer, size, "%lld d %02lld h", d, h);
        else if (h > 0)
            snprintf(buffer, size, "%lld h %02lld m", h, m);
        else
            snprintf(buffer, size, "%lld m %02lld s", m, s);
    }
    return buffer;
}

const char *ls_text_count(char *buffer, size_t size, int64_t count)
{
    char digits[24], grouped[32];
    const uint64_t magnitude = count < 0 ? 0 - (uint64_t)count : (uint64_t)count;
    const int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)magnitude);
    size_t at = 0;

    if (count < 0) grouped[at++] = '-';
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) grouped[at++] = ',';
        grouped[at++] = digits[i];
    }
    grouped[at] = '\0';
    snprintf(buffer, size, "%s", grouped);
    return buffer;
}

const char *ls_text_short_count(char *buffer, size_t size, int64_t count)
{
    static const char suffixes[] = {'G', 'M', 'k'};
    for (int i = 0; i < 3 && count > 0; i++) {
        const int64_t unit = (int64_t)1 << (30 - 10 * i);
        if (count % unit != 0) continue;
        snprintf(buffer, size, "%lld%c", (long long)(count / unit), suffixes[i]);
        return buffer;
    }
    snprintf(buffer, size, "%lld", (long long)count);
    return buffer;
}

const char *ls_text_quote(char *buffer, size_t size, const char *text)
{
    const size_t room = size > 6 ? size - 6 : 0; /* quotes, "..." and the terminating zero */
    size_t n = strlen(text), at = 0;
    const bool cut = n > room;

    if (size == 0) return "";
    if (cut) n = room;
    while (cut && n > 0 && ((unsigned char)text[n] & 0xc0u) == 0x80u) n--;
    if (at + 1 < size) buffer[at++] = '\'';
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        buffer[at++] = (char)(c < 0x20 || c == 0x7f ? '?' : text[i]);
    }
    snprintf(buffer + at, size - at, "%s'", cut ? "..." : "");
    return buffer;
}

static bool begins_letter(char c)
{
    return ((unsigned char)c & 0xc0u) != 0x80u;
}

size_t ls_text_cut(const char *text, size_t letters)
{
    size_t at = 0;

    for (; text[at] != '\0'; at++)
        if (begins_letter(text[at]) && letters-- == 0) break;
    return at;
}

size_t ls_text_letters(const char *text, size_t bytes)
{
    size_t n = 0;

    for (size_t i = 0; i < bytes; i++) n += begins_letter(text[i]);
    return n;
}

const char *ls_text_join(char *buffer, size_t size, const char *const *words, size_t n_words)
{
    size_t at = 0;

    if (size == 0) return "";
    buffer[0] = '\0';
    for (size_t i = 0; i < n_words; i++) {
        const size_t n = strlen(words[i]) + (i > 0 ? 2 : 0);
        const size_t left = size - at;
        if (n + 6 > left) { /* ", ..." and the terminating zero must still fit */
            snprintf(buffer + at, left, "%s...", i > 0 ? ", " : "");
            break;
        }
        snprintf(buffer + at, left, "%s%s", i > 0 ? ", " : "", words[i]);
        at += n;
    }
    return buffer;
}

/* Optimal string alignment distance; b is at most WORD_BYTES_MAX long. */
static size_t measure_distance(const char *a, const char *b)
{
    size_t rows[3][WORD_BYTES_MAX + 1];
    const size_t n_a = strlen(a), n_b = strlen(b);

    for (size_t j = 0; j <= n_b; j++) rows[0][j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t *now = rows[i % 3];
        const size_t *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
    }
    return rows[n_a % 3][n_b];
}

const char *ls_text_nearest(const char *text, const char *const *words, size_t n_words)
{
    const size_t n = strlen(text);
    const char *nearest = NULL;
    size_t least = n < 6 ? 1 : n / 3; /* more slips than that would fit anything */

    if (n < 2 || n > WORD_BYTES_MAX) return NULL;
    for (size_t i = 0; i < n_words; i++) {
        const size_t n_word = strlen(words[i]);
        size_t distance;
        if (n_word < 2 || n_word > WORD_BYTES_MAX) continue;
        distance = measure_distance(text, words[i]);
        if (distance > least || (nearest != NULL && distance == least)) continue;
        nearest = words[i];
        least = distance;
    }
    for (size_t i = 0; nearest == NULL && n >= 3 && i < n_words; i++)
        if (strncmp(text, words[i], n) == 0) nearest = words[i];
    return nearest;
}
