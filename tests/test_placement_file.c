/*
 * test_placement_file.c - what is placed in a file of a disk is where host memory would have it,
 * for the plan and for the bits: classes, layers, with device memory and without.
 */
#include <sys/resource.h>

#include "placement_run.h"

/* What may lie in a file: alone, and all of it at once. */
static const ls_tensor_class file_classes[] = {LS_CLASS_LO, LS_CLASS_M, LS_CLASS_V,  LS_CLASS_GRAD,
                                               LS_CLASS_X,  LS_CLASS_O, LS_CLASS_KV, LS_CLASS_DKV};

enum { FILE_CLASSES = sizeof file_classes / sizeof file_classes[0] };

static void decide(bool device, const ls_placement_wish *wish, ls_placement *placement)
{
    if (device)
        decide_placement(true, wish, placement);
    else
        assert_int_equal(ls_placement_decide(NULL, wish, placement), LS_OK);
}

static ls_plan_cost measure(const variant *v, const ls_placement *placement)
{
    const ls_decoder_options options = make_options(v);
    ls_decoder decoder;
    ls_plan_cost cost;

    assert_int_equal(ls_decoder_build(&options, &decoder), LS_OK);
    assert_int_equal(ls_plan_measure(&decoder.tape, placement, &ls_ops_cpu, NULL, &cost), LS_OK);
    ls_decoder_free(&decoder);
    return cost;
}

/* In the file is what was in host memory: the rest of the plan has the same bytes. */
static void compare_with_host(const variant *v, bool device, ls_placement_wish *wish,
                              const outcome *host)
{
    ls_placement placement;
    outcome in_file;

    decide(device, wish, &placement);
    run(v, &placement, 1, &in_file);
    assert_same(host, &in_file);
    for (int class = 0; class < LS_CLASS_COUNT; class ++) wish->places[class] = LS_PLACE_HOST;
    for (int32_t i = 0; i < wish->n_layers; i++) wish->layers[i].place = LS_PLACE_HOST;
    decide(device, wish, &placement);
    const ls_plan_cost in_memory = measure(v, &placement);
    const uint64_t host_bytes = in_memory.place_bytes[LS_PLACE_HOST];
    assert_int_equal(in_memory.place_bytes[LS_PLACE_NVME], 0);
    assert_int_equal(in_file.hbm_bytes, in_memory.place_bytes[LS_PLACE_HBM]);
    if (device)
        assert_int_equal(in_file.host_bytes + in_file.nvme_bytes, host_bytes);
    else /* what shared bytes with scratch no longer does */
        assert_true(in_file.host_bytes + in_file.nvme_bytes >= host_bytes);
    assert_true(in_file.nvme_bytes > 0);
    assert_true(in_file.host_bytes < host_bytes);
}

static void a_file_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof tiled_variants / sizeof tiled_variants[0]; i++) {
        outcome host;
        run(&tiled_variants[i], NULL, 0, &host);
        for (int device = 0; device < 2; device++) {
            ls_placement_wish all = {.ring_slots = device != 0 ? 2 : 0};
            for (size_t c = 0; c < FILE_CLASSES; c++) {
                ls_placement_wish one = {.ring_slots = all.ring_slots};
                one.place_given[file_classes[c]] = all.place_given[file_classes[c]] = true;
                one.places[file_classes[c]] = all.places[file_classes[c]] = LS_PLACE_NVME;
                if (i == 0) compare_with_host(&tiled_variants[i], device, &one, &host);
            }
            compare_with_host(&tiled_variants[i], device, &all, &host);
        }
    }
}

/* What the first layers keep, and beside it what the others do, whatever their class says. */
static void layers_may_lie_in_a_file(void **state)
{
    static const ls_placement_wish wishes[] = {
        {.layers = {{0, 2, LS_PLACE_NVME}}, .n_layers = 1},
        {.layers = {{1, 1, LS_PLACE_NVME}, {3, 4, LS_PLACE_NVME}}, .n_layers = 2},
    };
    ls_placement placement;

    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        outcome host;
        run(&variants[i], NULL, 0, &host);
        for (int device = 0; device < 2; device++) {
            ls_placement_wish wish = wishes[(i + (size_t)device) % 2];
            compare_with_host(&variants[i], device, &wish, &host);
        }
    }
    const ls_placement_wish mixed = {.layers = {{0, 1, LS_PLACE_HOST}, {2, 2, LS_PLACE_NVME}},
                                     .n_layers = 2,
                                     .place_given = {[LS_CLASS_X] = true},
                                     .places = {[LS_CLASS_X] = LS_PLACE_NVME}};
    for (int device = 0; device < 2; device++) {
        decide(device, &mixed, &placement);
        assert_int_equal(ls_placement_of(&placement, LS_CLASS_X, 1)->place, LS_PLACE_HOST);
        assert_int_equal(ls_placement_of(&placement, LS_CLASS_X, 2)->place, LS_PLACE_NVME);
        assert_int_equal(ls_placement_of(&placement, LS_CLASS_O, 2)->place, LS_PLACE_NVME);
        assert_int_equal(ls_placement_of(&placement, LS_CLASS_X, 3)->place, LS_PLACE_NVME);
        assert_int_equal(ls_placement_of(&placement, LS_CLASS_O, 3)->place, LS_PLACE_HOST);
        assert_int_equal(ls_placement_of(&placement, LS_CLASS_X, 2)->mode,
                         device != 0 ? LS_MODE_STREAM : LS_MODE_DIRECT);
    }
}

/* The disk is full although there was room when the plan was made: nothing runs, nothing stays. */
static void a_full_disk_is_told(void **state)
{
    ls_placement_wish wish = {.place_given = {[LS_CLASS_M] = true},
                              .places = {[LS_CLASS_M] = LS_PLACE_NVME}};
    const ls_decoder_options options = make_options(&variants[0]);
    struct rlimit before, little = {.rlim_cur = 4096};
    ls_placement placement;
    ls_instance_options how = {.compute_threads = 1,
                               .optimizer_threads = 1,
                               .placement = &placement,
                               .nvme_path = LS_BINARY_DIR};
    ls_instance instance;

    (void)state;
    decide(false, &wish, &placement);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    const ls_status status = ls_instance_open(&options, &how, &instance);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, LS_ERR_NO_MEMORY);
    assert_non_null(strstr(ls_error(), "nvme: the plan needs a file of"));
    assert_non_null(strstr(ls_error(), "free space there or name another folder"));
    how.nvme_path = NULL;
    assert_int_equal(ls_instance_open(&options, &how, &instance), LS_ERR_INVALID);
    assert_non_null(strstr(ls_error(), "nvme: no folder to make the file in"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_gives_the_same_bits),
        cmocka_unit_test(layers_may_lie_in_a_file),
        cmocka_unit_test(a_full_disk_is_told),
    };

    fill_batch_data();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
