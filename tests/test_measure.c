/*
 * test_measure.c - measuring a memory: statistics, the sweep over thread counts on a probe with a
 * clock of its own, how large a buffer is, the cores and caches of a node, what the loops do to
 * their bytes, and the real probe on a small buffer.  No test looks at how fast anything is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine_test.h"
#include "measure_host.h"
#include "memory_kernels.h"

#define MiB ((uint64_t)1 << 20)

static void assert_error_says(const char *part)
{
    if (strstr(ls_error(), part) == NULL) fail_msg("'%s' lacks '%s'", ls_error(), part);
}

/* ---- statistics ----------------------------------------------------------------------------- */

static void assert_spread(ls_spread spread, double least, double median, double most)
{
    if (spread.least != least || spread.median != median || spread.most != most)
        fail_msg("%g %g %g, not %g %g %g", spread.least, spread.median, spread.most, least, median,
                 most);
}

static void test_spread(void **state)
{
    double one[] = {7}, odd[] = {5, 1, 100}, even[] = {4, 1, 2, 30};

    (void)state;
    assert_spread(ls_spread_of(one, 1), 7, 7, 7);
    assert_spread(ls_spread_of(odd, 3), 1, 5, 100);
    assert_spread(ls_spread_of(even, 4), 1, 3, 30);
}

static void assert_counts(int n_cores, const char *expected)
{
    int counts[LS_THREAD_COUNTS_MAX];
    char text[256] = "";

    for (int i = 0, n = ls_thread_counts(n_cores, counts); i < n; i++)
        sprintf(text + strlen(text), "%s%d", i > 0 ? " " : "", counts[i]);
    assert_string_equal(text, expected);
}

static void test_thread_counts(void **state)
{
    (void)state;
    assert_counts(1, "1");
    assert_counts(2, "1 2");
    assert_counts(3, "1 2 3");
    assert_counts(64, "1 2 4 8 16 32 64");
    assert_counts(72, "1 2 4 8 16 32 64 72");
    assert_counts(LS_CORES_MAX, "1 2 4 8 16 32 64 128 256 512 1024");
    assert_counts(1 << 20, "1 2 4 8 16 32 64 128 256 512 1024 2048 4096 8192 16384 1048576");
}

static int best_of(int n, const double *medians)
{
    ls_spread spreads[LS_THREAD_COUNTS_MAX];
    for (int i = 0; i < n; i++) spreads[i] = (ls_spread){0, medians[i], 1e9};
    return ls_best_count(spreads, n);
}

static void test_best_count(void **state)
{
    (void)state;
    assert_int_equal(best_of(1, (double[]){5}), 0);
    assert_int_equal(best_of(3, (double[]){10, 20, 30}), 2);
    assert_int_equal(best_of(4, (double[]){100, 348, 340, 330}), 1); /* Grace: fewer are faster */
    assert_int_equal(best_of(3, (double[]){50, 98.1, 100}), 1);      /* not worth more threads */
    assert_int_equal(best_of(3, (double[]){50, 97.9, 100}), 2);
}

/* ---- the sweep ------------------------------------------------------------------------------ */

/* A memory of 1e9 bytes/s for each thread up to `saturated` of them; the first round is slow. */
typedef struct fake {
    ls_memory_probe probe;
    double clock;
    int saturated, n_open, n_closed, n_passes, n_chases;
    int fail_pass, fail_chase; /* the n-th fails; 0: none */
    bool fail_open, stopped;   /* stopped: the clock stands */
    bool huge;
    int round[LS_TRAFFIC_COUNT][128];
} fake;

static ls_status fake_open(void *context, bool huge_pages, uint64_t *huge_bytes)
{
    fake *f = context;
    if (f->fail_open) return LS_FAIL(LS_ERR_NO_MEMORY, "no buffer today");
    f->n_open++;
    f->huge = huge_pages;
    *huge_bytes = huge_pages ? 12345 : 0;
    return LS_OK;
}

