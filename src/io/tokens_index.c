/*
 * tokens_index.c - the index is streamed: each array is read once, in blocks, and checked as it
 * passes.
 *
 * Sequences must lie one after the other and fill the .bin exactly, which every writer of the
 * format does; so only the token offsets of documents need to stay in memory.  Array sizes are
 * compared with the file's size before anything is allocated by them.
 */
#include "tokens_index.h"

#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "disk_file.h"

#define HEADER_BYTES  34
#define BLOCK_ENTRIES 4096

static const char magic[9] = "MMIDIDX\0"; /* the literal's own NUL is the ninth byte */

typedef struct index_reader {
    ls_disk_file file;
    uint64_t file_bytes, bin_bytes;
    uint64_t n_sequences, n_marks;
    ls_tokens_element element;
    int64_t *starts;  /* [n_sequences + 1] in tokens */
    int64_t *offsets; /* [n_marks] in tokens */
    uint32_t crc;
} index_reader;

uint64_t ls_tokens_element_bytes(ls_tokens_element element)
{
    switch (element) {
    case LS_TOKENS_ELEMENT_U8: return 1;
    case LS_TOKENS_ELEMENT_U16: return 2;
    case LS_TOKENS_ELEMENT_I32:
    case LS_TOKENS_ELEMENT_U32: return 4;
    }
    return 0;
}

