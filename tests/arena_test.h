/*
 * arena_test.h - a system for arenas that refuses, lies, runs out and loses nodes when told to.
 *
 * The calls to the kernel are those of `fake`, which does what the real ones do until told
 * otherwise, keeps the balance of mapped bytes, and logs the order of calls.  The machine's files
 * lie below a folder of the test's own.
 */
#ifndef LS_ARENA_TEST_H
#define LS_ARENA_TEST_H

#include "machine_test.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "arena.h"
#include "arena_system.h"

#define MIB      ((uint64_t)1 << 20)
#define GIB      ((uint64_t)1 << 30)
#define NODES    "/sys/devices/system/node"
#define THP      "/sys/kernel/mm/transparent_hugepage"
#define HUGE     "/sys/kernel/mm/hugepages/hugepages-"
#define ANY      (-1)
#define POPULATE 23 /* MADV_POPULATE_WRITE */

/* ---- the system ----------------------------------------------------------------------------- */

static struct {
    /* what fails, by errno; 0: nothing */
    int map_error, map_huge_error, map_file_error, protect_error, advise_error, bind_error;
    int query_error, unlink_error, allocate_error;
    atomic_int populate_error, populate_after; /* the first so many calls succeed */
    int allocate_interrupts;
    atomic_int populate_interrupts;
    int page_node;        /* where pages are; ANY: where they were bound to */
    int wrong_page;       /* of the sample, the one elsewhere, on node 0; -1: none */
    bool lose_node;       /* when mbind is called */
    uint64_t smaps_bytes; /* huge pages that smaps tells of */
    /* what was asked */
    int64_t mapped_bytes; /* and not unmapped */
    int n_maps, n_binds, bound_node, bind_mode, map_flags;
    unsigned long max_node, n_queried;
    const void *first, *last;
    atomic_int n_populates;
    char log[256];
} fake;

static char root[256];

static inline void log_call(const char *name)
{
    const size_t length = strlen(fake.log);
    snprintf(fake.log + length, sizeof fake.log - length, "%s ", name);
}

static inline void clear_log(void)
{
    fake.log[0] = '\0';
    atomic_store(&fake.n_populates, 0);
}

static inline int give(int error)
{
    errno = error;
    return error != 0 ? -1 : 0;
}

static inline void *fake_map(void *at, size_t bytes, int protection, int flags, int fd,
                             off_t offset)
{
    const int error = fd >= 0                      ? fake.map_file_error
                      : (flags & MAP_HUGETLB) != 0 ? fake.map_huge_error
                                                   : fake.map_error;
    if ((flags & MAP_HUGETLB) != 0) {
        log_call("map_huge");
        fake.map_flags = flags;
        flags &= 0x3ffff & ~MAP_HUGETLB;
    } else
        log_call("map");
    fake.n_maps++;
    if (give(error) != 0) return MAP_FAILED;
    void *base = mmap(at, bytes, protection, flags | (fd < 0 ? MAP_NORESERVE : 0), fd, offset);
    assert_ptr_not_equal(base, MAP_FAILED);
    fake.mapped_bytes += (int64_t)bytes;
    return base;
}

static inline int fake_unmap(void *at, size_t bytes)
{
    assert_int_equal(munmap(at, bytes), 0);
    fake.mapped_bytes -= (int64_t)bytes;
    return 0;
}

static inline int fake_protect(void *at, size_t bytes, int protection)
{
    return give(fake.protect_error) != 0 ? -1 : mprotect(at, bytes, protection);
}

/* smaps as the kernel would write it: neighbours with huge pages of their own on both sides. */
static inline void write_smaps(const void *at, uint64_t bytes)
{
    char text[1024];
    const uint64_t from = (uint64_t)(uintptr_t)at;

    snprintf(text, sizeof text,
             "%" PRIx64 "-%" PRIx64 " rw-p 00000000 00:00 0\nRss: 4 kB\nAnonHugePages: 7777 kB\n"
             "%" PRIx64 "-%" PRIx64 " rw-p 00000000 00:00 0\nRss: 4 kB\nAnonHugePages: %" PRIu64
             " kB\nVmFlags: rd wr\n"
             "%" PRIx64 "-%" PRIx64 " rw-p 00000000 00:00 0\nAnonHugePages: 5555 kB",
             from - 3 * MIB, from - MIB, from, from + bytes, fake.smaps_bytes / 1024,
             from + bytes + MIB, from + bytes + 2 * MIB);
    put_machine_file(root, "/proc/self/smaps", text);
}

static inline int fake_advise(void *at, size_t bytes, int advice)
{
    if (advice == POPULATE) {
        if (atomic_fetch_sub(&fake.populate_interrupts, 1) > 0) return give(EINTR);
        const int n = atomic_fetch_add(&fake.n_populates, 1);
        if (n == 0) log_call("populate");
        if (n >= atomic_load(&fake.populate_after) && give(atomic_load(&fake.populate_error)) != 0)
            return -1;
        for (size_t b = 0; b < bytes; b += 4096) ((volatile char *)at)[b] = 0;
        return 0;
    }
    assert_int_equal(advice, MADV_HUGEPAGE);
    log_call("thp");
    if (give(fake.advise_error) != 0) return -1;
    if (fake.smaps_bytes > 0) write_smaps(at, bytes);
    return 0;
}

