/*
 * test_arena_use.c - a run touches the bytes that its plan counts, all of them, and no other.
 *
 * The arenas are filled with a pattern, all segments run, and what is still the pattern has not
 * been written.  A second run over the complement tells bytes that were written with the pattern's
 * own value.
 */
#include "model_test.h"
#include "topology.h"

/* Sizes that leave a gap behind almost every tensor, for what is written beyond it. */
enum { S = 23, SEQUENCES = 2, ACCUMULATE = 2, V = 19, ROWS = S * SEQUENCES * ACCUMULATE };

static const ls_segment_kind segments[] = {LS_SEGMENT_STEP, LS_SEGMENT_STEP_SAVE, LS_SEGMENT_EVAL,
                                           LS_SEGMENT_DRAIN};

/* Told apart at every distance that tensors are apart. */
static unsigned char pattern_at(uint64_t byte, bool complement)
{
    const unsigned char value = (unsigned char)((byte + 1) * UINT64_C(0x9e3779b97f4a7c15) >> 56);
    return complement ? (unsigned char)~value : value;
}

static void make_batch(model_batch *batch)
{
    static int32_t tokens[ROWS], targets[ROWS];
    static int64_t positions[ROWS], doc_start[ROWS];

    for (int64_t n = 0; n < ROWS; n++) {
        tokens[n] = (int32_t)ls_rng_below(5, 0, (uint64_t)n, V);
        targets[n] = (int32_t)ls_rng_below(5, 1, (uint64_t)n, V);
        positions[n] = n % S;
        doc_start[n] = n / S * S;
    }
    *batch = (model_batch){ROWS, tokens, targets, positions, doc_start};
}

/* What a run writes before its first step, over the pattern. */
static void set_state(model *m)
{
    const ls_decoder *d = &m->instance.decoder;

    ls_weights_rope_table(&m->instance, &(ls_rope_scaling){.theta = 10000.0}, S);
    ls_weights_random(&m->instance, 11, 0.1);
    if (!d->options.train) return;
    m->control = ls_instance_tensor(&m->instance, d->inputs.control);
    *m->control = (ls_update_control){.beta1_power = 1.0, .beta2_power = 1.0, .lr = 1e-2};
    for (int32_t i = 0; i < d->n_params; i++) {
        const int32_t moments[] = {d->params[i].m, d->params[i].v};
        for (int s = 0; s < 2; s++)
            memset(ls_instance_tensor(&m->instance, moments[s]), 0,
                   ls_tensor_bytes(&d->tape.tensors[moments[s]]));
    }
}

/* The bytes of one arena, and which of them were touched, and belong to a tensor. */
typedef struct arena_use {
    unsigned char *bytes, *touched, *owned;
    uint64_t size_bytes;
} arena_use;

/* Marks as touched what differs from the pattern after a run. */
static void run_over_pattern(model *m, bool complement, arena_use *uses)
{
    for (int32_t a = 0; a < m->instance.plan.n_arenas; a++)
        for (uint64_t i = 0; i < uses[a].size_bytes; i++)
            uses[a].bytes[i] = pattern_at(i, complement);
    set_state(m);
    assert_int_equal(ls_instance_fill_copies(&m->instance), LS_OK);
    for (size_t s = 0; s < sizeof segments / sizeof segments[0]; s++) {
        if (m->instance.plan.segment_steps[segments[s]] == 0) continue;
        assert_int_equal(ls_instance_run(&m->instance, segments[s], m), LS_OK);
    }
    for (int32_t a = 0; a < m->instance.plan.n_arenas; a++)
        for (uint64_t i = 0; i < uses[a].size_bytes; i++)
            if (uses[a].bytes[i] != pattern_at(i, complement)) uses[a].touched[i] = 1;
}

/* What a step touches has been written; `owned` gets the bytes of all tensors. */
static void check_operand(const ls_plan *plan, const ls_step_operand *o, const arena_use *uses)
{
    if (o->tensor < 0) return;
    const arena_use *use = &uses[o->span.arena];
    for (uint64_t i = o->span.offset; i < o->span.offset + o->span.bytes; i++)
        if (!use->touched[i])
            fail_msg("%s: byte %llu of %llu is never written", plan->tensors[o->tensor].tensor.name,
                     (unsigned long long)(i - plan->tensors[o->tensor].span.offset),
                     (unsigned long long)plan->tensors[o->tensor].span.bytes);
}

static void own_tensor(const ls_plan_tensor *t, const arena_use *uses)
{
    memset(uses[t->span.arena].owned + t->span.offset, 1, t->span.bytes);
}

static void open_uses(const ls_instance *instance, arena_use *uses)
{
    for (int32_t a = 0; a < instance->plan.n_arenas; a++) {
        const ls_arena_info arena = ls_arena_describe(instance->arenas[a]);
        uses[a] = (arena_use){.bytes = arena.base,
                              .size_bytes = arena.size_bytes,
                              .touched = calloc(arena.size_bytes, 1),
                              .owned = calloc(arena.size_bytes, 1)};
        assert_non_null(uses[a].touched);
        assert_non_null(uses[a].owned);
    }
}

