/*
 * test_cli_plan.c - longspan plan: what it says is what training then does, in each of its forms;
 * and what has no room is said to have none, with nothing reserved.
 */
#include <math.h>

#include "cli_test.h"

#include <ctype.h>
#include <sys/resource.h>

#include "json_test.h"
#include "plan_text.h"

static void assert_number(const cJSON *json, const char *path, double value)
{
    if (number(json, path) != value) fail_msg("%s is %.17g", path, number(json, path));
}

static double add_up(const cJSON *list, const char *key)
{
    const cJSON *item;
    double sum = 0;
    cJSON_ArrayForEach(item, list) sum += number(item, key);
    return sum;
}

/* ---- usage --------------------------------------------------------------------------------- */

static void test_usage(void **state)
{
    (void)state;
    assert_says(RUN(2, "plan")->err, "want one RUN.yaml");
    assert_says(RUN(2, "plan", "run.yaml", "--print", "--json")->err, "not both");
    assert_says(RUN(2, "plan", "run.yaml", "--prin")->err, "known: --print");
    assert_says(RUN(2, "plan", "none.yaml")->err, "none.yaml: No such file");
    assert_says(RUN(2, "plan", "run.yaml", "--set", "stepz=3")->err, "stepz: unknown key");
    assert_says(RUN(2, "plan", "run.yaml", "--hardware", "abacus")->err, "hardware: 'abacus'");
    assert_says(RUN(0, "plan", "--help")->out, "example:");
    assert_says(RUN(0, "--help")->out, "  plan ");
    assert_says(RUN(0, "plan", "run.yaml", "--hardware", "cpu")->out, "verdict: fits");
}

/* ---- tables -------------------------------------------------------------------------------- */

static void test_tables(void **state)
{
    static const char *const says[] = {"model.yaml, 0.036M parameters",
                                       "step: 128 tokens, 1 x 2 sequences of 64;",
                                       "memory: host\n",
                                       "  weights ",
                                       "  shared ",
                                       "  total ",
                                       "\nsegment ",
                                       "\nstep+save ",
                                       "disk_out",
                                       "choices: chunk 128, query block 128, save x+qkv+o, ",
                                       "threads: compute 2, optimizer 2\n",
                                       "checked: ",
                                       "verdict: fits\n"};

    (void)state;
    const outcome *done = RUN(0, "plan", "run.yaml");
    for (size_t i = 0; i < sizeof says / sizeof says[0]; i++) assert_says(done->out, says[i]);
    assert_null(strstr(done->out, "copy_in")); /* a lane without steps has no column */
    assert_string_equal(done->err, "");
    assert_says(RUN(0, "plan", "run.yaml", "--set", "data.train=none")->out, "verdict: fits");
    assert_says(RUN(0, "plan", "run.yaml", "--set", "memory.save=x")->out,
                "recomputed block by block");
    assert_says(RUN(0, "plan", "run.yaml", "--set", "batch.accumulate=3")->out,
                "step: 384 tokens, 3 x 2 sequences of 64;");
    assert_false(is_there(at("run")));
}

/* Without the line of what is available, which differs from one moment to the next. */
static char *keep_plan(const char *text)
{
    char *kept = strdup(text), *from = strstr(kept, "  available ");

    assert_non_null(from);
    const char *end = strchr(from, '\n');
    memmove(from, end, strlen(end) + 1);
    return kept;
}

static void test_dry_run_prints_the_same(void **state)
{
    (void)state;
    char *plan = keep_plan(RUN(0, "plan", "run.yaml")->out);
    char *dry_run = keep_plan(RUN(0, "train", "run.yaml", "--dry-run")->out);
    assert_string_equal(plan, dry_run);
    free(plan);
    free(dry_run);
    assert_says(RUN(2, "train", "run.yaml", "--dry-run", "--set", "data.train=none")->err,
                "data.train: none.bin does not exist");
}

