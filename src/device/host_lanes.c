/*
 * host_lanes.c - lanes as threads.
 *
 * Each lane has a ring of commands and a thread that runs them; one mutex guards all rings and
 * counters.  Two conditions per lane announce what changes there, and the end of a command is
 * announced only if a sleeper waits for it, so that a change wakes only those that wait for it.  A
 * thread with nothing to do sleeps; nothing polls.
 */
#define _GNU_SOURCE    /* NOLINT: the libc's name; for pthread_attr_setaffinity_np,                \
                          pthread_setname_np */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "host_lanes.h"

#define ERROR_BYTES       1024
#define ORIGIN_BYTES      64
#define THREAD_NAME_BYTES 16 /* of Linux */

typedef enum command_kind {
    COMMAND_OP,
    COMMAND_COPY,
    COMMAND_CALL,
    COMMAND_WAIT, /* for a ticket of another lane */
    COMMAND_BLOCK /* for something else: a call, but no work */
} command_kind;

typedef struct command {
    command_kind kind;
    int64_t tag;
    union {
        struct {
            ls_op op;
            ls_op_args args;
        } op;
        struct {
            void *to;
            const void *from;
            uint64_t bytes;
        } copy;
        struct {
            ls_device_call *function;
            void *context;
            int64_t argument;
        } call;
        struct {
            int lane;
            uint64_t ticket;
        } wait;
    } u;
} command;

#define AWAITED_NONE UINT64_MAX

#define LATE_NS_MAX 50000000u /* what is later than that is not made up for */

typedef struct lane {
    struct ls_host_lanes *device;
    pthread_t thread;
    int n_threads;                /* of the ops */
    double bytes_per_s;           /* of copies; 0: not throttled */
    uint64_t late_ns;             /* by how much the latest of them was late */
    uint64_t submitted, finished; /* commands so far; the ring holds those between */
    int64_t running;              /* tag of the latest command */
    ls_lane_stats stats;
    command *ring; /* [n_commands] */
    uint64_t n_commands;
    pthread_cond_t more; /* commands to run, or it is time to end: its thread waits */
    pthread_cond_t less; /* `awaited` have finished, or the device has failed: everyone else */
    uint64_t awaited;    /* the least ticket that a sleeper on `less` needs; AWAITED_NONE: none */
} lane;

struct ls_host_lanes {
    pthread_mutex_t mutex;
    int n_lanes, n_started;
    bool closing;
    ls_status status; /* first failure since the last sync */
    int64_t failed_tag;
    char error[ERROR_BYTES];
    char origin[ORIGIN_BYTES];
    ls_device_clock clock;
    ls_lane_listener listener;
    ls_device_observer observer; /* set while the lanes are idle */
    lane lanes[LS_DEVICE_LANES_MAX];
};

/* ---- running commands ---------------------------------------------------------------------- */

static uint64_t read_clock(void *context)
{
    (void)context;
    return ls_clock_ns();
}

static void sleep_until(void *context, uint64_t ns)
{
    (void)context;
    for (uint64_t now = ls_clock_ns(); now < ns; now = ls_clock_ns()) {
        const uint64_t left = ns - now;
        const struct timespec pause = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
        nanosleep(&pause, NULL);
    }
}

/* Over a throttled link a copy takes as long as its bytes need.  A sleep ends late, by much on a
 * busy machine: the next copy makes up for it, so that the sum is right. */
static void run_copy(lane *l, const command *c)
{
    const ls_device_clock *clock = &l->device->clock;
    const uint64_t start_ns = l->bytes_per_s > 0.0 ? clock->now_ns(clock->context) : 0;

    memcpy(c->u.copy.to, c->u.copy.from, c->u.copy.bytes);
    if (l->bytes_per_s <= 0.0) return;
    const uint64_t took_ns = (uint64_t)(1e9 * (double)c->u.copy.bytes / l->bytes_per_s);
    const uint64_t owed_ns = l->late_ns < took_ns ? l->late_ns : took_ns;
    const uint64_t end_ns = start_ns + took_ns - owed_ns;
    clock->sleep_until_ns(clock->context, end_ns);
    const uint64_t now_ns = clock->now_ns(clock->context);
    const uint64_t late_ns = l->late_ns - owed_ns + (now_ns > end_ns ? now_ns - end_ns : 0);
    l->late_ns = late_ns < LATE_NS_MAX ? late_ns : LATE_NS_MAX;
}

static ls_status run_command(lane *l, const command *c)
{
    if (c->kind == COMMAND_COPY) {
        run_copy(l, c);
        return LS_OK;
    }
    if (c->kind == COMMAND_OP) return ls_ops_run(&ls_ops_cpu, c->u.op.op, NULL, &c->u.op.args);
    return c->u.call.function(c->u.call.context, c->u.call.argument);
}

