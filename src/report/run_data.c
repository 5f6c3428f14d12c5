/* run_data.c - record.jsonl and run.json; power.csv is in run_samples.c. */
#define _XOPEN_SOURCE 700 /* NOLINT: the libc's name; for realpath */
#include "run_data.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "json.h"
#include "run_samples.h"

const char *const ls_run_lane_names[LS_RUN_LANES] = {"compute", "copy_in", "copy_out",
                                                     "host",    "disk_in", "disk_out"};

/* ---- members ------------------------------------------------------------------------------- */

/* A number; a loss that was not finite is text; NAN where there is none. */
static double number(const cJSON *object, const char *path)
{
    const cJSON *item = ls_json_find_path(object, path);

    if (cJSON_IsNumber(item)) return item->valuedouble;
    if (cJSON_IsString(item) && strcmp(item->valuestring, "Infinity") == 0) return (double)INFINITY;
    return (double)NAN;
}

/* A number that none can be below 0; NAN too where one is. */
static double amount(const cJSON *object, const char *path)
{
    const double value = number(object, path);
    return value >= 0.0 ? value : (double)NAN;
}

/* A count; -1 where there is none, or one that no program wrote. */
static int64_t whole(const cJSON *object, const char *path)
{
    const double value = number(object, path);
    return value >= 0.0 && value < 0x1p53 ? (int64_t)value : -1;
}

const char *ls_run_data_text(const ls_run_data *data, const char *path)
{
    const cJSON *item = data->run != NULL ? ls_json_find_path(data->run, path) : NULL;
    return cJSON_IsString(item) ? item->valuestring : "";
}

double ls_run_data_number(const ls_run_data *data, const char *path)
{
    return data->run != NULL ? number(data->run, path) : (double)NAN;
}

/* Room for one more; grows by half. */
static ls_status make_room(void **array, int64_t n, size_t item_bytes)
{
    void *grown;

    if (n < 64 ? n != 0 : (n & (n - 1)) != 0) return LS_OK; /* full at 0, 64, 128, 256, ... */
    const size_t room = n == 0 ? 64 : 2 * (size_t)n;
    grown = realloc(*array, room * item_bytes);
    if (grown == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a report of %lld lines", (long long)n);
    *array = grown;
    return LS_OK;
}

static int find_phase(ls_run_data *d, const char *name)
{
    for (int f = 0; f < d->n_phases; f++)
        if (strcmp(d->phases[f], name) == 0) return f;
    if (d->n_phases == LS_RUN_PHASES_MAX) return -1;
    snprintf(d->phases[d->n_phases], sizeof d->phases[0], "%s", name);
    return d->n_phases++;
}

int ls_run_data_phase(ls_run_data *data, const char *name)
{
    return name[0] != '\0' ? find_phase(data, name) : -1;
}

static void read_phases(ls_run_data *d, const cJSON *object, double values[LS_RUN_PHASES_MAX])
{
    for (int f = 0; f < LS_RUN_PHASES_MAX; f++) values[f] = (double)NAN;
    if (!cJSON_IsObject(object)) return;
    for (const cJSON *item = object->child; item != NULL; item = item->next) {
        const int phase = find_phase(d, item->string);
        if (phase >= 0 && cJSON_IsNumber(item)) values[phase] = item->valuedouble;
    }
}

/* ---- lines --------------------------------------------------------------------------------- */

static void read_energy(ls_run_data *d, const cJSON *line, ls_run_step *s)
{
    char path[64];

    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) {
        snprintf(path, sizeof path, "energy_j.%s", ls_rail_name(rail));
        s->joules[rail] = number(line, path);
        if (isfinite(s->joules[rail])) d->has_rail[rail] = true;
        snprintf(path, sizeof path, "energy_phase_j.%s", ls_rail_name(rail));
        read_phases(d, ls_json_find_path(line, path), s->phase_joules[rail]);
    }
    read_phases(d, ls_json_find_path(line, "phase_s"), s->phase_s);
}

