/*
 * test_skip_limit.c - optimizer.skip_nonfinite_max: a run goes on through as many skipped steps in
 * a row, however often, and stops at one more, with its newest checkpoint whole and the state that
 * of the last good step.
 *
 * The linker hands ls_ops_run() to this file (--wrap), which spoils the norm of chosen steps.
 */
#include <cjson/cJSON.h>
#include <math.h>

#include "file.h"
#include "io_test.h"
#include "job.h"
#include "ops.h"

enum { STEPS = 9 };

static const char model_yaml[] = "{model_type: llama, vocab_size: 40, hidden_size: 8,"
                                 " intermediate_size: 12, num_hidden_layers: 1,"
                                 " num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4,"
                                 " max_position_embeddings: 64, rms_norm_eps: 1.0e-5,"
                                 " rope_theta: 10000.0, tie_word_embeddings: false}\n";

static const char *pattern; /* of steps: 'x' is bad; set while no lane runs */
static int n_norms;

/* NOLINTBEGIN(readability-identifier-naming): the linker's names */
ls_status __real_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args);
ls_status __wrap_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args);

ls_status __wrap_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args)
{
    if (op == LS_OP_norm_finish && pattern[n_norms++] == 'x')
        ((double *)(uintptr_t)args->norm_finish.sums)[0] = (double)NAN;
    return __real_ls_ops_run(ops, op, stream, args);
}
/* NOLINTEND(readability-identifier-naming) */

static ls_status train(const char *steps, int64_t most)
{
    static const uint16_t ids[300];
    const ls_train_options how = {.resume = false};
    const ls_job_options options = {.version = "test", .quiet = true};
    ls_run_config config;
    ls_model_config model;
    char text[1200];

    pattern = steps;
    n_norms = 0;
    assert_ok(ls_directory_remove(at("run")));
    put_file(at("model.yaml"), model_yaml, sizeof model_yaml - 1);
    put_file(at("train.bin"), ids, sizeof ids);
    snprintf(text, sizeof text,
             "model: model.yaml\noutput: %s\nsteps: %d\ndata: {train: %s, format: raw-u16}\n"
             "sequence: {tokens: 16}\nbatch: {sequences: 1}\nhardware: cpu\n"
             "memory: {threads: {compute: 1, optimizer: 1}}\n"
             "checkpoint: {every_steps: 2, keep: 9}\neval: {every_steps: 0}\n"
             "record: {power: \"off\"}\n"
             "optimizer: {lr: 1e-3, warmup_steps: 1, skip_nonfinite_max: %lld}\n",
             at("run"), STEPS, at("train"), (long long)most);
    assert_ok(ls_run_config_parse(at("run.yaml"), text, strlen(text), NULL, 0, &config));
    assert_ok(ls_model_config_read(at("model.yaml"), &model));
    const ls_status status = ls_job_train(&config, &model, &how, &options);
    ls_run_config_free(&config);
    return status;
}

/* "..xx.": the steps of the record. */
static void read_skipped(char steps[STEPS + 1])
{
    char line[8192];
    FILE *file = fopen(at("run/record.jsonl"), "r");
    int n = 0;

    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        cJSON *json = cJSON_Parse(line);
        assert_non_null(json);
        assert_in_range(n, 0, STEPS - 1);
        steps[n++] = cJSON_IsTrue(cJSON_GetObjectItem(json, "skipped")) ? 'x' : '.';
        cJSON_Delete(json);
    }
    steps[n] = '\0';
    fclose(file);
}

static void assert_skipped(const char *expected)
{
    char steps[STEPS + 1];
    read_skipped(steps);
    assert_string_equal(steps, expected);
}

/* Of the optimizer in a checkpoint's state.json. */
static int count_updates(const char *checkpoint)
{
    char *text;
    uint64_t size;

    assert_ok(ls_file_read(at(checkpoint), 1 << 20, &text, &size));
    cJSON *json = cJSON_Parse(text);
    const cJSON *optimizer = cJSON_GetObjectItem(json, "optimizer");
    const int updates = cJSON_GetObjectItem(optimizer, "updates")->valueint;
    cJSON_Delete(json);
    free(text);
    return updates;
}

static void test_as_many_as_allowed(void **state)
{
    (void)state;
    assert_ok(train(".xx.xx.xx", 2));
    assert_skipped(".xx.xx.xx");
    assert_int_equal(count_updates("run/checkpoints/step-00000009/state.json"), 3);
}

static void test_one_more_stops(void **state)
{
    (void)state;
    assert_fails(train("..xx.xxx.", 2), LS_ERR_DEVICE,
                 "step 8: the gradient was not finite more than 2 times in a row "
                 "(optimizer.skip_nonfinite_max); lower optimizer.lr or look at the data");
    assert_skipped("..xx.xxx");
    assert_int_equal(count_updates("run/checkpoints/step-00000006/state.json"), 3);
}

static void test_none_allowed(void **state)
{
    (void)state;
    assert_fails(train(".x.......", 0), LS_ERR_DEVICE, "step 2: the gradient was not finite");
    assert_skipped(".x");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_many_as_allowed),
        cmocka_unit_test(test_one_more_stops),
        cmocka_unit_test(test_none_allowed),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
