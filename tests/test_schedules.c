/*
 * test_schedules.c - whatever the lanes' speeds, and whether tensors lie in host memory or pass
 * through a device's, the results are the same bits.
 *
 * Segments follow each other without a pause, as in training: steps, steps that save, evaluations,
 * a drain.  The linker hands ls_ops_run() to this file (--wrap), which delays ops at random, as the
 * calls of the plan are delayed, and copies by the clock that throttles them; so lanes overtake
 * each other in every way the plan allows.
 *
 *   test_schedules [RUNS [SEED]]
 */
#include <time.h>

#include "model_test.h"
#include "placement_test.h"

enum { S = 8, ACCUMULATE = 2, V = 19, STEPS_MAX = 16 };

static const ls_segment_kind segments[] = {
    LS_SEGMENT_STEP,      LS_SEGMENT_STEP_SAVE, LS_SEGMENT_EVAL,  LS_SEGMENT_STEP,
    LS_SEGMENT_EVAL,      LS_SEGMENT_EVAL,      LS_SEGMENT_STEP,  LS_SEGMENT_STEP,
    LS_SEGMENT_STEP_SAVE, LS_SEGMENT_STEP_SAVE, LS_SEGMENT_DRAIN,
};
#define N_SEGMENTS ((int)(sizeof segments / sizeof segments[0]))

static int n_runs = 200;
static uint64_t base_seed = 1;

/* ---- delays -------------------------------------------------------------------------------- */

static uint64_t delay_seed; /* 0: none; set while the lanes are idle */
static int slow_lane;       /* one lane is slower than the others */
static _Thread_local uint64_t n_delays;

/* One in 16 operations sleeps; on the slow lane each does. */
static void delay(int lane)
{
    if (delay_seed == 0) return;
    const uint64_t draw = ls_rng_u64(delay_seed, (uint64_t)lane, n_delays++);
    if (draw % 16 != 0 && lane != slow_lane) return;
    const struct timespec pause = {0, (long)(draw >> 8) % (lane == slow_lane ? 10000 : 100000)};
    nanosleep(&pause, NULL);
}

/* NOLINTBEGIN(readability-identifier-naming): the linker's names */
ls_status __real_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args);
ls_status __wrap_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args);

ls_status __wrap_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args)
{
    const bool host =
        op == LS_OP_adamw || op == LS_OP_norm_finish || op == LS_OP_sumsq || op == LS_OP_add_sumsq;
    delay(host ? LS_LANE_HOST : LS_LANE_COMPUTE);
    return __real_ls_ops_run(ops, op, stream, args);
}
/* NOLINTEND(readability-identifier-naming) */

/* By the bytes per second of a lane the clock knows which one it is asked for, once that has
 * copied: one wakes late by at least a second, the other by less than a nanosecond. */
#define IN_BYTES_PER_S  1.0
#define OUT_BYTES_PER_S 1e18

static _Thread_local int copy_lane = LS_LANE_COPY_IN;

/* Before the copy. */
static uint64_t copy_now(void *context)
{
    (void)context;
    delay(copy_lane);
    return 0;
}

/* After it. */
static void copy_sleep(void *context, uint64_t ns)
{
    (void)context;
    copy_lane = ns >= 1000000000 ? LS_LANE_COPY_IN : LS_LANE_COPY_OUT;
    delay(copy_lane);
}

static const ls_device_clock copy_clock = {copy_now, copy_sleep, NULL};

/* ---- one succession of segments ------------------------------------------------------------ */

/* What came out of it, each list written by one lane. */
typedef struct results {
    int n_steps, n_saves;
    double losses[STEPS_MAX], norms[STEPS_MAX]; /* of steps and evaluations; norms of steps */
    uint64_t saved[STEPS_MAX];                  /* hash of all saved tensors and the control */
    uint64_t state;                             /* hash of the state at the end */
} results;

typedef struct run {
    model m;
    results r;
    uint64_t saving;
} run;

typedef struct job {
    run *run;
    uint64_t number; /* of the segment: its batch is drawn from it */
} job;

