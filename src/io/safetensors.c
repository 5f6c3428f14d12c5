/*
 * safetensors.c - the reader: parse the header once, trust nothing in it, then read by offset.
 *
 * Entries are sorted by offset, which makes "no overlap, no gap" one pass and lets a caller read a
 * file front to back; a second index sorted by name serves look-ups.  JSON numbers arrive as
 * doubles, so only whole numbers below 2^53 are accepted.
 */
#include "safetensors.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "disk_file.h"
#include "json.h"

#define SIZE_FIELD_BYTES 8
#define WHOLE_MAX        9007199254740991.0 /* 2^53 - 1 */

struct ls_safetensors {
    ls_disk_file file;
    cJSON *header;                        /* owns the names */
    ls_safetensors_entry *entries;        /* [n_entries], by offset */
    const ls_safetensors_entry **by_name; /* [n_entries] */
    int64_t n_entries;
    uint64_t data_start; /* bytes before the data */
    uint64_t file_bytes;
};

static ls_status fail_header(const ls_safetensors *file, const char *name, const char *what)
{
    return LS_FAIL(LS_ERR_CORRUPT, "%s: tensor '%.300s': %s", file->file.path, name, what);
}

static bool read_whole(const cJSON *item, uint64_t *value)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || item->valuedouble > WHOLE_MAX) {
        return false;
    }
    const uint64_t whole = (uint64_t)item->valuedouble;
    if ((double)whole != item->valuedouble) return false;
    *value = whole;
    return true;
}

static ls_status read_dtype(const ls_safetensors *file, const cJSON *item,
                            ls_safetensors_entry *entry)
{
    if (!cJSON_IsString(item)) return fail_header(file, entry->name, "dtype is not a string");
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        if (strcmp(item->valuestring, ls_dtype_name((ls_dtype)dtype)) != 0) continue;
        entry->dtype = (ls_dtype)dtype;
        return LS_OK;
    }
    return LS_FAIL(LS_ERR_UNSUPPORTED,
                   "%s: tensor '%s' has dtype '%.32s'; readable are F32 BF16 F64 F16 U8 I16 I32 "
                   "I64: convert the file",
                   file->file.path, entry->name, item->valuestring);
}

/* The shape, and the bytes it stands for. */
static ls_status read_shape(const ls_safetensors *file, const cJSON *item,
                            ls_safetensors_entry *entry, uint64_t *bytes)
{
    const cJSON *dim;
    uint64_t total = ls_dtype_bytes(entry->dtype);

    if (!cJSON_IsArray(item)) return fail_header(file, entry->name, "shape is not a list");
    cJSON_ArrayForEach(dim, item)
    {
        uint64_t length = 0;
        if (entry->n_dims == LS_SAFETENSORS_DIMS_MAX) {
            return fail_header(file, entry->name, "shape has more than 8 dimensions");
        }
        if (!read_whole(dim, &length)) {
            return fail_header(file, entry->name, "shape holds something that is not a length");
        }
        if (__builtin_mul_overflow(total, length, &total)) {
            return fail_header(file, entry->name, "shape overflows");
        }
        entry->dims[entry->n_dims++] = (int64_t)length;
    }
    *bytes = total;
    return LS_OK;
}

static ls_status read_offsets(const ls_safetensors *file, const cJSON *item,
                              ls_safetensors_entry *entry)
{
    const uint64_t data_bytes = file->file_bytes - file->data_start;
    uint64_t begin = 0, end = 0;

    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 ||
        !read_whole(cJSON_GetArrayItem(item, 0), &begin) ||
        !read_whole(cJSON_GetArrayItem(item, 1), &end) || begin > end) {
        return fail_header(file, entry->name, "data_offsets is not [begin, end]");
    }
    if (end > data_bytes) {
        return LS_FAIL(LS_ERR_CORRUPT,
                       "%s: tensor '%s' ends at data byte %llu, but the file holds %llu: it is cut "
                       "short",
                       file->file.path, entry->name, (unsigned long long)end,
                       (unsigned long long)data_bytes);
    }
    entry->offset_bytes = file->data_start + begin;
    entry->size_bytes = end - begin;
    return LS_OK;
}

