/*
 * model_test.h - a decoder on a fixed batch, without files, data loaders or a run: build it with
 * any blocks, run the step segment, look at the loss and every gradient.
 */
#ifndef LS_MODEL_TEST_H
#define LS_MODEL_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bf16.h"
#include "instance.h"
#include "json.h"
#include "loss_stats.h"
#include "model_config.h"
#include "rng.h"
#include "safetensors.h"
#include "weights.h"

/* The rows of a whole optimizer step, on one token axis. */
typedef struct model_batch {
    int64_t rows;
    int32_t *tokens, *targets;
    int64_t *positions, *doc_start;
} model_batch;

typedef struct model {
    ls_instance instance;
    const model_batch *batch;
    ls_loss_stats losses;
    ls_update_control *control;
} model;

/* A training step of the smallest decoder with grouped heads: two chunks of 5 and some rows. */
static inline ls_decoder_options tiny_options(int64_t V, int64_t L, int64_t S, int64_t accumulate)
{
    return (ls_decoder_options){
        .shape = {.V = V, .D = 16, .F = 24, .L = L, .H = 2, .G = 1, .K = 8, .eps = 1e-5f},
        .dtype = LS_DTYPE_BF16,
        .S = S,
        .sequences = 1,
        .accumulate = accumulate,
        .chunk = 5,
        .query_block = S,
        .loss_rows = 5,
        .train = true,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .adam_eps = 1e-8f,
        .weight_decay = 0.1f,
        .clip_norm = 1.0f};
}

static inline ls_status fill_model_batch(void *context, int64_t micro_batch)
{
    const model *m = context;
    const ls_decoder_inputs *in = &m->instance.decoder.inputs;
    const int64_t T = m->instance.decoder.options.S * m->instance.decoder.options.sequences;
    const int64_t first = micro_batch * T;
    const int64_t row = ls_decoder_batch_first(&m->instance.decoder, micro_batch);
    int32_t *tokens = ls_instance_tensor(&m->instance, in->tokens);
    int32_t *targets = ls_instance_tensor(&m->instance, in->targets);
    int64_t *positions = ls_instance_tensor(&m->instance, in->positions);
    int64_t *doc_start = ls_instance_tensor(&m->instance, in->doc_start);
    int64_t labels = 0;

    for (int64_t n = 0; n < m->batch->rows; n++) labels += m->batch->targets[n] >= 0;
    if (in->loss_scale >= 0)
        *(float *)ls_instance_tensor(&m->instance, in->loss_scale) =
            labels > 0 ? (float)(1.0 / (double)labels) : 0.0f;

    memcpy(tokens + row, m->batch->tokens + first, (size_t)T * sizeof *tokens);
    memcpy(targets + row, m->batch->targets + first, (size_t)T * sizeof *targets);
    memcpy(positions + row, m->batch->positions + first, (size_t)T * sizeof *positions);
    for (int64_t n = 0; n < T; n++) doc_start[row + n] = m->batch->doc_start[first + n] - first;
    return LS_OK;
}

static inline ls_status collect_model_losses(void *context, int64_t micro_batch)
{
    model *m = context;
    const ls_decoder_inputs *in = &m->instance.decoder.inputs;

    const int64_t row = ls_decoder_batch_first(&m->instance.decoder, micro_batch);
    const float *nll = ls_instance_tensor(&m->instance, in->nll);
    const int32_t *targets = ls_instance_tensor(&m->instance, in->targets);
    const int64_t *positions = ls_instance_tensor(&m->instance, in->positions);
    const ls_loss_rows rows = {.nll = nll + row,
                               .targets = targets + row,
                               .positions = positions + row,
                               .n = m->instance.decoder.options.S *
                                    m->instance.decoder.options.sequences,
                               .prefix = -1};
    ls_loss_stats_add(&m->losses, &rows);
    return LS_OK;
}

/* Open at its final address, as `how` says but for the calls; every byte of the arenas starts as
 * NaN. */