static void read_step(ls_run_data *d, const cJSON *line, ls_run_step *s)
{
    char path[64];

    *s = (ls_run_step){
        .step = whole(line, "step"),
        .attempt = whole(line, "attempt"),
        .tokens = amount(line, "tokens"),
        .tokens_total = amount(line, "tokens_total"),
        .pairs = amount(line, "pairs"),
        .loss = number(line, "loss"),
        .grad_norm = amount(line, "grad_norm"),
        .lr = number(line, "lr"),
        .step_s = amount(line, "step_s"),
        .tokens_per_s = amount(line, "tokens_per_s"),
        .mfu_causal = amount(line, "mfu_causal"),
        .mfu_megatron = amount(line, "mfu_megatron"),
        .tflops_alst = amount(line, "tflops_alst"),
        .flops_model = amount(line, "flops_model"),
        .predicted_step_s = amount(line, "predicted_step_s"),
        .bytes_in = amount(line, "bytes.copy_in"),
        .bytes_out = amount(line, "bytes.copy_out"),
        .peak_hbm = amount(line, "peak_bytes.hbm"),
        .peak_host = amount(line, "peak_bytes.host"),
        .skipped = cJSON_IsTrue(ls_json_find_path(line, "skipped")),
    };
    for (int lane = 0; lane < LS_RUN_LANES; lane++) {
        snprintf(path, sizeof path, "lane_busy_s.%s", ls_run_lane_names[lane]);
        s->lane_busy_s[lane] = amount(line, path);
    }
    read_energy(d, line, s);
}

static ls_status keep_bins(ls_run_data *d, const cJSON *bins)
{
    const int n = cJSON_IsArray(bins) ? cJSON_GetArraySize(bins) : 0;
    const cJSON *bin;
    int b = 0;

    if (n == 0) return LS_OK;
    ls_run_bin *kept = calloc((size_t)n, sizeof *kept);
    if (kept == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "%d bins", n);
    cJSON_ArrayForEach(bin, bins)
    {
        const cJSON *loss = cJSON_GetArrayItem(bin, 2);
        kept[b++] = (ls_run_bin){cJSON_GetNumberValue(cJSON_GetArrayItem(bin, 0)),
                                 cJSON_GetNumberValue(cJSON_GetArrayItem(bin, 1)),
                                 cJSON_IsNumber(loss) ? loss->valuedouble : (double)NAN};
    }
    free(d->bins);
    d->bins = kept;
    d->n_bins = n;
    return LS_OK;
}

static ls_status take_eval(ls_run_data *d, const cJSON *line)
{
    void *evals = d->evals;
    const ls_run_eval eval = {.step = whole(line, "step"),
                              .attempt = whole(line, "attempt"),
                              .loss = number(line, "eval_loss"),
                              .tokens = amount(line, "eval_tokens"),
                              .seconds = amount(line, "eval_s")};

    while (d->n_evals > 0 && d->evals[d->n_evals - 1].step >= eval.step) d->n_evals--;
    LS_TRY(make_room(&evals, d->n_evals, sizeof *d->evals));
    d->evals = evals;
    d->evals[d->n_evals++] = eval;
    return keep_bins(d, ls_json_find_path(line, "eval_loss_by_position"));
}

static ls_status take_step(ls_run_data *d, const cJSON *line)
{
    void *steps = d->steps;
    ls_run_step step;

    read_step(d, line, &step);
    while (d->n_steps > 0 && d->steps[d->n_steps - 1].step >= step.step) d->n_steps--;
    LS_TRY(make_room(&steps, d->n_steps, sizeof *d->steps));
    d->steps = steps;
    d->steps[d->n_steps++] = step;
    return d->n_evals == 0 ? keep_bins(d, ls_json_find_path(line, "loss_by_position")) : LS_OK;
}

static bool is_line(const cJSON *line)
{
    return cJSON_IsObject(line) && whole(line, "step") >= 0 && whole(line, "attempt") >= 1 &&
           (cJSON_HasObjectItem(line, "loss") || cJSON_HasObjectItem(line, "eval_loss"));
}

static ls_status take_line(ls_run_data *d, const char *path, int64_t number_of, const char *text)
{
    cJSON *line;

    if (text[strspn(text, " \t\r\n")] == '\0') return LS_OK; /* blank */
    line = cJSON_Parse(text);
    if (!is_line(line)) {
        cJSON_Delete(line);
        return LS_FAIL(LS_ERR_CORRUPT,
                       "%s:%lld: no record of a step or an evaluation; cut the file before it",
                       path, (long long)number_of);
    }
    const ls_status status =
        cJSON_HasObjectItem(line, "eval_loss") ? take_eval(d, line) : take_step(d, line);
    cJSON_Delete(line);
    return status;
}

