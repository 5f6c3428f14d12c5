/* place.c - names, and the policy: which class of tensors lies where, and why. */
#include "place.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "topology.h"

const char *ls_place_name(ls_place_kind kind)
{
    static const char *const names[LS_PLACE_COUNT] = {"hbm", "host", "nvme"};
    assert((unsigned)kind < LS_PLACE_COUNT);
    return names[kind];
}

const char *ls_class_name(ls_tensor_class class)
{
    static const char *const names[LS_CLASS_COUNT] = {"weights", "lo",    "m",      "v",   "grad",
                                                      "x",       "o",     "kv",     "dkv", "chunk",
                                                      "logits",  "batch", "staging"};
    assert((unsigned)class < LS_CLASS_COUNT);
    return names[class];
}

const char *ls_mode_name(ls_place_mode mode)
{
    static const char *const names[LS_MODE_COUNT] = {"direct", "stream", "resident"};
    assert((unsigned)mode < LS_MODE_COUNT);
    return names[mode];
}

/* ---- the policy ---------------------------------------------------------------------------- */

/* Weights are copied one layer ahead while a layer computes and the one before is given up. */
#define RING_SLOTS 3

/* Where a class lies if nobody insists on anything. */
typedef struct rule {
    ls_place_kind place;
    ls_place_mode mode;
    const char *reason;
} rule;

static const rule rules_device[LS_CLASS_COUNT] = {
    [LS_CLASS_WEIGHTS] = {LS_PLACE_HOST, LS_MODE_STREAM, ""}, /* decided by itself */
    [LS_CLASS_LO] = {LS_PLACE_HOST, LS_MODE_DIRECT,
                     "lower halves of the master: only the host "
                     "optimizer reads them"},
    [LS_CLASS_M] = {LS_PLACE_HOST, LS_MODE_DIRECT, "only the host optimizer reads it"},
    [LS_CLASS_V] = {LS_PLACE_HOST, LS_MODE_DIRECT, "only the host optimizer reads it"},
    [LS_CLASS_GRAD] = {LS_PLACE_HOST, LS_MODE_STREAM,
                       "summed over a layer's chunks on the device, leaves once per layer"},
    [LS_CLASS_X] = {LS_PLACE_HOST, LS_MODE_STREAM,
                    "inputs of layers leave by the copy engine until backward wants them"},
    [LS_CLASS_O] = {LS_PLACE_HOST, LS_MODE_STREAM,
                    "kept: leaves by the copy engine until "
                    "backward"},
    [LS_CLASS_KV] = {LS_PLACE_HOST, LS_MODE_STREAM,
                     "kept: leaves by the copy engine until backward"},
    [LS_CLASS_DKV] = {LS_PLACE_HBM, LS_MODE_DIRECT, "sums over the blocks of one layer"},
    [LS_CLASS_CHUNK] = {LS_PLACE_HBM, LS_MODE_DIRECT, "rows of the chunk at work"},
    [LS_CLASS_LOGITS] = {LS_PLACE_HBM, LS_MODE_DIRECT, "one tile of rows at a time"},
    [LS_CLASS_BATCH] = {LS_PLACE_HOST, LS_MODE_STREAM,
                        "filled and read by the host, copied for "
                        "the kernels"},
    [LS_CLASS_STAGING] = {LS_PLACE_HBM, LS_MODE_DIRECT, "scratch of the unit that needs it"},
};

static const char *const reasons_host[LS_CLASS_COUNT] = {
    [LS_CLASS_WEIGHTS] = "the cpu reads them where they lie",
    [LS_CLASS_LO] = "the lower halves of the fp32 master",
    [LS_CLASS_M] = "updated in place",
    [LS_CLASS_V] = "updated in place",
    [LS_CLASS_GRAD] = "wait for the norm of all",
    [LS_CLASS_X] = "inputs of layers, kept for backward",
    [LS_CLASS_O] = "kept: attention is not recomputed",
    [LS_CLASS_KV] = "kept: q, k, v are not recomputed",
    [LS_CLASS_DKV] = "sums over the blocks of one layer",
    [LS_CLASS_CHUNK] = "rows of the chunk at work",
    [LS_CLASS_LOGITS] = "one tile of rows at a time",
    [LS_CLASS_BATCH] = "tokens, targets, tables, control",
    [LS_CLASS_STAGING] = "scratch of reductions and libraries",
};

static void set(ls_placement *p, ls_tensor_class class, ls_place_kind place, ls_place_mode mode,
                const char *reason)
{
    ls_class_placement *c = &p->classes[class];
    c->place = place;
    c->mode = mode;
    snprintf(c->reason, sizeof c->reason, "%s", reason);
}

