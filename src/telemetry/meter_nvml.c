/*
 * meter_nvml.c - NVIDIA's management library, loaded at run time: power by scope, energy, clocks,
 * temperature, reasons for lower clocks, bytes over C2C, limits.  No CUDA context and no CUDA call.
 *
 * Which (field, scope) pairs answer differs by product and driver, so each is asked once and only
 * those that answer become sensors, labelled with their scope.  A Grace Hopper's energy counter
 * that is asked for the GPU's may be the whole module's: it is marked unsure, and its slope tells
 * (power.c).  Scopes are nvml.h's macros; the comment on scopeId there has other numbers.
 *
 * The few declarations needed stand here: the plain toolkit has no nvml.h.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpm.h"
#include "meter.h"

#define GPUS_MAX 8

enum {
    FIELD_TOTAL_ENERGY = 83,
    FIELD_POWER_AVERAGE = 185,
    FIELD_POWER_INSTANT = 186,
    FIELD_POWER_MAX_LIMIT = 188,
    FIELD_POWER_CURRENT_LIMIT = 190,
    FIELD_ENERGY = 191
};

enum { SCOPE_GPU = 0, SCOPE_MODULE = 1, SCOPE_MEMORY = 2, N_SCOPES };

enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, TEMPERATURE_GPU = 0 };

typedef struct nvml_field {
    unsigned field, scope;
    long long timestamp_us, latency_us;
    int type, result;
    union {
        double d;
        unsigned ui;
        unsigned long ul;
        unsigned long long ull;
        long long sll;
        int si;
        unsigned short us;
    } value;
} nvml_field;

typedef struct nvml_gpu {
    const struct nvml_library *library;
    void *device;
    int index;
    ls_gpm *gpm; /* NULL: none */
} nvml_gpu;

typedef struct nvml_library {
    void *handle;
    int (*start)(void);
    int (*stop)(void);
    int (*count)(unsigned *n);
    int (*device)(unsigned index, void **device);
    int (*fields)(void *device, int n, nvml_field *fields);
    /* Not in every driver: NULL where missing. */
    int (*name)(void *device, char *name, unsigned bytes);
    int (*driver)(char *version, unsigned bytes);
    int (*power)(void *device, unsigned *milliwatts);
    int (*energy)(void *device, unsigned long long *millijoules);
    int (*clock)(void *device, int type, unsigned *mhz);
    int (*temperature)(void *device, int sensor, unsigned *celsius);
    int (*reasons)(void *device, unsigned long long *bits);
    nvml_gpu gpus[GPUS_MAX];
} nvml_library;

/* ISO C has no cast from an object pointer to a function's. */
static bool find(void *library, const char *name, void *function, size_t bytes)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, bytes);
    return symbol != NULL;
}

#define FIND(nvml, member, name) find((nvml)->handle, (name), &(nvml)->member, sizeof(nvml)->member)

