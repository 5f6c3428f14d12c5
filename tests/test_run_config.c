/* test_run_config.c - run files: every key of the contract, defaults, refusals, resume. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json.h"
#include "run_config.h"

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))
#define MODEL       LS_SOURCE_DIR "/configs/models/byte-3m.yaml"

/* The least that a run file must say; four lines. */
static const char base[] = "model: " MODEL "\n"
                           "data: {train: data/t}\n"
                           "output: runs/o\n"
                           "steps: 300\n";

static ls_status parse_with(const char *more, const char *const *sets, size_t n_sets,
                            ls_run_config *config)
{
    char text[8192];
    const int n = snprintf(text, sizeof text, "%s%s", base, more);
    assert_true(n > 0 && (size_t)n < sizeof text);
    return ls_run_config_parse("r.yaml", text, (size_t)n, sets, n_sets, config);
}

static ls_run_config parse(const char *more)
{
    ls_run_config config;
    if (parse_with(more, NULL, 0, &config) != LS_OK) fail_msg("%s", ls_error());
    return config;
}

#define assert_real(actual, expected)                                                              \
    assert_true((actual) >= (expected)*0.999999999 && (actual) <= (expected)*1.000000001)

static void defaults_are_those_of_the_contract(void **state)
{
    ls_run_config c = parse("");

    (void)state;
    assert_string_equal(c.model_path, MODEL);
    assert_int_equal(c.init, LS_INIT_RANDOM);
    assert_string_equal(c.hardware, "auto");
    assert_int_equal(c.precision, LS_DTYPE_BF16);
    assert_false(c.fast);
    assert_int_equal(c.train.n_paths, 1);
    assert_string_equal(c.train.paths[0], "data/t");
    assert_int_equal(c.valid.n_paths, 0);
    assert_int_equal(c.format, LS_TOKENS_FORMAT_MEGATRON);
    assert_int_equal(c.sequence_tokens, 2048);
    assert_int_equal(c.chunk, 0);
    assert_int_equal(c.query_block, 0);
    assert_int_equal(c.documents, LS_DOCUMENTS_ISOLATE);
    assert_int_equal(c.window, 0);
    assert_int_equal(c.sequences, 4);
    assert_int_equal(c.accumulate, 1);
    assert_real(c.schedule.lr, 3e-3);
    assert_real(c.schedule.lr_min, 3e-4);
    assert_int_equal(c.schedule.kind, LS_SCHEDULE_COSINE);
    assert_int_equal(c.schedule.warmup_steps, 20);
    assert_int_equal(c.schedule.steps, 300);
    assert_real(c.beta1, 0.9);
    assert_real(c.beta2, 0.95);
    assert_real(c.eps, 1e-8);
    assert_real(c.weight_decay, 0.1);
    assert_real(c.clip_norm, 1.0);
    assert_int_equal(c.n_groups, 0);
    assert_int_equal(c.skip_nonfinite_max, 10);
    assert_int_equal(c.weights, LS_WEIGHTS_AUTO);
    assert_true(c.save_auto);
    assert_int_equal(c.compute_threads, 0);
    assert_int_equal(c.steps, 300);
    assert_int_equal(c.seed, 1);
    assert_int_equal(c.eval_every_steps, 0); /* there is nothing to evaluate on */
    assert_int_equal(c.eval_tokens, 65536);
    assert_true(c.position_bins);
    assert_int_equal(c.position_bins_count, 0);
    assert_int_equal(c.checkpoint_every_steps, 100);
    assert_int_equal(c.checkpoint_keep, 2);
    assert_true(c.record_power);
    assert_int_equal(c.n_trace_steps, 2);
    assert_int_equal(c.trace_steps[1], 11);
    assert_int_equal(c.samples_hz, 10);
    assert_string_equal(c.output, "runs/o");
    ls_run_config_free(&c);
    ls_run_config_free(&c);
    ls_run_config_free(NULL);
}