void ls_placement_host(ls_placement *placement)
{
    memset(placement, 0, sizeof *placement);
    for (int c = 0; c < LS_CLASS_COUNT; c++)
        set(placement, (ls_tensor_class)c, LS_PLACE_HOST, LS_MODE_DIRECT, reasons_host[c]);
}

/* The best link from any host memory to it: NULL if none is known. */
static const ls_link *find_feed(const ls_topology *machine, const ls_place *device)
{
    const ls_link *feed = NULL;

    for (int i = 0; i < machine->n_links; i++) {
        const ls_link *link = &machine->links[i];
        if (strcmp(link->to, device->name) != 0) continue;
        if (feed == NULL || (feed->remote && !link->remote)) feed = link;
    }
    return feed;
}

static void place_weights(const ls_placement_wish *wish, ls_placement *p)
{
    ls_place_mode mode = wish->weights;
    const char *reason = "";

    if (wish->weights_given)
        reason = wish->weights_reason != NULL ? wish->weights_reason : "memory.weights asks for it";
    else if (wish->place_given[LS_CLASS_WEIGHTS] &&
             wish->places[LS_CLASS_WEIGHTS] == LS_PLACE_HBM) {
        mode = LS_MODE_RESIDENT;
        reason = "memory.place asks for it; the optimizer keeps the original in host memory";
    } else if (wish->weights_too_large) {
        mode = LS_MODE_STREAM;
        reason = "a copy of them all does not fit device memory beside the rest";
    } else {
        mode = LS_MODE_RESIDENT;
        reason = "a copy of them all fits device memory; each update refreshes it";
    }
    set(p, LS_CLASS_WEIGHTS, LS_PLACE_HOST, mode, reason);
}

/* Classes whose tensors the host works on itself. */
static bool host_works_on(ls_tensor_class class)
{
    return class == LS_CLASS_LO || class == LS_CLASS_M || class == LS_CLASS_V ||
           class == LS_CLASS_GRAD || class == LS_CLASS_BATCH;
}

static bool may_be_cut(ls_tensor_class class)
{
    return class == LS_CLASS_X || class == LS_CLASS_O || class == LS_CLASS_KV ||
           class == LS_CLASS_DKV;
}

static void cut_class(ls_placement *p, ls_tensor_class class)
{
    set(p, class, LS_PLACE_HOST, LS_MODE_STREAM,
        "whole it does not fit device memory beside the rest: passes in blocks of rows");
    p->tiled[class] = true;
}

static void cut_classes(const ls_placement_wish *wish, ls_placement *p)
{
    if (wish->cut == LS_CUT_NONE) return;
    cut_class(p, LS_CLASS_X);
    cut_class(p, LS_CLASS_O);
    if (wish->cut == LS_CUT_X_O) return;
    cut_class(p, LS_CLASS_KV);
    cut_class(p, LS_CLASS_DKV);
}

ls_status ls_place_check_nvme(ls_tensor_class class)
{
    static const char *const why_not[LS_CLASS_COUNT] = {
        [LS_CLASS_WEIGHTS] = "kernels read norms, and rows of embeddings, where weights lie",
        [LS_CLASS_CHUNK] = "it is at work all the time",
        [LS_CLASS_LOGITS] = "it is at work all the time",
        [LS_CLASS_BATCH] = "kernels read it where it lies",
        [LS_CLASS_STAGING] = "it is at work all the time",
    };

    if (why_not[class] == NULL) return LS_OK;
    return LS_FAIL(LS_ERR_INVALID, "memory.place.%s: nvme, but %s; allowed: hbm, host",
                   ls_class_name(class), why_not[class]);
}

static ls_status apply_place(const ls_placement_wish *wish, ls_tensor_class class, ls_placement *p)
{
    const ls_place_kind place = wish->places[class];
    const char *name = ls_class_name(class);

    if (!wish->place_given[class]) return LS_OK;
    if (place == LS_PLACE_NVME) LS_TRY(ls_place_check_nvme(class));
    if (class == LS_CLASS_WEIGHTS) return LS_OK;
    if (place == LS_PLACE_HBM && !p->has_device)
        return LS_FAIL(
            LS_ERR_INVALID,
            "memory.place.%s: hbm, but this hardware has no device memory; allowed: host", name);
    if (place == LS_PLACE_HBM && host_works_on(class))
        return LS_FAIL(LS_ERR_INVALID,
                       "memory.place.%s: hbm, but the host itself works on it; allowed: host%s",
                       name,
                       class >= LS_CLASS_LO && class <= LS_CLASS_V
                           ? " (optimizer.device_layers keeps some layers' there)"
                           : "");
    if (place != LS_PLACE_HBM && p->has_device && may_be_cut(class)) {
        set(p, class, place, LS_MODE_STREAM, "memory.place asks for it: passes in blocks of rows");
        p->tiled[class] = true;
    } else if (place == LS_PLACE_NVME) {
        set(p, class, place, p->classes[class].mode, "memory.place asks for it");
    } else if (place != p->classes[class].place) {
        set(p, class, place, LS_MODE_DIRECT, "memory.place asks for it");
        p->tiled[class] = false;
    }
    return LS_OK;
}

