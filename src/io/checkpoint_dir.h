/*
 * checkpoint_dir.h - checkpoints as folders that are whole or absent.
 *
 *   RUN/latest                            name of the newest complete checkpoint
 *   RUN/checkpoints/step-00000100/        final name: always whole
 *   RUN/checkpoints/.tmp-step-00000200-PID/   being written, or being removed
 *   RUN/checkpoints/.old-step-00000100-PID/   set aside while its successor takes the name
 *
 * Files are written into the temporary folder, each synced, and registered with size and checksum;
 * commit writes state.json with the manifest, syncs, renames.  Killed at any instant, a run finds
 * the previous checkpoint or the new one.  What dead runs left behind is removed, or put back, by
 * the next.  Two live runs must not share a folder
 * (folder_lock.h).
 *
 * Layer: io (uses base).  Threads: a writer belongs to one thread; everything else has no shared
 * state.  All calls block.
 */
#ifndef LS_CHECKPOINT_DIR_H
#define LS_CHECKPOINT_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

struct cJSON;
typedef struct ls_checkpoint_writer ls_checkpoint_writer;

/*
 * Begin the checkpoint of a step; end it with commit or abort.
 *   bytes_needed  about what will be written, checked against the free space first; 0: unknown
 * Returns LS_OK, LS_ERR_IO (not enough room: says needed and free; or no access),
 * LS_ERR_INVALID (step < 0) or LS_ERR_NO_MEMORY.
 */
ls_status ls_checkpoint_begin(const char *run_dir, int64_t step, uint64_t bytes_needed,
                              ls_checkpoint_writer **writer);

/*
 * Begin a folder of files outside of any run, whole or absent like a checkpoint; it is written as
 * .tmp-NAME-PID beside its final name.  Parts of its path that are missing are made.
 *   folder  its final name, where nothing stands yet
 * Returns LS_OK, LS_ERR_INVALID (something stands there), and as ls_checkpoint_begin().
 */
ls_status ls_checkpoint_begin_folder(const char *folder, uint64_t bytes_needed,
                                     ls_checkpoint_writer **writer);

/* The folder to write files into; valid until commit or abort. */
const char *ls_checkpoint_folder(const ls_checkpoint_writer *writer);

/*
 * Register a file that has been written and synced there.
 *   name  plain file name, once each; copied
 * Returns LS_OK, LS_ERR_INVALID (name) or LS_ERR_NO_MEMORY.
 */
ls_status ls_checkpoint_add(ls_checkpoint_writer *writer, const char *name, uint64_t bytes,
                            uint32_t crc);

/* Write, sync and register a small file.  Statuses of ls_checkpoint_add(), and LS_ERR_IO. */
ls_status ls_checkpoint_write(ls_checkpoint_writer *writer, const char *name, const void *data,
                              uint64_t bytes);

/*
 * Complete the checkpoint: check the sizes of the registered files, write state.json, sync, take
 * the final name (replacing an older checkpoint of the same step), write RUN/latest.
 *   state  object; gains the member "manifest".  Numbers beyond 2^53 belong in strings.  NULL, for
 * a folder outside of a run: it gets no state.json Releases the writer in any case.  On failure the
 * temporary folder is removed and every earlier checkpoint is as it was; only when the last steps
 * fail (making the new name durable, RUN/latest) does the new one stand already. Returns LS_OK,
 * LS_ERR_IO, LS_ERR_CORRUPT (a registered file has another size), LS_ERR_INVALID (state) or
 * LS_ERR_NO_MEMORY.
 */
ls_status ls_checkpoint_commit(ls_checkpoint_writer *writer, struct cJSON *state);

/* Remove the temporary folder and release the writer.  NULL is allowed. */
void ls_checkpoint_abort(ls_checkpoint_writer *writer);

/* Called with a finding while looking for a checkpoint: a folder, and why it is passed over. */
typedef void (*ls_checkpoint_rejected)(void *context, const char *directory, const char *reason);

/*
 * Read and check state.json of a checkpoint.
 *   state  [out] release with cJSON_Delete()
 * Returns LS_OK, LS_ERR_IO, LS_ERR_CORRUPT or LS_ERR_NO_MEMORY.
 */
ls_status ls_checkpoint_state_read(const char *directory, struct cJSON **state);

/*
 * Check a checkpoint against its manifest.
 *   full  read every byte for the checksums; else sizes only
 * Returns LS_OK, LS_ERR_CORRUPT (names the file), LS_ERR_IO or LS_ERR_NO_MEMORY.
 */
ls_status ls_checkpoint_verify(const char *directory, bool full);

/* The same in full for a folder that is a checkpoint (has a state.json); one that is not is not
 * looked at.  is_checkpoint may be NULL. */
ls_status ls_checkpoint_verify_if_any(const char *directory, bool *is_checkpoint);

/*
 * The newest checkpoint of a run that verifies in full.
 *   rejected   told of each newer one that does not; may be NULL
 *   directory  [out] its path, release with free(); NULL if the run has no checkpoint at all
 *   step       [out] its step, or -1; may be NULL
 * Returns LS_OK, LS_ERR_CORRUPT (there are checkpoints, but none verifies), LS_ERR_IO or
 * LS_ERR_NO_MEMORY.
 */
ls_status ls_checkpoint_find_newest(const char *run_dir, ls_checkpoint_rejected rejected,
                                    void *context, char **directory, int64_t *step);

/*
 * Of the checkpoints up to a step, remove the oldest until `keep` remain; the newest of them whose
 * sizes verify is never removed.  What dead runs left behind goes too, and if the step has a
 * checkpoint, RUN/latest names it.  Not while a writer is open.
 *   step  the one just committed, or resumed from.  Those of later steps stay: the run has passed
 *         over them, so they must not count as what it could resume from, and it replaces them as
 *         it gets there
 * Returns LS_OK, LS_ERR_INVALID (keep < 1), LS_ERR_IO or LS_ERR_NO_MEMORY.
 */
ls_status ls_checkpoint_rotate(const char *run_dir, int64_t keep, int64_t step);

#endif
