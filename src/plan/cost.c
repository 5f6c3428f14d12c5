/* cost.c - rates of a machine, and steps timed by them. */
#include "cost.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What starting a kernel costs on a stream that is never empty, and handing work to a thread.
 * Assumed: profiles have no figure of it. */
#define LAUNCH_LATENCY_S 3e-6

const char *ls_resource_name(ls_resource resource)
{
    static const char *const names[LS_RESOURCE_COUNT] = {"hbm",  "host",    "link_in",  "link_out",
                                                         "link", "nvme_in", "nvme_out", "nvme",
                                                         "disk", "cores"};
    assert(resource >= 0 && resource < LS_RESOURCE_COUNT);
    return names[resource];
}

/* ---- curves -------------------------------------------------------------------------------- */

double ls_rate_curve_at(const ls_rate_curve *c, double size)
{
    int i = 0;

    assert(c->n > 0);
    while (i < c->n && c->sizes[i] < size) i++;
    if (i == 0) return c->flops_per_s[0];
    if (i == c->n) return c->flops_per_s[c->n - 1];
    const double along = log(size / c->sizes[i - 1]) / log(c->sizes[i] / c->sizes[i - 1]);
    return c->flops_per_s[i - 1] + along * (c->flops_per_s[i] - c->flops_per_s[i - 1]);
}

/* "causal-32k" -> 32768, "4096" -> 4096; "large" -> 0, a rate for any size. */
static double parse_size(const char *shape)
{
    const char *digits = strrchr(shape, '-');
    char *end;

    digits = digits != NULL ? digits + 1 : shape;
    const double number = strtod(digits, &end);
    if (end == digits || number <= 0) return 0;
    if (*end == 'k') return 1024 * number;
    if (*end == 'M') return 1024 * 1024 * number;
    return number;
}

/* Keep sizes ascending; a point of the same size is replaced. */
static void add_point(ls_rate_curve *c, double size, double flops_per_s)
{
    int i = 0;

    while (i < c->n && c->sizes[i] < size) i++;
    if (i == c->n || c->sizes[i] != size) {
        if (c->n == LS_COST_POINTS_MAX) return;
        for (int j = c->n++; j > i; j--) {
            c->sizes[j] = c->sizes[j - 1];
            c->flops_per_s[j] = c->flops_per_s[j - 1];
        }
    }
    c->sizes[i] = size;
    c->flops_per_s[i] = flops_per_s;
}

static const char *const rate_ops[LS_RATE_COUNT] = {
    [LS_RATE_MATMUL] = "matmul",
    [LS_RATE_MATMUL_GRADIENT] = "matmul",
    [LS_RATE_ATTENTION_FORWARD] = "attention_forward",
    [LS_RATE_ATTENTION_BACKWARD] = "attention_backward",
};

static bool is_of_rate(const ls_efficiency *e, ls_rate rate)
{
    const bool is_gradient = strncmp(e->shape, "dw-", 3) == 0;

    return strcmp(e->op, rate_ops[rate]) == 0 && ls_known(e->fraction) &&
           is_gradient == (rate == LS_RATE_MATMUL_GRADIENT);
}

static double known_or(ls_quantity quantity, double otherwise)
{
    return ls_known(quantity) && quantity.value > 0 ? quantity.value : otherwise;
}

static ls_rate_curve read_curve(const ls_unit *unit, ls_rate rate, double peak)
{
    ls_rate_curve curve = {.n = 0};
    const char *kernel = NULL; /* of several the first that is listed */

    for (int e = 0; e < unit->n_efficiencies; e++) {
        const ls_efficiency *efficiency = &unit->efficiencies[e];
        if (!is_of_rate(efficiency, rate)) continue;
        if (kernel == NULL) kernel = efficiency->kernel;
        if (strcmp(efficiency->kernel, kernel) != 0) continue;
        add_point(&curve, fmax(parse_size(efficiency->shape), 1.0),
                  peak * efficiency->fraction.value);
        curve.call_s = 1e-9 * known_or(efficiency->call_ns, 1e9 * curve.call_s);
    }
    return curve;
}

