/*
 * io_test.h - what the tests of io share: a scratch folder, system calls that fail on demand, and
 * small file systems that are full or read-only.
 */
#ifndef LS_IO_TEST_H
#define LS_IO_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "directory.h"
#include "disk_file.h"
#include "file_ops.h"
#include "status.h"

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != LS_OK) fail_msg("%s: %s", #call, ls_error());                                \
    } while (0)

/* The call fails with this status and a message that holds this text. */
#define assert_fails(call, status, text)                                                           \
    do {                                                                                           \
        assert_int_equal((call), (status));                                                        \
        if (!strstr(ls_error(), (text))) fail_msg("'%s' lacks '%s'", ls_error(), (text));          \
    } while (0)

static char test_folder[256];
static char test_mount[512]; /* a mount to undo if its test fails half-way */

static inline int make_test_folder(void **state)
{
    (void)state;
    snprintf(test_folder, sizeof test_folder, "%s/io-XXXXXX", LS_BINARY_DIR);
    return mkdtemp(test_folder) ? 0 : -1;
}

static inline bool run_command(const char *command)
{
    const int result = system(command);
    return WIFEXITED(result) && WEXITSTATUS(result) == 0;
}

static inline bool unmount_quietly(const char *path)
{
    char command[700];
    snprintf(command, sizeof command, "umount '%s'", path);
    return run_command(command);
}

static inline int remove_test_folder(void **state)
{
    (void)state;
    ls_file_ops_replace(NULL);
    if (test_mount[0]) (void)unmount_quietly(test_mount);
    return ls_directory_remove(test_folder) == LS_OK ? 0 : -1;
}

/* A path in the scratch folder; eight results live at a time. */
static inline const char *at(const char *name)
{
    static char paths[8][512];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", test_folder, name);
    return path;
}

static inline void put_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline bool is_there(const char *path)
{
    ls_path_kind kind;
    assert_ok(ls_path_describe_link(path, &kind));
    return kind != LS_PATH_ABSENT;
}

/* ---- system calls that fail on demand -------------------------------------------------------- */

/* Calls that change the disk are counted; from number fault_at on (0-based) they fail, either that
 * one only or, as after a crash, all that follow. */
static int fault_at = -1, fault_calls, fault_errno = EIO, fault_fds;
static bool fault_stays;
static size_t fault_chunk; /* > 0: reads and writes move at most so much, and are interrupted */
static bool fault_interrupt;

static inline bool fault_due(void)
{
    const int call = fault_calls++;
    if (fault_at < 0 || !(call == fault_at || (fault_stays && call > fault_at))) return false;
    errno = fault_errno;
    return true;
}

static inline size_t fault_clip(size_t bytes)
{
    return fault_chunk && bytes > fault_chunk ? fault_chunk : bytes;
}

static inline bool fault_interrupted(void)
{
    if (!fault_chunk) return false;
    fault_interrupt = !fault_interrupt;
    errno = EINTR;
    return fault_interrupt;
}

static inline int fault_open(const char *path, int flags, mode_t mode)
{
    if ((flags & O_CREAT) && fault_due()) return -1;
    const int fd = ls_file_ops_libc()->open(path, flags, mode);
    if (fd >= 0) fault_fds++;
    return fd;
}

static inline int fault_close(int fd)
{
    fault_fds--;
    return ls_file_ops_libc()->close(fd);
}

static inline ssize_t fault_write(int fd, const void *data, size_t bytes)
{
    if (fault_due()) return -1;
    if (fault_interrupted()) return -1;
    return ls_file_ops_libc()->write(fd, data, fault_clip(bytes));
}

static inline ssize_t fault_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    if (fault_due()) return -1;
    if (fault_interrupted()) return -1;
    return ls_file_ops_libc()->pwrite(fd, data, fault_clip(bytes), offset);
}

static inline ssize_t fault_pread(int fd, void *data, size_t bytes, off_t offset)
{
    if (fault_interrupted()) return -1;
    return ls_file_ops_libc()->pread(fd, data, fault_clip(bytes), offset);
}

static inline int fault_fsync(int fd)
{
    return fault_due() ? -1 : ls_file_ops_libc()->fsync(fd);
}

static inline int fault_rename(const char *from, const char *to)
{
    return fault_due() ? -1 : ls_file_ops_libc()->rename(from, to);
}

static inline int fault_unlink(const char *path)
{
    return fault_due() ? -1 : ls_file_ops_libc()->unlink(path);
}

static inline int fault_rmdir(const char *path)
{
    return fault_due() ? -1 : ls_file_ops_libc()->rmdir(path);
}

static inline int fault_mkdir(const char *path, mode_t mode)
{
    return fault_due() ? -1 : ls_file_ops_libc()->mkdir(path, mode);
}

static inline void arm_faults(int first, bool stays, int error)
{
    static ls_file_ops ops;
    ops = *ls_file_ops_libc();
    ops.open = fault_open;
    ops.close = fault_close;
    ops.write = fault_write;
    ops.pwrite = fault_pwrite;
    ops.pread = fault_pread;
    ops.fsync = fault_fsync;
    ops.rename = fault_rename;
    ops.unlink = fault_unlink;
    ops.rmdir = fault_rmdir;
    ops.mkdir = fault_mkdir;
    fault_at = first;
    fault_stays = stays;
    fault_errno = error;
    fault_calls = 0;
    fault_fds = 0;
    fault_chunk = 0;
    ls_file_ops_replace(&ops);
}

/* Back to libc; every descriptor opened since arm_faults() must be closed. */
static inline void disarm_faults(void)
{
    ls_file_ops_replace(NULL);
    fault_chunk = 0;
    assert_int_equal(fault_fds, 0);
}

/* ---- small file systems ---------------------------------------------------------------------- */

/* Mount a tmpfs of so many KiB, or skip the test, because that takes privileges. */
static inline void mount_small(const char *path, int kib)
{
    char command[700];
    assert_ok(ls_directory_make(path));
    snprintf(command, sizeof command, "mount -t tmpfs -o size=%dk tmpfs '%s' 2>/dev/null", kib,
             path);
    if (run_command(command)) {
        snprintf(test_mount, sizeof test_mount, "%s", path);
        return;
    }
    print_message("skipped: mounting a small tmpfs needs root\n");
    skip();
}

static inline void remount_readonly(const char *path)
{
    char command[700];
    snprintf(command, sizeof command, "mount -o remount,ro '%s'", path);
    assert_true(run_command(command));
}

static inline void unmount(const char *path)
{
    test_mount[0] = '\0';
    assert_true(unmount_quietly(path));
}

#endif
