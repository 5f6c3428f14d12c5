/* heartbeat.c - sample, estimate, write beside, rename. */
#define _GNU_SOURCE /* NOLINT: the libc's name; for pthread_setname_np */
#include "heartbeat.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "file.h"

#define PATH_BYTES   4096
#define BEAT_BYTES   512
#define NUMBER_BYTES 32
#define INTERVAL_NS  1000000000

struct ls_heartbeat {
    ls_trainer *trainer;
    ls_heartbeat_options options;
    int64_t first_step;  /* where the trainer stood before any was taken */
    double *work_before; /* [n_steps + 1] work of the plan's steps before this one */
    char path[PATH_BYTES], path_beside[PATH_BYTES];
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool stopping;
};

/* FLOPs; where a step has none, its bytes, at 100 FLOPs each: about what either takes a CPU or a
 * GPU.  Only the fraction of the step done so far is told from it. */
static double work_of(const ls_step *step)
{
    return step->flops + 100.0 * (double)step->bytes;
}

/* Nothing is known but the step. */
static ls_heartbeat_beat make_beat(int64_t step)
{
    return (ls_heartbeat_beat){.step = step,
                               .layer = -1,
                               .block = -1,
                               .step_eta_s = (double)NAN,
                               .run_eta_s = (double)NAN};
}

/* The step at work, or where it all begins. */
static int64_t find_step(const ls_heartbeat *h)
{
    const int64_t working = atomic_load(&h->trainer->working_step);
    return working > 0 ? working : h->first_step;
}

static ls_heartbeat_beat take_beat(const ls_heartbeat *h)
{
    ls_trainer *t = h->trainer;
    const ls_plan *plan = &t->instance.plan;
    const int64_t at = ls_device_running(t->instance.device, LS_LANE_COMPUTE);
    const double average = atomic_load(&t->step_seconds);
    const uint64_t since_ns = atomic_load(&t->working_since_ns);
    ls_heartbeat_beat beat = make_beat(find_step(h));

    if (at < 0 || since_ns == 0) return beat;
    const ls_step *step = &plan->steps[at];
    beat.segment = ls_plan_segment_of(plan, at);
    beat.phase = step->phase;
    beat.layer = step->layer;
    beat.block = step->chunk;

    const int64_t first = plan->segment_first[beat.segment];
    const double before = h->work_before[at] - h->work_before[first];
    const double all =
        h->work_before[first + plan->segment_steps[beat.segment]] - h->work_before[first];
    beat.fraction = all > 0.0 ? before / all : 0.0;
    beat.elapsed_s = 1e-9 * (double)(ls_clock_ns() - since_ns);
    if (beat.segment == LS_SEGMENT_EVAL) return beat;
    if (beat.fraction > 0.02) beat.step_eta_s = beat.elapsed_s * (1.0 / beat.fraction - 1.0);
    const double a_step = average > 0.0 ? average : beat.elapsed_s + beat.step_eta_s;
    beat.run_eta_s = (double)(t->config->schedule.steps - beat.step) * a_step +
                     (isnan(beat.step_eta_s) ? a_step : beat.step_eta_s);
    return beat;
}

/* As JSON. */
static const char *print_number(double value, char text[NUMBER_BYTES])
{
    snprintf(text, NUMBER_BYTES, isfinite(value) ? "%.6g" : "null", value);
    return text;
}

/* The same; a run that has ended is nowhere. */
static const char *print_word(const char *word, bool ended, char text[NUMBER_BYTES])
{
    if (ended)
        snprintf(text, NUMBER_BYTES, "null");
    else
        snprintf(text, NUMBER_BYTES, "\"%s\"", word);
    return text;
}

static size_t print_beat(const ls_heartbeat *h, const ls_heartbeat_beat *beat,
                         char text[BEAT_BYTES])
{
    static const char *const states[] = {"running", "done", "stopped", "failed"};
    const bool ended = beat->state != LS_HEARTBEAT_RUNNING;
    char fraction[NUMBER_BYTES], step_eta[NUMBER_BYTES], run_eta[NUMBER_BYTES], loss[NUMBER_BYTES];
    char segment[NUMBER_BYTES], phase[NUMBER_BYTES];
    const int n = snprintf(
        text, BEAT_BYTES,
        "{\"time\": %.3f, \"state\": \"%s\", \"step\": %lld, \"steps\": %lld, \"segment\": %s, "
        "\"phase\": %s, \"layer\": %d, \"block\": %d, \"fraction\": %s, \"step_eta_s\": %s, "
        "\"run_eta_s\": %s, \"loss\": %s}\n",
        ls_clock_epoch_seconds(), states[beat->state], (long long)beat->step,
        (long long)h->trainer->config->schedule.steps,
        print_word(ls_segment_name(beat->segment), ended, segment),
        print_word(ls_phase_name(beat->phase), ended, phase), beat->layer, beat->block,
        print_number(beat->fraction, fraction), print_number(beat->step_eta_s, step_eta),
        print_number(beat->run_eta_s, run_eta),
        print_number(atomic_load(&h->trainer->last_loss), loss));
    assert(n > 0 && n < BEAT_BYTES);
    return (size_t)n;
}