/* ---- the model ----------------------------------------------------------------------------- */

/* lacks: the benchmark that measures it; 0: what says how the profile does. */
static void miss(ls_cost_model *model, unsigned lacks, const char *unit, const char *what)
{
    model->lacks |= lacks;
    if (model->why_unknown[0] != '\0') return;
    snprintf(model->why_unknown, sizeof model->why_unknown, "%s: %s", unit, what);
}

static void read_rates(const ls_unit *unit, ls_dtype dtype, ls_cost_model *model)
{
    const ls_quantity peak =
        dtype == LS_DTYPE_BF16 ? unit->bf16_flops_per_s : unit->fp32_flops_per_s;

    model->peak_flops_per_s = known_or(peak, 0);
    if (model->peak_flops_per_s == 0)
        miss(model, LS_COST_LACKS_OPS, unit->name,
             dtype == LS_DTYPE_BF16 ? "bf16_flops_per_s is not known"
                                    : "fp32_flops_per_s is not known");
    for (int rate = 0; rate < LS_RATE_COUNT; rate++) {
        model->rates[rate] = read_curve(unit, (ls_rate)rate, model->peak_flops_per_s);
        if (rate == LS_RATE_MATMUL_GRADIENT && model->rates[rate].n == 0)
            model->rates[rate] = model->rates[LS_RATE_MATMUL];
        char what[64];
        snprintf(what, sizeof what, "efficiency of %s is not known", rate_ops[rate]);
        if (model->rates[rate].n == 0) miss(model, LS_COST_LACKS_OPS, unit->name, what);
    }
}

/* Ops that bytes bound, by their name. */
static void read_op_rates(const ls_unit *unit, ls_cost_model *model)
{
    for (int e = 0; e < unit->n_efficiencies; e++) {
        const ls_efficiency *efficiency = &unit->efficiencies[e];
        for (int op = 0; op < LS_OP_COUNT && ls_known(efficiency->bytes_per_s); op++) {
            if (strcmp(ls_op_describe((ls_op)op)->name, efficiency->op) != 0) continue;
            model->op_bytes_per_s[op] = efficiency->bytes_per_s.value;
            model->op_call_s[op] = 1e-9 * known_or(efficiency->call_ns, 0);
        }
    }
}

/* The memory of the unit's own, then the nearest host memory.  unit: may be NULL. */
static const ls_place *find_host(const ls_topology *machine, const ls_unit *unit)
{
    const ls_place *host = NULL;

    if (unit != NULL && ls_known(unit->host_node))
        host = ls_topology_find_host(machine, (int)unit->host_node.value);
    for (int p = 0; host == NULL && p < machine->n_places; p++)
        if (machine->places[p].kind == LS_PLACE_HOST) host = &machine->places[p];
    return host;
}

static void read_link(const ls_link *link, ls_cost_model *model)
{
    model->bytes_per_s[LS_RESOURCE_LINK_IN] = link->bytes_per_s.value;
    model->bytes_per_s[LS_RESOURCE_LINK_OUT] =
        known_or(link->reverse_bytes_per_s, link->bytes_per_s.value);
    model->bytes_per_s[LS_RESOURCE_LINK] =
        known_or(link->both_bytes_per_s, model->bytes_per_s[LS_RESOURCE_LINK_IN] +
                                             model->bytes_per_s[LS_RESOURCE_LINK_OUT]);
    model->in_place_bytes_per_s = known_or(link->read_bytes_per_s, link->bytes_per_s.value);
    model->copy_latency_s = 1e-9 * known_or(link->latency_ns, 0);
}

/* What copies alone are known to move, memory can give: a triad of all cores is often less. */
static double at_least_the_link(double host, const ls_cost_model *model)
{
    for (ls_resource r = LS_RESOURCE_LINK_IN; r <= LS_RESOURCE_LINK; r++)
        if (model->bytes_per_s[r] > host) host = model->bytes_per_s[r];
    return host;
}

