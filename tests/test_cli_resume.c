/*
 * test_cli_resume.c - what a run directory is held to: the model that its weights were made with.
 */
#include "cli_test.h"

static int train_a_run(void **state)
{
    if (make_scratch(state) != 0) return -1;
    RUN(75, "train", "run.yaml", "--stop-after", "2");
    return 0;
}

/* ---- the model ----------------------------------------------------------------------------- */

#define QUIET_RUN "run.yaml", "--quiet"

typedef struct change {
    const char *from, *to;   /* in model.yaml */
    const char *field;       /* that the message names */
    const char *there, *now; /* its values */
    bool computes_the_same;  /* eval does not mind */
} change;

static const change changes[] = {
    {"rope_theta: 10000.0", "rope_theta: 500000.0", "rope_theta", "10000", "500000", false},
    {"rms_norm_eps: 1.0e-5", "rms_norm_eps: 1.0e-1", "rms_norm_eps", "1e-05", "0.1", false},
    {"num_attention_heads: 4\nnum_key_value_heads: 2\nhead_dim: 8",
     "num_attention_heads: 2\nnum_key_value_heads: 1\nhead_dim: 16", "num_attention_heads", "4",
     "2", false},
    {"model_type: llama", "model_type: mistral\nsliding_window: 8", "model_type", "\"llama\"",
     "\"mistral\"", false},
    {"rope_theta", "rope_scaling: {rope_type: linear, factor: 2.0}\nrope_theta", "rope_scaling",
     "null", "{\"rope_type\":\"linear\",\"factor\":2}", false},
    {"num_hidden_layers: 2", "num_hidden_layers: 3", "num_hidden_layers", "2", "3", false},
    {"intermediate_size: 64", "intermediate_size: 72", "intermediate_size", "64", "72", false},
    {"tie_word_embeddings: false", "tie_word_embeddings: true", "tie_word_embeddings", "false",
     "true", false},
    {"initializer_range: 0.02", "initializer_range: 0.03", "initializer_range", "0.02", "0.03",
     true},
    {"eos_token_id: 256", "eos_token_id: 257", "eos_token_id", "256", "257", true},
};

static void check_change(const change *c)
{
    char part[256];

    put_changed(at("model.yaml"), model_yaml, c->from, c->to);
    const outcome *done = RUN(2, "train", QUIET_RUN, "--resume");
    snprintf(part, sizeof part,
             "model: %s of model.yaml differs from the run that run/checkpoints/step-00000002 "
             "belongs to: %s there, %s now; set it back to %s, or start a new run with another "
             "output",
             c->field, c->there, c->now, c->there);
    assert_says(done->err, part);
    RUN(2, "train", QUIET_RUN, "--resume", "--replan");

    const int code = c->computes_the_same ? 0 : 2;
    done = RUN(code, "eval", QUIET_RUN, "--json");
    if (code == 0) return;
    snprintf(part, sizeof part,
             "model: %s of model.yaml is %s, but the weights in run/checkpoints/step-00000002 were "
             "made with %s; set it to %s, or give model: run/checkpoints/step-00000002",
             c->field, c->now, c->there, c->there);
    assert_says(done->err, part);
    RUN(2, "eval", QUIET_RUN, "--checkpoint", "run/checkpoints/step-00000002");
    RUN(2, "eval", QUIET_RUN, "--sample", "1");
}

static void test_another_model_is_refused(void **state)
{
    (void)state;
    char *before = need_bytes(at("run/record.jsonl"), NULL);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) check_change(&changes[i]);
    char *after = need_bytes(at("run/record.jsonl"), NULL);
    assert_string_equal(before, after);
    free(before);
    free(after);
}

/* Other words for the same model. */
static void test_the_same_model_resumes(void **state)
{
    (void)state;
    put_changed(at("model.yaml"), model_yaml, "head_dim: 8\n", "# as the rest says\n");
    RUN(0, "eval", QUIET_RUN, "--json");
    RUN(75, "train", QUIET_RUN, "--resume", "--stop-after", "3");
    put_text(at("model.yaml"), model_yaml);
    RUN(0, "eval", QUIET_RUN, "--set", "model=run/checkpoints/step-00000003", "--json");
}

/* The run file may look at the weights through another RoPE or window, but says so itself. */
static void test_eval_takes_what_the_run_file_chooses(void **state)
{
    (void)state;
    put_text(at("model.yaml"), model_yaml);
    RUN(0, "eval", QUIET_RUN, "--set", "rope_scaling={type: linear, factor: 2}", "--json");
    RUN(0, "eval", QUIET_RUN, "--set", "sequence.window=16", "--json");
    RUN(0, "eval", QUIET_RUN, "--set", "sequence.tokens=128", "--json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_another_model_is_refused),
        cmocka_unit_test(test_the_same_model_resumes),
        cmocka_unit_test(test_eval_takes_what_the_run_file_chooses),
    };
    return cmocka_run_group_tests(tests, train_a_run, remove_scratch);
}
