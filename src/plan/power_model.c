/* power_model.c - states of units, and what the caps leave of their rates. */
#include "power_model.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define CLOCK_EXPONENT 1.5 /* watts above idle by clock */

/* ---- figures of the machine ---------------------------------------------------------------- */

static void miss(ls_power_model *model, const char *unit, const char *what, const char *wrong)
{
    if (model->why_unknown[0] != '\0') return;
    snprintf(model->why_unknown, sizeof model->why_unknown, "%s: %s %s", unit, what, wrong);
}

static double read_state(const ls_unit *unit, const char *name, ls_power_model *model)
{
    char what[64];

    for (int s = 0; s < unit->n_power_states; s++)
        if (strcmp(unit->power_states[s].name, name) == 0 && ls_known(unit->power_states[s].watts))
            return unit->power_states[s].watts.value;
    snprintf(what, sizeof what, "power state '%s'", name);
    miss(model, unit->name, what, "is not known");
    return 0;
}

/* Watts of a state above those of idle. */
static double read_above(const ls_unit *unit, const char *name, double idle, ls_power_model *model)
{
    const double watts = read_state(unit, name, model);
    char what[64];

    snprintf(what, sizeof what, "power state '%s'", name);
    if (watts < idle) miss(model, unit->name, what, "is less than 'idle'");
    return watts - idle;
}

static void read_gpu(const ls_unit *gpu, ls_power_model *model)
{
    model->gpu_idle_w = read_state(gpu, "idle", model);
    model->gpu_tensor_w = read_above(gpu, "tensor", model->gpu_idle_w, model);
    model->gpu_memory_w = read_above(gpu, "memory", model->gpu_idle_w, model);
    if (!ls_known(gpu->power_cap_watts)) return;
    model->gpu_cap_w = gpu->power_cap_watts.value;
    if (model->gpu_cap_w <= model->gpu_idle_w)
        miss(model, gpu->name, "power_cap_watts", "leaves nothing above power state 'idle'");
}

static void read_cpu(const ls_unit *cpu, ls_power_model *model)
{
    model->cpu_idle_w = read_state(cpu, "idle", model);
    model->cpu_busy_w = read_above(cpu, "busy", model->cpu_idle_w, model);
    if (model->has_gpu) model->cpu_memory_w = read_above(cpu, "memory", model->cpu_idle_w, model);
}

/* The module's own word, else the profile's. */
static double find_module_cap(const ls_topology *machine)
{
    double cap = INFINITY;

    for (int c = machine->system.n_power_caps - 1; c >= 0; c--) {
        const ls_power_cap *found = &machine->system.power_caps[c];
        const bool is_module = strcmp(found->name, "module") == 0;
        if (!ls_known(found->watts)) continue;
        if (is_module || (isinf(cap) && strcmp(found->name, "profile") == 0))
            cap = found->watts.value;
    }
    return cap;
}

ls_power_model ls_power_model_make(const ls_topology *machine, bool has_gpu)
{
    const ls_unit *gpu = has_gpu ? ls_topology_find_unit(machine, LS_UNIT_GPU) : NULL;
    const ls_unit *cpu = ls_topology_find_unit(machine, LS_UNIT_CPU);
    ls_power_model model = {.gpu_cap_w = INFINITY, .module_cap_w = INFINITY, .has_gpu = has_gpu};

    if (cpu == NULL || (has_gpu && gpu == NULL)) {
        miss(&model, cpu == NULL ? "cpu" : "gpu", "the unit", "is not known");
        return model;
    }
    if (has_gpu) read_gpu(gpu, &model);
    read_cpu(cpu, &model);
    if (!has_gpu) return model;
    model.module_cap_w = find_module_cap(machine);
    if (model.module_cap_w <=
        model.gpu_idle_w + model.cpu_idle_w + fmax(model.cpu_busy_w, model.cpu_memory_w))
        miss(&model, "module", "its power cap", "leaves the GPU nothing while the CPU is at work");
    return model;
}

/* ---- draw ---------------------------------------------------------------------------------- */

/* What of a demand fits the room, by a clock that watts follow. */
static double fit(double wanted, double room, double exponent)
{
    return wanted > room ? pow(room / wanted, 1 / exponent) : 1;
}

ls_power_draw ls_power_draw_of(const ls_power_model *m, const ls_power_load *load)
{
    const double busy = load->cpu_busy ? m->cpu_busy_w : 0;
    ls_power_draw draw = {.clock = 1, .memory_rate = 1};

    assert(m->why_unknown[0] == '\0');
    draw.cpu_w = m->cpu_idle_w + fmax(busy, m->cpu_memory_w * fmin(load->host_memory, 1));
    if (!m->has_gpu) return draw;
    const double tensor = m->gpu_tensor_w * fmin(load->tensor, 1);
    const double memory = m->gpu_memory_w * fmin(load->device_memory, 1);
    const double room = fmin(m->gpu_cap_w, m->module_cap_w - draw.cpu_w) - m->gpu_idle_w;
    draw.clock = fit(tensor, room, CLOCK_EXPONENT);
    draw.memory_rate = fit(memory, room, 1);
    draw.gpu_w = m->gpu_idle_w + fmin(fmax(tensor, memory), room);
    return draw;
}

double ls_power_speed_of(const ls_power_draw *draw, bool computes, bool uses_memory)
{
    return fmin(computes ? draw->clock : 1, uses_memory ? draw->memory_rate : 1);
}
