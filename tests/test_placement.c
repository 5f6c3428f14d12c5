/*
 * test_placement.c - a model whose tensors pass through device memory computes the same bits as one
 * that lies in host memory: every weights mode, ring depth, save policy, order of micro-batches and
 * timing of the copies.
 *
 * "Device memory" is a second arena (placement_run.h).
 * Each placement is timed in two ways besides the plain one, under sanitizers in one of the three
 * by turns; there, too, half of the variants move a class to the one place and half to the other.
 */
#include "placement_run.h"

static void every_mode_gives_the_same_bits(void **state)
{
    static const int64_t rings[] = {2, 3, 7};
    static const ls_place_mode modes[] = {LS_MODE_STREAM, LS_MODE_RESIDENT, LS_MODE_DIRECT};

    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        outcome host, placed;
        run(&variants[i], NULL, 0, &host);
        assert_int_equal(host.hbm_bytes, 0);
        for (int coherent = 0; coherent < 2; coherent++)
            for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++)
                for (size_t r = 0; r < sizeof rings / sizeof rings[0]; r++) {
                    const ls_placement_wish wish = {
                        .weights_given = true, .weights = modes[m], .ring_slots = rings[r]};
                    ls_placement placement;
                    if (modes[m] != LS_MODE_STREAM && r > 0) continue;
                    decide_placement(coherent, &wish, &placement);
                    for (uint64_t seed = first_seed(); seed < SEEDS; seed += SEEDS_STEP) {
                        run(&variants[i], &placement, seed, &placed);
                        assert_true(placed.hbm_bytes > 0);
                        assert_same(&host, &placed);
                    }
                }
    }
}

/* Everything that can be cut passes through device memory in tiles; more tiles kept, fewer copies.
 */
static void tiles_give_the_same_bits(void **state)
{
    static const int64_t tiles[] = {0, 1, 2, 3, 100};

    (void)state;
    for (size_t i = 0; i < sizeof tiled_variants / sizeof tiled_variants[0]; i++) {
        outcome host, placed;
        uint64_t least = 0;
        run(&tiled_variants[i], NULL, 0, &host);
        for (size_t n = 0; n < sizeof tiles / sizeof tiles[0]; n++) {
            const ls_placement_wish wish = {.weights_given = true, .weights = LS_MODE_STREAM};
            static const ls_tensor_class cut[] = {LS_CLASS_X, LS_CLASS_O, LS_CLASS_KV,
                                                  LS_CLASS_DKV};
            ls_placement placement;
            decide_placement(i % 2 == 0, &wish, &placement);
            for (size_t c = 0; c < sizeof cut / sizeof cut[0]; c++) {
                placement.classes[cut[c]].place = LS_PLACE_HOST;
                placement.classes[cut[c]].mode = LS_MODE_STREAM;
                placement.tiled[cut[c]] = true;
                placement.tiles[cut[c]] = tiles[n];
            }
            for (uint64_t seed = first_seed(); seed < SEEDS; seed += SEEDS_STEP) {
                run(&tiled_variants[i], &placement, seed, &placed);
                assert_same(&host, &placed);
            }
            assert_true(placed.hbm_bytes >= least);
            least = placed.hbm_bytes;
        }
    }
}

/* Any class may be kept where the user says. */
static void every_class_may_be_moved(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        outcome host, placed;
        run(&variants[i], NULL, 0, &host);
        for (int class = 0; class < LS_CLASS_COUNT; class ++) {
            ls_placement_wish wish = {.ring_slots = 2};
            ls_placement placement;
            const bool is_state = class >= LS_CLASS_LO && class <= LS_CLASS_GRAD;
            if (is_state || class == LS_CLASS_BATCH) continue;
            wish.place_given[class] = true;
            for (int place = LS_PLACE_HBM; place <= LS_PLACE_HOST; place++) {
                if (BY_TURNS && (i + (size_t)(class + place)) % 2 != 0) continue;
                wish.places[class] = (ls_place_kind)place;
                decide_placement(true, &wish, &placement);
                run(&variants[i], &placement, 1, &placed);
                assert_same(&host, &placed);
            }
        }
    }
}

/* ---- the policy ------------------------------------------------------------------------------ */

