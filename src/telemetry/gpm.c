/* gpm.c - two samples by turns.  The few declarations needed stand here, as in meter_nvml.c. */
#include "gpm.h"

#include <dlfcn.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1 };

typedef struct support {
    unsigned version, is_supported;
} support;

typedef struct answer {
    unsigned id;
    int result;
    double value;
    char *short_name, *long_name, *unit;
} answer;

/* nvml.h's has room for every metric; the library reads n of them. */
typedef struct question {
    unsigned version, n;
    void *sample1, *sample2;
    answer metrics[1];
} question;

struct ls_gpm {
    void *device;
    int (*query)(void *device, support *answer);
    int (*allocate)(void **sample);
    int (*release)(void *sample);
    int (*take)(void *device, void *sample);
    int (*ask)(question *question);
    void *samples[2]; /* the one before, the latest */
    int n_samples;    /* that are filled */
};

static bool find(void *library, const char *name, void *function, size_t bytes)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, bytes);
    return symbol != NULL;
}

#define FIND(gpm, member, name) find(library, (name), &(gpm)->member, sizeof(gpm)->member)

static bool find_functions(void *library, ls_gpm *gpm)
{
    return FIND(gpm, query, "nvmlGpmQueryDeviceSupport") &&
           FIND(gpm, allocate, "nvmlGpmSampleAlloc") && FIND(gpm, release, "nvmlGpmSampleFree") &&
           FIND(gpm, take, "nvmlGpmSampleGet") && FIND(gpm, ask, "nvmlGpmMetricsGet");
}

ls_gpm *ls_gpm_open(void *library, void *device)
{
    ls_gpm *gpm = calloc(1, sizeof *gpm);
    support told = {.version = VERSION};

    if (gpm == NULL) return NULL;
    gpm->device = device;
    if (find_functions(library, gpm) && gpm->query(device, &told) == 0 && told.is_supported != 0 &&
        gpm->allocate(&gpm->samples[0]) == 0 && gpm->allocate(&gpm->samples[1]) == 0)
        return gpm;
    ls_gpm_close(gpm);
    return NULL;
}

bool ls_gpm_sample(ls_gpm *gpm)
{
    if (gpm->take(gpm->device, gpm->samples[0]) != 0) {
        gpm->n_samples = 0; /* what was taken may be half written */
        return false;
    }
    void *const latest = gpm->samples[0];
    gpm->samples[0] = gpm->samples[1];
    gpm->samples[1] = latest;
    if (gpm->n_samples < 2) gpm->n_samples++;
    return true;
}

bool ls_gpm_value(const ls_gpm *gpm, unsigned metric, double *mib_per_s)
{
    question q = {.version = VERSION,
                  .n = 1,
                  .sample1 = gpm->samples[0],
                  .sample2 = gpm->samples[1],
                  .metrics = {{.id = metric}}};

    if (gpm->n_samples < 2 || gpm->ask(&q) != 0 || q.metrics[0].result != 0) return false;
    *mib_per_s = q.metrics[0].value;
    return isfinite(*mib_per_s) && *mib_per_s >= 0.0;
}

void ls_gpm_close(ls_gpm *gpm)
{
    if (gpm == NULL) return;
    for (int s = 0; s < 2; s++)
        if (gpm->samples[s] != NULL) gpm->release(gpm->samples[s]);
    free(gpm);
}
