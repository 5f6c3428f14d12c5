/*
 * test_executor.c - a step is done whole or not at all, wherever it is asked to stop; whatever
 * fails is reported as the step of the plan that it was.
 *
 * The linker hands the device's ls_ops_run() to this file (--wrap), so that any op can be made to
 * fail where it runs: on the lane's thread.
 */
#include "model_test.h"

enum { S = 8, ACCUMULATE = 2, ROWS = S * ACCUMULATE, V = 19 };

/* ---- ops that fail ------------------------------------------------------------------------- */

static ls_op fault_op;          /* its call `fault_call` fails; set while the lanes are idle */
static int64_t fault_call = -1; /* -1: none */
static int64_t calls_of_op;     /* of fault_op; its lane counts, alone */

/* NOLINTBEGIN(readability-identifier-naming): the linker's names */
ls_status __real_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args);
ls_status __wrap_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args);

ls_status __wrap_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args)
{
    if (fault_call >= 0 && op == fault_op && calls_of_op++ == fault_call)
        return LS_FAIL(LS_ERR_DEVICE, "injected");
    return __real_ls_ops_run(ops, op, stream, args);
}
/* NOLINTEND(readability-identifier-naming) */

/* ---- the model, and what a step may change in it ------------------------------------------- */

typedef struct probe {
    model m; /* first: it is the job of the executor's calls, and so is the probe */
    ls_update_control control;
    unsigned char *saved;          /* weights, lo, m, v of each parameter, end to end */
    int64_t stop_at, asked;        /* the query that answers yes, and all after it; 0: none */
    int64_t fail_batch, fail_loss; /* micro-batch; -1: none */
    bool fail_schedule, fail_report;
} probe;

static bool stop_from(void *context)
{
    probe *p = context;
    p->asked++;
    return p->stop_at > 0 && p->asked >= p->stop_at;
}

static ls_status fill_or_fail(void *context, int64_t micro_batch)
{
    const probe *p = context;
    if (micro_batch == p->fail_batch) return LS_FAIL(LS_ERR_IO, "injected");
    return fill_model_batch(context, micro_batch);
}

static ls_status collect_or_fail(void *context, int64_t micro_batch)
{
    const probe *p = context;
    if (micro_batch == p->fail_loss) return LS_FAIL(LS_ERR_IO, "injected");
    return collect_model_losses(context, micro_batch);
}

static ls_status schedule_or_fail(void *context, int64_t chunk)
{
    const probe *p = context;
    (void)chunk;
    return p->fail_schedule ? LS_FAIL(LS_ERR_IO, "injected") : LS_OK;
}

