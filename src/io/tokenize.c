/*
 * tokenize.c - collect the files, then stream each through a small buffer into a shard.
 *
 * The list is complete before the output is opened, so the output cannot become its own input.
 */
#include "tokenize.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "directory.h"
#include "disk_file.h"
#include "tokens.h"

#define DEPTH_MAX   64
#define BLOCK_BYTES 16384

typedef struct file_list {
    const ls_tokenize_request *request;
    char **paths;
    int64_t n, room;
    ls_tokenize_report report;
} file_list;

static ls_status check_stop(const ls_tokenize_request *request)
{
    if (request->stop == NULL || !atomic_load(request->stop)) return LS_OK;
    return LS_FAIL(LS_ERR_STOPPED, "stopped: nothing was written to %s.bin and .idx",
                   request->prefix);
}

static ls_status add_path(file_list *list, char *path) /* owns path from here on */
{
    if (list->n == list->room) {
        const int64_t wanted = list->room ? 2 * list->room : 64;
        char **paths = realloc(list->paths, (size_t)wanted * sizeof *paths);
        if (!paths) {
            free(path);
            return ls_disk_file_fail_memory((uint64_t)wanted * sizeof *paths, "a list of files");
        }
        list->paths = paths;
        list->room = wanted;
    }
    list->paths[list->n++] = path;
    return LS_OK;
}

/* NAME.bin.tmp-PID or NAME.idx.tmp-PID, the output of a process that was killed: no text. */
static bool is_half_written(const char *name)
{
    const char *at = strstr(name, ".tmp-");

    if (at == NULL || at - name < 4) return false;
    if (strncmp(at - 4, ".bin", 4) != 0 && strncmp(at - 4, ".idx", 4) != 0) return false;
    at += strlen(".tmp-");
    return *at != '\0' && at[strspn(at, "0123456789")] == '\0';
}

static ls_status collect_folder(file_list *list, const char *path, int depth)
{
    ls_name_list names = {NULL, 0};
    ls_status status;

    if (depth > DEPTH_MAX) {
        return LS_FAIL(LS_ERR_INVALID, "%s: folders are nested deeper than %d", path, DEPTH_MAX);
    }
    status = check_stop(list->request);
    if (status == LS_OK) status = ls_directory_list(path, &names);
    for (int64_t i = 0; i < names.n_names && status == LS_OK; i++) {
        ls_path_kind kind = LS_PATH_ABSENT;
        char *below = ls_path_join(path, names.names[i]);
        if (!below) {
            status = ls_disk_file_fail_memory(strlen(path), "a path");
            break;
        }
        status = ls_path_describe_link(below, &kind);
        if (status == LS_OK && kind == LS_PATH_FILE && !is_half_written(names.names[i])) {
            status = add_path(list, below);
            continue;
        }
        if (status == LS_OK && kind == LS_PATH_DIRECTORY) {
            status = collect_folder(list, below, depth + 1);
        } else {
            list->report.n_skipped++;
        }
        free(below);
    }
    ls_name_list_free(&names);
    return status;
}

static ls_status collect(file_list *list, const char *path)
{
    ls_path_kind kind;

    LS_TRY(ls_path_describe(path, &kind));
    if (kind == LS_PATH_DIRECTORY) return collect_folder(list, path, 0);
    char *copy = strdup(path); /* absent or special: opening it names the fault */
    return copy ? add_path(list, copy) : ls_disk_file_fail_memory(strlen(path), "a path");
}

/* "", ".", "..", and paths that end so, would make hidden files or files of a folder's name. */
static ls_status check_prefix(const char *prefix)
{
    const char *slash = strrchr(prefix, '/');
    const char *name = slash ? slash + 1 : prefix;

    if (*name != '\0' && strcmp(name, ".") != 0 && strcmp(name, "..") != 0) return LS_OK;
    return LS_FAIL(LS_ERR_INVALID,
                   "'%s' ends in no file's name: the output is PREFIX.bin and PREFIX.idx; allowed: "
                   "a prefix such as data/train",
                   prefix);
}

typedef struct file_identity {
    dev_t device;
    ino_t number;
} file_identity;

static bool is_same(const struct stat *about, const file_identity *file)
{
    return about->st_dev == file->device && about->st_ino == file->number;
}

