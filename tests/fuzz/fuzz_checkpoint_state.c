/*
 * fuzz_checkpoint_state.c - any bytes as state.json, as they are and with a seal that fits them, so
 * that the JSON and the manifest behind the seal are reached; what parses prints and parses again.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_state.h"
#include "crc32c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_again(cJSON *state)
{
    char *text = NULL;
    cJSON *again = NULL;

    cJSON_DeleteItemFromObjectCaseSensitive(state, "self_crc32c");
    if (ls_checkpoint_state_print(state, &text) != LS_OK) return;
    assert(ls_checkpoint_state_parse(text, strlen(text), "again", &again) == LS_OK);
    cJSON_Delete(again);
    free(text);
}

static void parse(const char *text, size_t bytes)
{
    const cJSON *manifest = NULL, *item;
    cJSON *state = NULL;
    ls_checkpoint_file file;

    if (ls_checkpoint_state_parse(text, bytes, "input", &state) != LS_OK) return;
    if (ls_checkpoint_manifest_find(state, "input", &manifest) == LS_OK) {
        cJSON_ArrayForEach(item, manifest)
        {
            assert(ls_checkpoint_manifest_get(item, "input", &file) == LS_OK);
            assert(file.name[0] != '\0' && !strchr(file.name, '/'));
        }
    }
    check_again(state);
    cJSON_Delete(state);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *sealed = malloc(bytes + 64);

    assert(sealed);
    memcpy(sealed, data, bytes);
    sealed[bytes] = '\0';
    parse(sealed, bytes);
    const int n = snprintf(sealed + bytes, 64, ",\n\t\"self_crc32c\":\t\"%08x\"\n}\n",
                           ls_crc32c(0, data, bytes));
    parse(sealed, bytes + (size_t)n);
    free(sealed);
    return 0;
}