static void read_device(const ls_topology *machine, const ls_place *host, ls_cost_model *model)
{
    const ls_place *memory = ls_topology_find_device_memory(machine);
    const ls_link *link =
        memory != NULL ? ls_topology_find_link(machine, host->name, memory->name) : NULL;

    if (memory == NULL || !ls_known(memory->read_bytes_per_s)) {
        miss(model, LS_COST_LACKS_LINKS, "hbm", "read_bytes_per_s is not known");
        return;
    }
    model->bytes_per_s[LS_RESOURCE_HBM] = memory->read_bytes_per_s.value;
    if (link == NULL || !ls_known(link->bytes_per_s)) {
        miss(model, LS_COST_LACKS_LINKS, host->name,
             "bytes_per_s of the link to the GPU is not known");
        return;
    }
    read_link(link, model);
    model->bytes_per_s[LS_RESOURCE_HOST] =
        at_least_the_link(model->bytes_per_s[LS_RESOURCE_HOST], model);
}

/* Device memory carved from host memory: its bytes are the host's, its link is throttled. */
static void read_emulated_device(const ls_topology *machine, const ls_place *host,
                                 ls_cost_model *model)
{
    const ls_place *memory = ls_topology_find_device_memory(machine);
    const ls_link *link = memory != NULL && memory->emulated
                              ? ls_topology_find_link(machine, host->name, memory->name)
                              : NULL;

    if (link != NULL && ls_known(link->bytes_per_s)) read_link(link, model);
}

static void miss_unit(ls_cost_model *model)
{
    if (model->has_device)
        miss(model, 0, "gpu", "its FLOP/s are not known; add it to the profile's units");
    else
        miss(model, LS_COST_LACKS_OPS, "cpu", "its FLOP/s are not known");
}

static void read_nvme(const ls_topology *machine, const ls_place *host, ls_cost_model *model)
{
    const ls_link *link = ls_topology_find_link(machine, "nvme", host->name);

    if (link == NULL || !ls_known(link->bytes_per_s) || link->bytes_per_s.value <= 0) return;
    const double in = link->bytes_per_s.value;
    const double out = known_or(link->reverse_bytes_per_s, in);
    model->knows_nvme = true;
    model->bytes_per_s[LS_RESOURCE_NVME_IN] = in;
    model->bytes_per_s[LS_RESOURCE_NVME_OUT] = out;
    model->bytes_per_s[LS_RESOURCE_NVME] = known_or(link->both_bytes_per_s, in + out);
}

ls_cost_model ls_cost_model_make(const ls_topology *machine, bool has_device, ls_dtype dtype)
{
    ls_cost_model model = {.has_device = has_device, .launch_latency_s = LAUNCH_LATENCY_S};
    const ls_unit *cpu = ls_topology_find_unit(machine, LS_UNIT_CPU);
    const ls_unit *unit = has_device ? ls_topology_find_unit(machine, LS_UNIT_GPU) : cpu;

    model.power = ls_power_model_make(machine, has_device);
    for (int r = 0; r < LS_RESOURCE_COUNT; r++) model.bytes_per_s[r] = INFINITY;
    if (unit == NULL)
        miss_unit(&model);
    else
        read_rates(unit, dtype, &model);
    const ls_place *host = find_host(machine, unit);
    if (host == NULL || !ls_known(host->read_bytes_per_s)) {
        miss(&model, LS_COST_LACKS_LINKS, host != NULL ? host->name : "host",
             "read_bytes_per_s is not known");
        return model;
    }
    if (unit != NULL) read_op_rates(unit, &model);
    if (!has_device && cpu != NULL && ls_known(cpu->cores))
        model.bytes_per_s[LS_RESOURCE_CORES] = cpu->cores.value;
    model.host_lane_bytes_per_s = host->read_bytes_per_s.value;
    model.bytes_per_s[LS_RESOURCE_HOST] = host->read_bytes_per_s.value;
    if (has_device)
        read_device(machine, host, &model);
    else
        read_emulated_device(machine, host, &model);
    read_nvme(machine, host, &model);
    return model;
}

