/*
 * test_rope_scaling.c - every type of scaling against Transformers and against 60 digits
 * (scripts/golden_rope.py), up to position 4,194,303; config.json read and written.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "model_config.h"

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))
#define WIDTH_MAX   128

/* A case of the fixture and its model as our reader understands it. */
typedef struct golden {
    const cJSON *json;
    const char *name;
    ls_model_config config;
    int64_t tokens, K;
} golden;

static cJSON *fixture;

static int open_fixture(void **state)
{
    (void)state;
    return ls_json_read(LS_SOURCE_DIR "/tests/golden/rope_scaling.json", &fixture) == LS_OK ? 0 : 1;
}

static int close_fixture(void **state)
{
    (void)state;
    cJSON_Delete(fixture);
    return 0;
}

static const cJSON *need(const cJSON *json, const char *path)
{
    const cJSON *item = ls_json_find_path(json, path);
    if (item == NULL) fail_msg("the fixture lacks %s", path);
    return item;
}

static double at(const cJSON *list, int64_t i)
{
    const cJSON *item = cJSON_GetArrayItem(list, (int)i);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

static golden open_case(const cJSON *json)
{
    char *text = cJSON_PrintUnformatted(need(json, "config"));
    golden g = {.json = json,
                .name = need(json, "name")->valuestring,
                .tokens = (int64_t)need(json, "tokens")->valuedouble};

    assert_non_null(text);
    if (ls_model_config_parse(g.name, text, strlen(text), &g.config) != LS_OK)
        fail_msg("%s", ls_error());
    cJSON_free(text);
    g.K = g.config.head_dim;
    assert_true(g.K <= WIDTH_MAX);
    return g;
}

#define FOR_EACH_CASE(g)                                                                           \
    for (const cJSON *case_ = need(fixture, "cases")->child; case_ != NULL; case_ = case_->next)   \
        for (golden g = open_case(case_); g.json != NULL; g.json = NULL)

static void frequencies_are_those_of_transformers(void **state)
{
    (void)state;
    FOR_EACH_CASE(g)
    {
        const cJSON *exact = need(g.json, "frequencies"), *fp32 = need(g.json, "frequencies_fp32");
        const double fp32_error = need(g.json, "fp32_error")->valuedouble;
        const double attention = need(g.json, "attention_factor")->valuedouble;
        double frequencies[WIDTH_MAX / 2];

        ls_rope_frequencies(&g.config.rope_scaling, g.K, g.tokens, frequencies);
        assert_int_equal(cJSON_GetArraySize(exact), g.K / 2);
        for (int64_t i = 0; i < g.K / 2; i++) {
            if (!(fabs(frequencies[i] / at(exact, i) - 1.0) <= 1e-15))
                fail_msg("%s: frequency %d is %.17g, not %.17g", g.name, (int)i, frequencies[i],
                         at(exact, i));
            /* Transformers' own is off by this much */
            assert_true(fabs(at(fp32, i) / frequencies[i] - 1.0) <= fp32_error + 1e-14);
        }
        if (!(fabs(ls_rope_attention_factor(&g.config.rope_scaling) / attention - 1.0) <= 1e-15))
            fail_msg("%s: the attention factor is %.17g, not %.17g", g.name,
                     ls_rope_attention_factor(&g.config.rope_scaling), attention);
    }
}

/* Half a unit in the last place of the fp32 nearest to value. */
static double half_ulp(double value)
{
    int exponent;
    frexp(value, &exponent);
    return ldexp(1.0, exponent - 25);
}

static void far_rows_are_exact_but_for_the_rounding(void **state)
{
    const cJSON *positions = need(fixture, "positions");
    double largest = 0;

    (void)state;
    assert_true(at(positions, 2) == 524287 && at(positions, 3) == 4194303);
    FOR_EACH_CASE(g) for (int p = 0; p < 4; p++)
    {
        const cJSON *cos = cJSON_GetArrayItem(need(g.json, "cos"), p);
        const cJSON *sin = cJSON_GetArrayItem(need(g.json, "sin"), p);
        const double position = at(positions, p);
        float row[2][WIDTH_MAX / 2][2];

        /* from the row before: first and n count */
        ls_rope_fill(&g.config.rope_scaling, g.K, g.tokens, (int64_t)position - 1, 1, row[0][0]);
        const float before = row[0][0][0];
        float rows[2 * WIDTH_MAX];
        ls_rope_fill(&g.config.rope_scaling, g.K, g.tokens, (int64_t)position - 1, 2, rows);
        assert_true(rows[0] >= before && rows[0] <= before);
        memcpy(row[1][0], rows + g.K, (size_t)g.K * sizeof *rows);
        for (int64_t i = 0; i < g.K / 2; i++) {
            const double exact[2] = {at(cos, i), at(sin, i)};
            for (int part = 0; part < 2; part++) {
                const double error = fabs((double)row[1][i][part] - exact[part]);
                const double beyond = error - half_ulp(exact[part]);
                if (beyond > largest) largest = beyond;
                if (!(beyond <= 1e-15 * position))
                    fail_msg("%s: position %.0f, pair %d: %.9g, not %.17g", g.name, position,
                             (int)i, (double)row[1][i][part], exact[part]);
            }
        }
    }
    print_message("beyond the rounding to fp32: %.1e\n", largest);
}

static void what_is_written_is_what_transformers_writes(void **state)
{
    (void)state;
    FOR_EACH_CASE(g)
    {
        cJSON *made = NULL, *parsed = NULL;
        ls_model_config again;

        assert_int_equal(ls_model_config_to_json(&g.config, LS_DTYPE_BF16, &made), LS_OK);
        char *text = cJSON_Print(made);
        assert_int_equal(ls_json_parse(g.name, text, strlen(text), &parsed), LS_OK);
        if (!cJSON_Compare(ls_json_find_path(parsed, "rope_parameters"),
                           need(g.json, "config.rope_parameters"), 1))
            fail_msg("%s: rope_parameters differ: %s", g.name, text);
        /* what version 4 reads is the same without theta, which stands beside it */
        cJSON *older = cJSON_GetObjectItem(parsed, "rope_scaling");
        if (g.config.rope_scaling.type == LS_ROPE_DEFAULT) {
            assert_true(cJSON_IsNull(older));
        } else {
            assert_int_equal(ls_json_add(older, "rope_theta",
                                         cJSON_CreateNumber(
                                             ls_json_find_path(parsed, "rope_theta")->valuedouble)),
                             LS_OK);
            assert_true(cJSON_Compare(older, ls_json_find_path(parsed, "rope_parameters"), 1));
        }
        if (ls_model_config_parse(g.name, text, strlen(text), &again) != LS_OK)
            fail_msg("%s", ls_error());
        assert_memory_equal(&again.rope_scaling, &g.config.rope_scaling, sizeof again.rope_scaling);
        cJSON_Delete(parsed);
        cJSON_Delete(made);
        cJSON_free(text);
    }
}

/* ---- reading ------------------------------------------------------------------------------- */

/* A model with heads of 8 and one more line, the eighth. */
static ls_status parse_with(const char *more, ls_model_config *config)
{
    static const char base[] = "model_type: llama\nvocab_size: 320\nhidden_size: 32\n"
                               "intermediate_size: 96\nnum_hidden_layers: 2\n"
                               "num_attention_heads: 4\nmax_position_embeddings: 4096\n";
    char text[2048];
    const int n = snprintf(text, sizeof text, "%s%s", base, more);
    assert_true(n > 0 && (size_t)n < sizeof text);
    return ls_model_config_parse("m.yaml", text, (size_t)n, config);
}

static ls_model_config need_with(const char *more)
{
    ls_model_config config;
    if (parse_with(more, &config) != LS_OK) fail_msg("'%s': %s", more, ls_error());
    return config;
}

#define TWOS "[2, 2, 2, 2]"

static void both_spellings_give_one_scaling(void **state)
{
    static const char *const spellings[] = {
        "rope_scaling: {type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4,"
        " original_max_position_embeddings: 1024}\nrope_theta: 5e5\n",
        "rope_scaling: {rope_type: llama3, type: llama3, factor: 8.0, low_freq_factor: 1.0,"
        " high_freq_factor: 4.0}\nrope_theta: 5e5\noriginal_max_position_embeddings: 1024\n",
        "rope_parameters: {rope_type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4,"
        " original_max_position_embeddings: 1024, rope_theta: 5e5, partial_rotary_factor: 1.0}\n"
        "rope_scaling: {}\n",
        "rope_parameters: {rope_type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4,"
        " original_max_position_embeddings: 1024, rope_theta: 5e5}\n"
        "rope_scaling: {rope_type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4,"
        " original_max_position_embeddings: 1024}\n",
    };
    const ls_model_config first = need_with(spellings[0]);

    (void)state;
    assert_int_equal(first.rope_scaling.type, LS_ROPE_LLAMA3);
    assert_int_equal(first.rope_scaling.original_tokens, 1024);
    assert_true(first.rope_scaling.factor == 8 && first.rope_scaling.theta == 5e5);
    assert_true(first.rope_scaling.low_freq_factor == 1);
    assert_true(first.rope_scaling.high_freq_factor == 4);
    for (size_t i = 1; i < N_OF(spellings); i++) {
        const ls_model_config other = need_with(spellings[i]);
        assert_memory_equal(&other.rope_scaling, &first.rope_scaling, sizeof first.rope_scaling);
    }
}

static void absent_keys_take_transformers_defaults(void **state)
{
    ls_model_config c = need_with("rope_scaling: {type: yarn, factor: 4, beta_slow: null}\n");

    (void)state;
    assert_int_equal(c.rope_scaling.original_tokens, 4096);
    assert_true(c.rope_scaling.theta == 10000 && !c.rope_scaling.no_truncate);
    assert_int_equal(ls_rope_reach(&c.rope_scaling, c.max_position_embeddings), 16384);
    c = need_with("rope_scaling: {type: longrope, original_max_position_embeddings: 512,"
                  " short_factor: " TWOS ", long_factor: " TWOS "}\n");
    assert_true(c.rope_scaling.factor == 8); /* 4096 / 512 */
    assert_true(fabs(ls_rope_attention_factor(&c.rope_scaling) - sqrt(1 + 3.0 / 9.0)) < 1e-15);
    assert_int_equal(ls_rope_reach(&c.rope_scaling, c.max_position_embeddings), 4096);
    c = need_with("rope_scaling: {type: linear, factor: 2.5}\n");
    assert_int_equal(ls_rope_reach(&c.rope_scaling, c.max_position_embeddings), 10240);
    c = need_with("rope_scaling: {type: dynamic, factor: 2}\n");
    assert_true(ls_rope_reach(&c.rope_scaling, c.max_position_embeddings) == INT64_MAX);
    c = need_with("");
    assert_int_equal(ls_rope_reach(&c.rope_scaling, c.max_position_embeddings), 4096);
}

static void yarns_ramp_lies_between_32_turns_and_1(void **state)
{
    const ls_model_config given = need_with("rope_scaling: {type: yarn, factor: 4, truncate: false,"
                                            " beta_fast: 32, beta_slow: 1}\n");
    const ls_model_config absent =
        need_with("rope_scaling: {type: yarn, factor: 4, truncate: false}\n");
    double expected[64], frequencies[64];

    (void)state;
    ls_rope_frequencies(&given.rope_scaling, 128, 4096, expected);
    ls_rope_frequencies(&absent.rope_scaling, 128, 4096, frequencies);
    assert_memory_equal(frequencies, expected, sizeof expected);
}

static void what_is_no_scaling_is_refused(void **state)
{
    static const struct {
        const char *more, *message;
    } cases[] = {
        {"rope_scaling: {type: yarm, factor: 4}\n",
         "m.yaml:8: rope_scaling.type: 'yarm' is not known, did you mean 'yarn'? allowed: default, "
         "linear, dynamic, yarn, llama3, longrope"},
        {"rope_scaling: {type: ntk, factor: 4}\n", "rope_scaling.type: 'ntk' is not known"},
        {"rope_parameters: {rope_type: proportional}\n",
         "rope_parameters.rope_type: 'proportional' is not known; allowed: default,"},
        {"rope_scaling: {factor: 4}\n", "m.yaml:8: rope_scaling: rope_type is missing; allowed: d"},
        {"rope_scaling: {type: yarn, rope_type: linear, factor: 4}\n",
         "rope_scaling.type: is yarn, but rope_type beside it is linear; allowed: one value"},
        {"rope_scaling: 4\n", "m.yaml:8: rope_scaling: '4' is one value"},
        {"rope_scaling: {type: yarn}\n", "m.yaml:8: rope_scaling: factor is missing; type yarn ne"},
        {"rope_scaling: {type: dynamic}\n", "factor is missing; type dynamic needs it"},
        {"rope_scaling: {type: linear, factor: null}\n", "rope_scaling.factor: has no value"},
        {"rope_scaling: {type: linear, factor: 4, beta_fast: 32}\n",
         "m.yaml:8: rope_scaling.beta_fast: unknown key"},
        {"rope_scaling: {type: linear, factor: 4, original_max_position_embeddings: 1024}\n",
         "rope_scaling.original_max_position_embeddings: unknown key"},
        {"rope_scaling: {type: yarn, factor: 4, beta_fats: 32}\n", "did you mean 'beta_fast'?"},
        {"rope_scaling: {type: yarn, factor: 0.5}\n", "factor: '0.5' is out of range; allowed: 1 "},
        {"rope_scaling: {type: yarn, factor: 4, beta_fast: 0.5}\n",
         "beta_fast = 0.5 is below beta_slow = 1"},
        {"rope_scaling: {type: yarn, factor: 4, attention_factor: 0}\n", "'0' is out of range"},
        {"rope_scaling: {type: yarn, factor: 4, truncate: 1}\n", "truncate: '1' is not a truth"},
        {"rope_scaling: {type: yarn, factor: 4}\nrope_theta: 1\n",
         "m.yaml:8: rope_scaling: type yarn has no ramp at a rope_theta of 1"},
        {"rope_scaling: {type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4}\n",
         "original_max_position_embeddings is missing; type llama3 needs it"},
        {"rope_scaling: {type: llama3, factor: 8, low_freq_factor: 4, high_freq_factor: 4,"
         " original_max_position_embeddings: 1024}\n",
         "high_freq_factor: 4 is not above low_freq_factor = 4"},
        {"rope_scaling: {type: llama3, factor: 8, low_freq_factor: 1,"
         " original_max_position_embeddings: 1024}\n",
         "high_freq_factor is missing"},
        {"rope_scaling: {type: longrope, factor: 8, original_max_position_embeddings: 512,"
         " short_factor: [2, 2, 2], long_factor: " TWOS "}\n",
         "m.yaml:8: rope_scaling: short_factor has 3 numbers and long_factor 4; allowed: head_dim "
         "/ "
         "2 = 4 each"},
        {"rope_scaling: {type: longrope, factor: 8, original_max_position_embeddings: 512,"
         " short_factor: [2, 2, 2, 0], long_factor: " TWOS "}\n",
         "short_factor[3]: '0' is out of range"},
        {"rope_scaling: {type: longrope, original_max_position_embeddings: 1,"
         " short_factor: " TWOS ", long_factor: " TWOS "}\n",
         "cannot start from 1 original token"},
        {"rope_scaling: {type: longrope, original_max_position_embeddings: 512,"
         " short_factor: " TWOS ", long_factor: " TWOS "}\noriginal_max_position_embeddings: 256\n",
         "is 512, but original_max_position_embeddings beside it is 256"},
        {"rope_scaling: {type: linear, factor: 4, rope_theta: 2e4}\nrope_theta: 1e4\n",
         "rope_scaling.rope_theta: is 20000, but rope_theta beside it is 10000"},
        {"rope_scaling: {type: linear, factor: 4}\nrope_parameters: {rope_type: linear, factor: "
         "2}\n",
         "m.yaml:8: rope_scaling: differs from rope_parameters in factor"},
        {"rope_scaling: {type: linear, factor: 4}\nrope_parameters: {rope_type: default}\n",
         "differs from rope_parameters in rope_type"},
        {"head_dim: 2\nrope_scaling: {type: dynamic, factor: 4}\n", "needs heads wider than 2"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        ls_model_config config;
        if (parse_with(cases[i].more, &config) != LS_ERR_INVALID)
            fail_msg("'%s' was not refused", cases[i].more);
        if (strstr(ls_error(), cases[i].message) == NULL)
            fail_msg("'%s' lacks '%s'", ls_error(), cases[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_are_those_of_transformers),
        cmocka_unit_test(far_rows_are_exact_but_for_the_rounding),
        cmocka_unit_test(what_is_written_is_what_transformers_writes),
        cmocka_unit_test(both_spellings_give_one_scaling),
        cmocka_unit_test(absent_keys_take_transformers_defaults),
        cmocka_unit_test(yarns_ramp_lies_between_32_turns_and_1),
        cmocka_unit_test(what_is_no_scaling_is_refused),
    };
    return cmocka_run_group_tests_name("rope_scaling", tests, open_fixture, close_fixture);
}
