/*
 * power.h - the recorder of a run's power: one thread that asks every sensor at a fixed rate,
 * writes power.csv as it goes, and knows joules by rail, step and phase.
 *
 * A sensor that is slow, hangs or vanishes holds up this thread alone: training reports its phases
 * and takes its sums under a lock that is never held while a sensor is read.  Missing is null with
 * a reason; nothing is estimated, and what is shorter than a few windows of its meter is not
 * quoted.
 *
 *     power.csv   attempt,time_ns,step,phase,read_us,rapl.package-0.uJ,...   a line at a time
 *
 * Layer: telemetry.  Threads: ls_power_phase() and ls_power_take() from any; open, describe and
 * close by the owner.
 */
#ifndef LS_POWER_H
#define LS_POWER_H

#include <cjson/cJSON.h>

#include "phases.h"

typedef struct ls_power ls_power;

typedef struct ls_power_options {
    const char *directory; /* of power.csv; NULL: none is written */
    bool resume;           /* go on with the file that is there */
    int attempt;
    int samples_hz;
    ls_meter_options meters;
    const char *const *phases; /* [n_phases] names; outlive the recorder */
    int n_phases;
    int idle_phase; /* in which nothing is done for a moment */
    int rest_phase; /* whose power is that of the machine at rest; -1: none */
    /* After each question, on its thread; may be NULL. */
    void (*asked)(void *context, uint64_t now_ns);
    void *context;
    bool by_hand;               /* no thread: ls_power_tick() alone, at times of the caller's own */
    uint64_t (*clock_ns)(void); /* by which reading takes time; NULL: the real one */
} ls_power_options;

/*
 * Find the sensors, open the file, start the thread.  LS_ERR_IO (the file), LS_ERR_NO_MEMORY,
 * LS_ERR_DEVICE (no thread, or a sensor hangs).
 */
ls_status ls_power_open(const ls_power_options *options, ls_power **power);

/* End.  A thread that hangs in a sensor for seconds is left to itself, with what it holds.  NULL is
 * allowed. */
void ls_power_close(ls_power *power);

/* The run goes on to a phase, in this step. */
void ls_power_phase(ls_power *power, int phase, int64_t step, uint64_t now_ns);

/* What is known of a stretch of time.  NAN: not known, or too short to be told. */
typedef struct ls_power_sums {
    double seconds;
    double joules[LS_RAIL_COUNT];
    double coverage[LS_RAIL_COUNT]; /* 0..1 of the time; NAN: the rail has no sensor */
    int method[LS_RAIL_COUNT];      /* ls_method that joules come from; -1: none */
    double phase_seconds[LS_PHASES_MAX];
    double phase_joules[LS_RAIL_COUNT][LS_PHASES_MAX];
} ls_power_sums;

/*
 * Sums since the call before (or since the start), and the next ones begin here.  A sensor that was
 * last known a moment ago is taken to have gone on; what that was off by is in the next sums, so
 * that all of them add up to the whole.
 */
void ls_power_take(ls_power *power, uint64_t now_ns, ls_power_sums *sums);

/* Ask every sensor once, as of this moment. */
void ls_power_tick(ls_power *power, uint64_t now_ns);

/* Watts of each rail at the latest reading (NAN: none), and how many readings there have been. */
int64_t ls_power_watts(ls_power *power, double watts[LS_RAIL_COUNT]);

/* The latest reading of a state by its sensor's id; NAN: none.  From `asked` alone. */
double ls_power_reading(ls_power *power, const char *id);

/*
 * Sensors, rails, what is missing and why, and with final the whole run's sums, as run.json has
 * them.  LS_ERR_NO_MEMORY.
 */
ls_status ls_power_describe(ls_power *power, bool final, cJSON **json);

/* Whether any rail has a sensor; else why not. */
bool ls_power_has_rail(ls_power *power, ls_rail rail);
const char *ls_power_reason(const ls_power *power, ls_rail rail);

#endif
