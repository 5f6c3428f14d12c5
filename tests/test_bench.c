/*
 * test_bench.c - longspan bench links below the program: copies on lanes by a clock of their own,
 * the profile and the document made of known figures, what is missing, and memory that is short.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "hardware.h"
#include "json.h"

#define MiB ((uint64_t)1 << 20)

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != LS_OK) fail_msg("%s: %s", #call, ls_error());                                \
    } while (0)

static void assert_error_says(const char *part)
{
    if (strstr(ls_error(), part) == NULL) fail_msg("'%s' lacks '%s'", ls_error(), part);
}

/* ---- copies --------------------------------------------------------------------------------- */

/* Time passes by sleeping alone, and by a nanosecond with each look. */
static atomic_uint_fast64_t fake_ns;

static uint64_t fake_now(void *context)
{
    (void)context;
    return atomic_fetch_add(&fake_ns, 1);
}

static void fake_sleep_until(void *context, uint64_t ns)
{
    uint64_t now = atomic_load(&fake_ns);
    (void)context;
    while (now < ns && !atomic_compare_exchange_weak(&fake_ns, &now, ns)) {
    }
}

static const ls_device_clock fake_clock = {fake_now, fake_sleep_until, NULL};

static void assert_about(double value, double expected)
{
    if (fabs(value - expected) > 0.001 * expected) fail_msg("%.10g, not %.10g", value, expected);
}

/* All bytes of the host's side go by at the throttle's rate. */
static void test_copies(void **state)
{
    const ls_copy_options options = {.host_bytes = 16 * MiB,
                                     .device_bytes = 4 * MiB,
                                     .in_bytes_per_s = 2e9,
                                     .out_bytes_per_s = 1e9,
                                     .repetitions = 3,
                                     .clock = &fake_clock};
    ls_spread spreads[LS_COPY_COUNT];

    (void)state;
    assert_ok(ls_copies_measure(&options, spreads, NULL));
    assert_about(spreads[LS_COPY_IN].median, 2e9);
    assert_about(spreads[LS_COPY_OUT].median, 1e9);
    /* Sleeps of two lanes on one clock overlap in part: from one after the other to all at once. */
    assert_true(spreads[LS_COPY_BOTH].least > 0.99 * 4e9 / 3);
    assert_true(spreads[LS_COPY_BOTH].most < 1.01 * 4e9);
}

static void test_copies_refused(void **state)
{
    const ls_copy_options small = {.host_bytes = 16 * MiB, .device_bytes = 1, .repetitions = 1};
    const ls_copy_options large = {
        .host_bytes = (uint64_t)1 << 60, .device_bytes = MiB, .repetitions = 1};
    ls_spread spreads[LS_COPY_COUNT];

    (void)state;
    assert_int_equal(ls_copies_measure(&small, spreads, NULL), LS_ERR_INVALID);
    assert_int_equal(ls_copies_measure(&large, spreads, NULL), LS_ERR_NO_MEMORY);
}

/* ---- known figures -------------------------------------------------------------------------- */

static const char profile_yaml[] =
    "name: emulated\n"
    "emulated: true\n"
    "places:\n"
    "  - {kind: hbm, capacity_bytes: {value: 64MiB, source: profile}}\n"
    "  - {kind: host, read_bytes_per_s: {value: 1e9, source: published},\n"
    "     page_bytes: {value: 64KiB, source: assumed}}\n"
    "links:\n"
    "  - {from: host, to: hbm, via: c2c, bytes_per_s: {value: 3e9, source: profile},\n"
    "     latency_ns: {value: 800, source: published}}\n"
    "throttle: {in_bytes_per_s: {value: 3e9, source: profile},\n"
    "           out_bytes_per_s: {value: 2e9, source: profile}}\n";

static ls_topology machine;
static ls_profile *profile;
static ls_bench *bench;

