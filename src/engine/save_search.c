/* save_search.c - the ladder of save policies, walked until one has room. */
#include "save_search.h"

/* From what keeps most, and so recomputes least. */
const ls_save_policy ls_save_ladder[LS_SAVE_POLICIES] = {
    {.o = true, .qkv = true, .x_stride = 1},
    {.o = true, .x_stride = 1},
    {.o = true, .x_stride = 2},
    {.o = true, .x_stride = 4},
    {.o = true, .x_stride = 8},
    {.x_stride = 1},
    {.x_stride = 2},
    {.x_stride = 4},
    {.x_stride = 8},
};

/* Whether a class of a layer lies in host memory when it is kept. */
static bool is_on_host(const ls_run_config *config, ls_tensor_class class, int place)
{
    const int given = place != 0 ? place : config->places[class];
    return given == 0 || given == 1 + LS_PLACE_HOST;
}

static bool freezes(const ls_run_config *config)
{
    for (int64_t g = 0; g < config->n_groups; g++)
        if (config->groups[g].frozen) return true;
    return false;
}

double ls_save_host_bytes(const ls_run_config *config, const ls_model_config *m,
                          const ls_saves *saves)
{
    const double T = (double)config->sequence_tokens * (double)config->sequences;
    const double element = (double)ls_dtype_bytes(config->precision);
    const double HK = (double)m->num_attention_heads * (double)m->head_dim;
    const double GK = (double)m->num_key_value_heads * (double)m->head_dim;
    double row = 0.0;

    if (freezes(config)) return 0.0;
    for (int32_t l = 0; l < m->num_hidden_layers; l++) {
        const ls_layer_save save = ls_saves_of(saves, l);
        const int place = ls_saves_place(saves, l);
        if (save.x && is_on_host(config, LS_CLASS_X, place))
            row += element * (double)m->hidden_size;
        if (save.o && is_on_host(config, LS_CLASS_O, place))
            row += element * HK + 4.0 * (double)m->num_attention_heads;
        if (save.qkv && is_on_host(config, LS_CLASS_KV, place)) row += element * (HK + 2.0 * GK);
    }
    return row * T;
}

double ls_save_states_bytes(const ls_run_config *config, const ls_model_config *model,
                            bool layer_major)
{
    const ls_choices none = {.chunk = 0};
    const ls_decoder_options options = ls_choices_decoder(config, model, &none, true);
    const double weight = (double)ls_dtype_bytes(config->precision);
    const double lo = config->precision == LS_DTYPE_BF16 ? 2.0 : 0.0;
    static const double both[LS_MOMENTS_COUNT] = {8.0, 4.0, 2.0, 1.0};
    const bool summed = config->accumulate > 1 && !layer_major; /* in fp32 */
    const double grad = summed ? 4.0 : (double)ls_dtype_bytes(config->gradients);
    const double moments = both[config->moments];
    const double states = config->n_groups == 0 ? lo + grad + moments : 0.0;

    return (double)ls_decoder_params(&options.shape) * (weight + states);
}

uint64_t ls_save_host_limit(const ls_hardware *hardware)
{
    const bool on_gpu = hardware != NULL && hardware->has_device && !hardware->emulated;
    const uint64_t room = ls_choices_room(hardware, LS_PLACE_HOST);

    return on_gpu ? room - room / 16 : room / 2;
}

/* Whether that very policy is the one that has no room. */
static bool is_asked(const ls_saves *asked, ls_save_policy policy)
{
    const ls_save_range *all = &asked->ranges[0];
    return asked->n_ranges == 1 && all->last == LS_SAVE_LAYERS_ALL && all->policy.o == policy.o &&
           all->policy.qkv == policy.qkv && all->policy.x_stride == policy.x_stride;
}

static bool fits(const ls_hardware *hardware, const ls_plan_cost *cost)
{
    for (int p = 0; p < LS_PLACE_COUNT; p++)
        if (cost->place_bytes[p] > ls_choices_room(hardware, (ls_place_kind)p)) return false;
    return true;
}

ls_status ls_save_find_nearest(const ls_run_config *config, const ls_model_config *model,
                               const ls_hardware *hardware, const ls_choices *asked, double flops,
                               ls_save_nearest *nearest)
{
    double bound = -ls_save_states_bytes(config, model, asked->layer_major);

    for (int p = 0; p < LS_PLACE_COUNT; p++)
        bound += (double)ls_choices_room(hardware, (ls_place_kind)p);
    *nearest = (ls_save_nearest){.found = false};
    for (int p = 0; p < LS_SAVE_POLICIES; p++) {
        ls_choices choices = *asked;
        if (is_asked(&asked->saves, ls_save_ladder[p])) continue;
        ls_saves_set(&choices.saves, ls_save_ladder[p]);
        if (ls_save_host_bytes(config, model, &choices.saves) > bound) continue;
        const ls_status status =
            ls_choices_measure(config, model, hardware, &choices, &nearest->cost);
        if (status == LS_ERR_NO_MEMORY) return LS_OK;
        LS_TRY(status);
        if (!fits(hardware, &nearest->cost)) continue;
        nearest->found = true;
        nearest->saves = choices.saves;
        nearest->extra_flops_fraction = nearest->cost.flops / flops - 1.0;
        return LS_OK;
    }
    return LS_OK;
}
