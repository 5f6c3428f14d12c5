/* prometheus.c - gather, print, write beside, rename. */
#include "prometheus.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "file.h"

#define TEXT_BYTES  16384
#define LABEL_BYTES 1024
#define INTERVAL_NS 1000000000u

struct ls_prometheus {
    char *path, *path_beside;
    char run[LABEL_BYTES]; /* as a label's value */
    int64_t steps;
    bool running;
    uint64_t written_ns;

    ls_step_record step; /* the latest; step.step 0: none yet.  Its losses are not kept */
    double step_epoch_s, eval_loss;
    double tokens, skipped, lane_busy_s[LS_RECORD_LANES], joules[LS_RAIL_COUNT];

    char text[TEXT_BYTES];
    size_t bytes; /* of text */
};

/* ---- text ---------------------------------------------------------------------------------- */

/* A label's value escapes backslash, quote and line feed; what does not fit is cut off. */
static void escape(char to[LABEL_BYTES], const char *from)
{
    size_t n = 0;

    for (; *from != '\0' && n + 3 < LABEL_BYTES; from++) {
        if (*from == '\\' || *from == '"' || *from == '\n') to[n++] = '\\';
        to[n++] = *from == '\n' ? 'n' : *from;
    }
    to[n] = '\0';
}

__attribute__((format(printf, 2, 3))) static void print(ls_prometheus *m, const char *format, ...)
{
    const size_t room = sizeof m->text - m->bytes;
    va_list values;

    va_start(values, format);
    const int n = vsnprintf(m->text + m->bytes, room, format, values);
    va_end(values);
    if (n > 0) m->bytes += (size_t)n < room ? (size_t)n : room - 1;
}

static void put_head(ls_prometheus *m, const char *name, const char *type, const char *help)
{
    print(m, "# HELP longspan_%s %s\n# TYPE longspan_%s %s\n", name, help, name, type);
}

/* label: "key=\"value\"" beside the run's, or NULL.  Nothing is put for what is not known. */
static void put_value(ls_prometheus *m, const char *name, const char *label, double value)
{
    if (isnan(value)) return;
    print(m, "longspan_%s{run=\"%s\"%s%s} ", name, m->run, label != NULL ? "," : "",
          label != NULL ? label : "");
    if (isinf(value))
        print(m, "%sInf\n", value < 0 ? "-" : "+");
    else
        print(m, "%.17g\n", value);
}

static void put(ls_prometheus *m, const char *name, const char *type, const char *help,
                double value)
{
    if (isnan(value)) return;
    put_head(m, name, type, help);
    put_value(m, name, NULL, value);
}

static void put_lanes(ls_prometheus *m)
{
    char label[64];

    put_head(m, "lane_busy_seconds_total", "counter", "Time that a lane has worked.");
    for (int lane = 0; lane < LS_RECORD_LANES; lane++) {
        snprintf(label, sizeof label, "lane=\"%s\"", ls_record_lane_names[lane]);
        put_value(m, "lane_busy_seconds_total", label, m->lane_busy_s[lane]);
    }
}

static void put_energy(ls_prometheus *m)
{
    char label[64];

    if (!m->step.energy.known) return;
    put_head(m, "energy_joules_total", "counter",
             "Energy of training steps by rail; rails may contain each other.");
    for (int rail = 0; rail < LS_RAIL_COUNT; rail++) {
        if (isnan(m->step.energy.coverage[rail])) continue;
        snprintf(label, sizeof label, "rail=\"%s\"", ls_rail_name((ls_rail)rail));
        put_value(m, "energy_joules_total", label, m->joules[rail]);
    }
}

static void put_memory(ls_prometheus *m)
{
    const ls_step_record *s = &m->step;

    put_head(m, "memory_peak_bytes", "gauge",
             "What the plan reserves (hbm, nvme); the largest resident set (host).");
    if (s->has_device)
        put_value(m, "memory_peak_bytes", "place=\"hbm\"", (double)s->peak_bytes_hbm);
    put_value(m, "memory_peak_bytes", "place=\"host\"", (double)s->peak_bytes_host);
    if (s->peak_bytes_nvme > 0)
        put_value(m, "memory_peak_bytes", "place=\"nvme\"", (double)s->peak_bytes_nvme);
}

