/*
 * bench_overlap.c - whether updates hide behind the next forward on real lanes.
 *
 *   bench_overlap [STEPS [UNIT_US [TRACE_FOLDER]]]    default 12, 400000; 0 steps: one, in 1 ms
 *
 * The executor runs a real plan on the CPU's lanes, but ops sleep instead of computing (the linker
 * hands ls_ops_run() to this file, --wrap), so that two lanes do not contend for cores.  A forward
 * takes UNIT_US in all, backward twice that, updates 60% of it: each by the layer's parameters.  A
 * lane that wakes late makes up for it in its next ops.  Steps are submitted without a pause.
 *
 * Prints, in seconds: the step (median of those after the first), forward, backward, updates as
 * slept for, the most that a lane takes, the sum of all lanes, and the step over the most.  With a
 * folder, trace.json of the last two steps is written there: ops of 4 ms and more.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "instance.h"
#include "trace.h"
#include "weights.h"

enum { S = 16, LAYERS = 16, STEPS_MAX = 200, TRACED_NS = 4000000 };

static const double shares[] = {[LS_PHASE_FORWARD] = 1.0,
                                [LS_PHASE_BACKWARD] = 2.0,
                                [LS_PHASE_UPDATE] = 0.6,
                                [LS_PHASE_NORM] = 0.06,
                                [LS_PHASE_COUNT] = 0.0};

static ls_instance instance;
static double *op_ns; /* [n_steps of the plan] how long each sleeps */
static double slept_s[LS_PHASE_COUNT], lane_s[LS_LANE_COUNT];
static _Thread_local int64_t step_at_work;
static _Thread_local uint64_t late_ns;

/* ---- lanes that sleep ------------------------------------------------------------------------ */

static void sleep_until(uint64_t end)
{
    for (uint64_t now = ls_clock_ns(); now < end; now = ls_clock_ns()) {
        const uint64_t left = end - now;
        const struct timespec pause = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
        nanosleep(&pause, NULL);
    }
}

/* NOLINTBEGIN(readability-identifier-naming): the linker's names */
ls_status __wrap_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args);

ls_status __wrap_ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args)
{
    const uint64_t start = ls_clock_ns(), takes = (uint64_t)op_ns[step_at_work];
    const uint64_t owed = late_ns < takes ? late_ns : takes, end = start + takes - owed;

    (void)ops;
    (void)stream;
    if (op == LS_OP_norm_finish) args->norm_finish.control->skip = 0;
    sleep_until(end);
    late_ns = late_ns - owed + (ls_clock_ns() - end);
    return LS_OK;
}
/* NOLINTEND(readability-identifier-naming) */

/* ---- what the ops take ----------------------------------------------------------------------- */

static void stop_if(ls_status status)
{
    if (status == LS_OK) return;
    fprintf(stderr, "bench_overlap: %s\n", ls_error());
    exit(1);
}

/* A phase's time is shared by its ops by their FLOPs, or by their bytes where there are none. */
static double weight_of(const ls_step *step)
{
    return step->flops > 0 ? step->flops : step->phase >= LS_PHASE_NORM ? (double)step->bytes : 0;
}

static ls_phase phase_of(const ls_step *step)
{
    return step->phase == LS_PHASE_LOSS ? LS_PHASE_BACKWARD : step->phase;
}

static void share_times(const ls_plan *plan, double unit_s)
{
    double sums[LS_PHASE_COUNT] = {0};
    const int64_t first = plan->segment_first[LS_SEGMENT_STEP];
    const int64_t end = first + plan->segment_steps[LS_SEGMENT_STEP];

    op_ns = calloc((size_t)plan->n_steps, sizeof *op_ns);
    if (op_ns == NULL) exit(1);
    for (int64_t i = first; i < end; i++)
        if (plan->steps[i].kind == LS_CALL_OP)
            sums[phase_of(&plan->steps[i])] += weight_of(&plan->steps[i]);
    for (int64_t i = first; i < end; i++) {
        const ls_step *step = &plan->steps[i];
        const ls_phase phase = phase_of(step);
        if (step->kind != LS_CALL_OP || sums[phase] <= 0) continue;
        const double seconds = shares[phase] * unit_s * weight_of(step) / sums[phase];
        op_ns[i] = 1e9 * seconds;
        slept_s[phase] += seconds;
        lane_s[step->lane] += seconds;
    }
}

/* ---- the trace ------------------------------------------------------------------------------- */

static ls_trace *trace;
static atomic_bool tracing;

