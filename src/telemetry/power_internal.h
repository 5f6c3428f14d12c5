/* power_internal.h - the recorder's parts.  Layer: telemetry, internal. */
#ifndef LS_POWER_INTERNAL_H
#define LS_POWER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "power.h"

/* One sensor of power or energy, and what it has told. */
typedef struct power_channel {
    int sensor; /* index */
    ls_energy energy;
    ls_phase_sums sums, taken; /* so far; up to the latest ls_power_take() */
} power_channel;

/* The file of samples. */
typedef struct power_file {
    int fd;             /* -1: none, or given up */
    _Atomic(int) error; /* errno that ended it */
    char path[4096];
    char line[8192];
} power_file;

struct ls_power {
    ls_power_options options;
    ls_meters meters;
    ls_reading readings[LS_SENSORS_MAX];
    int64_t n_slow_reads[LS_SENSORS_MAX];             /* in a row */
    uint64_t resting_until_ns[LS_SENSORS_MAX];        /* a slow sensor is asked less often */
    _Atomic(uint64_t) latency_ns_max[LS_SENSORS_MAX]; /* told while others are read */
    power_file file;
    int lock;    /* the folder of classes below sysfs, locked while this records; -1: not */
    bool shared; /* another recorder had it first */
    uint64_t interval_ns, opened_ns;
    double opened_epoch_s;

    pthread_t thread;
    pthread_cond_t changed;
    _Atomic(int) reading; /* the sensor being read; -1: none */
    _Atomic(int64_t) n_ticks, n_missed;

    pthread_mutex_t mutex; /* of what follows */
    bool ready, stopping, ended;
    bool abandoned;   /* nobody waits any more: the thread frees everything */
    ls_status status; /* of looking for the sensors, with its text */
    char error[512];
    int64_t step;
    uint64_t first_ns; /* of the phases */
    ls_phases phases;
    uint64_t taken_ns; /* of the latest ls_power_take() */
    uint64_t taken_phase_ns[LS_PHASES_MAX];
    int64_t taken_spans[LS_PHASES_MAX];
    power_channel channels[LS_SENSORS_MAX];
    int n_channels;
};

/* Sums between two states of the channels, by rail; the mutex is held.
 *   whole  of the whole run, else since the latest take */
void power_sum(const ls_power *power, uint64_t now_ns, bool whole, ls_power_sums *sums);

/* One method of a rail over the whole run; the mutex is held.  False: it has no sensor.
 *   error_joules  what its ends may be off by: a resolution of time at half the range of power */
typedef struct power_method {
    double joules, coverage, error_joules;
} power_method;

bool power_method_sum(const ls_power *power, ls_rail rail, ls_method method, uint64_t now_ns,
                      power_method *sum);

static inline const ls_sensor *power_sensor(const ls_power *p, const power_channel *channel)
{
    return &p->meters.sensors[channel->sensor];
}

/* power_file.c */
ls_status power_file_open(ls_power *power);
void power_file_write(ls_power *power, uint64_t now_ns, uint64_t read_ns);
void power_file_close(ls_power *power);

#endif
