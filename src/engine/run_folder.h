/*
 * run_folder.h - the run directory as a trainer's own: one at a time, and no run over another.
 *
 * Commands that only read a run (eval, report) do not need it.
 *
 * Layer: engine.  Threads: one owner.
 */
#ifndef LS_RUN_FOLDER_H
#define LS_RUN_FOLDER_H

#include <stdbool.h>

#include "folder_lock.h"
#include "progress.h"

typedef struct ls_run_folder {
    const char *output;
    ls_progress *progress; /* told where there are no locks */
    ls_folder_lock *lock;
    bool taken; /* locked, as far as the file system has locks */
} ls_run_folder;

/* LS_OK if nothing but folders stands where the run directory and those above it are to be; else
 * LS_ERR_INVALID.  LS_ERR_IO. */
ls_status ls_run_folder_check(const char *output);

/*
 * Take a run directory that is there; nothing is made.  Close it in any case.
 *   resume  it may hold a run
 * LS_ERR_INVALID: it holds a run, or another process trains there.  Statuses of
 * ls_folder_lock_take().
 */
ls_status ls_run_folder_open(const char *output, bool resume, ls_progress *progress,
                             ls_run_folder *folder);

/* Make the directory, and take it if it was not there before.  Statuses as above. */
ls_status ls_run_folder_make(ls_run_folder *folder);

/* Let others in.  Zeros are allowed. */
void ls_run_folder_close(ls_run_folder *folder);

#endif
