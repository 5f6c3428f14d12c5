/*
 * convert.h - a Hugging Face folder into a checkpoint that training can start from, and a
 * checkpoint into a plain Hugging Face folder.
 *
 *   HF folder  ->  checkpoint   the same tensors, shards of at most 5 GiB, an index, state.json
 * with checksums of all files; step 0 and no moments checkpoint ->  HF folder    the same without
 * state.json and optimizer files
 *
 * Tensors keep their names, dtypes and bytes both ways; config.json and what companions.h lists are
 * copied byte for byte.  What is wrong with either is found as training would find it.
 *
 * Layer: engine.  Threads: one job at a time.
 */
#ifndef LS_CONVERT_H
#define LS_CONVERT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "status.h"

typedef struct ls_convert_request {
    const char *source, *target; /* folders; nothing stands at target yet */
    const atomic_bool *stop;     /* may be NULL */
} ls_convert_request;

typedef struct ls_convert_report {
    bool to_checkpoint; /* else to a plain folder */
    int64_t n_tensors, n_parameters, n_derived;
    uint64_t bytes; /* of tensors */
} ls_convert_report;

/*
 * Convert; which way, the source says: a state.json makes it a checkpoint.  Nothing is left of a
 * conversion that fails.  LS_ERR_INVALID (config.json; target is there), LS_ERR_UNSUPPORTED,
 * LS_ERR_CORRUPT (weights, checksums), LS_ERR_IO, LS_ERR_NO_MEMORY, LS_ERR_STOPPED.
 */
ls_status ls_job_convert(const ls_convert_request *request, ls_convert_report *report);

#endif
