/*
 * test_shipped_runs.c - every run file in configs/runs builds and checks a plan on every profile in
 * configs/hardware, whether it fits or not, without weights or data and in little memory.  On its
 * own profile a run has its full length and fits; elsewhere an eighth will do, and on an emulated
 * machine, which has little room and plans in the smallest rows, less.
 *
 * Under sanitizers lengths are short, of the models that differ in sizes alone one is planned on
 * other profiles, and on each of these every other run: all code is run, not all numbers.
 */
#include "cli_test.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <sys/resource.h>

#include "json.h"

#define RUNS     LS_SOURCE_DIR "/configs/runs"
#define PROFILES LS_SOURCE_DIR "/configs/hardware"
#define MODELS   LS_SOURCE_DIR "/configs/models"

#ifdef LS_SANITIZED /* many times slower */
#define FULL      "32k"
#define SHORT     "32k"
#define SHORTEST  "8k"
#define SANITIZED true
#else
#define FULL      "512k"
#define SHORT     "64k"
#define SHORTEST  "16k"
#define SANITIZED false
#endif

enum { NAMES_MAX = 64, NAME_BYTES = 128, RSS_KIB_MAX = 2 << 20 };

typedef struct name_list {
    char names[NAMES_MAX][NAME_BYTES]; /* without .yaml */
    int n;
} name_list;

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* By name. */
static name_list list_yaml(const char *folder)
{
    name_list list = {.n = 0};
    DIR *opened = opendir(folder);

    assert_non_null(opened);
    for (const struct dirent *entry; (entry = readdir(opened)) != NULL;) {
        const char *end = strstr(entry->d_name, ".yaml");
        if (end == NULL || end[5] != '\0') continue;
        assert_true(list.n < NAMES_MAX && end - entry->d_name < NAME_BYTES);
        snprintf(list.names[list.n++], NAME_BYTES, "%.*s", (int)(end - entry->d_name),
                 entry->d_name);
    }
    closedir(opened);
    assert_true(list.n > 0);
    qsort(list.names, (size_t)list.n, sizeof list.names[0], compare_names);
    return list;
}

/* Plan it; tokens and hardware may be NULL: as the file says.  Returns whether it fits. */
static bool plan(const char *run, const char *hardware, const char *tokens)
{
    char path[512], length[64] = "";
    const char *argv[16] = {PROGRAM, "plan", path, "--json", "--quiet"};
    int n = 5;

    snprintf(path, sizeof path, RUNS "/%s.yaml", run);
    if (hardware != NULL) {
        argv[n++] = "--hardware";
        argv[n++] = hardware;
    }
    if (tokens != NULL) {
        snprintf(length, sizeof length, "sequence.tokens=%s", tokens);
        argv[n++] = "--set";
        argv[n++] = length;
    }
    const bool shortest = tokens != NULL && strcmp(tokens, SHORTEST) == 0;
    if (shortest || (tokens != NULL && strcmp(tokens, SHORT) == 0 && strchr(run, '/') == NULL)) {
        argv[n++] = "--set"; /* several blocks all the same */
        argv[n++] = shortest ? "sequence.query_block=4k" : "sequence.query_block=16k";
    }
    if (SANITIZED && strchr(run, '/') != NULL) { /* shorter sequences, or fewer: a chunk of 16k */
        argv[n++] = "--set";
        argv[n++] = "sequence.query_block=16k";
        if (tokens == NULL) {
            argv[n++] = "--set";
            argv[n++] = "batch.sequences=16";
        }
    }
    const outcome *done = finish(start(argv));
    if (done->code != 0 && done->code != 3)
        fail_msg("%s on %s: exit code %d: %s", run, hardware, done->code, done->err);
    cJSON *json = cJSON_Parse(done->out);
    if (!cJSON_IsTrue(ls_json_find_path(json, "checked")))
        fail_msg("%s on %s: not checked: %s", run, hardware, done->err);
    const bool fits = cJSON_IsTrue(ls_json_find_path(json, "fits"));
    assert_int_equal(fits, done->code == 0);
    cJSON_Delete(json);
    return fits;
}

/* Of a model of 7B: on its own profile in full, elsewhere cut short. */
static bool is_long(const char *run)
{
    return strstr(run, "-512k-") != NULL;
}

