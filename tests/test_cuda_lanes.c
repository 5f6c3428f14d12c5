/*
 * test_cuda_lanes.c - the lanes of the CUDA device on the emulated GPU: order within and across
 * lanes of the GPU and of the host, more commands than the window holds, faults, memory.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "device.h"
#include "emulation.h"

enum { COMPUTE, IN, OUT, HOST, N_LANES, N = 64, SEEDS = 20 };

static ls_device *open_device(void)
{
    const ls_device_options options = {
        .n_lanes = N_LANES, .lane_threads = {1, 1, 1, 1}, .lane_on_gpu = {true, true, true, false}};
    ls_device *device = NULL;
    if (ls_device_open_cuda(&options, &device) != LS_OK) fail_msg("%s", ls_error());
    return device;
}

static float *reserve(ls_device *d, uint64_t floats)
{
    void *base = NULL;
    assert_int_equal(ls_device_reserve(d, floats * sizeof(float), &base), LS_OK);
    return base;
}

static ls_status add(ls_device *d, int lane, float *y, const float *a, const float *b)
{
    const ls_op_args args = {.add = {.y = y, .a = a, .b = b, .n = N, .dtype = LS_DTYPE_F32}};
    return ls_device_submit_op(d, lane, 1, LS_OP_add, &args);
}

static void wait_for(ls_device *d, int lane, int other)
{
    assert_int_equal(ls_device_submit_wait(d, lane, other, ls_device_ticket(d, other)), LS_OK);
}

static void copy(ls_device *d, int lane, void *to, const void *from)
{
    assert_int_equal(ls_device_submit_copy(d, lane, 2, to, from, N * sizeof(float)), LS_OK);
}

/* Each round: the host adds 1 to x, it goes in, is doubled, and comes out to where the host reads
 * it next. */
static void a_chain_through_all_lanes_keeps_its_order(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        float x[N] = {0}, ones[N], expected = 0.0f;
        int64_t failed;
        ls_device *d = open_device();
        float *on_gpu = reserve(d, N);

        ls_emulation_seed(seed);
        for (int i = 0; i < N; i++) ones[i] = 1.0f;
        for (int round = 0; round < 8; round++) {
            assert_int_equal(add(d, HOST, x, x, ones), LS_OK);
            wait_for(d, IN, HOST);
            copy(d, IN, on_gpu, x);
            wait_for(d, COMPUTE, IN);
            assert_int_equal(add(d, COMPUTE, on_gpu, on_gpu, on_gpu), LS_OK);
            wait_for(d, OUT, COMPUTE);
            copy(d, OUT, x, on_gpu);
            wait_for(d, HOST, OUT);
            expected = 2.0f * (expected + 1.0f);
        }
        assert_int_equal(ls_device_sync(d, &failed), LS_OK);
        for (int i = 0; i < N; i++) assert_true(x[i] == expected);
        assert_int_equal(ls_device_stats(d, COMPUTE).op_calls[LS_OP_add], 8);
        assert_int_equal(ls_device_stats(d, IN).copied_bytes, 8 * sizeof x);
        assert_int_equal(ls_device_running(d, OUT), 2);
        ls_device_close(d);
    }
}

static void more_commands_than_the_window_holds(void **state)
{
    float x[N];
    int64_t failed;
    ls_device *d = open_device();
    float *y = reserve(d, N);

    (void)state;
    for (int i = 0; i < N; i++) x[i] = 1.0f;
    copy(d, IN, y, x);
    wait_for(d, COMPUTE, IN);
    for (int i = 0; i < 1000; i++) assert_int_equal(add(d, COMPUTE, y, y, i < 20 ? y : y), LS_OK);
    assert_int_equal(ls_device_ticket(d, COMPUTE), 1000);
    ls_device_wait(d, COMPUTE, 1000);
    assert_int_equal(ls_device_stats(d, COMPUTE).op_calls[LS_OP_add], 1000);
    assert_int_equal(ls_device_sync(d, &failed), LS_OK);
    ls_device_close(d);
}

