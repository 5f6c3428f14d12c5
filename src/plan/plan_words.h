/*
 * plan_words.h - private to the reader of plans as text: its lines, words and numbers.
 *
 * A word is some bytes of the text, ended by a space or the end of its line.  Taking what is not
 * there fails with LS_ERR_CORRUPT and "NAME:LINE: what is wrong".
 *
 * Layer: plan, private.
 */
#ifndef LS_PLAN_WORDS_H
#define LS_PLAN_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

typedef struct ls_word {
    const char *at;
    size_t n;
} ls_word;

typedef struct ls_words {
    const char *name; /* of the text, for messages */
    ls_word text;     /* lines that are left */
    ls_word rest;     /* of the line at work */
    int64_t line;     /* its number, from 1 */
} ls_words;

/* Names by number, as an enum has them. */
typedef struct ls_word_names {
    const char *kind; /* "lane" */
    const char *(*name)(int value);
    int n;
} ls_word_names;

/* Go to the next line that is not empty; false: there is none, and line is that of the end. */
bool ls_words_next_line(ls_words *words);

/* The next word of the line; empty at its end. */
ls_word ls_words_peek(ls_words *words);
ls_word ls_words_take(ls_words *words);

/* Take the next word if it is this one. */
bool ls_words_take_if(ls_words *words, const char *text);

/* Take key=value; value is not empty. */
ls_status ls_words_take_value(ls_words *words, const char *key, ls_word *value);

/* Take key=N: from 0 to most, 32 bits wide, "-" for -1, a real, the name of a number. */
ls_status ls_words_take_whole(ls_words *words, const char *key, int64_t most, int64_t *value);
ls_status ls_words_take_bytes(ls_words *words, const char *key, uint64_t *bytes);
ls_status ls_words_take_i32(ls_words *words, const char *key, int64_t most, int32_t *value);
ls_status ls_words_take_optional(ls_words *words, const char *key, int64_t most, int64_t *value);
ls_status ls_words_take_real(ls_words *words, const char *key, double *value);
ls_status ls_words_take_name(ls_words *words, const char *key, const ls_word_names *names,
                             int *value);

/* Nothing may follow on this line. */
ls_status ls_words_end_line(ls_words *words);

/* "NAME:LINE: ..." */
ls_status ls_words_refuse(const ls_words *words, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* "NAME:LINE: 'word', where WANTED must stand" */
ls_status ls_words_refuse_word(const ls_words *words, ls_word word, const char *wanted);

/* The number that the name has; fails with the known ones. */
ls_status ls_words_parse_name(const ls_words *words, ls_word word, const ls_word_names *names,
                              int *value);

bool ls_word_equals(ls_word word, const char *text);

/* Whether the word begins with prefix, which is then cut off. */
bool ls_word_cut_prefix(ls_word *word, const char *prefix);

/* Cut off what is before the first c, and c; all of the word if there is none.  The same for the
 * last c, with what is behind it. */
ls_word ls_word_cut_first(ls_word *word, char c);
ls_word ls_word_cut_last(ls_word *word, char c);

/* Decimal, one spelling for each number. */
bool ls_word_parse_i64(ls_word word, int64_t *value);

/* The word in quotes, for messages; buffer has LS_TEXT_BYTES. */
const char *ls_word_quote(char *buffer, ls_word word);

#endif
