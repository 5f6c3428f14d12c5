/*
 * energy.h - joules from one sensor's readings, a piece of time after the other.
 *
 * A counter gives differences; where it falls it has wrapped or was reset, and the joules across a
 * reset are unknown, not zero.  Power is integrated by trapezoids over fresh readings: a meter that
 * is asked more often than it looks says the same again, which is no second sample.  A mean over a
 * window stands for the middle of that window.  Time without trustworthy readings is a gap, for
 * which there is no piece.
 *
 *     readings   100 100 100 180 180 180 140        (asked every 100 ms, new every 300 ms)
 *     pieces      |-----------|-----------|         each: from, to, watts at both ends
 *
 * Layer: telemetry.  Threads: one owner.  Allocates nothing.
 */
#ifndef LS_ENERGY_H
#define LS_ENERGY_H

#include "meter.h"

#define LS_ENERGY_PERIODS 15

/* Energy between two moments; power is linear between them. */
typedef struct ls_energy_piece {
    uint64_t from_ns, to_ns;
    double from_watts, to_watts;
} ls_energy_piece;

typedef struct ls_energy {
    ls_sensor_kind kind;
    double scale, wrap_joules;
    uint64_t window_ns, interval_ns; /* of the mean; between two questions */
    uint64_t period_ns;              /* between looks, where that is known; else 0 */

    bool started;
    uint64_t last_ns;    /* known up to here: in the middle of the window, where there is one */
    uint64_t asked_ns;   /* when the reading that it is known from was taken */
    uint64_t changed_ns; /* when raw last became another */
    uint64_t looked_ns;  /* when raw or stamp did */
    int64_t last_raw;
    uint64_t last_stamp;
    double last_watts;                      /* at last_ns; NAN: not known yet */
    uint64_t periods_ns[LS_ENERGY_PERIODS]; /* between changes, the latest ones, in a ring */
    int64_t n_changes;

    int64_t n_readings, n_failed, n_wraps, n_resets, n_gaps;
    bool frozen; /* says the same for so long that it is not believed */
    double watts_min, watts_max;
} ls_energy;

/* interval_ns: how often the sensor is going to be asked. */
ls_energy ls_energy_open(const ls_sensor *sensor, uint64_t interval_ns);

/* Take a reading (not ok: failed) of this moment.  True: *piece is newly known. */
bool ls_energy_add(ls_energy *energy, uint64_t now_ns, const ls_reading *reading,
                   ls_energy_piece *piece);

/* The time between looks of the meter, as changes of its readings tell: their lower quartile, since
 * some looks find the same; 0: too few changes yet. */
uint64_t ls_energy_period_ns(const ls_energy *energy);

/* Below this time the sensor cannot tell one moment from another. */
uint64_t ls_energy_resolution_ns(const ls_energy *energy);

/* How long after last_ns it may still be taken to be going on as it was. */
uint64_t ls_energy_reach_ns(const ls_energy *energy);

/* Joules of a piece between two moments; what lies outside of it does not count. */
double ls_energy_piece_joules(const ls_energy_piece *piece, uint64_t from_ns, uint64_t to_ns);

#endif
