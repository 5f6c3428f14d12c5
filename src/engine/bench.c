/* bench.c - which memories and links a machine has to measure, and with how much memory. */
#define _DEFAULT_SOURCE /* NOLINT: the libc's name; for getloadavg */
#include "bench.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "hardware.h"
#include "host_memory.h"
#include "measure_host.h"
#include "text.h"

#define COPY_BYTES       ((uint64_t)256 << 20) /* where no memory could be measured */
#define CACHES_TO_BE_OUT 2                     /* a buffer of so many caches is memory */

static void note(const ls_bench_options *options, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void note(const ls_bench_options *options, const char *format, ...)
{
    va_list args;

    if (options->quiet) return;
    fputs("longspan: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

/* What may be used of a place: nobody knows of other processes on the same node. */
static uint64_t available_bytes(const ls_bench_options *options, const ls_place *place)
{
    uint64_t bytes = ls_host_memory_read().available_bytes;

    if (ls_known(place->free_bytes) && place->free_bytes.value < (double)bytes)
        bytes = (uint64_t)place->free_bytes.value;
    if (options->memory_bytes > 0 && options->memory_bytes < bytes) bytes = options->memory_bytes;
    return bytes;
}

/* ---- host memory ---------------------------------------------------------------------------- */

static ls_status sweep(const ls_bench_options *options, const ls_host_cores *cores, int repetitions,
                       ls_bench_memory *m)
{
    ls_host_probe *probe;
    char bytes[LS_TEXT_BYTES];

    LS_TRY(ls_host_probe_make(cores, m->numa_node, m->buffer_bytes, &probe));
    const ls_memory_probe functions = ls_host_probe_functions(probe);
    ls_status status = LS_OK;
    for (int s = 0; s < 2 && status == LS_OK; s++) {
        note(options, "measuring %s: %d cores, %s %s huge pages", m->place, functions.n_cores,
             ls_text_bytes(bytes, sizeof bytes, m->buffer_bytes), s == 0 ? "in" : "without");
        status = ls_memory_sweep_measure(&functions, s == 0, repetitions, &m->sweeps[s]);
    }
    ls_host_probe_free(probe);
    return status;
}

/* What this machine or process cannot do is said in the row; the rest is measured all the same. */
static ls_status excuse(ls_status status, char missing[LS_NOTE_BYTES])
{
    if (status != LS_ERR_UNSUPPORTED) return status;
    snprintf(missing, LS_NOTE_BYTES, "%s", ls_error());
    return LS_OK;
}

static ls_status measure_memory(const ls_bench_options *options, const ls_place *place,
                                int repetitions, ls_bench_memory *m)
{
    ls_host_cores cores;

    snprintf(m->place, sizeof m->place, "%s", place->name);
    m->numa_node = place->numa_node;
    ls_status status = ls_host_cores_find("", place->numa_node, NULL, &cores);
    if (status != LS_OK) return excuse(status, m->missing);
    m->n_cores = cores.n;
    m->cache_bytes = cores.cache_bytes;
    const ls_buffer_wish wish = {.bytes = options->bytes,
                                 .cache_bytes = cores.cache_bytes,
                                 .available_bytes = available_bytes(options, place),
                                 .place = place->name};
    LS_TRY(ls_buffer_choose(&wish, &m->buffer_bytes));
    status = sweep(options, &cores, repetitions, m);
    m->measured = status == LS_OK;
    return excuse(status, m->missing);
}

static ls_status measure_memories(const ls_bench_options *options, ls_bench *bench)
{
    const ls_topology *t = bench->machine;

    for (int p = 0; p < t->n_places; p++)
        if (t->places[p].kind == LS_PLACE_HOST)
            LS_TRY(measure_memory(options, &t->places[p], bench->repetitions,
                                  &bench->memories[bench->n_memories++]));
    return LS_OK;
}

/* ---- copies --------------------------------------------------------------------------------- */

static ls_bench_copy *add_copies(ls_bench *bench, const char *host, const char *device)
{
    ls_bench_copy *first = &bench->copies[bench->n_copies];

    assert(bench->n_copies + LS_COPY_COUNT <= LS_BENCH_COPIES_MAX);
    for (int way = 0; way < LS_COPY_COUNT; way++) {
        ls_bench_copy *copy = &bench->copies[bench->n_copies++];
        snprintf(copy->host, sizeof copy->host, "%s", host);
        snprintf(copy->device, sizeof copy->device, "%s", device);
        copy->way = (ls_copy_way)way;
    }
    return first;
}

static void miss_copies(ls_bench *bench, const char *host, const char *device, const char *why)
{
    ls_bench_copy *copies = add_copies(bench, host, device);
    for (int way = 0; way < LS_COPY_COUNT; way++)
        snprintf(copies[way].missing, sizeof copies[way].missing, "%s", why);
}

static const ls_bench_memory *find_memory(const ls_bench *bench, const ls_place *place)
{
    for (int m = 0; m < bench->n_memories; m++)
        if (bench->memories[m].measured && strcmp(bench->memories[m].place, place->name) == 0)
            return &bench->memories[m];
    return NULL;
}

/* Both ways at once, half of the bytes each: the slower way ends last. */
static double throttle_of(ls_copy_way way, double in, double out)
{
    if (way == LS_COPY_IN) return in;
    if (way == LS_COPY_OUT) return out;
    if (in > 0 && out > 0) return 2 * (in < out ? in : out);
    return 2 * (in > 0 ? in : out);
}

static ls_status choose_copies(const ls_bench_options *options, const ls_place *host,
                               const ls_place *device, const ls_bench *bench, ls_copy_options *copy)
{
    const ls_bench_memory *memory = find_memory(bench, host);
    const ls_buffer_wish wish = {.bytes = memory != NULL ? memory->buffer_bytes : COPY_BYTES,
                                 .available_bytes = available_bytes(options, host),
                                 .place = host->name};

    *copy = (ls_copy_options){.repetitions = bench->repetitions, .clock = options->copy_clock};
    LS_TRY(ls_buffer_choose(&wish, &copy->host_bytes));
    copy->device_bytes = copy->host_bytes;
    if (ls_known(device->capacity_bytes) &&
        device->capacity_bytes.value / 2 < (double)copy->device_bytes)
        copy->device_bytes = (uint64_t)(device->capacity_bytes.value / 2);
    note(options, "measuring copies between %s and %s", host->name, device->name);
    return LS_OK;
}

static void add_reaches(ls_bench *bench, const ls_place *host, const ls_place *device,
                        const ls_copy_options *copy, const ls_spread *spreads)
{
    for (int way = 0; way < LS_REACH_COUNT; way++) {
        assert(bench->n_reaches < LS_BENCH_REACHES_MAX);
        ls_bench_reach *reach = &bench->reaches[bench->n_reaches++];
        const ls_place *place = way == LS_REACH_OWN ? device : host;
        snprintf(reach->device, sizeof reach->device, "%s", device->name);
        snprintf(reach->place, sizeof reach->place, "%s", place->name);
        reach->way = (ls_reach_way)way;
        reach->bytes = way == LS_REACH_OWN ? copy->device_bytes : copy->host_bytes;
        reach->bytes_per_s = spreads[way];
    }
}

/* The GPU that CUDA shows first, from the host memory beside it. */
static ls_status measure_gpu(const ls_bench_options *options, const ls_place *host,
                             const ls_place *device, ls_bench *bench)
{
    const ls_unit *gpu = ls_topology_find_real_gpu(bench->machine);
    ls_spread ways[LS_COPY_COUNT], reaches[LS_REACH_COUNT];
    ls_copy_options copy;
    ls_device_opener *opener;
    const ls_ops *ops;

    if (gpu == NULL || gpu->place < 0 || &bench->machine->places[gpu->place] != device) {
        miss_copies(bench, host->name, device->name,
                    "the first GPU is measured; CUDA_VISIBLE_DEVICES chooses another");
        return LS_OK;
    }
    ls_status status = ls_hardware_find_gpu(&opener, &ops);
    if (status == LS_OK) status = choose_copies(options, host, device, bench, &copy);
    if (status == LS_OK) {
        copy.open_device = opener;
        copy.bind = bench->n_memories > 1;
        copy.numa_node = host->numa_node;
        status = ls_copies_measure(&copy, ways, reaches);
    }
    if (status == LS_ERR_UNSUPPORTED) {
        miss_copies(bench, host->name, device->name, ls_error());
        return LS_OK;
    }
    if (status != LS_OK) return status;
    ls_bench_copy *copies = add_copies(bench, host->name, device->name);
    for (int way = 0; way < LS_COPY_COUNT; way++) {
        copies[way].measured = true;
        copies[way].bytes = copy.host_bytes;
        copies[way].bytes_per_s = copies[way].unthrottled_bytes_per_s = ways[way];
    }
    add_reaches(bench, host, device, &copy, reaches);
    return LS_OK;
}

static ls_status measure_emulated(const ls_bench_options *options, const ls_profile *profile,
                                  const ls_place *host, const ls_place *device, ls_bench *bench)
{
    const double in =
        ls_known(profile->throttle_in_bytes_per_s) ? profile->throttle_in_bytes_per_s.value : 0;
    const double out =
        ls_known(profile->throttle_out_bytes_per_s) ? profile->throttle_out_bytes_per_s.value : 0;
    ls_copy_options copy;
    ls_spread unthrottled[LS_COPY_COUNT], throttled[LS_COPY_COUNT];

    LS_TRY(choose_copies(options, host, device, bench, &copy));
    LS_TRY(ls_copies_measure(&copy, unthrottled, NULL));
    copy.in_bytes_per_s = in;
    copy.out_bytes_per_s = out;
    const bool is_throttled = in > 0 || out > 0;
    if (is_throttled) LS_TRY(ls_copies_measure(&copy, throttled, NULL));
    ls_bench_copy *copies = add_copies(bench, host->name, device->name);
    for (int way = 0; way < LS_COPY_COUNT; way++) {
        copies[way].measured = true;
        copies[way].bytes = copy.host_bytes;
        copies[way].bytes_per_s = is_throttled ? throttled[way] : unthrottled[way];
        copies[way].unthrottled_bytes_per_s = unthrottled[way];
        copies[way].throttle_bytes_per_s = throttle_of((ls_copy_way)way, in, out);
    }
    return LS_OK;
}

static ls_status measure_links(const ls_bench_options *options, const ls_profile *profile,
                               ls_bench *bench)
{
    const ls_topology *t = bench->machine;

    for (int l = 0; l < t->n_links; l++) {
        const ls_place *from = ls_topology_find_place(t, t->links[l].from);
        const ls_place *to = ls_topology_find_place(t, t->links[l].to);
        if (from->kind != LS_PLACE_HOST || to->kind != LS_PLACE_HBM || t->links[l].remote) continue;
        if (to->emulated)
            LS_TRY(measure_emulated(options, profile, from, to, bench));
        else
            LS_TRY(measure_gpu(options, from, to, bench));
    }
    if (bench->n_copies == 0)
        miss_copies(bench, "host", "hbm",
                    "no link to device memory is known here; --hardware emulated-gh200 has one");
    return LS_OK;
}

/* ---- the whole ------------------------------------------------------------------------------ */

ls_quantity ls_bench_read_load(void)
{
    double load;
    if (getloadavg(&load, 1) != 1) return (ls_quantity){.source = LS_SOURCE_UNKNOWN};
    return ls_discovered(load, "getloadavg");
}

ls_status ls_bench_measure(const ls_bench_options *options, const ls_topology *machine,
                           const ls_profile *profile, ls_bench **bench)
{
    ls_bench *b = calloc(1, sizeof *b);

    if (b == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a benchmark's results");
    b->machine = machine;
    b->repetitions = options->repetitions > 0 ? options->repetitions : LS_BENCH_REPETITIONS;
    b->load_average = ls_bench_read_load();
    ls_status status = measure_memories(options, b);
    if (status == LS_OK) status = measure_links(options, profile, b);
    if (status != LS_OK) {
        free(b);
        return status;
    }
    *bench = b;
    return LS_OK;
}

bool ls_bench_is_disturbed(const ls_bench *bench)
{
    return ls_known(bench->load_average) && bench->load_average.value >= 1;
}

bool ls_bench_is_cached(const ls_bench *bench)
{
    for (int m = 0; m < bench->n_memories; m++)
        if (bench->memories[m].measured &&
            bench->memories[m].buffer_bytes < CACHES_TO_BE_OUT * bench->memories[m].cache_bytes)
            return true;
    return false;
}

static ls_status print_json(const ls_bench *bench, FILE *file)
{
    cJSON *json;

    LS_TRY(ls_bench_to_json(bench, &json));
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    if (text == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a benchmark's document");
    fprintf(file, "%s\n", text);
    cJSON_free(text);
    return LS_OK;
}

static ls_status save(const ls_bench_options *options, const ls_bench *bench,
                      const ls_profile *profile)
{
    const char *cached = ls_bench_is_cached(bench)
                             ? "# NOT OF THE MEMORY: the buffers were smaller than the caches.\n"
                             : "";
    const char *disturbed =
        ls_bench_is_disturbed(bench) ? "# Other programs were running: rates are too low.\n" : "";
    char comment[1024], name[LS_TEXT_BYTES]; /* a name may hold a newline */
    ls_profile *saved = malloc(sizeof *saved);

    if (saved == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a hardware profile");
    *saved = *profile;
    ls_bench_fill_profile(bench, saved);
    snprintf(
        comment, sizeof comment,
        "# Written by longspan bench links --save, from profile %s.  measured: timed here, the "
        "median\n# of %d; spec: also what this machine told of itself (sizes, cores).\n%s%s",
        ls_text_quote(name, sizeof name, profile->name), bench->repetitions, cached, disturbed);
    ls_status status = ls_profile_name_from(options->save, saved->name);
    if (status == LS_OK) status = ls_profile_write(saved, comment, options->save);
    free(saved);
    if (status == LS_OK) note(options, "the profile is in %s", options->save);
    return status;
}

static ls_status report(const ls_bench_options *options, const ls_bench *bench,
                        const ls_profile *profile, FILE *file)
{
    if (ls_bench_is_cached(bench))
        note(options, "warning: buffers smaller than twice the last-level cache: figures are of "
                      "the caches, not of memory");
    if (ls_bench_is_disturbed(bench))
        note(options, "warning: other programs are running (load %.1f): rates are too low",
             bench->load_average.value);
    if (options->json)
        LS_TRY(print_json(bench, file));
    else
        ls_bench_print(bench, file);
    if (fflush(file) != 0 || ferror(file))
        return LS_FAIL(LS_ERR_IO, "writing the benchmark's results: %s", strerror(errno));
    if (options->save == NULL) return LS_OK;
    for (int m = 0; m < bench->n_memories; m++)
        if (bench->memories[m].measured) return save(options, bench, profile);
    return LS_FAIL(LS_ERR_UNSUPPORTED, "%s is not written: no memory could be measured",
                   options->save);
}

static ls_status run(const ls_bench_options *options, ls_topology *machine,
                     const ls_profile *profile, const char *reason, FILE *file)
{
    ls_bench *bench;

    LS_TRY(ls_profile_merge(profile, reason, machine));
    LS_TRY(ls_bench_measure(options, machine, profile, &bench));
    const ls_status status = report(options, bench, profile, file);
    free(bench);
    return status;
}

ls_status ls_job_bench_links(const ls_bench_options *options, FILE *file)
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
