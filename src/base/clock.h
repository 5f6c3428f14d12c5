/* clock.h - monotonic time in nanoseconds; the time of day, for deadlines; the processor's time,
 * for work that is told whatever else runs.  Layer: base. */
#ifndef LS_CLOCK_H
#define LS_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t ls_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Seconds since the epoch, with their fraction: time() may be a second behind. */
static inline double ls_clock_epoch_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Seconds of processor time of this process, all threads. */
static inline double ls_clock_processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