static ls_status read_entry(const ls_safetensors *file, const cJSON *item,
                            ls_safetensors_entry *entry)
{
    uint64_t bytes = 0;

    entry->name = item->string;
    if (entry->name[0] == '\0' || strlen(entry->name) > LS_SAFETENSORS_NAME_BYTES_MAX) {
        return fail_header(file, entry->name, "the name is empty or longer than 256 bytes");
    }
    /* Three members and each of the three names: none is missing, unknown or there twice. */
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    if (!cJSON_IsObject(item) || !dtype || !shape || !offsets || cJSON_GetArraySize(item) != 3) {
        return fail_header(file, entry->name, "it is not {dtype, shape, data_offsets}");
    }
    LS_TRY(read_dtype(file, dtype, entry));
    LS_TRY(read_shape(file, shape, entry, &bytes));
    LS_TRY(read_offsets(file, offsets, entry));
    if (bytes != entry->size_bytes) {
        return LS_FAIL(LS_ERR_CORRUPT,
                       "%s: tensor '%s': its shape needs %llu bytes, data_offsets hold %llu",
                       file->file.path, entry->name, (unsigned long long)bytes,
                       (unsigned long long)entry->size_bytes);
    }
    return LS_OK;
}

static int compare_offsets(const void *left, const void *right)
{
    const ls_safetensors_entry *a = left, *b = right;

    if (a->offset_bytes != b->offset_bytes) return a->offset_bytes < b->offset_bytes ? -1 : 1;
    if (a->size_bytes != b->size_bytes) return a->size_bytes < b->size_bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

static int compare_names(const void *left, const void *right)
{
    const ls_safetensors_entry *const *a = left, *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

static ls_status check_layout(const ls_safetensors *file)
{
    uint64_t end = file->data_start;

    for (int64_t i = 0; i < file->n_entries; i++) {
        const ls_safetensors_entry *entry = &file->entries[i];
        if (entry->offset_bytes < end) {
            return fail_header(file, entry->name, "it overlaps the tensor before it");
        }
        if (entry->offset_bytes > end) {
            return fail_header(file, entry->name, "there is a gap before it");
        }
        end += entry->size_bytes;
    }
    if (end != file->file_bytes) {
        return LS_FAIL(LS_ERR_CORRUPT, "%s: %llu bytes behind the last tensor belong to none",
                       file->file.path, (unsigned long long)(file->file_bytes - end));
    }
    for (int64_t i = 1; i < file->n_entries; i++) {
        if (compare_names(&file->by_name[i - 1], &file->by_name[i]) == 0) {
            return fail_header(file, file->by_name[i]->name, "the name is there twice");
        }
    }
    return LS_OK;
}

static ls_status check_metadata(const ls_safetensors *file, const cJSON *metadata)
{
    const cJSON *item;

    if (!cJSON_IsObject(metadata)) {
        return LS_FAIL(LS_ERR_CORRUPT, "%s: __metadata__ is not an object", file->file.path);
    }
    cJSON_ArrayForEach(item, metadata)
    {
        if (cJSON_IsString(item)) continue;
        return LS_FAIL(LS_ERR_CORRUPT, "%s: __metadata__ '%.64s' is not a string", file->file.path,
                       item->string);
    }
    return LS_OK;
}

static ls_status read_entries(ls_safetensors *file)
{
    const size_t n_items = (size_t)cJSON_GetArraySize(file->header);
    const cJSON *item;
    int n_metadata = 0;

    file->entries = calloc(n_items + 1, sizeof *file->entries);
    file->by_name = calloc(n_items + 1, sizeof(void *));
    if (!file->entries || !file->by_name) {
        return ls_disk_file_fail_memory(n_items * sizeof *file->entries, "a tensor index");
    }
    cJSON_ArrayForEach(item, file->header)
    {
        if (strcmp(item->string, "__metadata__") == 0) {
            if (n_metadata++ > 0) return fail_header(file, item->string, "it is there twice");
            LS_TRY(check_metadata(file, item));
            continue;
        }
        LS_TRY(read_entry(file, item, &file->entries[file->n_entries]));
        file->n_entries++;
    }
    qsort(file->entries, (size_t)file->n_entries, sizeof *file->entries, compare_offsets);
    for (int64_t i = 0; i < file->n_entries; i++) file->by_name[i] = &file->entries[i];
    qsort(file->by_name, (size_t)file->n_entries, sizeof(void *), compare_names);
    return check_layout(file);
}

static ls_status parse_header(ls_safetensors *file, const char *text, uint64_t bytes)
{
    const char *end = NULL;

    /* cJSON ends strings at a NUL, written raw or as an escape: two names could become one. */
    if (memchr(text, '\0', (size_t)bytes) || strstr(text, "\\u0000")) {
        return LS_FAIL(LS_ERR_CORRUPT, "%s: the header holds a NUL", file->file.path);
    }
    file->header = cJSON_ParseWithLengthOpts(text, (size_t)bytes, &end, 0);
    if (!file->header && ls_json_is_valid(text, (size_t)bytes)) {
        return ls_disk_file_fail_memory(bytes, "a safetensors header");
    }
    if (file->header) end += strspn(end, " \t\r\n");
    if (text[0] != '{' || !cJSON_IsObject(file->header) || end != text + bytes) {
        return LS_FAIL(LS_ERR_CORRUPT, "%s: the header is not a JSON object (byte %lld of %llu)",
                       file->file.path, end ? (long long)(end - text) : 0LL,
                       (unsigned long long)bytes);
    }
    return read_entries(file);
}

static ls_status read_header(ls_safetensors *file)
{
    uint8_t field[SIZE_FIELD_BYTES];
    uint64_t bytes = 0;

    LS_TRY(ls_disk_file_size(&file->file, &file->file_bytes));
    LS_TRY(ls_disk_file_read_at(&file->file, field, sizeof field, 0));
    for (int i = SIZE_FIELD_BYTES - 1; i >= 0; i--) bytes = bytes << 8 | field[i];
    if (bytes < 2 || bytes > LS_SAFETENSORS_HEADER_BYTES_MAX ||
        bytes > file->file_bytes - SIZE_FIELD_BYTES) {
        return LS_FAIL(LS_ERR_CORRUPT,
                       "%s: the header claims %llu bytes of a file of %llu (at most %u): not a "
                       "safetensors file, or cut short",
                       file->file.path, (unsigned long long)bytes,
                       (unsigned long long)file->file_bytes, LS_SAFETENSORS_HEADER_BYTES_MAX);
    }
    file->data_start = SIZE_FIELD_BYTES + bytes;
    char *text = malloc((size_t)bytes + 1);
    if (!text) return ls_disk_file_fail_memory(bytes + 1, "a safetensors header");
    text[bytes] = '\0';
    ls_status status = ls_disk_file_read_at(&file->file, text, bytes, SIZE_FIELD_BYTES);
    if (status == LS_OK) status = parse_header(file, text, bytes);
    free(text);
    return status;
}

ls_status ls_safetensors_open(const char *path, ls_safetensors **file)
{
    ls_safetensors *opened = calloc(1, sizeof *opened);

    if (!opened) return ls_disk_file_fail_memory(sizeof *opened, "a safetensors file");
    opened->file = LS_DISK_FILE_CLOSED;
    ls_status status = ls_disk_file_open(path, LS_DISK_FILE_READ, &opened->file);
    if (status == LS_OK) status = read_header(opened);
    if (status != LS_OK) {
        ls_safetensors_close(opened);
        return status;
    }
    *file = opened;
    return LS_OK;
}

void ls_safetensors_close(ls_safetensors *file)
{
    if (!file) return;
    free(file->by_name);
    free(file->entries);
    cJSON_Delete(file->header);
    ls_disk_file_close(&file->file);
    free(file);
}

const char *ls_safetensors_path(const ls_safetensors *file)
{
    return file->file.path;
}

int64_t ls_safetensors_count(const ls_safetensors *file)
{
    return file->n_entries;
}

const ls_safetensors_entry *ls_safetensors_get(const ls_safetensors *file, int64_t index)
{
    return index >= 0 && index < file->n_entries ? &file->entries[index] : NULL;
}

const ls_safetensors_entry *ls_safetensors_find(const ls_safetensors *file, const char *name)
{
    int64_t low = 0, high = file->n_entries;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const int order = strcmp(name, file->by_name[middle]->name);
        if (order == 0) return file->by_name[middle];
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

const char *ls_safetensors_metadata(const ls_safetensors *file, const char *key)
{
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(file->header, "__metadata__");
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(metadata, key);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

ls_status ls_safetensors_read(const ls_safetensors *file, const ls_safetensors_entry *entry,
                              uint64_t offset, uint64_t bytes, void *data)
{
    if (offset > entry->size_bytes || bytes > entry->size_bytes - offset) {
        return LS_FAIL(LS_ERR_INVALID, "%s: tensor '%s' has %llu bytes, asked for %llu at %llu",
                       file->file.path, entry->name, (unsigned long long)entry->size_bytes,
                       (unsigned long long)bytes, (unsigned long long)offset);
    }
    return ls_disk_file_read_at(&file->file, data, bytes, entry->offset_bytes + offset);
}
