/*
 * bench_optimizer.c - the op that training runs, on one tensor that fills an arena, and the same
 * traffic without its arithmetic, by turns.
 *
 * Moments are never zero: the traffic toggles bits of them, and of a zero that makes a denormal
 * number, on which the update after it would take many times as long.
 */
#define _DEFAULT_SOURCE 1 /* NOLINT: the libc's name; for getloadavg */
#include "bench_optimizer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "bf16.h"
#include "clock.h"
#include "host_cores.h"
#include "host_memory.h"
#include "json.h"
#include "ops.h"
#include "text.h"
#include "topology_report.h"

#define REPETITIONS      9
#define PARAMS_ALIGN     65536 /* whole blocks of each stream, whole pages of any size */
#define CACHES_TO_BE_OUT 2

/* ---- the parameters -------------------------------------------------------------------------- */

static int64_t params_of(uint64_t bytes)
{
    const int64_t n = (int64_t)(bytes / LS_BENCH_OPTIMIZER_BYTES);
    return n < PARAMS_ALIGN ? n : n - n % PARAMS_ALIGN;
}

static int64_t choose_params(uint64_t asked)
{
    const uint64_t half = ls_host_memory_read().available_bytes / 2;
    const uint64_t usual = (uint64_t)LS_BENCH_OPTIMIZER_PARAMS * LS_BENCH_OPTIMIZER_BYTES;

    if (asked > 0) return params_of(asked);
    return params_of(half < usual ? half : usual);
}

static ls_adamw_args lay_out(void *base, int64_t n, const ls_update_control *control)
{
    float *m = base, *v = m + n, *g = v + n;
    ls_bf16 *w = (ls_bf16 *)(void *)(g + n);

    return (ls_adamw_args){.w = w,
                           .lo = (int16_t *)(void *)(w + n),
                           .m = m,
                           .v = v,
                           .g = g,
                           .control = control,
                           .n = n,
                           .beta1 = 0.9f,
                           .beta2 = 0.95f,
                           .eps = 1e-8f,
                           .weight_decay = 0.1f,
                           .lr_scale = 1.0f,
                           .dtype = LS_DTYPE_BF16};
}

static void fill(const ls_adamw_args *args)
{
    for (int64_t i = 0; i < args->n; i++) {
        ((ls_bf16 *)args->w)[i] = ls_bf16_from_f32(0.02f);
        args->lo[i] = (int16_t)(i % 251);
        ((float *)args->m)[i] = 1e-3f * (float)(1 + i % 7);
        ((float *)args->v)[i] = 1e-6f * (float)(1 + i % 5);
        ((float *)(uintptr_t)args->g)[i] = 1e-3f * (float)(i % 11 - 5);
    }
}

/* ---- timing ---------------------------------------------------------------------------------- */

static ls_status time_pass(const ls_adamw_args *args, bool update, double *ns_per_param)
{
    const uint64_t start_ns = ls_clock_ns();
    if (update)
        LS_TRY(ls_cpu_adamw(NULL, args));
    else
        ls_cpu_adamw_traffic(args);
    const uint64_t spent_ns = ls_clock_ns() - start_ns;
    if (spent_ns == 0)
        return LS_FAIL(LS_ERR_DEVICE, "a pass over %lld parameters took no time by the clock",
                       (long long)args->n);
    *ns_per_param = (double)spent_ns / (double)args->n;
    return LS_OK;
}

/* The pair of each repetition changes its order; the first one only warms up. */
static ls_status measure_row(const ls_adamw_args *args, int repetitions, ls_optimizer_row *row)
{
    double update[LS_REPETITIONS_MAX], traffic[LS_REPETITIONS_MAX], ratio[LS_REPETITIONS_MAX];

    ls_cpu_threads_set(row->threads);
    for (int r = -1; r < repetitions; r++) {
        const bool update_first = r % 2 == 0;
        double first, second;
        LS_TRY(time_pass(args, update_first, &first));
        LS_TRY(time_pass(args, !update_first, &second));
        if (r < 0) continue;
        update[r] = update_first ? first : second;
        traffic[r] = update_first ? second : first;
        ratio[r] = update[r] / traffic[r];
    }
    row->update_ns = ls_spread_of(update, repetitions);
    row->traffic_ns = ls_spread_of(traffic, repetitions);
    row->ratio = ls_spread_of(ratio, repetitions);
    return LS_OK;
}

