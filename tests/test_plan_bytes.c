/*
 * test_plan_bytes.c - what longspan plan says of each class and place, against the closed formulas
 * of src/plan/README.md as scripts/plan_bytes.py has them.  Sanitizers, which are after the code
 * and not the numbers, get every third case.
 */
#include "cli_test.h"

#include <cjson/cJSON.h>
#include <math.h>

#include "json.h"

#define TOLERANCE           0.01
#define WORKSPACE_BYTES_MAX (64.0 * 0x1p20) /* of the kernels: no formula knows them */

static const char llama_7b[] = "model_type: llama\n"
                               "vocab_size: 32000\n"
                               "hidden_size: 4096\n"
                               "intermediate_size: 11008\n"
                               "num_hidden_layers: 32\n"
                               "num_attention_heads: 32\n"
                               "num_key_value_heads: 32\n"
                               "head_dim: 128\n"
                               "max_position_embeddings: 16777216\n"
                               "rms_norm_eps: 1.0e-5\n"
                               "rope_theta: 10000.0\n"
                               "tie_word_embeddings: false\n"
                               "eos_token_id: 2\n";

/* Qwen2.5-7B but for its biases. */
static const char gqa_7b[] = "model_type: llama\n"
                             "vocab_size: 152064\n"
                             "hidden_size: 3584\n"
                             "intermediate_size: 18944\n"
                             "num_hidden_layers: 28\n"
                             "num_attention_heads: 28\n"
                             "num_key_value_heads: 4\n"
                             "head_dim: 128\n"
                             "max_position_embeddings: 16777216\n"
                             "rms_norm_eps: 1.0e-6\n"
                             "rope_theta: 1000000.0\n"
                             "tie_word_embeddings: false\n"
                             "eos_token_id: 2\n";

/* Qwen3-8B. */
static const char qwen3_8b[] = "model_type: qwen3\n"
                               "vocab_size: 151936\n"
                               "hidden_size: 4096\n"
                               "intermediate_size: 12288\n"
                               "num_hidden_layers: 36\n"
                               "num_attention_heads: 32\n"
                               "num_key_value_heads: 8\n"
                               "head_dim: 128\n"
                               "max_position_embeddings: 16777216\n"
                               "rms_norm_eps: 1.0e-6\n"
                               "rope_theta: 1000000.0\n"
                               "tie_word_embeddings: false\n"
                               "eos_token_id: 151645\n";

#ifdef LS_SANITIZED
#define CASES_STEP 3
#else
#define CASES_STEP 1
#endif

typedef struct plan_case {
    const char *model, *hardware, *link;
    const char *tokens, *chunk, *query_block;
    const char *save, *weights, *ring_slots;
    const char *cut, *place; /* the same, as each of them takes it */
    const char *gradients, *accumulate, *device_layers;
} plan_case;

#define GH200     "gh200-96gb-480gb", "coherent"
#define PCIE      "h200-pcie", "pcie"
#define CPU       "cpu", "none"
#define AT_128K   "128k", "16k", "32k"
#define AT_512K   "512k", "64k", "128k"
#define AT_1M     "1M", "128k", "256k"
#define WHOLE     "", "{}"
#define CUT_X     "x", "{x: host}"
#define CUT_X_O   "x,o", "{x: host, o: host}"
#define CUT_ALL   "x,o,kv,dkv", "{x: host, o: host, kv: host, dkv: host}"
#define RESIDENT  "resident", "auto"
#define STREAM(n) "stream", n
#define DIRECT    "direct", "auto"
#define FP32      "fp32", "1", "0"

