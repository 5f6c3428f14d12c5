/*
 * power.c - asking, and the thread that asks.
 *
 * Deadlines are absolute: the n-th question is due n intervals after the first, however long the
 * others took; those that were missed altogether are counted and skipped.  A sensor that takes more
 * than a twentieth of the time rests in between: one that is slow again and again, for a single
 * slow answer may well be this thread's, which lost the processor to those who compute.
 */
#define _GNU_SOURCE /* NOLINT: the libc's name; for flock, O_DIRECTORY, pthread_setname_np */
#include "power.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "power_internal.h"

#define SECOND_NS  UINT64_C(1000000000)
#define HANG_S     2 /* that a sensor is waited for when the recorder opens or ends */
#define REST       20
#define SLOW_READS 3 /* in a row: it is the sensor that is slow */

/* ---- asking -------------------------------------------------------------------------------- */

static void read_sensors(ls_power *p, uint64_t now_ns)
{
    for (int s = 0; s < p->meters.n_sensors; s++) {
        const ls_sensor *sensor = &p->meters.sensors[s];
        p->readings[s] = (ls_reading){.ok = false};
        if (now_ns < p->resting_until_ns[s]) continue;
        atomic_store(&p->reading, s);
        const uint64_t start_ns = p->options.clock_ns();
        if (!sensor->read(sensor, &p->readings[s])) p->readings[s].ok = false;
        const uint64_t latency_ns = p->options.clock_ns() - start_ns;
        if (latency_ns > atomic_load(&p->latency_ns_max[s]))
            atomic_store(&p->latency_ns_max[s], latency_ns);
        p->n_slow_reads[s] = latency_ns > p->interval_ns / 2 ? p->n_slow_reads[s] + 1 : 0;
        if (p->n_slow_reads[s] >= SLOW_READS) p->resting_until_ns[s] = now_ns + REST * latency_ns;
    }
    atomic_store(&p->reading, -1);
}

static double mean_watts(const power_channel *c)
{
    double joules = 0.0, seconds = 0.0;

    for (int phase = 0; phase < LS_PHASES_MAX; phase++) {
        joules += c->sums.joules[phase];
        seconds += 1e-9 * (double)c->sums.covered_ns[phase];
    }
    return seconds >= 5.0 ? joules / seconds : (double)NAN;
}

/* The mean of a power sensor on the same GPU; NAN: none, or not long enough. */
static double mean_of_rail(const ls_power *p, const ls_sensor *counter, ls_rail rail)
{
    for (int c = 0; c < p->n_channels; c++) {
        const ls_sensor *sensor = power_sensor(p, &p->channels[c]);
        if (sensor->kind == LS_SENSOR_POWER && sensor->rail == rail &&
            sensor->context == counter->context)
            return mean_watts(&p->channels[c]);
    }
    return (double)NAN;
}

/* A counter whose scope the driver leaves open has the scope whose power its slope is near: it must
 * be much nearer to one than to the other. */
static void settle_scope(ls_power *p, const power_channel *channel)
{
    ls_sensor *sensor = &p->meters.sensors[channel->sensor];
    const double slope = mean_watts(channel);
    const double gpu = fabs(slope - mean_of_rail(p, sensor, LS_RAIL_GPU));
    const double module = fabs(slope - mean_of_rail(p, sensor, LS_RAIL_MODULE));

    if (!isfinite(slope) || !isfinite(module)) return;
    if (isnan(gpu) ? module < 0.2 * slope : 3.0 * module < gpu) {
        sensor->rail = LS_RAIL_MODULE;
        sensor->contains = "the whole module (CPU, LPDDR, GPU, HBM), as its slope tells";
    } else if (isfinite(gpu) && 3.0 * gpu < module) {
        sensor->rail = LS_RAIL_GPU;
        sensor->contains = "the GPU with its memory, as its slope tells";
    }
}

void ls_power_tick(ls_power *p, uint64_t now_ns)
{
    const uint64_t start_ns = p->options.clock_ns();

    read_sensors(p, now_ns);
    const uint64_t read_ns = p->options.clock_ns() - start_ns;
    pthread_mutex_lock(&p->mutex);
    for (int c = 0; c < p->n_channels; c++) {
        power_channel *channel = &p->channels[c];
        const ls_sensor *sensor = power_sensor(p, channel);
        ls_energy_piece piece;
        if (now_ns < p->resting_until_ns[channel->sensor] && !p->readings[channel->sensor].ok)
            continue;
        if (ls_energy_add(&channel->energy, now_ns, &p->readings[channel->sensor], &piece))
            ls_phases_share(&p->phases, &piece, &channel->sums);
        if (sensor->scope_unsure && sensor->rail == LS_RAIL_NONE) settle_scope(p, channel);
    }
    pthread_mutex_unlock(&p->mutex);
    power_file_write(p, now_ns, read_ns);
    if (p->options.asked != NULL) p->options.asked(p->options.context, now_ns);
    atomic_fetch_add(&p->n_ticks, 1);
}

/* ---- parts --------------------------------------------------------------------------------- */

static void open_channels(ls_power *p)
{
    for (int s = 0; s < p->meters.n_sensors; s++) {
        const ls_sensor *sensor = &p->meters.sensors[s];
        if (sensor->kind == LS_SENSOR_STATE) continue;
        power_channel *channel = &p->channels[p->n_channels++];
        channel->sensor = s;
        channel->energy = ls_energy_open(sensor, p->interval_ns);
    }
}