/* Equal but for rounding. */
static void assert_close(double value, double expected)
{
    if (fabs(value - expected) > 1e-9 * fabs(expected))
        fail_msg("%.17g, not %.17g", value, expected);
}

/* ---- the document -------------------------------------------------------------------------- */

static void test_document(void **state)
{
    static const char *const unknown[] = {
        "step_s",        "lower_bound_s",      "bound_by",
        "tokens_per_s",  "mfu_causal",         "mfu_megatron",
        "tflops_alst",   "lane_busy_s",        "energy_j",
        "watts_average", "watts_peak",         "kwh_per_million_tokens",
        "capped_s",      "choices.ring_slots", "choices.threads.copy"};
    cJSON *json = parse(RUN(0, "plan", "run.yaml", "--json")->out);

    (void)state;
    assert_true(cJSON_IsTrue(get(json, "fits")));
    assert_true(cJSON_IsTrue(get(json, "checked")));
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        assert_true(cJSON_IsNull(get(json, unknown[i])));
    assert_true(cJSON_IsNull(get(json, "why")));
    assert_null(cJSON_GetObjectItem(json, "short_bytes"));

    /* By hand: 2 layers of 2*32*32 + 2*32*16 + 3*32*64, a head of 272*32; two causal triangles. */
    const double matmul = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64) + 272 * 32;
    assert_number(json, "parameters", matmul + 272 * 32 + 5 * 32);
    assert_number(json, "tokens", 128);
    assert_number(json, "pairs", 2 * 64 * 65 / 2);
    assert_number(json, "flops_model", 6 * matmul * 128 + 12.0 * 4 * 8 * 2 * (2 * 64 * 65 / 2));
    assert_text(json, "profile", "cpu");
    assert_text(json, "model", "model.yaml");
    assert_number(json, "choices.chunk", 128);
    assert_number(json, "choices.query_block", 128);
    assert_text(json, "choices.weights", "direct");
    assert_text(json, "choices.save", "x+qkv+o");
    assert_text(json, "choices.accumulate_order", "sequence");
    assert_number(json, "choices.threads.optimizer", 2);
    assert_says(get(json, "time_unknown")->valuestring, "is not known");
    assert_says(get(json, "energy_unknown")->valuestring, "is not known");
    cJSON_Delete(json);

    json = parse(RUN(0, "plan", "run.yaml", "--json", "--set", "sequence.window=10")->out);
    assert_number(json, "pairs", 2 * (10 * 11 / 2 + 54 * 10));
    cJSON_Delete(json);
}

/* A profile with the rates of its GPU. */
static void test_document_of_times(void **state)
{
    cJSON *json =
        parse(RUN(0, "plan", "run.yaml", "--json", "--hardware", "gh200-96gb-480gb")->out);
    const double step_s = number(json, "step_s"), peak = 989e12;

    (void)state;
    assert_true(step_s > 0 && step_s >= number(json, "lower_bound_s"));
    assert_text(json, "bound_by", "compute");
    assert_close(number(json, "tokens_per_s"), 128 / step_s);
    assert_close(number(json, "mfu_causal"), number(json, "flops_model") / (step_s * peak));
    assert_true(number(json, "mfu_megatron") > number(json, "mfu_causal"));
    assert_close(number(json, "tflops_alst"), number(json, "mfu_megatron") * peak * 8 / 6 / 1e12);
    assert_true(number(json, "lane_busy_s.compute") <= step_s);
    assert_true(number(json, "lane_busy_s.host") > 0);
    assert_true(cJSON_IsNull(get(json, "time_unknown")));
    const double joules = number(json, "energy_j.total");
    assert_close(joules, number(json, "energy_j.gpu") + number(json, "energy_j.cpu"));
    assert_true(joules >= (75 + 55) * step_s && number(json, "watts_peak") <= 1000);
    assert_close(number(json, "watts_average"), joules / step_s);
    assert_close(number(json, "kwh_per_million_tokens"), joules / 3.6e6 / 128e-6);
    assert_number(json, "capped_s", 0);
    assert_true(cJSON_IsNull(get(json, "energy_unknown")));
    cJSON_Delete(json);
    assert_says(RUN(0, "plan", "run.yaml", "--hardware", "gh200-96gb-480gb")->out,
                "s per step (simulated)");
    assert_says(RUN(0, "plan", "run.yaml", "--hardware", "gh200-96gb-480gb")->out,
                "kWh per million tokens");
}

