/*
 * choices.c - closed rules for the CPU device.
 *
 * A chunk of 2,048 rows keeps the dense work near the caches; query blocks are larger, because
 * attention finds its own tiles and more rows mean more work to share between threads.
 */
#include "choices.h"

#include <fnmatch.h>

#include "host_memory.h"

#define CHUNK_ROWS 2048

/* Calls of a tape for each chunk of a layer and each tile of logits, over all segments, and bytes
 * that tape and plan need for each (measured: 123, 16 and 1,060). */
#define CALLS_PER_CHUNK 128.0
#define CALLS_PER_TILE  16.0
#define BYTES_PER_CALL  1100.0
#define PLAN_BYTES_MAX  0x1p34

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* lr_scale and frozen of the groups whose glob matches; later groups win. */
static void apply_groups(void *context, const char *name, ls_param *param)
{
    const ls_run_config *config = context;
    for (int64_t g = 0; g < config->n_groups; g++) {
        const ls_run_group *group = &config->groups[g];
        if (fnmatch(group->match, name, 0) != 0) continue;
        param->frozen = group->frozen;
        param->lr_scale = (float)group->lr_scale;
    }
}

ls_decoder_options ls_choices_decoder(const ls_run_config *c, const ls_model_config *m,
                                      const ls_choices *choices, bool train)
{
    return (ls_decoder_options){.shape = {.V = m->vocab_size,
                                          .D = m->hidden_size,
                                          .F = m->intermediate_size,
                                          .L = m->num_hidden_layers,
                                          .H = m->num_attention_heads,
                                          .G = m->num_key_value_heads,
                                          .K = m->head_dim,
                                          .eps = (float)m->rms_norm_eps,
                                          .tied = m->tie_word_embeddings},
                                .dtype = c->precision,
                                .S = c->sequence_tokens,
                                .sequences = c->sequences,
                                .accumulate = c->accumulate,
                                .layer_major = choices->layer_major,
                                .chunk = choices->chunk,
                                .query_block = choices->query_block,
                                .key_block = choices->query_block,
                                .loss_rows = choices->loss_rows,
                                .window = c->window,
                                .train = train,
                                .save_o = choices->save_o,
                                .save_qkv = choices->save_qkv,
                                .beta1 = (float)c->beta1,
                                .beta2 = (float)c->beta2,
                                .adam_eps = (float)c->eps,
                                .weight_decay = (float)c->weight_decay,
                                .clip_norm = (float)c->clip_norm,
                                .param_rule = apply_groups,
                                .param_context = (void *)c};
}

/* Bytes of a place under these choices. */
static ls_status measure_plan(const ls_decoder_options *options, const ls_placement *placement,
                              ls_place_kind place, uint64_t *bytes)
{
    ls_decoder decoder;
    ls_plan plan;

    LS_TRY(ls_decoder_build(options, &decoder));
    const ls_status status = ls_plan_lower(&decoder.tape, placement, &ls_ops_cpu, &plan);
    if (status == LS_OK) {
        *bytes = ls_plan_place_bytes(&plan, place);
        ls_plan_free(&plan);
    }
    ls_decoder_free(&decoder);
    return status;
}

/* Host memory of the hardware; NULL: of this machine. */
static ls_host_memory read_memory(const ls_hardware *hardware)
{
    if (hardware == NULL) return ls_host_memory_read();
    return (ls_host_memory){.available_bytes = hardware->available_bytes[LS_PLACE_HOST],
                            .limit = hardware->limit};
}

/* The residual stream alone: training keeps that of every layer, evaluation that of one. */
static double count_residual_bytes(const ls_run_config *config, const ls_model_config *model,
                                   bool train)
{
    const double layers = train ? (double)model->num_hidden_layers : 1.0;
    return layers * (double)config->sequence_tokens * (double)config->sequences *
           (double)model->hidden_size * (double)ls_dtype_bytes(config->precision);
}

