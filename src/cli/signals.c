/* signals.c - the first signal is answered as the command asks, the second is not waited for. */
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"

static const char *const texts[] = {
    [SIGNALS_SAVE] = "\nlongspan: saving and stopping (again: stop at once)\n",
    [SIGNALS_TIDY] = "\nlongspan: stopping; what was begun is removed (again: stop at once)\n",
    [SIGNALS_EXIT] = "\nlongspan: stopped; nothing was saved\n",
};

static signals_answer answer;
static atomic_int first; /* number of the first signal; 0: none yet */

static void on_signal(int number)
{
    int none = 0;

    if (!atomic_compare_exchange_strong(&first, &none, number)) _exit(128 + number);
    const ssize_t written = write(STDERR_FILENO, texts[answer], strlen(texts[answer]));
    (void)written;
    if (answer == SIGNALS_EXIT) _exit(128 + number);
    longspan_request_stop();
}

void signals_install(signals_answer to_signals)
{
    struct sigaction action;

    answer = to_signals;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int signals_exit_code(void)
{
    return 128 + atomic_load(&first);
}