/* With its time, and the observer told; what only waits is not. */
static ls_status run_observed(lane *l, const command *c, uint64_t *spent_ns)
{
    const ls_device_observer *o = &l->device->observer;
    const int index = (int)(l - l->device->lanes);
    const bool told = c->kind != COMMAND_BLOCK;
    const uint64_t start_ns = ls_clock_ns();

    if (told && o->began != NULL) o->began(o->context, index, c->tag, start_ns);
    const ls_status status = run_command(l, c);
    const uint64_t end_ns = ls_clock_ns();
    *spent_ns = end_ns - start_ns;
    if (told && o->ended != NULL) o->ended(o->context, index, c->tag, start_ns, end_ns);
    return status;
}

static void count_command(ls_lane_stats *stats, const command *c, uint64_t spent_ns)
{
    stats->busy_ns += spent_ns;
    if (c->kind == COMMAND_COPY) stats->copied_bytes += c->u.copy.bytes;
    if (c->kind != COMMAND_OP) return;
    stats->op_ns[c->u.op.op] += spent_ns;
    stats->op_calls[c->u.op.op]++;
}

/* Called with the mutex held: the calling thread's error becomes the device's, if it is the first.
 */
static void record_failure(ls_host_lanes *d, ls_status status, int64_t tag)
{
    if (d->status != LS_OK) return;
    d->status = status;
    d->failed_tag = tag;
    snprintf(d->error, sizeof d->error, "%s", ls_error());
    snprintf(d->origin, sizeof d->origin, "%s", ls_error_origin());
    if (d->listener.failed != NULL) d->listener.failed(d->listener.context);
    for (int i = 0; i < d->n_lanes; i++) pthread_cond_broadcast(&d->lanes[i].less);
}

/* This and announce_finished(): called with the mutex held. */
static void sleep_for(ls_host_lanes *d, lane *l, uint64_t ticket)
{
    if (ticket < l->awaited) l->awaited = ticket;
    pthread_cond_wait(&l->less, &d->mutex);
}

/* All sleepers wake: those that need more say so again. */
static void announce_finished(lane *l)
{
    if (l->finished < l->awaited) return;
    l->awaited = AWAITED_NONE;
    pthread_cond_broadcast(&l->less);
}

static void *run_lane(void *argument)
{
    lane *l = argument;
    ls_host_lanes *d = l->device;
    char name[THREAD_NAME_BYTES];

    /* for top -H, perf and debuggers; the threads of its ops inherit it */
    snprintf(name, sizeof name, "ls lane %d", (int)(l - d->lanes));
    pthread_setname_np(pthread_self(), name);
    ls_cpu_threads_set(l->n_threads);
    pthread_mutex_lock(&d->mutex);
    for (;;) {
        while (l->finished == l->submitted && !d->closing) pthread_cond_wait(&l->more, &d->mutex);
        if (l->finished == l->submitted) break;

        const command *c = &l->ring[l->finished % l->n_commands];
        if (c->kind == COMMAND_WAIT) {
            lane *other = &d->lanes[c->u.wait.lane];
            while (other->finished < c->u.wait.ticket && d->status == LS_OK)
                sleep_for(d, other, c->u.wait.ticket);
        } else if (d->status == LS_OK) {
            if (c->kind != COMMAND_BLOCK) l->running = c->tag;
            pthread_mutex_unlock(&d->mutex);
            uint64_t spent_ns = 0;
            const ls_status status = run_observed(l, c, &spent_ns);
            pthread_mutex_lock(&d->mutex);
            if (c->kind != COMMAND_BLOCK) count_command(&l->stats, c, spent_ns);
            if (status != LS_OK) record_failure(d, status, c->tag);
        }
        l->finished++;
        if (d->listener.finished != NULL)
            d->listener.finished(d->listener.context, (int)(l - d->lanes), l->finished);
        announce_finished(l);
    }
    pthread_mutex_unlock(&d->mutex);
    return NULL;
}

/* ---- open, close --------------------------------------------------------------------------- */

/* A team of OpenMP threads inherits the cores of the thread that starts it. */
static int create_thread(lane *l, const ls_host_cores *cores)
{
    pthread_attr_t attributes;
    cpu_set_t set;

    if (cores == NULL) return pthread_create(&l->thread, NULL, run_lane, l);
    CPU_ZERO(&set);
    for (int i = 0; i < cores->n; i++)
        if (cores->cpus[i] < CPU_SETSIZE) CPU_SET((size_t)cores->cpus[i], &set);
    int error = pthread_attr_init(&attributes);
    if (error != 0) return error;
    error = pthread_attr_setaffinity_np(&attributes, sizeof set, &set);
    if (error == 0) error = pthread_create(&l->thread, &attributes, run_lane, l);
    pthread_attr_destroy(&attributes);
    return error;
}

