/*
 * file.h - small files whole: read into memory, and write so that a reader sees the old or the new.
 *
 * Layer: base.  Threads: no shared state; calls block on the disk.
 */
#ifndef LS_FILE_H
#define LS_FILE_H

#include <stdint.h>

#include "status.h"

/*
 * Read a file (or a pipe to its end) of at most bytes_max into *text, which the caller frees and
 * which ends with a zero byte not counted in *bytes.  LS_ERR_IO: missing, a folder, unreadable;
 * LS_ERR_INVALID: larger than bytes_max; LS_ERR_NO_MEMORY.
 */
ls_status ls_file_read(const char *path, uint64_t bytes_max, char **text, uint64_t *bytes);

/*
 * Replace path: write beside it under a temporary name, sync, rename, sync the folder.  After a
 * failure (LS_ERR_IO, LS_ERR_NO_MEMORY) or a crash the old file is as it was.
 */
ls_status ls_file_write(const char *path, const void *data, uint64_t bytes);

/*
 * Replace a small file whose loss does no harm: written to beside, renamed, not synced.  Allocates
 * nothing and leaves the error's text alone.  Returns 0, or errno with nothing left at beside.
 */
int ls_file_swap(const char *path, const char *beside, const void *data, uint64_t bytes);

/*
 * Whether an open file is a plain one: what reads or writes there does not wait for another
 * program, as on a pipe.  LS_ERR_IO: it is not; the message names the path.
 */
ls_status ls_file_check_plain(int fd, const char *path);

#endif
