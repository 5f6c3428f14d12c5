/* arguments.c - a table-driven parser; numbers are strict, times in the forms people write. */
#include "arguments.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OPTIONS_MAX 24

int usage_error(const char *command, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "longspan %s: ", command);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, " (see longspan %s --help)\n", command);
    return EXIT_USAGE;
}

int report_result(const arguments *parsed, int result)
{
    if (result == 0) return EXIT_DONE;
    if (result == LONGSPAN_ERROR_STOPPED) {
        if (!parsed->run.quiet) fprintf(stderr, "longspan: %s\n", longspan_error());
        return EXIT_STOPPED;
    }
    const bool said = result != LONGSPAN_ERROR_NO_MEMORY || strstr(longspan_error(), "memory");
    fprintf(stderr, "longspan: error: %s%s\n", said ? "" : "out of memory: ", longspan_error());
    if (parsed->run.verbose) fprintf(stderr, "longspan: detected at %s\n", longspan_error_origin());
    if (result == LONGSPAN_ERROR_INVALID || result == LONGSPAN_ERROR_UNSUPPORTED) return EXIT_USAGE;
    return result == LONGSPAN_ERROR_NO_MEMORY ? EXIT_DOES_NOT_FIT : EXIT_FAILED;
}

/* ---- values -------------------------------------------------------------------------------- */

/* The number at the start of text and what follows it. */
static bool parse_number(const char *text, int64_t *number, const char **rest)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || value < 1) return false;
    *number = value;
    *rest = end;
    return true;
}

static bool parse_count(const char *text, int64_t *count)
{
    const char *rest;
    return parse_number(text, count, &rest) && *rest == '\0';
}

static bool parse_tokens(const char *text, int64_t *tokens)
{
    static const char units[] = "kMG";
    const char *rest, *unit;
    int64_t number;

    if (!parse_number(text, &number, &rest)) return false;
    for (unit = units; *rest != '\0' && *unit != '\0' && *unit != *rest; unit++) continue;
    if (*rest != '\0' && (*unit == '\0' || rest[1] != '\0')) return false;
    const int shift = *rest != '\0' ? 10 * (int)(unit - units + 1) : 0;
    if (number > INT64_MAX >> shift) return false;
    *tokens = number << shift;
    return true;
}

/* "+2h30m", "+45s", "+1d": a duration from now. */
static bool parse_duration(const char *text, double *seconds)
{
    static const struct {
        char unit;
        double seconds;
    } units[] = {{'d', 86400.0}, {'h', 3600.0}, {'m', 60.0}, {'s', 1.0}};
    double total = 0.0;

    if (*text == '\0') return false;
    while (*text != '\0') {
        char *end;
        const double value = strtod(text, &end);
        size_t u = 0;
        if (end == text || !isfinite(value) || value < 0.0) return false;
        while (u < 4 && units[u].unit != *end) u++;
        if (u == 4) return false;
        total += value * units[u].seconds;
        text = end + 1;
    }
    *seconds = total;
    return true;
}

/* mktime() takes 31 June for 1 July: a date that it changes is none. */
static bool find_moment(const struct tm *date, double *epoch)
{
    struct tm t = *date;
    const time_t when = mktime(&t);

    if (when == (time_t)-1 || t.tm_year != date->tm_year || t.tm_mon != date->tm_mon ||
        t.tm_mday != date->tm_mday || t.tm_hour != date->tm_hour || t.tm_min != date->tm_min ||
        t.tm_sec != date->tm_sec)
        return false;
    *epoch = (double)when;
    return true;
}

/* Local "YYYY-MM-DDTHH:MM[:SS]" (a blank may stand for T). */
static bool parse_date(const char *text, double *epoch)
{
    struct tm t = {.tm_isdst = -1};
    int used = 0;
    char separator;

    if (sscanf(text, "%4d-%2d-%2d%c%2d:%2d%n", &t.tm_year, &t.tm_mon, &t.tm_mday, &separator,
               &t.tm_hour, &t.tm_min, &used) != 6 ||
        (separator != 'T' && separator != ' '))
        return false;
    if (text[used] == ':') {
        int more = 0;
        if (sscanf(text + used, ":%2d%n", &t.tm_sec, &more) != 1) return false;
        used += more;
    }
    if (text[used] != '\0') return false;
    t.tm_year -= 1900;
    t.tm_mon -= 1;
    return find_moment(&t, epoch);
}

static bool parse_time(const char *text, double *epoch)
{
    double seconds;
    char *end;

    if (text[0] == '+') {
        if (!parse_duration(text + 1, &seconds)) return false;
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        *epoch = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec + seconds;
        return true;
    }
    if (text[0] == '@') {
        *epoch = strtod(text + 1, &end);
        return end != text + 1 && *end == '\0' && isfinite(*epoch) && *epoch > 0.0;
    }
    return parse_date(text, epoch);
}

