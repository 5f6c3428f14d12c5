/*
 * choices.c - what a run file leaves open.
 *
 * On the CPU a chunk of 2,048 rows keeps the dense work near the caches; query blocks are larger,
 * because attention finds its own tiles and more rows mean more work to share between threads.
 */
#include "choices.h"

#include <fnmatch.h>
#include <stdio.h>

#include "host_memory.h"
#include "save_search.h"
#include "text.h"

#define CHUNK_ROWS 2048

/* Calls of a tape for each chunk of a layer and each tile of logits, over all segments, and bytes
 * that tape and plan need for each (measured: 123, with biases 151, and norms of heads 176; 16;
 * 1,060). */
#define CALLS_PER_CHUNK 177.0
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

static void apply_saves(void *context, int32_t layer, ls_layer_save *save)
{
    *save = ls_saves_of(context, layer);
}

ls_decoder_options ls_choices_decoder(const ls_run_config *c, const ls_model_config *m,
                                      const ls_choices *choices, bool train)
{
    return (ls_decoder_options){.shape = ls_model_config_shape(m),
                                .dtype = c->precision,
                                .S = c->sequence_tokens,
                                .sequences = c->sequences,
                                .accumulate = c->accumulate,
                                .layer_major = choices->layer_major,
                                .chunk = choices->chunk,
                                .query_block = choices->query_block,
                                .key_block = choices->query_block,
                                .loss_rows = choices->loss_rows,
                                .window = m->sliding_window,
                                .train = train,
                                .save_rule = apply_saves,
                                .save_context = (void *)&choices->saves,
                                .beta1 = (float)c->beta1,
                                .beta2 = (float)c->beta2,
                                .adam_eps = (float)c->eps,
                                .moments = (ls_moments)c->moments,
                                .gradients = c->gradients,
                                .weight_decay = (float)c->weight_decay,
                                .clip_norm = (float)c->clip_norm,
                                .param_rule = apply_groups,
                                .param_context = (void *)c};
}

/* Host memory of the hardware; NULL: of this machine. */
static ls_host_memory read_memory(const ls_hardware *hardware)
{
    if (hardware == NULL) return ls_host_memory_read();
    return (ls_host_memory){.available_bytes = hardware->available_bytes[LS_PLACE_HOST],
                            .limit = hardware->limit};
}

uint64_t ls_choices_room(const ls_hardware *hardware, ls_place_kind place)
{
    if (hardware != NULL) return hardware->available_bytes[place];
    return place == LS_PLACE_HOST ? ls_host_memory_read().available_bytes : 0;
}

/* "12.3 GiB" of a figure that may be larger than any memory. */
static const char *describe_bytes(char text[LS_TEXT_BYTES], double bytes)
{
    return ls_text_bytes(text, LS_TEXT_BYTES, bytes < 0x1p63 ? (uint64_t)bytes : UINT64_MAX);
}

