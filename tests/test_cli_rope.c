/*
 * test_cli_rope.c - pretrained weights at a length beyond their own: refused with a line that
 * helps, trained with it, saved so that the scaling is the model's from then on.
 */
#include "cli_test.h"

#include <cjson/cJSON.h>

#include "json.h"

#define SHORT "base/checkpoints/step-00000030" /* made for 64 positions */
#define LONG  "longer/checkpoints/step-00000004"

static const char marker[] = "or this line in the run file: ";

/* The run file at 256 tokens from the weights of SHORT; more: lines to add. */
static void put_longer(const char *name, const char *model, const char *more)
{
    char text[2048];

    snprintf(text, sizeof text,
             "model: %s\ninit: pretrained\ndata: {train: data/train, valid: data/valid}\n"
             "sequence: {tokens: 256}\nbatch: {sequences: 1}\noptimizer: {warmup_steps: 2}\n"
             "steps: 4\neval: {every_steps: 0}\noutput: longer\n%s\n",
             model, more);
    put_text(at("%s", name), text);
}

static int make_base(void **state)
{
    if (make_scratch(state) != 0) return -1;
    put_changed(at("short.yaml"), model_yaml, "embeddings: 1073741824", "embeddings: 64");
    put_changed(at("base.yaml"), run_yaml, "model.yaml", "short.yaml");
    RUN(0, "train", "base.yaml", "--set", "output=base");
    return 0;
}

static void test_too_long_for_pretrained_is_refused(void **state)
{
    (void)state;
    put_longer("longer.yaml", SHORT, "");
    for (int i = 0; i < 3; i++) {
        const char *const commands[] = {"plan", "train", "eval"};
        const outcome *done = RUN(2, commands[i], "longer.yaml");
        assert_says(done->err,
                    "longer.yaml:4: sequence.tokens: 256 is beyond the 64 positions that "
                    "the RoPE of " SHORT " covers; ");
        assert_says(done->err, "rope_scaling: {type: yarn, factor: 4, original_tokens: 64}\n");
    }
    assert_says(RUN(2, "plan", "base.yaml", "--set", "model=" SHORT, "--set", "init=pretrained",
                    "--set", "sequence.tokens=65")
                    ->err,
                "--set sequence.tokens: 65 is beyond the 64 positions");
    assert_false(is_there(at("longer")));
    RUN(2, "plan", "longer.yaml", "--set", "init=random");
    RUN(0, "plan", "longer.yaml", "--set", "sequence.tokens=64");
}

static char *eval(const char *run, const char *set)
{
    return strdup(RUN(0, "eval", run, "--json", "--quiet", "--set", set)->out);
}

static char *sample(const char *run, const char *set)
{
    return strdup(RUN(0, "eval", run, "--sample", "40", "--prompt", "int ", "--set", set)->out);
}

static void assert_saved_scaling(void)
{
    cJSON *config = NULL;

    assert_ok(ls_json_read(at(LONG "/config.json"), &config));
    static const char *const parts[] = {"rope_scaling", "rope_parameters"};
    for (int i = 0; i < 2; i++) {
        const cJSON *rope = ls_json_find_path(config, parts[i]);
        const cJSON *type = ls_json_find_path(rope, "rope_type");
        assert_true(cJSON_IsString(type));
        assert_string_equal(type->valuestring, "yarn");
        assert_true(ls_json_find_path(rope, "factor")->valuedouble == 4);
        assert_true(ls_json_find_path(rope, "original_max_position_embeddings")->valuedouble == 64);
    }
    assert_true(ls_json_find_path(config, "max_position_embeddings")->valuedouble == 256);
    cJSON_Delete(config);
}

static void test_the_line_trains_and_is_saved(void **state)
{
    char line[256];

    (void)state;
    put_longer("longer.yaml", SHORT, "");
    const char *said = strstr(RUN(2, "train", "longer.yaml")->err, marker);
    assert_non_null(said);
    snprintf(line, sizeof line, "%s", said + strlen(marker));
    put_longer("longer.yaml", SHORT, line);
    RUN(0, "train", "longer.yaml", "--stop-after", "4");
    assert_saved_scaling();
    assert_says(RUN(2, "train", "longer.yaml", "--resume", "--set", "steps=6", "--set",
                    "rope_scaling.factor=8")
                    ->err,
                "rope_scaling");

    /* the saved model is the same without the run's line, and not the same without scaling */
    put_longer("again.yaml", LONG, "");
    char *with_line = eval("longer.yaml", "seed=1"), *saved = eval("again.yaml", "seed=1");
    char *plain = eval("again.yaml", "rope_scaling={rope_theta: 1e4}");
    assert_string_equal(saved, with_line);
    assert_string_not_equal(plain, with_line);
    char *text = sample("longer.yaml", "seed=1"), *text_saved = sample("again.yaml", "seed=1");
    char *text_else = sample("again.yaml", "rope_scaling={type: yarn, factor: 4, original_tokens: "
                                           "64, attention_factor: 40}");
    assert_string_equal(text, text_saved);
    assert_string_not_equal(text, text_else);
    char *const texts[] = {with_line, saved, plain, text, text_saved, text_else};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) free(texts[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_too_long_for_pretrained_is_refused),
        cmocka_unit_test(test_the_line_trains_and_is_saved),
    };
    return cmocka_run_group_tests(tests, make_base, remove_scratch);
}
