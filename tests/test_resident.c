/*
 * test_resident.c - the program's memory is its plan's, and a constant: that of the host, and where
 * a device's is emulated, both.
 *
 * The same model runs on batches of few tokens and of many, cut into 16 chunks each, so that both
 * plans have about 3000 steps.  What the first run is resident with beyond its plan is the
 * constant: program, libraries, the plan's tables, the lanes' stacks, and with fp32 what oneDNN's
 * sgemm packs and generates (7 MB).  The second run may have no more, and 1% of its plan.
 */
#define _DEFAULT_SOURCE /* NOLINT: the libc's name; for wait4() */
#include "cli_test.h"

#include <sys/resource.h>

#define MiB              ((uint64_t)1 << 20)
#define CONSTANT_MAX     (64 * MiB)
#define PLAN_BYTES_LEAST (200 * MiB)

static const char wide_yaml[] = "model_type: llama\n"
                                "vocab_size: 272\n"
                                "hidden_size: 128\n"
                                "intermediate_size: 128\n"
                                "num_hidden_layers: 4\n"
                                "num_attention_heads: 4\n"
                                "num_key_value_heads: 4\n"
                                "head_dim: 32\n"
                                "max_position_embeddings: 4096\n"
                                "rms_norm_eps: 1.0e-5\n"
                                "rope_theta: 10000.0\n"
                                "initializer_range: 0.02\n"
                                "tie_word_embeddings: false\n"
                                "eos_token_id: 256\n";

/* One step, one evaluation, one save. */
static const char one_step_yaml[] = "model: wide.yaml\n"
                                    "data: {train: data/train, valid: data/valid}\n"
                                    "optimizer: {warmup_steps: 0}\n"
                                    "memory: {threads: {compute: 1, optimizer: 1}}\n"
                                    "steps: 1\n"
                                    "eval: {every_steps: 1, tokens: 256}\n";

static const char profile_yaml[] =
    "name: roomy\n"
    "emulated: true\n"
    "places:\n"
    "  - {kind: hbm, capacity_bytes: {value: 1GiB, source: profile}}\n"
    "  - {kind: host}\n"
    "links:\n"
    "  - {from: host, to: hbm, bytes_per_s: {value: 10e9, source: profile}}\n";

typedef struct footprint {
    uint64_t plan, resident; /* bytes; the peak of the resident set */
} footprint;

static uint64_t read_bytes(const char *output, const char *key)
{
    char *text = need_bytes(at("%s/run.json", output), NULL);
    const char *place = strstr(text, key);

    assert_non_null(place);
    const uint64_t bytes = strtoull(place + strlen(key), NULL, 10);
    free(text);
    return bytes;
}

/* Train with these batches: sequences=N, tokens, chunk and query block.
 *   hardware  "cpu", or with a second arena */
static footprint measure(const char *precision, const char *hardware, const char *output,
                         const char *const batch[4])
{
    char sets[8][64];
    const char *argv[2 * 8 + 5] = {PROGRAM, "train", "run.yaml", "--quiet"};
    struct rusage usage;
    int status = 0;

    snprintf(sets[0], sizeof sets[0], "precision=%s", precision);
    snprintf(sets[1], sizeof sets[1], "output=%s", output);
    snprintf(sets[2], sizeof sets[2], "batch.sequences=%s", batch[0]);
    snprintf(sets[3], sizeof sets[3], "sequence.tokens=%s", batch[1]);
    snprintf(sets[4], sizeof sets[4], "sequence.chunk=%s", batch[2]);
    snprintf(sets[5], sizeof sets[5], "sequence.query_block=%s", batch[3]);
    snprintf(sets[6], sizeof sets[6], "memory.save=x+qkv+o");
    snprintf(sets[7], sizeof sets[7], "hardware=%s", hardware);
    for (int i = 0; i < 8; i++) {
        argv[4 + 2 * i] = "--set";
        argv[5 + 2 * i] = sets[i];
    }
    const pid_t pid = start(argv);
    assert_int_equal(wait4(pid, &status, 0, &usage), pid);
    if (status != 0) fail_msg("%s", need_bytes(at("stderr.txt"), NULL));
    const uint64_t hbm = read_bytes(output, "\"hbm_bytes\":");
    assert_true((hbm > 0) == (strcmp(hardware, "cpu") != 0));
    return (footprint){hbm + read_bytes(output, "\"host_bytes\":"),
                       (uint64_t)usage.ru_maxrss * 1024};
}

static void check_footprint(const char *precision, const char *hardware)
{
    static const char *const few[] = {"16", "8", "8", "8"};
    static const char *const many[] = {"256", "128", "auto", "auto"}; /* chunks of 2048 rows */
    const footprint small = measure(precision, hardware, "few", few);
    const footprint large = measure(precision, hardware, "many", many);
    const uint64_t constant = small.resident - small.plan;

    print_message("%s, %s: plan %.1f MiB, resident %.1f MiB; plan %.1f MiB, resident %.1f MiB\n",
                  precision, hardware, (double)small.plan / MiB, (double)small.resident / MiB,
                  (double)large.plan / MiB, (double)large.resident / MiB);
    assert_true(large.plan >= PLAN_BYTES_LEAST);
    assert_in_range(small.resident, small.plan, small.plan + CONSTANT_MAX);
    assert_in_range(large.resident, large.plan, large.plan + large.plan / 100 + constant);
    assert_ok(ls_directory_remove(at("few")));
    assert_ok(ls_directory_remove(at("many")));
}

static void test_bf16(void **state)
{
    (void)state;
    check_footprint("bf16", "cpu");
}

static void test_fp32(void **state)
{
    (void)state;
    check_footprint("fp32", "cpu");
}

static void test_device(void **state)
{
    (void)state;
    check_footprint("bf16", "roomy.yaml");
}

static int make_wide(void **state)
{
    if (make_scratch(state) != 0) return -1;
    put_text(at("wide.yaml"), wide_yaml);
    put_text(at("run.yaml"), one_step_yaml);
    put_text(at("roomy.yaml"), profile_yaml);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_fp32),
        cmocka_unit_test(test_device),
    };
#if LS_SANITIZED
    puts("a sanitizer's own memory would be counted: skipped");
    return 77;
#endif
    return cmocka_run_group_tests(tests, make_wide, remove_scratch);
}
