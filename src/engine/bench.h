/*
 * bench.h - what `longspan bench links` measures: each host memory from the cores beside it, and
 * the copies between host and device memory by the lanes that training uses.
 *
 *     machine + profile --> measure --> tables, document, or a profile with the figures in it
 *
 * What cannot be measured is a row with the reason, never a zero.
 *
 * Layer: engine (uses topology, device).  Threads: one bench at a time.
 */
#ifndef LS_BENCH_H
#define LS_BENCH_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "device.h"
#include "measure.h"
#include "profile.h"

#define LS_BENCH_REPETITIONS 5
#define LS_BENCH_COPIES_MAX  (3 * LS_PLACES_MAX)
#define LS_BENCH_REACHES_MAX (3 * LS_PLACES_MAX)

typedef struct ls_bench_options {
    const char *hardware;  /* "auto", a profile's name or file; merged into this machine */
    const char *save;      /* FILE.yaml for a profile, or NULL */
    uint64_t bytes;        /* of a buffer; 0: by the last-level cache */
    uint64_t memory_bytes; /* that may be used at most; 0: what is free */
    int repetitions;       /* 0: LS_BENCH_REPETITIONS */
    bool json, quiet;      /* quiet: no progress on stderr */
    const ls_device_clock *copy_clock; /* for copies; NULL: the real one */
} ls_bench_options;

/* A host memory, measured by the cores of its node. */
typedef struct ls_bench_memory {
    char place[LS_NAME_BYTES];
    int numa_node;
    bool measured;
    char missing[LS_NOTE_BYTES]; /* why not */
    int n_cores;
    uint64_t cache_bytes; /* 0: not known */
    uint64_t buffer_bytes;
    ls_memory_sweep sweeps[2]; /* with huge pages, as training asks for them; without */
} ls_bench_memory;

typedef enum ls_copy_way { LS_COPY_IN = 0, LS_COPY_OUT, LS_COPY_BOTH, LS_COPY_COUNT } ls_copy_way;

/* "in", "out", "both"; never NULL. */
const char *ls_copy_way_name(ls_copy_way way);

/* Copies between a host memory and a device memory; both: the sum, both ways at once. */
typedef struct ls_bench_copy {
    char host[LS_NAME_BYTES], device[LS_NAME_BYTES];
    ls_copy_way way;
    bool measured;
    char missing[LS_NOTE_BYTES];
    uint64_t bytes; /* of a repetition */
    ls_spread bytes_per_s;
    double throttle_bytes_per_s;       /* emulated: what the profile throttles it to; 0: not */
    ls_spread unthrottled_bytes_per_s; /* the same copies without; where it is throttled */
} ls_bench_copy;

typedef enum ls_reach_way {
    LS_REACH_READ = 0, /* host memory is read in place */
    LS_REACH_WRITE,    /* ... written */
    LS_REACH_OWN,      /* the GPU's own memory: two reads and a write */
    LS_REACH_COUNT
} ls_reach_way;

/* "read", "write", "add"; never NULL. */
const char *ls_reach_way_name(ls_reach_way way);

/* How fast a GPU's kernels reach a memory; bytes of that memory alone. */
typedef struct ls_bench_reach {
    char device[LS_NAME_BYTES], place[LS_NAME_BYTES]; /* whose kernels: that memory's GPU */
    ls_reach_way way;
    uint64_t bytes; /* of a repetition */
    ls_spread bytes_per_s;
} ls_bench_reach;

typedef struct ls_bench {
    const ls_topology *machine; /* borrowed */
    int repetitions;
    ls_quantity load_average; /* runnable threads in the minute before: from 1 on others disturb */
    ls_bench_memory memories[LS_PLACES_MAX];
    int n_memories;
    ls_bench_copy copies[LS_BENCH_COPIES_MAX];
    int n_copies;
    ls_bench_reach
        reaches[LS_BENCH_REACHES_MAX]; /* what was measured; copies say what is missing */
    int n_reaches;
} ls_bench;

/* ---- copies ----------------------------------------------------------------------------------
 */

typedef struct ls_copy_options {
    uint64_t host_bytes, device_bytes;      /* of the arenas */
    double in_bytes_per_s, out_bytes_per_s; /* throttle; 0: none */
    int repetitions;
    const ls_device_clock *clock;  /* for throttling and for timing; NULL: the real one */
    ls_device_opener *open_device; /* a GPU, which is not throttled; NULL: the CPU device */
    bool bind;                     /* host memory to numa_node */
    int numa_node;
} ls_copy_options;

/*
 * Copy all of a host arena through device memory, on two lanes: in, out, and both at once; then let
 * a GPU's kernels pass over both memories.  The CPU device takes host memory for a device's.
 *
 *   spreads  [LS_COPY_COUNT] bytes per second
 *   reaches  [LS_REACH_COUNT] bytes per second; NULL: do not (the CPU device has none)
 *
 * LS_ERR_NO_MEMORY, LS_ERR_DEVICE, LS_ERR_UNSUPPORTED (the GPU cannot be used).
 */
ls_status ls_copies_measure(const ls_copy_options *options, ls_spread *spreads, ls_spread *reaches);

/* Runnable threads in the minute before, as the system tells it. */
ls_quantity ls_bench_read_load(void);

/* ---- the whole -------------------------------------------------------------------------------
 */

/*
 * Measure the links of a machine.
 *
 *   profile  merged into the machine: has the throttle
 *   bench    [out] free with free()
 *
 * LS_ERR_NO_MEMORY (the smallest buffer that tells anything does not fit), LS_ERR_INVALID (bytes
 * too small), LS_ERR_DEVICE.
 */
ls_status ls_bench_measure(const ls_bench_options *options, const ls_topology *machine,
                           const ls_profile *profile, ls_bench **bench);

/* Others had a core or more to themselves when it began: rates are too low, by nobody knows what.
 */
bool ls_bench_is_disturbed(const ls_bench *bench);

/* Some buffer is smaller than twice the cache: the figures are not those of the memory. */
bool ls_bench_is_cached(const ls_bench *bench);

/* Tables. */
void ls_bench_print(const ls_bench *bench, FILE *file);

/* The document; free with cJSON_Delete.  LS_ERR_NO_MEMORY. */
ls_status ls_bench_to_json(const ls_bench *bench, cJSON **json);

/* Replace a profile's figures by the measured ones: of the host memory nearest to the first GPU,
 * and of its link; what the profile leaves open is filled from the machine. */
void ls_bench_fill_profile(const ls_bench *bench, ls_profile *profile);

/*
 * Look at this machine, measure its links, write the result to file and the profile to
 * options->save.  Where that may be written is looked at first.  Statuses: as above, and of
 * ls_profile_check_target() and ls_profile_write().
 */
ls_status ls_job_bench_links(const ls_bench_options *options, FILE *file);

#endif
