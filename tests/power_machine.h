/*
 * power_machine.h - a machine whose meters draw scripted power: RAPL zones and Grace's ACPI meters
 * as files of a simulated /sys, an NVML of our own, and a recorder that is driven by hand along a
 * virtual clock: nothing here sleeps.
 */
#ifndef LS_POWER_MACHINE_H
#define LS_POWER_MACHINE_H

#include "machine_test.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <unistd.h>

#include "fake_nvml.h"
#include "json.h"
#include "power.h"

#define FAKE_NVML LS_BINARY_DIR "/fake_power/libnvidia-ml.so.1"

static char machines[512]; /* the folder of all roots */
static char root[600];     /* the machine at work: what stands before /sys */
static int n_roots;

enum { START_S = 1000 }; /* the virtual clock's, so that windows reach back before it */

static double clock_s;       /* since START_S */
static double clock_takes_s; /* that pass between two looks at it */
static double clock_taken_s;

static inline uint64_t virtual_ns(double seconds)
{
    return (uint64_t)(1e9 * (START_S + seconds) + 0.5);
}

static inline uint64_t virtual_clock(void)
{
    return virtual_ns(clock_s + (clock_taken_s += clock_takes_s));
}

/* ---- meters -------------------------------------------------------------------------------- */

typedef enum meter_kind { METER_RAPL, METER_HWMON } meter_kind;

typedef struct simulated_meter {
    meter_kind kind;
    const char *path; /* of the file with the value */
    waveform power;
    double wrap_j;   /* RAPL */
    double window_s; /* hwmon: of the mean, and how often it looks */
    enum { METER_WORKS, METER_FROZEN, METER_GARBAGE, METER_GONE } state;
} simulated_meter;

enum { METERS_MAX = 24 };

static struct {
    simulated_meter of[METERS_MAX];
    int n;
} meters;

static inline double meter_value(const simulated_meter *m, double t)
{
    if (m->kind == METER_HWMON) {
        const double look = m->window_s * floor(t / m->window_s + 1e-9);
        return 1e6 *
               (waveform_mean(&m->power, look, m->window_s) + waveform_ripple(look, m->window_s));
    }
    const double joules = 250.0 + waveform_joules(&m->power, t); /* it has counted before */
    return 1e6 * (joules - m->wrap_j * floor(joules / m->wrap_j));
}

static inline void show_meter(const simulated_meter *m, double t)
{
    char text[64], path[1024];

    snprintf(path, sizeof path, "%s%s", root, m->path);
    if (m->state == METER_GONE) unlink(path);
    if (m->state == METER_FROZEN || m->state == METER_GONE) return;
    snprintf(text, sizeof text, "%.0f", meter_value(m, t));
    put_machine_file(root, m->path, m->state == METER_GARBAGE ? "-- no value --" : text);
}

/* All meters, NVML and the clock. */
static inline void set_time(double t)
{
    clock_s = t;
    for (int m = 0; m < meters.n; m++) show_meter(&meters.of[m], START_S + t);
}

static inline simulated_meter *add_meter(meter_kind kind, const char *path, waveform power)
{
    simulated_meter *m = &meters.of[meters.n++];

    assert_true(meters.n <= METERS_MAX);
    *m = (simulated_meter){.kind = kind, .path = path, .power = power, .window_s = 0.05};
    return m;
}

/* A machine without meters. */
static inline void make_machine(void)
{
    snprintf(root, sizeof root, "%s/%d", machines, n_roots++);
    assert_int_equal(mkdir(root, 0755), 0);
    memset(&meters, 0, sizeof meters);
    clock_s = 0.0;
}

/* ---- the recorder -------------------------------------------------------------------------- */

enum { PHASE_FORWARD, PHASE_BACKWARD, PHASE_UPDATE, PHASE_IDLE, N_PHASES };

static const char *const phase_names[] = {"forward", "backward", "update", "idle"};

static ls_power *power;

static inline ls_power_options power_options(const char *nvml)
{
    return (ls_power_options){.samples_hz = 10,
                              .attempt = 1,
                              .meters = {.sysfs_root = root, .nvml_library = nvml},
                              .phases = phase_names,
                              .n_phases = N_PHASES,
                              .idle_phase = PHASE_IDLE,
                              .rest_phase = -1,
                              .by_hand = true,
                              .clock_ns = virtual_clock};
}

