/*
 * safetensors_set_writer.c - tensors as they come, cut into shards, and the index at the end.
 *
 * The names of the shards hold their number and the index holds the shard of each tensor, so both
 * are made from the list of tensors before the first byte is written.  Between appends at most one
 * file is open.
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "disk_file.h"
#include "safetensors_set.h"

#define NAME_BYTES     300
#define BASE_BYTES_MAX 200

struct ls_safetensors_set_writer {
    ls_safetensors_set_options options; /* with the texts below */
    char *directory, *base;
    ls_safetensors_tensor *tensors; /* [n] */
    uint64_t *bytes;                /* [n] of each tensor */
    char *names;                    /* of the tensors, one behind the other */
    int64_t n, next;
    int64_t n_shards, n_complete;
    ls_safetensors_writer *file; /* the shard at work; NULL between shards */
    int64_t file_end;            /* the tensor behind its last */
    char *index;                 /* its text */
    bool failed, finished;
};

/* ---- the cuts ------------------------------------------------------------------------------ */

/* The end of the shard that begins at tensor `first`. */
static int64_t end_shard(const ls_safetensors_set_writer *writer, int64_t first)
{
    const uint64_t most = writer->options.shard_bytes_max;
    uint64_t total = writer->bytes[first];
    int64_t at = first + 1;

    for (; at < writer->n; at++) {
        if (total % ls_dtype_bytes(writer->tensors[at].dtype) != 0) break;
        if (most > 0 && total + writer->bytes[at] > most) break;
        total += writer->bytes[at];
    }
    return at;
}

static int64_t count_shards(const ls_safetensors_set_writer *writer)
{
    int64_t n_shards = 0;
    for (int64_t first = 0; first < writer->n; n_shards++) first = end_shard(writer, first);
    return n_shards;
}

static void print_shard_name(const ls_safetensors_set_writer *writer, int64_t shard, char *name)
{
    snprintf(name, NAME_BYTES, "%s-%05lld-of-%05lld.safetensors", writer->base,
             (long long)shard + 1, (long long)writer->n_shards);
}

static ls_status build_index(ls_safetensors_set_writer *writer)
{
    cJSON *index = cJSON_CreateObject();
    cJSON *metadata = cJSON_AddObjectToObject(index, "metadata");
    cJSON *weight_map = cJSON_AddObjectToObject(index, "weight_map");
    bool built = weight_map != NULL;
    int64_t first = 0;
    uint64_t total = 0;

    for (int64_t shard = 0; shard < writer->n_shards && built; shard++) {
        const int64_t end = end_shard(writer, first);
        char name[NAME_BYTES];
        print_shard_name(writer, shard, name);
        for (; first < end && built; first++) {
            built = cJSON_AddStringToObject(weight_map, writer->tensors[first].name, name) != NULL;
            total += writer->bytes[first];
        }
    }
    built = built && cJSON_AddNumberToObject(metadata, "total_size", (double)total) != NULL;
    writer->index = built ? cJSON_Print(index) : NULL;
    cJSON_Delete(index);
    if (writer->index) return LS_OK;
    return ls_disk_file_fail_memory((uint64_t)writer->n * NAME_BYTES, "a safetensors index");
}

/* ---- open ---------------------------------------------------------------------------------- */

static ls_status copy_tensors(ls_safetensors_set_writer *writer,
                              const ls_safetensors_tensor *tensors)
{
    const size_t n = (size_t)writer->n;
    size_t text_bytes = 0;

    for (size_t i = 0; i < n; i++) text_bytes += strlen(tensors[i].name) + 1;
    writer->tensors = calloc(n, sizeof *tensors);
    writer->bytes = calloc(n, sizeof *writer->bytes);
    writer->names = malloc(text_bytes);
    if (!writer->tensors || !writer->bytes || !writer->names) {
        return ls_disk_file_fail_memory(n * sizeof *tensors + text_bytes, "a tensor list");
    }
    char *name = writer->names;
    for (size_t i = 0; i < n; i++) {
        const size_t length = strlen(tensors[i].name) + 1;
        LS_TRY(ls_safetensors_tensor_bytes(&tensors[i], &writer->bytes[i]));
        writer->tensors[i] = tensors[i];
        writer->tensors[i].name = memcpy(name, tensors[i].name, length);
        name += length;
    }
    return LS_OK;
}

static ls_status fill_writer(ls_safetensors_set_writer *writer,
                             const ls_safetensors_set_options *options,
                             const ls_safetensors_tensor *tensors, int64_t n)
{
    writer->options = *options;
    writer->n = n;
    writer->options.directory = writer->directory = strdup(options->directory);
    writer->options.base = writer->base = strdup(options->base);
    if (!writer->directory || !writer->base) {
        return ls_disk_file_fail_memory(NAME_BYTES, "a path");
    }
    LS_TRY(copy_tensors(writer, tensors));
    writer->n_shards = count_shards(writer);
    return build_index(writer);
}

