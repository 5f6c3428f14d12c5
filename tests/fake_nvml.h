/*
 * fake_nvml.h - what a test tells the libnvidia-ml.so.1 of fake_nvml.c, found in it by dlsym() as
 * `fake_nvml`.
 */
#ifndef LS_FAKE_NVML_H
#define LS_FAKE_NVML_H

#include "waveform.h"

enum { FAKE_GPU, FAKE_MODULE, FAKE_MEMORY, FAKE_SCOPES };

typedef struct fake_nvml_script {
    double now_s; /* the time that all values are of */
    int n_gpus;
    waveform power[FAKE_SCOPES];
    int supports_average[FAKE_SCOPES], supports_instant[FAKE_SCOPES];
    int supports_energy[FAKE_SCOPES]; /* field 191 */
    int counter_scope;                /* what field 83 and 191 of the GPU really count */
    double reset_s;                   /* when the counter starts again; 0: never */
    double period_s;                  /* how often power looks; 0: always */
    int stamps;                       /* whether values carry times */
    int broken;                       /* does not start */
    int supports_gpm;                 /* of Hopper on */
    waveform c2c[2];                  /* tx, rx: MiB/s */
} fake_nvml_script;

#endif
