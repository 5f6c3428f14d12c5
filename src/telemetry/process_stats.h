/* process_stats.h - what the kernel knows of this process.  Layer: telemetry. */
#ifndef LS_PROCESS_STATS_H
#define LS_PROCESS_STATS_H

#include <stdint.h>

/* Largest resident set so far, in bytes. */
uint64_t ls_process_resident_bytes_peak(void);

/* CPU time of all threads so far, in seconds. */
double ls_process_cpu_seconds(void);

#endif
