/*
 * safetensors_set.h - the tensors of one model in several safetensors files of one folder.
 *
 *   BASE-00001-of-0000N.safetensors ...    the tensors, in shards
 *   BASE.safetensors.index.json            {"metadata": {"total_size": T}, "weight_map": {name:
 *                                          shard}}
 *
 * A set is written tensor by tensor from a list that is known at the start; shards are runs of the
 * list.  It opens by its index, or as the single file BASE.safetensors, or as all BASE-*-of-*.  An
 * index that names an absent shard, a shard outside the folder or a tensor its shard lacks, or that
 * does not name a tensor of its shards, is refused.
 *
 * Layer: io (uses base).  Threads: an open set is immutable; its tensors may be read by many
 * threads at once; a writer belongs to one thread at a time.  Calls block.  Source: the sharded
 * checkpoints of Hugging Face Transformers.
 */
#ifndef LS_SAFETENSORS_SET_H
#define LS_SAFETENSORS_SET_H

#include "safetensors.h"

typedef struct ls_safetensors_set ls_safetensors_set;
typedef struct ls_safetensors_set_writer ls_safetensors_set_writer;

/* Called for each file once it is durable; a failure stops the writing. */
typedef ls_status (*ls_safetensors_written)(void *context, const char *name, uint64_t bytes,
                                            uint32_t crc);

/* What to write.  Zero-initialise, then set fields by name. */
typedef struct ls_safetensors_set_options {
    const char *directory;          /* exists, and holds no other set of this base */
    const char *base;               /* "model", "optimizer" */
    uint64_t shard_bytes_max;       /* of tensor data, unless one tensor has more; 0: no limit */
    ls_safetensors_written on_file; /* may be NULL */
    void *context;                  /* for on_file */
} ls_safetensors_set_options;

/*
 * Begin a set.  Its tensors follow by ls_safetensors_set_writer_append(), in this order, which the
 * files keep.  A new shard begins where shard_bytes_max would be exceeded, and where a tensor would
 * not start at a multiple of its element size.  Writes nothing yet, and allocates all that appends
 * need but the header of each file.
 *   options  copied
 *   tensors  [n] what will be appended; copied
 *   writer   [out] release with ls_safetensors_set_writer_close()
 * Returns LS_OK, LS_ERR_INVALID (no tensor; a bad name or shape) or LS_ERR_NO_MEMORY.
 */
ls_status ls_safetensors_set_writer_open(const ls_safetensors_set_options *options,
                                         const ls_safetensors_tensor *tensors, int64_t n,
                                         ls_safetensors_set_writer **writer);

/*
 * Append the whole next tensor; with the last of a shard, make the shard durable.
 *   data  its elements
 * Returns LS_OK, LS_ERR_INVALID (there is no next; an earlier append failed), LS_ERR_IO,
 * LS_ERR_NO_MEMORY, or what on_file returned.  After a failure only close is left.
 */
ls_status ls_safetensors_set_writer_append(ls_safetensors_set_writer *writer, const void *data);

/*
 * All tensors are there: write the index.  Returns LS_OK, LS_ERR_INVALID (tensors are missing),
 * LS_ERR_IO, LS_ERR_NO_MEMORY, or what on_file returned.
 */
ls_status ls_safetensors_set_writer_finish(ls_safetensors_set_writer *writer);

/* Release the writer; the files of a set that was not finished are removed.  NULL is allowed. */
void ls_safetensors_set_writer_close(ls_safetensors_set_writer *writer);

/*
 * Open a set; release with ls_safetensors_set_close().  Returns LS_OK, LS_ERR_CORRUPT (index and
 * shards disagree, or a shard is bad), LS_ERR_IO (nothing there, or unreadable),
 * LS_ERR_UNSUPPORTED or LS_ERR_NO_MEMORY.
 */
ls_status ls_safetensors_set_open(const char *directory, const char *base,
                                  ls_safetensors_set **set);
void ls_safetensors_set_close(ls_safetensors_set *set);

int64_t ls_safetensors_set_count(const ls_safetensors_set *set);

/* Entry 0 <= index < count, sorted by name. */
const ls_safetensors_entry *ls_safetensors_set_get(const ls_safetensors_set *set, int64_t index);

/* The index of a name, or -1. */
int64_t ls_safetensors_set_find(const ls_safetensors_set *set, const char *name);

/* The file that holds entry `index`; valid while the set is open. */
const ls_safetensors *ls_safetensors_set_file(const ls_safetensors_set *set, int64_t index);

/* Read bytes offset .. offset + bytes of entry `index`; statuses of ls_safetensors_read(). */
ls_status ls_safetensors_set_read(const ls_safetensors_set *set, int64_t index, uint64_t offset,
                                  uint64_t bytes, void *data);

#endif
