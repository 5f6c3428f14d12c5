/* run_meters.c - the lanes' beginnings and ends as phases and spans. */
#include "run_meters.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "json.h"
#include "live.h"
#include "plan_trace.h"
#include "trace.h"

#define TRACE_SPANS     65536 /* between two flushes */
#define WHY_BYTES       512
#define PATH_BYTES      4200
#define SYSFS_VARIABLE  "LONGSPAN_SYSFS_ROOT"   /* a copy of /sys is looked for below it */
#define NVML_VARIABLE   "LONGSPAN_NVML_LIBRARY" /* instead of libnvidia-ml.so.1 */
#define STEPS_THREAD    0                       /* of the trace; lanes follow */
#define N_TRACE_THREADS (1 + LS_LANE_COUNT)

const char *const ls_run_phase_names[LS_RUN_PHASE_COUNT] = {
    "batch", "forward", "loss", "backward", "norm", "update", "save", "eval", "wait", "idle"};

struct ls_run_meters {
    ls_trainer *trainer;
    ls_power *power; /* NULL: off, or it could not be had */
    cJSON *earlier;  /* summaries of the attempts before */
    char why[WHY_BYTES];
    ls_trace *trace;               /* NULL: no steps are to be traced */
    ls_live_bytes *live;           /* [n_steps] of the plan; with trace */
    atomic_int_least64_t reported; /* the latest step that is complete */

    pthread_mutex_t mutex;
    int lane_phase[LS_LANE_COUNT]; /* of the command at work; -1: none */
};

/* ---- phases -------------------------------------------------------------------------------- */

/* The phase of a step of the plan. */
static int phase_of(const ls_run_meters *m, int64_t tag)
{
    const ls_plan *plan = &m->trainer->instance.plan;

    if (tag < 0) return LS_RUN_PHASE_WAIT; /* copies before the first segment */
    if (ls_plan_segment_of(plan, tag) == LS_SEGMENT_EVAL) return LS_RUN_PHASE_EVAL;
    return (int)plan->steps[tag].phase;
}

/* What the run as a whole is at; the mutex is held. */
static int overall_phase(const ls_run_meters *m)
{
    static const ls_lane order[] = {LS_LANE_COMPUTE, LS_LANE_HOST, LS_LANE_DISK_OUT,
                                    LS_LANE_DISK_IN};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        if (m->lane_phase[order[i]] >= 0) return m->lane_phase[order[i]];
    return LS_RUN_PHASE_WAIT;
}

static void set_lane(ls_run_meters *m, int lane, int phase, uint64_t now_ns)
{
    if (m->power == NULL) return;
    pthread_mutex_lock(&m->mutex);
    m->lane_phase[lane] = phase;
    ls_power_phase(m->power, overall_phase(m), atomic_load(&m->trainer->working_step), now_ns);
    pthread_mutex_unlock(&m->mutex);
}

/* ---- trace --------------------------------------------------------------------------------- */

/* Whether a step that is to be traced is at work: it has been begun and is not complete. */
static bool is_tracing(ls_run_meters *m)
{
    const ls_run_config *c = m->trainer->config;
    const int64_t working = atomic_load(&m->trainer->working_step);
    const int64_t reported = atomic_load(&m->reported);

    for (int64_t i = 0; i < c->n_trace_steps && c->trace_steps[i] <= working; i++)
        if (c->trace_steps[i] > reported) return true;
    return false;
}

static bool is_traced(const ls_run_config *c, int64_t step)
{
    for (int64_t i = 0; i < c->n_trace_steps; i++)
        if (c->trace_steps[i] == step) return true;
    return false;
}

static void describe_span(void *context, int thread, int64_t tag, ls_trace_words *words)
{
    const ls_run_meters *m = context;

    if (thread != STEPS_THREAD) {
        ls_plan_trace_describe(&m->trainer->instance.plan, tag, words);
        return;
    }
    snprintf(words->name, sizeof words->name, "step %lld", (long long)tag);
    snprintf(words->category, sizeof words->category, "step");
}

