/*
 * test_lane_failures.c - a failure on any lane ends a pipeline of several segments: the step that
 * failed is named, nobody waits for ever, and the device can be used again or closed.
 *
 * In host memory, and with weights streamed through a device's.  The linker hands ls_ops_run() and
 * ls_device_submit_copy() to this file (--wrap), so that any op or copy fails on demand; the copies
 * of this device, which are its own memcpy(), cannot fail by themselves.
 */
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "model_test.h"
#include "placement_test.h"

enum { S = 8, ACCUMULATE = 2, ROWS = S * ACCUMULATE, V = 19, ALARM_S = 120, STEPS_MAX = 4096 };

static const ls_segment_kind segments[] = {LS_SEGMENT_STEP, LS_SEGMENT_STEP_SAVE, LS_SEGMENT_STEP,
                                           LS_SEGMENT_STEP_SAVE, LS_SEGMENT_STEP};
#define N_SEGMENTS ((int)(sizeof segments / sizeof segments[0]))

/* ---- what fails ---------------------------------------------------------------------------- */

/* Set while the lanes are idle. */
static struct {
    int64_t step; /* of the plan; -1: none */
    int segment;  /* place in segments */
    bool is_op;   /* then its call `op_call` fails, counted over all segments */
    int64_t op_call;
    ls_op op;
    int64_t ops_first; /* the step fails only once so many ops have run; 0: at once */
} fault = {.step = -1};

static _Atomic(int64_t) n_ops, n_fault_ops; /* run so far: all, and of the op that fails */
static atomic_bool failed;                  /* the fault has happened */
static _Atomic(int64_t) n_begun_after;      /* ops and calls begun on its lane behind it */

static const ls_plan *plan_at_work;

/* The lane of the fault must do nothing more. */
static void note_begin(int lane)
{
    if (fault.step >= 0 && atomic_load(&failed) &&
        (int)plan_at_work->steps[fault.step].lane == lane)
        atomic_fetch_add(&n_begun_after, 1);
}

static void sleep_ms(long ms)
{
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static ls_status fail_now(ls_status status)
{
    while (atomic_load(&n_ops) < fault.ops_first) sleep_ms(1);
    atomic_store(&failed, true);
    return LS_FAIL(status, "injected");
}

/* NOLINTBEGIN(readability-identifier-naming): the linker's names */
ls_status __real_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args);
ls_status __wrap_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args);

ls_status __wrap_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args)
{
    const bool host =
        op == LS_OP_adamw || op == LS_OP_norm_finish || op == LS_OP_sumsq || op == LS_OP_add_sumsq;

    note_begin(host ? LS_LANE_HOST : LS_LANE_COMPUTE);
    atomic_fetch_add(&n_ops, 1);
    if (fault.step >= 0 && fault.is_op && op == fault.op &&
        atomic_fetch_add(&n_fault_ops, 1) == fault.op_call)
        return fail_now(LS_ERR_DEVICE);
    return __real_ls_ops_run(ops, op, stream, args);
}

/* By step of the plan: the same in every segment that has it. */
static struct {
    void *to;
    const void *from;
    uint64_t bytes;
} copies[STEPS_MAX];

static int segment_submitted; /* place in segments */
static bool refuse_copy;      /* the fault comes when it is submitted, not when it runs */

/* context: of the copy that is to fail, &fault */
static ls_status copy(void *context, int64_t step)
{
    note_begin((int)plan_at_work->steps[step].lane);
    if (context == &fault) return fail_now(LS_ERR_DEVICE);
    memcpy(copies[step].to, copies[step].from, copies[step].bytes);
    return LS_OK;
}

ls_status __real_ls_device_submit_copy(ls_device *device, int lane, int64_t tag, void *to,
                                       const void *from, uint64_t bytes);
ls_status __wrap_ls_device_submit_copy(ls_device *device, int lane, int64_t tag, void *to,
                                       const void *from, uint64_t bytes);

