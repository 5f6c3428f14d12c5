/*
 * trainer.c - steps and evaluations.
 *
 * The number of labels of the whole optimizer step is known before its first backward (the loader
 * counts without reading tokens), so every micro-batch scales its gradients by 1 / labels of the
 * step and accumulation is exact for uneven masks.
 */
#include "trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "choices.h"
#include "clock.h"
#include "directory.h"
#include "weights.h"

#define PATH_BYTES 4096

/* ---- callbacks, on the host lane ----------------------------------------------------------- */

static ls_loader_batch batch_tensors(const ls_trainer *t)
{
    const ls_decoder_inputs *in = &t->instance.decoder.inputs;
    return (ls_loader_batch){.tokens = ls_instance_tensor(&t->instance, in->tokens),
                             .targets = ls_instance_tensor(&t->instance, in->targets),
                             .positions = ls_instance_tensor(&t->instance, in->positions),
                             .doc_start = ls_instance_tensor(&t->instance, in->doc_start)};
}

/* Rows behind the last sequence of a short evaluation batch: each its own document, no label. */
static void pad_rows(const ls_loader_batch *batch, int64_t first, int64_t end)
{
    for (int64_t n = first; n < end; n++) {
        batch->tokens[n] = 0;
        batch->targets[n] = LS_TARGET_IGNORE;
        batch->positions[n] = 0;
        batch->doc_start[n] = n;
    }
}

static ls_status fill_batch(void *context, int64_t micro_batch)
{
    ls_trainer *t = context;
    const ls_decoder_options *o = &t->instance.decoder.options;
    const ls_loader_batch batch = batch_tensors(t);
    const int64_t first = micro_batch * o->sequences;
    const int64_t left = t->sequences_left - first;
    const ls_loader_range range = {.first_sequence = t->first_sequence + first,
                                   .n_sequences = left < o->sequences ? left : o->sequences};

    LS_TRY(ls_loader_fill(t->source, &range, &batch, NULL));
    pad_rows(&batch, range.n_sequences * o->S, o->sequences * o->S);
    return LS_OK;
}

static ls_status collect_losses(void *context, int64_t micro_batch)
{
    ls_trainer *t = context;
    const ls_decoder_inputs *in = &t->instance.decoder.inputs;
    const ls_decoder_options *o = &t->instance.decoder.options;

    (void)micro_batch;
    ls_loss_stats_add(t->collected, ls_instance_tensor(&t->instance, in->nll),
                      ls_instance_tensor(&t->instance, in->targets),
                      ls_instance_tensor(&t->instance, in->positions), o->S * o->sequences);
    return LS_OK;
}

static bool should_stop(void *context)
{
    const ls_trainer *t = context;
    if (t->options.stop != NULL && atomic_load(t->options.stop)) return true;
    return t->options.deadline > 0.0 &&
           ls_clock_epoch_seconds() + t->save_seconds > t->options.deadline;
}

/* ---- open, close --------------------------------------------------------------------------- */

/* A missing shard is most often one not made yet: say so before a bare "no such file". */
static ls_status check_shards(const ls_run_config *c, const ls_path_list *prefixes, bool valid)
{
    char path[PATH_BYTES];
    ls_path_kind kind;

    for (int64_t i = 0; i < prefixes->n_paths && c->format == LS_TOKENS_FORMAT_MEGATRON; i++) {
        snprintf(path, sizeof path, "%s.bin", prefixes->paths[i]);
        LS_TRY(ls_path_describe(path, &kind));
        if (kind == LS_PATH_ABSENT)
            return LS_FAIL(LS_ERR_INVALID,
                           "data.%s: %s does not exist; make it with longspan tokenize --out %s "
                           "PATH..., or name the PREFIX of a .bin and .idx",
                           valid ? "valid" : "train", path, prefixes->paths[i]);
    }
    return LS_OK;
}

static ls_status open_loader(const ls_trainer *t, bool valid, ls_loader **loader)
{
    const ls_run_config *c = t->config;
    const bool split = c->valid_fraction > 0.0;
    const ls_path_list *prefixes = valid && !split ? &c->valid : &c->train;
    const ls_loader_part part = valid ? LS_LOADER_PART_VALID : LS_LOADER_PART_TRAIN;
    const ls_loader_options options = {
        .prefixes = (const char *const *)prefixes->paths,
        .n_prefixes = prefixes->n_paths,
        .format = c->format,
        .sequence_tokens = c->sequence_tokens,
        .seed = c->seed,
        .shuffle = !valid,
        .check_ids = true,
        .documents = c->documents,
        .vocab_size = t->model->vocab_size,
        .valid_fraction = c->valid_fraction,
        .part = split ? part : LS_LOADER_PART_ALL,
        .document_tokens_min = valid ? 0 : c->min_document,
    };
    LS_TRY(check_shards(c, prefixes, valid && !split));
    return ls_loader_open(&options, loader);
}

static ls_status open_data(ls_trainer *t)
{
    if (t->options.train) LS_TRY(open_loader(t, false, &t->train_data));
    if (t->config->valid.n_paths > 0 || t->config->valid_fraction > 0.0)
        return open_loader(t, true, &t->valid_data);
    return LS_OK;
}

