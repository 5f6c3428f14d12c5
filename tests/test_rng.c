/* test_rng.c - the stateless shuffle is a permutation, a fair one, for any size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdint.h>
#include <string.h>

#include "rng.h"

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* Sizes around the powers of 4 that the network permutes. */
static void test_permutes(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 15, 16, 17, 64, 65, 1000, 4096, 4097};
    static uint8_t seen[4097];

    for (size_t s = 0; s < COUNT_OF(sizes); s++)
        for (uint64_t stream = 0; stream < 20; stream++) {
            memset(seen, 0, sizeof seen);
            for (uint64_t i = 0; i < sizes[s]; i++) {
                const uint64_t to = ls_rng_permute(7, stream, i, sizes[s]);
                assert_true(to < sizes[s]);
                assert_int_equal(seen[to]++, 0);
            }
        }
}

static void test_large_sizes_stay_inside(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {(uint64_t)1 << 40, ((uint64_t)1 << 62) + 1, UINT64_MAX};

    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        uint64_t high = 0;
        for (uint64_t i = 0; i < 1000; i++) {
            const uint64_t to = ls_rng_permute(1, 2, sizes[s] - 1 - i, sizes[s]);
            assert_true(to < sizes[s]);
            high += to >= sizes[s] / 2;
        }
        assert_in_range(high, 420, 580); /* 5 standard deviations around a half */
    }
}

/* Each index goes to each place equally often; neighbours do not stay together. */
static void test_is_fair(void **state)
{
    (void)state;
    enum { N = 10, DRAWS = 20000 };
    static int to[N][N];
    int together = 0;

    for (uint64_t stream = 0; stream < DRAWS; stream++)
        for (uint64_t i = 0; i < N; i++) {
            const uint64_t place = ls_rng_permute(3, stream, i, N);
            to[i][place]++;
            if (i > 0 && place == ls_rng_permute(3, stream, i - 1, N) + 1) together++;
        }
    for (int i = 0; i < N; i++)
        for (int p = 0; p < N; p++)
            assert_in_range(to[i][p], DRAWS / N - 220, DRAWS / N + 220); /* 5 deviations */
    /* 9 pairs, each adjacent in this order with probability 1/10 */
    assert_in_range(together, 18000 - 700, 18000 + 700);
}

static void test_seed_and_stream_matter(void **state)
{
    (void)state;
    int same_seed = 0, same_stream = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        same_seed += ls_rng_permute(1, 1, i, 1000) == ls_rng_permute(2, 1, i, 1000);
        same_stream += ls_rng_permute(1, 1, i, 1000) == ls_rng_permute(1, 2, i, 1000);
    }
    assert_in_range(same_seed, 0, 10); /* 1 expected */
    assert_in_range(same_stream, 0, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permutes),
        cmocka_unit_test(test_large_sizes_stay_inside),
        cmocka_unit_test(test_is_fair),
        cmocka_unit_test(test_seed_and_stream_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
