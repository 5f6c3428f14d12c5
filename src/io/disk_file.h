/*
 * disk_file.h - whole reads and writes of files, and durable replacement of a small one.
 *
 * A read or write here moves every byte asked for or fails: interrupted and short system calls are
 * continued.  Every error names the path, the system's reason and, where there is one, the remedy
 * (full disk, read-only file system, no permission).  What ls_disk_file_sync() has returned LS_OK
 * for survives a power cut; a new name also needs ls_directory_sync() (directory.h).
 *
 * Layer: io (uses base).  Threads: ls_disk_file_read_at() and ls_disk_file_write_at() may run at
 * once on one file; everything else is one thread per file.  All calls block.
 */
#ifndef LS_DISK_FILE_H
#define LS_DISK_FILE_H

#include <errno.h>
#include <stdint.h>

#include "status.h"

typedef struct ls_disk_file {
    int fd;     /* -1: closed */
    char *path; /* owned; for messages */
} ls_disk_file;

/* The initial value of an ls_disk_file, so that closing one that was never opened is harmless. */
#define LS_DISK_FILE_CLOSED ((ls_disk_file){-1, NULL})

typedef enum ls_disk_file_mode {
    LS_DISK_FILE_READ,   /* an existing file, for reading */
    LS_DISK_FILE_CREATE, /* created or emptied, for writing and reading back */
} ls_disk_file_mode;

/*
 * Open a file; release with ls_disk_file_close().  A folder or a device is refused.
 * Returns LS_OK, LS_ERR_IO (absent, no permission, ...), LS_ERR_INVALID (not a regular file) or
 * LS_ERR_NO_MEMORY.
 */
ls_status ls_disk_file_open(const char *path, ls_disk_file_mode mode, ls_disk_file *file);

/* Close without syncing; a closed file and NULL are allowed. */
void ls_disk_file_close(ls_disk_file *file);

/* The present size.  Returns LS_OK or LS_ERR_IO. */
ls_status ls_disk_file_size(const ls_disk_file *file, uint64_t *bytes);

/* Read exactly `bytes` at `offset`.  LS_ERR_CORRUPT if the file ends before, LS_ERR_IO. */
ls_status ls_disk_file_read_at(const ls_disk_file *file, void *data, uint64_t bytes,
                               uint64_t offset);

/* Append at the file's position.  Returns LS_OK or LS_ERR_IO. */
ls_status ls_disk_file_write(ls_disk_file *file, const void *data, uint64_t bytes);

/* Write at `offset`; the position of ls_disk_file_write() stays.  Returns LS_OK or LS_ERR_IO. */
ls_status ls_disk_file_write_at(const ls_disk_file *file, const void *data, uint64_t bytes,
                                uint64_t offset);

/* Wait until the content is on stable storage.  Returns LS_OK or LS_ERR_IO. */
ls_status ls_disk_file_sync(const ls_disk_file *file);

/*
 * Read a whole small file.
 *   bytes_max  larger files are refused (LS_ERR_CORRUPT)
 *   data       [out] the content and a NUL behind it; release with free()
 *   bytes      [out] its size without the NUL; may be NULL
 * Also LS_ERR_IO, LS_ERR_NO_MEMORY, LS_ERR_INVALID (not a regular file).
 */
ls_status ls_disk_file_read_all(const char *path, uint64_t bytes_max, char **data, uint64_t *bytes);

/*
 * Replace a small file so that a reader, or a restart after a crash, sees the old content or the
 * new, never a mixture: written beside, synced, renamed, folder synced.  On failure the old file
 * stays and the temporary one is removed.  Returns LS_OK, LS_ERR_IO or LS_ERR_NO_MEMORY.
 */
ls_status ls_disk_file_write_atomic(const char *path, const void *data, uint64_t bytes);

/* Rename within one file system, replacing `to`.  Returns LS_OK or LS_ERR_IO. */
ls_status ls_disk_file_rename(const char *from, const char *to);

/* Remove a file; one that is already absent is no error.  Returns LS_OK or LS_ERR_IO. */
ls_status ls_disk_file_remove(const char *path);

/* Remove what a failed operation left behind; the failure already described stays described. */
void ls_disk_file_discard(const char *path);

/* Undo a rename after a failure that is already described, as well as can be. */
void ls_disk_file_put_back(const char *from, const char *to);

/* "DIRECTORY/NAME" in new memory; NULL if there is none.  Release with free(). */
char *ls_path_join(const char *directory, const char *name);

/* The folder a path lies in ("." if it has none) in new memory; NULL if there is none. */
char *ls_path_parent(const char *path);

/* The texts of the two functions below. */
void ls_disk_file_describe_error(const char *action, const char *path, int error);
void ls_disk_file_describe_memory(uint64_t bytes, const char *what);

/*
 * Describe a failed system call: "ACTION PATH: reason (remedy)".  `error` is an errno value.
 * Returns LS_ERR_IO, or LS_ERR_NO_MEMORY for ENOMEM.
 */
static inline ls_status ls_disk_file_fail(const char *action, const char *path, int error)
{
    ls_disk_file_describe_error(action, path, error);
    return error == ENOMEM ? LS_ERR_NO_MEMORY : LS_ERR_IO;
}

/* Describe the failed allocation of `bytes` for `what`.  Returns LS_ERR_NO_MEMORY. */
static inline ls_status ls_disk_file_fail_memory(uint64_t bytes, const char *what)
{
    ls_disk_file_describe_memory(bytes, what);
    return LS_ERR_NO_MEMORY;
}

#endif
