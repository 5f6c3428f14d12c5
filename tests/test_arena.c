/* test_arena.c - arenas: reservation, touch, limits, emulated HBM, files; refusals of each. */
#define _GNU_SOURCE /* NOLINT: the libc's name; for mincore */
#include "arena_test.h"

/* ---- reservation, touch --------------------------------------------------------------------- */

/* Options left at zero: memory of this process, backed at first use. */
static void test_zero_options(void **state)
{
    (void)state;
    const ls_arena_options options = {.size_bytes = 1};
    ls_arena *arena;

    assert_int_equal(ls_arena_open(&options, &arena), LS_OK);
    const ls_arena_info got = ls_arena_describe(arena);
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    assert_int_equal(got.size_bytes, page);
    assert_int_equal((uintptr_t)got.base % page, 0);
    assert_int_equal(got.place, LS_PLACE_HOST);
    assert_int_equal(got.huge_pages, LS_HUGE_NONE);
    assert_int_equal(got.huge_page_bytes, 0);
    assert_int_equal(got.numa_node, -1);
    assert_int_equal(got.wrong_node, -1);
    assert_int_equal(got.pages_checked, 0);
    assert_false(got.touched);
    assert_string_equal(got.note, "");
    assert_int_equal(count_resident(got.base, page), 0);
    for (uint64_t b = 0; b < page; b++) assert_int_equal(((char *)got.base)[b], 0);
    assert_true(is_guarded((char *)got.base - 1));
    assert_true(is_guarded((char *)got.base + got.size_bytes));
    memset(got.base, 1, got.size_bytes);
    ls_arena_close(arena);
    ls_arena_close(NULL);
}

static void test_sizes_that_cannot_be(void **state)
{
    (void)state;
    FAILS(LS_ERR_INVALID, OPEN(.size_bytes = 0), "host memory: arena of 0 bytes");
    FAILS(LS_ERR_INVALID, OPEN(.size_bytes = UINT64_MAX), "18446744073709551615");
    FAILS(LS_ERR_INVALID, OPEN(.size_bytes = UINT64_MAX, .kind = LS_ARENA_FILE, .directory = root),
          "nvme: arena of 18446744073709551615");
    FAILS(LS_ERR_NO_MEMORY, OPEN(.size_bytes = (uint64_t)1 << 60), "MemAvailable");
}

static void test_touch_backs_every_page(void **state)
{
    (void)state;
    const uint64_t size =
        40 * MIB + (uint64_t)sysconf(_SC_PAGESIZE); /* not a whole number of units */
    static const struct {
        int threads, error, after;
    } cases[] = {{1, 0, 0}, {3, 0, 0}, {1, EINVAL, 0}, {3, EINVAL, 0}, {2, EINVAL, 1}};

    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        atomic_store(&fake.populate_error, cases[c].error);
        atomic_store(&fake.populate_after, cases[c].after);
        atomic_store(&fake.n_populates, 0);
        assert_int_equal(OPEN(.size_bytes = size, .touch_threads = cases[c].threads), LS_OK);
        assert_true(info.touched);
        assert_int_equal(info.size_bytes, size);
        assert_int_equal(count_resident(info.base, size), size);
        assert_int_equal(atomic_load(&fake.n_populates), 3);
        for (uint64_t b = 0; b < size; b += 512) assert_int_equal(((char *)info.base)[b], 0);
        done();
    }
    atomic_store(&fake.populate_error, 0);
    atomic_store(&fake.populate_interrupts, 3);
    assert_int_equal(OPEN(.size_bytes = size), LS_OK);
    assert_int_equal(count_resident(info.base, size), size);
    done();
    assert_int_equal(UNTOUCHED(.size_bytes = size), LS_OK);
    assert_false(info.touched);
    assert_int_equal(count_resident(info.base, size), 0);
    done();
}

static void test_touch_that_fails(void **state)
{
    (void)state;
    atomic_store(&fake.populate_after, 1);
    atomic_store(&fake.populate_error, ENOMEM);
    FAILS(LS_ERR_NO_MEMORY, OPEN(.size_bytes = 64 * MIB), "host memory: backing 0.062 GiB",
          "Cannot allocate", "other programs");
    atomic_store(&fake.populate_error, EHWPOISON);
    FAILS(LS_ERR_DEVICE, OPEN(.size_bytes = 64 * MIB), "hardware error");
}

