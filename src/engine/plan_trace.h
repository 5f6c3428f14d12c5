/*
 * plan_trace.h - a plan's step as spans of trace.json: how a measured step and a simulated one name
 * their work alike.
 *
 * Layer: engine.  Threads: plain data.
 */
#ifndef LS_PLAN_TRACE_H
#define LS_PLAN_TRACE_H

#include "hardware.h"
#include "trace.h"

/* The span of a step of the plan in words. */
void ls_plan_trace_describe(const ls_plan *plan, int64_t step, ls_trace_words *words);

/*
 * Write the simulated step to a file: the repetition that repeats, lanes as threads.
 * LS_ERR_INVALID (times are not known: the text says which figure is missing), LS_ERR_IO,
 * LS_ERR_NO_MEMORY.
 */
ls_status ls_plan_trace_write(const ls_hardware *hardware, const ls_plan *plan, ls_dtype dtype,
                              const char *path);

#endif
