/*
 * test_device_updates.c - layers updated where they compute: the losses, norms, skipped steps and
 * saved bytes of updates by the host, wherever weights lie and however gradients come.
 */
#include "model_test.h"
#include "placement_test.h"

/* The same on an emulated GPU, whose memory the host cannot touch. */
#if defined(LS_TEST_CUDA)
#define OPEN_DEVICE ls_device_open_cuda
#else
#define OPEN_DEVICE ls_device_open_cpu
#endif

enum { V = 23, L = 3, S = 12, MICRO_BATCHES = 2, STEPS = 4, POISONED = 1, SAVED = 2 };

static int32_t tokens[S * MICRO_BATCHES], targets[S * MICRO_BATCHES];
static int64_t positions[S * MICRO_BATCHES], doc_start[S * MICRO_BATCHES];

static int prepare(void **state)
{
    (void)state;
    for (int64_t n = 0; n < S * MICRO_BATCHES; n++) {
        tokens[n] = (int32_t)ls_rng_below(7, 1, (uint64_t)n, V);
        targets[n] = n % 5 == 3 ? LS_TARGET_IGNORE : (int32_t)ls_rng_below(7, 2, (uint64_t)n, V);
        doc_start[n] = n - n % S;
        positions[n] = n % S;
    }
    return 0;
}

/* ---- runs ---------------------------------------------------------------------------------- */

/* What training may depend on, and must not. */
typedef struct run_kind {
    ls_dtype dtype, gradients;
    int64_t accumulate;
    bool layer_major, frozen; /* frozen: a matrix of the first layer, and all of the second */
} run_kind;

typedef struct outcome {
    double losses[STEPS], norms[STEPS];
    int64_t updates, skipped;
    uint64_t saved[2]; /* of the segment that saves meanwhile, of the drain */
} outcome;

static bool poisoned;  /* the next step's gradients are infinite */
static uint64_t saved; /* of all tensors saved since it was set */

static ls_status fill_batch(void *context, int64_t micro_batch)
{
    const model *m = context;

    LS_TRY(fill_model_batch(context, micro_batch));
    if (poisoned)
        *(float *)ls_instance_tensor(&m->instance, m->instance.decoder.inputs.loss_scale) =
            INFINITY;
    return LS_OK;
}

static ls_status hash_tensor(void *context, int64_t tensor)
{
    const model *m = context;
    const uint8_t *bytes = ls_instance_tensor(&m->instance, (int32_t)tensor);
    const uint64_t n = ls_tensor_bytes(&m->instance.decoder.tape.tensors[tensor]);

    for (uint64_t b = 0; b < n; b++) saved = (saved ^ bytes[b]) * 0x100000001b3u;
    return LS_OK;
}

static void freeze(void *context, const char *name, ls_param *param)
{
    const run_kind *kind = context;
    param->frozen = kind->frozen && (strstr(name, "layers.0.mlp.up_proj") != NULL ||
                                     strstr(name, "layers.1.") != NULL);
}

static uint64_t run_saving(model *m, ls_segment_kind segment)
{
    saved = 0xcbf29ce484222325u;
    m->control->lr = 3e-3;
    ls_loss_stats_reset(&m->losses);
    assert_int_equal(ls_instance_run(&m->instance, segment, m), LS_OK);
    return saved;
}

/* Steps of which one is skipped and one saves, then a drain. */
static void train(const run_kind *kind, const ls_placement *placement, outcome *out)
{
    const model_batch batch = {S * kind->accumulate, tokens, targets, positions, doc_start};
    const bool on_device = placement != NULL && placement->has_device;
    const ls_instance_options how = {.placement = placement,
                                     .open_device = on_device ? OPEN_DEVICE : NULL,
                                     .compute_threads = 1,
                                     .optimizer_threads = 1};
    ls_decoder_options options = tiny_options(V, L, S, kind->accumulate);
    model m;

    options.dtype = kind->dtype;
    options.gradients = kind->gradients;
    options.layer_major = kind->layer_major;
    options.param_rule = freeze;
    options.param_context = (void *)(uintptr_t)kind;
    options.clip_norm = 0.5f;
    memset(out, 0, sizeof *out);
    open_model_as(&m, &options, &batch, 10000.0, &how);
    m.instance.calls[LS_CALL_BATCH] = fill_batch;
    m.instance.calls[LS_CALL_SAVE] = hash_tensor;
    ls_weights_random(&m.instance, 5, 0.1);
    assert_int_equal(ls_instance_fill_copies(&m.instance), LS_OK);
    for (int step = 0; step < STEPS; step++) {
        poisoned = step == POISONED;
        const uint64_t hash =
            run_saving(&m, step == SAVED ? LS_SEGMENT_STEP_SAVE : LS_SEGMENT_STEP);
        out->losses[step] = ls_loss_stats_mean(&m.losses);
        out->norms[step] = step == POISONED ? 0.0 : m.control->grad_norm;
        if (step == SAVED) out->saved[0] = hash;
    }
    poisoned = false;
    out->updates = m.control->updates;
    out->skipped = m.control->skipped;
    out->saved[1] = run_saving(&m, LS_SEGMENT_DRAIN);
    close_model(&m);
}

static ls_placement place(ls_place_mode mode, int64_t ring_slots, bool coherent, int64_t layers)
{
    const ls_placement_wish wish = {
        .weights_given = true, .weights = mode, .ring_slots = ring_slots, .device_layers = layers};
    ls_placement placement;

    decide_placement(coherent, &wish, &placement);
    return placement;
}

/* ---- the same bits ------------------------------------------------------------------------- */

static const run_kind kinds[] = {
    {LS_DTYPE_BF16, LS_DTYPE_F32, 1, false, false}, {LS_DTYPE_F32, LS_DTYPE_F32, 1, false, false},
    {LS_DTYPE_BF16, LS_DTYPE_BF16, 1, false, true}, {LS_DTYPE_BF16, LS_DTYPE_F32, 2, false, false},
    {LS_DTYPE_F32, LS_DTYPE_BF16, 2, false, true},  {LS_DTYPE_BF16, LS_DTYPE_F32, 2, true, false},
};

static const struct where {
    ls_place_mode mode;
    int64_t ring_slots;
} places[] = {{LS_MODE_RESIDENT, 0}, {LS_MODE_STREAM, 1}, {LS_MODE_STREAM, 3}, {LS_MODE_DIRECT, 0}};

/* Whether a number of layers is tried with a kind of run and a place; kinds meet all of them. */
static bool is_tried(size_t kind, size_t where, int64_t layers)
{
#if defined(LS_TEST_CUDA) || defined(LS_SANITIZED)
    return layers == 1 + (int64_t)(kind + where) % L;
#else
    (void)kind;
    (void)where;
    return layers > 0 || where > 0;
#endif
}

static void the_host_has_the_same_bits(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        outcome host, device;
        const ls_placement alone = place(LS_MODE_RESIDENT, 0, true, 0);
        train(&kinds[k], &alone, &host);
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++)
            for (int64_t layers = 0; layers <= L; layers++) {
                const ls_placement placement =
                    place(places[p].mode, places[p].ring_slots, (k + p) % 2 == 0, layers);
                if (!is_tried(k, p, layers)) continue;
                train(&kinds[k], &placement, &device);
                assert_memory_equal(&device, &host, sizeof host);
            }
        assert_int_equal(host.updates, STEPS - 1);
        assert_int_equal(host.skipped, 1);
        assert_true(host.norms[0] > 0.5); /* it is clipped */
        assert_true(host.saved[0] != host.saved[1]);
    }
}

