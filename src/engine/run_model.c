/* run_model.c - the run's scaling and window over the model's, then what must agree between the two
 * files, and between the model and the weights of a checkpoint. */
#include "run_model.h"

#include <cjson/cJSON.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "directory.h"

#define PATH_BYTES  4096
#define VALUE_BYTES 200 /* of a field in a message */

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

/* Positions that nobody trained the weights for are noise to them, and a saved config.json that
 * says less than was trained misleads who loads it: no run wants either unawares. */
static ls_status check_reach(const ls_run_config *config, const ls_model_config *model)
{
    const int64_t reach = ls_rope_reach(&model->rope_scaling, model->max_position_embeddings);
    char line[LS_ROPE_TEXT_BYTES], raise[PATH_BYTES + 100] = "";
    ls_rope_scaling extended;

    if (config->sequence_tokens <= reach) return LS_OK;
    if (config->init == LS_INIT_RANDOM && model->rope_scaling.type == LS_ROPE_DEFAULT)
        snprintf(raise, sizeof raise,
                 ", max_position_embeddings: %lld in %s (the weights start at random)",
                 (long long)config->sequence_tokens, config->model_path);
    extended = ls_rope_extend(&model->rope_scaling, model->max_position_embeddings,
                              config->sequence_tokens);
    extended.theta = config->rope_scaling.theta;
    return LS_FAIL(
        LS_ERR_INVALID,
        "%s %lld is beyond the %lld positions that the RoPE of %s covers; allowed: 2 to %lld%s, "
        "or this line in the run file: rope_scaling: %s",
        config->sequence_tokens_place, (long long)config->sequence_tokens, (long long)reach,
        config->model_path, (long long)reach, raise, ls_rope_run_line(&extended, line));
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

/* ---- the model of a checkpoint ------------------------------------------------------------- */

/* The first field of a that b has not or has otherwise, or NULL. */
static const char *find_difference(const cJSON *a, const cJSON *b)
{
    const cJSON *field;

    cJSON_ArrayForEach(field, a)
    {
        const cJSON *other = cJSON_GetObjectItemCaseSensitive(b, field->string);
        if (!cJSON_Compare(field, other, true)) return field->string;
    }
    return NULL;
}

static const char *show_field(const cJSON *json, const char *name, char text[VALUE_BYTES])
{
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(json, name);
    char *printed = cJSON_PrintUnformatted(field);
    const int n = snprintf(text, VALUE_BYTES, "%s",
                           printed != NULL ? printed
                           : field == NULL ? "absent"
                                           : "(out of memory)");

    if (n >= VALUE_BYTES) strcpy(text + VALUE_BYTES - 4, "...");
    cJSON_free(printed);
    return text;
}

static ls_status compare(const ls_run_config *config, const char *directory, const cJSON *before,
                         const cJSON *now, bool resume)
{
    const char *name = find_difference(before, now);
    char was[VALUE_BYTES], is[VALUE_BYTES];

    if (name == NULL) name = find_difference(now, before);
    if (name == NULL) return LS_OK;
    show_field(before, name, was);
    show_field(now, name, is);
    if (resume)
        return LS_FAIL(LS_ERR_INVALID,
                       "model: %s of %s differs from the run that %s belongs to: %s there, %s now; "
                       "set it back to %s, or start a new run with another output",
                       name, config->model_path, directory, was, is, was);
    return LS_FAIL(LS_ERR_INVALID,
                   "model: %s of %s is %s, but the weights in %s were made with %s; set it to %s, "
                   "or give model: %s",
                   name, config->model_path, is, directory, was, was, directory);
}

/* What the run file chooses for itself, and what says nothing of how the weights are used, may
 * differ from the weights' config.json where nothing is trained on. */
static void forgive(const ls_run_config *config, const ls_model_config *model,
                    ls_model_config *of_weights)
{
    if (config->rope_scaling_given)
        of_weights->rope_scaling = model->rope_scaling;
    else
        fix_ntk(config, of_weights);
    if (config->window > 0) of_weights->sliding_window = model->sliding_window;
    of_weights->initializer_range = model->initializer_range;
    of_weights->bos_token_id = model->bos_token_id;
    of_weights->eos_token_id = model->eos_token_id;
    of_weights->pad_token_id = model->pad_token_id;
}

ls_status ls_run_model_check(const ls_run_config *config, const ls_model_config *model,
                             const char *directory, bool resume)
{
    char path[PATH_BYTES];
    ls_path_kind kind;
    ls_model_config of_weights;
    cJSON *before = NULL, *now = NULL;

    snprintf(path, sizeof path, "%s/config.json", directory);
    LS_TRY(ls_path_describe(path, &kind));
    if (kind == LS_PATH_ABSENT) return LS_OK;
    LS_TRY(ls_model_config_read(directory, &of_weights));
    /* how far positions reach is no part of the arithmetic: what a scaling makes of it is read */
    of_weights.max_position_embeddings = model->max_position_embeddings;
    if (!resume) forgive(config, model, &of_weights);
    ls_status status = ls_model_config_to_json(&of_weights, config->precision, &before);
    if (status == LS_OK) status = ls_model_config_to_json(model, config->precision, &now);
    if (status == LS_OK) status = compare(config, directory, before, now, resume);
    cJSON_Delete(before);
    cJSON_Delete(now);
    return status;
}
