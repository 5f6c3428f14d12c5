/* hardware.c - from a profile's name to places with room. */
#include "hardware.h"

#include <stdio.h>
#include <string.h>

#include "host_memory.h"
#include "vendor_scratch.h"

#if LS_HAVE_CUDA
#include "cuda/cuda_ops.h"
#endif

ls_status ls_hardware_find_gpu(ls_device_opener **opener, const ls_ops **ops)
{
#if LS_HAVE_CUDA
    *opener = ls_device_open_cuda;
    *ops = &ls_ops_cuda;
    return ls_device_probe_cuda();
#else
    *opener = NULL;
    *ops = NULL;
    return LS_FAIL(LS_ERR_UNSUPPORTED, "this build has no CUDA device");
#endif
}

static ls_status probe_gpu(void)
{
    ls_device_opener *opener;
    const ls_ops *ops;
    return ls_hardware_find_gpu(&opener, &ops);
}

/* ---- kernels of a GPU that is not here ------------------------------------------------------ */

static uint64_t workspace_elsewhere(ls_op op, const ls_op_args *args)
{
    const uint64_t here = ls_ops_cpu.workspace_bytes(op, args);
    uint64_t vendor = 0;

    if ((op == LS_OP_attention_forward && args->attention_forward.any_order) ||
        (op == LS_OP_attention_backward && args->attention_backward.any_order))
        vendor = ls_vendor_scratch_bytes(op, args);
    return vendor > here ? vendor : here;
}

static const char *kernel_elsewhere(ls_op op, ls_dtype dtype, int64_t K)
{
    return ls_ops_cpu.kernel_name(op, dtype, K);
}

/* Ops of the CPU to plan with: with room for what that GPU's attention takes if sums may have any
 * order, which is cuDNN's. */
static const ls_ops ops_elsewhere = {
    .name = "elsewhere",
#define FIELD(name) .name = ls_cpu_##name,
    LS_OP_LIST(FIELD)
#undef FIELD
        .workspace_bytes = workspace_elsewhere,
    .kernel_name = kernel_elsewhere,
};

static void use_device(ls_hardware *h)
{
    h->ops = h->is_elsewhere ? &ops_elsewhere : &ls_ops_cpu;
#if LS_HAVE_CUDA
    if (!h->use_gpu) return;
    h->ops = &ls_ops_cuda;
    h->open_device = ls_device_open_cuda;
#endif
}

static void read_throttle(const ls_profile *profile, ls_hardware *h)
{
    if (ls_known(profile->throttle_in_bytes_per_s))
        h->in_bytes_per_s = profile->throttle_in_bytes_per_s.value;
    if (ls_known(profile->throttle_out_bytes_per_s))
        h->out_bytes_per_s = profile->throttle_out_bytes_per_s.value;
}

static void name_profile(const ls_profile *profile, ls_hardware *h)
{
    snprintf(h->profile, sizeof h->profile, "%s", profile->name);
    snprintf(h->profile_file, sizeof h->profile_file, "%s", profile->origin);
}

/* A profile of another machine, or of none: what it says is all there is. */
static ls_status describe(const ls_profile *profile, ls_hardware *h)
{
    name_profile(profile, h);
    read_throttle(profile, h);
    return ls_profile_describe(profile, &h->topology);
}

static ls_status merge(const ls_profile *profile, const char *reason, ls_hardware *h)
{
    name_profile(profile, h);
    read_throttle(profile, h);
    return ls_profile_merge(profile, reason, h->topology);
}

static void note_unused(const ls_unit *gpu, ls_hardware *h)
{
    snprintf(h->note, sizeof h->note, "GPU %s (%s) found, but %s: computing on the CPU", gpu->name,
             gpu->model[0] != '\0' ? gpu->model : "model unknown", ls_error());
}

static ls_status choose(ls_hardware *h)
{
    char reason[LS_REASON_BYTES];
    ls_profile *profile;

    LS_TRY(ls_topology_discover(NULL, &h->topology));
    const ls_unit *gpu = ls_topology_find_real_gpu(h->topology);
    h->use_gpu = gpu != NULL && probe_gpu() == LS_OK;
    if (gpu != NULL && !h->use_gpu) {
        note_unused(gpu, h);
        snprintf(reason, sizeof reason, "chosen by auto: %s", h->note);
        LS_TRY(ls_profile_read("cpu", &profile));
    } else {
        LS_TRY(ls_profile_choose(h->topology, &profile, reason, sizeof reason));
    }
    const ls_status status = merge(profile, reason, h);
    ls_profile_free(profile);
    return status;
}

static bool has_device_memory(const ls_topology *machine)
{
    for (int i = 0; i < machine->n_places; i++)
        if (machine->places[i].kind == LS_PLACE_HBM) return true;
    return false;
}

