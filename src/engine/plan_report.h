/*
 * plan_report.h - what may be said of a plan before it runs: where the bytes are, what the steps
 * are, whether it fits; as tables for people, or as the document that `longspan plan --json`
 * prints.
 *
 * Layer: engine.  Threads: plain data.
 */
#ifndef LS_PLAN_REPORT_H
#define LS_PLAN_REPORT_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "choice_search.h"
#include "plan_changes.h"
#include "plan_times.h"
#include "save_search.h"

#define LS_PLAN_WHY_BYTES 1536

typedef struct ls_plan_report {
    const ls_run_config *config;
    const ls_hardware *hardware;
    const ls_plan *plan; /* NULL: refused before it was built; nothing is known of it then */
    ls_choices choices;  /* without a plan: those the run file fixes; 0 where it does not */
    int64_t parameters;
    double state_bytes_per_parameter; /* weight, remainder, moments; 0 without a plan */
    int64_t tokens;                   /* of an optimizer step, none of them padding */
    double pairs;                     /* (query, key), if every sequence is one document */
    double flops_model;               /* 6 N_mat tokens + 12 H K L pairs */
    const char *limit;                /* which limit of host memory it is */
    ls_plan_limits available;         /* what each place has to give */
    uint64_t short_bytes[LS_PLACE_COUNT];
    uint64_t shared_bytes[LS_PLACE_COUNT];
    bool fits;
    char why[LS_PLAN_WHY_BYTES]; /* it does not fit, and what may be done about it; "" if it fits */
    ls_save_nearest nearest;     /* a policy that fits; only where this one does not */
    bool checked;                /* ls_plan_check() proved it, apart from room */
    double check_s;              /* of processor time, in which it did */
    ls_plan_times times;
    ls_plan_changes changes; /* that would make it faster */
    const ls_search *search; /* how the choices were made; NULL: not known */
} ls_plan_report;

/*
 * Check a plan against this machine and gather what is said of it.
 *   config, plan  must outlive the report
 * Returns LS_OK, whether it fits or not; LS_ERR_INVALID (the plan is wrong: a bug),
 * LS_ERR_NO_MEMORY (for the check itself).
 */
ls_status ls_plan_report_make(const ls_run_config *config, const ls_hardware *hardware,
                              const ls_choices *choices, const ls_decoder *decoder,
                              const ls_plan *plan, ls_plan_report *report);

/*
 * The same of a plan that has no room itself, so that it was not built.
 *   options  what it would have been built from; the choices may be missing
 *   why      that is
 */
void ls_plan_report_refuse(const ls_run_config *config, const ls_hardware *hardware,
                           const ls_decoder_options *options, const char *why,
                           ls_plan_report *report);

/* Whether something that need not be kept may be what has no room. */
bool ls_plan_report_may_save_less(const ls_plan_report *report);

/* Say which policy would fit, and at what cost; why grows by that sentence. */
void ls_plan_report_set_nearest(const ls_save_nearest *nearest, ls_plan_report *report);

/* Tables, then the verdict; of a plan that was built. */
void ls_plan_report_print(const ls_plan_report *report, FILE *file);

/* The document; free with cJSON_Delete.  What this version does not know is null. */
ls_status ls_plan_report_to_json(const ls_plan_report *report, cJSON **json);

/* LS_OK, or LS_ERR_NO_MEMORY that says why. */
ls_status ls_plan_report_verdict(const ls_plan_report *report);

/* What a class has there: bytes, how it is used, why it is there. */
typedef struct ls_class_row {
    uint64_t bytes;
    const char *mode; /* "direct", ...; of slots and copies in device memory that of their class */
    const char *reason;
} ls_class_row;

ls_class_row ls_plan_report_class(const ls_plan_report *report, ls_role role, ls_place_kind place);

/* Totals over the steps of a segment. */
typedef struct ls_segment_totals {
    int64_t steps, lane_steps[LS_LANE_COUNT];
    int64_t waits, carries; /* waits for steps of the segment, and for earlier segments */
    double flops, bytes;    /* flops: an upper bound, recompute included */
    double copy_in_bytes, copy_out_bytes; /* between places, each byte once */
} ls_segment_totals;

ls_segment_totals ls_plan_report_segment(const ls_plan_report *report, ls_segment_kind segment);

#endif
