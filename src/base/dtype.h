/* dtype.h - element types of tensors, in memory and in files.  Layer: base. */
#ifndef LS_DTYPE_H
#define LS_DTYPE_H

#include <stdint.h>

typedef enum ls_dtype {
    LS_DTYPE_F32 = 0,
    LS_DTYPE_BF16,
    LS_DTYPE_F64,
    LS_DTYPE_F16, /* in files only */
    LS_DTYPE_U8,
    LS_DTYPE_I16,
    LS_DTYPE_I32,
    LS_DTYPE_I64,
    LS_DTYPE_COUNT
} ls_dtype;

/* Bytes of one element. */
static inline uint64_t ls_dtype_bytes(ls_dtype dtype)
{
    static const uint8_t bytes[LS_DTYPE_COUNT] = {4, 2, 8, 2, 1, 2, 4, 8};
    return bytes[dtype];
}

/* The safetensors spelling: "F32", "BF16", ... */
static inline const char *ls_dtype_name(ls_dtype dtype)
{
    static const char *const names[LS_DTYPE_COUNT] = {"F32", "BF16", "F64", "F16",
                                                      "U8",  "I16",  "I32", "I64"};
    return names[dtype];
}

#endif
