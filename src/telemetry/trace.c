/* trace.c - two buffers: one is filled while the other is written. */
#define _GNU_SOURCE /* NOLINT: the libc's name; for O_CLOEXEC with every libc */
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNTER_VALUES 8
#define COUNTERS       256 /* between two flushes */
#define RESERVED       64  /* spans of the first thread, which has few and long ones */
#define TEXT_BYTES     65536
#define EVENT_BYTES    1024

typedef struct span {
    uint64_t from_ns, to_ns;
    int64_t tag;
    int thread;
} span;

typedef struct counter {
    const char *name;
    const char *const *keys;
    double values[COUNTER_VALUES];
    int n;
    uint64_t ns;
} counter;

typedef struct buffer {
    span *spans; /* [options.n_spans] */
    int n_spans, n_counters;
    counter counters[COUNTERS];
} buffer;

struct ls_trace {
    ls_trace_options options;
    pthread_mutex_t mutex; /* of what follows */
    buffer buffers[2];
    int filling; /* which of them */
    int64_t n_dropped;

    /* Of the thread that flushes. */
    int fd; /* -1: not begun, or given up */
    bool begun, ended;
    int failed;                     /* the errno that ended it early; 0: none */
    double levels[LS_TRACE_LEVELS]; /* the latest */
    size_t n_text;
    char text[TEXT_BYTES];
};

/* ---- collecting ---------------------------------------------------------------------------- */

