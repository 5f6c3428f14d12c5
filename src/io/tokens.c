/*
 * tokens.c - several shards as one axis of tokens, read with pread.
 *
 * Not mapped: a disk error or a file cut short under a map is a signal that ends the process, with
 * pread it is a status.  One read costs well under a microsecond of overhead, and a step of
 * training makes a few per document.
 */
#include "tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "directory.h"
#include "disk_file.h"
#include "tokens_index.h"

#define STAGING_BYTES 65536 /* a multiple of every element size */

typedef struct part {
    ls_disk_file bin;
    ls_disk_file mask; /* closed if there is none */
    ls_tokens_element element;
    int64_t first, end; /* on the token axis */
} part;

struct ls_tokens {
    part *parts;
    int64_t n_parts;
    int64_t *offsets; /* [n_documents + 1] */
    int64_t n_documents;
    uint32_t identity;
};

static void add_identity(ls_tokens *tokens, uint64_t value)
{
    tokens->identity = ls_crc32c(tokens->identity, &value, sizeof value);
}

static char *append_suffix(const char *prefix, const char *suffix)
{
    const size_t room = strlen(prefix) + strlen(suffix) + 1;
    char *path = malloc(room);

    if (path) snprintf(path, room, "%s%s", prefix, suffix);
    return path;
}

/* Open PREFIX + suffix; an absent optional file leaves *file closed. */
static ls_status open_suffix(const char *prefix, const char *suffix, bool optional,
                             ls_disk_file *file)
{
    char *path = append_suffix(prefix, suffix);
    ls_path_kind kind = LS_PATH_FILE;
    ls_status status = LS_OK;

    if (!path) return ls_disk_file_fail_memory(strlen(prefix), "a path");
    if (optional) status = ls_path_describe(path, &kind);
    if (status == LS_OK && kind != LS_PATH_ABSENT) {
        status = ls_disk_file_open(path, LS_DISK_FILE_READ, file);
    }
    free(path);
    return status;
}

/* Append the documents of a part, given relative to its first token. */
static ls_status append_documents(ls_tokens *tokens, const int64_t *offsets, int64_t n)
{
    const int64_t base = tokens->offsets[tokens->n_documents];
    const size_t wanted = (size_t)(tokens->n_documents + n + 1);
    int64_t *grown = realloc(tokens->offsets, wanted * sizeof *grown);

    if (!grown) return ls_disk_file_fail_memory(wanted * sizeof *grown, "document offsets");
    tokens->offsets = grown;
    for (int64_t i = 1; i <= n; i++) {
        if (__builtin_add_overflow(base, offsets[i], &grown[tokens->n_documents + i])) {
            return LS_FAIL(LS_ERR_CORRUPT, "the data set has more than 2^63 tokens");
        }
    }
    tokens->n_documents += n;
    return LS_OK;
}

static ls_status open_raw(ls_tokens *tokens, part *opened, const char *prefix, uint64_t bin_bytes)
{
    const uint64_t element = ls_tokens_element_bytes(opened->element);
    const int64_t offsets[2] = {0, (int64_t)(bin_bytes / element)};

    if (bin_bytes % element != 0) {
        return LS_FAIL(LS_ERR_CORRUPT, "%s: %llu bytes are not a whole number of %llu-byte ids",
                       prefix, (unsigned long long)bin_bytes, (unsigned long long)element);
    }
    return append_documents(tokens, offsets, 1);
}

static ls_status open_indexed(ls_tokens *tokens, part *opened, const char *prefix,
                              uint64_t bin_bytes)
{
    ls_tokens_index index = {.offsets = NULL};
    char *path = append_suffix(prefix, ".idx");

    if (!path) return ls_disk_file_fail_memory(strlen(prefix), "a path");
    ls_status status = ls_tokens_index_read(path, bin_bytes, &index);
    free(path);
    if (status != LS_OK) return status;
    opened->element = index.element;
    add_identity(tokens, index.crc);
    status = append_documents(tokens, index.offsets, index.n_documents);
    ls_tokens_index_free(&index);
    return status;
}

static ls_status open_mask(ls_tokens *tokens, part *opened, const char *prefix)
{
    const uint64_t n = (uint64_t)(opened->end - opened->first);
    uint64_t bytes = 0;

    LS_TRY(open_suffix(prefix, ".mask", true, &opened->mask));
    add_identity(tokens, opened->mask.fd >= 0);
    if (opened->mask.fd < 0) return LS_OK;
    LS_TRY(ls_disk_file_size(&opened->mask, &bytes));
    if (bytes == n) return LS_OK;
    return LS_FAIL(LS_ERR_CORRUPT, "%s: %llu bytes for %llu tokens; a mask has one per token",
                   opened->mask.path, (unsigned long long)bytes, (unsigned long long)n);
}

