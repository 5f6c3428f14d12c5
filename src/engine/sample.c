/*
 * sample.c - generation by whole forward passes over a short context.
 *
 * Each new token runs the evaluation segment over at most CONTEXT_TOKENS rows; when they are full
 * the older half is dropped.  Kernels run where the run's would, and write their logits into host
 * memory, from which tokens are drawn.  That is enough to look at what a model has learnt; it is no
 * serving path.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "choices.h"
#include "job.h"
#include "rng.h"
#include "run_warning.h"
#include "weights.h"

#define CONTEXT_TOKENS 512
#define SAMPLE_STREAM  0x73616d706c65u /* apart from the streams of weights and documents */

typedef struct sampler {
    ls_hardware hardware;
    ls_trainer trainer;
    int64_t window; /* rows of the context */
    int64_t n;      /* rows in use */
    int32_t context[CONTEXT_TOKENS];
} sampler;

static ls_status fill_context(void *context, int64_t micro_batch)
{
    const sampler *s = context;
    const ls_instance *instance = &s->trainer.instance;
    const ls_decoder_inputs *in = &instance->decoder.inputs;
    int32_t *tokens = ls_instance_tensor(instance, in->tokens);
    int32_t *targets = ls_instance_tensor(instance, in->targets);
    int64_t *positions = ls_instance_tensor(instance, in->positions);
    int64_t *doc_start = ls_instance_tensor(instance, in->doc_start);

    (void)micro_batch;
    for (int64_t i = 0; i < s->window; i++) {
        tokens[i] = i < s->n ? s->context[i] : 0;
        targets[i] = LS_TARGET_IGNORE;
        positions[i] = i < s->n ? i : 0;
        doc_start[i] = i < s->n ? 0 : i;
    }
    return LS_OK;
}

static bool asked_to_stop(void *context)
{
    const sampler *s = context;
    return s->trainer.options.stop != NULL && atomic_load(s->trainer.options.stop);
}

/* Of the run one context; its logits, which the host draws from, where the host can read them. */
static ls_run_config describe_context(const ls_run_config *config, int64_t window)
{
    ls_run_config context = *config; /* a view: nothing of it is released */

    context.sequence_tokens = context.chunk = context.query_block = window;
    context.sequences = context.accumulate = 1;
    context.places[LS_CLASS_LOGITS] = 1 + LS_PLACE_HOST;
    return context;
}

static ls_status open_instance(sampler *s, const ls_run_config *context)
{
    const ls_hardware *hardware = &s->hardware;
    ls_choices *choices = &s->trainer.choices;
    ls_plan_limits limits;

    LS_TRY(ls_choices_make(context, s->trainer.model, hardware, false, choices));
    choices->loss_rows = s->window; /* one tile: its last row is the one to draw from */
    memcpy(limits.place_bytes, hardware->available_bytes, sizeof limits.place_bytes);
    const ls_decoder_options decoder =
        ls_choices_decoder(context, s->trainer.model, choices, false);
    const ls_instance_options instance = {.compute_threads = choices->compute_threads,
                                          .calls = {[LS_CALL_BATCH] = fill_context},
                                          .stop = asked_to_stop,
                                          .stop_context = s,
                                          .open_device = hardware->open_device,
                                          .placement = &choices->placement,
                                          .limits = &limits,
                                          .in_bytes_per_s = hardware->in_bytes_per_s,
                                          .out_bytes_per_s = hardware->out_bytes_per_s,
                                          .bind = hardware->host_node >= 0,
                                          .host_node = hardware->host_node,
                                          .nvme_path = hardware->nvme_path};
    return ls_instance_open(&decoder, &instance, &s->trainer.instance);
}

static ls_status open_sampler(sampler *s, const ls_run_config *config, const ls_model_config *model,
                              const ls_job_options *options)
{
    LS_TRY(ls_hardware_open(config->hardware, true, &s->hardware));
    if (!options->quiet) ls_run_warnings_print(config, &s->hardware);
    s->window = config->sequence_tokens < CONTEXT_TOKENS ? config->sequence_tokens : CONTEXT_TOKENS;
    s->trainer.config = config;
    s->trainer.model = model;
    s->trainer.options.stop = options->stop;
    const ls_run_config context = describe_context(config, s->window);
    LS_TRY(open_instance(s, &context));
    if (!options->quiet)
        fprintf(stderr, "sampling on %s\n", ls_device_name(s->trainer.instance.device));
    ls_weights_rope_table(&s->trainer.instance, &model->rope_scaling, config->sequence_tokens);
    return LS_OK;
}

static void append(sampler *s, int32_t token)
{
    if (s->n == s->window) {
        s->n = s->window / 2;
        memmove(s->context, s->context + s->window - s->n, (size_t)s->n * sizeof *s->context);
    }
    s->context[s->n++] = token;
}

/* Draw from softmax(logits) by one uniform number. */
static int32_t draw(const float *logits, int64_t V, double uniform)
{
    double sum = 0.0, largest = -INFINITY;

    for (int64_t v = 0; v < V; v++)
        if ((double)logits[v] > largest) largest = (double)logits[v];
    for (int64_t v = 0; v < V; v++) sum += exp((double)logits[v] - largest);
    double left = uniform * sum;
    for (int64_t v = 0; v < V; v++) {
        left -= exp((double)logits[v] - largest);
        if (left < 0.0) return (int32_t)v;
    }
    return (int32_t)(V - 1);
}

static ls_status generate(sampler *s, const ls_sample_request *request)
{
    const ls_instance *instance = &s->trainer.instance;
    const int64_t V = s->trainer.model->vocab_size;
    const float *logits = ls_instance_tensor(instance, instance->decoder.inputs.logits);

    for (int64_t i = 0; i < request->n_prompt; i++) {
        if (request->prompt[i] < 0 || request->prompt[i] >= V)
            return LS_FAIL(LS_ERR_INVALID, "--prompt: token %d is outside the vocabulary of %lld",
                           request->prompt[i], (long long)V);
        append(s, request->prompt[i]);
    }
    for (int64_t i = 0; i < request->n_tokens; i++) {
        LS_TRY(ls_instance_run(&s->trainer.instance, LS_SEGMENT_EVAL, s));
        const double uniform = ls_rng_uniform(s->trainer.config->seed, SAMPLE_STREAM, (uint64_t)i);
        const int32_t token = draw(logits + (s->n - 1) * V, V, uniform);
        if (token == request->end_token) break;
        request->sink(request->context, token);
        append(s, token);
    }
    return LS_OK;
}

ls_status ls_job_sample(const ls_run_config *config, const ls_model_config *model,
                        const ls_sample_request *request, const ls_job_options *options)
{
    static sampler s; /* large; one job at a time */

    memset(&s, 0, sizeof s);
    if (request->n_prompt < 1)
        return LS_FAIL(LS_ERR_INVALID, "--prompt: want at least one token to continue");
    ls_status status = open_sampler(&s, config, model, options);
    if (status == LS_OK) status = ls_job_load(&s.trainer, request->checkpoint, options);
    if (status == LS_OK) status = generate(&s, request);
    ls_instance_close(&s.trainer.instance);
    ls_hardware_close(&s.hardware);
    return status;
}