static ls_status measure_rows(const ls_bench_optimizer_options *options, const ls_adamw_args *args,
                              int n_cores, ls_bench_optimizer *bench)
{
    int counts[LS_THREAD_COUNTS_MAX];
    ls_spread rates[LS_THREAD_COUNTS_MAX];
    ls_status status = LS_OK;

    bench->n_rows = ls_thread_counts(n_cores, counts);
    for (int c = 0; c < bench->n_rows && status == LS_OK; c++) {
        bench->rows[c].threads = counts[c];
        if (!options->quiet)
            fprintf(stderr, "longspan: measuring AdamW (%s) with %d threads\n", bench->kernel,
                    counts[c]);
        status = measure_row(args, bench->repetitions, &bench->rows[c]);
        rates[c] = (ls_spread){.median = 1.0 / bench->rows[c].update_ns.median};
    }
    ls_cpu_threads_set(0);
    if (status == LS_OK) bench->best = ls_best_count(rates, bench->n_rows);
    return status;
}

ls_status ls_bench_optimizer_measure(const ls_bench_optimizer_options *options,
                                     ls_bench_optimizer *bench)
{
    const ls_update_control control = {
        .coefficient = 1.0f, .beta1_power = 0.5, .beta2_power = 0.6, .updates = 7, .lr = 1e-6};
    const int64_t n = choose_params(options->bytes);
    ls_host_cores cores;
    ls_arena *arena;
    double load;

    *bench = (ls_bench_optimizer){.kernel = ls_ops_cpu.kernel_name(LS_OP_adamw, LS_DTYPE_BF16, 0),
                                  .n_params = n,
                                  .bytes = (uint64_t)n * LS_BENCH_OPTIMIZER_BYTES,
                                  .repetitions = options->repetitions > 0 ? options->repetitions
                                                                          : REPETITIONS};
    bench->load_average = getloadavg(&load, 1) == 1 ? load : -1.0;
    LS_TRY(ls_host_cores_find("", 0, NULL, &cores));
    bench->cache_bytes = cores.cache_bytes;
    const ls_arena_options wanted = {.size_bytes = bench->bytes,
                                     .name = "the benchmark's parameters",
                                     .touch_threads = cores.n,
                                     .huge_pages = true};
    LS_TRY(ls_arena_open(&wanted, &arena));
    const ls_arena_info info = ls_arena_describe(arena);
    bench->huge_bytes =
        info.huge_backed_bytes < bench->bytes ? info.huge_backed_bytes : bench->bytes;
    const ls_adamw_args args = lay_out(info.base, n, &control);
    fill(&args);
    const ls_status status = measure_rows(options, &args, cores.n, bench);
    ls_arena_close(arena);
    return status;
}

/* ---- telling --------------------------------------------------------------------------------- */

static bool is_cached(const ls_bench_optimizer *bench)
{
    return bench->bytes < CACHES_TO_BE_OUT * bench->cache_bytes;
}

static bool is_disturbed(const ls_bench_optimizer *bench)
{
    return bench->load_average >= 1.0;
}

static void print_spread(const ls_spread *s, const char *format, FILE *file)
{
    char one[3][32], text[100];

    snprintf(one[0], sizeof one[0], format, s->median);
    snprintf(one[1], sizeof one[1], format, s->least);
    snprintf(one[2], sizeof one[2], format, s->most);
    snprintf(text, sizeof text, "%s (%s-%s)", one[0], one[1], one[2]);
    fprintf(file, "  %-23s", text);
}

void ls_bench_optimizer_print(const ls_bench_optimizer *bench, FILE *file)
{
    char bytes[LS_TEXT_BYTES];

    fprintf(file,
            "AdamW %s: %lld parameters in %s, %.0f%% of it in huge pages; 28 bytes pass for each\n"
            "median of %d (least-most); *: the fewest threads within 2%% of the fastest\n"
            "  %7s  %-23s  %-23s  %-23s  %s\n",
            bench->kernel, (long long)bench->n_params,
            ls_text_bytes(bytes, sizeof bytes, bench->bytes),
            100.0 * (double)bench->huge_bytes / (double)bench->bytes, bench->repetitions, "threads",
            "ns per parameter", "the traffic alone", "ratio", "GB/s");
    for (int r = 0; r < bench->n_rows; r++) {
        const ls_optimizer_row *row = &bench->rows[r];
        fprintf(file, "  %5d %s", row->threads, r == bench->best ? "*" : " ");
        print_spread(&row->update_ns, "%.3f", file);
        print_spread(&row->traffic_ns, "%.3f", file);
        print_spread(&row->ratio, "%.3f", file);
        fprintf(file, "  %.4g\n", 28.0 / row->update_ns.median);
    }
    if (is_disturbed(bench))
        fprintf(file, "other programs were running (load %.1f): times are too long\n",
                bench->load_average);
    if (is_cached(bench))
        fputs("The parameters were less than twice the last-level cache: these are figures of the "
              "caches.\n",
              file);
}

