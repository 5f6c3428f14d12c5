/*
 * phases.h - what a run was doing when: a short history of phase changes, in which pieces of energy
 * are shared out.
 *
 * Energy of a moment becomes known later than the moment (a meter's window, a sensor's period), so
 * the history reaches back seconds; changes beyond LS_PHASE_CHANGES in that time fall out of it,
 * and energy of then is nobody's.
 *
 * Layer: telemetry.  Threads: none of its own; the owner locks.  Allocates nothing.
 */
#ifndef LS_PHASES_H
#define LS_PHASES_H

#include "energy.h"

#define LS_PHASES_MAX    12
#define LS_PHASE_CHANGES 4096

typedef struct ls_phase_change {
    uint64_t ns;
    int phase; /* from here on */
} ls_phase_change;

typedef struct ls_phases {
    ls_phase_change changes[LS_PHASE_CHANGES]; /* a ring, by time */
    int64_t n_changes;                         /* so far */
    uint64_t ns[LS_PHASES_MAX];                /* time in each, up to the latest change */
    int64_t spans[LS_PHASES_MAX];              /* how often each has begun */
    int idle;                                  /* the phase in which nothing is done */
} ls_phases;

/* What is shorter than this between two phases is part of the later one, or of the one around it.
 */
#define LS_PHASE_NS_MIN UINT64_C(2000000)

/* The run goes on to another phase; earlier than the change before: at that one's time. */
void ls_phases_change(ls_phases *phases, int phase, uint64_t now_ns);

/* The phase of now; -1 before the first. */
int ls_phases_now(const ls_phases *phases);

/* Time in each phase up to a moment not before the latest change. */
void ls_phases_times(const ls_phases *phases, uint64_t now_ns, uint64_t ns[LS_PHASES_MAX]);

/* Energy and time of each phase. */
typedef struct ls_phase_sums {
    double joules[LS_PHASES_MAX];
    uint64_t covered_ns[LS_PHASES_MAX];
} ls_phase_sums;

/* Share a piece out by the phases it lies in. */
void ls_phases_share(const ls_phases *phases, const ls_energy_piece *piece, ls_phase_sums *sums);

#endif