static inline void open_model_as(model *m, const ls_decoder_options *options,
                                 const model_batch *batch, double theta,
                                 const ls_instance_options *how)
{
    ls_instance_options instance = *how;
    instance.calls[LS_CALL_BATCH] = fill_model_batch;
    instance.calls[LS_CALL_LOSS] = collect_model_losses;
    memset(m, 0, sizeof *m);
    m->batch = batch;
    assert_int_equal(batch->rows, options->S * options->sequences * options->accumulate);
    if (ls_instance_open(options, &instance, &m->instance) != LS_OK) fail_msg("%s", ls_error());
    for (int32_t a = 0; a < m->instance.plan.n_arenas; a++)
        if (m->instance.arenas[a] != NULL) /* a GPU's is out of reach */
            memset(m->instance.bases[a], 0xff, m->instance.plan.arenas[a].bytes);
    assert_int_equal(
        ls_loss_stats_open(&(ls_loss_stats_options){.sequence_tokens = options->S}, &m->losses),
        LS_OK);
    ls_weights_rope_table(&m->instance, &(ls_rope_scaling){.theta = theta}, options->S);
    m->control = ls_instance_tensor(&m->instance, m->instance.decoder.inputs.control);
    *m->control = (ls_update_control){.beta1_power = 1.0, .beta2_power = 1.0};
    for (int32_t i = 0; i < m->instance.decoder.n_params; i++) {
        const ls_param *p = &m->instance.decoder.params[i];
        const int32_t moments[] = {p->m, p->v, p->m_scale, p->v_scale};
        for (int s = 0; s < 4; s++)
            if (moments[s] >= 0)
                memset(ls_instance_tensor(&m->instance, moments[s]), 0,
                       ls_tensor_bytes(&m->instance.decoder.tape.tensors[moments[s]]));
    }
}

static inline void open_model_threads(model *m, const ls_decoder_options *options,
                                      const model_batch *batch, double theta, int threads)
{
    const ls_instance_options how = {.compute_threads = threads, .optimizer_threads = threads};
    open_model_as(m, options, batch, theta, &how);
}

/* On one thread a lane: more would mostly wait for each other. */
static inline void open_model(model *m, const ls_decoder_options *options, const model_batch *batch,
                              double theta)
{
    open_model_threads(m, options, batch, theta, 1);
}

static inline void close_model(model *m)
{
    ls_loss_stats_close(&m->losses);
    ls_instance_close(&m->instance);
}

/* One step, as far as it gets. */
static inline ls_status run_model(model *m, double lr)
{
    m->control->lr = lr;
    ls_loss_stats_reset(&m->losses);
    return ls_instance_run(&m->instance, LS_SEGMENT_STEP, m);
}

/* One step; lr 0 leaves the weights alone (decay is multiplied by it too).  Returns the loss. */
static inline double step_model(model *m, double lr)
{
    assert_int_equal(run_model(m, lr), LS_OK);
    return ls_loss_stats_mean(&m->losses);
}

static inline const float *model_gradient(const model *m, int32_t param, int64_t *n)
{
    const int32_t grad = m->instance.decoder.params[param].grad;
    *n = ls_tensor_elements(&m->instance.decoder.tape.tensors[grad]);
    return ls_instance_tensor(&m->instance, grad);
}

static inline const char *model_param_name(const model *m, int32_t param)
{
    return m->instance.decoder.tape.tensors[m->instance.decoder.params[param].weight].name;
}

/* ||a - b|| and ||b|| */
static inline void measure_difference(const float *a, const float *b, int64_t n, double *difference,
                                      double *norm)
{
    double d = 0.0, s = 0.0;
    for (int64_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)b[i] * (double)b[i];
    }
    *difference = sqrt(d);
    *norm = sqrt(s);
}

/* The largest relative error of any parameter's gradient, with the floor of 1e-6 of the whole. */
static inline double compare_gradients(const model *a, const model *b)
{
    double worst = 0.0, whole = 0.0;

    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < a->instance.decoder.n_params; i++) {
            int64_t n, same;
            double difference, norm;
            const float *x = model_gradient(a, i, &n), *y = model_gradient(b, i, &same);
            assert_int_equal(n, same);
            measure_difference(x, y, n, &difference, &norm);
            if (pass == 0) {
                whole += norm * norm;
                continue;
            }
            const double floor_norm = 1e-6 * sqrt(whole);
            const double relative = difference / (norm > floor_norm ? norm : floor_norm);
            if (!(relative <= worst)) worst = relative;
        }
    return worst;
}

static inline void assert_same_gradients(const model *a, const model *b)
{
    for (int32_t i = 0; i < a->instance.decoder.n_params; i++) {
        int64_t n, same;
        const float *x = model_gradient(a, i, &n), *y = model_gradient(b, i, &same);
        assert_memory_equal(x, y, (size_t)n * sizeof *x);
    }
}

#endif
