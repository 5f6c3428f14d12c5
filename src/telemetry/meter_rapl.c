/*
 * meter_rapl.c - RAPL energy counters of x86 hosts, through /sys/class/powercap.
 *
 * Zones are known by their name, not by the number in their folder's.  package-N and the dram
 * beside it are taken.  psys holds the packages, core and uncore are parts of them: they are named
 * and left out.  intel-rapl-mmio shows the same counters a second time.  AMD's come through the
 * same driver, with packages alone.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meter.h"

#define FOLDER     "/sys/class/powercap"
#define ZONES_MAX  64
#define ZONE_BYTES 48
#define NAME_BYTES 48

typedef struct zone {
    char folder[ZONE_BYTES]; /* "intel-rapl:0:1" */
    char name[NAME_BYTES];   /* "dram" */
} zone;

static int compare_zones(const void *a, const void *b)
{
    return strcmp(((const zone *)a)->folder, ((const zone *)b)->folder);
}

static int list_zones(const char *root, zone *zones)
{
    char path[LS_SENSOR_SOURCE_BYTES];
    const struct dirent *entry;
    int n = 0;

    snprintf(path, sizeof path, "%.400s" FOLDER, root);
    DIR *folder = opendir(path);
    if (folder == NULL) return 0;
    while ((entry = readdir(folder)) != NULL && n < ZONES_MAX) {
        if (strncmp(entry->d_name, "intel-rapl:", 11) != 0) continue;
        if (strlen(entry->d_name) >= ZONE_BYTES) continue;
        snprintf(zones[n].folder, ZONE_BYTES, "%.47s", entry->d_name);
        snprintf(path, sizeof path, "%.400s" FOLDER "/%s/name", root, zones[n].folder);
        n += ls_meter_read_text(path, zones[n].name, NAME_BYTES) == 0;
    }
    closedir(folder);
    qsort(zones, (size_t)n, sizeof *zones, compare_zones);
    return n;
}

/* The package that a zone is a part of: "intel-rapl:0" of "intel-rapl:0:1". */
static const zone *find_parent(const zone *zones, int n, const zone *of)
{
    const char *colon = strrchr(of->folder, ':');

    for (int z = 0; z < n; z++)
        if (strlen(zones[z].folder) == (size_t)(colon - of->folder) &&
            strncmp(zones[z].folder, of->folder, (size_t)(colon - of->folder)) == 0)
            return &zones[z];
    return NULL;
}

static double read_range(const char *root, const zone *of)
{
    char path[LS_SENSOR_SOURCE_BYTES], text[32];

    snprintf(path, sizeof path, "%.400s" FOLDER "/%s/max_energy_range_uj", root, of->folder);
    return ls_meter_read_text(path, text, sizeof text) == 0 ? 1e-6 * strtod(text, NULL) : 0.0;
}

static void add_zone(const char *root, const zone *of, const zone *package, ls_meters *meters)
{
    const bool is_dram = of != package;
    ls_sensor sensor = {
        .kind = LS_SENSOR_ENERGY,
        .rail = is_dram ? LS_RAIL_DRAM : LS_RAIL_CPU,
        .method = LS_METHOD_COUNTER,
        .unit = "uJ",
        .scale = 1e-6,
        .wrap_joules = read_range(root, of),
        .contains = is_dram ? "memory of this package's channels; not part of package"
                            : "the processor package: cores, caches, memory controllers; no memory",
        .read = ls_sensor_read_file,
    };
    ls_reading reading;
    char text[32];

    snprintf(sensor.id, sizeof sensor.id, "rapl.%s%s", package->name, is_dram ? ".dram" : "");
    snprintf(sensor.source, sizeof sensor.source, "%.400s" FOLDER "/%s/energy_uj", root,
             of->folder);
    sensor.domain = atoi(package->name + strlen("package-"));
    const char *die = strstr(package->name, "-die-");
    if (die != NULL) sensor.domain = 100 * (sensor.domain + 1) + atoi(die + 5);
    const int error = ls_meter_read_text(sensor.source, text, sizeof text);
    if (error == EACCES || error == EPERM)
        ls_meters_note_missing(meters, sensor.id,
                               "%s: permission denied; RAPL is for root alone since CVE-2020-8694: "
                               "let root run chmod a+r on it",
                               sensor.source);
    else if (error != 0)
        ls_meters_note_missing(meters, sensor.id, "%s: %s", sensor.source, strerror(error));
    else if (!ls_sensor_read_file(&sensor, &reading))
        ls_meters_note_missing(meters, sensor.id, "%s holds '%s', no count of microjoules",
                               sensor.source, text);
    else
        ls_meters_add(meters, &sensor);
}

void ls_meters_add_rapl(const char *root, ls_meters *meters)
{
    static zone zones[ZONES_MAX]; /* one run opens meters at a time */
    const int n = list_zones(root, zones);
    int n_taken = 0;

    for (int z = 0; z < n; z++) {
        const zone *parent = find_parent(zones, n, &zones[z]);
        const bool is_package = strncmp(zones[z].name, "package-", 8) == 0;
        const bool is_dram = strcmp(zones[z].name, "dram") == 0 && parent != NULL &&
                             strncmp(parent->name, "package-", 8) == 0;
        if (is_package || is_dram) {
            add_zone(root, &zones[z], is_package ? &zones[z] : parent, meters);
            n_taken++;
        } else if (strcmp(zones[z].name, "psys") == 0) {
            ls_meters_note_missing(meters, "rapl.psys", "left out: it holds the packages");
        }
    }
    if (n_taken == 0)
        ls_meters_note_missing(meters, "rapl", "no package under %s" FOLDER "/intel-rapl:*", root);
}
