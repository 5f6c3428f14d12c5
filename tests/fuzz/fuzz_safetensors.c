/*
 * fuzz_safetensors.c - any bytes as a safetensors file: refused, or every tensor can be read and
 * lies inside the file.  The header size is also set right, so that inputs reach the parser.
 */
#include <assert.h>
#include <stdlib.h>

#include "fuzz_memory_file.h"
#include "safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void read_all(void)
{
    ls_safetensors *file = NULL;

    if (ls_safetensors_open("input", &file) != LS_OK) return;
    for (int64_t i = 0; i < ls_safetensors_count(file); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_get(file, i);
        assert(entry->offset_bytes + entry->size_bytes <= memory_bytes);
        assert(ls_safetensors_find(file, entry->name) == entry);
        void *content = malloc((size_t)entry->size_bytes + 1);
        assert(content);
        assert(ls_safetensors_read(file, entry, 0, entry->size_bytes, content) == LS_OK);
        free(content);
    }
    ls_safetensors_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    use_memory_file(data, bytes);
    read_all();
    /* First byte: how many of the rest are data; the others are the header. */
    if (bytes < 1 || (size_t)data[0] + 1 > bytes) return 0;
    const uint64_t header = bytes - 1 - data[0];
    uint8_t *framed = malloc(8 + bytes);
    assert(framed);
    memcpy(framed, &header, 8);
    memcpy(framed + 8, data + 1, bytes - 1);
    use_memory_file(framed, 8 + bytes - 1);
    read_all();
    free(framed);
    return 0;
}
