/*
 * arena_file.c - a file of a fast disk as an arena: its blocks are allocated when it is opened, so
 * that no write to the mapping can find the disk full (SIGBUS).
 *
 * The file's name is removed at once: the space is given back when the mapping ends, in whichever
 * way the process does.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "arena_system.h"

#define PATH_BYTES 4096

static ls_status fail_allocate(const ls_arena *arena, const char *directory, int error)
{
    struct statvfs disk;
    char room[64] = "an unknown amount";

    if (statvfs(directory, &disk) == 0)
        snprintf(room, sizeof room, "%.3f GiB",
                 (double)disk.f_bavail * (double)disk.f_frsize / 0x1p30);
    const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
    return LS_FAIL(full ? LS_ERR_NO_MEMORY : LS_ERR_IO,
                   "%s: the plan needs a file of %.3f GiB in %s, which has %s free: %s; free space "
                   "there or name another folder",
                   arena->name, (double)arena->info.size_bytes / 0x1p30, directory, room,
                   strerror(error));
}

/* 0 or an errno.  Beyond the limit on file sizes the call would raise SIGXFSZ. */
static int allocate(const ls_arena *arena, int fd)
{
    struct rlimit limit;
    int error;

    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        arena->info.size_bytes > limit.rlim_cur)
        return EFBIG;
    do error = arena->system->allocate(fd, 0, (off_t)arena->info.size_bytes);
    while (error == EINTR);
    return error;
}

static ls_status map_file(ls_arena *arena, const char *directory, int fd)
{
    const ls_arena_system *system = arena->system;
    const int error = allocate(arena, fd);

    if (error != 0) return fail_allocate(arena, directory, error);
    void *base =
        system->map(NULL, arena->info.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return LS_FAIL(LS_ERR_IO, "%s: mmap of a file of %.3f GiB in %s: %s", arena->name,
                       (double)arena->info.size_bytes / 0x1p30, directory, strerror(errno));
    arena->mapping = arena->info.base = base;
    arena->mapping_bytes = arena->info.size_bytes;
    return LS_OK;
}

ls_status ls_arena_open_file(ls_arena *arena, const ls_arena_options *options)
{
    const ls_arena_system *system = arena->system;
    const char *directory = options->directory;
    char path[PATH_BYTES];

    if (!ls_arena_round_up(options->size_bytes, arena->page_bytes, &arena->info.size_bytes) ||
        snprintf(path, sizeof path, "%s/longspan-arena-XXXXXX", directory) >= (int)sizeof path)
        return LS_FAIL(LS_ERR_INVALID, "%s: arena of %llu bytes in %s", arena->name,
                       (unsigned long long)options->size_bytes, directory);
    const int fd = system->make_file(path);
    if (fd < 0)
        return LS_FAIL(LS_ERR_IO, "%s: making a file in %s: %s; make the folder, or name another",
                       arena->name, directory, strerror(errno));
    ls_status status = LS_OK;
    if (system->unlink(path) != 0)
        status = LS_FAIL(LS_ERR_IO, "%s: unlink %s: %s", arena->name, path, strerror(errno));
    if (status == LS_OK) status = map_file(arena, directory, fd);
    system->close(fd);
    return status;
}