ls_status __wrap_ls_device_submit_copy(ls_device *device, int lane, int64_t tag, void *to,
                                       const void *from, uint64_t bytes)
{
    const bool fails = tag == fault.step && segment_submitted == fault.segment;

    if (fails && refuse_copy) return fail_now(LS_ERR_DEVICE);
    assert_in_range(tag, 0, STEPS_MAX - 1);
    copies[tag].to = to;
    copies[tag].from = from;
    copies[tag].bytes = bytes;
    return ls_device_submit_call(device, lane, tag, copy, fails ? &fault : NULL, tag);
}
/* NOLINTEND(readability-identifier-naming) */

/* ---- the pipeline -------------------------------------------------------------------------- */

typedef struct job {
    model *m;
    int segment; /* place in segments */
} job;

/* A call of this kind and number begins: LS_OK, or the fault. */
static ls_status begin_call(const job *j, ls_call_kind kind, int64_t chunk)
{
    const ls_plan *plan = &j->m->instance.plan;
    const ls_step *step = fault.step >= 0 ? &plan->steps[fault.step] : NULL;
    static const ls_lane lanes[LS_CALL_KIND_COUNT] = {
        [LS_CALL_BATCH] = LS_LANE_DISK_IN,       [LS_CALL_LOSS] = LS_LANE_HOST,
        [LS_CALL_SCHEDULE] = LS_LANE_HOST,       [LS_CALL_REPORT] = LS_LANE_HOST,
        [LS_CALL_SAVE_BEGIN] = LS_LANE_DISK_OUT, [LS_CALL_SAVE] = LS_LANE_DISK_OUT,
        [LS_CALL_SAVE_END] = LS_LANE_DISK_OUT};

    note_begin((int)lanes[kind]);
    if (step == NULL || fault.is_op || j->segment != fault.segment || step->kind != kind)
        return LS_OK;
    return step->chunk == chunk ? fail_now(LS_ERR_IO) : LS_OK;
}

static ls_status fill(void *context, int64_t micro_batch)
{
    const job *j = context;
    LS_TRY(begin_call(j, LS_CALL_BATCH, micro_batch));
    return fill_model_batch(j->m, micro_batch);
}

static ls_status collect(void *context, int64_t micro_batch)
{
    const job *j = context;
    LS_TRY(begin_call(j, LS_CALL_LOSS, micro_batch));
    return collect_model_losses(j->m, micro_batch);
}

static ls_status schedule(void *context, int64_t chunk)
{
    const job *j = context;
    LS_TRY(begin_call(j, LS_CALL_SCHEDULE, chunk));
    j->m->control->lr = 1e-3;
    return LS_OK;
}

static ls_status report(void *context, int64_t chunk)
{
    return begin_call(context, LS_CALL_REPORT, chunk);
}

static ls_status begin_save(void *context, int64_t chunk)
{
    return begin_call(context, LS_CALL_SAVE_BEGIN, chunk);
}

static ls_status save(void *context, int64_t tensor)
{
    return begin_call(context, LS_CALL_SAVE, tensor);
}

static ls_status end_save(void *context, int64_t chunk)
{
    return begin_call(context, LS_CALL_SAVE_END, chunk);
}

/* placement: NULL: all in host memory */
static void open_pipeline(model *m, const ls_placement *placement)
{
    static int32_t tokens[ROWS], targets[ROWS];
    static int64_t positions[ROWS], doc_start[ROWS];
    static const model_batch batch = {ROWS, tokens, targets, positions, doc_start};
    const ls_decoder_options options = tiny_options(V, 1, S, ACCUMULATE);

    for (int64_t n = 0; n < ROWS; n++) {
        tokens[n] = (int32_t)ls_rng_below(5, 0, (uint64_t)n, V);
        targets[n] = (int32_t)ls_rng_below(5, 1, (uint64_t)n, V);
        positions[n] = n % S;
        doc_start[n] = n / S * S;
    }
    open_model_as(m, &options, &batch, 10000.0,
                  &(ls_instance_options){
                      .compute_threads = 1, .optimizer_threads = 1, .placement = placement});
    plan_at_work = &m->instance.plan;
    ls_device_call **calls = m->instance.calls;
    calls[LS_CALL_BATCH] = fill;
    calls[LS_CALL_LOSS] = collect;
    calls[LS_CALL_SCHEDULE] = schedule;
    calls[LS_CALL_REPORT] = report;
    calls[LS_CALL_SAVE_BEGIN] = begin_save;
    calls[LS_CALL_SAVE] = save;
    calls[LS_CALL_SAVE_END] = end_save;
    ls_weights_random(&m->instance, 11, 0.1);
}