static inline long fake_bind(void *at, unsigned long bytes, int mode, const unsigned long *nodes,
                             unsigned long max_node, unsigned flags)
{
    unsigned char resident = 0;

    log_call("bind");
    assert_int_equal(flags, 0);
    if (bytes <= GIB) {
        assert_int_equal(mincore(at, 4096, &resident), 0);
        assert_int_equal(resident & 1, 0); /* no page may be there yet */
    }
    fake.n_binds++;
    fake.bind_mode = mode;
    fake.max_node = max_node;
    fake.bound_node = -1;
    for (int node = 0; node < 1024; node++)
        if (nodes[node / 64] >> (node % 64) & 1) {
            assert_int_equal(fake.bound_node, -1);
            fake.bound_node = node;
        }
    if (fake.lose_node) {
        char path[512];
        snprintf(path, sizeof path, "%s" NODES "/node%d/meminfo", root, fake.bound_node);
        assert_int_equal(unlink(path), 0);
        put_machine_file(root, NODES "/has_memory", "0");
    }
    return give(fake.bind_error);
}

static inline long fake_query(int pid, unsigned long count, void **pages, const int *nodes,
                              int *status, int flags)
{
    log_call("query");
    assert_int_equal(pid, 0);
    assert_null(nodes); /* to look, not to move */
    assert_int_equal(flags, 0);
    fake.n_queried = count;
    fake.first = pages[0];
    fake.last = pages[count - 1];
    if (give(fake.query_error) != 0) return -1;
    for (unsigned long i = 0; i < count; i++)
        status[i] = (int)i == fake.wrong_page ? 0
                    : fake.page_node == ANY   ? fake.bound_node
                                              : fake.page_node;
    return 0;
}

static inline int fake_unlink(const char *path)
{
    return unlink(path) != 0 ? -1 : give(fake.unlink_error);
}

static inline int fake_allocate(int fd, off_t offset, off_t bytes)
{
    if (fake.allocate_interrupts-- > 0) return EINTR;
    return fake.allocate_error != 0 ? fake.allocate_error : posix_fallocate(fd, offset, bytes);
}

static ls_arena_system machine;

static inline void put(const char *path, const char *text)
{
    put_machine_file(root, path, text);
}

/* A machine of two nodes, 4 GiB free in each, huge pages of 2 MiB for who asks. */
static inline int set_up(void **state)
{
    (void)state;
    memset(&fake, 0, sizeof fake);
    fake.page_node = ANY;
    fake.wrong_page = -1;
    machine = (ls_arena_system){.root = root,
                                .map = fake_map,
                                .unmap = fake_unmap,
                                .protect = fake_protect,
                                .advise = fake_advise,
                                .bind = fake_bind,
                                .query_pages = fake_query,
                                .make_file = mkstemp,
                                .unlink = fake_unlink,
                                .allocate = fake_allocate,
                                .close = close};
    if (make_machines_folder(root, sizeof root) != 0) return -1;
    put("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB");
    put("/proc/self/status", "Name: x\nMems_allowed_list:\t0-1");
    put(NODES "/has_memory", "0-1");
    put(NODES "/node0/meminfo", "Node 0 MemTotal: 8388608 kB\nNode 0 MemFree: 4194304 kB");
    put(NODES "/node1/meminfo", "Node 1 MemTotal: 8388608 kB\nNode 1 MemFree: 4194304 kB");
    put(THP "/hpage_pmd_size", "2097152");
    put(THP "/enabled", "always [madvise] never");
    return 0;
}

static inline int tear_down(void **state)
{
    (void)state;
    return ls_directory_remove(root) == LS_OK && fake.mapped_bytes == 0 ? 0 : -1;
}

/* ---- what tests ask ------------------------------------------------------------------------- */

static ls_arena_info info;
static ls_arena *open_arena;

/* Closed by done(). */
#define OPEN(...)      open_touched((ls_arena_options){__VA_ARGS__})
#define UNTOUCHED(...) open_options(&(const ls_arena_options){__VA_ARGS__})

static inline ls_status open_options(const ls_arena_options *options)
{
    open_arena = NULL;
    const ls_status status = ls_arena_open_on(&machine, options, &open_arena);
    if (status == LS_OK) {
        info = ls_arena_describe(open_arena);
    } else {
        assert_null(open_arena);
        assert_int_equal(fake.mapped_bytes, 0); /* nothing stays mapped after a failure */
    }
    return status;
}

static inline ls_status open_touched(ls_arena_options options)
{
    if (options.touch_threads == 0) options.touch_threads = 2;
    return open_options(&options);
}

static inline void done(void)
{
    ls_arena_close(open_arena);
    assert_int_equal(fake.mapped_bytes, 0);
}

static inline void check_says(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("'%s' is not in: %s", part, text);
}

#define FAILS(status, call, ...)                                                                   \
    do {                                                                                           \
        static const char *const parts_[] = {__VA_ARGS__};                                         \
        assert_int_equal(call, status);                                                            \
        for (size_t p_ = 0; p_ < sizeof parts_ / sizeof parts_[0]; p_++)                           \
            check_says(ls_error(), parts_[p_]);                                                    \
    } while (0)

static inline uint64_t count_resident(const void *base, uint64_t bytes)
{
    static unsigned char pages[1 << 16];
    uint64_t resident = 0;

    assert_true(bytes / 4096 <= sizeof pages);
    assert_int_equal(mincore((void *)(uintptr_t)base, bytes, pages), 0);
    for (uint64_t p = 0; p < bytes / (uint64_t)sysconf(_SC_PAGESIZE); p++) resident += pages[p] & 1;
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Whether reading the byte would be a fault. */
static inline bool is_guarded(const void *at)
{
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    const bool guarded = write(ends[1], at, 1) < 0 && errno == EFAULT;
    close(ends[0]);
    close(ends[1]);
    return guarded;
}

/* Bound to node 1. */
static inline ls_status open_bound(ls_arena_options options)
{
    options.bind = true;
    if (options.numa_node == 0) options.numa_node = 1;
    return open_touched(options);
}

#define BOUND(...) open_bound((ls_arena_options){__VA_ARGS__})

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif
