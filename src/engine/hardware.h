/*
 * hardware.h - the machine that a run file asks for: its profile, its memory, how it is run.
 *
 * Layer: engine (uses topology).  Threads: plain data once open.
 */
#ifndef LS_HARDWARE_H
#define LS_HARDWARE_H

#include "device.h"
#include "plan.h"
#include "profile.h"

#define LS_HARDWARE_REASON_BYTES 256

typedef struct ls_hardware {
    ls_topology *topology;
    char profile[LS_NAME_BYTES];
    char profile_file[LS_NOTE_BYTES]; /* or "built in" */
    bool has_device; /* there is device memory that this build can use, or could on that machine */
    bool emulated;   /* it is carved from host memory */
    bool use_gpu;    /* it is a GPU of this machine, which computes */
    ls_device_opener *open_device;            /* that opens it; NULL: the CPU */
    const ls_ops *ops;                        /* that will run */
    bool is_elsewhere;                        /* not this machine: good for plans only */
    double in_bytes_per_s, out_bytes_per_s;   /* throttled copies; 0: as fast as they go */
    uint64_t available_bytes[LS_PLACE_COUNT]; /* a snapshot; UINT64_MAX: not known to be limited */
    const char *limit;                        /* what limits host memory: static text */
    char nvme_path[2 * LS_NOTE_BYTES];        /* the folder of the place nvme; "": there is none */
    int host_node; /* host memory is bound to this NUMA node, OS index; -1: it is not bound */
    char host_reason[LS_HARDWARE_REASON_BYTES]; /* why it is, or is not; "": no device memory */
    char note[LS_HARDWARE_REASON_BYTES];        /* for the user: a GPU that is not used; "" */
} ls_hardware;

/*
 * Look at what `hardware` of the run file names.
 *
 *   name      "auto", a profile's name or its file
 *   to_run    it must be this machine, and this build must be able to use it; else a profile of
 *             another machine is taken at its word
 *   hardware  [out] release with ls_hardware_close()
 *
 * `auto` on a machine whose GPU this build cannot use is the CPU, and `note` says so.  Returns
 * LS_OK; LS_ERR_INVALID (no such profile, or the machine contradicts it); LS_ERR_UNSUPPORTED
 * (to_run: a GPU this build cannot use); LS_ERR_IO; LS_ERR_NO_MEMORY.
 */
ls_status ls_hardware_open(const char *name, bool to_run, ls_hardware *hardware);

/*
 * Keep of its topology the rates of those attention kernels of a GPU that a run is expected to use,
 * if each sequence is one document: cuDNN's where sums may have any order and it is here, or the
 * machine is not; else those of our own.
 */
void ls_hardware_expect_kernels(bool any_order, ls_hardware *hardware);

/*
 * What opens this machine's GPU, the first that CUDA shows, and its ops.  LS_OK;
 * LS_ERR_UNSUPPORTED: this build or this machine's driver has none to compute on, and the text says
 * which.
 */
ls_status ls_hardware_find_gpu(ls_device_opener **opener, const ls_ops **ops);

/*
 * See what a machine has room for: device memory, host memory, and the node that holds it.
 *
 *   root      prefix of its /proc and /sys; "": this machine
 *   use_gpu   its GPU may be used, if it has a real one (topology.h: which)
 *   hardware  topology and is_elsewhere are read; the places, their room and the node are written
 *
 * Host memory is bound where device memory is real and Linux has other nodes to choose from; the
 * memory of a GPU that Linux lends to programs is never counted as the host's.
 */
void ls_hardware_find_room(const char *root, bool use_gpu, ls_hardware *hardware);

/* See which folder is the place nvme, and its room: what the disk has free, or on a machine that is
 * not here what the profile says; never more than the profile says. */
void ls_hardware_find_nvme(ls_hardware *hardware);

/*
 * Whether tensors may be placed there.
 *   key       of the run file, that asks for it
 *   hardware  NULL: there is no place but host memory
 * Returns LS_OK, LS_ERR_INVALID (no such place, no folder, or one that takes no file).
 */
ls_status ls_hardware_check_nvme(const ls_hardware *hardware, const char *key);

/* Whether that folder lies in memory itself (tmpfs), so that what is put there fills it. */
bool ls_hardware_nvme_is_memory(const ls_hardware *hardware);

/* NULL and a zeroed one are allowed. */
void ls_hardware_close(ls_hardware *hardware);

#endif
