/* test_schedule.c - learning rates at the corners of each shape, and at every step against closed
 * forms of their own. */
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

/* The same by other formulas: distances from the end, the half-angle form of the cosine. */
static double closed_form(const ls_schedule *s, int64_t step)
{
    const double w = (double)s->warmup_steps, n = (double)s->steps, k = (double)step;
    const double span = s->kind == LS_SCHEDULE_WSD ? (double)s->decay_steps : n - w;

    if (k < w) return s->lr - s->lr * (w - k) / w;
    if (s->kind == LS_SCHEDULE_CONSTANT) return s->lr;
    double left = (n - k) / span; /* of the decay */
    left = left > 1.0 ? 1.0 : left < 0.0 ? 0.0 : left;
    const double sine = sin(0.5 * 3.14159265358979323846 * left);
    if (s->kind == LS_SCHEDULE_COSINE) left = sine * sine;
    return left * s->lr + (1.0 - left) * s->lr_min;
}

static void every_step_is_as_its_closed_form(void **state)
{
    static const struct {
        int64_t warmup, decay, steps;
    } sizes[] = {{10, 20, 110}, {0, 1, 1},   {0, 7, 7},      {1, 1, 2},
                 {50, 30, 80},  {80, 5, 85}, {0, 300, 1000}, {2000, 48000, 100000}};

    (void)state;
    for (int kind = LS_SCHEDULE_COSINE; kind <= LS_SCHEDULE_WSD; kind++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            ls_schedule s = shape((ls_schedule_kind)kind);
            s.warmup_steps = sizes[i].warmup;
            s.decay_steps = sizes[i].decay;
            s.steps = sizes[i].steps;
            for (int64_t step = 1; step <= s.steps + 3; step++)
                assert_near(ls_schedule_lr(&s, step), closed_form(&s, step));
        }
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
        cmocka_unit_test(every_step_is_as_its_closed_form),
        cmocka_unit_test(no_warmup_starts_at_lr),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
