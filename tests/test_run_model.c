/*
 * test_run_model.c - the run file's rope_scaling over the model's; lengths that pretrained weights
 * do not cover, and the line that helps.
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
#include <unistd.h>

#include "json.h"
#include "run_model.h"

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

static char folder[] = LS_BINARY_DIR "/run-model-XXXXXX", path[sizeof folder + 16];

static int make_folder(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL) return 1;
    snprintf(path, sizeof path, "%s/config.json", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

/* A model for 4096 tokens with heads of 16, and one more line. */
static void put_model(const char *more)
{
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    assert_true(fprintf(file,
                        "model_type: llama\nvocab_size: 320\nhidden_size: 64\n"
                        "intermediate_size: 96\nnum_hidden_layers: 2\nnum_attention_heads: 4\n"
                        "max_position_embeddings: 4096\n%s\n",
                        more) > 0);
    assert_int_equal(fclose(file), 0);
}

/* A run of this init and length, its first four lines; more stands on line 5. */
static ls_status read_run(const char *init, const char *tokens, const char *more,
                          ls_run_config *config, ls_model_config *model)
{
    char text[2048];
    const int n = snprintf(text, sizeof text,
                           "{model: %s, init: %s, output: o, data: {train: t},\n"
                           "batch: {sequences: 1},\n\nsequence: {tokens: %s}\n%s%s}\n",
                           folder, init, tokens, more[0] != '\0' ? "," : "", more);

    assert_true(n > 0 && (size_t)n < sizeof text);
    LS_TRY(ls_run_config_parse("r.yaml", text, (size_t)n, NULL, 0, config));
    return ls_run_model_read(config, model);
}

static ls_model_config need_run(const char *init, const char *tokens, const char *more)
{
    ls_run_config config;
    ls_model_config model;

    if (read_run(init, tokens, more, &config, &model) != LS_OK) fail_msg("%s", ls_error());
    ls_run_config_free(&config);
    return model;
}

static void assert_refused(const char *init, const char *tokens, const char *more,
                           const char *message)
{
    ls_run_config config = {0};
    ls_model_config model;

    if (read_run(init, tokens, more, &config, &model) != LS_ERR_INVALID)
        fail_msg("'%s' at %s was not refused", more, tokens);
    if (strstr(ls_error(), message) == NULL) fail_msg("'%s' lacks '%s'", ls_error(), message);
    ls_run_config_free(&config);
}

static void the_run_files_scaling_replaces_the_models(void **state)
{
    (void)state;
    put_model("rope_theta: 5e5\nrope_scaling: {type: linear, factor: 2}");
    ls_model_config m = need_run("random", "8k", "");
    assert_int_equal(m.rope_scaling.type, LS_ROPE_LINEAR);

    m = need_run("pretrained", "32k", "rope_scaling: {type: yarn, factor: 8}");
    assert_int_equal(m.rope_scaling.type, LS_ROPE_YARN);
    assert_int_equal(m.rope_scaling.original_tokens, 4096);
    assert_true(m.rope_scaling.theta == 5e5 && m.rope_scaling.factor == 8);
    assert_int_equal(m.max_position_embeddings, 32768);

    m = need_run("pretrained", "16k",
                 "rope_scaling: {type: llama3, factor: 16, original_tokens: 1k, low_freq_factor: 1,"
                 " high_freq_factor: 4, rope_theta: 1e6}");
    assert_int_equal(m.rope_scaling.original_tokens, 1024);
    assert_true(m.rope_scaling.theta == 1e6);
    assert_int_equal(m.max_position_embeddings, 16384);

    /* Transformers knows no original length of these two but max_position_embeddings */
    m = need_run("pretrained", "8k",
                 "rope_scaling: {type: linear, factor: 8, original_tokens: 1k}");
    assert_int_equal(m.max_position_embeddings, 1024);
    assert_int_equal(m.rope_scaling.original_tokens, 1024);

    m = need_run("pretrained", "4k", "rope_scaling: {type: default}");
    assert_int_equal(m.rope_scaling.type, LS_ROPE_DEFAULT);
    assert_int_equal(m.max_position_embeddings, 4096);
    m = need_run("pretrained", "64k", "rope_scaling: {rope_theta: 8e6}"); /* theta alone */
    assert_true(m.rope_scaling.theta == 8e6);
    assert_int_equal(m.max_position_embeddings, 65536);

    m = need_run("pretrained", "32k",
                 "rope_scaling: {type: longrope, factor: 8, original_tokens: 4k, short_factor: "
                 "[1, 1, 1, 1, 1, 1, 1, 1], long_factor: [1, 2, 3, 4, 5, 6, 7, 8]}");
    assert_true(m.rope_scaling.long_factor.n == 8 && m.rope_scaling.long_factor.values[7] == 8);
    assert_int_equal(m.max_position_embeddings, 32768);
}

