/* commands.h - the commands of the program.  Layer: cli (uses longspan.h only). */
#ifndef LS_COMMANDS_H
#define LS_COMMANDS_H

#include "arguments.h"

typedef struct command {
    const char *name;
    const char *summary;               /* one line */
    const char *help;                  /* usage, options, one example */
    int (*run)(int argc, char **argv); /* the exit code */
} command;

extern const command command_topo;
extern const command command_plan;
extern const command command_train;
extern const command command_eval;
extern const command command_tokenize;
extern const command command_bench;
extern const command command_convert;
extern const command command_report;

/* Print the command's help on stdout; returns EXIT_DONE. */
int print_help(const command *c);

/* What the first SIGINT or SIGTERM does; a second one ends the process at once with 128 + n. */
typedef enum signals_answer {
    SIGNALS_SAVE, /* the job saves and stops */
    SIGNALS_TIDY, /* the job removes the files it began and stops */
    SIGNALS_EXIT  /* there is nothing to save or remove: the process ends at once with 128 + n */
} signals_answer;

void signals_install(signals_answer answer);

/* 128 + n, for a command that the first signal has stopped. */
int signals_exit_code(void);

#endif