static ls_status open_bin(part *opened, const char *prefix, bool raw, uint64_t *bytes)
{
    LS_TRY(open_suffix(prefix, ".bin", raw, &opened->bin));
    if (opened->bin.fd < 0) LS_TRY(open_suffix(prefix, "", false, &opened->bin));
    return ls_disk_file_size(&opened->bin, bytes);
}

static ls_status open_part(ls_tokens *tokens, const char *prefix, ls_tokens_format format)
{
    part *opened = &tokens->parts[tokens->n_parts++]; /* counted first: close releases it */
    const bool raw = format != LS_TOKENS_FORMAT_MEGATRON;
    uint64_t bin_bytes = 0;

    *opened = (part){.bin = LS_DISK_FILE_CLOSED, .mask = LS_DISK_FILE_CLOSED};
    opened->element =
        format == LS_TOKENS_FORMAT_RAW_U16 ? LS_TOKENS_ELEMENT_U16 : LS_TOKENS_ELEMENT_U32;
    LS_TRY(open_bin(opened, prefix, raw, &bin_bytes));
    opened->first = tokens->offsets[tokens->n_documents];
    add_identity(tokens, bin_bytes);
    LS_TRY(raw ? open_raw(tokens, opened, prefix, bin_bytes)
               : open_indexed(tokens, opened, prefix, bin_bytes));
    opened->end = tokens->offsets[tokens->n_documents];
    return open_mask(tokens, opened, prefix);
}

ls_status ls_tokens_open(const char *const *prefixes, int64_t n, ls_tokens_format format,
                         ls_tokens **tokens)
{
    if (n < 1) return LS_FAIL(LS_ERR_INVALID, "a data set needs at least one prefix");
    ls_tokens *opened = calloc(1, sizeof *opened);
    if (!opened) return ls_disk_file_fail_memory(sizeof *opened, "a data set");
    opened->parts = calloc((size_t)n, sizeof *opened->parts);
    opened->offsets = calloc(1, sizeof *opened->offsets);
    ls_status status = LS_OK;
    if (!opened->parts || !opened->offsets) {
        status = ls_disk_file_fail_memory((uint64_t)n * sizeof *opened->parts, "a data set");
    }
    add_identity(opened, (uint64_t)format);
    for (int64_t i = 0; i < n && status == LS_OK; i++) {
        status = open_part(opened, prefixes[i], format);
    }
    if (status != LS_OK) {
        ls_tokens_close(opened);
        return status;
    }
    *tokens = opened;
    return LS_OK;
}

void ls_tokens_close(ls_tokens *tokens)
{
    if (!tokens) return;
    for (int64_t i = 0; i < tokens->n_parts; i++) {
        ls_disk_file_close(&tokens->parts[i].bin);
        ls_disk_file_close(&tokens->parts[i].mask);
    }
    free(tokens->parts);
    free(tokens->offsets);
    free(tokens);
}

int64_t ls_tokens_n_documents(const ls_tokens *tokens)
{
    return tokens->n_documents;
}

int64_t ls_tokens_count(const ls_tokens *tokens)
{
    return tokens->offsets[tokens->n_documents];
}

const int64_t *ls_tokens_offsets(const ls_tokens *tokens)
{
    return tokens->offsets;
}

bool ls_tokens_has_mask(const ls_tokens *tokens)
{
    for (int64_t i = 0; i < tokens->n_parts; i++) {
        if (tokens->parts[i].mask.fd >= 0) return true;
    }
    return false;
}

uint32_t ls_tokens_identity(const ls_tokens *tokens)
{
    return tokens->identity;
}

static const part *find_part(const ls_tokens *tokens, int64_t token)
{
    int64_t at = 0;
    while (at < tokens->n_parts - 1 && token >= tokens->parts[at].end) at++;
    return &tokens->parts[at];
}

int64_t ls_tokens_source(const ls_tokens *tokens, int64_t token)
{
    return find_part(tokens, token) - tokens->parts;
}

const char *ls_tokens_path(const ls_tokens *tokens, int64_t token, int64_t *index)
{
    const part *holder = find_part(tokens, token);
    *index = token - holder->first;
    return holder->bin.path;
}

