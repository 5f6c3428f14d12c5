/*
 * test_device.c - lanes keep their order, tickets order lanes, the first failure stops everything.
 */
#define _GNU_SOURCE /* NOLINT: the libc's name; for sched_getaffinity */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "device.h"

/* Lanes of the host behave alike, whatever the device. */
#if defined(LS_TEST_CUDA)
#define OPEN_DEVICE ls_device_open_cuda
#else
#define OPEN_DEVICE ls_device_open_cpu
#endif

typedef struct trace {
    int64_t seen[512];
    int n;
} trace;

static ls_status append(void *context, int64_t argument)
{
    trace *t = context;
    t->seen[t->n++] = argument;
    return LS_OK;
}

static ls_status sleep_then_append(void *context, int64_t argument)
{
    const struct timespec pause = {0, 2000000};
    nanosleep(&pause, NULL);
    return append(context, argument);
}

static ls_status fail_call(void *context, int64_t argument)
{
    (void)context;
    return LS_FAIL(LS_ERR_IO, "injected %lld", (long long)argument);
}

static ls_device *open_device(int n_lanes)
{
    ls_device *device = NULL;
    const ls_device_options options = {.n_lanes = n_lanes, .lane_threads = {1, 1, 1}};
    assert_int_equal(OPEN_DEVICE(&options, &device), LS_OK);
    return device;
}

static void a_lane_keeps_submission_order(void **state)
{
    trace t = {.n = 0};
    int64_t failed;
    ls_device *d = open_device(1);

    (void)state;
    for (int64_t i = 0; i < 300; i++) /* more than the queue holds */
        assert_int_equal(ls_device_submit_call(d, 0, i, append, &t, i), LS_OK);
    assert_int_equal(ls_device_ticket(d, 0), 300);
    assert_int_equal(ls_device_sync(d, &failed), LS_OK);
    assert_int_equal(t.n, 300);
    for (int i = 0; i < 300; i++) assert_int_equal(t.seen[i], i);
    ls_device_close(d);
}

/* Two lanes write one trace; without the waits the slow lane's entries would come late. */
static void a_wait_orders_two_lanes(void **state)
{
    trace t = {.n = 0};
    int64_t failed;
    ls_device *d = open_device(2);

    (void)state;
    for (int64_t i = 0; i < 40; i += 2) {
        assert_int_equal(ls_device_submit_call(d, 0, i, sleep_then_append, &t, i), LS_OK);
        assert_int_equal(ls_device_submit_wait(d, 1, 0, ls_device_ticket(d, 0)), LS_OK);
        assert_int_equal(ls_device_submit_call(d, 1, i + 1, append, &t, i + 1), LS_OK);
        assert_int_equal(ls_device_submit_wait(d, 0, 1, ls_device_ticket(d, 1)), LS_OK);
    }
    assert_int_equal(ls_device_sync(d, &failed), LS_OK);
    assert_int_equal(t.n, 40);
    for (int i = 0; i < 40; i++) assert_int_equal(t.seen[i], i);
    ls_device_close(d);
}

static atomic_bool early_woke;

static ls_status note_early(void *context, int64_t argument)
{
    const ls_status status = append(context, argument);
    atomic_store(&early_woke, true);
    return status;
}

static ls_status wait_for_early(void *context, int64_t argument)
{
    while (!atomic_load(&early_woke)) continue;
    return append(context, argument);
}

/* Who waits for the first command of a lane is not kept by who waits for the second, nor is that
 * one forgotten, whichever came first. */
