/*
 * power_sums.c - joules by rail, phase and method, of a stretch of time.
 *
 * A rail is quoted from the first method whose sensors cover 95% of the stretch, if the stretch is
 * a few windows long; a phase likewise, by the length of one visit to it.
 */
#include <math.h>
#include <string.h>

#include "power.h"
#include "power_internal.h"

/* ---- phases and sums ----------------------------------------------------------------------- */

void ls_power_phase(ls_power *p, int phase, int64_t step, uint64_t now_ns)
{
    pthread_mutex_lock(&p->mutex);
    if (p->phases.n_changes == 0) p->first_ns = p->taken_ns = now_ns;
    p->step = step;
    ls_phases_change(&p->phases, phase, now_ns);
    pthread_mutex_unlock(&p->mutex);
}

/* What a channel has told, and what it may be taken to go on with up to now. */
static ls_phase_sums sums_up_to(const ls_power *p, const power_channel *channel, uint64_t now_ns)
{
    const ls_energy *e = &channel->energy;
    ls_phase_sums sums = channel->sums;

    if (e->started && !e->frozen && isfinite(e->last_watts) && now_ns > e->last_ns &&
        now_ns - e->last_ns <= ls_energy_reach_ns(e))
        ls_phases_share(&p->phases,
                        &(ls_energy_piece){e->last_ns, now_ns, e->last_watts, e->last_watts},
                        &sums);
    return sums;
}

void ls_power_take(ls_power *p, uint64_t now_ns, ls_power_sums *sums)
{
    pthread_mutex_lock(&p->mutex);
    power_sum(p, now_ns, false, sums);
    for (int c = 0; c < p->n_channels; c++)
        p->channels[c].taken = sums_up_to(p, &p->channels[c], now_ns);
    ls_phases_times(&p->phases, now_ns, p->taken_phase_ns);
    memcpy(p->taken_spans, p->phases.spans, sizeof p->taken_spans);
    p->taken_ns = now_ns;
    pthread_mutex_unlock(&p->mutex);
}

/* ---- sums by rail -------------------------------------------------------------------------- */

#define FEW_WINDOWS  3    /* of a meter that a stretch must be long, to be told */
#define COVERAGE_MIN 0.95 /* of its time */

typedef struct stretch {
    uint64_t now_ns;
    bool whole;
    double seconds;
    double phase_seconds[LS_PHASES_MAX];
    double span_seconds[LS_PHASES_MAX]; /* of one visit, on average */
} stretch;

static stretch find_stretch(const ls_power *p, uint64_t now_ns, bool whole)
{
    stretch s = {.now_ns = now_ns, .whole = whole};
    uint64_t ns[LS_PHASES_MAX];
    const uint64_t from = whole ? p->first_ns : p->taken_ns;

    if (p->phases.n_changes == 0) return s;
    ls_phases_times(&p->phases, now_ns, ns);
    s.seconds = now_ns > from ? 1e-9 * (double)(now_ns - from) : 0.0;
    for (int f = 0; f < LS_PHASES_MAX; f++) {
        const uint64_t before = whole ? 0 : p->taken_phase_ns[f];
        int64_t spans = p->phases.spans[f] - (whole ? 0 : p->taken_spans[f]);
        /* a short phase may have been taken back since */
        s.phase_seconds[f] = ns[f] > before ? 1e-9 * (double)(ns[f] - before) : 0.0;
        if (spans < 1) spans = 1; /* it had begun before */
        s.span_seconds[f] = s.phase_seconds[f] / (double)spans;
    }
    return s;
}

/* Add one sensor's share of a rail: joules and covered time by phase. */
static void add_channel(const ls_power *p, const power_channel *c, const stretch *s,
                        ls_phase_sums *sums)
{
    const ls_phase_sums now = sums_up_to(p, c, s->now_ns);

    for (int f = 0; f < LS_PHASES_MAX; f++) {
        sums->joules[f] += now.joules[f] - (s->whole ? 0.0 : c->taken.joules[f]);
        const uint64_t before = s->whole ? 0 : c->taken.covered_ns[f];
        const uint64_t covered = now.covered_ns[f] > before ? now.covered_ns[f] - before : 0;
        if (covered < sums->covered_ns[f]) sums->covered_ns[f] = covered;
    }
}

/* The sum over a method's sensors of a rail: several sockets or GPUs, which do not overlap.
 * Coverage is the worst of them.  Returns how many there are. */
static int sum_method(const ls_power *p, ls_rail rail, ls_method method, const stretch *s,
                      ls_phase_sums *sums, double *resolution_s)
{
    int n = 0;

    memset(sums, 0, sizeof *sums);
    for (int f = 0; f < LS_PHASES_MAX; f++) sums->covered_ns[f] = UINT64_MAX;
    *resolution_s = 0.0;
    for (int c = 0; c < p->n_channels; c++) {
        const power_channel *channel = &p->channels[c];
        const ls_sensor *sensor = power_sensor(p, channel);
        if (sensor->rail != rail || sensor->method != method) continue;
        const double resolution = 1e-9 * (double)ls_energy_resolution_ns(&channel->energy);
        if (resolution > *resolution_s) *resolution_s = resolution;
        add_channel(p, channel, s, sums);
        n++;
    }
    return n;
}

