/*
 * test_placement.c - a model whose tensors pass through device memory computes the same bits as one
 * that lies in host memory: every weights mode, ring depth, save policy, order of micro-batches and
 * timing of the copies.
 *
 * "Device memory" is a second arena; both start as NaN, so what is read before it was copied shows.
 * Under sanitizers each placement is timed in one way besides the plain one, else in two.
 */
#include <stdatomic.h>
#include <time.h>

#include "model_test.h"
#include "placement_test.h"
#include "plan_bound.h"

enum { S = 24, SEQUENCES = 2, ACCUMULATE_MAX = 2, V = 19, ROWS = S * SEQUENCES * ACCUMULATE_MAX };
enum { STEPS = 3 };

#ifdef LS_SANITIZED
enum { SEEDS = 2 }; /* of delays; 0: none */
#else
enum { SEEDS = 3 };
#endif

static int32_t tokens[ROWS], targets[ROWS];
static int64_t positions[ROWS], doc_start[ROWS];
static model_batch batch = {ROWS, tokens, targets, positions, doc_start};

/* Two documents in every sequence; some rows without a label. */
static void fill_batch_data(void)
{
    for (int64_t n = 0; n < ROWS; n++) {
        const int64_t sequence = n / S * S, middle = sequence + S / 3;
        tokens[n] = (int32_t)(ls_rng_u64(7, 1, (uint64_t)n) % V);
        targets[n] = n % 5 == 3 ? -100 : (int32_t)(ls_rng_u64(7, 2, (uint64_t)n) % V);
        doc_start[n] = n < middle ? sequence : middle;
        positions[n] = n - doc_start[n];
    }
}

typedef struct variant {
    ls_dtype dtype;
    bool save_o, save_qkv, tied;
    int64_t accumulate, chunk, query_block, key_block, x_stride;
    bool layer_major;
} variant;

static ls_decoder_options make_options(const variant *v)
{
    return (ls_decoder_options){
        .shape = {.V = V,
                  .D = 16,
                  .F = 24,
                  .L = 4,
                  .H = 2,
                  .G = 1,
                  .K = 8,
                  .eps = 1e-5f,
                  .tied = v->tied},
        .dtype = v->dtype,
        .S = S,
        .sequences = SEQUENCES,
        .accumulate = v->accumulate,
        .layer_major = v->layer_major,
        .chunk = v->chunk,
        .query_block = v->query_block,
        .key_block = v->key_block,
        .loss_rows = 13,
        .train = true,
        .save_o = v->save_o,
        .save_qkv = v->save_qkv,
        .x_stride = v->x_stride,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .adam_eps = 1e-8f,
        .weight_decay = 0.1f,
        .clip_norm = 1.0f,
    };
}

/* ---- clocks that delay copies --------------------------------------------------------------- */

typedef struct jitter {
    uint64_t seed;
    atomic_uint_fast64_t n;
} jitter;

static uint64_t jitter_now(void *context)
{
    (void)context;
    return 0;
}

static void jitter_sleep(void *context, uint64_t ns)
{
    jitter *j = context;
    const uint64_t draw = ls_rng_u64(j->seed, 3, atomic_fetch_add(&j->n, 1));
    const struct timespec pause = {0, (long)(draw % 4 == 0 ? draw % 400000 : 0)};

    (void)ns;
    nanosleep(&pause, NULL);
}

/* ---- runs ------------------------------------------------------------------------------------ */

typedef struct outcome {
    double losses[STEPS + 1]; /* of the steps, then of an evaluation */
    uint64_t state;           /* of all weights, moments and remainders */
    uint64_t hbm_bytes;
} outcome;

static uint64_t hash_state(const model *m)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int32_t i = 0; i < m->instance.decoder.n_params; i++) {
        const ls_param *p = &m->instance.decoder.params[i];
        const int32_t own[] = {p->weight, p->lo, p->m, p->v};
        for (size_t k = 0; k < sizeof own / sizeof own[0]; k++) {
            if (own[k] < 0) continue;
            const uint8_t *at = ls_instance_tensor(&m->instance, own[k]);
            const uint64_t n = ls_tensor_bytes(&m->instance.decoder.tape.tensors[own[k]]);
            for (uint64_t b = 0; b < n; b++) hash = (hash ^ at[b]) * 0x100000001b3u;
        }
    }
    return hash;
}

