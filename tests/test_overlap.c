/*
 * test_overlap.c - in the simulated time of a plan, updates hide behind the next forward: a step
 * takes what its busiest lane takes, within 5%, and not the sum of compute and host.
 */
#include <math.h>

#include "placement_test.h"
#include "plan_test.h"
#include "simulate.h"

typedef struct phases {
    const ls_plan *plan;
    double forward_s, backward_s, host_s; /* of one repetition; host: norm and update */
    double update_bytes;
} phases;

static void add_phase(void *context, int64_t index, int repetition, double start_s, double end_s)
{
    phases *p = context;
    const ls_step *step = &p->plan->steps[index];

    if (repetition != 1) return;
    if (step->lane == LS_LANE_HOST) {
        p->host_s += end_s - start_s;
        if (step->op == LS_OP_adamw && step->kind == LS_CALL_OP)
            p->update_bytes += (double)step->bytes;
    }
    if (step->lane != LS_LANE_COMPUTE) return;
    if (step->phase == LS_PHASE_FORWARD)
        p->forward_s += end_s - start_s;
    else
        p->backward_s += end_s - start_s;
}

static phases measure_phases(const ls_plan *plan, const ls_cost_model *model, ls_simulation *s)
{
    phases p = {.plan = plan};
    assert_int_equal(ls_simulate(plan, model, add_phase, &p, s), LS_OK);
    return p;
}

/* A GPU whose memories and links are no bound: what a step takes is arithmetic and the host's. */
static ls_cost_model unbound_model(void)
{
    ls_cost_model model = {
        .has_device = true, .in_place_bytes_per_s = INFINITY, .host_lane_bytes_per_s = INFINITY};

    for (int rate = 0; rate < LS_RATE_COUNT; rate++)
        model.rates[rate] = (ls_rate_curve){.n = 1, .sizes = {1}, .flops_per_s = {1000}};
    for (int r = 0; r < LS_RESOURCE_COUNT; r++) model.bytes_per_s[r] = INFINITY;
    return model;
}

/* Updates of 60% of forward's time hide behind the next forward: a step takes what its lanes take
 * at most, and not their sum, whatever gradients are and however micro-batches go. */
static void test_updates_hide_behind_forward(void **state)
{
    static const struct {
        ls_dtype gradients;
        int64_t accumulate;
        bool layer_major;
    } cases[] = {{LS_DTYPE_F32, 1, false},
                 {LS_DTYPE_BF16, 1, false},
                 {LS_DTYPE_F32, 2, false},
                 {LS_DTYPE_BF16, 2, true}};
    const ls_placement placement = place_weights(LS_MODE_RESIDENT, true);

    (void)state;
    for (int64_t c = 0; c < COUNT_OF(cases); c++) {
        ls_decoder_options options = saved_options();
        ls_cost_model model = unbound_model();
        ls_simulation s;
        ls_decoder decoder;
        ls_plan plan;

        options.shape = (ls_decoder_shape){
            .V = 64, .D = 64, .F = 192, .L = 16, .H = 4, .G = 2, .K = 16, .eps = 1e-5f};
        options.accumulate = cases[c].accumulate;
        options.layer_major = cases[c].layer_major;
        options.gradients = cases[c].gradients;
        build_placed_plan(&options, &placement, &decoder, &plan);
        const phases alone = measure_phases(&plan, &model, &s);
        model.host_lane_bytes_per_s = alone.update_bytes / (0.6 * alone.forward_s);
        const phases both = measure_phases(&plan, &model, &s);
        const double compute = both.forward_s + both.backward_s;
        assert_true(both.host_s >= 0.6 * both.forward_s);
        if (!(s.step_s <= 1.05 * compute))
            fail_msg("case %lld: a step takes %.4g s: forward %.4g, backward %.4g, host %.4g",
                     (long long)c, s.step_s, both.forward_s, both.backward_s, both.host_s);
        ls_plan_free(&plan);
        ls_decoder_free(&decoder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_updates_hide_behind_forward)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