static void put_step(ls_prometheus *m)
{
    const ls_step_record *s = &m->step;

    put(m, "step", "gauge", "Optimizer steps completed.", (double)s->step);
    put(m, "step_timestamp_seconds", "gauge", "When the latest step was complete.",
        m->step_epoch_s);
    put(m, "step_seconds", "gauge", "Time of the latest step.", s->step_s);
    put(m, "step_predicted_seconds", "gauge", "Time of a step by the plan.", s->predicted_step_s);
    put(m, "tokens_per_second", "gauge", "Of the latest step; padding is not counted.",
        s->tokens_per_s);
    put(m, "loss", "gauge", "Training loss of the latest step, nats per token.",
        s->labels > 0 ? s->loss : (double)NAN);
    put(m, "grad_norm", "gauge", "Global norm of the gradient before clipping.", s->grad_norm);
    put(m, "learning_rate", "gauge", "Of the latest step.", s->lr);
    put(m, "mfu_causal_ratio", "gauge",
        "Model FLOPs, attention by unmasked pairs, over the peak of the profile.", s->mfu_causal);
    put(m, "tokens_total", "counter", "Tokens trained on.", m->tokens);
    put(m, "steps_skipped_total", "counter", "Steps whose gradient was not finite.", m->skipped);
    put_lanes(m);
    put_energy(m);
    put_memory(m);
}

static void print_all(ls_prometheus *m)
{
    m->bytes = 0;
    put(m, "running", "gauge", "1 while the program trains.", m->running ? 1.0 : 0.0);
    put(m, "steps_planned", "gauge", "Steps of the whole run.", (double)m->steps);
    if (m->step.step > 0) put_step(m);
    put(m, "eval_loss", "gauge", "Latest held-out loss, nats per token.", m->eval_loss);
}

/* ---- file ---------------------------------------------------------------------------------- */

/* Returns 0 or errno. */
static int write_file(ls_prometheus *m)
{
    print_all(m);
    m->written_ns = ls_clock_ns();
    return ls_file_swap(m->path, m->path_beside, m->text, m->bytes);
}

static void free_metrics(ls_prometheus *m)
{
    free(m->path);
    free(m->path_beside);
    free(m);
}

ls_status ls_prometheus_open(const char *path, const char *run, int64_t steps,
                             ls_prometheus **metrics)
{
    static const char ending[] = ".tmp"; /* not .prom: the collector must not read it */
    const size_t bytes = strlen(path) + sizeof ending;
    ls_prometheus *m = calloc(1, sizeof *m);

    if (m != NULL) m->path = strdup(path);
    if (m != NULL) m->path_beside = malloc(bytes);
    if (m == NULL || m->path == NULL || m->path_beside == NULL) {
        if (m != NULL) free_metrics(m);
        return LS_FAIL(LS_ERR_NO_MEMORY, "out of memory for %s", path);
    }
    snprintf(m->path_beside, bytes, "%s%s", path, ending);
    escape(m->run, run);
    m->steps = steps;
    m->running = true;
    m->eval_loss = (double)NAN;

    const int error = write_file(m);
    if (error != 0) {
        free_metrics(m);
        return LS_FAIL(LS_ERR_IO,
                       "%s: cannot write this file for Prometheus (record.prometheus): %s; its "
                       "folder must be there and allow it",
                       path, strerror(error));
    }
    *metrics = m;
    return LS_OK;
}

void ls_prometheus_step(ls_prometheus *metrics, const ls_step_record *step)
{
    ls_prometheus *m = metrics;

    if (m == NULL) return;
    m->step = *step;
    m->step.losses = (ls_record_losses){.n_positions = 0};
    m->step_epoch_s = ls_clock_epoch_seconds();
    m->tokens += (double)step->tokens;
    m->skipped += step->skipped ? 1.0 : 0.0;
    for (int lane = 0; lane < LS_RECORD_LANES; lane++)
        m->lane_busy_s[lane] += step->lane_busy_s[lane];
    for (int rail = 0; rail < LS_RAIL_COUNT; rail++)
        if (step->energy.known && !isnan(step->energy.joules[rail]))
            m->joules[rail] += step->energy.joules[rail];
    if (ls_clock_ns() - m->written_ns >= INTERVAL_NS) write_file(m);
}

void ls_prometheus_eval(ls_prometheus *metrics, const ls_eval_record *eval)
{
    if (metrics == NULL) return;
    if (eval->tokens > 0) metrics->eval_loss = eval->loss;
    write_file(metrics);
}

void ls_prometheus_close(ls_prometheus *metrics)
{
    if (metrics == NULL) return;
    metrics->running = false;
    write_file(metrics);
    free_metrics(metrics);
}
