/* test_arena_numa.c - huge pages and NUMA nodes: what is asked, granted, refused, reported. */
#define _GNU_SOURCE /* NOLINT: the libc's name; for mincore */
#include "arena_test.h"

/* ---- huge pages ----------------------------------------------------------------------------- */

static void test_thp(void **state)
{
    (void)state;
    fake.smaps_bytes = 6 * MIB;
    assert_int_equal(OPEN(.size_bytes = 6 * MIB, .huge_pages = true), LS_OK);
    assert_string_equal(ls_huge_pages_name(info.huge_pages), "thp");
    assert_int_equal(info.huge_page_bytes, 2 * MIB);
    assert_int_equal(info.huge_backed_bytes, 6 * MIB); /* and not those of the neighbours */
    assert_int_equal((uintptr_t)info.base % (2 * MIB), 0);
    assert_string_equal(fake.log, "map thp populate ");
    assert_string_equal(info.note, "");
    done();

    fake.smaps_bytes = 2 * MIB; /* fewer than asked */
    assert_int_equal(OPEN(.size_bytes = 6 * MIB, .huge_pages = true), LS_OK);
    assert_int_equal(info.huge_pages, LS_HUGE_THP);
    assert_int_equal(info.huge_backed_bytes, 2 * MIB);
    check_says(info.note, "0.002 of 0.006 GiB in transparent huge pages");
    done();
}

static void test_thp_not_granted(void **state)
{
    (void)state;
    assert_int_equal(OPEN(.size_bytes = 6 * MIB, .huge_pages = true), LS_OK); /* no smaps */
    assert_int_equal(info.huge_pages, LS_HUGE_NONE);
    assert_int_equal(info.huge_page_bytes, 0);
    check_says(info.note, "0.000 of 0.006 GiB");
    done();

    fake.advise_error = EINVAL;
    assert_int_equal(OPEN(.size_bytes = 6 * MIB, .huge_pages = true), LS_OK);
    assert_string_equal(ls_huge_pages_name(info.huge_pages), "none");
    assert_int_equal(info.huge_page_bytes, 0);
    check_says(info.note, "refused: madvise: Invalid argument");
    done();

    put(THP "/enabled", "always madvise [never]");
    clear_log();
    assert_int_equal(OPEN(.size_bytes = 6 * MIB, .huge_pages = true), LS_OK);
    assert_int_equal(info.huge_pages, LS_HUGE_NONE);
    assert_null(strstr(fake.log, "thp"));
    check_says(info.note, "set to never");
    done();

    put(THP "/hpage_pmd_size", "0");
    assert_int_equal(OPEN(.size_bytes = 6 * MIB, .huge_pages = true), LS_OK);
    assert_int_equal(info.huge_pages, LS_HUGE_NONE);
    check_says(info.note, "no transparent huge pages");
    done();
}

static void put_hugetlb(const char *kib, const char *total, const char *unused,
                        const char *promised, const char *on_node1)
{
    char path[256];

    snprintf(path, sizeof path, HUGE "%skB/nr_hugepages", kib);
    put(path, total);
    snprintf(path, sizeof path, HUGE "%skB/free_hugepages", kib);
    put(path, unused);
    snprintf(path, sizeof path, HUGE "%skB/resv_hugepages", kib);
    put(path, promised);
    snprintf(path, sizeof path, NODES "/node1/hugepages/hugepages-%skB/free_hugepages", kib);
    put(path, on_node1);
}

static void check_hugetlb(uint64_t bytes, int log2_page, uint64_t rounded)
{
    assert_string_equal(ls_huge_pages_name(info.huge_pages), "hugetlb");
    assert_int_equal(info.huge_page_bytes, (uint64_t)1 << log2_page);
    assert_int_equal(fake.map_flags >> 26 & 63, log2_page);
    assert_true(info.size_bytes >= bytes);
    assert_int_equal(info.size_bytes, rounded);
    assert_int_equal(info.huge_backed_bytes, rounded);
    assert_true(info.touched);
}

static void test_hugetlb(void **state)
{
    (void)state;
    put_hugetlb("2048", "100", "40", "8", "20");
    put_hugetlb("32768", "4", "4", "0", "4");
    put("/proc/meminfo", "MemAvailable: 0 kB"); /* reserved pages are not of it */
    put(NODES "/node1/meminfo", "Node 1 MemTotal: 8388608 kB\nNode 1 MemFree: 0 kB");
    /* 31 of 32 pages that are neither taken nor promised; pages of 32 MiB would waste too much */
    assert_int_equal(OPEN(.size_bytes = 61 * MIB, .huge_pages = true), LS_OK);
    check_hugetlb(61 * MIB, 21, 62 * MIB);
    assert_string_equal(fake.log, "map_huge populate ");
    assert_string_equal(info.note, "");
    done();

    clear_log(); /* 20 free on the node, 8 of them may be promised */
    assert_int_equal(OPEN(.size_bytes = 24 * MIB, .huge_pages = true, .bind = true, .numa_node = 1),
                     LS_OK);
    check_hugetlb(24 * MIB, 21, 24 * MIB);
    assert_string_equal(fake.log, "map_huge bind populate query ");
    done();

    put("/proc/meminfo", "MemAvailable: 8388608 kB");
    put_hugetlb("32768", "9", "9", "0", "4");
    assert_int_equal(OPEN(.size_bytes = 257 * MIB, .huge_pages = true, .touch_threads = 1), LS_OK);
    check_hugetlb(257 * MIB, 25, 288 * MIB); /* the largest that suits */
    done();
}

