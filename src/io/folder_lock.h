/*
 * folder_lock.h - one process at a time in a folder.
 *
 * The lock is a record lock of FOLDER/lock: the kernel drops it when the process ends, however it
 * ends, and it holds between the hosts of a network file system.  The file is removed with the
 * lock; one that a killed process left behind is not a lock.  Nothing else may open it: closing any
 * descriptor of a file drops a process's record locks on it.
 *
 * Layer: io (uses base).  Threads: a lock belongs to one thread; a process does not exclude itself.
 */
#ifndef LS_FOLDER_LOCK_H
#define LS_FOLDER_LOCK_H

#include "status.h"

typedef struct ls_folder_lock ls_folder_lock;

/*
 * Lock a folder, which exists; ls_folder_lock_release() it.
 * LS_ERR_INVALID: another process holds it, named by its number; LS_ERR_UNSUPPORTED: the file
 * system has no locks; LS_ERR_IO (the file cannot be made), LS_ERR_NO_MEMORY.
 */
ls_status ls_folder_lock_take(const char *folder, ls_folder_lock **lock);

/* NULL is allowed. */
void ls_folder_lock_release(ls_folder_lock *lock);

#endif