static void independent_lanes_overtake_each_other(void **state)
{
    const uint64_t before = ls_emulation_count().overtakings;
    float x[N] = {0};
    int64_t failed;
    ls_device *d = open_device();
    float *a = reserve(d, N), *b = reserve(d, N);

    (void)state;
    for (int i = 0; i < 100; i++) {
        copy(d, IN, a, x);
        assert_int_equal(add(d, COMPUTE, b, b, b), LS_OK);
    }
    assert_int_equal(ls_device_sync(d, &failed), LS_OK);
    assert_true(ls_emulation_count().overtakings > before);
    ls_device_close(d);
}

/* ---- faults --------------------------------------------------------------------------------- */

static ls_status fail_call(void *context, int64_t argument)
{
    (void)context;
    return LS_FAIL(LS_ERR_IO, "injected %lld", (long long)argument);
}

/* The GPU waits for a lane of the host that fails, the host for the GPU: neither for ever. */
static void a_failure_of_the_host_releases_the_gpu(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        float x[N] = {0};
        int64_t failed = 0;
        ls_device *d = open_device();
        float *y = reserve(d, N);

        ls_emulation_seed(seed);
        assert_int_equal(ls_device_submit_call(d, HOST, 7, fail_call, NULL, 41), LS_OK);
        ls_device_submit_call(d, HOST, 8, fail_call, NULL, 42);
        ls_device_submit_wait(d, IN, HOST, 2);
        ls_device_submit_copy(d, IN, 9, y, x, sizeof x);
        ls_device_submit_wait(d, HOST, IN, ls_device_ticket(d, IN));
        assert_int_equal(ls_device_sync(d, &failed), LS_ERR_IO);
        assert_int_equal(failed, 7);
        assert_non_null(strstr(ls_error(), "injected 41"));

        assert_int_equal(ls_device_submit_op(d, HOST, 1, LS_OP_zero,
                                             &(ls_op_args){.zero = {.y = x, .bytes = sizeof x}}),
                         LS_OK); /* usable again, and its counters right */
        wait_for(d, IN, HOST);
        copy(d, IN, y, x);
        assert_int_equal(ls_device_sync(d, &failed), LS_OK);
        assert_int_equal(failed, -1);
        ls_device_close(d);
    }
}

static void a_refused_launch_or_copy_is_told_with_its_tag(void **state)
{
    static const ls_emulated_fault faults[] = {LS_FAULT_LAUNCH, LS_FAULT_COPY};

    (void)state;
    for (int f = 0; f < 2; f++) {
        float x[N] = {0};
        int64_t failed;
        ls_device *d = open_device();
        float *y = reserve(d, N);

        ls_emulation_fail(faults[f], 2);
        ls_status status = LS_OK;
        for (int i = 0; i < 2; i++) {
            const ls_op_args args = {.add = {y, y, y, N, LS_DTYPE_F32}};
            status = f == 0 ? ls_device_submit_op(d, COMPUTE, 10 + i, LS_OP_add, &args)
                            : ls_device_submit_copy(d, IN, 10 + i, y, x, sizeof x);
        }
        assert_int_equal(status, LS_ERR_DEVICE);
        assert_int_equal(add(d, COMPUTE, y, y, y), LS_ERR_DEVICE); /* stopped */
        assert_int_equal(ls_device_sync(d, &failed), LS_ERR_DEVICE);
        assert_int_equal(failed, 11);
        ls_emulation_fail(LS_FAULT_NONE, 0);
        assert_int_equal(add(d, COMPUTE, y, y, y), LS_OK);
        assert_int_equal(ls_device_sync(d, &failed), LS_OK);
        ls_device_close(d);
    }
}

