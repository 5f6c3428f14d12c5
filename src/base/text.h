/*
 * text.h - numbers as people write them, and numbers printed for people.
 *
 * Reading is strict: the whole text must be the number, in decimal, and it must fit exactly.
 *     whole number   0 | 300 | -1
 *     count          4096 | 512k | 1.5M         k, M, G = 1024, 1024^2, 1024^3 (512k = 524,288)
 *     bytes          4096 | 96GiB | 480 GB      KiB..TiB are powers of 1024, kB..TB of 1000
 *     real           0.1 | 3e-4                 finite
 * A refused text fails with LS_ERR_INVALID and "'2kb' is not ...", without a place: the caller
 * knows the place.  Reading does not depend on the process locale.
 *
 * Layer: base.  Threads: no shared state.
 */
#ifndef LS_TEXT_H
#define LS_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

ls_status ls_text_parse_whole(const char *text, int64_t *value);
ls_status ls_text_parse_count(const char *text, int64_t *count);
ls_status ls_text_parse_bytes(const char *text, uint64_t *bytes);
ls_status ls_text_parse_real(const char *text, double *value);

/* A text that prints below, with its terminating zero. */
#define LS_TEXT_BYTES 96

/* Each writes into buffer (cut to size, always terminated) and returns it, to sit in a printf. */
const char *ls_text_bytes(char *buffer, size_t size, uint64_t bytes);      /* "96.0 GiB" */
const char *ls_text_seconds(char *buffer, size_t size, double seconds);    /* "4 m 02 s" */
const char *ls_text_count(char *buffer, size_t size, int64_t count);       /* "524,288" */
const char *ls_text_short_count(char *buffer, size_t size, int64_t count); /* "512k", or as is */

/* The text in quotes, fit for one line of a message: control bytes shown as '?', cut with "..."
 * at a character boundary. */
const char *ls_text_quote(char *buffer, size_t size, const char *text);

/* Bytes of the first `letters` characters of UTF-8, or of all of them; and characters of so many
 * bytes. */
size_t ls_text_cut(const char *text, size_t letters);
size_t ls_text_letters(const char *text, size_t bytes);

/* "a, b, c", cut with "..." before the first word that does not fit. */
const char *ls_text_join(char *buffer, size_t size, const char *const *words, size_t n_words);

/* The word of words nearest to text by edit distance (insert, delete, replace, swap neighbours), or
 * else the first that text begins, if near enough to be what was meant; otherwise NULL. */
const char *ls_text_nearest(const char *text, const char *const *words, size_t n_words);

#endif
