/*
 * checkpoint_state.c - the seal is found by its fixed length at the end of the text, so checking
 * it needs no parser, and a text cut short or changed anywhere is refused before it is parsed.
 */
#include "checkpoint_state.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "disk_file.h"
#include "json.h"

#define SEAL_FORMAT ",\n\t\"self_crc32c\":\t\"%08x\"\n}\n"
#define SEAL_BYTES  31 /* of the text SEAL_FORMAT prints */
#define BYTES_MAX   9007199254740991.0

ls_status ls_checkpoint_state_print(const cJSON *state, char **text)
{
    if (!cJSON_IsObject(state) || !state->child ||
        cJSON_GetObjectItemCaseSensitive(state, "self_crc32c")) {
        return LS_FAIL(LS_ERR_INVALID, "a checkpoint's state is an object without self_crc32c");
    }
    char *printed = cJSON_Print(state); /* ends in "\n}" */
    const size_t length = printed ? strlen(printed) : 0;
    char *sealed = printed ? malloc(length + SEAL_BYTES + 1) : NULL;
    if (!sealed) {
        cJSON_free(printed);
        return ls_disk_file_fail_memory(length + SEAL_BYTES, "a checkpoint's state");
    }
    const size_t body = length - 2;
    memcpy(sealed, printed, body);
    snprintf(sealed + body, SEAL_BYTES + 1, SEAL_FORMAT, ls_crc32c(0, sealed, body));
    cJSON_free(printed);
    *text = sealed;
    return LS_OK;
}

static bool is_sealed(const char *text, uint64_t bytes)
{
    char seal[SEAL_BYTES + 1];

    if (bytes < SEAL_BYTES) return false;
    snprintf(seal, sizeof seal, SEAL_FORMAT, ls_crc32c(0, text, bytes - SEAL_BYTES));
    return memcmp(text + bytes - SEAL_BYTES, seal, SEAL_BYTES) == 0;
}

ls_status ls_checkpoint_state_parse(const char *text, uint64_t bytes, const char *path,
                                    cJSON **state)
{
    if (!is_sealed(text, bytes)) {
        return LS_FAIL(LS_ERR_CORRUPT, "%s: its checksum does not fit: cut short or changed", path);
    }
    cJSON *parsed = cJSON_ParseWithLengthOpts(text, (size_t)bytes, NULL, 0);
    if (!parsed && ls_json_is_valid(text, (size_t)bytes)) {
        return ls_disk_file_fail_memory(bytes, "a checkpoint's state");
    }
    if (!cJSON_IsObject(parsed)) {
        cJSON_Delete(parsed);
        return LS_FAIL(LS_ERR_CORRUPT, "%s: not a JSON object", path);
    }
    *state = parsed;
    return LS_OK;
}

static bool is_plain_name(const char *name)
{
    return name[0] != '\0' && strlen(name) <= 255 && !strchr(name, '/') && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

static bool parse_crc(const cJSON *item, uint32_t *crc)
{
    char *end = NULL;

    if (!cJSON_IsString(item) || strlen(item->valuestring) != 8 ||
        strspn(item->valuestring, "0123456789abcdef") != 8) {
        return false;
    }
    *crc = (uint32_t)strtoul(item->valuestring, &end, 16);
    return true;
}

ls_status ls_checkpoint_manifest_get(const cJSON *item, const char *path, ls_checkpoint_file *file)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(item, "file");
    const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(item, "bytes");

    if (!cJSON_IsObject(item) || !cJSON_IsString(name) || !is_plain_name(name->valuestring)) {
        return LS_FAIL(LS_ERR_CORRUPT, "%s: a manifest entry names no file of this folder", path);
    }
    if (!cJSON_IsNumber(bytes) || !(bytes->valuedouble >= 0) || bytes->valuedouble > BYTES_MAX ||
        (double)(uint64_t)bytes->valuedouble != bytes->valuedouble ||
        !parse_crc(cJSON_GetObjectItemCaseSensitive(item, "crc32c"), &file->crc)) {
        return LS_FAIL(LS_ERR_CORRUPT, "%s: the manifest's bytes or crc32c of %s are not readable",
                       path, name->valuestring);
    }
    file->name = name->valuestring;
    file->bytes = (uint64_t)bytes->valuedouble;
    return LS_OK;
}

ls_status ls_checkpoint_manifest_find(const cJSON *state, const char *path, const cJSON **manifest)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(state, "manifest");
    const cJSON *item;
    ls_checkpoint_file file;

    if (!cJSON_IsArray(list)) return LS_FAIL(LS_ERR_CORRUPT, "%s: it has no manifest", path);
    cJSON_ArrayForEach(item, list)
    {
        LS_TRY(ls_checkpoint_manifest_get(item, path, &file));
    }
    *manifest = list;
    return LS_OK;
}

ls_status ls_checkpoint_manifest_add(cJSON *manifest, const ls_checkpoint_file *file)
{
    char crc[16];
    cJSON *item = cJSON_CreateObject();

    snprintf(crc, sizeof crc, "%08x", file->crc);
    if (cJSON_AddStringToObject(item, "file", file->name) &&
        cJSON_AddNumberToObject(item, "bytes", (double)file->bytes) &&
        cJSON_AddStringToObject(item, "crc32c", crc) && cJSON_AddItemToArray(manifest, item)) {
        return LS_OK;
    }
    cJSON_Delete(item);
    return ls_disk_file_fail_memory(256, "a checkpoint's manifest");
}