/* Where there is no device memory, states lie with all others and the updates run all the same. */
static void so_has_a_machine_without_device_memory(void **state)
{
    ls_placement placement;
    outcome host, device;

    (void)state;
    train(&kinds[0], NULL, &host);
    assert_int_equal(
        ls_placement_decide(NULL, &(ls_placement_wish){.device_layers = 2}, &placement), LS_OK);
    train(&kinds[0], &placement, &device);
    assert_memory_equal(&device, &host, sizeof host);
}

/* ---- where they run, and what lies there --------------------------------------------------- */

static void lower(const ls_placement *placement, ls_plan *plan)
{
    const ls_decoder_options options = tiny_options(V, L, S, 1);
    ls_decoder decoder;

    assert_int_equal(ls_decoder_build(&options, &decoder), LS_OK);
    assert_int_equal(ls_plan_lower(&decoder.tape, placement, &ls_ops_cpu, plan), LS_OK);
    ls_decoder_free(&decoder);
    if (ls_plan_check(plan, NULL) != LS_OK) fail_msg("%s", ls_error());
}

/* Bytes of states that a segment copies to the host. */
static uint64_t count_states_out(const ls_plan *plan, ls_segment_kind segment)
{
    const int64_t first = plan->segment_first[segment];
    uint64_t bytes = 0;

    for (int64_t s = first; s < first + plan->segment_steps[segment]; s++) {
        const ls_step *step = &plan->steps[s];
        if (step->kind != LS_CALL_COPY || step->lane != LS_LANE_COPY_OUT) continue;
        const ls_tensor *to = &plan->tensors[plan->operands[step->first_operand].tensor].tensor;
        if (to->role <= LS_ROLE_V) bytes += step->bytes / 2;
    }
    return bytes;
}

static void updates_of_the_first_layers_run_on_the_device(void **state)
{
    const ls_placement placement = place(LS_MODE_RESIDENT, 0, true, 2);
    uint64_t states = 0;
    int64_t n[2] = {0, 0};
    ls_plan plan;

    (void)state;
    lower(&placement, &plan);
    for (int64_t s = 0;
         s < plan.segment_first[LS_SEGMENT_STEP] + plan.segment_steps[LS_SEGMENT_STEP]; s++) {
        const ls_step *step = &plan.steps[s];
        if (step->kind != LS_CALL_OP || step->op != LS_OP_adamw) continue;
        const bool ours = step->layer == 0 || step->layer == 1;
        n[ours]++;
        assert_int_equal(step->lane, ours ? LS_LANE_COMPUTE : LS_LANE_HOST);
        for (int32_t o = 0; o < 7; o++) { /* all but the control */
            const ls_span *span = &plan.operands[step->first_operand + o].span;
            if (span->arena < 0) continue;
            assert_int_equal(plan.arenas[span->arena].place, ours ? LS_PLACE_HBM : LS_PLACE_HOST);
            if (ours && o < 4) states += span->bytes;
        }
    }
    assert_true(n[false] == 3 + 9 && n[true] == 2 * 9);
    assert_int_equal(ls_plan_role_bytes(&plan, LS_PLACE_HBM, LS_ROLE_M) * 2 +
                         ls_plan_role_bytes(&plan, LS_PLACE_HBM, LS_ROLE_LO),
                     states / 12 * 10); /* of 2 + 2 + 4 + 4 bytes, those but the weights */
    assert_int_equal(count_states_out(&plan, LS_SEGMENT_STEP), 0);
    assert_int_equal(count_states_out(&plan, LS_SEGMENT_EVAL), 0);
    assert_int_equal(count_states_out(&plan, LS_SEGMENT_STEP_SAVE), states);
    assert_int_equal(count_states_out(&plan, LS_SEGMENT_DRAIN), states);
    ls_plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_has_the_same_bits),
        cmocka_unit_test(so_has_a_machine_without_device_memory),
        cmocka_unit_test(updates_of_the_first_layers_run_on_the_device),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