static void add_host(int node)
{
    ls_place *place = &machine.places[machine.n_places++];
    place->kind = LS_PLACE_HOST;
    place->numa_node = node;
    snprintf(place->name, sizeof place->name, "host%d", node);
    place->capacity_bytes = ls_discovered(1e10 * (1 + node), "test");
    place->free_bytes = ls_discovered(1e9, "test");
}

static void put_sweep(ls_memory_sweep *s, bool huge, double rate)
{
    *s = (ls_memory_sweep){
        .huge_pages = huge, .huge_bytes = huge ? 8 * MiB : 0, .n_counts = 2, .n_threads = {1, 6}};
    for (int t = 0; t < LS_TRAFFIC_COUNT; t++) {
        s->best[t] = t == LS_TRAFFIC_READ ? 0 : 1;
        for (int c = 0; c < 2; c++)
            s->bytes_per_s[t][c] = (ls_spread){rate * (t + 1), rate * (t + 1) + c, rate * 9};
    }
    s->latency_ns = (ls_spread){90, 98.7654321, 120};
}

static int make_bench(void **state)
{
    (void)state;
    memset(&machine, 0, sizeof machine);
    snprintf(machine.origin, sizeof machine.origin, "a machine of tests");
    add_host(0);
    add_host(1);
    bench = calloc(1, sizeof *bench);
    if (bench == NULL ||
        ls_profile_parse("p.yaml", profile_yaml, strlen(profile_yaml), &profile) != LS_OK ||
        ls_profile_merge(profile, NULL, &machine) != LS_OK)
        return -1;
    bench->machine = &machine;
    bench->repetitions = 5;
    bench->n_memories = 2;
    for (int m = 0; m < 2; m++) {
        ls_bench_memory *memory = &bench->memories[m];
        snprintf(memory->place, sizeof memory->place, "host%d", m);
        memory->numa_node = m;
        memory->measured = true;
        memory->n_cores = 6;
        memory->cache_bytes = 2 * MiB;
        memory->buffer_bytes = 8 * MiB;
        put_sweep(&memory->sweeps[0], true, 1.23456789e10 * (1 + m));
        put_sweep(&memory->sweeps[1], false, 1e10);
    }
    bench->n_copies = LS_COPY_COUNT;
    for (int way = 0; way < LS_COPY_COUNT; way++) {
        const double rate = 1e9 * (1 + way);
        bench->copies[way] = (ls_bench_copy){.host = "host0",
                                             .device = "hbm0",
                                             .way = (ls_copy_way)way,
                                             .measured = true,
                                             .bytes = 16 * MiB,
                                             .bytes_per_s = {0.9 * rate, rate, 1.1 * rate},
                                             .throttle_bytes_per_s = 2 * rate,
                                             .unthrottled_bytes_per_s = {rate, 8 * rate, 9 * rate}};
    }
    return 0;
}

static int free_bench(void **state)
{
    (void)state;
    ls_profile_free(profile);
    free(bench);
    return 0;
}

static void assert_is(ls_quantity quantity, double value, ls_source source)
{
    if (quantity.source != source || quantity.value != value)
        fail_msg("%.17g (%s), not %.17g (%s)", quantity.value, ls_source_name(quantity.source),
                 value, ls_source_name(source));
}

static const ls_place *host(void)
{
    return ls_topology_find_place(&profile->machine, "host");
}

