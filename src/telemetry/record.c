/* record.c - lines built by cJSON, appended by one write each. */
#include "record.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 4096

struct ls_record {
    int fd;
    char path[PATH_BYTES];
};

/* ---- lines --------------------------------------------------------------------------------- */

/* Failures surface once, when the line is printed: cJSON's adders return NULL and go on. */
static void add_number(cJSON *object, const char *key, double value)
{
    if (isfinite(value))
        cJSON_AddNumberToObject(object, key, value);
    else
        cJSON_AddNullToObject(object, key);
}

/* A loss or norm that is not finite is a fact, not a missing sensor: written as text. */
static void add_result(cJSON *object, const char *key, double value)
{
    if (isfinite(value))
        cJSON_AddNumberToObject(object, key, value);
    else
        cJSON_AddStringToObject(object, key, isnan(value) ? "NaN" : "Infinity");
}

static void add_nulls(cJSON *object, const char *key, const char *const *names, int n)
{
    cJSON *inner = cJSON_AddObjectToObject(object, key);
    for (int i = 0; i < n; i++) cJSON_AddNullToObject(inner, names[i]);
}

static void add_bins(cJSON *object, const char *key, const ls_record_bin *bins, int n)
{
    cJSON *array = cJSON_AddArrayToObject(object, key);
    for (int i = 0; i < n; i++) {
        cJSON *bin = cJSON_CreateArray();
        cJSON_AddItemToArray(bin, cJSON_CreateNumber((double)bins[i].from));
        cJSON_AddItemToArray(bin, cJSON_CreateNumber((double)bins[i].to));
        cJSON_AddItemToArray(bin, cJSON_CreateNumber(bins[i].loss));
        cJSON_AddItemToArray(array, bin);
    }
}

static void add_lanes(cJSON *object, const double *busy_s)
{
    static const char *const names[LS_RECORD_LANES] = {"compute", "copy_in", "copy_out",
                                                       "host",    "disk_in", "disk_out"};
    cJSON *lanes = cJSON_AddObjectToObject(object, "lane_busy_s");
    for (int i = 0; i < LS_RECORD_LANES; i++) add_number(lanes, names[i], busy_s[i]);
}

static cJSON *step_line(const ls_step_record *s)
{
    static const char *const copies[] = {"copy_in", "copy_out", "disk_in", "disk_out"};
    static const char *const rails[] = {"gpu", "module", "cpu"};
    cJSON *line = cJSON_CreateObject();

    add_number(line, "step", (double)s->step);
    add_number(line, "attempt", s->attempt);
    add_number(line, "tokens", (double)s->tokens);
    add_number(line, "tokens_total", (double)s->tokens_total);
    add_number(line, "pairs", s->pairs);
    add_result(line, "loss", s->loss);
    add_result(line, "grad_norm", s->grad_norm);
    add_result(line, "grad_norm_clipped", s->grad_norm_clipped);
    cJSON_AddBoolToObject(line, "clipped", s->clipped);
    cJSON_AddBoolToObject(line, "skipped", s->skipped);
    add_number(line, "lr", s->lr);
    add_number(line, "step_s", s->step_s);
    add_number(line, "tokens_per_s", s->tokens_per_s);
    add_number(line, "mfu_causal", s->mfu_causal);
    add_number(line, "mfu_megatron", s->mfu_megatron);
    add_number(line, "tflops_alst", s->tflops_alst);
    add_lanes(line, s->lane_busy_s);
    add_nulls(line, "bytes", copies, 4);
    cJSON *peak = cJSON_AddObjectToObject(line, "peak_bytes");
    cJSON_AddNullToObject(peak, "hbm");
    add_number(peak, "host", (double)s->peak_bytes_host);
    cJSON_AddNullToObject(peak, "nvme");
    add_nulls(line, "energy_j", rails, 3);
    cJSON_AddNullToObject(line, "predicted_step_s");
    cJSON *kernels = cJSON_AddObjectToObject(line, "kernels");
    cJSON_AddStringToObject(kernels, "matmul", s->kernel_matmul);
    cJSON_AddStringToObject(kernels, "attention", s->kernel_attention);
    add_bins(line, "loss_by_position", s->bins, s->n_bins);
    return line;
}

