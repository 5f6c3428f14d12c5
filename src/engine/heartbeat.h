/*
 * heartbeat.h - a slow step is not silence: where the run is, once a second, and how it ended.
 *
 * A thread of its own looks at what the compute lane runs and writes RUN/heartbeat.json (renamed
 * into place, so a reader always finds a whole one).  The lanes do nothing for it.
 *
 *   {"time": 1764490000.1, "state": "running", "step": 12, "steps": 300, "segment": "step",
 *    "phase": "backward", "layer": 3, "block": 17, "fraction": 0.61, "step_eta_s": 140.2,
 *    "run_eta_s": 110000.5, "loss": 2.41}
 *
 * The last one says "done", "stopped" (saved, to be resumed) or "failed", with segment and phase
 * null; its step is the last that is complete, or the one that failed.  "running" with an old time:
 * the process was killed.
 *
 * Layer: engine.  Threads: one owner.
 */
#ifndef LS_HEARTBEAT_H
#define LS_HEARTBEAT_H

#include "trainer.h"

typedef struct ls_heartbeat ls_heartbeat;

typedef enum ls_heartbeat_state {
    LS_HEARTBEAT_RUNNING = 0,
    LS_HEARTBEAT_DONE,    /* the last step is complete */
    LS_HEARTBEAT_STOPPED, /* early, with everything saved */
    LS_HEARTBEAT_FAILED
} ls_heartbeat_state;

/* Where a run is.  layer and block are -1 where there is none, ETAs NAN while not known. */
typedef struct ls_heartbeat_beat {
    ls_heartbeat_state state;
    int64_t step;
    ls_segment_kind segment;
    ls_phase phase;
    int32_t layer, block;
    double fraction; /* of the step's work: FLOPs, or bytes where there are none */
    double elapsed_s, step_eta_s, run_eta_s;
} ls_heartbeat_beat;

/* Told of every beat but the first and the last, on the heartbeat's thread. */
typedef void ls_heartbeat_event(void *context, const ls_heartbeat_beat *beat);

typedef struct ls_heartbeat_options {
    const char *directory;     /* of heartbeat.json; NULL: nothing is written */
    ls_heartbeat_event *event; /* may be NULL */
    void *context;
} ls_heartbeat_options;

/*
 * Beat now and then once a second; end with ls_heartbeat_stop() before the trainer closes.
 *   trainer  open, at its final address, nothing submitted yet
 * Returns LS_OK, LS_ERR_NO_MEMORY or LS_ERR_DEVICE (no thread).
 */
ls_status ls_heartbeat_start(ls_trainer *trainer, const ls_heartbeat_options *options,
                             ls_heartbeat **heartbeat);

/* A last beat that says how the run ended, by the trainer's owner.  NULL is allowed. */
void ls_heartbeat_stop(ls_heartbeat *heartbeat, ls_heartbeat_state state);

#endif
