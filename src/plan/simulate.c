/* simulate.c - lanes, events and shares of resources. */
#include "simulate.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REPETITIONS_MAX 8
#define STEADY          1e-6 /* two repetitions as long as each other, relative */

typedef struct lane_state {
    const int64_t *steps; /* of the segment, in order */
    int64_t n, next;
    int repetition;
    bool running;
    double left;  /* of the running step, as a fraction */
    double speed; /* 1: as fast as alone */
    double start_s;
    ls_step_cost cost;
    double busy_s; /* of the repetition at work */
} lane_state;

/* Sums since the start. */
typedef struct energy_sums {
    double gpu_j, cpu_j, capped_s;
} energy_sums;

typedef struct simulator {
    const ls_plan *plan;
    const ls_cost_model *model;
    ls_simulate_visit *visit;
    void *context;
    lane_state lanes[LS_LANE_COUNT];
    int64_t *order; /* [steps of the segment] by lane */
    int32_t *done;  /* [the same] how often a step has run */
    double now_s;
    double ends_s[REPETITIONS_MAX]; /* when the last step of each ended */
    double busy_s[REPETITIONS_MAX][LS_LANE_COUNT];
    ls_power_draw draw; /* until the next event */
    energy_sums energy, energy_at_end[REPETITIONS_MAX];
    double watts_peak;
} simulator;

/* ---- readiness ----------------------------------------------------------------------------- */

/* A wait for an earlier step of this repetition, or for the one before that ended a carry. */
static bool is_over(const simulator *s, int64_t wait, int repetition)
{
    const int64_t first = s->plan->segment_first[LS_SEGMENT_STEP];

    if (!ls_wait_is_carry(wait)) return s->done[wait - first] > repetition;
    const int64_t end = s->plan->carries[ls_wait_carry(wait)].ends[LS_SEGMENT_STEP];
    return end < 0 || s->done[end - first] >= repetition;
}

static bool is_ready(const simulator *s, const lane_state *lane)
{
    const ls_step *step = &s->plan->steps[lane->steps[lane->next]];

    for (int32_t w = 0; w < step->n_waits; w++)
        if (!is_over(s, s->plan->waits[step->first_wait + w], lane->repetition)) return false;
    return true;
}

static bool start_ready(simulator *s)
{
    bool any = false;

    for (int l = 0; l < LS_LANE_COUNT; l++) {
        lane_state *lane = &s->lanes[l];
        if (lane->n == 0 || lane->repetition == REPETITIONS_MAX) continue;
        if (!lane->running && is_ready(s, lane)) {
            lane->running = true;
            lane->left = 1;
            lane->start_s = s->now_s;
            lane->cost = ls_cost_of(s->model, s->plan, lane->steps[lane->next]);
        }
        any |= lane->running;
    }
    return any;
}

/* ---- shares -------------------------------------------------------------------------------- */

static void share(simulator *s)
{
    double share_of[LS_RESOURCE_COUNT];

    for (int r = 0; r < LS_RESOURCE_COUNT; r++) {
        double demand = 0; /* bytes per second if all ran as if alone */
        for (int l = 0; l < LS_LANE_COUNT; l++) {
            const lane_state *lane = &s->lanes[l];
            if (lane->running && lane->cost.seconds > 0)
                demand += lane->cost.bytes[r] / lane->cost.seconds;
        }
        share_of[r] = demand > s->model->bytes_per_s[r] ? s->model->bytes_per_s[r] / demand : 1;
    }
    for (int l = 0; l < LS_LANE_COUNT; l++) {
        lane_state *lane = &s->lanes[l];
        lane->speed = 1;
        for (int r = 0; lane->running && r < LS_RESOURCE_COUNT; r++)
            if (lane->cost.bytes[r] > 0 && share_of[r] < lane->speed) lane->speed = share_of[r];
    }
}

/* ---- power --------------------------------------------------------------------------------- */

