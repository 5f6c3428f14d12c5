/*
 * safetensors_set.c - open a folder of shards as one name space.
 *
 * Files are collected first (from the index, or from the folder), then every tensor gets a row
 * {entry, file} in one list sorted by name.  An index must name each tensor of its shards.
 */
#include "safetensors_set.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "directory.h"
#include "disk_file.h"
#include "json.h"

#define INDEX_BYTES_MAX ((uint64_t)100000000)
#define SUFFIX          ".safetensors"

typedef struct row {
    const ls_safetensors_entry *entry;
    const ls_safetensors *file;
} row;

struct ls_safetensors_set {
    char *directory;
    const char *base; /* while opening only */
    ls_safetensors **files;
    char **file_names;
    int64_t n_files;
    row *rows; /* [n_rows], by name */
    int64_t n_rows;
};

/* A shard is a plain name in the folder, so that an index cannot reach outside. */
static bool is_shard_name(const char *name)
{
    const size_t length = strlen(name), suffix = strlen(SUFFIX);

    return length > suffix && name[0] != '.' && strchr(name, '/') == NULL &&
           strcmp(name + length - suffix, SUFFIX) == 0;
}

static ls_status add_file(ls_safetensors_set *set, const char *name)
{
    const size_t n = (size_t)set->n_files + 1;
    ls_safetensors **files = realloc(set->files, n * sizeof(void *));
    if (files) set->files = files;
    char **names = realloc(set->file_names, n * sizeof(void *));
    if (names) set->file_names = names;
    char *copy = strdup(name), *path = ls_path_join(set->directory, name);
    ls_status status;

    if (!files || !names || !copy || !path) {
        status = ls_disk_file_fail_memory(n * sizeof(void *), "a list of shards");
    } else {
        status = ls_safetensors_open(path, &files[n - 1]);
    }
    free(path);
    if (status != LS_OK) {
        free(copy);
        return status;
    }
    names[n - 1] = copy;
    set->n_files++;
    return LS_OK;
}

static const ls_safetensors *find_file(const ls_safetensors_set *set, const char *name)
{
    for (int64_t i = set->n_files - 1; i >= 0; i--) { /* an index mostly repeats the last one */
        if (strcmp(set->file_names[i], name) == 0) return set->files[i];
    }
    return NULL;
}

static ls_status reserve_rows(ls_safetensors_set *set, int64_t n)
{
    set->rows = calloc((size_t)n + 1, sizeof *set->rows);
    if (!set->rows)
        return ls_disk_file_fail_memory((uint64_t)n * sizeof *set->rows, "a tensor list");
    return LS_OK;
}

static ls_status add_mapped(ls_safetensors_set *set, const cJSON *item, const char *index_path)
{
    if (!cJSON_IsString(item) || !is_shard_name(item->valuestring)) {
        return LS_FAIL(LS_ERR_CORRUPT,
                       "%s: weight_map '%.300s' is not a file name NAME.safetensors in its folder",
                       index_path, item->string);
    }
    const ls_safetensors *file = find_file(set, item->valuestring);
    if (!file) {
        LS_TRY(add_file(set, item->valuestring));
        file = set->files[set->n_files - 1];
    }
    const ls_safetensors_entry *entry = ls_safetensors_find(file, item->string);
    if (!entry) {
        return LS_FAIL(LS_ERR_CORRUPT, "%s: tensor '%.300s' is not in its shard %s", index_path,
                       item->string, ls_safetensors_path(file));
    }
    set->rows[set->n_rows++] = (row){entry, file};
    return LS_OK;
}

/* What the index does not name would be left out unsaid. */
static ls_status check_unnamed(const ls_safetensors_set *set, const char *index_path)
{
    int64_t n = 0;

    for (int64_t i = 0; i < set->n_files; i++) n += ls_safetensors_count(set->files[i]);
    if (n <= set->n_rows) return LS_OK; /* names that are there twice are found later */
    for (int64_t i = 0; i < set->n_files; i++)
        for (int64_t j = 0; j < ls_safetensors_count(set->files[i]); j++) {
            const ls_safetensors_entry *entry = ls_safetensors_get(set->files[i], j);
            if (ls_safetensors_set_find(set, entry->name) >= 0) continue;
            return LS_FAIL(LS_ERR_CORRUPT, "%s: tensor '%.300s' of %s is not in the index",
                           index_path, entry->name, ls_safetensors_path(set->files[i]));
        }
    return LS_FAIL(LS_ERR_CORRUPT, "%s: a tensor lies in two of its shards", index_path);
}