static const char everything[] =
    "model: " MODEL "\n"
    "init: random\n"
    "hardware: cpu\n"
    "precision: fp32\n"
    "determinism: fast\n"
    "rope_scaling: {type: yarn, factor: 2.5, original_tokens: 32k, truncate: false}\n"
    "data:\n"
    "  train: [a, b]\n"
    "  valid: [c]\n"
    "  format: raw-u32\n"
    "  min_document: 16\n"
    "sequence: {tokens: 4k, chunk: 512, query_block: 1k, documents: isolate-running, window: 1k}\n"
    "batch: {sequences: 2, accumulate: 3, accumulate_order: sequence}\n"
    "optimizer:\n"
    "  lr: 1e-4\n"
    "  schedule: wsd\n"
    "  warmup_steps: 0\n"
    "  decay_steps: 10\n"
    "  lr_min: 0\n"
    "  beta1: 0\n"
    "  beta2: 0.999\n"
    "  eps: 1e-6\n"
    "  weight_decay: 0\n"
    "  clip_norm: 0\n"
    "  moments: fp32\n"
    "  gradients: bf16\n"
    "  updates: serial\n"
    "  groups: [{match: 'model.embed_tokens.*', lr_scale: 0.1}, {match: \"model.layers.[0-3].*\", "
    "frozen: true}]\n"
    "  skip_nonfinite_max: 0\n"
    "memory: {weights: direct, ring_slots: 7, save: x+qkv+o, place: {x: hbm, m: host}, "
    "threads: {compute: 2, optimizer: 1, copy: 3}}\n"
    "steps: 20\n"
    "seed: 281474976710656\n"
    "eval: {every_steps: 5, tokens: 1M, position_bins: linear:16}\n"
    "checkpoint: {every_steps: 0, keep: 1}\n"
    "record: {power: off, trace_steps: [], samples_hz: 100}\n"
    "output: /tmp/out put\n";

static ls_run_config parse_everything(void)
{
    ls_run_config config;
    if (ls_run_config_parse("r.yaml", everything, strlen(everything), NULL, 0, &config) != LS_OK)
        fail_msg("%s", ls_error());
    return config;
}

static void every_key_is_taken(void **state)
{
    ls_run_config c = parse_everything();

    (void)state;
    assert_string_equal(c.hardware, "cpu");
    assert_int_equal(c.precision, LS_DTYPE_F32);
    assert_true(c.serial_updates);
    assert_true(c.fast && c.rope_scaling_given && c.rope_scaling.no_truncate);
    assert_int_equal(c.rope_scaling.original_tokens, 32768);
    assert_int_equal(c.train.n_paths, 2);
    assert_string_equal(c.train.paths[1], "b");
    assert_string_equal(c.valid.paths[0], "c");
    assert_int_equal(c.format, LS_TOKENS_FORMAT_RAW_U32);
    assert_int_equal(c.min_document, 16);
    assert_int_equal(c.sequence_tokens, 4096);
    assert_int_equal(c.chunk, 512);
    assert_int_equal(c.query_block, 1024);
    assert_int_equal(c.documents, LS_DOCUMENTS_ISOLATE_RUNNING);
    assert_int_equal(c.window, 1024);
    assert_int_equal(c.accumulate, 3);
    assert_int_equal(c.schedule.kind, LS_SCHEDULE_WSD);
    assert_int_equal(c.schedule.decay_steps, 10);
    assert_int_equal(c.schedule.steps, 20);
    assert_true(c.schedule.lr_min <= 0 && c.beta1 <= 0 && c.weight_decay <= 0 && c.clip_norm <= 0);
    assert_int_equal(c.n_groups, 2);
    assert_string_equal(c.groups[0].match, "model.embed_tokens.*");
    assert_real(c.groups[0].lr_scale, 0.1);
    assert_false(c.groups[0].frozen);
    assert_true(c.groups[1].frozen);
    assert_real(c.groups[1].lr_scale, 1);
    assert_int_equal(c.gradients, LS_DTYPE_BF16);
    assert_int_equal(c.skip_nonfinite_max, 0);
    assert_int_equal(c.weights, LS_WEIGHTS_DIRECT);
    assert_int_equal(c.ring_slots, 7);
    assert_int_equal(c.places[LS_CLASS_X], 1 + LS_PLACE_HBM);
    assert_int_equal(c.places[LS_CLASS_M], 1 + LS_PLACE_HOST);
    assert_int_equal(c.places[LS_CLASS_O], 0);
    assert_false(c.save_auto);
    assert_int_equal(c.saves.n_ranges, 1);
    assert_true(ls_saves_of(&c.saves, 99).qkv);
    assert_int_equal(c.compute_threads, 2);
    assert_int_equal(c.optimizer_threads, 1);
    assert_int_equal(c.copy_threads, 3);
    assert_true(c.seed == (uint64_t)1 << 48);
    assert_int_equal(c.eval_every_steps, 5);
    assert_int_equal(c.eval_tokens, 1 << 20);
    assert_int_equal(c.position_bins_count, 16);
    assert_int_equal(c.checkpoint_every_steps, 0);
    assert_false(c.record_power);
    assert_int_equal(c.n_trace_steps, 0);
    assert_string_equal(c.output, "/tmp/out put");
    ls_run_config_free(&c);
}

