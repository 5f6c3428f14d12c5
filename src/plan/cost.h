/*
 * cost.h - how long a step takes on a machine, and which shared resources it uses meanwhile.
 *
 * A step that runs alone takes a latency, and then as long as the slowest of its parts: arithmetic
 * at the rate the unit reaches for this op and shape, and bytes at the rate of each resource that
 * they pass.  Every rate is a figure of the machine (topology.h); one that nobody told and that a
 * plan needs makes its time unknown.
 *
 *   op on a GPU       arithmetic | hbm bytes | host bytes read in place over the link
 *   op on the CPU     arithmetic | bytes at the rate measured of the op, else host bytes
 *   copy              link one way, link both ways together, memory at both ends
 *   host work         host bytes
 *   any op            what each call of it takes besides, where that was measured
 *   any of them       bytes in a file: link of nvme one way, both ways together; host memory
 *                     twice: between disk and page cache, between that and who uses them
 *
 * Lanes of a CPU that computes share its cores: ops and updates want all of them, a copy one while
 * it moves bytes; a throttled copy sleeps in between.
 *
 * A file may well stay in the page cache where there is room; it is not counted on.
 *
 * Layer: plan (uses topology, model).  Threads: plain data.
 */
#ifndef LS_COST_H
#define LS_COST_H

#include "plan.h"
#include "power_model.h"
#include "topology.h"

/* What several lanes may want at once. */
typedef enum ls_resource {
    LS_RESOURCE_HBM = 0,  /* device memory */
    LS_RESOURCE_HOST,     /* host memory: copies, the optimizer, kernels that read it in place */
    LS_RESOURCE_LINK_IN,  /* host to device */
    LS_RESOURCE_LINK_OUT, /* device to host */
    LS_RESOURCE_LINK,     /* both ways together */
    LS_RESOURCE_NVME_IN,  /* from the file to host memory */
    LS_RESOURCE_NVME_OUT, /* to the file */
    LS_RESOURCE_NVME,     /* both ways together */
    LS_RESOURCE_DISK,
    LS_RESOURCE_CORES, /* of the CPU where it computes: seconds of one, for bytes */
    LS_RESOURCE_COUNT
} ls_resource;

/* "hbm", "host", "link_in", ...; never NULL. */
const char *ls_resource_name(ls_resource resource);

#define LS_COST_POINTS_MAX 16
#define LS_COST_WHY_BYTES  240

/* Which benchmarks measure what a model lacks, as bits. */
enum { LS_COST_LACKS_OPS = 1, LS_COST_LACKS_LINKS = 2 };

/* Arithmetic that an op reaches, by a size of its shape: between points linear in log(size), beyond
 * them as at the last one. */
typedef struct ls_rate_curve {
    double sizes[LS_COST_POINTS_MAX], flops_per_s[LS_COST_POINTS_MAX]; /* sizes ascend */
    int n;                                                             /* 0: unknown */
    double call_s; /* that a call takes besides; 0: launch_latency_s */
} ls_rate_curve;

double ls_rate_curve_at(const ls_rate_curve *curve, double size);

typedef enum ls_rate {
    LS_RATE_MATMUL = 0,         /* by its least dimension */
    LS_RATE_MATMUL_GRADIENT,    /* of weights, dy^T x: the same, or as any product */
    LS_RATE_ATTENTION_FORWARD,  /* by the keys of the sequence up to the block's end */
    LS_RATE_ATTENTION_BACKWARD, /* the same */
    LS_RATE_COUNT
} ls_rate;

typedef struct ls_cost_model {
    ls_rate_curve rates[LS_RATE_COUNT];
    double peak_flops_per_s;               /* of the unit that computes, for the run's dtype */
    double bytes_per_s[LS_RESOURCE_COUNT]; /* INFINITY: no limit is known, none is applied */
    double op_bytes_per_s[LS_OP_COUNT];    /* of operands, measured; 0: as fast as memory */
    double op_call_s[LS_OP_COUNT];         /* what calls of the same take besides; 0: as above */
    double in_place_bytes_per_s;           /* kernels on host memory over the link */
    double host_lane_bytes_per_s;          /* host work alone */
    double copy_latency_s, launch_latency_s;
    bool has_device, knows_nvme;
    ls_power_model power;                /* may be incomplete: then no cap slows anything */
    unsigned lacks;                      /* LS_COST_LACKS_*, of all that is missing */
    char why_unknown[LS_COST_WHY_BYTES]; /* the first that is missing; "": the model is complete */
} ls_cost_model;

/*
 * Gather the rates of the unit that would compute.
 *
 *   has_device  a GPU computes (real, or as its profile describes it); else the CPU, whose device
 *               memory, if there is any, is emulated: carved from host memory, behind its link
 *   dtype       of weights and activations
 */
ls_cost_model ls_cost_model_make(const ls_topology *machine, bool has_device, ls_dtype dtype);

/* Of a figure that only some plans need (the rate of the link from nvme, of one between devices):
 * where this plan does and it is not known, why_unknown names it. */
void ls_cost_model_fit(ls_cost_model *model, const ls_plan *plan);

/* A step as far as its cost goes: no plan need hold it. */
typedef struct ls_step_work {
    const ls_step *step; /* kind, op, lane, flops, bytes are read */
    const ls_op_args *args;
    double place_bytes[LS_PLACE_COUNT]; /* of its operands; twice where it reads and writes */
    double nvme_written;                /* those of nvme that it writes */
} ls_step_work;

/* Bytes that an op touches of an operand that is given whole: rows of the embedding, and positions
 * of the RoPE table, are looked up; no more than there are tokens. */
double ls_cost_touched_bytes(const ls_step *step, const ls_op_args *args, int32_t operand,
                             double bytes);

/* An operand more. */
void ls_step_work_add(ls_step_work *work, ls_place_kind place, ls_access access, double bytes);

/* What one step costs when it runs alone. */
typedef struct ls_step_cost {
    double seconds;                  /* latency included */
    double arithmetic_s;             /* of them; 0 of what does little per byte */
    double bytes[LS_RESOURCE_COUNT]; /* that pass each resource */
} ls_step_cost;

ls_step_cost ls_cost_of_work(const ls_cost_model *model, const ls_step_work *work);
ls_step_cost ls_cost_of(const ls_cost_model *model, const ls_plan *plan, int64_t step);

/* What steps keep busy: each lane, and each resource alone at its full rate; under power caps at
 * what these leave a GPU that runs one step at a time beside a CPU at rest. */
typedef struct ls_cost_sum {
    double lane_s[LS_LANE_COUNT];
    double resource_s[LS_RESOURCE_COUNT]; /* bytes by rate; 0 where there is no limit */
} ls_cost_sum;

void ls_cost_sum_add(const ls_cost_model *model, ls_lane lane, const ls_step_cost *cost,
                     ls_cost_sum *sum);

/* The busiest of them: no order of these steps takes less.  bound_by: its name, static text. */
double ls_cost_sum_bound(const ls_cost_sum *sum, const char **bound_by);

#endif
