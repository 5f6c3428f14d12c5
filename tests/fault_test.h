/*
 * fault_test.h - our calls of libc, in the hands of a test: made to fail, counted, watched for
 * leaks.
 *
 * The linker sends every call that our objects make to the wrapper here (--wrap; CMakeLists.txt has
 * the list); calls inside libraries stay as they are, but cJSON can be told to allocate here too.
 * One function is armed at a time, or all of a kind: the n-th call fails, or that and all later
 * ones; or the first call from a place (a stack of callers) that has not failed before.
 *
 * Include it in one file of a program.  Threads: arm and disarm while no other thread runs.
 */
#ifndef LS_FAULT_TEST_H
#define LS_FAULT_TEST_H

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef enum fault_kind { FAULT_MEMORY, FAULT_DISK, FAULT_THREAD, FAULT_KINDS } fault_kind;

static struct {
    bool armed, lasting; /* lasting: all calls from the n-th on */
    fault_kind kind;
    const char *call; /* "malloc", ...; NULL: any of the kind */
    long at;          /* n, from 1; 0: what comes from a new place */
    atomic_long n_calls;
    const char *_Atomic fired; /* the first call that failed; NULL: none yet */
} fault;

static inline void fault_arm(fault_kind kind, const char *call, long at, bool lasting)
{
    atomic_store(&fault.n_calls, 0);
    atomic_store(&fault.fired, NULL);
    fault.kind = kind;
    fault.call = call;
    fault.at = at;
    fault.lasting = lasting;
    fault.armed = true;
}

static inline void fault_disarm(void)
{
    fault.armed = false;
}

#define FAULT_FRAMES 16
#define FAULT_PLACES (1 << 16) /* a power of two, far above how many there are */

/* Hashes of the places that have failed; shared by a process and those that it forks. */
static struct {
    pthread_mutex_t mutex;
    uint64_t *hashes;
} fault_places = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Whether the calling stack is new; then it no longer is. */
static inline bool fault_is_new_place(void)
{
    void *frames[FAULT_FRAMES];
    const int n = backtrace(frames, FAULT_FRAMES);
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (int i = 0; i < n; i++) hash = (hash ^ (uintptr_t)frames[i]) * UINT64_C(0x100000001b3);
    pthread_mutex_lock(&fault_places.mutex);
    size_t slot = hash % FAULT_PLACES;
    while (fault_places.hashes[slot] != 0 && fault_places.hashes[slot] != hash)
        slot = (slot + 1) % FAULT_PLACES;
    const bool is_new = fault_places.hashes[slot] == 0 && atomic_load(&fault.fired) == NULL;
    if (is_new) fault_places.hashes[slot] = hash;
    pthread_mutex_unlock(&fault_places.mutex);
    return is_new;
}

/* Whether this call is to fail. */
static inline bool fault_hits(fault_kind kind, const char *call)
{
    const char *none = NULL;

    if (!fault.armed || kind != fault.kind) return false;
    if (fault.call != NULL && strcmp(fault.call, call) != 0) return false;
    const long n = atomic_fetch_add(&fault.n_calls, 1) + 1;
    if (fault.at == 0 && !fault_is_new_place()) return false;
    if (fault.at > 0 && (n < fault.at || (n > fault.at && !fault.lasting))) return false;
    atomic_compare_exchange_strong(&fault.fired, &none, call);
    return true;
}

/* ---- what is held -------------------------------------------------------------------------- */

#define HELD_SLOTS (1 << 18) /* a power of two, far above what is held at a time */

/* Blocks by address in a table; free() of any other block is libc's own business. */
static struct {
    pthread_mutex_t mutex;
    bool watching;
    void *blocks[HELD_SLOTS];
    long n_blocks, n_maps, n_threads;
} held = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static atomic_long n_allocations; /* calls that gave memory, so far */

static inline size_t held_find(const void *block)
{
    size_t slot = (size_t)((uintptr_t)block / 16 * UINT64_C(0x9e3779b97f4a7c15) >> 46);
    while (held.blocks[slot] != NULL && held.blocks[slot] != block) slot = (slot + 1) % HELD_SLOTS;
    return slot;
}

static inline void *hold_block(void *block)
{
    if (block == NULL) return NULL;
    atomic_fetch_add(&n_allocations, 1);
    pthread_mutex_lock(&held.mutex);
    if (held.watching) {
        held.blocks[held_find(block)] = block;
        held.n_blocks++;
    }
    pthread_mutex_unlock(&held.mutex);
    return block;
}