/* --verbose tells what planning took, beside the same plan (above the segments: and the memory that
 * is free at the time). */
static void test_verbose(void **state)
{
    (void)state;
    char *plain = strdup(RUN(0, "plan", "run.yaml")->out);
    const outcome *done = RUN(0, "plan", "run.yaml", "--verbose");
    double search_s = -1.0, build_s = -1.0, check_s = -1.0;
    int steps = 0, in_segments = 0;

    assert_string_equal(strstr(done->out, "\nsegment "), strstr(plain, "\nsegment "));
    const char *said = strstr(done->err, "longspan: plan of ");
    assert_non_null(said);
    assert_int_equal(sscanf(said,
                            "longspan: plan of %d steps: searched in %lf s, built in %lf s, "
                            "checked in %lf s of processor time\n",
                            &steps, &search_s, &build_s, &check_s),
                     4);
    assert_true(search_s >= 0.0 && build_s >= 0.0 && check_s >= 0.0);
    for (const char *row = strstr(plain, "\nsegment "); row != NULL; row = strchr(row + 1, '\n')) {
        int n;
        if (sscanf(row, "\n%*[a-z+] %d", &n) == 1) in_segments += n;
        if (row[1] == '\n') break;
    }
    assert_int_equal(steps, in_segments);
    assert_null(strstr(RUN(0, "plan", "run.yaml", "--verbose", "--quiet")->err, "plan of"));
    free(plain);
}

/* No time is told without the commands that would measure what it lacks, begun from the profile in
 * use. */
static void test_unknown_times_have_a_remedy(void **state)
{
    static const char rated[] =
        "name: rated\nplaces: [{kind: host}]\nunits:\n  - kind: cpu\n"
        "    bf16_flops_per_s: {value: 1e12, source: spec}\n    efficiency:\n"
        "    - {op: matmul, shape: 512, fraction: {value: 0.5, source: spec}}\n"
        "    - {op: attention_forward, shape: causal-512, fraction: {value: 0.5, source: spec}}\n"
        "    - {op: attention_backward, shape: causal-512, fraction: {value: 0.5, source: spec}}\n";

    (void)state;
    assert_says(
        RUN(0, "plan", "run.yaml")->out,
        "time: not known: cpu0: bf16_flops_per_s is not known; measure here: longspan bench "
        "ops --hardware cpu --save FILE.yaml, longspan bench links --hardware FILE.yaml "
        "--save FILE.yaml; then plan with --hardware FILE.yaml\n");
    assert_says(RUN(0, "plan", "run.yaml", "--hardware", "emulated-gh200")->out,
                "time: not known: cpu: its FLOP/s are not known; measure here: longspan bench ops "
                "--hardware emulated-gh200 --save FILE.yaml, longspan bench links ");
    assert_says(RUN(2, "plan", "run.yaml", "--trace", "t.json")->err,
                "no times to write: cpu0: bf16_flops_per_s is not known; measure here: longspan ");

    put_text(at("rated.yaml"), rated);
    assert_says(RUN(0, "plan", "run.yaml", "--hardware", "rated.yaml")->out,
                "read_bytes_per_s is not known; measure here: longspan bench links --hardware "
                "rated.yaml --save FILE.yaml; then plan with --hardware FILE.yaml\n");
}

/* Changes that would make it faster: three at most, settings first, of a kind what gains most; a
 * setting does what is said of it. */
