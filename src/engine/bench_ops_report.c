/* bench_ops_report.c - measured ops as a table, as a document, in a profile; and the whole job. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_ops.h"
#include "choices.h"
#include "hardware.h"
#include "json.h"
#include "text.h"
#include "topology_report.h"

#define LEAST_SECONDS 0.02

/* ---- table and document -------------------------------------------------------------------- */

static const char *name_threads(const ls_bench_ops *bench, char text[32])
{
    if (bench->threads == 0) return "the GPU";
    snprintf(text, 32, "%d threads", bench->threads);
    return text;
}

void ls_bench_ops_print(const ls_bench_ops *bench, FILE *file)
{
    char where[32];

    fprintf(file, "%-19s %-5s %-20s %12s %10s %10s  %s\n", "op", "dtype", "shape", "seconds",
            "GFLOP/s", "GB/s", "kernel");
    for (int i = 0; i < bench->n_rows; i++) {
        const ls_bench_op *row = &bench->rows[i];
        const double seconds = row->seconds.median;
        char gflops[16] = "-";
        if (row->flops > 0) snprintf(gflops, sizeof gflops, "%.4g", 1e-9 * row->flops / seconds);
        fprintf(file, "%-19s %-5s %-20s %12.4g %10s %10.4g  %s\n", ls_op_describe(row->op)->name,
                ls_dtype_name(row->dtype), row->shape, seconds, gflops, 1e-9 * row->bytes / seconds,
                row->kernel);
    }
    fprintf(file, "medians of %d on %s\n", bench->repetitions, name_threads(bench, where));
}

static ls_status add_row(const ls_bench_op *op, cJSON *ops)
{
    const double seconds = op->seconds.median;
    cJSON *row = cJSON_CreateObject();

    LS_TRY(ls_json_append(ops, row));
    LS_TRY(ls_json_add(row, "op", cJSON_CreateString(ls_op_describe(op->op)->name)));
    LS_TRY(ls_json_add(row, "shape", cJSON_CreateString(op->shape)));
    LS_TRY(ls_json_add(row, "dtype", cJSON_CreateString(ls_dtype_name(op->dtype))));
    LS_TRY(ls_json_add(row, "kernel", cJSON_CreateString(op->kernel)));
    LS_TRY(ls_json_add(row, "seconds_median", cJSON_CreateNumber(seconds)));
    LS_TRY(ls_json_add(row, "seconds_min", cJSON_CreateNumber(op->seconds.least)));
    LS_TRY(ls_json_add(row, "seconds_max", cJSON_CreateNumber(op->seconds.most)));
    LS_TRY(
        ls_json_add(row, "flops_per_s",
                    op->flops > 0 ? cJSON_CreateNumber(op->flops / seconds) : cJSON_CreateNull()));
    return ls_json_add(row, "bytes_per_s", cJSON_CreateNumber(op->bytes / seconds));
}

ls_status ls_bench_ops_to_json(const ls_bench_ops *bench, cJSON *json)
{
    cJSON *ops = cJSON_CreateArray();

    LS_TRY(ls_json_add(json, "repetitions", cJSON_CreateNumber(bench->repetitions)));
    LS_TRY(
        ls_json_add(json, "threads",
                    bench->threads > 0 ? cJSON_CreateNumber(bench->threads) : cJSON_CreateNull()));
    LS_TRY(ls_json_add(json, "load_average",
                       ls_known(bench->load_average) ? cJSON_CreateNumber(bench->load_average.value)
                                                     : cJSON_CreateNull()));
    LS_TRY(ls_json_add(json, "ops", ops));
    for (int i = 0; i < bench->n_rows; i++) LS_TRY(add_row(&bench->rows[i], ops));
    return LS_OK;
}

/* ---- profile ------------------------------------------------------------------------------- */

/* To four digits: a measured rate has no more. */
static ls_quantity measured(double value)
{
    char text[32];

    snprintf(text, sizeof text, "%.3e", value);
    return ls_quantity_make(strtod(text, NULL), LS_SOURCE_MEASURED, "profile");
}

/* FLOPs of an op that the planner looks up by size, of others bytes. */
static double work_of(const ls_bench_op *row)
{
    return row->size != 0 ? row->flops : row->bytes;
}

typedef struct sums {
    double work, seconds;
    int calls;
} sums;

/* Calls like this one, on few rows or on many. */
static sums add_like(const ls_bench_ops *bench, const ls_bench_op *like, bool few)
{
    sums all = {0, 0, 0};

    for (int i = 0; i < bench->n_rows; i++) {
        const ls_bench_op *row = &bench->rows[i];
        if (row->op != like->op || row->size != like->size || row->dtype != LS_DTYPE_BF16) continue;
        if (row->few != few || strcmp(row->kernel, like->kernel) != 0) continue;
        if (row->is_gradient != like->is_gradient) continue;
        all.work += work_of(row);
        all.seconds += row->seconds.median;
        all.calls++;
    }
    return all;
}

