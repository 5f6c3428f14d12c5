/*
 * meter.h - sensors of power, energy and state: what this machine can tell while a run works.
 *
 * Sources add sensors to one list: RAPL (powercap), Grace (ACPI power meters under hwmon), NVML
 * (loaded at run time, no CUDA), and the kernel's word on this process.  Each sensor says what it
 * contains.  Domains overlap (module > grace > cpu; module > gpu > gpu_memory; package > cores): a
 * rail is never the sum of two of them.  What cannot be read is listed with the reason, never
 * estimated.
 *
 *        module ---------------------------------.     RAPL, on x86 hosts:
 *        | grace ----------------.  gpu ------.  |     cpu = package-0 + package-1 ...
 *        | | cpu | sysio | LPDDR |  | gpu_mem |  |     dram, beside it where it is told
 *
 * Layer: telemetry (uses base).  Threads: one owner reads; a read may take as long as the source
 * likes, so it never happens on a thread that trains.
 */
#ifndef LS_METER_H
#define LS_METER_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

/* Keys of energy_j, in the record's order. */
typedef enum ls_rail {
    LS_RAIL_NONE = -1, /* a state, or a counter whose scope is not known yet */
    LS_RAIL_GPU = 0,
    LS_RAIL_MODULE,
    LS_RAIL_CPU,
    LS_RAIL_GRACE,
    LS_RAIL_SYSIO,
    LS_RAIL_DRAM,
    LS_RAIL_GPU_MEMORY,
    LS_RAIL_COUNT
} ls_rail;

/* "gpu", "module", ...; "none". */
const char *ls_rail_name(ls_rail rail);

typedef enum ls_sensor_kind {
    LS_SENSOR_POWER,  /* watts, now or as a mean */
    LS_SENSOR_ENERGY, /* joules since some moment: a counter */
    LS_SENSOR_STATE   /* clocks, temperature, memory, ...: recorded as it is */
} ls_sensor_kind;

/* How a sensor comes to joules; of several for one rail the first that covers it is quoted. */
typedef enum ls_method {
    LS_METHOD_COUNTER = 0, /* difference of an energy counter */
    LS_METHOD_METER,       /* integral of a power meter's means (hwmon) */
    LS_METHOD_INSTANT,     /* integral of momentary power: the driver samples a part of the time */
    LS_METHOD_AVERAGE,     /* integral of 1-second means */
    LS_METHOD_COUNT
} ls_method;

/* "counter", "meter", "instant", "average". */
const char *ls_method_name(ls_method method);

typedef struct ls_reading {
    bool ok;
    int64_t raw;
    uint64_t stamp; /* the source's own time of it, any unit; 0: it gives none */
} ls_reading;

#define LS_SENSOR_ID_BYTES     64
#define LS_SENSOR_SOURCE_BYTES 512

typedef struct ls_sensor {
    char id[LS_SENSOR_ID_BYTES];         /* "rapl.package-0": a column of power.csv */
    char source[LS_SENSOR_SOURCE_BYTES]; /* a file, or an NVML field with its scope */
    ls_sensor_kind kind;
    ls_rail rail;
    ls_method method;     /* of power and energy */
    int domain;           /* which of several: socket, GPU */
    const char *unit;     /* of raw: "uW", "mJ", "MHz", ... */
    double scale;         /* watts or joules of one raw unit */
    double window_s;      /* power: the mean of how long; 0: of this moment; NAN: not known */
    double period_s;      /* how often it looks, where that is known; 0: to be measured */
    double wrap_joules;   /* counters: where they start again; 0: nowhere, as far as is known */
    const char *contains; /* in words */
    bool scope_unsure;    /* the counter may be of the GPU or of the module: energy tells */

    bool (*read)(const struct ls_sensor *sensor, ls_reading *reading);
    const void *context; /* of read */
    unsigned field, scope;
} ls_sensor;

#define LS_SENSORS_MAX        64
#define LS_METER_NOTES_MAX    32
#define LS_METER_REASON_BYTES 640

typedef struct ls_meter_note {
    char what[LS_SENSOR_ID_BYTES];
    char why[LS_METER_REASON_BYTES];
} ls_meter_note;

typedef struct ls_meters {
    ls_sensor sensors[LS_SENSORS_MAX];
    int n_sensors;
    ls_meter_note missing[LS_METER_NOTES_MAX]; /* what is not there, or not read, and why */
    int n_missing;
    ls_meter_note facts[LS_METER_NOTES_MAX]; /* names, power limits */
    int n_facts;
    void *nvml; /* its library's table, while it is open */
} ls_meters;

typedef struct ls_meter_options {
    const char *sysfs_root;   /* what stands before /sys; "": this machine */
    const char *nvml_library; /* "libnvidia-ml.so.1", or a path */
} ls_meter_options;

/* Find every sensor that answers.  Never fails: what does not answer is in missing. */
void ls_meters_open(const ls_meter_options *options, ls_meters *meters);

/* NULL and a zeroed one are allowed. */
void ls_meters_close(ls_meters *meters);

/* Whether there is any sensor of power or energy. */
bool ls_meters_have_power(const ls_meters *meters);

/* ---- for sources ------------------------------------------------------------------------------
 */

/* Each adds its sensors and notes. */
void ls_meters_add_rapl(const char *root, ls_meters *meters);
void ls_meters_add_hwmon(const char *root, ls_meters *meters);
void ls_meters_add_nvml(const char *library, ls_meters *meters);
void ls_meters_close_nvml(ls_meters *meters);
void ls_meters_add_process(ls_meters *meters);

/* Add a sensor; one with an id that is there already, or beyond the most, is left out (the latter
 * with a note).  The result is the list's own; NULL: left out. */
ls_sensor *ls_meters_add(ls_meters *meters, const ls_sensor *sensor);

void ls_meters_note_missing(ls_meters *meters, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void ls_meters_note_fact(ls_meters *meters, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A sensor's read function for a text file that holds one whole number: sensor->source. */
bool ls_sensor_read_file(const ls_sensor *sensor, ls_reading *reading);

/* A small text file without its last newline: 0, or errno.  Allocates nothing. */
int ls_meter_read_text(const char *path, char *text, int text_bytes);

#endif
