/*
 * report_test.h - runs made up from measured noise, in a folder of the test, and reports of them.
 */
#ifndef LS_REPORT_TEST_H
#define LS_REPORT_TEST_H

#include "io_test.h"

#include "report.h"
#include "step_seconds.h"

enum { N_MEASURED = sizeof step_seconds / sizeof step_seconds[0], N_STEPS = 800, BLOCK = 8 };

/* splitmix64 */
static inline uint64_t draw(uint64_t *state, uint64_t below)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % below;
}

/* Step times of a run: stretches of measured ones, so that neighbours are as alike as they were. */
static inline void draw_steps(uint64_t seed, double factor, double seconds[N_STEPS])
{
    for (int i = 0; i < N_STEPS; i += BLOCK) {
        const uint64_t from = draw(&seed, N_MEASURED - BLOCK);
        for (int k = 0; k < BLOCK; k++) seconds[i + k] = factor * step_seconds[from + (uint64_t)k];
    }
}

static const char run_json[] =
    "{\"schema\":1,\"version\":\"0.1.0\",\"started\":\"2026-01-02T03:04:05Z\",\"hardware\":\"cpu\","
    "\"machine\":{\"cpu\":\"A <fast> CPU, \\\"really\\\"\",\"cores\":72,\"memory_bytes\":5e11},"
    "\"model\":{\"parameters\":1000,\"config\":{\"model_type\":\"llama\"}},"
    "\"config\":{\"precision\":\"bf16\"},\"link\":{\"copy_in_bytes_per_s\":5e10},"
    "\"attempt\":2,\"power_earlier\":[{\"attempt\":1,\"summary\":{\"seconds\":10,\"phase_seconds\":"
    "{\"forward\":4},\"rails\":{\"module\":{\"joules\":4000,\"method\":\"meter\",\"coverage\":0.5,"
    "\"methods\":{\"meter\":{\"error_joules\":2}},\"disagreement\":null,\"idle_watts\":90,"
    "\"phase_joules\":{\"forward\":1700}}}}}],"
    "\"missing\":{\"energy_j.gpu\":\"no driver & no <card>\"},"
    "\"power\":{\"summary\":{\"seconds\":20,\"phase_seconds\":{\"eval\":3},\"rails\":{\"module\":"
    "{\"joules\":8000,\"method\":\"meter\",\"phase_joules\":{\"eval\":1200}}}},\"samples_hz\":10,"
    "\"facts\":{\"nvml0\":\"A GPU\",\"driver\":\"580.1\","
    "\"nvml0.module.limit\":\"900.0 W now\",\"grace.module-0.limit\":\"1000.0 W now\"},"
    "\"sensors\":["
    "{\"id\":\"rapl.package-0\",\"kind\":\"energy\",\"rail\":\"cpu\",\"method\":\"counter\","
    "\"unit\":\"uJ\",\"scale\":1e-6,\"update_period_s\":0.1,\"contains\":\"cores, "
    "caches\",\"source\":\"/sys/x\"},"
    "{\"id\":\"grace.module-0\",\"kind\":\"power\",\"rail\":\"module\",\"method\":\"meter\","
    "\"unit\":\"uW\",\"scale\":1e-6,\"window_s\":0.05,\"contains\":\"all\",\"source\":\"/sys/y\"},"
    "{\"id\":\"process.resident\",\"kind\":\"state\",\"rail\":\"none\",\"unit\":\"B\",\"scale\":1}"
    "]}}";

static inline void put_step(FILE *f, int step, double seconds, double watts)
{
    fprintf(f,
            "{\"step\":%d,\"attempt\":1,\"tokens\":1024,\"tokens_total\":%d,\"pairs\":5e5,"
            "\"loss\":%g,\"grad_norm\":1.5,\"skipped\":false,\"lr\":0.001,\"step_s\":%.6g,"
            "\"tokens_per_s\":%.6g,\"mfu_causal\":null,\"lane_busy_s\":{\"compute\":%.6g,"
            "\"copy_in\":%.6g,\"host\":0.01},\"bytes\":{\"copy_in\":%.6g},\"peak_bytes\":{\"hbm\":"
            "null,\"host\":5e9},"
            "\"flops_model\":2e9,\"energy_j\":{\"gpu\":null,\"module\":%.6g},"
            "\"energy_phase_j\":{\"module\":{\"forward\":%.6g}},\"phase_s\":{\"forward\":%.6g},"
            "\"loss_by_position\":[[0,1,5],[1,2,4.5],[2,4,4]]}\n",
            step, 1024 * step, 6.0 / step + 2.0, seconds, 1024 / seconds, 0.9 * seconds,
            0.1 * seconds, 4e9 * seconds, watts * seconds, 0.4 * watts * seconds, 0.4 * seconds);
}

static inline void put_power(const char *folder)
{
    char path[600];

    snprintf(path, sizeof path, "%s/power.csv", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "attempt,time_ns,step,phase,read_us,rapl.package-0.uJ,grace.module-0.uW,"
               "process.resident.B\n");
    for (int i = 0; i < 6000; i++) /* 200 W, and 500 W */
        fprintf(f, "1,%lld,%d,%s,30,%lld,500000000,5000000\n", 1000000000LL + 100000000LL * i,
                1 + i / 10, i / 300 % 2 == 0 ? "forward" : "backward", 20000000LL * i);
    fclose(f);
}

/* A run of n steps, as slow as factor says; its folder. */
static inline const char *make_run(const char *name, int n, double factor)
{
    static char folders[8][512];
    static int used;
    char path[600];
    double seconds[N_STEPS];
    char *folder = folders[used++ % 8];

    snprintf(folder, sizeof folders[0], "%s", at(name));
    assert_int_equal(mkdir(folder, 0777), 0);
    snprintf(path, sizeof path, "%s/record.jsonl", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    draw_steps(factor > 1.0 ? 5 : 6, factor, seconds);
    for (int i = 0; i < n; i++) put_step(f, i + 1, seconds[i], 400.0);
    fprintf(f,
            "{\"step\":%d,\"attempt\":1,\"eval_loss\":2.5,\"eval_tokens\":99,\"eval_s\":1,"
            "\"eval_loss_by_position\":[[0,1,4],[1,2,3],[2,4,2.5]]}\n",
            n);
    fclose(f);
    snprintf(path, sizeof path, "%s/run.json", folder);
    put_file(path, run_json, sizeof run_json - 1);
    put_power(folder);
    return folder;
}

static char printed[65536];

static inline ls_status report(const char *const *runs, int n_runs, const char *out,
                               const char *export_dir)
{
    const ls_report_options options = {
        .runs = runs, .n_runs = n_runs, .out = out, .export_dir = export_dir, .version = "0.1.0"};
    FILE *f = fmemopen(printed, sizeof printed, "w");

    assert_non_null(f);
    const ls_status status = ls_report(&options, f);
    fclose(f);
    return status;
}

static inline void assert_has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("no '%s' in:\n%.3000s", part, text);
}

static inline ls_status validate(const char *directory)
{
    FILE *f = fmemopen(printed, sizeof printed, "w");
    const ls_status status = ls_report_validate(directory, f);
    fclose(f);
    return status;
}

static inline char *read_text(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = calloc(1, 1 << 22);

    assert_true(f != NULL && text != NULL);
    assert_true(fread(text, 1, (1 << 22) - 1, f) > 0);
    fclose(f);
    return text;
}

#endif