static ls_status choose_save(const ls_run_config *config, const ls_model_config *model,
                             uint64_t available_bytes, ls_choices *choices)
{
    static const struct {
        bool o, qkv;
    } policies[] = {{true, true}, {true, false}, {false, false}};
    const uint64_t limit = available_bytes / 2;

    /* No need to build long plans that save more than what is already too much. */
    if (count_residual_bytes(config, model, true) > (double)limit) return LS_OK;
    for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
        uint64_t bytes;
        choices->save_o = policies[p].o;
        choices->save_qkv = policies[p].qkv;
        const ls_decoder_options options = ls_choices_decoder(config, model, choices, true);
        LS_TRY(measure_plan(&options, NULL, LS_PLACE_HOST, &bytes));
        if (bytes <= limit) break;
    }
    return LS_OK;
}

/* Refuse what cannot fit whatever is chosen, before such a plan is built. */
static ls_status check_residuals(const ls_run_config *config, const ls_model_config *model,
                                 const ls_hardware *hardware, bool train)
{
    const ls_host_memory memory = read_memory(hardware);
    const double bytes = count_residual_bytes(config, model, train);

    if (bytes <= (double)memory.available_bytes) return LS_OK;
    return LS_FAIL(LS_ERR_NO_MEMORY,
                   "host memory: the residual stream of %lld sequences of %lld tokens alone needs "
                   "%.3f GiB, %s leaves %.3f GiB; lower sequence.tokens or batch.sequences",
                   (long long)config->sequences, (long long)config->sequence_tokens, bytes / 0x1p30,
                   memory.limit, (double)memory.available_bytes / 0x1p30);
}

/* Refuse a plan that would itself fill the memory. */
static ls_status check_plan_size(const ls_run_config *config, const ls_model_config *model,
                                 const ls_choices *choices)
{
    const double T = (double)(config->sequence_tokens * config->sequences);
    const double chunks = T / (double)choices->chunk * (double)model->num_hidden_layers;
    const double tiles = T / (double)choices->loss_rows;
    const double steps =
        (double)config->accumulate * (CALLS_PER_CHUNK * chunks + CALLS_PER_TILE * tiles);
    const double bytes = steps * BYTES_PER_CALL;
    const double room = (double)ls_host_memory_read().available_bytes / 4.0;

    if (bytes <= room && bytes <= PLAN_BYTES_MAX) return LS_OK;
    return LS_FAIL(LS_ERR_NO_MEMORY,
                   "sequence.chunk: in chunks of %lld the plan of %.0f tokens would have about "
                   "%.0f million steps and itself need %.1f GiB; raise sequence.chunk or lower "
                   "sequence.tokens",
                   (long long)choices->chunk, T, 1e-6 * steps, bytes / 0x1p30);
}

/* ---- placement ----------------------------------------------------------------------------- */

static ls_placement_wish make_wish(const ls_run_config *config)
{
    static const ls_place_mode modes[] = {[LS_WEIGHTS_RESIDENT] = LS_MODE_RESIDENT,
                                          [LS_WEIGHTS_DIRECT] = LS_MODE_DIRECT,
                                          [LS_WEIGHTS_STREAM] = LS_MODE_STREAM};
    ls_placement_wish wish = {.ring_slots = config->ring_slots};

    if (config->weights != LS_WEIGHTS_AUTO) {
        wish.weights_given = true;
        wish.weights = modes[config->weights];
    }
    for (int c = 0; c < LS_CLASS_COUNT; c++) {
        wish.place_given[c] = config->places[c] > 0;
        if (wish.place_given[c]) wish.places[c] = (ls_place_kind)(config->places[c] - 1);
    }
    return wish;
}

