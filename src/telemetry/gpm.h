/*
 * gpm.h - NVML's GPU performance monitoring: bytes over a Grace Hopper's C2C link, as the GPU
 * counts them.  A figure is the mean between two samples; NVIDIA advises 100 ms or more between.
 *
 * Layer: telemetry, internal.  Threads: one owner.
 */
#ifndef LS_GPM_H
#define LS_GPM_H

#include <stdbool.h>

/* nvml.h's nvmlGpmMetricId_t: data without the protocol's own bytes; tx leaves the GPU. */
enum { LS_GPM_C2C_DATA_TX = 102, LS_GPM_C2C_DATA_RX = 103 };

typedef struct ls_gpm ls_gpm;

/* Of a device of a library that has been started; NULL: this driver or GPU has none, or no memory.
 */
ls_gpm *ls_gpm_open(void *library, void *device);

/* Take a sample; what ls_gpm_value() tells from now on is the mean since the one before. */
bool ls_gpm_sample(ls_gpm *gpm);

/* MiB per second; false: there is one sample only, or the metric is not told. */
bool ls_gpm_value(const ls_gpm *gpm, unsigned metric, double *mib_per_s);

/* NULL is allowed. */
void ls_gpm_close(ls_gpm *gpm);

#endif
