/*
 * test_cuda_model.c - a model of two layers trains on the emulated GPU, in every weights mode and
 * save policy: with the losses of the CPU, and with the same bits whatever order its streams run
 * in and wherever its weights lie.
 */
#include "emulation.h"
#include "model_test.h"
#include "placement_test.h"

enum { S = 192, V = 61, STEPS = 5, FEW_TOKENS = 40, FEW_STEPS = 2 };

/* A sanitizer looks at memory, not at arithmetic: it sees a share of the orders and policies. */
#if defined(LS_SANITIZED)
enum { ORDERS = 10, EVERY_POLICY = 3 };
#else
enum { ORDERS = 50, EVERY_POLICY = 1 };
#endif

static int32_t tokens[S], targets[S];
static int64_t positions[S], doc_start[S];
static model_batch batch = {0, tokens, targets, positions, doc_start};

/* Two documents, the second longer; some rows without a label. */
static void fill_batch_data(void)
{
    for (int64_t n = 0; n < S; n++) {
        tokens[n] = (int32_t)(ls_rng_u64(7, 1, (uint64_t)n) % V);
        targets[n] = n % 7 == 3 ? -100 : (int32_t)((tokens[n] * 5 + 3) % V);
        doc_start[n] = n < 70 ? 0 : 70;
        positions[n] = n - doc_start[n];
    }
}

/* What backward finds saved. */
typedef struct policy {
    const char *name;
    bool save_o, save_qkv;
    int64_t x_stride;
} policy;

static const policy policies[] = {{"x", false, false, 1},
                                  {"x+o", true, false, 1},
                                  {"o+x/2", true, false, 2},
                                  {"x+qkv+o", true, true, 1},
                                  {"x/2", false, false, 2}};

static ls_dtype gradients = LS_DTYPE_F32; /* of the next model, as its micro-batches */
static int64_t accumulate = 1;

static ls_decoder_options make_options(const policy *p, ls_dtype dtype, int64_t n_tokens)
{
    return (ls_decoder_options){
        .shape = {.V = V, .D = 64, .F = 96, .L = 2, .H = 4, .G = 2, .K = 16, .eps = 1e-5f},
        .dtype = dtype,
        .S = n_tokens,
        .sequences = 1,
        .accumulate = accumulate,
        .gradients = gradients,
        .chunk = n_tokens / 3,
        .query_block = n_tokens / 2,
        .key_block = n_tokens / 3,
        .loss_rows = n_tokens / 4,
        .train = true,
        .save_o = p->save_o,
        .save_qkv = p->save_qkv,
        .x_stride = p->x_stride,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .adam_eps = 1e-8f,
        .weight_decay = 0.1f,
        .clip_norm = 1.0f,
    };
}

typedef struct outcome {
    double losses[STEPS];
    uint64_t state; /* a hash of all weights, moments and remainders */
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

/* mode LS_MODE_COUNT: on the CPU, all in host memory. */
static void train_on(int64_t n_tokens, int steps, const policy *p, ls_dtype dtype,
                     ls_place_mode mode, bool coherent, outcome *out)
{
    const ls_placement placement =
        place_weights(mode < LS_MODE_COUNT ? mode : LS_MODE_STREAM, coherent);
    const ls_instance_options on_gpu = {.open_device = ls_device_open_cuda,
                                        .placement = &placement,
                                        .compute_threads = 1,
                                        .optimizer_threads = 1};
    const ls_instance_options on_cpu = {.compute_threads = 1, .optimizer_threads = 1};
    const ls_decoder_options options = make_options(p, dtype, n_tokens);

    model m;

    memset(out, 0, sizeof *out);
    batch.rows = n_tokens * accumulate;
    open_model_as(&m, &options, &batch, 10000.0, mode < LS_MODE_COUNT ? &on_gpu : &on_cpu);
    ls_weights_random(&m.instance, 5, 0.1);
    assert_int_equal(ls_instance_fill_copies(&m.instance), LS_OK);
    for (int step = 0; step < steps; step++) out->losses[step] = step_model(&m, 3e-3);
    out->state = hash_state(&m);
    close_model(&m);
}

static void train(const policy *p, ls_dtype dtype, ls_place_mode mode, bool coherent, outcome *out)
{
    train_on(S, STEPS, p, dtype, mode, coherent, out);
}

static void assert_same(const outcome *a, const outcome *b)
{
    assert_memory_equal(a->losses, b->losses, sizeof a->losses);
    assert_int_equal(a->state, b->state);
}

static void assert_near(const outcome *a, const outcome *cpu, double tolerance)
{
    for (int step = 0; step < STEPS; step++) {
        const double error = fabs(a->losses[step] / cpu->losses[step] - 1.0);
        if (!(error <= tolerance))
            print_error("step %d: loss %.7f, the CPU's %.7f\n", step, a->losses[step],
                        cpu->losses[step]);
        assert_true(error <= tolerance);
    }
    assert_true(cpu->losses[STEPS - 1] < 0.97 * cpu->losses[0]); /* it learns */
}

static void every_mode_and_policy_trains_as_the_cpu_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i += EVERY_POLICY) {
        outcome cpu, first, other;
        ls_emulation_seed(i);
        train(&policies[i], LS_DTYPE_BF16, LS_MODE_COUNT, false, &cpu);
        train(&policies[i], LS_DTYPE_BF16, LS_MODE_DIRECT, i % 2 != 0, &first);
        assert_near(&first, &cpu, 2e-3);
        for (int mode = LS_MODE_DIRECT + 1; mode < LS_MODE_COUNT; mode++) {
            train(&policies[i], LS_DTYPE_BF16, (ls_place_mode)mode, (mode + (int)i) % 2 != 0,
                  &other);
            assert_same(&other, &first);
        }
    }
}

