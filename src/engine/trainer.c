/*
 * trainer.c - steps, evaluations and saves, as segments of the plan.
 *
 * The number of labels of the whole optimizer step is known before its first backward (the loader
 * counts without reading tokens), so every micro-batch scales its gradients by 1 / labels of the
 * step and accumulation is exact for uneven masks.
 */
#include "trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint.h"
#include "checkpoint_dir.h"
#include "choices.h"
#include "clock.h"
#include "directory.h"

#define PATH_BYTES 4096

/* ---- calls of the plan, on the lanes' threads ---------------------------------------------- */

static ls_loader_batch batch_tensors(const ls_trainer *t, int64_t micro_batch)
{
    const ls_decoder_inputs *in = &t->instance.decoder.inputs;
    const int64_t first = ls_decoder_batch_first(&t->instance.decoder, micro_batch);
    int32_t *tokens = ls_instance_tensor(&t->instance, in->tokens);
    int32_t *targets = ls_instance_tensor(&t->instance, in->targets);
    int64_t *positions = ls_instance_tensor(&t->instance, in->positions);
    int64_t *doc_start = ls_instance_tensor(&t->instance, in->doc_start);

    return (ls_loader_batch){.tokens = tokens + first,
                             .targets = targets + first,
                             .positions = positions + first,
                             .doc_start = doc_start + first};
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

/* What must be known of the whole step before its first batch. */
static ls_status start_step(ls_trainer_job *job)
{
    ls_trainer *t = job->trainer;
    const ls_run_config *c = t->config;
    const ls_loader_range range = {job->first_sequence, c->sequences * c->accumulate,
                                   t->model->sliding_window};

    job->start_ns = ls_clock_ns();
    atomic_store(&t->working_since_ns, job->start_ns);
    atomic_store(&t->working_step, job->source == t->train_data ? job->step + 1 : job->step);
    if (job->source != t->train_data) return LS_OK;
    LS_TRY(ls_loader_count(job->source, &range, &job->counts));
    const int64_t labels = job->counts.labels;
    *t->loss_scale = labels > 0 ? (float)(1.0 / (double)labels) : 0.0f;
    return LS_OK;
}

ls_loader_range ls_trainer_batch_range(const ls_trainer_job *job, int64_t micro_batch)
{
    const int64_t sequences = job->trainer->instance.decoder.options.sequences;
    const int64_t first = micro_batch * sequences, left = job->sequences_left - first;

    return (ls_loader_range){.first_sequence = job->first_sequence + first,
                             .n_sequences = left < sequences ? left : sequences};
}

static ls_status fill_batch(void *context, int64_t micro_batch)
{
    ls_trainer_job *job = context;
    const ls_trainer *t = job->trainer;
    const ls_decoder_options *o = &t->instance.decoder.options;
    const ls_loader_batch batch = batch_tensors(t, micro_batch);
    const ls_loader_range range = ls_trainer_batch_range(job, micro_batch);

    if (micro_batch == 0) LS_TRY(start_step(job));
    LS_TRY(ls_loader_fill(job->source, &range, &batch, NULL));
    pad_rows(&batch, range.n_sequences * o->S, o->sequences * o->S);
    return LS_OK;
}

/* Where the losses of a micro-batch go, and where they are. */
typedef struct collection {
    ls_loss_stats *losses;
    const float *nll; /* [rows of the micro-batch], as the others */
    const int32_t *targets;
    const int64_t *positions;
} collection;

static void collect_piece(void *context, const ls_loader_piece *piece)
{
    const collection *c = context;
    const ls_loss_rows rows = {.nll = c->nll + piece->row,
                               .targets = c->targets + piece->row,
                               .positions = c->positions + piece->row,
                               .n = piece->n,
                               .prefix = piece->source};
    ls_loss_stats_add(c->losses, &rows);
}

static ls_status collect_losses(void *context, int64_t micro_batch)
{
    const ls_trainer_job *job = context;
    const ls_trainer *t = job->trainer;
    const ls_decoder_inputs *in = &t->instance.decoder.inputs;
    const int64_t first = ls_decoder_batch_first(&t->instance.decoder, micro_batch);
    const ls_loader_range range = ls_trainer_batch_range(job, micro_batch);
    const float *nll = ls_instance_tensor(&t->instance, in->nll);
    const int32_t *targets = ls_instance_tensor(&t->instance, in->targets);
    const int64_t *positions = ls_instance_tensor(&t->instance, in->positions);
    collection c = {job->losses, nll + first, targets + first, positions + first};

    return ls_loader_visit(job->source, &range, &(ls_loader_visitor){collect_piece, &c});
}

static ls_status set_rate(void *context, int64_t chunk)
{
    const ls_trainer_job *job = context;
    (void)chunk;
    job->trainer->control->lr = job->lr;
    return LS_OK;
}

/* Lane times since the step before; evaluations in between are not the step's. */
static void take_lane_times(ls_trainer *t, ls_step_result *r)
{
    for (int lane = 0; lane < LS_LANE_COUNT; lane++) {
        const ls_lane_stats stats = ls_device_stats(t->instance.device, lane);
        if (r != NULL) {
            r->lane_busy_s[lane] = 1e-9 * (double)(stats.busy_ns - t->lane_busy_ns[lane]);
            r->copied_bytes[lane] = stats.copied_bytes - t->lane_copied_bytes[lane];
        }
        t->lane_busy_ns[lane] = stats.busy_ns;
        t->lane_copied_bytes[lane] = stats.copied_bytes;
    }
}

/* A step begins where the one before was complete, or, after a pause, with its first batch. */
static double take_step_seconds(ls_trainer *t, const ls_trainer_job *job)
{
    const uint64_t now = ls_clock_ns();
    const uint64_t start = t->reported_ns > job->start_ns ? t->reported_ns : job->start_ns;
    t->reported_ns = now;
    return 1e-9 * (double)(now - start);
}

static ls_status report_step(void *context, int64_t chunk)
{
    const ls_trainer_job *job = context;
    ls_trainer *t = job->trainer;
    const ls_update_control *control = t->control;
    t->tokens_total += job->counts.tokens;
    ls_step_result r = {.step = job->step + 1,
                        .tokens = job->counts.tokens,
                        .tokens_total = t->tokens_total,
                        .labels = job->counts.labels,
                        .skipped_in_a_row = control->skipped_in_a_row,
                        .pairs = (double)job->counts.pairs,
                        .seconds = take_step_seconds(t, job),
                        .loss = ls_loss_stats_mean(&t->losses),
                        .grad_norm = control->grad_norm,
                        .lr = job->lr,
                        .skipped = control->skip != 0};
    ls_status status = LS_OK;

    (void)chunk;
    r.clipped = !r.skipped && control->coefficient < 1.0f;
    r.grad_norm_clipped =
        r.clipped ? control->grad_norm * (double)control->coefficient : control->grad_norm;
    take_lane_times(t, &r);
    atomic_store(&t->step_seconds, r.seconds);
    atomic_store(&t->last_loss, r.loss);
    if (atomic_load(&t->hopeless_step) > 0) return LS_OK;
    if (control->skipped_in_a_row > t->config->skip_nonfinite_max)
        atomic_store(&t->hopeless_step, r.step);
    if (t->options.events.step != NULL)
        status = t->options.events.step(t->options.events.context, &r, &t->losses);
    ls_loss_stats_reset(&t->losses);
    return status;
}

static ls_status begin_save(void *context, int64_t chunk)
{
    const ls_trainer_job *job = context;
    ls_trainer *t = job->trainer;
    const ls_position position = {.step = job->step,
                                  .next_sequence = job->next_sequence,
                                  .tokens_total = t->tokens_total,
                                  .control = *t->control};

    (void)chunk;
    t->save_start_ns = ls_clock_ns();
    return ls_checkpoint_save_begin(t, &position, t->options.config_json, &t->saver);
}

static ls_status save_tensor(void *context, int64_t tensor)
{
    const ls_trainer_job *job = context;
    return ls_checkpoint_save_tensor(job->trainer->saver, (int32_t)tensor);
}

static ls_status end_save(void *context, int64_t chunk)
{
    const ls_trainer_job *job = context;
    ls_trainer *t = job->trainer;
    struct ls_checkpoint_saver *saver = t->saver;

    (void)chunk;
    t->saver = NULL;
    LS_TRY(ls_checkpoint_save_end(saver));
    const double seconds = 1e-9 * (double)(ls_clock_ns() - t->save_start_ns);
    atomic_store(&t->save_seconds, seconds);
    if (t->options.events.saved == NULL) return LS_OK;
    return t->options.events.saved(t->options.events.context, job->step, seconds);
}

static bool should_stop(void *context)
{
    ls_trainer *t = context;
    if (t->options.stop != NULL && atomic_load(t->options.stop)) return true;
    if (atomic_load(&t->hopeless_step) > 0) return true;
    return t->options.deadline > 0.0 &&
           ls_clock_epoch_seconds() + atomic_load(&t->save_seconds) > t->options.deadline;
}

/* ---- open, close --------------------------------------------------------------------------- */

/* A missing shard is most often one not made yet: say so before a bare "no such file". */
static ls_status check_shards(const ls_run_config *c, const ls_path_list *prefixes, bool valid)
{
    const bool megatron = c->format == LS_TOKENS_FORMAT_MEGATRON;
    const char *const suffixes[] = {".bin", ".idx"};
    char path[PATH_BYTES];
    ls_path_kind kind;

    for (int64_t i = 0; i < prefixes->n_paths; i++)
        for (int s = 0; s < (megatron ? 2 : 1); s++) {
            snprintf(path, sizeof path, "%s%s", prefixes->paths[i], suffixes[s]);
            LS_TRY(ls_path_describe(path, &kind));
            if (kind == LS_PATH_ABSENT && !megatron) /* or with its whole name */
                LS_TRY(ls_path_describe(prefixes->paths[i], &kind));
            if (kind != LS_PATH_ABSENT) continue;
            return LS_FAIL(LS_ERR_INVALID,
                           "data.%s: %s does not exist; make it with longspan tokenize --out %s "
                           "PATH..., or name the PREFIX of %s",
                           valid ? "valid" : "train", path, prefixes->paths[i],
                           megatron ? "a .bin and .idx" : "a .bin of tokens");
        }
    return LS_OK;
}

/* Held out is data of its own, or a part of the training data. */
static const ls_path_list *choose_prefixes(const ls_run_config *c, bool valid)
{
    return valid && !(c->valid_fraction > 0.0) ? &c->valid : &c->train;
}

ls_status ls_trainer_losses_open(const ls_run_config *config, bool valid, ls_loss_stats *losses)
{
    const ls_path_list *prefixes = choose_prefixes(config, valid);
    const ls_loss_stats_options options = {.sequence_tokens = config->sequence_tokens,
                                           .linear_bins = (int)config->position_bins_count,
                                           .prefixes = (const char *const *)prefixes->paths,
                                           .n_prefixes = prefixes->n_paths};
    return ls_loss_stats_open(&options, losses);
}

static ls_status check_labels(const ls_loader *loader, const ls_path_list *prefixes, bool valid)
{
    if (ls_loader_describe(loader).longest > 1) return LS_OK;
    return LS_FAIL(LS_ERR_INVALID,
                   "data.%s: no document of %s%s has two tokens, so there is none to predict; name "
                   "longer documents",
                   valid ? "valid" : "train", prefixes->paths[0],
                   prefixes->n_paths > 1 ? ", ..." : "");
}

static ls_status open_loader(const ls_trainer *t, bool valid, ls_loader **loader)
{
    const ls_run_config *c = t->config;
    const bool split = c->valid_fraction > 0.0;
    const ls_path_list *prefixes = choose_prefixes(c, valid);
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
        .separate_sources = valid,
    };
    LS_TRY(check_shards(c, prefixes, valid && !split));
    LS_TRY(ls_loader_open(&options, loader));
    return check_labels(*loader, prefixes, valid);
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
    const ls_hardware *hardware = t->options.hardware;
    ls_plan_limits limits;
    ls_instance_options instance = {.compute_threads = t->choices.compute_threads,
                                    .optimizer_threads = t->choices.optimizer_threads,
                                    .calls = {[LS_CALL_BATCH] = fill_batch,
                                              [LS_CALL_LOSS] = collect_losses,
                                              [LS_CALL_SCHEDULE] = set_rate,
                                              [LS_CALL_REPORT] = report_step,
                                              [LS_CALL_SAVE_BEGIN] = begin_save,
                                              [LS_CALL_SAVE] = save_tensor,
                                              [LS_CALL_SAVE_END] = end_save},
                                    .stop = should_stop,
                                    .stop_context = t,
                                    .one_document = ls_trainer_holds_one_document};
    const ls_decoder_options decoder =
        ls_choices_decoder(t->config, t->model, &t->choices, t->options.train);

    if (hardware != NULL) {
        memcpy(limits.place_bytes, hardware->available_bytes, sizeof limits.place_bytes);
        instance.open_device = hardware->open_device;
        instance.placement = &t->choices.placement;
        instance.limits = &limits;
        instance.in_bytes_per_s = hardware->in_bytes_per_s;
        instance.out_bytes_per_s = hardware->out_bytes_per_s;
        instance.touch_threads = ls_cpu_threads();
        instance.bind = hardware->host_node >= 0;
        instance.host_node = hardware->host_node;
        instance.nvme_path = hardware->nvme_path;
    }
    LS_TRY(open_data(t));
    LS_TRY(ls_instance_open(&decoder, &instance, &t->instance));
    ls_weights_rope_table(&t->instance, &t->model->rope_scaling, t->config->sequence_tokens);
    if (!t->options.train) return LS_OK;
    LS_TRY(ls_companions_read(t->config->model_path, &t->companions));
    t->control = ls_instance_tensor(&t->instance, t->instance.decoder.inputs.control);
    t->loss_scale = ls_instance_tensor(&t->instance, t->instance.decoder.inputs.loss_scale);
    *t->control = (ls_update_control){.beta1_power = 1.0, .beta2_power = 1.0};
    return ls_trainer_losses_open(t->config, false, &t->losses);
}