/* The memory nearest to the GPU, huge pages, the medians at the best counts, four digits. */
static void test_profile(void **state)
{
    (void)state;
    ls_bench_fill_profile(bench, profile);
    assert_is(host()->read_bytes_per_s, 1.235e10, LS_SOURCE_MEASURED);
    assert_is(host()->write_bytes_per_s, 2.469e10, LS_SOURCE_MEASURED);
    assert_is(host()->latency_ns, 98.77, LS_SOURCE_MEASURED);
    assert_is(host()->best_threads, 6, LS_SOURCE_MEASURED);
    assert_is(host()->page_bytes, 65536, LS_SOURCE_ASSUMED); /* claims that nobody measured */
    assert_is(host()->capacity_bytes, 1e10, LS_SOURCE_SPEC); /* what the machine told */
    const ls_link *link = ls_topology_find_link(&profile->machine, "host", "hbm");
    assert_is(link->bytes_per_s, 1e9, LS_SOURCE_MEASURED);
    assert_is(link->reverse_bytes_per_s, 2e9, LS_SOURCE_MEASURED);
    assert_is(link->both_bytes_per_s, 3e9, LS_SOURCE_MEASURED);
    assert_is(link->latency_ns, 800, LS_SOURCE_PUBLISHED);
    assert_is(profile->throttle_in_bytes_per_s, 3e9, LS_SOURCE_PROFILE);
}

/* A GPU at the other node, and a memory that could not be measured. */
static void test_profile_of_other_node(void **state)
{
    ls_unit *gpu = &machine.units[ls_topology_find_unit(&machine, LS_UNIT_GPU) - machine.units];

    (void)state;
    gpu->host_node.value = 1;
    ls_bench_fill_profile(bench, profile);
    assert_is(host()->read_bytes_per_s, 2.469e10, LS_SOURCE_MEASURED);
    bench->memories[1].measured = false;
    ls_bench_fill_profile(bench, profile);
    assert_is(host()->read_bytes_per_s, 1.235e10, LS_SOURCE_MEASURED);
}

/* What was not measured keeps what the profile said. */
static void test_profile_of_nothing(void **state)
{
    (void)state;
    bench->memories[0].measured = bench->memories[1].measured = false;
    for (int way = 0; way < LS_COPY_COUNT; way++) bench->copies[way].measured = false;
    ls_bench_fill_profile(bench, profile);
    assert_is(host()->read_bytes_per_s, 1e9, LS_SOURCE_PUBLISHED);
    assert_false(ls_known(host()->best_threads));
    const ls_link *link = ls_topology_find_link(&profile->machine, "host", "hbm");
    assert_is(link->bytes_per_s, 3e9, LS_SOURCE_PROFILE);
    assert_false(ls_known(link->both_bytes_per_s));
}

/* ---- the document --------------------------------------------------------------------------- */

static cJSON *document(void)
{
    cJSON *json = NULL;
    assert_ok(ls_bench_to_json(bench, &json));
    return json;
}

static void assert_number(const cJSON *row, const char *key, double value)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, key);
    if (!cJSON_IsNumber(item) || item->valuedouble != value)
        fail_msg("%s: %s", key, item == NULL ? "absent" : cJSON_PrintUnformatted(item));
}

static void assert_text(const cJSON *row, const char *key, const char *text)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, key);
    if (!cJSON_IsString(item)) fail_msg("%s is no text", key);
    assert_string_equal(item->valuestring, text);
}

static void assert_null_at(const cJSON *row, const char *key)
{
    if (!cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(row, key))) fail_msg("%s is no null", key);
}

