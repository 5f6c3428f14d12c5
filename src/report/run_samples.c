/*
 * run_samples.c - power.csv: of each rail the sensors of its best method, counters as differences.
 *
 * A counter moves when its meter looks, not when it is asked: the mean since it moved last holds
 * for all the lines in between, over at least the time between two looks.
 *
 * The file may be long; every n-th line is kept.  A counter loses nothing by that, and a meter's
 * lines in between are what a picture could not show.
 */
#include "run_samples.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

static const char *text_of(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return text != NULL ? text : "";
}

/* The sensor of a column "ID.UNIT". */
static const cJSON *find_sensor(const cJSON *sensors, const char *name, size_t bytes)
{
    char column[160];
    const cJSON *sensor;

    cJSON_ArrayForEach(sensor, sensors)
    {
        const int n = snprintf(column, sizeof column, "%s.%s", text_of(sensor, "id"),
                               text_of(sensor, "unit"));
        if ((size_t)n == bytes && strncmp(column, name, bytes) == 0) return sensor;
    }
    return NULL;
}

static ls_run_column describe(const cJSON *sensor)
{
    ls_run_column c = {.sensor = sensor, .rail = LS_RAIL_NONE, .method = LS_METHOD_COUNT};

    if (sensor == NULL) return c;
    c.scale = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(sensor, "scale"));
    c.counter = strcmp(text_of(sensor, "kind"), "energy") == 0;
    c.update_period_s = fmax(
        0.0, cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(sensor, "update_period_s")));
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++)
        if (strcmp(text_of(sensor, "rail"), ls_rail_name(rail)) == 0) c.rail = rail;
    for (int method = 0; method < LS_METHOD_COUNT; method++)
        if (strcmp(text_of(sensor, "method"), ls_method_name((ls_method)method)) == 0)
            c.method = method;
    return c;
}

int ls_run_columns(const ls_run_data *data, const char *header,
                   ls_run_column columns[LS_RUN_COLUMNS_MAX])
{
    const cJSON *sensors = data->run != NULL ? ls_json_find_path(data->run, "power.sensors") : NULL;
    int n = 0;

    for (const char *name = header; n < LS_RUN_COLUMNS_MAX;) {
        const size_t bytes = strcspn(name, ",\n");
        columns[n++] = describe(find_sensor(sensors, name, bytes));
        if (name[bytes] != ',') break;
        name += bytes + 1;
    }
    return n;
}

typedef struct cells {
    const char *at[LS_RUN_COLUMNS_MAX];
    int n;
} cells;

/* Cut a line at its commas, in place. */
static cells cut_line(char *line)
{
    cells c = {.n = 0};

    line[strcspn(line, "\n")] = '\0';
    while (line != NULL && c.n < LS_RUN_COLUMNS_MAX) {
        char *comma = strchr(line, ',');
        c.at[c.n++] = line;
        if (comma != NULL) *comma++ = '\0';
        line = comma;
    }
    return c;
}

enum { COLUMN_TIME = 1, COLUMN_PHASE = 3, COLUMN_FIRST = 5 };

typedef struct reader {
    ls_run_data *data;
    ls_run_column columns[LS_RUN_COLUMNS_MAX];
    int n_columns;
    int best[LS_RAIL_COUNT]; /* method */
    struct {
        double value, time_s;
        int64_t sample;
    } moved[LS_RUN_COLUMNS_MAX]; /* of counters: the latest line with another value */
    double start_s;              /* NAN: no line yet */
} reader;

static void choose_methods(reader *r)
{
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) r->best[rail] = LS_METHOD_COUNT;
    for (int c = 0; c < r->n_columns; c++) {
        const ls_run_column *column = &r->columns[c];
        if (column->rail >= 0 && column->method < r->best[column->rail])
            r->best[column->rail] = column->method;
    }
}

static void add_watts(ls_run_sample *sample, int rail, double watts)
{
    double *sum = &sample->watts[rail];

    if (isfinite(watts)) *sum = isnan(*sum) ? watts : *sum + watts;
}

/* Of a counter that moved: the mean, to all lines since it did so before; a wrap is a gap. */
static void take_counter(reader *r, int c, double value, double now_s)
{
    const ls_run_column *column = &r->columns[c];
    const double joules = value - r->moved[c].value;
    const double seconds = fmax(now_s - r->moved[c].time_s, column->update_period_s);
    const int64_t latest = r->data->n_samples;

    if (joules == 0.0) return;
    for (int64_t i = r->moved[c].sample + 1; i <= latest && joules > 0.0 && seconds > 0.0; i++)
        add_watts(&r->data->samples[i], column->rail, joules / seconds);
    r->moved[c].value = value;
    r->moved[c].time_s = now_s;
    r->moved[c].sample = latest;
}

