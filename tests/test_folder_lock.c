/*
 * test_folder_lock.c - one process at a time in a folder: the other is named, nothing stays behind,
 * a killed holder holds nothing; where fcntl fails, and where the file is replaced meanwhile.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "directory.h"
#include "folder_lock.h"
#include "run_folder.h"

static char folder[256], path[300], record[300];

static bool is_there(void)
{
    return access(path, F_OK) == 0;
}

/* ---- fcntl --------------------------------------------------------------------------------- */

static int fail_with; /* an errno for the next F_SETLK; 0: none */
static bool
    replace; /* another process removes the file before the next F_SETLK, and makes its own */

int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...);

static int call(int fd, int command, void *argument)
{
    const int error = fail_with;

    if (command == F_SETLK && replace) {
        replace = false;
        assert_int_equal(unlink(path), 0);
        fclose(fopen(path, "w"));
    }
    if (command != F_SETLK || error == 0) return __real_fcntl(fd, command, argument);
    fail_with = 0;
    errno = error;
    return -1;
}

#define FORWARD(name)                                                                              \
    int name(int fd, int command, ...)                                                             \
    {                                                                                              \
        va_list arguments;                                                                         \
        va_start(arguments, command);                                                              \
        void *argument = va_arg(arguments, void *);                                                \
        va_end(arguments);                                                                         \
        return call(fd, command, argument);                                                        \
    }

FORWARD(__wrap_fcntl)
FORWARD(__wrap_fcntl64)

/* ---- another process ----------------------------------------------------------------------- */

/* The status that it gets, in a process of its own that ends at once; its message must have this
 * part. */
static ls_status take_elsewhere(const char *part)
{
    int status;
    const pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        ls_folder_lock *lock = NULL;
        const ls_status taken = ls_folder_lock_take(folder, &lock);
        if (taken != LS_OK && strstr(ls_error(), part) == NULL) {
            fprintf(stderr, "'%s' lacks '%s'\n", ls_error(), part);
            _exit(1);
        }
        _exit(taken == LS_OK ? 0 : -taken + 1); /* no release: as if it were killed */
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 1);
    return WEXITSTATUS(status) == 0 ? LS_OK : (ls_status)(1 - WEXITSTATUS(status));
}

/* ---- tests --------------------------------------------------------------------------------- */

static void test_second_is_refused(void **state)
{
    ls_folder_lock *lock = NULL;
    char part[400];

    (void)state;
    assert_int_equal(ls_folder_lock_take(folder, &lock), LS_OK);
    snprintf(part, sizeof part, "output: %s is in use by another longspan, process %ld; wait until",
             folder, (long)getpid());
    assert_int_equal(take_elsewhere(part), LS_ERR_INVALID);
    assert_int_equal(take_elsewhere(part), LS_ERR_INVALID); /* that changed nothing */
    ls_folder_lock_release(lock);
    assert_false(is_there());
    ls_folder_lock_release(NULL);
}

static void test_dead_holder_holds_nothing(void **state)
{
    ls_folder_lock *lock = NULL;

    (void)state;
    assert_int_equal(take_elsewhere(""), LS_OK);
    assert_true(is_there());
    assert_int_equal(ls_folder_lock_take(folder, &lock), LS_OK);
    ls_folder_lock_release(lock);
    assert_false(is_there());
}

static void test_no_locks(void **state)
{
    static const int errors[] = {ENOLCK, EOPNOTSUPP, ENOSYS, EINVAL};
    ls_folder_lock *lock = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        fail_with = errors[i];
        assert_int_equal(ls_folder_lock_take(folder, &lock), LS_ERR_UNSUPPORTED);
        assert_non_null(strstr(ls_error(), "without locks"));
        assert_false(is_there());
    }
    fail_with = EIO;
    assert_int_equal(ls_folder_lock_take(folder, &lock), LS_ERR_IO);
    fail_with = EINTR;
    assert_int_equal(ls_folder_lock_take(folder, &lock), LS_OK);
    ls_folder_lock_release(lock);
    assert_int_equal(ls_folder_lock_take("/proc/self/none", &lock), LS_ERR_IO);
}

/* The lock of a file that has lost its name keeps nobody out. */
static void test_replaced_file(void **state)
{
    ls_folder_lock *lock = NULL;

    (void)state;
    replace = true;
    assert_int_equal(ls_folder_lock_take(folder, &lock), LS_OK);
    assert_false(replace);
    assert_int_equal(take_elsewhere("in use"), LS_ERR_INVALID);
    ls_folder_lock_release(lock);
}

/* ---- run directories ----------------------------------------------------------------------- */

/* Two that begin at once: the folder is not there when they look, and is when they make it. */
static void test_made_meanwhile(void **state)
{
    ls_progress progress = ls_progress_open(1, true);
    ls_run_folder run;
    int stop[2], ready[2];
    char byte;

    (void)state;
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(ls_run_folder_open(folder, false, &progress, &run), LS_OK);
    assert_false(run.taken);
    assert_int_equal(pipe(stop) | pipe(ready), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        ls_run_folder other;
        close(stop[1]);
        if (ls_run_folder_open(folder, false, &progress, &other) != LS_OK ||
            ls_run_folder_make(&other) != LS_OK)
            _exit(1);
        (void)(write(ready[1], "", 1) == 1);
        _exit((int)read(stop[0], &byte, 1)); /* until the other end is closed */
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(ls_run_folder_make(&run), LS_ERR_INVALID);
    assert_non_null(strstr(ls_error(), "in use"));
    close(stop[1]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);

    fclose(fopen(record, "w")); /* it has trained, and gone */
    assert_int_equal(ls_run_folder_make(&run), LS_ERR_INVALID);
    assert_non_null(strstr(ls_error(), "already holds a run"));
    ls_run_folder_close(&run);
    assert_false(is_there());
    assert_int_equal(unlink(record), 0);
    close(stop[0]);
    close(ready[0]);
    ls_progress_close(&progress);
}

static void test_run_without_locks(void **state)
{
    ls_progress progress = ls_progress_open(1, true);
    ls_run_folder run;

    (void)state;
    fail_with = ENOLCK;
    assert_int_equal(ls_run_folder_open(folder, true, &progress, &run), LS_OK);
    assert_int_equal(fail_with, 0);
    assert_int_equal(ls_run_folder_make(&run), LS_OK);
    assert_null(run.lock);
    ls_run_folder_close(&run);
    ls_progress_close(&progress);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/lock-XXXXXX", LS_BINARY_DIR);
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(path, sizeof path, "%s/lock", folder);
    snprintf(record, sizeof record, "%s/record.jsonl", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return ls_directory_remove(folder) == LS_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_second_is_refused), cmocka_unit_test(test_dead_holder_holds_nothing),
        cmocka_unit_test(test_no_locks),          cmocka_unit_test(test_replaced_file),
        cmocka_unit_test(test_made_meanwhile),    cmocka_unit_test(test_run_without_locks),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
