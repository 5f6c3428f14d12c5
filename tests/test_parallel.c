/*
 * test_parallel.c - every piece runs once, on however many threads; of several failures the one of
 * the first piece is reported, and nothing behind it is begun once it is known.
 */
#include "parallel.h"

#include <stdatomic.h>
#include <string.h>

#include "io_test.h"

enum { N = 5000 };

typedef struct pieces {
    atomic_int runs[N];
    int64_t fail_from, fail_every; /* pieces that fail; every 0: none */
} pieces;

static ls_status run_piece(void *context, int64_t index)
{
    pieces *p = context;

    atomic_fetch_add(&p->runs[index], 1);
    if (p->fail_every == 0 || index < p->fail_from || (index - p->fail_from) % p->fail_every != 0)
        return LS_OK;
    return LS_FAIL(index % 2 == 0 ? LS_ERR_IO : LS_ERR_CORRUPT, "piece %lld", (long long)index);
}

static void every_piece_runs_once(void **state)
{
    static const int threads[] = {0, 1, 2, 7, 16, 1000};

    (void)state;
    for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
        static pieces p;
        memset(&p, 0, sizeof p);
        assert_ok(ls_parallel_run(N, threads[t], run_piece, &p));
        for (int i = 0; i < N; i++) assert_int_equal(atomic_load(&p.runs[i]), 1);
        assert_ok(ls_parallel_run(0, threads[t], run_piece, &p));
    }
}

static void the_first_failure_is_reported(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        static pieces p;
        memset(&p, 0, sizeof p);
        p.fail_from = 17 + round;
        p.fail_every = 3;
        char text[32];
        snprintf(text, sizeof text, "piece %d", 17 + round);
        assert_fails(ls_parallel_run(N, 8, run_piece, &p),
                     round % 2 == 1 ? LS_ERR_IO : LS_ERR_CORRUPT, text);
        assert_string_equal(ls_error(), text);
        for (int i = 0; i <= 17 + round; i++) assert_int_equal(atomic_load(&p.runs[i]), 1);
        assert_int_equal(atomic_load(&p.runs[N - 1]), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_piece_runs_once),
        cmocka_unit_test(the_first_failure_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