static ls_status read_record(ls_run_data *d)
{
    char path[sizeof d->path + 32], *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    int64_t number_of = 0;
    ls_status status = LS_OK;

    snprintf(path, sizeof path, "%s/record.jsonl", d->path);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return LS_FAIL(LS_ERR_IO, "%s: %s; give a run directory, as `output` of its run file names",
                       path, strerror(errno));
    while (status == LS_OK && (n = getline(&line, &capacity, file)) > 0) {
        if (line[n - 1] == '\n')
            status = take_line(d, path, ++number_of, line);
        else
            d->n_lines_torn++; /* the last, of a run that was killed */
    }
    free(line);
    const bool failed = status == LS_OK && ferror(file) != 0;
    fclose(file);
    return failed ? LS_FAIL(LS_ERR_IO, "%s: cannot read: %s", path, strerror(errno)) : status;
}

/* How many bytes the character at text has; 0: it is none of UTF-8, or one that moves a cursor. */
static size_t count_character(const char *text)
{
    const unsigned char first = (unsigned char)text[0];
    const size_t n = first < 0x80u   ? 1
                     : first < 0xc2u ? 0
                     : first < 0xe0u ? 2
                     : first < 0xf0u ? 3
                     : first < 0xf5u ? 4
                                     : 0;

    if (n == 1) return first < 0x20u || first == 0x7fu ? 0 : 1;
    for (size_t i = 1; i < n; i++)
        if (((unsigned char)text[i] & 0xc0u) != 0x80u) return 0;
    if (n == 2 && first == 0xc2u && (unsigned char)text[1] < 0xa0u) return 0; /* C1 */
    if (first == 0xe0u && (unsigned char)text[1] < 0xa0u) return 0;           /* overlong */
    if (first == 0xedu && (unsigned char)text[1] > 0x9fu) return 0;           /* a surrogate */
    if (first == 0xf0u && (unsigned char)text[1] < 0x90u) return 0;
    if (first == 0xf4u && (unsigned char)text[1] > 0x8fu) return 0;
    return n;
}

/* The folder's own name, whatever path leads there, fit for tables, pages and names of files: '?'
 * for what is no character. */
static void name_run(ls_run_data *d)
{
    char *real = realpath(d->path, NULL);
    const char *path = real != NULL ? real : d->path, *name = strrchr(path, '/');
    size_t at = 0;

    name = name != NULL && name[1] != '\0' ? name + 1 : path;
    while (*name != '\0') {
        const size_t n = count_character(name);
        if (at + (n > 0 ? n : 1) >= sizeof d->label) break;
        memcpy(d->label + at, n > 0 ? name : "?", n > 0 ? n : 1);
        at += n > 0 ? n : 1;
        name += n > 0 ? n : 1;
    }
    d->label[at] = '\0';
    free(real);
}

/* run.json, if there is one; a broken one is told, and missed. */
static void read_run_json(ls_run_data *d)
{
    char path[sizeof d->path + 32];
    struct stat about;

    snprintf(path, sizeof path, "%s/run.json", d->path);
    if (stat(path, &about) != 0 && errno == ENOENT) return;
    if (ls_json_read(path, &d->run) == LS_OK) return;
    snprintf(d->fault, sizeof d->fault, "%s; left out", ls_error());
    d->run = NULL;
}

ls_status ls_run_data_read(const char *path, ls_run_data *data)
{
    memset(data, 0, sizeof *data);
    if (strlen(path) >= sizeof data->path)
        return LS_FAIL(LS_ERR_INVALID, "%.60s...: a path of more than %zu bytes", path,
                       sizeof data->path - 1);
    snprintf(data->path, sizeof data->path, "%s", path);
    name_run(data);
    ls_status status = read_record(data);
    if (status == LS_OK) read_run_json(data);
    if (status == LS_OK) status = ls_run_samples_read(data);
    if (status == LS_OK) status = ls_run_levels_read(data);
    if (status != LS_OK) ls_run_data_free(data);
    return status;
}

void ls_run_data_free(ls_run_data *data)
{
    cJSON_Delete(data->run);
    free(data->steps);
    free(data->evals);
    free(data->bins);
    free(data->samples);
    free(data->levels);
    memset(data, 0, sizeof *data);
}
