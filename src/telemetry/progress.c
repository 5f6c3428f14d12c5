/* progress.c - carriage returns on terminals, lines elsewhere. */
#include "progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"

#define PLAIN_INTERVAL_NS  5000000000u
#define EVAL_INTERVAL_NS   10000000000u
#define WITHIN_INTERVAL_NS 60000000000u
#define WITHIN_SECONDS     3.0 /* shorter steps speak for themselves */
#define TEXT_BYTES         256

ls_progress ls_progress_open(int64_t steps, bool quiet)
{
    const char *no_color = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    const bool terminal = isatty(STDERR_FILENO) && term != NULL && *term != '\0';
    return (ls_progress){.quiet = quiet,
                         .terminal = terminal,
                         .color = terminal && (no_color == NULL || *no_color == '\0'),
                         .steps = steps};
}

static void print_eta(double seconds, char *text, size_t text_bytes)
{
    if (!isfinite(seconds)) {
        snprintf(text, text_bytes, "?");
        return;
    }
    const long s = (long)(seconds + 0.5);
    if (s < 60)
        snprintf(text, text_bytes, "%lds", s);
    else if (s < 3600)
        snprintf(text, text_bytes, "%ldm%02lds", s / 60, s % 60);
    else if (s < 48 * 3600)
        snprintf(text, text_bytes, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else
        snprintf(text, text_bytes, "%ldd%02ldh", s / 86400, s / 3600 % 24);
}

void ls_progress_step_done(ls_progress *p, const ls_progress_step *s)
{
    const uint64_t now_ns = ls_clock_ns();
    const bool edge = p->last_ns == 0 || s->step == p->steps || s->skipped;
    char eta[32], loss[32] = "none";

    p->seconds_avg = p->seconds_avg > 0.0 ? 0.9 * p->seconds_avg + 0.1 * s->step_s : s->step_s;
    if (p->quiet) return;
    if (!p->terminal && !edge && now_ns - p->last_ns < PLAIN_INTERVAL_NS) return;

    if (s->labels > 0) snprintf(loss, sizeof loss, "%.4f", s->loss);
    print_eta(p->seconds_avg * (double)(p->steps - s->step), eta, sizeof eta);
    fprintf(stderr,
            "%s%sstep %lld/%lld%s  loss %s  norm %.2f  lr %.2e  %.0f tok/s  %.2f s/step  "
            "ETA %s%s%s",
            p->terminal ? "\r" : "", p->color ? "\033[1m" : "", (long long)s->step,
            (long long)p->steps, p->color ? "\033[0m" : "", loss, s->grad_norm, s->lr,
            s->tokens_per_s, s->step_s, eta, s->skipped ? "  SKIPPED (gradient not finite)" : "",
            p->terminal ? "\033[K" : "\n");
    p->drawn = p->terminal;
    if (p->terminal && s->skipped) ls_progress_close(p); /* keep that line */
    p->last_ns = now_ns;
    fflush(stderr);
}

void ls_progress_step_within(ls_progress *p, const ls_progress_within *w)
{
    const uint64_t now_ns = ls_clock_ns();
    char layer[32] = "", block[32] = "", step_eta[32], run_eta[32];

    if (p->quiet || w->elapsed_s < WITHIN_SECONDS) return;
    if (!p->terminal && now_ns - p->last_ns < WITHIN_INTERVAL_NS) return;
    if (w->layer >= 0) snprintf(layer, sizeof layer, " layer %d", w->layer);
    if (w->block >= 0) snprintf(block, sizeof block, " block %d", w->block);
    print_eta(w->step_eta_s, step_eta, sizeof step_eta);
    print_eta(w->run_eta_s, run_eta, sizeof run_eta);
    fprintf(stderr, "%s%s%s %lld/%lld%s  %s%s%s  %.0f%%  ETA of step %s, of run %s%s",
            p->terminal ? "\r" : "", p->color ? "\033[1m" : "", w->segment, (long long)w->step,
            (long long)p->steps, p->color ? "\033[0m" : "", w->phase, layer, block,
            100.0 * w->fraction, step_eta, run_eta, p->terminal ? "\033[K" : "\n");
    p->drawn = p->terminal;
    p->last_ns = now_ns;
    fflush(stderr);
}

void ls_progress_eval(ls_progress *p, const ls_progress_evaluation *e)
{
    const uint64_t now_ns = ls_clock_ns();
    const bool edge = p->last_ns == 0 || e->tokens == e->tokens_all;
    const double rate = e->elapsed_s > 0.0 ? (double)e->tokens / e->elapsed_s : 0.0;
    char loss[32] = "?", eta[32];

    if (p->quiet) return;
    if (!p->terminal && !edge && now_ns - p->last_ns < EVAL_INTERVAL_NS) return;
    if (isfinite(e->loss)) snprintf(loss, sizeof loss, "%.4f", e->loss);
    print_eta((double)(e->tokens_all - e->tokens) / rate, eta, sizeof eta);
    fprintf(stderr, "%s%seval %lld/%lld%s tokens  loss %s  %.0f tok/s  ETA %s%s",
            p->terminal ? "\r" : "", p->color ? "\033[1m" : "", (long long)e->tokens,
            (long long)e->tokens_all, p->color ? "\033[0m" : "", loss, rate, eta,
            p->terminal ? "\033[K" : "\n");
    p->drawn = p->terminal;
    p->last_ns = now_ns;
    fflush(stderr);
}

void ls_progress_note(ls_progress *p, const char *format, ...)
{
    char text[TEXT_BYTES * 4];
    va_list args;

    if (p->quiet) return;
    ls_progress_close(p);
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "%s\n", text);
}

void ls_progress_close(ls_progress *p)
{
    if (p->drawn) fputc('\n', stderr);
    p->drawn = false;
}