static ls_status read_index(ls_safetensors_set *set, const char *path)
{
    char *text = NULL;
    const cJSON *item;
    ls_status status;

    LS_TRY(ls_disk_file_read_all(path, INDEX_BYTES_MAX, &text, NULL));
    cJSON *index = cJSON_Parse(text);
    if (index == NULL && ls_json_is_valid(text, strlen(text))) {
        status = ls_disk_file_fail_memory(strlen(text), path);
        goto delete_index;
    }
    const cJSON *weight_map = cJSON_GetObjectItemCaseSensitive(index, "weight_map");
    if (!cJSON_IsObject(weight_map)) {
        status = LS_FAIL(LS_ERR_CORRUPT, "%s: not JSON with an object weight_map", path);
        goto delete_index;
    }
    status = reserve_rows(set, cJSON_GetArraySize(weight_map));
    cJSON_ArrayForEach(item, weight_map)
    {
        if (status == LS_OK) status = add_mapped(set, item, path);
    }

delete_index:
    cJSON_Delete(index);
    free(text);
    return status;
}

/* BASE-<digits>-of-<digits>.safetensors */
static bool parse_shard(const char *name, const char *base, int64_t *number, int64_t *n_shards)
{
    const size_t length = strlen(base);
    int end = 0;
    long long first = 0, last = 0;

    if (strncmp(name, base, length) != 0 || !is_shard_name(name)) return false;
    if (sscanf(name + length, "-%9lld-of-%9lld%n", &first, &last, &end) != 2) return false;
    if (strcmp(name + length + end, SUFFIX) != 0) return false;
    *number = first;
    *n_shards = last;
    return true;
}

static ls_status add_shards(ls_safetensors_set *set, const ls_name_list *list)
{
    int64_t n_announced = 0;

    for (int64_t i = 0; i < list->n_names; i++) {
        int64_t number = 0, n_shards = 0;
        if (!parse_shard(list->names[i], set->base, &number, &n_shards)) continue;
        if (number != set->n_files + 1 || (set->n_files > 0 && n_shards != n_announced)) {
            return LS_FAIL(LS_ERR_CORRUPT, "%s: %s does not follow shard %lld of %lld",
                           set->directory, list->names[i], (long long)set->n_files,
                           (long long)n_announced);
        }
        n_announced = n_shards;
        LS_TRY(add_file(set, list->names[i]));
    }
    if (set->n_files == 0) {
        return LS_FAIL(LS_ERR_IO, "%s holds no %s.safetensors and no %s-*-of-*.safetensors",
                       set->directory, set->base, set->base);
    }
    if (set->n_files != n_announced) {
        return LS_FAIL(LS_ERR_CORRUPT, "%s: shard %lld of %lld is missing", set->directory,
                       (long long)set->n_files + 1, (long long)n_announced);
    }
    return LS_OK;
}

static ls_status add_all_entries(ls_safetensors_set *set)
{
    int64_t n = 0;

    for (int64_t i = 0; i < set->n_files; i++) n += ls_safetensors_count(set->files[i]);
    LS_TRY(reserve_rows(set, n));
    for (int64_t i = 0; i < set->n_files; i++) {
        for (int64_t j = 0; j < ls_safetensors_count(set->files[i]); j++) {
            set->rows[set->n_rows++] = (row){ls_safetensors_get(set->files[i], j), set->files[i]};
        }
    }
    return LS_OK;
}

