/*
 * test_allocations.c - from the second step on, training allocates nothing.
 *
 * Whatever happens between the events of two steps, on any thread: batches, ops, updates, copies to
 * and from device memory, the record's lines, a heartbeat.  Evaluations and saves are not among it.
 * Allocations inside libraries are theirs, except cJSON's and those of libc calls that exist to
 * allocate.
 */
#define _DEFAULT_SOURCE /* NOLINT: the libc's name; for MAP_ANONYMOUS */
#include "cli_test.h"

#include "fault_test.h"

#include "longspan.h"
#include "record.h"

enum { FIRST = 2, LAST = 5 };

static long counted[LAST + 2]; /* allocations before the event of each step */

/* NOLINTBEGIN(readability-identifier-naming): the linker's names */
ls_status __real_ls_record_step(ls_record *record, const ls_step_record *step);
ls_status __wrap_ls_record_step(ls_record *record, const ls_step_record *step);

/* On the host lane, once a step; one step takes long enough for a heartbeat. */
ls_status __wrap_ls_record_step(ls_record *record, const ls_step_record *step)
{
    assert_in_range(step->step, 1, LAST + 1);
    counted[step->step] = atomic_load(&n_allocations);
    if (step->step == FIRST + 1) sleep_ms(1500);
    return __real_ls_record_step(record, step);
}
/* NOLINTEND(readability-identifier-naming) */

static void check_run(const char *output, const char *precision, const char *hardware)
{
    const char *const sets[] = {output,
                                precision,
                                hardware,
                                "steps=6",
                                "batch.accumulate=2",
                                "eval.every_steps=0",
                                "checkpoint.every_steps=0",
                                "eval.position_bins=linear:7",
                                strcmp(hardware, "hardware=cpu") == 0 ? "memory.weights=auto"
                                                                      : "memory.weights=stream"};
    const longspan_run run = {
        .path = "run.yaml", .sets = sets, .n_sets = sizeof sets / sizeof sets[0], .quiet = true};
    const longspan_train_options options = {.resume = false};

    memset(counted, 0, sizeof counted);
    if (longspan_train(&run, &options) != 0) fail_msg("%s", longspan_error());
    assert_true(counted[1] > 0); /* opening a run does allocate */
    assert_int_equal(counted[LAST] - counted[FIRST], 0);
}

static void test_bf16(void **state)
{
    (void)state;
    check_run("output=a", "precision=bf16", "hardware=cpu");
}

static void test_fp32(void **state)
{
    (void)state;
    check_run("output=b", "precision=fp32", "hardware=cpu");
}

/* Weights, gradients and saved inputs on the copy lanes. */
static void test_device(void **state)
{
    (void)state;
    check_run("output=c", "precision=bf16", "hardware=emulated-gh200");
}

static int enter_scratch(void **state)
{
    if (make_scratch(state) != 0 || chdir(scratch) != 0) return -1;
    wrap_cjson();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_fp32),
        cmocka_unit_test(test_device),
    };
    return cmocka_run_group_tests(tests, enter_scratch, remove_scratch);
}
