/*
 * meter_hwmon.c - the ACPI power meters of a Grace socket, through /sys/class/hwmon.
 *
 * A meter is known by its power*_oem_info ("Module Power Socket 0"), never by the number of its
 * hwmon.  Older kernels have the files in hwmonK/device, newer ones in hwmonK; in either a folder
 * may hold several.  Values are microwatts, the mean of power*_average_interval; a read within 50
 * ms of the last one gives the same again.  There is no energy counter.
 */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meter.h"

#define FOLDER      "/sys/class/hwmon"
#define CACHED_S    0.05 /* the kernel asks the firmware no more often */
#define METERS_MAX  16   /* in one folder */
#define PATH_BYTES  LS_SENSOR_SOURCE_BYTES
#define LABEL_BYTES 64

static const struct {
    const char *word; /* of "WORD Power Socket N" */
    ls_rail rail;
    const char *id, *contains;
} kinds[] = {
    {"Module", LS_RAIL_MODULE, "module",
     "the whole superchip: Grace, LPDDR, GPU, HBM, and the loss of regulators"},
    {"Grace", LS_RAIL_GRACE, "grace", "the Grace socket: cores, SoC, LPDDR"},
    {"CPU", LS_RAIL_CPU, "cpu", "the rail of Grace's cores alone, not the socket"},
    {"SysIO", LS_RAIL_SYSIO, "sysio", "the rail of Grace's SoC: fabric, caches, I/O"},
};

/* "Module Power Socket 3" -> its kind and 3; -1: none of them. */
static int find_kind(const char *label, int *socket)
{
    char word[16];

    if (sscanf(label, "%15s Power Socket %d", word, socket) != 2) return -1;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        if (strcmp(word, kinds[k].word) == 0) return (int)k;
    return -1;
}

static double read_window(const char *folder, int index)
{
    char path[PATH_BYTES], text[32];

    snprintf(path, sizeof path, "%.450s/power%d_average_interval", folder, index);
    if (ls_meter_read_text(path, text, sizeof text) != 0) return (double)NAN;
    return 1e-3 * strtod(text, NULL);
}

/* Watts of a file that the kernel documents as microwatts; NAN: it is not there. */
static double read_watts(const char *folder, int index, const char *name)
{
    char path[PATH_BYTES], text[32], *end;

    snprintf(path, sizeof path, "%.450s/power%d_%s", folder, index, name);
    if (ls_meter_read_text(path, text, sizeof text) != 0) return (double)NAN;
    const double value = strtod(text, &end);
    return end != text && value > 0.0 ? 1e-6 * value : (double)NAN;
}

/* The cap that the platform keeps to (power*_cap of the kernel's ABI of hwmon), where it tells one.
 */
static void add_cap(const char *folder, int index, const char *id, ls_meters *meters)
{
    const double now = read_watts(folder, index, "cap");
    const double most = read_watts(folder, index, "cap_max");
    char what[LS_SENSOR_ID_BYTES];

    if (isnan(now)) return;
    snprintf(what, sizeof what, "%.40s.limit", id);
    if (isnan(most))
        ls_meters_note_fact(meters, what, "%.1f W now", now);
    else
        ls_meters_note_fact(meters, what, "%.1f W now, %.1f W at most", now, most);
}

static void add_meter(const char *folder, int index, const char *label, ls_meters *meters)
{
    int socket = 0;
    const int kind = find_kind(label, &socket);
    ls_reading reading;
    char text[64];

    if (kind < 0) {
        ls_meters_note_missing(meters, "hwmon", "%.100s/power%d is '%.40s': no meter known here",
                               folder, index, label);
        return;
    }
    ls_sensor sensor = {.kind = LS_SENSOR_POWER,
                        .rail = kinds[kind].rail,
                        .method = LS_METHOD_METER,
                        .domain = socket,
                        .unit = "uW",
                        .scale = 1e-6,
                        .window_s = read_window(folder, index),
                        .period_s = CACHED_S,
                        .contains = kinds[kind].contains,
                        .read = ls_sensor_read_file};
    snprintf(sensor.id, sizeof sensor.id, "grace.%s-%d", kinds[kind].id, socket);
    snprintf(sensor.source, sizeof sensor.source, "%.450s/power%d_average", folder, index);
    const int error = ls_meter_read_text(sensor.source, text, sizeof text);
    if (error != 0)
        ls_meters_note_missing(meters, sensor.id, "%.150s: %s", sensor.source, strerror(error));
    else if (!ls_sensor_read_file(&sensor, &reading))
        ls_meters_note_missing(meters, sensor.id, "%.120s holds '%.30s', no microwatts",
                               sensor.source, text);
    else
        ls_meters_add(meters, &sensor);
    if (error == 0) add_cap(folder, index, sensor.id, meters);
}

static void look_into(const char *folder, ls_meters *meters)
{
    char path[PATH_BYTES], label[LABEL_BYTES];

    for (int index = 1; index <= METERS_MAX; index++) {
        snprintf(path, sizeof path, "%.450s/power%d_oem_info", folder, index);
        if (ls_meter_read_text(path, label, sizeof label) != 0) continue;
        add_meter(folder, index, label, meters);
    }
}

/* Folders come in any order; columns do not. */
static int compare_sensors(const void *a, const void *b)
{
    const ls_sensor *x = a, *y = b;
    return x->domain != y->domain ? x->domain - y->domain : (int)x->rail - (int)y->rail;
}

void ls_meters_add_hwmon(const char *root, ls_meters *meters)
{
    char path[PATH_BYTES];
    const struct dirent *entry;
    const int before = meters->n_sensors;

    snprintf(path, sizeof path, "%.400s" FOLDER, root);
    DIR *folder = opendir(path);
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (strncmp(entry->d_name, "hwmon", 5) != 0) continue;
        snprintf(path, sizeof path, "%.400s" FOLDER "/%.30s", root, entry->d_name);
        look_into(path, meters);
        snprintf(path, sizeof path, "%.400s" FOLDER "/%.30s/device", root, entry->d_name);
        look_into(path, meters);
    }
    if (folder != NULL) closedir(folder);
    qsort(meters->sensors + before, (size_t)(meters->n_sensors - before), sizeof(ls_sensor),
          compare_sensors);
    if (meters->n_sensors == before)
        ls_meters_note_missing(meters, "grace",
                               "no ACPI power meter of a Grace under %s" FOLDER
                               "; on one: modprobe acpi_power_meter",
                               root);
}
