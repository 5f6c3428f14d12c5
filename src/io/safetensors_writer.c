/*
 * safetensors_writer.c - the writer: header first, then the tensors' bytes as they come.
 *
 * The checksum is taken block by block just before a block is written, while it is in cache, so
 * that writing is bound by the disk and the data are read from memory once.
 */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "disk_file.h"
#include "safetensors.h"

#define BLOCK_BYTES    ((uint64_t)1 << 20)
#define DATA_ALIGNMENT 8
#define EXACT_MAX      1000000000000000u /* above, cJSON prints a number with an exponent */

struct ls_safetensors_writer {
    ls_disk_file file;
    uint64_t bytes_written, bytes_total;
    uint32_t crc;
    bool finished;
};

ls_status ls_safetensors_tensor_bytes(const ls_safetensors_tensor *tensor, uint64_t *bytes)
{
    uint64_t total = ls_dtype_bytes(tensor->dtype);

    if (tensor->n_dims < 0 || tensor->n_dims > LS_SAFETENSORS_DIMS_MAX) {
        return LS_FAIL(LS_ERR_INVALID, "tensor '%s' has %d dimensions, at most %d", tensor->name,
                       tensor->n_dims, LS_SAFETENSORS_DIMS_MAX);
    }
    for (int i = 0; i < tensor->n_dims; i++) {
        const int64_t dim = tensor->dims[i];
        if (dim < 0 || __builtin_mul_overflow(total, (uint64_t)dim, &total) || total > EXACT_MAX) {
            return LS_FAIL(LS_ERR_INVALID, "tensor '%s': dimension %d is %lld: too large",
                           tensor->name, i, (long long)dim);
        }
    }
    *bytes = total;
    return LS_OK;
}

static int compare_name_pointers(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

ls_status ls_safetensors_check_names(const ls_safetensors_tensor *tensors, int64_t n)
{
    const char **names = malloc(((size_t)n + 1) * sizeof names[0]);
    ls_status status = LS_OK;

    if (!names) return ls_disk_file_fail_memory((uint64_t)n * sizeof names[0], "tensor names");
    for (int64_t i = 0; i < n && status == LS_OK; i++) {
        const char *name = names[i] = tensors[i].name;
        if (name[0] == '\0' || strlen(name) > LS_SAFETENSORS_NAME_BYTES_MAX ||
            strcmp(name, "__metadata__") == 0) {
            status = LS_FAIL(LS_ERR_INVALID, "tensor %lld is named '%.300s': 1 to %d bytes allowed",
                             (long long)i, name, LS_SAFETENSORS_NAME_BYTES_MAX);
        }
    }
    if (status == LS_OK) {
        qsort(names, (size_t)n, sizeof names[0], compare_name_pointers);
        for (int64_t i = 1; i < n && status == LS_OK; i++) {
            if (strcmp(names[i - 1], names[i]) != 0) continue;
            status = LS_FAIL(LS_ERR_INVALID, "two tensors are named '%s'", names[i]);
        }
    }
    free(names);
    return status;
}

static bool add_tensor(cJSON *header, const ls_safetensors_tensor *tensor, uint64_t begin,
                       uint64_t end)
{
    cJSON *item = cJSON_AddObjectToObject(header, tensor->name);
    cJSON *shape, *offsets;

    if (!cJSON_AddStringToObject(item, "dtype", ls_dtype_name(tensor->dtype))) return false;
    shape = cJSON_AddArrayToObject(item, "shape");
    offsets = cJSON_AddArrayToObject(item, "data_offsets");
    if (!shape || !offsets) return false;
    for (int i = 0; i < tensor->n_dims; i++) {
        if (!cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)tensor->dims[i]))) return false;
    }
    return cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)begin)) &&
           cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)end));
}

static ls_status build_header(const ls_safetensors_tensor *tensors, int64_t n, char **text,
                              uint64_t *data_bytes)
{
    cJSON *header = cJSON_CreateObject();
    cJSON *metadata = cJSON_AddObjectToObject(header, "__metadata__");
    bool built = cJSON_AddStringToObject(metadata, "format", "pt") != NULL;
    ls_status status = LS_OK;
    uint64_t at = 0;

    for (int64_t i = 0; i < n && built; i++) {
        const uint64_t element = ls_dtype_bytes(tensors[i].dtype);
        uint64_t bytes = 0;
        status = ls_safetensors_tensor_bytes(&tensors[i], &bytes);
        if (status != LS_OK) goto delete_header;
        if (at % element != 0 || at + bytes > EXACT_MAX) {
            status =
                LS_FAIL(LS_ERR_INVALID,
                        "tensor '%s' would start at byte %llu, not at a multiple of %llu below "
                        "1e15: write wide types first, in more files",
                        tensors[i].name, (unsigned long long)at, (unsigned long long)element);
            goto delete_header;
        }
        built = add_tensor(header, &tensors[i], at, at + bytes);
        at += bytes;
    }
    char *printed = built ? cJSON_PrintUnformatted(header) : NULL;
    if (!printed) {
        status = ls_disk_file_fail_memory((uint64_t)n * 128, "a safetensors header");
        goto delete_header;
    }
    *text = printed;
    *data_bytes = at;

delete_header:
    cJSON_Delete(header);
    return status;
}