ls_status ls_trainer_open(const ls_run_config *config, const ls_model_config *model,
                          const ls_trainer_options *options, ls_trainer *trainer)
{
    memset(trainer, 0, sizeof *trainer);
    trainer->config = config;
    trainer->model = model;
    trainer->options = *options;
    atomic_store(&trainer->last_loss, (double)NAN);
    if (options->choices != NULL)
        trainer->choices = *options->choices;
    else
        LS_TRY(
            ls_choices_make(config, model, options->hardware, options->train, &trainer->choices));
    trainer->options.choices = NULL;

    const ls_status status = open_parts(trainer);
    if (status != LS_OK) ls_trainer_close(trainer);
    return status;
}

void ls_trainer_close(ls_trainer *trainer)
{
    if (trainer == NULL) return;
    ls_instance_close(&trainer->instance);
    ls_checkpoint_save_abort(trainer->saver);
    ls_loader_close(trainer->train_data);
    ls_loader_close(trainer->valid_data);
    ls_companions_free(&trainer->companions);
    ls_loss_stats_close(&trainer->losses);
    memset(trainer, 0, sizeof *trainer);
}

ls_status ls_trainer_init_weights(ls_trainer *trainer, ls_weights_report *loaded)
{
    *loaded = (ls_weights_report){.n_tensors = 0};
    if (trainer->config->init == LS_INIT_OPTIMIZER)
        return ls_checkpoint_carry(trainer, trainer->config->model_path);
    if (trainer->config->init == LS_INIT_PRETRAINED) {
        LS_TRY(ls_checkpoint_verify_if_any(trainer->config->model_path, NULL));
        return ls_weights_load(&trainer->instance, trainer->config->model_path, loaded);
    }
    ls_weights_random(&trainer->instance, trainer->config->seed, trainer->model->initializer_range);
    return ls_instance_fill_copies(&trainer->instance);
}