static void refusals_name_place_key_and_what_is_allowed(void **state)
{
    static const struct {
        const char *more;
        ls_status status;
        const char *message;
    } cases[] = {
        /* keys */
        {"stpes: 3\n", LS_ERR_INVALID,
         "r.yaml:5: stpes: unknown key, did you mean 'steps'? "
         "allowed: model, init, hardware, "},
        {"lr: 1e-3\n", LS_ERR_INVALID,
         "r.yaml:5: lr: unknown key, did you mean 'optimizer.lr'? allowed: model, "},
        {"batch: {tokens: 4}\n", LS_ERR_INVALID,
         "r.yaml:5: batch.tokens: unknown key, did you mean 'sequence.tokens'? "
         "allowed: sequences, accumulate, accumulate_order"},
        {"batch: {sequenses: 4}\n", LS_ERR_INVALID, "did you mean 'sequences'?"},
        {"batch: {zzz: 4}\n", LS_ERR_INVALID, "batch.zzz: unknown key; allowed: sequences,"},
        {"steps: 4\n", LS_ERR_INVALID, "r.yaml:5: steps: given twice, first on line 4"},
        {"batch: 4\n", LS_ERR_INVALID, "r.yaml:5: batch: '4' is one value; allowed: keys"},
        {"batch: [4]\n", LS_ERR_INVALID, "r.yaml:5: batch: is a list"},
        {"seed: {a: 1}\n", LS_ERR_INVALID, "r.yaml:5: seed: is a map, not one value"},
        /* units and ranges */
        {"sequence: {tokens: 2kb}\n", LS_ERR_INVALID, "sequence.tokens: '2kb' is not a count"},
        {"sequence: {tokens: 12 GiBs}\n", LS_ERR_INVALID, "'12 GiBs' is not a count"},
        {"sequence: {tokens: 1}\n", LS_ERR_INVALID, "'1' is out of range; allowed: 2 to 1G"},
        {"sequence: {tokens: -2k}\n", LS_ERR_INVALID, "'-2k' is not a count"},
        {"sequence: {tokens: auto}\n", LS_ERR_INVALID, "'auto' is not a count"},
        {"sequence: {chunk: autop}\n", LS_ERR_INVALID, "sequence.chunk: 'autop' is not a count"},
        {"batch: {sequences: 1}\nsequence:\n  tokens: 1k\n  chunk: 2k\n", LS_ERR_INVALID,
         "r.yaml:8: sequence.chunk: 2048 is more than the 1024 tokens of a micro-batch"},
        {"sequence: {query_block: 16k}\n", LS_ERR_INVALID,
         "query_block: 16384 is more than the 8192 tokens of a micro-batch"},
        {"sequence: {window: 0}\n", LS_ERR_INVALID, "window: '0' is out of range"},
        {"sequence: {documents: mix}\n", LS_ERR_INVALID,
         "'mix' is not known; allowed: isolate, join, isolate-running"},
        {"batch: {sequences: 0}\n", LS_ERR_INVALID, "0 is out of range; allowed: 1 to"},
        {"batch: {sequences: -1}\n", LS_ERR_INVALID, "-1 is out of range"},
        {"batch: {sequences: 2.5}\n", LS_ERR_INVALID, "'2.5' is not a whole number"},
        {"batch: {sequences: 1048576}\n", LS_ERR_INVALID, "are too many for one micro-batch"},
        {"optimizer: {lr: 0}\n", LS_ERR_INVALID, "lr: '0' is out of range; allowed: more than 0"},
        {"optimizer: {lr: nan}\n", LS_ERR_INVALID, "optimizer.lr: 'nan' is not a number"},
        {"optimizer: {lr: .inf}\n", LS_ERR_INVALID, "optimizer.lr: '.inf' is not a number"},
        {"optimizer: {lr: 1e999}\n", LS_ERR_INVALID, "'1e999' is too large a number"},
        {"optimizer: {lr: '3e-3'}\n", LS_ERR_INVALID, "'3e-3' is a text in quotes"},
        {"optimizer: {beta1: 1}\n", LS_ERR_INVALID, "beta1: '1' is out of range"},
        {"optimizer: {eps: 0}\n", LS_ERR_INVALID, "eps: '0' is out of range"},
        {"optimizer: {lr_min: 1}\n", LS_ERR_INVALID,
         "r.yaml:5: optimizer.lr_min: 1 is more than optimizer.lr = 0.003"},
        {"optimizer: {lr: 1e-4}\n", LS_ERR_INVALID,
         "r.yaml:1: optimizer.lr_min: the default 0.0003 is more than optimizer.lr = 0.0001"},
        {"optimizer: {warmup_steps: 301}\n", LS_ERR_INVALID, "301 is more than steps = 300"},
        {"optimizer: {schedule: wsd}\n", LS_ERR_INVALID, "wsd needs optimizer.decay_steps"},
        {"optimizer: {decay_steps: 3}\n", LS_ERR_INVALID, "belongs to schedule wsd"},
        {"optimizer: {schedule: wsd, decay_steps: 281}\n", LS_ERR_INVALID,
         "decay_steps: 281 is more than steps - warmup_steps = 280"},
        {"optimizer: {schedule: cosin}\n", LS_ERR_INVALID, "did you mean 'cosine'?"},
        {"optimizer: {groups: {match: x}}\n", LS_ERR_INVALID, "groups: is a map; allowed: a list"},
        {"optimizer: {groups: [{match: x}]}\n", LS_ERR_INVALID,
         "r.yaml:5: optimizer.groups[0]: changes nothing"},
        {"optimizer: {groups: [{frozen: true}]}\n", LS_ERR_INVALID, "match is missing"},
        {"optimizer: {groups: [{match: x, frozn: true}]}\n", LS_ERR_INVALID,
         "optimizer.groups[0].frozn: unknown key, did you mean 'frozen'?"},
        {"optimizer: {groups: [{match: x, lr_scale: -1}]}\n", LS_ERR_INVALID,
         "groups[0].lr_scale: '-1' is out of range"},
        {"seed: -1\n", LS_ERR_INVALID, "seed: -1 is out of range"},
        {"seed: 281474976710657\n", LS_ERR_INVALID, "is out of range"},
        {"eval: {position_bins: linear:0}\n", LS_ERR_INVALID, "'linear:0' is not known"},
        {"eval: {position_bins: linear}\n", LS_ERR_INVALID, "allowed: log2, linear:N"},
        {"eval: {every_steps: 100}\n", LS_ERR_INVALID, "nothing to evaluate on"},
        {"checkpoint: {keep: 0}\n", LS_ERR_INVALID, "keep: 0 is out of range"},
        {"record: {trace_steps: 10}\n", LS_ERR_INVALID, "'10' is one value; allowed: a list"},
        {"record: {trace_steps: [11, 10]}\n", LS_ERR_INVALID, "10 comes after 11"},
        {"record: {power: on}\n", LS_ERR_INVALID, "'on' is not known; allowed: off, auto"},
        {"memory: {threads: 4}\n", LS_ERR_INVALID, "allowed: auto, {compute: N,"},
        {"memory: {threads: {compute: 0}}\n", LS_ERR_INVALID, "threads.compute: 0 is out of range"},
        {"memory: {threads: {cpu: 1}}\n", LS_ERR_INVALID, "memory.threads.cpu: unknown key"},
        {"memory: {place: {grd: host}}\n", LS_ERR_INVALID, "memory.place.grd: unknown key"},
        {"memory: {save: y}\n", LS_ERR_INVALID, "'y' is not known; allowed: auto, x, x+o, x+qkv+o"},
        {"memory: {save: x/0}\n", LS_ERR_INVALID, "'x/0' is not known"},
        {"init: pretrained\n", LS_ERR_INVALID, "init: pretrained, but model "},
        {"rope_scaling: 4\n", LS_ERR_INVALID, "rope_scaling: '4' is not known; allowed: null, {"},
        {"precision: fp8\n", LS_ERR_INVALID, "'fp8' is not known"},
        {"precision:\n", LS_ERR_INVALID, "r.yaml:5: precision: has no value; allowed: bf16, fp32"},
        {"optimizer: {moments: q2}\n", LS_ERR_INVALID,
         "'q2' is not known, did you mean 'q8'? allowed: fp32, bf16, q8, q4"},
        {"optimizer: {gradients: q8}\n", LS_ERR_INVALID, "'q8' is not known; allowed: fp32, bf16"},
        {"memory: {weights: host}\n", LS_ERR_INVALID, "auto, resident, direct, stream"},
        {"memory: {ring_slots: 0}\n", LS_ERR_INVALID,
         "memory.ring_slots: '0' is out of range; allowed: 1 to 64"},
        {"memory: {place: {x: hmb}}\n", LS_ERR_INVALID, "memory.place.x: "},
        {"memory: {place: {batch: host}}\n", LS_ERR_INVALID, "memory.place.batch: unknown key"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        ls_run_config config;
        memset(&config, 0x5a, sizeof config);
        if (parse_with(cases[i].more, NULL, 0, &config) != cases[i].status)
            fail_msg("'%s': %s", cases[i].more, ls_error());
        assert_int_equal(((unsigned char *)&config)[0], 0x5a); /* outputs only on LS_OK */
        if (strstr(ls_error(), cases[i].message) == NULL)
            fail_msg("'%s' lacks '%s'", ls_error(), cases[i].message);
    }
}

static void whole_files_that_are_no_run_file_are_refused(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"model: " MODEL "\noutput: o\n", "r.yaml:1: data.train: is missing"},
        {"data: {train: t}\noutput: o\n", "r.yaml:1: model: is missing"},
        {"model: " MODEL "\ndata: {train: t}\n", "r.yaml:1: output: is missing"},
        {"model: " MODEL "\ndata: {train: []}\noutput: o\n", "data.train: names no file"},
        {"model: " MODEL "\ndata: {train: {a: b}}\noutput: o\n", "data.train: names no file"},
        {"model: " MODEL "\ndata: {train: [a, '']}\noutput: o\n",
         "data.train[1]: is an empty text"},
        {"model: " MODEL "\ndata: {train: t, valid: v, valid_fraction: 0.1}\noutput: o\n",
         "r.yaml:2: data.valid_fraction: stands beside data.valid"},
        {"model: " MODEL "\ndata: {train: t, valid_fraction: 1}\noutput: o\n",
         "allowed: more than 0 to less than 1"},
        {"model: " MODEL "\ndata: {train: t, min_document: 4k}\noutput: o\n",
         "min_document: 4096 is more than sequence.tokens = 2048"},
        {"model: no/such\ndata: {train: t}\noutput: o\n",
         "r.yaml:1: model: neither no/such nor ../no/such exists"},
        {"model: /no/such\ndata: {train: t}\noutput: o\n", "model: /no/such does not exist"},
        {"", "r.yaml: is empty"},
        {"just words\n", "r.yaml:1: 'just words' is one value"},
        {"- a\n- b\n", "r.yaml:1: is a list"},
        {"\x7f"
         "ELF\x02\x01\x01",
         "r.yaml:1: does not parse"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        ls_run_config config;
        assert_int_equal(
            ls_run_config_parse("r.yaml", cases[i].text, strlen(cases[i].text), NULL, 0, &config),
            LS_ERR_INVALID);
        if (strstr(ls_error(), cases[i].message) == NULL)
            fail_msg("'%s' lacks '%s'", ls_error(), cases[i].message);
    }
}