static void each_waits_for_its_own_ticket(void **state)
{
    (void)state;
    for (int early = 1; early <= 2; early++) {
        trace t = {.n = 0};
        int64_t failed;
        ls_device *d = open_device(3);

        atomic_store(&early_woke, false);
        assert_int_equal(ls_device_submit_call(d, 0, 0, sleep_then_append, &t, 0), LS_OK);
        assert_int_equal(ls_device_submit_call(d, 0, 1, wait_for_early, &t, 2), LS_OK);
        const uint64_t last = ls_device_ticket(d, 0);
        for (int lane = 1; lane <= 2; lane++)
            assert_int_equal(ls_device_submit_wait(d, lane, 0, lane == early ? last - 1 : last),
                             LS_OK);
        assert_int_equal(ls_device_submit_call(d, early, 2, note_early, &t, 1), LS_OK);
        assert_int_equal(ls_device_submit_call(d, 3 - early, 3, append, &t, 3), LS_OK);
        assert_int_equal(ls_device_sync(d, &failed), LS_OK);
        assert_int_equal(t.n, 4);
        for (int i = 0; i < 4; i++) assert_int_equal(t.seen[i], i);
        ls_device_close(d);
    }
}

static void the_first_failure_drops_what_follows(void **state)
{
    trace t = {.n = 0};
    int64_t failed = 0;
    ls_device *d = open_device(2);

    (void)state;
    assert_int_equal(ls_device_submit_call(d, 0, 7, fail_call, &t, 41), LS_OK);
    ls_device_submit_call(d, 0, 8, append, &t, 1);
    ls_device_submit_wait(d, 1, 0, 100000); /* never comes: the failure releases it */
    ls_device_submit_call(d, 1, 9, append, &t, 2);
    assert_int_equal(ls_device_sync(d, &failed), LS_ERR_IO);
    assert_int_equal(failed, 7);
    assert_non_null(strstr(ls_error(), "injected 41"));
    assert_int_equal(t.n, 0);

    assert_int_equal(ls_device_submit_call(d, 1, 10, append, &t, 3), LS_OK); /* usable again */
    assert_int_equal(ls_device_sync(d, &failed), LS_OK);
    assert_int_equal(failed, -1);
    assert_int_equal(t.n, 1);
    ls_device_close(d);
}

static atomic_bool slow_runs, other_fails, slow_done;

/* Fails too, some time after another lane has. */
static ls_status fail_late(void *context, int64_t argument)
{
    const struct timespec pause = {0, 50000000};

    (void)context;
    atomic_store(&slow_runs, true);
    while (!atomic_load(&other_fails)) continue;
    nanosleep(&pause, NULL);
    atomic_store(&slow_done, true);
    return LS_FAIL(LS_ERR_DEVICE, "late %lld", (long long)argument);
}

static ls_status fail_meanwhile(void *context, int64_t argument)
{
    while (!atomic_load(&slow_runs)) continue;
    atomic_store(&other_fails, true);
    return fail_call(context, argument);
}

/* Who waits for a command may then release what it works on, whatever failed elsewhere. */
static void a_failure_does_not_end_a_wait_early(void **state)
{
    trace t = {.n = 0};
    int64_t failed;
    ls_device *d = open_device(2);

    (void)state;
    assert_int_equal(ls_device_submit_call(d, 0, 1, fail_late, &t, 0), LS_OK);
    assert_int_equal(ls_device_submit_call(d, 0, 2, append, &t, 0), LS_OK);
    const uint64_t ticket = ls_device_ticket(d, 0);
    assert_int_equal(ls_device_submit_call(d, 1, 3, fail_meanwhile, &t, 0), LS_OK);
    ls_device_wait(d, 0, ticket);
    assert_true(atomic_load(&slow_done));
    assert_int_equal(ls_device_sync(d, &failed), LS_ERR_IO); /* the first */
    assert_int_equal(failed, 3);
    assert_non_null(strstr(ls_error(), "injected 0"));
    assert_int_equal(t.n, 0);
    ls_device_close(d);
}

