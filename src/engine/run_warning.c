/* run_warning.c - the checks behind the warnings, and their words. */
#include "run_warning.h"

#include <stdio.h>

#include "choices.h"

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

void ls_run_warnings_print(const ls_run_config *config, const ls_hardware *hardware)
{
    char text[LS_RUN_WARNING_BYTES];

    if (hardware->note[0] != '\0') fprintf(stderr, "longspan: warning: %s\n", hardware->note);
    if (ls_run_warning_nvme(config, hardware, text))
        fprintf(stderr, "longspan: warning: %s\n", text);
}