static void empty_sections_and_optional_keys_may_be_null(void **state)
{
    ls_run_config c = parse("memory:\nbatch: ~\noptimizer: {decay_steps: null}\n"
                            "eval: {position_bins: null}\n");
    (void)state;
    assert_int_equal(c.sequences, 4);
    assert_int_equal(c.schedule.decay_steps, 0);
    assert_false(c.position_bins);
    ls_run_config_free(&c);
}

static void the_command_line_overrides_by_the_same_rules(void **state)
{
    static const char *const good[] = {"steps=50",          "optimizer.lr=1e-2",    "steps=60",
                                       "data.train=[x, y]", "batch={sequences: 8}", "data.valid=v",
                                       "eval.every_steps=7"};
    static const struct {
        const char *set;
        ls_status status;
        const char *message;
    } bad[] = {
        {"optimizer.lr=fast", LS_ERR_INVALID, "--set optimizer.lr: 'fast' is not a number;"},
        {"optimizer.lrr=1", LS_ERR_INVALID, "--set optimizer.lrr: unknown key, did you mean 'lr'"},
        {"eval={every_stps: 1}", LS_ERR_INVALID, "--set eval: eval.every_stps: unknown key"},
        {"steps", LS_ERR_INVALID, "--set 'steps': write --set key.path=value"},
        {"steps=", LS_ERR_INVALID, "--set steps: is empty"},
        {"steps.x=1", LS_ERR_INVALID, "--set steps.x: steps: is a map, not one value"},
        {"optimizer.warmup_steps=1000", LS_ERR_INVALID, "--set optimizer.warmup_steps: 1000 is"},
        {"model=models/byte-3m.yaml", LS_ERR_INVALID,
         "--set model: models/byte-3m.yaml does not exist"},
    };
    ls_run_config c;

    (void)state;
    if (parse_with("", good, N_OF(good), &c) != LS_OK) fail_msg("%s", ls_error());
    assert_int_equal(c.steps, 60);
    assert_real(c.schedule.lr, 1e-2);
    assert_int_equal(c.train.n_paths, 2);
    assert_int_equal(c.sequences, 8);
    assert_int_equal(c.eval_every_steps, 7);
    ls_run_config_free(&c);
    for (size_t i = 0; i < N_OF(bad); i++) {
        assert_int_equal(parse_with("", &bad[i].set, 1, &c), bad[i].status);
        if (strncmp(ls_error(), bad[i].message, strlen(bad[i].message)) != 0)
            fail_msg("'%s' is not '%s'", ls_error(), bad[i].message);
    }
}

