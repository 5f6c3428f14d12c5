/*
 * power_model.h - what a machine's units draw while a plan runs, and how a power cap slows it.
 *
 * A unit draws its idle watts, and above them what the more demanding of its states at work would,
 * each in proportion to how much of it is asked for:
 *
 *   gpu  tensor   arithmetic at the rates of the profile: share of the time that it takes
 *        memory   kernels and copies on device memory: share of its rate
 *   cpu  busy     all cores: the optimizer, norms, losses; without a GPU the kernels too
 *        memory   host memory that serves copies: share of its rate
 *
 * A cap of the module serves the CPU first, as firmware does; the GPU's clock gives way.  Watts
 * above idle go with clock^1.5 (assumed: the clock alone would be 1, its voltage adds up to 2; 600
 * W for 700 then cost 11%, and 10 to 15% are told of training on H100s).
 *
 * Layer: plan (uses topology).  Threads: plain data.
 */
#ifndef LS_POWER_MODEL_H
#define LS_POWER_MODEL_H

#include "topology.h"

#define LS_POWER_WHY_BYTES 160

typedef struct ls_power_model {
    double gpu_idle_w, gpu_tensor_w, gpu_memory_w; /* tensor, memory: above idle */
    double cpu_idle_w, cpu_busy_w, cpu_memory_w;   /* busy, memory: above idle */
    double gpu_cap_w, module_cap_w;                /* INFINITY: none is known */
    bool has_gpu;
    char
        why_unknown[LS_POWER_WHY_BYTES]; /* the figure that is missing; "": the model is complete */
} ls_power_model;

/*
 * Read the states of the units (power_states of a profile) and the caps.
 *   has_gpu  a GPU computes; else the CPU's states alone are wanted
 */
ls_power_model ls_power_model_make(const ls_topology *machine, bool has_gpu);

/* What is asked of each part, as shares: 1 is all it has. */
typedef struct ls_power_load {
    double tensor, device_memory, host_memory;
    bool cpu_busy;
} ls_power_load;

typedef struct ls_power_draw {
    double gpu_w, cpu_w;
    double clock; /* share of its full rate at which the GPU's arithmetic goes on under the caps */
    double memory_rate; /* the same of all that uses its memory */
} ls_power_draw;

/* Of a model that is complete. */
ls_power_draw ls_power_draw_of(const ls_power_model *model, const ls_power_load *load);

/* What the caps leave of the speed of work that computes on the GPU, uses its memory, or both. */
double ls_power_speed_of(const ls_power_draw *draw, bool computes, bool uses_memory);

#endif
