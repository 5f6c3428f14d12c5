/*
 * arguments.h - the command line: one table of options for each command.
 *
 * `--name value` and `--name=value` are the same; `--` ends options.  An unknown option is
 * answered with the known ones.
 *
 * Layer: cli.
 */
#ifndef LS_ARGUMENTS_H
#define LS_ARGUMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "longspan.h"

/* Exit codes of the contract. */
#define EXIT_DONE         0
#define EXIT_FAILED       1
#define EXIT_USAGE        2
#define EXIT_DOES_NOT_FIT 3
#define EXIT_STOPPED      75

#define ARGUMENTS_SETS_MAX  256
#define ARGUMENTS_PATHS_MAX 65536

typedef enum option_kind {
    OPTION_FLAG,
    OPTION_TEXT,
    OPTION_COUNT,
    OPTION_TOKENS, /* the same, or 64k, 16M, 1G: powers of 1024, as in a run file */
    OPTION_TIME,
    OPTION_SET
} option_kind;

/* What `--name` stores, and where. */
typedef struct option {
    const char *name; /* without the dashes; NULL ends a table */
    option_kind kind;
    void *value; /* bool, const char *, int64_t (counts, tokens) or double; unused for OPTION_SET */
} option;

typedef struct arguments {
    longspan_run run; /* sets, quiet, verbose */
    bool json, help;
    const char *sets[ARGUMENTS_SETS_MAX];
    char hardware_set[4096]; /* --hardware as a --set */
    const char **paths;      /* positional arguments, in argv */
    int n_paths;
} arguments;

/*
 * Parse argv[0 .. argc) with the command's options and the common ones (--set, --hardware,
 * --quiet, --verbose, --json, --help).  argv is permuted: paths first.
 * Returns 0, or EXIT_USAGE after printing what is wrong.
 */
int arguments_parse(const char *command, int argc, char **argv, const option *options,
                    arguments *parsed);

/* The exit code of a library result, after printing its error. */
int report_result(const arguments *parsed, int result);

/* "longspan COMMAND: message" on stderr; returns EXIT_USAGE. */
int usage_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "unknown option ...; known: ..." on stderr; returns EXIT_USAGE. */
int unknown_option(const char *command, const char *given, const option *options);

#endif