static void the_shipped_run_finds_its_model(void **state)
{
    static const char path[] = LS_SOURCE_DIR "/configs/runs/demo.yaml";
    ls_run_config c;

    (void)state;
    if (ls_run_config_read(path, NULL, 0, &c) != LS_OK) fail_msg("%s", ls_error());
    assert_string_equal(c.model_path, LS_SOURCE_DIR "/configs/runs/../models/byte-3m.yaml");
    assert_string_equal(c.train.paths[0], "data/demo-train");
    assert_string_equal(c.valid.paths[0], "data/demo-valid");
    assert_string_equal(c.output, "runs/demo");
    assert_int_equal(c.steps, 640);
    assert_int_equal(c.eval_every_steps, 320);
    ls_run_config_free(&c);

    /* named without a folder: beside it is the working directory */
    assert_int_equal(chdir(LS_SOURCE_DIR "/configs/runs"), 0);
    if (ls_run_config_read("demo.yaml", NULL, 0, &c) != LS_OK) fail_msg("%s", ls_error());
    assert_string_equal(c.model_path, "../models/byte-3m.yaml");
    ls_run_config_free(&c);

    /* a profile's file lies beside the run file; --set names one in the working directory */
    static const char baseline[] = LS_SOURCE_DIR "/configs/runs/baselines/megatrain-7b-1k.yaml";
    const char *const sets[] = {"hardware=gh200-pytorch.yaml"};
    if (ls_run_config_read(baseline, NULL, 0, &c) != LS_OK) fail_msg("%s", ls_error());
    assert_string_equal(c.hardware, LS_SOURCE_DIR "/configs/runs/baselines/gh200-pytorch.yaml");
    ls_run_config_free(&c);
    if (ls_run_config_read(baseline, sets, 1, &c) != LS_OK) fail_msg("%s", ls_error());
    assert_string_equal(c.hardware, "gh200-pytorch.yaml");
    ls_run_config_free(&c);

    /* the run file's own folder comes first */
    assert_int_equal(chdir(LS_SOURCE_DIR), 0);
    {
        static const char text[] = "model: models\ndata: {train: t}\noutput: o\n";
        if (ls_run_config_parse("configs/r.yaml", text, strlen(text), NULL, 0, &c) != LS_OK)
            fail_msg("%s", ls_error());
        assert_string_equal(c.model_path, "configs/models");
        ls_run_config_free(&c);
    }
    assert_int_equal(ls_run_config_read("configs", NULL, 0, &c), LS_ERR_INVALID);
    assert_int_equal(ls_run_config_read("configs/none.yaml", NULL, 0, &c), LS_ERR_INVALID);
    assert_string_equal(ls_error(), "open configs/none.yaml: No such file or directory");
}