static cJSON *eval_line(const ls_eval_record *e)
{
    cJSON *line = cJSON_CreateObject();

    add_number(line, "step", (double)e->step);
    add_number(line, "attempt", e->attempt);
    add_result(line, "eval_loss", e->loss);
    add_number(line, "eval_tokens", (double)e->tokens);
    add_number(line, "eval_s", e->seconds);
    add_bins(line, "eval_loss_by_position", e->bins, e->n_bins);
    return line;
}

/* ---- file ---------------------------------------------------------------------------------- */

static ls_status write_text(ls_record *record, const char *text, size_t bytes)
{
    const off_t start = lseek(record->fd, 0, SEEK_END);
    size_t done = 0;

    while (done < bytes) {
        const ssize_t n = write(record->fd, text + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            const int error = n < 0 ? errno : ENOSPC;
            if (start >= 0 && ftruncate(record->fd, start) != 0) { /* the torn line is cut later */
            }
            return LS_FAIL(LS_ERR_IO, "%s: cannot append: %s%s", record->path, strerror(error),
                           error == ENOSPC ? "; free space and continue with --resume" : "");
        }
        done += (size_t)n;
    }
    return LS_OK;
}

static ls_status append_line(ls_record *record, cJSON *line)
{
    char *text = cJSON_PrintUnformatted(line);
    cJSON_Delete(line);
    if (text == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "%s: a line of the record", record->path);

    const size_t bytes = strlen(text);
    text[bytes] = '\n'; /* in place of the NUL: one write for the whole line */
    const ls_status status = write_text(record, text, bytes + 1);
    free(text);
    return status;
}

/* Cut a torn last line; find the largest attempt. */
static ls_status scan(ls_record *record, int *attempt)
{
    FILE *file = fopen(record->path, "re");
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    off_t whole = 0;

    *attempt = 0;
    if (file == NULL)
        return LS_FAIL(LS_ERR_IO, "%s: cannot read: %s", record->path, strerror(errno));
    while ((n = getline(&line, &capacity, file)) > 0 && line[n - 1] == '\n') {
        cJSON *object = cJSON_Parse(line);
        const cJSON *number = cJSON_GetObjectItemCaseSensitive(object, "attempt");
        if (cJSON_IsNumber(number) && number->valueint > *attempt) *attempt = number->valueint;
        cJSON_Delete(object);
        whole += n;
    }
    free(line);
    fclose(file);
    if (ftruncate(record->fd, whole) != 0)
        return LS_FAIL(LS_ERR_IO, "%s: cannot cut a torn line: %s", record->path, strerror(errno));
    return LS_OK;
}

ls_status ls_record_open(const char *directory, bool resume, ls_record **record, int *next_attempt)
{
    ls_record *opened = calloc(1, sizeof *opened);
    ls_status status = LS_OK;
    int attempt = 0;

    if (opened == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the record's handle");
    snprintf(opened->path, sizeof opened->path, "%s/record.jsonl", directory);
    opened->fd = open(opened->path, O_RDWR | O_CREAT | O_CLOEXEC | (resume ? 0 : O_TRUNC), 0666);
    if (opened->fd < 0) {
        status =
            LS_FAIL(LS_ERR_IO, "%s: cannot open for writing: %s", opened->path, strerror(errno));
        goto free_record;
    }
    if (resume) status = scan(opened, &attempt);
    if (status != LS_OK) goto close_file;
    *record = opened;
    *next_attempt = attempt + 1;
    return LS_OK;

close_file:
    close(opened->fd);
free_record:
    free(opened);
    return status;
}

void ls_record_close(ls_record *record)
{
    if (record == NULL) return;
    close(record->fd);
    free(record);
}

ls_status ls_record_step(ls_record *record, const ls_step_record *step)
{
    return append_line(record, step_line(step));
}

ls_status ls_record_eval(ls_record *record, const ls_eval_record *eval)
{
    return append_line(record, eval_line(eval));
}
