/* meter_process.c - the kernel's word on this process: resident memory, page faults, CPU time. */
#define _GNU_SOURCE /* NOLINT: the libc's name; for rusage with every libc */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "meter.h"

enum { FAULTS_MINOR, FAULTS_MAJOR, CPU_TIME };

static bool read_usage(const ls_sensor *sensor, ls_reading *reading)
{
    struct rusage usage;

    if (getrusage(RUSAGE_SELF, &usage) != 0) return false;
    const int64_t seconds = (int64_t)usage.ru_utime.tv_sec + (int64_t)usage.ru_stime.tv_sec;
    const int64_t micros = (int64_t)usage.ru_utime.tv_usec + (int64_t)usage.ru_stime.tv_usec;
    const int64_t values[] = {[FAULTS_MINOR] = usage.ru_minflt,
                              [FAULTS_MAJOR] = usage.ru_majflt,
                              [CPU_TIME] = 1000000 * seconds + micros};
    *reading = (ls_reading){.ok = true, .raw = values[sensor->field]};
    return true;
}

/* The second number of statm, in pages. */
static bool read_resident(const ls_sensor *sensor, ls_reading *reading)
{
    char text[128], *end;

    if (ls_meter_read_text(sensor->source, text, sizeof text) != 0) return false;
    strtoll(text, &end, 10);
    const long long pages = strtoll(end, NULL, 10);
    *reading = (ls_reading){.ok = pages > 0, .raw = pages * (int64_t)sysconf(_SC_PAGESIZE)};
    return pages > 0;
}

void ls_meters_add_process(ls_meters *meters)
{
    static const ls_sensor sensors[] = {
        {.id = "process.resident",
         .source = "/proc/self/statm",
         .unit = "B",
         .read = read_resident},
        {.id = "process.faults_minor", .unit = "1", .read = read_usage, .field = FAULTS_MINOR},
        {.id = "process.faults_major", .unit = "1", .read = read_usage, .field = FAULTS_MAJOR},
        {.id = "process.cpu_time", .unit = "us", .read = read_usage, .field = CPU_TIME},
    };

    for (size_t s = 0; s < sizeof sensors / sizeof sensors[0]; s++) {
        ls_sensor sensor = sensors[s];
        sensor.kind = LS_SENSOR_STATE;
        sensor.rail = LS_RAIL_NONE;
        sensor.scale = 1.0;
        sensor.contains = "this process, all threads";
        if (sensor.source[0] == '\0') snprintf(sensor.source, sizeof sensor.source, "getrusage()");
        ls_meters_add(meters, &sensor);
    }
}
