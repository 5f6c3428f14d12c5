/*
 * companions.h - the small files that come with a model's weights and mean nothing to training: its
 * tokenizer, its settings for generating text, its licence.
 *
 * They are read once, at the start, and written byte for byte into every checkpoint, so that one
 * loads in Transformers with the tokenizer it was trained with.  Which names they have is a list;
 * code (*.py) and model cards are not in it.
 *
 * Layer: io (uses base).  Threads: read-only once read.  Calls block.
 */
#ifndef LS_COMPANIONS_H
#define LS_COMPANIONS_H

#include <stdint.h>

#include "checkpoint_dir.h"
#include "status.h"

#define LS_COMPANION_BYTES_MAX (UINT64_C(256) << 20)
#define LS_COMPANIONS_MAX      16

typedef struct ls_companion {
    const char *name; /* of the list */
    char *data;
    uint64_t bytes;
} ls_companion;

typedef struct ls_companions {
    ls_companion files[LS_COMPANIONS_MAX];
    int n;
} ls_companions;

/*
 * Read those that a folder has; a path that is no folder has none.
 *   companions  [out] release with ls_companions_free()
 * LS_ERR_IO, LS_ERR_CORRUPT (one of more than LS_COMPANION_BYTES_MAX), LS_ERR_INVALID (one is no
 * regular file), LS_ERR_NO_MEMORY.
 */
ls_status ls_companions_read(const char *path, ls_companions *companions);

/* A zeroed one is allowed. */
void ls_companions_free(ls_companions *companions);

/* All bytes. */
uint64_t ls_companions_bytes(const ls_companions *companions);

/* Write them into a folder that is being made; statuses of ls_checkpoint_write(). */
ls_status ls_companions_write(const ls_companions *companions, ls_checkpoint_writer *writer);

#endif
