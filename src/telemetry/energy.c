/* energy.c - fresh readings, differences, trapezoids. */
#include "energy.h"

#include <math.h>
#include <string.h>

#define SECOND_NS   UINT64_C(1000000000)
#define FROZEN_NS   (10 * SECOND_NS)
#define WATTS_MOST  20000.0 /* of anything on one node: more is no reading */
#define CHANGES_MIN 3       /* before a period is believed */

ls_energy ls_energy_open(const ls_sensor *sensor, uint64_t interval_ns)
{
    const double window_s = isnan(sensor->window_s) ? 0.0 : sensor->window_s;

    return (ls_energy){.kind = sensor->kind,
                       .scale = sensor->scale,
                       .wrap_joules = sensor->wrap_joules,
                       .window_ns = (uint64_t)(1e9 * window_s),
                       .interval_ns = interval_ns,
                       .period_ns = (uint64_t)(1e9 * sensor->period_s),
                       .last_watts = (double)NAN,
                       .watts_min = (double)INFINITY};
}

uint64_t ls_energy_period_ns(const ls_energy *e)
{
    const int n = e->n_changes < LS_ENERGY_PERIODS ? (int)e->n_changes : LS_ENERGY_PERIODS;
    uint64_t sorted[LS_ENERGY_PERIODS];

    if (n < CHANGES_MIN) return 0;
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > e->periods_ns[i]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = e->periods_ns[i];
    }
    return sorted[n / 4];
}

/* As known, else as measured. */
static uint64_t period_of(const ls_energy *e)
{
    return e->period_ns > 0 ? e->period_ns : ls_energy_period_ns(e);
}

uint64_t ls_energy_resolution_ns(const ls_energy *e)
{
    const uint64_t period = period_of(e);
    uint64_t resolution = e->interval_ns;

    if (period > resolution) resolution = period;
    if (e->window_ns > resolution) resolution = e->window_ns;
    return resolution;
}

uint64_t ls_energy_reach_ns(const ls_energy *e)
{
    return 3 * ls_energy_resolution_ns(e);
}

/* Readings further apart than this do not belong to one piece. */
static uint64_t gap_ns(const ls_energy *e)
{
    const uint64_t reach = 4 * ls_energy_resolution_ns(e);
    return reach > 2 * SECOND_NS ? reach : 2 * SECOND_NS;
}

/* The middle of what the reading is a mean of; a change may have happened since the question
 * before, when questions are faster than changes. */
static uint64_t moment_of(const ls_energy *e, uint64_t now_ns, bool fresh_by_change)
{
    uint64_t late = e->kind == LS_SENSOR_POWER ? e->window_ns / 2 : 0;

    if (fresh_by_change && 2 * period_of(e) > 3 * e->interval_ns) late += e->interval_ns / 2;
    return now_ns > late ? now_ns - late : 0;
}

static void note_change(ls_energy *e, uint64_t now_ns, const ls_reading *reading)
{
    if (reading->raw != e->last_raw || reading->stamp != e->last_stamp) {
        e->periods_ns[e->n_changes++ % LS_ENERGY_PERIODS] = now_ns - e->looked_ns;
        e->looked_ns = now_ns;
    }
    if (reading->raw == e->last_raw) return;
    e->changed_ns = now_ns;
    e->frozen = false;
}

/* Whether the reading is a new look of the meter's, or the old one again. */
static bool is_fresh(const ls_energy *e, uint64_t now_ns, const ls_reading *reading)
{
    const uint64_t age = now_ns - e->asked_ns;
    const uint64_t period = period_of(e);

    if (reading->raw != e->last_raw) return true;
    if (e->kind == LS_SENSOR_ENERGY) return false;
    if (reading->stamp != 0) return reading->stamp != e->last_stamp;
    if (period == 0) return age >= SECOND_NS + SECOND_NS / 4;
    if (period <= e->interval_ns) return true; /* it has looked since */
    return age >= period + e->interval_ns;     /* it must have, and found the same */
}

static void restart(ls_energy *e, uint64_t moment_ns, uint64_t now_ns, const ls_reading *reading)
{
    e->started = true;
    e->last_ns = moment_ns;
    e->asked_ns = now_ns;
    e->last_raw = reading->raw;
    e->last_stamp = reading->stamp;
    e->last_watts = e->kind == LS_SENSOR_POWER ? e->scale * (double)reading->raw : (double)NAN;
}