static void the_run_files_window_replaces_the_models(void **state)
{
    (void)state;
    put_model("");
    assert_int_equal(need_run("random", "4k", "").sliding_window, 0);
    assert_int_equal(need_run("random", "4k, window: 64", "").sliding_window, 64);
}

static void ntk_becomes_the_theta_of_the_runs_length(void **state)
{
    const double theta = 10000 * pow(2 * 16384.0 / 4096 - 1, 16.0 / 14);
    static const char *const models[] = {"", "rope_scaling: {type: dynamic, factor: 2}"};
    static const char *const runs[] = {"rope_scaling: {type: ntk, factor: 2}", ""};

    (void)state;
    for (size_t i = 0; i < N_OF(models); i++) {
        put_model(models[i]);
        const ls_model_config m = need_run("pretrained", "16k", runs[i]);
        assert_int_equal(m.rope_scaling.type, LS_ROPE_DEFAULT);
        assert_true(fabs(m.rope_scaling.theta / theta - 1) < 1e-14);
        assert_int_equal(m.max_position_embeddings, 16384);
        const ls_model_config within = need_run("pretrained", "4k", runs[i]);
        assert_int_equal(within.rope_scaling.type, LS_ROPE_NTK);
        assert_true(within.rope_scaling.theta == 10000);
        assert_int_equal(within.max_position_embeddings, 4096);
    }
}

static void what_the_run_file_cannot_mean_is_refused(void **state)
{
    static const char *const cases[][2] = {
        {"rope_scaling: {type: dynamic, factor: 2}",
         "r.yaml:5: rope_scaling.type: 'dynamic' is not known; allowed: default, linear, ntk, "
         "yarn, llama3, longrope"},
        {"rope_scaling: {factor: 2}", "r.yaml:5: rope_scaling: type is missing; allowed: default,"},
        {"rope_scaling: {type: yarn}",
         "r.yaml:5: rope_scaling: factor is missing; type yarn needs"},
        {"rope_scaling: {type: yarn, factor: 2, original_max_position_embeddings: 1024}",
         "rope_scaling.original_max_position_embeddings: unknown key; allowed: type, factor, "
         "original_tokens, rope_theta, attention_factor, beta_fast"},
        {"rope_scaling: {type: llama3, factor: 2, low_freq_factor: 1, high_freq_factor: 4}",
         "rope_scaling: original_tokens is missing; type llama3 needs it"},
        {"rope_scaling: {type: longrope, original_tokens: 1k}", "factor is missing"},
        {"rope_scaling: {type: linear, factor: 0}", "rope_scaling.factor: '0' is out of range"},
        {"rope_scaling: {type: linear, factor: 2, original_tokens: 0}", "'0' is out of range"},
        {"rope_scaling: {type: linear, factor: 2, partial_rotary_factor: 1}", "unknown key"},
        {"rope_scaling: {rope_theta: 0}", "rope_scaling.rope_theta: '0' is out of range"},
        {"rope_scaling: {type: longrope, factor: 2, original_tokens: 1k, short_factor: [1], "
         "long_factor: [1]}",
         "r.yaml:5: rope_scaling: short_factor has 1 numbers and long_factor 1; allowed: head_dim "
         "/ 2 = 8 each"},
        {"rope_scaling: {type: yarn, factor: 2, rope_theta: 1}",
         "r.yaml:5: rope_scaling: type yarn"},
        {"rope_scaling: {type: ntk, factor: 1e9, rope_theta: 1e6}",
         "r.yaml:5: rope_scaling: type ntk at 8192 tokens makes rope_theta"},
    };

    (void)state;
    put_model("");
    for (size_t i = 0; i < N_OF(cases); i++)
        assert_refused("random", "8k", cases[i][0], cases[i][1]);
}

