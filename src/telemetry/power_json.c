/* power_json.c - the recorder as run.json has it: sensors, rails, what is missing, sums. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "json.h"
#include "power_internal.h"

static ls_status add_text(cJSON *object, const char *key, const char *text)
{
    return ls_json_add(object, key, cJSON_CreateString(text));
}

/* null if it is not finite. */
static ls_status add_number(cJSON *object, const char *key, double value)
{
    return ls_json_add(object, key,
                       isfinite(value) ? cJSON_CreateNumber(value) : cJSON_CreateNull());
}

static const power_channel *find_channel(const ls_power *p, int sensor)
{
    for (int c = 0; c < p->n_channels; c++)
        if (p->channels[c].sensor == sensor) return &p->channels[c];
    return NULL;
}

static ls_status add_channel(const power_channel *channel, cJSON *object)
{
    const ls_energy *e = &channel->energy;
    const uint64_t period = ls_energy_period_ns(e);

    LS_TRY(add_number(object, "update_period_s", period > 0 ? 1e-9 * (double)period : (double)NAN));
    LS_TRY(add_number(object, "readings", (double)e->n_readings));
    LS_TRY(add_number(object, "failed", (double)e->n_failed));
    LS_TRY(add_number(object, "wraps", (double)e->n_wraps));
    LS_TRY(add_number(object, "resets", (double)e->n_resets));
    LS_TRY(add_number(object, "gaps", (double)e->n_gaps));
    return ls_json_add(object, "frozen", cJSON_CreateBool(e->frozen));
}

static ls_status add_sensor(const ls_power *p, int index, cJSON *sensors)
{
    static const char *const kinds[] = {"power", "energy", "state"};
    const ls_sensor *sensor = &p->meters.sensors[index];
    const power_channel *channel = find_channel(p, index);
    cJSON *object = cJSON_CreateObject();

    LS_TRY(ls_json_append(sensors, object));
    LS_TRY(add_text(object, "id", sensor->id));
    LS_TRY(add_text(object, "kind", kinds[sensor->kind]));
    LS_TRY(add_text(object, "rail", ls_rail_name(sensor->rail)));
    LS_TRY(add_number(object, "domain", sensor->domain));
    LS_TRY(add_text(object, "source", sensor->source));
    LS_TRY(add_text(object, "contains", sensor->contains));
    LS_TRY(add_text(object, "unit", sensor->unit));
    LS_TRY(add_number(object, "scale", sensor->scale));
    LS_TRY(
        add_number(object, "latency_s_max", 1e-9 * (double)atomic_load(&p->latency_ns_max[index])));
    if (channel == NULL) return LS_OK;
    LS_TRY(add_text(object, "method", ls_method_name(sensor->method)));
    LS_TRY(add_number(object, "window_s",
                      sensor->kind == LS_SENSOR_POWER ? sensor->window_s : (double)NAN));
    LS_TRY(add_number(object, "wrap_joules",
                      sensor->wrap_joules > 0.0 ? sensor->wrap_joules : (double)NAN));
    return add_channel(channel, object);
}

static ls_status add_notes(const ls_meter_note *notes, int n, const char *key, cJSON *power)
{
    cJSON *array = cJSON_CreateArray();

    LS_TRY(ls_json_add(power, key, array));
    for (int i = 0; i < n; i++) {
        cJSON *object = cJSON_CreateObject();
        LS_TRY(ls_json_append(array, object));
        LS_TRY(add_text(object, "what", notes[i].what));
        LS_TRY(add_text(object, strcmp(key, "missing") == 0 ? "why" : "value", notes[i].why));
    }
    return LS_OK;
}

static ls_status add_phases(const ls_power *p, const ls_power_sums *sums, ls_rail rail,
                            cJSON *object)
{
    cJSON *phases = cJSON_CreateObject();

    LS_TRY(ls_json_add(object, "phase_joules", phases));
    for (int f = 0; f < p->options.n_phases; f++)
        if (sums->phase_seconds[f] > 0.0)
            LS_TRY(add_number(phases, p->options.phases[f], sums->phase_joules[rail][f]));
    return LS_OK;
}

/* The largest relative difference of another method from the one that is quoted. */
static ls_status add_methods(const ls_power *p, const ls_power_sums *sums, ls_rail rail,
                             uint64_t now_ns, cJSON *object)
{
    cJSON *methods = cJSON_CreateObject();
    double disagreement = (double)NAN;
    power_method sum;

    LS_TRY(ls_json_add(object, "methods", methods));
    for (ls_method method = 0; method < LS_METHOD_COUNT; method++) {
        if (!power_method_sum(p, rail, method, now_ns, &sum)) continue;
        cJSON *one = cJSON_CreateObject();
        LS_TRY(ls_json_add(methods, ls_method_name(method), one));
        LS_TRY(add_number(one, "joules", sum.joules));
        LS_TRY(add_number(one, "coverage", sum.coverage));
        LS_TRY(add_number(one, "error_joules", sum.error_joules));
        if ((int)method == sums->method[rail] || sum.coverage <= 0.0) continue;
        const double relative = fabs(sum.joules / sum.coverage / sums->joules[rail] - 1.0);
        disagreement = fmax(disagreement, relative); /* NAN gives way */
    }
    return add_number(object, "disagreement", disagreement);
}

