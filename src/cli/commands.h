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

/* Print the command's help on stdout; returns EXIT_DONE. */
int print_help(const command *c);

/* Save and stop on SIGINT and SIGTERM; a second one ends the process at once with 128 + n. */
void signals_install(void);

#endif
