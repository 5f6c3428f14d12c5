/* test_save_policy.c - memory.save: what is read, what it means for each layer, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "run_config.h"

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

#define LIST                                                                                       \
    "[{layers: 5-10, policy: o+x/4, place: host}, {layers: 11, policy: x+qkv+o}, "                 \
    "{layers: 12-15, policy: x/2, place: hbm}]"

/* A run file of four lines and more. */
static ls_status parse_with(const char *more, ls_run_config *config)
{
    char text[1024];
    const int n = snprintf(text, sizeof text,
                           "model: " LS_SOURCE_DIR "/configs/models/byte-3m.yaml\n"
                           "data: {train: data/t}\n"
                           "output: runs/o\n"
                           "steps: 300\n%s",
                           more);
    assert_true(n > 0 && (size_t)n < sizeof text);
    return ls_run_config_parse("r.yaml", text, (size_t)n, NULL, 0, config);
}

static ls_run_config parse(const char *more)
{
    ls_run_config config;
    if (parse_with(more, &config) != LS_OK) fail_msg("%s", ls_error());
    return config;
}

/* One letter for each layer and thing kept. */
static void assert_keeps(const ls_saves *saves, const char *x, const char *o, const char *qkv)
{
    for (int32_t l = 0; x[l] != '\0'; l++) {
        const ls_layer_save save = ls_saves_of(saves, l);
        if (save.x != (x[l] == '1') || save.o != (o[l] == '1') || save.qkv != (qkv[l] == '1'))
            fail_msg("layer %d: x %d, o %d, qkv %d", l, save.x, save.o, save.qkv);
    }
}

static void a_policy_says_what_each_layer_keeps(void **state)
{
    static const struct {
        const char *policy, *x, *o, *qkv;
    } cases[] = {{"x", "111111", "000000", "000000"},       {"x+o", "111111", "111111", "000000"},
                 {"x+qkv+o", "111111", "111111", "111111"}, {"o+x/2", "101010", "111111", "000000"},
                 {"o+x/4", "100010", "111111", "000000"},   {"x/3", "100100", "000000", "000000"}};
    char more[64], name[LS_SAVE_NAME_BYTES];

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        snprintf(more, sizeof more, "memory: {save: %s}\n", cases[i].policy);
        ls_run_config c = parse(more);
        assert_keeps(&c.saves, cases[i].x, cases[i].o, cases[i].qkv);
        assert_string_equal(ls_saves_name(&c.saves, name), cases[i].policy);
        ls_run_config_free(&c);
    }
}

/* K counts from a range's start; what no range names keeps its input. */
static void policies_go_by_layers(void **state)
{
    ls_run_config c = parse("memory: {save: " LIST "}\n");
    char name[LS_SAVE_NAME_BYTES];
    ls_saves whole = {.ranges = {{0, 3, {.o = true, .x_stride = 1}, 0}}, .n_ranges = 1};

    (void)state;
    assert_keeps(&c.saves, "11111100010110101", "00000111111100000", "00000000000100000");
    assert_int_equal(ls_saves_place(&c.saves, 3), 0);
    assert_int_equal(ls_saves_place(&c.saves, 9), 1 + LS_PLACE_HOST);
    assert_int_equal(ls_saves_place(&c.saves, 11), 0);
    assert_int_equal(ls_saves_place(&c.saves, 15), 1 + LS_PLACE_HBM);
    assert_string_equal(ls_saves_name(&c.saves, name), "mixed");
    whole.n_layers = 4;
    assert_string_equal(ls_saves_name(&whole, name), "x+o");
    whole.n_layers = 5;
    assert_string_equal(ls_saves_name(&whole, name), "mixed");
    whole.ranges[0].policy.o = false;
    assert_string_equal(ls_saves_name(&whole, name), "x");
    ls_run_config_free(&c);
}