/* What a call takes besides its work: where a line through its times on few rows and on many is at
 * no work at all, of the least size, where that counts most.  0: not known. */
static double call_seconds(const ls_bench_ops *bench, const ls_bench_op *like)
{
    const ls_bench_op *least = NULL;

    for (int i = 0; i < bench->n_rows; i++) {
        const ls_bench_op *row = &bench->rows[i];
        if (row->op != like->op || !row->few || strcmp(row->kernel, like->kernel) != 0) continue;
        if (row->is_gradient != like->is_gradient) continue;
        if (least == NULL || row->size < least->size) least = row;
    }
    if (least == NULL) return 0;
    const sums few = add_like(bench, least, true), many = add_like(bench, least, false);
    if (many.seconds <= few.seconds || many.work <= few.work) return 0;
    const double at_once = (many.seconds - few.seconds) / (many.work - few.work);
    return fmax((few.seconds - few.work * at_once) / few.calls, 0);
}

/* FLOP/s or bytes/s once a call is at work. */
static double rate_at(const ls_bench_ops *bench, const ls_bench_op *like)
{
    const sums few = add_like(bench, like, true), many = add_like(bench, like, false);
    const double seconds = few.seconds + many.seconds;
    const double besides = (few.calls + many.calls) * call_seconds(bench, like);

    return (few.work + many.work) / (besides < seconds ? seconds - besides : seconds);
}

static double best_rate(const ls_bench_ops *bench, ls_dtype dtype)
{
    double best = 0;

    for (int i = 0; i < bench->n_rows; i++) {
        const ls_bench_op *row = &bench->rows[i];
        if (row->dtype != dtype || row->size == 0) continue;
        best = fmax(best, row->flops / row->seconds.median);
        if (dtype == LS_DTYPE_BF16) best = fmax(best, rate_at(bench, row));
    }
    return best;
}

static bool is_listed(const ls_unit *unit, const ls_efficiency *like)
{
    for (int i = 0; i < unit->n_efficiencies; i++) {
        const ls_efficiency *e = &unit->efficiencies[i];
        if (strcmp(e->op, like->op) == 0 && strcmp(e->shape, like->shape) == 0 &&
            strcmp(e->kernel, like->kernel) == 0)
            return true;
    }
    return false;
}

/* Where bf16 calls of an op have gone to several kernels, rates are those of one. */
static bool has_several_kernels(const ls_bench_ops *bench, const ls_bench_op *row)
{
    for (int i = 0; i < bench->n_rows; i++) {
        const ls_bench_op *other = &bench->rows[i];
        if (other->op == row->op && other->dtype == LS_DTYPE_BF16 && row->dtype == LS_DTYPE_BF16 &&
            strcmp(other->kernel, row->kernel) != 0)
            return true;
    }
    return false;
}

static void fill_rate(const ls_bench_ops *bench, const ls_bench_op *row, double peak,
                      ls_efficiency *e)
{
    const double rate = rate_at(bench, row), besides = call_seconds(bench, row);

    if (row->size != 0)
        e->fraction = measured(rate / peak);
    else
        e->bytes_per_s = measured(rate);
    if (besides > 0) e->call_ns = measured(1e9 * besides);
}

static void name_shape(const ls_bench_op *row, ls_efficiency *e)
{
    const char *of = row->op != LS_OP_matmul ? "causal-" : row->is_gradient ? "dw-" : "";

    if (row->size == 0)
        snprintf(e->shape, sizeof e->shape, "%s", row->shape);
    else
        snprintf(e->shape, sizeof e->shape, "%s%.0f", of, row->size);
}

void ls_bench_ops_fill(const ls_bench_ops *bench, ls_unit *unit)
{
    unit->bf16_flops_per_s = measured(best_rate(bench, LS_DTYPE_BF16));
    unit->fp32_flops_per_s = measured(best_rate(bench, LS_DTYPE_F32));
    unit->n_efficiencies = 0;
    for (int i = 0; i < bench->n_rows; i++) {
        const ls_bench_op *row = &bench->rows[i];
        ls_efficiency e = {.op = ""};
        if (row->few || row->dtype != LS_DTYPE_BF16) continue;
        snprintf(e.op, sizeof e.op, "%s", ls_op_describe(row->op)->name);
        name_shape(row, &e);
        if (has_several_kernels(bench, row)) snprintf(e.kernel, sizeof e.kernel, "%s", row->kernel);
        if (is_listed(unit, &e)) continue;
        fill_rate(bench, row, unit->bf16_flops_per_s.value, &e);
        unit->efficiencies[unit->n_efficiencies++] = e;
    }
}

static ls_unit *find_unit(ls_topology *t, ls_unit_kind kind)
{
    for (int u = 0; u < t->n_units; u++)
        if (t->units[u].kind == kind) return &t->units[u];
    return NULL;
}