static void note_begin(void *context, int lane, int64_t tag, uint64_t now_ns)
{
    (void)context;
    (void)lane;
    (void)now_ns;
    step_at_work = tag;
}

static void note_end(void *context, int lane, int64_t tag, uint64_t began_ns, uint64_t now_ns)
{
    (void)context;
    if (!atomic_load(&tracing) || instance.plan.steps[tag].kind != LS_CALL_OP) return;
    if (op_ns[tag] >= TRACED_NS) ls_trace_span(trace, lane, tag, began_ns, now_ns);
}

static void describe(void *context, int thread, int64_t tag, ls_trace_words *words)
{
    const ls_step *step = &instance.plan.steps[tag];

    (void)context;
    (void)thread;
    snprintf(words->name, sizeof words->name, "%s", ls_op_describe(step->op)->name);
    snprintf(words->category, sizeof words->category, "%s", ls_phase_name(step->phase));
    snprintf(words->args, sizeof words->args, "\"layer\":%d", step->layer);
}

static void open_trace(const char *folder)
{
    static const char *const threads[LS_LANE_COUNT] = {"compute", "copy in", "copy out",
                                                       "host",    "disk in", "disk out"};
    const ls_trace_options options = {.directory = folder,
                                      .n_spans = 1 << 14,
                                      .threads = threads,
                                      .n_threads = LS_LANE_COUNT,
                                      .start_ns = ls_clock_ns(),
                                      .describe = describe};
    stop_if(ls_trace_open(&options, &trace));
}

/* ---- steps ----------------------------------------------------------------------------------- */

static uint64_t ends[STEPS_MAX];
static int n_ends;

static ls_status note_step(void *job, int64_t chunk)
{
    (void)job;
    (void)chunk;
    ends[n_ends++] = ls_clock_ns();
    return LS_OK;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void open_model(void)
{
    const ls_decoder_options options = {
        .shape = {.V = 32, .D = 32, .F = 96, .L = LAYERS, .H = 2, .G = 2, .K = 16, .eps = 1e-5f},
        .dtype = LS_DTYPE_BF16,
        .S = S,
        .sequences = 1,
        .accumulate = 1,
        .chunk = S,
        .query_block = S,
        .loss_rows = S,
        .train = true,
        .save_o = true,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .adam_eps = 1e-8f};
    const ls_instance_options how = {
        .compute_threads = 1, .optimizer_threads = 1, .calls = {[LS_CALL_REPORT] = note_step}};
    const ls_device_observer observer = {note_begin, note_end, NULL};

    stop_if(ls_instance_open(&options, &how, &instance));
    ls_device_observe(instance.device, &observer);
}

static void run_steps(int n)
{
    for (int i = 0; i < n; i++) {
        if (trace != NULL && i == n - 2) atomic_store(&tracing, true);
        stop_if(ls_instance_submit(&instance, LS_SEGMENT_STEP, NULL));
    }
    stop_if(ls_instance_sync(&instance));
}

static void print_result(int n)
{
    double steps[STEPS_MAX], most = 0, sum = 0;

    for (int i = 1; i < n; i++) steps[i - 1] = 1e-9 * (double)(ends[i] - ends[i - 1]);
    for (int lane = 0; lane < LS_LANE_COUNT; lane++) {
        most = lane_s[lane] > most ? lane_s[lane] : most;
        sum += lane_s[lane];
    }
    printf("step forward backward updates most sum ratio\n");
    if (n < 2) return;
    qsort(steps, (size_t)n - 1, sizeof *steps, compare);
    const double step = steps[(n - 1) / 2];
    printf("%.4f %.4f %.4f %.4f %.4f %.4f %.4f\n", step, slept_s[LS_PHASE_FORWARD],
           slept_s[LS_PHASE_BACKWARD], slept_s[LS_PHASE_UPDATE], most, sum, step / most);
}

int main(int argc, char **argv)
{
    const long asked = argc > 1 ? strtol(argv[1], NULL, 10) : 12;
    const int n = asked < 1 ? 1 : asked < STEPS_MAX ? (int)asked : STEPS_MAX;
    const double unit_s = asked < 1 ? 1e-3 : argc > 2 ? 1e-6 * strtod(argv[2], NULL) : 0.4;

    open_model();
    share_times(&instance.plan, unit_s);
    if (argc > 3) open_trace(argv[3]);
    run_steps(n);
    print_result(n);
    ls_trace_close(trace);
    ls_instance_close(&instance);
    free(op_ns);
    return 0;
}
