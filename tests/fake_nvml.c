/*
 * fake_nvml.c - a libnvidia-ml.so.1 whose GPUs draw scripted power: which scopes answer, what the
 * energy counter really counts, when it is reset, all as a test says (fake_nvml.h).
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "fake_nvml.h"

#define API __attribute__((visibility("default")))

enum { NOT_SUPPORTED = 3, TYPE_UINT = 1, TYPE_ULL = 3 };

typedef struct field {
    unsigned field, scope;
    long long timestamp_us, latency_us;
    int type, result;
    union {
        unsigned ui;
        unsigned long long ull;
    } value;
} field;

struct gpm_question {
    unsigned version, n;
    double *sample1, *sample2;
    struct {
        unsigned id;
        int result;
        double value;
        char *texts[3];
    } metrics[1];
};

API extern fake_nvml_script fake_nvml;
API int nvmlInit_v2(void);
API int nvmlShutdown(void);
API int nvmlSystemGetDriverVersion(char *version, unsigned bytes);
API int nvmlDeviceGetCount_v2(unsigned *n);
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
API int nvmlDeviceGetName(void *device, char *name, unsigned bytes);
API int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz);
API int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);
API int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *bits);
API int nvmlGpmQueryDeviceSupport(void *device, unsigned answer[2]);
API int nvmlGpmSampleAlloc(void **sample);
API int nvmlGpmSampleFree(void *sample);
API int nvmlGpmSampleGet(void *device, void *sample);
API int nvmlGpmMetricsGet(struct gpm_question *question);
API int nvmlDeviceGetFieldValues(void *device, int n, field *fields);

fake_nvml_script fake_nvml = {.n_gpus = 1};

static char handles[8];

int nvmlInit_v2(void)
{
    return fake_nvml.broken ? 9 : 0;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlSystemGetDriverVersion(char *version, unsigned bytes)
{
    snprintf(version, bytes, "580.65.06");
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = (unsigned)fake_nvml.n_gpus;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = &handles[index];
    return 0;
}

int nvmlDeviceGetName(void *device, char *name, unsigned bytes)
{
    snprintf(name, bytes, "NVIDIA GH200 480GB");
    return device == NULL;
}

int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz)
{
    *mhz = type == 1 ? 1980 : 2619;
    return device == NULL;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
    *celsius = 41;
    return device == NULL || sensor != 0;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *bits)
{
    *bits = 4; /* power cap */
    return device == NULL;
}

/* When power last looked. */
static double look_s(void)
{
    const double period = fake_nvml.period_s;
    return period > 0.0 ? period * floor(fake_nvml.now_s / period + 1e-9) : fake_nvml.now_s;
}

static int answer_power(field *f, double window_s, const int *supports)
{
    if (f->scope >= FAKE_SCOPES || !supports[f->scope]) return NOT_SUPPORTED;
    f->type = TYPE_UINT;
    const double watts = waveform_mean(&fake_nvml.power[f->scope], look_s(), window_s);
    f->value.ui = (unsigned)(1000.0 * (watts + waveform_ripple(look_s(), 0.1)) + 0.5);
    if (fake_nvml.stamps) f->timestamp_us = (long long)(1e6 * look_s()) + 1;
    return 0;
}

static int answer_energy(field *f, int scope)
{
    const waveform *w = &fake_nvml.power[scope];
    const double from =
        fake_nvml.reset_s > 0.0 && fake_nvml.now_s >= fake_nvml.reset_s ? fake_nvml.reset_s : -1.0;
    const double joules =
        waveform_joules(w, fake_nvml.now_s) - (from >= 0.0 ? waveform_joules(w, from) : -12345.0);

    f->type = TYPE_ULL;
    f->value.ull = (unsigned long long)(1000.0 * joules);
    return 0;
}

static int answer(field *f)
{
    if (f->field == 185) return answer_power(f, 1.0, fake_nvml.supports_average);
    if (f->field == 186) return answer_power(f, 0.0, fake_nvml.supports_instant);
    if (f->field == 83) return answer_energy(f, fake_nvml.counter_scope);
    if (f->field == 191 && f->scope < FAKE_SCOPES && fake_nvml.supports_energy[f->scope])
        return answer_energy(f, f->scope == FAKE_GPU ? fake_nvml.counter_scope : (int)f->scope);
    if (f->field == 190 && f->scope < FAKE_MEMORY) {
        f->type = TYPE_UINT;
        f->value.ui = f->scope == FAKE_MODULE ? 1000000 : 700000;
        return 0;
    }
    return NOT_SUPPORTED;
}

int nvmlDeviceGetFieldValues(void *device, int n, field *fields)
{
    for (int i = 0; i < n; i++) fields[i].result = answer(&fields[i]);
    return device == NULL;
}

/* ---- performance monitoring: a sample is the time it was taken at ---------------------------- */

int nvmlGpmQueryDeviceSupport(void *device, unsigned answer[2])
{
    answer[1] = (unsigned)fake_nvml.supports_gpm;
    return device == NULL || answer[0] != 1;
}

int nvmlGpmSampleAlloc(void **sample)
{
    *sample = calloc(1, sizeof(double));
    return *sample == NULL;
}

int nvmlGpmSampleFree(void *sample)
{
    free(sample);
    return 0;
}

int nvmlGpmSampleGet(void *device, void *sample)
{
    *(double *)sample = fake_nvml.now_s;
    return device == NULL;
}

int nvmlGpmMetricsGet(struct gpm_question *q)
{
    const double from = *q->sample1, to = *q->sample2;

    if (q->version != 1 || q->n != 1 || to <= from) return 2;
    const unsigned way = q->metrics[0].id - 102;
    q->metrics[0].result = way < 2 ? 0 : NOT_SUPPORTED;
    if (way < 2)
        q->metrics[0].value = (waveform_joules(&fake_nvml.c2c[way], to) -
                               waveform_joules(&fake_nvml.c2c[way], from)) /
                              (to - from);
    return 0;
}