static ls_status fake_pass(void *context, ls_traffic traffic, int n, double *bytes, double *seconds)
{
    fake *f = context;
    const int round = f->round[traffic][n]++;
    const double threads = n < f->saturated ? n : f->saturated;

    assert_int_equal(f->n_open, f->n_closed + 1);
    assert_int_equal(f->n_chases, 0);
    if (++f->n_passes == f->fail_pass) return LS_FAIL(LS_ERR_DEVICE, "a pass failed");
    *bytes = 1e6 * (1 + (int)traffic);
    /* rounds 0 (the warm-up), 1, 2, 3: 100, 1, 3, 2 times as long */
    *seconds = f->stopped ? 0 : 1e-3 / threads * (double[]){100, 1, 3, 2}[round];
    return LS_OK;
}

static ls_status fake_chase(void *context, double *loads, double *seconds)
{
    fake *f = context;
    if (++f->n_chases == f->fail_chase) return LS_FAIL(LS_ERR_DEVICE, "a chase failed");
    *loads = 1000;
    *seconds = 1e-6 * (double[]){0, 900, 100, 120, 110}[f->n_chases];
    return LS_OK;
}

static void fake_close(void *context)
{
    ((fake *)context)->n_closed++;
}

static fake make_fake(int n_cores, int saturated)
{
    return (fake){.probe = {NULL, n_cores, fake_open, fake_pass, fake_chase, fake_close},
                  .saturated = saturated};
}

static ls_status measure(fake *f, bool huge, ls_memory_sweep *sweep)
{
    f->probe.context = f;
    return ls_memory_sweep_measure(&f->probe, huge, 3, sweep);
}

static void assert_near(double value, double expected)
{
    if (value < expected * (1 - 1e-12) || value > expected * (1 + 1e-12))
        fail_msg("%.17g, not %.17g", value, expected);
}

static void test_sweep(void **state)
{
    fake f = make_fake(6, 3);
    ls_memory_sweep sweep;

    (void)state;
    assert_int_equal(measure(&f, true, &sweep), LS_OK);
    assert_int_equal(f.n_open, 1);
    assert_int_equal(f.n_closed, 1);
    assert_true(f.huge && sweep.huge_pages && sweep.huge_bytes == 12345);
    assert_int_equal(sweep.n_counts, 4); /* 1 2 4 6 */
    assert_int_equal(f.n_passes, 4 * 4 * LS_TRAFFIC_COUNT);
    assert_int_equal(f.n_chases, 4);
    for (int t = 0; t < LS_TRAFFIC_COUNT; t++) {
        const double thread = 1e9 * (1 + t);
        assert_near(sweep.bytes_per_s[t][0].median, thread / 2); /* the warm-up does not count */
        assert_near(sweep.bytes_per_s[t][0].least, thread / 3);
        assert_near(sweep.bytes_per_s[t][0].most, thread);
        assert_near(sweep.bytes_per_s[t][1].median, 2 * thread / 2);
        assert_near(sweep.bytes_per_s[t][3].median, 3 * thread / 2);
        assert_int_equal(sweep.n_threads[sweep.best[t]], 4); /* 6 are no faster */
    }
    assert_near(sweep.latency_ns.least, 100);
    assert_near(sweep.latency_ns.median, 110);
    assert_near(sweep.latency_ns.most, 120);
}

/* What fails is passed on, nothing is written, and what was opened is closed. */
static void assert_fails(fake *f, const char *why, int closed)
{
    ls_memory_sweep sweep = {.n_counts = -7};

    if (measure(f, false, &sweep) == LS_OK) fail_msg("no failure of '%s'", why);
    assert_error_says(why);
    assert_int_equal(sweep.n_counts, -7);
    assert_int_equal(f->n_closed, closed);
}

static void test_sweep_failures(void **state)
{
    fake pass = make_fake(2, 2), chase = make_fake(2, 2), open = make_fake(2, 2);
    fake stopped = make_fake(2, 2);

    (void)state;
    pass.fail_pass = 11;
    chase.fail_chase = 2;
    open.fail_open = true;
    stopped.stopped = true;
    assert_fails(&pass, "a pass failed", 1);
    assert_fails(&chase, "a chase failed", 1);
    assert_fails(&open, "no buffer today", 0);
    assert_fails(&stopped, "read took no time by the clock", 1);
}

/* ---- the buffer ----------------------------------------------------------------------------- */

