/* main.c - longspan COMMAND ...: find the command, run it. */
#define _GNU_SOURCE /* NOLINT: the libc's name; for pthread_setattr_default_np */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"

static const command *const commands[] = {&command_topo,    &command_tokenize, &command_plan,
                                          &command_train,   &command_eval,     &command_bench,
                                          &command_convert, &command_report};

#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void print_usage(FILE *file)
{
    fprintf(file, "usage: longspan COMMAND ...\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(file, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(file, "\nlongspan COMMAND --help explains one; longspan --version says what is built "
                  "in.\n");
}

int print_help(const command *c)
{
    fputs(c->help, stdout);
    return EXIT_DONE;
}

static int print_version(void)
{
    static char text[4096];
    longspan_describe_build(text, sizeof text);
    fputs(text, stdout);
    return EXIT_DONE;
}

/*
 * Let threads sleep where they wait for each other for longer than it takes to wake one: 1,000
 * pauses, some tens of microseconds.  By default they spin on, and on a machine that does anything
 * else a spinning thread keeps the one it waits for off its core.  OpenMP reads its environment
 * before main, so that the program starts again; where that fails it goes on as it is.
 */
static void limit_spinning(char **argv)
{
#if defined(LS_HAVE_OPENMP)
    char path[4096];
    if (getenv("OMP_WAIT_POLICY") != NULL || setenv("OMP_WAIT_POLICY", "passive", 1) != 0 ||
        setenv("GOMP_SPINCOUNT", "1000", 0) != 0)
        return;
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0) return;
    path[length] = '\0';
    execv(path, argv);
#else
    (void)argv;
#endif
}

/*
 * A file must not get the number of a stream that is closed, or what is printed lands in it.  A
 * closed stream becomes /dev/null, opened the wrong way round: what is read or written there fails,
 * as on the closed one.
 */
static bool fill_closed_streams(void)
{
    int fd;

    do {
        fd = open("/dev/null", O_RDONLY);
        if (fd == STDIN_FILENO) fd = close(fd) == 0 ? open("/dev/null", O_WRONLY) : -1;
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd < 0) return false;
    close(fd);
    return true;
}

#define STACK_BYTES ((size_t)8 << 20)

/*
 * A limit on the size of files (ulimit -f) is an error of the write, not the end of the program.
 * Kernels keep what they pack on the stack of their thread: `ulimit -s` must not make that small.
 */
static void set_up_process(void)
{
    pthread_attr_t attributes;
    size_t bytes = 0;

    signal(SIGXFSZ, SIG_IGN);
    if (pthread_getattr_default_np(&attributes) != 0) return;
    if (pthread_attr_getstacksize(&attributes, &bytes) == 0 && bytes < STACK_BYTES &&
        pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0)
        pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
}

/* The exit code of a command whose output may not have been written. */
static int finish_output(int code)
{
    const bool failed_before = ferror(stdout) != 0;

    errno = 0;
    const bool failed = fclose(stdout) != 0 || failed_before;
    if (!failed || code != EXIT_DONE) return code; /* a failure has been described */
    fprintf(stderr, "longspan: error: writing to standard output: %s\n",
            errno != 0 ? strerror(errno) : "not all was written");
    return EXIT_FAILED;
}

static int run_command(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";

    if (strcmp(name, "--version") == 0) return print_version();
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_usage(stdout);
        return EXIT_DONE;
    }
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i]->name) == 0) return commands[i]->run(argc - 2, argv + 2);

    if (*name != '\0') fprintf(stderr, "longspan: no command '%s'\n", name);
    print_usage(stderr);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    if (!fill_closed_streams()) {
        fprintf(stderr, "longspan: error: /dev/null: %s\n", strerror(errno));
        return EXIT_FAILED;
    }
    limit_spinning(argv);
    set_up_process();
    return finish_output(run_command(argc, argv));
}