void ls_cost_model_fit(ls_cost_model *model, const ls_plan *plan)
{
    if (!model->knows_nvme && ls_plan_place_bytes(plan, LS_PLACE_NVME) > 0)
        miss(model, 0, "nvme",
             "bytes_per_s of the link to host memory is not known; add {from: nvme, to: host, "
             "bytes_per_s: {value: N, source: spec}} to the profile's links");
    if (ls_plan_lanes(plan) > LS_LANE_COMM)
        miss(model, 0, "comm", "profiles have no rate of a link between devices");
}

/* ---- steps --------------------------------------------------------------------------------- */

static double least(int64_t a, int64_t b, int64_t c)
{
    const int64_t ab = a < b ? a : b;
    return (double)(ab < c ? ab : c);
}

/* The rate that an op goes by, and its size; LS_RATE_COUNT: it does little per byte. */
static ls_rate find_rate(const ls_step_work *work, double *size)
{
    const ls_op_args *args = work->args;

    *size = 0;
    if (work->step->kind != LS_CALL_OP) return LS_RATE_COUNT;
    switch (work->step->op) {
    case LS_OP_matmul:
        *size = least(args->matmul.M, args->matmul.N, args->matmul.K);
        return args->matmul.trans_a ? LS_RATE_MATMUL_GRADIENT : LS_RATE_MATMUL;
    case LS_OP_attention_forward:
        *size = (double)(args->attention_forward.q_start + args->attention_forward.N);
        return LS_RATE_ATTENTION_FORWARD;
    case LS_OP_attention_backward:
        *size = (double)(args->attention_backward.q_start + args->attention_backward.N);
        return LS_RATE_ATTENTION_BACKWARD;
    default: return LS_RATE_COUNT;
    }
}

static double arithmetic_seconds(const ls_cost_model *m, const ls_step_work *work)
{
    double size;
    const ls_rate rate = find_rate(work, &size);

    return rate == LS_RATE_COUNT ? 0 : work->step->flops / ls_rate_curve_at(&m->rates[rate], size);
}

/* Before it is at work. */
static double call_seconds(const ls_cost_model *m, const ls_step_work *work)
{
    double size, measured = 0;
    const ls_rate rate = find_rate(work, &size);

    if (rate != LS_RATE_COUNT)
        measured = m->rates[rate].call_s;
    else if (work->step->kind == LS_CALL_OP)
        measured = m->op_call_s[work->step->op];
    return measured > 0 ? measured : m->launch_latency_s;
}

static void take(const ls_cost_model *m, ls_resource resource, double bytes, ls_step_cost *cost)
{
    cost->bytes[resource] += bytes;
    cost->seconds = fmax(cost->seconds, cost->bytes[resource] / m->bytes_per_s[resource]);
}

/* Memory at a place; without a device of its own all is the host's. */
static void take_memory(const ls_cost_model *m, ls_place_kind place, double bytes,
                        ls_step_cost *cost)
{
    const bool on_device = place == LS_PLACE_HBM && m->has_device;
    take(m, on_device ? LS_RESOURCE_HBM : LS_RESOURCE_HOST, bytes, cost);
}

/* Memory of the host, and what a file passes through it: from the disk or to it, and once more
 * between there and the step. */
static void take_host_memory(const ls_cost_model *m, const ls_step_work *work, ls_step_cost *cost)
{
    const double file = work->place_bytes[LS_PLACE_NVME];

    take_memory(m, LS_PLACE_HOST, work->place_bytes[LS_PLACE_HOST] + 2 * file, cost);
    take(m, LS_RESOURCE_NVME_IN, file - work->nvme_written, cost);
    take(m, LS_RESOURCE_NVME_OUT, work->nvme_written, cost);
    take(m, LS_RESOURCE_NVME, file, cost);
}