static ls_power_load find_load(const simulator *s)
{
    ls_power_load load = {.tensor = 0};

    for (int l = 0; l < LS_LANE_COUNT; l++) {
        const lane_state *lane = &s->lanes[l];
        if (!lane->running || lane->cost.seconds <= 0) continue;
        const double rate = lane->speed / lane->cost.seconds;
        load.tensor += lane->cost.arithmetic_s * rate;
        load.device_memory +=
            lane->cost.bytes[LS_RESOURCE_HBM] * rate / s->model->bytes_per_s[LS_RESOURCE_HBM];
        load.host_memory +=
            lane->cost.bytes[LS_RESOURCE_HOST] * rate / s->model->bytes_per_s[LS_RESOURCE_HOST];
        load.cpu_busy |= l == LS_LANE_HOST || (l == LS_LANE_COMPUTE && !s->model->has_device);
    }
    return load;
}

/* What is drawn until the next event; a cap slows kernels, and copies too where device memory alone
 * takes more than it leaves. */
static void draw_power(simulator *s)
{
    if (s->model->power.why_unknown[0] != '\0') return;
    const ls_power_load load = find_load(s);
    s->draw = ls_power_draw_of(&s->model->power, &load);
    s->watts_peak = fmax(s->watts_peak, s->draw.gpu_w + s->draw.cpu_w);
    for (int l = 0; l < LS_LANE_COUNT; l++) {
        const bool uses_memory = s->lanes[l].cost.bytes[LS_RESOURCE_HBM] > 0;
        s->lanes[l].speed *= ls_power_speed_of(&s->draw, l == LS_LANE_COMPUTE, uses_memory);
    }
}

static void add_energy(simulator *s, double seconds)
{
    s->energy.gpu_j += s->draw.gpu_w * seconds;
    s->energy.cpu_j += s->draw.cpu_w * seconds;
    if (s->draw.clock < 1 || s->draw.memory_rate < 1) s->energy.capped_s += seconds;
}

static double seconds_left(const lane_state *lane)
{
    return lane->left * lane->cost.seconds / lane->speed;
}

/* ---- events -------------------------------------------------------------------------------- */

static void finish_step(simulator *s, int l)
{
    lane_state *lane = &s->lanes[l];
    const int64_t step = lane->steps[lane->next];

    lane->running = false;
    s->done[step - s->plan->segment_first[LS_SEGMENT_STEP]]++;
    s->busy_s[lane->repetition][l] += s->now_s - lane->start_s;
    s->ends_s[lane->repetition] = fmax(s->ends_s[lane->repetition], s->now_s);
    s->energy_at_end[lane->repetition] = s->energy;
    if (s->visit != NULL) s->visit(s->context, step, lane->repetition, lane->start_s, s->now_s);
    if (++lane->next < lane->n) return;
    lane->next = 0;
    lane->repetition++;
}

/* On to the next end of a step, or of several. */
static void advance(simulator *s)
{
    double least_s = INFINITY;

    share(s);
    draw_power(s);
    for (int l = 0; l < LS_LANE_COUNT; l++)
        if (s->lanes[l].running) least_s = fmin(least_s, seconds_left(&s->lanes[l]));
    s->now_s += least_s;
    add_energy(s, least_s);
    for (int l = 0; l < LS_LANE_COUNT; l++) {
        lane_state *lane = &s->lanes[l];
        if (!lane->running) continue;
        if (seconds_left(lane) <= least_s)
            finish_step(s, l);
        else
            lane->left -= least_s * lane->speed / lane->cost.seconds;
    }
}

static bool are_all_past(const simulator *s, int repetition)
{
    for (int l = 0; l < LS_LANE_COUNT; l++)
        if (s->lanes[l].n > 0 && s->lanes[l].repetition <= repetition) return false;
    return true;
}

static double length_of(const simulator *s, int repetition)
{
    return s->ends_s[repetition] - (repetition > 0 ? s->ends_s[repetition - 1] : 0);
}