/* The ops, or those of one kind (-1: of any), from the first segment to this step of another. */
static int64_t count_ops(const ls_plan *plan, int op, int segment, int64_t step)
{
    int64_t count = 0;

    for (int i = 0; i <= segment; i++) {
        const int64_t first = plan->segment_first[segments[i]];
        const int64_t end = i < segment ? first + plan->segment_steps[segments[i]] : step;
        for (int64_t s = first; s < end; s++)
            if (plan->steps[s].kind == LS_CALL_OP && (op < 0 || (int)plan->steps[s].op == op))
                count++;
    }
    return count;
}

/* From here on this step of the plan fails in that segment, after so many ops; -1: none does. */
static void set_fault(const ls_plan *plan, int segment, int64_t step, int64_t ops_first)
{
    fault.step = step;
    fault.segment = segment;
    fault.ops_first = ops_first;
    fault.is_op = step >= 0 && plan->steps[step].kind == LS_CALL_OP;
    if (fault.is_op) {
        fault.op = plan->steps[step].op;
        fault.op_call = count_ops(plan, (int)fault.op, segment, step);
    }
    atomic_store(&n_ops, 0);
    atomic_store(&n_fault_ops, 0);
    atomic_store(&n_begun_after, 0);
    atomic_store(&failed, false);
}

/* All segments without a pause, as far as they are taken. */
static ls_status submit_all(model *m, job jobs[N_SEGMENTS])
{
    for (int i = 0; i < N_SEGMENTS; i++) {
        jobs[i] = (job){m, i};
        segment_submitted = i;
        LS_TRY(ls_instance_submit(&m->instance, segments[i], &jobs[i]));
    }
    return LS_OK;
}

static ls_status run_pipeline(model *m)
{
    job jobs[N_SEGMENTS];
    const ls_status status = submit_all(m, jobs);
    return status != LS_OK ? status : ls_instance_sync(&m->instance);
}

static void check_failure(model *m, int segment, int64_t step, int64_t ops_first)
{
    const ls_plan *plan = &m->instance.plan;
    const ls_call_kind kind = plan->steps[step].kind;
    const bool of_device = kind == LS_CALL_OP || kind == LS_CALL_COPY;
    const ls_status expected = of_device ? LS_ERR_DEVICE : LS_ERR_IO;
    char described[192], text[256];

    set_fault(plan, segment, step, ops_first);
    assert_int_equal(run_pipeline(m), expected);
    ls_plan_describe_step(plan, step, described, sizeof described);
    snprintf(text, sizeof text, "%s: injected", described);
    assert_string_equal(ls_error(), text);
    assert_true(atomic_load(&failed));
    if (!refuse_copy) assert_int_equal(atomic_load(&n_begun_after), 0);
    assert_int_equal(ls_instance_sync(&m->instance), LS_OK); /* told once, nothing left */
}

/* ---- tests --------------------------------------------------------------------------------- */

static void any_step_may_fail(void **state)
{
    model m;

    (void)state;
    open_pipeline(&m, NULL);
    const ls_plan *plan = &m.instance.plan;
    for (int segment = 1; segment <= 2; segment++) { /* a step that saves, and a plain one */
        const int64_t first = plan->segment_first[segments[segment]];
        for (int64_t s = first; s < first + plan->segment_steps[segments[segment]]; s++)
            check_failure(&m, segment, s, 0);
    }
    set_fault(plan, 0, -1, 0);
    assert_int_equal(run_pipeline(&m), LS_OK);
    close_model(&m);
}

static void any_step_may_fail_on_a_device(void **state)
{
    const ls_placement placement = place_weights(LS_MODE_STREAM, false);
    model m;

    (void)state;
    open_pipeline(&m, &placement);
    const ls_plan *plan = &m.instance.plan;
    int64_t n_copies[LS_LANE_COUNT] = {0};
    const int64_t first = plan->segment_first[segments[1]];
    for (int64_t s = first; s < first + plan->segment_steps[segments[1]]; s++) {
        const bool is_copy = plan->steps[s].kind == LS_CALL_COPY;
        if (is_copy) n_copies[plan->steps[s].lane]++;
        if (is_copy || s % 4 == 0) check_failure(&m, 1, s, 0);
    }
    assert_true(n_copies[LS_LANE_COPY_IN] > 8 && n_copies[LS_LANE_COPY_OUT] > 4);
    set_fault(plan, 0, -1, 0);
    assert_int_equal(run_pipeline(&m), LS_OK);
    close_model(&m);
}

