/*
 * safetensors_test.h - what the tests of safetensors files and sets share.
 */
#ifndef LS_SAFETENSORS_TEST_H
#define LS_SAFETENSORS_TEST_H

#include "crc32c.h"
#include "io_test.h"

/* An entry of a header. */
#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

/* A file from a header text and n data bytes 0, 1, 2, ... */
static inline const char *put_header(const char *name, const char *header, size_t n_data)
{
    const uint64_t length = strlen(header);
    uint8_t *bytes = malloc(8 + length + n_data);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(length >> (8 * i));
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < n_data; i++) bytes[8 + length + i] = (uint8_t)i;
    put_file(at(name), bytes, 8 + (size_t)length + n_data);
    free(bytes);
    return at(name);
}

/* The checksum and the size of a file; bytes may be NULL. */
static inline uint32_t file_crc(const char *path, uint64_t *bytes)
{
    char *content = NULL;
    uint64_t size = 0;

    assert_ok(ls_disk_file_read_all(path, 100000, &content, &size));
    const uint32_t crc = ls_crc32c(0, content, size);
    free(content);
    if (bytes) *bytes = size;
    return crc;
}

#endif