static ls_status apply_layers(const ls_placement_wish *wish, ls_placement *p)
{
    for (int32_t i = 0; i < wish->n_layers; i++)
        if (wish->layers[i].place == LS_PLACE_HBM && !p->has_device)
            return LS_FAIL(LS_ERR_INVALID,
                           "memory.save: place hbm of layers from %d on, but this hardware has no "
                           "device memory; allowed: host",
                           wish->layers[i].first);
    memcpy(p->layers, wish->layers, sizeof p->layers);
    p->n_layers = wish->n_layers;
    return LS_OK;
}

#define ASKED "memory.save asks for it"

const ls_class_placement *ls_placement_of(const ls_placement *placement, ls_tensor_class class,
                                          int32_t layer)
{
    static const ls_class_placement of_layers[2][LS_PLACE_COUNT] = {
        {[LS_PLACE_HBM] = {LS_PLACE_HBM, LS_MODE_DIRECT, ASKED},
         [LS_PLACE_HOST] = {LS_PLACE_HOST, LS_MODE_DIRECT, ASKED},
         [LS_PLACE_NVME] = {LS_PLACE_NVME, LS_MODE_DIRECT, ASKED}},
        {[LS_PLACE_HBM] = {LS_PLACE_HBM, LS_MODE_DIRECT, ASKED},
         [LS_PLACE_HOST] = {LS_PLACE_HOST, LS_MODE_STREAM, ASKED},
         [LS_PLACE_NVME] = {LS_PLACE_NVME, LS_MODE_STREAM, ASKED}},
    };
    const bool saved = class == LS_CLASS_X || class == LS_CLASS_O || class == LS_CLASS_KV;

    for (int32_t i = 0; i < placement->n_layers && saved; i++) {
        const ls_layer_place *range = &placement->layers[i];
        if (layer < range->first || layer > range->last) continue;
        return &of_layers[placement->has_device][range->place];
    }
    return &placement->classes[class];
}

/* Where there is device memory; else the layers' states lie with all others. */
static void keep_states(int64_t n_layers, ls_placement *p)
{
    p->device_layers = n_layers;
    if (n_layers == 0 || !p->has_device) return;
    for (ls_tensor_class c = LS_CLASS_LO; c <= LS_CLASS_V; c++)
        snprintf(p->classes[c].reason, sizeof p->classes[c].reason,
                 "of what the host updates; the first %lld layers have theirs in device memory and "
                 "leave a copy here for checkpoints",
                 (long long)n_layers);
}

static ls_status check_wish(const ls_placement_wish *wish, bool has_device)
{
    if (wish->ring_slots != 0 &&
        (wish->ring_slots < LS_RING_SLOTS_MIN || wish->ring_slots > LS_RING_SLOTS_MAX))
        return LS_FAIL(LS_ERR_INVALID, "memory.ring_slots: %lld; allowed: %d to %d",
                       (long long)wish->ring_slots, LS_RING_SLOTS_MIN, LS_RING_SLOTS_MAX);
    if (!has_device && wish->weights_given && wish->weights == LS_MODE_STREAM)
        return LS_FAIL(LS_ERR_INVALID,
                       "memory.weights: stream, but this hardware has no device memory to stream "
                       "into; allowed: auto, direct, resident, or hardware with device memory "
                       "(emulated-gh200)");
    return LS_OK;
}

ls_status ls_placement_decide(const ls_topology *machine, const ls_placement_wish *wish,
                              ls_placement *placement)
{
    const ls_place *device = machine != NULL ? ls_topology_find_device_memory(machine) : NULL;
    ls_placement p;

    LS_TRY(check_wish(wish, device != NULL));
    ls_placement_host(&p);
    p.serial_updates = wish->serial_updates;
    if (device != NULL) {
        const ls_link *feed = find_feed(machine, device);
        p.has_device = true;
        p.coherent = feed != NULL && ls_is_true(feed->coherent);
        p.ring_slots = wish->ring_slots > 0 ? wish->ring_slots : RING_SLOTS;
        for (int c = 0; c < LS_CLASS_COUNT; c++)
            set(&p, (ls_tensor_class)c, rules_device[c].place, rules_device[c].mode,
                rules_device[c].reason);
        place_weights(wish, &p);
        cut_classes(wish, &p);
    }
    for (int c = 0; c < LS_CLASS_COUNT; c++) LS_TRY(apply_place(wish, (ls_tensor_class)c, &p));
    LS_TRY(apply_layers(wish, &p));
    keep_states(wish->device_layers, &p);
    *placement = p;
    return LS_OK;
}