/* A device that does not even take a copy. */
static void a_copy_may_be_refused(void **state)
{
    const ls_placement placement = place_weights(LS_MODE_STREAM, false);
    model m;

    (void)state;
    open_pipeline(&m, &placement);
    const ls_plan *plan = &m.instance.plan;
    refuse_copy = true;
    for (int segment = 0; segment <= 2; segment++) {
        const int64_t first = plan->segment_first[segments[segment]];
        for (int64_t s = first; s < first + plan->segment_steps[segments[segment]]; s++)
            if (plan->steps[s].kind == LS_CALL_COPY) check_failure(&m, segment, s, 0);
    }
    refuse_copy = false;
    set_fault(plan, 0, -1, 0);
    assert_int_equal(run_pipeline(&m), LS_OK);
    close_model(&m);
}

/* The first step of this kind in the segment. */
static int64_t find_step(const ls_plan *plan, int segment, ls_call_kind kind, ls_op op)
{
    int64_t s = plan->segment_first[segments[segment]];
    while (plan->steps[s].kind != kind || (kind == LS_CALL_OP && plan->steps[s].op != op)) s++;
    assert_int_equal(ls_plan_segment_of(plan, s), segments[segment]);
    return s;
}

/* Ops up to the first update of a segment: what can run while a save is held up. */
static int64_t count_before_update(const ls_plan *plan, int segment)
{
    int64_t s = plan->segment_first[segments[segment]];
    while (!plan->steps[s].commit) s++;
    return count_ops(plan, -1, segment, s);
}

/* The failure comes when the gradients of its segment are complete. */
static void a_save_fails_behind_compute(void **state)
{
    static const ls_call_kind kinds[] = {LS_CALL_SAVE_BEGIN, LS_CALL_SAVE};
    model m;

    (void)state;
    open_pipeline(&m, NULL);
    const ls_plan *plan = &m.instance.plan;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (int segment = 1; segment <= 3; segment += 2)
            check_failure(&m, segment, find_step(plan, segment, kinds[k], 0),
                          count_before_update(plan, segment));
    close_model(&m);
}

/* The event of a step fails while the next step is being computed. */
static void an_event_fails_behind_compute(void **state)
{
    model m;

    (void)state;
    open_pipeline(&m, NULL);
    const ls_plan *plan = &m.instance.plan;
    for (int segment = 0; segment < N_SEGMENTS - 1; segment++) {
        const int64_t next = plan->segment_first[segments[segment + 1]];
        check_failure(&m, segment, find_step(plan, segment, LS_CALL_REPORT, 0),
                      count_ops(plan, -1, segment + 1, next + 20));
    }
    close_model(&m);
}

static void a_failed_pipeline_closes(void **state)
{
    static const ls_call_kind kinds[] = {LS_CALL_BATCH,  LS_CALL_OP,   LS_CALL_LOSS,
                                         LS_CALL_REPORT, LS_CALL_SAVE, LS_CALL_SAVE_END};

    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        job jobs[N_SEGMENTS];
        model m;
        open_pipeline(&m, NULL);
        const ls_plan *plan = &m.instance.plan;
        set_fault(plan, 1, find_step(plan, 1, kinds[k], LS_OP_adamw), 0);
        (void)submit_all(&m, jobs);
        close_model(&m); /* whether or not the failure has come yet */
        assert_true(atomic_load(&failed));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_step_may_fail),
        cmocka_unit_test(any_step_may_fail_on_a_device),
        cmocka_unit_test(a_copy_may_be_refused),
        cmocka_unit_test(a_save_fails_behind_compute),
        cmocka_unit_test(an_event_fails_behind_compute),
        cmocka_unit_test(a_failed_pipeline_closes),
    };
    alarm(ALARM_S); /* a deadlock ends here */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