static void an_op_runs_and_is_counted(void **state)
{
    float y[4], a[4] = {1, 2, 3, 4}, b[4] = {10, 20, 30, 40};
    int64_t failed;
    ls_device *d = open_device(3);
    const ls_op_args args = {.add = {.y = y, .a = a, .b = b, .n = 4, .dtype = LS_DTYPE_F32}};

    (void)state;
    assert_int_equal(ls_device_running(d, 2), -1);
    assert_int_equal(ls_device_submit_op(d, 2, 7, LS_OP_add, &args), LS_OK);
    ls_device_wait(d, 2, ls_device_ticket(d, 2));
    for (int i = 0; i < 4; i++) assert_true(y[i] == a[i] + b[i]);
    assert_int_equal(ls_device_stats(d, 2).op_calls[LS_OP_add], 1);
    assert_int_equal(ls_device_running(d, 2), 7);
    assert_int_equal(ls_device_running(d, 1), -1);
    assert_int_equal(ls_device_sync(d, &failed), LS_OK);
    ls_device_close(d);
}

static ls_status read_affinity(void *context, int64_t argument)
{
    (void)argument;
    return sched_getaffinity(0, sizeof(cpu_set_t), context) == 0
               ? LS_OK
               : LS_FAIL(LS_ERR_DEVICE, "sched_getaffinity");
}

/* A lane with cores stays on them; one without may run wherever the process may. */
static void a_lane_stays_on_its_cores(void **state)
{
    (void)state;
    cpu_set_t allowed, seen[2];
    ls_host_cores cores = {.n = 1};
    ls_device *device;
    int64_t failed;

    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    while (!CPU_ISSET((size_t)cores.cpus[0], &allowed)) cores.cpus[0]++;
    const ls_device_options options = {
        .n_lanes = 2, .lane_threads = {1, 1}, .lane_cores = {NULL, &cores}};
    assert_int_equal(ls_device_open_cpu(&options, &device), LS_OK);
    for (int lane = 0; lane < 2; lane++)
        assert_int_equal(ls_device_submit_call(device, lane, 0, read_affinity, &seen[lane], 0),
                         LS_OK);
    assert_int_equal(ls_device_sync(device, &failed), LS_OK);
    ls_device_close(device);
    assert_true(CPU_EQUAL(&seen[0], &allowed));
    assert_int_equal(CPU_COUNT(&seen[1]), 1);
    assert_true(CPU_ISSET((size_t)cores.cpus[0], &seen[1]));

    cores.cpus[0] = LS_CORES_MAX - 1; /* no machine that runs this has it */
    assert_int_equal(ls_device_open_cpu(&options, &device), LS_ERR_DEVICE);
}

static void close_finishes_and_accepts_null(void **state)
{
    trace t = {.n = 0};
    ls_device *d = open_device(1);

    (void)state;
    for (int64_t i = 0; i < 10; i++) ls_device_submit_call(d, 0, i, append, &t, i);
    ls_device_close(d);
    assert_int_equal(t.n, 10);
    ls_device_close(NULL);
}

/* ---- copies --------------------------------------------------------------------------------- */

static void copies_move_bytes_and_are_counted(void **state)
{
    char from[1000], to[1000] = {0};
    int64_t failed;
    ls_device *d = open_device(2);

    (void)state;
    for (size_t i = 0; i < sizeof from; i++) from[i] = (char)(i * 7);
    assert_int_equal(ls_device_submit_copy(d, 1, 4, to, from, 600), LS_OK);
    assert_int_equal(ls_device_submit_copy(d, 1, 5, to + 600, from + 600, 400), LS_OK);
    assert_int_equal(ls_device_sync(d, &failed), LS_OK);
    assert_memory_equal(to, from, sizeof from);
    assert_int_equal(ls_device_stats(d, 1).copied_bytes, 1000);
    assert_int_equal(ls_device_stats(d, 0).copied_bytes, 0);
    assert_int_equal(ls_device_running(d, 1), 5);
    ls_device_close(d);
}

/* A clock that moves when somebody sleeps, and not else. */
typedef struct virtual_clock {
    atomic_uint_fast64_t ns;
} virtual_clock;