static void take_cell(reader *r, int c, const char *cell, double now_s)
{
    const ls_run_column *column = &r->columns[c];
    char *end;
    const double value = column->scale * strtod(cell, &end);

    if (end == cell) return;
    if (column->counter)
        take_counter(r, c, value, now_s);
    else
        add_watts(&r->data->samples[r->data->n_samples], column->rail, value);
}

static void take_line(reader *r, const cells *line)
{
    const double now_s = 1e-9 * strtod(line->at[COLUMN_TIME], NULL);
    ls_run_sample *s = &r->data->samples[r->data->n_samples];

    if (isnan(r->start_s)) r->start_s = now_s;
    *s = (ls_run_sample){.time_s = now_s - r->start_s,
                         .phase = ls_run_data_phase(r->data, line->at[COLUMN_PHASE]),
                         .resident_bytes = (double)NAN};
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) s->watts[rail] = (double)NAN;
    for (int c = COLUMN_FIRST; c < line->n && c < r->n_columns; c++) {
        const ls_run_column *column = &r->columns[c];
        if (column->sensor != NULL &&
            strcmp(text_of(column->sensor, "id"), "process.resident") == 0)
            s->resident_bytes = strtod(line->at[c], NULL);
        if (column->rail < 0 || column->method != r->best[column->rail]) continue;
        take_cell(r, c, line->at[c], now_s);
    }
    r->data->n_samples++;
}

static ls_status read_lines(reader *r, FILE *file, int64_t stride)
{
    char *text = NULL;
    size_t capacity = 0;
    ssize_t n;

    for (int64_t line = 0; (n = getline(&text, &capacity, file)) > 0; line++) {
        if (line % stride != 0 || text[n - 1] != '\n') continue;
        const cells c = cut_line(text);
        if (c.n == r->n_columns && r->data->n_samples < LS_RUN_SAMPLES_MAX) take_line(r, &c);
    }
    free(text);
    return LS_OK;
}

/* How many lines there are is told from the size and the first of them. */
static int64_t find_stride(FILE *file, const char *first, long header_bytes)
{
    const long line_bytes = (long)strlen(first);

    if (fseek(file, 0, SEEK_END) != 0) return 1;
    const long lines = (ftell(file) - header_bytes) / (line_bytes > 0 ? line_bytes : 1);
    if (fseek(file, header_bytes, SEEK_SET) != 0) return 1;
    return 1 + (int64_t)(1.2 * (double)lines) / LS_RUN_SAMPLES_MAX;
}

ls_status ls_run_samples_read(ls_run_data *data)
{
    char path[sizeof data->path + 32], *header = NULL, *first = NULL;
    size_t capacity = 0, first_capacity = 0;
    reader r = {.data = data, .start_s = (double)NAN};
    ls_status status = LS_OK;

    for (int c = 0; c < LS_RUN_COLUMNS_MAX; c++) r.moved[c].value = (double)NAN;
    snprintf(path, sizeof path, "%s/power.csv", data->path);
    FILE *file = fopen(path, "re");
    if (file == NULL && errno == ENOENT) return LS_OK;
    if (file == NULL) return LS_FAIL(LS_ERR_IO, "%s: %s", path, strerror(errno));
    data->samples = calloc(LS_RUN_SAMPLES_MAX, sizeof *data->samples);
    if (data->samples == NULL) status = LS_FAIL(LS_ERR_NO_MEMORY, "samples of power");
    const ssize_t bytes = status == LS_OK ? getline(&header, &capacity, file) : -1;
    if (bytes > 0) r.n_columns = ls_run_columns(data, header, r.columns);
    if (bytes > 0 && r.n_columns < COLUMN_FIRST) {
        snprintf(
            data->fault, sizeof data->fault,
            "%s:1: %d columns, not attempt, time_ns, step, phase, read_us and those of sensors; "
            "left out",
            path, r.n_columns);
    } else if (bytes > 0 && getline(&first, &first_capacity, file) > 0) {
        choose_methods(&r);
        status = read_lines(&r, file, find_stride(file, first, (long)bytes));
    }
    free(header);
    free(first);
    fclose(file);
    return status;
}
