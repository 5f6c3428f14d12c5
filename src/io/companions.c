/* companions.c - a list of names, read and written whole. */
#include "companions.h"

#include <stdlib.h>
#include <string.h>

#include "directory.h"
#include "disk_file.h"

static const char *const names[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
};

enum { N_NAMES = sizeof names / sizeof names[0] };
_Static_assert(N_NAMES <= LS_COMPANIONS_MAX, "a place for each");

static ls_status read_one(const char *folder, const char *name, ls_companions *companions)
{
    ls_companion *file = &companions->files[companions->n];
    char *path = ls_path_join(folder, name);
    ls_path_kind kind = LS_PATH_ABSENT;

    if (path == NULL) return ls_disk_file_fail_memory(strlen(folder), "a path");
    ls_status status = ls_path_describe(path, &kind);
    if (status == LS_OK && kind != LS_PATH_ABSENT) {
        status = ls_disk_file_read_all(path, LS_COMPANION_BYTES_MAX, &file->data, &file->bytes);
        file->name = name;
        if (status == LS_OK) companions->n++;
    }
    free(path);
    return status;
}

ls_status ls_companions_read(const char *path, ls_companions *companions)
{
    ls_companions read = {.n = 0};
    ls_path_kind kind;
    ls_status status = LS_OK;

    LS_TRY(ls_path_describe(path, &kind));
    for (int i = 0; i < N_NAMES && kind == LS_PATH_DIRECTORY && status == LS_OK; i++)
        status = read_one(path, names[i], &read);
    if (status != LS_OK) {
        ls_companions_free(&read);
        return status;
    }
    *companions = read;
    return LS_OK;
}

void ls_companions_free(ls_companions *companions)
{
    for (int i = 0; i < companions->n; i++) free(companions->files[i].data);
    companions->n = 0;
}

uint64_t ls_companions_bytes(const ls_companions *companions)
{
    uint64_t bytes = 0;
    for (int i = 0; i < companions->n; i++) bytes += companions->files[i].bytes;
    return bytes;
}

ls_status ls_companions_write(const ls_companions *companions, ls_checkpoint_writer *writer)
{
    for (int i = 0; i < companions->n; i++) {
        const ls_companion *file = &companions->files[i];
        LS_TRY(ls_checkpoint_write(writer, file->name, file->data, file->bytes));
    }
    return LS_OK;
}
