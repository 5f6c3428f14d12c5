/* run_warning.c - the checks behind the warnings, and their words. */
#include "run_warning.h"

#include <stdio.h>

#include "choices.h"

bool ls_run_warning_positions(const ls_run_config *config, const ls_model_config *model,
                              char text[LS_RUN_WARNING_BYTES])
{
    const int64_t reach = ls_rope_reach(&model->rope_scaling, model->max_position_embeddings);
    const long long tokens = config->sequence_tokens, most = reach;

    if (config->sequence_tokens <= reach) return false;
    if (model->rope_scaling.type == LS_ROPE_DEFAULT)
        snprintf(text, LS_RUN_WARNING_BYTES,
                 "sequence.tokens is %lld, beyond the model's max_position_embeddings of %lld: "
                 "programs that load the saved config.json may refuse positions from %lld on; "
                 "lower sequence.tokens to %lld, or, if the longer range is meant, raise "
                 "max_position_embeddings in %s to %lld",
                 tokens, most, most, most, config->model_path, tokens);
    else
        snprintf(text, LS_RUN_WARNING_BYTES,
                 "sequence.tokens is %lld, beyond the %lld positions that rope_scaling covers: "
                 "programs that load the saved config.json may refuse positions from %lld on; "
                 "lower sequence.tokens to %lld, or raise the factor of rope_scaling",
                 tokens, most, most, most);
    return true;
}

bool ls_run_warning_nvme(const ls_run_config *config, const ls_hardware *hardware,
                         char text[LS_RUN_WARNING_BYTES])
{
    char key[LS_CHOICES_KEY_BYTES];

    if (!ls_choices_find_nvme(config, key) || !ls_hardware_nvme_is_memory(hardware)) return false;
    snprintf(
        text, LS_RUN_WARNING_BYTES,
        "%s is nvme, but nvme.path %s of %s is in a file system in memory: what lies there takes "
        "host memory that no limit of the plan counts; name a folder on a disk",
        key, hardware->nvme_path, hardware->profile);
    return true;
}

void ls_run_warnings_print(const ls_run_config *config, const ls_model_config *model,
                           const ls_hardware *hardware)
{
    char text[LS_RUN_WARNING_BYTES];

    if (hardware->note[0] != '\0') fprintf(stderr, "longspan: warning: %s\n", hardware->note);
    if (ls_run_warning_nvme(config, hardware, text))
        fprintf(stderr, "longspan: warning: %s\n", text);
    if (ls_run_warning_positions(config, model, text))
        fprintf(stderr, "longspan: warning: %s\n", text);
}