static uint64_t chosen(uint64_t asked, uint64_t cache, uint64_t available)
{
    const ls_buffer_wish wish = {asked, cache, available, "host3"};
    uint64_t bytes = 0;
    return ls_buffer_choose(&wish, &bytes) == LS_OK ? bytes : 0;
}

static void test_buffer(void **state)
{
    (void)state;
    assert_int_equal(chosen(0, 114 * MiB, 100000 * MiB), 456 * MiB);
    assert_int_equal(chosen(0, 2 * MiB, 100000 * MiB), 256 * MiB);
    assert_int_equal(chosen(0, 0, 100000 * MiB), 512 * MiB); /* a cache of 128 MiB is assumed */
    assert_int_equal(chosen(0, 100 * MiB, 600 * MiB), 300 * MiB);
    assert_int_equal(chosen(0, 100 * MiB, 400 * MiB), 200 * MiB);
    assert_int_equal(chosen(0, 100 * MiB, 399 * MiB), 0);
    assert_error_says("host3: measuring takes a buffer of 200.0 MiB (twice the last-level cache), "
                      "at most half of the 399.0 MiB that are free; free some memory");
    assert_int_equal(chosen(3 * MiB + 17, 100 * MiB, 399 * MiB), 3 * MiB);
    assert_int_equal(chosen(200 * MiB, 100 * MiB, 399 * MiB), 0);
    assert_error_says("as asked for");
    assert_int_equal(chosen(MiB - 1, MiB, 399 * MiB), 0);
    assert_error_says("allowed: 1.0 MiB or more");
    assert_int_equal(chosen(0, 0, 0), 0);
}

/* ---- cores ---------------------------------------------------------------------------------- */

static char root[256];

static int make_root(void **state)
{
    (void)state;
    return make_machines_folder(root, sizeof root);
}

static int remove_root(void **state)
{
    (void)state;
    return ls_directory_remove(root) == LS_OK ? 0 : -1;
}

static void put_cpu(int cpu, const char *siblings, int level, const char *size, const char *shared)
{
    char path[128], text[16];

    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    put_machine_file(root, path, siblings);
    snprintf(text, sizeof text, "%d", level);
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index3/level", cpu);
    put_machine_file(root, path, text);
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index3/size", cpu);
    put_machine_file(root, path, size);
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index3/shared_cpu_list", cpu);
    put_machine_file(root, path, shared);
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index0/level", cpu);
    put_machine_file(root, path, "1");
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index0/size", cpu);
    put_machine_file(root, path, "64K");
}

static unsigned char allowed[LS_CORES_MAX];

static ls_host_cores find_cores(int node)
{
    ls_host_cores cores;
    if (ls_host_cores_find(root, node, allowed, &cores) != LS_OK) fail_msg("%s", ls_error());
    return cores;
}

/* Node 0: cores 0, 1 under one cache and 2, 3 under another, each with a second hardware thread;
 * node 1: a core; node 2: memory alone. */
static void test_cores(void **state)
{
    ls_host_cores cores;

    (void)state;
    put_machine_file(root, "/sys/devices/system/node/node0/cpulist", "0-3,8-11");
    put_machine_file(root, "/sys/devices/system/node/node1/cpulist", "4");
    put_machine_file(root, "/sys/devices/system/node/node2/cpulist", "");
    put_cpu(0, "0,8", 3, "32768K", "0-1,8-9");
    put_cpu(1, "1,9", 3, "32768K", "0-1,8-9");
    put_cpu(2, "2,10", 3, "32M", "2-3,10-11");
    put_cpu(3, "3,11", 3, "32M", "2-3,10-11");
    put_cpu(8, "0,8", 3, "32768K", "0-1,8-9");
    put_cpu(4, "4", 2, "1M", "4");

    memset(allowed, 1, sizeof allowed);
    cores = find_cores(0);
    assert_int_equal(cores.n, 4);
    for (int c = 0; c < 4; c++) assert_int_equal(cores.cpus[c], c);
    assert_int_equal(cores.cache_bytes, 64 * MiB);
    cores = find_cores(1);
    assert_int_equal(cores.n, 1);
    assert_int_equal(cores.cache_bytes, MiB);

    /* A cpuset of a job: hardware thread 8 stands for core 0. */
    memset(allowed, 0, sizeof allowed);
    allowed[8] = allowed[1] = 1;
    cores = find_cores(0);
    assert_int_equal(cores.n, 2);
    assert_int_equal(cores.cpus[0], 1);
    assert_int_equal(cores.cpus[1], 8);
    assert_int_equal(cores.cache_bytes, 32 * MiB);

    memset(allowed, 1, sizeof allowed);
    assert_int_equal(ls_host_cores_find(root, 2, allowed, &cores), LS_ERR_UNSUPPORTED);
    assert_error_says("NUMA node 2 has no CPU that this process may use");
    assert_int_equal(ls_host_cores_find("", 0, NULL, &cores), LS_OK); /* this machine */
    assert_true(cores.n >= 1);
}