static uint64_t hash_bytes(uint64_t hash, const void *data, uint64_t bytes)
{
    const unsigned char *b = data;
    for (uint64_t i = 0; i < bytes; i++) hash = (hash ^ b[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t hash_tensor(const run *r, uint64_t hash, int32_t tensor)
{
    return hash_bytes(hash, ls_instance_tensor(&r->m.instance, tensor),
                      ls_tensor_bytes(&r->m.instance.decoder.tape.tensors[tensor]));
}

static ls_status fill(void *context, int64_t micro_batch)
{
    const job *j = context;
    const ls_instance *instance = &j->run->m.instance;
    const ls_decoder_inputs *in = &instance->decoder.inputs;
    int32_t *tokens = ls_instance_tensor(instance, in->tokens);
    int32_t *targets = ls_instance_tensor(instance, in->targets);
    int64_t *positions = ls_instance_tensor(instance, in->positions);
    int64_t *doc_start = ls_instance_tensor(instance, in->doc_start);

    delay(LS_LANE_DISK_IN);
    for (uint64_t n = 0; n < S; n++) {
        const uint64_t draw = 2 * n + (uint64_t)micro_batch * S * 2;
        tokens[n] = (int32_t)ls_rng_below(5, j->number, draw, V);
        targets[n] = (int32_t)ls_rng_below(5, j->number, draw + 1, V);
        positions[n] = (int64_t)n;
        doc_start[n] = 0;
    }
    *(float *)ls_instance_tensor(instance, in->loss_scale) = 1.0f / (S * ACCUMULATE);
    return LS_OK;
}

static ls_status collect(void *context, int64_t micro_batch)
{
    const job *j = context;
    delay(LS_LANE_HOST);
    return collect_model_losses(&j->run->m, micro_batch);
}

static ls_status schedule(void *context, int64_t chunk)
{
    const job *j = context;
    (void)chunk;
    delay(LS_LANE_HOST);
    j->run->m.control->lr = 1e-2 / (double)(1 + j->number);
    return LS_OK;
}

static void end_losses(run *r, double norm)
{
    assert_true(r->r.n_steps < STEPS_MAX);
    r->r.losses[r->r.n_steps] = ls_loss_stats_mean(&r->m.losses);
    r->r.norms[r->r.n_steps++] = norm;
    ls_loss_stats_reset(&r->m.losses);
}

static ls_status report(void *context, int64_t chunk)
{
    const job *j = context;
    (void)chunk;
    delay(LS_LANE_HOST);
    end_losses(j->run, j->run->m.control->grad_norm);
    return LS_OK;
}

static ls_status begin_save(void *context, int64_t chunk)
{
    const job *j = context;
    (void)chunk;
    delay(LS_LANE_DISK_OUT);
    j->run->saving = hash_bytes(1, j->run->m.control, sizeof *j->run->m.control);
    return LS_OK;
}

static ls_status save(void *context, int64_t tensor)
{
    const job *j = context;
    delay(LS_LANE_DISK_OUT);
    j->run->saving = hash_tensor(j->run, j->run->saving, (int32_t)tensor);
    return LS_OK;
}

static ls_status end_save(void *context, int64_t chunk)
{
    const job *j = context;
    run *r = j->run;
    (void)chunk;
    delay(LS_LANE_DISK_OUT);
    assert_true(r->r.n_saves < STEPS_MAX);
    r->r.saved[r->r.n_saves++] = r->saving;
    return LS_OK;
}

static uint64_t hash_state(const run *r)
{
    int32_t tensors[LS_DECODER_SAVED_MAX * 64];
    uint64_t hash = hash_bytes(1, r->m.control, sizeof *r->m.control);

    assert_in_range(r->m.instance.decoder.n_params, 1, 64);
    const int64_t n = ls_decoder_save_order(&r->m.instance.decoder, tensors);
    for (int64_t i = 0; i < n; i++) hash = hash_tensor(r, hash, tensors[i]);
    return hash;
}

/* All segments; with pauses, every lane is idle between two of them.
 *   placement  NULL: all in host memory */
static results run_all(const ls_decoder_options *options, const ls_placement *placement,
                       uint64_t seed, bool pauses)
{
    static const model_batch none = {S * ACCUMULATE, NULL, NULL, NULL, NULL};
    run r;
    job jobs[N_SEGMENTS];

    memset(&r, 0, sizeof r);
    open_model_as(&r.m, options, &none, 10000.0,
                  &(ls_instance_options){.compute_threads = 1,
                                         .optimizer_threads = 1,
                                         .placement = placement,
                                         .in_bytes_per_s = IN_BYTES_PER_S,
                                         .out_bytes_per_s = OUT_BYTES_PER_S,
                                         .clock = &copy_clock});
    ls_device_call **calls = r.m.instance.calls;
    calls[LS_CALL_BATCH] = fill;
    calls[LS_CALL_LOSS] = collect;
    calls[LS_CALL_SCHEDULE] = schedule;
    calls[LS_CALL_REPORT] = report;
    calls[LS_CALL_SAVE_BEGIN] = begin_save;
    calls[LS_CALL_SAVE] = save;
    calls[LS_CALL_SAVE_END] = end_save;
    ls_weights_random(&r.m.instance, 11, 0.1);
    assert_int_equal(ls_instance_fill_copies(&r.m.instance), LS_OK);

    delay_seed = seed;
    slow_lane = (int)(seed % (LS_LANE_COUNT + 1)); /* LS_LANE_COUNT: none is */
    for (int i = 0; i < N_SEGMENTS; i++) {
        jobs[i] = (job){&r, (uint64_t)i};
        assert_int_equal(ls_instance_submit(&r.m.instance, segments[i], &jobs[i]), LS_OK);
        if (pauses || segments[i] == LS_SEGMENT_EVAL)
            assert_int_equal(ls_instance_sync(&r.m.instance), LS_OK);
        if (segments[i] == LS_SEGMENT_EVAL) end_losses(&r, 0.0);
    }
    assert_int_equal(ls_instance_sync(&r.m.instance), LS_OK);
    delay_seed = 0;
    r.r.state = hash_state(&r);
    close_model(&r.m);
    return r.r;
}

static ls_decoder_options make_options(int shape)
{
    ls_decoder_options o = tiny_options(V, 2, S, ACCUMULATE);

    o.shape.tied = shape == 1;
    o.save_o = shape == 1;
    if (shape == 2) o.dtype = LS_DTYPE_F32;
    return o;
}

/* By turns: host memory; streamed, resident and direct weights, the link coherent or not. */
static const ls_placement *choose_placement(uint64_t seed, ls_placement *placement)
{
    static const ls_place_mode modes[] = {LS_MODE_STREAM, LS_MODE_RESIDENT, LS_MODE_STREAM,
                                          LS_MODE_DIRECT};

    if (seed % 5 == 0) return NULL;
    *placement = place_weights(modes[seed % 5 - 1], seed % 5 == 1);
    return placement;
}

static void results_do_not_depend_on_speed(void **state)
{
    (void)state;
    for (int shape = 0; shape < 3; shape++) {
        const ls_decoder_options options = make_options(shape);
        const results expected = run_all(&options, NULL, 0, true);
        assert_int_equal(expected.n_saves, 4);
        assert_int_equal(expected.n_steps, N_SEGMENTS - 1);
        assert_true(expected.saved[0] != expected.saved[1]);
        for (int i = 0; i < (n_runs + 2) / 3; i++) {
            const uint64_t seed = base_seed + (uint64_t)i;
            ls_placement placement;
            const results r = run_all(&options, choose_placement(seed, &placement), seed, false);
            if (memcmp(&r, &expected, sizeof r) != 0)
                fail_msg("shape %d: results differ: test_schedules 1 %llu", shape,
                         (unsigned long long)seed);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(results_do_not_depend_on_speed)};
    if (argc > 1) n_runs = atoi(argv[1]);
    if (argc > 2) base_seed = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