static void test_changes(void **state)
{
    static const char *const kinds[] = {"setting", "training", "hardware"};
    const char *const slow[] = {"--set", "memory.weights=stream", "--set", "memory.save=x/4"};
    int kind = 0;
    double gain = 1e9;

    (void)state;
    cJSON *plan = parse(RUN(0, "plan", "run.yaml", "--json", "--hardware", "gh200-96gb-480gb",
                            slow[0], slow[1], slow[2], slow[3])
                            ->out);
    const double before = cJSON_GetObjectItem(plan, "step_s")->valuedouble;
    const cJSON *changes = cJSON_GetObjectItem(plan, "changes"), *change;
    assert_in_range(cJSON_GetArraySize(changes), 1, 3);
    cJSON_ArrayForEach(change, changes)
    {
        const char *is = cJSON_GetObjectItem(change, "kind")->valuestring;
        const double gains = cJSON_GetObjectItem(change, "gain_fraction")->valuedouble;
        const int was = kind;
        while (strcmp(kinds[kind], is) != 0) assert_true(++kind < 3);
        assert_true(gains >= 0.005 && (kind > was || gains <= gain));
        gain = gains;
    }
    const cJSON *first = cJSON_GetArrayItem(changes, 0);
    const double after = cJSON_GetObjectItem(first, "step_s")->valuedouble;
    assert_true(after < before);
    const char *words = cJSON_GetObjectItem(first, "change")->valuestring;
    const bool is_save = strncmp(words, "memory.save: auto (", 19) == 0;
    assert_true(is_save || strncmp(words, "memory.weights, ring_slots: auto (", 34) == 0);
    cJSON *changed = parse(RUN(0, "plan", "run.yaml", "--json", "--hardware", "gh200-96gb-480gb",
                               "--set", is_save ? slow[1] : slow[3])
                               ->out);
    assert_true(cJSON_GetObjectItem(changed, "step_s")->valuedouble == after);
    cJSON_Delete(changed);
    cJSON_Delete(plan);
    assert_says(RUN(0, "plan", "run.yaml", "--hardware", "gh200-96gb-480gb", slow[0], slow[1])->out,
                "faster, each simulated:\n");
}

static void test_document_of_memory_and_segments(void **state)
{
    const cJSON *item;
    cJSON *json = parse(RUN(0, "plan", "run.yaml", "--json")->out);
    const cJSON *classes = get(json, "classes"), *segments = get(json, "segments");
    const double slack = add_up(classes, "bytes") - number(json, "shared_bytes.host") -
                         number(json, "peak_bytes.host");

    (void)state;
    assert_true(slack <= 0 && slack > -256 * 200); /* padding of spans */
    assert_true(number(json, "shared_bytes.host") > 0);
    assert_number(json, "peak_bytes.hbm", 0);
    assert_number(json, "peak_bytes.nvme", 0);
    assert_true(number(json, "available_bytes.host") >= number(json, "peak_bytes.host"));
    item = cJSON_GetArrayItem(classes, 0);
    assert_text(item, "class", "weights");
    assert_text(item, "place", "host");
    assert_text(item, "mode", "direct");
    assert_number(item, "bytes", 2.0 * number(json, "parameters"));
    assert_true(strlen(get(item, "reason")->valuestring) > 0);

    assert_int_equal(cJSON_GetArraySize(segments), 4);
    assert_text(cJSON_GetArrayItem(segments, 0), "segment", "step");
    assert_number(cJSON_GetArrayItem(segments, 0), "steps", number(json, "n_steps"));
    cJSON_ArrayForEach(item, segments)
    {
        double steps = 0;
        const cJSON *lane;
        cJSON_ArrayForEach(lane, get(item, "lane_steps")) steps += lane->valuedouble;
        assert_number(item, "steps", steps);
        assert_true(number(item, "carries") > 0 && number(item, "bytes") > 0);
    }
    /* What is executed: the model's work, and what is recomputed or masked. */
    assert_true(number(cJSON_GetArrayItem(segments, 0), "flops") >= number(json, "flops_model"));
    assert_number(cJSON_GetArrayItem(segments, 3), "lane_steps.compute", 0); /* drain */
    cJSON_Delete(json);
}

