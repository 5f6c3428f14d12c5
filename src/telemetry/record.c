/*
 * record.c - lines printed into a buffer of the record's own, appended by one write each.  It has
 * room for all sources from the first line on, so that later ones allocate nothing.
 */
#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"

#define PATH_BYTES   4096
#define LINE_BYTES   49152 /* twice 256 bins and the other keys take 40000 at most */
#define SOURCE_BYTES 96    /* of a source in a line, beside its name */

struct ls_record {
    int fd;
    char path[PATH_BYTES];
    size_t n_line; /* bytes of it so far; beyond line_bytes: they did not fit */
    size_t line_bytes;
    char *line;
};

/* ---- lines --------------------------------------------------------------------------------- */

static void put(ls_record *r, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

static void put(ls_record *r, const char *format, ...)
{
    const size_t room = r->n_line < r->line_bytes ? r->line_bytes - r->n_line : 0;
    va_list args;

    va_start(args, format);
    r->n_line += (size_t)vsnprintf(room > 0 ? r->line + r->n_line : NULL, room, format, args);
    va_end(args);
}

/* `"key":`, after a comma unless it is the first of its object. */
static void put_key(ls_record *r, const char *key)
{
    const bool first = r->n_line < r->line_bytes && r->line[r->n_line - 1] == '{';
    put(r, "%s\"%s\":", first ? "" : ",", key);
}

/* The fewest digits that read back as the same number. */
static void put_real(ls_record *r, double value)
{
    char text[32];
    double back = (double)NAN;

    for (int digits = 15; digits <= 17 && !(back >= value && back <= value); digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        back = strtod(text, NULL);
    }
    for (char *c = text; *c != '\0'; c++)
        if (*c == ',') *c = '.'; /* some locales' decimal point */
    put(r, "%s", text);
}

static void add_whole(ls_record *r, const char *key, int64_t value)
{
    put_key(r, key);
    put(r, "%" PRId64, value);
}

static void add_bool(ls_record *r, const char *key, bool value)
{
    put_key(r, key);
    put(r, value ? "true" : "false");
}

static void add_null(ls_record *r, const char *key)
{
    put_key(r, key);
    put(r, "null");
}

static void add_number(ls_record *r, const char *key, double value)
{
    put_key(r, key);
    if (isfinite(value))
        put_real(r, value);
    else
        put(r, "null");
}

/* A loss or norm that is not finite is a fact, not a missing sensor: written as text. */
static void add_result(ls_record *r, const char *key, double value)
{
    put_key(r, key);
    if (isfinite(value))
        put_real(r, value);
    else
        put(r, isnan(value) ? "\"NaN\"" : "\"Infinity\"");
}

/* The mean of no label is no fact. */
static void add_loss(ls_record *r, const char *key, double loss, int64_t labels)
{
    if (labels > 0)
        add_result(r, key, loss);
    else
        add_null(r, key);
}

static void add_text(ls_record *r, const char *key, const char *plain)
{
    put_key(r, key);
    put(r, "\"%s\"", plain);
}

/* `"key":{` or `"key":[`; the caller puts the end. */
static void open_inner(ls_record *r, const char *key, char bracket)
{
    put_key(r, key);
    put(r, "%c", bracket);
}

static void add_bins(ls_record *r, const char *key, const ls_record_bin *bins, int n)
{
    open_inner(r, key, '[');
    for (int i = 0; i < n; i++) {
        put(r, "%s[%" PRId64 ",%" PRId64 ",", i > 0 ? "," : "", bins[i].from, bins[i].to);
        if (isfinite(bins[i].loss))
            put_real(r, bins[i].loss);
        else
            put(r, "null");
        put(r, "]");
    }
    put(r, "]");
}

/* {"name":{"loss":l,"tokens":n},...}, without those that have no token. */
static void add_sources(ls_record *r, const char *key, const ls_record_losses *losses)
{
    bool first = true;

    open_inner(r, key, '{');
    for (int64_t i = 0; i < losses->n_sources; i++) {
        const ls_record_source *source = &losses->by_source[i];
        if (source->labels == 0) continue;
        put(r, "%s%s:{", first ? "" : ",", source->name_json);
        add_result(r, "loss", source->loss);
        add_whole(r, "tokens", source->labels);
        put(r, "}");
        first = false;
    }
    put(r, "}");
}

const char *const ls_record_lane_names[LS_RECORD_LANES] = {"compute", "copy_in", "copy_out",
                                                           "host",    "disk_in", "disk_out"};

static void add_lanes(ls_record *r, const double *busy_s)
{
    open_inner(r, "lane_busy_s", '{');
    for (int i = 0; i < LS_RECORD_LANES; i++) add_number(r, ls_record_lane_names[i], busy_s[i]);
    put(r, "}");
}

/* A figure of device memory; null without it. */
static void add_device_whole(ls_record *r, const ls_step_record *s, const char *key, uint64_t value)
{
    if (s->has_device)
        add_whole(r, key, (int64_t)value);
    else
        add_null(r, key);
}

static void add_bytes(ls_record *r, const ls_step_record *s)
{
    open_inner(r, "bytes", '{');
    add_device_whole(r, s, "copy_in", s->bytes_copy_in);
    add_device_whole(r, s, "copy_out", s->bytes_copy_out);
    add_null(r, "disk_in");
    add_null(r, "disk_out");
    put(r, "}");
}

static void add_peak(ls_record *r, const ls_step_record *s)
{
    open_inner(r, "peak_bytes", '{');
    add_device_whole(r, s, "hbm", s->peak_bytes_hbm);
    add_whole(r, "host", (int64_t)s->peak_bytes_host);
    if (s->peak_bytes_nvme > 0)
        add_whole(r, "nvme", (int64_t)s->peak_bytes_nvme);
    else
        add_null(r, "nvme");
    put(r, "}");
}

/* By phase; what has taken no time is left out. */
static void add_phases(ls_record *r, const char *key, const ls_record_energy *e,
                       const double *values)
{
    open_inner(r, key, '{');
    for (int phase = 0; phase < e->n_phases; phase++)
        if (e->phase_seconds[phase] > 0.0) add_number(r, e->phases[phase], values[phase]);
    put(r, "}");
}

/* A figure of each rail that has a sensor. */
static void add_coverage(ls_record *r, const ls_record_energy *e)
{
    open_inner(r, "energy_coverage", '{');
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++)
        if (!isnan(e->coverage[rail])) add_number(r, ls_rail_name(rail), e->coverage[rail]);
    put(r, "}");
}