static uint64_t read_virtual(void *context)
{
    virtual_clock *clock = context;
    return atomic_load(&clock->ns);
}

static void sleep_virtual(void *context, uint64_t ns)
{
    virtual_clock *clock = context;
    if (ns > atomic_load(&clock->ns)) atomic_store(&clock->ns, ns);
}

static void throttled_copies_take_what_their_bytes_need(void **state)
{
    virtual_clock time = {123};
    const ls_device_clock clock = {read_virtual, sleep_virtual, &time};
    const ls_device_options options = {
        .n_lanes = 2, .lane_threads = {1, 1}, .lane_bytes_per_s = {2e9, 0.0}, .clock = &clock};
    static char from[100000], to[100000];
    ls_device *d;
    int64_t failed;

    (void)state;
    assert_int_equal(OPEN_DEVICE(&options, &d), LS_OK);
    for (int i = 0; i < 10; i++) /* 10 times 50 us */
        assert_int_equal(ls_device_submit_copy(d, 0, i, to, from, sizeof from), LS_OK);
    assert_int_equal(ls_device_sync(d, &failed), LS_OK);
    assert_int_equal(read_virtual(&time), 123 + 10 * 50000);
    assert_int_equal(ls_device_submit_copy(d, 0, 10, to, from, 3), LS_OK); /* 1.5 ns: whole ones */
    assert_int_equal(ls_device_submit_copy(d, 1, 11, to, from, sizeof from), LS_OK);
    assert_int_equal(ls_device_sync(d, &failed), LS_OK);
    assert_int_equal(read_virtual(&time),
                     123 + 10 * 50000 + 1); /* the other lane is as fast as it goes */
    ls_device_close(d);
}

/* A clock whose sleeps end late. */
static void sleep_late(void *context, uint64_t ns)
{
    virtual_clock *clock = context;
    if (ns > atomic_load(&clock->ns)) atomic_store(&clock->ns, ns + 30000);
}

/* Each copy makes up for what the one before was late by; the last one's is left. */
static void late_sleeps_do_not_add_up(void **state)
{
    virtual_clock time = {0};
    const ls_device_clock clock = {read_virtual, sleep_late, &time};
    const ls_device_options options = {
        .n_lanes = 1, .lane_threads = {1}, .lane_bytes_per_s = {2e9}, .clock = &clock};
    static char from[100000], to[100000];
    ls_device *d;
    int64_t failed;

    (void)state;
    assert_int_equal(OPEN_DEVICE(&options, &d), LS_OK);
    for (int i = 0; i < 10; i++)
        assert_int_equal(ls_device_submit_copy(d, 0, i, to, from, sizeof from), LS_OK);
    assert_int_equal(ls_device_sync(d, &failed), LS_OK);
    assert_int_equal(read_virtual(&time), 10 * 50000 + 30000);
    for (int i = 0; i < 3; i++) /* 30 us in all: just what is owed */
        assert_int_equal(ls_device_submit_copy(d, 0, i, to, from, 20000), LS_OK);
    assert_int_equal(ls_device_sync(d, &failed), LS_OK);
    assert_int_equal(read_virtual(&time), 10 * 50000 + 30000);
    ls_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lane_keeps_submission_order),
        cmocka_unit_test(a_wait_orders_two_lanes),
        cmocka_unit_test(each_waits_for_its_own_ticket),
        cmocka_unit_test(the_first_failure_drops_what_follows),
        cmocka_unit_test(a_failure_does_not_end_a_wait_early),
        cmocka_unit_test(an_op_runs_and_is_counted),
        cmocka_unit_test(copies_move_bytes_and_are_counted),
        cmocka_unit_test(throttled_copies_take_what_their_bytes_need),
        cmocka_unit_test(late_sleeps_do_not_add_up),
        cmocka_unit_test(a_lane_stays_on_its_cores),
        cmocka_unit_test(close_finishes_and_accepts_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
