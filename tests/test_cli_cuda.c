/*
 * test_cli_cuda.c - the whole program on the emulated GPU: `hardware: auto` finds it by the test's
 * driver, trains with the CPU's losses, and stops and resumes to the same bits, which are those of
 * a run whose tensors lie in a file; cuDNN takes the calls that it may.
 */
#define PROGRAM LS_BINARY_DIR "/longspan_emulated"
#include "cli_test.h"

#include <math.h>

#include "json_test.h"

enum { STEPS = 3 };

static const char *const short_run[] = {"--set", "sequence.tokens=32", "--set", "steps=3"};

static void train(const char *hardware, const char *output)
{
    const char *const place = at("output=%s", output);
    const size_t folder = strlen(scratch) + 1; /* at() is for paths; here only a place for text */
    RUN(0, "train", "run.yaml", "--quiet", "--hardware", hardware, "--set", place + folder,
        short_run[0], short_run[1], short_run[2], short_run[3], "--set", "eval.every_steps=3");
}

/* The loss of each step, from the record. */
static void read_losses(const char *output, double losses[STEPS])
{
    FILE *file = fopen(at("%s/record.jsonl", output), "r");
    char line[8192];

    assert_non_null(file);
    for (int i = 0; i < STEPS; i++) losses[i] = (double)NAN;
    while (fgets(line, sizeof line, file) != NULL) {
        cJSON *json = cJSON_Parse(line);
        const cJSON *step = cJSON_GetObjectItem(json, "step");
        const cJSON *loss = cJSON_GetObjectItem(json, "loss");
        if (cJSON_IsNumber(loss) && cJSON_IsNumber(step) && step->valueint <= STEPS)
            losses[step->valueint - 1] = loss->valuedouble;
        cJSON_Delete(json);
    }
    fclose(file);
}

static void test_auto_trains_on_the_gpu(void **state)
{
    double on_gpu[STEPS], on_cpu[STEPS];

    (void)state;
    train("auto", "gpu");
    train("cpu", "host");
    read_losses("gpu", on_gpu);
    read_losses("host", on_cpu);
    for (int i = 0; i < STEPS; i++) assert_true(fabs(on_gpu[i] / on_cpu[i] - 1.0) < 2e-3);
    assert_non_null(strstr(RUN(0, "--version")->out, "devices           cpu, cuda"));
}

static void test_stop_and_resume(void **state)
{
    (void)state;
    RUN(75, "train", "run.yaml", "--quiet", "--stop-after", "1", "--set", "output=stopped",
        short_run[0], short_run[1], short_run[2], short_run[3], "--set", "eval.every_steps=3");
    RUN(0, "train", "run.yaml", "--quiet", "--resume", "--set", "output=stopped", short_run[0],
        short_run[1], short_run[2], short_run[3], "--set", "eval.every_steps=3");
    assert_same_run("gpu", "stopped", STEPS);
}

/* Layers updated on the GPU, saved from there, loaded there: the bits of the host's updates. */
static void test_updates_on_the_gpu(void **state)
{
    (void)state;
    RUN(75, "train", "run.yaml", "--quiet", "--stop-after", "1", "--set", "output=updated",
        short_run[0], short_run[1], short_run[2], short_run[3], "--set", "eval.every_steps=3",
        "--set", "optimizer.device_layers=1");
    RUN(0, "train", "run.yaml", "--quiet", "--resume", "--set", "output=updated", short_run[0],
        short_run[1], short_run[2], short_run[3], "--set", "eval.every_steps=3", "--set",
        "optimizer.device_layers=1");
    assert_same_run("gpu", "updated", STEPS);
}

/* Logits of the GPU, from which the host draws: the text that the CPU gives of the same weights,
 * wherever those lie. */