static ls_step_cost cost_of_copy(const ls_cost_model *m, const ls_step_work *work)
{
    const ls_lane lane = work->step->lane;
    const double bytes = (double)work->step->bytes / 2;
    ls_step_cost cost = {.seconds = 0};

    take_memory(m, LS_PLACE_HBM, work->place_bytes[LS_PLACE_HBM], &cost);
    take_host_memory(m, work, &cost);
    take(m, lane == LS_LANE_COPY_OUT ? LS_RESOURCE_LINK_OUT : LS_RESOURCE_LINK_IN, bytes, &cost);
    take(m, LS_RESOURCE_LINK, bytes, &cost);
    if (isfinite(m->bytes_per_s[LS_RESOURCE_CORES]))
        cost.bytes[LS_RESOURCE_CORES] = fmin(
            2 * bytes * m->bytes_per_s[LS_RESOURCE_CORES] / m->host_lane_bytes_per_s, cost.seconds);
    cost.seconds += m->copy_latency_s + m->launch_latency_s;
    return cost;
}

/* All cores for as long as it takes alone. */
static void take_cores(const ls_cost_model *m, ls_step_cost *cost)
{
    const double cores = m->bytes_per_s[LS_RESOURCE_CORES];
    if (isfinite(cores)) cost->bytes[LS_RESOURCE_CORES] = cores * cost->seconds;
}

/* An op whose rate was measured: caches may serve it faster than memory would, and it takes of
 * memory no more than there is. */
static bool take_measured(const ls_cost_model *m, const ls_step_work *work, ls_step_cost *cost)
{
    const double rate = work->step->kind == LS_CALL_OP ? m->op_bytes_per_s[work->step->op] : 0;
    const double bytes = work->place_bytes[LS_PLACE_HBM] + work->place_bytes[LS_PLACE_HOST];

    if (rate == 0 || m->has_device || work->place_bytes[LS_PLACE_NVME] > 0) return false;
    cost->seconds = fmax(cost->seconds, bytes / rate);
    cost->bytes[LS_RESOURCE_HOST] = fmin(bytes, cost->seconds * m->bytes_per_s[LS_RESOURCE_HOST]);
    return true;
}

static ls_step_cost cost_of_op(const ls_cost_model *m, const ls_step_work *work)
{
    const double host = work->place_bytes[LS_PLACE_HOST];
    ls_step_cost cost = {.seconds = arithmetic_seconds(m, work)};

    cost.arithmetic_s = cost.seconds;
    if (!take_measured(m, work, &cost)) {
        take_memory(m, LS_PLACE_HBM, work->place_bytes[LS_PLACE_HBM], &cost);
        take_host_memory(m, work, &cost);
    }
    if (m->has_device && host > 0) {
        take(m, LS_RESOURCE_LINK_IN, host, &cost);
        cost.seconds = fmax(cost.seconds, host / m->in_place_bytes_per_s);
    }
    take_cores(m, &cost);
    cost.seconds += call_seconds(m, work);
    return cost;
}

/* The optimizer, norms, losses, batches, checkpoints. */
static ls_step_cost cost_of_host_work(const ls_cost_model *m, const ls_step_work *work)
{
    const ls_lane lane = work->step->lane;
    const double bytes = work->place_bytes[LS_PLACE_HOST] + work->place_bytes[LS_PLACE_NVME];
    ls_step_cost cost = {.seconds = 0};

    if (!take_measured(m, work, &cost)) {
        cost.seconds = bytes / m->host_lane_bytes_per_s;
        take_host_memory(m, work, &cost);
    }
    if (lane == LS_LANE_DISK_IN || lane == LS_LANE_DISK_OUT)
        take(m, LS_RESOURCE_DISK, bytes, &cost);
    take_cores(m, &cost);
    cost.seconds += call_seconds(m, work);
    return cost;
}

ls_step_cost ls_cost_of_work(const ls_cost_model *m, const ls_step_work *work)
{
    const ls_step *step = work->step;

    assert(m->why_unknown[0] == '\0');
    if (step->kind == LS_CALL_COPY) return cost_of_copy(m, work);
    if (step->lane == LS_LANE_COMPUTE && step->kind == LS_CALL_OP) return cost_of_op(m, work);
    return cost_of_host_work(m, work);
}

