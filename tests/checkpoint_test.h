/*
 * checkpoint_test.h - a trainer that takes no step, whose whole state is filled by a pattern for
 * each version: what the tests of checkpoints save, load and compare.
 */
#ifndef LS_CHECKPOINT_TEST_H
#define LS_CHECKPOINT_TEST_H

#include "checkpoint.h"
#include "io_test.h"

static const char model_yaml[] = "{model_type: llama, vocab_size: 40, hidden_size: 8,"
                                 " intermediate_size: 12, num_hidden_layers: 2,"
                                 " num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4,"
                                 " max_position_embeddings: 64, rms_norm_eps: 1.0e-5,"
                                 " rope_theta: 10000.0, tie_word_embeddings: false}\n";

/* A trainer whose saved tensors are filled at will; it never takes a step. */
typedef struct subject {
    ls_run_config config;
    ls_model_config model;
    cJSON *config_json;
    ls_trainer trainer;
    int32_t *order;
    int64_t n;
} subject;

static size_t n_train_tokens = 200;
static const char *moments = "fp32"; /* of the next subject */
static const char *model = "model.yaml", *init = "random";

static inline void open_subject(subject *s, const char *output, const char *precision,
                                const char *frozen)
{
    static const uint16_t ids[300];
    const ls_trainer_options options = {.train = true};
    char text[1200];

    put_file(at("model.yaml"), model_yaml, sizeof model_yaml - 1);
    put_file(at("train.bin"), ids, n_train_tokens * sizeof ids[0]);
    snprintf(text, sizeof text,
             "model: %s\ninit: %s\nprecision: %s\noutput: %s\nsteps: 99\n"
             "data: {train: %s, format: raw-u16}\nsequence: {tokens: 16}\nbatch: {sequences: 1}\n"
             "memory: {threads: {compute: 1, optimizer: 1}}\ncheckpoint: {keep: 2}\n"
             "optimizer: {lr: 1e-3, moments: %s, groups: [{match: \"%s\", frozen: %s}]}\n",
             model, init, precision, at(output), at("train"), moments,
             frozen != NULL ? frozen : "*", frozen != NULL ? "true" : "false");
    memset(s, 0, sizeof *s);
    assert_ok(ls_run_config_parse(at("run.yaml"), text, strlen(text), NULL, 0, &s->config));
    assert_ok(ls_run_config_to_json(&s->config, &s->config_json));
    assert_ok(ls_model_config_read(at("model.yaml"), &s->model));
    assert_ok(ls_trainer_open(&s->config, &s->model, &options, &s->trainer));
    const ls_decoder *d = &s->trainer.instance.decoder;
    s->order = malloc(LS_DECODER_SAVED_MAX * (size_t)d->n_params * sizeof *s->order);
    assert_non_null(s->order);
    s->n = ls_decoder_save_order(d, s->order);
}

static inline void close_subject(subject *s)
{
    ls_trainer_close(&s->trainer);
    cJSON_Delete(s->config_json);
    ls_run_config_free(&s->config);
    free(s->order);
}
/* ---- states -------------------------------------------------------------------------------- */

static inline uint8_t pattern(int64_t i, uint64_t byte, int version)
{
    return (uint8_t)(31 * i + 7 * (int64_t)byte + 101 * version);
}

/* Tensor i of the order, all of it. */
static inline uint8_t *saved_tensor(const subject *s, int64_t i, uint64_t *bytes)
{
    const ls_instance *instance = &s->trainer.instance;
    *bytes = ls_tensor_bytes(&instance->decoder.tape.tensors[s->order[i]]);
    return ls_instance_tensor(instance, s->order[i]);
}

static inline void fill_tensor(const subject *s, int64_t i, int version)
{
    uint64_t bytes;
    uint8_t *data = saved_tensor(s, i, &bytes);
    for (uint64_t b = 0; b < bytes; b++) data[b] = pattern(i, b, version);
}

static inline ls_position make_position(int version)
{
    return (ls_position){.step = version,
                         .next_sequence = 1000 + version,
                         .tokens_total = 20000 + version,
                         .control = {.beta1_power = 1.0 / (3 + version),
                                     .beta2_power = 1.0 / (7 + version),
                                     .updates = 300 + version,
                                     .skipped = 40 + version,
                                     .skipped_in_a_row = 5 + version}};
}

static inline void move_trainer(subject *s, int version)
{
    const ls_position position = make_position(version);

    s->trainer.step = position.step;
    s->trainer.next_sequence = position.next_sequence;
    s->trainer.tokens_total = position.tokens_total;
    *s->trainer.control = position.control;
}

/* The whole state of a trainer, each part different for each version. */
static inline void fill_state(subject *s, int version)
{
    for (int64_t i = 0; i < s->n; i++) fill_tensor(s, i, version);
    move_trainer(s, version);
}

static inline void assert_state(const subject *s, int version)
{
    const ls_position position = make_position(version);
    const ls_update_control *c = s->trainer.control;

    for (int64_t i = 0; i < s->n; i++) {
        uint64_t bytes;
        const uint8_t *data = saved_tensor(s, i, &bytes);
        for (uint64_t b = 0; b < bytes; b++) {
            if (data[b] != pattern(i, b, version)) {
                fail_msg("byte %llu of %s", (unsigned long long)b,
                         s->trainer.instance.decoder.tape.tensors[s->order[i]].name);
            }
        }
    }
    assert_int_equal(s->trainer.step, position.step);
    assert_int_equal(s->trainer.next_sequence, position.next_sequence);
    assert_int_equal(s->trainer.tokens_total, position.tokens_total);
    assert_true(c->beta1_power == position.control.beta1_power);
    assert_true(c->beta2_power == position.control.beta2_power);
    assert_int_equal(c->updates, position.control.updates);
    assert_int_equal(c->skipped, position.control.skipped);
    assert_int_equal(c->skipped_in_a_row, position.control.skipped_in_a_row);
}

/* ---- saving -------------------------------------------------------------------------------- */

/* Begin a version when the trainer has submitted the next already. */
static inline ls_status begin(subject *s, int version, ls_checkpoint_saver **saver)
{
    ls_position position = make_position(version);

    fill_state(s, version);
    move_trainer(s, version + 1);
    const ls_status status =
        ls_checkpoint_save_begin(&s->trainer, &position, s->config_json, saver);
    memset(&position, 0x55, sizeof position);
    return status;
}

/* Save a version while the trainer goes on to the next: each tensor changes once it is written. */
static inline ls_status save(subject *s, int version)
{
    ls_checkpoint_saver *saver = NULL;

    LS_TRY(begin(s, version, &saver));
    for (int64_t i = 0; i < s->n; i++) {
        const ls_status status = ls_checkpoint_save_tensor(saver, s->order[i]);
        if (status != LS_OK) {
            ls_checkpoint_save_abort(saver);
            return status;
        }
        fill_tensor(s, i, version + 1);
    }
    const ls_status status = ls_checkpoint_save_end(saver);
    assert_state(s, version + 1);
    return status;
}

#endif