static void a_fault_of_a_kernel_is_found_by_who_waits(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        float x[N] = {0};
        int64_t failed;
        ls_device *d = open_device();
        float *y = reserve(d, N);

        ls_emulation_seed(seed);
        ls_emulation_fail(LS_FAULT_KERNEL, 2);
        add(d, COMPUTE, y, y, y);
        add(d, COMPUTE, y, y, y);
        ls_device_submit_wait(d, HOST, COMPUTE, ls_device_ticket(d, COMPUTE));
        ls_device_submit_call(d, HOST, 3, fail_call, NULL, 1); /* must not run */
        ls_device_submit_wait(d, OUT, HOST, ls_device_ticket(d, HOST));
        ls_device_submit_copy(d, OUT, 4, x, y, sizeof x);
        assert_int_equal(ls_device_sync(d, &failed), LS_ERR_DEVICE);
        if (strstr(ls_error(), "cudaErrorIllegalAddress") == NULL) fail_msg("%s", ls_error());
        ls_emulation_fail(LS_FAULT_NONE, 0);
        ls_device_close(d);
    }
}

/* ---- memory --------------------------------------------------------------------------------- */

static void full_memory_is_told_in_bytes(void **state)
{
    void *base;
    ls_device *d = open_device();

    (void)state;
    ls_emulation_memory(1 << 20);
    assert_int_equal(ls_device_reserve(d, (1 << 20) + 1, &base), LS_ERR_NO_MEMORY);
    if (strstr(ls_error(), "1048577 bytes asked for, 1048576 of 1048576 are free") == NULL)
        fail_msg("%s", ls_error());
    ls_emulation_memory(256u << 20);
    ls_device_close(d);
}

static void memory_that_cannot_be_registered_is_noted(void **state)
{
    static char memory[1 << 16];
    ls_device *d = open_device();

    (void)state;
    assert_string_equal(ls_device_note(d), "");
    ls_emulation_fail(LS_FAULT_REGISTER, 1);
    assert_int_equal(ls_device_attach(d, memory, sizeof memory), LS_OK);
    assert_non_null(strstr(ls_device_note(d), "cudaErrorNotSupported (801)"));
    ls_emulation_fail(LS_FAULT_NONE, 0);
    assert_int_equal(ls_device_attach(d, memory, sizeof memory), LS_OK);
    ls_device_close(d);
}

/* The emulation itself: what the host must not do ends the program. */
static void the_host_cannot_touch_device_memory(void **state)
{
    int how = 0;
    ls_device *d = open_device();
    volatile float *y = reserve(d, N);

    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* cmocka's would go on with the next test */
        alarm(60);
        y[0] = 1.0f;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) || WEXITSTATUS(how) != 0); /* a sanitizer exits */
    ls_device_close(d);
}

static void without_a_driver_it_says_so(void **state)
{
    const ls_device_options options = {.n_lanes = 1, .lane_on_gpu = {true}};
    ls_device *d;

    (void)state;
    ls_emulation_driver(false);
    assert_int_equal(ls_device_open_cuda(&options, &d), LS_ERR_UNSUPPORTED);
    assert_string_equal(ls_error(), "no NVIDIA driver on this machine");
    ls_emulation_driver(true);
    assert_int_equal(ls_device_probe_cuda(), LS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_through_all_lanes_keeps_its_order),
        cmocka_unit_test(more_commands_than_the_window_holds),
        cmocka_unit_test(independent_lanes_overtake_each_other),
        cmocka_unit_test(a_failure_of_the_host_releases_the_gpu),
        cmocka_unit_test(a_refused_launch_or_copy_is_told_with_its_tag),
        cmocka_unit_test(a_fault_of_a_kernel_is_found_by_who_waits),
        cmocka_unit_test(full_memory_is_told_in_bytes),
        cmocka_unit_test(memory_that_cannot_be_registered_is_noted),
        cmocka_unit_test(the_host_cannot_touch_device_memory),
        cmocka_unit_test(without_a_driver_it_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
