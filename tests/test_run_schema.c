/* test_run_schema.c - the schema that editors read takes what the program takes, and no more; the
 * tables that people read in configs/runs/README.md have every key, default and limit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "profile.h"
#include "run_schema.h"
#include "text.h"
#include "topology.h"

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))
#define MODEL       LS_SOURCE_DIR "/configs/models/byte-3m.yaml"
#define TABLES      LS_SOURCE_DIR "/configs/runs/README.md"

static const cJSON *schema_of(const cJSON *schema, const char *section, const char *key)
{
    const cJSON *at = cJSON_GetObjectItemCaseSensitive(schema, "properties");

    at = cJSON_GetObjectItemCaseSensitive(at, section);
    at = cJSON_GetObjectItemCaseSensitive(at, "properties");
    at = cJSON_GetObjectItemCaseSensitive(at, key);
    assert_non_null(at);
    return at;
}

static bool is_taken(const char *more)
{
    char text[512];
    ls_run_config config;
    const int n = snprintf(text, sizeof text,
                           "model: %s\ndata: {train: x}\noutput: o\nsteps: 300\n%s\n", MODEL, more);

    if (ls_run_config_parse("r.yaml", text, (size_t)n, NULL, 0, &config) != LS_OK) return false;
    ls_run_config_free(&config);
    return true;
}

/* Each number of bins, on both sides of the limits. */
static void the_schema_takes_the_bins_that_the_program_takes(void **state)
{
    cJSON *schema = NULL;
    regex_t pattern;
    char bins[32], text[128];

    (void)state;
    assert_int_equal(ls_run_config_schema(&schema), LS_OK);
    const cJSON *any =
        cJSON_GetObjectItemCaseSensitive(schema_of(schema, "eval", "position_bins"), "anyOf");
    const char *words = cJSON_GetStringValue(
        cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(any, 1), "pattern"));
    assert_non_null(words);
    assert_int_equal(regcomp(&pattern, words, REG_EXTENDED | REG_NOSUB), 0);
    for (int n = 0; n <= 1001; n++) {
        snprintf(bins, sizeof bins, "linear:%d", n);
        snprintf(text, sizeof text, "eval: {position_bins: %s}", bins);
        if ((regexec(&pattern, bins, 0, NULL, 0) == 0) != is_taken(text)) fail_msg("%s", bins);
    }
    regfree(&pattern);
    cJSON_Delete(schema);
}

/* Each class, and names that are none, in each place and elsewhere. */
static void the_schema_takes_the_places_that_the_program_takes(void **state)
{
    static const char *const places[] = {"hbm", "host", "nvme", "disk"};
    cJSON *schema = NULL;
    char text[128];

    (void)state;
    assert_int_equal(ls_run_config_schema(&schema), LS_OK);
    const cJSON *place = schema_of(schema, "memory", "place");
    assert_false(cJSON_HasObjectItem(place, "maxProperties"));
    assert_true(cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(place, "additionalProperties")));
    const cJSON *classes = cJSON_GetObjectItemCaseSensitive(place, "properties");
    for (int c = 0; c < LS_CLASS_COUNT; c++)
        for (size_t p = 0; p < N_OF(places); p++) {
            const char *name = ls_class_name((ls_tensor_class)c);
            const cJSON *words, *word;
            bool allowed = false;
            snprintf(text, sizeof text, "memory: {place: {%s: %s}}", name, places[p]);
            words = cJSON_GetObjectItemCaseSensitive(
                cJSON_GetObjectItemCaseSensitive(classes, name), "enum");
            cJSON_ArrayForEach(word, words) allowed |= strcmp(word->valuestring, places[p]) == 0;
            if (allowed != is_taken(text)) fail_msg("%s", text);
        }
    cJSON_Delete(schema);
}

/* ---- the tables for people ------------------------------------------------------------------- */

/* The whole file, with its end; free(). */
static char *read_tables(void)
{
    FILE *file = fopen(TABLES, "r");
    char *text = calloc(1, 1 << 16);

    assert_non_null(file);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 16) - 1, file) < (1 << 16) - 1);
    fclose(file);
    return text;
}

/* Rows of a table whose first column is a name in backquotes. */
static size_t count_rows(const char *text)
{
    size_t n = 0;
    for (const char *row = text; (row = strstr(row, "\n| `")) != NULL; row++) n++;
    return n;
}

static const char *show_count(int64_t count, char text[LS_TEXT_BYTES])
{
    return ls_text_short_count(text, LS_TEXT_BYTES, count);
}

