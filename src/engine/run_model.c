/* run_model.c - the run's scaling and window over the model's, then what must agree between the two
 * files. */
#include "run_model.h"

#include <stdint.h>

static int64_t largest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The run's scaling, completed from the model's fields. */
static void override_rope(const ls_run_config *config, ls_model_config *model)
{
    ls_rope_scaling rope = config->rope_scaling;
    int64_t *most = &model->max_position_embeddings;

    if (rope.theta <= 0) rope.theta = model->rope_scaling.theta;
    if (rope.original_tokens == 0) rope.original_tokens = *most;
    if (rope.type == LS_ROPE_LINEAR || rope.type == LS_ROPE_NTK)
        *most = rope.original_tokens;
    else if (rope.type == LS_ROPE_DEFAULT && config->rope_scaling.theta > 0)
        *most = largest(*most, config->sequence_tokens);
    else
        *most = largest(*most, ls_rope_reach(&rope, *most));
    if (*most > INT32_MAX) *most = INT32_MAX; /* the largest that a config.json may say */
    if (rope.type == LS_ROPE_DEFAULT) rope.original_tokens = 0;
    model->rope_scaling = rope;
}

/* A theta that follows the length stays where the run has it. */
static void fix_ntk(const ls_run_config *config, ls_model_config *model)
{
    ls_rope_scaling *rope = &model->rope_scaling;

    if (rope->type != LS_ROPE_NTK || config->sequence_tokens <= rope->original_tokens) return;
    *rope = (ls_rope_scaling){
        .theta = ls_rope_ntk_theta(rope, model->head_dim, config->sequence_tokens)};
    model->max_position_embeddings = config->sequence_tokens;
}

/* Positions nobody trained the weights for are noise to them: no run wants that unawares. */
static ls_status check_reach(const ls_run_config *config, const ls_model_config *model)
{
    const int64_t reach = ls_rope_reach(&model->rope_scaling, model->max_position_embeddings);
    char line[LS_ROPE_TEXT_BYTES];
    ls_rope_scaling extended;

    if (!config->pretrained || config->sequence_tokens <= reach) return LS_OK;
    extended = ls_rope_extend(&model->rope_scaling, model->max_position_embeddings,
                              config->sequence_tokens);
    extended.theta = config->rope_scaling.theta;
    return LS_FAIL(
        LS_ERR_INVALID,
        "%s %lld is beyond the %lld positions that the RoPE of %s covers, and its weights "
        "are pretrained; allowed: 2 to %lld, or this line in the run file: "
        "rope_scaling: %s",
        config->sequence_tokens_place, (long long)config->sequence_tokens, (long long)reach,
        config->model_path, (long long)reach, ls_rope_run_line(&extended, line));
}

ls_status ls_run_model_read(const ls_run_config *config, ls_model_config *model)
{
    ls_model_config read;
    char why[LS_ROPE_TEXT_BYTES];

    LS_TRY(ls_model_config_read(config->model_path, &read));
    if (config->rope_scaling_given) override_rope(config, &read);
    if (config->window > 0) read.sliding_window = config->window;
    if (!ls_rope_fits(&read.rope_scaling, read.head_dim, config->sequence_tokens, why))
        return LS_FAIL(LS_ERR_INVALID, "%s %s",
                       config->rope_scaling_given ? config->rope_scaling_place
                                                  : config->sequence_tokens_place,
                       why);
    fix_ntk(config, &read);
    LS_TRY(check_reach(config, &read));
    *model = read;
    return LS_OK;
}