/* Refuse what cannot fit whatever is chosen, before such a plan is built. */
static ls_status check_saved(const ls_run_config *config, const ls_model_config *model,
                             const ls_hardware *hardware, bool train)
{
    const ls_saves inputs = {.n_ranges = 0};
    const ls_host_memory memory = read_memory(hardware);
    const double device = (double)ls_choices_room(hardware, LS_PLACE_HBM);
    const double room = (double)memory.available_bytes + device;
    const double bytes =
        train ? ls_save_host_bytes(config, model, config->save_auto ? &inputs : &config->saves)
              : (double)config->sequence_tokens * (double)config->sequences *
                    (double)model->hidden_size * (double)ls_dtype_bytes(config->precision);

    char needed[LS_TEXT_BYTES], left[LS_TEXT_BYTES];

    if (bytes <= room) return LS_OK;
    return LS_FAIL(LS_ERR_NO_MEMORY,
                   "host memory: what is kept of %lld sequences of %lld tokens alone needs %s, %s "
                   "leaves %s%s; lower sequence.tokens or batch.sequences%s",
                   (long long)config->sequences, (long long)config->sequence_tokens,
                   describe_bytes(needed, bytes), memory.limit, describe_bytes(left, room),
                   device > 0.0 ? " with device memory" : "",
                   train ? ", or keep fewer inputs of layers (memory.save: x/4)" : "");
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

/* The places that memory.save gives to ranges of layers. */
static void wish_layers(const ls_saves *saves, ls_placement_wish *wish)
{
    for (int32_t i = 0; i < saves->n_ranges; i++) {
        const ls_save_range *range = &saves->ranges[i];
        if (range->place == 0) continue;
        const bool is_end = range->last == saves->n_layers - 1; /* with what the last layer gives */
        wish->layers[wish->n_layers++] = (ls_layer_place){
            range->first, range->last + (is_end ? 1 : 0), (ls_place_kind)(range->place - 1)};
    }
}

bool ls_choices_find_nvme(const ls_run_config *config, char key[LS_CHOICES_KEY_BYTES])
{
    for (int c = 0; c < LS_CLASS_COUNT; c++) {
        if (config->places[c] != 1 + LS_PLACE_NVME) continue;
        snprintf(key, LS_CHOICES_KEY_BYTES, "memory.place.%s", ls_class_name((ls_tensor_class)c));
        return true;
    }
    for (int32_t i = 0; i < config->saves.n_ranges && !config->save_auto; i++) {
        if (config->saves.ranges[i].place != 1 + LS_PLACE_NVME) continue;
        snprintf(key, LS_CHOICES_KEY_BYTES, "memory.save[%d].place", (int)i);
        return true;
    }
    return false;
}

/* A disk is used where the run file says so, and only where there is one. */
static ls_status check_nvme(const ls_run_config *config, const ls_hardware *hardware)
{
    char key[LS_CHOICES_KEY_BYTES];

    return ls_choices_find_nvme(config, key) ? ls_hardware_check_nvme(hardware, key) : LS_OK;
}

static ls_placement_wish make_wish(const ls_run_config *config, const ls_choices *choices)
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
    wish_layers(&choices->saves, &wish);
    return wish;
}

/* How many blocks are kept: the inputs of a block of queries stay while it is at work. */
static ls_status set_tiles(const ls_decoder_options *options, ls_placement *p)
{
    const bool cut = p->tiled[LS_CLASS_X] || p->tiled[LS_CLASS_O] || p->tiled[LS_CLASS_KV] ||
                     p->tiled[LS_CLASS_DKV];

    if (cut && options->query_block % options->chunk != 0)
        return LS_FAIL(LS_ERR_INVALID,
                       "sequence.query_block: %lld is no multiple of sequence.chunk %lld, so "
                       "activations cannot pass through device memory in blocks; allowed: "
                       "multiples of the chunk, such as %lld",
                       (long long)options->query_block, (long long)options->chunk,
                       (long long)(options->query_block / options->chunk * options->chunk));
    p->tiles[LS_CLASS_X] = options->query_block / options->chunk + 1;
    return LS_OK;
}

/* What costs least first. */
static const struct {
    bool stream;
    ls_placement_cut cut;
} attempts[] = {{false, LS_CUT_NONE},
                {false, LS_CUT_X_O},
                {true, LS_CUT_X_O},
                {false, LS_CUT_X_O_KV},
                {true, LS_CUT_X_O_KV}};

enum { N_ATTEMPTS = sizeof attempts / sizeof attempts[0] };

/* Of the device that would run: workspaces differ. */
static const ls_ops *ops_of(const ls_hardware *hardware)
{
    return hardware != NULL && hardware->ops != NULL ? hardware->ops : &ls_ops_cpu;
}

/* The first placement of a wish that fits device memory, or the last, and what the plan then takes.
 */
static ls_status settle_on_device(const ls_decoder *decoder, const ls_hardware *hardware,
                                  ls_placement_wish wish, ls_placement *placement,
                                  ls_plan_cost *cost)
{
    for (int i = 0; i < N_ATTEMPTS; i++) {
        wish.weights_too_large = attempts[i].stream;
        wish.cut = attempts[i].cut;
        LS_TRY(ls_placement_decide(hardware->topology, &wish, placement));
        LS_TRY(set_tiles(&decoder->options, placement));
        LS_TRY(ls_plan_measure(&decoder->tape, placement, ops_of(hardware), cost));
        if (cost->place_bytes[LS_PLACE_HBM] <= hardware->available_bytes[LS_PLACE_HBM]) break;
    }
    return LS_OK;
}