static ls_status start_lanes(ls_host_lanes *d, const ls_device_options *options)
{
    for (int i = 0; i < d->n_lanes; i++) {
        lane *l = &d->lanes[i];
        l->device = d;
        l->n_threads = options->lane_threads[i];
        l->bytes_per_s = options->lane_bytes_per_s[i];
        l->running = -1;
        l->awaited = AWAITED_NONE;
        l->n_commands = options->lane_commands[i] > 0 ? (uint64_t)options->lane_commands[i]
                                                      : LS_DEVICE_COMMANDS;
        l->ring = malloc(l->n_commands * sizeof *l->ring);
        if (l->ring == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "queue of lane %d", i);
        const int error = create_thread(l, options->lane_cores[i]);
        if (error != 0) return LS_FAIL(LS_ERR_DEVICE, "thread of lane %d: %s", i, strerror(error));
        d->n_started++;
    }
    return LS_OK;
}

ls_status ls_host_lanes_open(const ls_device_options *options, const ls_lane_listener *listener,
                             ls_host_lanes **lanes)
{
    assert(options->n_lanes >= 1 && options->n_lanes <= LS_DEVICE_LANES_MAX);

    ls_host_lanes *opened = calloc(1, sizeof *opened);
    if (opened == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "device of %d lanes", options->n_lanes);
    if (listener != NULL) opened->listener = *listener;
    opened->n_lanes = options->n_lanes;
    opened->failed_tag = -1;
    opened->clock =
        options->clock != NULL ? *options->clock : (ls_device_clock){read_clock, sleep_until, NULL};
    pthread_mutex_init(&opened->mutex, NULL);
    for (int i = 0; i < opened->n_lanes; i++) {
        pthread_cond_init(&opened->lanes[i].more, NULL);
        pthread_cond_init(&opened->lanes[i].less, NULL);
    }

    const ls_status status = start_lanes(opened, options);
    if (status != LS_OK) {
        ls_host_lanes_close(opened);
        return status;
    }
    *lanes = opened;
    return LS_OK;
}

void ls_host_lanes_close(ls_host_lanes *lanes)
{
    if (lanes == NULL) return;
    pthread_mutex_lock(&lanes->mutex);
    lanes->closing = true;
    for (int i = 0; i < lanes->n_lanes; i++) pthread_cond_signal(&lanes->lanes[i].more);
    pthread_mutex_unlock(&lanes->mutex);
    for (int i = 0; i < lanes->n_started; i++) pthread_join(lanes->lanes[i].thread, NULL);
    for (int i = 0; i < lanes->n_lanes; i++) {
        free(lanes->lanes[i].ring);
        pthread_cond_destroy(&lanes->lanes[i].more);
        pthread_cond_destroy(&lanes->lanes[i].less);
    }
    pthread_mutex_destroy(&lanes->mutex);
    free(lanes);
}

/* ---- submitting ---------------------------------------------------------------------------- */

/* A full ring is refilled when half of it has run: the submitting thread is not woken by each
 * command.  Called with the mutex held. */
static void wait_for_room(ls_host_lanes *d, lane *l)
{
    if (l->submitted - l->finished < l->n_commands) return;
    const uint64_t ticket = l->submitted - l->n_commands / 2;
    while (l->finished < ticket && d->status == LS_OK) sleep_for(d, l, ticket);
}

/* Append to the lane's ring; after a failure it is dropped and the failure returned. */
static ls_status submit(ls_host_lanes *d, int lane_index, const command *c)
{
    lane *l = &d->lanes[lane_index];
    assert(lane_index >= 0 && lane_index < d->n_lanes);

    pthread_mutex_lock(&d->mutex);
    wait_for_room(d, l);
    const ls_status status = d->status;
    if (status == LS_OK) {
        l->ring[l->submitted % l->n_commands] = *c;
        l->submitted++;
        pthread_cond_signal(&l->more);
    }
    pthread_mutex_unlock(&d->mutex);
    return status;
}

ls_status ls_host_lanes_submit_op(ls_host_lanes *lanes, int lane_index, int64_t tag, ls_op op,
                                  const ls_op_args *args)
{
    command c = {.kind = COMMAND_OP, .tag = tag};
    c.u.op.op = op;
    c.u.op.args = *args;
    return submit(lanes, lane_index, &c);
}