static void test_document(void **state)
{
    cJSON *json = document();
    const cJSON *links = cJSON_GetObjectItemCaseSensitive(json, "links"), *row;
    const int each = 2 * (LS_TRAFFIC_COUNT * 2 + 1);

    (void)state;
    assert_text(cJSON_GetObjectItemCaseSensitive(json, "machine"), "machine", machine.origin);
    assert_number(json, "repetitions", 5);
    assert_null_at(json, "load_average");
    assert_true(cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(json, "in_cache")));
    assert_int_equal(cJSON_GetArraySize(links), 2 * each + LS_COPY_COUNT);
    row = cJSON_GetArrayItem(links, 3); /* host0, huge pages, write, 6 threads */
    assert_text(row, "kind", "memory");
    assert_text(row, "from", "cpu");
    assert_text(row, "to", "host0");
    assert_text(row, "traffic", "write");
    assert_text(row, "stores", "plain");
    assert_number(row, "threads", 6);
    assert_number(row, "bytes_per_s", 2 * 1.23456789e10 + 1);
    assert_number(row, "bytes_per_s_min", 2 * 1.23456789e10);
    assert_number(row, "bytes_per_s_max", 9 * 1.23456789e10);
    assert_number(row, "numa_node", 0);
    assert_number(row, "buffer_bytes", (double)(8 * MiB));
    assert_number(row, "huge_bytes", (double)(8 * MiB));
    assert_number(row, "cache_bytes", (double)(2 * MiB));
    assert_true(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(row, "best")));
    assert_null_at(row, "missing");
    row = cJSON_GetArrayItem(links, each - 1);
    assert_text(row, "kind", "latency");
    assert_number(row, "latency_ns_max", 120);
    row = cJSON_GetArrayItem(links, 2 * each + LS_COPY_OUT);
    assert_text(row, "kind", "copy");
    assert_text(row, "from", "hbm0");
    assert_text(row, "to", "host0");
    assert_text(row, "way", "out");
    assert_number(row, "bytes_per_s", 2e9);
    assert_number(row, "throttle_bytes_per_s", 4e9);
    assert_number(row, "unthrottled_bytes_per_s", 16e9);
    assert_number(row, "throttle_ratio", 0.25);
    cJSON_Delete(json);
}

static char *table(void)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    ls_bench_print(bench, file);
    assert_int_equal(fclose(file), 0);
    return text;
}

/* What is missing is null with a reason, in the document and in the table: never a zero. */
static void test_missing(void **state)
{
    (void)state;
    bench->memories[0].measured = false;
    snprintf(bench->memories[0].missing, LS_NOTE_BYTES, "no cores there");
    for (int way = 0; way < LS_COPY_COUNT; way++) {
        bench->copies[way] =
            (ls_bench_copy){.host = "host0", .device = "hbm0", .way = (ls_copy_way)way};
        snprintf(bench->copies[way].missing, LS_NOTE_BYTES, "no CUDA");
    }
    cJSON *json = document();
    const cJSON *links = cJSON_GetObjectItemCaseSensitive(json, "links");
    assert_text(cJSON_GetArrayItem(links, 0), "missing", "no cores there");
    assert_null_at(cJSON_GetArrayItem(links, 0), "bytes_per_s");
    const cJSON *copy = cJSON_GetArrayItem(links, cJSON_GetArraySize(links) - 1);
    assert_text(copy, "missing", "no CUDA");
    assert_null_at(copy, "bytes_per_s");
    assert_null_at(copy, "unthrottled_bytes_per_s");
    assert_null_at(copy, "throttle_ratio");
    cJSON_Delete(json);

    char *text = table();
    assert_non_null(strstr(text, "host0: not measured: no cores there"));
    assert_non_null(strstr(text, "host0 <> hbm0: not measured: no CUDA"));
    assert_null(strstr(text, " 0.0 "));
    free(text);
}

static void test_in_cache(void **state)
{
    (void)state;
    assert_false(ls_bench_is_cached(bench));
    bench->memories[1].buffer_bytes = 3 * MiB;
    assert_true(ls_bench_is_cached(bench));
    bench->memories[1].measured = false;
    assert_false(ls_bench_is_cached(bench));
}

/* Whoever reads the figures is told that others were at work. */
static void test_disturbed(void **state)
{
    (void)state;
    assert_false(ls_bench_is_disturbed(bench)); /* not known */
    bench->load_average = ls_discovered(0.9, "test");
    assert_false(ls_bench_is_disturbed(bench));
    bench->load_average = ls_discovered(7.5, "test");
    assert_true(ls_bench_is_disturbed(bench));
    cJSON *json = document();
    assert_number(json, "load_average", 7.5);
    cJSON_Delete(json);
    char *text = table();
    assert_non_null(strstr(text, "other programs were running (load 7.5)"));
    free(text);
}

