/* instance.c - tape, plan, arena, device: opened in this order, closed in reverse. */
#include "instance.h"

#include <stdlib.h>
#include <string.h>

static ls_status reserve(ls_instance *instance)
{
    const ls_arena_options options = {
        .size_bytes = ls_plan_place_bytes(&instance->plan, LS_PLACE_HOST), .huge_pages = true};

    LS_TRY(ls_arena_open(&options, &instance->arena));
    instance->arena_base = ls_arena_describe(instance->arena).base;
    instance->tickets = calloc((size_t)instance->plan.n_steps, sizeof *instance->tickets);
    if (instance->tickets == NULL)
        return LS_FAIL(LS_ERR_NO_MEMORY, "tickets of %lld steps",
                       (long long)instance->plan.n_steps);
    return LS_OK;
}

static ls_status open_parts(const ls_decoder_options *decoder_options,
                            const ls_instance_options *options, ls_instance *instance)
{
    ls_device_options device = {.n_lanes = LS_LANE_COUNT};

    for (int lane = 0; lane < LS_LANE_COUNT; lane++) device.lane_threads[lane] = 1;
    device.lane_threads[LS_LANE_COMPUTE] = options->compute_threads;
    device.lane_threads[LS_LANE_HOST] = options->optimizer_threads;
    LS_TRY(ls_device_open_cpu(&device, &instance->device));
    LS_TRY(ls_decoder_build(decoder_options, &instance->decoder));
    LS_TRY(
        ls_plan_lower(&instance->decoder.tape, ls_device_ops(instance->device), &instance->plan));
    LS_TRY(reserve(instance));
    instance->executor = (ls_executor){.plan = &instance->plan,
                                       .device = instance->device,
                                       .arenas = &instance->arena_base,
                                       .batch = options->batch,
                                       .loss = options->loss,
                                       .stop = options->stop,
                                       .context = options->context,
                                       .tickets = instance->tickets};
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
    ls_arena_close(instance->arena);
    ls_plan_free(&instance->plan);
    ls_decoder_free(&instance->decoder);
    free(instance->tickets);
    memset(instance, 0, sizeof *instance);
}

ls_status ls_instance_run(ls_instance *instance, ls_segment_kind segment)
{
    return ls_executor_run(&instance->executor, segment);
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