/* Grace: pages of 64 KiB, huge ones of 512 MiB. */
static void test_large_base_pages(void **state)
{
    (void)state;
    machine.page_bytes = 65536;
    put(THP "/hpage_pmd_size", "536870912");
    assert_int_equal(OPEN(.size_bytes = 65537, .huge_pages = true), LS_OK);
    assert_int_equal(info.size_bytes, 131072);
    assert_int_equal((uintptr_t)info.base % 65536, 0);
    assert_true(is_guarded((char *)info.base - 65536));
    assert_true(is_guarded((char *)info.base + 131072 + 65535));
    assert_int_equal(info.huge_page_bytes, 0);
    check_says(info.note, "smaller than a transparent huge page of 524288 kB");
    done();

    assert_int_equal(UNTOUCHED(.size_bytes = GIB + 1, .huge_pages = true), LS_OK);
    assert_int_equal(info.size_bytes, GIB + 65536);
    assert_int_equal((uintptr_t)info.base % (512 * MIB), 0);
    assert_int_equal(info.huge_pages, LS_HUGE_THP);
    assert_int_equal(info.huge_page_bytes, 512 * MIB);
    assert_true(is_guarded((char *)info.base - 1));
    assert_true(is_guarded((char *)info.base + info.size_bytes));
    done();

    /* Pages are sampled at their own size. */
    assert_int_equal(OPEN(.size_bytes = 3 * 65536, .bind = true, .numa_node = 1), LS_OK);
    assert_int_equal(fake.n_queried, 3);
    assert_ptr_equal(fake.last, (char *)info.base + 131072);
    done();
}

static void test_failed_maps(void **state)
{
    (void)state;
    fake.map_error = ENOMEM;
    FAILS(LS_ERR_NO_MEMORY, OPEN(.size_bytes = MIB, .name = "host0"), "host0: mmap of 0.001 GiB",
          "ulimit -v", "overcommit_memory");
    fake.map_error = 0;
    fake.protect_error = ENOMEM;
    FAILS(LS_ERR_NO_MEMORY, OPEN(.size_bytes = MIB), "mprotect");
}

/* ---- limits --------------------------------------------------------------------------------- */

static void test_limits(void **state)
{
    (void)state;
    put("/proc/meminfo", "MemAvailable: 1024 kB");
    assert_int_equal(OPEN(.size_bytes = MIB), LS_OK);
    done();
    fake.n_maps = 0;
    FAILS(LS_ERR_NO_MEMORY, OPEN(.size_bytes = 3 * GIB, .name = "host0"),
          "host0: the plan needs 3.000 GiB, MemAvailable leaves 0.001 GiB", "/proc/meminfo");
    assert_int_equal(OPEN(.size_bytes = MIB + 1), LS_ERR_NO_MEMORY);

    put("/proc/meminfo", "MemAvailable: 16777216 kB");
    put("/proc/self/cgroup", "0::/job/step");
    put("/sys/fs/cgroup/job/memory.max", "3221225472");
    put("/sys/fs/cgroup/job/memory.current", "1073741824");
    FAILS(LS_ERR_NO_MEMORY, OPEN(.size_bytes = 3 * GIB), "needs 3.000 GiB",
          "cgroup memory limit leaves 2.000 GiB", "3.000 GiB by /sys/fs/cgroup/job/memory.max",
          "1.000 GiB are in use");
    assert_int_equal(fake.n_maps, 0);
}

static void test_node_is_full(void **state)
{
    (void)state;
    FAILS(LS_ERR_NO_MEMORY, BOUND(.size_bytes = 5 * GIB),
          "needs 5.000 GiB, NUMA node 1 leaves 4.000 GiB of its 8.000 GiB");
    assert_int_equal(fake.n_maps, 0);
    assert_int_equal(UNTOUCHED(.bind = true, .numa_node = 1, .size_bytes = 4 * GIB), LS_OK);
    done();
    assert_int_equal(UNTOUCHED(.size_bytes = 5 * GIB), LS_OK); /* not bound */
    done();
}

/* A limit on locked memory is no limit: nothing is locked. */
static void test_locked_memory_does_not_limit(void **state)
{
    (void)state;
    struct rlimit old, none;

    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &old), 0);
    none = (struct rlimit){0, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &none), 0);
    assert_int_equal(BOUND(.size_bytes = 32 * MIB, .huge_pages = true), LS_OK);
    done();
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &old), 0);
}

/* ---- emulated HBM --------------------------------------------------------------------------- */

static void test_emulated_hbm(void **state)
{
    (void)state;
    assert_int_equal(
        OPEN(.size_bytes = 3 * MIB, .kind = LS_ARENA_EMULATED_HBM, .capacity_bytes = 3 * MIB),
        LS_OK);
    assert_int_equal(info.place, LS_PLACE_HBM);
    done();
    fake.n_maps = 0;
    FAILS(LS_ERR_NO_MEMORY,
          OPEN(.size_bytes = 3 * MIB + 1, .kind = LS_ARENA_EMULATED_HBM, .capacity_bytes = 3 * MIB,
               .name = "hbm0"),
          "hbm0: the plan needs", "3145729 bytes", "its capacity is", "(3145728)");
    FAILS(LS_ERR_INVALID, OPEN(.size_bytes = MIB, .kind = LS_ARENA_EMULATED_HBM),
          "hbm: emulated HBM without a capacity");
    assert_int_equal(fake.n_maps, 0);
}

/* ---- files ---------------------------------------------------------------------------------- */

static int count_entries(const char *path)
{
    DIR *folder = opendir(path);
    int n = 0;

    assert_non_null(folder);
    while (readdir(folder) != NULL) n++;
    closedir(folder);
    return n;
}

