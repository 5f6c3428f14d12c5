/*
 * trace.h - trace.json: what the lanes did in the steps of record.trace_steps, for Perfetto or
 * chrome://tracing.
 *
 * Lanes are threads, the plan's steps spans, watts and bytes counters.  Spans go into a buffer of
 * fixed size, which a thread that does not train writes out once a second; what does not fit is
 * counted, not waited for.  The file is an array of events that ends in "]" when the run ends; one
 * without it is of a killed run, and viewers read it all the same.
 *
 * Layer: telemetry.  Threads: spans and counters from any; flush from one at a time.  After open
 * nothing is allocated.
 */
#ifndef LS_TRACE_H
#define LS_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

typedef struct ls_trace ls_trace;

#define LS_TRACE_NAME_BYTES 64
#define LS_TRACE_ARGS_BYTES 320
#define LS_TRACE_LEVELS     3

/* A span in words: its name, its category, and JSON members ("\"layer\":3") or "". */
typedef struct ls_trace_words {
    char name[LS_TRACE_NAME_BYTES], category[LS_TRACE_NAME_BYTES], args[LS_TRACE_ARGS_BYTES];
} ls_trace_words;

typedef struct ls_trace_options {
    const char *directory;      /* of trace.json, which is begun with the first span */
    const char *path;           /* of the file instead; or NULL */
    int n_spans;                /* in the buffer */
    const char *const *threads; /* [n_threads] their names, in order from the top */
    int n_threads;
    uint64_t start_ns; /* the trace's zero */
    /* What a span's tag means; when it is written out. */
    void (*describe)(void *context, int thread, int64_t tag, ls_trace_words *words);
    /* Levels that hold from the beginning of a span on; written as a counter when they change.  May
     * be NULL; false: it has none. */
    bool (*levels)(void *context, int thread, int64_t tag, double values[LS_TRACE_LEVELS]);
    const char *levels_name;
    const char *const *levels_keys; /* [LS_TRACE_LEVELS] */
    void *context;
} ls_trace_options;

/* LS_ERR_NO_MEMORY. */
ls_status ls_trace_open(const ls_trace_options *options, ls_trace **trace);

/* Write out the rest and the end, nothing may follow: 0, or the errno that ended the file early. */
int ls_trace_end(ls_trace *trace);

/* The same, and release it.  NULL is allowed. */
void ls_trace_close(ls_trace *trace);

void ls_trace_span(ls_trace *trace, int thread, int64_t tag, uint64_t from_ns, uint64_t to_ns);

/* Values of a counter at a moment; name and keys outlive the trace; NAN: left out; at most 8. */
void ls_trace_counter(ls_trace *trace, const char *name, const char *const *keys,
                      const double *values, int n, uint64_t now_ns);

void ls_trace_flush(ls_trace *trace);

/* Spans that the buffer had no room for. */
int64_t ls_trace_dropped(ls_trace *trace);

#endif
