/*
 * safetensors.h - one safetensors file: named tensors that are read in place, or written in order.
 *
 *   8 bytes      header size H, little-endian
 *   H bytes      JSON {"name": {"dtype": "BF16", "shape": [4096, 1024], "data_offsets": [0, N]},
 * ...} the rest     the tensors' bytes, without gaps; data_offsets count from here
 *
 * Everything in the header is checked when the file is opened: sizes against the file, shapes
 * against sizes, no overlap, no gap, no duplicate name.  Files written here load in Transformers:
 * the data starts at a multiple of 8 and every tensor at a multiple of its element size.
 *
 * Layer: io (uses base).  Threads: an open reader is immutable and may be read by many threads at
 * once; a writer belongs to one thread.  Calls block.  Source: the safetensors format description
 * (huggingface/safetensors, README).
 */
#ifndef LS_SAFETENSORS_H
#define LS_SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "dtype.h"
#include "status.h"

#define LS_SAFETENSORS_DIMS_MAX         8
#define LS_SAFETENSORS_NAME_BYTES_MAX   256
#define LS_SAFETENSORS_HEADER_BYTES_MAX 100000000u /* the format's own limit */

typedef struct ls_safetensors ls_safetensors;
typedef struct ls_safetensors_writer ls_safetensors_writer;

/* A tensor as it lies in a file. */
typedef struct ls_safetensors_entry {
    const char *name; /* owned by the reader */
    ls_dtype dtype;
    int n_dims; /* 0: one element */
    int64_t dims[LS_SAFETENSORS_DIMS_MAX];
    uint64_t offset_bytes; /* from the start of the file */
    uint64_t size_bytes;
} ls_safetensors_entry;

/* A tensor that will be written. */
typedef struct ls_safetensors_tensor {
    const char *name;
    ls_dtype dtype;
    int n_dims;
    int64_t dims[LS_SAFETENSORS_DIMS_MAX];
} ls_safetensors_tensor;

/*
 * Open and check a file; release with ls_safetensors_close().  Returns LS_OK,
 * LS_ERR_CORRUPT (says what and where), LS_ERR_UNSUPPORTED (an element type longspan does not
 * have), LS_ERR_IO, LS_ERR_INVALID (not a regular file) or LS_ERR_NO_MEMORY.
 */
ls_status ls_safetensors_open(const char *path, ls_safetensors **file);
void ls_safetensors_close(ls_safetensors *file);

const char *ls_safetensors_path(const ls_safetensors *file);
int64_t ls_safetensors_count(const ls_safetensors *file);

/* Entry 0 <= index < count, in the order of the data. */
const ls_safetensors_entry *ls_safetensors_get(const ls_safetensors *file, int64_t index);

/* The entry of this name, or NULL. */
const ls_safetensors_entry *ls_safetensors_find(const ls_safetensors *file, const char *name);

/* The value of a key of the file's __metadata__, or NULL. */
const char *ls_safetensors_metadata(const ls_safetensors *file, const char *key);

/*
 * Read bytes offset .. offset + bytes of a tensor; the whole of it is (0, size_bytes).
 * Returns LS_OK, LS_ERR_IO, or LS_ERR_CORRUPT if the file has become shorter.
 */
ls_status ls_safetensors_read(const ls_safetensors *file, const ls_safetensors_entry *entry,
                              uint64_t offset, uint64_t bytes, void *data);

/* Bytes of a tensor of this shape.  LS_ERR_INVALID: negative or absurd dimensions. */
ls_status ls_safetensors_tensor_bytes(const ls_safetensors_tensor *tensor, uint64_t *bytes);

/* LS_OK, or LS_ERR_INVALID for a name that is empty, too long, reserved or there twice. */
ls_status ls_safetensors_check_names(const ls_safetensors_tensor *tensors, int64_t n);

/*
 * Create a file and write its header.  The data follow by ls_safetensors_writer_append(), tensor
 * after tensor in this order.
 *   tensors  [n] what will be appended; not kept.  Ordered so that each starts at a multiple of
 *            its element size: wide types before narrow ones is always right
 * Returns LS_OK, LS_ERR_INVALID (name empty, too long or twice; shape; order), LS_ERR_IO or
 * LS_ERR_NO_MEMORY.  Release with ls_safetensors_writer_close().
 */
ls_status ls_safetensors_writer_open(const char *path, const ls_safetensors_tensor *tensors,
                                     int64_t n, ls_safetensors_writer **writer);

/* Append the next bytes, in pieces of any size.  LS_OK, LS_ERR_INVALID (too many) or LS_ERR_IO. */
ls_status ls_safetensors_writer_append(ls_safetensors_writer *writer, const void *data,
                                       uint64_t bytes);

/*
 * Check that every tensor is complete and make the content durable.
 *   bytes, crc  [out] size and CRC-32C of the whole file; may be NULL
 * Returns LS_OK, LS_ERR_INVALID (bytes are missing) or LS_ERR_IO.
 */
ls_status ls_safetensors_writer_finish(ls_safetensors_writer *writer, uint64_t *bytes,
                                       uint32_t *crc);

/* Release the writer; a file that was not finished is removed.  NULL is allowed. */
void ls_safetensors_writer_close(ls_safetensors_writer *writer);

#endif
