/*
 * folder_lock.c - open, lock, and look whether the file is still the one of that name: the holder
 * before may have removed it between the two.
 */
#include "folder_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disk_file.h"

struct ls_folder_lock {
    int fd;
    char *path;
};

static struct flock whole_file(void)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
}

static bool has_no_locks(int error)
{
    return error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP || error == EINVAL;
}

/* Name the holder; LS_OK if it has let go meanwhile. */
static ls_status refuse(const char *folder, int fd)
{
    struct flock holder = whole_file();
    char process[48] = "";
    const bool known = fcntl(fd, F_GETLK, &holder) == 0;

    if (known && holder.l_type == F_UNLCK) return LS_OK;
    if (known && holder.l_pid > 0) /* else on another host, or outside of this container */
        snprintf(process, sizeof process, ", process %ld", (long)holder.l_pid);
    return LS_FAIL(LS_ERR_INVALID,
                   "output: %s is in use by another longspan%s; wait until it ends, stop it, or "
                   "choose another output",
                   folder, process);
}

/* Whether the file that is locked still has its name. */
static ls_status check_name(const ls_folder_lock *lock, bool *same)
{
    struct stat opened, named;

    if (fstat(lock->fd, &opened) != 0)
        return ls_disk_file_fail("cannot look at", lock->path, errno);
    if (stat(lock->path, &named) == 0)
        *same = named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
    else if (errno != ENOENT)
        return ls_disk_file_fail("cannot look at", lock->path, errno);
    return LS_OK;
}

/* held stays false where it is to be tried again. */
static ls_status try_lock(const char *folder, ls_folder_lock *lock, bool *held)
{
    struct flock wanted = whole_file();

    lock->fd = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock->fd < 0) return ls_disk_file_fail("cannot write", lock->path, errno);
    if (fcntl(lock->fd, F_SETLK, &wanted) == 0) return check_name(lock, held);
    const int error = errno;
    if (error == EINTR) return LS_OK;
    if (error == EAGAIN || error == EACCES) return refuse(folder, lock->fd);
    if (!has_no_locks(error)) return ls_disk_file_fail("cannot lock", lock->path, error);
    unlink(lock->path);
    return LS_FAIL(LS_ERR_UNSUPPORTED,
                   "%s is on a file system without locks: nothing keeps a second longspan out",
                   folder);
}

/* Closing drops the lock. */
static void close_lock(ls_folder_lock *lock)
{
    if (lock->fd >= 0) close(lock->fd);
    lock->fd = -1;
}

ls_status ls_folder_lock_take(const char *folder, ls_folder_lock **lock)
{
    ls_folder_lock *taken = malloc(sizeof *taken);
    char *path = ls_path_join(folder, "lock");
    ls_status status = LS_OK;
    bool held = false;

    if (taken == NULL || path == NULL) {
        free(taken);
        free(path);
        return LS_FAIL(LS_ERR_NO_MEMORY, "the lock of %s", folder);
    }
    *taken = (ls_folder_lock){.fd = -1, .path = path};
    while (status == LS_OK && !held) {
        close_lock(taken);
        status = try_lock(folder, taken, &held);
    }
    if (status == LS_OK) {
        *lock = taken;
        return LS_OK;
    }
    close_lock(taken);
    free(path);
    free(taken);
    return status;
}

void ls_folder_lock_release(ls_folder_lock *lock)
{
    if (lock == NULL) return;
    unlink(lock->path); /* while it is held: the next holder's file is another */
    close_lock(lock);
    free(lock->path);
    free(lock);
}