ls_status ls_trace_open(const ls_trace_options *options, ls_trace **trace)
{
    const size_t n = (size_t)options->n_spans;
    ls_trace *t = calloc(1, sizeof *t);

    if (t == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the trace");
    t->options = *options;
    t->fd = -1;
    pthread_mutex_init(&t->mutex, NULL);
    for (int b = 0; b < 2; b++) t->buffers[b].spans = calloc(n, sizeof(span));
    if (t->buffers[0].spans == NULL || t->buffers[1].spans == NULL) {
        ls_trace_close(t);
        return LS_FAIL(LS_ERR_NO_MEMORY, "a trace of %zu spans", n);
    }
    *trace = t;
    return LS_OK;
}

void ls_trace_span(ls_trace *t, int thread, int64_t tag, uint64_t from_ns, uint64_t to_ns)
{
    pthread_mutex_lock(&t->mutex);
    buffer *b = &t->buffers[t->filling];
    const int room = t->options.n_spans - (thread == 0 ? 0 : RESERVED);
    if (b->n_spans < room)
        b->spans[b->n_spans++] = (span){from_ns, to_ns, tag, thread};
    else
        t->n_dropped++;
    pthread_mutex_unlock(&t->mutex);
}

void ls_trace_counter(ls_trace *t, const char *name, const char *const *keys, const double *values,
                      int n, uint64_t now_ns)
{
    pthread_mutex_lock(&t->mutex);
    buffer *b = &t->buffers[t->filling];
    if (b->n_counters < COUNTERS && n <= COUNTER_VALUES) {
        counter *c = &b->counters[b->n_counters++];
        *c = (counter){.name = name, .keys = keys, .n = n, .ns = now_ns};
        memcpy(c->values, values, (size_t)n * sizeof *values);
    } else {
        t->n_dropped++;
    }
    pthread_mutex_unlock(&t->mutex);
}

int64_t ls_trace_dropped(ls_trace *t)
{
    pthread_mutex_lock(&t->mutex);
    const int64_t n = t->n_dropped;
    pthread_mutex_unlock(&t->mutex);
    return n;
}

/* ---- writing ------------------------------------------------------------------------------- */

static void write_text(ls_trace *t)
{
    size_t done = 0;

    while (t->fd >= 0 && done < t->n_text) {
        const ssize_t n = write(t->fd, t->text + done, t->n_text - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) { /* a full disk ends the trace, not the run */
            t->failed = n < 0 ? errno : ENOSPC;
            close(t->fd);
            t->fd = -1;
        } else {
            done += (size_t)n;
        }
    }
    t->n_text = 0;
}

static void put_event(ls_trace *t, const char *event)
{
    const size_t bytes = strlen(event);

    if (t->n_text + bytes + 2 > TEXT_BYTES) write_text(t);
    memcpy(t->text + t->n_text, event, bytes);
    t->n_text += bytes;
}

/* Nanoseconds since the trace's zero as microseconds. */
static const char *print_us(char text[40], uint64_t ns)
{
    snprintf(text, 40, "%llu.%03u", (unsigned long long)(ns / 1000), (unsigned)(ns % 1000));
    return text;
}

static uint64_t since_start(const ls_trace *t, uint64_t ns)
{
    return ns > t->options.start_ns ? ns - t->options.start_ns : 0;
}

static void put_span(ls_trace *t, const span *s)
{
    char event[EVENT_BYTES], from[40], took[40];
    ls_trace_words words = {.name = ""};

    t->options.describe(t->options.context, s->thread, s->tag, &words);
    snprintf(event, sizeof event,
             ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"name\":\"%s\",\"cat\":\"%s\",\"ts\":%s,"
             "\"dur\":%s,\"args\":{%s}}",
             s->thread, words.name, words.category, print_us(from, since_start(t, s->from_ns)),
             print_us(took, s->to_ns - s->from_ns), words.args);
    put_event(t, event);
}

static void put_counter(ls_trace *t, const counter *c)
{
    char event[EVENT_BYTES], at[40];
    int n = snprintf(event, sizeof event,
                     ",\n{\"ph\":\"C\",\"pid\":1,\"name\":\"%s\",\"ts\":%s,\"args\":{", c->name,
                     print_us(at, since_start(t, c->ns)));
    bool any = false;

    for (int v = 0; v < c->n; v++) {
        if (!isfinite(c->values[v])) continue;
        n += snprintf(event + n, sizeof event - (size_t)n, "%s\"%s\":%.15g", any ? "," : "",
                      c->keys[v], c->values[v]);
        any = true;
    }
    snprintf(event + n, sizeof event - (size_t)n, "}}");
    if (any) put_event(t, event);
}

/* Before the span that they begin with. */
static void put_levels(ls_trace *t, const span *s)
{
    counter c = {.name = t->options.levels_name,
                 .keys = t->options.levels_keys,
                 .n = LS_TRACE_LEVELS,
                 .ns = s->from_ns};

    if (t->options.levels == NULL ||
        !t->options.levels(t->options.context, s->thread, s->tag, c.values) ||
        memcmp(t->levels, c.values, sizeof t->levels) == 0)
        return;
    memcpy(t->levels, c.values, sizeof t->levels);
    put_counter(t, &c);
}

/* The names of the threads, in their order. */
static void begin_file(ls_trace *t)
{
    char event[EVENT_BYTES], path[4096];

    t->begun = true;
    snprintf(path, sizeof path, "%s/trace.json", t->options.directory);
    t->fd = open(t->options.path != NULL ? t->options.path : path,
                 O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, /* not even for a pipe */
                 0666);
    if (t->fd < 0) t->failed = errno;
    put_event(t, "[\n{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":"
                 "\"longspan\"}}");
    for (int i = 0; i < t->options.n_threads; i++) {
        snprintf(event, sizeof event,
                 ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\",\"args\":{"
                 "\"name\":\"%s\"}},\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":"
                 "\"thread_sort_index\",\"args\":{\"sort_index\":%d}}",
                 i, t->options.threads[i], i, i);
        put_event(t, event);
    }
}

void ls_trace_flush(ls_trace *t)
{
    pthread_mutex_lock(&t->mutex);
    buffer *full = &t->buffers[t->filling];
    t->filling = 1 - t->filling;
    pthread_mutex_unlock(&t->mutex);

    if (full->n_spans > 0 && !t->begun) begin_file(t);
    for (int s = 0; s < full->n_spans; s++) {
        put_levels(t, &full->spans[s]);
        put_span(t, &full->spans[s]);
    }
    for (int c = 0; t->begun && c < full->n_counters; c++) put_counter(t, &full->counters[c]);
    write_text(t);
    full->n_spans = full->n_counters = 0;
}

/* With what is not in the trace, for whoever looks at it. */
static void put_end(ls_trace *t)
{
    char event[EVENT_BYTES];

    snprintf(event, sizeof event,
             ",\n{\"ph\":\"M\",\"pid\":1,\"name\":\"process_labels\",\"args\":{\"labels\":"
             "\"%lld events dropped\"}}\n]\n",
             (long long)t->n_dropped);
    put_event(t, t->n_dropped > 0 ? event : "\n]\n");
}

int ls_trace_end(ls_trace *t)
{
    if (t->ended) return t->failed;
    t->ended = true;
    ls_trace_flush(t);
    if (t->begun) put_end(t);
    write_text(t);
    return t->failed;
}

void ls_trace_close(ls_trace *t)
{
    if (t == NULL) return;
    if (t->buffers[0].spans != NULL && t->buffers[1].spans != NULL) (void)ls_trace_end(t);
    if (t->fd >= 0) close(t->fd);
    for (int b = 0; b < 2; b++) free(t->buffers[b].spans);
    pthread_mutex_destroy(&t->mutex);
    free(t);
}