static cJSON *to_json(const ls_run_config *config)
{
    cJSON *json = NULL;
    if (ls_run_config_to_json(config, &json) != LS_OK) fail_msg("%s", ls_error());
    return json;
}

/* What is written reads back as the same config: nothing is lost on the way. */
static void the_resolved_config_is_a_run_file(void **state)
{
    ls_run_config configs[] = {parse_everything(), parse(""), parse("memory: {save: o+x/7}\n"),
                               parse("memory: {save: [{layers: 4-9, policy: o+x/4, place: host}, "
                                     "{layers: 11, policy: x+qkv+o}]}\n")};

    (void)state;
    for (size_t i = 0; i < N_OF(configs); i++) {
        cJSON *json = to_json(&configs[i]), *json_again;
        char *text = cJSON_Print(json);
        ls_run_config again;
        assert_non_null(text);
        if (ls_run_config_parse("run.json", text, strlen(text), NULL, 0, &again) != LS_OK)
            fail_msg("%s", ls_error());
        json_again = to_json(&again);
        assert_true(cJSON_Compare(json, json_again, 1));
        assert_null(ls_run_config_difference(json, json_again, false));
        cJSON_free(text);
        cJSON_Delete(json);
        cJSON_Delete(json_again);
        ls_run_config_free(&again);
        ls_run_config_free(&configs[i]);
    }
}

