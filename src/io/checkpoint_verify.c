/*
 * checkpoint_verify.c - compare a checkpoint with the manifest in its state.json.
 *
 * Bound by reading the files once.
 */
#include <stdlib.h>
#include <string.h>

#include "checkpoint_dir.h"
#include "checkpoint_state.h"
#include "crc32c.h"
#include "directory.h"
#include "disk_file.h"

static ls_status sum_file(const ls_disk_file *file, uint64_t bytes, uint32_t *crc)
{
    const uint64_t block_bytes = (uint64_t)1 << 20;
    uint32_t sum = 0;
    ls_status status = LS_OK;
    uint8_t *block = malloc((size_t)block_bytes);

    if (!block) return ls_disk_file_fail_memory(block_bytes, "a checksum");
    for (uint64_t at = 0; at < bytes && status == LS_OK; at += block_bytes) {
        const uint64_t n = bytes - at < block_bytes ? bytes - at : block_bytes;
        status = ls_disk_file_read_at(file, block, n, at);
        if (status == LS_OK) sum = ls_crc32c(sum, block, n);
    }
    free(block);
    if (status == LS_OK) *crc = sum;
    return status;
}

static ls_status check_content(const ls_disk_file *file, const ls_checkpoint_file *wanted,
                               bool full)
{
    uint64_t bytes = 0;
    uint32_t crc = 0;

    LS_TRY(ls_disk_file_size(file, &bytes));
    if (bytes != wanted->bytes) {
        return LS_FAIL(LS_ERR_CORRUPT, "%s has %llu bytes, the manifest says %llu", file->path,
                       (unsigned long long)bytes, (unsigned long long)wanted->bytes);
    }
    if (!full) return LS_OK;
    LS_TRY(sum_file(file, bytes, &crc));
    if (crc == wanted->crc) return LS_OK;
    return LS_FAIL(LS_ERR_CORRUPT, "%s has checksum %08x, the manifest says %08x", file->path, crc,
                   wanted->crc);
}

ls_status ls_checkpoint_file_check(const char *folder, const ls_checkpoint_file *wanted, bool full)
{
    ls_disk_file file = LS_DISK_FILE_CLOSED;
    char *path = ls_path_join(folder, wanted->name);

    if (!path) return ls_disk_file_fail_memory(strlen(folder), "a path");
    ls_status status = ls_disk_file_open(path, LS_DISK_FILE_READ, &file);
    if (status == LS_OK) status = check_content(&file, wanted, full);
    ls_disk_file_close(&file);
    free(path);
    return status;
}

ls_status ls_checkpoint_state_read(const char *directory, cJSON **state)
{
    char *text = NULL, *path = ls_path_join(directory, LS_CHECKPOINT_STATE_NAME);
    uint64_t bytes = 0;

    if (!path) return ls_disk_file_fail_memory(strlen(directory), "a path");
    ls_status status = ls_disk_file_read_all(path, LS_CHECKPOINT_STATE_BYTES_MAX, &text, &bytes);
    if (status == LS_OK) status = ls_checkpoint_state_parse(text, bytes, path, state);
    free(text);
    free(path);
    return status;
}

ls_status ls_checkpoint_verify(const char *directory, bool full)
{
    const cJSON *manifest = NULL, *item;
    cJSON *state = NULL;
    ls_checkpoint_file file;

    LS_TRY(ls_checkpoint_state_read(directory, &state));
    ls_status status = ls_checkpoint_manifest_find(state, directory, &manifest);
    cJSON_ArrayForEach(item, manifest)
    {
        if (status == LS_OK) status = ls_checkpoint_manifest_get(item, directory, &file);
        if (status == LS_OK) status = ls_checkpoint_file_check(directory, &file, full);
    }
    cJSON_Delete(state);
    return status;
}

ls_status ls_checkpoint_verify_if_any(const char *directory, bool *is_checkpoint)
{
    char *path = ls_path_join(directory, LS_CHECKPOINT_STATE_NAME);
    ls_path_kind kind;

    if (!path) return ls_disk_file_fail_memory(strlen(directory), "a path");
    const ls_status status = ls_path_describe(path, &kind);
    free(path);
    LS_TRY(status);
    if (kind != LS_PATH_ABSENT) LS_TRY(ls_checkpoint_verify(directory, true));
    if (is_checkpoint) *is_checkpoint = kind != LS_PATH_ABSENT;
    return LS_OK;
}