static void read_energy(const simulator *s, int repetition, ls_simulation *result)
{
    const energy_sums *end = &s->energy_at_end[repetition];
    const energy_sums none = {0, 0, 0};
    const energy_sums *start = repetition > 0 ? &s->energy_at_end[repetition - 1] : &none;

    result->gpu_j = end->gpu_j - start->gpu_j;
    result->cpu_j = end->cpu_j - start->cpu_j;
    result->capped_s = end->capped_s - start->capped_s;
    result->watts_peak = s->watts_peak;
}

/* Runs until a repetition is as long as the one before; which that is. */
static ls_status run(simulator *s, int *steady)
{
    for (int k = 0; k < REPETITIONS_MAX; k++) {
        while (!are_all_past(s, k)) {
            if (!start_ready(s))
                return LS_FAIL(LS_ERR_INVALID, "the plan waits for what never ends");
            advance(s);
        }
        *steady = k;
        if (k > 1 && fabs(length_of(s, k) - length_of(s, k - 1)) <= STEADY * length_of(s, k)) break;
    }
    return LS_OK;
}

/* ---- bounds -------------------------------------------------------------------------------- */

static void find_bounds(const ls_plan *plan, const ls_cost_model *model, ls_simulation *result)
{
    const int64_t first = plan->segment_first[LS_SEGMENT_STEP];
    ls_cost_sum sum = {{0}, {0}};

    for (int64_t i = first; i < first + plan->segment_steps[LS_SEGMENT_STEP]; i++) {
        const ls_step_cost cost = ls_cost_of(model, plan, i);
        ls_cost_sum_add(model, plan->steps[i].lane, &cost, &sum);
    }
    memcpy(result->lane_alone_s, sum.lane_s, sizeof result->lane_alone_s);
    memcpy(result->resource_s, sum.resource_s, sizeof result->resource_s);
    result->lower_bound_s = ls_cost_sum_bound(&sum, &result->bound_by);
}

/* ---- the whole ----------------------------------------------------------------------------- */

/* Steps of the segment by lane, each lane's in order. */
static void fill_lanes(simulator *s)
{
    const int64_t first = s->plan->segment_first[LS_SEGMENT_STEP];
    const int64_t n = s->plan->segment_steps[LS_SEGMENT_STEP];
    int64_t filled = 0;

    for (int l = 0; l < LS_LANE_COUNT; l++) {
        s->lanes[l].steps = &s->order[filled];
        for (int64_t i = first; i < first + n; i++)
            if ((int)s->plan->steps[i].lane == l) s->order[filled++] = i;
        s->lanes[l].n = &s->order[filled] - s->lanes[l].steps;
    }
}

ls_status ls_simulate(const ls_plan *plan, const ls_cost_model *model, ls_simulate_visit *visit,
                      void *context, ls_simulation *simulation)
{
    const size_t n = (size_t)plan->segment_steps[LS_SEGMENT_STEP];
    simulator s = {.plan = plan, .model = model, .visit = visit, .context = context};
    ls_simulation result = {.bound_by = "nothing"};
    int steady = 0;

    assert(model->why_unknown[0] == '\0');
    s.order = malloc(n * sizeof *s.order + 1);
    s.done = calloc(n + 1, sizeof *s.done);
    ls_status status = LS_OK;
    if (s.order == NULL || s.done == NULL)
        status = LS_FAIL(LS_ERR_NO_MEMORY, "simulating %zu steps", n);
    if (status == LS_OK && n > 0) {
        fill_lanes(&s);
        status = run(&s, &steady);
        result.step_s = length_of(&s, steady);
        result.first_s = s.ends_s[0];
        result.steady = steady;
        memcpy(result.lane_busy_s, s.busy_s[steady], sizeof result.lane_busy_s);
        read_energy(&s, steady, &result);
        find_bounds(plan, model, &result);
    }
    free(s.order);
    free(s.done);
    if (status == LS_OK) *simulation = result;
    return status;
}