/* Before the block is freed: another thread may be given its address at once. */
static inline bool let_block_go(void *block)
{
    bool was_held = false;

    pthread_mutex_lock(&held.mutex);
    size_t hole = held_find(block);
    if (block != NULL && held.blocks[hole] == block) {
        was_held = true;
        held.n_blocks--;
        held.blocks[hole] = NULL;
        /* what had to step aside is put where it is found again */
        for (size_t s = (hole + 1) % HELD_SLOTS; held.blocks[s]; s = (s + 1) % HELD_SLOTS) {
            void *moved = held.blocks[s];
            held.blocks[s] = NULL;
            held.blocks[held_find(moved)] = moved;
        }
    }
    pthread_mutex_unlock(&held.mutex);
    return was_held;
}

static inline void hold_count(long *count, long change)
{
    pthread_mutex_lock(&held.mutex);
    if (held.watching) *count += change;
    pthread_mutex_unlock(&held.mutex);
}

/* From here on, what is taken must be given back before held_check(). */
static inline void held_watch(void)
{
    memset(held.blocks, 0, sizeof held.blocks);
    held.n_blocks = held.n_maps = held.n_threads = 0;
    held.watching = true;
}

static inline void held_unwatch(void)
{
    held.watching = false;
}

/* ---- memory -------------------------------------------------------------------------------- */

/* NOLINTBEGIN(readability-identifier-naming): the linker's names */
#define WRAP(result, name, parameters)                                                             \
    result __real_##name parameters;                                                               \
    result __wrap_##name parameters;                                                               \
    result __wrap_##name parameters