static char folder[512];

static void make_folder(void)
{
    put("/disk/empty/x", "");
    snprintf(folder, sizeof folder, "%s/disk/empty", root);
}

static ls_status open_in_folder(ls_arena_options options)
{
    if (options.size_bytes == 0) options.size_bytes = MIB;
    options.kind = LS_ARENA_FILE;
    if (options.directory == NULL) options.directory = folder;
    return open_options(&options);
}

#define IN_FILE(...) open_in_folder((ls_arena_options){__VA_ARGS__})

static void test_file(void **state)
{
    (void)state;
    make_folder();
    const int entries = count_entries(folder), files = count_entries("/proc/self/fd");
    fake.allocate_interrupts = 2;
    assert_int_equal(IN_FILE(.size_bytes = MIB + 1), LS_OK);
    assert_int_equal(info.place, LS_PLACE_NVME);
    assert_int_equal(info.size_bytes, MIB + (uint64_t)sysconf(_SC_PAGESIZE));
    assert_int_equal(info.huge_pages, LS_HUGE_NONE);
    for (uint64_t b = 0; b < info.size_bytes; b++) assert_int_equal(((char *)info.base)[b], 0);
    memset(info.base, 5, info.size_bytes);
    assert_int_equal(count_entries(folder), entries); /* no name, even now */
    assert_int_equal(count_entries("/proc/self/fd"), files);
    done();
}

static void test_file_fails(void **state)
{
    (void)state;
    make_folder();
    const int entries = count_entries(folder), files = count_entries("/proc/self/fd");

    FAILS(LS_ERR_INVALID, OPEN(.size_bytes = MIB, .kind = LS_ARENA_FILE), "nvme: no folder");
    FAILS(LS_ERR_INVALID, IN_FILE(.bind = true, .numa_node = 1), "cannot be bound to NUMA node 1");
    FAILS(LS_ERR_IO, IN_FILE(.directory = "/nonexistent"), "/nonexistent: No such file");
    FAILS(LS_ERR_NO_MEMORY, IN_FILE(.capacity_bytes = MIB - 1), "its capacity is");
    fake.allocate_error = ENOSPC;
    FAILS(LS_ERR_NO_MEMORY, IN_FILE(.name = "scratch"),
          "scratch: the plan needs a file of 0.001 GiB", "/disk/empty", "GiB free",
          "No space left");
    fake.allocate_error = EIO;
    FAILS(LS_ERR_IO, IN_FILE(.name = NULL), "Input/output error");
    fake.allocate_error = 0;
    fake.unlink_error = EACCES;
    FAILS(LS_ERR_IO, IN_FILE(.name = NULL), "unlink", "Permission denied");
    fake.unlink_error = 0;
    fake.map_file_error = ENODEV;
    FAILS(LS_ERR_IO, IN_FILE(.name = NULL), "mmap of a file", "No such device");
    assert_int_equal(count_entries(folder), entries);
    assert_int_equal(count_entries("/proc/self/fd"), files);
}

/* Beyond the limit on file sizes the kernel sends a signal that ends the process. */
static void test_file_beyond_ulimit(void **state)
{
    (void)state;
    struct rlimit old, small;

    make_folder();
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){MIB, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(IN_FILE(.size_bytes = MIB), LS_OK);
    done();
    FAILS(LS_ERR_NO_MEMORY, IN_FILE(.size_bytes = MIB + 1), "File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
}

/* The real calls on this machine, whatever it grants: the report agrees with itself. */
static void test_this_machine(void **state)
{
    (void)state;
    const ls_arena_options options = {
        .size_bytes = 64 * MIB, .huge_pages = true, .touch_threads = 2};
    ls_arena *arena;

    assert_int_equal(ls_arena_open(&options, &arena), LS_OK);
    const ls_arena_info got = ls_arena_describe(arena);
    assert_true(got.touched);
    assert_int_equal(got.huge_pages != LS_HUGE_NONE, got.huge_backed_bytes > 0);
    assert_int_equal(got.huge_pages != LS_HUGE_NONE, got.huge_page_bytes > 0);
    assert_true(got.huge_backed_bytes <= got.size_bytes);
    assert_true(got.huge_backed_bytes >= 64 * MIB || got.note[0] != '\0');
    if (got.huge_page_bytes > 0) assert_int_equal((uintptr_t)got.base % got.huge_page_bytes, 0);
    assert_int_equal(count_resident(got.base, got.size_bytes), got.size_bytes);
    ls_arena_close(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_zero_options),
        TEST(test_sizes_that_cannot_be),
        TEST(test_touch_backs_every_page),
        TEST(test_touch_that_fails),
        TEST(test_large_base_pages),
        TEST(test_failed_maps),
        TEST(test_limits),
        TEST(test_node_is_full),
        TEST(test_locked_memory_does_not_limit),
        TEST(test_emulated_hbm),
        TEST(test_file),
        TEST(test_file_fails),
        TEST(test_file_beyond_ulimit),
        TEST(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
