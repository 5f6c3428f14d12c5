/* meter.c - the list of sensors, and those that are text files. */
#include "meter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NUMBER_BYTES 64

const char *ls_rail_name(ls_rail rail)
{
    static const char *const names[LS_RAIL_COUNT] = {"gpu",   "module", "cpu",       "grace",
                                                     "sysio", "dram",   "gpu_memory"};
    return rail >= 0 && rail < LS_RAIL_COUNT ? names[rail] : "none";
}

const char *ls_method_name(ls_method method)
{
    static const char *const names[LS_METHOD_COUNT] = {"counter", "meter", "instant", "average"};
    return names[method];
}

static void add_note(ls_meter_note *notes, int *n, const char *what, const char *format,
                     va_list args)
{
    if (*n == LS_METER_NOTES_MAX) return;
    ls_meter_note *note = &notes[(*n)++];
    snprintf(note->what, sizeof note->what, "%s", what);
    vsnprintf(note->why, sizeof note->why, format, args);
}

void ls_meters_note_missing(ls_meters *meters, const char *what, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    add_note(meters->missing, &meters->n_missing, what, format, args);
    va_end(args);
}

void ls_meters_note_fact(ls_meters *meters, const char *what, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    add_note(meters->facts, &meters->n_facts, what, format, args);
    va_end(args);
}

ls_sensor *ls_meters_add(ls_meters *meters, const ls_sensor *sensor)
{
    for (int s = 0; s < meters->n_sensors; s++)
        if (strcmp(meters->sensors[s].id, sensor->id) == 0) return NULL;
    if (meters->n_sensors == LS_SENSORS_MAX) {
        ls_meters_note_missing(meters, sensor->id, "more than %d sensors", LS_SENSORS_MAX);
        return NULL;
    }
    ls_sensor *added = &meters->sensors[meters->n_sensors++];
    *added = *sensor;
    return added;
}

int ls_meter_read_text(const char *path, char *text, int text_bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    if (fd < 0) return errno;
    do n = read(fd, text, (size_t)text_bytes - 1);
    while (n < 0 && errno == EINTR);
    const int error = n < 0 ? errno : 0;
    close(fd);
    if (error != 0) return error;
    while (n > 0 && text[n - 1] == '\n') n--;
    text[n] = '\0';
    return 0;
}

bool ls_sensor_read_file(const ls_sensor *sensor, ls_reading *reading)
{
    char text[NUMBER_BYTES], *end;

    if (ls_meter_read_text(sensor->source, text, sizeof text) != 0) return false;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < 0) return false;
    *reading = (ls_reading){.ok = true, .raw = value};
    return true;
}

void ls_meters_open(const ls_meter_options *options, ls_meters *meters)
{
    memset(meters, 0, sizeof *meters);
    ls_meters_add_rapl(options->sysfs_root, meters);
    ls_meters_add_hwmon(options->sysfs_root, meters);
    ls_meters_add_nvml(options->nvml_library, meters);
    ls_meters_add_process(meters);
}

void ls_meters_close(ls_meters *meters)
{
    if (meters != NULL) ls_meters_close_nvml(meters);
}

bool ls_meters_have_power(const ls_meters *meters)
{
    for (int s = 0; s < meters->n_sensors; s++)
        if (meters->sensors[s].kind != LS_SENSOR_STATE) return true;
    return false;
}
