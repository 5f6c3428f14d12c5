/*
 * tokens_writer.c - a shard under temporary names, renamed when it is whole.
 *
 * Ids are narrowed into a buffer and appended; the index's arrays grow in memory and are written
 * at commit.  The old index goes before the new ids come, and the new index comes last: whenever
 * the process dies, an index present is that of the ids present.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "directory.h"
#include "disk_file.h"
#include "tokens.h"
#include "tokens_index.h"

#define BUFFER_BYTES 262144

typedef struct ends {
    int64_t *values;
    int64_t n, room;
} ends;

struct ls_tokens_writer {
    ls_disk_file bin;
    char *prefix;
    char *bin_path, *bin_beside, *idx_path, *idx_beside;
    ls_tokens_element element;
    int64_t sequence_tokens_max;
    ends sequences, documents; /* in tokens; in sequences */
    int64_t n_tokens, sequence_start;
    bool committed;
    uint64_t used; /* of buffer */
    uint8_t buffer[BUFFER_BYTES];
};

static ls_status append_end(ends *list, int64_t value)
{
    if (list->n == list->room) {
        const int64_t wanted = list->room ? 2 * list->room : 1024;
        int64_t *values = realloc(list->values, (size_t)wanted * sizeof *values);
        if (!values) return ls_disk_file_fail_memory((uint64_t)wanted * 8, "a shard's index");
        list->values = values;
        list->room = wanted;
    }
    list->values[list->n++] = value;
    return LS_OK;
}

static char *make_name(const char *prefix, const char *suffix)
{
    const size_t room = strlen(prefix) + strlen(suffix) + 32;
    char *path = malloc(room);

    if (path) snprintf(path, room, "%s%s", prefix, suffix);
    return path;
}

static char *make_beside(const char *path)
{
    char suffix[32];
    snprintf(suffix, sizeof suffix, ".tmp-%ld", (long)getpid());
    return path ? make_name(path, suffix) : NULL;
}

static ls_status check_no_mask(const char *prefix)
{
    ls_path_kind kind;
    char *path = make_name(prefix, ".mask");

    if (!path) return ls_disk_file_fail_memory(strlen(prefix), "a path");
    ls_status status = ls_path_describe(path, &kind);
    if (status == LS_OK && kind != LS_PATH_ABSENT) {
        status =
            LS_FAIL(LS_ERR_INVALID,
                    "%s is the mask of older tokens: remove it, or write to another prefix", path);
    }
    free(path);
    return status;
}

static ls_status open_files(ls_tokens_writer *writer, const char *prefix)
{
    writer->prefix = make_name(prefix, "");
    writer->bin_path = make_name(prefix, ".bin");
    writer->idx_path = make_name(prefix, ".idx");
    writer->bin_beside = make_beside(writer->bin_path);
    writer->idx_beside = make_beside(writer->idx_path);
    if (!writer->prefix || !writer->bin_beside || !writer->idx_beside) {
        return ls_disk_file_fail_memory(strlen(prefix), "a path");
    }
    return ls_disk_file_open(writer->bin_beside, LS_DISK_FILE_CREATE, &writer->bin);
}

ls_status ls_tokens_writer_open(const char *prefix, const ls_tokens_writer_options *options,
                                ls_tokens_writer **writer)
{
    if (options->element != LS_TOKENS_ELEMENT_U8 && options->element != LS_TOKENS_ELEMENT_U16 &&
        options->element != LS_TOKENS_ELEMENT_I32) {
        return LS_FAIL(LS_ERR_INVALID, "%s: element type %d; shards hold uint8, uint16 or int32",
                       prefix, (int)options->element);
    }
    if (options->sequence_tokens_max < 0 || options->sequence_tokens_max > INT32_MAX) {
        return LS_FAIL(LS_ERR_INVALID, "%s: sequences of %lld tokens; at most 2^31 - 1", prefix,
                       (long long)options->sequence_tokens_max);
    }
    LS_TRY(check_no_mask(prefix));
    ls_tokens_writer *opened = calloc(1, sizeof *opened);
    if (!opened) return ls_disk_file_fail_memory(sizeof *opened, "a shard writer");
    opened->bin = LS_DISK_FILE_CLOSED;
    opened->element = options->element;
    opened->sequence_tokens_max =
        options->sequence_tokens_max ? options->sequence_tokens_max : INT32_MAX;
    const ls_status status = open_files(opened, prefix);
    if (status != LS_OK) {
        ls_tokens_writer_close(opened);
        return status;
    }
    *writer = opened;
    return LS_OK;
}