/* The same where there may be no device; cost NULL: not asked for. */
static ls_status settle(const ls_decoder_options *options, const ls_hardware *hardware,
                        const ls_placement_wish *wish, ls_placement *placement, ls_plan_cost *cost)
{
    const bool has_device = hardware != NULL && hardware->has_device;
    ls_plan_cost measured;
    ls_decoder decoder;

    if (!has_device) {
        LS_TRY(ls_placement_decide(NULL, wish, placement));
        LS_TRY(set_tiles(options, placement));
        if (cost == NULL) return LS_OK;
    }
    LS_TRY(ls_decoder_build(options, &decoder));
    const ls_status status =
        has_device ? settle_on_device(&decoder, hardware, *wish, placement, &measured)
                   : ls_plan_measure(&decoder.tape, placement, ops_of(hardware), &measured);
    ls_decoder_free(&decoder);
    if (status == LS_OK && cost != NULL) *cost = measured;
    return status;
}

ls_status ls_choices_place(const ls_run_config *config, const ls_model_config *model,
                           const ls_hardware *hardware, bool train, bool frozen,
                           ls_choices *choices)
{
    choices->saves.n_layers = (int32_t)model->num_hidden_layers;
    ls_placement_wish wish = make_wish(config, choices);

    LS_TRY(check_nvme(config, hardware));
    if (frozen && hardware != NULL && hardware->has_device) {
        wish.weights_given = true;
        wish.weights = choices->placement.classes[LS_CLASS_WEIGHTS].mode;
        wish.ring_slots = choices->placement.ring_slots;
    }
    const ls_decoder_options options = ls_choices_decoder(config, model, choices, train);
    return settle(&options, hardware, &wish, &choices->placement, NULL);
}

ls_status ls_choices_measure(const ls_run_config *config, const ls_model_config *model,
                             const ls_hardware *hardware, ls_choices *choices, ls_plan_cost *cost)
{
    choices->saves.n_layers = (int32_t)model->num_hidden_layers;
    const ls_placement_wish wish = make_wish(config, choices);
    const ls_decoder_options options = ls_choices_decoder(config, model, choices, true);
    LS_TRY(check_nvme(config, hardware));
    return settle(&options, hardware, &wish, &choices->placement, cost);
}

/* ---- all of them --------------------------------------------------------------------------- */

/* What the run file says of layers, if the model has them. */
static ls_status take_saves(const ls_run_config *config, const ls_model_config *model,
                            ls_saves *saves)
{
    const int64_t L = model->num_hidden_layers;

    *saves = config->saves;
    for (int32_t i = 0; i < saves->n_ranges; i++)
        if (saves->ranges[i].last >= L && saves->ranges[i].last != LS_SAVE_LAYERS_ALL)
            return LS_FAIL(LS_ERR_INVALID,
                           "memory.save[%d].layers: %d-%d, but the model has %lld layers; allowed: "
                           "0 to %lld",
                           i, saves->ranges[i].first, saves->ranges[i].last, (long long)L,
                           (long long)L - 1);
    return LS_OK;
}

/* A glob that names no tensor is a slip: nothing of what it asks for would happen. */
static ls_status check_group(const ls_run_config *config, const ls_decoder *decoder, int64_t group)
{
    const ls_tape *tape = &decoder->tape;
    const char *match = config->groups[group].match;

    for (int32_t i = 0; i < decoder->n_params; i++)
        if (fnmatch(match, tape->tensors[decoder->params[i].weight].name, 0) == 0) return LS_OK;
    return LS_FAIL(LS_ERR_INVALID,
                   "optimizer.groups[%lld].match: '%s' matches no tensor of %s; allowed: globs on "
                   "full names, such as %s or model.layers.[0-3].*",
                   (long long)group, match, config->model_path,
                   tape->tensors[decoder->params[1].weight].name);
}

static ls_status check_groups(const ls_run_config *config, const ls_model_config *model)
{
    const ls_decoder_options smallest = {.shape = ls_model_config_shape(model),
                                         .dtype = LS_DTYPE_BF16,
                                         .S = 1,
                                         .sequences = 1,
                                         .accumulate = 1,
                                         .chunk = 1,
                                         .query_block = 1,
                                         .loss_rows = 1};
    ls_decoder decoder;
    ls_status status = LS_OK;

    if (config->n_groups == 0) return LS_OK;
    LS_TRY(ls_decoder_build(&smallest, &decoder));
    for (int64_t g = 0; g < config->n_groups && status == LS_OK; g++)
        status = check_group(config, &decoder, g);
    ls_decoder_free(&decoder);
    return status;
}

