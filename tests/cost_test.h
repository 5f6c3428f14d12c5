/*
 * cost_test.h - what the tests of costs and of the simulation share: figures near others, and a
 * machine of round rates.
 */
#ifndef LS_COST_TEST_H
#define LS_COST_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cost.h"

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != LS_OK) fail_msg("%s: %s", #call, ls_error());                                \
    } while (0)

static inline void assert_near(double value, double expected)
{
    if (fabs(value - expected) > 1e-9 * fabs(expected))
        fail_msg("%.17g, not %.17g", value, expected);
}

/* ---- machines ------------------------------------------------------------------------------ */

static inline ls_quantity figure(double value)
{
    return ls_quantity_make(value, LS_SOURCE_PUBLISHED, "test");
}

static inline void add_efficiency(ls_unit *unit, const char *op, const char *shape, double fraction)
{
    ls_efficiency *e = &unit->efficiencies[unit->n_efficiencies++];
    snprintf(e->op, sizeof e->op, "%s", op);
    snprintf(e->shape, sizeof e->shape, "%s", shape);
    e->fraction = figure(fraction);
}

static double both_ways = 75; /* bytes/s of the link */

/* A GPU of 1000 FLOP/s, HBM of 500 bytes/s, host memory of 100, a link of 50 in, 25 out, a disk of
 * 10 in, 5 out, 12 both ways. */
static inline ls_topology *make_rated_machine(void)
{
    ls_topology *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->n_places = 3;
    t->places[2] = (ls_place){.kind = LS_PLACE_NVME, .name = "nvme"};
    t->places[0] =
        (ls_place){.kind = LS_PLACE_HBM, .name = "hbm0", .read_bytes_per_s = figure(500)};
    t->places[1] = (ls_place){
        .kind = LS_PLACE_HOST, .name = "host0", .numa_node = 0, .read_bytes_per_s = figure(100)};
    t->n_links = 2;
    t->links[1] = (ls_link){.from = "nvme",
                            .to = "host0",
                            .bytes_per_s = figure(10),
                            .reverse_bytes_per_s = figure(5),
                            .both_bytes_per_s = figure(12)};
    t->links[0] = (ls_link){.from = "host0",
                            .to = "hbm0",
                            .bytes_per_s = figure(50),
                            .reverse_bytes_per_s = figure(25),
                            .both_bytes_per_s = figure(both_ways),
                            .read_bytes_per_s = figure(40),
                            .latency_ns = figure(0)};
    t->n_units = 2;
    t->units[0] = (ls_unit){.kind = LS_UNIT_GPU,
                            .name = "gpu0",
                            .place = 0,
                            .host_node = figure(0),
                            .bf16_flops_per_s = figure(1000),
                            .fp32_flops_per_s = figure(100)};
    t->units[1] =
        (ls_unit){.kind = LS_UNIT_CPU, .name = "cpu0", .place = 1, .host_node = figure(0)};
    add_efficiency(&t->units[0], "matmul", "large", 0.5);
    add_efficiency(&t->units[0], "attention_forward", "causal-4k", 0.2);
    add_efficiency(&t->units[0], "attention_forward", "causal-1k", 0.1);
    add_efficiency(&t->units[0], "attention_backward", "causal-1k", 0.1);
    return t;
}

/* The model without what starting costs: seconds by hand are then exact. */
static inline ls_cost_model make_rated_model(const ls_topology *machine)
{
    ls_cost_model model = ls_cost_model_make(machine, true, LS_DTYPE_BF16);
    model.launch_latency_s = 0;
    return model;
}

#endif