/* By plan order, which is the compute lane's. */
static bool find_levels(void *context, int thread, int64_t tag, double values[LS_TRACE_LEVELS])
{
    const ls_run_meters *m = context;

    if (thread != 1 + LS_LANE_COMPUTE) return false;
    for (int place = 0; place < LS_PLACE_COUNT; place++)
        values[place] = (double)m->live[tag].place[place];
    return true;
}

/* ---- what the device tells ----------------------------------------------------------------- */

static void command_began(void *context, int lane, int64_t tag, uint64_t now_ns)
{
    ls_run_meters *m = context;
    set_lane(m, lane, phase_of(m, tag), now_ns);
}

static void command_ended(void *context, int lane, int64_t tag, uint64_t began_ns, uint64_t now_ns)
{
    ls_run_meters *m = context;

    set_lane(m, lane, -1, now_ns);
    if (m->trace != NULL && tag >= 0 && is_tracing(m))
        ls_trace_span(m->trace, 1 + lane, tag, began_ns, now_ns);
}

/* On the recorder's thread, after each question. */
static void add_counters(void *context, uint64_t now_ns)
{
    static const char *const rails[LS_RAIL_COUNT] = {"gpu",   "module", "cpu",       "grace",
                                                     "sysio", "dram",   "gpu_memory"};
    static const char *const places[] = {"resident", "hbm"};
    ls_run_meters *m = context;
    double watts[LS_RAIL_COUNT], bytes[2];

    if (!is_tracing(m)) return;
    ls_power_watts(m->power, watts);
    ls_trace_counter(m->trace, "watts", rails, watts, LS_RAIL_COUNT, now_ns);
    bytes[0] = ls_power_reading(m->power, "process.resident");
    bytes[1] = m->trainer->choices.placement.has_device
                   ? (double)ls_plan_place_bytes(&m->trainer->instance.plan, LS_PLACE_HBM)
                   : (double)NAN;
    ls_trace_counter(m->trace, "bytes", places, bytes, 2, now_ns);
}

/* ---- open, close --------------------------------------------------------------------------- */

static ls_status open_trace(ls_run_meters *m)
{
    static const char *threads[N_TRACE_THREADS];
    static const char *const places[LS_PLACE_COUNT] = {"hbm", "host", "nvme"};
    const ls_plan *plan = &m->trainer->instance.plan;
    const ls_run_config *c = m->trainer->config;
    const ls_trace_options options = {.directory = c->output,
                                      .n_spans = TRACE_SPANS,
                                      .threads = threads,
                                      .n_threads = 1 + ls_plan_lanes(plan),
                                      .start_ns = ls_clock_ns(),
                                      .describe = describe_span,
                                      .levels = find_levels,
                                      .levels_name = "live bytes",
                                      .levels_keys = places,
                                      .context = m};

    threads[STEPS_THREAD] = "steps";
    for (int lane = 0; lane < LS_LANE_COUNT; lane++)
        threads[1 + lane] = ls_lane_name((ls_lane)lane);
    if (c->n_trace_steps == 0) return LS_OK;
    m->live = calloc((size_t)plan->n_steps, sizeof *m->live);
    if (m->live == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "live bytes of a plan");
    LS_TRY(ls_plan_live_bytes(plan, m->live));
    return ls_trace_open(&options, &m->trace);
}

/* Runs are measured without power rather than not at all. */
static void open_power(ls_run_meters *m, bool resume, int attempt)
{
    const ls_run_config *c = m->trainer->config;
    const char *root = getenv(SYSFS_VARIABLE), *nvml = getenv(NVML_VARIABLE);
    const ls_power_options options = {
        .directory = c->output,
        .resume = resume,
        .attempt = attempt,
        .samples_hz = (int)c->samples_hz,
        .meters = {.sysfs_root = root != NULL ? root : "",
                   .nvml_library = nvml != NULL ? nvml : "libnvidia-ml.so.1"},
        .phases = ls_run_phase_names,
        .n_phases = LS_RUN_PHASE_COUNT,
        .idle_phase = LS_RUN_PHASE_WAIT,
        .rest_phase = LS_RUN_PHASE_IDLE,
        .asked = m->trace != NULL ? add_counters : NULL,
        .context = m};

    if (!c->record_power)
        snprintf(m->why, sizeof m->why, "record.power is off");
    else if (ls_power_open(&options, &m->power) != LS_OK)
        snprintf(m->why, sizeof m->why, "%s", ls_error());
}