static ls_status add_rail(const ls_power *p, const ls_power_sums *sums, ls_rail rail,
                          uint64_t now_ns, cJSON *rails)
{
    const int method = sums->method[rail];
    cJSON *object = cJSON_CreateObject();

    LS_TRY(ls_json_add(rails, ls_rail_name(rail), object));
    LS_TRY(add_number(object, "joules", sums->joules[rail]));
    LS_TRY(add_number(object, "watts_mean", sums->joules[rail] / sums->seconds));
    LS_TRY(add_number(object, "coverage", sums->coverage[rail]));
    LS_TRY(ls_json_add(object, "method",
                       method >= 0 ? cJSON_CreateString(ls_method_name((ls_method)method))
                                   : cJSON_CreateNull()));
    const int at_rest = p->options.rest_phase; /* divided by zero seconds: NAN, as it should be */
    LS_TRY(add_number(object, "idle_watts",
                      at_rest >= 0
                          ? sums->phase_joules[rail][at_rest] / sums->phase_seconds[at_rest]
                          : (double)NAN));
    LS_TRY(add_methods(p, sums, rail, now_ns, object));
    return add_phases(p, sums, rail, object);
}

/* What is left of the module when its known parts are taken away: regulators, or meters at odds. */
static ls_status add_rest(const ls_power_sums *sums, cJSON *summary)
{
    const double module = sums->joules[LS_RAIL_MODULE];
    const double parts = sums->joules[LS_RAIL_GPU] + sums->joules[LS_RAIL_GRACE];
    return add_number(summary, "module_less_gpu_and_grace_joules", module - parts);
}

static ls_status add_summary(const ls_power *p, cJSON *power)
{
    const uint64_t now_ns = ls_clock_ns();
    cJSON *summary = cJSON_CreateObject();
    ls_power_sums sums;

    power_sum(p, now_ns, true, &sums);
    LS_TRY(ls_json_add(power, "summary", summary));
    LS_TRY(add_number(summary, "seconds", sums.seconds));
    LS_TRY(add_number(summary, "questions", (double)atomic_load(&p->n_ticks)));
    LS_TRY(add_number(summary, "missed", (double)atomic_load(&p->n_missed)));
    cJSON *seconds = cJSON_CreateObject();
    LS_TRY(ls_json_add(summary, "phase_seconds", seconds));
    for (int f = 0; f < p->options.n_phases; f++)
        if (sums.phase_seconds[f] > 0.0)
            LS_TRY(add_number(seconds, p->options.phases[f], sums.phase_seconds[f]));
    cJSON *rails = cJSON_CreateObject();
    LS_TRY(ls_json_add(summary, "rails", rails));
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++)
        if (!isnan(sums.coverage[rail])) LS_TRY(add_rail(p, &sums, rail, now_ns, rails));
    return add_rest(&sums, summary);
}

static ls_status fill(const ls_power *p, bool final, cJSON *power)
{
    const int hanging = atomic_load(&p->reading), error = atomic_load(&p->file.error);
    cJSON *clock = cJSON_CreateObject(), *sensors;

    LS_TRY(ls_json_add(power, "clock", clock));
    LS_TRY(add_number(clock, "monotonic_ns", (double)p->opened_ns));
    LS_TRY(add_number(clock, "epoch_s", p->opened_epoch_s));
    LS_TRY(add_number(power, "samples_hz", p->options.samples_hz));
    LS_TRY(ls_json_add(power, "another_recorder", cJSON_CreateBool(p->shared)));
    sensors = cJSON_CreateArray();
    LS_TRY(ls_json_add(power, "sensors", sensors));
    for (int s = 0; s < p->meters.n_sensors; s++) LS_TRY(add_sensor(p, s, sensors));
    LS_TRY(add_notes(p->meters.missing, p->meters.n_missing, "missing", power));
    LS_TRY(add_notes(p->meters.facts, p->meters.n_facts, "facts", power));
    if (!final) return LS_OK;
    LS_TRY(ls_json_add(power, "hangs",
                       hanging >= 0 ? cJSON_CreateString(p->meters.sensors[hanging].id)
                                    : cJSON_CreateNull()));
    LS_TRY(ls_json_add(power, "file_ended_by",
                       error != 0 ? cJSON_CreateString(strerror(error)) : cJSON_CreateNull()));
    return add_summary(p, power);
}

ls_status ls_power_describe(ls_power *power, bool final, cJSON **json)
{
    cJSON *object = cJSON_CreateObject();

    if (object == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "power in run.json");
    pthread_mutex_lock(&power->mutex);
    const ls_status status = fill(power, final, object);
    pthread_mutex_unlock(&power->mutex);
    if (status != LS_OK) {
        cJSON_Delete(object);
        return status;
    }
    *json = object;
    return LS_OK;
}

bool ls_power_has_rail(ls_power *power, ls_rail rail)
{
    bool found = false;

    pthread_mutex_lock(&power->mutex); /* a counter may be finding its rail */
    for (int s = 0; s < power->meters.n_sensors; s++)
        found |= power->meters.sensors[s].rail == rail;
    pthread_mutex_unlock(&power->mutex);
    return found;
}

/* The note of the source that could have told. */
const char *ls_power_reason(const ls_power *power, ls_rail rail)
{
    static const char *const sources[LS_RAIL_COUNT] = {
        [LS_RAIL_GPU] = "nvml",       [LS_RAIL_MODULE] = "grace", [LS_RAIL_CPU] = "rapl",
        [LS_RAIL_GRACE] = "grace",    [LS_RAIL_SYSIO] = "grace",  [LS_RAIL_DRAM] = "rapl",
        [LS_RAIL_GPU_MEMORY] = "nvml"};
    const char *source = sources[rail];

    for (int i = 0; i < power->meters.n_missing; i++)
        if (strncmp(power->meters.missing[i].what, source, strlen(source)) == 0)
            return power->meters.missing[i].why;
    return "no sensor of this machine tells it";
}
