/*
 * run_levels.c - the counter `live bytes` of trace.json, which has an event a line.
 *
 * A trace may be large: only the lines of that counter are parsed.  When the room is full every
 * second level goes, and from then on every second comes.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "run_samples.h"

#define LEVELS_MAX 4096

static double number(const cJSON *event, const char *path)
{
    const cJSON *item = ls_json_find_path(event, path);
    return cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
}

/* A line without the comma behind it; another event's, or a torn one: false. */
static bool parse_level(char *line, ls_run_level *level)
{
    if (strstr(line, "\"name\":\"live bytes\"") == NULL) return false;
    line[strcspn(line, "\n")] = '\0';
    const size_t n = strlen(line);
    if (n > 0 && line[n - 1] == ',') line[n - 1] = '\0';
    cJSON *event = cJSON_Parse(line);
    *level = (ls_run_level){.time_s = 1e-6 * number(event, "ts"),
                            .hbm = number(event, "args.hbm"),
                            .host = number(event, "args.host")};
    cJSON_Delete(event);
    return isfinite(level->time_s);
}

static void halve(ls_run_data *data)
{
    for (int64_t i = 0; 2 * i < data->n_levels; i++) data->levels[i] = data->levels[2 * i];
    data->n_levels = (data->n_levels + 1) / 2;
}

static void read_lines(ls_run_data *data, FILE *file)
{
    char *line = NULL;
    size_t capacity = 0;
    int64_t n = 0, stride = 1;
    ls_run_level level;

    while (getline(&line, &capacity, file) > 0) {
        if (!parse_level(line, &level) || n++ % stride != 0) continue;
        if (data->n_levels == LEVELS_MAX) {
            halve(data);
            stride *= 2;
            if ((n - 1) % stride != 0) continue;
        }
        data->levels[data->n_levels++] = level;
    }
    free(line);
    for (int64_t i = data->n_levels - 1; i >= 0; i--)
        data->levels[i].time_s -= data->levels[0].time_s;
}

ls_status ls_run_levels_read(ls_run_data *data)
{
    char path[sizeof data->path + 32];

    snprintf(path, sizeof path, "%s/trace.json", data->path);
    FILE *file = fopen(path, "re");
    if (file == NULL && errno == ENOENT) return LS_OK;
    if (file == NULL) return LS_FAIL(LS_ERR_IO, "%s: %s", path, strerror(errno));
    data->levels = calloc(LEVELS_MAX, sizeof *data->levels);
    if (data->levels != NULL) read_lines(data, file);
    fclose(file);
    return data->levels != NULL ? LS_OK : LS_FAIL(LS_ERR_NO_MEMORY, "levels of memory");
}