/* What run.json says of the attempts before, which this one's replaces; a killed one left nothing.
 */
static ls_status keep_earlier(ls_run_meters *m, bool resume)
{
    char path[PATH_BYTES];
    cJSON *before = NULL;
    const cJSON *summary, *one;

    m->earlier = cJSON_CreateArray();
    if (m->earlier == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "energy of earlier attempts");
    snprintf(path, sizeof path, "%s/run.json", m->trainer->config->output);
    if (!resume || ls_json_read(path, &before) != LS_OK) return LS_OK;
    ls_status status = LS_OK;
    cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(before, "power_earlier"))
    {
        if (status == LS_OK) status = ls_json_append(m->earlier, cJSON_Duplicate(one, true));
    }
    summary = ls_json_find_path(before, "power.summary");
    if (status == LS_OK && cJSON_IsObject(summary)) {
        cJSON *entry = cJSON_CreateObject();
        status = ls_json_append(m->earlier, entry);
        if (status == LS_OK)
            status = ls_json_add(
                entry, "attempt",
                cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(before, "attempt"), true));
        if (status == LS_OK) status = ls_json_add(entry, "summary", cJSON_Duplicate(summary, true));
    }
    cJSON_Delete(before);
    return status;
}

/* Nothing runs that would tell, and nothing will; the thread's latest failure stays. */
static void let_lanes_end(const ls_run_meters *m)
{
    char error[WHY_BYTES], origin[WHY_BYTES];
    int64_t failed;

    snprintf(error, sizeof error, "%s", ls_error());
    snprintf(origin, sizeof origin, "%s", ls_error_origin());
    if (ls_device_sync(m->trainer->instance.device, &failed) != LS_OK)
        ls_error_adopt(error, origin);
    ls_device_observe(m->trainer->instance.device, &(ls_device_observer){NULL, NULL, NULL});
}

void ls_run_meters_close(ls_run_meters *meters)
{
    if (meters == NULL) return;
    let_lanes_end(meters);
    ls_power_close(meters->power); /* first: it counts into the trace */
    ls_trace_close(meters->trace);
    pthread_mutex_destroy(&meters->mutex);
    cJSON_Delete(meters->earlier);
    free(meters->live);
    free(meters);
}

ls_status ls_run_meters_open(ls_trainer *trainer, bool resume, int attempt, ls_run_meters **meters)
{
    ls_run_meters *m = calloc(1, sizeof *m);

    if (m == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the meters of the run");
    m->trainer = trainer;
    atomic_store(&m->reported, trainer->step);
    for (int lane = 0; lane < LS_LANE_COUNT; lane++) m->lane_phase[lane] = -1;
    pthread_mutex_init(&m->mutex, NULL);
    ls_status status = keep_earlier(m, resume);
    if (status == LS_OK) status = open_trace(m);
    if (status != LS_OK) {
        ls_run_meters_close(m);
        return status;
    }
    open_power(m, resume, attempt);
    ls_device_observe(trainer->instance.device,
                      &(ls_device_observer){command_began, command_ended, m});
    *meters = m;
    return LS_OK;
}

void ls_run_meters_flush(ls_run_meters *meters)
{
    if (meters != NULL && meters->trace != NULL) ls_trace_flush(meters->trace);
}

/* ---- the record ---------------------------------------------------------------------------- */

/* From here on, and what was before is nobody's. */
static void begin_sums(ls_run_meters *m)
{
    ls_power_sums ignored;

    if (m == NULL || m->power == NULL) return;
    const uint64_t now_ns = ls_clock_ns();
    ls_power_phase(m->power, LS_RUN_PHASE_WAIT, atomic_load(&m->trainer->working_step), now_ns);
    ls_power_take(m->power, now_ns, &ignored);
}

static bool has_rails(ls_power *power)
{
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++)
        if (ls_power_has_rail(power, rail)) return true;
    return false;
}