static void test_samples_on_the_gpu(void **state)
{
    static const char *const modes[] = {"memory.weights=resident", "memory.weights=stream",
                                        "memory.weights=direct"};
    const outcome *done = RUN(0, "eval", "run.yaml", "--sample", "12", "--prompt", "int ", "--set",
                              "output=gpu", "--hardware", "cpu");
    char *text = strdup(done->out);

    (void)state;
    assert_says(done->err, "sampling on cpu\n");
    assert_true(strlen(text) > 1);
    for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
        done = RUN(0, "eval", "run.yaml", "--sample", "12", "--prompt", "int ", "--set",
                   "output=gpu", "--set", modes[m]);
        assert_says(done->err, "sampling on cuda\n");
        assert_string_equal(done->out, text);
    }
    free(text);
}

static const char disk_yaml[] = "name: disk\n"
                                "places: [{kind: hbm}, {kind: nvme}]\n"
                                "nvme: {path: .}\n";

/* Copies of the GPU from a file and to it: no kernel may touch it, and none does. */
static void test_tensors_in_a_file(void **state)
{
    (void)state;
    put_text(at("disk.yaml"), disk_yaml);
    RUN(0, "train", "run.yaml", "--quiet", "--hardware", "disk.yaml", "--set", "output=file",
        short_run[0], short_run[1], short_run[2], short_run[3], "--set", "eval.every_steps=3",
        "--set", "memory.place={x: nvme, o: nvme, kv: nvme, dkv: nvme, grad: nvme, m: nvme}");
    char *run = need_bytes(at("file/run.json"), NULL);
    assert_says(run, "\"nvme_classes\":");
    free(run);
    assert_same_run("gpu", "file", STEPS);
}

/* Copies and kernels by the streams that training uses; into a profile too. */
static void test_bench_links(void **state)
{
    static const char *const kernels[][2] = {
        {"read", "host0"}, {"write", "host0"}, {"add", "hbm0"}};
    cJSON *json = parse(
        RUN(0, "bench", "links", "--json", "--quiet", "--bytes", "1MiB", "--save", "this-gpu.yaml")
            ->out);
    int copies = 0, found = 0;
    const cJSON *row;

    (void)state;
    cJSON_ArrayForEach(row, get(json, "links"))
    {
        const char *kind = get(row, "kind")->valuestring;
        if (strcmp(kind, "memory") != 0 && strcmp(kind, "latency") != 0)
            assert_true(number(row, "bytes_per_s") >= number(row, "bytes_per_s_min") &&
                        number(row, "bytes_per_s_min") > 0);
        copies += strcmp(kind, "copy") == 0;
        if (strcmp(kind, "kernel") != 0) continue;
        assert_true(found < 3);
        assert_text(row, "from", "hbm0");
        assert_text(row, "traffic", kernels[found][0]);
        assert_text(row, "to", kernels[found++][1]);
    }
    assert_int_equal(copies, 3);
    assert_int_equal(found, 3);
    char *profile = need_bytes(at("this-gpu.yaml"), NULL);
    for (const char *const *key =
             (const char *const[]){"reverse_bytes_per_s", "both_bytes_per_s", "read_bytes_per_s",
                                   "write_bytes_per_s", NULL};
         *key != NULL; key++)
        assert_non_null(strstr(strstr(profile, "\nlinks"), *key));
    free(profile);
    cJSON_Delete(json);
    assert_non_null(strstr(RUN(0, "bench", "--bytes", "1MiB")->out, "kernels of the GPU"));
}

/* ---- cuDNN, emulated ------------------------------------------------------------------------ */

/* Heads that it takes; blocks of 128 tokens, so that a sequence has two of queries and of keys. */
static const char wide_yaml[] = "model_type: llama\n"
                                "vocab_size: 272\n"
                                "hidden_size: 64\n"
                                "intermediate_size: 64\n"
                                "num_hidden_layers: 2\n"
                                "num_attention_heads: 2\n"
                                "num_key_value_heads: 1\n"
                                "head_dim: 64\n"
                                "max_position_embeddings: 4096\n"
                                "rms_norm_eps: 1.0e-5\n"
                                "rope_theta: 10000.0\n"
                                "initializer_range: 0.02\n"
                                "tie_word_embeddings: false\n"
                                "eos_token_id: 256\n";