static const plan_case cases[] = {
    {"7b.yaml", GH200, AT_128K, "x", RESIDENT, WHOLE, FP32},
    {"7b.yaml", GH200, AT_128K, "x+qkv+o", STREAM("3"), WHOLE, FP32},
    {"7b.yaml", PCIE, AT_128K, "x+o", STREAM("2"), CUT_X, FP32},
    {"7b.yaml", PCIE, AT_128K, "x+qkv+o", RESIDENT, CUT_ALL, FP32},
    {"7b.yaml", CPU, AT_128K, "x+qkv+o", DIRECT, WHOLE, FP32},
    {"7b.yaml", GH200, AT_512K, "x+o", RESIDENT, WHOLE, FP32},
    {"7b.yaml", PCIE, AT_512K, "x", DIRECT, CUT_X_O, FP32},
    {"7b.yaml", CPU, AT_512K, "x+o", DIRECT, WHOLE, FP32},
    {"7b.yaml", GH200, AT_1M, "x+o", STREAM("4"), CUT_ALL, FP32},
    {"7b.yaml", CPU, AT_1M, "x", DIRECT, WHOLE, FP32},
    {"gqa.yaml", GH200, AT_128K, "x+qkv+o", RESIDENT, WHOLE, FP32},
    {"gqa.yaml", PCIE, AT_128K, "x+qkv+o", STREAM("3"), CUT_ALL, FP32},
    {"gqa.yaml", CPU, AT_128K, "x+qkv+o", DIRECT, WHOLE, FP32},
    {"gqa.yaml", GH200, AT_512K, "x+o", STREAM("3"), WHOLE, FP32},
    {"gqa.yaml", PCIE, AT_1M, "x", RESIDENT, CUT_ALL, FP32},
    {"7b.yaml", GH200, AT_128K, "o+x/4", RESIDENT, WHOLE, FP32},
    {"gqa.yaml", PCIE, AT_128K, "o+x/8", RESIDENT, CUT_X,
     FP32}, /* 28 layers: the last group is short */
    {"gqa.yaml", CPU, AT_512K, "x/8", DIRECT, WHOLE, FP32},
    {"qwen3.yaml", GH200, AT_128K, "x+o", RESIDENT, WHOLE, FP32},
    {"qwen3.yaml", CPU, AT_128K, "x", DIRECT, WHOLE, FP32},
    {"gqa.yaml", GH200, AT_128K, "x+o", RESIDENT, WHOLE, "bf16", "1", "0"},
    {"7b.yaml", PCIE, AT_128K, "x", STREAM("3"), WHOLE, "bf16", "2", "0"},
    {"7b.yaml", GH200, AT_128K, "x", STREAM("3"), WHOLE, "fp32", "2", "0"},
    {"gqa.yaml", CPU, AT_128K, "x", DIRECT, WHOLE, "bf16", "2", "0"},
    {"7b.yaml", CPU, AT_128K, "x", DIRECT, WHOLE, "bf16", "1", "0"},
    {"7b.yaml", GH200, AT_128K, "x", RESIDENT, WHOLE, "fp32", "1", "3"},
    {"7b.yaml", PCIE, AT_128K, "x", STREAM("3"), WHOLE, "bf16", "2", "5"},
    {"gqa.yaml", CPU, AT_128K, "x", DIRECT, WHOLE, "fp32", "1", "4"},
};

static char *assign(const char *key, const char *value)
{
    char *text = malloc(strlen(key) + strlen(value) + 2);

    assert_non_null(text);
    sprintf(text, "%s=%s", key, value);
    return text;
}

static cJSON *parse(const outcome *done)
{
    cJSON *json = cJSON_Parse(done->out);
    if (json == NULL) fail_msg("not JSON: '%s' %s", done->out, done->err);
    return json;
}

/* Whether it fits or not is another matter. */
static cJSON *make_plan(const plan_case *c)
{
    static const char *const keys[] = {"model",
                                       "sequence.tokens",
                                       "sequence.chunk",
                                       "memory.save",
                                       "memory.weights",
                                       "memory.ring_slots",
                                       "memory.place",
                                       "sequence.query_block",
                                       "batch.sequences",
                                       "optimizer.gradients",
                                       "batch.accumulate",
                                       "batch.accumulate_order",
                                       "optimizer.device_layers"};
    const char *const values[] = {c->model,      c->tokens,  c->chunk,        c->save, c->weights,
                                  c->ring_slots, c->place,   c->query_block,  "1",     c->gradients,
                                  c->accumulate, "sequence", c->device_layers};
    enum { N_KEYS = sizeof keys / sizeof keys[0] };
    const char *argv[7 + 2 * N_KEYS] = {PROGRAM,  "plan",       "run.yaml",
                                        "--json", "--hardware", c->hardware};
    int n = 6;

    for (int k = 0; k < N_KEYS; k++) {
        argv[n++] = "--set";
        argv[n++] = assign(keys[k], values[k]);
    }
    const outcome *done = finish(start(argv));
    for (int k = 7; k < n; k += 2) free((char *)argv[k]);
    if (done->code != 0 && done->code != 3) fail_msg("exit code %d: %s", done->code, done->err);
    return parse(done);
}

