/*
 * progress.h - the line a person watches: step, loss, tokens/s, ETA; on stderr.
 *
 * On a terminal one line is redrawn in place; elsewhere plain lines at most every few seconds (an
 * evaluation's: every ten), and always the first and the last.  NO_COLOR and --quiet are respected.
 *
 * Layer: telemetry.  Threads: one owner.
 */
#ifndef LS_PROGRESS_H
#define LS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ls_progress {
    bool quiet, terminal, color;
    int64_t steps;
    uint64_t last_ns;   /* of the last plain line */
    double seconds_avg; /* running mean of step time, for the ETA */
    bool drawn;         /* an unfinished line stands on the terminal */
} ls_progress;

typedef struct ls_progress_step {
    int64_t step;
    int64_t labels; /* 0: there is no loss */
    double loss, tokens_per_s, step_s, lr, grad_norm;
    bool skipped;
} ls_progress_step;

ls_progress ls_progress_open(int64_t steps, bool quiet);

void ls_progress_step_done(ls_progress *progress, const ls_progress_step *step);

/* Where a step stands that has already taken seconds; on a terminal redrawn in place, elsewhere a
 * line a minute. */
typedef struct ls_progress_within {
    int64_t step;
    const char *segment, *phase;
    int layer, block;                                  /* -1: none */
    double fraction, elapsed_s, step_eta_s, run_eta_s; /* NAN: not known */
} ls_progress_within;

void ls_progress_step_within(ls_progress *progress, const ls_progress_within *within);

/* How far an evaluation has come. */
typedef struct ls_progress_evaluation {
    int64_t tokens, tokens_all;
    double loss; /* so far; NAN: not known */
    double elapsed_s;
} ls_progress_evaluation;

void ls_progress_eval(ls_progress *progress, const ls_progress_evaluation *evaluation);

/* A line of its own ("saved ...", "eval ..."), not overwritten by the next step. */
void ls_progress_note(ls_progress *progress, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* End an unfinished line. */
void ls_progress_close(ls_progress *progress);

#endif