/* Emulated hardware and the CPU run anywhere; others where the machine is that kind. */
static ls_status open_profile(const ls_profile *profile, bool to_run, ls_hardware *h)
{
    if (profile->emulated || !has_device_memory(&profile->machine)) return describe(profile, h);
    if (!to_run) {
        h->is_elsewhere = true;
        return describe(profile, h);
    }
    LS_TRY(ls_topology_discover(NULL, &h->topology));
    LS_TRY(merge(profile, "the run file names it", h));
    h->use_gpu = probe_gpu() == LS_OK;
    if (h->use_gpu) return LS_OK;
    char why[LS_HARDWARE_REASON_BYTES];
    snprintf(why, sizeof why, "%s", ls_error());
    return LS_FAIL(LS_ERR_UNSUPPORTED,
                   "hardware: %s: %s; allowed now: auto, cpu, emulated-gh200, emulated-h200-pcie "
                   "(longspan plan takes any)",
                   profile->name, why);
}

/* ---- room ----------------------------------------------------------------------------------- */

/* Memory that Linux may give to programs: of the host, and of GPUs that are nodes of it. */
static int count_nodes(const ls_topology *machine)
{
    int n = 0;

    for (int i = 0; i < machine->n_places; i++) {
        const ls_place *place = &machine->places[i];
        n += place->kind == LS_PLACE_HOST || (place->kind == LS_PLACE_HBM && place->numa_node >= 0);
    }
    return n;
}

/* Memory is bound only where a device uses it and there is more than one node. */
static void find_host_node(ls_hardware *h)
{
    const ls_unit *gpu = ls_topology_find_real_gpu(h->topology);

    h->host_node = -1;
    h->host_reason[0] = '\0';
    if (!h->has_device) return;
    if (h->is_elsewhere || gpu == NULL)
        snprintf(h->host_reason, sizeof h->host_reason, "not bound: %s",
                 h->is_elsewhere ? "the machine is not here" : "device memory is emulated");
    else if (!ls_known(gpu->host_node))
        snprintf(h->host_reason, sizeof h->host_reason,
                 "not bound: nothing tells which NUMA node is nearest to %s", gpu->name);
    else if (count_nodes(h->topology) <= 1)
        snprintf(h->host_reason, sizeof h->host_reason, "not bound: there is one NUMA node");
    else {
        h->host_node = (int)gpu->host_node.value;
        snprintf(h->host_reason, sizeof h->host_reason,
                 "bound to NUMA node %d: nearest to %s (%s: %s)", h->host_node, gpu->name,
                 ls_source_name(gpu->host_node.source),
                 gpu->host_node.from != NULL ? gpu->host_node.from : "unknown");
    }
}

static uint64_t device_room(const ls_hardware *h, const ls_place *place)
{
    uint64_t bytes = UINT64_MAX;

    if (ls_known(place->capacity_bytes)) bytes = (uint64_t)place->capacity_bytes.value;
    if (!h->is_elsewhere && !place->emulated && ls_known(place->free_bytes) &&
        place->free_bytes.value < (double)bytes)
        bytes = (uint64_t)place->free_bytes.value;
    return bytes;
}

static void find_device(bool use_gpu, ls_hardware *h)
{
    const ls_place *place = ls_topology_find_device_memory(h->topology);

    if (place == NULL || (!use_gpu && !h->is_elsewhere && !place->emulated)) return;
    h->has_device = true;
    h->emulated = place->emulated;
    h->available_bytes[LS_PLACE_HBM] = device_room(h, place);
}

static bool lends_device_memory(const ls_topology *machine)
{
    for (int i = 0; i < machine->n_places; i++)
        if (machine->places[i].kind == LS_PLACE_HBM && machine->places[i].numa_node >= 0)
            return true;
    return false;
}

/* What the nodes of host memory can hold, or that to which it is bound; false: it is not known. */
static bool read_nodes(const char *root, const ls_hardware *h, uint64_t *bytes)
{
    ls_host_memory node;
    uint64_t sum = 0;

    for (int i = 0; i < h->topology->n_places; i++) {
        const ls_place *place = &h->topology->places[i];
        if (place->kind != LS_PLACE_HOST) continue;
        if (h->host_node >= 0 && place->numa_node != h->host_node) continue;
        if (!ls_host_memory_read_node(root, place->numa_node, &node)) return false;
        sum += node.available_bytes;
    }
    *bytes = sum;
    return sum > 0;
}

static void find_host_room(const char *root, ls_hardware *h)
{
    const ls_host_memory memory = ls_host_memory_read_at(root);
    uint64_t nodes;

    h->available_bytes[LS_PLACE_HOST] = memory.available_bytes;
    h->limit = memory.limit;
    /* MemAvailable counts every node. */
    if (h->host_node < 0 && !lends_device_memory(h->topology)) return;
    if (!read_nodes(root, h, &nodes) || nodes >= memory.available_bytes) return;
    h->available_bytes[LS_PLACE_HOST] = nodes;
    h->limit = h->host_node >= 0 ? "NUMA node nearest to the GPU" : "NUMA nodes of the host";
}

