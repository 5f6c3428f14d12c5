/* instance.c - tape, plan, arena, device: opened in this order, closed in reverse. */
#include "instance.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/*
 * Steps are submitted in plan order, so a lane whose queue is full keeps the others waiting.  The
 * updates of a step, the weights that they refresh and the tensors that are saved are a few for
 * each parameter: all of them must find room, or the next forward would not be submitted beside
 * them. What has been submitted to the compute lane must run before a stop, so that is short.
 */
enum { COMPUTE_COMMANDS = 128, OTHER_COMMANDS = 8192 };

static ls_arena_options describe_arena(const ls_instance_options *options,
                                       const ls_plan_arena *arena)
{
    static const ls_arena_kind kinds[LS_PLACE_COUNT] = {[LS_PLACE_HBM] = LS_ARENA_EMULATED_HBM,
                                                        [LS_PLACE_HOST] = LS_ARENA_HOST,
                                                        [LS_PLACE_NVME] = LS_ARENA_FILE};
    const ls_plan_limits *limits = options->limits;
    const bool in_memory = arena->place != LS_PLACE_NVME;
    ls_arena_options described = {.size_bytes = arena->bytes,
                                  .kind = kinds[arena->place],
                                  .touch_threads = in_memory ? options->touch_threads : 0,
                                  .bind = options->bind && arena->place == LS_PLACE_HOST,
                                  .numa_node = options->host_node,
                                  .huge_pages = in_memory,
                                  .directory = options->nvme_path};

    if (arena->place == LS_PLACE_HBM)
        described.capacity_bytes = limits != NULL ? limits->place_bytes[LS_PLACE_HBM] : UINT64_MAX;
    return described;
}

static ls_status open_arenas(const ls_instance_options *options, ls_instance *instance)
{
    assert(instance->plan.n_arenas <= LS_PLACE_COUNT);
    for (int32_t a = 0; a < instance->plan.n_arenas; a++) {
        const ls_plan_arena *arena = &instance->plan.arenas[a];
        const ls_arena_options wanted = describe_arena(options, arena);
        if (wanted.size_bytes == 0) continue;
        if (arena->place == LS_PLACE_HBM && ls_device_has_memory(instance->device)) {
            LS_TRY(ls_device_reserve(instance->device, arena->bytes, &instance->bases[a]));
            continue;
        }
        LS_TRY(ls_arena_open(&wanted, &instance->arenas[a]));
        const ls_arena_info info = ls_arena_describe(instance->arenas[a]);
        instance->bases[a] = info.base;
        /* No kernel reads a file in place, and registered it would all be pinned in memory. */
        if (arena->place == LS_PLACE_NVME) continue;
        LS_TRY(ls_device_attach(instance->device, info.base, info.size_bytes));
    }
    return LS_OK;
}

static ls_status reserve(const ls_instance_options *options, ls_instance *instance)
{
    LS_TRY(open_arenas(options, instance));
    instance->tickets = calloc((size_t)instance->plan.n_steps, sizeof *instance->tickets);
    instance->carry_tickets =
        calloc((size_t)instance->plan.n_carries + 1, sizeof *instance->carry_tickets);
    if (instance->tickets == NULL || instance->carry_tickets == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "tickets of %lld steps",
                       (long long)instance->plan.n_steps);
    return LS_OK;
}

static ls_status do_nothing(void *job, int64_t chunk)
{
    (void)job;
    (void)chunk;
    return LS_OK;
}

/* The optimizer's threads stay beside the memory that they read and write, one on each core. */
static ls_status open_device(const ls_instance_options *options, ls_instance *instance)
{
    ls_device_options device = {.n_lanes = LS_LANE_COUNT, .clock = options->clock};
    ls_device_opener *opener =
        options->open_device != NULL ? options->open_device : ls_device_open_cpu;
    ls_host_cores cores;

    for (int lane = 0; lane < LS_LANE_COUNT; lane++) {
        device.lane_threads[lane] = 1;
        device.lane_commands[lane] = lane == LS_LANE_COMPUTE ? COMPUTE_COMMANDS : OTHER_COMMANDS;
    }
    device.lane_threads[LS_LANE_COMPUTE] = options->compute_threads;
    device.lane_threads[LS_LANE_HOST] = options->optimizer_threads;
    device.lane_bytes_per_s[LS_LANE_COPY_IN] = options->in_bytes_per_s;
    device.lane_bytes_per_s[LS_LANE_COMPUTE] = options->in_bytes_per_s; /* batches */
    device.lane_bytes_per_s[LS_LANE_COPY_OUT] = options->out_bytes_per_s;
    device.lane_on_gpu[LS_LANE_COMPUTE] = true;
    device.lane_on_gpu[LS_LANE_COPY_IN] = device.lane_on_gpu[LS_LANE_COPY_OUT] = true;
    device.lane_on_gpu[LS_LANE_COMM] = true;
    if (options->bind) {
        LS_TRY(ls_host_cores_find("", options->host_node, NULL, &cores));
        device.lane_cores[LS_LANE_HOST] = &cores;
        if (options->optimizer_threads == 0) device.lane_threads[LS_LANE_HOST] = cores.n;
    }
    return opener(&device, &instance->device);
}