#define WRAP_ALLOCATION(name, parameters, arguments)                                               \
    WRAP(void *, name, parameters)                                                                 \
    {                                                                                              \
        if (!fault_hits(FAULT_MEMORY, #name)) return hold_block(__real_##name arguments);          \
        errno = ENOMEM;                                                                            \
        return NULL;                                                                               \
    }

WRAP_ALLOCATION(malloc, (size_t bytes), (bytes))
WRAP_ALLOCATION(calloc, (size_t n, size_t bytes), (n, bytes))

WRAP(void *, realloc, (void *block, size_t bytes))
{
    if (fault_hits(FAULT_MEMORY, "realloc")) {
        errno = ENOMEM;
        return NULL;
    }
    let_block_go(block);
    return hold_block(__real_realloc(block, bytes));
}

WRAP(void, free, (void *block))
{
    let_block_go(block);
    __real_free(block);
}

WRAP(char *, strdup, (const char *text))
{
    if (!fault_hits(FAULT_MEMORY, "strdup")) return hold_block(__real_strdup(text));
    errno = ENOMEM;
    return NULL;
}

WRAP(char *, strndup, (const char *text, size_t bytes))
{
    if (!fault_hits(FAULT_MEMORY, "strndup")) return hold_block(__real_strndup(text, bytes));
    errno = ENOMEM;
    return NULL;
}

WRAP(void *, mmap, (void *at, size_t bytes, int protection, int flags, int fd, off_t offset))
{
    if (fault_hits(FAULT_MEMORY, "mmap")) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    void *map = __real_mmap(at, bytes, protection, flags, fd, offset);
    if (map != MAP_FAILED) hold_count(&held.n_maps, 1);
    return map;
}

WRAP(int, munmap, (void *map, size_t bytes))
{
    hold_count(&held.n_maps, -1);
    return __real_munmap(map, bytes);
}

WRAP(locale_t, newlocale, (int mask, const char *name, locale_t base))
{
    if (!fault_hits(FAULT_MEMORY, "newlocale")) return __real_newlocale(mask, name, base);
    errno = ENOMEM;
    return (locale_t)0;
}

/* Before processes are forked whose failures from new places are to differ. */
static inline void fault_share_places(void)
{
    void *frame[1];

    fault_places.hashes = __real_mmap(NULL, FAULT_PLACES * sizeof *fault_places.hashes,
                                      PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (fault_places.hashes == MAP_FAILED) abort();
    backtrace(frame, 1); /* its first call allocates */
}

/* cJSON's allocations come here too. */
static inline void wrap_cjson(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = __wrap_malloc, .free_fn = __wrap_free});
}

/* ---- threads ------------------------------------------------------------------------------- */

WRAP(int, pthread_create,
     (pthread_t * thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument))
{
    if (fault_hits(FAULT_THREAD, "pthread_create")) return EAGAIN;
    const int error = __real_pthread_create(thread, attributes, run, argument);
    if (error == 0) hold_count(&held.n_threads, 1);
    return error;
}

WRAP(int, pthread_join, (pthread_t thread, void **result))
{
    hold_count(&held.n_threads, -1);
    return __real_pthread_join(thread, result);
}

/* ---- disk ---------------------------------------------------------------------------------- */

#define WRAP_DISK(result, failed, name, parameters, arguments)                                     \
    WRAP(result, name, parameters)                                                                 \
    {                                                                                              \
        if (!fault_hits(FAULT_DISK, #name)) return __real_##name arguments;                        \
        errno = EIO;                                                                               \
        return failed;                                                                             \
    }

/* libc allocates for these. */
#define WRAP_DISK_ALLOCATION(result, failed, name, parameters, arguments)                          \
    WRAP(result, name, parameters)                                                                 \
    {                                                                                              \
        atomic_fetch_add(&n_allocations, 1);                                                       \
        if (!fault_hits(FAULT_DISK, #name)) return __real_##name arguments;                        \
        errno = EIO;                                                                               \
        return failed;                                                                             \
    }

/* These give back what they are given even when they fail. */
#define WRAP_CLOSE(failed, name, parameters, arguments)                                            \
    WRAP(int, name, parameters)                                                                    \
    {                                                                                              \
        const int done = __real_##name arguments;                                                  \
        if (!fault_hits(FAULT_DISK, #name)) return done;                                           \
        errno = EIO;                                                                               \
        return failed;                                                                             \
    }

WRAP(int, open, (const char *path, int flags, ...))
{
    mode_t mode = 0;
    va_list args;

    if (fault_hits(FAULT_DISK, "open")) {
        errno = EIO;
        return -1;
    }
    va_start(args, flags);
    if (flags & O_CREAT) mode = va_arg(args, mode_t);
    va_end(args);
    return __real_open(path, flags, mode);
}

/* Nothing here outlives the test: it need not wait for the disk. */
WRAP(int, fsync, (int fd))
{
    (void)fd;
    if (!fault_hits(FAULT_DISK, "fsync")) return 0;
    errno = EIO;
    return -1;
}

WRAP_CLOSE(-1, close, (int fd), (fd))
WRAP_CLOSE(-1, closedir, (DIR * folder), (folder))
WRAP_CLOSE(EOF, fclose, (FILE * file), (file))
WRAP_DISK_ALLOCATION(FILE *, NULL, fopen, (const char *path, const char *mode), (path, mode))
WRAP_DISK_ALLOCATION(DIR *, NULL, opendir, (const char *path), (path))
WRAP_DISK_ALLOCATION(ssize_t, -1, getline, (char **line, size_t *bytes, FILE *file),
                     (line, bytes, file))
WRAP_DISK(struct dirent *, NULL, readdir, (DIR * folder), (folder))
WRAP_DISK(ssize_t, -1, read, (int fd, void *data, size_t bytes), (fd, data, bytes))
WRAP_DISK(ssize_t, -1, write, (int fd, const void *data, size_t bytes), (fd, data, bytes))
WRAP_DISK(ssize_t, -1, pread, (int fd, void *data, size_t bytes, off_t offset),
          (fd, data, bytes, offset))
WRAP_DISK(ssize_t, -1, pwrite, (int fd, const void *data, size_t bytes, off_t offset),
          (fd, data, bytes, offset))
WRAP_DISK(off_t, -1, lseek, (int fd, off_t offset, int whence), (fd, offset, whence))
WRAP_DISK(int, -1, ftruncate, (int fd, off_t bytes), (fd, bytes))
WRAP_DISK(int, -1, fstat, (int fd, struct stat *info), (fd, info))
WRAP_DISK(int, -1, stat, (const char *path, struct stat *info), (path, info))
WRAP_DISK(int, -1, lstat, (const char *path, struct stat *info), (path, info))
WRAP_DISK(int, -1, statvfs, (const char *path, struct statvfs *info), (path, info))
WRAP_DISK(int, -1, rename, (const char *from, const char *to), (from, to))
WRAP_DISK(int, -1, unlink, (const char *path), (path))
WRAP_DISK(int, -1, rmdir, (const char *path), (path))
WRAP_DISK(int, -1, mkdir, (const char *path, mode_t mode), (path, mode))
/* NOLINTEND(readability-identifier-naming) */

#endif