/* ---- loops ---------------------------------------------------------------------------------- */

#define LOOP_BYTES ((uint64_t)4 * LS_SLICE_BYTES)

static uint64_t *make_words(void)
{
    uint64_t *words = aligned_alloc(LS_SLICE_BYTES, LOOP_BYTES + LS_SLICE_BYTES);
    assert_non_null(words);
    for (uint64_t i = 0; i < LOOP_BYTES / 8; i++) words[i] = i;
    memset((char *)words + LOOP_BYTES, 0x5a, LS_SLICE_BYTES);
    return words;
}

static void assert_end_untouched(const uint64_t *words)
{
    for (uint64_t i = 0; i < LS_SLICE_BYTES; i++)
        assert_int_equal(((const unsigned char *)words)[LOOP_BYTES + i], 0x5a);
}

/* Each loop touches every byte that it says it does, and no other. */
static void test_loops(void **state)
{
    const uint64_t n = LOOP_BYTES / 8;
    uint64_t *words = make_words();
    double bytes;

    (void)state;
    assert_int_equal(ls_memory_pass(LS_TRAFFIC_READ, words, LOOP_BYTES, &bytes), n * (n - 1) / 2);
    assert_true(bytes == (double)LOOP_BYTES);
    ls_memory_pass(LS_TRAFFIC_COPY, words, LOOP_BYTES, &bytes);
    assert_true(bytes == (double)LOOP_BYTES);
    for (uint64_t i = 0; i < n / 2; i++) {
        assert_int_equal(words[i], i);
        assert_int_equal(words[n / 2 + i], i ^ 0x3f8000003f800000u);
    }
    ls_memory_pass(LS_TRAFFIC_WRITE, words, LOOP_BYTES, &bytes);
    assert_true(bytes == (double)LOOP_BYTES);
    for (uint64_t i = 0; i < n; i++) assert_int_equal(words[i], 0);
    assert_end_untouched(words);
    free(words);
}

static void test_update(void **state)
{
    const uint64_t n = LOOP_BYTES / LS_UPDATE_BUFFER_BYTES;
    uint64_t *words = make_words();
    float *values = (float *)(void *)words;
    uint16_t *halves = (uint16_t *)(void *)((char *)words + 12 * n);
    double bytes;

    (void)state;
    for (uint64_t i = 0; i < 3 * n; i++) values[i] = (float)i;
    for (uint64_t i = 0; i < 2 * n; i++) halves[i] = (uint16_t)i;
    ls_memory_pass(LS_TRAFFIC_UPDATE, words, LOOP_BYTES, &bytes);
    assert_true(bytes == 28.0 * (double)n);
    for (uint64_t i = 0; i < n; i++) {
        const float g = (float)(2 * n + i);
        assert_true(values[i] == (float)i + g);
        assert_true(values[n + i] == (float)(n + i) + 2 * g);
        assert_true(values[2 * n + i] == g);
        assert_int_equal(halves[i], (uint16_t)(i + 1));
        assert_int_equal(halves[n + i], (uint16_t)(n + i + 3));
    }
    assert_end_untouched(words);
    free(words);
}

