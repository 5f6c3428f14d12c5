/*
 * fuzz_tokens_index.c - any bytes as a Megatron index: refused, or its documents rise from 0 to
 * exactly the .bin's tokens.  The first bytes choose the .bin's size.
 */
#include <assert.h>

#include "fuzz_memory_file.h"
#include "tokens_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    ls_tokens_index index = {.offsets = NULL};
    uint16_t bin_bytes = 0;

    if (bytes < sizeof bin_bytes) return 0;
    memcpy(&bin_bytes, data, sizeof bin_bytes);
    use_memory_file(data + sizeof bin_bytes, bytes - sizeof bin_bytes);
    if (ls_tokens_index_read("input", bin_bytes, &index) != LS_OK) return 0;
    assert(index.n_documents >= 0 && index.offsets[0] == 0);
    for (int64_t i = 0; i < index.n_documents; i++) {
        assert(index.offsets[i] <= index.offsets[i + 1]);
    }
    const uint64_t n = (uint64_t)index.offsets[index.n_documents];
    assert(n * ls_tokens_element_bytes(index.element) == bin_bytes);
    ls_tokens_index_free(&index);
    return 0;
}