static uint64_t load_u64(const uint8_t *bytes)
{
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static ls_status read_element(index_reader *reader, uint8_t code)
{
    static const char *const names[] = {"",      "uint8",   "int8",    "int16", "int32",
                                        "int64", "float64", "float32", "uint16"};

    if (code == LS_TOKENS_ELEMENT_U8 || code == LS_TOKENS_ELEMENT_I32 ||
        code == LS_TOKENS_ELEMENT_U16) {
        reader->element = (ls_tokens_element)code;
        return LS_OK;
    }
    if (code >= 1 && code <= 8) {
        return LS_FAIL(LS_ERR_UNSUPPORTED,
                       "%s: ids are %s; readable are uint8, uint16 and int32: write the shard anew",
                       reader->file.path, names[code]);
    }
    return LS_FAIL(LS_ERR_CORRUPT, "%s: element type %u is none of Megatron's (1 to 8)",
                   reader->file.path, code);
}

static ls_status read_header(index_reader *reader)
{
    uint8_t header[HEADER_BYTES];

    LS_TRY(ls_disk_file_size(&reader->file, &reader->file_bytes));
    LS_TRY(ls_disk_file_read_at(&reader->file, header, sizeof header, 0));
    if (memcmp(header, magic, sizeof magic) != 0) {
        return LS_FAIL(LS_ERR_CORRUPT, "%s: not a Megatron index (it does not begin with MMIDIDX)",
                       reader->file.path);
    }
    if (load_u64(header + 9) != 1) {
        return LS_FAIL(LS_ERR_UNSUPPORTED, "%s: index version %llu; readable is version 1",
                       reader->file.path, (unsigned long long)load_u64(header + 9));
    }
    LS_TRY(read_element(reader, header[17]));
    reader->n_sequences = load_u64(header + 18);
    reader->n_marks = load_u64(header + 26);
    reader->crc = ls_crc32c(0, header, sizeof header);
    return LS_OK;
}

static ls_status check_size(const index_reader *reader)
{
    uint64_t sequence_bytes = 0, mark_bytes = 0, wanted = 0;

    if (__builtin_mul_overflow(reader->n_sequences, (uint64_t)12, &sequence_bytes) ||
        __builtin_mul_overflow(reader->n_marks, (uint64_t)8, &mark_bytes) ||
        __builtin_add_overflow(sequence_bytes, mark_bytes, &wanted) ||
        __builtin_add_overflow(wanted, (uint64_t)HEADER_BYTES, &wanted)) {
        wanted = UINT64_MAX;
    }
    if (wanted == reader->file_bytes) return LS_OK;
    if (wanted < reader->file_bytes && reader->file_bytes - wanted == reader->n_sequences) {
        return LS_FAIL(LS_ERR_UNSUPPORTED, "%s: a multimodal index (a mode per sequence)",
                       reader->file.path);
    }
    return LS_FAIL(LS_ERR_CORRUPT,
                   "%s: %llu sequences and %llu document marks need %llu bytes, the file has %llu",
                   reader->file.path, (unsigned long long)reader->n_sequences,
                   (unsigned long long)reader->n_marks, (unsigned long long)wanted,
                   (unsigned long long)reader->file_bytes);
}

static uint64_t clip_block(uint64_t entries)
{
    return entries < BLOCK_ENTRIES ? entries : BLOCK_ENTRIES;
}

static ls_status read_block(index_reader *reader, void *data, uint64_t bytes, uint64_t offset)
{
    LS_TRY(ls_disk_file_read_at(&reader->file, data, bytes, offset));
    reader->crc = ls_crc32c(reader->crc, data, bytes);
    return LS_OK;
}

/* starts[i] = the tokens before sequence i */
static ls_status read_lengths(index_reader *reader)
{
    int32_t lengths[BLOCK_ENTRIES];
    int64_t total = 0;

    for (uint64_t first = 0; first < reader->n_sequences; first += BLOCK_ENTRIES) {
        const uint64_t n = clip_block(reader->n_sequences - first);
        LS_TRY(read_block(reader, lengths, n * 4, HEADER_BYTES + first * 4));
        for (uint64_t i = 0; i < n; i++) {
            if (lengths[i] < 0) {
                return LS_FAIL(LS_ERR_CORRUPT, "%s: sequence %llu has length %d", reader->file.path,
                               (unsigned long long)(first + i), lengths[i]);
            }
            reader->starts[first + i] = total;
            total += lengths[i];
            if ((uint64_t)total > reader->bin_bytes) { /* before sums or products overflow */
                return LS_FAIL(LS_ERR_CORRUPT,
                               "%s: the sequences up to %llu have more tokens than the .bin has "
                               "bytes (%llu): it is cut short or of another data set",
                               reader->file.path, (unsigned long long)(first + i),
                               (unsigned long long)reader->bin_bytes);
            }
        }
    }
    reader->starts[reader->n_sequences] = total;
    const uint64_t bytes = (uint64_t)total * ls_tokens_element_bytes(reader->element);
    if (bytes == reader->bin_bytes) return LS_OK;
    return LS_FAIL(LS_ERR_CORRUPT,
                   "%s: its %lld tokens of %llu bytes need %llu bytes, but the .bin has %llu: one "
                   "of the two is cut short or of another data set",
                   reader->file.path, (long long)total,
                   (unsigned long long)ls_tokens_element_bytes(reader->element),
                   (unsigned long long)bytes, (unsigned long long)reader->bin_bytes);
}

static ls_status check_pointers(index_reader *reader)
{
    const uint64_t base = HEADER_BYTES + reader->n_sequences * 4;
    const uint64_t element = ls_tokens_element_bytes(reader->element);
    uint64_t pointers[BLOCK_ENTRIES];

    for (uint64_t first = 0; first < reader->n_sequences; first += BLOCK_ENTRIES) {
        const uint64_t n = clip_block(reader->n_sequences - first);
        LS_TRY(read_block(reader, pointers, n * 8, base + first * 8));
        for (uint64_t i = 0; i < n; i++) {
            const uint64_t wanted = (uint64_t)reader->starts[first + i] * element;
            if (pointers[i] == wanted) continue;
            return LS_FAIL(LS_ERR_CORRUPT,
                           "%s: sequence %llu is said to start at byte %lld of the .bin, the "
                           "lengths before it add up to %llu",
                           reader->file.path, (unsigned long long)(first + i),
                           (long long)pointers[i], (unsigned long long)wanted);
        }
    }
    return LS_OK;
}

static ls_status read_marks(index_reader *reader)
{
    const uint64_t base = HEADER_BYTES + reader->n_sequences * 12;
    uint64_t marks[BLOCK_ENTRIES], before = 0;

    for (uint64_t first = 0; first < reader->n_marks; first += BLOCK_ENTRIES) {
        const uint64_t n = clip_block(reader->n_marks - first);
        LS_TRY(read_block(reader, marks, n * 8, base + first * 8));
        for (uint64_t i = 0; i < n; i++) {
            if (marks[i] < before || marks[i] > reader->n_sequences ||
                (first + i == 0 && marks[i] != 0)) {
                return LS_FAIL(LS_ERR_CORRUPT,
                               "%s: document mark %llu is %lld; marks rise from 0 to %llu",
                               reader->file.path, (unsigned long long)(first + i),
                               (long long)marks[i], (unsigned long long)reader->n_sequences);
            }
            before = marks[i];
            reader->offsets[first + i] = reader->starts[before];
        }
    }
    if (reader->n_marks > 0 && before == reader->n_sequences) return LS_OK;
    return LS_FAIL(LS_ERR_CORRUPT,
                   "%s: the last document mark is %llu of %llu sequences: its writer did not end "
                   "the last document",
                   reader->file.path, (unsigned long long)before,
                   (unsigned long long)reader->n_sequences);
}

static ls_status read_arrays(index_reader *reader)
{
    const uint64_t entries = reader->n_sequences + reader->n_marks + 2;

    reader->starts = malloc((size_t)(reader->n_sequences + 1) * sizeof *reader->starts);
    reader->offsets = malloc((size_t)(reader->n_marks + 1) * sizeof *reader->offsets);
    if (!reader->starts || !reader->offsets) {
        return ls_disk_file_fail_memory(entries * 8, reader->file.path);
    }
    LS_TRY(read_lengths(reader));
    LS_TRY(check_pointers(reader));
    return read_marks(reader);
}

ls_status ls_tokens_index_read(const char *path, uint64_t bin_bytes, ls_tokens_index *index)
{
    index_reader reader = {.file = LS_DISK_FILE_CLOSED, .bin_bytes = bin_bytes};

    LS_TRY(ls_disk_file_open(path, LS_DISK_FILE_READ, &reader.file));
    ls_status status = read_header(&reader);
    if (status == LS_OK) status = check_size(&reader);
    if (status == LS_OK) status = read_arrays(&reader);
    if (status == LS_OK) {
        index->element = reader.element;
        index->n_documents = (int64_t)reader.n_marks - 1;
        index->offsets = reader.offsets;
        index->crc = reader.crc;
        reader.offsets = NULL;
    }
    free(reader.offsets);
    free(reader.starts);
    ls_disk_file_close(&reader.file);
    return status;
}

void ls_tokens_index_free(ls_tokens_index *index)
{
    if (!index) return;
    free(index->offsets);
    index->offsets = NULL;
}

static void store_u64(uint8_t *bytes, uint64_t value)
{
    memcpy(bytes, &value, sizeof value);
}

static ls_status write_header(ls_disk_file *file, const ls_tokens_index_content *content)
{
    uint8_t header[HEADER_BYTES];

    memcpy(header, magic, sizeof magic);
    store_u64(header + 9, 1);
    header[17] = (uint8_t)content->element;
    store_u64(header + 18, (uint64_t)content->n_sequences);
    store_u64(header + 26, (uint64_t)content->n_documents + 1);
    return ls_disk_file_write(file, header, sizeof header);
}

static ls_status write_lengths(ls_disk_file *file, const ls_tokens_index_content *content)
{
    int32_t lengths[BLOCK_ENTRIES];
    int64_t before = 0;

    for (int64_t first = 0; first < content->n_sequences; first += BLOCK_ENTRIES) {
        const uint64_t n = clip_block((uint64_t)(content->n_sequences - first));
        for (uint64_t i = 0; i < n; i++) {
            const int64_t end = content->sequence_ends[first + (int64_t)i];
            lengths[i] = (int32_t)(end - before);
            before = end;
        }
        LS_TRY(ls_disk_file_write(file, lengths, n * 4));
    }
    return LS_OK;
}

/* 0, then ends[0 .. n - 1], each times scale. */
static ls_status write_starts(ls_disk_file *file, const int64_t *ends, int64_t n, int64_t scale)
{
    int64_t starts[BLOCK_ENTRIES];

    for (int64_t first = 0; first < n; first += BLOCK_ENTRIES) {
        const uint64_t block = clip_block((uint64_t)(n - first));
        for (uint64_t i = 0; i < block; i++) {
            const int64_t at = first + (int64_t)i;
            starts[i] = at == 0 ? 0 : ends[at - 1] * scale;
        }
        LS_TRY(ls_disk_file_write(file, starts, block * 8));
    }
    return LS_OK;
}

ls_status ls_tokens_index_write(const char *path, const ls_tokens_index_content *content)
{
    const int64_t element = (int64_t)ls_tokens_element_bytes(content->element);
    ls_disk_file file = LS_DISK_FILE_CLOSED;

    LS_TRY(ls_disk_file_open(path, LS_DISK_FILE_CREATE, &file));
    ls_status status = write_header(&file, content);
    if (status == LS_OK) status = write_lengths(&file, content);
    if (status == LS_OK) {
        status = write_starts(&file, content->sequence_ends, content->n_sequences, element);
    }
    if (status == LS_OK) {
        status = write_starts(&file, content->document_ends, content->n_documents + 1, 1);
    }
    if (status == LS_OK) status = ls_disk_file_sync(&file);
    ls_disk_file_close(&file);
    return status;
}