static cJSON *json_with(const char *set)
{
    const char *const sets[] = {"data.valid=v", set};
    ls_run_config config;
    cJSON *json;

    if (parse_with("", sets, set != NULL ? 2 : 1, &config) != LS_OK) fail_msg("%s", ls_error());
    json = to_json(&config);
    ls_run_config_free(&config);
    return json;
}

static void resume_may_change_what_the_contract_says(void **state)
{
    static const struct {
        const char *set, *key;
        bool replan_allows;
    } cases[] = {
        {"steps=400", NULL, true},
        {"eval={every_steps: 3, tokens: 1k, position_bins: linear:4}", NULL, true},
        {"checkpoint={every_steps: 7, keep: 9}", NULL, true},
        {"record={power: off, trace_steps: [3], samples_hz: 1}", NULL, true},
        {"memory.threads={compute: 1}", NULL, true},
        {"output=elsewhere", NULL, true},
        {"memory.save=x+o", "memory.save", true},
        {"memory.save=[{layers: 0, policy: x+o}]", "memory.save", true},
        {"memory.weights=direct", "memory.weights", true},
        {"sequence.chunk=64", "sequence.chunk", true},
        {"sequence.query_block=64", "sequence.query_block", true},
        {"precision=fp32", "precision", false},
        {"data.train=other", "data.train", false},
        {"data.train=[data/t, data/t]", "data.train", false},
        {"data.min_document=2", "data.min_document", false},
        {"sequence.tokens=1k", "sequence.tokens", false},
        {"rope_scaling={type: linear, factor: 2}", "rope_scaling", false},
        {"sequence.window=7", "sequence.window", false},
        {"batch.sequences=2", "batch.sequences", false},
        {"optimizer.lr=4e-3", "optimizer.lr", false},
        {"optimizer.warmup_steps=21", "optimizer.warmup_steps", false},
        {"optimizer.groups=[{match: x, frozen: true}]", "optimizer.groups", false},
        {"seed=2", "seed", false},
    };
    cJSON *before = json_with(NULL);
    uint64_t hash_before, hash_now;

    (void)state;
    assert_int_equal(ls_run_config_hash(before, &hash_before), LS_OK);
    for (size_t i = 0; i < N_OF(cases); i++) {
        cJSON *now = json_with(cases[i].set);
        const char *plain = ls_run_config_difference(before, now, false);
        const char *replan = ls_run_config_difference(before, now, true);
        if (cases[i].key == NULL)
            assert_null(plain);
        else
            assert_string_equal(plain, cases[i].key);
        assert_int_equal(replan == NULL, cases[i].replan_allows);
        assert_int_equal(ls_run_config_hash(now, &hash_now), LS_OK);
        assert_int_equal(hash_now == hash_before, cases[i].key == NULL);
        cJSON_Delete(now);
    }
    cJSON_Delete(before);
}