/* How many blocks are kept: the inputs of a block of queries stay while it is at work. */
static ls_status set_tiles(ls_choices *choices)
{
    ls_placement *p = &choices->placement;
    const bool cut = p->tiled[LS_CLASS_X] || p->tiled[LS_CLASS_O] || p->tiled[LS_CLASS_KV] ||
                     p->tiled[LS_CLASS_DKV];

    if (cut && choices->query_block % choices->chunk != 0)
        return LS_FAIL(LS_ERR_INVALID,
                       "sequence.query_block: %lld is no multiple of sequence.chunk %lld, so "
                       "activations cannot pass through device memory in blocks",
                       (long long)choices->query_block, (long long)choices->chunk);
    p->tiles[LS_CLASS_X] = choices->query_block / choices->chunk + 1;
    return LS_OK;
}

ls_status ls_choices_place(const ls_run_config *config, const ls_model_config *model,
                           const ls_hardware *hardware, bool train, bool frozen,
                           ls_choices *choices)
{
    const ls_topology *machine =
        hardware != NULL && hardware->has_device ? hardware->topology : NULL;
    /* What costs least first. */
    static const struct {
        bool stream;
        ls_placement_cut cut;
    } attempts[] = {{false, LS_CUT_NONE},
                    {false, LS_CUT_X_O},
                    {true, LS_CUT_X_O},
                    {false, LS_CUT_X_O_KV},
                    {true, LS_CUT_X_O_KV}};
    ls_placement_wish wish = make_wish(config);
    uint64_t bytes;

    if (frozen && machine != NULL) {
        wish.weights_given = true;
        wish.weights = choices->placement.classes[LS_CLASS_WEIGHTS].mode;
        wish.ring_slots = choices->placement.ring_slots;
    }
    for (size_t i = 0;; i++) {
        wish.weights_too_large = attempts[i].stream;
        wish.cut = attempts[i].cut;
        LS_TRY(ls_placement_decide(machine, &wish, &choices->placement));
        LS_TRY(set_tiles(choices));
        if (machine == NULL || i + 1 == sizeof attempts / sizeof attempts[0]) return LS_OK;
        const ls_decoder_options options = ls_choices_decoder(config, model, choices, train);
        LS_TRY(measure_plan(&options, &choices->placement, LS_PLACE_HBM, &bytes));
        if (bytes <= hardware->available_bytes[LS_PLACE_HBM]) return LS_OK;
    }
}

/* ---- all of them --------------------------------------------------------------------------- */

ls_status ls_choices_make_any(const ls_run_config *config, const ls_model_config *model,
                              const ls_hardware *hardware, bool train, ls_choices *choices)
{
    const int64_t T = config->sequence_tokens * config->sequences;
    ls_choices made = {.compute_threads = (int)config->compute_threads,
                       .optimizer_threads = (int)config->optimizer_threads};

    made.query_block = config->query_block > 0 ? config->query_block : LS_QUERY_BLOCK_ROWS;
    made.query_block = smaller(made.query_block, T);
    made.chunk = config->chunk > 0 ? config->chunk : CHUNK_ROWS;
    made.chunk = smaller(made.chunk, made.query_block);
    made.loss_rows = ls_decoder_loss_rows(model->vocab_size, made.chunk);
    LS_TRY(check_plan_size(config, model, &made));
    made.layer_major = config->accumulate_order == 2 && config->accumulate > 1;
    made.save_o = config->save == LS_SAVE_X_O || config->save == LS_SAVE_X_QKV_O;
    made.save_qkv = config->save == LS_SAVE_X_QKV_O;
    if (train && config->save == LS_SAVE_AUTO)
        LS_TRY(choose_save(config, model, read_memory(hardware).available_bytes, &made));
    LS_TRY(ls_choices_place(config, model, hardware, train, false, &made));
    *choices = made;
    return LS_OK;
}

ls_status ls_choices_make(const ls_run_config *config, const ls_model_config *model,
                          const ls_hardware *hardware, bool train, ls_choices *choices)
{
    LS_TRY(check_residuals(config, model, hardware, train));
    return ls_choices_make_any(config, model, hardware, train, choices);
}

const char *ls_choices_save_name(const ls_choices *choices)
{
    if (choices->save_qkv) return "x+qkv+o";
    return choices->save_o ? "x+o" : "x";
}