static void fp32_trains_as_the_cpu_does(void **state)
{
    outcome cpu, gpu;

    (void)state;
    train(&policies[1], LS_DTYPE_F32, LS_MODE_COUNT, false, &cpu);
    train(&policies[1], LS_DTYPE_F32, LS_MODE_STREAM, true, &gpu);
    assert_near(&gpu, &cpu, 2e-5);
}

static void any_order_of_the_streams_gives_the_same_bits(void **state)
{
    outcome first, other;
    const uint64_t before = ls_emulation_count().overtakings;

    (void)state;
    train_on(FEW_TOKENS, FEW_STEPS, &policies[2], LS_DTYPE_BF16, LS_MODE_STREAM, false, &first);
    for (uint64_t seed = 0; seed < ORDERS; seed++) {
        ls_emulation_seed(1000 + seed);
        train_on(FEW_TOKENS, FEW_STEPS, &policies[2], LS_DTYPE_BF16, LS_MODE_STREAM, false, &other);
        assert_same(&other, &first);
    }
    assert_true(ls_emulation_count().overtakings > before + 20 * ORDERS); /* orders did differ */
}

/* Each leaves in the type that is asked for and is added on the host, in any order of the streams.
 */
static void gradients_of_micro_batches_are_added_on_the_host(void **state)
{
    static const ls_place_mode modes[] = {LS_MODE_STREAM, LS_MODE_RESIDENT, LS_MODE_STREAM};

    (void)state;
    for (int64_t n = 0; n < S; n++) {
        positions[n] = n % FEW_TOKENS;
        doc_start[n] = n - positions[n];
    }
    accumulate = 3;
    for (int rounded = 0; rounded < 2; rounded++) {
        outcome cpu, first, other;
        gradients = rounded ? LS_DTYPE_BF16 : LS_DTYPE_F32;
        train_on(FEW_TOKENS, FEW_STEPS, &policies[1], LS_DTYPE_BF16, LS_MODE_COUNT, false, &cpu);
        for (int i = 0; i < 3; i++) {
            ls_emulation_seed(2000 + (uint64_t)i);
            train_on(FEW_TOKENS, FEW_STEPS, &policies[1], LS_DTYPE_BF16, modes[i], i == 1,
                     i == 0 ? &first : &other);
            if (i > 0) assert_same(&other, &first);
        }
        for (int step = 0; step < FEW_STEPS; step++)
            assert_true(fabs(first.losses[step] / cpu.losses[step] - 1.0) <= 2e-3);
    }
    gradients = LS_DTYPE_F32;
    accumulate = 1;
    fill_batch_data();
}

static int prepare(void **state)
{
    (void)state;
    fill_batch_data();
    return 0;
}

/* The lane between devices: no step is on it yet, but a copy within the GPU's memory runs there. */
static void comm_is_a_stream(void **state)
{
    const ls_placement placement = place_weights(LS_MODE_RESIDENT, true);
    const ls_instance_options on_gpu = {.open_device = ls_device_open_cuda,
                                        .placement = &placement,
                                        .compute_threads = 1,
                                        .optimizer_threads = 1};
    const ls_decoder_options options = make_options(&policies[0], LS_DTYPE_BF16, FEW_TOKENS);
    model m;
    int64_t failed;
    int32_t copy = 0;

    (void)state;
    batch.rows = FEW_TOKENS;
    open_model_as(&m, &options, &batch, 10000.0, &on_gpu);
    ls_weights_random(&m.instance, 5, 0.1);
    assert_int_equal(ls_instance_fill_copies(&m.instance), LS_OK);
    while (m.instance.plan.tensors[copy].source < 0) copy++; /* the first resident weight */
    assert_int_equal(ls_device_submit_copy(m.instance.device, LS_LANE_COMM, -1,
                                           ls_instance_tensor(&m.instance, copy + 1),
                                           ls_instance_tensor(&m.instance, copy), 64),
                     LS_OK);
    assert_int_equal(ls_device_submit_wait(m.instance.device, LS_LANE_COMPUTE, LS_LANE_COMM,
                                           ls_device_ticket(m.instance.device, LS_LANE_COMM)),
                     LS_OK);
    assert_int_equal(ls_device_sync(m.instance.device, &failed), LS_OK);
    assert_int_equal(ls_device_stats(m.instance.device, LS_LANE_COMM).copied_bytes, 64);
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comm_is_a_stream),
        cmocka_unit_test(every_mode_and_policy_trains_as_the_cpu_does),
        cmocka_unit_test(fp32_trains_as_the_cpu_does),
        cmocka_unit_test(any_order_of_the_streams_gives_the_same_bits),
        cmocka_unit_test(gradients_of_micro_batches_are_added_on_the_host),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
