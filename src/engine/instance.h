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
    int compute_threads, optimizer_threads; /* 0: all cores */
    ls_device_call *batch, *loss;           /* see executor.h */
    ls_stop_query *stop;
    void *context;
} ls_instance_options;

typedef struct ls_instance {
    ls_decoder decoder;
    ls_plan plan;
    ls_device *device;
    ls_arena *arena;
    void *arena_base;
    uint64_t *tickets;
    ls_executor executor;
} ls_instance;

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

/* Run a segment; see ls_executor_run(). */
ls_status ls_instance_run(ls_instance *instance, ls_segment_kind segment);

/* Address of a tensor (an index as the decoder gives them). */
void *ls_instance_tensor(const ls_instance *instance, int32_t tensor);

/* Index of the parameter with this name; -1 if there is none. */
int32_t ls_instance_find_param(const ls_instance *instance, const char *name);

#endif
