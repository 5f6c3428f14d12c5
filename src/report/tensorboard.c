/* tensorboard.c - scalars as records of protobuf messages, by hand: three message types, four wire
 * types. */
#define _XOPEN_SOURCE   700 /* NOLINT: the libc's name; for strptime */
#define _DEFAULT_SOURCE     /* NOLINT: the libc's name; for timegm */
#include "tensorboard.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "crc32c.h"
#include "directory.h"
#include "new_file.h"
#include "report.h"

enum { NAME_BYTES = sizeof((ls_run_data *)0)->label + 16 };

#define TAG_BYTES_MAX     64
#define MESSAGE_BYTES_MAX 256

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };
enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2 };

typedef struct message {
    unsigned char bytes[MESSAGE_BYTES_MAX];
    size_t n;
} message;

/* ---- protobuf ------------------------------------------------------------------------------- */

static void put_little(message *m, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) m->bytes[m->n++] = (unsigned char)(value >> (8 * i));
}

static void put_varint(message *m, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) m->bytes[m->n++] = (unsigned char)(value | 0x80);
    m->bytes[m->n++] = (unsigned char)value;
}

static void put_key(message *m, int field, int wire)
{
    put_varint(m, (uint64_t)field << 3 | (uint64_t)wire);
}

static void put_double(message *m, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(m, field, WIRE_64);
    put_little(m, bits, 8);
}

static void put_float(message *m, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(m, field, WIRE_32);
    put_little(m, bits, 4);
}

static void put_bytes(message *m, int field, const void *bytes, size_t n)
{
    put_key(m, field, WIRE_BYTES);
    put_varint(m, n);
    memcpy(m->bytes + m->n, bytes, n);
    m->n += n;
}

/* ---- records -------------------------------------------------------------------------------- */

static uint32_t masked_crc(const void *data, uint64_t bytes)
{
    const uint32_t crc = ls_crc32c(0, data, bytes);
    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

static void write_record(FILE *file, const message *event)
{
    message head = {.n = 0}, tail = {.n = 0};

    put_little(&head, event->n, 8);
    put_little(&head, masked_crc(head.bytes, 8), 4);
    put_little(&tail, masked_crc(event->bytes, event->n), 4);
    fwrite(head.bytes, 1, head.n, file);
    fwrite(event->bytes, 1, event->n, file);
    fwrite(tail.bytes, 1, tail.n, file);
}

typedef struct series {
    FILE *file;
    double time_s; /* of what is written, since 1970 */
    int64_t step;
} series;

static void write_scalar(const series *s, const char *tag, double value)
{
    message scalar = {.n = 0}, summary = {.n = 0}, event = {.n = 0};

    if (!isfinite(value)) return;
    put_bytes(&scalar, VALUE_TAG, tag, strnlen(tag, TAG_BYTES_MAX));
    put_float(&scalar, VALUE_SIMPLE, (float)value);
    put_bytes(&summary, SUMMARY_VALUE, scalar.bytes, scalar.n);
    put_double(&event, EVENT_TIME, s->time_s);
    put_key(&event, EVENT_STEP, WIRE_VARINT);
    put_varint(&event, (uint64_t)s->step);
    put_bytes(&event, EVENT_SUMMARY, summary.bytes, summary.n);
    write_record(s->file, &event);
}

static void write_named(const series *s, const char *group, const char *name, double value)
{
    char tag[TAG_BYTES_MAX];
    snprintf(tag, sizeof tag, "%s/%s", group, name);
    write_scalar(s, tag, value);
}

/* ---- a run ---------------------------------------------------------------------------------- */

static void write_step(const series *s, const ls_run_step *step)
{
    write_scalar(s, "loss/train", step->loss);
    write_scalar(s, "loss/grad_norm", step->grad_norm);
    write_scalar(s, "loss/lr", step->lr);
    write_scalar(s, "time/step_s", step->step_s);
    write_scalar(s, "time/predicted_step_s", step->predicted_step_s);
    write_scalar(s, "time/tokens_per_s", step->tokens_per_s);
    write_scalar(s, "time/mfu_causal", step->mfu_causal);
    for (int l = 0; l < LS_RUN_LANES; l++)
        write_named(s, "time/lane_busy_s", ls_run_lane_names[l], step->lane_busy_s[l]);
    write_scalar(s, "memory/hbm_bytes", step->peak_hbm);
    write_scalar(s, "memory/host_bytes", step->peak_host);
    for (int r = 0; r < LS_RAIL_COUNT; r++)
        write_named(s, "energy/joules", ls_rail_name((ls_rail)r), step->joules[r]);
}

static double started_s(const ls_run_data *data)
{
    struct tm utc = {.tm_sec = 0};

    if (strptime(ls_run_data_text(data, "started"), "%Y-%m-%dT%H:%M:%SZ", &utc) == NULL) return 0;
    return (double)timegm(&utc);
}

/* Steps and evaluations by step, so that time never goes back. */
static void write_run(FILE *file, const ls_run_data *data)
{
    series s = {.file = file, .time_s = started_s(data)};
    message first = {.n = 0};
    int64_t e = 0;

    put_double(&first, EVENT_TIME, s.time_s);
    put_bytes(&first, EVENT_VERSION, "brain.Event:2", 13);
    write_record(file, &first);
    for (int64_t i = 0; i < data->n_steps; i++) {
        const ls_run_step *step = &data->steps[i];
        if (isfinite(step->step_s)) s.time_s += step->step_s;
        s.step = step->step;
        write_step(&s, step);
        for (; e < data->n_evals && data->evals[e].step <= step->step; e++) {
            if (isfinite(data->evals[e].seconds)) s.time_s += data->evals[e].seconds;
            s.step = data->evals[e].step;
            write_scalar(&s, "loss/held_out", data->evals[e].loss);
        }
    }
}

static ls_status write_file(const char *folder, const ls_run_data *data)
{
    char path[4400];
    ls_new_file events;

    LS_TRY(ls_directory_make(folder));
    snprintf(path, sizeof path, "%s/events.out.tfevents.%010.0f.longspan.0", folder,
             started_s(data));
    LS_TRY(ls_new_file_open(path, &events));
    write_run(events.file, data);
    return ls_new_file_close(&events, LS_OK);
}

/* A folder for each run: its name, with a number behind it if another has that already. */
static void name_folder(const ls_run_summary *runs, int run, char names[][NAME_BYTES])
{
    const char *label = runs[run].data->label;
    bool taken = true;

    for (int n = 1; taken; n++) {
        if (n == 1)
            snprintf(names[run], NAME_BYTES, "%s", label);
        else
            snprintf(names[run], NAME_BYTES, "%s-%d", label, n);
        taken = false;
        for (int before = 0; before < run; before++)
            taken |= strcmp(names[before], names[run]) == 0;
    }
}

ls_status ls_report_tensorboard(const char *directory, const ls_run_summary *runs, int n_runs)
{
    char names[LS_REPORT_RUNS_MAX][NAME_BYTES];

    for (int r = 0; r < n_runs; r++) {
        char folder[4300];
        name_folder(runs, r, names);
        snprintf(folder, sizeof folder, "%s/%s", directory, names[r]);
        LS_TRY(write_file(folder, runs[r].data));
    }
    return LS_OK;
}