static void add_methods(ls_record *r, const ls_record_energy *e)
{
    open_inner(r, "energy_method", '{');
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++)
        if (e->method[rail] >= 0)
            add_text(r, ls_rail_name(rail), ls_method_name((ls_method)e->method[rail]));
    put(r, "}");
}

static void add_energy(ls_record *r, const ls_record_energy *e)
{
    open_inner(r, "energy_j", '{');
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++)
        add_number(r, ls_rail_name(rail), e->joules[rail]);
    put(r, "}");
    if (!e->known) {
        add_null(r, "energy_phase_j");
        add_null(r, "energy_coverage");
        add_null(r, "energy_method");
        add_null(r, "phase_s");
        return;
    }
    open_inner(r, "energy_phase_j", '{');
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++)
        if (!isnan(e->coverage[rail])) add_phases(r, ls_rail_name(rail), e, e->phase_joules[rail]);
    put(r, "}");
    add_coverage(r, e);
    add_methods(r, e);
    add_phases(r, "phase_s", e, e->phase_seconds);
}

static void put_step(ls_record *r, const ls_step_record *s)
{
    add_whole(r, "step", s->step);
    add_whole(r, "attempt", s->attempt);
    add_whole(r, "tokens", s->tokens);
    add_whole(r, "tokens_total", s->tokens_total);
    add_number(r, "pairs", s->pairs);
    add_loss(r, "loss", s->loss, s->labels);
    add_result(r, "grad_norm", s->grad_norm);
    add_result(r, "grad_norm_clipped", s->grad_norm_clipped);
    add_bool(r, "clipped", s->clipped);
    add_bool(r, "skipped", s->skipped);
    add_number(r, "lr", s->lr);
    add_number(r, "step_s", s->step_s);
    add_number(r, "tokens_per_s", s->tokens_per_s);
    add_number(r, "mfu_causal", s->mfu_causal);
    add_number(r, "mfu_megatron", s->mfu_megatron);
    add_number(r, "tflops_alst", s->tflops_alst);
    add_lanes(r, s->lane_busy_s);
    add_bytes(r, s);
    add_peak(r, s);
    add_number(r, "flops_model", s->flops_model);
    add_energy(r, &s->energy);
    add_number(r, "predicted_step_s", s->predicted_step_s);
    open_inner(r, "kernels", '{');
    add_text(r, "matmul", s->kernel_matmul);
    add_text(r, "attention", s->kernel_attention);
    add_text(r, "attention_backward", s->kernel_attention_backward);
    put(r, "}");
    add_bins(r, "loss_by_position", s->losses.by_position, s->losses.n_positions);
    add_bins(r, "loss_by_distance", s->losses.by_distance, s->losses.n_distances);
    add_sources(r, "loss_by_source", &s->losses);
}

