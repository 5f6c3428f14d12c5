/*
 * test_bf16.c - bfloat16 rounding and the split of an fp32 master, against arithmetic in double.
 *
 * The split must be undone exactly for each of the 2^32 patterns, so all of them are tried.  A
 * build without optimization is too slow for that: there every 127th is tried, with all patterns
 * around the edges of rounding.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "bf16.h"
#include "rng.h"

#if defined(__OPTIMIZE__)
enum { STRIDE = 1 };
#else
enum { STRIDE = 127 }; /* coprime to 2^16: every low half occurs */
#endif

/* Low halves around the points where rounding changes. */
static const uint32_t edges[] = {0x0000, 0x0001, 0x00ff, 0x7ffe, 0x7fff,
                                 0x8000, 0x8001, 0x8002, 0xfffe, 0xffff};

enum { N_EDGES = sizeof edges / sizeof edges[0] };

/* Patterns that master_join(split) changes, among those with this upper half. */
static uint32_t count_changed(uint32_t upper, uint32_t first)
{
    uint32_t changed = 0;
    for (uint32_t low = first; low < 0x10000u; low += STRIDE) {
        const float master = ls_f32_from_bits(upper << 16 | low);
        const float joined = ls_master_join(ls_master_hi(master), ls_master_lo(master));
        changed += ls_f32_bits(joined) != (upper << 16 | low);
    }
    return changed;
}

static void every_master_is_joined_exactly(void **state)
{
    (void)state;
    if (STRIDE != 1) print_message("not optimized: every %dth pattern and the edges\n", STRIDE);
    for (uint32_t upper = 0; upper < 0x10000u; upper++)
        assert_int_equal(count_changed(upper, upper % STRIDE), 0);
    for (uint32_t upper = 0; upper < 0x10000u; upper++)
        for (int i = 0; i < N_EDGES; i++) {
            const float master = ls_f32_from_bits(upper << 16 | edges[i]);
            const float joined = ls_master_join(ls_master_hi(master), ls_master_lo(master));
            assert_int_equal(ls_f32_bits(joined), upper << 16 | edges[i]);
        }
}

/* The multiple of a bf16 step next to value, rounded by round_integer; inf beyond the range. */
static double round_reference(double value, double (*round_integer)(double))
{
    int exponent;
    frexp(value, &exponent); /* value = f * 2^exponent, 0.5 <= |f| < 1: 8 bits of f stay */
    const double step = ldexp(1.0, (exponent < -125 ? -125 : exponent) - 8);
    const double rounded = round_integer(value / step) * step;
    return fabs(rounded) >= 0x1p128 ? copysign((double)INFINITY, value) : rounded;
}

static void check_rounding(uint32_t bits)
{
    const float value = ls_f32_from_bits(bits);
    const double even = (double)ls_bf16_to_f32(ls_bf16_from_f32(value));
    const double away = (double)ls_bf16_to_f32(ls_master_hi(value));
    if (isnan(value)) {
        assert_true(isnan(even));
        return;
    }
    if (isinf(value)) {
        assert_true(even == (double)value && away == (double)value);
        return;
    }
    assert_true(even == round_reference((double)value, nearbyint));
    assert_true(away == round_reference((double)value, round));
    assert_int_equal(signbit(even) != 0, signbit(value) != 0);
    assert_int_equal(signbit(away) != 0, signbit(value) != 0);
}

static void rounding_agrees_with_double(void **state)
{
    (void)state;
    for (uint32_t upper = 0; upper < 0x10000u; upper++) {
        for (int i = 0; i < N_EDGES; i++) check_rounding(upper << 16 | edges[i]);
        check_rounding(upper << 16 | (uint32_t)ls_rng_below(1, 2, upper, 0x10000u));
    }
}

static void bf16_values_are_kept(void **state)
{
    (void)state;
    for (uint32_t value = 0; value < 0x10000u; value++) {
        const int is_nan = (value & 0x7fffu) > 0x7f80u;
        const ls_bf16 kept = ls_bf16_from_f32(ls_bf16_to_f32((ls_bf16)value));
        assert_int_equal(kept, is_nan ? value | 0x40u : value);
        if (!is_nan) assert_int_equal(ls_master_hi(ls_bf16_to_f32((ls_bf16)value)), value);
    }
}

static void the_remainder_is_at_most_half_a_step(void **state)
{
    (void)state;
    /* 1 + 2^-8 lies midway between two bf16 numbers: away from zero, and lo is as far as it goes */
    assert_int_equal(ls_master_hi(ls_f32_from_bits(0x3f808000u)), 0x3f81);
    assert_int_equal(ls_master_lo(ls_f32_from_bits(0x3f808000u)), INT16_MIN);
    assert_int_equal(ls_master_hi(ls_f32_from_bits(0xbf808000u)), 0xbf81);
    assert_int_equal(ls_master_lo(ls_f32_from_bits(0x3f807fffu)), INT16_MAX);
    assert_int_equal(ls_bf16_from_f32(ls_f32_from_bits(0x3f808000u)), 0x3f80); /* ties to even */
    assert_int_equal(ls_bf16_from_f32(ls_f32_from_bits(0x3f818000u)), 0x3f82);
}

static void finite_means_finite_in_both_forms(void **state)
{
    (void)state;
    static const struct {
        uint32_t bits;
        int is_finite;
    } cases[] = {
        {0x00000000u, 1}, {0x80000000u, 1}, {0x00000001u, 1}, {0x3f800000u, 1},
        {0x7f7f7fffu, 1}, {0xff7f7fffu, 1}, {0x7f7f8000u, 0}, {0xff7f8000u, 0},
        {0x7f7fffffu, 0}, {0xff7fffffu, 0}, {0x7f800000u, 0}, {0xff800000u, 0},
        {0x7f800001u, 0}, {0x7fc00000u, 0}, {0xffffffffu, 0}, {0x7fffffffu, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(ls_master_is_finite(ls_f32_from_bits(cases[i].bits)), cases[i].is_finite);

    for (uint32_t upper = 0; upper < 0x10000u; upper++)
        for (int i = 0; i < N_EDGES; i++) {
            const float master = ls_f32_from_bits(upper << 16 | edges[i]);
            const int both = isfinite(master) && isfinite(ls_bf16_to_f32(ls_master_hi(master)));
            assert_int_equal(ls_master_is_finite(master) != 0, both != 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_master_is_joined_exactly),
        cmocka_unit_test(rounding_agrees_with_double),
        cmocka_unit_test(bf16_values_are_kept),
        cmocka_unit_test(the_remainder_is_at_most_half_a_step),
        cmocka_unit_test(finite_means_finite_in_both_forms),
    };
    return cmocka_run_group_tests_name("bf16", tests, NULL, NULL);
}