/* Sequences for other profiles; NULL: as the file says. */
static const char *tokens_elsewhere(const char *run, const char *profile)
{
    if (!is_long(run) && !(SANITIZED && strstr(run, "-512k") != NULL)) return NULL;
    return strncmp(profile, "emulated-", 9) == 0 ? SHORTEST : SHORT;
}

/* A model of 7B like another: grouped heads without biases. */
static bool is_like_another(const char *run)
{
    return strncmp(run, "mistral-", 8) == 0;
}

static void long_runs_fit_their_own_profile(void **state)
{
    const name_list runs = list_yaml(RUNS);
    int n_long = 0;

    (void)state;
    for (int r = 0; r < runs.n; r++) {
        if (!is_long(runs.names[r])) continue;
        n_long++;
        if (!plan(runs.names[r], NULL, FULL)) fail_msg("%s does not fit", runs.names[r]);
    }
    assert_true(n_long >= 4);
}

/* Other systems' policies, on the machine that each names. */
static void baselines_fit_their_own_profile(void **state)
{
    const name_list runs = list_yaml(RUNS "/baselines");
    int n_planned = 0;

    (void)state;
    for (int r = 0; r < runs.n; r++) {
        char run[2 * NAME_BYTES];
        if (strncmp(runs.names[r], "gh200-", 6) == 0) continue; /* a machine */
        snprintf(run, sizeof run, "baselines/%s", runs.names[r]);
        n_planned++;
        if (!plan(run, NULL, strstr(run, "-512k") != NULL ? FULL : NULL))
            fail_msg("%s does not fit", run);
    }
    assert_int_equal(n_planned, 9);
}

static void every_run_plans_on_every_profile(void **state)
{
    const name_list runs = list_yaml(RUNS), profiles = list_yaml(PROFILES);

    (void)state;
    assert_true(profiles.n >= 8);
    for (int r = 0; r < runs.n; r++)
        for (int p = 0; p < profiles.n; p++) {
            if (SANITIZED && ((r + p) % 2 != 0 || is_like_another(runs.names[r]))) continue;
            plan(runs.names[r], profiles.names[p],
                 tokens_elsewhere(runs.names[r], profiles.names[p]));
        }
}

/* Of all the plans above; an instrumented program needs more. */
static void no_plan_needs_much_memory(void **state)
{
    struct rusage usage;

    (void)state;
#ifdef LS_SANITIZED
    (void)usage;
    skip();
#else
    assert_int_equal(getrusage(RUSAGE_CHILDREN, &usage), 0);
    if (usage.ru_maxrss >= RSS_KIB_MAX) fail_msg("%ld KiB for a plan", usage.ru_maxrss);
#endif
}

/* The published numbers of parameters (rounded on the cards: 7.61B, 6.74B, 7.25B, 8.03B). */
static void models_have_their_published_sizes(void **state)
{
    static const struct {
        const char *model;
        double parameters;
    } models[] = {{"qwen2.5-7b", 7615616512.0},
                  {"qwen2.5-14b", 14770033664.0},
                  {"llama-2-7b", 6738415616.0},
                  {"mistral-7b", 7248023552.0},
                  {"llama-3.1-8b", 8030261248.0}};

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char model[512];
        snprintf(model, sizeof model, "model=" MODELS "/%s.yaml", models[i].model);
        const char *const argv[] = {PROGRAM, "plan", "run.yaml", "--hardware", "gh200-96gb-480gb",
                                    "--set", model,  "--json",   "--quiet",    NULL};
        cJSON *json = cJSON_Parse(finish_as(0, start(argv))->out);
        const cJSON *parameters = ls_json_find_path(json, "parameters");
        assert_true(cJSON_IsNumber(parameters));
        if (parameters->valuedouble != models[i].parameters)
            fail_msg("%s: %.0f parameters", models[i].model, parameters->valuedouble);
        cJSON_Delete(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_runs_fit_their_own_profile),
        cmocka_unit_test(baselines_fit_their_own_profile),
        cmocka_unit_test(every_run_plans_on_every_profile),
        cmocka_unit_test(no_plan_needs_much_memory),
        cmocka_unit_test(models_have_their_published_sizes),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