/* ---- segments ------------------------------------------------------------------------------ */

/* A job for the next segment, as soon as one is free. */
static ls_trainer_job *take_job(ls_trainer *t, ls_loader *source, ls_loss_stats *losses)
{
    ls_trainer_job *job = &t->jobs[t->n_jobs++ % LS_TRAINER_JOBS];

    ls_instance_wait(&t->instance, &job->end);
    *job = (ls_trainer_job){.trainer = t,
                            .source = source,
                            .losses = losses,
                            .step = t->step,
                            .next_sequence = t->next_sequence};
    return job;
}

static ls_status submit(ls_trainer *t, ls_segment_kind segment, ls_trainer_job *job)
{
    const ls_status status = ls_instance_submit(&t->instance, segment, job);
    job->end = ls_instance_mark(&t->instance);
    if (status == LS_ERR_STOPPED) { /* the state that was being saved can be saved again */
        ls_checkpoint_save_abort(t->saver);
        t->saver = NULL;
    }
    return status;
}

ls_status ls_trainer_submit_step(ls_trainer *t, bool save)
{
    const ls_run_config *c = t->config;
    const int64_t n_sequences = c->sequences * c->accumulate;
    ls_trainer_job *job = take_job(t, t->train_data, &t->losses);

    job->first_sequence = t->next_sequence;
    job->sequences_left = n_sequences;
    job->lr = ls_schedule_lr(&c->schedule, t->step + 1);
    LS_TRY(submit(t, save ? LS_SEGMENT_STEP_SAVE : LS_SEGMENT_STEP, job));
    t->step++;
    t->next_sequence += n_sequences;
    return LS_OK;
}