static void check_arena(const arena_use *use, uint64_t plan_bytes)
{
    uint64_t end = 0, gap = 0;

    for (uint64_t i = 0; i < use->size_bytes; i++) {
        if (use->touched[i] && !use->owned[i])
            fail_msg("byte %llu is no tensor's", (unsigned long long)i);
        if (use->touched[i]) end = i + 1;
        gap = use->owned[i] ? 0 : gap + 1;
        if (i < plan_bytes && gap >= LS_ARENA_ALIGN)
            fail_msg("bytes up to %llu are no tensor's", (unsigned long long)i);
    }
    assert_in_range(end, plan_bytes - LS_ARENA_ALIGN + 1, plan_bytes);
}

static void check_placed_use(const ls_decoder_options *options, const ls_placement *placement)
{
    const ls_instance_options instance = {
        .compute_threads = 1,
        .optimizer_threads = 1,
        .placement = placement,
        .nvme_path = LS_BINARY_DIR,
        .calls = {[LS_CALL_BATCH] = fill_model_batch, [LS_CALL_LOSS] = collect_model_losses}};
    model_batch batch;
    model m = {.batch = &batch};
    arena_use uses[LS_PLACE_COUNT];

    make_batch(&batch);
    assert_int_equal(ls_instance_open(options, &instance, &m.instance), LS_OK);
    assert_int_equal(ls_loss_stats_open(&(ls_loss_stats_options){.sequence_tokens = S}, &m.losses),
                     LS_OK);
    const ls_plan *plan = &m.instance.plan;
    open_uses(&m.instance, uses);
    run_over_pattern(&m, false, uses);
    run_over_pattern(&m, true, uses);
    for (int32_t i = 0; i < plan->n_tensors; i++) own_tensor(&plan->tensors[i], uses);
    for (int64_t i = 0; i < plan->n_operands; i++) check_operand(plan, &plan->operands[i], uses);
    for (int32_t a = 0; a < plan->n_arenas; a++) {
        check_arena(&uses[a], plan->arenas[a].bytes);
        free(uses[a].touched);
        free(uses[a].owned);
    }
    close_model(&m);
}

/* Classes from the remainders up to that one lie in a file. */
static void place_in_file(ls_placement *placement, ls_tensor_class last)
{
    for (int class = LS_CLASS_LO; class <= (int)last; class ++)
        placement->classes[class].place = LS_PLACE_NVME;
}

/* In host memory alone; then with device memory, weights resident, streamed and in place; with a
 * file, with device memory and without. */
static void check_use(const ls_decoder_options *options)
{
    ls_topology *machine = calloc(1, sizeof *machine);
    ls_placement placement;

    assert_non_null(machine);
    machine->n_places = 1;
    machine->places[0] = (ls_place){.kind = LS_PLACE_HBM, .name = "hbm0"};
    check_placed_use(options, NULL);
    for (int mode = 0; mode < LS_MODE_COUNT; mode++) {
        const ls_placement_wish wish = {
            .weights_given = true, .weights = (ls_place_mode)mode, .ring_slots = 7};
        assert_int_equal(ls_placement_decide(machine, &wish, &placement), LS_OK);
        check_placed_use(options, &placement);
    }
    for (int class = LS_CLASS_X; class <= LS_CLASS_DKV; class ++) { /* all that can be cut */
        placement.classes[class].place = LS_PLACE_HOST;
        placement.classes[class].mode = LS_MODE_STREAM;
        placement.tiled[class] = true;
        placement.tiles[class] = class - LS_CLASS_X;
    }
    check_placed_use(options, &placement);
    place_in_file(&placement, LS_CLASS_GRAD); /* of what can be cut the last may never leave */
    check_placed_use(options, &placement);
    ls_placement_host(&placement);
    place_in_file(&placement, LS_CLASS_DKV);
    check_placed_use(options, &placement);
    free(machine);
}

static ls_decoder_options make_options(void)
{
    return (ls_decoder_options){
        .shape = {.V = V, .D = 16, .F = 22, .L = 2, .H = 2, .G = 1, .K = 8, .eps = 1e-5f},
        .dtype = LS_DTYPE_BF16,
        .S = S,
        .sequences = SEQUENCES,
        .accumulate = ACCUMULATE,
        .chunk = 7,
        .query_block = 16,
        .loss_rows = 5,
        .train = true,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .adam_eps = 1e-8f,
        .weight_decay = 0.1f,
        .clip_norm = 1.0f};
}

static void test_bf16(void **state)
{
    const ls_decoder_options o = make_options();
    (void)state;
    check_use(&o);
}

static void test_fp32_tied(void **state)
{
    ls_decoder_options o = make_options();
    (void)state;
    o.dtype = LS_DTYPE_F32;
    o.shape.tied = true;
    check_use(&o);
}

static void test_saved_attention(void **state)
{
    ls_decoder_options o = make_options();
    (void)state;
    o.save_o = true;
    check_use(&o);
    o.save_qkv = true;
    check_use(&o);
}

static void test_tiles(void **state)
{
    ls_decoder_options o = make_options();
    (void)state;
    o.chunk = 8;
    o.key_block = o.query_block;
    check_use(&o);
    o.save_o = o.save_qkv = true;
    o.x_stride = 2;
    check_use(&o);
}

static void test_one_chunk(void **state)
{
    ls_decoder_options o = make_options();
    (void)state;
    o.chunk = o.query_block = o.loss_rows = S * SEQUENCES;
    check_use(&o);
}

static void test_evaluation_alone(void **state)
{
    ls_decoder_options o = make_options();
    (void)state;
    o.train = false;
    check_use(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_fp32_tied),
        cmocka_unit_test(test_saved_attention),
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_one_chunk),
        cmocka_unit_test(test_evaluation_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
