/*
 * safetensors_set_writer.c - cut a list of tensors into shards, write each, then the index.
 *
 * Shards are runs of the list: a first pass counts them, because their number is in every name.
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "disk_file.h"
#include "safetensors_set.h"

#define NAME_BYTES 300

/* The end of the shard that begins at tensor `first`, and its bytes. */
static ls_status end_shard(const ls_safetensors_set_options *options,
                           const ls_safetensors_tensor *tensors, int64_t n, int64_t first,
                           int64_t *end, uint64_t *bytes)
{
    uint64_t total = 0;
    int64_t at = first;

    for (; at < n; at++) {
        uint64_t size = 0;
        LS_TRY(ls_safetensors_tensor_bytes(&tensors[at], &size));
        if (at > first && options->shard_bytes_max > 0 && total + size > options->shard_bytes_max) {
            break;
        }
        total += size;
    }
    *end = at;
    *bytes = total;
    return LS_OK;
}

static ls_status count_shards(const ls_safetensors_set_options *options,
                              const ls_safetensors_tensor *tensors, int64_t n, int64_t *n_shards,
                              uint64_t *bytes_total)
{
    int64_t count = 0;
    uint64_t total = 0;

    for (int64_t first = 0, end; first < n; first = end, count++) {
        uint64_t bytes = 0;
        LS_TRY(end_shard(options, tensors, n, first, &end, &bytes));
        total += bytes;
    }
    *n_shards = count;
    *bytes_total = total;
    return LS_OK;
}

static ls_status report_file(const ls_safetensors_set_options *options, const char *name,
                             uint64_t bytes, uint32_t crc)
{
    return options->on_file ? options->on_file(options->context, name, bytes, crc) : LS_OK;
}

static ls_status write_shard(const ls_safetensors_set_options *options, const char *name,
                             const ls_safetensors_tensor *tensors, int64_t n)
{
    uint64_t bytes = 0;
    uint32_t crc = 0;
    char *path = ls_path_join(options->directory, name);

    if (!path) return ls_disk_file_fail_memory(NAME_BYTES, "a path");
    const ls_status status = ls_safetensors_write(path, tensors, n, &bytes, &crc);
    free(path);
    return status == LS_OK ? report_file(options, name, bytes, crc) : status;
}

static ls_status write_index(const ls_safetensors_set_options *options, cJSON *index)
{
    char name[NAME_BYTES];
    char *text = cJSON_Print(index), *path;
    ls_status status;

    snprintf(name, sizeof name, "%s.safetensors.index.json", options->base);
    path = ls_path_join(options->directory, name);
    if (text && path) {
        const uint64_t bytes = strlen(text);
        status = ls_disk_file_write_atomic(path, text, bytes);
        if (status == LS_OK) {
            status = report_file(options, name, bytes, ls_crc32c(0, text, bytes));
        }
    } else {
        status = ls_disk_file_fail_memory(NAME_BYTES, "a safetensors index");
    }
    free(path);
    cJSON_free(text);
    return status;
}

static ls_status write_shards(const ls_safetensors_set_options *options,
                              const ls_safetensors_tensor *tensors, int64_t n, int64_t n_shards,
                              cJSON *weight_map)
{
    int64_t first = 0;

    for (int64_t shard = 0; shard < n_shards; shard++) {
        char name[NAME_BYTES];
        uint64_t bytes = 0;
        int64_t end = 0;
        LS_TRY(end_shard(options, tensors, n, first, &end, &bytes));
        snprintf(name, sizeof name, "%s-%05lld-of-%05lld.safetensors", options->base,
                 (long long)shard + 1, (long long)n_shards);
        LS_TRY(write_shard(options, name, tensors + first, end - first));
        for (int64_t i = first; i < end; i++) {
            if (cJSON_AddStringToObject(weight_map, tensors[i].name, name)) continue;
            return ls_disk_file_fail_memory(NAME_BYTES, "a safetensors index");
        }
        first = end;
    }
    return LS_OK;
}

ls_status ls_safetensors_set_write(const ls_safetensors_set_options *options,
                                   const ls_safetensors_tensor *tensors, int64_t n)
{
    int64_t n_shards = 0;
    uint64_t bytes_total = 0;
    cJSON *index = NULL, *metadata, *weight_map;
    ls_status status;

    if (n < 1 || strlen(options->base) > 200) {
        return LS_FAIL(LS_ERR_INVALID, "%lld tensors to write as '%.200s'", (long long)n,
                       options->base);
    }
    LS_TRY(ls_safetensors_check_names(tensors, n)); /* each shard sees only its own */
    LS_TRY(count_shards(options, tensors, n, &n_shards, &bytes_total));
    index = cJSON_CreateObject();
    metadata = cJSON_AddObjectToObject(index, "metadata");
    weight_map = cJSON_AddObjectToObject(index, "weight_map");
    if (!weight_map || !cJSON_AddNumberToObject(metadata, "total_size", (double)bytes_total)) {
        status = ls_disk_file_fail_memory(NAME_BYTES, "a safetensors index");
    } else {
        status = write_shards(options, tensors, n, n_shards, weight_map);
        if (status == LS_OK) status = write_index(options, index);
    }
    cJSON_Delete(index);
    return status;
}