/* Train without a pause between the segments, save meanwhile, evaluate, drain. */
static void run(const variant *v, const ls_placement *placement, uint64_t seed, outcome *out)
{
    jitter j = {seed, 0};
    const ls_device_clock clock = {jitter_now, jitter_sleep, &j};
    const ls_instance_options how = {.compute_threads = 1,
                                     .optimizer_threads = 1,
                                     .placement = placement,
                                     .in_bytes_per_s = seed != 0 ? 1e9 : 0.0,
                                     .out_bytes_per_s = seed != 0 ? 1e9 : 0.0,
                                     .clock = &clock};
    const ls_decoder_options options = make_options(v);
    model m;

    batch.rows = S * SEQUENCES * v->accumulate;
    open_model_as(&m, &options, &batch, 10000.0, &how);
    ls_weights_random(&m.instance, 5, 0.1);
    assert_int_equal(ls_instance_fill_copies(&m.instance), LS_OK);
    m.control->lr = 1e-2;
    for (int step = 0; step < STEPS; step++) {
        if (step != 1) ls_loss_stats_reset(&m.losses);
        const ls_segment_kind segment = step == 1 ? LS_SEGMENT_STEP_SAVE : LS_SEGMENT_STEP;
        assert_int_equal(ls_instance_submit(&m.instance, segment, &m), LS_OK);
        if (step == 0) continue; /* the next one overlaps its updates, and adds to its losses */
        assert_int_equal(ls_instance_sync(&m.instance), LS_OK);
        out->losses[step] = ls_loss_stats_mean(&m.losses);
    }
    ls_loss_stats_reset(&m.losses);
    assert_int_equal(ls_instance_run(&m.instance, LS_SEGMENT_EVAL, &m), LS_OK);
    out->losses[0] = 0.0;
    out->losses[STEPS] = ls_loss_stats_mean(&m.losses);
    assert_int_equal(ls_instance_run(&m.instance, LS_SEGMENT_DRAIN, &m), LS_OK);
    out->state = hash_state(&m);
    out->hbm_bytes = ls_plan_place_bytes(&m.instance.plan, LS_PLACE_HBM);
    if (placement != NULL) assert_true(ls_plan_hbm_at_least(&options, placement) <= out->hbm_bytes);
    close_model(&m);
}

static void assert_same(const outcome *a, const outcome *b)
{
    assert_memory_equal(a->losses, b->losses, sizeof a->losses);
    assert_int_equal(a->state, b->state);
}

/* Blocks that fit each other, so that every class can be cut into tiles. */
static const variant tiled_variants[] = {
    {LS_DTYPE_BF16, true, true, false, 1, 8, 16, 16, 1, false},
    {LS_DTYPE_F32, true, false, true, 2, 4, 12, 8, 2, false}, /* ragged ends: 48 = 4 x 12; o+x/2 */
    {LS_DTYPE_BF16, false, false, false, 2, 10, 20, 10, 1,
     false}, /* 48 rows: the last chunk has 8 */
    {LS_DTYPE_BF16, true, false, true, 2, 8, 24, 16, 2, true},
    {LS_DTYPE_F32, false, false, false, 1, 8, 8, 24, 3, false},
};

static const variant variants[] = {
    {LS_DTYPE_BF16, true, true, false, 1, 10, 20, 0, 1, false}, /* everything saved */
    {LS_DTYPE_BF16, true, false, true, 2, 48, 48, 0, 3,
     false}, /* one block; tied; accumulated; o+x/3 */
    {LS_DTYPE_F32, false, false, false, 2, 7, 17, 11, 1, false}, /* ragged; nothing saved but x */
    {LS_DTYPE_F32, true, false, true, 1, 16, 16, 16, 2, false},  /* o+x/2 */
    {LS_DTYPE_F32, false, false, false, 1, 16, 24, 16, 4, false},
    {LS_DTYPE_F32, false, false, true, 2, 16, 24, 16, 3, true}, /* layer by layer */
};

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
                    for (uint64_t seed = 0; seed < SEEDS; seed++) {
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
            for (uint64_t seed = 0; seed < SEEDS; seed++) {
                run(&tiled_variants[i], &placement, seed, &placed);
                assert_same(&host, &placed);
            }
            assert_true(placed.hbm_bytes >= least);
            least = placed.hbm_bytes;
        }
    }
}

/* Micro-batches one by one or layer by layer: the sums are taken in the same order. */
static void the_order_of_accumulation_changes_no_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        variant by_sequence = variants[i], by_layer = variants[i];
        outcome sequence, layer;
        by_sequence.accumulate = by_layer.accumulate = ACCUMULATE_MAX;
        by_sequence.tied = by_layer.tied = false; /* a tied gradient adds up in another order */
        by_sequence.layer_major = false;
        by_layer.layer_major = true;
        run(&by_sequence, NULL, 0, &sequence);
        run(&by_layer, NULL, 0, &layer);
        assert_same(&sequence, &layer);
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
    refuse(machine, &(ls_placement_wish){.ring_slots = 1}, LS_ERR_INVALID, "memory.ring_slots: 1");
    refuse(machine, &(ls_placement_wish){.ring_slots = 65}, LS_ERR_INVALID, "2 to 64");
    refuse(machine, &(ls_placement_wish){.place_given[LS_CLASS_M] = true, .places = {0}},
           LS_ERR_INVALID, "memory.place.m: hbm");
    refuse(
        machine,
        &(ls_placement_wish){.place_given[LS_CLASS_M] = true, .places[LS_CLASS_M] = LS_PLACE_NVME},
        LS_ERR_UNSUPPORTED, "memory.place.m: nvme");
    free(machine);
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
        cmocka_unit_test(the_order_of_accumulation_changes_no_bit),
        cmocka_unit_test(every_class_may_be_moved),
        cmocka_unit_test(layers_may_be_moved),
        cmocka_unit_test(senseless_wishes_are_refused),
        cmocka_unit_test(every_class_has_a_reason),
    };

    fill_batch_data();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
