/* process_stats.h - what the kernel knows of this process.  Layer: telemetry. */
#ifndef LS_PROCESS_STATS_H
#define LS_PROCESS_STATS_H

#include <stdint.h>

/* Largest resident set so far, in bytes; of files that are mapped too. */
uint64_t ls_process_resident_bytes_peak(void);

/* Bytes of its own memory (no file's) that are resident now; 0: not known. */
uint64_t ls_process_anonymous_bytes(void);

/* CPU time of all threads so far, in seconds. */
double ls_process_cpu_seconds(void);

#endif
