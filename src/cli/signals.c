/* signals.c - the first signal asks the job to save and stop, the second does not wait for it. */
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"

static atomic_int n_signals;

static void on_signal(int number)
{
    static const char text[] = "\nlongspan: saving and stopping (again: stop at once)\n";

    if (atomic_fetch_add(&n_signals, 1) > 0) _exit(128 + number);
    longspan_request_stop();
    const ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
}

void signals_install(void)
{
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}
