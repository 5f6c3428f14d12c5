/* plan_trace.c - the simulator's visits, written as they come. */
#include "plan_trace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "plan_times.h"

#define SPANS 4096 /* between two flushes */

void ls_plan_trace_describe(const ls_plan *plan, int64_t index, ls_trace_words *words)
{
    const ls_step *step = &plan->steps[index];
    const char *name =
        step->kind == LS_CALL_OP ? ls_op_describe(step->op)->name : ls_call_kind_name(step->kind);

    snprintf(words->name, sizeof words->name, "%s", name);
    snprintf(words->category, sizeof words->category, "%s%s", ls_phase_name(step->phase),
             step->recompute ? ",recompute" : "");
    snprintf(words->args, sizeof words->args,
             "\"plan_step\":%lld,\"segment\":\"%s\",\"layer\":%d,\"chunk\":%d,\"flops\":%.15g,"
             "\"bytes\":%llu",
             (long long)index, ls_segment_name(ls_plan_segment_of(plan, index)), (int)step->layer,
             (int)step->chunk, step->flops, (unsigned long long)step->bytes);
}

typedef struct simulated {
    const ls_plan *plan;
    ls_trace *trace;
    int steady;     /* the repetition that is written */
    double start_s; /* when it begins to compute */
    int n_spans;    /* since the latest flush */
} simulated;

static void describe(void *context, int thread, int64_t tag, ls_trace_words *words)
{
    const simulated *s = context;

    (void)thread;
    ls_plan_trace_describe(s->plan, tag, words);
}

static void find_start(void *context, int64_t step, int repetition, double start_s, double end_s)
{
    simulated *s = context;

    (void)end_s;
    if (repetition == s->steady && s->plan->steps[step].lane == LS_LANE_COMPUTE &&
        (s->start_s < 0 || start_s < s->start_s))
        s->start_s = start_s;
}

/* What ran ahead of it, such as reading its batch, is at its beginning. */
static uint64_t since_start(const simulated *s, double moment_s)
{
    return moment_s > s->start_s ? (uint64_t)(1e9 * (moment_s - s->start_s)) : 0;
}

static void write_span(void *context, int64_t step, int repetition, double start_s, double end_s)
{
    simulated *s = context;

    if (repetition != s->steady) return;
    ls_trace_span(s->trace, (int)s->plan->steps[step].lane, step, since_start(s, start_s),
                  since_start(s, end_s));
    if (++s->n_spans < SPANS / 2) return;
    ls_trace_flush(s->trace);
    s->n_spans = 0;
}

/* Three times over: which repetition is steady, when it begins, and then its spans. */
static ls_status write_steady(const ls_plan *plan, const ls_cost_model *model, simulated *s)
{
    ls_simulation simulation;

    LS_TRY(ls_simulate(plan, model, NULL, NULL, &simulation));
    s->steady = simulation.steady;
    LS_TRY(ls_simulate(plan, model, find_start, s, &simulation));
    return ls_simulate(plan, model, write_span, s, &simulation);
}

ls_status ls_plan_trace_write(const ls_hardware *hardware, const ls_plan *plan, ls_dtype dtype,
                              const char *path)
{
    const bool on_gpu = hardware->has_device && !hardware->emulated;
    const ls_cost_model model = ls_cost_model_make(hardware->topology, on_gpu, dtype);
    const char *lanes[LS_LANE_COUNT];
    char why[LS_TIME_WHY_BYTES];
    simulated s = {.plan = plan, .start_s = -1};

    ls_plan_times_explain(hardware, &model, why);
    if (why[0] != '\0')
        return LS_FAIL(LS_ERR_INVALID, "--trace %s: there are no times to write: %s", path, why);
    for (int l = 0; l < LS_LANE_COUNT; l++) lanes[l] = ls_lane_name((ls_lane)l);
    const ls_trace_options options = {.path = path,
                                      .n_spans = SPANS,
                                      .threads = lanes,
                                      .n_threads = ls_plan_lanes(plan),
                                      .describe = describe,
                                      .context = &s};
    LS_TRY(ls_trace_open(&options, &s.trace));
    ls_status status = write_steady(plan, &model, &s);
    const int failed = ls_trace_end(s.trace);
    ls_trace_close(s.trace);
    if (status == LS_OK && failed != 0)
        status = LS_FAIL(LS_ERR_IO, "--trace %s: %s", path, strerror(failed));
    return status;
}
