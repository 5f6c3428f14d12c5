/*
 * choices_place.c - where classes of tensors live: what costs least and fits device memory.
 *
 * A placement is judged by measuring the whole plan.  Those that cannot fit are known by a bound of
 * closed form and not measured.
 */
#include "choices.h"

#include <assert.h>
#include <fnmatch.h>
#include <stdio.h>

#include "plan_bound.h"

/* ---- the decoder --------------------------------------------------------------------------- */

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
                                .any_order = c->fast,
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

/* ---- wishes -------------------------------------------------------------------------------- */

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

    for (int c = 0; c < LS_CLASS_COUNT; c++)
        if (config->places[c] == 1 + LS_PLACE_NVME) LS_TRY(ls_place_check_nvme((ls_tensor_class)c));
    return ls_choices_find_nvme(config, key) ? ls_hardware_check_nvme(hardware, key) : LS_OK;
}

static ls_placement_wish make_wish(const ls_trial *trial, const ls_choices *choices,
                                   const ls_weights_wish *weights)
{
    const ls_run_config *config = trial->config;
    static const ls_place_mode modes[] = {[LS_WEIGHTS_RESIDENT] = LS_MODE_RESIDENT,
                                          [LS_WEIGHTS_DIRECT] = LS_MODE_DIRECT,
                                          [LS_WEIGHTS_STREAM] = LS_MODE_STREAM};
    ls_placement_wish wish = {.ring_slots = config->ring_slots,
                              .serial_updates = config->serial_updates,
                              .device_layers = trial->train ? config->device_layers : 0};

    if (config->weights != LS_WEIGHTS_AUTO) {
        wish.weights_given = true;
        wish.weights = modes[config->weights];
    }
    if (weights != NULL) {
        wish.weights_given = true;
        wish.weights = weights->mode;
        wish.weights_reason = weights->reason;
        if (weights->ring_slots > 0) wish.ring_slots = weights->ring_slots;
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

/* Of the device that would run: workspaces differ. */
static const ls_ops *ops_of(const ls_hardware *hardware)
{
    return hardware != NULL && hardware->ops != NULL ? hardware->ops : &ls_ops_cpu;
}

/* ---- placements tried ---------------------------------------------------------------------- */

/* What costs least first. */
static const struct {
    bool stream;
    ls_placement_cut cut;
} attempts[] = {{false, LS_CUT_NONE},
                {false, LS_CUT_X_O},
                {true, LS_CUT_X_O},
                {false, LS_CUT_X_O_KV},
                {true, LS_CUT_X_O_KV}};

static_assert(sizeof attempts / sizeof attempts[0] == LS_CHOICES_ATTEMPTS, "a cost for each");

static ls_status decide(const ls_decoder_options *options, const ls_hardware *hardware,
                        const ls_placement_wish *wish, int attempt, ls_placement *placement)
{
    ls_placement_wish tried = *wish;

    tried.weights_too_large = attempts[attempt].stream;
    tried.cut = attempts[attempt].cut;
    LS_TRY(ls_placement_decide(hardware->topology, &tried, placement));
    return set_tiles(options, placement);
}

/* The first placement of a wish that fits device memory, or the last, and what the plan then takes.
 */
static ls_status settle_on_device(const ls_decoder *decoder, const ls_trial *trial,
                                  const ls_placement_wish *wish, ls_placement *placement,
                                  ls_plan_cost *cost)
{
    const ls_hardware *hardware = trial->hardware;
    const uint64_t room = hardware->available_bytes[LS_PLACE_HBM];

    for (int i = 0; i < LS_CHOICES_ATTEMPTS; i++) {
        const bool is_last = i + 1 == LS_CHOICES_ATTEMPTS;
        const bool is_repeated = wish->weights_given && attempts[i].stream;
        if (is_repeated && !is_last) continue;
        LS_TRY(decide(&decoder->options, hardware, wish, i, placement));
        if (!is_last && ls_plan_hbm_at_least(&decoder->options, placement) > room) continue;
        LS_TRY(ls_plan_measure(&decoder->tape, placement, ops_of(hardware), trial->rates, cost));
        if (cost->place_bytes[LS_PLACE_HBM] <= room) break;
    }
    return LS_OK;
}

/* The same where there may be no device; cost NULL: not asked for. */
static ls_status settle(const ls_trial *trial, const ls_placement_wish *wish, ls_choices *choices,
                        ls_plan_cost *cost)
{
    const ls_hardware *hardware = trial->hardware;
    const bool has_device = hardware != NULL && hardware->has_device;
    const ls_decoder_options options =
        ls_choices_decoder(trial->config, trial->model, choices, trial->train);
    ls_placement *placement = &choices->placement;
    ls_plan_cost measured;
    ls_decoder decoder;

    LS_TRY(check_nvme(trial->config, hardware));
    if (!has_device) {
        LS_TRY(ls_placement_decide(NULL, wish, placement));
        LS_TRY(set_tiles(&options, placement));
        if (cost == NULL) return LS_OK;
    }
    LS_TRY(ls_decoder_build(&options, &decoder));
    const ls_status status =
        has_device
            ? settle_on_device(&decoder, trial, wish, placement, &measured)
            : ls_plan_measure(&decoder.tape, placement, ops_of(hardware), trial->rates, &measured);
    ls_decoder_free(&decoder);
    if (status == LS_OK && cost != NULL) *cost = measured;
    return status;
}

ls_status ls_choices_place(const ls_run_config *config, const ls_model_config *model,
                           const ls_hardware *hardware, bool train, bool frozen,
                           ls_choices *choices)
{
    const ls_trial trial = {config, model, hardware, NULL, train};
    const ls_weights_wish before = {choices->placement.classes[LS_CLASS_WEIGHTS].mode,
                                    choices->placement.ring_slots, "the checkpoint says so"};
    const bool is_frozen = frozen && hardware != NULL && hardware->has_device;

    choices->saves.n_layers = (int32_t)model->num_hidden_layers;
    const ls_placement_wish wish = make_wish(&trial, choices, is_frozen ? &before : NULL);
    return settle(&trial, &wish, choices, NULL);
}

ls_status ls_choices_measure_as(const ls_trial *trial, const ls_weights_wish *weights,
                                ls_choices *choices, ls_plan_cost *cost)
{
    choices->saves.n_layers = (int32_t)trial->model->num_hidden_layers;
    const ls_placement_wish wish = make_wish(trial, choices, weights);
    return settle(trial, &wish, choices, cost);
}

ls_status ls_choices_measure(const ls_run_config *config, const ls_model_config *model,
                             const ls_hardware *hardware, ls_choices *choices, ls_plan_cost *cost)
{
    const ls_trial trial = {config, model, hardware, NULL, true};
    return ls_choices_measure_as(&trial, NULL, choices, cost);
}

static ls_status measure_each(const ls_decoder *decoder, const ls_hardware *hardware,
                              const ls_placement_wish *wish, ls_plan_cost *costs)
{
    ls_placement placement;

    for (int i = 0; i < LS_CHOICES_ATTEMPTS; i++) {
        LS_TRY(decide(&decoder->options, hardware, wish, i, &placement));
        LS_TRY(ls_plan_measure(&decoder->tape, &placement, ops_of(hardware), NULL, &costs[i]));
    }
    return LS_OK;
}

ls_status ls_choices_measure_each(const ls_run_config *config, const ls_model_config *model,
                                  const ls_hardware *hardware, const ls_choices *choices,
                                  ls_plan_cost costs[LS_CHOICES_ATTEMPTS])
{
    ls_choices made = *choices;
    ls_decoder decoder;

    if (!hardware->has_device) {
        LS_TRY(ls_choices_measure(config, model, hardware, &made, &costs[0]));
        for (int i = 1; i < LS_CHOICES_ATTEMPTS; i++) costs[i] = costs[0];
        return LS_OK;
    }
    made.saves.n_layers = (int32_t)model->num_hidden_layers;
    const ls_trial trial = {config, model, hardware, NULL, true};
    const ls_placement_wish wish = make_wish(&trial, &made, NULL);
    const ls_decoder_options options = ls_choices_decoder(config, model, &made, true);
    LS_TRY(ls_decoder_build(&options, &decoder));
    const ls_status status = measure_each(&decoder, hardware, &wish, costs);
    ls_decoder_free(&decoder);
    return status;
}