/* What a checkpoint's state says of them, whatever else wrote it. */
static void policies_are_read_from_states(void **state)
{
    static const struct {
        const char *json, *message;
    } cases[] = {
        {"{\"save\": \"o+x/4\"}", NULL},
        {"{\"save\": [{\"layers\": \"0-3\", \"policy\": \"x/2\", \"place\": \"hbm\"}]}", NULL},
        {"{}", "save"},
        {"{\"save\": 3}", "save"},
        {"{\"save\": \"auto\"}", "s.json: save: 'auto' is no policy"},
        {"{\"save\": \"o+x/0\"}", "s.json: save: 'o+x/0' is no policy"},
        {"{\"save\": [3]}", "s.json"},
        {"{\"save\": [{\"policy\": \"x\"}]}", "layers"},
        {"{\"save\": [{\"layers\": \"4-1\", \"policy\": \"x\"}]}", "save: '4-1' are no layers"},
        {"{\"save\": [{\"layers\": \"4\", \"policy\": \"x\", \"place\": \"moon\"}]}",
         "save: 'moon' is no place"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        cJSON *json = cJSON_Parse(cases[i].json), *again;
        ls_saves saves;
        assert_non_null(json);
        const ls_status status = ls_saves_read_json("s.json", json, "save", &saves);
        assert_int_equal(status, cases[i].message == NULL ? LS_OK : LS_ERR_CORRUPT);
        if (status == LS_OK) {
            again = ls_saves_to_json(&saves);
            assert_true(cJSON_Compare(again, cJSON_GetObjectItem(json, "save"), 1));
            cJSON_Delete(again);
        } else if (strstr(ls_error(), cases[i].message) == NULL) {
            fail_msg("'%s' lacks '%s'", ls_error(), cases[i].message);
        }
        cJSON_Delete(json);
    }
}

static void refusals_name_place_value_and_what_is_allowed(void **state)
{
    static const struct {
        const char *more, *message;
    } cases[] = {
        {"memory: {save: x+q}\n",
         "memory.save: 'x+q' is not known, did you mean 'x+o'? allowed: auto, x, x+o, x+qkv+o, "
         "o+x/K, x/K (K: 2 or more), or a list of {layers: 0-23, policy: x+o, place: host}"},
        {"memory: {save: x/1}\n", "'x/1' is not known"},
        {"memory: {save: x/04k}\n", "'x/04k' is not known"},
        {"memory: {save: x/-2}\n", "'x/-2' is not known"},
        {"memory: {save: x/2147483648}\n", "is not known"},
        {"memory: {save: o+x}\n", "'o+x' is not known"},
        {"memory: {save: x+o/2}\n", "'x+o/2' is not known"},
        {"memory: {save: }\n", "r.yaml:5: memory.save: has no value; allowed: auto"},
        {"memory: {save: {a: x}}\n", "memory.save: is a map, not one value"},
        {"memory: {save: []}\n", "holds 0 ranges of layers; allowed: 1 to 64"},
        {"memory: {save: [x]}\n", "memory.save[0]: 'x' is one value"},
        {"memory: {save: [{policy: x}]}\n", "memory.save[0]: layers is missing"},
        {"memory: {save: [{layers: 1}]}\n", "memory.save[0]: policy is missing"},
        {"memory: {save: [{layers: 1, policy: auto}]}\n",
         "memory.save[0].policy: 'auto' is not known; allowed: x, x+o, x+qkv+o, o+x/K, x/K"},
        {"memory: {save: [{layers: 1, policy: [x]}]}\n", "memory.save[0].policy: is a list"},
        {"memory: {save: [{layers: 1, polizy: x}]}\n",
         "memory.save[0].polizy: unknown key, did you mean 'policy'?"},
        {"memory: {save: [{layers: 3-1, policy: x}]}\n",
         "memory.save[0].layers: '3-1' is not known; allowed: a layer (7), or the first and"},
        {"memory: {save: [{layers: 1-, policy: x}]}\n", "'1-' is not known"},
        {"memory: {save: [{layers: -1, policy: x}]}\n", "'-1' is not known"},
        {"memory: {save: [{layers: 1-2-3, policy: x}]}\n", "'1-2-3' is not known"},
        {"memory: {save: [{layers: 0-2147483647, policy: x}]}\n", "is not known"},
        {"memory:\n  save:\n  - {layers: 0-3, policy: x}\n  - {layers: 3-5, policy: x+o}\n",

         "r.yaml:8: memory.save[1].layers: 3-5 names layers of memory.save[0] (0-3) again; "
         "allowed: each layer once"},
        {"memory: {save: [{layers: 1, policy: x, place: disk}]}\n",
         "memory.save[0].place: 'disk' is not known; allowed: hbm, host, nvme"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        ls_run_config config;
        assert_int_equal(parse_with(cases[i].more, &config), LS_ERR_INVALID);
        if (strstr(ls_error(), cases[i].message) == NULL)
            fail_msg("'%s' lacks '%s'", ls_error(), cases[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_policy_says_what_each_layer_keeps),
        cmocka_unit_test(policies_go_by_layers),
        cmocka_unit_test(policies_are_read_from_states),
        cmocka_unit_test(refusals_name_place_value_and_what_is_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