static ls_status find_files(ls_safetensors_set *set)
{
    char name[300];
    ls_path_kind kind;
    ls_name_list list = {NULL, 0};

    snprintf(name, sizeof name, "%s%s", set->base, SUFFIX);
    char *single = ls_path_join(set->directory, name);
    if (!single) return ls_disk_file_fail_memory(sizeof name, "a path");
    ls_status status = ls_path_describe(single, &kind);
    free(single);
    if (status != LS_OK) return status;
    if (kind != LS_PATH_ABSENT) {
        LS_TRY(add_file(set, name));
        return add_all_entries(set);
    }
    LS_TRY(ls_directory_list(set->directory, &list));
    status = add_shards(set, &list);
    ls_name_list_free(&list);
    return status == LS_OK ? add_all_entries(set) : status;
}

static int compare_rows(const void *left, const void *right)
{
    return strcmp(((const row *)left)->entry->name, ((const row *)right)->entry->name);
}

static ls_status sort_rows(ls_safetensors_set *set)
{
    qsort(set->rows, (size_t)set->n_rows, sizeof *set->rows, compare_rows);
    for (int64_t i = 1; i < set->n_rows; i++) {
        if (compare_rows(&set->rows[i - 1], &set->rows[i]) != 0) continue;
        return LS_FAIL(LS_ERR_CORRUPT, "%s: tensor '%s' is there twice", set->directory,
                       set->rows[i].entry->name);
    }
    return LS_OK;
}

static ls_status fill_set(ls_safetensors_set *set)
{
    char name[300];
    ls_path_kind kind;

    snprintf(name, sizeof name, "%s.safetensors.index.json", set->base);
    char *index_path = ls_path_join(set->directory, name);
    if (!index_path) return ls_disk_file_fail_memory(sizeof name, "a path");
    ls_status status = ls_path_describe(index_path, &kind);
    if (status == LS_OK) {
        status = kind == LS_PATH_ABSENT ? find_files(set) : read_index(set, index_path);
    }
    if (status == LS_OK) status = sort_rows(set);
    if (status == LS_OK && kind != LS_PATH_ABSENT) status = check_unnamed(set, index_path);
    free(index_path);
    return status;
}

ls_status ls_safetensors_set_open(const char *directory, const char *base, ls_safetensors_set **set)
{
    ls_safetensors_set *opened = calloc(1, sizeof *opened);

    if (!opened) return ls_disk_file_fail_memory(sizeof *opened, "a set of shards");
    opened->directory = strdup(directory);
    opened->base = base;
    const ls_status status =
        opened->directory ? fill_set(opened) : ls_disk_file_fail_memory(64, "a path");
    if (status != LS_OK) {
        ls_safetensors_set_close(opened);
        return status;
    }
    *set = opened;
    return LS_OK;
}

void ls_safetensors_set_close(ls_safetensors_set *set)
{
    if (!set) return;
    for (int64_t i = 0; i < set->n_files; i++) {
        ls_safetensors_close(set->files[i]);
        free(set->file_names[i]);
    }
    free(set->files);
    free(set->file_names);
    free(set->rows);
    free(set->directory);
    free(set);
}

int64_t ls_safetensors_set_count(const ls_safetensors_set *set)
{
    return set->n_rows;
}

const ls_safetensors_entry *ls_safetensors_set_get(const ls_safetensors_set *set, int64_t index)
{
    return index >= 0 && index < set->n_rows ? set->rows[index].entry : NULL;
}

int64_t ls_safetensors_set_find(const ls_safetensors_set *set, const char *name)
{
    const ls_safetensors_entry wanted = {.name = name};
    const row key = {&wanted, NULL};
    const row *found = set->n_rows == 0 ? NULL
                                        : bsearch(&key, set->rows, (size_t)set->n_rows,
                                                  sizeof *set->rows, compare_rows);
    return found ? found - set->rows : -1;
}

const ls_safetensors *ls_safetensors_set_file(const ls_safetensors_set *set, int64_t index)
{
    return index >= 0 && index < set->n_rows ? set->rows[index].file : NULL;
}

ls_status ls_safetensors_set_read(const ls_safetensors_set *set, int64_t index, uint64_t offset,
                                  uint64_t bytes, void *data)
{
    if (index < 0 || index >= set->n_rows) {
        return LS_FAIL(LS_ERR_INVALID, "%s: tensor index %lld of %lld", set->directory,
                       (long long)index, (long long)set->n_rows);
    }
    return ls_safetensors_read(set->rows[index].file, set->rows[index].entry, offset, bytes, data);
}
