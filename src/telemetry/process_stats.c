/* process_stats.c - getrusage(), /proc/self/status. */
#define _GNU_SOURCE /* NOLINT: the libc's name; for ru_maxrss with every libc */
#include "process_stats.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/time.h>

uint64_t ls_process_resident_bytes_peak(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}

uint64_t ls_process_anonymous_bytes(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    uint64_t kib = 0;

    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "RssAnon: %" SCNu64, &kib) == 1) break;
    fclose(file);
    return kib * 1024;
}

double ls_process_cpu_seconds(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0.0;
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}