/* Losing a beat is no reason to stop a run: failures here are the next beat's. */
static void write_beat(const ls_heartbeat *h, const ls_heartbeat_beat *beat)
{
    char text[BEAT_BYTES];

    if (h->options.directory == NULL) return;
    const size_t bytes = print_beat(h, beat, text);
    (void)ls_file_swap(h->path, h->path_beside, text, bytes);
}

static void beat_once(const ls_heartbeat *h)
{
    const ls_heartbeat_beat beat = take_beat(h);
    write_beat(h, &beat);
    if (h->options.event != NULL) h->options.event(h->options.context, &beat);
}

/* False when it is time to end. */
static bool wait_interval(ls_heartbeat *h)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += INTERVAL_NS / 1000000000;
    pthread_mutex_lock(&h->mutex);
    int error = 0;
    while (!h->stopping && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&h->changed, &h->mutex, &until);
    const bool go_on = !h->stopping;
    pthread_mutex_unlock(&h->mutex);
    return go_on;
}

static void *run_heartbeat(void *argument)
{
    ls_heartbeat *h = argument;

    pthread_setname_np(pthread_self(), "ls heartbeat");
    while (wait_interval(h)) beat_once(h);
    return NULL;
}

static void sum_work(ls_heartbeat *h)
{
    const ls_plan *plan = &h->trainer->instance.plan;
    h->work_before[0] = 0.0;
    for (int64_t s = 0; s < plan->n_steps; s++)
        h->work_before[s + 1] = h->work_before[s] + work_of(&plan->steps[s]);
}

/* Before the thread starts: what an earlier run left in the file no longer holds. */
static void write_first_beat(const ls_heartbeat *h)
{
    const ls_heartbeat_beat beat = make_beat(h->first_step);
    write_beat(h, &beat);
}

static void write_last_beat(const ls_heartbeat *h, ls_heartbeat_state state)
{
    const bool failed = state == LS_HEARTBEAT_FAILED;
    ls_heartbeat_beat beat = make_beat(failed ? find_step(h) : h->trainer->step);

    beat.state = state;
    beat.fraction = failed ? 0.0 : 1.0;
    if (state == LS_HEARTBEAT_DONE) beat.step_eta_s = beat.run_eta_s = 0.0;
    write_beat(h, &beat);
}

ls_status ls_heartbeat_start(ls_trainer *trainer, const ls_heartbeat_options *options,
                             ls_heartbeat **heartbeat)
{
    const size_t n = (size_t)trainer->instance.plan.n_steps + 1;
    ls_heartbeat *h = calloc(1, sizeof *h);
    double *work = malloc(n * sizeof *work);
    pthread_condattr_t attributes;

    if (h == NULL || work == NULL) {
        free(h);
        free(work);
        return LS_FAIL(LS_ERR_NO_MEMORY, "heartbeat of a plan of %zu steps", n);
    }
    h->trainer = trainer;
    h->options = *options;
    h->first_step = trainer->step;
    h->work_before = work;
    sum_work(h);
    if (options->directory != NULL) {
        snprintf(h->path, sizeof h->path, "%s/heartbeat.json", options->directory);
        snprintf(h->path_beside, sizeof h->path_beside, "%s/.heartbeat.json.tmp",
                 options->directory);
    }
    write_first_beat(h);
    pthread_mutex_init(&h->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&h->changed, &attributes);
    pthread_condattr_destroy(&attributes);

    const int error = pthread_create(&h->thread, NULL, run_heartbeat, h);
    if (error != 0) {
        pthread_cond_destroy(&h->changed);
        pthread_mutex_destroy(&h->mutex);
        free(work);
        free(h);
        return LS_FAIL(LS_ERR_DEVICE, "thread of the heartbeat: %s", strerror(error));
    }
    *heartbeat = h;
    return LS_OK;
}

void ls_heartbeat_stop(ls_heartbeat *heartbeat, ls_heartbeat_state state)
{
    if (heartbeat == NULL) return;
    pthread_mutex_lock(&heartbeat->mutex);
    heartbeat->stopping = true;
    pthread_cond_signal(&heartbeat->changed);
    pthread_mutex_unlock(&heartbeat->mutex);
    pthread_join(heartbeat->thread, NULL);
    write_last_beat(heartbeat, state);
    pthread_cond_destroy(&heartbeat->changed);
    pthread_mutex_destroy(&heartbeat->mutex);
    free(heartbeat->work_before);
    free(heartbeat);
}