/* The files that the output replaces; what cannot be looked at is no input either. */
static int find_old_output(const char *prefix, file_identity old[2])
{
    static const char *const suffixes[] = {".bin", ".idx"};
    char path[PATH_MAX];
    struct stat about;
    int n = 0;

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s%s", prefix, suffixes[i]);
        if (stat(path, &about) == 0) old[n++] = (file_identity){about.st_dev, about.st_ino};
    }
    return n;
}

/* A shard among its inputs would be read as text; by whatever path it is named. */
static ls_status check_output(const file_list *list, const char *prefix)
{
    file_identity old[2];
    const int n_old = find_old_output(prefix, old);
    struct stat about;

    for (int64_t i = 0; i < list->n && n_old > 0; i++) {
        if (stat(list->paths[i], &about) != 0) continue; /* opening it names the fault */
        for (int o = 0; o < n_old; o++)
            if (is_same(&about, &old[o]))
                return LS_FAIL(LS_ERR_INVALID,
                               "%s is the output, and lies among the inputs: write it "
                               "elsewhere",
                               list->paths[i]);
    }
    return LS_OK;
}

/* The folder of the output, made when the inputs are known to be good. */
static ls_status make_parent(const char *prefix)
{
    char *parent = ls_path_parent(prefix);

    if (!parent) return ls_disk_file_fail_memory(strlen(prefix), "a path");
    const ls_status status = ls_directory_make(parent);
    free(parent);
    return status;
}

static ls_status copy_bytes(const ls_tokenize_request *request, const ls_disk_file *file,
                            uint64_t bytes, ls_tokens_writer *writer)
{
    uint8_t block[BLOCK_BYTES];
    int32_t ids[BLOCK_BYTES];

    for (uint64_t at = 0; at < bytes; at += BLOCK_BYTES) {
        const uint64_t n = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        LS_TRY(check_stop(request));
        LS_TRY(ls_disk_file_read_at(file, block, n, at));
        for (uint64_t i = 0; i < n; i++) ids[i] = block[i];
        LS_TRY(ls_tokens_writer_append(writer, ids, (int64_t)n));
    }
    return LS_OK;
}

static ls_status add_document(file_list *list, const char *path, ls_tokens_writer *writer)
{
    ls_tokenize_report *report = &list->report;
    const int32_t end = LS_BYTES_END_OF_DOCUMENT;
    ls_disk_file file = LS_DISK_FILE_CLOSED;
    uint64_t bytes = 0;

    LS_TRY(ls_disk_file_open(path, LS_DISK_FILE_READ, &file));
    ls_status status = ls_disk_file_size(&file, &bytes);
    if (status == LS_OK && bytes == 0) {
        report->n_empty++;
    } else if (status == LS_OK) {
        status = copy_bytes(list->request, &file, bytes, writer);
        if (status == LS_OK) status = ls_tokens_writer_append(writer, &end, 1);
        if (status == LS_OK) status = ls_tokens_writer_end_document(writer);
        report->n_files++;
    }
    ls_disk_file_close(&file);
    return status;
}

static ls_status write_shard(file_list *list)
{
    const char *prefix = list->request->prefix;
    const ls_tokens_writer_options options = {.element = LS_TOKENS_ELEMENT_U16};
    ls_tokens_writer *writer = NULL;

    LS_TRY(ls_tokens_writer_open(prefix, &options, &writer));
    ls_status status = LS_OK;
    for (int64_t i = 0; i < list->n && status == LS_OK; i++) {
        status = add_document(list, list->paths[i], writer);
    }
    if (status == LS_OK && list->report.n_files == 0) {
        status = LS_FAIL(LS_ERR_INVALID, "%s: none of the inputs has any content", prefix);
    }
    if (status == LS_OK) status = ls_tokens_writer_commit(writer);
    list->report.n_tokens = ls_tokens_writer_count(writer);
    ls_tokens_writer_close(writer);
    return status;
}

ls_status ls_tokenize_bytes(const ls_tokenize_request *request, ls_tokenize_report *report)
{
    file_list list = {.request = request};
    ls_status status = check_prefix(request->prefix);

    for (int64_t i = 0; i < request->n_paths && status == LS_OK; i++) {
        status = collect(&list, request->paths[i]);
    }
    if (status == LS_OK) status = check_output(&list, request->prefix);
    if (status == LS_OK) status = make_parent(request->prefix);
    if (status == LS_OK) status = write_shard(&list);
    if (status == LS_OK && report) *report = list.report;
    for (int64_t i = 0; i < list.n; i++) free(list.paths[i]);
    free(list.paths);
    return status;
}