/* One cycle through all nodes, in no order that a prefetcher knows. */
static void test_chain(void **state)
{
    const uint64_t n = LOOP_BYTES / LS_CHAIN_STRIDE_BYTES;
    uint64_t *words = make_words(), at = 0, n_next = 0;
    unsigned char seen[LOOP_BYTES / LS_CHAIN_STRIDE_BYTES] = {0};

    (void)state;
    ls_chain_make(words, LOOP_BYTES, 1);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t next = ls_chain_follow(words, at, 1);
        assert_true(next < n && !seen[next]);
        seen[next] = 1;
        n_next += next == at + 1;
        at = next;
    }
    assert_int_equal(at, 0);
    assert_true(n_next < n / 8);
    assert_int_equal(ls_chain_follow(words, 0, n), 0);
    assert_end_untouched(words);
    free(words);
}

/* ---- the real probe ------------------------------------------------------------------------- */

static void test_probe(void **state)
{
    ls_host_probe *probe;
    ls_memory_sweep sweep;
    ls_host_cores cores;

    (void)state;
    if (ls_host_cores_find("", 0, NULL, &cores) != LS_OK) skip();
    if (cores.n > 2) cores.n = 2;
    assert_int_equal(ls_host_probe_make(&cores, 0, 2 * MiB, &probe), LS_OK);
    const ls_memory_probe functions = ls_host_probe_functions(probe);
    for (int huge = 0; huge < 2; huge++) {
        const ls_status status = ls_memory_sweep_measure(&functions, huge, 2, &sweep);
        if (status != LS_OK) fail_msg("%s", ls_error());
        assert_true(sweep.huge_bytes <= 2 * MiB);
        if (!huge) assert_int_equal(sweep.huge_bytes, 0);
        for (int t = 0; t < LS_TRAFFIC_COUNT; t++)
            for (int c = 0; c < sweep.n_counts; c++) assert_true(sweep.bytes_per_s[t][c].least > 0);
        assert_true(sweep.latency_ns.least > 0);
    }
    ls_host_probe_free(probe);
}

/* A pass has all slices done: what each thread count reads and writes is the whole buffer. */
static void test_probe_bytes(void **state)
{
    ls_host_probe *probe;
    ls_host_cores cores;
    uint64_t huge;

    (void)state;
    if (ls_host_cores_find("", 0, NULL, &cores) != LS_OK) skip();
    const int cpu = cores.cpus[0];
    for (cores.n = 0; cores.n < 7; cores.n++) cores.cpus[cores.n] = cpu; /* 7 on one CPU */
    assert_int_equal(ls_host_probe_make(&cores, 0, MiB, &probe), LS_OK);
    const ls_memory_probe p = ls_host_probe_functions(probe);
    if (p.open(p.context, false, &huge) != LS_OK) fail_msg("%s", ls_error());
    for (int n = 1; n <= 7; n++) {
        double bytes, seconds;
        assert_int_equal(p.pass(p.context, LS_TRAFFIC_COPY, n, &bytes, &seconds), LS_OK);
        assert_true(bytes == (double)MiB && seconds > 0);
        assert_int_equal(p.pass(p.context, LS_TRAFFIC_UPDATE, n, &bytes, &seconds), LS_OK);
        assert_true(bytes == 28.0 / 16.0 * (double)MiB);
    }
    p.close(p.context);
    ls_host_probe_free(probe);
}

/* A core that is not there: its thread cannot start, the others are let go. */
static void test_probe_without_core(void **state)
{
    ls_host_probe *probe;
    ls_host_cores cores;
    uint64_t huge;

    (void)state;
    if (ls_host_cores_find("", 0, NULL, &cores) != LS_OK) skip();
    cores.n = 2;
    cores.cpus[1] = LS_CORES_MAX - 1;
    assert_int_equal(ls_host_probe_make(&cores, 0, MiB, &probe), LS_OK);
    const ls_memory_probe p = ls_host_probe_functions(probe);
    assert_int_equal(p.open(p.context, false, &huge), LS_ERR_DEVICE);
    assert_error_says("a thread on CPU 1023");
    ls_host_probe_free(probe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_thread_counts),
        cmocka_unit_test(test_best_count),
        cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_sweep_failures),
        cmocka_unit_test(test_buffer),
        cmocka_unit_test_setup_teardown(test_cores, make_root, remove_root),
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_update),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_probe),
        cmocka_unit_test(test_probe_bytes),
        cmocka_unit_test(test_probe_without_core),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