static void keys_an_older_config_lacks_count_as_defaults(void **state)
{
    cJSON *before = json_with(NULL), *now = json_with(NULL), *other = json_with("seed=2");
    char text[8];

    (void)state;
    cJSON_DeleteItemFromObjectCaseSensitive(before, "seed");
    cJSON_DeleteItemFromObjectCaseSensitive(before, "optimizer");
    assert_null(ls_run_config_difference(before, now, false));
    assert_null(ls_run_config_difference(now, before, false));
    assert_string_equal(ls_run_config_difference(before, other, false), "seed");
    assert_string_equal(ls_run_config_show(before, "seed", text, sizeof text), "1");
    assert_string_equal(ls_run_config_show(other, "seed", text, sizeof text), "2");
    assert_string_equal(ls_run_config_show(before, "optimizer.schedule", text, 6), "\"c...");
    cJSON_Delete(before);
    cJSON_Delete(now);
    cJSON_Delete(other);
}

static void one_model_by_two_names_is_one_model(void **state)
{
    cJSON *before = json_with(NULL);
    cJSON *now = json_with("model=" LS_SOURCE_DIR "/configs/../configs/models/byte-3m.yaml");
    cJSON *other = json_with("model=" LS_SOURCE_DIR "/configs/models");

    (void)state;
    assert_null(ls_run_config_difference(before, now, false));
    assert_string_equal(ls_run_config_difference(before, other, true), "model");
    cJSON_Delete(before);
    cJSON_Delete(now);
    cJSON_Delete(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_contract),
        cmocka_unit_test(every_key_is_taken),
        cmocka_unit_test(refusals_name_place_key_and_what_is_allowed),
        cmocka_unit_test(whole_files_that_are_no_run_file_are_refused),
        cmocka_unit_test(empty_sections_and_optional_keys_may_be_null),
        cmocka_unit_test(the_command_line_overrides_by_the_same_rules),
        cmocka_unit_test(the_shipped_run_finds_its_model),
        cmocka_unit_test(the_resolved_config_is_a_run_file),
        cmocka_unit_test(resume_may_change_what_the_contract_says),
        cmocka_unit_test(keys_an_older_config_lacks_count_as_defaults),
        cmocka_unit_test(one_model_by_two_names_is_one_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