static void test_hugetlb_falls_to_thp(void **state)
{
    (void)state;
    put_hugetlb("2048", "100", "40", "8", "20");
    put_hugetlb("64", "9999", "9999", "0", "9999"); /* smaller than a transparent one */
    fake.smaps_bytes = 65 * MIB;
    assert_int_equal(OPEN(.size_bytes = 65 * MIB, .huge_pages = true), LS_OK);
    assert_int_equal(info.huge_pages, LS_HUGE_THP);
    assert_string_equal(info.note, "33 reserved pages of 2048 kB needed, 32 free");
    done();

    fake.smaps_bytes = 26 * MIB;
    assert_int_equal(OPEN(.size_bytes = 26 * MIB, .huge_pages = true, .bind = true, .numa_node = 1),
                     LS_OK);
    assert_int_equal(info.huge_pages, LS_HUGE_THP);
    check_says(info.note, "13 reserved pages of 2048 kB needed, 12 free on the node");
    done();

    fake.map_huge_error = ENOMEM;
    assert_int_equal(OPEN(.size_bytes = 26 * MIB, .huge_pages = true), LS_OK);
    assert_int_equal(info.huge_pages, LS_HUGE_THP);
    check_says(info.note, "mmap of reserved pages of 2048 kB: Cannot allocate");
    done();

    /* They run out between mmap and touch: an error, where a write would be SIGBUS. */
    fake.map_huge_error = 0;
    atomic_store(&fake.populate_error, EFAULT);
    FAILS(LS_ERR_NO_MEMORY, OPEN(.size_bytes = 26 * MIB, .huge_pages = true), "Bad address");

    clear_log();
    atomic_store(&fake.populate_error, EINVAL); /* an old kernel: only where a write is safe */
    assert_int_equal(OPEN(.size_bytes = 26 * MIB, .huge_pages = true), LS_OK);
    assert_int_equal(info.huge_pages, LS_HUGE_THP);
    assert_string_equal(fake.log, "map_huge populate map thp ");
    check_says(info.note, "before 5.14");
    done();

    clear_log(); /* untouched ones could run out later */
    assert_int_equal(UNTOUCHED(.size_bytes = 26 * MIB, .huge_pages = true), LS_OK);
    assert_string_equal(fake.log, "map thp ");
    done();
}

/* ---- NUMA nodes ----------------------------------------------------------------------------- */

static void test_bind(void **state)
{
    (void)state;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    fake.smaps_bytes = 8192 * page;
    assert_int_equal(BOUND(.size_bytes = 8192 * page, .huge_pages = true), LS_OK);
    assert_string_equal(fake.log, "map bind thp populate query ");
    assert_int_equal(fake.bound_node, 1);
    assert_int_equal(fake.bind_mode, 2); /* MPOL_BIND */
    assert_int_equal(fake.max_node, 1025);
    assert_int_equal(info.numa_node, 1);
    assert_int_equal(info.pages_checked, 4096); /* of 8192 */
    assert_int_equal(info.pages_wrong, 0);
    assert_int_equal(info.wrong_node, -1);
    assert_ptr_equal(fake.first, info.base);
    assert_ptr_equal(fake.last, (char *)info.base + info.size_bytes - page);
    done();

    assert_int_equal(BOUND(.size_bytes = page), LS_OK);
    assert_int_equal(info.pages_checked, 1);
    done();

    clear_log();
    assert_int_equal(UNTOUCHED(.bind = true, .numa_node = 1, .size_bytes = MIB), LS_OK);
    assert_string_equal(fake.log, "map bind ");
    assert_int_equal(info.numa_node, 1);
    assert_int_equal(info.pages_checked, 0);
    done();
}

static void test_bind_needs_libnuma(void **state)
{
    (void)state;
    machine.bind = NULL;
    FAILS(LS_ERR_UNSUPPORTED, BOUND(.size_bytes = MIB), "host memory: memory at NUMA node 1",
          "libnuma");
    assert_int_equal(fake.n_maps, 0);
    assert_int_equal(OPEN(.size_bytes = MIB), LS_OK);
    done();
}