static bool is_on_gpu(const ls_hardware *hardware)
{
    return hardware != NULL && hardware->has_device && !hardware->emulated;
}

/* Rows of a chunk and of a query block where the run file leaves them open: on the CPU few, near
 * the caches; on a GPU as many as fit, for each launch and each pass over weight gradients costs.
 */
static const struct {
    int64_t chunk, query_block;
} cpu_rows = {CHUNK_ROWS, LS_QUERY_BLOCK_ROWS},
  gpu_rows[] = {{16384, 65536}, {8192, 32768}, {4096, 16384}, {CHUNK_ROWS, LS_QUERY_BLOCK_ROWS}};

enum { N_GPU_ROWS = sizeof gpu_rows / sizeof gpu_rows[0] };

static ls_status make_with_rows(const ls_run_config *config, const ls_model_config *model,
                                const ls_hardware *hardware, bool train, int64_t chunk,
                                int64_t query_block, ls_choices *made)
{
    const int64_t T = config->sequence_tokens * config->sequences;

    made->query_block = smaller(config->query_block > 0 ? config->query_block : query_block, T);
    made->chunk = smaller(config->chunk > 0 ? config->chunk : chunk, made->query_block);
    made->loss_rows = ls_decoder_loss_rows(model->vocab_size, made->chunk);
    LS_TRY(check_plan_size(config, model, made));
    if (train && config->save_auto) return ls_save_choose(config, model, hardware, made);
    if (train) LS_TRY(take_saves(config, model, &made->saves));
    return ls_choices_place(config, model, hardware, train, false, made);
}

/* Whether training with these choices fits device memory. */
static ls_status fits_device(const ls_run_config *config, const ls_model_config *model,
                             const ls_hardware *hardware, const ls_choices *choices, bool *fits)
{
    ls_choices measured = *choices;
    ls_plan_cost cost;

    LS_TRY(ls_choices_measure(config, model, hardware, &measured, &cost));
    *fits = cost.place_bytes[LS_PLACE_HBM] <= ls_choices_room(hardware, LS_PLACE_HBM);
    return LS_OK;
}

static ls_status make_on_gpu(const ls_run_config *config, const ls_model_config *model,
                             const ls_hardware *hardware, bool train, ls_choices *made)
{
    bool fits = false;

    for (int i = 0; i < N_GPU_ROWS && !fits; i++) {
        LS_TRY(make_with_rows(config, model, hardware, train, gpu_rows[i].chunk,
                              gpu_rows[i].query_block, made));
        if (i + 1 < N_GPU_ROWS) LS_TRY(fits_device(config, model, hardware, made, &fits));
    }
    return LS_OK;
}

int ls_choices_optimizer_threads(const ls_run_config *config, const ls_hardware *hardware)
{
    const ls_topology *t = hardware != NULL ? hardware->topology : NULL;

    if (config->optimizer_threads > 0) return (int)config->optimizer_threads;
    for (int p = 0; t != NULL && p < t->n_places; p++) {
        const ls_place *place = &t->places[p];
        const bool is_ours = hardware->host_node < 0 || place->numa_node == hardware->host_node;
        if (place->kind == LS_PLACE_HOST && is_ours &&
            place->best_threads.source == LS_SOURCE_MEASURED)
            return (int)place->best_threads.value;
    }
    return 0;
}

ls_status ls_choices_make_any(const ls_run_config *config, const ls_model_config *model,
                              const ls_hardware *hardware, bool train, ls_choices *choices)
{
    const bool rows_open = config->chunk == 0 || config->query_block == 0;
    ls_choices made = {.compute_threads = (int)config->compute_threads,
                       .optimizer_threads = ls_choices_optimizer_threads(config, hardware)};

    LS_TRY(check_groups(config, model));
    made.layer_major = config->accumulate_order == 2 && config->accumulate > 1;
    LS_TRY(is_on_gpu(hardware) && rows_open
               ? make_on_gpu(config, model, hardware, train, &made)
               : make_with_rows(config, model, hardware, train, cpu_rows.chunk,
                                cpu_rows.query_block, &made));
    *choices = made;
    return LS_OK;
}

ls_status ls_choices_make(const ls_run_config *config, const ls_model_config *model,
                          const ls_hardware *hardware, bool train, ls_choices *choices)
{
    LS_TRY(check_saved(config, model, hardware, train));
    return ls_choices_make_any(config, model, hardware, train, choices);
}