/* run.json of a run that has begun agrees with what was said before. */
static void test_training_follows_it(void **state)
{
    cJSON *json = parse(RUN(0, "plan", "run.yaml", "--json", "--set", "batch.accumulate=2")->out);

    (void)state;
    RUN(75, "train", "run.yaml", "--set", "batch.accumulate=2", "--set", "output=begun",
        "--stop-after", "1");
    char *text = need_bytes(at("begun/run.json"), NULL);
    cJSON *run = parse(text);
    assert_number(run, "plan.host_bytes", number(json, "peak_bytes.host"));
    assert_number(run, "plan.n_steps", number(json, "n_steps"));
    assert_number(run, "plan.chunk", number(json, "choices.chunk"));
    assert_number(run, "plan.query_block", number(json, "choices.query_block"));
    assert_text(run, "plan.save", get(json, "choices.save")->valuestring);
    free(text);
    cJSON_Delete(run);
    cJSON_Delete(json);
}

/* ---- the plan itself ----------------------------------------------------------------------- */

static void test_print(void **state)
{
    cJSON *json = parse(RUN(0, "plan", "run.yaml", "--json")->out);
    const outcome *done = RUN(0, "plan", "run.yaml", "--print");
    char *text = strdup(done->out);
    ls_plan plan;

    (void)state;
    assert_ok(ls_plan_read_text("stdout", text, strlen(text), &plan));
    assert_ok(ls_plan_check(&plan, NULL));
    assert_true((double)ls_plan_place_bytes(&plan, LS_PLACE_HOST) ==
                number(json, "peak_bytes.host"));
    assert_true((double)plan.segment_steps[LS_SEGMENT_STEP] == number(json, "n_steps"));
    assert_string_equal(RUN(0, "plan", "run.yaml", "--print")->out, text);
    assert_string_not_equal(RUN(0, "plan", "run.yaml", "--print", "--set", "memory.save=x")->out,
                            text);
    free(text);
    ls_plan_free(&plan);
    cJSON_Delete(json);
}

/* ---- no room ------------------------------------------------------------------------------- */

static const char model_7b_yaml[] = "model_type: llama\n"
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

/* Where the host is late, updates on the device are proposed; a plan with them is as fast as said.
 */
static void test_changes_of_updates(void **state)
{
    static const char key[] = "optimizer.device_layers: ";
    const cJSON *change;
    char set[64] = "";
    bool overlaps = false;
    double after = 0;

#define SHORT_7B(...)                                                                              \
    RUN(0, "plan", "run.yaml", "--json", "--hardware", "gh200-96gb-480gb", "--set",                \
        "model=7b.yaml", "--set", "sequence.tokens=8k", "--set", "batch.sequences=1", "--set",     \
        "optimizer.updates=serial", __VA_ARGS__)
    (void)state;
    put_text(at("7b.yaml"), model_7b_yaml);
    cJSON *plan = parse(SHORT_7B("--quiet")->out);
    cJSON_ArrayForEach(change, cJSON_GetObjectItem(plan, "changes"))
    {
        const char *words = cJSON_GetObjectItem(change, "change")->valuestring;
        overlaps |= strncmp(words, "optimizer.updates: overlap (", 28) == 0;
        if (strncmp(words, key, strlen(key)) != 0) continue;
        assert_string_equal(cJSON_GetObjectItem(change, "kind")->valuestring, "setting");
        snprintf(set, sizeof set, "optimizer.device_layers=%d", atoi(words + strlen(key)));
        after = cJSON_GetObjectItem(change, "step_s")->valuedouble;
    }
    assert_true(overlaps);
    assert_true(after > 0 && after < cJSON_GetObjectItem(plan, "step_s")->valuedouble);
    cJSON_Delete(plan);
    plan = parse(SHORT_7B("--set", set)->out);
    assert_true(cJSON_GetObjectItem(plan, "step_s")->valuedouble == after);
    cJSON_Delete(plan);
#undef SHORT_7B
}