/* The line of the refusal makes the run possible, and no smaller factor would. */
static void the_refusal_says_what_helps(void **state)
{
    static const struct {
        const char *model, *run, *line;
    } cases[] = {
        {"", "", "{type: yarn, factor: 5, original_tokens: 4096}"},
        {"", "rope_scaling: {type: default}", "{type: yarn, factor: 5, original_tokens: 4096}"},
        {"rope_scaling: {type: linear, factor: 2}", "",
         "{type: linear, factor: 5, original_tokens: 4096}"},
        {"rope_scaling: {type: yarn, factor: 2, original_max_position_embeddings: 2048, beta_fast: "
         "16, truncate: false, attention_factor: 1.5}",
         "", "{type: yarn, factor: 10, original_tokens: 2048, beta_fast: 16, truncate: false}"},
        {"rope_scaling: {type: llama3, factor: 8, low_freq_factor: 1.5, high_freq_factor: 4, "
         "original_max_position_embeddings: 1024}",
         "",
         "{type: llama3, factor: 20, original_tokens: 1024, low_freq_factor: 1.5, "
         "high_freq_factor: 4}"},
        {"", "rope_scaling: {type: linear, factor: 3, rope_theta: 2e4}",
         "{type: linear, factor: 5, original_tokens: 4096, rope_theta: 20000}"},
        {"rope_scaling: {type: longrope, original_max_position_embeddings: 512, short_factor: "
         "[1, 1, 1, 1, 1, 1, 1, 1], long_factor: [1, 1, 1, 1, 1, 1, 1, 1]}",
         "", "{type: yarn, factor: 40, original_tokens: 512}"},
    };
    static const char marker[] = "or this line in the run file: ";

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        char line[LS_ROPE_TEXT_BYTES];
        put_model(cases[i].model);
        assert_refused("pretrained", "20k", cases[i].run,
                       "r.yaml:4: sequence.tokens: 20480 is bey");
        const char *said = strstr(ls_error(), marker);
        assert_non_null(said);
        snprintf(line, sizeof line, "%s", said + strlen(marker));
        assert_int_equal(strncmp(line, "rope_scaling: ", 14), 0);
        assert_string_equal(line + 14, cases[i].line);
        ls_model_config model = need_run("pretrained", "20k", line);
        model.rope_scaling.factor -= 1;
        assert_true(model.rope_scaling.factor * (double)model.rope_scaling.original_tokens < 20480);
    }
}

static void the_reach_ends_at_its_last_token(void **state)
{
    (void)state;
    put_model("");
    need_run("pretrained", "4k", "");
    assert_refused(
        "pretrained", "4097", "",
        "r.yaml:4: sequence.tokens: 4097 is beyond the 4096 positions that the RoPE of ");
    need_run("pretrained", "10k", "rope_scaling: {type: yarn, factor: 2.5}");
    assert_refused("pretrained", "10241", "rope_scaling: {type: yarn, factor: 2.5}",
                   "beyond the 10240 positions");
    assert_refused("pretrained", "8k", "rope_scaling: {type: yarn, factor: 4, original_tokens: 1k}",
                   "beyond the 4096 positions"); /* the model's own count still */
    need_run("pretrained", "2k", "rope_scaling: {type: linear, factor: 2, original_tokens: 1k}");
    assert_refused("pretrained", "2049",
                   "rope_scaling: {type: linear, factor: 2, original_tokens: 1k}",
                   "beyond the 2048 positions");
}

/* They are refused as others are, but the model file itself may say more. */
static void random_weights_may_be_given_more_positions(void **state)
{
    static const char raise[] = ", max_position_embeddings: 4097 in ";

    (void)state;
    put_model("");
    need_run("random", "4096", "");
    assert_refused("random", "4097", "", raise);
    assert_non_null(
        strstr(ls_error(), "or this line in the run file: rope_scaling: {type: yarn, "));
    assert_refused("pretrained", "4097", "", "allowed: 2 to 4096, or this line");
    need_run("random", "8k", "rope_scaling: {type: yarn, factor: 2}");
    assert_refused("random", "8193", "rope_scaling: {type: yarn, factor: 2}",
                   "beyond the 8192 positions");
    assert_null(strstr(ls_error(), "max_position_embeddings")); /* the scaling decides */
    need_run("random", "1M", "rope_scaling: {type: ntk, factor: 2}");
    need_run("random", "1M", "rope_scaling: {rope_theta: 1e8}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_run_files_scaling_replaces_the_models),
        cmocka_unit_test(the_run_files_window_replaces_the_models),
        cmocka_unit_test(ntk_becomes_the_theta_of_the_runs_length),
        cmocka_unit_test(what_the_run_file_cannot_mean_is_refused),
        cmocka_unit_test(the_refusal_says_what_helps),
        cmocka_unit_test(the_reach_ends_at_its_last_token),
        cmocka_unit_test(random_weights_may_be_given_more_positions),
    };
    return cmocka_run_group_tests_name("run_model", tests, make_folder, remove_folder);
}