/* ---- options ------------------------------------------------------------------------------- */

static int store_set(const char *command, arguments *parsed, const char *value)
{
    const char *equals = strchr(value, '=');
    if (equals == NULL || equals == value)
        return usage_error(command, "--set %s: want key.path=value", value);
    if (parsed->run.n_sets == ARGUMENTS_SETS_MAX)
        return usage_error(command, "more than %d --set", ARGUMENTS_SETS_MAX);
    parsed->sets[parsed->run.n_sets++] = value;
    return 0;
}

static int store_option(const char *command, const option *o, const char *value, arguments *parsed)
{
    switch (o->kind) {
    case OPTION_FLAG: *(bool *)o->value = true; return 0;
    case OPTION_TEXT: *(const char **)o->value = value; return 0;
    case OPTION_COUNT:
        if (parse_count(value, o->value)) return 0;
        return usage_error(command, "--%s %s: want a whole number from 1", o->name, value);
    case OPTION_TOKENS:
        if (parse_tokens(value, o->value)) return 0;
        return usage_error(command, "--%s %s: want a whole number from 1, or 64k, 16M, 1G", o->name,
                           value);
    case OPTION_TIME:
        if (parse_time(value, o->value)) return 0;
        return usage_error(command,
                           "--%s %s: want +2h30m, 2027-01-31T18:00 (local) or @UNIX_SECONDS",
                           o->name, value);
    case OPTION_SET: return store_set(command, parsed, value);
    }
    return EXIT_USAGE;
}

int unknown_option(const char *command, const char *given, const option *options)
{
    fprintf(stderr, "longspan %s: unknown option '%s'; known:", command, given);
    for (; options->name != NULL; options++) fprintf(stderr, " --%s", options->name);
    fputc('\n', stderr);
    return EXIT_USAGE;
}

static const option *find_option(const option *options, const char *name, size_t length)
{
    for (; options->name != NULL; options++)
        if (strlen(options->name) == length && strncmp(options->name, name, length) == 0)
            return options;
    return NULL;
}

static int parse_option(const char *command, int argc, char **argv, int *index,
                        const option *options, arguments *parsed)
{
    const char *name = argv[*index] + 2;
    const char *equals = strchr(name, '=');
    const size_t length = equals != NULL ? (size_t)(equals - name) : strlen(name);
    const option *o = find_option(options, name, length);

    if (o == NULL) return unknown_option(command, argv[*index], options);
    if (o->kind == OPTION_FLAG) {
        if (equals != NULL) return usage_error(command, "--%s takes no value", o->name);
        return store_option(command, o, NULL, parsed);
    }
    if (equals != NULL) return store_option(command, o, equals + 1, parsed);
    if (*index + 1 >= argc) return usage_error(command, "--%s wants a value", o->name);
    return store_option(command, o, argv[++*index], parsed);
}

int arguments_parse(const char *command, int argc, char **argv, const option *options,
                    arguments *parsed)
{
    const char *hardware = NULL;
    const option common[] = {
        {"set", OPTION_SET, NULL},
        {"hardware", OPTION_TEXT, &hardware},
        {"quiet", OPTION_FLAG, &parsed->run.quiet},
        {"verbose", OPTION_FLAG, &parsed->run.verbose},
        {"json", OPTION_FLAG, &parsed->json},
        {"help", OPTION_FLAG, &parsed->help},
    };
    option table[OPTIONS_MAX + 1] = {{NULL, OPTION_FLAG, NULL}};
    int n = 0;

    for (; options != NULL && options[n].name != NULL; n++) table[n] = options[n];
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) table[n++] = common[i];

    bool only_paths = false;
    parsed->paths = (const char **)argv;
    parsed->run.sets = parsed->sets;
    for (int i = 0; i < argc; i++) {
        if (!only_paths && strcmp(argv[i], "--") == 0) {
            only_paths = true;
        } else if (!only_paths && strcmp(argv[i], "-h") == 0) {
            parsed->help = true;
        } else if (!only_paths && argv[i][0] == '-' && argv[i][1] != '\0') {
            if (argv[i][1] != '-') return unknown_option(command, argv[i], table);
            const int failed = parse_option(command, argc, argv, &i, table, parsed);
            if (failed) return failed;
        } else {
            parsed->paths[parsed->n_paths++] = argv[i];
        }
    }
    if (hardware == NULL) return 0;
    snprintf(parsed->hardware_set, sizeof parsed->hardware_set, "hardware=%s", hardware);
    return store_set(command, parsed, parsed->hardware_set);
}
