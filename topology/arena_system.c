/* arena_system.c - the calls themselves; those of libnuma where there is one. */
#define _GNU_SOURCE /* NOLINT: the libc's name; for madvise and mkstemp */
#include "arena_system.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef LS_HAVE_NUMA
#include <numaif.h>
#endif

const ls_arena_system ls_arena_real_system = {
    .root = "",
    .map = mmap,
    .unmap = munmap,
    .protect = mprotect,
    .advise = madvise,
#ifdef LS_HAVE_NUMA
    .bind = mbind,
    .query_pages = move_pages,
#endif
    .make_file = mkstemp,
    .unlink = unlink,
    .allocate = posix_fallocate,
    .close = close,
};
