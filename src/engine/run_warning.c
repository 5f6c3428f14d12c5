/* run_warning.c - the checks behind the warnings, and their words. */
#include "run_warning.h"

#include <stdio.h>

bool ls_run_warning_positions(const ls_run_config *config, const ls_model_config *model,
                              char text[LS_RUN_WARNING_BYTES])
{
    const long long tokens = config->sequence_tokens, most = model->max_position_embeddings;

    if (tokens <= most) return false;
    snprintf(text, LS_RUN_WARNING_BYTES,
             "sequence.tokens is %lld, beyond the model's max_position_embeddings of %lld: "
             "pretrained weights have never seen positions from %lld on, and programs that load "
             "the saved config.json may refuse them; lower sequence.tokens to %lld, or, if the "
             "longer range is meant, raise max_position_embeddings in %s to %lld",
             tokens, most, most, most, config->model_path, tokens);
    return true;
}

void ls_run_warnings_print(const ls_run_config *config, const ls_model_config *model,
                           const ls_hardware *hardware)
{
    char text[LS_RUN_WARNING_BYTES];

    if (hardware->note[0] != '\0') fprintf(stderr, "longspan: warning: %s\n", hardware->note);
    if (ls_run_warning_positions(config, model, text))
        fprintf(stderr, "longspan: warning: %s\n", text);
}
