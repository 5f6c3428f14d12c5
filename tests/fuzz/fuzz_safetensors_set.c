/*
 * fuzz_safetensors_set.c - any bytes as model.safetensors.index.json over two shards: refused, or
 * every tensor of the set is one that a shard has, and can be read.
 */
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "file_ops.h"
#include "safetensors_set.h"

#define REGULAR_FILE 0100000 /* S_IFREG, which POSIX alone does not define */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

typedef struct memory_file {
    const char *name;
    const void *data;
    size_t bytes;
} memory_file;

/* Headers of 64 bytes: {"a":{...}} with blanks behind, and a byte of data. */
static char shard_a[73], shard_b[73];
static memory_file files[] = {{"model.safetensors.index.json", NULL, 0},
                              {"a.safetensors", shard_a, sizeof shard_a},
                              {"b.safetensors", shard_b, sizeof shard_b}};

enum { N_FILES = sizeof files / sizeof files[0], FIRST_FD = 1000 };

static void make_shard(char *shard, const char *name)
{
    static const char entry[] = "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";

    memset(shard, ' ', 73);
    memcpy(shard, "\x40\0\0\0\0\0\0\0{\"", 10);
    memcpy(shard + 10, name, 1);
    memcpy(shard + 11, entry, sizeof entry - 1);
}

static const memory_file *find_file(const char *path)
{
    const char *slash = strrchr(path, '/');

    for (int i = 0; i < N_FILES && slash != NULL; i++)
        if (strcmp(slash + 1, files[i].name) == 0) return &files[i];
    return NULL;
}

static int open_memory(const char *path, int flags, mode_t mode)
{
    const memory_file *file = find_file(path);

    (void)flags, (void)mode;
    errno = ENOENT;
    return file != NULL ? FIRST_FD + (int)(file - files) : -1;
}

static int close_memory(int fd)
{
    assert(fd >= FIRST_FD && fd < FIRST_FD + N_FILES);
    return 0;
}

static int fstat_memory(int fd, struct stat *info)
{
    memset(info, 0, sizeof *info);
    info->st_mode = REGULAR_FILE;
    info->st_size = (off_t)files[fd - FIRST_FD].bytes;
    return 0;
}

static int stat_memory(const char *path, struct stat *info)
{
    const int fd = open_memory(path, 0, 0);
    return fd >= 0 ? fstat_memory(fd, info) : -1;
}

static ssize_t pread_memory(int fd, void *data, size_t bytes, off_t offset)
{
    const memory_file *file = &files[fd - FIRST_FD];

    if (offset < 0 || (uint64_t)offset >= file->bytes) return 0;
    const size_t rest = file->bytes - (size_t)offset, n = bytes < rest ? bytes : rest;
    memcpy(data, (const char *)file->data + offset, n);
    return (ssize_t)n;
}

static void use_memory(void)
{
    static ls_file_ops ops;

    ops = *ls_file_ops_libc();
    ops.open = open_memory;
    ops.close = close_memory;
    ops.fstat = fstat_memory;
    ops.stat = stat_memory;
    ops.pread = pread_memory;
    make_shard(shard_a, "a");
    make_shard(shard_b, "b");
    ls_file_ops_replace(&ops);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    ls_safetensors_set *set = NULL;
    char byte;

    files[0].data = data;
    files[0].bytes = bytes;
    use_memory();
    if (ls_safetensors_set_open("folder", "model", &set) != LS_OK) return 0;
    assert(ls_safetensors_set_count(set) <= 2);
    for (int64_t i = 0; i < ls_safetensors_set_count(set); i++) {
        const char *name = ls_safetensors_set_get(set, i)->name;
        assert(strcmp(name, "a") == 0 || strcmp(name, "b") == 0);
        assert(ls_safetensors_set_find(set, name) == i);
        assert(ls_safetensors_set_read(set, i, 0, 1, &byte) == LS_OK && byte == ' ');
    }
    ls_safetensors_set_close(set);
    return 0;
}