double ls_cost_touched_bytes(const ls_step *step, const ls_op_args *args, int32_t operand,
                             double bytes)
{
    const ls_embedding_forward_args *forward = &args->embedding_forward;
    const ls_embedding_backward_args *backward = &args->embedding_backward;

    if (step->kind != LS_CALL_OP) return bytes;
    if (step->op == LS_OP_embedding_forward && operand == 1)
        return fmin(bytes,
                    (double)(forward->N * forward->D) * (double)ls_dtype_bytes(forward->dtype));
    if (step->op == LS_OP_embedding_backward && operand == 0)
        return fmin(bytes, (double)(backward->N * backward->D) * sizeof(float));
    if (step->op == LS_OP_rope && operand == 2)
        return fmin(bytes, (double)(args->rope.N * args->rope.K) * sizeof(float));
    return bytes;
}

void ls_step_work_add(ls_step_work *work, ls_place_kind place, ls_access access, double bytes)
{
    work->place_bytes[place] += bytes * (access == LS_ACCESS_READ_WRITE ? 2 : 1);
    if (place == LS_PLACE_NVME && (access & LS_ACCESS_WRITE)) work->nvme_written += bytes;
}

ls_step_cost ls_cost_of(const ls_cost_model *m, const ls_plan *plan, int64_t index)
{
    const ls_step *step = &plan->steps[index];
    ls_step_work work = {.step = step, .args = &plan->args[step->args]};

    for (int32_t o = 0; o < step->n_operands; o++) {
        const ls_step_operand *operand = &plan->operands[step->first_operand + o];
        if (operand->span.arena < 0) continue;
        ls_step_work_add(&work, plan->arenas[operand->span.arena].place, operand->access,
                         ls_cost_touched_bytes(step, work.args, o, (double)operand->span.bytes));
    }
    return ls_cost_of_work(m, &work);
}

/* ---- sums ---------------------------------------------------------------------------------- */

/* What power caps leave of a step's speed when it runs alone and the CPU rests.  Beside others it
 * goes no faster: what they leave grows by less than they slow it. */
static double speed_alone(const ls_cost_model *m, ls_lane lane, const ls_step_cost *cost)
{
    const double bytes = cost->bytes[LS_RESOURCE_HBM];

    if (m->power.why_unknown[0] != '\0' || cost->seconds <= 0) return 1;
    const ls_power_load load = {.tensor = cost->arithmetic_s / cost->seconds,
                                .device_memory =
                                    bytes / cost->seconds / m->bytes_per_s[LS_RESOURCE_HBM]};
    const ls_power_draw draw = ls_power_draw_of(&m->power, &load);
    return ls_power_speed_of(&draw, lane == LS_LANE_COMPUTE, bytes > 0);
}

/* The same of device memory that serves all it can. */
static double memory_speed(const ls_cost_model *m)
{
    const ls_power_load load = {.device_memory = 1};

    return m->power.why_unknown[0] != '\0' ? 1 : ls_power_draw_of(&m->power, &load).memory_rate;
}

void ls_cost_sum_add(const ls_cost_model *m, ls_lane lane, const ls_step_cost *cost,
                     ls_cost_sum *sum)
{
    sum->lane_s[lane] += cost->seconds / speed_alone(m, lane, cost);
    for (int r = 0; r < LS_RESOURCE_COUNT; r++) {
        const double speed = r == LS_RESOURCE_HBM ? memory_speed(m) : 1;
        sum->resource_s[r] += cost->bytes[r] / (m->bytes_per_s[r] * speed);
    }
}

double ls_cost_sum_bound(const ls_cost_sum *sum, const char **bound_by)
{
    double most = 0;

    *bound_by = "nothing";
    for (int l = 0; l < LS_LANE_COUNT; l++)
        if (sum->lane_s[l] > most) {
            most = sum->lane_s[l];
            *bound_by = ls_lane_name((ls_lane)l);
        }
    for (int r = 0; r < LS_RESOURCE_COUNT; r++)
        if (sum->resource_s[r] > most) {
            most = sum->resource_s[r];
            *bound_by = ls_resource_name((ls_resource)r);
        }
    return most;
}