/* Joules since the reading before; NAN: unknown (a reset, or nonsense). */
static double difference(ls_energy *e, uint64_t now_ns, const ls_reading *reading)
{
    const double seconds = 1e-9 * (double)(now_ns - e->asked_ns);
    double joules = e->scale * (double)(reading->raw - e->last_raw);
    const bool fell = joules < 0.0;

    if (fell && e->wrap_joules > 0.0) joules += e->wrap_joules;
    if (joules < 0.0 || joules > WATTS_MOST * seconds) {
        e->n_resets++;
        return (double)NAN;
    }
    e->n_wraps += fell;
    return joules;
}

static bool take_counter(ls_energy *e, uint64_t now_ns, const ls_reading *reading,
                         ls_energy_piece *piece)
{
    const uint64_t moment = moment_of(e, now_ns, true), from = e->last_ns;
    const double joules = difference(e, now_ns, reading);
    const bool known = isfinite(joules) && moment > from;

    if (!known) {
        restart(e, moment, now_ns, reading);
        return false;
    }
    const double watts = joules / (1e-9 * (double)(moment - from));
    restart(e, moment, now_ns, reading);
    e->last_watts = watts;
    *piece = (ls_energy_piece){from, moment, watts, watts};
    return true;
}

static bool take_power(ls_energy *e, uint64_t now_ns, const ls_reading *reading,
                       ls_energy_piece *piece)
{
    const uint64_t from = e->last_ns;
    const uint64_t moment = moment_of(e, now_ns, reading->stamp == 0);
    const double watts = e->last_watts;

    if (moment <= from) return false; /* the period has just become known */
    restart(e, moment, now_ns, reading);
    *piece = (ls_energy_piece){from, moment, watts, e->last_watts};
    return true;
}

static void note_range(ls_energy *e)
{
    if (e->last_watts < e->watts_min) e->watts_min = e->last_watts;
    if (e->last_watts > e->watts_max) e->watts_max = e->last_watts;
}

bool ls_energy_add(ls_energy *e, uint64_t now_ns, const ls_reading *reading, ls_energy_piece *piece)
{
    const bool absurd = e->kind == LS_SENSOR_POWER && e->scale * (double)reading->raw > WATTS_MOST;

    e->n_readings++;
    if (!reading->ok || absurd || reading->raw < 0) {
        e->n_failed++;
        return false;
    }
    if (!e->started) {
        restart(e, moment_of(e, now_ns, false), now_ns, reading);
        e->changed_ns = e->looked_ns = now_ns;
        return false;
    }
    if (now_ns - e->changed_ns > FROZEN_NS && reading->raw == e->last_raw) {
        e->frozen = true;
        return false;
    }
    const bool was_frozen = e->frozen;
    const bool fresh = is_fresh(e, now_ns, reading);
    if (!fresh) return false;
    note_change(e, now_ns, reading);
    const bool bridged = e->kind == LS_SENSOR_ENERGY; /* a counter has counted meanwhile */
    if (was_frozen || (!bridged && now_ns - e->asked_ns > gap_ns(e))) {
        e->n_gaps++;
        restart(e, moment_of(e, now_ns, true), now_ns, reading);
        return false;
    }
    const bool known = e->kind == LS_SENSOR_ENERGY ? take_counter(e, now_ns, reading, piece)
                                                   : take_power(e, now_ns, reading, piece);
    if (known) note_range(e);
    return known;
}

double ls_energy_piece_joules(const ls_energy_piece *p, uint64_t from_ns, uint64_t to_ns)
{
    const uint64_t from = from_ns > p->from_ns ? from_ns : p->from_ns;
    const uint64_t to = to_ns < p->to_ns ? to_ns : p->to_ns;

    if (to <= from) return 0.0;
    const double slope = (p->to_watts - p->from_watts) / (double)(p->to_ns - p->from_ns);
    const double middle = 0.5 * ((double)(from - p->from_ns) + (double)(to - p->from_ns));
    return 1e-9 * (double)(to - from) * (p->from_watts + slope * middle);
}