/* What the machine draws when nothing is done. */
static void rest(ls_run_meters *m)
{
    const ls_trainer *t = m->trainer;
    const struct timespec pause = {0, 50000000};
    const uint64_t start_ns = ls_clock_ns();
    const uint64_t end_ns = start_ns + UINT64_C(1000000000) * (uint64_t)t->config->idle_s;

    ls_power_phase(m->power, LS_RUN_PHASE_IDLE, t->step, start_ns);
    while (ls_clock_ns() < end_ns) {
        if (t->options.stop != NULL && atomic_load(t->options.stop)) return;
        nanosleep(&pause, NULL);
    }
}

void ls_run_meters_start(ls_run_meters *m)
{
    if (m->power != NULL && m->trainer->config->idle_s > 0 && has_rails(m->power)) rest(m);
    begin_sums(m);
}

static void take_energy(ls_run_meters *m, ls_record_energy *energy)
{
    ls_power_sums sums;

    *energy = (ls_record_energy){.phases = ls_run_phase_names, .n_phases = LS_RUN_PHASE_COUNT};
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) energy->joules[rail] = (double)NAN;
    if (m->power == NULL) return;
    ls_power_take(m->power, ls_clock_ns(), &sums);
    energy->known = true;
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) {
        energy->joules[rail] = sums.joules[rail];
        energy->coverage[rail] = sums.coverage[rail];
        energy->method[rail] = sums.method[rail];
        memcpy(energy->phase_joules[rail], sums.phase_joules[rail],
               sizeof energy->phase_joules[rail]);
    }
    memcpy(energy->phase_seconds, sums.phase_seconds, sizeof energy->phase_seconds);
}

void ls_run_meters_step(ls_run_meters *m, ls_step_record *line)
{
    take_energy(m, &line->energy);
    if (m->trace != NULL && is_traced(m->trainer->config, line->step)) {
        const uint64_t now_ns = ls_clock_ns();
        ls_trace_span(m->trace, STEPS_THREAD, line->step, now_ns - (uint64_t)(1e9 * line->step_s),
                      now_ns);
    }
    atomic_store(&m->reported, line->step);
}

void ls_run_meters_eval_begin(ls_run_meters *meters)
{
    begin_sums(meters);
}

void ls_run_meters_eval_end(ls_run_meters *meters, ls_eval_record *line)
{
    take_energy(meters, &line->energy);
}

/* ---- run.json ------------------------------------------------------------------------------ */

static ls_status add_rail_reasons(ls_power *power, cJSON *missing)
{
    char key[64];

    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) {
        if (ls_power_has_rail(power, rail)) continue;
        snprintf(key, sizeof key, "energy_j.%s", ls_rail_name(rail));
        LS_TRY(ls_json_add(missing, key, cJSON_CreateString(ls_power_reason(power, rail))));
    }
    return LS_OK;
}

ls_status ls_run_meters_describe(ls_run_meters *meters, bool final, cJSON *run, cJSON *missing)
{
    cJSON *power = NULL;

    if (meters != NULL)
        LS_TRY(ls_json_add(run, "power_earlier", cJSON_Duplicate(meters->earlier, true)));
    if (meters == NULL || meters->power == NULL) {
        LS_TRY(ls_json_add(run, "power", cJSON_CreateNull()));
        return ls_json_add(missing, "energy_j",
                           cJSON_CreateString(meters != NULL ? meters->why : "not measured"));
    }
    LS_TRY(ls_power_describe(meters->power, final, &power));
    LS_TRY(ls_json_add(run, "power", power));
    if (meters->trace != NULL && final)
        LS_TRY(ls_json_add(power, "trace_dropped",
                           cJSON_CreateNumber((double)ls_trace_dropped(meters->trace))));
    return add_rail_reasons(meters->power, missing);
}