static void train_wide(const char *output, const char *determinism, const char *documents)
{
    char place[64], order[64], mode[64];

    snprintf(place, sizeof place, "output=%s", output);
    snprintf(order, sizeof order, "determinism=%s", determinism);
    snprintf(mode, sizeof mode, "sequence.documents=%s", documents);
    RUN(0, "train", "run.yaml", "--quiet", "--set", "model=wide.yaml", "--set", place, "--set",
        order, "--set", mode, "--set", "sequence.tokens=256", "--set", "sequence.chunk=128",
        "--set", "sequence.query_block=128", "--set", "batch.sequences=1", "--set",
        "batch.accumulate=2", "--set", "steps=2", "--set", "eval.every_steps=2");
}

/* What the record says of its last step's kernels. */
static void assert_kernels(const char *output, const char *forward, const char *backward)
{
    char expected[128];
    char *record = need_bytes(at("%s/record.jsonl", output), NULL);

    snprintf(expected, sizeof expected,
             "\"kernels\":{\"matmul\":\"cublaslt\",\"attention\":\"%s\","
             "\"attention_backward\":\"%s\"}",
             forward, backward);
    assert_says(record, expected);
    free(record);
}

/* The same losses up to rounding, and the record names who took the calls. */
static void test_cudnn_where_order_and_documents_allow(void **state)
{
    double exact[STEPS], fast[STEPS];

    (void)state;
    put_text(at("wide.yaml"), wide_yaml);
    train_wide("wide-none", "fast", "join");
    assert_kernels("wide-none", "mma", "mma");
    assert_int_equal(setenv("LS_EMULATED_CUDNN", "91900", 1), 0);
    train_wide("wide-exact", "exact", "join");
    assert_kernels("wide-exact", "mma", "mma");
    train_wide("wide-fast", "fast", "join");
    assert_kernels("wide-fast", "cudnn", "cudnn");
    char *run = need_bytes(at("wide-fast/run.json"), NULL);
    assert_says(run, "\"cudnn\":\t\"9.19.0\"");
    free(run);
    assert_non_null(strstr(RUN(0, "--version")->out, "cudnn             9.19.0"));
    read_losses("wide-exact", exact);
    read_losses("wide-fast", fast);
    for (int i = 0; i < 2; i++) assert_true(fabs(fast[i] / exact[i] - 1.0) < 2e-3);
    /* Documents of some hundred tokens: some blocks are within one. */
    train_wide("wide-isolate", "fast", "isolate");
    assert_kernels("wide-isolate", "cudnn+mma", "cudnn+mma");
    train_wide("wide-isolate-exact", "exact", "isolate");
    read_losses("wide-isolate-exact", exact);
    read_losses("wide-isolate", fast);
    for (int i = 0; i < 2; i++) assert_true(fabs(fast[i] / exact[i] - 1.0) < 2e-3);
    assert_int_equal(unsetenv("LS_EMULATED_CUDNN"), 0);
}

static int make_driver(void **state)
{
    if (setenv("LD_LIBRARY_PATH", LS_BINARY_DIR "/fake_driver", 1) != 0) return -1;
    return make_scratch(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto_trains_on_the_gpu),
        cmocka_unit_test(test_stop_and_resume),
        cmocka_unit_test(test_updates_on_the_gpu),
        cmocka_unit_test(test_samples_on_the_gpu),
        cmocka_unit_test(test_tensors_in_a_file),
        cmocka_unit_test(test_bench_links),
        cmocka_unit_test(test_cudnn_where_order_and_documents_allow),
    };
    return cmocka_run_group_tests(tests, make_driver, remove_scratch);
}