static ls_status save(const ls_bench_options *options, const ls_bench_ops *bench,
                      const ls_topology *machine, ls_profile *profile)
{
    char comment[512], name[LS_TEXT_BYTES], where[32];
    const ls_place *host = NULL;

    for (int p = 0; p < machine->n_places && host == NULL; p++)
        if (machine->places[p].kind == LS_PLACE_HOST) host = &machine->places[p];
    snprintf(comment, sizeof comment,
             "# Written by longspan bench ops --save, from profile %s.  measured: timed here, the "
             "median\n# of %d on %s.\n",
             ls_text_quote(name, sizeof name, profile->name), bench->repetitions,
             name_threads(bench, where));
    ls_profile_fill(profile, machine, host);
    ls_unit *unit = find_unit(&profile->machine, bench->threads == 0 ? LS_UNIT_GPU : LS_UNIT_CPU);
    if (unit == NULL)
        return LS_FAIL(LS_ERR_UNSUPPORTED, "%s is not written: this machine's %s is not known",
                       options->save, bench->threads == 0 ? "GPU" : "CPU");
    ls_bench_ops_fill(bench, unit);
    LS_TRY(ls_profile_name_from(options->save, profile->name));
    return ls_profile_write(profile, comment, options->save);
}

/* ---- the job ------------------------------------------------------------------------------- */

static ls_status print_document(const ls_bench_ops *bench, const ls_topology *machine, FILE *file)
{
    cJSON *json = cJSON_CreateObject(), *topo = NULL;
    char *text = NULL;

    ls_status status = ls_topology_to_json(machine, &topo);
    if (status == LS_OK) status = ls_json_add(json, "machine", topo);
    if (status == LS_OK) status = ls_bench_ops_to_json(bench, json);
    if (status == LS_OK && (text = cJSON_PrintUnformatted(json)) == NULL)
        status = LS_FAIL(LS_ERR_NO_MEMORY, "a benchmark's document");
    if (status == LS_OK) fprintf(file, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(json);
    return status;
}

static ls_status report(const ls_bench_options *options, const ls_bench_ops *bench,
                        const ls_topology *machine, FILE *file)
{
    const double load = bench->load_average.value;

    if (ls_known(bench->load_average) && load >= 1 && !options->quiet)
        fprintf(stderr,
                "longspan: warning: other programs are running (load %.1f): rates are too low\n",
                load);
    if (options->json)
        LS_TRY(print_document(bench, machine, file));
    else
        ls_bench_ops_print(bench, file);
    if (fflush(file) != 0 || ferror(file))
        return LS_FAIL(LS_ERR_IO, "writing the benchmark's results: %s", strerror(errno));
    return LS_OK;
}

/* As training chooses: the profile's GPU where there is a real one, with a note where it cannot be
 * used. */
static void choose_device(const ls_bench_options *options, const ls_topology *machine,
                          ls_profile *profile, ls_bench_ops_options *ops)
{
    if (ls_topology_find_real_gpu(machine) == NULL) return;
    if (find_unit(&profile->machine, LS_UNIT_GPU) == NULL) return;
    if (ls_hardware_find_gpu(&ops->open_device, &ops->ops) == LS_OK) return;
    *ops = (ls_bench_ops_options){.repetitions = ops->repetitions,
                                  .least_seconds = ops->least_seconds};
    if (!options->quiet)
        fprintf(stderr, "longspan: the GPU cannot be used (%s): measuring the CPU\n", ls_error());
}

static ls_status run(const ls_bench_options *options, ls_topology *machine, ls_profile *profile,
                     const char *reason, FILE *file)
{
    ls_bench_ops_options ops = {.repetitions = options->repetitions,
                                .least_seconds = LEAST_SECONDS};
    ls_bench_ops *bench = malloc(sizeof *bench);

    if (bench == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a benchmark's results");
    ls_status status = ls_profile_merge(profile, reason, machine);
    if (status == LS_OK) choose_device(options, machine, profile, &ops);
    if (status == LS_OK) status = ls_bench_ops_measure(&ops, bench);
    if (status == LS_OK) status = report(options, bench, machine, file);
    if (status == LS_OK && options->save != NULL) status = save(options, bench, machine, profile);
    free(bench);
    return status;
}

ls_status ls_job_bench_ops(const ls_bench_options *options, FILE *file)
{
    const bool choose = strcmp(options->hardware, "auto") == 0;
    char reason[LS_REASON_BYTES] = "";
    ls_topology *machine;
    ls_profile *profile = NULL;

    if (options->save != NULL) LS_TRY(ls_profile_check_target(options->save));
    LS_TRY(ls_topology_discover(NULL, &machine));
    ls_status status = choose ? ls_profile_choose(machine, &profile, reason, sizeof reason)
                              : ls_profile_read(options->hardware, &profile);
    if (status == LS_OK) status = run(options, machine, profile, choose ? reason : NULL, file);
    ls_profile_free(profile);
    ls_topology_free(machine);
    return status;
}