/* Ids of n elements; false if one does not fit an int32. */
static bool widen_ids(ls_tokens_element element, const uint8_t *staging, int64_t n, int32_t *ids)
{
    uint32_t high = 0;

    if (element == LS_TOKENS_ELEMENT_U8) {
        for (int64_t i = 0; i < n; i++) ids[i] = staging[i];
    } else if (element == LS_TOKENS_ELEMENT_U16) {
        for (int64_t i = 0; i < n; i++) {
            uint16_t id;
            memcpy(&id, staging + 2 * i, sizeof id);
            ids[i] = id;
        }
    } else {
        memcpy(ids, staging, (size_t)n * sizeof *ids);
        for (int64_t i = 0; i < n; i++) high |= (uint32_t)ids[i];
    }
    return (high & 0x80000000u) == 0;
}

static ls_status read_part(const part *from, int64_t first, int64_t n, int32_t *ids)
{
    const int64_t element = (int64_t)ls_tokens_element_bytes(from->element);
    const int64_t block = STAGING_BYTES / element;
    uint8_t staging[STAGING_BYTES];

    for (int64_t at = 0; at < n; at += block) {
        const int64_t count = n - at < block ? n - at : block;
        LS_TRY(ls_disk_file_read_at(&from->bin, staging, (uint64_t)(count * element),
                                    (uint64_t)((first - from->first + at) * element)));
        if (widen_ids(from->element, staging, count, ids + at)) continue;
        return LS_FAIL(LS_ERR_CORRUPT,
                       "%s: an id near token %lld is negative or above 2^31 - 1: wrong format?",
                       from->bin.path, (long long)(first - from->first + at));
    }
    return LS_OK;
}

static ls_status check_range(const ls_tokens *tokens, int64_t first, int64_t n)
{
    const int64_t total = ls_tokens_count(tokens);

    if (first >= 0 && n >= 0 && first <= total && n <= total - first) return LS_OK;
    return LS_FAIL(LS_ERR_INVALID, "%lld tokens at %lld of a data set of %lld", (long long)n,
                   (long long)first, (long long)total);
}

static int64_t clip_to_part(const part *holder, int64_t first, int64_t n)
{
    return n < holder->end - first ? n : holder->end - first;
}

ls_status ls_tokens_read(const ls_tokens *tokens, int64_t first, int64_t n, int32_t *ids)
{
    LS_TRY(check_range(tokens, first, n));
    while (n > 0) {
        const part *holder = find_part(tokens, first);
        const int64_t count = clip_to_part(holder, first, n);
        LS_TRY(read_part(holder, first, count, ids));
        first += count;
        ids += count;
        n -= count;
    }
    return LS_OK;
}

ls_status ls_tokens_read_mask(const ls_tokens *tokens, int64_t first, int64_t n, uint8_t *mask)
{
    LS_TRY(check_range(tokens, first, n));
    while (n > 0) {
        const part *holder = find_part(tokens, first);
        const int64_t count = clip_to_part(holder, first, n);
        if (holder->mask.fd < 0) {
            memset(mask, 1, (size_t)count);
        } else {
            LS_TRY(ls_disk_file_read_at(&holder->mask, mask, (uint64_t)count,
                                        (uint64_t)(first - holder->first)));
        }
        first += count;
        mask += count;
        n -= count;
    }
    return LS_OK;
}

static ls_status fail_id(const ls_tokens *tokens, int64_t token, int32_t id, int64_t vocab_size)
{
    int64_t index = 0;
    const char *path = ls_tokens_path(tokens, token, &index);

    return LS_FAIL(LS_ERR_INVALID,
                   "%s: token %lld is id %d, but the vocabulary has %lld: the data were made with "
                   "another tokenizer",
                   path, (long long)index, id, (long long)vocab_size);
}

ls_status ls_tokens_check_ids(const ls_tokens *tokens, int64_t vocab_size)
{
    const int64_t total = ls_tokens_count(tokens);
    int32_t ids[STAGING_BYTES / 4] = {0};
    const int64_t block = STAGING_BYTES / 4;

    for (int64_t first = 0; first < total; first += block) {
        const int64_t n = total - first < block ? total - first : block;
        int32_t highest = 0;
        LS_TRY(ls_tokens_read(tokens, first, n, ids)); /* refuses negative ids */
        for (int64_t i = 0; i < n; i++) highest = ids[i] > highest ? ids[i] : highest;
        for (int64_t i = 0; i < n && highest >= vocab_size; i++) {
            if (ids[i] >= vocab_size) return fail_id(tokens, first + i, ids[i], vocab_size);
        }
    }
    return LS_OK;
}