static void put_eval(ls_record *r, const ls_eval_record *e)
{
    add_whole(r, "step", e->step);
    add_whole(r, "attempt", e->attempt);
    add_loss(r, "eval_loss", e->loss, e->tokens);
    add_whole(r, "eval_tokens", e->tokens);
    add_number(r, "eval_s", e->seconds);
    add_energy(r, &e->energy);
    add_bins(r, "eval_loss_by_position", e->losses.by_position, e->losses.n_positions);
    add_bins(r, "eval_loss_by_distance", e->losses.by_distance, e->losses.n_distances);
    add_sources(r, "eval_loss_by_source", &e->losses);
}

/* ---- file ---------------------------------------------------------------------------------- */

static ls_status write_text(ls_record *record, const char *text, size_t bytes)
{
    const off_t start = lseek(record->fd, 0, SEEK_END);
    size_t done = 0;

    if (start < 0)
        return LS_FAIL(LS_ERR_IO, "%s: cannot append: %s", record->path, strerror(errno));
    while (done < bytes) {
        const ssize_t n = write(record->fd, text + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            const int error = n < 0 ? errno : ENOSPC;
            if (ftruncate(record->fd, start) != 0) { /* the torn line is cut later */
            }
            return LS_FAIL(LS_ERR_IO, "%s: cannot append: %s%s", record->path, strerror(error),
                           error == ENOSPC ? "; free space and continue with --resume" : "");
        }
        done += (size_t)n;
    }
    return LS_OK;
}

static ls_status begin_line(ls_record *record, const ls_record_losses *losses)
{
    size_t bytes = LINE_BYTES;

    for (int64_t i = 0; i < losses->n_sources; i++)
        bytes += strlen(losses->by_source[i].name_json) + SOURCE_BYTES;
    if (bytes > record->line_bytes) {
        char *line = realloc(record->line, bytes);
        if (line == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "%s: a line", record->path);
        record->line = line;
        record->line_bytes = bytes;
    }
    record->n_line = 0;
    put(record, "{");
    return LS_OK;
}

/* A file without a name takes every line, and nobody will ever read it. */
static ls_status check_name(const ls_record *record)
{
    struct stat file;

    if (fstat(record->fd, &file) == 0 && file.st_nlink > 0) return LS_OK;
    return LS_FAIL(LS_ERR_IO,
                   "%s was removed while the run wrote it; put the run directory back from a copy "
                   "and continue with --resume, or start again",
                   record->path);
}

static ls_status append_line(ls_record *record)
{
    LS_TRY(check_name(record));
    put(record, "}\n");
    if (record->n_line >= record->line_bytes)
        return LS_FAIL(LS_ERR_INVALID, "%s: a line of %zu bytes; the most is %zu", record->path,
                       record->n_line, record->line_bytes - 1);
    return write_text(record, record->line, record->n_line);
}

/* Of a line as they are printed above; 0 if it is none. */
static int read_attempt(const char *line)
{
    static const char key[] = "\"attempt\":";
    const char *at = strstr(line, key);
    const long attempt = at != NULL ? strtol(at + sizeof key - 1, NULL, 10) : 0;
    return attempt > 0 && attempt < INT_MAX ? (int)attempt : 0;
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
        const int found = read_attempt(line);
        if (found > *attempt) *attempt = found;
        whole += n;
    }
    const int error = errno;
    free(line);
    const bool whole_file = feof(file) != 0;
    fclose(file);
    if (!whole_file) /* what has not been read is no torn line */
        return LS_FAIL(LS_ERR_IO, "%s: cannot read behind byte %lld: %s", record->path,
                       (long long)whole, strerror(error));
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
    status = ls_file_check_plain(opened->fd, opened->path);
    if (status == LS_OK && resume) status = scan(opened, &attempt);
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
    free(record->line);
    free(record);
}

ls_status ls_record_step(ls_record *record, const ls_step_record *step)
{
    LS_TRY(begin_line(record, &step->losses));
    put_step(record, step);
    return append_line(record);
}

ls_status ls_record_eval(ls_record *record, const ls_eval_record *eval)
{
    LS_TRY(begin_line(record, &eval->losses));
    put_eval(record, eval);
    return append_line(record);
}
