/*
 * json_grammar.c - one pass over the text, without memory of its own.
 *
 * cJSON says neither why it refuses a text nor that memory ran out.  In doubt (what cJSON takes and
 * RFC 8259 does not, or the other way round) a text counts as bad here.
 */
#include <stdbool.h>
#include <string.h>

#include "json.h"

#define NUMBER_BYTES_MAX 62 /* cJSON reads no more of one */

/* The text left to read; each skip_ function moves `at` behind what it names, or is false. */
typedef struct cursor {
    const char *at, *end;
} cursor;

static bool skip_any_of(cursor *c, const char *set)
{
    if (c->at == c->end || *c->at == '\0' || strchr(set, *c->at) == NULL) return false;
    c->at++;
    return true;
}

static void skip_space(cursor *c)
{
    while (skip_any_of(c, " \t\r\n")) continue;
}

static bool skip_word(cursor *c, const char *word)
{
    const size_t n = strlen(word);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0) return false;
    c->at += n;
    return true;
}

static bool skip_digits(cursor *c)
{
    const char *first = c->at;
    while (skip_any_of(c, "0123456789")) continue;
    return c->at > first;
}

static bool skip_number(cursor *c)
{
    const char *first = c->at;

    skip_any_of(c, "-");
    if (!skip_any_of(c, "0") && !skip_digits(c)) return false;
    if (skip_any_of(c, ".") && !skip_digits(c)) return false;
    if (skip_any_of(c, "eE")) {
        skip_any_of(c, "+-");
        if (!skip_digits(c)) return false;
    }
    return c->at - first <= NUMBER_BYTES_MAX;
}

/* Behind a backslash; halves of surrogate pairs are left to cJSON. */
static bool skip_escape(cursor *c)
{
    if (!skip_any_of(c, "u")) return skip_any_of(c, "\"\\/bfnrt");
    for (int digit = 0; digit < 4; digit++) {
        const bool d = digit == 0 && c->at < c->end && (*c->at == 'd' || *c->at == 'D');
        if (!skip_any_of(c, "0123456789abcdefABCDEF")) return false;
        if (d && (c->at == c->end || strchr("01234567", *c->at) == NULL)) return false;
    }
    return true;
}

static bool skip_string(cursor *c)
{
    if (!skip_any_of(c, "\"")) return false;
    while (!skip_any_of(c, "\"")) {
        if (c->at == c->end || (unsigned char)*c->at < 0x20) return false;
        if (*c->at++ == '\\' && !skip_escape(c)) return false;
    }
    return true;
}

static bool skip_value(cursor *c, int depth);

/* What stands between brackets: values, or members with keys. */
static bool skip_items(cursor *c, bool keys, const char *close, int depth)
{
    skip_space(c);
    if (skip_any_of(c, close)) return true;
    do {
        skip_space(c);
        if (keys && !skip_string(c)) return false;
        skip_space(c);
        if (keys && !skip_any_of(c, ":")) return false;
        skip_space(c);
        if (!skip_value(c, depth)) return false;
        skip_space(c);
    } while (skip_any_of(c, ","));
    return skip_any_of(c, close);
}

static bool skip_value(cursor *c, int depth)
{
    if (depth == CJSON_NESTING_LIMIT) return false;
    if (skip_any_of(c, "{")) return skip_items(c, true, "}", depth + 1);
    if (skip_any_of(c, "[")) return skip_items(c, false, "]", depth + 1);
    if (c->at < c->end && *c->at == '"') return skip_string(c);
    return skip_word(c, "true") || skip_word(c, "false") || skip_word(c, "null") || skip_number(c);
}

bool ls_json_is_valid(const char *text, size_t bytes)
{
    cursor c = {text, text + bytes};

    skip_space(&c);
    if (!skip_value(&c, 0)) return false;
    skip_space(&c);
    return c.at == c.end;
}
