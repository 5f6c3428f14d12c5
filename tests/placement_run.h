/*
 * placement_run.h - a small model trained, saved and evaluated under a placement, with copies that
 * are late at random, and what came out of it.
 *
 * "Device memory" is a second arena, a disk a file; memory starts as NaN, so what is read before it
 * was copied shows.
 *
 * Layer: tests.  Header only.
 */
#ifndef LS_PLACEMENT_RUN_H
#define LS_PLACEMENT_RUN_H

#include <stdatomic.h>
#include <time.h>

#include "model_test.h"
#include "placement_test.h"
#include "plan_bound.h"

enum { S = 24, SEQUENCES = 2, ACCUMULATE_MAX = 2, V = 19, ROWS = S * SEQUENCES * ACCUMULATE_MAX };
enum { STEPS = 3 };

enum { SEEDS = 3 }; /* of delays; 0: none */

#ifdef LS_SANITIZED /* by turns one of them, and one of other choices */
enum { BY_TURNS = 1, SEEDS_STEP = SEEDS };
#else
enum { BY_TURNS = 0, SEEDS_STEP = 1 };
#endif

/* Seeds are this one and each SEEDS_STEP further. */
static inline uint64_t first_seed(void)
{
    static uint64_t n;
    return n++ % SEEDS_STEP;
}

static int32_t tokens[ROWS], targets[ROWS];
static int64_t positions[ROWS], doc_start[ROWS];
static model_batch batch = {ROWS, tokens, targets, positions, doc_start};

/* Two documents in every sequence; some rows without a label. */
static inline void fill_batch_data(void)
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
    bool bf16_gradients;
} variant;

static inline ls_decoder_options make_options(const variant *v)
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
        .gradients = v->bf16_gradients ? LS_DTYPE_BF16 : LS_DTYPE_F32,
    };
}

/* ---- clocks that delay copies --------------------------------------------------------------- */

typedef struct jitter {
    uint64_t seed;
    atomic_uint_fast64_t n;
} jitter;

static inline uint64_t jitter_now(void *context)
{
    (void)context;
    return 0;
}

static inline void jitter_sleep(void *context, uint64_t ns)
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
    uint64_t hbm_bytes, host_bytes, nvme_bytes;
} outcome;

static inline uint64_t hash_state(const model *m)
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

/* With a device no kernel reads a file in place, nor does anything but copies cross over to it. */
static inline void check_file(const ls_plan *plan)
{
    for (int64_t s = 0; s < plan->n_steps; s++) {
        const ls_step *step = &plan->steps[s];
        for (int32_t i = 0; i < step->n_operands; i++) {
            const ls_span *span = &plan->operands[step->first_operand + i].span;
            if (span->arena < 0 || plan->arenas[span->arena].place != LS_PLACE_NVME) continue;
            if (ls_plan_place_bytes(plan, LS_PLACE_HBM) > 0)
                assert_int_not_equal(step->lane, LS_LANE_COMPUTE);
        }
    }
}

/* Train without a pause between the segments, save meanwhile, evaluate, drain. */
static inline void run(const variant *v, const ls_placement *placement, uint64_t seed, outcome *out)
{
    jitter j = {seed, 0};
    const ls_device_clock clock = {jitter_now, jitter_sleep, &j};
    const ls_instance_options how = {.compute_threads = 1,
                                     .optimizer_threads = 1,
                                     .placement = placement,
                                     .in_bytes_per_s = seed != 0 ? 1e9 : 0.0,
                                     .out_bytes_per_s = seed != 0 ? 1e9 : 0.0,
                                     .clock = &clock,
                                     .nvme_path = LS_BINARY_DIR};
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
    out->host_bytes = ls_plan_place_bytes(&m.instance.plan, LS_PLACE_HOST);
    out->nvme_bytes = ls_plan_place_bytes(&m.instance.plan, LS_PLACE_NVME);
    check_file(&m.instance.plan);
    close_model(&m);
}

static inline void assert_same(const outcome *a, const outcome *b)
{
    assert_memory_equal(a->losses, b->losses, sizeof a->losses);
    assert_int_equal(a->state, b->state);
}

/* Blocks that fit each other, so that every class can be cut into tiles. */
static const variant tiled_variants[] = {
    {LS_DTYPE_BF16, true, true, false, 1, 8, 16, 16, 1, false, false},
    {LS_DTYPE_F32, true, false, true, 2, 4, 12, 8, 2, false,
     false}, /* ragged ends: 48 = 4 x 12; o+x/2 */
    {LS_DTYPE_BF16, false, false, false, 2, 10, 20, 10, 1, false,
     false}, /* 48 rows: the last chunk has 8 */
    {LS_DTYPE_BF16, true, false, true, 2, 8, 24, 16, 2, true, false},
    {LS_DTYPE_F32, false, false, false, 1, 8, 8, 24, 3, false, false},
};

static const variant variants[] = {
    {LS_DTYPE_BF16, true, true, false, 1, 10, 20, 0, 1, false, false}, /* everything saved */
    {LS_DTYPE_BF16, true, false, true, 2, 48, 48, 0, 3, false,
     false}, /* one block; tied; accumulated; o+x/3 */
    {LS_DTYPE_F32, false, false, false, 2, 7, 17, 11, 1, false,
     false}, /* ragged; nothing saved but x */
    {LS_DTYPE_F32, true, false, true, 1, 16, 16, 16, 2, false, false}, /* o+x/2 */
    {LS_DTYPE_F32, false, false, false, 1, 16, 24, 16, 4, false, false},
    {LS_DTYPE_F32, false, false, true, 2, 16, 24, 16, 3, true, false}, /* layer by layer */
    {LS_DTYPE_BF16, true, false, false, 2, 16, 48, 0, 1, false, true},
    {LS_DTYPE_BF16, false, false, true, 2, 16, 48, 0, 2, true, true},
};

#endif