static cJSON *compute(const plan_case *c)
{
    const bool has_slots = strcmp(c->weights, "stream") == 0;
    const outcome *done =
        finish_as(0, start((const char *const[]){"/usr/bin/env",
                                                 "python3",
                                                 LS_SOURCE_DIR "/scripts/plan_bytes.py",
                                                 c->model,
                                                 "--tokens",
                                                 c->tokens,
                                                 "--chunk",
                                                 c->chunk,
                                                 "--query-block",
                                                 c->query_block,
                                                 "--save",
                                                 c->save,
                                                 "--link",
                                                 c->link,
                                                 "--weights",
                                                 c->weights,
                                                 "--ring-slots",
                                                 has_slots ? c->ring_slots : "3",
                                                 "--cut",
                                                 c->cut,
                                                 "--gradients",
                                                 c->gradients,
                                                 "--accumulate",
                                                 c->accumulate,
                                                 "--device-layers",
                                                 c->device_layers,
                                                 "--json",
                                                 NULL}));
    return parse(done);
}

/* Of a class there; 0: the plan has none. */
static double find_bytes(const cJSON *plan, const char *class, const char *place)
{
    const cJSON *row;

    cJSON_ArrayForEach(row, cJSON_GetObjectItem(plan, "classes"))
    {
        if (strcmp(cJSON_GetObjectItem(row, "class")->valuestring, class) == 0 &&
            strcmp(cJSON_GetObjectItem(row, "place")->valuestring, place) == 0)
            return cJSON_GetObjectItem(row, "bytes")->valuedouble;
    }
    return 0.0;
}

static void assert_near(const plan_case *c, const char *class, const char *place, double planned,
                        double computed)
{
    const double room = strcmp(class, "staging") == 0 ? WORKSPACE_BYTES_MAX : 0.0;

    if (planned >= computed * (1.0 - TOLERANCE) && planned <= computed * (1.0 + TOLERANCE) + room)
        return;
    fail_msg("%s, %s, %s tokens, save %s, weights %s, cut '%s': the plan has %.0f bytes of %s in "
             "%s, the formula %.0f",
             c->model, c->hardware, c->tokens, c->save, c->weights, c->cut, planned, class, place,
             computed);
}

static void assert_agree(const plan_case *c, const cJSON *plan, const cJSON *formulas)
{
    static const char *const places[] = {"hbm", "host"};
    static const char *const classes[] = {"weights", "lo",    "m",      "v",   "grad",
                                          "x",       "o",     "kv",     "dkv", "chunk",
                                          "logits",  "batch", "staging"};

    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++)
        for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
            const cJSON *place = cJSON_GetObjectItem(formulas, places[p]);
            const cJSON *bytes = place != NULL ? cJSON_GetObjectItem(place, classes[i]) : NULL;
            assert_near(c, classes[i], places[p], find_bytes(plan, classes[i], places[p]),
                        bytes != NULL ? bytes->valuedouble : 0.0);
        }
}

static void test_formulas(void **state)
{
    (void)state;
    if (finish(start((const char *const[]){"/usr/bin/env", "python3", "--version", NULL}))->code !=
        0) {
        print_message("no python3: the formulas' script does not run\n");
        skip();
    }
    put_text(at("7b.yaml"), llama_7b);
    put_text(at("gqa.yaml"), gqa_7b);
    put_text(at("qwen3.yaml"), qwen3_8b);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i += CASES_STEP) {
        cJSON *plan = make_plan(&cases[i]);
        cJSON *formulas = compute(&cases[i]);
        assert_agree(&cases[i], plan, formulas);
        cJSON_Delete(plan);
        cJSON_Delete(formulas);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_formulas)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