/* Whether the kernel of an op may be another one from call to call. */
static bool chooses_by_call(const ls_device *device)
{
    return ls_device_ops(device)->kernels_ran != NULL;
}

static ls_status open_parts(const ls_decoder_options *decoder_options,
                            const ls_instance_options *options, ls_instance *instance)
{
    LS_TRY(open_device(options, instance));
    LS_TRY(ls_decoder_build(decoder_options, &instance->decoder));
    LS_TRY(ls_plan_lower(&instance->decoder.tape, options->placement,
                         ls_device_ops(instance->device), &instance->plan));
    LS_TRY(ls_plan_check(&instance->plan, options->limits));
    LS_TRY(reserve(options, instance));
    for (int kind = 0; kind < LS_CALL_KIND_COUNT; kind++)
        instance->calls[kind] = options->calls[kind] != NULL ? options->calls[kind] : do_nothing;
    instance->executor = (ls_executor){
        .plan = &instance->plan,
        .device = instance->device,
        .arenas = instance->bases,
        .calls = instance->calls,
        .stop = options->stop,
        .stop_context = options->stop_context,
        .one_document = chooses_by_call(instance->device) ? options->one_document : NULL,
        .tickets = instance->tickets,
        .carry_tickets = instance->carry_tickets};
    return LS_OK;
}

ls_status ls_instance_open(const ls_decoder_options *decoder_options,
                           const ls_instance_options *options, ls_instance *instance)
{
    memset(instance, 0, sizeof *instance);
    const ls_status status = open_parts(decoder_options, options, instance);
    if (status != LS_OK) ls_instance_close(instance);
    return status;
}

void ls_instance_close(ls_instance *instance)
{
    if (instance == NULL) return;
    ls_device_close(instance->device);
    for (int a = 0; a < LS_PLACE_COUNT; a++) ls_arena_close(instance->arenas[a]);
    ls_plan_free(&instance->plan);
    ls_decoder_free(&instance->decoder);
    free(instance->tickets);
    free(instance->carry_tickets);
    memset(instance, 0, sizeof *instance);
}

ls_status ls_instance_fill_copies(ls_instance *instance)
{
    int64_t failed;

    for (int32_t t = 0; t < instance->plan.n_tensors; t++) {
        const ls_plan_tensor *tensor = &instance->plan.tensors[t];
        if (tensor->source < 0) continue;
        LS_TRY(ls_device_submit_copy(
            instance->device, LS_LANE_COPY_IN, -1, ls_instance_tensor(instance, t),
            ls_instance_tensor(instance, tensor->source), tensor->span.bytes));
    }
    return ls_device_sync(instance->device, &failed);
}

ls_status ls_instance_submit(ls_instance *instance, ls_segment_kind segment, void *job)
{
    return ls_executor_submit(&instance->executor, segment, job);
}

ls_status ls_instance_sync(ls_instance *instance)
{
    return ls_executor_sync(&instance->executor);
}

ls_status ls_instance_run(ls_instance *instance, ls_segment_kind segment, void *job)
{
    LS_TRY(ls_instance_submit(instance, segment, job));
    return ls_instance_sync(instance);
}

ls_lane_marks ls_instance_mark(const ls_instance *instance)
{
    ls_lane_marks marks;
    for (int lane = 0; lane < LS_LANE_COUNT; lane++)
        marks.tickets[lane] = ls_device_ticket(instance->device, lane);
    return marks;
}

void ls_instance_wait(ls_instance *instance, const ls_lane_marks *marks)
{
    for (int lane = 0; lane < LS_LANE_COUNT; lane++)
        ls_device_wait(instance->device, lane, marks->tickets[lane]);
}

void *ls_instance_tensor(const ls_instance *instance, int32_t tensor)
{
    return ls_executor_address(&instance->executor, tensor);
}

int32_t ls_instance_find_param(const ls_instance *instance, const char *name)
{
    const ls_decoder *d = &instance->decoder;
    for (int32_t i = 0; i < d->n_params; i++)
        if (strcmp(d->tape.tensors[d->params[i].weight].name, name) == 0) return i;
    return -1;
}
