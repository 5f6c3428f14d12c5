/* plan_words.c - lines, words and numbers of a plan's text. */
#include "plan_words.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "exact_real.h"
#include "text.h"

enum { NAMES_MAX = 32 };

/* ---- refusing ------------------------------------------------------------------------------ */

ls_status ls_words_refuse(const ls_words *words, const char *format, ...)
{
    char what[384];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return LS_FAIL(LS_ERR_CORRUPT, "%s:%" PRId64 ": %s", words->name, words->line, what);
}

const char *ls_word_quote(char *buffer, ls_word word)
{
    char copy[LS_TEXT_BYTES];
    const size_t n = word.n < sizeof copy - 1 ? word.n : sizeof copy - 1;

    for (size_t i = 0; i < n; i++) copy[i] = (char)(word.at[i] != '\0' ? word.at[i] : '?');
    copy[n] = '\0';
    return ls_text_quote(buffer, LS_TEXT_BYTES, copy);
}

ls_status ls_words_refuse_word(const ls_words *words, ls_word word, const char *wanted)
{
    char quoted[LS_TEXT_BYTES];
    return ls_words_refuse(words, "%s, where %s must stand",
                           word.n > 0 ? ls_word_quote(quoted, word) : "the line ends", wanted);
}

static ls_status refuse_number(const ls_words *words, const char *key, ls_word word, int64_t most)
{
    char quoted[LS_TEXT_BYTES];
    return ls_words_refuse(words, "%s: %s is not a whole number from 0 to %" PRId64, key,
                           ls_word_quote(quoted, word), most);
}

/* ---- one word ------------------------------------------------------------------------------ */

bool ls_word_equals(ls_word word, const char *text)
{
    return word.n == strlen(text) && memcmp(word.at, text, word.n) == 0;
}

bool ls_word_cut_prefix(ls_word *word, const char *prefix)
{
    const size_t n = strlen(prefix);
    if (word->n < n || memcmp(word->at, prefix, n) != 0) return false;
    *word = (ls_word){word->at + n, word->n - n};
    return true;
}

ls_word ls_word_cut_first(ls_word *word, char c)
{
    size_t n = 0;
    while (n < word->n && word->at[n] != c) n++;
    const ls_word before = {word->at, n};
    const size_t used = n < word->n ? n + 1 : n;
    *word = (ls_word){word->at + used, word->n - used};
    return before;
}

ls_word ls_word_cut_last(ls_word *word, char c)
{
    size_t n = word->n;
    while (n > 0 && word->at[n - 1] != c) n--;
    const ls_word behind = {word->at + n, word->n - n};
    word->n = n > 0 ? n - 1 : 0;
    return behind;
}

bool ls_word_parse_i64(ls_word word, int64_t *value)
{
    const bool negative = ls_word_cut_prefix(&word, "-");
    uint64_t sum = 0;

    if (word.n == 0 || (*word.at == '0' && (word.n > 1 || negative))) return false;
    for (size_t i = 0; i < word.n; i++) {
        const unsigned digit = (unsigned char)word.at[i] - (unsigned)'0';
        if (digit > 9 || sum > ((uint64_t)INT64_MAX - digit) / 10) return false;
        sum = sum * 10 + digit;
    }
    *value = negative ? -(int64_t)sum : (int64_t)sum;
    return true;
}

/* ---- lines --------------------------------------------------------------------------------- */

bool ls_words_next_line(ls_words *words)
{
    while (words->text.n > 0) {
        words->rest = ls_word_cut_first(&words->text, '\n');
        words->line++;
        if (ls_words_peek(words).n > 0) return true;
    }
    return false;
}

ls_word ls_words_peek(ls_words *words)
{
    ls_word *rest = &words->rest;
    size_t n = 0;

    while (rest->n > 0 && *rest->at == ' ') *rest = (ls_word){rest->at + 1, rest->n - 1};
    while (n < rest->n && rest->at[n] != ' ') n++;
    return (ls_word){rest->at, n};
}