static void test_bind_refused(void **state)
{
    (void)state;
    static const struct {
        int error;
        ls_status status;
        const char *says;
    } cases[] = {{EINVAL, LS_ERR_INVALID, "may have gone offline since it was discovered"},
                 {EPERM, LS_ERR_UNSUPPORTED, "CAP_SYS_NICE"},
                 {ENOSYS, LS_ERR_UNSUPPORTED, "without NUMA"},
                 {ENOMEM, LS_ERR_NO_MEMORY, "0.001 GiB"},
                 {EFAULT, LS_ERR_DEVICE, "Bad address"}};

    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        fake.bind_error = cases[c].error;
        assert_int_equal(BOUND(.size_bytes = MIB, .name = "host1"), cases[c].status);
        check_says(ls_error(), "host1: mbind");
        check_says(ls_error(), "NUMA node 1");
        check_says(ls_error(), cases[c].says);
    }
    assert_null(strstr(fake.log, "populate"));
}

static void test_node_goes_offline(void **state)
{
    (void)state;
    fake.lose_node = true;
    fake.bind_error = EINVAL;
    FAILS(LS_ERR_INVALID, BOUND(.size_bytes = MIB), "NUMA node 1 has no memory, or went offline",
          "nodes with memory: 0", "longspan topo");
    fake.n_binds = 0;
    FAILS(LS_ERR_INVALID, BOUND(.size_bytes = MIB), "went offline");
    assert_int_equal(fake.n_binds, 0);
}

static void test_nodes_that_cannot_be(void **state)
{
    (void)state;
    static const int nodes[] = {-1, 2, 1024, 1 << 30};

    put(NODES "/node3/meminfo", "Node 3 MemTotal: 0 kB\nNode 3 MemFree: 0 kB");
    for (size_t n = 0; n < sizeof nodes / sizeof nodes[0]; n++)
        FAILS(LS_ERR_INVALID, BOUND(.size_bytes = MIB, .numa_node = nodes[n]), "has no memory",
              "nodes with memory: 0-1");
    FAILS(LS_ERR_INVALID, BOUND(.size_bytes = MIB, .numa_node = 3), "NUMA node 3 has no memory");
    put("/proc/self/status", "Name: x\nMems_allowed_list:\t0,2-11,14");
    FAILS(LS_ERR_INVALID, BOUND(.size_bytes = MIB), "cpuset allows 0,2-11,14", "scheduler");
    put("/proc/self/status", "Mems_allowed_list:\t4,0-1");
    assert_int_equal(BOUND(.size_bytes = MIB), LS_OK);
    done();
    assert_int_equal(fake.n_binds, 1);
}

static void test_wrong_node(void **state)
{
    (void)state;
    const uint64_t size = 256 * (uint64_t)sysconf(_SC_PAGESIZE);
    static const int wrong[] = {0, 7, 255}; /* the first, one between, the last */

    for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; w++) {
        fake.wrong_page = wrong[w];
        FAILS(LS_ERR_DEVICE, BOUND(.size_bytes = size, .name = "host1"),
              "host1: asked for NUMA node 1", "1 of 256 pages", "first on node 0",
              "free memory of node 1");
    }
    fake.wrong_page = 0;
    fake.page_node = 7;
    FAILS(LS_ERR_DEVICE, BOUND(.size_bytes = size), "256 of 256 pages", "first on node 0");
    fake.page_node = ANY;
    assert_int_equal(BOUND(.size_bytes = size, .allow_wrong_node = true), LS_OK);
    assert_int_equal(info.pages_wrong, 1);
    assert_int_equal(info.wrong_node, 0);
    check_says(info.note, "1 of 256 pages looked at are not on NUMA node 1, the first is on 0");
    done();
    put_hugetlb("2048", "40", "40", "0", "40");
    fake.page_node = 0;
    FAILS(LS_ERR_DEVICE, BOUND(.size_bytes = 16 * MIB, .huge_pages = true),
          "pages looked at are elsewhere, the first on node 0");
}

static void test_pages_that_cannot_be_seen(void **state)
{
    (void)state;
    fake.query_error = EPERM;
    FAILS(LS_ERR_UNSUPPORTED, BOUND(.size_bytes = MIB), "cannot be seen", "Operation not permitted",
          "CAP_SYS_NICE");
    assert_int_equal(BOUND(.size_bytes = MIB, .allow_wrong_node = true), LS_OK);
    assert_int_equal(info.pages_checked, 0);
    check_says(info.note, "could not be seen");
    done();
    fake.query_error = 0;
    fake.page_node = -ENOENT;
    FAILS(LS_ERR_UNSUPPORTED, BOUND(.size_bytes = MIB), "cannot be seen");
    fake.wrong_page = 3; /* all others are swapped out */
    FAILS(LS_ERR_DEVICE, BOUND(.size_bytes = MIB), "1 of 1 pages");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_thp),
        TEST(test_thp_not_granted),
        TEST(test_hugetlb),
        TEST(test_hugetlb_falls_to_thp),
        TEST(test_bind),
        TEST(test_bind_needs_libnuma),
        TEST(test_bind_refused),
        TEST(test_node_goes_offline),
        TEST(test_nodes_that_cannot_be),
        TEST(test_wrong_node),
        TEST(test_pages_that_cannot_be_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