static void describe_room(ls_hardware *h)
{
    const ls_host_memory memory = ls_host_memory_read();
    const ls_place *host = ls_topology_find_place(h->topology, ls_place_name(LS_PLACE_HOST));

    h->available_bytes[LS_PLACE_HOST] = memory.available_bytes;
    h->limit = memory.limit;
    if (host == NULL || !ls_known(host->capacity_bytes)) return;
    h->available_bytes[LS_PLACE_HOST] = (uint64_t)host->capacity_bytes.value;
    h->limit = "capacity in the profile";
}

void ls_hardware_find_room(const char *root, bool use_gpu, ls_hardware *h)
{
    memset(h->available_bytes, 0, sizeof h->available_bytes);
    h->has_device = h->emulated = false;
    find_device(use_gpu, h);
    find_host_node(h);
    if (h->is_elsewhere)
        describe_room(h);
    else
        find_host_room(root, h);
}

static ls_status open_named(const char *name, bool to_run, ls_hardware *h)
{
    ls_profile *profile;

    if (strcmp(name, "auto") == 0) return choose(h);
    LS_TRY(ls_profile_read(name, &profile));
    const ls_status status = open_profile(profile, to_run, h);
    ls_profile_free(profile);
    return status;
}

/* ---- rates of the kernels that will run ----------------------------------------------------- */

/* The kernel that takes most blocks of a long run where there is a choice. */
static const char *expect_attention(const ls_hardware *h, ls_op op, bool any_order)
{
    enum { ROWS = 4096, HEADS = 8, WIDTH = 128 };
    const ls_op_args forward = {.attention_forward = {.N = ROWS,
                                                      .M = ROWS,
                                                      .H = HEADS,
                                                      .G = HEADS,
                                                      .K = WIDTH,
                                                      .any_order = any_order,
                                                      .dtype = LS_DTYPE_BF16}};
    const ls_op_args backward = {.attention_backward = {.N = ROWS,
                                                        .M = ROWS,
                                                        .H = HEADS,
                                                        .G = HEADS,
                                                        .K = WIDTH,
                                                        .any_order = any_order,
                                                        .dtype = LS_DTYPE_BF16}};
    const ls_op_args *args = op == LS_OP_attention_forward ? &forward : &backward;

    if (h->is_elsewhere) return any_order ? "cudnn" : "mma";
    /* It alone needs scratch. */
    return h->ops->workspace_bytes(op, args) > 0 ? "cudnn"
                                                 : h->ops->kernel_name(op, LS_DTYPE_BF16, WIDTH);
}

static bool is_for(const ls_efficiency *e, const char *op, const char *kernel)
{
    return strcmp(e->op, op) == 0 && (e->kernel[0] == '\0' || strcmp(e->kernel, kernel) == 0);
}

/* Leave out what other kernels of op reach, unless nothing is known of this one. */
static void keep_rates(const char *op, const char *kernel, ls_unit *unit)
{
    int n = 0, n_fitting = 0;

    for (int i = 0; i < unit->n_efficiencies; i++)
        n_fitting += is_for(&unit->efficiencies[i], op, kernel);
    if (n_fitting == 0) return;
    for (int i = 0; i < unit->n_efficiencies; i++) {
        const ls_efficiency *e = &unit->efficiencies[i];
        if (strcmp(e->op, op) == 0 && !is_for(e, op, kernel)) continue;
        unit->efficiencies[n++] = *e;
    }
    unit->n_efficiencies = n;
}

void ls_hardware_expect_kernels(bool any_order, ls_hardware *h)
{
    static const ls_op ops[] = {LS_OP_attention_forward, LS_OP_attention_backward};

    if (!h->use_gpu && !h->is_elsewhere) return;
    for (int u = 0; u < h->topology->n_units; u++) {
        ls_unit *unit = &h->topology->units[u];
        if (unit->kind != LS_UNIT_GPU) continue;
        for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
            keep_rates(ls_op_describe(ops[i])->name, expect_attention(h, ops[i], any_order), unit);
    }
}

ls_status ls_hardware_open(const char *name, bool to_run, ls_hardware *hardware)
{
    ls_hardware opened = {.topology = NULL};
    const ls_status status = open_named(name, to_run, &opened);

    if (status != LS_OK) {
        ls_hardware_close(&opened);
        return status;
    }
    ls_hardware_find_room("", opened.use_gpu, &opened);
    ls_hardware_find_nvme(&opened);
    use_device(&opened);
    *hardware = opened;
    return LS_OK;
}

void ls_hardware_close(ls_hardware *hardware)
{
    if (hardware == NULL) return;
    ls_topology_free(hardware->topology);
    memset(hardware, 0, sizeof *hardware);
}