static bool find_functions(nvml_library *nvml)
{
    FIND(nvml, name, "nvmlDeviceGetName");
    FIND(nvml, driver, "nvmlSystemGetDriverVersion");
    FIND(nvml, power, "nvmlDeviceGetPowerUsage");
    FIND(nvml, energy, "nvmlDeviceGetTotalEnergyConsumption");
    FIND(nvml, clock, "nvmlDeviceGetClockInfo");
    FIND(nvml, temperature, "nvmlDeviceGetTemperature");
    if (!FIND(nvml, reasons, "nvmlDeviceGetCurrentClocksEventReasons"))
        FIND(nvml, reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
    return FIND(nvml, start, "nvmlInit_v2") && FIND(nvml, stop, "nvmlShutdown") &&
           FIND(nvml, count, "nvmlDeviceGetCount_v2") &&
           FIND(nvml, device, "nvmlDeviceGetHandleByIndex_v2") &&
           FIND(nvml, fields, "nvmlDeviceGetFieldValues");
}

/* ---- fields -------------------------------------------------------------------------------- */

/* By the type the driver names. */
static int64_t field_value(const nvml_field *f)
{
    switch (f->type) {
    case 0: return f->value.d >= 0 && f->value.d < 9e18 ? (int64_t)f->value.d : -1;
    case 1: return (int64_t)f->value.ui;
    case 2: return (int64_t)f->value.ul;
    case 3: return (int64_t)f->value.ull;
    case 4: return f->value.sll;
    case 5: return f->value.si;
    case 6: return f->value.us;
    default: return -1;
    }
}

/* 0, or NVML's error. */
static int ask_field(const nvml_gpu *gpu, unsigned field, unsigned scope, ls_reading *reading)
{
    nvml_field asked = {.field = field, .scope = scope};
    const int error = gpu->library->fields(gpu->device, 1, &asked);

    if (error != 0 || asked.result != 0) return error != 0 ? error : asked.result;
    *reading =
        (ls_reading){.ok = true, .raw = field_value(&asked), .stamp = (uint64_t)asked.timestamp_us};
    return reading->raw < 0 ? -1 : 0;
}

static bool read_field(const ls_sensor *sensor, ls_reading *reading)
{
    return ask_field(sensor->context, sensor->field, sensor->scope, reading) == 0;
}

/* What drivers without these fields have. */
static bool read_power(const ls_sensor *sensor, ls_reading *reading)
{
    const nvml_gpu *gpu = sensor->context;
    unsigned milliwatts = 0;

    if (gpu->library->power == NULL || gpu->library->power(gpu->device, &milliwatts) != 0)
        return false;
    *reading = (ls_reading){.ok = true, .raw = milliwatts};
    return true;
}

static bool read_energy(const ls_sensor *sensor, ls_reading *reading)
{
    const nvml_gpu *gpu = sensor->context;
    unsigned long long millijoules = 0;

    if (gpu->library->energy == NULL || gpu->library->energy(gpu->device, &millijoules) != 0)
        return false;
    *reading = (ls_reading){.ok = true, .raw = (int64_t)millijoules};
    return true;
}

static bool read_clock(const ls_sensor *sensor, ls_reading *reading)
{
    const nvml_gpu *gpu = sensor->context;
    unsigned mhz = 0;

    if (gpu->library->clock == NULL ||
        gpu->library->clock(gpu->device, (int)sensor->field, &mhz) != 0)
        return false;
    *reading = (ls_reading){.ok = true, .raw = mhz};
    return true;
}

static bool read_temperature(const ls_sensor *sensor, ls_reading *reading)
{
    const nvml_gpu *gpu = sensor->context;
    unsigned celsius = 0;

    if (gpu->library->temperature == NULL ||
        gpu->library->temperature(gpu->device, TEMPERATURE_GPU, &celsius) != 0)
        return false;
    *reading = (ls_reading){.ok = true, .raw = celsius};
    return true;
}

static bool read_reasons(const ls_sensor *sensor, ls_reading *reading)
{
    const nvml_gpu *gpu = sensor->context;
    unsigned long long bits = 0;

    if (gpu->library->reasons == NULL || gpu->library->reasons(gpu->device, &bits) != 0)
        return false;
    *reading = (ls_reading){.ok = true, .raw = (int64_t)bits};
    return true;
}

/* The first of the two takes the sample that both are told from. */
static bool read_c2c(const ls_sensor *sensor, ls_reading *reading)
{
    const nvml_gpu *gpu = sensor->context;
    double mib_per_s = 0.0;

    if (sensor->field == LS_GPM_C2C_DATA_TX && !ls_gpm_sample(gpu->gpm)) return false;
    if (!ls_gpm_value(gpu->gpm, sensor->field, &mib_per_s)) return false;
    *reading = (ls_reading){.ok = true, .raw = (int64_t)(1024.0 * mib_per_s + 0.5)};
    return true;
}

/* ---- sensors ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    ls_rail rail;
    const char *contains;
} scopes[N_SCOPES] = {
    [SCOPE_GPU] = {"gpu", LS_RAIL_GPU, "the GPU with its memory, as the driver calls it"},
    [SCOPE_MODULE] = {"module", LS_RAIL_MODULE, "the whole module: CPU, LPDDR, GPU, HBM"},
    [SCOPE_MEMORY] = {"memory", LS_RAIL_GPU_MEMORY, "the GPU's memory; part of gpu"},
};

static const char *error_text(int error, char text[48])
{
    snprintf(text, 48, error == 3 ? "NOT_SUPPORTED (3)" : "error %d", error);
    return text;
}

static ls_sensor describe_field(const nvml_gpu *gpu, unsigned field, unsigned scope)
{
    const bool energy = field == FIELD_ENERGY;
    const char *what = energy ? "energy" : field == FIELD_POWER_AVERAGE ? "average" : "instant";
    ls_sensor sensor = {.kind = energy ? LS_SENSOR_ENERGY : LS_SENSOR_POWER,
                        .rail = scopes[scope].rail,
                        .method = energy                         ? LS_METHOD_COUNTER
                                  : field == FIELD_POWER_AVERAGE ? LS_METHOD_AVERAGE
                                                                 : LS_METHOD_INSTANT,
                        .domain = gpu->index,
                        .unit = energy ? "mJ" : "mW",
                        .scale = 1e-3,
                        .window_s = field == FIELD_POWER_AVERAGE ? 1.0 : 0.0,
                        .contains = scopes[scope].contains,
                        .read = read_field,
                        .context = gpu,
                        .field = field,
                        .scope = scope};
    snprintf(sensor.id, sizeof sensor.id, "nvml%d.%s.%s", gpu->index, scopes[scope].name, what);
    snprintf(sensor.source, sizeof sensor.source, "NVML field %u, scope %u (%s)", field, scope,
             scopes[scope].name);
    return sensor;
}

/* Ask one pair; a memory scope that says 0 is not there. */
static int add_field(const nvml_gpu *gpu, unsigned field, unsigned scope, ls_meters *meters)
{
    const ls_sensor sensor = describe_field(gpu, field, scope);
    ls_reading reading = {0};
    char text[48];
    const int error = ask_field(gpu, field, scope, &reading);

    if (error == 0 && (reading.raw > 0 || scope != SCOPE_MEMORY))
        ls_meters_add(meters, &sensor);
    else
        ls_meters_note_missing(meters, sensor.id, "%s: %s", sensor.source,
                               error != 0 ? error_text(error, text) : "says 0");
    return error;
}

static void add_power(const nvml_gpu *gpu, ls_meters *meters)
{
    bool any = false;
    ls_sensor old = describe_field(gpu, FIELD_POWER_AVERAGE, SCOPE_GPU);
    ls_reading reading;

    for (unsigned scope = 0; scope < N_SCOPES; scope++) {
        any |= add_field(gpu, FIELD_POWER_AVERAGE, scope, meters) == 0;
        any |= add_field(gpu, FIELD_POWER_INSTANT, scope, meters) == 0;
    }
    old.read = read_power;
    snprintf(old.source, sizeof old.source, "nvmlDeviceGetPowerUsage");
    if (!any && read_power(&old, &reading)) ls_meters_add(meters, &old);
}

/* The counter of the module where it is told apart; else the one counter there is, and whose it is
 * is unsure on a machine that also knows modules. */
static void add_energy(const nvml_gpu *gpu, ls_meters *meters)
{
    const bool has_module = add_field(gpu, FIELD_ENERGY, SCOPE_MODULE, meters) == 0;
    ls_sensor counter = describe_field(gpu, FIELD_ENERGY, SCOPE_GPU);
    ls_reading reading;

    if (ask_field(gpu, FIELD_ENERGY, SCOPE_GPU, &reading) != 0) {
        counter.field = FIELD_TOTAL_ENERGY;
        snprintf(counter.source, sizeof counter.source, "NVML field %d", FIELD_TOTAL_ENERGY);
        if (ask_field(gpu, FIELD_TOTAL_ENERGY, 0, &reading) != 0) {
            counter.read = read_energy;
            snprintf(counter.source, sizeof counter.source, "nvmlDeviceGetTotalEnergyConsumption");
            if (!read_energy(&counter, &reading)) {
                ls_meters_note_missing(meters, counter.id, "no energy counter answers");
                return;
            }
        }
    }
    for (int s = 0; s < meters->n_sensors && !has_module; s++)
        if (meters->sensors[s].rail == LS_RAIL_MODULE) counter.scope_unsure = true;
    if (counter.scope_unsure) {
        counter.rail = LS_RAIL_NONE;
        counter.contains = "the GPU or the whole module: told by its slope";
    }
    ls_meters_add(meters, &counter);
}

static void add_state(const nvml_gpu *gpu, const char *name, const char *unit, unsigned field,
                      bool (*read)(const ls_sensor *, ls_reading *), ls_meters *meters)
{
    ls_sensor sensor = {.kind = LS_SENSOR_STATE,
                        .rail = LS_RAIL_NONE,
                        .domain = gpu->index,
                        .unit = unit,
                        .scale = 1.0,
                        .contains = "state of the GPU",
                        .read = read,
                        .context = gpu,
                        .field = field};
    ls_reading reading;

    snprintf(sensor.id, sizeof sensor.id, "nvml%d.%s", gpu->index, name);
    snprintf(sensor.source, sizeof sensor.source, "NVML");
    if (read(&sensor, &reading))
        ls_meters_add(meters, &sensor);
    else
        ls_meters_note_missing(meters, sensor.id, "NVML does not tell");
}

/* Added unread: a rate takes two samples. */
static void add_c2c(nvml_gpu *gpu, ls_meters *meters)
{
    static const struct {
        const char *name, *contains;
        unsigned metric;
    } ways[] = {{"c2c_tx", "data over C2C from the GPU", LS_GPM_C2C_DATA_TX},
                {"c2c_rx", "data over C2C to the GPU", LS_GPM_C2C_DATA_RX}};

    gpu->gpm = ls_gpm_open(gpu->library->handle, gpu->device);
    for (int w = 0; w < 2; w++) {
        ls_sensor sensor = {.kind = LS_SENSOR_STATE,
                            .rail = LS_RAIL_NONE,
                            .domain = gpu->index,
                            .unit = "KiB/s",
                            .scale = 1.0,
                            .contains = ways[w].contains,
                            .read = read_c2c,
                            .context = gpu,
                            .field = ways[w].metric};
        snprintf(sensor.id, sizeof sensor.id, "nvml%d.%s", gpu->index, ways[w].name);
        snprintf(sensor.source, sizeof sensor.source, "NVML GPM metric %u", ways[w].metric);
        if (gpu->gpm != NULL)
            ls_meters_add(meters, &sensor);
        else
            ls_meters_note_missing(meters, sensor.id,
                                   "this driver or GPU has no performance monitoring (GPM)");
    }
}

static void add_limit(const nvml_gpu *gpu, unsigned scope, ls_meters *meters)
{
    char what[LS_SENSOR_ID_BYTES];
    ls_reading now = {0}, most = {0};

    if (ask_field(gpu, FIELD_POWER_CURRENT_LIMIT, scope, &now) != 0 || now.raw == 0) return;
    snprintf(what, sizeof what, "nvml%d.%s.limit", gpu->index, scopes[scope].name);
    if (ask_field(gpu, FIELD_POWER_MAX_LIMIT, scope, &most) == 0)
        ls_meters_note_fact(meters, what, "%.1f W now, %.1f W at most", 1e-3 * (double)now.raw,
                            1e-3 * (double)most.raw);
    else
        ls_meters_note_fact(meters, what, "%.1f W now", 1e-3 * (double)now.raw);
}

static void add_gpu(nvml_gpu *gpu, ls_meters *meters)
{
    char name[96] = "", what[LS_SENSOR_ID_BYTES];

    snprintf(what, sizeof what, "nvml%d", gpu->index);
    if (gpu->library->name != NULL && gpu->library->name(gpu->device, name, sizeof name) == 0)
        ls_meters_note_fact(meters, what, "%s", name);
    add_power(gpu, meters);
    add_energy(gpu, meters);
    add_state(gpu, "clock_sm", "MHz", CLOCK_SM, read_clock, meters);
    add_state(gpu, "clock_memory", "MHz", CLOCK_MEMORY, read_clock, meters);
    add_state(gpu, "temperature", "degC", 0, read_temperature, meters);
    add_state(gpu, "clocks_event_reasons", "bits", 0, read_reasons, meters);
    add_c2c(gpu, meters);
    add_limit(gpu, SCOPE_GPU, meters);
    add_limit(gpu, SCOPE_MODULE, meters);
}

static void add_gpus(nvml_library *nvml, ls_meters *meters)
{
    char version[96] = "";
    unsigned n = 0;

    if (nvml->driver != NULL && nvml->driver(version, sizeof version) == 0)
        ls_meters_note_fact(meters, "driver", "%s", version);
    if (nvml->count(&n) != 0 || n == 0) ls_meters_note_missing(meters, "nvml", "it has no GPU");
    for (unsigned index = 0; index < n && index < GPUS_MAX; index++) {
        nvml_gpu *gpu = &nvml->gpus[index];
        *gpu = (nvml_gpu){.library = nvml, .index = (int)index};
        const int error = nvml->device(index, &gpu->device);
        if (error == 0)
            add_gpu(gpu, meters);
        else
            ls_meters_note_missing(meters, "nvml", "GPU %u: error %d", index, error);
    }
}

void ls_meters_add_nvml(const char *library, ls_meters *meters)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    nvml_library *nvml = NULL;

    if (handle == NULL) {
        ls_meters_note_missing(meters, "nvml", "no %s: no NVIDIA driver is installed here",
                               library);
        return;
    }
    /* The handle stays: a driver library may have started threads of its own. */
    nvml = calloc(1, sizeof *nvml);
    if (nvml == NULL) {
        ls_meters_note_missing(meters, "nvml", "out of memory");
        return;
    }
    nvml->handle = handle;
    const int error = find_functions(nvml) ? nvml->start() : -1;
    if (error != 0) {
        ls_meters_note_missing(meters, "nvml", "%s %s", library,
                               error < 0 ? "lacks functions of driver 535" : "does not start");
        free(nvml);
        return;
    }
    meters->nvml = nvml;
    add_gpus(nvml, meters);
}

void ls_meters_close_nvml(ls_meters *meters)
{
    nvml_library *nvml = meters->nvml;

    if (nvml == NULL) return;
    for (int g = 0; g < GPUS_MAX; g++) ls_gpm_close(nvml->gpus[g].gpm);
    nvml->stop();
    free(nvml);
    meters->nvml = NULL;
}