ls_word ls_words_take(ls_words *words)
{
    const ls_word word = ls_words_peek(words);
    words->rest = (ls_word){word.at + word.n, words->rest.n - word.n};
    return word;
}

bool ls_words_take_if(ls_words *words, const char *text)
{
    if (!ls_word_equals(ls_words_peek(words), text)) return false;
    ls_words_take(words);
    return true;
}

ls_status ls_words_end_line(ls_words *words)
{
    const ls_word word = ls_words_take(words);
    return word.n == 0 ? LS_OK : ls_words_refuse_word(words, word, "the end of the line");
}

/* ---- key=value ----------------------------------------------------------------------------- */

ls_status ls_words_take_value(ls_words *words, const char *key, ls_word *value)
{
    char wanted[LS_TEXT_BYTES];
    const ls_word word = ls_words_take(words);

    *value = word;
    if (ls_word_cut_prefix(value, key) && ls_word_cut_prefix(value, "=") && value->n > 0)
        return LS_OK;
    snprintf(wanted, sizeof wanted, "%s=...", key);
    return ls_words_refuse_word(words, word, wanted);
}

ls_status ls_words_take_whole(ls_words *words, const char *key, int64_t most, int64_t *value)
{
    ls_word word;
    LS_TRY(ls_words_take_value(words, key, &word));
    if (ls_word_parse_i64(word, value) && *value >= 0 && *value <= most) return LS_OK;
    return refuse_number(words, key, word, most);
}

ls_status ls_words_take_bytes(ls_words *words, const char *key, uint64_t *bytes)
{
    int64_t value;
    LS_TRY(ls_words_take_whole(words, key, INT64_MAX, &value));
    *bytes = (uint64_t)value;
    return LS_OK;
}

ls_status ls_words_take_i32(ls_words *words, const char *key, int64_t most, int32_t *value)
{
    int64_t wide;
    LS_TRY(ls_words_take_whole(words, key, most < INT32_MAX ? most : INT32_MAX, &wide));
    *value = (int32_t)wide;
    return LS_OK;
}

ls_status ls_words_take_optional(ls_words *words, const char *key, int64_t most, int64_t *value)
{
    ls_word word;
    LS_TRY(ls_words_take_value(words, key, &word));
    *value = -1;
    if (ls_word_equals(word, "-")) return LS_OK;
    if (ls_word_parse_i64(word, value) && *value >= 0 && *value <= most) return LS_OK;
    return refuse_number(words, key, word, most);
}

ls_status ls_words_take_real(ls_words *words, const char *key, double *value)
{
    char quoted[LS_TEXT_BYTES];
    ls_word word;
    LS_TRY(ls_words_take_value(words, key, &word));
    if (ls_exact_real_parse(word.at, word.n, value)) return LS_OK;
    return ls_words_refuse(words, "%s: %s is neither a whole number nor hexadecimal like 0x1.8p-3",
                           key, ls_word_quote(quoted, word));
}

ls_status ls_words_parse_name(const ls_words *words, ls_word word, const ls_word_names *names,
                              int *value)
{
    const char *known[NAMES_MAX];
    char quoted[LS_TEXT_BYTES], list[256];

    for (int i = 0; i < names->n; i++) {
        known[i] = names->name(i);
        *value = i;
        if (ls_word_equals(word, known[i])) return LS_OK;
    }
    return ls_words_refuse(words, "%s is no %s; known: %s", ls_word_quote(quoted, word),
                           names->kind, ls_text_join(list, sizeof list, known, (size_t)names->n));
}

ls_status ls_words_take_name(ls_words *words, const char *key, const ls_word_names *names,
                             int *value)
{
    ls_word word;
    LS_TRY(ls_words_take_value(words, key, &word));
    return ls_words_parse_name(words, word, names, value);
}