static ls_status flush_buffer(ls_tokens_writer *writer)
{
    const uint64_t used = writer->used;
    writer->used = 0;
    return ls_disk_file_write(&writer->bin, writer->buffer, used);
}

static ls_status put_id(ls_tokens_writer *writer, int32_t id)
{
    const uint64_t element = ls_tokens_element_bytes(writer->element);
    const uint32_t wide = (uint32_t)id;

    if (id < 0 || (element < 4 && wide >> (8 * element) != 0)) {
        return LS_FAIL(LS_ERR_INVALID, "%s: token %lld is id %d, more than %llu bytes hold",
                       writer->bin_path, (long long)writer->n_tokens, id,
                       (unsigned long long)element);
    }
    if (writer->used + element > BUFFER_BYTES) LS_TRY(flush_buffer(writer));
    memcpy(writer->buffer + writer->used, &wide, element); /* little-endian: low bytes first */
    writer->used += element;
    if (writer->n_tokens - writer->sequence_start == writer->sequence_tokens_max) {
        LS_TRY(append_end(&writer->sequences, writer->n_tokens));
        writer->sequence_start = writer->n_tokens;
    }
    writer->n_tokens++;
    return LS_OK;
}

ls_status ls_tokens_writer_append(ls_tokens_writer *writer, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) LS_TRY(put_id(writer, ids[i]));
    return LS_OK;
}

ls_status ls_tokens_writer_end_document(ls_tokens_writer *writer)
{
    LS_TRY(append_end(&writer->sequences, writer->n_tokens));
    writer->sequence_start = writer->n_tokens;
    return append_end(&writer->documents, writer->sequences.n);
}

static ls_status sync_parent(const ls_tokens_writer *writer)
{
    char *parent = ls_path_parent(writer->prefix);

    if (!parent) return ls_disk_file_fail_memory(strlen(writer->prefix), "a path");
    const ls_status status = ls_directory_sync(parent);
    free(parent);
    return status;
}

ls_status ls_tokens_writer_commit(ls_tokens_writer *writer)
{
    const ls_tokens_index_content content = {
        .element = writer->element,
        .sequence_ends = writer->sequences.values,
        .n_sequences = writer->sequences.n,
        .document_ends = writer->documents.values,
        .n_documents = writer->documents.n,
    };

    if (writer->sequence_start != writer->n_tokens) {
        return LS_FAIL(LS_ERR_INVALID, "%s: the last document was not ended", writer->bin_path);
    }
    LS_TRY(flush_buffer(writer));
    LS_TRY(ls_disk_file_sync(&writer->bin));
    LS_TRY(ls_tokens_index_write(writer->idx_beside, &content));
    LS_TRY(ls_disk_file_remove(writer->idx_path));
    LS_TRY(sync_parent(writer));
    LS_TRY(ls_disk_file_rename(writer->bin_beside, writer->bin_path));
    LS_TRY(sync_parent(writer));
    LS_TRY(ls_disk_file_rename(writer->idx_beside, writer->idx_path));
    writer->committed = true;
    return sync_parent(writer);
}

void ls_tokens_writer_close(ls_tokens_writer *writer)
{
    if (!writer) return;
    if (!writer->committed && writer->bin.fd >= 0) {
        ls_disk_file_discard(writer->bin_beside);
        ls_disk_file_discard(writer->idx_beside);
    }
    ls_disk_file_close(&writer->bin);
    free(writer->sequences.values);
    free(writer->documents.values);
    free(writer->bin_path);
    free(writer->bin_beside);
    free(writer->idx_path);
    free(writer->idx_beside);
    free(writer->prefix);
    free(writer);
}

int64_t ls_tokens_writer_count(const ls_tokens_writer *writer)
{
    return writer->n_tokens;
}