/* Keys of objects, at any depth; of arrays of objects, those of the first. */
static void assert_names_keys(const char *text, const cJSON *json)
{
    const cJSON *item;
    char word[80];

    cJSON_ArrayForEach(item, json)
    {
        if (item->string != NULL) {
            const size_t n = strlen(item->string);
            const char *at_word = strstr(text, item->string);
            snprintf(word, sizeof word, "%s", item->string);
            while (at_word != NULL && (isalnum(at_word[-1]) || at_word[-1] == '_' ||
                                       isalnum(at_word[n]) || at_word[n] == '_'))
                at_word = strstr(at_word + 1, item->string);
            if (at_word == NULL) fail_msg("README.md does not name the key %s", word);
        }
        if (cJSON_IsObject(item)) assert_names_keys(text, item);
        if (cJSON_IsArray(json)) break;
        if (cJSON_IsArray(item)) assert_names_keys(text, item);
    }
}

#define RUN_7B(code, tokens, ...)                                                                  \
    RUN(code, "plan", "run.yaml", "--set", "model=7b.yaml", "--set", "batch.sequences=1", "--set", \
        "sequence.tokens=" tokens, "--set", "sequence.chunk=1M", "--set",                          \
        "sequence.query_block=1M", __VA_ARGS__)

/* More than a terabyte of saved activations: no machine that runs tests has them. */
static void test_7b_at_4m_tokens_has_no_room(void **state)
{
    (void)state;
    put_text(at("7b.yaml"), model_7b_yaml);
    const outcome *done = RUN_7B(3, "4M", "--json");
    assert_says(done->err, "host memory: the plan is short by ");
    cJSON *json = parse(done->out);
    assert_true(cJSON_IsFalse(get(json, "fits")));
    assert_true(cJSON_IsTrue(get(json, "checked")));
    assert_says(done->err, get(json, "why")->valuestring);
    assert_number(json, "parameters", 6738415616.0);
    assert_true(number(json, "peak_bytes.host") > 1e12);
    assert_number(json, "short_bytes.host",
                  number(json, "peak_bytes.host") - number(json, "available_bytes.host"));
    assert_number(json, "short_bytes.hbm", 0);
    assert_text(json, "choices.save", "x"); /* the least, since nothing fits */
    cJSON_Delete(json);

    done = RUN_7B(3, "4M", "--quiet");
    assert_says(done->out, "verdict: does not fit: host short by ");
    assert_says(done->out, "TiB");
    done = RUN_7B(3, "4M", "--print");
    assert_string_equal(done->out + done->n_out - 5, "\nend\n");
    done = RUN(3, "train", "run.yaml", "--dry-run", "--set", "model=7b.yaml", "--set",
               "batch.sequences=1", "--set", "sequence.tokens=4M", "--set", "sequence.chunk=1M",
               "--set", "sequence.query_block=1M");
    assert_says(done->out, "verdict: does not fit: host short by ");
    assert_false(is_there(at("run")));
}

/* 7B in 32 GiB: short sequences do not help; in what is said, and in the exit code. */
static void test_7b_has_no_room_for_its_states(void **state)
{
    struct rlimit before;

    (void)state;
#ifdef LS_SANITIZED
    (void)before;
    skip(); /* a sanitizer needs all of the address space */
#else
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    const struct rlimit limit = {(rlim_t)32 << 30, before.rlim_max};
    put_text(at("7b.yaml"), model_7b_yaml);
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    const outcome *done = RUN(3, "plan", "run.yaml", "--set", "model=7b.yaml");
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_says(done->err, "weights, moments and gradients alone need 100.");
    assert_says(done->err, "take a smaller model or a machine with more memory");
    assert_says(done->out, "verdict: does not fit: host short by ");
    assert_says(done->out, "6738M parameters");
#endif
}