/* Write through the checksum. */
static ls_status write_summed(ls_safetensors_writer *writer, const void *data, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += BLOCK_BYTES) {
        const char *block = (const char *)data + at;
        const uint64_t size = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        writer->crc = ls_crc32c(writer->crc, block, size);
        LS_TRY(ls_disk_file_write(&writer->file, block, size));
    }
    writer->bytes_written += bytes;
    return LS_OK;
}

static ls_status write_header(ls_safetensors_writer *writer, const char *text)
{
    static const char spaces[DATA_ALIGNMENT + 1] = "        ";
    const uint64_t length = strlen(text);
    const uint64_t padding = (DATA_ALIGNMENT - length % DATA_ALIGNMENT) % DATA_ALIGNMENT;
    const uint64_t header_bytes = length + padding;
    uint8_t field[8];

    if (header_bytes > LS_SAFETENSORS_HEADER_BYTES_MAX) {
        return LS_FAIL(LS_ERR_INVALID, "%s: the header has %llu bytes, at most %u: use more files",
                       writer->file.path, (unsigned long long)header_bytes,
                       LS_SAFETENSORS_HEADER_BYTES_MAX);
    }
    for (int i = 0; i < 8; i++) field[i] = (uint8_t)(header_bytes >> (8 * i));
    LS_TRY(write_summed(writer, field, sizeof field));
    LS_TRY(write_summed(writer, text, length));
    LS_TRY(write_summed(writer, spaces, padding));
    writer->bytes_total += writer->bytes_written;
    return LS_OK;
}

ls_status ls_safetensors_writer_open(const char *path, const ls_safetensors_tensor *tensors,
                                     int64_t n, ls_safetensors_writer **writer)
{
    char *text = NULL;
    uint64_t data_bytes = 0;

    LS_TRY(ls_safetensors_check_names(tensors, n));
    LS_TRY(build_header(tensors, n, &text, &data_bytes));
    ls_safetensors_writer *opened = calloc(1, sizeof *opened);
    ls_status status;
    if (!opened) {
        status = ls_disk_file_fail_memory(sizeof *opened, "a safetensors writer");
        goto free_text;
    }
    opened->file = LS_DISK_FILE_CLOSED;
    opened->bytes_total = data_bytes;
    status = ls_disk_file_open(path, LS_DISK_FILE_CREATE, &opened->file);
    if (status == LS_OK) status = write_header(opened, text);
    if (status != LS_OK) {
        ls_safetensors_writer_close(opened);
        goto free_text;
    }
    *writer = opened;

free_text:
    cJSON_free(text);
    return status;
}

ls_status ls_safetensors_writer_append(ls_safetensors_writer *writer, const void *data,
                                       uint64_t bytes)
{
    if (bytes > writer->bytes_total - writer->bytes_written) {
        return LS_FAIL(LS_ERR_INVALID, "%s: %llu bytes more than its header announces",
                       writer->file.path,
                       (unsigned long long)(bytes - (writer->bytes_total - writer->bytes_written)));
    }
    return write_summed(writer, data, bytes);
}

ls_status ls_safetensors_writer_finish(ls_safetensors_writer *writer, uint64_t *bytes,
                                       uint32_t *crc)
{
    if (writer->bytes_written != writer->bytes_total) {
        return LS_FAIL(LS_ERR_INVALID, "%s: %llu bytes fewer than its header announces",
                       writer->file.path,
                       (unsigned long long)(writer->bytes_total - writer->bytes_written));
    }
    LS_TRY(ls_disk_file_sync(&writer->file));
    writer->finished = true;
    if (bytes) *bytes = writer->bytes_written;
    if (crc) *crc = writer->crc;
    return LS_OK;
}

void ls_safetensors_writer_close(ls_safetensors_writer *writer)
{
    if (!writer) return;
    if (!writer->finished && writer->file.path) ls_disk_file_discard(writer->file.path);
    ls_disk_file_close(&writer->file);
    free(writer);
}
