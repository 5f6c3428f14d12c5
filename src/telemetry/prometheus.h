/*
 * prometheus.h - the latest figures of a run as a text file for Prometheus: what the textfile
 * collector of its node exporter reads, or any program that serves files.
 *
 * The file is renamed into place, so a reader always finds a whole one: at the start, after a step
 * (once a second at most), after an evaluation and at the end.  Counters begin at zero when the
 * program does.  What has no sensor has no line.  A file that cannot be written is no reason to
 * stop a run: only the first must succeed.
 *
 * Format: Prometheus text exposition format 0.0.4.
 *
 * Layer: telemetry.  Threads: one at a time.
 */
#ifndef LS_PROMETHEUS_H
#define LS_PROMETHEUS_H

#include "record.h"

typedef struct ls_prometheus ls_prometheus;

/*
 *   path    of the file, in a folder that is there
 *   run     a name for its lines, say the run directory
 *   steps   of the whole run
 * LS_ERR_IO (names the path), LS_ERR_NO_MEMORY.
 */
ls_status ls_prometheus_open(const char *path, const char *run, int64_t steps,
                             ls_prometheus **metrics);

/* NULL is allowed in these three; close says that the run works no more. */
void ls_prometheus_step(ls_prometheus *metrics, const ls_step_record *step);
void ls_prometheus_eval(ls_prometheus *metrics, const ls_eval_record *eval);
void ls_prometheus_close(ls_prometheus *metrics);

#endif