/* What the third column says; false: the kind has words of its own there. */
static bool show_allowed(const ls_run_field *f, char *text, size_t size)
{
    char least[LS_TEXT_BYTES], most[LS_TEXT_BYTES];

    switch (f->kind) {
    case LS_RUN_WORD:
    case LS_RUN_SWITCH: ls_text_join(text, size, f->words, f->n_words); return true;
    case LS_RUN_WHOLE:
        snprintf(text, size, "%lld to %lld", (long long)f->least, (long long)f->most);
        return true;
    case LS_RUN_COUNT:
    case LS_RUN_COUNT_AUTO:
    case LS_RUN_COUNT_NULL:
        snprintf(text, size, "%s%s to %s",
                 f->kind == LS_RUN_COUNT_AUTO   ? "auto, "
                 : f->kind == LS_RUN_COUNT_NULL ? "null, "
                                                : "",
                 show_count(f->least, least), show_count(f->most, most));
        return true;
    case LS_RUN_REAL:
        snprintf(text, size, "%s%.9g to %s%.9g", f->range.above ? "more than " : "", f->range.least,
                 f->range.below ? "less than " : "", f->range.most);
        return true;
    default: return false;
    }
}

static void assert_row(const char *text, const ls_run_field *f)
{
    static const char *const resumes[] = {
        [LS_RUN_FIXED] = "no", [LS_RUN_MAY_REPLAN] = "replan", [LS_RUN_MAY_CHANGE] = "yes"};
    char allowed[256], row[512];
    int n = snprintf(row, sizeof row, "\n| `%s` | %s | %s | ", f->path,
                     f->required           ? "required"
                     : f->fallback != NULL ? f->fallback
                                           : "none",
                     resumes[f->resume]);

    if (show_allowed(f, allowed, sizeof allowed))
        n += snprintf(row + n, sizeof row - (size_t)n, "%s | ", allowed);
    assert_in_range(n, 1, sizeof row - 1);
    if (strstr(text, row) == NULL) fail_msg(TABLES " lacks the row '%s...'", row + 1);
}

/* "hbm, host": where a run with device memory may place the class. */
static void show_places(const ls_topology *machine, ls_tensor_class class, char *text, size_t size)
{
    const char *taken[LS_PLACE_COUNT];
    size_t n = 0;

    for (int p = 0; p < LS_PLACE_COUNT; p++) {
        ls_placement_wish wish = {.weights_given = false};
        ls_placement placement;
        wish.place_given[class] = true;
        wish.places[class] = (ls_place_kind)p;
        if (ls_placement_decide(machine, &wish, &placement) == LS_OK)
            taken[n++] = ls_place_name((ls_place_kind)p);
    }
    ls_text_join(text, size, taken, n);
}

/* Keys with default, limits and resume, classes with places, and nothing else. */
static void the_tables_have_every_key_and_class(void **state)
{
    const char *names[LS_CLASS_COUNT];
    ls_tensor_class classes[LS_CLASS_COUNT];
    const size_t n_classes = ls_run_list_classes(names, classes);
    char *text = read_tables(), places[64], row[128];
    ls_profile *profile;
    ls_topology *machine;
    size_t n_fields;
    const ls_run_field *fields = ls_run_fields(&n_fields);

    (void)state;
    assert_int_equal(ls_profile_read("emulated-gh200", &profile), LS_OK);
    assert_int_equal(ls_profile_describe(profile, &machine), LS_OK);
    for (size_t i = 0; i < n_fields; i++) assert_row(text, &fields[i]);
    for (size_t i = 0; i < n_classes; i++) {
        show_places(machine, classes[i], places, sizeof places);
        snprintf(row, sizeof row, "\n| `%s` | %s | ", names[i], places);
        if (strstr(text, row) == NULL) fail_msg(TABLES " lacks the row '%s...'", row + 1);
    }
    assert_int_equal(count_rows(text), n_fields + n_classes);
    ls_topology_free(machine);
    ls_profile_free(profile);
    free(text);
}

/* The schema in the tree is the table's.  To renew it: copy the file this test writes. */
static void the_shipped_schema_is_the_tables(void **state)
{
    cJSON *made = NULL, *shipped = NULL;

    (void)state;
    assert_int_equal(ls_run_config_schema(&made), LS_OK);
    assert_int_equal(ls_json_write(LS_BINARY_DIR "/run.schema.json", made), LS_OK);
    if (ls_json_read(LS_SOURCE_DIR "/configs/schema/run.schema.json", &shipped) != LS_OK)
        fail_msg("%s", ls_error());
    if (!cJSON_Compare(made, shipped, 1))
        fail_msg("configs/schema/run.schema.json is not the table's; it should be %s",
                 LS_BINARY_DIR "/run.schema.json");
    cJSON_Delete(made);
    cJSON_Delete(shipped);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_schema_takes_the_bins_that_the_program_takes),
        cmocka_unit_test(the_schema_takes_the_places_that_the_program_takes),
        cmocka_unit_test(the_tables_have_every_key_and_class),
        cmocka_unit_test(the_shipped_schema_is_the_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