/* ---- measuring ------------------------------------------------------------------------------ */

static void test_short_memory(void **state)
{
    ls_bench_options options = {
        .hardware = "auto", .quiet = true, .repetitions = 1, .memory_bytes = 3 * MiB};
    ls_bench *measured = NULL;

    (void)state;
    machine.n_places = 1;
    machine.n_links = 0;
    assert_int_equal(ls_bench_measure(&options, &machine, profile, &measured), LS_ERR_NO_MEMORY);
    assert_error_says("host0: measuring takes a buffer of");
    assert_error_says("the 3.0 MiB that are free");
    options.bytes = 2 * MiB;
    assert_int_equal(ls_bench_measure(&options, &machine, profile, &measured), LS_ERR_NO_MEMORY);
    assert_null(measured);
    options.bytes = MiB;
    assert_ok(ls_bench_measure(&options, &machine, profile, &measured));
    assert_int_equal(measured->memories[0].buffer_bytes, MiB);
    free(measured);
}

/* A copy over a throttled link takes the time that its bytes need, and almost none without. */
static void test_throttled(void **state)
{
    const ls_bench_options options = {.hardware = "auto",
                                      .quiet = true,
                                      .repetitions = 1,
                                      .bytes = MiB,
                                      .copy_clock = &fake_clock};
    ls_bench *measured = NULL;

    (void)state;
    profile->throttle_in_bytes_per_s.value = 1e8;
    profile->throttle_out_bytes_per_s.value = 2e8;
    assert_ok(ls_bench_measure(&options, &machine, profile, &measured));
    assert_int_equal(measured->n_copies, LS_COPY_COUNT);
    const ls_bench_copy *copies = measured->copies;
    for (int way = 0; way < LS_COPY_COUNT; way++) {
        assert_true(copies[way].measured && copies[way].bytes == MiB);
        assert_true(copies[way].unthrottled_bytes_per_s.least > 1e12);
    }
    assert_about(copies[LS_COPY_IN].bytes_per_s.median, 1e8);
    assert_about(copies[LS_COPY_OUT].bytes_per_s.median, 2e8);
    assert_true(copies[LS_COPY_IN].throttle_bytes_per_s == 1e8);
    assert_true(copies[LS_COPY_OUT].throttle_bytes_per_s == 2e8);
    assert_true(copies[LS_COPY_BOTH].throttle_bytes_per_s == 2e8); /* half of it goes in */
    free(measured);
}

/* A node that is not there has no cores; a GPU's copies want a GPU: the rest is measured. */
static void test_missing_parts(void **state)
{
    const ls_bench_options options = {
        .hardware = "auto", .quiet = true, .repetitions = 1, .bytes = MiB};
    ls_bench *measured = NULL;
    ls_device_opener *opener;
    const ls_ops *ops;

    (void)state;
    const bool has_gpu = ls_hardware_find_gpu(&opener, &ops) == LS_OK;
    machine.places[1].numa_node = 1000;
    for (int p = 0; p < machine.n_places; p++) machine.places[p].emulated = false;
    assert_ok(ls_bench_measure(&options, &machine, profile, &measured));
    assert_int_equal(measured->n_memories, 2);
    assert_true(measured->memories[0].measured);
    assert_int_equal(measured->n_copies, LS_COPY_COUNT);
    for (int way = 0; way < LS_COPY_COUNT; way++) {
        assert_true(measured->copies[way].measured == has_gpu);
        if (!has_gpu) assert_string_equal(measured->copies[way].missing, ls_error());
    }
    free(measured);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, make_bench, free_bench)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_copies_refused),
        TEST(test_profile),
        TEST(test_profile_of_other_node),
        TEST(test_profile_of_nothing),
        TEST(test_document),
        TEST(test_missing),
        TEST(test_in_cache),
        TEST(test_disturbed),
        TEST(test_short_memory),
        TEST(test_throttled),
        TEST(test_missing_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