ls_status ls_safetensors_set_writer_open(const ls_safetensors_set_options *options,
                                         const ls_safetensors_tensor *tensors, int64_t n,
                                         ls_safetensors_set_writer **writer)
{
    if (n < 1 || strlen(options->base) > BASE_BYTES_MAX) {
        return LS_FAIL(LS_ERR_INVALID, "%lld tensors to write as '%.200s'", (long long)n,
                       options->base);
    }
    LS_TRY(ls_safetensors_check_names(tensors, n)); /* each shard sees only its own */
    ls_safetensors_set_writer *opened = calloc(1, sizeof *opened);
    if (!opened) return ls_disk_file_fail_memory(sizeof *opened, "a set of shards");
    const ls_status status = fill_writer(opened, options, tensors, n);
    if (status != LS_OK) {
        ls_safetensors_set_writer_close(opened);
        return status;
    }
    *writer = opened;
    return LS_OK;
}

/* ---- append -------------------------------------------------------------------------------- */

static ls_status report_file(const ls_safetensors_set_options *options, const char *name,
                             uint64_t bytes, uint32_t crc)
{
    return options->on_file ? options->on_file(options->context, name, bytes, crc) : LS_OK;
}

static ls_status open_shard(ls_safetensors_set_writer *writer)
{
    const int64_t first = writer->next, end = end_shard(writer, first);
    char name[NAME_BYTES];

    print_shard_name(writer, writer->n_complete, name);
    char *path = ls_path_join(writer->directory, name);
    if (!path) return ls_disk_file_fail_memory(NAME_BYTES, "a path");
    const ls_status status =
        ls_safetensors_writer_open(path, &writer->tensors[first], end - first, &writer->file);
    free(path);
    if (status == LS_OK) writer->file_end = end;
    return status;
}

static ls_status finish_shard(ls_safetensors_set_writer *writer)
{
    uint64_t bytes = 0;
    uint32_t crc = 0;
    char name[NAME_BYTES];

    LS_TRY(ls_safetensors_writer_finish(writer->file, &bytes, &crc));
    ls_safetensors_writer_close(writer->file);
    writer->file = NULL;
    print_shard_name(writer, writer->n_complete++, name);
    return report_file(&writer->options, name, bytes, crc);
}

static ls_status append_next(ls_safetensors_set_writer *writer, const void *data)
{
    if (!writer->file) LS_TRY(open_shard(writer));
    LS_TRY(ls_safetensors_writer_append(writer->file, data, writer->bytes[writer->next]));
    writer->next++;
    return writer->next == writer->file_end ? finish_shard(writer) : LS_OK;
}

ls_status ls_safetensors_set_writer_append(ls_safetensors_set_writer *writer, const void *data)
{
    if (writer->failed || writer->next == writer->n) {
        return LS_FAIL(LS_ERR_INVALID, "%s/%s-*: a tensor after %s", writer->directory,
                       writer->base, writer->failed ? "a failed write" : "the last of the set");
    }
    const ls_status status = append_next(writer, data);
    writer->failed = status != LS_OK; /* half a tensor may be in the file: no second try */
    return status;
}

/* ---- finish, close ------------------------------------------------------------------------- */

ls_status ls_safetensors_set_writer_finish(ls_safetensors_set_writer *writer)
{
    char name[NAME_BYTES];

    if (writer->failed || writer->next < writer->n) {
        return LS_FAIL(LS_ERR_INVALID, "%s/%s-*: %lld of %lld tensors were written",
                       writer->directory, writer->base, (long long)writer->next,
                       (long long)writer->n);
    }
    snprintf(name, sizeof name, "%s.safetensors.index.json", writer->base);
    char *path = ls_path_join(writer->directory, name);
    if (!path) return ls_disk_file_fail_memory(NAME_BYTES, "a path");
    const uint64_t bytes = strlen(writer->index);
    ls_status status = ls_disk_file_write_atomic(path, writer->index, bytes);
    if (status == LS_OK) {
        status = report_file(&writer->options, name, bytes, ls_crc32c(0, writer->index, bytes));
    }
    if (status != LS_OK) ls_disk_file_discard(path);
    free(path);
    writer->finished = status == LS_OK;
    return status;
}

static void discard_shard(const ls_safetensors_set_writer *writer, int64_t shard)
{
    char name[NAME_BYTES];

    print_shard_name(writer, shard, name);
    char *path = ls_path_join(writer->directory, name);
    if (path) ls_disk_file_discard(path);
    free(path);
}

void ls_safetensors_set_writer_close(ls_safetensors_set_writer *writer)
{
    if (!writer) return;
    ls_safetensors_writer_close(writer->file);
    for (int64_t shard = 0; shard < writer->n_complete && !writer->finished; shard++) {
        discard_shard(writer, shard);
    }
    cJSON_free(writer->index);
    free(writer->names);
    free(writer->bytes);
    free(writer->tensors);
    free(writer->base);
    free(writer->directory);
    free(writer);
}