ls_status ls_trainer_drain(ls_trainer *t)
{
    ls_trainer_job *job = take_job(t, NULL, NULL);

    t->instance.executor.stop = NULL; /* what is left is the save that a stop asks for */
    LS_TRY(submit(t, LS_SEGMENT_DRAIN, job));
    return ls_trainer_sync(t);
}

ls_status ls_trainer_sync(ls_trainer *t)
{
    return ls_instance_sync(&t->instance);
}

ls_status ls_trainer_eval(ls_trainer *t, int64_t tokens, ls_loss_stats *losses)
{
    const int64_t S = t->config->sequence_tokens, sequences = t->config->sequences;
    const int64_t all = ls_loader_describe(t->valid_data).sequences_per_epoch;
    int64_t n = (tokens + S - 1) / S;

    if (n > all) n = all;
    LS_TRY(ls_trainer_sync(t));
    ls_loss_stats_reset(losses);
    for (int64_t first = 0; first < n; first += sequences) {
        ls_trainer_job *job = take_job(t, t->valid_data, losses);
        job->first_sequence = first;
        job->sequences_left = n - first;
        LS_TRY(submit(t, LS_SEGMENT_EVAL, job));
    }
    LS_TRY(ls_trainer_sync(t));
    take_lane_times(t, NULL);
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
