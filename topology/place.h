/*
 * place.h - the kinds of memory a machine has, and which class of tensors lies in which.
 *
 * A trainer's tensors fall into classes (weights, moments, saved activations, ...).  The policy
 * gives each class a place and a mode, from what the machine is and what the user insists on:
 *
 *   place  mode      meaning
 *   hbm    direct    it lives in device memory
 *   host   direct    every unit reads and writes it in host memory, where it lies
 *   host   stream    it lives in host memory and passes through slots of device memory
 *   host   resident  it lives in host memory, with a copy in device memory that is kept fresh
 *   nvme   direct    the host reads and writes it in a file of a disk, mapped into its memory
 *   nvme   stream    it lives there and passes through slots of device memory
 *
 * The policy itself never chooses nvme: it is what the user insists on.
 *
 * Layers that are updated where they compute (device_layers) keep weights, master remainders and
 * moments in device memory, whatever their classes say; the originals in host memory are brought up
 * to date where somebody reads them, which is a checkpoint.
 *
 * Layer: topology (uses base).  Threads: plain data.
 */
#ifndef LS_PLACE_H
#define LS_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

typedef enum ls_place_kind {
    LS_PLACE_HBM = 0, /* device memory */
    LS_PLACE_HOST,    /* Grace LPDDR5X, or the DDR of one NUMA node */
    LS_PLACE_NVME,    /* a file in a folder of a disk, mapped as memory */
    LS_PLACE_COUNT
} ls_place_kind;

/* "hbm", "host", "nvme"; never NULL. */
const char *ls_place_name(ls_place_kind kind);

/* In the order of the model's roles (tape.h), which say what each of them is. */
typedef enum ls_tensor_class {
    LS_CLASS_WEIGHTS = 0,
    LS_CLASS_LO,
    LS_CLASS_M,
    LS_CLASS_V,
    LS_CLASS_GRAD,
    LS_CLASS_X,
    LS_CLASS_O,
    LS_CLASS_KV,
    LS_CLASS_DKV,
    LS_CLASS_CHUNK,
    LS_CLASS_LOGITS,
    LS_CLASS_BATCH,
    LS_CLASS_STAGING,
    LS_CLASS_COUNT
} ls_tensor_class;

/* "weights", "lo", ... as in the run file's memory.place; never NULL. */
const char *ls_class_name(ls_tensor_class class);

/*
 * A streamed class passes through slots whole, tensor by tensor, or cut into blocks of rows; only
 * cut may what is at work lie in host memory as well, so that device memory need not grow with the
 * sequence.
 */
typedef enum ls_place_mode {
    LS_MODE_DIRECT = 0,
    LS_MODE_STREAM,
    LS_MODE_RESIDENT,
    LS_MODE_COUNT
} ls_place_mode;

/* "direct", "stream", "resident"; never NULL. */
const char *ls_mode_name(ls_place_mode mode);

#define LS_PLACEMENT_REASON_BYTES 160
#define LS_RING_SLOTS_MIN         1 /* nothing is copied ahead: to see what a second one gains */
#define LS_RING_SLOTS_MAX         64
#define LS_LAYER_PLACES_MAX       64

typedef struct ls_class_placement {
    ls_place_kind place;
    ls_place_mode mode;
    char reason[LS_PLACEMENT_REASON_BYTES];
} ls_class_placement;

/* What layers first to last save for backward (x, o, kv) lies there, wherever its class does. */
typedef struct ls_layer_place {
    int32_t first, last;
    ls_place_kind place;
} ls_layer_place;

typedef struct ls_placement {
    bool has_device;       /* there is device memory; else everything is host, direct */
    bool coherent;         /* kernels read host memory at the link's rate: vectors stay there */
    int64_t ring_slots;    /* of streamed weights, in layers */
    bool serial_updates;   /* the next forward waits for all of them, not layer by layer */
    int64_t device_layers; /* the first so many are updated where they compute; 0: none */
    bool tiled[LS_CLASS_COUNT]; /* streamed in blocks of rows, what is at work included */
    int64_t
        tiles[LS_CLASS_COUNT]; /* blocks in device memory at once; at least what a kernel wants */
    ls_class_placement classes[LS_CLASS_COUNT];
    ls_layer_place layers[LS_LAYER_PLACES_MAX];
    int32_t n_layers; /* entries of layers, which share none */
} ls_placement;

/* Which activations pass through device memory in blocks of rows rather than whole. */
typedef enum ls_placement_cut {
    LS_CUT_NONE = 0,
    LS_CUT_X_O,    /* layer inputs and their gradient, attention outputs */
    LS_CUT_X_O_KV, /* keys, values and their gradients too: kernels meet them block by block */
    LS_CUT_COUNT
} ls_placement_cut;

/* What the user insists on. */
typedef struct ls_placement_wish {
    bool weights_given; /* else the policy chooses */
    ls_place_mode weights;
    const char *weights_reason; /* why they are given; NULL: memory.weights asks for it */
    int64_t ring_slots;         /* 0: the policy chooses */
    bool serial_updates;
    int64_t device_layers;
    bool place_given[LS_CLASS_COUNT];
    ls_place_kind places[LS_CLASS_COUNT];
    ls_layer_place layers[LS_LAYER_PLACES_MAX];
    int32_t n_layers;
    bool weights_too_large; /* resident weights have been found not to fit */
    ls_placement_cut cut;   /* whole activations have been found not to fit */
} ls_placement_wish;

struct ls_topology;

/* A disk is for what rests between uses: kernels of a device read nothing there in place.
 * LS_ERR_INVALID: why a class cannot lie there (the text begins with memory.place.CLASS). */
ls_status ls_place_check_nvme(ls_tensor_class class);

/*
 * Decide, from the machine's GPU (topology.h: which; emulated or not), its memory and its link;
 * machine NULL: there is none to be used.  Whether there is a disk to place anything on is not
 * looked at.  Returns LS_OK; LS_ERR_INVALID (a wish that makes no sense there: the text names the
 * key of the run file).
 */
ls_status ls_placement_decide(const struct ls_topology *machine, const ls_placement_wish *wish,
                              ls_placement *placement);

/* How a tensor of a class and a layer (-1: none) is placed: as its class is, or as its layer. */
const ls_class_placement *ls_placement_of(const ls_placement *placement, ls_tensor_class class,
                                          int32_t layer);

/* Whether updates of a layer's parameters (-1: of no layer) run where the layer computes. */
static inline bool ls_placement_updates(const ls_placement *placement, int32_t layer)
{
    return layer >= 0 && layer < placement->device_layers;
}

/* Everything in host memory, where the CPU reads it: a machine without device memory. */
void ls_placement_host(ls_placement *placement);

#endif