static void total(const ls_phase_sums *sums, double *joules, double *covered_s)
{
    *joules = *covered_s = 0.0;
    for (int f = 0; f < LS_PHASES_MAX; f++) {
        *joules += sums->joules[f];
        *covered_s += 1e-9 * (double)sums->covered_ns[f];
    }
}

/* Fill a rail from one method; false: it does not cover the stretch. */
static bool fill_rail(const ls_power *p, ls_rail rail, ls_method method, const stretch *s,
                      ls_power_sums *sums)
{
    ls_phase_sums rail_sums;
    double joules, covered_s, resolution_s;

    if (sum_method(p, rail, method, s, &rail_sums, &resolution_s) == 0) return false;
    total(&rail_sums, &joules, &covered_s);
    const double coverage = s->seconds > 0.0 ? covered_s / s->seconds : 0.0;
    if (isnan(sums->coverage[rail]) || coverage > sums->coverage[rail])
        sums->coverage[rail] = coverage < 1.0 ? coverage : 1.0;
    if (coverage < COVERAGE_MIN || s->seconds < FEW_WINDOWS * resolution_s) return false;
    sums->joules[rail] = joules;
    sums->method[rail] = (int)method;
    for (int f = 0; f < LS_PHASES_MAX; f++)
        if (s->phase_seconds[f] > 0.0 && s->span_seconds[f] >= FEW_WINDOWS * resolution_s &&
            1e-9 * (double)rail_sums.covered_ns[f] >= COVERAGE_MIN * s->phase_seconds[f])
            sums->phase_joules[rail][f] = rail_sums.joules[f];
    return true;
}

void power_sum(const ls_power *p, uint64_t now_ns, bool whole, ls_power_sums *sums)
{
    const stretch s = find_stretch(p, now_ns, whole);

    sums->seconds = s.seconds;
    memcpy(sums->phase_seconds, s.phase_seconds, sizeof sums->phase_seconds);
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) {
        sums->joules[rail] = sums->coverage[rail] = (double)NAN;
        sums->method[rail] = -1;
        for (int f = 0; f < LS_PHASES_MAX; f++) sums->phase_joules[rail][f] = (double)NAN;
        for (ls_method method = 0; method < LS_METHOD_COUNT; method++)
            if (fill_rail(p, rail, method, &s, sums)) break;
    }
}

bool power_method_sum(const ls_power *p, ls_rail rail, ls_method method, uint64_t now_ns,
                      power_method *sum)
{
    const stretch s = find_stretch(p, now_ns, true);
    ls_phase_sums sums;
    double covered_s, resolution_s;

    if (sum_method(p, rail, method, &s, &sums, &resolution_s) == 0) return false;
    total(&sums, &sum->joules, &covered_s);
    sum->coverage = s.seconds > 0.0 ? fmin(covered_s / s.seconds, 1.0) : 0.0;
    sum->error_joules = 0.0;
    for (int c = 0; c < p->n_channels; c++) {
        const ls_energy *e = &p->channels[c].energy;
        const ls_sensor *sensor = power_sensor(p, &p->channels[c]);
        if (sensor->rail != rail || sensor->method != method || e->watts_max < e->watts_min)
            continue;
        sum->error_joules += resolution_s * 0.5 * (e->watts_max - e->watts_min);
    }
    return true;
}

int64_t ls_power_watts(ls_power *p, double watts[LS_RAIL_COUNT])
{
    int method[LS_RAIL_COUNT];

    pthread_mutex_lock(&p->mutex);
    for (ls_rail rail = 0; rail < LS_RAIL_COUNT; rail++) {
        watts[rail] = (double)NAN;
        method[rail] = LS_METHOD_COUNT;
    }
    for (int c = 0; c < p->n_channels; c++) {
        const ls_sensor *sensor = power_sensor(p, &p->channels[c]);
        const double now = p->channels[c].energy.last_watts;
        const ls_rail rail = sensor->rail;
        if (rail < 0 || isnan(now) || (int)sensor->method > method[rail]) continue;
        watts[rail] = (int)sensor->method == method[rail] ? watts[rail] + now : now;
        method[rail] = (int)sensor->method;
    }
    pthread_mutex_unlock(&p->mutex);
    return atomic_load(&p->n_ticks);
}

/* On the thread that asks, or by hand: readings are its own. */
double ls_power_reading(ls_power *p, const char *id)
{
    for (int s = 0; s < p->meters.n_sensors; s++)
        if (p->readings[s].ok && strcmp(p->meters.sensors[s].id, id) == 0)
            return p->meters.sensors[s].scale * (double)p->readings[s].raw;
    return (double)NAN;
}
