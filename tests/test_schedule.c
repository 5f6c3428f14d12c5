/* test_schedule.c - learning rates at the corners of each shape. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "loss_stats.h"
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

static void bins_partition_the_labels(void **state)
{
    enum { N = 100 };
    float nll[N];
    int32_t targets[N];
    int64_t positions[N], labels = 0;
    ls_loss_stats stats;

    (void)state;
    for (int i = 0; i < N; i++) {
        nll[i] = (float)i;
        targets[i] = i % 3 == 0 ? LS_TARGET_IGNORE : 1;
        positions[i] = i;
    }
    for (int linear = 0; linear <= 7; linear += 7) {
        assert_int_equal(ls_loss_stats_open(N, linear, &stats), LS_OK);
        assert_int_equal(stats.n_bins, linear ? 7 : 8); /* 0, 1, 2-3, ..., 64-127 */
        assert_true(isnan(atomic_load(&stats.mean_seen)));
        ls_loss_stats_add(&stats, nll, targets, positions, N / 2);
        assert_int_equal(atomic_load(&stats.rows_seen), N / 2);
        assert_near(atomic_load(&stats.mean_seen), ls_loss_stats_mean(&stats));
        ls_loss_stats_add(&stats, nll + N / 2, targets + N / 2, positions + N / 2, N - N / 2);
        assert_int_equal(atomic_load(&stats.rows_seen), N);
        assert_near(atomic_load(&stats.mean_seen), ls_loss_stats_mean(&stats));
        double sum = 0.0;
        labels = 0;
        for (int b = 0; b < stats.n_bins; b++) {
            double expected = 0.0;
            int64_t n = 0;
            for (int64_t p = stats.bins[b].from; p < stats.bins[b].to && p < N; p++)
                if (p % 3 != 0) expected += (double)p, n++;
            assert_near(stats.bins[b].sum, expected);
            assert_int_equal(stats.bins[b].labels, n);
            sum += stats.bins[b].sum;
            labels += stats.bins[b].labels;
        }
        assert_near(sum, stats.sum);
        assert_int_equal(labels, 66);
        assert_near(ls_loss_stats_mean(&stats), stats.sum / 66.0);
        ls_loss_stats_reset(&stats);
        assert_near(ls_loss_stats_mean(&stats), 0.0);
        assert_int_equal(atomic_load(&stats.rows_seen), 0);
        assert_true(isnan(atomic_load(&stats.mean_seen)));
        ls_loss_stats_close(&stats);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warmup_rises_to_lr),
        cmocka_unit_test(each_shape_decays_as_named),
        cmocka_unit_test(no_warmup_starts_at_lr),
        cmocka_unit_test(bins_partition_the_labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
