/*
 * instance.h - a model that can run: tape, plan, memory and device bound together.
 *
 * Open builds the decoder's tape, lowers it, reserves the plan's arena and starts the device; from
 * then on a segment runs by name and nothing more is allocated.
 *
 * Layer: engine.  Threads: one thread owns an instance.
 */
#ifndef LS_INSTANCE_H
#define LS_INSTANCE_H

#include "arena.h"
#include "decoder.h"
#include "executor.h"

typedef struct ls_instance_options {
    ls_device_opener *open_device;             /* NULL: the CPU */
    int compute_threads, optimizer_threads;    /* 0: all cores */
    ls_device_call *calls[LS_CALL_KIND_COUNT]; /* see executor.h; NULL: nothing is done */
    ls_stop_query *stop;                       /* may be NULL */
    void *stop_context;
    ls_document_query *one_document;        /* may be NULL; asked where kernels depend on it */
    const ls_placement *placement;          /* NULL: all in host memory */
    const ls_plan_limits *limits;           /* NULL: only what arenas find when they are opened */
    double in_bytes_per_s, out_bytes_per_s; /* of copies; 0: as fast as they go */
    const ls_device_clock *clock;           /* that these go by; NULL: the real one */
    int touch_threads; /* back all memory before the first step; 0: at first use */
    bool bind;         /* host memory to NUMA node host_node */
    int host_node;
    const char *nvme_path; /* folder of the file that holds what is placed on nvme; NULL: nothing
                              may be */
} ls_instance_options;

typedef struct ls_instance {
    ls_decoder decoder;
    ls_plan plan;
    ls_device *device;
    ls_arena *arenas[LS_PLACE_COUNT]; /* as the plan numbers them */
    void *bases[LS_PLACE_COUNT];
    uint64_t *tickets, *carry_tickets;
    ls_device_call *calls[LS_CALL_KIND_COUNT];
    ls_executor executor;
} ls_instance;

/* How far each lane had been filled at some moment. */
typedef struct ls_lane_marks {
    uint64_t tickets[LS_LANE_COUNT];
} ls_lane_marks;

/*
 * Build and reserve everything.
 *   decoder_options, options  copied
 *   instance  [out] at its final address: the executor points into it; ls_instance_close() ends it
 * Returns LS_OK, LS_ERR_INVALID (sizes), LS_ERR_NO_MEMORY (does not fit), LS_ERR_DEVICE.
 */
ls_status ls_instance_open(const ls_decoder_options *decoder_options,
                           const ls_instance_options *options, ls_instance *instance);

/* NULL and a zeroed instance are allowed. */
void ls_instance_close(ls_instance *instance);

/* Fill the copies that the plan keeps fresh (resident weights): after their sources were filled
 * from outside the plan, before the first segment. */
ls_status ls_instance_fill_copies(ls_instance *instance);

/* Submit a segment, or wait for all that were submitted; see executor.h. */
ls_status ls_instance_submit(ls_instance *instance, ls_segment_kind segment, void *job);
ls_status ls_instance_sync(ls_instance *instance);

/* Both: run a segment to its end. */
ls_status ls_instance_run(ls_instance *instance, ls_segment_kind segment, void *job);

/* Mark what has been submitted up to now; wait until it has run, or been dropped after a failure.
 */
ls_lane_marks ls_instance_mark(const ls_instance *instance);
void ls_instance_wait(ls_instance *instance, const ls_lane_marks *marks);

/* Address of a tensor (an index as the decoder gives them). */
void *ls_instance_tensor(const ls_instance *instance, int32_t tensor);

/* Index of the parameter with this name; -1 if there is none. */
int32_t ls_instance_find_param(const ls_instance *instance, const char *name);

#endif