static void open_locks(ls_power *p)
{
    pthread_condattr_t attributes;

    pthread_mutex_init(&p->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&p->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void free_power(ls_power *p)
{
    power_file_close(p);
    if (p->lock >= 0) close(p->lock);
    ls_meters_close(&p->meters);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->mutex);
    free(p);
}

/* Meters tell of a node, not of a run: where two runs record one node, each has the joules of both,
 * and at least the second says so.  The lock is on a folder that is there, and ends with us. */
static void lock_node(ls_power *p)
{
    char path[LS_SENSOR_SOURCE_BYTES];

    snprintf(path, sizeof path, "%.400s/sys/class", p->options.meters.sysfs_root);
    p->lock = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->lock >= 0) p->shared = flock(p->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

static ls_status open_parts(ls_power *p)
{
    lock_node(p);
    ls_meters_open(&p->options.meters, &p->meters);
    open_channels(p);
    return power_file_open(p);
}

/* ---- the thread ---------------------------------------------------------------------------- */

/* False: it is time to end. */
static bool wait_until(ls_power *p, uint64_t deadline_ns)
{
    const struct timespec until = {(time_t)(deadline_ns / SECOND_NS),
                                   (long)(deadline_ns % SECOND_NS)};
    int error = 0;

    pthread_mutex_lock(&p->mutex);
    while (!p->stopping && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&p->changed, &p->mutex, &until);
    const bool go_on = !p->stopping;
    pthread_mutex_unlock(&p->mutex);
    return go_on;
}

static void sample(ls_power *p)
{
    uint64_t due_ns = ls_clock_ns();

    do {
        ls_power_tick(p, ls_clock_ns());
        due_ns += p->interval_ns;
        const uint64_t done_ns = ls_clock_ns();
        if (done_ns <= due_ns) continue;
        const uint64_t missed = (done_ns - due_ns) / p->interval_ns;
        atomic_fetch_add(&p->n_missed, (int64_t)missed);
        due_ns += missed * p->interval_ns;
    } while (wait_until(p, due_ns));
}

/* What the owner waits for: ready, or ended. */
static void announce(ls_power *p, bool *what)
{
    pthread_mutex_lock(&p->mutex);
    *what = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
}

/* Sensors are looked for here, too: the first question may be the one that hangs. */
static void *run_sampler(void *argument)
{
    ls_power *p = argument;

    pthread_setname_np(pthread_self(), "ls meters");
    p->status = open_parts(p);
    if (p->status != LS_OK) snprintf(p->error, sizeof p->error, "%s", ls_error());
    announce(p, &p->ready);
    if (p->status == LS_OK) sample(p); /* once at least */
    pthread_mutex_lock(&p->mutex);
    p->ended = true;
    const bool abandoned = p->abandoned;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
    if (abandoned) free_power(p);
    return NULL;
}

/* Until *what, or too long; the mutex is held. */
static bool wait_for(ls_power *p, const bool *what)
{
    struct timespec until;
    int error = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += HANG_S;
    while (!*what && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&p->changed, &p->mutex, &until);
    return *what;
}

/* A thread that hangs is left to itself, and frees everything when it comes back. */
static void end_thread(ls_power *p)
{
    pthread_mutex_lock(&p->mutex);
    p->stopping = true;
    pthread_cond_broadcast(&p->changed);
    const bool ended = wait_for(p, &p->ended);
    p->abandoned = !ended;
    const pthread_t thread = p->thread;
    pthread_mutex_unlock(&p->mutex);
    if (!ended) {
        pthread_detach(thread);
        return;
    }
    pthread_join(thread, NULL);
    free_power(p);
}

/* ---- open, close --------------------------------------------------------------------------- */

/* Waits until the sensors have answered, but not for ever. */
static ls_status start_thread(ls_power *p)
{
    const int error = pthread_create(&p->thread, NULL, run_sampler, p);

    if (error != 0) {
        free_power(p);
        return LS_FAIL(LS_ERR_DEVICE, "thread of the meters: %s", strerror(error));
    }
    pthread_mutex_lock(&p->mutex);
    const bool ready = wait_for(p, &p->ready);
    const ls_status status = ready ? p->status : LS_ERR_DEVICE;
    if (!ready)
        LS_FAIL(status, "a sensor has not answered for %d s", HANG_S);
    else if (status != LS_OK)
        ls_error_adopt(p->error, "power.c");
    pthread_mutex_unlock(&p->mutex);
    if (status != LS_OK) end_thread(p);
    return status;
}

ls_status ls_power_open(const ls_power_options *options, ls_power **power)
{
    ls_power *p = calloc(1, sizeof *p);

    if (p == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the recorder of power");
    p->options = *options;
    if (options->clock_ns == NULL) p->options.clock_ns = ls_clock_ns;
    p->interval_ns = SECOND_NS / (uint64_t)options->samples_hz;
    p->opened_ns = ls_clock_ns();
    p->opened_epoch_s = ls_clock_epoch_seconds();
    p->phases.idle = options->idle_phase;
    p->file.fd = p->lock = -1;
    atomic_store(&p->reading, -1);
    open_locks(p);
    const ls_status status = options->by_hand ? open_parts(p) : start_thread(p);
    if (status == LS_OK) *power = p;
    if (status != LS_OK && options->by_hand) free_power(p);
    return status;
}

void ls_power_close(ls_power *power)
{
    if (power == NULL) return;
    if (power->options.by_hand)
        free_power(power);
    else
        end_thread(power);
}