static ls_status add_number(cJSON *object, const char *key, double value)
{
    return ls_json_add(object, key, cJSON_CreateNumber(value));
}

static ls_status add_row(const ls_optimizer_row *row, cJSON *object)
{
    LS_TRY(add_number(object, "threads", row->threads));
    LS_TRY(add_number(object, "ns_per_param", row->update_ns.median));
    LS_TRY(add_number(object, "ns_per_param_min", row->update_ns.least));
    LS_TRY(add_number(object, "traffic_ns_per_param", row->traffic_ns.median));
    LS_TRY(add_number(object, "traffic_ns_per_param_min", row->traffic_ns.least));
    LS_TRY(add_number(object, "ratio", row->ratio.median));
    LS_TRY(add_number(object, "ratio_min", row->ratio.least));
    return add_number(object, "ratio_max", row->ratio.most);
}

static ls_status fill_document(const ls_bench_optimizer *bench, const ls_topology *machine,
                               cJSON *json)
{
    cJSON *described, *optimizer = cJSON_CreateObject(), *rows = cJSON_CreateArray();

    LS_TRY(ls_json_add(json, "optimizer", optimizer));
    LS_TRY(ls_json_add(optimizer, "by_threads", rows));
    LS_TRY(ls_topology_to_json(machine, &described));
    LS_TRY(ls_json_add(json, "machine", described));
    LS_TRY(add_number(json, "repetitions", bench->repetitions));
    LS_TRY(ls_json_add(json, "load_average",
                       bench->load_average < 0.0 ? cJSON_CreateNull()
                                                 : cJSON_CreateNumber(bench->load_average)));
    LS_TRY(ls_json_add(json, "in_cache", cJSON_CreateBool(is_cached(bench))));
    LS_TRY(ls_json_add(optimizer, "kernel", cJSON_CreateString(bench->kernel)));
    LS_TRY(add_number(optimizer, "params", (double)bench->n_params));
    LS_TRY(add_number(optimizer, "huge_bytes", (double)bench->huge_bytes));
    LS_TRY(add_row(&bench->rows[bench->best], optimizer));
    for (int r = 0; r < bench->n_rows; r++) {
        cJSON *row = cJSON_CreateObject();
        LS_TRY(ls_json_append(rows, row));
        LS_TRY(add_row(&bench->rows[r], row));
    }
    return LS_OK;
}

ls_status ls_bench_optimizer_to_json(const ls_bench_optimizer *bench, const ls_topology *machine,
                                     cJSON **json)
{
    cJSON *document = cJSON_CreateObject();

    if (document == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a benchmark's document");
    const ls_status status = fill_document(bench, machine, document);
    if (status == LS_OK)
        *json = document;
    else
        cJSON_Delete(document);
    return status;
}

static ls_status print_json(const ls_bench_optimizer *bench, FILE *file)
{
    ls_topology *machine;
    cJSON *json;

    LS_TRY(ls_topology_discover(NULL, &machine));
    const ls_status status = ls_bench_optimizer_to_json(bench, machine, &json);
    ls_topology_free(machine);
    LS_TRY(status);
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    if (text == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a benchmark's document");
    fprintf(file, "%s\n", text);
    cJSON_free(text);
    return LS_OK;
}

ls_status ls_job_bench_optimizer(const ls_bench_optimizer_options *options, FILE *file)
{
    ls_bench_optimizer bench;

    LS_TRY(ls_bench_optimizer_measure(options, &bench));
    if (options->json)
        LS_TRY(print_json(&bench, file));
    else
        ls_bench_optimizer_print(&bench, file);
    if (fflush(file) != 0 || ferror(file))
        return LS_FAIL(LS_ERR_IO, "writing the benchmark's results: %s", strerror(errno));
    return LS_OK;
}