static ls_status open_parts(ls_trainer *t)
{
    const ls_instance_options instance = {.compute_threads = t->choices.compute_threads,
                                          .optimizer_threads = t->choices.optimizer_threads,
                                          .batch = fill_batch,
                                          .loss = collect_losses,
                                          .stop = should_stop,
                                          .context = t};
    const ls_decoder_options decoder =
        ls_choices_decoder(t->config, t->model, &t->choices, t->options.train);

    LS_TRY(open_data(t));
    LS_TRY(ls_instance_open(&decoder, &instance, &t->instance));
    ls_weights_rope_table(&t->instance, t->model->rope_theta);
    if (t->options.train) {
        t->control = ls_instance_tensor(&t->instance, t->instance.decoder.inputs.control);
        *t->control = (ls_update_control){.beta1_power = 1.0, .beta2_power = 1.0};
    }
    return LS_OK;
}

ls_status ls_trainer_open(const ls_run_config *config, const ls_model_config *model,
                          const ls_trainer_options *options, ls_trainer *trainer)
{
    memset(trainer, 0, sizeof *trainer);
    trainer->config = config;
    trainer->model = model;
    trainer->options = *options;
    if (options->choices != NULL)
        trainer->choices = *options->choices;
    else
        LS_TRY(ls_choices_make(config, model, options->train, &trainer->choices));
    trainer->options.choices = NULL;

    const ls_status status = open_parts(trainer);
    if (status != LS_OK) ls_trainer_close(trainer);
    return status;
}

void ls_trainer_close(ls_trainer *trainer)
{
    if (trainer == NULL) return;
    ls_instance_close(&trainer->instance);
    ls_loader_close(trainer->train_data);
    ls_loader_close(trainer->valid_data);
    memset(trainer, 0, sizeof *trainer);
}

ls_status ls_trainer_init_weights(ls_trainer *trainer)
{
    if (trainer->config->pretrained)
        return ls_weights_load(&trainer->instance, trainer->config->model_path);
    ls_weights_random(&trainer->instance, trainer->config->seed, trainer->model->initializer_range);
    return LS_OK;
}

/* ---- steps --------------------------------------------------------------------------------- */

static void finish_result(const ls_trainer *t, const ls_loss_stats *losses, ls_step_result *r)
{
    const ls_update_control *control = t->control;

    r->loss = ls_loss_stats_mean(losses);
    r->grad_norm = control->grad_norm;
    r->skipped = control->skip != 0;
    r->clipped = !r->skipped && control->coefficient < 1.0f;
    r->grad_norm_clipped = control->grad_norm * (double)control->coefficient;
    if (!r->clipped) r->grad_norm_clipped = r->grad_norm;
}

ls_status ls_trainer_step(ls_trainer *t, ls_loss_stats *losses, ls_step_result *result)
{
    const ls_run_config *c = t->config;
    const int64_t n_sequences = c->sequences * c->accumulate;
    const uint64_t start_ns = ls_clock_ns();
    const ls_loader_range range = {t->next_sequence, n_sequences, c->window};
    ls_loader_counts counts;

    LS_TRY(ls_loader_count(t->train_data, &range, &counts));
    t->source = t->train_data;
    t->first_sequence = t->next_sequence;
    t->sequences_left = n_sequences;
    t->collected = losses;
    ls_loss_stats_reset(losses);

    t->control->lr = ls_schedule_lr(&c->schedule, t->step + 1);
    t->control->loss_scale = counts.labels > 0 ? (float)(1.0 / (double)counts.labels) : 0.0f;
    LS_TRY(ls_instance_run(&t->instance, LS_SEGMENT_STEP));

    t->step++;
    t->next_sequence += n_sequences;
    t->tokens_total += counts.tokens;
    *result = (ls_step_result){.tokens = counts.tokens,
                               .labels = counts.labels,
                               .pairs = (double)counts.pairs,
                               .lr = t->control->lr,
                               .seconds = 1e-9 * (double)(ls_clock_ns() - start_ns)};
    finish_result(t, losses, result);
    return LS_OK;
}

ls_status ls_trainer_eval(ls_trainer *t, int64_t tokens, ls_loss_stats *losses)
{
    const int64_t S = t->config->sequence_tokens, sequences = t->config->sequences;
    const int64_t all = ls_loader_describe(t->valid_data).sequences_per_epoch;
    int64_t n = (tokens + S - 1) / S;

    if (n > all) n = all;
    ls_loss_stats_reset(losses);
    t->source = t->valid_data;
    t->collected = losses;
    for (int64_t first = 0; first < n; first += sequences) {
        t->first_sequence = first;
        t->sequences_left = n - first;
        LS_TRY(ls_instance_run(&t->instance, LS_SEGMENT_EVAL));
    }
    return LS_OK;
}

/* ---- counting ------------------------------------------------------------------------------ */

double ls_trainer_model_flops(const ls_trainer *t, int64_t tokens, double pairs)
{
    const ls_decoder_shape *s = &t->instance.decoder.options.shape;
    return 6.0 * (double)ls_decoder_matmul_params(s) * (double)tokens +
           12.0 * (double)(s->H * s->K * s->L) * pairs;
}

double ls_trainer_alst_flops(const ls_trainer *t, int64_t tokens)
{
    const ls_decoder_shape *s = &t->instance.decoder.options.shape;
    const double S = (double)t->config->sequence_tokens;
    return 8.0 * (double)ls_decoder_params(s) * (double)tokens +
           16.0 * (double)(s->L * s->D) * (double)tokens * S;
}
