/* test_live.c - live bytes: never above what is reserved, never below what is kept, and of a plan
 * that streams its weights the device's go up and down. */
#include "placement_test.h"
#include "plan_test.h"

#include "live.h"

typedef struct range {
    uint64_t least, most;
} range;

static range find_range(const ls_plan *plan, const ls_live_bytes *live, int segment, int place)
{
    range r = {UINT64_MAX, 0};
    const int64_t from = plan->segment_first[segment];

    for (int64_t s = from; s < from + plan->segment_steps[segment]; s++) {
        const uint64_t bytes = live[s].place[place];
        if (bytes < r.least) r.least = bytes;
        if (bytes > r.most) r.most = bytes;
    }
    return r;
}

static void check_plan(const ls_decoder_options *options, const ls_placement *placement)
{
    ls_decoder decoder;
    ls_plan plan;

    build_placed_plan(options, placement, &decoder, &plan);
    ls_live_bytes *live = calloc((size_t)plan.n_steps, sizeof *live);
    assert_non_null(live);
    assert_int_equal(ls_plan_live_bytes(&plan, live), LS_OK);
    for (int place = 0; place < LS_PLACE_COUNT; place++) {
        const uint64_t reserved = ls_plan_place_bytes(&plan, (ls_place_kind)place);
        const range step = find_range(&plan, live, LS_SEGMENT_STEP, place);
        assert_true(step.most <= reserved);
        if (reserved == 0) continue;
        assert_true(step.most > reserved / 2); /* little is reserved for nothing */
        assert_true(step.least < step.most);   /* chunks come and go */
    }
    const range host = find_range(&plan, live, LS_SEGMENT_STEP, LS_PLACE_HOST);
    uint64_t states = 0; /* of the optimizer: there at every moment */
    states += ls_plan_role_bytes(&plan, LS_PLACE_HOST, LS_ROLE_M);
    states += ls_plan_role_bytes(&plan, LS_PLACE_HOST, LS_ROLE_V);
    assert_true(states > 0 && host.least >= states);
    free(live);
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);
}

static void test_in_host_memory(void **state)
{
    const ls_decoder_options grouped = grouped_options(), tied = tied_options(),
                             saved = saved_options();
    (void)state;
    check_plan(&grouped, NULL);
    check_plan(&tied, NULL);
    check_plan(&saved, NULL);
}

static void test_through_device_memory(void **state)
{
    const ls_decoder_options options = grouped_options();
    ls_placement placement = place_weights(LS_MODE_STREAM, false);

    (void)state;
    check_plan(&options, &placement);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_in_host_memory),
                                       cmocka_unit_test(test_through_device_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