static ls_status report_or_fail(void *context, int64_t chunk)
{
    const probe *p = context;
    (void)chunk;
    return p->fail_report ? LS_FAIL(LS_ERR_IO, "injected") : LS_OK;
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

/* Visits the states that a checkpoint would hold; `other` runs along end to end. */
typedef void visit_state(const ls_tensor *tensor, void *state, unsigned char *other);

static uint64_t visit_states(const probe *p, visit_state *visit, unsigned char *other)
{
    const ls_instance *instance = &p->m.instance;
    uint64_t bytes = 0;

    for (int32_t i = 0; i < instance->decoder.n_params; i++) {
        const ls_param *param = &instance->decoder.params[i];
        const int32_t states[] = {param->weight, param->lo, param->m, param->v};
        for (int s = 0; s < 4; s++) {
            if (states[s] < 0) continue;
            const ls_tensor *tensor = &instance->decoder.tape.tensors[states[s]];
            if (visit != NULL)
                visit(tensor, ls_instance_tensor(instance, states[s]), other + bytes);
            bytes += ls_tensor_bytes(tensor);
        }
    }
    return bytes;
}

static void copy_out(const ls_tensor *tensor, void *state, unsigned char *other)
{
    memcpy(other, state, ls_tensor_bytes(tensor));
}

static void copy_in(const ls_tensor *tensor, void *state, unsigned char *other)
{
    memcpy(state, other, ls_tensor_bytes(tensor));
}

static void compare(const ls_tensor *tensor, void *state, unsigned char *other)
{
    if (memcmp(state, other, ls_tensor_bytes(tensor)) != 0) fail_msg("%s differs", tensor->name);
}

/* An allocated copy of the states as they are. */
static unsigned char *take_states(const probe *p)
{
    const uint64_t bytes = visit_states(p, NULL, NULL);
    unsigned char *taken = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(taken);
    visit_states(p, copy_out, taken);
    return taken;
}

/* Not the first step: moments and beta powers that are not trivial. */
static void open_probe(probe *p)
{
    static model_batch batch;
    const ls_decoder_options options = tiny_options(V, 1, S, ACCUMULATE);

    make_batch(&batch);
    memset(p, 0, sizeof *p);
    open_model(&p->m, &options, &batch, 10000.0);
    p->fail_batch = p->fail_loss = -1;
    p->m.instance.executor.stop = stop_from;
    p->m.instance.executor.stop_context = p;
    p->m.instance.calls[LS_CALL_BATCH] = fill_or_fail;
    p->m.instance.calls[LS_CALL_LOSS] = collect_or_fail;
    p->m.instance.calls[LS_CALL_SCHEDULE] = schedule_or_fail;
    p->m.instance.calls[LS_CALL_REPORT] = report_or_fail;
    ls_weights_random(&p->m.instance, 11, 0.1);
    step_model(&p->m, 1e-2);
    p->saved = take_states(p);
    p->control = *p->m.control;
}

static void close_probe(probe *p)
{
    free(p->saved);
    close_model(&p->m);
}

/* The second step, from the states after the first. */
static ls_status run_second_step(probe *p, int64_t stop_at)
{
    visit_states(p, copy_in, p->saved);
    *p->m.control = p->control;
    p->stop_at = stop_at;
    p->asked = 0;
    return run_model(&p->m, 1e-2);
}

static void assert_nothing_changed(const probe *p)
{
    ls_update_control before = p->control;
    before.lr = p->m.control->lr; /* an input */
    visit_states(p, compare, p->saved);
    assert_memory_equal(&before, p->m.control, sizeof before);
}

/* ---- stopping ------------------------------------------------------------------------------ */

/* Steps of the segment before its first commit step. */
static int64_t count_before_commit(const ls_plan *plan)
{
    const int64_t first = plan->segment_first[LS_SEGMENT_STEP];
    int64_t n = 0;
    while (n < plan->segment_steps[LS_SEGMENT_STEP] && !plan->steps[first + n].commit) n++;
    return n;
}

/* Query k comes before step k of the segment is submitted; the last that counts, before the first
 * commit step. */
static void a_step_is_whole_or_nothing(void **state)
{
    probe p;

    (void)state;
    open_probe(&p);
    const int64_t n_steps = p.m.instance.plan.segment_steps[LS_SEGMENT_STEP];
    const int64_t stops = count_before_commit(&p.m.instance.plan) + 1;
    assert_true(stops > 1 && stops < n_steps);
    assert_int_equal(run_second_step(&p, 0), LS_OK);
    const ls_update_control control = *p.m.control;
    const double loss = ls_loss_stats_mean(&p.m.losses);
    unsigned char *whole = take_states(&p);
    assert_memory_not_equal(whole, p.saved, visit_states(&p, NULL, NULL));

    for (int64_t k = 1; k <= n_steps; k++) {
        const ls_status status = run_second_step(&p, k);
        if (k <= stops) {
            assert_int_equal(status, LS_ERR_STOPPED);
            assert_int_equal(p.asked, k);
            assert_nothing_changed(&p);
            if (k < stops) continue;
            assert_int_equal(run_second_step(&p, 0), LS_OK); /* what was begun is forgotten */
        } else {
            assert_int_equal(status, LS_OK);
        }
        visit_states(&p, compare, whole);
        assert_memory_equal(p.m.control, &control, sizeof control);
        assert_true(ls_loss_stats_mean(&p.m.losses) == loss);
    }
    free(whole);
    close_probe(&p);
}

static void an_evaluation_stops_anywhere(void **state)
{
    probe p;

    (void)state;
    open_probe(&p);
    const int64_t n_steps = p.m.instance.plan.segment_steps[LS_SEGMENT_EVAL];
    for (p.stop_at = 1; p.stop_at <= n_steps + 1; p.stop_at++) {
        p.asked = 0;
        assert_int_equal(ls_instance_run(&p.m.instance, LS_SEGMENT_EVAL, &p),
                         p.stop_at <= n_steps ? LS_ERR_STOPPED : LS_OK);
    }
    assert_nothing_changed(&p);
    close_probe(&p);
}

/* ---- failing ------------------------------------------------------------------------------- */

/* The text is "STEP: injected", and without a commit step behind it nothing has changed. */
static void check_failure(probe *p, int64_t step, ls_status expected)
{
    const ls_plan *plan = &p->m.instance.plan;
    char described[192], text[256];

    assert_int_equal(run_second_step(p, 0), expected);
    ls_plan_describe_step(plan, step, described, sizeof described);
    snprintf(text, sizeof text, "%s: injected", described);
    assert_string_equal(ls_error(), text);
    if (step <= plan->segment_first[LS_SEGMENT_STEP] + count_before_commit(plan))
        assert_nothing_changed(p);
}

static void fail_op(probe *p, int64_t step)
{
    const ls_plan *plan = &p->m.instance.plan;

    fault_op = plan->steps[step].op;
    fault_call = calls_of_op = 0;
    for (int64_t s = plan->segment_first[LS_SEGMENT_STEP]; s < step; s++) {
        if (plan->steps[s].kind != LS_CALL_OP || plan->steps[s].op != fault_op) continue;
        assert_int_equal(plan->steps[s].lane, plan->steps[step].lane); /* called in this order */
        fault_call++;
    }
    check_failure(p, step, LS_ERR_DEVICE);
    fault_call = -1;
}

static void every_failing_step_is_named(void **state)
{
    probe p;

    (void)state;
    open_probe(&p);
    const ls_plan *plan = &p.m.instance.plan;
    const int64_t first = plan->segment_first[LS_SEGMENT_STEP];
    assert_int_equal(run_second_step(&p, 0), LS_OK);
    unsigned char *whole = take_states(&p);

    for (int64_t s = first; s < first + plan->segment_steps[LS_SEGMENT_STEP]; s++) {
        const ls_step *step = &plan->steps[s];
        if (step->kind == LS_CALL_OP) {
            fail_op(&p, s);
            continue;
        }
        if (step->kind == LS_CALL_BATCH) p.fail_batch = step->chunk;
        if (step->kind == LS_CALL_LOSS) p.fail_loss = step->chunk;
        p.fail_schedule = step->kind == LS_CALL_SCHEDULE;
        p.fail_report = step->kind == LS_CALL_REPORT;
        check_failure(&p, s, LS_ERR_IO);
        p.fail_batch = p.fail_loss = -1;
        p.fail_schedule = p.fail_report = false;
    }
    assert_int_equal(run_second_step(&p, 0), LS_OK); /* usable again, and nothing is left over */
    visit_states(&p, compare, whole);
    free(whole);
    close_probe(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_whole_or_nothing),
        cmocka_unit_test(an_evaluation_stops_anywhere),
        cmocka_unit_test(every_failing_step_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