/* A plan that was refused has the keys of one that does not fit. */
static void assert_same_keys(const cJSON *refused)
{
    cJSON *whole = parse(RUN_7B(3, "4M", "--json", "--quiet")->out);
    const cJSON *item;

    cJSON_ArrayForEach(item, whole) get(refused, item->string);
    assert_int_equal(cJSON_GetArraySize(refused), cJSON_GetArraySize(whole));
    cJSON_ArrayForEach(item, get(whole, "choices")) get(get(refused, "choices"), item->string);
    cJSON_ArrayForEach(item, get(whole, "peak_bytes"))
        assert_true(cJSON_IsNull(get(get(refused, "peak_bytes"), item->string)));
    cJSON_Delete(whole);
}

/* What is proved of carries grows with the square of the layers: refused before it is tried. */
static void test_too_many_layers(void **state)
{
    (void)state;
    put_changed(at("deep.yaml"), model_yaml, "num_hidden_layers: 2", "num_hidden_layers: 16000");
    assert_says(RUN(3, "plan", "run.yaml", "--set", "model=deep.yaml")->err,
                "error: num_hidden_layers: the plan of a model of 16000 layers would itself need ");
}

static void test_a_plan_too_large_to_build(void **state)
{
    (void)state;
    put_text(at("7b.yaml"), model_7b_yaml);
    const outcome *done = RUN(3, "plan", "run.yaml", "--json", "--set", "model=7b.yaml", "--set",
                              "batch.sequences=1", "--set", "sequence.tokens=16M", "--set",
                              "sequence.chunk=16", "--set", "sequence.query_block=16");
    assert_says(done->err, "raise sequence.chunk or lower sequence.tokens");
    cJSON *json = parse(done->out);
    assert_true(cJSON_IsFalse(get(json, "fits")));
    assert_true(cJSON_IsFalse(get(json, "checked")));
    assert_says(done->err, get(json, "why")->valuestring);
    assert_says(get(json, "why")->valuestring, "raise sequence.chunk");
    assert_same_keys(json);
    assert_number(json, "parameters", 6738415616.0); /* known without a plan */
    assert_number(json, "tokens", 16777216);
    assert_number(json, "choices.chunk", 16);
    assert_true(number(json, "available_bytes.host") > 0);
    cJSON_Delete(json);

    done = RUN(3, "plan", "run.yaml", "--quiet", "--json", "--set", "sequence.tokens=512M", "--set",
               "batch.sequences=1", "--set", "memory.save=x+o", "--set", "sequence.chunk=16");
    json = parse(done->out);
    assert_text(json, "choices.save", "x+o");
    assert_true(cJSON_IsNull(get(json, "choices.query_block")));
    cJSON_Delete(json);
}

/* README's account of the document: the text from `--json` to `--print`. */
static void test_readme_names_every_key(void **state)
{
    cJSON *json = parse(RUN_7B(3, "4M", "--json")->out); /* does not fit: has all the keys */
    char *readme = need_bytes(LS_SOURCE_DIR "/README.md", NULL);
    char *from = strstr(readme, "- `--json`"), *to = strstr(readme, "- `--print`");

    (void)state;
    assert_true(from != NULL && to != NULL && from < to);
    *to = '\0';
    assert_null(strstr(from, "..."));
    assert_names_keys(from, json);
    free(readme);
    cJSON_Delete(json);
}

/* What each position beyond the model's own means is said once. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_usage),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_dry_run_prints_the_same),
        cmocka_unit_test(test_document),
        cmocka_unit_test(test_document_of_times),
        cmocka_unit_test(test_unknown_times_have_a_remedy),
        cmocka_unit_test(test_verbose),
        cmocka_unit_test(test_changes),
        cmocka_unit_test(test_changes_of_updates),
        cmocka_unit_test(test_document_of_memory_and_segments),
        cmocka_unit_test(test_training_follows_it),
        cmocka_unit_test(test_print),
        cmocka_unit_test(test_7b_at_4m_tokens_has_no_room),
        cmocka_unit_test(test_7b_has_no_room_for_its_states),
        cmocka_unit_test(test_too_many_layers),
        cmocka_unit_test(test_a_plan_too_large_to_build),
        cmocka_unit_test(test_readme_names_every_key),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