static inline void open_power(const char *nvml)
{
    const ls_power_options options = power_options(nvml);

    set_time(0.0);
    assert_int_equal(ls_power_open(&options, &power), LS_OK);
}

static inline void close_power(void)
{
    ls_power_close(power);
    power = NULL;
}

/* Ask ten times a second, until then. */
static inline void run_until(double end_s)
{
    while (clock_s + 0.05 < end_s) {
        set_time(clock_s + 0.1);
        ls_power_tick(power, virtual_ns(clock_s));
    }
}

static inline void enter_phase(int phase, double at_s)
{
    ls_power_phase(power, phase, 1, virtual_ns(at_s));
}

static inline ls_power_sums take_sums(double at_s)
{
    ls_power_sums sums;
    ls_power_take(power, virtual_ns(at_s), &sums);
    return sums;
}

static inline double exact_joules(const waveform *w, double from_s, double to_s)
{
    return waveform_joules(w, START_S + to_s) - waveform_joules(w, START_S + from_s);
}

static inline void assert_near(double value, double exact, double tolerance)
{
    if (!(fabs(value - exact) <= tolerance * fabs(exact)))
        fail_msg("%.6g is not within %g%% of %.6g", value, 100.0 * tolerance, exact);
}

static inline int make_machines(void **state)
{
    (void)state;
    if (make_machines_folder(machines, sizeof machines) != 0) return -1;
    return chmod(machines, 0755);
}

static inline int remove_machines(void **state)
{
    (void)state;
    return ls_directory_remove(machines) == LS_OK ? 0 : -1;
}

/* ---- meters as they are found ---------------------------------------------------------------- */

#define NO_NVML "/nowhere/libnvidia-ml.so.1"

static inline const ls_sensor *find_sensor(const ls_meters *m, const char *id)
{
    for (int s = 0; s < m->n_sensors; s++)
        if (strcmp(m->sensors[s].id, id) == 0) return &m->sensors[s];
    return NULL;
}

static inline const char *why_missing(const ls_meters *m, const char *what)
{
    for (int i = 0; i < m->n_missing; i++)
        if (strcmp(m->missing[i].what, what) == 0) return m->missing[i].why;
    fail_msg("%s is not among the missing", what);
    return NULL;
}

static inline void open_meters(ls_meters *m, const char *nvml)
{
    set_time(0.0);
    ls_meters_open(&(ls_meter_options){root, nvml}, m);
}

/* ---- Grace ---------------------------------------------------------------------------------- */

static const waveform superchip_power = {WAVE_SQUARE, 300.0, 700.0, 8.0};
static const waveform grace_power = {WAVE_RAMP, 80.0, 180.0, 6.0};
static const waveform cpu_power = {WAVE_RAMP, 30.0, 90.0, 6.0};
static const waveform sysio_power = {WAVE_SQUARE, 9.0, 14.0, 5.0};

static const struct {
    const char *word;
    const waveform *power;
} grace_meters[] = {{"Module", &superchip_power},
                    {"Grace", &grace_power},
                    {"CPU", &cpu_power},
                    {"SysIO", &sysio_power}};

/* One socket's meters: a hwmon each, in its device folder (old) or in itself (new); or all four in
 * one folder. */
static inline void add_socket(int socket, const char *layout)
{
    static char paths[METERS_MAX][128];
    char path[160], label[64], folder[96];

    for (int k = 0; k < 4; k++) {
        const int first = meters.n;
        const bool shared = strcmp(layout, "shared") == 0;
        const int number = shared ? 3 : 40 - (4 * socket + k); /* not in the order of sockets */
        snprintf(folder, sizeof folder, "/sys/class/hwmon/hwmon%d%s", number,
                 strcmp(layout, "old") == 0 ? "/device" : "");
        const int index = shared ? 1 + 4 * socket + k : 1;
        snprintf(path, sizeof path, "%s/power%d_oem_info", folder, index);
        snprintf(label, sizeof label, "%s Power Socket %d", grace_meters[k].word, socket);
        put_machine_file(root, path, label);
        snprintf(path, sizeof path, "%s/power%d_average_interval", folder, index);
        put_machine_file(root, path, "50");
        snprintf(paths[first], sizeof paths[first], "%s/power%d_average", folder, index);
        add_meter(METER_HWMON, paths[first], *grace_meters[k].power);
    }
}

#endif