ls_status ls_host_lanes_submit_copy(ls_host_lanes *lanes, int lane_index, int64_t tag, void *to,
                                    const void *from, uint64_t bytes)
{
    command c = {.kind = COMMAND_COPY, .tag = tag};
    c.u.copy.to = to;
    c.u.copy.from = from;
    c.u.copy.bytes = bytes;
    return submit(lanes, lane_index, &c);
}

ls_status ls_host_lanes_submit_call(ls_host_lanes *lanes, int lane_index, int64_t tag,
                                    ls_device_call *call, void *context, int64_t argument)
{
    command c = {.kind = COMMAND_CALL, .tag = tag};
    c.u.call.function = call;
    c.u.call.context = context;
    c.u.call.argument = argument;
    return submit(lanes, lane_index, &c);
}

ls_status ls_host_lanes_submit_block(ls_host_lanes *lanes, int lane_index, ls_device_call *call,
                                     void *context, int64_t argument)
{
    command c = {.kind = COMMAND_BLOCK, .tag = -1};
    c.u.call.function = call;
    c.u.call.context = context;
    c.u.call.argument = argument;
    return submit(lanes, lane_index, &c);
}

ls_status ls_host_lanes_submit_wait(ls_host_lanes *lanes, int lane_index, int other,
                                    uint64_t ticket)
{
    assert(other >= 0 && other < lanes->n_lanes && other != lane_index);
    command c = {.kind = COMMAND_WAIT, .tag = -1};
    c.u.wait.lane = other;
    c.u.wait.ticket = ticket;
    return submit(lanes, lane_index, &c);
}

uint64_t ls_host_lanes_ticket(const ls_host_lanes *lanes, int lane_index)
{
    return lanes->lanes[lane_index].submitted; /* written by this thread only */
}

ls_status ls_host_lanes_sync(ls_host_lanes *lanes, int64_t *failed_tag)
{
    pthread_mutex_lock(&lanes->mutex);
    for (int i = 0; i < lanes->n_lanes; i++)
        while (lanes->lanes[i].finished < lanes->lanes[i].submitted)
            sleep_for(lanes, &lanes->lanes[i], lanes->lanes[i].submitted);
    const ls_status status = lanes->status;
    if (status != LS_OK) ls_error_adopt(lanes->error, lanes->origin);
    *failed_tag = lanes->failed_tag;
    lanes->status = LS_OK;
    lanes->failed_tag = -1;
    pthread_mutex_unlock(&lanes->mutex);
    return status;
}

void ls_host_lanes_fail(ls_host_lanes *lanes, ls_status status, int64_t tag)
{
    pthread_mutex_lock(&lanes->mutex);
    record_failure(lanes, status, tag);
    pthread_mutex_unlock(&lanes->mutex);
}

ls_status ls_host_lanes_status(ls_host_lanes *lanes)
{
    pthread_mutex_lock(&lanes->mutex);
    const ls_status status = lanes->status;
    pthread_mutex_unlock(&lanes->mutex);
    return status;
}

uint64_t ls_host_lanes_finished(ls_host_lanes *lanes, int lane_index)
{
    pthread_mutex_lock(&lanes->mutex);
    const uint64_t finished = lanes->lanes[lane_index].finished;
    pthread_mutex_unlock(&lanes->mutex);
    return finished;
}

void ls_host_lanes_wait(ls_host_lanes *lanes, int lane_index, uint64_t ticket)
{
    pthread_mutex_lock(&lanes->mutex);
    assert(ticket <= lanes->lanes[lane_index].submitted);
    while (lanes->lanes[lane_index].finished < ticket) /* dropping is finishing, too */
        sleep_for(lanes, &lanes->lanes[lane_index], ticket);
    pthread_mutex_unlock(&lanes->mutex);
}

void ls_host_lanes_observe(ls_host_lanes *lanes, const ls_device_observer *observer)
{
    pthread_mutex_lock(&lanes->mutex);
    lanes->observer = *observer;
    pthread_mutex_unlock(&lanes->mutex);
}

ls_lane_stats ls_host_lanes_stats(ls_host_lanes *lanes, int lane_index)
{
    pthread_mutex_lock(&lanes->mutex);
    const ls_lane_stats stats = lanes->lanes[lane_index].stats;
    pthread_mutex_unlock(&lanes->mutex);
    return stats;
}

int64_t ls_host_lanes_running(ls_host_lanes *lanes, int lane_index)
{
    pthread_mutex_lock(&lanes->mutex);
    const int64_t tag = lanes->lanes[lane_index].running;
    pthread_mutex_unlock(&lanes->mutex);
    return tag;
}