/* What all layers keep in device memory is what the classes keep there; some layers are as good. */
static void layers_may_be_moved(void **state)
{
    static const ls_layer_place all = {0, 4, LS_PLACE_HBM}; /* 4: what the last layer gives */
    static const ls_placement_wish wishes[] = {
        {.layers = {{2, 4, LS_PLACE_HBM}}, .n_layers = 1},
        {.layers = {{0, 0, LS_PLACE_HOST}, {1, 2, LS_PLACE_HBM}}, .n_layers = 2},
        {.layers = {{0, 1, LS_PLACE_HOST}},
         .n_layers = 1,
         .place_given = {[LS_CLASS_X] = true, [LS_CLASS_O] = true, [LS_CLASS_KV] = true},
         .places = {[LS_CLASS_X] = LS_PLACE_HBM}},
    };
    ls_placement_wish classes = wishes[2], layers = {.layers = {all}, .n_layers = 1};
    ls_placement placement;

    (void)state;
    classes.n_layers = 0;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        outcome host, placed, by_class;
        run(&variants[i], NULL, 0, &host);
        for (size_t w = 0; w < sizeof wishes / sizeof wishes[0]; w++) {
            decide_placement(w % 2 == 0, &wishes[w], &placement);
            run(&variants[i], &placement, 1, &placed);
            assert_same(&host, &placed);
        }
        decide_placement(true, &layers, &placement);
        run(&variants[i], &placement, 1, &placed);
        assert_same(&host, &placed);
        decide_placement(true, &classes, &placement);
        run(&variants[i], &placement, 1, &by_class);
        assert_int_equal(placed.hbm_bytes, by_class.hbm_bytes);
    }
    decide_placement(true, &wishes[1], &placement);
    assert_int_equal(ls_placement_of(&placement, LS_CLASS_X, 0)->place, LS_PLACE_HOST);
    assert_int_equal(ls_placement_of(&placement, LS_CLASS_KV, 2)->place, LS_PLACE_HBM);
    assert_int_equal(ls_placement_of(&placement, LS_CLASS_O, 3)->place, LS_PLACE_HOST);
    assert_int_equal(ls_placement_of(&placement, LS_CLASS_GRAD, 2)->place, LS_PLACE_HOST);
}

static void refuse(const ls_topology *machine, const ls_placement_wish *wish, ls_status status,
                   const char *text)
{
    ls_placement placement;
    assert_int_equal(ls_placement_decide(machine, wish, &placement), status);
    if (strstr(ls_error(), text) == NULL) fail_msg("'%s' is not in '%s'", text, ls_error());
}

static void senseless_wishes_are_refused(void **state)
{
    ls_topology *machine = calloc(1, sizeof *machine);

    (void)state;
    assert_non_null(machine);
    refuse(machine, &(ls_placement_wish){.weights_given = true, .weights = LS_MODE_STREAM},
           LS_ERR_INVALID, "memory.weights: stream");
    refuse(machine, &(ls_placement_wish){.place_given[LS_CLASS_X] = true, .places = {0}},
           LS_ERR_INVALID, "memory.place.x: hbm");
    refuse(machine, &(ls_placement_wish){.layers = {{3, 4, LS_PLACE_HBM}}, .n_layers = 1},
           LS_ERR_INVALID, "memory.save: place hbm of layers from 3 on");
    machine->n_places = 1;
    machine->places[0] = (ls_place){.kind = LS_PLACE_HBM, .name = "hbm0"};
    refuse(machine, &(ls_placement_wish){.ring_slots = -1}, LS_ERR_INVALID,
           "memory.ring_slots: -1");
    refuse(machine, &(ls_placement_wish){.ring_slots = 65}, LS_ERR_INVALID, "1 to 64");
    refuse(machine, &(ls_placement_wish){.place_given[LS_CLASS_M] = true, .places = {0}},
           LS_ERR_INVALID, "memory.place.m: hbm");
    free(machine);
}

static void scratch_and_weights_lie_in_no_file(void **state)
{
    static const ls_tensor_class classes[] = {LS_CLASS_WEIGHTS, LS_CLASS_CHUNK, LS_CLASS_LOGITS,
                                              LS_CLASS_BATCH, LS_CLASS_STAGING};
    char text[64];

    (void)state;
    for (size_t c = 0; c < sizeof classes / sizeof classes[0]; c++) {
        ls_placement_wish wish = {.weights_given = false};
        wish.place_given[classes[c]] = true;
        wish.places[classes[c]] = LS_PLACE_NVME;
        snprintf(text, sizeof text, "memory.place.%s: nvme, but ", ls_class_name(classes[c]));
        refuse(NULL, &wish, LS_ERR_INVALID, text);
        assert_non_null(strstr(ls_error(), "allowed: hbm, host"));
    }
}

static void every_class_has_a_reason(void **state)
{
    ls_placement placement;

    (void)state;
    for (int coherent = 0; coherent < 2; coherent++)
        for (int large = 0; large < 2; large++) {
            decide_placement(coherent, &(ls_placement_wish){.weights_too_large = large},
                             &placement);
            assert_int_equal(placement.classes[LS_CLASS_WEIGHTS].mode,
                             large ? LS_MODE_STREAM : LS_MODE_RESIDENT);
            for (int c = 0; c < LS_CLASS_COUNT; c++)
                assert_true(placement.classes[c].reason[0] != '\0');
        }
    ls_placement_host(&placement);
    for (int c = 0; c < LS_CLASS_COUNT; c++) {
        assert_int_equal(placement.classes[c].place, LS_PLACE_HOST);
        assert_true(placement.classes[c].reason[0] != '\0');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mode_gives_the_same_bits),
        cmocka_unit_test(tiles_give_the_same_bits),
        cmocka_unit_test(every_class_may_be_moved),
        cmocka_unit_test(layers_may_be_moved),
        cmocka_unit_test(senseless_wishes_are_refused),
        cmocka_unit_test(scratch_and_weights_lie_in_no_file),
        cmocka_unit_test(every_class_has_a_reason),
    };

    fill_batch_data();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
