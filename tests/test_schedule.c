/* test_schedule.c - learning rates at the corners of each shape. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ops.h"
#include "schedule.h"

static void assert_near(double actual, double expected)
{
    assert_true(fabs(actual - expected) <= 1e-12 + 1e-9 * fabs(expected));
}

static ls_schedule shape(ls_schedule_kind kind)
{
    return (ls_schedule){.kind = kind,
                         .lr = 1e-3,
                         .lr_min = 1e-4,
                         .warmup_steps = 10,
                         .decay_steps = 20,
                         .steps = 110};
}

static void warmup_rises_to_lr(void **state)
{
    (void)state;
    for (int kind = LS_SCHEDULE_COSINE; kind <= LS_SCHEDULE_WSD; kind++) {
        const ls_schedule s = shape((ls_schedule_kind)kind);
        assert_near(ls_schedule_lr(&s, 1), 1e-4);
        assert_near(ls_schedule_lr(&s, 5), 5e-4);
        assert_near(ls_schedule_lr(&s, 10), 1e-3);
    }
}

static void each_shape_decays_as_named(void **state)
{
    const ls_schedule cosine = shape(LS_SCHEDULE_COSINE), linear = shape(LS_SCHEDULE_LINEAR);
    const ls_schedule constant = shape(LS_SCHEDULE_CONSTANT), wsd = shape(LS_SCHEDULE_WSD);

    (void)state;
    assert_near(ls_schedule_lr(&cosine, 60), 5.5e-4); /* half-way */
    assert_near(ls_schedule_lr(&cosine, 35), 1e-4 + 9e-4 * 0.5 * (1 + sqrt(0.5)));
    assert_near(ls_schedule_lr(&cosine, 110), 1e-4);
    assert_near(ls_schedule_lr(&linear, 60), 5.5e-4);
    assert_near(ls_schedule_lr(&linear, 110), 1e-4);
    assert_near(ls_schedule_lr(&linear, 500), 1e-4);
    assert_near(ls_schedule_lr(&constant, 110), 1e-3);
    assert_near(ls_schedule_lr(&wsd, 90), 1e-3);
    assert_near(ls_schedule_lr(&wsd, 100), 5.5e-4);
    assert_near(ls_schedule_lr(&wsd, 110), 1e-4);
}

static void no_warmup_starts_at_lr(void **state)
{
    ls_schedule s = shape(LS_SCHEDULE_CONSTANT);
    (void)state;
    s.warmup_steps = 0;
    assert_near(ls_schedule_lr(&s, 1), 1e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warmup_rises_to_lr),
        cmocka_unit_test(each_shape_decays_as_named),
        cmocka_unit_test(no_warmup_starts_at_lr),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
